"""Data plane: the queues of topics with attribute queue.type=BatchCQ: 46 bytes for each record, whatever it holds.

Source: formats.md §4. A record may hold many messages, so a unit says which: [base, base + batchNum). Units stand
in the order of the log without holes, and queue offsets are found by binary search.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from threading import Lock
from typing import NamedTuple

from rmqha.port import Disk, Tracer
from rmqha.store.log.commit_log import CommitLog
from rmqha.store.log.mapped_file import MappedFile
from rmqha.store.log.record import SYS_COMMIT, SYS_INNER_BATCH, SYS_TRANSACTION, BadRecordError, locate, message_count
from rmqha.store.meta.boot_file import LastStop
from rmqha.store.meta.problem import disk_errors
from rmqha.store.queue.consume_queue import PREFILL_SIZE, UNIT, ConsumeQueue, ConsumeQueues
from rmqha.store.queue.dispatch_service import bad_record
from rmqha.store.queue.dispatcher import DispatchedBlock, DispatchedRecord, DispatchedRun, RecoveredEntries
from rmqha.store.queue.queue_table import QueueTable, UnitFiles

DIRECTORY = "batchconsumequeue"
SIZE_KEY = "mapperFileSizeBatchConsumeQueue"
_STRUCT = struct.Struct(">qiqqqhii")
UNIT_BYTES = _STRUCT.size
_NOT_COMPACTED = -1


class BatchUnit(NamedTuple):
    """One record and the queue offsets [base_offset, end_offset) of its messages."""

    phy_offset: int
    size_bytes: int
    tags_code: int
    store_timestamp_ms: int
    base_offset: int
    batch_num: int
    compacted_offset: int = _NOT_COMPACTED
    reserved: int = 0

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.batch_num

    @property
    def is_entry(self) -> bool:
        return self.size_bytes > 0 and self.batch_num > 0


class BatchConsumeQueue(UnitFiles):
    """Units [first_index, end_index) exist; the messages below `max_offset` are in them."""

    __slots__ = (
        "_floor",
        "_min_seen_for",
        "end_index",
        "last_end",
        "max_offset",
        "start",
    )

    def __init__(self, disk: Disk, topic: str, queue_id: int, file_size_bytes: int, start: int = 0) -> None:
        """`start`: where offsets begin while there is no unit."""
        super().__init__(disk, DIRECTORY, topic, queue_id, file_size_bytes)
        self.end_index = 0
        self.max_offset = self.start = start
        self.last_end = 0
        """Physical end of the newest record that has a unit; 0 without one."""
        self._floor = 0
        self._min_seen_for = -1

    # --- read -------------------------------------------------------------------------------------------------------
    def unit(self, index: int) -> BatchUnit:
        """A unit that exists."""
        return BatchUnit._make(_STRUCT.unpack_from(self.files.view(index * UNIT_BYTES, UNIT_BYTES)))

    @property
    def first_index(self) -> int:
        return self.files.files[0].start_offset // UNIT_BYTES if self.files.files else self.end_index

    def index_of(self, queue_offset: int) -> int:
        """The unit that holds message `queue_offset`, or the next one; end_index if there is none."""
        return self._first_with(lambda unit: unit.end_offset > queue_offset)

    def index_at(self, phy_offset: int) -> int:
        """The first unit whose record begins at `phy_offset` or behind it; end_index if there is none."""
        return self._first_with(lambda unit: unit.phy_offset >= phy_offset)

    def offset_by_time(self, timestamp_ms: int, low: int) -> int:
        """The first message, not below `low`, of a record stored at `timestamp_ms` or later; max_offset if none was."""
        index = self._first_with(lambda unit: unit.store_timestamp_ms >= timestamp_ms)
        return max(self.unit(index).base_offset, low) if index < self.end_index else self.max_offset

    def min_offset(self, log_min: int) -> int:
        """The first message whose record is still in a log that starts at `log_min`."""
        if self._min_seen_for != log_min or self._floor > self.max_offset:
            index = self._first_with(lambda unit: unit.phy_offset >= log_min)
            self._floor = self.unit(index).base_offset if index < self.end_index else self.max_offset
            self._min_seen_for = log_min
        return self._floor

    def _first_with(self, holds: Callable[[BatchUnit], bool]) -> int:
        """Binary search for the first unit for which `holds`; end_index if there is none."""
        low, high = self.first_index, self.end_index
        while low < high:
            middle = (low + high) // 2
            if holds(self.unit(middle)):
                high = middle
            else:
                low = middle + 1
        return low

    # --- change -----------------------------------------------------------------------------------------------------
    def put(self, units: Iterable[BatchUnit]) -> list[BatchUnit]:
        """Add units in the order of the log. Those that exist already are left. Returns those that cannot stand here:
        their queue offset was given to an earlier record."""
        strange: list[BatchUnit] = []
        data = bytearray()
        last_end, max_offset = self.last_end, self.max_offset
        for unit in units:
            if unit.phy_offset < last_end:
                continue
            if unit.base_offset < max_offset:
                strange.append(unit)
                continue
            data += _STRUCT.pack(*unit)
            last_end, max_offset = unit.phy_offset + unit.size_bytes, unit.end_offset
        if data:
            self.write_at(self.end_index * UNIT_BYTES, memoryview(data))
            self.end_index += len(data) // UNIT_BYTES
            if self.max_offset == self.start:
                self._min_seen_for = -1
            self.last_end, self.max_offset = last_end, max_offset
        return strange

    def truncate(self, end_offset: int) -> None:
        """Drop the units of records at or behind the physical `end_offset`."""
        keep = self._first_with(lambda unit: unit.phy_offset >= end_offset)
        if keep < self.end_index:
            self.cut_to(keep)

    def cut_to(self, end_index: int) -> None:
        """Drop the units from `end_index` on and zero what stands behind them."""
        end = end_index * UNIT_BYTES
        self.files.remove_from(end)
        self.zero_from(end)
        self.end_index = end_index if self.files.files else 0
        self._min_seen_for = -1
        self.max_offset, self.last_end = self.start, 0
        if self.end_index > self.first_index:
            last = self.unit(self.end_index - 1)
            self.max_offset, self.last_end = last.end_offset, last.phy_offset + last.size_bytes

    def trim(self, log_min: int) -> list[MappedFile]:
        """Forget files whose records all stood before `log_min`. One unit in front of the rest stays: after a cut of
        the rest it says where the queue's offsets go on."""
        first = self._first_with(lambda unit: unit.phy_offset >= log_min)
        self._min_seen_for = -1
        return self.files.detach_below(max(first - 1, 0) * UNIT_BYTES)

    # --- open -------------------------------------------------------------------------------------------------------
    def recover(self, log: CommitLog, position: int, *, whole: bool) -> RecoveredEntries:
        """Find the end and drop what belongs to records at or behind `position`, or is no unit of this log: as
        `ConsumeQueue.recover` does. With `whole` every unit is checked."""
        lines, dropped = self.files.load_derived()
        if not self.files.files:
            return RecoveredEntries(lines, log.min_offset if dropped else None)
        low, log_end = self.first_index, log.end_offset
        self.end_index = self.files.files[-1].end_offset // UNIT_BYTES
        self.end_index = self._whole_prefix(log_end) if whole else self._first_with(lambda unit: unit.size_bytes == 0)
        self.end_index = self._first_with(lambda unit: not unit.is_entry or unit.phy_offset >= position)
        while self.end_index > low and not self._agrees(log, self.unit(self.end_index - 1)):
            self.end_index -= 1
        if self._lacks_its_beginning(log.min_offset):
            lines.append(f"{self.files.directory}: entries below {low} are missing; all are made anew.")
            self.cut_to(0)
            return RecoveredEntries(lines, log.min_offset)
        behind, lost = self._left_over(position, log_end)
        if behind:
            lines.append(
                f"{self.files.directory}: entries from {self.end_index} on point behind the log's end {log_end}"
                " and were dropped."
            )
        if lost:
            lines.append(f"{self.files.directory}: damaged entries from {self.end_index} on were dropped.")
        self.cut_to(self.end_index)
        return RecoveredEntries(lines, max(self.last_end, log.min_offset) if lost or dropped else None)

    def _lacks_its_beginning(self, log_min: int) -> bool:
        """True if units in front are missing. An entry of a removed record always stands in front of the records of the
        log, unless they begin at 0. A loss of power may take a file that was never synced and leave those behind
        it."""
        low = self.first_index
        return low > 0 and self.end_index > low and self.unit(low).phy_offset >= log_min

    def _whole_prefix(self, log_end: int) -> int:
        """The first unit that is no entry of the log, or does not stand behind the one before it."""
        phy_end = queue_end = 0
        for index in range(self.first_index, self.end_index):
            unit = self.unit(index)
            end = unit.phy_offset + unit.size_bytes
            if not (unit.is_entry and phy_end <= unit.phy_offset < end <= log_end and queue_end <= unit.base_offset):
                return index
            phy_end, queue_end = end, unit.end_offset
        return self.end_index

    def _agrees(self, log: CommitLog, unit: BatchUnit) -> bool:
        """True if a unit's record, if the log still has it, says the same."""
        if not 0 <= unit.phy_offset < log.end_offset or unit.base_offset < 0:
            return False
        if unit.phy_offset < log.min_offset:
            return True
        view, file_start, end = log.file_view(unit.phy_offset)
        try:
            parts = locate(view, unit.phy_offset - file_start, end, unit.phy_offset)
            count = message_count(parts[1], bytes(view[parts[8] : parts[8] + parts[9]]))
        except BadRecordError:
            return False
        topic = bytes(view[parts[6] : parts[6] + parts[7]])
        found = (parts[0], parts[2], parts[3], topic, count, parts[10])
        said = (unit.size_bytes, self.queue_id, unit.base_offset, self.topic.encode(), unit.batch_num)
        return found == (*said, unit.store_timestamp_ms)

    def _left_over(self, position: int, log_end: int) -> tuple[bool, bool]:
        """Two answers about the units behind end_index: True if some are behind the log's end, and True if anything
        there may have been a unit of a record below `position`."""
        at = self.end_index * UNIT_BYTES
        behind = lost = False
        for file in self.files.files:
            start = max(at, file.start_offset)
            if start >= file.end_offset:
                continue
            count = -(-(file.used_end(start) - start) // UNIT_BYTES)
            view = file.region.view(start - file.start_offset, count * UNIT_BYTES)
            for unit in map(BatchUnit._make, _STRUCT.iter_unpack(view)):
                behind = behind or (unit.is_entry and unit.phy_offset >= log_end)
                lost = lost or not unit.is_entry or unit.phy_offset < position
        return behind, lost


class BatchConsumeQueues(QueueTable[BatchConsumeQueue]):
    """All queues of topics with queue.type=BatchCQ, by (topic, queue id). Derived state.

    `topics` are the topics that are known to be such. The type may become known after the first records, on a slave: a
    record that is a batch says so, a single one does not. Then the entries that its ConsumeQueues hold are moved here;
    the queue offsets are the same in both. `guard` is held by whoever syncs, cuts or closes files.
    """

    directory = DIRECTORY
    size_key = SIZE_KEY
    unit_bytes = UNIT_BYTES
    to_make_count = 0

    def __init__(
        self, disk: Disk, file_size_bytes: int, queues: ConsumeQueues, log: CommitLog, guard: Lock, tracer: Tracer
    ) -> None:
        super().__init__(disk, file_size_bytes)
        self._queues = queues
        self._log = log
        self._guard = guard
        self._tracer = tracer
        self.topics: set[str] = set()
        self._to_move: set[str] = set()
        self._collected: dict[tuple[str, int], list[BatchUnit]] = {}

    def _new(self, topic: str, queue_id: int) -> BatchConsumeQueue:
        start = self._queues.starts.get((topic, queue_id), 0)
        return BatchConsumeQueue(self._disk, topic, queue_id, self.file_size_bytes, start)

    # --- types ------------------------------------------------------------------------------------------------------
    def add_topics(self, topics: Iterable[str]) -> None:
        """Note that these topics are BatchCQ ones. What ConsumeQueues hold of them is moved here. Raises StoreError."""
        new = set(topics) - self.topics
        self.topics |= new
        self._to_move |= new
        self._move()

    def _move(self) -> None:
        """Move entries in a way that the next start repeats after a crash: the entries are durable here before they go
        there."""
        for topic in sorted(self._to_move):
            olds = [queue for (name, _), queue in self._queues.table.items() if name == topic]
            # a sync may hold the guard for as long as the disk takes: a new topic has no files that it could meet
            guard: AbstractContextManager[object] = self._guard if olds else nullcontext()
            with guard, disk_errors(self._disk, f"{DIRECTORY}/{topic}", "make the directory"):
                # an empty directory says that there was nothing to put into it
                self._disk.make_dirs(f"{DIRECTORY}/{topic}")
                for old in olds:
                    queue = self.make(topic, old.queue_id)
                    queue.put(self._units_of(old))
                    queue.sync()
                self._queues.remove(topic)
            if olds:
                self._tracer.event("queues_moved", topic=topic, directory=f"{DIRECTORY}/{topic}", count=len(olds))
            self._to_move.discard(topic)

    def _units_of(self, queue: ConsumeQueue) -> Iterator[BatchUnit]:
        """The entries of a ConsumeQueue whose records are still there, each a message of its own."""
        for queue_offset in range(queue.min_offset(self._log.min_offset), queue.max_offset):
            phy_offset, size, code = queue.unit(queue_offset)
            if size == PREFILL_SIZE:
                continue
            view, file_start, end = self._log.file_view(phy_offset)
            try:
                stored = locate(view, phy_offset - file_start, end, phy_offset)[10]
            except BadRecordError as error:
                raise bad_record(self._log, phy_offset, error) from None
            yield BatchUnit(phy_offset, size, code, stored, queue_offset, 1)

    # --- derived state ----------------------------------------------------------------------------------------------
    def recover(self, log: CommitLog, position: int, last_stop: LastStop) -> RecoveredEntries:
        """Find and check the queues on disk; ConsumeQueues have been. A topic without a directory is made anew."""
        found_queues, lines, repairs, _ = self._recover_all(log, position, last_stop)
        present = {topic for topic, _ in found_queues}
        self.topics.update(topic for topic, _ in self.table)
        elsewhere = {topic for topic, _ in self._queues.table} & self.topics
        missing = self.topics.difference(present) - elsewhere
        if missing and log.end_offset > log.min_offset:
            lines += [f"{DIRECTORY}/{topic} is not there." for topic in sorted(missing)]
            repairs.append(log.min_offset)
        self._to_move = missing | elsewhere
        return RecoveredEntries(lines, min(repairs, default=None))

    def collect(self, record: DispatchedRecord) -> None:
        phy_offset, size, topic, queue_id, queue_offset, sys_flag, stored, properties = record
        if sys_flag & SYS_TRANSACTION not in (0, SYS_COMMIT):
            return
        if topic not in self.topics:
            if not sys_flag & SYS_INNER_BATCH:
                return
            self.topics.add(topic)
            self._to_move.add(topic)
        try:
            count = message_count(sys_flag, properties)
        except BadRecordError as error:
            raise bad_record(self._log, phy_offset, error) from None
        code = self._queues.tags_codes.code(topic, properties, stored)
        unit = BatchUnit(phy_offset, size, code, stored, queue_offset, count)
        self._collected.setdefault((topic, queue_id), []).append(unit)

    def collect_run(self, run: DispatchedRun) -> None:
        if run.topic in self.topics:
            for record in run.records():
                self.collect(record)

    def missing_count(self, block: DispatchedBlock) -> int:
        return 0

    def collect_block(self, block: DispatchedBlock) -> None:
        for run in block.runs:
            if run.topic in self.topics:
                bounds, stored = block.bounds, block.store_timestamps_ms
                entries = enumerate(UNIT.iter_unpack(run.units), run.first_offset)
                units = [
                    BatchUnit(phy_offset, size, code, stored[bisect_right(bounds, phy_offset) - 1], queue_offset, 1)
                    for queue_offset, (phy_offset, size, code) in entries
                ]
                self._collected.setdefault((run.topic, run.queue_id), []).extend(units)

    def write(self) -> None:
        self._move()
        for key, units in self._collected.items():
            for unit in self.make(*key).put(units):
                self._tracer.event(
                    "queue_offset_repeated",
                    topic=key[0],
                    queue_id=key[1],
                    queue_offset=unit.base_offset,
                    phy_offset=unit.phy_offset,
                )
        self._queues.grown.update(dict.fromkeys(self._collected))
        self._mark_dirty(self._collected)

    def forget(self) -> None:
        self._collected.clear()

    def truncate(self, end_offset: int) -> None:
        for queue in self:
            queue.truncate(end_offset)

    def set_aside(self, directory: str) -> None:
        super().set_aside(directory)
        self._to_move |= self.topics
