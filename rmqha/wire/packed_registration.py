"""The compressed body of request 103 (compressedRegister=true): a zlib stream of parts, each behind its length.

Parts: the data version (JSON); the number of topics and each as "name readQueues writeQueues perm filterType
attributes"; the filter servers (JSON list); of brokers from 5.0 on the number of static topics and each as JSON.
Numbers and lengths are 32 bits, big endian. A topic's system flags and order are not in it.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

from rmqha.model.error import RemoteProtocolError
from rmqha.wire.lenient_json import dumps, loads

MAX_UNPACKED_BYTES = 64 * 1024 * 1024
ZLIB_START = b"x"
"""First byte of the stream; an uncompressed body begins with a brace."""
_INT = struct.Struct(">i")
_ROW_FIELD_COUNT = 5


def pack(data_version: Mapping[str, int], topic_config_table: Mapping[str, Mapping[str, Any]]) -> bytes:
    """Both of the shapes of topics.json (formats.md §9)."""
    parts = [_part(dumps(data_version)), _INT.pack(len(topic_config_table))]
    parts += (_part(_row(topic)) for topic in topic_config_table.values())
    parts += (_part(b"[]"), _INT.pack(0))
    return zlib.compress(b"".join(parts), 9)


def unpack(body: bytes) -> dict[str, Any]:
    """The uncompressed body's shape, with what is packed. Raises RemoteProtocolError."""
    try:
        stream = zlib.decompressobj()
        data = stream.decompress(body, MAX_UNPACKED_BYTES)
    except zlib.error as error:
        raise RemoteProtocolError(f"the compressed registration cannot be unpacked: {error}") from None
    if not stream.eof:
        raise RemoteProtocolError(f"the compressed registration is cut off, or above {MAX_UNPACKED_BYTES} bytes")
    try:
        return {"topicConfigSerializeWrapper": _wrapper(data)}
    except (struct.error, ValueError, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"the compressed registration is not one: {error}") from None


def _wrapper(data: bytes) -> dict[str, Any]:
    version, offset = _take(data, 0)
    (count,) = _INT.unpack_from(data, offset)
    table = {row["topicName"]: row for row in _rows(data, offset + _INT.size, count)}
    return {"dataVersion": loads(version), "topicConfigTable": table}


def _rows(data: bytes, offset: int, count: int) -> Iterator[dict[str, Any]]:
    for _ in range(count):
        row, offset = _take(data, offset)
        fields = row.decode().split(" ")
        if len(fields) < _ROW_FIELD_COUNT:
            raise ValueError(f"{row[:100]!r} is not a topic")
        name, read_count, write_count, perm = fields[:4]
        yield {
            "topicName": name,
            "readQueueNums": int(read_count),
            "writeQueueNums": int(write_count),
            "perm": int(perm),
        }


def _take(data: bytes, offset: int) -> tuple[bytes, int]:
    """The part at `offset`, and where the next one begins."""
    (size,) = _INT.unpack_from(data, offset)
    start = offset + _INT.size
    if size < 0 or start + size > len(data):
        raise ValueError(f"a part of {size} bytes at {offset} of {len(data)}")
    return data[start : start + size], start + size


def _part(data: bytes) -> bytes:
    return _INT.pack(len(data)) + data


def _row(topic: Mapping[str, Any]) -> bytes:
    names = ("topicName", "readQueueNums", "writeQueueNums", "perm", "topicFilterType")
    return " ".join(str(topic[name]) for name in names).encode() + b" " + dumps(topic.get("attributes") or {})
