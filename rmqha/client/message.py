"""A message as an application receives it, made from the stored record that a broker sends. Data plane."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from rmqha.client.compression import decompress
from rmqha.model.error import RemoteProtocolError
from rmqha.model.message import (
    PROPERTY_INNER_BASE,
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_UNIQUE_KEY,
    SYS_FLAG_INNER_BATCH,
    decode_properties,
    offset_message_id,
)
from rmqha.model.offset import PhyOffset, QueueOffset
from rmqha.store.record import BadRecordError, Record, decode

_INNER_HEAD = struct.Struct(">iiiii")
_INNER_PROPERTIES = struct.Struct(">H")


@dataclass(frozen=True, slots=True)
class Message:
    """`body` is decompressed. `msg_id` is the producer's UNIQ_KEY, the same for all copies that a retry made;
    `offset_msg_id` names the one stored record."""

    topic: str
    broker_name: str
    queue_id: int
    queue_offset: QueueOffset
    phy_offset: PhyOffset
    body: bytes
    properties: dict[str, str]
    offset_msg_id: str
    born_at_ms: int
    stored_at_ms: int
    reconsume_times: int
    flag: int

    @property
    def keys(self) -> str:
        return self.properties.get(PROPERTY_KEYS, "")

    @property
    def tags(self) -> str:
        return self.properties.get(PROPERTY_TAGS, "")

    @property
    def msg_id(self) -> str:
        return self.properties.get(PROPERTY_UNIQUE_KEY) or self.offset_msg_id


def decode_messages(broker_name: str, body: bytes | memoryview) -> list[Message]:
    """All messages of a pull's answer, members of inner batches one by one. Raises as `decompress`, and
    RemoteProtocolError if the bytes are no records."""
    buffer = memoryview(body)
    found: list[Message] = []
    position = 0
    while position < len(buffer):
        try:
            record = decode(buffer, position)
        except BadRecordError as error:
            raise RemoteProtocolError(f"group {broker_name} sent what is no record: {error}") from error
        position += record.size_bytes
        properties = decode_properties(record.properties)
        if record.sys_flag & SYS_FLAG_INNER_BATCH:
            found.extend(_members(broker_name, record, properties))
        else:
            body_bytes = decompress(record.body, record.sys_flag)
            found.append(_message(broker_name, record, record.queue_offset, body_bytes, properties))
    return found


def _message(broker_name: str, record: Record, queue_offset: int, body: bytes, properties: dict[str, str]) -> Message:
    return Message(
        topic=record.topic,
        broker_name=broker_name,
        queue_id=record.queue_id,
        queue_offset=QueueOffset(queue_offset),
        phy_offset=PhyOffset(record.phy_offset),
        body=body,
        properties=properties,
        offset_msg_id=offset_message_id(record.store_host, record.phy_offset),
        born_at_ms=record.born_at_ms,
        stored_at_ms=record.store_timestamp_ms,
        reconsume_times=record.reconsume_times,
        flag=record.flag,
    )


def _members(broker_name: str, record: Record, outer: dict[str, str]) -> Iterator[Message]:
    """Members of one record that holds a batch, laid out as in request 320; their queue offsets follow each other."""
    data = decompress(record.body, record.sys_flag)
    base = outer.get(PROPERTY_INNER_BASE, "")
    queue_offset = int(base) if base.isdigit() else record.queue_offset
    position = 0
    try:
        while position < len(data):
            _, _, _, _, body_bytes = _INNER_HEAD.unpack_from(data, position)
            body_at = position + _INNER_HEAD.size
            properties_at = body_at + body_bytes + _INNER_PROPERTIES.size
            (properties_bytes,) = _INNER_PROPERTIES.unpack_from(data, properties_at - _INNER_PROPERTIES.size)
            end = properties_at + properties_bytes
            if body_bytes < 0 or end > len(data):
                raise RemoteProtocolError(f"group {broker_name} sent a batch whose member leaves it")
            properties = decode_properties(data[properties_at:end])
            body = data[body_at : body_at + body_bytes]
            yield _message(broker_name, record, queue_offset, body, properties)
            position, queue_offset = end, queue_offset + 1
    except struct.error as error:
        raise RemoteProtocolError(f"group {broker_name} sent a batch that is cut off: {error}") from error
