"""Data plane: one file of the index: a header, hash slots, entries chained by slot.

Source: formats.md §5. Entry k stands at a fixed place and never moves; a slot holds the number of its newest entry, an
entry that of the one before it. What counts is the header's index count. Entries are written before the slots that
point at them, slots before the header: a process that is killed leaves at most slots that point at or behind the
count, and `undo` leads them back along the chain.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from rmqha.kernel.batch_kernel import NEW_ENTRY, IndexFront
from rmqha.kernel.index_entries import IndexKernel
from rmqha.port import Disk, MappedRegion
from rmqha.store.meta.problem import disk_errors

HEADER = struct.Struct(">4q2i")
ENTRY = struct.Struct(">iqii")
"""key hash, physical offset, whole seconds since the file's begin, number of the entry before it in its slot."""
SLOT = struct.Struct(">i")
ZERO_COUNT = 50_000
"""Entries zeroed by one write."""

_entry_at = ENTRY.unpack_from
_slot_at = SLOT.unpack_from


class IndexHeader(NamedTuple):
    """Header of an index file. `index_count` is the number of the next entry: the first is 1, so that 0 can mean
    none."""

    begin_timestamp_ms: int = 0
    end_timestamp_ms: int = 0
    begin_phy_offset: int = 0
    end_phy_offset: int = 0
    hash_slot_count: int = 0
    index_count: int = 1


class DamagedIndexError(Exception):
    """Bytes that no index has; the text names byte, expected and found. Caught where the file can be dropped."""

    def __init__(self, at: int, expected: str, found: object) -> None:
        super().__init__(f"at byte {at}: expected {expected}, found {found}")


class IndexLayout(NamedTuple):
    """Numbers of slots and entries of an index file: maxHashSlotNum and maxIndexNum."""

    slot_count: int
    max_count: int

    @property
    def size_bytes(self) -> int:
        return HEADER.size + SLOT.size * self.slot_count + ENTRY.size * self.max_count

    @property
    def entries_at(self) -> int:
        return HEADER.size + SLOT.size * self.slot_count


class IndexFile:
    """One mapped file. All methods that write or map raise StoreError when the disk fails."""

    __slots__ = ("_disk", "_entries_at", "_region", "_torn", "_view", "header", "layout", "path", "synced")

    def __init__(self, disk: Disk, path: str, layout: IndexLayout, header: IndexHeader) -> None:
        self._disk = disk
        self._entries_at = layout.entries_at
        self._region: MappedRegion | None = None
        self._view: memoryview | None = None
        self._torn = False
        """A write failed half-way."""
        self.path = path
        self.layout = layout
        self.header = header
        self.synced = False
        """Full, and durable as it stands."""

    # --- read -------------------------------------------------------------------------------------------------------
    @property
    def region(self) -> MappedRegion:
        """The mapped file; it is created if missing."""
        if self._region is None:
            size = self.layout.size_bytes
            with disk_errors(self._disk, self.path, f"create or map a file of {size} bytes"):
                self._region = self._disk.map(self.path, size, create=True, reserve=False)
        return self._region

    @property
    def view(self) -> memoryview:
        if self._view is None:
            self._view = self.region.view(0, self.layout.size_bytes)
        return self._view

    @property
    def is_full(self) -> bool:
        return self.header.index_count >= self.layout.max_count

    def entry(self, number: int) -> tuple[int, int, int, int]:
        return _entry_at(self.view, self._entries_at + ENTRY.size * number)

    def entry_position(self, number: int) -> int:
        return self._entries_at + ENTRY.size * number

    def newest_count(self) -> int:
        """Number of entries at the file's end that belong to the newest record."""
        count, end = self.header.index_count, self.header.end_phy_offset
        found = 0
        while found + 1 < count and self.entry(count - 1 - found)[1] == end:
            found += 1
        return found

    # --- put --------------------------------------------------------------------------------------------------------
    @property
    def room_count(self) -> int:
        """Number of entries that there is room for."""
        return self.layout.max_count - self.header.index_count

    def put(self, kernel: IndexKernel, new: bytes) -> int:
        """Write new entries, `NEW_ENTRY` each, at least one and no more than there is room for. Returns how many."""
        if self._torn:
            self.undo()
        header = self.header
        first, count = header.index_count, len(new) // NEW_ENTRY.size
        assert 0 < count <= self.room_count
        front = IndexFront(self.view[: self._entries_at], self.layout.slot_count, first, header.begin_timestamp_ms)
        entries, positions, heads, new_slots = kernel.index_place(front, new)
        _, begin_offset, begin = NEW_ENTRY.unpack_from(new)
        if first > 1:
            begin_offset, begin = header.begin_phy_offset, header.begin_timestamp_ms
        _, end_offset, end = NEW_ENTRY.unpack_from(new, len(new) - NEW_ENTRY.size)
        self._torn = True
        with disk_errors(self._disk, self.path, "write to the index"):
            self.region.write(self._entries_at + ENTRY.size * first, entries)
            self.region.write_words(positions, heads, kernel.put_words)
            slot_count = header.hash_slot_count + new_slots
            self._put_header(IndexHeader(begin, end, begin_offset, end_offset, slot_count, first + count))
        self._torn = False
        return count

    def _put_header(self, header: IndexHeader) -> None:
        self.region.write(0, HEADER.pack(*header))
        self.header = header

    # --- take back --------------------------------------------------------------------------------------------------
    def undo(self) -> None:
        """Lead slots that point at or behind the index count back to the newest entry that counts, and zero what stands
        there: a write stopped half-way."""
        count, view, slot_count = self.header.index_count, self.view, self.layout.slot_count
        number = count
        with disk_errors(self._disk, self.path, "write to the index"):
            for number in range(count, self.layout.max_count):
                key_hash, phy_offset, seconds, previous = self.entry(number)
                if not key_hash | phy_offset | seconds | previous:
                    break
                position = HEADER.size + SLOT.size * (key_hash % slot_count)
                head = found = _slot_at(view, position)[0]
                while head >= count:
                    before = self.entry(head)[3] if head < self.layout.max_count else 0
                    head = before if 0 <= before < head else 0
                if head != found:
                    self.region.write(position, SLOT.pack(head))
            else:
                number = self.layout.max_count
            self._zero(count, number)
        self._torn = False

    def _zero(self, first: int, behind: int) -> None:
        """Zero the entries [first, behind), at which no slot points any more."""
        for number in range(first, behind, ZERO_COUNT):
            size = ENTRY.size * min(ZERO_COUNT, behind - number)
            self.region.write(self.entry_position(number), bytes(size))

    def truncate(self, end_offset: int, end_timestamp_ms: int) -> None:
        """Drop the entries of records at or behind `end_offset`, the newest first. `end_timestamp_ms` is the store
        timestamp of the newest record that stays. At least one entry must stay."""
        self.undo()
        header, slot_count = self.header, self.layout.slot_count
        count, slots_used = header.index_count, header.hash_slot_count
        heads: dict[int, int] = {}
        while count > 1:
            key_hash, phy_offset, _, previous = self.entry(count - 1)
            if phy_offset < end_offset:
                break
            count -= 1
            heads[key_hash % slot_count] = previous
            slots_used -= previous == 0
        assert count > 1
        with disk_errors(self._disk, self.path, "write to the index"):
            for slot, head in heads.items():
                self.region.write(HEADER.size + SLOT.size * slot, SLOT.pack(head))
            end = self.entry(count - 1)[1]
            self._put_header(
                header._replace(
                    end_timestamp_ms=end_timestamp_ms,
                    end_phy_offset=end,
                    hash_slot_count=slots_used,
                    index_count=count,
                )
            )
            self._zero(count, header.index_count)
        self.synced = False

    def settle(self, header: IndexHeader) -> None:
        """Make the file's header equal to `header`, which is true."""
        if header != self.header:
            with disk_errors(self._disk, self.path, "write to the index"):
                self._put_header(header)
        self.undo()

    def used_slots(self, count: int) -> int:
        """Number of slots that the entries below `count` use: those that no entry stands before."""
        end = self.entry_position(count)
        return sum(1 for entry in ENTRY.iter_unpack(self.view[self.entry_position(1) : end]) if entry[3] == 0)

    # --- search -----------------------------------------------------------------------------------------------------
    def search(self, key_hash: int, begin_ms: int, end_ms: int) -> Iterator[int | None]:
        """Physical offsets of entries with this hash, the newest first, None for each entry of another hash or time.

        Times are whole seconds since the file's begin, and entry 1 may be off by more: what may lie in [begin_ms,
        end_ms] is given. Raises DamagedIndexError for a chain that no writer makes.
        """
        count, slot_count = self.header.index_count, self.layout.slot_count
        slot = key_hash % slot_count
        position = HEADER.size + SLOT.size * slot
        number = _slot_at(self.view, position)[0]
        first_seconds, last_seconds = self._seconds(begin_ms), self._seconds(end_ms)
        after = self.header.end_phy_offset
        if not 0 <= number < count:
            raise DamagedIndexError(position, f"the number of an entry below {count}", number)
        while number:
            found_hash, phy_offset, seconds, previous = self.entry(number)
            at = self.entry_position(number)
            if found_hash < 0 or found_hash % slot_count != slot:
                raise DamagedIndexError(at, f"a key hash of slot {slot}", found_hash)
            if not 0 <= phy_offset <= after:
                raise DamagedIndexError(at + 4, f"an offset up to {after}", phy_offset)
            if seconds < 0:
                raise DamagedIndexError(at + 12, "a time from 0", seconds)
            if not 0 <= previous < number:
                raise DamagedIndexError(at + 16, f"the number of an entry below {number}", previous)
            if number > 1 and seconds < first_seconds:
                return
            yield phy_offset if found_hash == key_hash and (number == 1 or seconds <= last_seconds) else None
            number, after = previous, phy_offset

    def _seconds(self, timestamp_ms: int) -> int:
        return (timestamp_ms - self.header.begin_timestamp_ms) // 1000

    # --- end --------------------------------------------------------------------------------------------------------
    def sync(self) -> None:
        with disk_errors(self._disk, self.path, "write to stable storage"):
            self.region.sync()

    def close(self) -> None:
        if self._region is not None:
            self._view = None
            self._region.close()
            self._region = None
