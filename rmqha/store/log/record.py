"""Data plane: the CommitLog record, in both versions, with IPv4 and IPv6 hosts. A codec over buffers.

Source: formats.md §2 (RocketMQ 5 message record). `locate` finds the parts of a record without copying anything,
`decode` makes a value of it, `encode` makes bytes. Nothing here knows files.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from zlib import crc32

from rmqha.kernel.sound_records import CRC_PROPERTY_BYTES as CRC_PROPERTY_BYTES
from rmqha.kernel.sound_records import MIN_RECORD_BYTES as MIN_RECORD_BYTES
from rmqha.kernel.sound_records import SECTOR_BYTES as SECTOR_BYTES
from rmqha.kernel.sound_records import UNDERSCORE as _UNDERSCORE
from rmqha.kernel.sound_records import parts_of
from rmqha.model.message import PROPERTY_INNER_NUM, find_property

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB
MAGIC_BLANK = 0xCBD43194
BLANK_HEADER_BYTES = 8
"""Every file keeps room for the header of a blank record at its end."""

SYS_COMMIT = 0x8
SYS_TRANSACTION = 0xC
_QUEUED = (0, SYS_COMMIT)
"""Records of these transaction types take a queue offset."""
SYS_BORN_V6 = 0x10
SYS_STORE_V6 = 0x20
SYS_INNER_BATCH = 0x80

MAX_TOPIC_V1_BYTES = 127
MAX_PROPERTIES_BYTES = 32767
MAX_INNER_COUNT = 32767
"""Messages in one record; the field of a batch queue's unit is a signed int16."""
_INNER_NUM = PROPERTY_INNER_NUM.encode()
V6_FLAGS = SYS_BORN_V6 | SYS_STORE_V6
"""These flags decide where the body begins. A new record takes them from its own hosts, or from the record that it is a
copy of, whatever a client says."""
_LOST_SECTOR = bytes(SECTOR_BYTES)

CRC_PROPERTY = b"__CRC32#\x01"
_CRC_ROOM = CRC_PROPERTY + b"0" * 10 + b"\x02"
_CRC_FIXED = tuple((index, byte) for index, byte in enumerate(_CRC_ROOM) if not 9 <= index < 19)
"""Places of that property's bytes that are always the same."""

HEAD = struct.Struct(">iIIiiqqiq")
"""totalSize, magic, bodyCRC, queueId, flag, queueOffset, physicalOffset, sysFlag, bornTimestamp."""
WHOLE_V4 = struct.Struct(">iIIiiqqiq4siq4siiqi")
"""The fixed part with two IPv4 hosts, up to and with bodyLength."""
BLANK = struct.Struct(">iI")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_UINT16 = struct.Struct(">H")
_BORN_TAIL = struct.Struct(">iq")
_STORE_TAIL = struct.Struct(">iiqi")
_AFTER_STORE_HOST = struct.Struct(">iq")
_LATE_AT, _MIDDLE_AT = 20, 36
_LATE = {4: struct.Struct(">qq20sq").pack_into, 16: struct.Struct(">qq32sq").pack_into}
"""By bytes of the born address: from queueOffset to storeTimestamp, what the two enclose as one piece."""

Buffer = bytes | bytearray | memoryview
Host = tuple[bytes, int]
Located = tuple[int, int, int, int, int, int, int, int, int, int, int]
"""size, sys_flag, queue_id, queue_offset, body_at, body_size, topic_at, topic_size, properties_at, properties_size,
store_timestamp_ms; the `…_at` are indexes into the buffer."""


class BadRecordError(Exception):
    """The bytes are no record; the text says what was expected and what was found. Caught by recovery and dispatch."""


@dataclass(slots=True)
class NewMessage:
    """A message as a caller gives it to the store. `properties` is the encoded form (`name 0x01 value 0x02`…)."""

    topic: str
    queue_id: int
    body: Buffer
    properties: bytes
    born_at_ms: int
    born_host: Host
    store_host: Host
    flag: int = 0
    sys_flag: int = 0
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0


@dataclass(frozen=True, slots=True)
class Record:
    """One decoded record. `body` is a view into the buffer that was decoded."""

    size_bytes: int
    version: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    phy_offset: int
    sys_flag: int
    born_at_ms: int
    born_host: Host
    store_timestamp_ms: int
    store_host: Host
    reconsume_times: int
    prepared_transaction_offset: int
    body: memoryview
    topic: str
    properties: bytes

    def as_new_message(self, topic: str, queue_id: int, properties: bytes, store_host: Host) -> NewMessage:
        """The message that is stored of this one again, in another place."""
        return NewMessage(
            topic,
            queue_id,
            self.body,
            properties,
            self.born_at_ms,
            self.born_host,
            store_host,
            self.flag,
            self.sys_flag,
            self.reconsume_times,
        )


def body_crc(body: Buffer) -> int:
    return crc32(body) & 0x7FFFFFFF


def locate(buffer: memoryview, at: int, end: int, phy_offset: int) -> Located:
    """Find the parts of the record at index `at`, whose position in the log is `phy_offset`; `end` is where the buffer
    or the file ends. Checks every length and the magic, not the CRC. Raises BadRecordError."""
    if end - at < MIN_RECORD_BYTES:
        raise BadRecordError(f"expected a record, found only {end - at} bytes")
    size, magic, _, queue_id, _, queue_offset, physical, sys_flag, _ = HEAD.unpack_from(buffer, at)
    if magic == MAGIC_V1:
        topic_field = 1
    elif magic == MAGIC_V2:
        topic_field = 2
    else:
        raise BadRecordError(f"expected magic 0x{MAGIC_V1:X} or 0x{MAGIC_V2:X}, found 0x{magic:X}")
    if physical != phy_offset:
        raise BadRecordError(f"expected physicalOffset {phy_offset}, found {physical}")
    born_bytes = 20 if sys_flag & SYS_BORN_V6 else 8
    body_at = at + 80 + born_bytes + (12 if sys_flag & SYS_STORE_V6 else 0)
    record_end = at + size
    if size < MIN_RECORD_BYTES or record_end > end or body_at + topic_field + 2 > record_end:
        raise BadRecordError(f"expected a totalSize of {MIN_RECORD_BYTES} to {end - at}, found {size}")
    (body_size,) = _INT32.unpack_from(buffer, body_at - 4)
    topic_at = body_at + body_size + topic_field
    if body_size < 0 or topic_at + 2 > record_end:
        raise BadRecordError(f"expected a bodyLength within totalSize {size}, found {body_size}")
    topic_size = buffer[topic_at - 1] if topic_field == 1 else _UINT16.unpack_from(buffer, topic_at - 2)[0]
    properties_at = topic_at + topic_size + 2
    if not topic_size or properties_at > record_end:
        raise BadRecordError(f"expected a topicLength from 1 within totalSize {size}, found {topic_size}")
    (properties_size,) = _UINT16.unpack_from(buffer, properties_at - 2)
    if properties_at + properties_size != record_end:
        raise BadRecordError(
            f"expected a propertiesLength of {record_end - properties_at} to fill totalSize {size},"
            f" found {properties_size}"
        )
    (store_timestamp_ms,) = _INT64.unpack_from(buffer, at + 48 + born_bytes)
    return (
        size,
        sys_flag,
        queue_id,
        queue_offset,
        body_at,
        body_size,
        topic_at,
        topic_size,
        properties_at,
        properties_size,
        store_timestamp_ms,
    )


def seems_lost(properties: bytes) -> bool:
    """True of properties that `verify` would take for ones that a power loss has swallowed in part: no replica would
    copy their record, and whoever reads the log anew would cut it there."""
    return b"\0" in properties and (properties.endswith(b"\0") or _LOST_SECTOR in properties)


def verify(buffer: memoryview, at: int, end: int, phy_offset: int) -> Located:
    """Locate as `locate` does, but the body's CRC must hold and nothing of the part behind the body may have been lost.

    bodyCRC does not cover topic and properties. A log is zero behind its end, so a sector that a power loss swallowed
    reads as zeros, and so does the rest of a write that was stopped: topic and properties cannot be that
    (`seems_lost`). Their lengths can: the first byte of a long topic's, both of no properties. Raises BadRecordError.
    """
    parts = locate(buffer, at, end, phy_offset)
    size, body_at, body_size = parts[0], parts[4], parts[5]
    (expected,) = _INT32.unpack_from(buffer, at + 8)
    found = crc32(buffer[body_at : body_at + body_size]) & 0x7FFFFFFF
    if found != expected:
        raise BadRecordError(f"expected a body with CRC {expected}, found {found}")
    start, record_end = parts[6], at + size
    written_end = record_end if parts[9] else start + parts[7]
    if parts[9] and not buffer[record_end - 1]:
        raise BadRecordError("expected the end of the properties, found a zero byte")
    while start < written_end:
        stop = min(written_end, start + SECTOR_BYTES - (phy_offset + start - at) % SECTOR_BYTES)
        if not buffer[start] and not any(buffer[start:stop]):
            raise BadRecordError(f"expected topic and properties, found {stop - start} zero bytes")
        start = stop
    mark = record_end - CRC_PROPERTY_BYTES
    if (buffer[mark] == _UNDERSCORE or buffer[mark + 1] == _UNDERSCORE) and not property_crc_holds(buffer, at, parts):
        raise BadRecordError("expected a record that matches its property __CRC32#, found other bytes")
    return parts


def is_sound(
    record: memoryview, phy_offset: int, size_bytes: int, topic: bytes, queue_id: int, queue_offset: int
) -> bool:
    """True if the bytes that an entry of a queue leads to are its record, with the body that was written: what is cheap
    enough to ask of every record that is read. -1 as `queue_offset` takes any."""
    parts = parts_of(record, phy_offset, size_bytes, topic, queue_id, queue_offset)
    if parts is None:
        return False
    body_at, topic_at, properties_bytes, crc = parts
    mark = size_bytes - CRC_PROPERTY_BYTES
    if (record[mark] == _UNDERSCORE or record[mark + 1] == _UNDERSCORE) and not _tail_crc_holds(
        record, 0, size_bytes, properties_bytes
    ):
        return False
    return bool(crc32(record[body_at:topic_at]) & 0x7FFFFFFF == crc)


def message_count(sys_flag: int, properties: bytes) -> int:
    """Number of queue offsets that a record takes: as many as its property INNER_NUM says if it is an inner batch, else
    one. Raises BadRecordError for an inner batch that does not say it."""
    if not sys_flag & SYS_INNER_BATCH:
        return 1
    number = find_property(properties, _INNER_NUM) or b""
    if not (number.isdigit() and len(number) <= 5 and 0 < int(number) <= MAX_INNER_COUNT):
        raise BadRecordError(f"expected INNER_NUM from 1 to {MAX_INNER_COUNT} in an inner batch, found {number!r}")
    return int(number)


def property_crc_holds(buffer: memoryview, at: int, parts: Located) -> bool:
    """Check the whole-record CRC that ends the properties if `enabledAppendPropCRC` was on (formats.md §2.3); True
    without one."""
    return _tail_crc_holds(buffer, at, parts[0], parts[9])


def _tail_crc_holds(buffer: memoryview, at: int, size: int, properties_size: int) -> bool:
    """A property that differs from it in one byte outside its digits is the property, damaged."""
    mark = at + size - CRC_PROPERTY_BYTES
    if properties_size < CRC_PROPERTY_BYTES:
        return True
    tail = bytes(buffer[mark : at + size])
    if not tail.startswith(CRC_PROPERTY) and sum(tail[index] != byte for index, byte in _CRC_FIXED) > 1:
        return True
    return tail == crc_property(buffer[at:mark])


def crc_property(record: Buffer) -> bytes:
    """The property that holds the checksum of a record, of which `record` is all that stands before it. Its ten digits
    stand least significant first."""
    return b"%b%b\x02" % (CRC_PROPERTY, (b"%010d" % (crc32(record) & 0x7FFFFFFF))[::-1])


def with_crc_room(properties: bytes) -> bytes:
    """Properties that end with room for `crc_property`, in place of what another record had there."""
    if properties[-CRC_PROPERTY_BYTES:].startswith(CRC_PROPERTY):
        properties = properties[:-CRC_PROPERTY_BYTES]
    separator = b"" if not properties or properties.endswith(b"\x02") else b"\x02"
    return properties + separator + _CRC_ROOM


def with_crc(record: bytes) -> bytes:
    """A record whose properties have `with_crc_room`, with its checksum there."""
    rest = record[:-CRC_PROPERTY_BYTES]
    return rest + crc_property(rest)


def decode(buffer: memoryview, at: int = 0, *, end: int | None = None) -> Record:
    """The record at index `at`; its position is taken from itself. Raises BadRecordError."""
    end = len(buffer) if end is None else end
    if end - at < MIN_RECORD_BYTES:
        raise BadRecordError(f"expected a record, found only {end - at} bytes")
    _, magic, crc, _, flag, _, phy_offset, _, born_at_ms = HEAD.unpack_from(buffer, at)
    size, sys_flag, queue_id, queue_offset, body_at, body_size, topic_at, topic_size, properties_at, _, stored = locate(
        buffer, at, end, phy_offset
    )
    born_bytes = 20 if sys_flag & SYS_BORN_V6 else 8
    store_bytes = 20 if sys_flag & SYS_STORE_V6 else 8
    store_at = at + 56 + born_bytes
    reconsume_times, prepared = _AFTER_STORE_HOST.unpack_from(buffer, store_at + store_bytes)
    try:
        topic = str(buffer[topic_at : topic_at + topic_size], "utf-8")
    except UnicodeDecodeError:
        raise BadRecordError("expected a topic in UTF-8, found other bytes") from None
    return Record(
        size_bytes=size,
        version=1 if magic == MAGIC_V1 else 2,
        body_crc=crc,
        queue_id=queue_id,
        flag=flag,
        queue_offset=queue_offset,
        phy_offset=phy_offset,
        sys_flag=sys_flag,
        born_at_ms=born_at_ms,
        born_host=_host(buffer, at + 48, born_bytes),
        store_timestamp_ms=stored,
        store_host=_host(buffer, store_at, store_bytes),
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared,
        body=buffer[body_at : body_at + body_size],
        topic=topic,
        properties=bytes(buffer[properties_at : at + size]),
    )


_PLAIN_BODY_AT = 88


def decode_sound(record: memoryview, topic: str) -> Record | None:
    """The `decode` of a record of a topic that `is_sound` and that `verify` finds whole, at a third of their cost; None
    if it has not the plain form that nearly all have (`plain_properties`), or a byte of its properties is zero."""
    if record[7] != MAGIC_V1 & 0xFF or record[39] & V6_FLAGS:
        return None
    found = WHOLE_V4.unpack_from(record)
    topic_at = _PLAIN_BODY_AT + found[16]
    properties = bytes(record[topic_at + 3 + record[topic_at] :])
    if b"\0" in properties:
        return None
    size, _, crc, queue_id, flag, queue_offset, phy_offset, sys_flag, born_at_ms, born, born_port, stored = found[:12]
    return Record(
        size,
        1,
        crc,
        queue_id,
        flag,
        queue_offset,
        phy_offset,
        sys_flag,
        born_at_ms,
        (born, born_port),
        stored,
        (found[12], found[13]),
        found[14],
        found[15],
        record[_PLAIN_BODY_AT:topic_at],
        topic,
        properties,
    )


def plain_properties(record: memoryview) -> tuple[int, bytes] | None:
    """The store time (ms) and the encoded properties of a record that `is_sound`, if it has the plain form that nearly
    all have: IPv4 hosts, version 1. Costs a third of `decode`."""
    if record[7] != MAGIC_V1 & 0xFF or record[39] & V6_FLAGS:
        return None
    topic_at = _PLAIN_BODY_AT + _INT32.unpack_from(record, _PLAIN_BODY_AT - 4)[0]
    return _INT64.unpack_from(record, 56)[0], bytes(record[topic_at + 3 + record[topic_at] :])


def properties_of(record: memoryview) -> bytes:
    """The encoded properties of one whole record, without the rest. Raises BadRecordError."""
    size, phy_offset = len(record), _INT64.unpack_from(record, 28)[0]
    properties_at = locate(record, 0, size, phy_offset)[8]
    return bytes(record[properties_at:])


def _host(buffer: memoryview, at: int, size_bytes: int) -> Host:
    port_at = at + size_bytes - 4
    return bytes(buffer[at:port_at]), _INT32.unpack_from(buffer, port_at)[0]


def topic_field(topic: str) -> tuple[bytes, int]:
    """The topic with its length in front, and the record version which that takes: one byte (V1), or two when it is
    longer than 127 bytes (V2). ValueError if it is empty or too long for either."""
    name = topic.encode()
    if not 0 < len(name) <= 32767:
        raise ValueError(f"a topic of {len(name)} bytes")
    if len(name) <= MAX_TOPIC_V1_BYTES:
        return bytes((len(name),)) + name, 1
    return _UINT16.pack(len(name)) + name, 2


def encode(
    message: NewMessage, topic: bytes, version: int, queue_offset: int, phy_offset: int, store_timestamp_ms: int
) -> bytes:
    """The whole record. `topic` and `version` come from `topic_field`. Hosts of 16 bytes set the IPv6 bits."""
    properties = message.properties
    head = _head(message, topic, version, queue_offset, phy_offset, store_timestamp_ms)
    return b"".join((head, message.body, topic, _UINT16.pack(len(properties)), properties))


def _queue_key(message: NewMessage) -> tuple[str, int] | None:
    return (message.topic, message.queue_id) if message.sys_flag & SYS_TRANSACTION in _QUEUED else None


class EncodedBatch:
    """Records back to back, whole but for queueOffset, physicalOffset and storeTimestamp: those are `place`d when the
    records are appended, as often as one likes."""

    __slots__ = ("_has_crc_room", "_late", "_middles", "_packs", "data", "messages", "runs", "starts")

    def __init__(
        self, messages: Sequence[NewMessage], fields: Sequence[tuple[bytes, int]], *, has_crc_room: bool = False
    ) -> None:
        """`fields` are what `topic_field` says of each message's topic; `has_crc_room`: the properties of each end
        with room for its checksum."""
        self.messages = messages
        self._has_crc_room = has_crc_room
        self.runs: list[tuple[tuple[str, int] | None, int]] = []
        """(topic, queue id), None for records that take no queue offset; and how many records follow each other so."""
        packs: list[Callable[..., None]] = []
        middles: list[bytes] = []
        starts: list[int] = [0]
        parts: list[Buffer] = []
        end = first = 0
        last = messages[0] if messages else None
        for message, (topic, version) in zip(messages, fields, strict=True):
            body, properties = message.body, message.properties
            head = _head(message, topic, version, 0, 0, 0)
            parts += (head, body, topic, _UINT16.pack(len(properties)), properties)
            end += len(head) + len(body) + len(topic) + _UINT16.size + len(properties)
            born_bytes = len(message.born_host[0])
            packs.append(_LATE[born_bytes])
            middles.append(head[_MIDDLE_AT : _MIDDLE_AT + 16 + born_bytes])
            if last is not None and (
                message.queue_id != last.queue_id
                or message.sys_flag != last.sys_flag
                or message.topic is not last.topic  # one more run for an equal topic does no harm
            ):
                self.runs.append((_queue_key(last), len(starts) - 1 - first))
                first, last = len(starts) - 1, message
            starts.append(end)
        if last is not None:
            self.runs.append((_queue_key(last), len(messages) - first))
        self._packs, self._middles = packs, middles
        self.starts = starts
        """Index of each record in `data`, and the end of the last one."""
        self._late = [start + _LATE_AT for start in starts]
        self.data = bytearray().join(parts)

    def __len__(self) -> int:
        return len(self._packs)

    def place(
        self, first: int, stop: int, phy_offsets: Sequence[int], queue_offsets: Sequence[int], store_timestamp_ms: int
    ) -> memoryview:
        """Give the records [first, stop) their places and return them."""
        data = self.data
        for pack, at, middle, queue_offset, phy_offset in zip(
            self._packs[first:stop],
            self._late[first:stop],
            self._middles[first:stop],
            queue_offsets,
            phy_offsets,
            strict=True,
        ):
            pack(data, at, queue_offset, phy_offset, middle, store_timestamp_ms)
        starts = self.starts
        if self._has_crc_room:
            for start, end in zip(starts[first:stop], starts[first + 1 : stop + 1], strict=True):
                data[end - CRC_PROPERTY_BYTES : end] = crc_property(data[start : end - CRC_PROPERTY_BYTES])
        return memoryview(data)[starts[first] : starts[stop]]


def _head(
    message: NewMessage, topic: bytes, version: int, queue_offset: int, phy_offset: int, store_timestamp_ms: int
) -> bytes:
    """The part before the body."""
    born_address, born_port = message.born_host
    store_address, store_port = message.store_host
    if len(born_address) != 4 or len(store_address) != 4:
        return _head_v6(message, topic, version, queue_offset, phy_offset, store_timestamp_ms)
    body = message.body
    body_size = len(body)
    return WHOLE_V4.pack(
        90 + body_size + len(topic) + len(message.properties),
        MAGIC_V1 if version == 1 else MAGIC_V2,
        crc32(body) & 0x7FFFFFFF,
        message.queue_id,
        message.flag,
        queue_offset,
        phy_offset,
        message.sys_flag & ~V6_FLAGS,
        message.born_at_ms,
        born_address,
        born_port,
        store_timestamp_ms,
        store_address,
        store_port,
        message.reconsume_times,
        message.prepared_transaction_offset,
        body_size,
    )


def _head_v6(
    message: NewMessage, topic: bytes, version: int, queue_offset: int, phy_offset: int, store_timestamp_ms: int
) -> bytes:
    """The part before the body with at least one IPv6 host."""
    born_address, born_port = message.born_host
    store_address, store_port = message.store_host
    sys_flag = message.sys_flag & ~V6_FLAGS
    sys_flag |= SYS_BORN_V6 if len(born_address) == 16 else 0
    sys_flag |= SYS_STORE_V6 if len(store_address) == 16 else 0
    size = fixed_bytes(message) + len(message.body) + len(topic) + 2 + len(message.properties)
    first = HEAD.pack(
        size,
        MAGIC_V1 if version == 1 else MAGIC_V2,
        crc32(message.body) & 0x7FFFFFFF,
        message.queue_id,
        message.flag,
        queue_offset,
        phy_offset,
        sys_flag,
        message.born_at_ms,
    )
    middle = _BORN_TAIL.pack(born_port, store_timestamp_ms)
    last = _STORE_TAIL.pack(store_port, message.reconsume_times, message.prepared_transaction_offset, len(message.body))
    return first + born_address + middle + store_address + last


def fixed_bytes(message: NewMessage) -> int:
    """Size of the part before the body."""
    return 80 + len(message.born_host[0]) + len(message.store_host[0])


def blank(size_bytes: int) -> bytes:
    """Head of the blank record that takes the last `size_bytes` of a file."""
    return BLANK.pack(size_bytes, MAGIC_BLANK)
