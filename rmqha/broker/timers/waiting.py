"""Waiting timer messages by the slot of their time: ten bytes each. Pure."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import NamedTuple

SPAN_BITS = 16
"""Bits of a span of 65 s, whose slots are stored together until the first of them is needed: a slot of its own costs as
much as forty messages."""
_OFFSET_BITS = 47
MAX_OFFSET = 1 << _OFFSET_BITS
_OFFSET_MASK = (1 << _OFFSET_BITS) - 1
_NEVER_MS = 1 << 63
_SLOT_MASK = (1 << SPAN_BITS) - 1
_TOPIC_BITS = 16
_TOPIC_MASK = (1 << _TOPIC_BITS) - 1


class TimerEntry(NamedTuple):
    """Entry of the timer topic's queue, with the number of its topic (`TopicNumbers`)."""

    slot_ms: int
    offset: int
    topic: int = 0


class Span(NamedTuple):
    """Entries of one span for a file: `first_offset` is the lowest offset, the rest is as in memory."""

    number: int
    first_offset: int
    entries: bytes
    topics: bytes


class _Slot:
    __slots__ = ("items", "taken_count")

    def __init__(self) -> None:
        self.items = array("q")
        """Each item has the offset, then the bits of the topic."""
        self.taken_count = 0


class _Span:
    """Later slots in one array: each item has the bits of the slot's time within the span, then the offset."""

    __slots__ = ("entries", "first_offset", "topics")

    def __init__(self, first_offset: int) -> None:
        self.entries = array("q")
        self.topics = array("H")
        self.first_offset = first_offset


class WaitingTimers:
    """Entries in the order of (slot, offset), and their number by topic."""

    def __init__(self) -> None:
        self._slots: dict[int, _Slot] = {}
        self._times: list[int] = []
        """Heap of the slots' times."""
        self._spans: dict[int, _Span] = {}
        self._span_heap: list[int] = []
        self._near = -1
        """Number of the last span whose slots are stored separately."""
        self._count = 0
        self.topic_counts: dict[int, int] = {}

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Each (slot, offset), in no order."""
        for slot_ms, slot in self._slots.items():
            for item in slot.items[slot.taken_count :]:
                yield slot_ms, item >> _TOPIC_BITS
        for number, span in self._spans.items():
            for entry in span.entries:
                yield number << SPAN_BITS | entry >> _OFFSET_BITS, entry & _OFFSET_MASK

    def add(self, slot_ms: int, queue_offset: int, topic: int = 0) -> None:
        """Add a new entry. The cost is highest before other entries of its slot."""
        self._count += 1
        self.topic_counts[topic] = self.topic_counts.get(topic, 0) + 1
        number = slot_ms >> SPAN_BITS
        if number <= self._near:
            self._add_near(slot_ms, queue_offset << _TOPIC_BITS | topic)
            return
        span = self._spans.get(number)
        if span is None:
            span = self._spans[number] = _Span(queue_offset)
            heappush(self._span_heap, number)
        elif queue_offset < span.first_offset:
            span.first_offset = queue_offset
        span.entries.append((slot_ms & _SLOT_MASK) << _OFFSET_BITS | queue_offset)
        span.topics.append(topic)

    def _add_near(self, slot_ms: int, item: int) -> None:
        slot = self._slots.get(slot_ms)
        if slot is None:
            slot = self._slots[slot_ms] = _Slot()
            heappush(self._times, slot_ms)
        items = slot.items
        if not items or items[-1] < item:
            items.append(item)
        else:
            items.insert(bisect_left(items, item, slot.taken_count), item)

    def take(self, until_ms: int, count: int) -> list[TimerEntry]:
        """Take the first `count` entries of slots up to `until_ms`."""
        taken: list[TimerEntry] = []
        while len(taken) < count:
            if not self._times and self._span_heap and self._span_heap[0] <= until_ms >> SPAN_BITS:
                self._open_span()
            if not self._times or self._times[0] > until_ms:
                break
            slot_ms = self._times[0]
            slot = self._slots[slot_ms]
            begin = slot.taken_count
            end = min(len(slot.items), begin + count - len(taken))
            for item in slot.items[begin:end]:
                topic = item & _TOPIC_MASK
                self.topic_counts[topic] -= 1
                taken.append(TimerEntry(slot_ms, item >> _TOPIC_BITS, topic))
            slot.taken_count = end
            if end == len(slot.items):
                del self._slots[slot_ms]
                heappop(self._times)
        self._count -= len(taken)
        return taken

    def _open_span(self) -> None:
        self._near = heappop(self._span_heap)
        span = self._spans.pop(self._near)
        for entry, topic in zip(span.entries, span.topics, strict=True):
            item = (entry & _OFFSET_MASK) << _TOPIC_BITS | topic
            self._add_near(self._near << SPAN_BITS | entry >> _OFFSET_BITS, item)

    def take_all(self) -> list[TimerEntry]:
        last_span = ((max(self._span_heap) + 1) << SPAN_BITS) if self._span_heap else 0
        return self.take(max([last_span, *self._times]), self._count)

    def first_slot_ms(self) -> int:
        """Lower bound of the first waiting slot that is above all taken slots; a time that never comes if nothing
        waits."""
        if self._times:
            return self._times[0]
        return self._span_heap[0] << SPAN_BITS if self._span_heap else _NEVER_MS

    def first_offset(self) -> int | None:
        """Lowest waiting offset; reads each slot and span."""
        near = min((slot.items[slot.taken_count] >> _TOPIC_BITS for slot in self._slots.values()), default=None)
        firsts = [span.first_offset for span in self._spans.values()]
        return min(firsts if near is None else [near, *firsts], default=None)

    def due_slot_ms(self, until_ms: int) -> int | None:
        """Time of the first slot, None if it is after `until_ms`."""
        if not self._times and self._span_heap and self._span_heap[0] <= until_ms >> SPAN_BITS:
            self._open_span()
        return self._times[0] if self._times and self._times[0] <= until_ms else None

    def counts_by(self, step_ms: int, topic: int | None, counts: dict[int, int]) -> Iterator[None]:
        """Add the number of entries in each `step_ms` to `counts`, by the begin of the step; of all topics, or of one.
        Done in slices: entries that come or go meanwhile may count or not."""
        for slot_ms in list(self._slots):
            slot = self._slots.get(slot_ms)
            if slot is not None:
                number = len(slot.items) - slot.taken_count
                if topic is not None:
                    number = sum(item & _TOPIC_MASK == topic for item in slot.items[slot.taken_count :])
                _count(counts, slot_ms // step_ms * step_ms, number)
                yield
        for number in list(self._spans):
            span = self._spans.get(number)
            if span is None:
                continue
            for entry, its_topic in zip(span.entries[:], span.topics[:], strict=True):
                if topic is None or topic == its_topic:
                    slot_ms = number << SPAN_BITS | entry >> _OFFSET_BITS
                    _count(counts, slot_ms // step_ms * step_ms, 1)
            yield

    def spans(self) -> list[Span]:
        """All entries for `add_span`."""
        near: dict[int, _Span] = {}
        for slot_ms, slot in self._slots.items():
            for item in slot.items[slot.taken_count :]:
                offset = item >> _TOPIC_BITS
                span = near.setdefault(slot_ms >> SPAN_BITS, _Span(offset))
                span.first_offset = min(span.first_offset, offset)
                span.entries.append((slot_ms & _SLOT_MASK) << _OFFSET_BITS | offset)
                span.topics.append(item & _TOPIC_MASK)
        return [
            Span(number, span.first_offset, span.entries.tobytes(), span.topics.tobytes())
            for found in (near, self._spans)
            for number, span in found.items()
        ]

    def add_span(self, kept: Span) -> None:
        """Add a span to an instance that lacks it and from which nothing was taken. Raises ValueError."""
        if kept.number in self._spans or kept.number <= self._near:
            raise ValueError(f"span {kept.number} is there twice")
        span = _Span(kept.first_offset)
        span.entries.frombytes(kept.entries)
        span.topics.frombytes(kept.topics)
        if not span.entries or len(span.entries) != len(span.topics):
            raise ValueError(f"span {kept.number} has {len(span.entries)} entries and {len(span.topics)} topics")
        if min(span.entries) < 0:
            raise ValueError(f"span {kept.number} has a negative entry")
        self._spans[kept.number] = span
        self._span_heap.append(kept.number)
        heapify(self._span_heap)
        self._count += len(span.entries)
        for topic, count in Counter(span.topics).items():
            self.topic_counts[topic] = self.topic_counts.get(topic, 0) + count

    def clear(self) -> None:
        self._slots.clear()
        self._times.clear()
        self._spans.clear()
        self._span_heap.clear()
        self.topic_counts.clear()
        self._near = -1
        self._count = 0


class TopicNumbers:
    """Numbers of topics, below 2^16; topics beyond the last number share it."""

    OTHERS = _TOPIC_MASK

    def __init__(self, names: list[bytes] | None = None) -> None:
        self.names: list[bytes] = names or []
        self._numbers = {name: number for number, name in enumerate(self.names)}

    def of(self, name: bytes) -> int:
        number = self._numbers.get(name)
        if number is None:
            if len(self.names) == self.OTHERS:
                return self.OTHERS
            number = self._numbers[name] = len(self.names)
            self.names.append(name)
        return number

    def name(self, number: int) -> str:
        """Name of a topic; "" for a number without one."""
        return self.names[number].decode("utf-8", "replace") if number < len(self.names) else "(others)"

    def find(self, name: bytes) -> int | None:
        """Number of a topic; None if nothing has waited for it."""
        return self._numbers.get(name)


def _count(counts: dict[int, int], at: int, number: int) -> None:
    if number:
        counts[at] = counts.get(at, 0) + number
