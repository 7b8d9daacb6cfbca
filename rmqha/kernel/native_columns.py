"""Columns of records in native code (`native/src/columns.rs`): buffers in, buffers out, without Python's lock.

It knows addresses only: who has the window and makes arrays of what comes is `rmqha.scan.native.columns`.
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
"""Memory that `decode` fills. The offsets of texts are int32, with one more than there are texts; `key_offsets` says
how many keys stand before those of each record."""
_FULL: Final = -1


class ColumnCall(ctypes.Structure):
    """Layout of `ColumnCall` of border.rs."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in _GIVEN),
        *((name, ctypes.c_size_t) for name in _SIZES),
        *((name, ctypes.c_void_p) for name in BUFFERS),
    )


class NativeColumns:
    """The decoder of a library; any thread may use it."""

    def __init__(self, library: ctypes.CDLL) -> None:
        """`library` is one that `NativeKernel` takes, loaded so that its calls let go of Python's lock."""
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
        """Follow the records of a window, `count` at most: how many begin at what stands in `starts` then, the index
        behind the last one, and all flags that one of them has. None ends behind index `stop` or has more than
        `max_bytes`."""
        found = (ctypes.c_int64 * 2)()
        count = self._walk(*window, base_offset, stop, max_bytes, starts, count, ctypes.addressof(found))
        return count, found[0], found[1]

    def record_bytes(self, window: tuple[int, int], starts: int, count: int) -> int:
        """Bytes of the records that begin there, together."""
        return int(self._bytes(*window, starts, count))

    def call(self, columns: int, refused_flags: int, verifies_crc: bool) -> ColumnCall:
        """A call for `decode`, which has no memory yet: parts that are wanted, flags of records that are not plain, and
        True if the CRC of bodies counts."""
        return ColumnCall(columns, refused_flags, verifies_crc)

    def decode(self, window: tuple[int, int], starts: int, count: int, call: ColumnCall) -> int | None:
        """Fill the buffers of `call`, which knows their sizes, and then what was written: how many records are plain in
        front of the first that is not. None if there is too little memory. `window` has address and bytes."""
        found = self._decode(*window, starts, count, ctypes.addressof(call))
        if found == _FULL:
            return None
        assert 0 <= found <= count, f"the native decoder answers {found} for {count} records"
        return int(found)
