"""Message properties of many records at once (data plane: no object per record on the fast path).

Stored form: name 0x01 value 0x02, repeated (formats of RocketMQ's MessageDecoder). Reading follows
MessageDecoder.string2messageProperties: a piece ends at 0x02 or at the end; its first 0x01 parts name and value; pieces
with an empty name or an empty value, or without 0x01, do not count; of a name given twice the last value counts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmqha.scan.walk import where_bytes

I64 = NDArray[np.int64]
NAME_END, PAIR_END, SPACE = 0x01, 0x02, 0x20
NAME_TABLE_MAX = 4 * 1024 * 1024


def spans(data: Any, start: NDArray[Any], end: NDArray[Any], chosen: Any = None, *, long: bool = False) -> Any:
    """A BinaryArray of the byte ranges [start, end) of an Arrow buffer below 2 GiB; they rise and do not overlap.
    With `chosen`, twice the indices of ranges and nulls, it has those. `long` ranges are most of the bytes.

    No Python object per element: the ranges become the offsets of an array that interleaves them with the bytes
    between, of which only the even elements are taken.
    """
    if not len(start):
        return pa.nulls(0 if chosen is None else len(chosen), pa.binary())
    count = len(start)
    offsets = np.empty(2 * count + long, np.int32)
    offsets[0 : 2 * count : 2], offsets[1 : 2 * count : 2] = start, end
    if long:
        # one more, never taken: Arrow makes room for elements of the mean length, and moves them when there are more
        mean = int((end - start).sum()) // count + 1
        offsets[-1] = max(int(offsets[-2]), min(int(offsets[0]) + 2 * count * mean, data.size))
    both = pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), data])
    return both.take(pa.array(np.arange(0, 2 * count, 2)) if chosen is None else chosen)


def text(array: Any) -> Any:
    """Binary to string. Bytes that are not UTF-8 become U+FFFD, as Java decodes them."""
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid:
        decoded = [None if item is None else item.decode("utf-8", "replace") for item in array.to_pylist()]
        return pa.array(decoded, pa.string())


class Pieces(NamedTuple):
    """The properties that count: piece i has its name at [start, middle) and its value at [middle + 1, end), and
    belongs to row `row[i]`."""

    row: I64
    start: I64
    middle: I64
    end: I64
    dropped: bool
    """True if some stretch did not count."""


@dataclass(frozen=True)
class Properties:
    """The properties of all records in one buffer, in stored order: stretch i is [first[i], last[i]), up to a 0x02 or
    to where a record ends."""

    row_count: int
    data: Any
    octets: NDArray[np.uint8]
    row_offsets: I64
    first: I64
    last: I64
    unclosed: I64
    """Positions at which the properties end that do not end with 0x02."""

    def value(self, name: bytes) -> Any:
        """StringArray of one property, null where a record lacks it."""
        head = name + b"\x01"
        found = np.flatnonzero(self._letters == head[0])
        start = self.first[found]
        start = start[: np.searchsorted(start, len(self.octets) - len(head), "right")]
        same = where_bytes(self.octets, start, head)
        start, end = start[same], self.last[found[same]]
        # a stretch with this head has its first 0x01 there, and a value if it is longer
        start, end = _kept(end - start > len(head), start, end)
        if self._one_each(start):
            return text(spans(self.data, start + len(head), end))
        chosen, missing = np.zeros(self.row_count, np.int64), np.ones(self.row_count, bool)
        rows = np.searchsorted(self.row_offsets, start, "right") - 1
        chosen[rows] = np.arange(0, 2 * len(rows), 2)  # the last one of a name given twice
        missing[rows] = False
        return text(spans(self.data, start + len(head), end, pa.array(chosen, mask=missing)))

    def _one_each(self, start: I64) -> bool:
        """True if there is one of these for each row."""
        if len(start) != self.row_count:
            return False
        return bool((start >= self.row_offsets[:-1]).all() and (start < self.row_offsets[1:]).all())

    @cached_property
    def _letters(self) -> NDArray[np.uint8]:
        """The first byte of each stretch."""
        return self.octets[self.first]

    @cached_property
    def pieces(self) -> Pieces:
        """All pieces that are a pair `name 0x01 value`."""
        start, end = self.first, self.last
        middle = _first_separators(np.flatnonzero(self.octets == NAME_END), start, end, len(self.octets))
        counts = (middle > start) & (middle < end - 1)
        dropped = not counts.all()
        start, middle, end = _kept(counts, start, middle, end)
        of_row = np.diff(np.searchsorted(start, self.row_offsets))
        return Pieces(np.repeat(np.arange(self.row_count), of_row), start, middle, end, dropped)

    def duplicated(self) -> bool:
        """True if any record gives a name twice."""
        row, start, middle, _, _ = self.pieces
        if not len(row):
            return False
        codes = spans(self.data, start, middle).dictionary_encode()
        names = np.asarray(codes.indices).astype(np.int64) + row * len(codes.dictionary)
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
        for row, start, middle, end in zip(*(places.tolist() for places in self.pieces[:4]), strict=True):
            found[row][raw[start:middle].decode("utf-8", "replace")] = raw[middle + 1 : end].decode("utf-8", "replace")
        return found

    def as_map(self, kind: Any) -> Any:
        """A MapArray of type `kind` (map<string, string>)."""
        if self.duplicated():
            return pa.array([list(pairs.items()) for pairs in self.dictionaries()], kind)
        row, start, middle, end, _ = self.pieces
        offsets = np.searchsorted(row, np.arange(self.row_count + 1)).astype(np.int32)
        names = text(spans(self.data, start, middle))
        values = text(spans(self.data, middle + 1, end))
        return pa.MapArray.from_arrays(pa.array(offsets), names, values).cast(kind)

    def as_json(self) -> Any:
        """A StringArray of JSON objects."""
        if self._plain() and not self.duplicated():
            return text(self._joined_json())
        shown = [json.dumps(pairs, ensure_ascii=False, separators=(",", ":")) for pairs in self.dictionaries()]
        return pa.array(shown, pa.string())

    def _plain(self) -> bool:
        """True if no byte needs an escape in JSON."""
        if self.pieces.dropped:
            return False
        special = (self.octets < 0x20) | (self.octets == ord('"')) | (self.octets == ord("\\"))
        return int(np.count_nonzero(special)) == 2 * len(self.pieces.row) - len(self.unclosed)

    def _joined_json(self) -> Any:
        """The JSON objects, joined in C: every 0x01 becomes `":"`, every 0x02 `","` inside a record and `"}{"` after
        one."""
        sizes = np.diff(self.row_offsets)
        filled = np.flatnonzero(sizes)
        ends = self.row_offsets[1:][filled]
        lacking = self.octets[ends - 1] != PAIR_END
        marked = np.insert(self.octets, self.unclosed, PAIR_END) if len(self.unclosed) else self.octets.copy()
        marked[ends + np.cumsum(lacking) - 1] = 0x03
        body = marked.tobytes().replace(b"\x01", b'":"').replace(b"\x02", b'","').replace(b"\x03", b'"}{"')
        pairs = np.bincount(self.pieces.row, minlength=self.row_count)[filled]
        offsets = np.zeros(len(filled) + 1, np.int32)
        np.cumsum(sizes[filled] + lacking + 4 * pairs + 1, out=offsets[1:])
        data = pa.py_buffer(b'{"' + body)
        found = pa.Array.from_buffers(pa.binary(), len(filled), [None, pa.py_buffer(offsets), data])
        if len(filled) == self.row_count:
            return found
        places = np.full(self.row_count, len(filled))
        places[filled] = np.arange(len(filled))
        return pa.concat_arrays([found, pa.array([b"{}"], pa.binary())]).take(pa.array(places))


def parse(stored: Any) -> Properties:
    """Parse the BinaryArray of the records' stored properties; malformed ones are read as Java reads them."""
    offsets = np.frombuffer(stored.buffers()[1], np.int32, len(stored) + 1, stored.offset * 4).astype(np.int64)
    buffer = stored.buffers()[2] or pa.py_buffer(b"")
    data = np.frombuffer(buffer, np.uint8)[offsets[0] : offsets[-1]]
    buffer, offsets = pa.py_buffer(data), offsets - offsets[0]
    last = np.flatnonzero(data == PAIR_END)
    row_ends = offsets[1:][np.diff(offsets) > 0]
    unclosed = row_ends[data[row_ends - 1] != PAIR_END]
    after = last + 1
    if len(unclosed):
        # an unclosed stretch ends where the next record's first byte is; that byte may itself be a 0x02
        last, places = _inserted(last, np.searchsorted(last, unclosed), unclosed)
        after = last + 1
        after[places] -= 1
    first = np.zeros(len(last), np.int64)
    first[1:] = after[:-1]
    return Properties(len(stored), buffer, data, offsets, first, last, unclosed)


def _inserted(values: I64, before: I64, added: I64) -> tuple[I64, I64]:
    """The values with `added` ones before these rising places, and the indexes of the added ones; np.insert takes twice
    as long."""
    places = before + np.arange(len(added))
    old = np.ones(len(values) + len(added), bool)
    old[places] = False
    found = np.empty(len(old), np.int64)
    found[old], found[places] = values, added
    return found, places


def _kept(chosen: NDArray[np.bool_], *columns: I64) -> tuple[I64, ...]:
    return columns if chosen.all() else tuple(column[chosen] for column in columns)


def _first_separators(separators: I64, starts: I64, ends: I64, beyond: int) -> I64:
    """Position of the first 0x01 at or after each piece's start; `beyond` if there is none."""
    if len(separators) == len(starts) and bool(((separators >= starts) & (separators < ends)).all()):
        return separators  # one in each piece, as it should be
    found: I64 = np.r_[separators, beyond][np.searchsorted(separators, starts)]
    return found


def split_keys(keys: Any, kind: Any) -> Any:
    """KEYS to list<string>: parted by spaces, empty parts dropped; an empty list where there is no KEYS."""
    given = keys.drop_null()
    parts, of_row = _split(given) if len(given) else (given, np.empty(0, np.int64))
    if len(given) < len(keys):
        of_given, of_row = of_row, np.zeros(len(keys), np.int64)
        of_row[np.asarray(keys.is_valid())] = of_given
    ends = np.zeros(len(keys) + 1, np.int32)
    np.cumsum(of_row, out=ends[1:])
    return pa.ListArray.from_arrays(pa.array(ends), parts, type=kind)


def _split(keys: Any) -> tuple[Any, I64]:
    """The parts of all keys, and the number of parts of each."""
    _, bounds, data = keys.buffers()
    offsets = np.frombuffer(bounds, np.int32)[keys.offset : keys.offset + len(keys) + 1].astype(np.int64)
    octets = np.frombuffer(data or b"", np.uint8)[offsets[0] : offsets[-1]]
    spaces = np.flatnonzero(octets == SPACE) + offsets[0]
    if not len(spaces) and bool((np.diff(offsets) > 0).all()):
        return keys, np.ones(len(keys), np.int64)
    low, high = offsets[:-1], offsets[1:]
    start, places = _inserted(low, np.searchsorted(low, spaces, "right"), spaces + 1)
    end = np.append(start[1:], high[-1:])
    end[places - 1] -= 1
    start, end = _kept(end > start, start, end)
    return text(spans(data, start, end)), np.diff(np.searchsorted(start, offsets))
