"""Data plane: from the CommitLog into what is derived from it, and the table of next queue offsets.

Only whole records below the confirm offset are dispatched, so a consumer never sees an undecided one. Named after
RocketMQ's ReputMessageService.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from rmqha.kernel.batch_kernel import BatchKernel, LogBlock
from rmqha.model.error import DamagedError
from rmqha.port import Tracer
from rmqha.store.log.commit_log import CommitLog
from rmqha.store.log.record import (
    BLANK,
    MAGIC_BLANK,
    SYS_COMMIT,
    SYS_INNER_BATCH,
    SYS_TRANSACTION,
    BadRecordError,
    Located,
    locate,
    message_count,
)
from rmqha.store.meta.problem import damaged
from rmqha.store.queue.dispatch_cache import DispatchCache
from rmqha.store.queue.dispatcher import CommitLogDispatcher, DispatchedBlock, DispatchedRecord, DispatchedRun

MAX_MADE_COUNT = 2
"""New queues of one batch: each makes directories and a file, which takes a millisecond, ten on a busy disk."""
_BLOCK_BYTES, _BLOCK_COUNT, _BLOCK_QUEUE_COUNT = 64 * 1024, 1024, 1024
_WALKED_COUNT = 64
"""Records that are read by themselves before a block is tried again."""
_TOPIC = re.compile(r"[%|a-zA-Z0-9_\-]{1,255}", re.ASCII)
_CHOICES = "remove this replica's store and let it copy the group's, if another replica has this record whole"


def valid_topic(topic: str) -> bool:
    """RocketMQ's rule for a topic's characters; it also keeps a topic from leaving its directory."""
    return _TOPIC.fullmatch(topic) is not None


def walk(log: CommitLog, position: int, end_offset: int) -> Iterator[tuple[int, memoryview, int, Located | None]]:
    """(position, file view, index, parts) of each whole record in [position, end_offset); parts is None for a blank
    one. Ends before a record that is not whole. Raises StoreError for bytes that are no record."""
    while position < end_offset:
        view, file_start, file_end = log.file_view(position)
        at, end = position - file_start, min(file_end, end_offset - file_start)
        while end - at >= 8:
            size, magic = BLANK.unpack_from(view, at)
            if size > end - at and size <= len(view) - at:
                return
            if magic == MAGIC_BLANK and size == len(view) - at:
                yield file_start + at, view, at, None
                at = len(view)
                break
            try:
                parts = locate(view, at, end, file_start + at)
            except BadRecordError as error:
                raise bad_record(log, file_start + at, error) from None
            yield file_start + at, view, at, parts
            at += size
        if at < len(view):
            return
        position = file_start + at


def bad_record(log: CommitLog, position: int, error: BadRecordError, size_bytes: int = 0) -> DamagedError:
    """The error for bytes at `position` that are no record. `size_bytes`: of the record by its queue's entry, 0 if none
    was asked."""
    expected, _, found = str(error).removeprefix("expected ").partition(", found ")
    at = position - log.file_start(position)
    return damaged(log.disk, log.file_path(position), at, expected, found, _CHOICES, position, size_bytes)


class QueueOffsets:
    """The next queue offset of each queue, as an append needs it.

    It covers the log below `covered`. Where the queues themselves cover as much, they are the table; only records that
    stand in the log without being dispatched are remembered here. A slave's table so follows its dispatch, and a cut
    forgets what was ahead (apache/rocketmq 7689: no queue offset is given twice).
    """

    def __init__(self, log: CommitLog, queue_end: Callable[[tuple[str, int]], int]) -> None:
        """`queue_end` gives the offset behind the last one that the queues themselves hold, 0 for a new queue."""
        self._log = log
        self._queue_end = queue_end
        self.next: dict[tuple[str, int], int] = {}
        self.dispatch_cache = DispatchCache()
        """Remembered records that this broker has appended itself."""
        self.covered = 0
        self._base = 0
        self.last_store_timestamp_ms = 0

    def dispatched(self, covered: int) -> None:
        """Note that the queues hold every record below `covered`."""
        self.next.clear()
        self.covered = self._base = covered

    def take_from_queues(self, covered: int) -> None:
        """Forget what is remembered of the log, whose bytes may be others now; the queues hold all below `covered`."""
        self.dispatched(covered)
        self.dispatch_cache.clear()

    def forget(self) -> None:
        """Forget the remembered offsets, as an append failed half-way: what stands in the log must be read again."""
        self.take_from_queues(self._base)

    def next_for(self, key: tuple[str, int]) -> int:
        """The next queue offset of a queue; its own end is remembered at first use. `cover` must have been called."""
        found = self.next.get(key)
        if found is None:
            found = self.next[key] = self._queue_end(key)
        return found

    def cover(self) -> int:
        """Read the records from `covered` to the log's end. Returns the end of the last whole one."""
        for position, view, at, parts in walk(self._log, self.covered, self._log.end_offset):
            if parts is None:
                self.covered = position + len(view) - at
                continue
            size, sys_flag, queue_id, queue_offset, _, _, topic_at, topic_size, properties_at, _, stored = parts
            if sys_flag & SYS_TRANSACTION in (0, SYS_COMMIT):
                key = (str(view[topic_at : topic_at + topic_size], "utf-8", "replace"), queue_id)
                count = 1
                if sys_flag & SYS_INNER_BATCH:
                    count = self._count(position, sys_flag, view[properties_at : at + size])
                self.next[key] = max(self.next_for(key), queue_offset + count)
            self.last_store_timestamp_ms = max(self.last_store_timestamp_ms, stored)
            self.covered = position + size
        return self.covered

    def _count(self, position: int, sys_flag: int, properties: memoryview) -> int:
        try:
            return message_count(sys_flag, bytes(properties))
        except BadRecordError as error:
            raise bad_record(self._log, position, error) from None


class DispatchService:
    """Moves `position` (the dispatched offset) towards the confirm offset: each record goes to every `derived`."""

    def __init__(
        self,
        log: CommitLog,
        derived: Sequence[CommitLogDispatcher],
        cached: DispatchCache,
        tracer: Tracer,
        kernel: BatchKernel | None = None,
        *,
        is_keyed: bool = False,
    ) -> None:
        """Make a service for all of `derived`. Without a kernel each record is read by itself. `is_keyed`: one of
        `derived` needs the keys of records that are read in the log."""
        self._is_keyed = is_keyed
        self.scans_in_bulk = kernel is not None and kernel.scans_in_bulk
        """No other way to dispatch much is as fast as this one's."""
        self._log = log
        self._kernel = kernel
        self._derived = derived
        self._first = derived[0]
        self._pending = cached.follow()
        self._others = cached
        self._passed_on: list[DispatchedBlock] = []
        """Blocks of this batch that those behind this one find with the entries that they need."""
        self._tracer = tracer
        self.position = 0
        self.last_store_timestamp_ms = 0
        self._topics: dict[bytes, str | None] = {}
        """Topic bytes to the topic; None for one that no directory may be named after."""

    def whole_below(self, end_offset: int) -> int:
        """End of the last whole record at or below `end_offset`. Raises StoreError for bytes that are no record."""
        position = self.position
        for start, view, at, parts in walk(self._log, position, end_offset):
            position = start + (len(view) - at if parts is None else parts[0])
        return position

    def dispatch(self, end_offset: int, limit_bytes: int) -> bool:
        """Dispatch about `limit_bytes` of log below `end_offset`. True if whole records remain.

        Raises StoreError; then nothing of this batch counts and it may be done again."""
        stop, more = self.position + limit_bytes, False
        try:
            position = self._collect_cached(stop, end_offset)
            goes_on = True
            while goes_on:
                position = self._collect_blocks(position, min(stop, end_offset))
                position, more, goes_on = self._collect_records(position, stop, end_offset)
            for derived in self._derived:
                derived.write()
            if self._passed_on:
                self._others.pass_on(self._passed_on)
        finally:
            self._passed_on = []
            for derived in self._derived:
                derived.forget()
        self.position = position
        self._pending.forget_below(position)
        return more

    def _collect_cached(self, stop: int, end_offset: int) -> int:
        """Collect from `position` on the records that need not be read in the log; returns where they end."""
        cached, collects, position = self._pending, [derived.collect for derived in self._derived], self.position
        cached.forget_below(position)
        while cached and self._first.to_make_count < MAX_MADE_COUNT:
            item = cached[0]
            start = item[0]
            if start > position or start >= stop:
                break
            if isinstance(item, DispatchedRun):
                count = item.count_to(stop, end_offset)
                if not count:
                    break
                item = cached.take_part(item, count)
                for derived in self._derived:
                    derived.collect_run(item)
            elif isinstance(item, DispatchedBlock):
                room = MAX_MADE_COUNT - self._first.to_make_count
                if start + item.size_bytes > end_offset or self._first.missing_count(item) > room:
                    break  # read in the log as far as it goes
                cached.take()
                for derived in self._derived:
                    derived.collect_block(item)
            else:
                if start + item[1] > end_offset:
                    break
                cached.popleft()
                cached.record_count -= 1
                for collect in collects:
                    collect(item)
            if item[6] > self.last_store_timestamp_ms:
                self.last_store_timestamp_ms = item[6]
            position = start + item[1]
        return position

    def _collect_blocks(self, position: int, stop: int) -> int:
        """Collect plain records that end at or below `stop`, many at a time; returns where the last one ends."""
        kernel = self._kernel
        if kernel is None:
            return position
        wanted = -1 if self._is_keyed else self._others.end_offset()
        while position < stop:
            is_wanted = position == (self._passed_on[-1].end_offset if self._passed_on else wanted)
            block = self._scanned(kernel, position, stop, _BLOCK_QUEUE_COUNT, is_keyed=is_wanted)
            room = MAX_MADE_COUNT - self._first.to_make_count
            if block is not None and self._first.missing_count(block) > room:
                block = self._scanned(kernel, position, stop, room, is_keyed=is_wanted) if room else None
            if block is None:
                break
            for derived in self._derived:
                derived.collect_block(block)
            if is_wanted:
                self._passed_on.append(block)
            self.last_store_timestamp_ms = max(self.last_store_timestamp_ms, block.store_timestamp_ms)
            position += block.size_bytes
        return position

    def _scanned(
        self, kernel: BatchKernel, position: int, stop: int, queue_count: int, *, is_keyed: bool
    ) -> DispatchedBlock | None:
        """Plain records from `position` on, of so many queues at most; None if the first one is none of them.
        `is_keyed`: somebody else needs their keys too."""
        view, file_start, file_end = self._log.file_view(position)
        at = position - file_start
        end = min(file_end, stop - file_start, at + _BLOCK_BYTES)
        found = kernel.scan(
            LogBlock(bytes(view[at:end]), position, _BLOCK_COUNT, queue_count, is_keyed or self._is_keyed)
        )
        if not found.store_timestamps_ms:
            return None
        bounds, runs, entries, stamps = found
        return DispatchedBlock(position, bounds[-1] - position, runs, entries, len(stamps), bounds, max(stamps), stamps)

    def _collect_records(self, position: int, stop: int, end_offset: int) -> tuple[int, bool, bool]:
        """Collect records one by one: where the last one ends; True if whole records remain for a later batch; True if
        it is time to try a block again."""
        count = 0
        for start, view, at, parts in walk(self._log, position, end_offset):
            if start >= stop or self._first.to_make_count >= MAX_MADE_COUNT:
                return position, True, False
            if count == _WALKED_COUNT and self._kernel is not None:
                return position, False, True
            count += 1
            if parts is None:
                position = start + len(view) - at
                continue
            self._collect(start, view, parts)
            position = start + parts[0]
        return position, False, False

    def _collect(self, start: int, view: memoryview, parts: Located) -> None:
        size, sys_flag, queue_id, queue_offset, _, _, topic_at, topic_size, properties_at, properties_size, stored = (
            parts
        )
        if stored > self.last_store_timestamp_ms:
            self.last_store_timestamp_ms = stored
        name = bytes(view[topic_at : topic_at + topic_size])
        topic = self._topics[name] if name in self._topics else self.topic(name, start)
        if topic is None:
            return
        if queue_id < 0 or queue_offset < 0:
            raise bad_record(
                self._log,
                start,
                BadRecordError(f"expected queueId and queueOffset from 0, found {queue_id} and {queue_offset}"),
            )
        properties = bytes(view[properties_at : properties_at + properties_size])
        record = DispatchedRecord(start, size, topic, queue_id, queue_offset, sys_flag, stored, properties)
        for derived in self._derived:
            derived.collect(record)

    def topic(self, name: bytes, start: int) -> str | None:
        """The topic of a record's topic bytes; None, and an event with the record's offset at the first time, if no
        directory may be named after it."""
        if name in self._topics:
            return self._topics[name]
        topic: str | None = name.decode("utf-8", "replace")
        if not valid_topic(str(topic)):
            self._tracer.event("topic_not_queued", topic=str(topic)[:255], phy_offset=start)
            topic = None
        self._topics[name] = topic
        return topic
