"""IndexFiles: the places of records by key, as the broker has entered them (data plane, read only).

Layout (docs/internals/formats.md §5): 40 bytes of header, slots of 4 bytes, entries of 20; a slot holds the number of
its newest entry, an entry that of the one before it. The number of slots is the broker's configuration and stands
nowhere: it is taken to be a quarter of the entries', as by default, or else found by where the last entry is. The first
and the last entry must be what the header says. An index may lack records and have others whose key only has the same
hash, so what is found must still pass the filter, and what is not found is not proved to be absent.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

import numpy as np

from rmqha.model.message import java_string_hash
from rmqha.scan.index import UnusableIndexError
from rmqha.scan.storage import Storage, StorageFile, read_exactly
from rmqha.scan.walk import I64

_HEADER = struct.Struct(">4q2i")
"""Begin and end of the store timestamps, begin and end of the physical offsets, slots in use, number of entries."""
_ENTRY = struct.Struct(">iqii")
"""Hash, physical offset, seconds since the begin, number of the entry before it in its slot."""
_SLOT = struct.Struct(">i")
ENTRIES_PER_SLOT = 4
CHAIN_MAX_COUNT = 100_000
SEARCHED_MAX_BYTES = 64 * 1024 * 1024
"""A larger file is not searched for its last entry."""


def key_hash(topic: str, key: str) -> int:
    """The hash under which the index has a key of a topic's records."""
    value = java_string_hash(f"{topic}#{key}")
    return abs(value) if value != -(2**31) else 0


def places(storage: Storage, root: str, topics: Iterable[str], keys: Iterable[str], start: int, end: int) -> I64:
    """Physical offsets in [start, end) of the records that may have one of the keys, rising. UnusableIndexError without
    an index, or for one of other sizes; OSError as the files have it."""
    names = [name for name, size in storage.entries(f"{root}/index") or () if name.isdecimal() and size]
    if not names:
        raise UnusableIndexError("the store has no index of keys")
    wanted = {key_hash(topic, key) for topic in topics for key in keys}
    found: set[int] = set()
    for name in sorted(names):
        path = f"{root}/index/{name}"
        file = storage.open(path)
        try:
            found.update(offset for offset in _of_file(file, path, _size(storage, root, name), wanted, start, end))
        finally:
            file.close()
    return np.array(sorted(found), np.int64)


def _size(storage: Storage, root: str, name: str) -> int:
    return next(size or 0 for known, size in storage.entries(f"{root}/index") or () if known == name)


def _read(file: StorageFile, layout: struct.Struct, position: int) -> tuple[int, ...]:
    data = bytearray(layout.size)
    if read_exactly(file, position, data) < len(data):
        raise UnusableIndexError("an index of keys ends inside an entry")
    return layout.unpack(data)


def _slot_count(file: StorageFile, path: str, size: int, told: tuple[int, int, int]) -> int:
    """Number of slots of an index file. `told`: first and last physical offset, and number of entries, by the header.
    Raises UnusableIndexError if no number fits."""
    first_offset, last_offset, count = told
    last_at = (count - 1) * _ENTRY.size

    def fits(slots: int) -> bool:
        entries_at = _HEADER.size + slots * _SLOT.size
        if slots <= 0 or (size - entries_at) % _ENTRY.size or entries_at + last_at + _ENTRY.size > size:
            return False
        entries = (_read(file, _ENTRY, entries_at + at)[1] for at in (_ENTRY.size, last_at))
        return all(found == offset for found, offset in zip(entries, (first_offset, last_offset), strict=True))

    usual = (size - _HEADER.size) // (_SLOT.size + ENTRIES_PER_SLOT * _ENTRY.size)
    if fits(usual):
        return usual
    if size <= SEARCHED_MAX_BYTES:
        data = bytearray(size)
        read_exactly(file, 0, data)
        wanted = last_offset.to_bytes(8, "big", signed=True)
        at = data.find(wanted, _HEADER.size)
        while at >= 0:
            slots, rest = divmod(at - 4 - last_at - _HEADER.size, _SLOT.size)
            if not rest and fits(slots):
                return slots
            at = data.find(wanted, at + 1)
    raise UnusableIndexError(f"the number of slots of {path} cannot be told")


def _of_file(file: StorageFile, path: str, size: int, wanted: set[int], start: int, end: int) -> Iterator[int]:
    _, _, first_offset, last_offset, _, count = _read(file, _HEADER, 0)
    if count <= 1 or last_offset < start or first_offset >= end:
        return
    slot_count = _slot_count(file, path, size, (first_offset, last_offset, count))
    entries_at = _HEADER.size + slot_count * _SLOT.size
    for hashed in sorted(wanted):
        (number,) = _read(file, _SLOT, _HEADER.size + hashed % slot_count * _SLOT.size)
        steps = 0
        while 0 < number < count and steps < CHAIN_MAX_COUNT:
            entry_hash, offset, _, before = _read(file, _ENTRY, entries_at + number * _ENTRY.size)
            if entry_hash == hashed and start <= offset < end:
                yield offset
            number, steps = before if before < number else 0, steps + 1
