"""Search for a key in a topic's own queues, where others' keys stand before it in the index. Data plane.

Anybody who may send can put as many keys of the same hash before another's. How long this search takes depends on the
messages of the one topic alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import Protocol

from rmqha.model.offset import QueueOffset
from rmqha.store.cold_range import Bounds, ColdRange
from rmqha.store.index.wanted import Wanted
from rmqha.store.log.record import BadRecordError, locate
from rmqha.store.queue.dispatcher import DispatchedRecord
from rmqha.store.reader import Unit

QUEUE_WALK_COUNT = 100_000
"""Messages that one search reads."""
QUEUE_STEP_COUNT = 32
"""Messages of one step. It ends early behind one that had to be read from the disk."""
QUEUE_STEP_BYTES = 64 * 1024
"""Bytes of properties after which a step ends."""
RANGES_PER_STEP = 4
"""Queues whose range is searched for in one step."""
UNITS_AT_A_TIME = 64
MAX_UNITS = 4096
"""Queue entries that a search keeps in memory, unless it has more queues."""


class QueuesOfTopics(Protocol):
    """Port to the queues; `Store` is one."""

    def queue_range(self, topic: str, queue_id: int) -> tuple[QueueOffset, QueueOffset]: ...

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> QueueOffset: ...

    def units(self, topic: str, queue_id: int, offset: int, count: int) -> list[Unit]: ...

    def memory_bounds(self, topic: str, queue_id: int, offset: int, count: int) -> Bounds | ColdRange: ...

    def record_at(self, phy_offset: int) -> memoryview | None: ...


class QueueSearch:
    """One search, in steps, from the newest message to the oldest."""

    def __init__(self, log: QueuesOfTopics, queue_ids: Iterable[int], wanted: Wanted, last_timestamp_ms: int) -> None:
        """`last_timestamp_ms`: time of the newest message."""
        self._log = log
        self._wanted = wanted
        self._last_timestamp_ms = last_timestamp_ms
        self._unknown = list(queue_ids)
        """Queues whose range is not known yet."""
        self._units_at_a_time = max(1, min(UNITS_AT_A_TIME, MAX_UNITS // max(1, len(self._unknown))))
        self._lows: dict[int, int] = {}
        self._units: dict[int, list[Unit]] = {}
        """Next entries of each queue, the newest last."""
        self._heads: list[tuple[int, int, int]] = []
        """Heap of (−physical offset, queue id, queue offset): the newest entry of each queue that is left."""
        self._passed = 0
        self._found: list[tuple[int, int, int]] = []
        """Physical offset, queue id and queue offset of what is given."""
        self.is_complete = bool(self._unknown)

    def step(self) -> bool:
        """Go on; True if it is over. Raises StoreError."""
        if self._unknown:
            for queue_id in self._unknown[:RANGES_PER_STEP]:
                self._begin(queue_id)
            del self._unknown[:RANGES_PER_STEP]
            if not self._unknown:
                heapify(self._heads)
            return False
        left_bytes = QUEUE_STEP_BYTES
        for _ in range(QUEUE_STEP_COUNT):
            if not self._heads or len(self._found) >= self._wanted.max_count:
                return True
            if self._passed == QUEUE_WALK_COUNT:
                self.is_complete = False
                return True
            self._passed += 1
            place, queue_id, queue_offset = heappop(self._heads)
            if isinstance(self._log.memory_bounds(self._wanted.topic, queue_id, queue_offset, 1), ColdRange):
                left_bytes = 0
            view, size_bytes = self._compared(-place, queue_id, queue_offset)
            left_bytes -= size_bytes
            if view is not None:
                self._found.append((-place, queue_id, queue_offset))
            if (head := self._head(queue_id, queue_offset - 1)) is not None:
                heappush(self._heads, head)
            if left_bytes <= 0:
                break
        return False

    def records(self) -> list[memoryview]:
        """The messages that were found, the newest first, in the log's own bytes. They are compared again: the log may
        have been cut since, and filled with others."""
        views = (self._compared(*place)[0] for place in self._found)
        return [view for view in views if view is not None]

    def _begin(self, queue_id: int) -> None:
        """Find the part of the queue that was stored in the range of times."""
        topic, begin_ms, end_ms = self._wanted.topic, self._wanted.begin_ms, self._wanted.end_ms
        low, high = (int(bound) for bound in self._log.queue_range(topic, queue_id))
        if low < high and begin_ms > 0:
            low = int(self._log.offset_by_time(topic, queue_id, begin_ms))
        if low < high and end_ms < self._last_timestamp_ms:
            high = int(self._log.offset_by_time(topic, queue_id, end_ms + 1))
        self._lows[queue_id] = low
        if (head := self._head(queue_id, high - 1)) is not None:
            self._heads.append(head)

    def _head(self, queue_id: int, queue_offset: int) -> tuple[int, int, int] | None:
        """Entry at that offset for the heap, None if it is not to be read."""
        low, units = self._lows[queue_id], self._units.setdefault(queue_id, [])
        if queue_offset < low:
            return None
        if not units:
            first = max(low, queue_offset - self._units_at_a_time + 1)
            units += self._log.units(self._wanted.topic, queue_id, first, queue_offset - first + 1)
            if len(units) != queue_offset - first + 1:
                self.is_complete = False  # a queue of batches, or what it begins with was removed
                units.clear()
                return None
        phy_offset, _, _ = units.pop()
        return -phy_offset, queue_id, queue_offset

    def _compared(self, phy_offset: int, queue_id: int, queue_offset: int) -> tuple[memoryview | None, int]:
        """The record of a queue's entry if it is wanted, else None; and the size (bytes) of its properties."""
        view = self._log.record_at(phy_offset)
        if view is None:
            return None, 0
        try:
            parts = locate(view, 0, len(view), phy_offset)
        except BadRecordError:
            return None, 0
        size, flag, own_id, own_offset, _, _, topic_at, topic_size, at, properties_size, stored = parts
        topic = str(view[topic_at : topic_at + topic_size], "utf-8", "replace")
        properties = bytes(view[at : at + properties_size])
        record = DispatchedRecord(phy_offset, size, topic, own_id, own_offset, flag, stored, properties)
        is_wanted = (own_id, own_offset) == (queue_id, queue_offset) and self._wanted.matches(record)
        return (view if is_wanted else None), properties_size
