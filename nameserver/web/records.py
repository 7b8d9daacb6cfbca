"""Parser of the records in a broker's answer, for the page: a bounded number, with the shown part of each body. Pure.

Compressed bodies are untrusted: 64 KiB can stand for 64 MiB, so only their beginning is decompressed. Parsing takes
milliseconds, so the lookup does it beside the event loop.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace

from nameserver.web.message_view import BODY_LIMIT_BYTES
from rmqha.client.compression import decompress_start
from rmqha.client.consumers.message import Message, MessageBatch
from rmqha.model.error import RemoteProtocolError, UsageError
from rmqha.model.message import PROPERTY_INNER_BASE, SYS_FLAG_COMPRESSED, SYS_FLAG_INNER_BATCH, decode_properties
from rmqha.model.offset import QueueOffset
from rmqha.store.log.record import MIN_RECORD_BYTES, BadRecordError, locate

BODY_START_BYTES = BODY_LIMIT_BYTES + 1
"""Bytes of each body that are kept: the last one shows that there are more."""
BATCH_START_BYTES = 256 * 1024
"""Bytes that are decompressed of a record with several messages."""
_SYS_FLAG_AT = 36
_LOWEST = -(1 << 63)
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_PHY_OFFSET_AT = 28
_MEMBER_HEAD = struct.Struct(">iiiii")
_UINT16 = struct.Struct(">H")


@dataclass(frozen=True, slots=True)
class MessagePreview:
    """Message with the beginning of its body. `packed_bytes` and `problem` as in `body_view`."""

    message: Message
    packed_bytes: int = 0
    problem: str = ""


def message_previews(broker_name: str, answer: bytes | memoryview, limit_count: int) -> list[MessagePreview]:
    """Previews of the first `limit_count` messages. Raises RemoteProtocolError if the bytes are no records."""
    found: list[MessagePreview] = []
    try:
        for record in _records(memoryview(answer)):
            for peek in _of_record(broker_name, record):
                found.append(peek)
                if len(found) == limit_count:
                    return found
    except (BadRecordError, struct.error) as error:
        raise RemoteProtocolError(f"group {broker_name} sent what is no record: {error}") from error
    return found


def _records(buffer: memoryview) -> Iterator[bytes]:
    at = 0
    while at < len(buffer):
        if len(buffer) - at < MIN_RECORD_BYTES:
            raise BadRecordError(f"expected a record, found only {len(buffer) - at} bytes")
        size = locate(buffer, at, len(buffer), _INT64.unpack_from(buffer, at + _PHY_OFFSET_AT)[0])[0]
        yield bytes(buffer[at : at + size])
        at += size


def _of_record(broker_name: str, record: bytes) -> Iterator[MessagePreview]:
    (sys_flag,) = _INT32.unpack_from(record, _SYS_FLAG_AT)
    # parsed as one message with a plain body, whatever the body is
    flags = _INT32.pack(sys_flag & ~(SYS_FLAG_COMPRESSED | SYS_FLAG_INNER_BATCH))
    plain = record[:_SYS_FLAG_AT] + flags + record[_SYS_FLAG_AT + 4 :]
    message = MessageBatch(broker_name, plain, from_offset=_LOWEST)[0].message()
    stored, limit_bytes = message.body, BATCH_START_BYTES if sys_flag & SYS_FLAG_INNER_BATCH else BODY_START_BYTES
    is_whole = True
    if sys_flag & SYS_FLAG_COMPRESSED:
        try:
            body, is_whole = decompress_start(stored, sys_flag, limit_bytes)
        except (RemoteProtocolError, UsageError) as error:
            yield MessagePreview(replace(message, body=stored[:BODY_START_BYTES]), len(stored), str(error))
            return
    else:
        body = stored
    if sys_flag & SYS_FLAG_INNER_BATCH:
        yield from _members(message, body, is_whole)
    else:
        yield MessagePreview(replace(message, body=body), 0 if is_whole else len(stored))


def _members(record: Message, data: bytes, is_whole: bool) -> Iterator[MessagePreview]:
    """Messages of a record with a batch, as in request 320, as far as its beginning has them whole."""
    base = record.properties.get(PROPERTY_INNER_BASE, "")
    first = int(base) if base.isascii() and base.isdigit() and len(base) < 19 else record.queue_offset
    at = number = 0
    while at < len(data):
        if at + _MEMBER_HEAD.size > len(data) and not is_whole:
            return
        body_bytes = _MEMBER_HEAD.unpack_from(data, at)[4]
        body_at = at + _MEMBER_HEAD.size
        properties_at = body_at + body_bytes + _UINT16.size
        if body_bytes < 0:
            raise BadRecordError(f"expected the length of a member's body, found {body_bytes}")
        if properties_at > len(data) and not is_whole:
            return
        end = properties_at + _UINT16.unpack_from(data, properties_at - _UINT16.size)[0]
        if end > len(data):
            if is_whole:
                raise BadRecordError(f"expected a member of at most {len(data) - at} bytes, found {end - at}")
            return
        body = data[body_at : body_at + body_bytes]
        properties = decode_properties(data[properties_at:end])
        yield MessagePreview(
            replace(record, body=body, properties=properties, queue_offset=QueueOffset(first + number))
        )
        at, number = end, number + 1
