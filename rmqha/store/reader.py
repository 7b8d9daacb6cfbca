"""Data plane: what consumers ask of the queues. Views into the log, no copies.

Answers follow RocketMQ's getMessage and PullMessageProcessor (formats.md §16).
"""

from __future__ import annotations

from dataclasses import dataclass

from rmqha.model.code import ResponseCode
from rmqha.model.offset import QueueOffset
from rmqha.store.commit_log import CommitLog
from rmqha.store.consume_queue import PREFILL_SIZE, UNIT, ConsumeQueue, ConsumeQueues
from rmqha.store.record import BadRecordError, locate

MAX_FILTERED_COUNT = 16_000
"""Entries that one pull looks at before it answers RETRY_IMMEDIATELY."""


@dataclass(frozen=True, slots=True)
class PullResult:
    """`records` are whole records back to back in the log's own bytes. FOUND is SUCCESS (0)."""

    status: ResponseCode
    next_begin_offset: QueueOffset
    min_offset: QueueOffset
    max_offset: QueueOffset
    records: list[memoryview]


class Reader:
    """Reads what has been dispatched."""

    def __init__(self, log: CommitLog, queues: ConsumeQueues) -> None:
        self._log = log
        self._queues = queues

    def queue_range(self, topic: str, queue_id: int) -> tuple[QueueOffset, QueueOffset]:
        queue = self._queues.get(topic, queue_id)
        if queue is None:
            return QueueOffset(0), QueueOffset(0)
        return QueueOffset(queue.min_offset(self._log.min_offset)), QueueOffset(queue.max_offset)

    def pull(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        max_bytes: int,
        tags_codes: frozenset[int] | None,
    ) -> PullResult:
        low, high = self.queue_range(topic, queue_id)
        queue = self._queues.get(topic, queue_id)
        if queue is None or high == 0:
            status = ResponseCode.PULL_NOT_FOUND if offset == 0 else ResponseCode.PULL_OFFSET_MOVED
            return PullResult(status, QueueOffset(0), low, high, [])
        if offset < low:
            return PullResult(ResponseCode.PULL_OFFSET_MOVED, low, low, high, [])
        if offset == high:
            return PullResult(ResponseCode.PULL_NOT_FOUND, high, low, high, [])
        if offset > high:
            return PullResult(ResponseCode.PULL_OFFSET_MOVED, high, low, high, [])
        records, next_offset = self._collect(queue, offset, max(1, max_count), max_bytes, tags_codes)
        status = ResponseCode.SUCCESS if records else ResponseCode.PULL_RETRY_IMMEDIATELY
        return PullResult(status, QueueOffset(next_offset), low, high, records)

    def _collect(
        self, queue: ConsumeQueue, offset: int, max_count: int, max_bytes: int, tags_codes: frozenset[int] | None
    ) -> tuple[list[memoryview], int]:
        """Records from `offset`, and the entry to go on with. The first record is given whatever its size."""
        records: list[memoryview] = []
        total = 0
        last = min(queue.max_offset, offset + max(MAX_FILTERED_COUNT, max_count))
        log_min, view_of = self._log.min_offset, self._log.view
        while offset < last and len(records) < max_count:
            count = last - offset if tags_codes is not None else min(last - offset, max_count - len(records))
            for position, size, code in UNIT.iter_unpack(queue.units_view(offset, count)):
                wanted = size != PREFILL_SIZE and position >= log_min and (tags_codes is None or code in tags_codes)
                if wanted:
                    if records and total + size > max_bytes:
                        return records, offset
                    records.append(view_of(position, size))
                    total += size
                offset += 1
                if len(records) >= max_count:
                    break
        return records, offset

    def record_at(self, phy_offset: int) -> memoryview | None:
        """The whole record that starts at `phy_offset`, None if none does."""
        if not self._log.min_offset <= phy_offset < self._log.end_offset:
            return None
        view, file_start, end = self._log.file_view(phy_offset)
        at = phy_offset - file_start
        try:
            size = locate(view, at, end, phy_offset)[0]
        except BadRecordError:
            return None
        return view[at : at + size]

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> QueueOffset:
        """The first entry whose record was stored at `timestamp_ms` or later; the queue's max if none was."""
        low, high = (int(bound) for bound in self.queue_range(topic, queue_id))
        queue = self._queues.get(topic, queue_id)
        while queue is not None and low < high:
            middle = (low + high) // 2
            if self._stored_at(queue.unit(middle)[0]) < timestamp_ms:
                low = middle + 1
            else:
                high = middle
        return QueueOffset(low)

    def _stored_at(self, phy_offset: int) -> int:
        view, file_start, end = self._log.file_view(phy_offset)
        return locate(view, phy_offset - file_start, end, phy_offset)[10]
