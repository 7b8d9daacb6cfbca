"""Data plane: whether a record really starts at an offset that somebody names.

Bytes that look like a record prove nothing: a body may hold a whole one, with the right offset in it. What proves it is
an entry of a queue, for entries are made of real records only, or a walk over the records from one that is known.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any, NamedTuple

from rmqha.model.error import DamagedError
from rmqha.store.integrity.damage import DamageTable
from rmqha.store.log.commit_log import CommitLog
from rmqha.store.log.record import BadRecordError, Record, decode, verify
from rmqha.store.queue.batch_consume_queue import BatchConsumeQueues
from rmqha.store.queue.consume_queue import ConsumeQueue, ConsumeQueues
from rmqha.store.queue.dispatch_service import DispatchService, bad_record, walk

MAX_WALK_COUNT = 1024
"""Records that one question passes over, about a millisecond's work; what it has found shortens the next one's way."""
MAX_OLD_WALK_COUNT = 32
"""Most records to walk among those that have been dispatched: only those of a kind that no queue takes are found so,
which RocketMQ has not stored since 4.3, and anybody can name an offset that is none."""
LANDMARK_COUNT = 64
"""One record of so many that are passed over is remembered."""
MAX_LANDMARKS = 1024


class _Units(Sequence[int]):
    """Physical offsets of a queue's entries, which rise."""

    def __init__(self, queue: ConsumeQueue) -> None:
        self._queue = queue

    def __len__(self) -> int:
        return self._queue.max_offset - self._queue.first_offset

    def __getitem__(self, index: Any) -> Any:
        return self._queue.unit(self._queue.first_offset + index)[0]


class StoredRecord(NamedTuple):
    """A record of the log. `data` are its bytes there, which `record.body` shows as well."""

    record: Record
    data: memoryview


class RecordStarts:
    """Check whether a record starts at an offset. Call `forget` whenever bytes of the log may become others."""

    def __init__(
        self,
        log: CommitLog,
        queues: ConsumeQueues,
        batch_queues: BatchConsumeQueues,
        dispatch_service: DispatchService,
        damage: DamageTable,
    ) -> None:
        """A record that is damaged is told to `damage`."""
        self._log = log
        self._queues = queues
        self._batch_queues = batch_queues
        self._dispatch_service = dispatch_service
        self._damage = damage
        self._landmarks: list[int] = []
        """Starts of records that no queue has yet, ascending."""

    def at(self, phy_offset: int) -> StoredRecord | None:
        """The record that starts at `phy_offset`, with CRCs that hold; None if none does, or if it cannot be told."""
        log = self._log
        if not log.min_offset <= phy_offset < log.end_offset:
            return None
        view, file_start, end = log.file_view(phy_offset)
        at = phy_offset - file_start
        try:
            record = decode(view, at, end=end)
            if record.phy_offset != phy_offset or not (self.has_entry(record) or self._is_reached(phy_offset)):
                return None
        except BadRecordError:
            return None
        try:
            verify(view, at, end, phy_offset)
        except BadRecordError as error:
            self._damage.found(bad_record(log, phy_offset, error, record.size_bytes))
            return None
        return StoredRecord(record, view[at : at + record.size_bytes])

    def size_of(self, phy_offset: int) -> int | None:
        """Size of the record that starts there, damaged or not: by its queue's entry, 0 if it has none yet. None if no
        record starts there. The call searches every queue: for questions that are seldom asked."""
        if phy_offset >= self._dispatch_service.position:
            return 0 if phy_offset < self._log.end_offset and self._is_reached(phy_offset) else None
        for queue in self._queues.table.values():
            at = bisect_left(_Units(queue), phy_offset)
            if at < queue.max_offset - queue.first_offset:
                found, size, _ = queue.unit(queue.first_offset + at)
                if found == phy_offset:
                    return size
        for batch_queue in self._batch_queues.table.values():
            index = batch_queue.index_at(phy_offset)
            if index < batch_queue.end_index and batch_queue.unit(index).phy_offset == phy_offset:
                return batch_queue.unit(index).size_bytes
        return None

    def forget(self, end_offset: int) -> None:
        """Forget records behind `end_offset`, to which the log is cut."""
        del self._landmarks[bisect_left(self._landmarks, end_offset) :]

    def has_entry(self, record: Record) -> bool:
        """True if the queue that the record names has it where it says, and nothing else."""
        place = record.phy_offset, record.size_bytes
        batch_queue = self._batch_queues.get(record.topic, record.queue_id)
        if batch_queue is not None:
            index = batch_queue.index_of(record.queue_offset)
            if index == batch_queue.end_index:
                return False
            unit = batch_queue.unit(index)
            return (unit.phy_offset, unit.size_bytes, unit.base_offset) == (*place, record.queue_offset)
        queue = self._queues.get(record.topic, record.queue_id)
        if queue is None or not queue.first_offset <= record.queue_offset < queue.max_offset:
            return False
        return queue.unit(record.queue_offset)[:2] == place

    def _is_reached(self, phy_offset: int) -> bool:
        """True if the records from the nearest known one on lead to it. Known are those where files begin, where
        dispatch goes on, and some that were passed over before."""
        landmarks, dispatched = self._landmarks, self._dispatch_service.position
        del landmarks[: bisect_left(landmarks, dispatched)]
        most = MAX_WALK_COUNT
        if phy_offset < dispatched:
            start, most = self._log.file_start(phy_offset), MAX_OLD_WALK_COUNT
        else:
            place = bisect_right(landmarks, phy_offset)
            start = landmarks[place - 1] if place else dispatched
        try:
            for count, (position, _, _, parts) in enumerate(walk(self._log, start, self._log.end_offset)):
                if position >= phy_offset:
                    return position == phy_offset and parts is not None
                if count == most:
                    self._remember(position)
                    return False
                if count and count % LANDMARK_COUNT == 0:
                    self._remember(position)
        except DamagedError:
            return False  # dispatch meets the same bytes, and tells
        return False

    def _remember(self, position: int) -> None:
        landmarks = self._landmarks
        place = bisect_left(landmarks, position)
        if position >= self._dispatch_service.position and landmarks[place : place + 1] != [position]:
            landmarks.insert(place, position)
            if len(landmarks) > MAX_LANDMARKS:
                del landmarks[::2]
