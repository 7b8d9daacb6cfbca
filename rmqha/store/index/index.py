"""Data plane: the index of keys, a run of index files; derived state with a dispatched position of its own.

It follows the queues: nothing waits for it, and what is missing is made anew from the log in small steps. Index files
are not synced at every save, which would write thousands of pages all over them: a full file is synced once, and all
of them at a clean close. `durable_offset` says what so survives a loss of power; the rest is dropped then and made
anew, as RocketMQ does by the checkpoint's indexMsgTimestamp, which is kept up for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Lock

from rmqha.kernel.batch_kernel import NEW_ENTRY, KeyedRecords
from rmqha.kernel.index_entries import IndexKernel, PythonIndexKernel
from rmqha.kernel.key_hash import KeyHasher
from rmqha.model.error import StoreError
from rmqha.port import Disk, Tracer
from rmqha.store.index.index_file import HEADER, DamagedIndexError, IndexFile, IndexHeader, IndexLayout
from rmqha.store.log.commit_log import CommitLog
from rmqha.store.log.record import SYS_TRANSACTION, BadRecordError, locate
from rmqha.store.meta.boot_file import LastStop
from rmqha.store.meta.problem import disk_errors
from rmqha.store.queue.dispatcher import DispatchedBlock, DispatchedRecord, DispatchedRun, RecoveredEntries

DIRECTORY = "index"
SYS_ROLLBACK = 0xC
UNSETTLED_COUNT = 65_536
"""Entries that a write which stopped half-way may have left without a record."""
DAY_MS = 86_400_000
DAYS_BEFORE_1970 = 719_468
"""From March 1 of the year 0."""
LAST_TIMESTAMP_MS = 253_402_300_799_999
"""The end of the year 9999."""
_ANEW = "it and the index files behind it were dropped and are made anew"


def file_name(store_timestamp_ms: int, last_name: str) -> str:
    """yyyyMMddHHmmssSSS of the first record, UTC; counted up where that would not sort behind `last_name`."""
    day, ms = divmod(min(max(store_timestamp_ms, 0), LAST_TIMESTAMP_MS), DAY_MS)
    day += DAYS_BEFORE_1970
    year = (10_000 * day + 14_780) // 3_652_425
    if _days_before(year) > day:
        year -= 1
    day -= _days_before(year)
    month = (100 * day + 52) // 3060
    day -= (306 * month + 5) // 10
    year, month = year + month // 10, (month + 2) % 12 + 1
    second, ms = divmod(ms, 1000)
    time = second // 3600 * 10_000 + second // 60 % 60 * 100 + second % 60
    name = (((year * 100 + month) * 100 + day + 1) * 1_000_000 + time) * 1000 + ms
    return f"{max(name, int(last_name or 0) + 1):017d}"


def _days_before(year: int) -> int:
    """Days before the March 1 with which a year begins here, so that its leap day is its last."""
    return 365 * year + year // 4 - year // 100 + year // 400


class Index:
    """All index files, oldest first. Derived state."""

    directory = DIRECTORY
    to_make_count = 0

    def __init__(
        self,
        disk: Disk,
        log: CommitLog,
        layout: IndexLayout,
        tracer: Tracer,
        store_durable_offset: Callable[[], None],
        kernel: IndexKernel | None = None,
    ) -> None:
        """`store_durable_offset` is called when `durable_offset` is lowered and returns when that is on stable
        storage."""
        self._disk = disk
        self._log = log
        self._layout = layout
        self._tracer = tracer
        self._files: list[IndexFile] = []
        self._hasher = KeyHasher()
        self._kernel = kernel or PythonIndexKernel()
        self._pending = bytearray()
        """`NEW_ENTRY` each, of what was collected."""
        self._waiting = KeyedRecords([], [], [], [])
        """Records collected behind these, whose entries are made all at once."""
        self._newest = -1
        """Offset of the newest record that has an entry, −1 if there is none; and how many entries it has."""
        self._newest_count = 0
        self._syncing = Lock()
        """Held while a file is synced, changed where it was full, or closed."""
        self.durable_offset = 0
        """Entries of records that begin below it are in files that a loss of power leaves whole."""
        self.durable_timestamp_ms = 0
        """Store timestamp of the newest entry in a file that was synced when it was full or closed; 0 if unknown."""
        self.cut_count = 0
        """Number of times that entries or files were taken away: a search that began before is of no use."""
        self._store_durable_offset = store_durable_offset

    def __iter__(self) -> Iterator[IndexFile]:
        return iter(self._files)

    @property
    def end_offset(self) -> int:
        """Physical offset of the newest record that has an entry; 0 if none has."""
        return max(self._newest, 0)

    @property
    def end_timestamp_ms(self) -> int:
        return self._files[-1].header.end_timestamp_ms if self._files else 0

    # --- open -------------------------------------------------------------------------------------------------------
    def recover(self, log: CommitLog, position: int, last_stop: LastStop) -> RecoveredEntries:
        """Find the files and drop what is damaged or speaks of records at or behind `position`. `durable_offset` must
        have been set. `repair_from` is where records must be dispatched again."""
        lines: list[str] = []
        names = self._names(lines)
        try:
            dropped = self._keep_sound(names, position, last_stop, lines)
            newest = self._files[-1].header.end_phy_offset if self._files else -1
            self._lower_to(min(self.durable_offset, position, newest + 1))
            self._remove_names(dropped)
            if newest >= position:
                self._cut_last(position)
        except BaseException:
            self.close()
            raise
        self._take_newest()
        return RecoveredEntries(lines, min(max(self.end_offset, log.min_offset), position))

    def _keep_sound(self, names: list[str], position: int, last_stop: LastStop, lines: list[str]) -> list[str]:
        """Open the files up to the first that must go. Returns the names from that one on."""
        for place, name in enumerate(names):
            path = f"{DIRECTORY}/{name}"
            try:
                file = self._open(path, last_stop if place + 1 == len(names) else LastStop.CLEAN)
            except DamagedIndexError as error:
                lines.append(f"{path} {error}; {_ANEW}.")
                return names[place:]
            end = file.header.end_phy_offset
            durable = end < self.durable_offset
            if last_stop is LastStop.POWER_LOST and not (durable and file.is_full):
                lines.append(f"{path} may miss what was written before the last stop; {_ANEW}.")
            elif end >= position and (durable or self._begins_at(file) >= position):
                lines.append(f"{path} speaks of records behind {position}, the log's end; {_ANEW}.")
            else:
                file.synced = durable and file.is_full
                self._files.append(file)
                continue
            file.close()
            return names[place:]
        return []

    def _lower_to(self, durable_offset: int) -> None:
        """Lower `durable_offset`, and store it, before durable files are changed."""
        if durable_offset < self.durable_offset:
            self.durable_offset = durable_offset
            self.durable_timestamp_ms = 0
            self._store_durable_offset()

    def _names(self, lines: list[str]) -> list[str]:
        found = []
        with disk_errors(self._disk, DIRECTORY, "list the directory"):
            for name in self._disk.list(DIRECTORY):
                if name.isascii() and name.isdigit():
                    found.append(name)
                else:
                    lines.append(f"{DIRECTORY}/{name} is not one of the store's files and is left alone.")
        return found

    def _remove_names(self, names: list[str]) -> None:
        for name in reversed(names):
            path = f"{DIRECTORY}/{name}"
            with disk_errors(self._disk, path, "remove the file"):
                self._disk.remove(path)

    def _open(self, path: str, last_stop: LastStop) -> IndexFile:
        """Raises DamagedIndexError."""
        layout = self._layout
        with disk_errors(self._disk, path, "read the file"):
            size = self._disk.size_bytes(path)
        if size != layout.size_bytes:
            raise DamagedIndexError(min(size, layout.size_bytes), f"{layout.size_bytes} bytes", f"{size} bytes")
        file = IndexFile(self._disk, path, layout, IndexHeader())
        file.header = IndexHeader(*HEADER.unpack_from(file.view))
        try:
            if last_stop is LastStop.KILLED:
                self._settle(file)
            elif not any(file.header):
                file.header = self._inherited()
            self._check(file)
            before = self._files[-1].header.end_phy_offset if self._files else 0
            if file.header.begin_phy_offset < before:
                found = file.header.begin_phy_offset
                raise DamagedIndexError(16, f"an offset from {before}, where the file before it ends", found)
        except BaseException:
            file.close()
            raise
        return file

    def _check(self, file: IndexFile) -> None:
        begin_ms, end_ms, begin, end, slots, count = file.header
        layout = file.layout
        if not 0 < count <= layout.max_count:
            raise DamagedIndexError(36, f"an index count from 1 to {layout.max_count}", count)
        if not 0 <= slots < count:
            raise DamagedIndexError(32, f"up to {count - 1} slots in use", slots)
        if not 0 <= begin <= end:
            raise DamagedIndexError(16, "offsets that rise from 0", f"{begin} and {end}")
        if begin_ms < 0 or end_ms < 0:
            raise DamagedIndexError(0, "times from 0", f"{begin_ms} and {end_ms}")
        if count > 1 and (found := file.entry(count - 1)[1]) != end:
            raise DamagedIndexError(file.entry_position(count - 1) + 4, f"the header's last offset {end}", found)
        if count > 1 and (found := file.entry(1)[1]) != begin:
            raise DamagedIndexError(file.entry_position(1) + 4, f"the header's first offset {begin}", found)
        if count < layout.max_count and any(entry := file.entry(count)):
            raise DamagedIndexError(file.entry_position(count), f"zeros behind the last of {count - 1} entries", entry)
        for at, found, phy_offset in ((0, begin_ms, begin), (8, end_ms, end)):
            stored = self._stored_at(phy_offset) if count > 1 else None
            if stored is not None and stored != found:
                raise DamagedIndexError(at, f"the time {stored} of the record at {phy_offset}", found)

    def _settle(self, file: IndexFile) -> None:
        """Make the header and the slots agree with the entries, since a killed process may have stopped in any write.
        The newest entry that agrees with its record is the last one."""
        header = file.header
        count = min(max(header.index_count, 1), file.layout.max_count)
        while (stored := self._stored_of(file, count - 1) if count > 1 else 0) is None:
            count -= 1
            if header.index_count - count > UNSETTLED_COUNT:
                raise DamagedIndexError(36, "a count of entries that agree with the log", header.index_count)
        if count == 1:
            file.settle(self._inherited())
            return
        end = file.entry(count - 1)[1]
        if (count, end, stored) == (header.index_count, header.end_phy_offset, header.end_timestamp_ms):
            file.undo()
            return
        begin_offset = file.entry(1)[1]
        begin = self._stored_at(begin_offset)
        file.settle(
            IndexHeader(
                header.begin_timestamp_ms if begin is None else begin,
                stored,
                begin_offset,
                end,
                file.used_slots(count),
                count,
            )
        )

    def _stored_of(self, file: IndexFile, number: int) -> int | None:
        """Store timestamp of an entry's record; None if the entry says what no writer would."""
        key_hash, phy_offset, seconds, previous = file.entry(number)
        if key_hash < 0 or seconds < 0 or not 0 <= previous < number:
            return None
        if phy_offset < self._log.min_offset:
            return file.header.end_timestamp_ms if phy_offset == file.header.end_phy_offset else None
        record = self._record(phy_offset)
        return record[6] if record and key_hash in self._hasher.hashes(record[2], record[7]) else None

    def _stored_at(self, phy_offset: int) -> int | None:
        record = self._record(phy_offset)
        return None if record is None else record.store_timestamp_ms

    def _record(self, phy_offset: int) -> DispatchedRecord | None:
        """The record that starts there, None if none does."""
        log = self._log
        if not log.min_offset <= phy_offset < log.end_offset:
            return None
        view, start, end = log.file_view(phy_offset)
        try:
            size, flag, queue_id, queue_offset, _, _, topic_at, topic_size, at, properties_size, stored = locate(
                view, phy_offset - start, end, phy_offset
            )
        except BadRecordError:
            return None
        topic = str(view[topic_at : topic_at + topic_size], "utf-8", "replace")
        properties = bytes(view[at : at + properties_size])
        return DispatchedRecord(phy_offset, size, topic, queue_id, queue_offset, flag, stored, properties)

    def _take_newest(self) -> None:
        """Read from the files' end which record is the newest, and how many of its keys have entries."""
        self._newest, self._newest_count = -1, 0
        for file in reversed(self._files):
            header = file.header
            if header.index_count == 1:
                continue
            if self._newest not in (-1, header.end_phy_offset):
                break
            self._newest = header.end_phy_offset
            count = file.newest_count()
            self._newest_count += count
            if count < header.index_count - 1:
                break

    # --- put --------------------------------------------------------------------------------------------------------
    def collect(self, record: DispatchedRecord) -> None:
        phy_offset, _, topic, _, _, sys_flag, stored, properties = record
        self._make_entries()
        newest = self._newest
        if phy_offset < newest or sys_flag & SYS_TRANSACTION == SYS_ROLLBACK:
            return
        hashes = self._hasher.hashes(topic, properties)
        if phy_offset == newest:
            del hashes[: self._newest_count]
        for key_hash in hashes:
            self._pending += NEW_ENTRY.pack(key_hash, phy_offset, stored)

    def collect_run(self, run: DispatchedRun) -> None:
        if run.phy_offset <= self._newest:
            for record in run.records():
                self.collect(record)
            return
        # runs may have few records each: a call for all of them costs little more than one for those of a run
        waiting, count = self._waiting, len(run.tails)
        waiting.topics.extend([run.topic] * count)
        waiting.tails.extend(run.tails)
        waiting.phy_offsets.extend(run.bounds[:count])
        waiting.store_timestamps_ms.extend([run.store_timestamp_ms] * count)

    def missing_count(self, block: DispatchedBlock) -> int:
        return 0

    def collect_block(self, block: DispatchedBlock) -> None:
        self._make_entries()
        known = block.phy_offset <= self._newest
        self._pending += self._without_known(block.entries) if known else block.entries

    def _make_entries(self) -> None:
        if self._waiting.tails:
            self._pending += self._kernel.index_entries(self._waiting)
            self._waiting = KeyedRecords([], [], [], [])

    def _without_known(self, entries: bytes) -> bytes:
        """Leave out those of records that have got theirs."""
        newest, known = self._newest, self._newest_count
        kept = 0
        for _, phy_offset, _ in NEW_ENTRY.iter_unpack(entries):
            if phy_offset > newest or (phy_offset == newest and not known):
                break
            known -= phy_offset == newest
            kept += NEW_ENTRY.size
        return entries[kept:]

    def write(self) -> None:
        self._make_entries()
        pending, done, size = bytes(self._pending), 0, NEW_ENTRY.size
        while done < len(pending):
            file = self._files[-1] if self._files else None
            if file is None or file.is_full:
                file = self._add(NEW_ENTRY.unpack_from(pending, done)[2])
            start = done
            done += size * file.put(self._kernel, pending[done : done + size * file.room_count])
            newest = NEW_ENTRY.unpack_from(pending, done - size)[1]
            count = 0 if newest != self._newest else self._newest_count
            at = done
            while at > start and NEW_ENTRY.unpack_from(pending, at - size)[1] == newest:
                at -= size
            self._newest, self._newest_count = newest, count + (done - at) // size

    def _add(self, store_timestamp_ms: int) -> IndexFile:
        """The next file. Until its first entry it begins where the one before it ends."""
        last = self._files[-1].path.rpartition("/")[2] if self._files else ""
        path = f"{DIRECTORY}/{file_name(store_timestamp_ms, last)}"
        file = IndexFile(self._disk, path, self._layout, self._inherited())
        assert file.region.size_bytes == self._layout.size_bytes
        self._files.append(file)
        return file

    def _inherited(self) -> IndexHeader:
        if not self._files:
            return IndexHeader()
        before = self._files[-1].header
        end, end_ms = before.end_phy_offset, before.end_timestamp_ms
        return IndexHeader(end_ms, end_ms, end, end)

    def forget(self) -> None:
        self._pending.clear()
        self._waiting = KeyedRecords([], [], [], [])

    # --- follow the log ---------------------------------------------------------------------------------------------
    def durable_below(self, end_offset: int) -> int:
        """Highest value that `durable_offset` may have before a cut to `end_offset` changes any file."""
        return min(self.durable_offset, end_offset)

    def truncate(self, end_offset: int) -> None:
        """Drop the entries of records at or behind `end_offset`. `durable_below(end_offset)` must be stored durably
        before."""
        self.cut_count += 1
        with self._syncing:
            self.durable_offset, self.durable_timestamp_ms = self.durable_below(end_offset), 0
            while self._files and self._begins_at(self._files[-1]) >= end_offset:
                file = self._files.pop()
                file.close()
                with disk_errors(self._disk, file.path, "remove the file"):
                    self._disk.remove(file.path)
            if self._files and self._files[-1].header.end_phy_offset >= end_offset:
                self._cut_last(end_offset)
            self._take_newest()

    @staticmethod
    def _begins_at(file: IndexFile) -> int:
        """Offset of the first entry; an empty file begins behind everything."""
        return file.header.begin_phy_offset if file.header.index_count > 1 else 1 << 63

    def _cut_last(self, end_offset: int) -> None:
        file = self._files[-1]
        number = file.header.index_count - 1
        while file.entry(number)[1] >= end_offset:
            number -= 1
        phy_offset, seconds = file.entry(number)[1:3]
        stored = self._stored_at(phy_offset)
        file.truncate(end_offset, file.header.begin_timestamp_ms + 1000 * seconds if stored is None else stored)

    def trim(self, log_min: int) -> list[IndexFile]:
        """Forget the files that only speak of records before `log_min`, and return them. The newest file stays: it says
        where the index goes on."""
        count = 0
        while count < len(self._files) - 1 and self._files[count].header.end_phy_offset < log_min:
            count += 1
        self.cut_count += bool(count)
        detached = self._files[:count]
        del self._files[:count]
        return detached

    @property
    def sync_due(self) -> bool:
        """True if a file is full and not synced."""
        return any(file.is_full and not file.synced for file in self._files[-2:])

    def sync(self) -> None:
        """Sync the full files that are not. Blocks; for a worker thread."""
        with self._syncing:
            for file in [file for file in self._files if file.is_full and not file.synced]:
                file.sync()
                file.synced = True
                self.durable_offset = max(self.durable_offset, file.header.end_phy_offset + 1)
                self.durable_timestamp_ms = file.header.end_timestamp_ms

    def sync_all(self) -> None:
        """Sync all files, for a clean stop."""
        self.sync()
        for file in self._files[-1:]:
            file.settle(file.header)
            file.sync()
            self.durable_offset = max(self.durable_offset, self._newest + 1)
            self.durable_timestamp_ms = file.header.end_timestamp_ms

    def set_aside(self, directory: str) -> None:
        self.close()
        with disk_errors(self._disk, DIRECTORY, "move the old index aside"):
            if self._disk.exists(DIRECTORY):
                self._disk.rename(DIRECTORY, f"{directory}/{DIRECTORY}")
        self._forget_files()

    def _forget_files(self) -> None:
        self._files.clear()
        self._newest, self._newest_count = -1, 0
        self.durable_offset = self.durable_timestamp_ms = 0

    def close(self) -> None:
        self.cut_count += 1
        with self._syncing:
            for file in self._files:
                file.close()

    # --- search -----------------------------------------------------------------------------------------------------
    def search(self, key_hash: int, begin_ms: int, end_ms: int) -> Iterator[int | None]:
        """Physical offsets of the records that may have a key with this hash and were stored in [begin_ms, end_ms], the
        newest first; None for each entry passed over. A record may come twice.

        Raises StoreError for a damaged file, after dropping it and those behind it: they are made anew."""
        for place in range(len(self._files) - 1, -1, -1):
            file = self._files[place]
            header = file.header
            if header.begin_timestamp_ms <= end_ms and header.end_timestamp_ms >= begin_ms:
                try:
                    yield from file.search(key_hash, begin_ms, end_ms)
                except DamagedIndexError as error:
                    raise self._drop(place, f"{file.path} {error}") from None
            if header.begin_timestamp_ms < begin_ms:
                return

    def check_hit(self, phy_offset: int, key_hash: int, records_end: int) -> DispatchedRecord | None:
        """The record of an entry, None if it is gone or not below `records_end`. Raises StoreError, as `search`, for an
        entry whose record has no such key."""
        if not self._log.min_offset <= phy_offset < records_end:
            return None
        record = self._record(phy_offset)
        if record is not None and key_hash in self._hasher.hashes(record.topic, record.properties):
            return record
        place = max(0, *(p for p, file in enumerate(self._files) if self._begins_at(file) <= phy_offset))
        found = "no record there" if record is None else "a record without it"
        path = self._files[place].path
        raise self._drop(place, f"{path}: expected a key with hash {key_hash} at offset {phy_offset}, found {found}")

    def _drop(self, place: int, finding: str) -> StoreError:
        self.cut_count += 1
        with self._syncing:
            dropped = self._files[place:]
            del self._files[place:]
            self._take_newest()
            self._lower_to(min(self.durable_offset, self._newest + 1))
            for file in reversed(dropped):
                file.close()
                with disk_errors(self._disk, file.path, "remove the file"):
                    self._disk.remove(file.path)
        self._tracer.event("index_dropped", finding=finding)
        return StoreError(f"{finding}; {_ANEW}, ask again later")
