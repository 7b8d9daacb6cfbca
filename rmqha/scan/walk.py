"""Walk over the records of a stretch of CommitLog (data plane: NumPy over the bytes, no object per record).

Two ways to the same answer. The hop loop follows totalSize from record to record. The lane walk starts at about a
hundred places at once, each found by the magic and confirmed by the record's own physicalOffset, and moves all lanes
together; when every lane lands exactly on the start of the next one, its records are the hop loop's, by induction from
the first lane, which starts where the caller knows that a record starts. When one does not, the hop loop decides.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rmqha.scan.native import columns as native_columns

I64 = NDArray[np.int64]

MAGIC_V1 = 0xDAA320A7 - 2**32
MAGIC_V2 = 0xDAA320AB - 2**32
MAGIC_BLANK = 0xCBD43194 - 2**32
RECORD_MIN_BYTES = 91
"""Size of an IPv4 V1 record with empty body, topic and properties."""
RECORD_MAX_BYTES = 64 * 1024 * 1024
"""Largest size of a record; a larger one is damage: no broker takes a frame that could carry it."""
BLANK_HEADER_BYTES = 8
ANY_FLAGS = -1
"""All bits of a sysFlag, where it is not known which ones a chain's records have."""

LANE_SPACING_BYTES = 32 * 1024
LANE_SEARCH_BYTES = 2 * 1024
"""Bytes searched for a lane's first record; if none starts there, there is no lane."""
FEW_LANES = 8
STEPS_UNCHECKED = 4

_HOP = struct.Struct(">ii20xq")
_MAGIC_START = b"\xda\xa3\x20"
_MAGIC_ENDS = b"\xa7\xab"
_START = np.dtype([("size", ">i4"), ("magic", ">i4"), ("between", "V20"), ("phy_offset", ">i8")])


def unaligned(data: NDArray[np.uint8], dtype: Any) -> NDArray[Any]:
    """A view with one element of `dtype` at every byte position, so that indexing it with positions gathers fields."""
    kind = np.dtype(dtype)
    return np.ndarray((max(len(data) - kind.itemsize + 1, 0),), kind, data.data, strides=(1,))


def gather(data: NDArray[np.uint8], dtype: Any, positions: I64) -> NDArray[Any]:
    """The structures at these positions. They are copied as plain bytes, ten times as fast as NumPy copies fields."""
    kind = np.dtype(dtype)
    return unaligned(data, f"V{kind.itemsize}")[positions].view(kind)


def where_bytes(data: NDArray[np.uint8], positions: I64, wanted: bytes) -> I64:
    """The indexes of the positions at which the bytes `wanted` stand. All of them must be inside the data."""
    kept = np.arange(len(positions))
    # single bytes, the last first: names differ at their ends, and gathering words is five times as dear
    for at in reversed(range(len(wanted))):
        same = data[positions + at] == wanted[at]
        if not same.all():
            places = np.flatnonzero(same)
            kept, positions = kept[places], positions[places]
    return kept


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of a CommitLog file in memory. Positions are bytes from its start, whose physical offset is
    `base_offset`; the file goes on for `behind_bytes` after it."""

    path: str
    base_offset: int
    raw: bytearray | memoryview
    """Bytes of `data`; may be longer than `data`, which counts."""
    data: NDArray[np.uint8]
    behind_bytes: int = 0

    @property
    def size_bytes(self) -> int:
        """Bytes of the window."""
        return len(self.data)

    def after(self, position: int) -> Window:
        """The rest of the window."""
        if not position:
            return self
        rest = memoryview(self.raw)[position : len(self.data)]
        return Window(self.path, self.base_offset + position, rest, self.data[position:], self.behind_bytes)

    @property
    def file_end(self) -> int:
        """The end of the file as a position of this window."""
        return len(self.data) + self.behind_bytes


@dataclass(frozen=True, slots=True)
class Chain:
    """Record starts, rising, and the position where the chain ended: the stop; the file's end after a blank record; the
    first record that is not wholly inside the window; or (`broken`) the first position that holds neither a record nor
    a blank one."""

    starts: I64
    end: int
    broken: bool
    seen_flags: int = ANY_FLAGS
    """All bits of sysFlag that one of the records has, or more."""


def walk(window: Window, stop: int) -> Chain:
    """The records from the window's start, where one must start, to `stop`, which may lie behind the window's end. A
    native decoder, where there is one, hops as far as all is right."""
    native = native_columns.walked(window.data, window.base_offset, stop, RECORD_MIN_BYTES, RECORD_MAX_BYTES)
    if native is not None:
        starts, end, seen_flags = native
        rest = _hop(window, end, stop)
        if not len(rest.starts):
            return Chain(starts, rest.end, rest.broken, seen_flags)
        return Chain(np.concatenate((starts, rest.starts)), rest.end, rest.broken)
    lanes = _lane_starts(window, stop)
    chain = _advance_lanes(window, lanes) if len(lanes) > FEW_LANES else None
    if chain is None:
        return _hop(window, 0, stop)
    rest = _hop(window, chain.end, stop)
    return Chain(np.concatenate((chain.starts, rest.starts)), rest.end, rest.broken)


def describe_break(window: Window, position: int, stop: int) -> str:
    """The reason why no record of [.., stop) starts at `position`, as a sentence for a StoreError. The window must hold
    the first bytes there."""
    where = f"{window.path} at physical offset {window.base_offset + position}"
    left = min(stop - position, RECORD_MAX_BYTES)
    if left < BLANK_HEADER_BYTES:
        return f"{where}: expected a record, found the last {left} bytes of the committed range"
    size, magic = struct.unpack_from(">ii", window.data.data, position)
    if size == 0 and magic == 0:
        return f"{where}: expected a record, found unwritten bytes although the log is committed beyond them"
    if magic not in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK):
        return f"{where}: expected the record magic 0xDAA320A7 or 0xDAA320AB, found 0x{magic & 0xFFFFFFFF:08X}"
    if magic == MAGIC_BLANK:
        return f"{where}: expected a blank record up to the end of the file, found one of {size} bytes"
    if not RECORD_MIN_BYTES <= size <= left:
        return f"{where}: expected a record of {RECORD_MIN_BYTES} to {left} bytes, found size {size}"
    found = _HOP.unpack_from(window.data.data, position)[2]
    return f"{where}: expected the record's own offset {window.base_offset + position}, found {found}"


def find_record(window: Window, position: int, stop: int, *, until: int | None = None) -> int | None:
    """The first position in [position, stop) with the magic and the own offset of a record; None without one. With
    `until` the record must start before that position; it may end behind it."""
    raw = window.raw
    find = raw.find if isinstance(raw, bytearray) else partial(_find_mapped, raw)
    last = len(window.data) - _HOP.size
    hit = find(_MAGIC_START, position + 4, last + 8)
    while hit >= 0:
        found = hit - 4
        if found > last or stop - found < RECORD_MIN_BYTES or (until is not None and found >= until):
            return None
        if raw[hit + 3] in _MAGIC_ENDS:
            size, _, phy_offset = _HOP.unpack_from(raw, found)
            fits = RECORD_MIN_BYTES <= size <= min(stop - found, RECORD_MAX_BYTES)
            if fits and phy_offset == window.base_offset + found:
                return found
        hit = find(_MAGIC_START, hit + 3, last + 8)
    return None


def _find_mapped(data: memoryview, pattern: bytes, start: int, stop: int) -> int:
    """Position of `pattern` in a memoryview, −1 without one; `bytearray.find` is several times as fast."""
    hit = re.compile(re.escape(pattern)).search(data, start, stop)
    return -1 if hit is None else hit.start()


def _lane_starts(window: Window, stop: int) -> I64:
    """Starts of the lanes: the window's start, and the first likely record start behind each of many places."""
    data, last = window.data, len(window.data) - _START.itemsize
    targets = np.arange(LANE_SPACING_BYTES, last - LANE_SEARCH_BYTES, LANE_SPACING_BYTES)
    if not len(targets):
        return np.zeros(1, np.int64)
    # all places at once: one `find` for each costs as much as the whole walk behind it
    shape, strides = (len(targets), LANE_SEARCH_BYTES + 2), (LANE_SPACING_BYTES, 1)
    behind = np.ndarray(shape, np.uint8, data.data, LANE_SPACING_BYTES + 4, strides)
    hits = behind[:, :-2] == _MAGIC_START[0]
    hits &= behind[:, 1:-1] == _MAGIC_START[1]
    hits &= behind[:, 2:] == _MAGIC_START[2]
    found = targets + hits.argmax(axis=1)
    head = gather(window.data, _START, found)
    size = head["size"]
    plausible = (head["magic"] == MAGIC_V1) | (head["magic"] == MAGIC_V2)
    plausible &= head["phy_offset"] == found + window.base_offset
    plausible &= (size >= RECORD_MIN_BYTES) & (size <= np.minimum(stop - found, RECORD_MAX_BYTES))
    return np.concatenate(([0], found[plausible]))


def _advance_lanes(window: Window, lanes: I64) -> Chain | None:
    """The records from the first lane's start to the last lane's start, or None if a lane misses the next one."""
    sizes = unaligned(window.data, ">i4")
    at, targets = lanes[:-1], lanes[1:]
    rows = [at]
    # nothing is checked on the way: a step too short or too far shows in the end
    while (at < targets).any():
        for _ in range(STEPS_UNCHECKED):
            step = sizes[at].astype(np.int64)
            np.maximum(step, RECORD_MIN_BYTES, out=step)
            step += at
            at = np.minimum(step, targets, out=step)
            rows.append(at)
    # a lane that has reached the next one stays there: its last places are not its own
    matrix = np.array(rows).T
    starts = matrix[matrix < targets[:, None]]
    found = gather(window.data, _START, starts)
    right = (found["magic"] == MAGIC_V1) | (found["magic"] == MAGIC_V2)
    right &= found["phy_offset"] == starts + window.base_offset
    right[:-1] &= starts[1:] - starts[:-1] == found["size"][:-1]
    right[-1] &= lanes[-1] - starts[-1] == found["size"][-1]
    return Chain(starts, int(lanes[-1]), False) if right.all() else None


def _hop(window: Window, position: int, stop: int) -> Chain:
    """Follow the records one by one, as far as the window reaches."""
    view, base, unpack = window.raw, window.base_offset, _HOP.unpack_from
    limit = len(window.data)
    starts: list[int] = []
    broken = False
    while position < stop:
        left = stop - position
        if limit - position < min(left, RECORD_MIN_BYTES):
            break
        size, magic, phy_offset = unpack(view, position) if left >= RECORD_MIN_BYTES else (0, 0, 0)
        if (magic != MAGIC_V1 and magic != MAGIC_V2) or not RECORD_MIN_BYTES <= size <= min(left, RECORD_MAX_BYTES):
            if _closes_file(window, position):
                position = window.file_end
            else:
                broken = True
            break
        if phy_offset != base + position:
            broken = True
            break
        if size > limit - position:
            break
        starts.append(position)
        position += size
    return Chain(np.array(starts, np.int64), position, broken)


def _closes_file(window: Window, position: int) -> bool:
    """True if a blank record takes the rest of the file."""
    left = window.file_end - position
    if len(window.data) - position < BLANK_HEADER_BYTES:
        return False
    size, magic = struct.unpack_from(">ii", window.data.data, position)
    return bool(magic == MAGIC_BLANK and size == left)
