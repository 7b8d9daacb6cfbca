"""Control plane: checks of the IndexFiles against themselves and against the log.

Source: formats.md §5. Slots and chains follow from the entries, so they are computed again and compared. Entries stand
in the order of the log: one pass of the log claims them record by record.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterator
from dataclasses import dataclass

from rmqha.inspect.finding import FindingKind, Findings, Severity
from rmqha.inspect.store_inspection import StoreInspection, size_of
from rmqha.model.message import PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_UNIQUE_KEY, find_property, java_string_hash
from rmqha.port import ReadDisk, ReadFile
from rmqha.store.log.record import SYS_TRANSACTION, Located

DIRECTORY = "index"
HEADER = struct.Struct(">qqqqii")
"""beginTimestamp, endTimestamp, beginPhyOffset, endPhyOffset, slots in use, next free entry."""
ENTRY = struct.Struct(">iqii")
"""keyHash, physical offset, seconds since beginTimestamp, previous entry of the chain."""
SLOT_BYTES = 4
DEFAULT_SLOTS = 5_000_000
ROLLBACK = SYS_TRANSACTION
LIMIT_BYTES = 1 << 31
PIECE_BYTES = 4 * 1024 * 1024
ADVICE = "rmqha fsck --repair sets the index aside; it is made anew from the log"
_KEYS, _TAGS, _UNIQUE = (name.encode() for name in (PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_UNIQUE_KEY))


def key_hash(key: str) -> int:
    """The hash that an entry holds: |hashCode|, 0 for the one number that has no absolute value."""
    value = abs(java_string_hash(key))
    return value if value < 1 << 31 else 0


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One entry: `number` in the file `path`, at byte `at`."""

    path: str
    number: int
    at: int
    key_hash: int
    offset: int
    seconds: int
    begin_ms: int
    end_ms: int | None
    """End time of the file, for its last entry, whose record must have been stored then; None for the others."""


Header = tuple[int, int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class CheckedIndexFile:
    """A file whose slots and chains are right. `entries` are the bytes of its entries."""

    path: str
    header: Header
    slot_count: int
    entries: bytes
    header_lags: bool = False

    def __iter__(self) -> Iterator[IndexEntry]:
        first_at = HEADER.size + SLOT_BYTES * self.slot_count
        last = 0 if self.header_lags else len(self.entries) // ENTRY.size
        begin_ms, end_ms = self.header[:2]
        for number, (value, offset, seconds, _) in enumerate(ENTRY.iter_unpack(self.entries), 1):
            at = first_at + ENTRY.size * number
            yield IndexEntry(
                self.path, number, at, value, offset, seconds, begin_ms, end_ms if number == last else None
            )


class _BadIndexError(Exception):
    """A fault of an index file: byte, what was expected, what was found."""

    def __init__(self, at: int, expected: str, found: str) -> None:
        super().__init__(at, expected, found)
        self.at, self.expected, self.found = at, expected, found


def slot_counts(file: ReadFile, header: Header) -> Iterator[int]:
    """Numbers of slots that a file of this content may have. The file does not say it, but its first entry, behind the
    slots, has the header's beginPhyOffset."""
    if file.size_bytes == HEADER.size + SLOT_BYTES * DEFAULT_SLOTS + ENTRY.size * 4 * DEFAULT_SLOTS:
        yield DEFAULT_SLOTS
    data = file.read_at(0, file.size_bytes)
    needle = struct.pack(">q", header[2])
    skipped = HEADER.size + ENTRY.size + 4
    at = data.find(needle, skipped)
    while at >= 0:
        slots, odd = divmod(at - skipped, SLOT_BYTES)
        if not odd and slots and (len(data) - HEADER.size - SLOT_BYTES * slots) % ENTRY.size == 0:
            yield slots
        at = data.find(needle, at + 1)


def parse(path: str, file: ReadFile, header: Header, slot_count: int, *, lenient: bool) -> CheckedIndexFile:
    """The entries of an index file, whose slots and chains are checked. `lenient`: entries and slots may be ahead of
    the header, as after a kill and while a broker runs. Raises _BadIndexError."""
    used, count = header[4], header[5]
    entries_at = HEADER.size + SLOT_BYTES * slot_count
    room = (file.size_bytes - entries_at) // ENTRY.size
    if not 1 <= count <= room:
        raise _BadIndexError(36, f"a next entry of 1 to {room}", f"{count}")
    entries = file.read_at(entries_at + ENTRY.size, ENTRY.size * (count - 1))
    made = _walk_chains(entries, slot_count, entries_at)
    if any(file.read_at(entries_at, ENTRY.size)):
        raise _BadIndexError(entries_at, "zeros as entry 0, which nobody uses", "other bytes")
    stored = array("i", file.read_at(HEADER.size, SLOT_BYTES * slot_count))
    if sys.byteorder == "little":
        stored.byteswap()
    if stored != made:
        for index, (value, wanted) in enumerate(zip(stored, made, strict=True)):
            if value != wanted and not (lenient and value >= count):
                at = HEADER.size + SLOT_BYTES * index
                raise _BadIndexError(at, f"entry {wanted} in slot {index}", f"{value}")
    if not lenient:
        in_use = len(made) - made.count(0)
        if used != in_use:
            raise _BadIndexError(32, f"{in_use} slots in use", f"{used}")
        _require_zeros(file, entries_at + ENTRY.size * count)
    if entries:
        first, last = ENTRY.unpack_from(entries)[1], ENTRY.unpack_from(entries, len(entries) - ENTRY.size)[1]
        if header[2] != first or (header[3] != last and not lenient):
            raise _BadIndexError(16, f"offsets {first} to {last}", f"{header[2]} to {header[3]}")
    if header[0] > header[1]:
        raise _BadIndexError(8, f"an end time from {header[0]}", f"{header[1]}")
    return CheckedIndexFile(path, header, slot_count, entries, lenient)


def _walk_chains(entries: bytes, slot_count: int, entries_at: int) -> array[int]:
    """The slots that the entries make. Raises _BadIndexError."""
    slots = array("i", bytes(SLOT_BYTES * slot_count))
    behind = 0
    for number, (value, offset, seconds, previous) in enumerate(ENTRY.iter_unpack(entries), 1):
        slot = value % slot_count
        wanted = slots[slot]
        if value < 0 or previous != wanted or offset < behind or seconds < 0:
            raise _BadIndexError(
                entries_at + ENTRY.size * number,
                f"a hash and seconds from 0, an offset from {behind} and previous entry {wanted}",
                f"{value}, {seconds}, {offset} and {previous}",
            )
        slots[slot] = number
        behind = offset
    return slots


def _require_zeros(file: ReadFile, at: int) -> None:
    while data := file.read_at(at, PIECE_BYTES):
        if data.count(0) != len(data):
            byte = at + len(data) - len(data.lstrip(b"\0"))
            raise _BadIndexError(byte, "zeros behind the last entry", "other bytes")
        at += len(data)


class Indexes:
    """All IndexFiles, claimed by the records of the log in order."""

    def __init__(self, store: StoreInspection, findings: Findings) -> None:
        self._findings = findings
        self._live = store.live
        self._lenient = store.live or not store.stopped_cleanly
        self._log_min = store.min_offset
        self.damaged = False
        self._has_bad_file = False
        self.bad_ranges: list[tuple[int, int]] = []
        """Parts of the log that hold no record, which are already reported."""
        self._lacking: list[int] = []
        """Neighbouring records without all their entries, not reported yet."""
        self._lacking_at = ("", 0)
        self._last_path = ""
        self._entries = self._all(store.disk) if store.disk.is_directory(DIRECTORY) else iter(())
        self._next = next(self._entries, None)
        self._required_from = self._next.offset if self._next is not None else None
        """Record behind which all must be indexed; entries of this one itself may have gone with an older file."""
        self._required_to = store.indexed_end

    def _report(self, path: str, at: int | None, expected: str, found: str) -> None:
        self.damaged = True
        self._findings.add(Severity.WARNING, FindingKind.INDEX, path, at, expected, found, ADVICE)

    def _all(self, disk: ReadDisk) -> Iterator[IndexEntry]:
        """The entries of all files in order; one file is in memory at a time."""
        paths = []
        for name in disk.list(DIRECTORY):
            if name.isascii() and name.isdigit() and len(name) == 17:
                paths.append(f"{DIRECTORY}/{name}")
            else:
                self._findings.note(f"{DIRECTORY}/{name}", "not one of the store's files")
        wanted, slot_count = self._common_size(disk, paths), 0
        for path in paths:
            try:
                file = self._load(disk, path, wanted, slot_count, lenient=self._lenient and path == paths[-1])
                slot_count = file.slot_count or slot_count
                self._last_path = path
                yield from file
            except _BadIndexError as bad:
                self._has_bad_file = True
                self._report(path, bad.at, bad.expected, bad.found)
            except OSError as error:
                self._has_bad_file = True
                self._report(path, None, "a file that can be read", error.strerror or str(error))

    def _common_size(self, disk: ReadDisk, paths: list[str]) -> int:
        """The size that most files have."""
        votes: dict[int, int] = {}
        for path in paths:
            try:
                size = size_of(disk, path)
            except OSError:
                continue  # met again when the file is loaded
            votes[size] = votes.get(size, 0) + 1
        return max(votes, key=lambda size: (votes[size], size), default=0)

    def _load(self, disk: ReadDisk, path: str, wanted: int, slot_count: int, *, lenient: bool) -> CheckedIndexFile:
        """Read and check a file, with the number of slots of the files before it, else with the first number that fits.
        Raises _BadIndexError, OSError."""
        file = disk.open_read(path)
        try:
            size = file.size_bytes
            if size != wanted or size < HEADER.size or size > LIMIT_BYTES:
                raise _BadIndexError(min(size, wanted), f"{max(wanted, HEADER.size)} bytes", f"{size}")
            header: Header = HEADER.unpack(file.read_at(0, HEADER.size))
            if header[5] <= 1 and header[4] == 0:
                _require_zeros(file, HEADER.size)
                return CheckedIndexFile(path, header, 0, b"")
            first: _BadIndexError | None = None
            for slots in (slot_count,) if slot_count else slot_counts(file, header):
                try:
                    return parse(path, file, header, slots, lenient=lenient)
                except _BadIndexError as bad:
                    first = first or bad
            raise first or _BadIndexError(16, "the offset of the first entry", f"{header[2]}")
        finally:
            file.close()

    # --- the pass ---------------------------------------------------------------------------------------------------
    def _hash(self, topic: bytes, key: bytes) -> int:
        return key_hash(f"{topic.decode('utf-8', 'replace')}#{key.decode('utf-8', 'replace')}")

    def record(self, position: int, view: memoryview, parts: Located) -> None:
        """Check one record."""
        entry = self._next
        required = (
            not self._has_bad_file
            and self._required_from is not None
            and self._required_from < position < self._required_to
            and parts[1] & SYS_TRANSACTION != ROLLBACK
        )
        if not required and (entry is None or entry.offset > position):
            return
        topic = bytes(view[parts[6] : parts[6] + parts[7]])
        properties = bytes(view[parts[8] : parts[8] + parts[9]])
        unique, keys = find_property(properties, _UNIQUE), find_property(properties, _KEYS)
        wanted = [self._hash(topic, key) for key in ([unique] if unique else []) + (keys or b"").split(b" ") if key]
        tags = find_property(properties, _TAGS)
        allowed = [*wanted, self._hash(topic, b"T#" + tags)] if tags else wanted
        found: list[int] = []
        while entry is not None and entry.offset <= position:
            if entry.offset < position:
                self._no_record(entry)
            else:
                self._claim(entry, allowed, parts[10])
                found.append(entry.key_hash)
            entry = next(self._entries, None)
        self._next = entry
        if not required or all(value in found for value in wanted):
            if wanted:
                self._tell_lacking()
        # behind the newest entry: a crash stopped the dispatch there, the next start goes on
        elif entry is not None or not self._lenient:
            if not self._lacking:
                self._lacking_at = (entry.path, entry.at) if entry is not None else (self._last_path, HEADER.size)
            self._lacking.append(position)

    def _tell_lacking(self) -> None:
        if self._lacking:
            first, last, count = self._lacking[0], self._lacking[-1], len(self._lacking)
            records = f"the record at {first}" if count == 1 else f"{count} records from {first} to {last}"
            self._report(*self._lacking_at, f"the entries of {records}", "none or not all")
            self._lacking.clear()

    def _claim(self, entry: IndexEntry, allowed: list[int], stored_ms: int) -> None:
        if entry.key_hash not in allowed:
            expected = f"the hash of a key of the record at {entry.offset}"
            self._report(entry.path, entry.at, expected, f"{entry.key_hash}")
            return
        if entry.end_ms not in (None, stored_ms):
            self._report(entry.path, 8, f"the time {stored_ms} of the last entry's record", f"{entry.end_ms}")
        seconds = max(0, (stored_ms - entry.begin_ms) // 1000)
        # the first entry of a file is measured from the begin of the file before
        if entry.number > 1 and entry.begin_ms and entry.seconds != min(seconds, (1 << 31) - 1):
            self._report(entry.path, entry.at + 12, f"{seconds} seconds since the file's begin", f"{entry.seconds}")

    def _no_record(self, entry: IndexEntry) -> None:
        if entry.offset >= self._log_min and not any(a <= entry.offset < b for a, b in self.bad_ranges):
            self._report(entry.path, entry.at, "the offset of a record", f"{entry.offset}")

    def finish(self, end: int) -> None:
        """Report the entries that are left: they point behind the log's end."""
        self._tell_lacking()
        while (entry := self._next) is not None:
            if not (self._live and entry.offset >= end):
                self._report(entry.path, entry.at, f"the offset of a record below {end}", f"{entry.offset}")
            self._next = next(self._entries, None)
