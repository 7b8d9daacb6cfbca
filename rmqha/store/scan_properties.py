"""Message properties of many records at once (data plane: no object per record on the fast path).

Stored form: name 0x01 value 0x02, repeated (formats of RocketMQ's MessageDecoder). Reading follows
MessageDecoder.string2messageProperties: a piece ends at 0x02 or at the end; its first 0x01 parts name and value; pieces
with an empty name or an empty value, or without 0x01, do not count; of a name given twice the last value counts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmqha.store.scan_walk import unaligned

I64 = NDArray[np.int64]
NAME_END, PAIR_END = 0x01, 0x02
NAME_TABLE_MAX = 4 * 1024 * 1024


def spans(data: Any, start: NDArray[Any], end: NDArray[Any], missing: NDArray[np.bool_] | None = None) -> Any:
    """A BinaryArray of the byte ranges [start, end) of an Arrow buffer of less than 2 GiB; null where `missing`.

    No Python object per element: the ranges become the offsets of an array that interleaves them with the bytes
    between, of which only the even elements are taken.
    """
    if not len(start):
        return pa.array([], pa.binary())
    offsets = np.empty(2 * len(start), np.int32)
    offsets[0::2], offsets[1::2] = start, end
    if missing is not None:
        np.maximum.accumulate(offsets, out=offsets)
    both = pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), data])
    return both.take(pa.array(np.arange(0, len(offsets), 2), mask=missing))


def text(array: Any) -> Any:
    """Binary to string. Bytes that are not UTF-8 become U+FFFD, as Java decodes them."""
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid:
        decoded = [None if item is None else item.decode("utf-8", "replace") for item in array.to_pylist()]
        return pa.array(decoded, pa.string())


@dataclass(frozen=True, slots=True)
class Properties:
    """Pieces of all records in one buffer, in stored order: piece i has its name at [start, middle) and its value at
    [middle + 1, end), and belongs to row `row[i]`."""

    row_count: int
    data: Any
    octets: NDArray[np.uint8]
    row_offsets: I64
    row: I64
    start: I64
    middle: I64
    end: I64
    dropped: bool
    """Some piece did not count, or some record did not end with 0x02."""

    def value(self, name: bytes) -> Any:
        """StringArray of one property, null where a record lacks it."""
        found = np.flatnonzero(self.middle - self.start == len(name))
        # eight bytes at a time, the last ones perhaps twice
        width = max(size for size in (1, 2, 4, 8) if size <= len(name))
        words = unaligned(self.octets, f"u{width}")
        for index in sorted({*range(0, len(name) - width, width), len(name) - width}):
            word = np.frombuffer(name, f"u{width}", 1, index)[0]
            found = found[words[self.start[found] + index] == word]
        start, end = np.zeros((2, self.row_count), np.int64)
        missing = np.ones(self.row_count, bool)
        rows = self.row[found]
        start[rows], end[rows] = self.middle[found] + 1, self.end[found]
        missing[rows] = False
        return text(spans(self.data, start, end, missing))

    def duplicated(self) -> bool:
        """Does any record give a name twice?"""
        if not len(self.row):
            return False
        codes = spans(self.data, self.start, self.middle).dictionary_encode()
        names = np.asarray(codes.indices).astype(np.int64) + self.row * len(codes.dictionary)
        possible_count = self.row_count * len(codes.dictionary)
        if possible_count > NAME_TABLE_MAX:
            return len(np.unique(names)) != len(names)
        seen = np.zeros(possible_count, bool)
        seen[names] = True
        return int(np.count_nonzero(seen)) != len(names)

    def dictionaries(self) -> list[dict[str, str]]:
        """The slow way, one dict per record: the reference for what the fast ways must give."""
        found: list[dict[str, str]] = [{} for _ in range(self.row_count)]
        raw = self.octets.tobytes()
        pieces = zip(self.row.tolist(), self.start.tolist(), self.middle.tolist(), self.end.tolist(), strict=True)
        for row, start, middle, end in pieces:
            found[row][raw[start:middle].decode("utf-8", "replace")] = raw[middle + 1 : end].decode("utf-8", "replace")
        return found

    def as_map(self, kind: Any) -> Any:
        """A MapArray of type `kind` (map<string, string>)."""
        if self.duplicated():
            return pa.array([list(pairs.items()) for pairs in self.dictionaries()], kind)
        offsets = np.searchsorted(self.row, np.arange(self.row_count + 1)).astype(np.int32)
        names = text(spans(self.data, self.start, self.middle))
        values = text(spans(self.data, self.middle + 1, self.end))
        return pa.MapArray.from_arrays(pa.array(offsets), names, values).cast(kind)

    def as_json(self) -> Any:
        """A StringArray of JSON objects."""
        if self._plain() and not self.duplicated():
            return text(self._joined_json())
        shown = [json.dumps(pairs, ensure_ascii=False, separators=(",", ":")) for pairs in self.dictionaries()]
        return pa.array(shown, pa.string())

    def _plain(self) -> bool:
        """Does every byte stand for itself in JSON, and has every record at least one piece?"""
        if self.dropped or not (np.diff(self.row_offsets) > 0).all():
            return False
        special = (self.octets < 0x20) | (self.octets == ord('"')) | (self.octets == ord("\\"))
        return int(np.count_nonzero(special)) == 2 * len(self.row)

    def _joined_json(self) -> Any:
        """Every 0x01 becomes `":"`, every 0x02 `","` inside a record and `"}{"` after one, all in C."""
        marked = self.octets.copy()
        marked[self.row_offsets[1:] - 1] = 0x03
        body = marked.tobytes().replace(b"\x01", b'":"').replace(b"\x02", b'","').replace(b"\x03", b'"}{"')
        pairs = np.bincount(self.row, minlength=self.row_count)
        sizes = np.diff(self.row_offsets) + 4 * pairs + 1
        offsets = np.zeros(self.row_count + 1, np.int32)
        np.cumsum(sizes, out=offsets[1:])
        return pa.Array.from_buffers(
            pa.binary(), self.row_count, [None, pa.py_buffer(offsets), pa.py_buffer(b'{"' + body)]
        )


def parse(stored: Any) -> Properties:
    """Parse the BinaryArray of the records' stored properties; malformed ones are read as Java reads them."""
    offsets = np.frombuffer(stored.buffers()[1], np.int32, len(stored) + 1, stored.offset * 4).astype(np.int64)
    buffer = stored.buffers()[2] or pa.py_buffer(b"")
    data = np.frombuffer(buffer, np.uint8)[offsets[0] : offsets[-1]]
    buffer, offsets = pa.py_buffer(data), offsets - offsets[0]
    ends = np.flatnonzero(data == PAIR_END)
    steps = np.ones(len(ends), np.int64)
    row_ends = offsets[1:][np.diff(offsets) > 0]
    unclosed = row_ends[data[row_ends - 1] != PAIR_END]
    if len(unclosed):
        ends = np.concatenate((ends, unclosed))
        # an unclosed piece ends where the next record's first byte is; that byte may itself be a 0x02
        order = np.lexsort((np.r_[np.ones(len(steps), np.int64), np.zeros(len(unclosed), np.int64)], ends))
        steps = np.r_[steps, np.zeros(len(unclosed), np.int64)][order]
        ends = ends[order]
    starts = np.r_[0, (ends + steps)[:-1]][: len(ends)]
    middles = _first_separators(np.flatnonzero(data == NAME_END), starts, ends, len(data))
    counts = (middles > starts) & (middles < ends - 1)
    if not counts.all():
        starts, middles, ends, whole = starts[counts], middles[counts], ends[counts], False
    else:
        whole = not len(unclosed)
    pieces = np.diff(np.searchsorted(starts, offsets))
    return Properties(
        row_count=len(stored),
        data=buffer,
        octets=data,
        row_offsets=offsets,
        row=np.repeat(np.arange(len(stored)), pieces),
        start=starts,
        middle=middles,
        end=ends,
        dropped=not whole,
    )


def _first_separators(separators: I64, starts: I64, ends: I64, beyond: int) -> I64:
    """Position of the first 0x01 at or after each piece's start; `beyond` if there is none."""
    if len(separators) == len(starts) and bool(((separators >= starts) & (separators < ends)).all()):
        return separators  # one in each piece, as it should be
    found: I64 = np.r_[separators, beyond][np.searchsorted(separators, starts)]
    return found


def split_keys(keys: Any, kind: Any) -> Any:
    """KEYS to list<string>: parted by spaces, empty parts dropped; an empty list where there is no KEYS."""
    parts = pc.split_pattern(pc.fill_null(keys, " "), " ")
    flat = parts.flatten()
    empty = np.asarray(pc.binary_length(flat)) == 0
    if not empty.any():
        return parts.cast(kind)
    kept_before = np.r_[0, np.cumsum(~empty)]
    offsets = kept_before[np.asarray(parts.offsets)].astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), flat.filter(pa.array(~empty))).cast(kind)
