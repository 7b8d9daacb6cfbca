"""Finding the records of a mapped CommitLog file (data plane: NumPy over the file's bytes, no object per record).

Two ways to the same answer. The hop loop follows totalSize from record to record. The lane walk starts at about a
thousand places at once, each found by the magic and confirmed by the record's own physicalOffset, and moves all lanes
together; when every lane lands exactly on the start of the next one, its records are the hop loop's, by induction from
the first lane, which starts where the caller knows that a record starts. When one does not, the hop loop decides.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]

MAGIC_V1 = 0xDAA320A7 - 2**32
MAGIC_V2 = 0xDAA320AB - 2**32
MAGIC_BLANK = 0xCBD43194 - 2**32
RECORD_MIN_BYTES = 91
"""An IPv4 V1 record with empty body, topic and properties."""
BLANK_HEADER_BYTES = 8

BLOCK_BYTES = 64 * 1024 * 1024
LANE_SPACING_BYTES = 64 * 1024
FEW_LANES = 8
ZERO_PROBE_BYTES = 4096

_HOP = struct.Struct(">ii20xq")
_MAGIC_BYTES = re.compile(rb"\xda\xa3\x20[\xa7\xab]")
_STEP = np.dtype([("size", ">i4"), ("magic", ">i4"), ("between", "V20"), ("phy_offset", ">i8")])


def unaligned(data: NDArray[np.uint8], dtype: Any) -> NDArray[Any]:
    """A view with one element of `dtype` at every byte position, so that indexing it with positions gathers fields."""
    kind = np.dtype(dtype)
    return np.ndarray((max(len(data) - kind.itemsize + 1, 0),), kind, data.data, strides=(1,))


@dataclass(frozen=True, slots=True)
class LogFile:
    """A mapped CommitLog file. Positions are bytes from its start; `base_offset` is the physical offset of byte 0."""

    path: str
    base_offset: int
    data: NDArray[np.uint8]

    @property
    def size_bytes(self) -> int:
        return len(self.data)


@dataclass(frozen=True, slots=True)
class Chain:
    """Record starts, rising, and the position where the chain ended: the stop, the file's end after a blank record, or
    (`broken`) the first position that holds neither a record nor a blank one."""

    starts: I64
    end: int
    broken: bool


def walk_blocks(file: LogFile, start: int, stop: int) -> Iterator[Chain]:
    """The records of [start, stop) in pieces of about BLOCK_BYTES; `start` must be a record's start.

    Only the last piece can be broken; the end of every other one is the start of the next.
    """
    position = start
    while position < stop:
        limit = min(position + BLOCK_BYTES, stop)
        lanes = _lane_starts(file, position, limit, stop)
        chain = _advance_lanes(file, lanes) if len(lanes) > FEW_LANES else None
        if chain is None:
            chain = _hop(file, position, limit, stop)
        yield chain
        position = chain.end
        if chain.broken:
            return


def walk(file: LogFile, start: int, stop: int) -> Chain:
    """All records of [start, stop) at once."""
    pieces = list(walk_blocks(file, start, stop))
    if not pieces:
        return Chain(np.empty(0, np.int64), start, False)
    return Chain(np.concatenate([piece.starts for piece in pieces]), pieces[-1].end, pieces[-1].broken)


def describe_break(file: LogFile, position: int, stop: int) -> str:
    """Why no record of [.., stop) starts at `position`, as a sentence for a StoreError."""
    where = f"{file.path} at physical offset {file.base_offset + position}"
    if stop - position < BLANK_HEADER_BYTES:
        return f"{where}: expected a record, found the last {stop - position} bytes of the committed range"
    size, magic = struct.unpack_from(">ii", file.data.data, position)
    if size == 0 and magic == 0:
        return f"{where}: expected a record, found unwritten bytes although the log is committed beyond them"
    if magic not in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK):
        return f"{where}: expected the record magic 0xDAA320A7 or 0xDAA320AB, found 0x{magic & 0xFFFFFFFF:08X}"
    if magic == MAGIC_BLANK:
        return f"{where}: expected a blank record up to the end of the file, found one of {size} bytes"
    if not RECORD_MIN_BYTES <= size <= stop - position:
        return f"{where}: expected a record of {RECORD_MIN_BYTES} to {stop - position} bytes, found size {size}"
    found = _HOP.unpack_from(file.data.data, position)[2]
    return f"{where}: expected the record's own offset {file.base_offset + position}, found {found}"


def find_record(file: LogFile, position: int, stop: int) -> int | None:
    """The first place in [position, stop) that looks like a record's start: magic and own offset agree."""
    view, at = file.data.data, position
    while (hit := _MAGIC_BYTES.search(view, at + 4, stop)) is not None:
        found = hit.start() - 4
        if stop - found >= RECORD_MIN_BYTES:
            size, _, phy_offset = _HOP.unpack_from(view, found)
            if phy_offset == file.base_offset + found and RECORD_MIN_BYTES <= size <= stop - found:
                return found
        at = found + 1
    return None


def first_record(file: LogFile, stop: int) -> int:
    """Where the records of a file begin: 0, unless its first bytes were never written (a log that starts inside it)."""
    if stop >= BLANK_HEADER_BYTES and not file.data[:BLANK_HEADER_BYTES].any():
        found = find_record(file, 0, stop)
        return stop if found is None else found
    return 0


def _written_hint(file: LogFile, start: int, stop: int) -> int:
    """About where the zeros of an unfilled file begin. Only places lanes, so a body full of zeros may fool it."""
    low, high = start, stop
    while high - low > LANE_SPACING_BYTES:
        middle = (low + high) // 2
        if file.data[middle : middle + ZERO_PROBE_BYTES].any():
            low = middle
        else:
            high = middle
    return high


def _lane_starts(file: LogFile, start: int, limit: int, stop: int) -> I64:
    found = [start]
    if limit - start > FEW_LANES * LANE_SPACING_BYTES:
        for target in range(start + LANE_SPACING_BYTES, _written_hint(file, start, limit), LANE_SPACING_BYTES):
            if target > found[-1]:
                lane = find_record(file, target, stop)
                if lane is None:
                    break
                found.append(lane)
    return np.array(found, np.int64)


def _advance_lanes(file: LogFile, lanes: I64) -> Chain | None:
    """The records from the first lane's start to the last lane's start, or None if a lane misses the next one."""
    steps = unaligned(file.data, _STEP)
    at, targets = lanes[:-1].copy(), lanes[1:]
    rows: list[I64] = []
    active = np.ones(len(at), bool)
    while active.any():
        rows.append(np.where(active, at, -1))
        fields = steps[at]
        magic, size = fields["magic"], fields["size"].astype(np.int64)
        valid = ((magic == MAGIC_V1) | (magic == MAGIC_V2)) & (size >= RECORD_MIN_BYTES)
        valid &= fields["phy_offset"] == at + file.base_offset
        at = np.where(active, at + size, at)
        if not (valid & (at <= targets) | ~active).all():
            return None
        active = at < targets
    matrix = np.stack(rows, axis=1).ravel()
    return Chain(matrix[matrix >= 0], int(lanes[-1]), False)


def _hop(file: LogFile, position: int, limit: int, stop: int) -> Chain:
    """Record by record until `limit` is reached or passed."""
    view, base, unpack = file.data.data, file.base_offset, _HOP.unpack_from
    starts: list[int] = []
    broken = False
    while position < limit:
        left = stop - position
        size, magic, phy_offset = unpack(view, position) if left >= RECORD_MIN_BYTES else (0, 0, 0)
        if (magic != MAGIC_V1 and magic != MAGIC_V2) or not RECORD_MIN_BYTES <= size <= left:
            if _closes_file(file, position):
                position = file.size_bytes
            else:
                broken = True
            break
        if phy_offset != base + position:
            broken = True
            break
        starts.append(position)
        position += size
    return Chain(np.array(starts, np.int64), position, broken)


def _closes_file(file: LogFile, position: int) -> bool:
    """Is there a blank record that takes the rest of the file?"""
    left = file.size_bytes - position
    if left < BLANK_HEADER_BYTES:
        return False
    size, magic = struct.unpack_from(">ii", file.data.data, position)
    return bool(magic == MAGIC_BLANK and size == left)
