"""Columns of records in native code (`native/src/columns.rs`): buffers in, buffers out, without Python's lock.

This module only knows addresses; `rmqha.scan.native.columns` has the windows and makes arrays of the results.
"""

from __future__ import annotations

import ctypes
from typing import Final

NUMBERS: Final = ("queueId", "queueOffset", "physicalOffset", "bornTimestamp", "storeTimestamp", "sysFlag", "flag")
_GIVEN: Final = ("columns", "refused_flags", "verifies_crc")
_SIZES: Final = ("body_bytes", "topic_bytes", "keys_bytes", "key_count", "tags_bytes", "tag_count")
BUFFERS: Final = (
    *("body_offsets", "body", "topic_offsets", "topic", "key_offsets", "keys_offsets", "keys", "tags_offsets", "tags"),
    *("tag_bits", *NUMBERS),
)
"""Buffers that `decode` fills. The offsets of texts are int32, one more than there are texts; `key_offsets`: number of
keys before those of each record."""
_FULL: Final = -1


class ColumnCall(ctypes.Structure):
    """Layout of `ColumnCall` of border.rs."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in _GIVEN),
        *((name, ctypes.c_size_t) for name in _SIZES),
        *((name, ctypes.c_void_p) for name in BUFFERS),
    )


class NativeColumns:
    """Decoder of a native library. Thread-safe."""

    def __init__(self, library: ctypes.CDLL) -> None:
        """`library`: one that `NativeKernel` accepts, loaded as CDLL, so that its calls release the GIL."""
        address, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64
        self._walk, self._bytes, self._decode = (
            library.rmqha_columns_walk,
            library.rmqha_columns_bytes,
            library.rmqha_columns_decode,
        )
        self._walk.argtypes = address, size, number, number, number, address, size, address
        self._bytes.argtypes = address, size, address, size
        self._decode.argtypes = address, size, address, size, address
        self._walk.restype = self._bytes.restype = self._decode.restype = number

    def walk(
        self, window: tuple[int, int], base_offset: int, stop: int, max_bytes: int, starts: int, count: int
    ) -> tuple[int, int, int]:
        """Walk over the records of a window, `count` at most, and write their positions to `starts`. Returns their
        number, the index behind the last one, and the union of their flags. No record ends behind index `stop` or has
        more than `max_bytes`."""
        found = (ctypes.c_int64 * 2)()
        count = self._walk(*window, base_offset, stop, max_bytes, starts, count, ctypes.addressof(found))
        return count, found[0], found[1]

    def record_bytes(self, window: tuple[int, int], starts: int, count: int) -> int:
        """Total bytes of the records at the positions in `starts`."""
        return int(self._bytes(*window, starts, count))

    def call(self, columns: int, refused_flags: int, verifies_crc: bool) -> ColumnCall:
        """Arguments of `decode`, without buffers yet. `columns`: bits of the wanted columns; `refused_flags`: flags of
        records that are not plain; `verifies_crc`: True if the CRC of bodies is checked."""
        return ColumnCall(columns, refused_flags, verifies_crc)

    def decode(self, window: tuple[int, int], starts: int, count: int, call: ColumnCall) -> int | None:
        """Decode records into the buffers of `call`, which has their sizes and then those of the results. Returns the
        number of records in front of the first that is not plain; None if a buffer is too small. `window`: address and
        size in bytes."""
        found = self._decode(*window, starts, count, ctypes.addressof(call))
        if found == _FULL:
            return None
        assert 0 <= found <= count, f"the native decoder answers {found} for {count} records"
        return int(found)
