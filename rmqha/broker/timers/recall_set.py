"""Pending recalls by the slot of their messages, and the time up to which all recalls are known. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from hashlib import blake2b
from heapq import heappop, heappush

from rmqha.broker.services.schedule import ScheduleLog
from rmqha.broker.timers.message import TIMER_QUEUE_ID, Recall
from rmqha.model.message import TIMER_TOPIC
from rmqha.model.principal import MARK_CHARS

_KEY_BYTES = 16
"""Bytes of a key's digest: a producer may choose a key of 30 KB."""
_NOBODY = bytes(MARK_CHARS)


class RecallSet:
    def __init__(self) -> None:
        self._keys: dict[int, dict[bytes, bytes]] = {}
        """By slot: the account whose share a recall counts for (`Principal.mark`), by key."""
        self._slots: list[int] = []
        """Heap of slots."""
        self._counts: Counter[bytes] = Counter()
        """By account."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, recall: Recall) -> bool:
        keys = self._keys.get(recall.slot_ms)
        return keys is not None and _short(recall.key) in keys

    def has_slot(self, slot_ms: int) -> bool:
        return slot_ms in self._keys

    def count_of(self, mark: bytes) -> int:
        """Number of recalls that count for an account; b"": for nobody."""
        return self._counts[mark]

    def add(self, recall: Recall, mark: bytes = b"") -> None:
        """Add a recall. The first one of a message counts, for the account of that mark."""
        keys = self._keys.get(recall.slot_ms)
        if keys is None:
            keys = self._keys[recall.slot_ms] = {}
            heappush(self._slots, recall.slot_ms)
        key = _short(recall.key)
        if key not in keys:
            keys[key] = mark
            self._counts[mark] += 1
            self._count += 1

    def kept(self) -> dict[int, bytes]:
        """All recalls for `take`: digests of keys by slot."""
        return {slot_ms: b"".join(sorted(keys)) for slot_ms, keys in self._keys.items()}

    def kept_marks(self) -> dict[int, bytes]:
        """Accounts of the recalls of `kept`, in their order, of slots where any counts for one."""
        return {
            slot_ms: b"".join(keys[key] or _NOBODY for key in sorted(keys))
            for slot_ms, keys in self._keys.items()
            if any(keys.values())
        }

    def take(self, kept: Mapping[int, bytes], marks: Mapping[int, bytes] | None = None) -> None:
        """Replace the recalls by those of `kept`. Raises ValueError if malformed."""
        self.clear()
        for slot_ms, keys in kept.items():
            if not keys or len(keys) % _KEY_BYTES:
                raise ValueError(f"{len(keys)} bytes are no keys of {_KEY_BYTES}")
            names = [keys[at : at + _KEY_BYTES] for at in range(0, len(keys), _KEY_BYTES)]
            found = (marks or {}).get(slot_ms, _NOBODY * len(names))
            if len(found) != MARK_CHARS * len(names):
                raise ValueError(f"{len(found)} bytes are not the accounts of {len(names)} recalls")
            accounts = [found[at : at + MARK_CHARS] for at in range(0, len(found), MARK_CHARS)]
            of_slot = self._keys[slot_ms] = {
                key: b"" if mark == _NOBODY else mark for key, mark in zip(names, accounts, strict=True)
            }
            self._counts.update(of_slot.values())
            self._count += len(of_slot)
            heappush(self._slots, slot_ms)

    def drop_below(self, slot_ms: int) -> None:
        """Drop recalls of slots below `slot_ms`."""
        while self._slots and self._slots[0] < slot_ms:
            keys = self._keys.pop(heappop(self._slots))
            self._count -= len(keys)
            self._counts -= Counter(keys.values())

    def clear(self) -> None:
        self._keys.clear()
        self._slots.clear()
        self._counts.clear()
        self._count = 0


class KnownTime:
    """Time up to which all stored timer messages have been read. A message may be recalled until its time: it is
    delivered only after everything stored before has been read, since that may contain its recall."""

    def __init__(self, log: ScheduleLog) -> None:
        self._log = log
        self.forget()

    def forget(self) -> None:
        self.ms = 0
        """Wall time (ms) before which all stored entries have been read, unless the clock is set back."""
        self._mark_ms = self._mark_phy_offset = 0
        self._mark_queue_end: int | None = None

    def check(self, taken_offset: int, now_ms: int) -> None:
        """Take note that entries below `taken_offset` have been read. Call it often: it detects a clock that is set
        back."""
        if not self._mark_ms or now_ms < self._mark_ms:
            self._set_mark(now_ms)
        self.ms = min(self.ms, now_ms)
        if self._is_reached(taken_offset):
            self.ms = self._mark_ms
            self._set_mark(now_ms)
            if self._is_reached(taken_offset):
                self.ms = now_ms

    def _set_mark(self, now_ms: int) -> None:
        self._mark_ms, self._mark_phy_offset, self._mark_queue_end = now_ms, self._log.max_phy_offset, None

    def _is_reached(self, taken_offset: int) -> bool:
        if self._mark_queue_end is None:
            # half a record at a slave's end is cut when it becomes master, and nobody may send for long
            if self._log.dispatched_offset < min(self._mark_phy_offset, self._log.max_phy_offset):
                return False
            self._mark_queue_end = self._log.queue_range(TIMER_TOPIC, TIMER_QUEUE_ID)[1]
        return taken_offset >= self._mark_queue_end


def _short(key: bytes) -> bytes:
    return blake2b(key, digest_size=_KEY_BYTES).digest()
