"""Columns of records in native code (`native/src/columns.rs`): buffers in, buffers out, without Python's lock.

It knows addresses only: who has the window and makes arrays of what comes is `rmqha.scan.native.columns`.
"""

from __future__ import annotations

import ctypes
from typing import Final

BODY, TOPIC, KEYS, TAGS, NUMBERS = 1, 2, 4, 8, 16
"""Parts of a record that may be wanted: NUMBERS are queueId, queueOffset, physicalOffset and both timestamps."""
_GIVEN: Final = ("columns", "refused_flags", "verifies_crc")
_SIZES: Final = ("body_bytes", "topic_bytes", "keys_bytes", "key_count", "tags_bytes", "tag_count")
BUFFERS: Final = (
    *("body_offsets", "body", "topic_offsets", "topic", "key_offsets", "keys_offsets", "keys", "tags_offsets", "tags"),
    *("tag_bits", "queueId", "queueOffset", "physicalOffset", "bornTimestamp", "storeTimestamp"),
)
"""Memory that `write` fills. The offsets of texts are int32, with one more than there are texts; `key_offsets` says how
many keys stand before those of each record."""


class ColumnCall(ctypes.Structure):
    """`ColumnCall` of border.rs."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in _GIVEN),
        *((name, ctypes.c_size_t) for name in _SIZES),
        *((name, ctypes.c_void_p) for name in BUFFERS),
    )


class NativeColumns:
    """The decoder of a library; any thread may use it."""

    def __init__(self, library: ctypes.CDLL) -> None:
        """`library` is one that `NativeKernel` takes, loaded so that its calls let go of Python's lock."""
        self._measure, self._write = library.rmqha_columns_measure, library.rmqha_columns_write
        address, size = ctypes.c_void_p, ctypes.c_size_t
        self._measure.argtypes = self._write.argtypes = address, size, address, size, address, address
        self._measure.restype = self._write.restype = ctypes.c_int64
        self._walk, number = library.rmqha_columns_walk, ctypes.c_int64
        self._walk.argtypes = address, size, number, number, number, address, size, address
        self._walk.restype = number
        library.rmqha_columns_part_bytes.restype = size
        self.part_bytes: int = library.rmqha_columns_part_bytes()
        """Bytes that the parts of a record take."""

    def walk(
        self, window: tuple[int, int], base_offset: int, stop: int, max_bytes: int, starts: int, count: int
    ) -> tuple[int, int]:
        """Follow the records of a window, `count` at most: how many begin at what stands in `starts` then, and the
        index behind the last one. None ends behind index `stop` or has more than `max_bytes`."""
        end = ctypes.c_int64()
        found = self._walk(*window, base_offset, stop, max_bytes, starts, count, ctypes.addressof(end))
        return found, end.value

    def measure(
        self, window: tuple[int, int], starts: int, count: int, parts: int, wanted: tuple[int, int, bool]
    ) -> tuple[int, ColumnCall]:
        """Find the parts of records: how many are plain in front of the first that is not, and the sizes of what is
        wanted. `window` has address and bytes; `wanted` parts, flags of records that are not plain, and True if the
        CRC of bodies counts."""
        call = ColumnCall(*wanted)
        return self._measure(*window, starts, count, parts, ctypes.addressof(call)), call

    def write(self, window: tuple[int, int], starts: int, count: int, parts: int, call: ColumnCall) -> None:
        """Fill the buffers of `call`, which `measure` gave for the same records, all of them plain."""
        found = self._write(*window, starts, count, parts, ctypes.addressof(call))
        assert found == count, f"the native decoder answers {found} for {count} records that it has found plain"
