"""Control plane: the IndexFiles against themselves and against the log.

Source: formats.md §5. Slots and chains follow from the entries, so they are computed again and compared. Entries stand
in the order of the log: one pass of the log claims them record by record.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from dataclasses import dataclass

from rmqha.model.message import PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_UNIQUE_KEY, find_property, java_string_hash
from rmqha.port import ReadDisk
from rmqha.store.finding import Findings, Kind, Severity
from rmqha.store.look import StoreLook, size_of
from rmqha.store.record import SYS_TRANSACTION, Located

DIRECTORY = "index"
HEADER = struct.Struct(">qqqqii")
"""beginTimestamp, endTimestamp, beginPhyOffset, endPhyOffset, slots in use, next free entry."""
ENTRY = struct.Struct(">iqii")
"""keyHash, physical offset, seconds since beginTimestamp, previous entry of the chain."""
SLOT_BYTES = 4
DEFAULT_SLOTS = 5_000_000
ROLLBACK = SYS_TRANSACTION
LIMIT_BYTES = 1 << 31
ADVICE = "rmqha fsck --repair sets the index aside; it is made anew from the log"
_KEYS, _TAGS, _UNIQUE = (name.encode() for name in (PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_UNIQUE_KEY))


def key_hash(key: str) -> int:
    """The hash that an entry holds: |hashCode|, 0 for the one number that has no absolute value."""
    value = abs(java_string_hash(key))
    return value if value < 1 << 31 else 0


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """Entry `number` of the file `path`."""

    path: str
    number: int
    at: int
    key_hash: int
    offset: int
    seconds: int
    begin_ms: int


Header = tuple[int, int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class IndexFile:
    """A file whose slots and chains are right. `entries` are the bytes of its entries."""

    path: str
    header: Header
    slot_count: int
    entries: memoryview

    def __iter__(self) -> Iterator[IndexEntry]:
        first_at = HEADER.size + SLOT_BYTES * self.slot_count
        for number, (value, offset, seconds, _) in enumerate(ENTRY.iter_unpack(self.entries), 1):
            at = first_at + ENTRY.size * number
            yield IndexEntry(self.path, number, at, value, offset, seconds, self.header[0])


class _BadIndexError(Exception):
    """What is wrong with a file: byte, what was expected, what was found."""

    def __init__(self, at: int, expected: str, found: str) -> None:
        super().__init__(at, expected, found)
        self.at, self.expected, self.found = at, expected, found


def slot_counts(data: bytes, header: Header) -> Iterator[int]:
    """Numbers of slots that a file of this content may have: neither number is written down, but the first entry's
    offset is the header's beginPhyOffset."""
    if len(data) == HEADER.size + SLOT_BYTES * DEFAULT_SLOTS + ENTRY.size * 4 * DEFAULT_SLOTS:
        yield DEFAULT_SLOTS
    needle = struct.pack(">q", header[2])
    skipped = HEADER.size + ENTRY.size + 4
    at = data.find(needle, skipped)
    while at >= 0:
        slots, odd = divmod(at - skipped, SLOT_BYTES)
        if not odd and slots and (len(data) - HEADER.size - SLOT_BYTES * slots) % ENTRY.size == 0:
            yield slots
        at = data.find(needle, at + 1)


def parse(path: str, data: bytes, slot_count: int, *, lenient: bool) -> IndexFile:
    """`lenient`: the header may lag behind the entries, as after a kill and while a broker runs.
    Raises _BadIndexError."""
    header: Header = HEADER.unpack_from(data)
    used, count = header[4], header[5]
    entries_at = HEADER.size + SLOT_BYTES * slot_count
    room = (len(data) - entries_at) // ENTRY.size
    if not 1 <= count <= room:
        raise _BadIndexError(36, f"a next entry of 1 to {room}", f"{count}")
    entries = memoryview(data)[entries_at + ENTRY.size : entries_at + ENTRY.size * room]
    known, slots = _walk_chains(entries, slot_count, count, entries_at, lenient=lenient)
    stored = data[HEADER.size : entries_at]
    made = struct.pack(f">{slot_count}i", *slots)
    if stored != made:
        pairs = zip(struct.iter_unpack(">i", stored), struct.iter_unpack(">i", made), strict=True)
        index, value, wanted = next((index, a, b) for index, ((a,), (b,)) in enumerate(pairs) if a != b)
        raise _BadIndexError(HEADER.size + SLOT_BYTES * index, f"entry {wanted} in slot {index}", f"{value}")
    in_use = len(slots) - slots.count(0)
    exact = known == count - 1
    if exact and used != in_use:
        raise _BadIndexError(32, f"{in_use} slots in use", f"{used}")
    if exact and known:
        first, last = ENTRY.unpack_from(entries)[1], ENTRY.unpack_from(entries, ENTRY.size * (known - 1))[1]
        if (header[2], header[3]) != (first, last):
            raise _BadIndexError(16, f"offsets {first} to {last}", f"{header[2]} to {header[3]}")
    if exact and header[0] > header[1]:
        raise _BadIndexError(8, f"an end time from {header[0]}", f"{header[1]}")
    tail = bytes(entries[ENTRY.size * known :])
    if not lenient and tail.count(0) != len(tail):
        raise _BadIndexError(entries_at + ENTRY.size * (known + 1), "zeros behind the last entry", "other bytes")
    return IndexFile(path, header, slot_count, entries[: ENTRY.size * known])


def _walk_chains(
    entries: memoryview, slot_count: int, count: int, entries_at: int, *, lenient: bool
) -> tuple[int, array[int]]:
    """(number of entries, the slots that they make). Raises _BadIndexError."""
    slots = array("i", bytes(SLOT_BYTES * slot_count))
    behind, number = 0, 0
    for number, (value, offset, seconds, previous) in enumerate(ENTRY.iter_unpack(entries), 1):
        slot = value % slot_count
        wanted = slots[slot]
        fits = value >= 0 and previous == wanted and offset >= behind and seconds >= 0
        if number >= count and not (lenient and fits and (value or offset or seconds)):
            number -= 1
            break
        if not fits:
            expected = f"a hash and seconds from 0, an offset from {behind} and previous entry {wanted}"
            raise _BadIndexError(
                entries_at + ENTRY.size * number, expected, f"{value}, {seconds}, {offset} and {previous}"
            )
        slots[slot] = number
        behind = offset
    return number, slots


class Indexes:
    """All IndexFiles, claimed by the records of the log in order."""

    def __init__(self, look: StoreLook, findings: Findings) -> None:
        self._findings = findings
        self._live = look.live
        self._lenient = look.live or not look.stopped_cleanly
        self._log_min = look.min_offset
        self.damaged = False
        self._has_bad_file = False
        self._lacking: list[int] = []
        """Neighbouring records without all their entries, not reported yet."""
        self._lacking_at = ("", 0)
        self._last_path = ""
        self._entries = self._all(look.disk) if look.disk.is_directory(DIRECTORY) else iter(())
        self._next = next(self._entries, None)
        self._required_from = self._next.offset if self._next is not None else None
        """Behind this record all must be indexed: of this one itself entries may have gone with an older file."""
        self._required_to = look.dispatched_end

    def _report(self, path: str, at: int | None, expected: str, found: str) -> None:
        self.damaged = True
        self._findings.add(Severity.WARNING, Kind.INDEX, path, at, expected, found, ADVICE)

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
        """Of most files."""
        votes: dict[int, int] = {}
        for path in paths:
            try:
                size = size_of(disk, path)
            except OSError:
                continue  # met again when the file is loaded
            votes[size] = votes.get(size, 0) + 1
        return max(votes, key=lambda size: (votes[size], size), default=0)

    def _load(self, disk: ReadDisk, path: str, wanted: int, slot_count: int, *, lenient: bool) -> IndexFile:
        """With the number of slots of the files before, else with the first one that fits.
        Raises _BadIndexError, OSError."""
        data = disk.read(path, LIMIT_BYTES)
        if len(data) != wanted or len(data) < HEADER.size:
            raise _BadIndexError(min(len(data), wanted), f"{max(wanted, HEADER.size)} bytes", f"{len(data)}")
        header: Header = HEADER.unpack_from(data)
        if header[5] <= 1 and data.count(0, HEADER.size) == len(data) - HEADER.size:
            return IndexFile(path, header, 0, memoryview(b""))
        first: _BadIndexError | None = None
        for slots in (slot_count,) if slot_count else slot_counts(data, header):
            try:
                return parse(path, data, slots, lenient=lenient)
            except _BadIndexError as bad:
                first = first or bad
        raise first or _BadIndexError(16, "the offset of the first entry", f"{header[2]}")

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
        seconds = max(0, (stored_ms - entry.begin_ms) // 1000)
        # the first entry of a file is measured from the begin of the file before
        if entry.number > 1 and entry.begin_ms and entry.seconds != min(seconds, (1 << 31) - 1):
            self._report(entry.path, entry.at + 12, f"{seconds} seconds since the file's begin", f"{entry.seconds}")

    def _no_record(self, entry: IndexEntry) -> None:
        if entry.offset >= self._log_min:
            self._report(entry.path, entry.at, "the offset of a record", f"{entry.offset}")

    def finish(self, end: int) -> None:
        """Entries that are left point behind the log's end."""
        self._tell_lacking()
        while (entry := self._next) is not None:
            if not (self._live and entry.offset >= end):
                self._report(entry.path, entry.at, f"the offset of a record below {end}", f"{entry.offset}")
            self._next = next(self._entries, None)
