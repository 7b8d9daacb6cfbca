"""Data plane: reads of consumers, queue by queue. Answers are views into the log, no copies.

Answers follow RocketMQ's getMessage and PullMessageProcessor (formats.md §16).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple, Protocol, cast

from rmqha.kernel.batch_kernel import BatchKernel, PulledUnits
from rmqha.model.code import ResponseCode
from rmqha.model.error import DamagedError
from rmqha.model.offset import QueueOffset
from rmqha.store.cold_range import NO_BOUNDS, Bounds, ColdRange, loader, memory_bounds
from rmqha.store.integrity.damage import DamageTable
from rmqha.store.log.commit_log import CommitLog
from rmqha.store.log.mapped_file import MappedFiles, file_name, nothing
from rmqha.store.log.record import (
    SYS_INNER_BATCH,
    BadRecordError,
    Record,
    decode,
    decode_sound,
    is_sound,
    locate,
    plain_properties,
    verify,
)
from rmqha.store.meta.problem import damaged
from rmqha.store.queue.batch_consume_queue import DIRECTORY as BATCH_DIRECTORY
from rmqha.store.queue.batch_consume_queue import UNIT_BYTES, BatchConsumeQueue, BatchConsumeQueues
from rmqha.store.queue.consume_queue import DIRECTORY as QUEUE_DIRECTORY
from rmqha.store.queue.consume_queue import PREFILL_SIZE, UNIT, ConsumeQueue, ConsumeQueues
from rmqha.store.queue.dispatch_service import bad_record

_SIZE = _SYS_FLAG = struct.Struct(">i")
_SYS_FLAG_AT = 36
_NO_QUEUE = QueueOffset(0), QueueOffset(0)
FEW_COUNT = 4
"""Entries that cost no more one by one than a call of the kernel does (12 us)."""
MAX_FILTERED_COUNT = 2_000
"""Entries that one pull checks before it answers RETRY_IMMEDIATELY: a millisecond's work. RocketMQ: 800."""


class DiskLimits(NamedTuple):
    """Bounds on what a pull gets of records below `end_offset`: they are too old to be in memory."""

    end_offset: int = 0
    max_count: int = 0
    max_bytes: int = 0


NO_DISK_LIMITS: Final = DiskLimits()


class PullResult(NamedTuple):
    """Answer to a pull. `records` are whole records in the log's own bytes, each by itself or, in a joined pull, those
    that follow each other in the log as one view. FOUND is SUCCESS (0)."""

    status: ResponseCode
    next_begin_offset: QueueOffset
    min_offset: QueueOffset
    max_offset: QueueOffset
    records: list[memoryview]
    remark: str = ""
    """The reason why nothing can be given, for another status than those of RocketMQ's pull."""
    is_repaired_soon: bool = False
    """True if nothing can be given now: the record is damaged, and a replica is asked for it."""
    record_count: int = 0
    cold_range: ColdRange | None = None
    """Part that must be read into memory before anything can be given (`Reader.loader`); None without one."""


MAX_MATCHED_COUNT = 1000
"""Most messages of a pull that checks each record itself."""


def _most_entries(max_count: int, tags_codes: frozenset[int] | None, matches: RecordPredicate | None) -> int:
    """Most entries that a pull checks."""
    if tags_codes is not None:
        return max(MAX_FILTERED_COUNT, max_count)
    return max(1, max_count) if matches is None else max(MAX_MATCHED_COUNT, max_count)


class RecordPredicate(Protocol):
    """A test that is True if a record is wanted. `is_spent`: one pull asks it no more."""

    @property
    def is_spent(self) -> bool: ...

    def __call__(self, record: memoryview) -> bool: ...


IsWhole = Callable[[Record], bool]
"""Test that is True if a record has what each of its kind was written with, which no CRC covers."""


Unit = tuple[int, int, int]
"""A unit of a queue: physical offset, size, tagsCode."""


def any_record(record: Record) -> bool:
    return True


def _apart(run: memoryview) -> Iterator[memoryview]:
    """Records that follow each other, each of which has been found sound."""
    at = 0
    while at < len(run):
        (size,) = _SIZE.unpack_from(run, at)
        yield run[at : at + size]
        at += size


class Reader:
    """Reads what has been dispatched."""

    def __init__(
        self,
        log: CommitLog,
        queues: ConsumeQueues,
        batch_queues: BatchConsumeQueues,
        damage: DamageTable,
        kernel: BatchKernel | None = None,
    ) -> None:
        """Make a reader. `damage` is told of what is damaged, and an error is raised. Without a kernel each record is
        checked by itself."""
        self._kernel = kernel
        self._damage = damage
        self._log = log
        self._queues = queues
        self._batch_queues = batch_queues
        self.begins: Mapping[str, Mapping[int, int]] = {}
        """First offsets of queues, by topic and queue id, where they are told: whatever stands in front is hidden."""

    def _low(self, queue: ConsumeQueue | BatchConsumeQueue) -> int:
        """The first offset of what may be seen."""
        low = queue.min_offset(self._log.min_offset)
        if self.begins and (begins := self.begins.get(queue.topic)):
            return max(low, min(begins.get(queue.queue_id, 0), queue.max_offset))
        return low

    def _queue(self, topic: str, queue_id: int) -> ConsumeQueue | BatchConsumeQueue | None:
        return self._batch_queues.get(topic, queue_id) or self._queues.get(topic, queue_id)

    def queue_range(self, topic: str, queue_id: int) -> tuple[QueueOffset, QueueOffset]:
        key = topic, queue_id
        batches = self._batch_queues.table  # mostly empty
        queue = (batches.get(key) if batches else None) or self._queues.table.get(key)
        if queue is None:
            return _NO_QUEUE
        return cast("tuple[QueueOffset, QueueOffset]", (self._low(queue), queue.max_offset))

    def queue_ends(self, topic: str, queue_ids: Iterable[int]) -> list[int]:
        """The second number of `queue_range` for each of them, at a third of the cost."""
        batches, find = self._batch_queues.table, self._queues.table.get
        if batches:
            return [self.queue_range(topic, queue_id)[1] for queue_id in queue_ids]
        return [0 if (queue := find((topic, queue_id))) is None else queue.max_offset for queue_id in queue_ids]

    def pull(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        max_bytes: int,
        tags_codes: frozenset[int] | None,
        matches: RecordPredicate | None = None,
        on_disk: DiskLimits = NO_DISK_LIMITS,
        *,
        joined: bool = False,
        from_memory: bool = False,
    ) -> PullResult:
        batches, key = self._batch_queues.table, (topic, queue_id)
        queue = (batches.get(key) if batches else None) or self._queues.table.get(key)
        if queue is None or queue.max_offset == 0:
            status = ResponseCode.PULL_NOT_FOUND if offset == 0 else ResponseCode.PULL_OFFSET_MOVED
            return PullResult(status, QueueOffset(0), *self.queue_range(topic, queue_id), [])
        low, high = QueueOffset(self._low(queue)), QueueOffset(queue.max_offset)
        if offset < low:
            return PullResult(ResponseCode.PULL_OFFSET_MOVED, low, low, high, [])
        if offset == high:
            return PullResult(ResponseCode.PULL_NOT_FOUND, high, low, high, [])
        if offset > high:
            return PullResult(ResponseCode.PULL_OFFSET_MOVED, high, low, high, [])
        bounds = NO_BOUNDS
        if from_memory and not isinstance(queue, BatchConsumeQueue):
            found = memory_bounds(self._log, queue, offset, _most_entries(max_count, tags_codes, matches))
            if isinstance(found, ColdRange):
                status = ResponseCode.PULL_RETRY_IMMEDIATELY
                return PullResult(status, QueueOffset(offset), low, high, [], cold_range=found)
            bounds = found
        filters = tags_codes, matches, on_disk
        try:
            if isinstance(queue, BatchConsumeQueue):
                records, next_offset = self._collect_batches(queue, offset, max_count, max_bytes, *filters)
                count = len(records)
            else:
                given = queue, offset, max(1, max_count), max_bytes
                records, count, next_offset = self._collect(*given, *filters, bounds)
                if count > len(records) and not joined:
                    records = [record for run in records for record in _apart(run)]
        except DamagedError as error:
            self._damage.found(error)
            raise
        status = ResponseCode.SUCCESS if records else ResponseCode.PULL_RETRY_IMMEDIATELY
        return PullResult(status, QueueOffset(next_offset), low, high, records, record_count=count)

    def memory_bounds(self, topic: str, queue_id: int, offset: int, count: int) -> Bounds | ColdRange:
        queue = self._queues.table.get((topic, queue_id))
        low, high = self.queue_range(topic, queue_id)
        if queue is None or not low <= offset < high:
            return NO_BOUNDS
        return memory_bounds(self._log, queue, offset, count)

    def loader(self, topic: str, queue_id: int, cold: ColdRange) -> Callable[[], None]:
        queue = self._queues.table.get((topic, queue_id))
        return nothing if queue is None else loader(self._log, queue, cold)

    def _collect(
        self,
        queue: ConsumeQueue,
        offset: int,
        max_count: int,
        max_bytes: int,
        tags_codes: frozenset[int] | None,
        matches: RecordPredicate | None,
        on_disk: DiskLimits,
        bounds: Bounds,
    ) -> tuple[list[memoryview], int, int]:
        """Records from `offset`, joined as far as the kernel has found them, their number, and the entry to go on with.
        The first record is given whatever its size. Raises DamagedError if the first entry or its record is not what
        was written."""
        records: list[memoryview] = []
        total, taken, topic = 0, 0, queue.topic.encode()
        most = MAX_FILTERED_COUNT if matches is None else MAX_MATCHED_COUNT
        last, log_end = min(queue.max_offset, offset + max(most, max_count), bounds.last), bounds.log_end
        queue_id, first = queue.queue_id, offset
        count = last - offset if tags_codes is not None else min(last - offset, max_count)
        if self._kernel is not None and matches is None and count > FEW_COUNT:
            units = queue.units_view(offset, count)
            wanted = PulledUnits(units, topic, queue_id, offset, max_count, max_bytes, *on_disk, tags_codes)
            view, start, end = self._file_view(UNIT.unpack_from(units)[0])
            seen_end = max(0, min(end, log_end - start))
            runs, taken, seen_count, total, is_full = self._kernel.collect(view[:seen_end], start, wanted)
            records = [view[at : at + size] for at, size in runs]
            offset += seen_count
            if is_full:
                return records, taken, offset
        view, start, end = memoryview(b""), 0, 0
        while offset < last and taken < max_count:
            count = last - offset if tags_codes is not None else min(last - offset, max_count - taken)
            for position, size, code in UNIT.iter_unpack(queue.units_view(offset, count)):
                if size != PREFILL_SIZE and (tags_codes is None or code in tags_codes):
                    if records and (
                        total + size > max_bytes
                        or (
                            position < on_disk.end_offset
                            and (total + size > on_disk.max_bytes or taken >= on_disk.max_count)
                        )
                    ):
                        return records, taken, offset
                    if position + size > log_end and offset > first:
                        return records, taken, offset
                    at = position - start
                    if at < 0 or at + size > end:
                        view, start, end = self._file_view(position)
                        at = position - start
                    record = view[at : at + size]
                    if at + size > end or not is_sound(record, position, size, topic, queue_id, offset):
                        if records:
                            return records, taken, offset
                        raise self._unsound(position, size) or self._damaged(queue, offset)
                    if matches is None or matches(record):
                        records.append(record)
                        total += size
                        taken += 1
                offset += 1
                if taken >= max_count or (matches is not None and matches.is_spent):
                    return records, taken, offset
        return records, taken, offset

    def _file_view(self, phy_offset: int) -> tuple[memoryview, int, int]:
        """View as `CommitLog.file_view` gives it; no bytes for an offset that is not in the log."""
        if self._log.min_offset <= phy_offset < self._log.end_offset:
            return self._log.file_view(phy_offset)
        return memoryview(b""), phy_offset, 0

    def units(self, topic: str, queue_id: int, offset: int, count: int) -> list[tuple[int, int, int]]:
        queue = self._queues.get(topic, queue_id)
        low, high = self.queue_range(topic, queue_id)
        if queue is None or not low <= offset < high:
            return []
        return list(UNIT.iter_unpack(queue.units_view(offset, min(count, high - offset))))

    def _collect_batches(
        self,
        queue: BatchConsumeQueue,
        offset: int,
        max_count: int,
        max_bytes: int,
        tags_codes: frozenset[int] | None,
        matches: RecordPredicate | None,
        on_disk: DiskLimits,
    ) -> tuple[list[memoryview], int]:
        """Collect as `_collect` does: whole records, the first of which may begin before `offset`. Counts are of
        messages.

        A unit does not know the tags of an inner batch's messages: it passes every filter and the consumer, which
        compares the tags of each message anyway, decides (RocketMQ withholds it from consumers with a filter)."""
        records: list[memoryview] = []
        total, count, topic = 0, 0, queue.topic.encode()
        log_min, start = self._log.min_offset, queue.index_of(offset)
        for index in range(start, min(queue.end_index, start + MAX_FILTERED_COUNT)):
            unit = queue.unit(index)
            is_old = unit.phy_offset < on_disk.end_offset
            most, most_bytes = (on_disk.max_count, on_disk.max_bytes) if is_old else (max_count, max_bytes)
            if records and (count + unit.batch_num > most or total + unit.size_bytes > most_bytes):
                break
            if unit.phy_offset >= log_min:
                record = self._log.view(unit.phy_offset, unit.size_bytes)
                if not is_sound(record, unit.phy_offset, unit.size_bytes, topic, queue.queue_id, -1):
                    if records:
                        break
                    raise self._unsound(unit.phy_offset, unit.size_bytes) or self._damaged_batch(queue, index)
                if (
                    tags_codes is None
                    or unit.tags_code in tags_codes
                    or _SYS_FLAG.unpack_from(record, _SYS_FLAG_AT)[0] & SYS_INNER_BATCH
                ) and (matches is None or matches(record)):
                    records.append(record)
                    total += unit.size_bytes
                    count += unit.batch_num
            offset = unit.end_offset
            if matches is not None and matches.is_spent:
                break
        return records, offset

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> QueueOffset:
        """The first entry whose record was stored at `timestamp_ms` or later; the queue's max if none was."""
        low, high = (int(bound) for bound in self.queue_range(topic, queue_id))
        batch_queue = self._batch_queues.get(topic, queue_id)
        if batch_queue is not None:
            return QueueOffset(batch_queue.offset_by_time(timestamp_ms, low))
        queue = self._queues.get(topic, queue_id)
        while queue is not None and low < high:
            middle = (low + high) // 2
            if self._stored_at(queue, middle) < timestamp_ms:
                low = middle + 1
            else:
                high = middle
        return QueueOffset(low)

    def first_stored_ms(self, topic: str, offsets: Mapping[int, int]) -> int | None:
        """Store time in ms of whichever record the log holds first of those at these entries (queue id → offset; the
        queue's first entry for an offset below it). One entry of each queue and one record are read. None if
        there is none, and where damage hides it: a pull tells of that."""
        found: int | None = None
        for queue_id, offset in offsets.items():
            low, high = self.queue_range(topic, queue_id)
            queue = self._queue(topic, queue_id)
            at = max(low, offset)
            if queue is None or at >= high:
                continue
            if isinstance(queue, BatchConsumeQueue):
                phy_offset = queue.unit(queue.index_of(at)).phy_offset
            else:
                phy_offset, size, _ = queue.unit(at)
                if size == PREFILL_SIZE:
                    continue
            found = phy_offset if found is None else min(found, phy_offset)
        if found is None or not self._log.min_offset <= found < self._log.end_offset:
            return None
        view, file_start, end = self._log.file_view(found)
        try:
            return locate(view, found - file_start, end, found)[10]
        except BadRecordError:
            return None

    def _stored_at(self, queue: ConsumeQueue, queue_offset: int) -> int:
        """Store timestamp of an entry's record; for an entry without one, a time before all."""
        phy_offset, size, _ = queue.unit(queue_offset)
        if size == PREFILL_SIZE:
            return -1
        if not self._log.min_offset <= phy_offset < self._log.end_offset:
            raise self._damaged(queue, queue_offset)
        view, file_start, end = self._log.file_view(phy_offset)
        try:
            return locate(view, phy_offset - file_start, end, phy_offset)[10]
        except BadRecordError as error:
            raise bad_record(self._log, phy_offset, error) from None

    def record_at(self, phy_offset: int) -> memoryview | None:
        """The bytes of the record that starts at `phy_offset`, sound or not; None if none does."""
        if not self._log.min_offset <= phy_offset < self._log.end_offset:
            return None
        view, file_start, end = self._log.file_view(phy_offset)
        at = phy_offset - file_start
        try:
            size = locate(view, at, end, phy_offset)[0]
        except BadRecordError:
            return None
        return view[at : at + size]

    def sound_record(
        self, topic: str, queue_id: int, queue_offset: int, unit: Unit, is_whole: IsWhole = any_record
    ) -> Record:
        """The record that the entry `unit` at `queue_offset` leads to, with CRCs that hold and what `is_whole` asks
        for: of what is read here new records are made. Raises DamagedError."""
        phy_offset, size, _ = unit
        view, file_start, end = self._file_view(phy_offset)
        at = phy_offset - file_start
        record = view[at : at + size]
        if at + size > end or not is_sound(record, phy_offset, size, topic.encode(), queue_id, queue_offset):
            queue = self._queues.get(topic, queue_id)
            assert queue is not None
            error = self._unsound(phy_offset, size) or self._damaged(queue, queue_offset)
            self._damage.found(error)
            raise error
        plain = decode_sound(record, topic)
        if plain is not None and is_whole(plain):
            return plain
        try:
            verify(record, 0, size, phy_offset)
            found = decode(record)
            known = self._damage.get(phy_offset)
            if not is_whole(found) and not (known is not None and known.is_as_written):
                raise BadRecordError(f"expected the properties of a record of {topic}, found {found.properties[:80]!r}")
        except BadRecordError as reason:
            error = bad_record(self._log, phy_offset, reason, size)
            self._damage.found(error)
            raise error from None
        return found

    def plain_properties(self, topic: str, queue_id: int, queue_offset: int, unit: Unit) -> tuple[int, bytes] | None:
        """The store time (ms) and the properties of the record that `sound_record` would give; None if it has another
        form than most, or is not sound."""
        phy_offset, size, _ = unit
        view, file_start, end = self._file_view(phy_offset)
        at = phy_offset - file_start
        record = view[at : at + size]
        if at + size > end or not is_sound(record, phy_offset, size, topic.encode(), queue_id, queue_offset):
            return None
        return plain_properties(record)

    def _unsound(self, phy_offset: int, size_bytes: int) -> DamagedError | None:
        """The fault of the record at `phy_offset`; None if there is none, so that it is the entry that is."""
        log = self._log
        if not log.min_offset <= phy_offset < log.end_offset:
            return None
        view, file_start, end = log.file_view(phy_offset)
        at = phy_offset - file_start
        try:
            locate(view, at, end, phy_offset)
        except BadRecordError:
            return None
        try:
            verify(view, at, end, phy_offset)
        except BadRecordError as error:
            return bad_record(log, phy_offset, error, size_bytes)
        return None

    def _damaged(self, queue: ConsumeQueue, queue_offset: int) -> DamagedError:
        phy_offset, size, _ = queue.unit(queue_offset)
        return self._damaged_unit(queue.files, queue_offset * UNIT.size, phy_offset, size, QUEUE_DIRECTORY)

    def _damaged_batch(self, queue: BatchConsumeQueue, index: int) -> DamagedError:
        unit = queue.unit(index)
        return self._damaged_unit(queue.files, index * UNIT_BYTES, unit.phy_offset, unit.size_bytes, BATCH_DIRECTORY)

    def _damaged_unit(self, files: MappedFiles, at: int, phy_offset: int, size: int, directory: str) -> DamagedError:
        """The error for a unit and a record that do not agree: which of them is damaged, a replica tells that has the
        record."""
        within = at % files.file_size_bytes
        return damaged(
            self._log.disk,
            f"{files.directory}/{file_name(at - within)}",
            within,
            f"an entry of the log [{self._log.min_offset}, {self._log.end_offset})",
            f"{size} bytes at {phy_offset}, where the log has no such record",
            f"stop this replica and remove its directory {directory}: it is made anew from the log; if that does not"
            " help remove its store and let it copy the group's",
            phy_offset,
            size,
        )
