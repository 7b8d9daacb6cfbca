"""The timer messages that wait, by the slot of their time: eight bytes each. Pure."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from heapq import heappop, heappush


class _Slot:
    __slots__ = ("offsets", "taken_count")

    def __init__(self) -> None:
        self.offsets = array("q")
        self.taken_count = 0


class WaitingTimers:
    """Offsets in the queue of the timer topic, in the order of (slot, offset)."""

    def __init__(self) -> None:
        self._slots: dict[int, _Slot] = {}
        self._times: list[int] = []
        """A heap of the slots' times."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, slot_ms: int, queue_offset: int) -> None:
        """One that is not there. It costs most where it comes before others of its slot."""
        slot = self._slots.get(slot_ms)
        if slot is None:
            slot = self._slots[slot_ms] = _Slot()
            heappush(self._times, slot_ms)
        offsets = slot.offsets
        if not offsets or offsets[-1] < queue_offset:
            offsets.append(queue_offset)
        else:
            offsets.insert(bisect_left(offsets, queue_offset, slot.taken_count), queue_offset)
        self._count += 1

    def take(self, until_ms: int, count: int) -> list[tuple[int, int]]:
        """The first `count` (slot, offset) of slots up to `until_ms`; they wait no more."""
        taken: list[tuple[int, int]] = []
        while self._times and self._times[0] <= until_ms and len(taken) < count:
            slot_ms = self._times[0]
            slot = self._slots[slot_ms]
            begin = slot.taken_count
            end = min(len(slot.offsets), begin + count - len(taken))
            taken += [(slot_ms, offset) for offset in slot.offsets[begin:end]]
            slot.taken_count = end
            if end == len(slot.offsets):
                del self._slots[slot_ms]
                heappop(self._times)
        self._count -= len(taken)
        return taken

    def take_all(self) -> list[tuple[int, int]]:
        return self.take(max(self._times, default=0), self._count)

    def first_offset(self) -> int | None:
        """The lowest offset that waits. Looks at each slot."""
        return min((slot.offsets[slot.taken_count] for slot in self._slots.values()), default=None)

    def clear(self) -> None:
        self._slots.clear()
        self._times.clear()
        self._count = 0
