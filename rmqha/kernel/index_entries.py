"""Entries of the index of keys (formats.md §5), in Python: the reference of `index_entries` and `index_place`."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import groupby, starmap
from typing import Protocol

from rmqha.kernel.batch_kernel import NEW_ENTRY, IndexFront, KeyedRecords, PlacedEntries
from rmqha.kernel.key_hash import KeyHasher

_ENTRY = struct.Struct(">iqii")
"""Key hash, physical offset, whole seconds since the file's begin, number of the entry before it in its slot."""
_slot_at = struct.Struct(">i").unpack_from
_HEADER_BYTES, _SLOT_BYTES = 40, 4
_MAX_SECONDS = 0x7FFFFFFF


class IndexKernel(Protocol):
    """The part of a `BatchKernel` that the index needs."""

    def index_entries(self, records: KeyedRecords) -> bytes: ...

    def index_place(self, front: IndexFront, entries: bytes) -> PlacedEntries: ...

    def put_words(self, memory: memoryview, positions: Sequence[int], words: bytes) -> None: ...


class PythonIndexKernel:
    """Implements IndexKernel."""

    def __init__(self) -> None:
        self._hasher = KeyHasher()

    def index_entries(self, records: KeyedRecords) -> bytes:
        """Make an entry for each key of each record."""
        topics, tails, phy_offsets, stamps = records
        found, first = list[bytes](), 0
        pack, add = NEW_ENTRY.pack, found.append
        for topic, run in groupby(topics):
            stop = first + sum(1 for _ in run)
            hashes_of = self._hasher.run_hashes(topic, tails[first:stop])
            for phy_offset, hashes, stored in zip(phy_offsets[first:stop], hashes_of, stamps[first:stop], strict=True):
                for key_hash in hashes:
                    add(pack(key_hash, phy_offset, stored))
            first = stop
        return b"".join(found)

    def index_place(self, front: IndexFront, entries: bytes) -> PlacedEntries:
        """Place new entries behind those of a file."""
        view, slot_count, first, begin = front
        number, new_slots = first, 0
        heads: dict[int, int] = {}
        quads: list[tuple[int, int, int, int]] = []
        for key_hash, phy_offset, stored in NEW_ENTRY.iter_unpack(entries):
            position = _HEADER_BYTES + _SLOT_BYTES * (key_hash % slot_count)
            previous = heads.get(position)
            if previous is None:
                previous = _slot_at(view, position)[0]
                if not 0 < previous < first:
                    previous = 0
                    new_slots += 1
            seconds = (stored - begin) // 1000 if begin > 0 else 0
            quads.append((key_hash, phy_offset, min(max(seconds, 0), _MAX_SECONDS), previous))
            heads[position] = number
            if number == 1:
                begin = stored
            number += 1
        placed = b"".join(starmap(_ENTRY.pack, quads))
        return PlacedEntries(placed, list(heads), struct.pack(f">{len(heads)}i", *heads.values()), new_slots)

    def put_words(self, memory: memoryview, positions: Sequence[int], words: bytes) -> None:
        """Copy four bytes to each position."""
        # as numbers of the machine's own: half the cost of slices, and the bytes are the same
        aligned = memory[: len(memory) // _SLOT_BYTES * _SLOT_BYTES].cast("I")
        for position, word in zip(positions, memoryview(words).cast("I"), strict=True):
            aligned[position // _SLOT_BYTES] = word
