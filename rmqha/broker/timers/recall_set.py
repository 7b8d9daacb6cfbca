"""Pending recalls by the slot of their messages. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from heapq import heappop, heappush

from rmqha.broker.timers.message import Recall

_KEY_BYTES = 16
"""Bytes of a key's digest: a producer may choose a key of 30 KB."""


class RecallSet:
    def __init__(self) -> None:
        self._keys: dict[int, set[bytes]] = {}
        self._slots: list[int] = []
        """Heap of slots."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, recall: Recall) -> bool:
        keys = self._keys.get(recall.slot_ms)
        return keys is not None and _short(recall.key) in keys

    def has_slot(self, slot_ms: int) -> bool:
        return slot_ms in self._keys

    def add(self, recall: Recall) -> None:
        keys = self._keys.get(recall.slot_ms)
        if keys is None:
            keys = self._keys[recall.slot_ms] = set()
            heappush(self._slots, recall.slot_ms)
        self._count -= len(keys)
        keys.add(_short(recall.key))
        self._count += len(keys)

    def kept(self) -> dict[int, bytes]:
        """All recalls for `take`: digests of keys by slot."""
        return {slot_ms: b"".join(sorted(keys)) for slot_ms, keys in self._keys.items()}

    def take(self, kept: Mapping[int, bytes]) -> None:
        """Replace the recalls by those of `kept`. Raises ValueError if malformed."""
        self.clear()
        for slot_ms, keys in kept.items():
            if not keys or len(keys) % _KEY_BYTES:
                raise ValueError(f"{len(keys)} bytes are no keys of {_KEY_BYTES}")
            self._keys[slot_ms] = {keys[at : at + _KEY_BYTES] for at in range(0, len(keys), _KEY_BYTES)}
            self._count += len(self._keys[slot_ms])
            heappush(self._slots, slot_ms)

    def drop_below(self, slot_ms: int) -> None:
        """Drop recalls of slots below `slot_ms`."""
        while self._slots and self._slots[0] < slot_ms:
            self._count -= len(self._keys.pop(heappop(self._slots)))

    def clear(self) -> None:
        self._keys.clear()
        self._slots.clear()
        self._count = 0


def _short(key: bytes) -> bytes:
    return blake2b(key, digest_size=_KEY_BYTES).digest()
