"""The timer messages that wait, by the slot of their time: eight bytes each. Pure."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from heapq import heappop, heappush

_SPAN_BITS = 16
"""Slots of the same 65 s stand together until the first of them is asked for: a slot of its own costs as much as forty
messages."""
_OFFSET_BITS = 47
_OFFSET_MASK = (1 << _OFFSET_BITS) - 1
_SLOT_MASK = (1 << _SPAN_BITS) - 1
_NEVER_MS = 1 << 63


class _Slot:
    __slots__ = ("offsets", "taken_count")

    def __init__(self) -> None:
        self.offsets = array("q")
        self.taken_count = 0


class _Span:
    """Slots that come later, all in one: as many bits of the slot's time as spans leave, then the offset."""

    __slots__ = ("entries", "first_offset")

    def __init__(self, first_offset: int) -> None:
        self.entries = array("q")
        self.first_offset = first_offset


class WaitingTimers:
    """Offsets in the queue of the timer topic, in the order of (slot, offset)."""

    def __init__(self) -> None:
        self._slots: dict[int, _Slot] = {}
        self._times: list[int] = []
        """A heap of the slots' times."""
        self._spans: dict[int, _Span] = {}
        self._span_heap: list[int] = []
        self._near = -1
        """Slots of this span and of those below it stand alone."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Each (slot, offset), in no order."""
        for slot_ms, slot in self._slots.items():
            for offset in slot.offsets[slot.taken_count :]:
                yield slot_ms, offset
        for number, span in self._spans.items():
            for entry in span.entries:
                yield number << _SPAN_BITS | entry >> _OFFSET_BITS, entry & _OFFSET_MASK

    def add(self, slot_ms: int, queue_offset: int) -> None:
        """One that is not there. It costs most where it comes before others of its slot."""
        self._count += 1
        number = slot_ms >> _SPAN_BITS
        if number <= self._near:
            self._add_near(slot_ms, queue_offset)
            return
        span = self._spans.get(number)
        if span is None:
            span = self._spans[number] = _Span(queue_offset)
            heappush(self._span_heap, number)
        elif queue_offset < span.first_offset:
            span.first_offset = queue_offset
        span.entries.append((slot_ms & _SLOT_MASK) << _OFFSET_BITS | queue_offset)

    def _add_near(self, slot_ms: int, queue_offset: int) -> None:
        slot = self._slots.get(slot_ms)
        if slot is None:
            slot = self._slots[slot_ms] = _Slot()
            heappush(self._times, slot_ms)
        offsets = slot.offsets
        if not offsets or offsets[-1] < queue_offset:
            offsets.append(queue_offset)
        else:
            offsets.insert(bisect_left(offsets, queue_offset, slot.taken_count), queue_offset)

    def take(self, until_ms: int, count: int) -> list[tuple[int, int]]:
        """The first `count` (slot, offset) of slots up to `until_ms`; they wait no more."""
        taken: list[tuple[int, int]] = []
        while len(taken) < count:
            if not self._times and self._span_heap and self._span_heap[0] <= until_ms >> _SPAN_BITS:
                self._open_span()
            if not self._times or self._times[0] > until_ms:
                break
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

    def _open_span(self) -> None:
        self._near = heappop(self._span_heap)
        for entry in self._spans.pop(self._near).entries:
            self._add_near(self._near << _SPAN_BITS | entry >> _OFFSET_BITS, entry & _OFFSET_MASK)

    def take_all(self) -> list[tuple[int, int]]:
        last_span = ((max(self._span_heap) + 1) << _SPAN_BITS) if self._span_heap else 0
        return self.take(max([last_span, *self._times]), self._count)

    def first_slot_ms(self) -> int:
        """The first slot that waits, or a time below it that is above all slots taken; a time that never comes if
        nothing waits."""
        if self._times:
            return self._times[0]
        return self._span_heap[0] << _SPAN_BITS if self._span_heap else _NEVER_MS

    def first_offset(self) -> int | None:
        """The lowest offset that waits. Looks at each slot and span."""
        near = min((slot.offsets[slot.taken_count] for slot in self._slots.values()), default=None)
        firsts = [span.first_offset for span in self._spans.values()]
        return min(firsts if near is None else [near, *firsts], default=None)

    def clear(self) -> None:
        self._slots.clear()
        self._times.clear()
        self._spans.clear()
        self._span_heap.clear()
        self._near = -1
        self._count = 0
