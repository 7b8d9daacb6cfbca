"""The commonest columns by a native decoder, where all records of a batch are plain; else NumPy makes them.

The decoder is given from outside (`use`), by programs that have one: this package loads no library.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

I64 = NDArray[np.int64]
_PARTS = {
    "body": 1,
    "topic": 2,
    "keys": 4,
    "tags": 8,
    **dict.fromkeys(("queueId", "queueOffset", "physicalOffset", "bornTimestamp", "storeTimestamp"), 16),
}
"""The columns that it makes, and which part of a record each needs."""
_TEXTS = 1 | 2 | 4 | 8
LEAST_COUNT = 16
"""Fewer records are not worth the calls."""
MAX_BYTES = (1 << 31) - 1
"""Most bytes of a column, whose offsets are int32."""


class ColumnDecoder(Protocol):
    """A `rmqha.kernel.native_columns.NativeColumns` is one."""

    part_bytes: int

    def walk(
        self, window: tuple[int, int], base_offset: int, stop: int, max_bytes: int, starts: int, count: int
    ) -> tuple[int, int]:
        """Follow the records of a window, `count` at most, as long as they are whole and right: how many begin at what
        stands at the address `starts` then, and the index behind the last one."""
        ...

    def measure(
        self, window: tuple[int, int], starts: int, count: int, parts: int, wanted: tuple[int, int, bool]
    ) -> tuple[int, Any]:
        """Find the parts of `count` records: how many are plain in front of the first that is not, and the sizes
        of what is wanted, for `write`. `window`, `starts` and `parts` are addresses, the first with its bytes."""
        ...

    def write(self, window: tuple[int, int], starts: int, count: int, parts: int, call: Any) -> None:
        """Fill the buffers whose addresses stand in `call`."""
        ...


_decoder: ColumnDecoder | None = None


def use(decoder: ColumnDecoder | None) -> None:
    """Decode by this one from now on; None: by NumPy only."""
    global _decoder
    _decoder = decoder


def walked(data: NDArray[np.uint8], base_offset: int, stop: int, least: int, most: int) -> tuple[I64, int] | None:
    """Starts of the records at the front of `data`, of `least` to `most` bytes each, none of which ends behind `stop`,
    and where the last one ends; None without a decoder."""
    if _decoder is None:
        return None
    starts = np.empty(len(data) // least + 1, np.int64)
    window = data.ctypes.data, len(data)
    count, end = _decoder.walk(window, base_offset, stop, most, starts.ctypes.data, len(starts))
    return starts[:count].copy(), end


def arrays(
    data: NDArray[np.uint8], starts: I64, names: Collection[str], types: dict[str, Any], refused_flags: int, crc: bool
) -> dict[str, Any]:
    """Arrow arrays of those of the columns `names` that the decoder makes, of records that begin at `starts` in `data`;
    none if one of the records is not plain: what has one of `refused_flags`, texts that are not UTF-8, times that no
    timestamp holds, lengths that do not add up, or a body that with `crc` has not its CRC."""
    decoder, count = _decoder, len(starts)
    made = [name for name in names if name in _PARTS]
    columns = 0
    for name in made:
        columns |= _PARTS[name]
    if decoder is None or not columns & _TEXTS or count < LEAST_COUNT or len(data) > MAX_BYTES:
        return {}
    starts = np.ascontiguousarray(starts, np.int64)
    parts = np.empty(count * decoder.part_bytes // 8, np.int64)
    place = (data.ctypes.data, len(data)), starts.ctypes.data, count, parts.ctypes.data
    plain_count, call = decoder.measure(*place, (columns, refused_flags, crc))
    if plain_count < count:
        return {}
    buffers = _Buffers(call, count, columns)
    decoder.write(*place, call)
    return {name: buffers.array(name, types[name]) for name in made}


class _Buffers:
    """Memory of Arrow's for what the decoder writes; of what is not wanted there is as good as none."""

    def __init__(self, call: Any, count: int, columns: int) -> None:
        self._count, self._call = count, call
        self._made: dict[str, Any] = {}
        for name, part, texts, size_bytes in (
            ("body", 1, count, call.body_bytes),
            ("topic", 2, count, call.topic_bytes),
            ("keys", 4, call.key_count, call.keys_bytes),
            ("tags", 8, count, call.tags_bytes),
        ):
            # the library makes slices of all: what is not wanted has the places, which nobody touches
            self._add(f"{name}_offsets", 4 * (texts + 1))
            self._add(name, size_bytes if columns & part else 0)
        self._add("key_offsets", 4 * (count + 1))
        self._add("tag_bits", -(-count // 8), zero=True)
        for name, size in (("queueId", 4), *((name, 8) for name in _PARTS if _PARTS[name] == 16 and name != "queueId")):
            self._add(name, size * count)

    def _add(self, name: str, size_bytes: int, *, zero: bool = False) -> None:
        buffer = self._made[name] = pa.allocate_buffer(max(size_bytes, 8))
        if zero:
            np.frombuffer(buffer, np.uint8)[:] = 0
        setattr(self._call, name, buffer.address)

    def array(self, name: str, kind: Any) -> Any:
        count, made = self._count, self._made
        if name == "keys":
            texts = pa.Array.from_buffers(pa.string(), self._call.key_count, [None, made["keys_offsets"], made["keys"]])
            offsets = pa.Array.from_buffers(pa.int32(), count + 1, [None, made["key_offsets"]])
            return pa.ListArray.from_arrays(offsets, texts, type=kind)
        if name == "tags":
            bits = made["tag_bits"] if self._call.tag_count < count else None
            return pa.Array.from_buffers(kind, count, [bits, made["tags_offsets"], made["tags"]])
        if name in ("body", "topic"):
            return pa.Array.from_buffers(kind, count, [None, made[f"{name}_offsets"], made[name]])
        return pa.Array.from_buffers(kind, count, [None, made[name]])
