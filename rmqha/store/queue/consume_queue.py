"""Data plane: one ConsumeQueue, 20 bytes per message, and the table of all of them.

Source: formats.md §3. Unit n stands at byte n * 20 for ever: an entry is never written at another position than its
message's queue offset, so doing it again after a crash changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from itertools import repeat
from operator import sub

from rmqha.model.config.delay_level import DEFAULT_DELAY_LEVELS, SCHEDULE_TOPIC, parse_delay_levels
from rmqha.model.error import StoreError
from rmqha.model.message import PROPERTY_TAGS
from rmqha.port import Disk, Tracer
from rmqha.store.log.commit_log import DIRECTORY as LOG_DIRECTORY
from rmqha.store.log.commit_log import CommitLog
from rmqha.store.log.mapped_file import MappedFile
from rmqha.store.log.record import SYS_COMMIT, SYS_INNER_BATCH, SYS_TRANSACTION, BadRecordError, locate
from rmqha.store.meta.boot_file import LastStop
from rmqha.store.meta.problem import damaged, disk_errors
from rmqha.store.queue.dispatcher import DispatchedBlock, DispatchedRecord, DispatchedRun, RecoveredEntries
from rmqha.store.queue.queue_check import PREFILL_SIZE as PREFILL_SIZE
from rmqha.store.queue.queue_check import UNIT as UNIT
from rmqha.store.queue.queue_check import UNIT_BYTES as UNIT_BYTES
from rmqha.store.queue.queue_check import ordered_count
from rmqha.store.queue.queue_table import QueueTable, UnitFiles
from rmqha.store.queue.tags_codes import TagsCodes

DIRECTORY = "consumequeue"
UNREADABLE = "remove this replica's directory consumequeue: it is made anew from the log; and look at the disk"
SIZE_KEY = "mappedFileSizeConsumeQueue"
PREFILL = UNIT.pack(0, PREFILL_SIZE, 0)
"""A unit without a message: below the first message of a queue that does not start at 0."""
MAX_GAP_COUNT = 1 << 20
_TAGS = PROPERTY_TAGS.encode()
_CHOICES = "remove this replica's store and let it copy the group's, if another replica has this record whole"


class ConsumeQueue(UnitFiles):
    """Entries [min_offset, max_offset) exist; min depends on the log's min."""

    __slots__ = ("_floor", "_min_seen_for", "_start", "max_offset")

    def __init__(self, disk: Disk, topic: str, queue_id: int, file_size_bytes: int, start: int = 0) -> None:
        """`start`: where offsets begin while there is no file."""
        super().__init__(disk, DIRECTORY, topic, queue_id, file_size_bytes)
        self.max_offset = self._start = start
        self._floor = 0
        self._min_seen_for = -1

    # --- read -------------------------------------------------------------------------------------------------------
    def unit(self, queue_offset: int) -> tuple[int, int, int]:
        """(physical offset, size, tagsCode) of an entry that exists."""
        return UNIT.unpack_from(self.files.view(queue_offset * UNIT_BYTES, UNIT_BYTES))

    def units_view(self, queue_offset: int, limit_count: int) -> memoryview:
        """The units from `queue_offset`, inside one file and below max_offset."""
        count = min(limit_count, self.max_offset - queue_offset)
        return self.files.view(queue_offset * UNIT_BYTES, count * UNIT_BYTES)

    @property
    def first_offset(self) -> int:
        """The lowest entry number that the files could hold."""
        return self.files.files[0].start_offset // UNIT_BYTES if self.files.files else self.max_offset

    def min_offset(self, log_min: int) -> int:
        """The first entry whose record is still in a log that starts at `log_min`."""
        if self._min_seen_for != log_min or self._floor > self.max_offset:
            floor = self._first_with(lambda offset, size: size != PREFILL_SIZE and offset >= log_min)
            while floor > self.first_offset and self._is_damaged(floor - 1):
                # a damaged entry misled the search; it is not passed over silently: who asks for it is told
                floor = self._first_with(
                    lambda offset, size: size != PREFILL_SIZE and offset >= log_min, below=floor - 1
                )
            self._floor = floor
            self._min_seen_for = log_min
        return self._floor

    def _probe(self, queue_offset: int) -> None:
        file = self.files.find(queue_offset * UNIT_BYTES)
        assert file is not None
        file.probe(queue_offset * UNIT_BYTES, (queue_offset + 1) * UNIT_BYTES, UNREADABLE)

    def _first_with(self, holds: Callable[[int, int], bool], *, probe: bool = False, below: int | None = None) -> int:
        """Binary search for the first entry for which `holds(offset, size)`, among those below `below`; `below`, or
        max_offset, if there is none."""
        low, high = self.first_offset, self.max_offset if below is None else below
        while low < high:
            middle = (low + high) // 2
            if probe:
                self._probe(middle)
            offset, size, _ = self.unit(middle)
            if holds(offset, size):
                high = middle
            else:
                low = middle + 1
        return low

    def _is_damaged(self, queue_offset: int) -> bool:
        offset, size, _ = self.unit(queue_offset)
        return offset < 0 or size <= 0

    @property
    def last_end(self) -> int:
        """Physical end of the newest entry's record; 0 if there is none."""
        if self.max_offset <= self.first_offset:
            return 0
        offset, size, _ = self.unit(self.max_offset - 1)
        return offset + size if size != PREFILL_SIZE else 0

    # --- change -----------------------------------------------------------------------------------------------------
    def put(self, queue_offset: int, units: bytes | bytearray) -> int:
        """Write consecutive units that begin at `queue_offset`. Those that exist already are left. Returns the number
        of units that had to be filled in front because their messages are not in this log."""
        filled = 0
        count = len(units) // UNIT_BYTES
        if queue_offset < self.max_offset:
            known = min(count, self.max_offset - queue_offset)
            units = units[known * UNIT_BYTES :]
            queue_offset += known
        elif queue_offset > self.max_offset or not self.files.files:
            filled = self._fill_to(queue_offset)
        if units:
            self.write_at(queue_offset * UNIT_BYTES, memoryview(units))
            self.max_offset = queue_offset + len(units) // UNIT_BYTES
        return filled

    def _fill_to(self, queue_offset: int) -> int:
        """Pre-fill up to `queue_offset`. An empty queue begins with the file that will hold that entry; it has none
        again if that file has no room."""
        start = self.max_offset
        if self.files.files:
            self._prefill(start, queue_offset)
        else:
            start = queue_offset - queue_offset % (self.files.file_size_bytes // UNIT_BYTES)
            self.files.add(start * UNIT_BYTES, durable=False)
            try:
                self._prefill(start, queue_offset)
            except StoreError:
                self.files.remove_from(0)
                raise
        self.max_offset = queue_offset
        self._min_seen_for = -1
        return queue_offset - start

    def _prefill(self, at: int, queue_offset: int) -> None:
        while at < queue_offset:
            count = min(queue_offset - at, 4096)
            self.write_at(at * UNIT_BYTES, memoryview(PREFILL * count))
            at += count

    def truncate(self, end_offset: int) -> bool:
        """Drop the entries of records at or behind the physical `end_offset`. True if there were any."""
        keep = self._first_with(lambda offset, size: size != PREFILL_SIZE and offset >= end_offset)
        if keep == self.max_offset:
            return False
        self.cut_to(keep)
        return True

    def cut_to(self, max_offset: int) -> None:
        """Drop the entries from `max_offset` on and zero what stands behind them."""
        self.max_offset = max(max_offset, self.first_offset)
        self._min_seen_for = -1
        end = self.max_offset * UNIT_BYTES
        # the first file's name says where offsets go on: unless they begin at 0 it stays, empty
        first = self.files.files[0].start_offset if self.files.files else 0
        self.files.remove_from(end if end > first or not first else end + 1)
        self.zero_from(end)
        if not self.files.files:
            self.max_offset = self._start

    def trim(self, log_min: int) -> list[MappedFile]:
        """Forget files whose records all stood before `log_min`. One entry in front of the rest stays: it says where
        offsets go on if the rest is cut, and that nothing is missing in front."""
        return self.files.detach_below(max(self.min_offset(log_min) - 1, 0) * UNIT_BYTES)

    # --- open -------------------------------------------------------------------------------------------------------
    def recover(self, log: CommitLog, position: int, *, whole: bool) -> RecoveredEntries:
        """Find max_offset and drop what belongs to records at or behind `position`, or is no entry of this log.

        Entries are written in order, so a binary search finds the first unwritten one; with `whole` (power was lost,
        any sector may be missing) every unit of the files is checked instead. The newest entry that stays must agree
        with its record: a crash may have stopped a cut in the middle of a unit.
        """
        lines, dropped = self.files.load_derived()
        if not self.files.files:
            return RecoveredEntries(lines, log.min_offset if dropped else None)
        low, log_end = self.first_offset, log.end_offset
        self.max_offset = self.files.files[-1].end_offset // UNIT_BYTES
        self.max_offset = (
            self._whole_prefix(log_end) if whole else self._first_with(lambda _, size: size == 0, probe=True)
        )
        self.max_offset = self._first_with(
            lambda offset, size: size <= 0 or (size != PREFILL_SIZE and offset >= position), probe=True
        )
        while self.max_offset > low and not self._agrees(log, self.max_offset - 1):
            self.max_offset -= 1
        if self._lacks_its_beginning(log.min_offset, whole=whole):
            lines.append(f"{self.files.directory}: entries below {low} are missing; all are made anew.")
            self.files.remove_from(0)
            self.max_offset = self._start
            return RecoveredEntries(lines, log.min_offset, lost_start=log.min_offset > 0)
        behind, lost = self._left_over(position, log_end)
        if lost and whole and self.max_offset > low and self.unit(self.max_offset - 1)[0] >= log.min_offset:
            self.max_offset -= 1  # its code may have stood in the sector that was lost
        if behind:
            lines.append(
                f"{self.files.directory}: entries from {self.max_offset} on point behind the log's end {log_end}"
                " and were dropped."
            )
        if lost:
            lines.append(f"{self.files.directory}: damaged entries from {self.max_offset} on were dropped.")
        repair_from = max(self.last_end, log.min_offset) if lost or dropped else None
        self.cut_to(self.max_offset)
        return RecoveredEntries(lines, repair_from)

    def _lacks_its_beginning(self, log_min: int, *, whole: bool) -> bool:
        """True if entries in front are missing. An entry of a removed record always stands in front of the records of
        the log, unless they begin at 0. Where no entry is left, a loss of power may have taken the files in front
        too."""
        if not self.first_offset:
            return False
        if self.max_offset <= self.first_offset:
            return whole and self.first_offset != self._start
        offset, size, _ = self.unit(self.first_offset)
        return size != PREFILL_SIZE and offset >= log_min

    def _agrees(self, log: CommitLog, queue_offset: int) -> bool:
        """True if an entry's record, if the log still has it, says the same."""
        self._probe(queue_offset)
        offset, size, _ = self.unit(queue_offset)
        if size == PREFILL_SIZE:
            return offset == 0
        if not 0 <= offset < log.end_offset:
            return False
        if offset < log.min_offset:
            return size > 0
        log.probe_record(offset)
        view, file_start, end = log.file_view(offset)
        try:
            parts = locate(view, offset - file_start, end, offset)
        except BadRecordError:
            return False
        topic = bytes(view[parts[6] : parts[6] + parts[7]])
        return (parts[0], parts[2], parts[3], topic) == (size, self.queue_id, queue_offset, self.topic.encode())

    def _left_over(self, position: int, log_end: int) -> tuple[bool, bool]:
        """Two answers about the entries behind max_offset: True if some are behind the log's end, and True if anything
        there may have been an entry of a record below `position`."""
        at = self.max_offset * UNIT_BYTES
        behind = lost = False
        for file in self.files.files:
            start = max(at, file.start_offset)
            if start >= file.end_offset:
                continue
            file.probe(start, file.end_offset, UNREADABLE)
            count = -(-(file.used_end(start) - start) // UNIT_BYTES)
            view = file.region.view(start - file.start_offset, count * UNIT_BYTES)
            for offset, size, _ in UNIT.iter_unpack(view):
                behind = behind or (size > 0 and offset >= log_end)
                lost = lost or size <= 0 or offset < position
        return behind, lost

    def _whole_prefix(self, log_end: int) -> int:
        """The first unit that is no entry, or whose record does not stand behind the one before it."""
        behind = 0
        for file in self.files.files:
            file.probe(file.start_offset, file.end_offset, UNREADABLE)
            size_bytes = file.end_offset - file.start_offset
            count, behind = ordered_count(file.region.view(0, size_bytes), behind, log_end)
            if count * UNIT_BYTES < size_bytes:
                return file.start_offset // UNIT_BYTES + count
        return self.files.files[-1].end_offset // UNIT_BYTES


class ConsumeQueues(QueueTable[ConsumeQueue]):
    """All queues of the store, by (topic, queue id). Derived state.

    Prepared and rollback records get no entry, nor do records of `batch_topics`, whose queues have another form. The
    entry of a record of the schedule topic carries its delivery time as code.
    """

    directory = DIRECTORY
    size_key = SIZE_KEY
    unit_bytes = UNIT_BYTES

    def __init__(
        self,
        disk: Disk,
        file_size_bytes: int,
        tracer: Tracer,
        delay_levels_ms: tuple[int, ...] = parse_delay_levels(DEFAULT_DELAY_LEVELS),
    ) -> None:
        super().__init__(disk, file_size_bytes)
        self._tracer = tracer
        self.tags_codes = TagsCodes(delay_levels_ms)
        self.batch_topics: Set[str] = frozenset()
        self.starts: Mapping[tuple[str, int], int] = {}
        """First offsets of queues without a file, other than 0."""
        self.grown: dict[tuple[str, int], None] = {}
        self.unit_count = 0
        """Entries of all queues together, counted from 0 on also where the first were removed."""
        self._runs: dict[tuple[str, int], list[tuple[int, bytearray]]] = {}
        self.to_make_count = 0
        """Entries to make of what was collected: per queue, runs of consecutive units with the entry number of the
        first."""

    def _new(self, topic: str, queue_id: int) -> ConsumeQueue:
        start = self.starts.get((topic, queue_id), 0)
        return ConsumeQueue(self._disk, topic, queue_id, self.file_size_bytes, start)

    def recover(self, log: CommitLog, position: int, last_stop: LastStop) -> RecoveredEntries:
        """Find and check the queues on disk, as `ConsumeQueue.recover` does for each."""
        _, lines, repairs, lost_start = self._recover_all(log, position, last_stop)
        self._count()
        if not self.table and log.end_offset > log.min_offset:
            repairs.append(log.min_offset)
        return RecoveredEntries(lines, min(repairs, default=None), lost_start)

    def collect(self, record: DispatchedRecord) -> None:
        phy_offset, size, topic, queue_id, queue_offset, sys_flag, stored, properties = record
        if (
            sys_flag & SYS_TRANSACTION not in (0, SYS_COMMIT)
            or sys_flag & SYS_INNER_BATCH
            or topic in self.batch_topics
        ):
            return
        self.collect_units(
            topic, queue_id, queue_offset, UNIT.pack(phy_offset, size, self.tags_codes.code(topic, properties, stored))
        )

    def collect_run(self, run: DispatchedRun) -> None:
        topic, bounds, tails, stored = run.topic, run.bounds, run.tails, run.store_timestamp_ms
        if topic in self.batch_topics:
            return
        codes: Iterable[int] = repeat(0)
        if topic == SCHEDULE_TOPIC or _TAGS in b"".join(tails):
            codes = [self.tags_codes.code(topic, tail[2:], stored) for tail in tails]
        units = b"".join(map(UNIT.pack, bounds, map(sub, bounds[1:], bounds), codes))
        self.collect_units(topic, run.queue_id, run.queue_offset, units)

    def collect_block(self, block: DispatchedBlock) -> None:
        for run in block.runs:
            if run.topic not in self.batch_topics:
                self.collect_units(run.topic, run.queue_id, run.first_offset, run.units)

    def missing_count(self, block: DispatchedBlock) -> int:
        table, runs = self.table, self._runs
        keys = {(run.topic, run.queue_id) for run in block.runs if run.topic not in self.batch_topics}
        return sum(key not in table and key not in runs for key in keys)

    def collect_units(self, topic: str, queue_id: int, queue_offset: int, units: bytes) -> None:
        """Collect as `collect` does for records whose consecutive entries begin at `queue_offset`."""
        runs = self._runs.get((topic, queue_id))
        if runs is None:
            self._runs[topic, queue_id] = [(queue_offset, bytearray(units))]
            self.to_make_count += (topic, queue_id) not in self.table
        elif runs[-1][0] + len(runs[-1][1]) // UNIT_BYTES == queue_offset:
            runs[-1][1].extend(units)
        else:
            runs.append((queue_offset, bytearray(units)))

    def write(self) -> None:
        for key, runs in self._runs.items():
            for queue_offset, units in runs:
                self._put(queue_offset, units, key)
        self.grown.update(dict.fromkeys(self._runs))
        self._mark_dirty(self._runs)

    def _put(self, queue_offset: int, units: bytearray, key: tuple[str, int]) -> None:
        queue = self.make(*key)
        if queue.files.files and queue_offset - queue.max_offset > MAX_GAP_COUNT:
            phy_offset = UNIT.unpack_from(units)[0]
            raise damaged(
                self._disk,
                queue.files.directory,
                queue.max_offset * UNIT_BYTES,
                f"entry {queue.max_offset} next",
                f"queue offset {queue_offset} in the log, in the record at byte {phy_offset} of {LOG_DIRECTORY}",
                _CHOICES,
            )
        before = queue.max_offset
        filled = queue.put(queue_offset, units)
        self.unit_count += queue.max_offset - before
        if filled:
            self._tracer.event(
                "queue_filled", topic=key[0], queue_id=key[1], queue_offset=queue_offset - filled, count=filled
            )

    def add_started(self, topic: str, queue_id: int) -> None:
        """Add a queue that is known by its start only."""
        self.unit_count += self.make(topic, queue_id).max_offset

    def forget(self) -> None:
        self._runs.clear()
        self.to_make_count = 0

    def remove(self, topic: str) -> None:
        """Remove a topic's queues: its entries are elsewhere now. The caller holds off `sync`."""
        for key in [key for key in self.table if key[0] == topic]:
            self.table.pop(key).close()
            self._runs.pop(key, None)
        self._count()
        with disk_errors(self._disk, f"{DIRECTORY}/{topic}", "remove the directory"):
            self._disk.remove_tree(f"{DIRECTORY}/{topic}")

    def truncate(self, end_offset: int) -> None:
        for queue in self:
            queue.truncate(end_offset)
        self._count()

    def _count(self) -> None:
        self.unit_count = sum(queue.max_offset for queue in self)

    def set_aside(self, directory: str) -> None:
        super().set_aside(directory)
        self._count()
