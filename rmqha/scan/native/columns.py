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
_NUMBERS = {
    "queueId": 4,
    "queueOffset": 8,
    "physicalOffset": 8,
    "bornTimestamp": 8,
    "storeTimestamp": 8,
    "sysFlag": 4,
    "flag": 4,
}
"""Numeric columns that the decoder makes, and the bytes of a value."""
_TEXTS = {"body": 1, "topic": 2, "keys": 4, "tags": 8}
_PARTS = _TEXTS | {name: 16 << number for number, name in enumerate(_NUMBERS)}
"""All columns that the decoder makes, and the bit of each."""
LEAST_COUNT = 16
"""Number of records below which the calls cost more than they save."""
MAX_BYTES = (1 << 31) - 1
"""Most bytes of a column, whose offsets are int32."""
USUAL_TEXT_BYTES, USUAL_KEYS = 64, 4
"""Bytes of a record's topic, keys and tags, in the mean, that the first try has memory for; more take a second one."""
ALIGNMENT = 64


class ColumnDecoder(Protocol):
    """Port of the native decoder; `rmqha.kernel.native_columns.NativeColumns` implements it."""

    def walk(
        self, window: tuple[int, int], base_offset: int, stop: int, max_bytes: int, starts: int, count: int
    ) -> tuple[int, int, int]:
        """Write the starts of a window's records, at most `count`, to the address `starts`, as long as the records are
        whole and right. Returns their number, the index behind the last one, and all flags that one of them has."""
        ...

    def record_bytes(self, window: tuple[int, int], starts: int, count: int) -> int:
        """Size of `count` records, whose starts stand at the address `starts`."""
        ...

    def call(self, columns: int, refused_flags: int, verifies_crc: bool) -> Any:
        """A call for these parts, without memory yet. Its members are the sizes of the memory, after the call those of
        what was written, and the addresses, by the names of `_Memory`."""
        ...

    def decode(self, window: tuple[int, int], starts: int, count: int, call: Any) -> int | None:
        """Fill the memory of `call`. Returns the number of plain records before the first other one; None if there is
        too little memory. `window` is an address and a size, `starts` an address."""
        ...


_decoder: ColumnDecoder | None = None


def use(decoder: ColumnDecoder | None) -> None:
    """Set the decoder of this process; None: decode by NumPy only."""
    global _decoder
    _decoder = decoder


def walked(data: NDArray[np.uint8], base_offset: int, stop: int, least: int, most: int) -> tuple[I64, int, int] | None:
    """Starts of the records at the front of `data`, of `least` to `most` bytes each, none of which ends behind `stop`,
    where the last one ends, and all flags that one of them has; None without a decoder."""
    if _decoder is None:
        return None
    starts = np.empty(len(data) // least + 1, np.int64)
    window = data.ctypes.data, len(data)
    count, end, flags = _decoder.walk(window, base_offset, stop, most, starts.ctypes.data, len(starts))
    return starts[:count].copy(), end, flags


def arrays(
    data: NDArray[np.uint8], starts: I64, names: Collection[str], types: dict[str, Any], refused_flags: int, crc: bool
) -> dict[str, Any]:
    """Arrow arrays of those of the columns `names` that the decoder makes, of records that begin at `starts` in `data`;
    none if one of the records is not plain: what has one of `refused_flags`, texts that are not UTF-8, times that no
    timestamp holds, lengths that do not add up, or a body that with `crc` has not its CRC."""
    decoder, count = _decoder, len(starts)
    made = [name for name in names if name in _PARTS]
    if decoder is None or not made or count < LEAST_COUNT or len(data) > MAX_BYTES:
        return {}
    starts = np.ascontiguousarray(starts, np.int64)
    place = (data.ctypes.data, len(data)), starts.ctypes.data, count
    log_bytes = decoder.record_bytes(*place) if any(name in _TEXTS for name in made) else 0
    usual = min(log_bytes, count * USUAL_TEXT_BYTES), min(log_bytes, count * USUAL_KEYS)
    for text_bytes, key_count in (usual, (log_bytes, log_bytes)):
        call = decoder.call(sum(_PARTS[name] for name in made), refused_flags, crc)
        memory = _Memory(call, count, made, log_bytes, text_bytes, key_count)
        plain_count = decoder.decode(*place, call)
        if plain_count is not None:
            return {name: memory.array(name, types[name]) for name in made} if plain_count == count else {}
    raise AssertionError("all bytes of the records are room for each of their texts")


class _Memory:
    """Arrow memory for what the decoder writes, in two pieces: bodies, and all else."""

    def __init__(
        self, call: Any, count: int, made: list[str], body_bytes: int, text_bytes: int, key_count: int
    ) -> None:
        self._count, self._call = count, call
        sizes: dict[str, int] = {}
        for name in made:
            if name in _NUMBERS:
                sizes[name] = _NUMBERS[name] * count
                continue
            sizes[f"{name}_offsets"] = 4 * ((key_count if name == "keys" else count) + 1)
            if name == "body":
                call.body_bytes = body_bytes
                continue
            sizes[name] = text_bytes
            setattr(call, f"{name}_bytes", text_bytes)
        if "keys" in made:
            call.key_count, sizes["key_offsets"] = key_count, 4 * (count + 1)
        if "tags" in made:
            sizes["tag_bits"] = -(-count // 8)
        self._places: dict[str, int] = {}
        end = 0
        for name, size in sizes.items():
            self._places[name] = end
            end += -(-size // ALIGNMENT) * ALIGNMENT
        self._rest = pa.allocate_buffer(end)
        for name, at in self._places.items():
            setattr(call, name, self._rest.address + at)
        if "body" in made:
            self._bodies = pa.allocate_buffer(body_bytes)
            call.body = self._bodies.address

    def _buffer(self, name: str, size_bytes: int) -> Any:
        return self._rest.slice(self._places[name], size_bytes)

    def _texts(self, name: str, kind: Any, bits: Any = None) -> Any:
        offsets = self._buffer(f"{name}_offsets", 4 * (self._count + 1))
        return pa.Array.from_buffers(
            kind, self._count, [bits, offsets, self._buffer(name, getattr(self._call, f"{name}_bytes"))]
        )

    def array(self, name: str, kind: Any) -> Any:
        """The column that was written."""
        count, call = self._count, self._call
        match name:
            case "body":
                offsets = self._buffer("body_offsets", 4 * (count + 1))
                return pa.Array.from_buffers(kind, count, [None, offsets, self._bodies.slice(0, call.body_bytes)])
            case "topic":
                return self._texts(name, kind)
            case "tags":
                bits = self._buffer("tag_bits", -(-count // 8)) if call.tag_count < count else None
                return self._texts(name, kind, bits)
            case "keys":
                offsets = self._buffer("keys_offsets", 4 * (call.key_count + 1))
                texts = pa.Array.from_buffers(
                    pa.string(), call.key_count, [None, offsets, self._buffer("keys", call.keys_bytes)]
                )
                ends = pa.Array.from_buffers(
                    pa.int32(), count + 1, [None, self._buffer("key_offsets", 4 * (count + 1))]
                )
                return pa.ListArray.from_arrays(ends, texts, type=kind)
        return pa.Array.from_buffers(kind, count, [None, self._buffer(name, _NUMBERS[name] * count)])
