"""Compressed bodies: zlib from the standard library, lz4 and zstd by the packages of those names. Data plane.

Both are asked for only when a message needs them (`pip install 'rmqha[compression]'`); lz4 is its frame format, as the
Java client writes and reads it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

from rmqha.model.error import RemoteProtocolError, UsageError
from rmqha.model.message import (
    SYS_FLAG_COMPRESSED,
    SYS_FLAG_COMPRESSION_LZ4,
    SYS_FLAG_COMPRESSION_MASK,
    SYS_FLAG_COMPRESSION_ZLIB,
    SYS_FLAG_COMPRESSION_ZSTD,
)

MAX_BODY_BYTES = 64 * 1024 * 1024
"""A body that decompresses to more is refused: a peer must not choose how much memory we take."""
ZLIB_LEVEL = 5
"""Level of zlib, as of the Java client."""
ZSTD_LEVEL = 3
ZSTD_PIECE_BYTES = 1024
"""Bytes of zstd input that are decompressed at once: four bytes can stand for a block of 128 KiB."""
ZSTD_START_WINDOW_BYTES = 16 * 1024 * 1024
"""Largest window of a zstd stream whose beginning is decompressed: the stream itself says how much memory its reader
needs."""

_NAME_OF = {SYS_FLAG_COMPRESSION_LZ4: "lz4", SYS_FLAG_COMPRESSION_ZSTD: "zstd"}


def _lz4() -> Any:
    try:
        import lz4.frame
    except ImportError:
        raise _missing("lz4") from None
    return lz4.frame


def _zstd() -> Any:
    try:
        import zstandard
    except ImportError:
        raise _missing("zstd") from None
    return zstandard


def _missing(name: str) -> UsageError:
    return UsageError(f"{name} bodies need a package that is not installed: pip install 'rmqha[compression]'")


class BodyTooLargeError(RemoteProtocolError):
    """A body that stands for more bytes than its reader takes: reading it again will not help."""


class Compression(NamedTuple):
    """A producer's compression, and its sysFlag."""

    compress: Callable[[bytes], bytes]
    sys_flag: int


def compression(name: str) -> Compression:
    """The compression called `name`. Raises UsageError for an unknown one and for a package that is missing."""
    flags = SYS_FLAG_COMPRESSED
    if name == "zlib":
        return Compression(lambda body: zlib.compress(body, ZLIB_LEVEL), flags | SYS_FLAG_COMPRESSION_ZLIB)
    if name == "lz4":
        return Compression(_lz4().compress, flags | SYS_FLAG_COMPRESSION_LZ4)
    if name == "zstd":
        return Compression(_zstd().ZstdCompressor(level=ZSTD_LEVEL).compress, flags | SYS_FLAG_COMPRESSION_ZSTD)
    raise UsageError(f"there is no compression {name!r}; known are zlib, lz4 and zstd")


def decompress(body: bytes | memoryview, sys_flag: int, max_body_bytes: int = MAX_BODY_BYTES) -> bytes:
    """The plain body. Raises BodyTooLargeError if it has more than `max_body_bytes`, RemoteProtocolError if it is not
    what `sys_flag` says, UsageError if the library for its compression is not installed."""
    if not sys_flag & SYS_FLAG_COMPRESSED:
        return bytes(body)
    name = _NAME_OF.get(sys_flag & SYS_FLAG_COMPRESSION_MASK, "zlib")
    reader: Any
    failure: type[Exception]
    if name == "lz4":
        reader, failure = _lz4().LZ4FrameDecompressor(), RuntimeError
    elif name == "zstd":
        zstandard = _zstd()
        reader, failure = zstandard.ZstdDecompressor().decompressobj(), zstandard.ZstdError
    else:
        reader, failure = zlib.decompressobj(), zlib.error
    try:
        plain = (
            _pieces(reader, memoryview(body), max_body_bytes)
            if name == "zstd"
            else reader.decompress(body, max_body_bytes + 1)
        )
    except failure as error:
        raise RemoteProtocolError(f"a compressed body does not decompress: {error}") from error
    if len(plain) > max_body_bytes:
        raise BodyTooLargeError(f"a compressed body holds more than {max_body_bytes} bytes")
    if not reader.eof:
        raise RemoteProtocolError(f"a compressed body ends before its {name} stream does")
    return bytes(plain)


def _pieces(reader: Any, body: memoryview, max_body_bytes: int) -> bytes:
    """Decompress in small pieces of input: zstandard's incremental reader has no bound on its output."""
    parts, size_bytes = [], 0
    for at in range(0, len(body), ZSTD_PIECE_BYTES):
        parts.append(reader.decompress(body[at : at + ZSTD_PIECE_BYTES]))
        size_bytes += len(parts[-1])
        if size_bytes > max_body_bytes or reader.eof:
            break
    return b"".join(parts)


def decompress_start(body: bytes | memoryview, sys_flag: int, limit_bytes: int) -> tuple[bytes, bool]:
    """The beginning of the plain body, at most `limit_bytes`, and True if that is all of it. The cost is bounded by the
    limit and by the compressed bytes, never by the size of the plain body. Raises as `decompress`."""
    name = _NAME_OF.get(sys_flag & SYS_FLAG_COMPRESSION_MASK, "zlib")
    failure: type[Exception]
    if name == "zstd":
        zstandard = _zstd()
        reader, failure = zstandard.ZstdDecompressor(max_window_size=ZSTD_START_WINDOW_BYTES), zstandard.ZstdError
    elif name == "lz4":
        reader, failure = _lz4().LZ4FrameDecompressor(), RuntimeError
    else:
        reader, failure = zlib.decompressobj(), zlib.error
    try:
        if name == "zstd":
            with reader.stream_reader(body) as stream:
                plain = stream.read(limit_bytes + 1)
            # a stream that ends too early is told by `decompress` only; here it is shown as far as it goes
            return bytes(plain[:limit_bytes]), len(plain) <= limit_bytes
        plain = reader.decompress(body, limit_bytes + 1)
    except failure as error:
        raise RemoteProtocolError(f"a compressed body does not decompress: {error}") from error
    return bytes(plain[:limit_bytes]), len(plain) <= limit_bytes and bool(reader.eof)
