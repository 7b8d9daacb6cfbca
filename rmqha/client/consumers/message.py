"""A message as an application receives it, made from the stored record that a broker sends. Data plane.

A pull's answer becomes a MessageBatch: its records are found and checked at once (1 us each), their fields are decoded
when they are asked for, and bodies are views into the answer. Message is the same with everything decoded.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn, overload

from rmqha.client.answers import whole_number
from rmqha.client.compression import MAX_BODY_BYTES, decompress
from rmqha.model.error import RemoteProtocolError, RmqhaError, UsageError
from rmqha.model.message import (
    PROPERTY_INNER_BASE,
    PROPERTY_KEYS,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_TAGS,
    PROPERTY_UNIQUE_KEY,
    SYS_FLAG_COMPRESSED,
    SYS_FLAG_INNER_BATCH,
    decode_properties,
    find_property,
    offset_message_id,
)
from rmqha.model.offset import PhyOffset, QueueOffset
from rmqha.store.log.record import (
    HEAD,
    MAGIC_V1,
    MAGIC_V2,
    MIN_RECORD_BYTES,
    SYS_STORE_V6,
    BadRecordError,
    Located,
    locate,
)

_INNER_HEAD = struct.Struct(">iiiii")
_INNER_PROPERTIES = struct.Struct(">H")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_PHY_OFFSET_AT, _FLAG_AT, _BORN_AT = 28, 16, 40
_MAGICS = (MAGIC_V1.to_bytes(4), MAGIC_V2.to_bytes(4))
_TAGS = PROPERTY_TAGS.encode()
_KEYS = PROPERTY_KEYS.encode()
_UNIQUE_KEY = PROPERTY_UNIQUE_KEY.encode()
_RETRY_TOPIC = PROPERTY_RETRY_TOPIC.encode()


@dataclass(frozen=True, slots=True)
class Message:
    """A message with everything decoded. `body` is decompressed. `msg_id` is the producer's UNIQ_KEY, the same for all
    copies that a retry made; `offset_msg_id` names the one stored record. A message that comes again after
    `Consumer.retry` has the topic that it was sent to."""

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
        """Keys, joined by spaces; "" without any."""
        return self.properties.get(PROPERTY_KEYS, "")

    @property
    def tags(self) -> str:
        """Tags; "" without any."""
        return self.properties.get(PROPERTY_TAGS, "")

    @property
    def msg_id(self) -> str:
        """The producer's unique id, or the offset message id of a message without one."""
        return self.properties.get(PROPERTY_UNIQUE_KEY) or self.offset_msg_id


class MessageView:
    """One message of a batch, decoded field by field when it is asked for. `body` is a view into the answer (bytes if
    it had to be decompressed): whoever keeps it keeps the whole answer in memory; `message()` makes a copy that stands
    alone."""

    __slots__ = ("_batch", "_parts")

    def __init__(self, batch: MessageBatch, parts: Located) -> None:
        self._batch = batch
        self._parts = parts

    @property
    def broker_name(self) -> str:
        """Name of the broker group that the message came from."""
        return self._batch.broker_name

    @property
    def topic(self) -> str:
        """Topic, as the application knows it."""
        _, _, _, _, _, _, at, size, _, _, _ = self._parts
        return self._batch.topic_of(str(self._batch.buffer[at : at + size], "utf-8", "replace"), self.raw_properties)

    @property
    def queue_id(self) -> int:
        """Queue of the topic that the message is in."""
        return self._parts[2]

    @property
    def queue_offset(self) -> QueueOffset:
        """Offset in the queue, in messages."""
        return QueueOffset(self._parts[3])

    @property
    def stored_at_ms(self) -> int:
        """Time (ms since 1970) at which the broker stored the message."""
        return self._parts[10]

    @property
    def born_at_ms(self) -> int:
        """Time (ms since 1970) at which the producer made the message."""
        return int(_INT64.unpack_from(self._batch.buffer, self._start + _BORN_AT)[0])

    @property
    def phy_offset(self) -> PhyOffset:
        """Offset (bytes) of the record in the CommitLog."""
        return PhyOffset(_INT64.unpack_from(self._batch.buffer, self._start + _PHY_OFFSET_AT)[0])

    @property
    def flag(self) -> int:
        """The application's flag, a number of 32 bits."""
        return int(_INT32.unpack_from(self._batch.buffer, self._start + _FLAG_AT)[0])

    @property
    def reconsume_times(self) -> int:
        """Number of times that a consumer has handed the message back."""
        return int(_INT32.unpack_from(self._batch.buffer, self._parts[4] - 16)[0])

    @property
    def body(self) -> memoryview | bytes:
        """The body, decompressed. Raises as `decompress`."""
        _, sys_flag, _, _, at, size, _, _, _, _, _ = self._parts
        view = self._batch.buffer[at : at + size]
        return decompress(view, sys_flag, self._batch.max_body_bytes) if sys_flag & SYS_FLAG_COMPRESSED else view

    @property
    def is_unreadable(self) -> bool:
        """True of a record that is damaged, or has several messages that cannot be told apart: `body` and `message()`
        raise why."""
        return False

    @property
    def is_damaged(self) -> bool:
        """True of bytes that are no record: its place is a guess, the rest is empty."""
        return False

    @property
    def raw_properties(self) -> bytes:
        """Properties as stored: `name 0x01 value 0x02` for each."""
        at, size = self._parts[8:10]
        return bytes(self._batch.buffer[at : at + size])

    @property
    def properties(self) -> dict[str, str]:
        """Properties by name."""
        return decode_properties(self.raw_properties)

    @property
    def keys(self) -> str:
        """Keys, joined by spaces; "" without any."""
        return _text(find_property(self.raw_properties, _KEYS))

    @property
    def tags(self) -> str:
        """Tags; "" without any."""
        return _text(find_property(self.raw_properties, _TAGS))

    @property
    def msg_id(self) -> str:
        """The producer's unique id, or the offset message id of a message without one."""
        return _text(find_property(self.raw_properties, _UNIQUE_KEY)) or self.offset_msg_id

    @property
    def offset_msg_id(self) -> str:
        """Id made of the storing broker's address and the physical offset, as request 33 takes it."""
        return offset_message_id(self._store_host(), self.phy_offset)

    @property
    def _start(self) -> int:
        """Position at which the record begins."""
        size, _, _, _, _, _, _, _, properties_at, properties_size, _ = self._parts
        return properties_at + properties_size - size

    def _store_host(self) -> tuple[bytes, int]:
        """Store host, which stands right before reconsumeTimes."""
        body_at = self._parts[4]
        address_at = body_at - (36 if self._parts[1] & SYS_STORE_V6 else 24)
        return bytes(self._batch.buffer[address_at : body_at - 20]), _INT32.unpack_from(
            self._batch.buffer, body_at - 20
        )[0]

    def message(self) -> Message:
        """Everything decoded and copied. Raises as `decompress`."""
        batch, buffer = self._batch, self._batch.buffer
        (
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
            stored,
        ) = self._parts
        end = properties_at + properties_size
        start = end - size
        raw = buffer[properties_at:end]
        body = bytes(buffer[body_at : body_at + body_size])
        phy_offset = PhyOffset(_INT64.unpack_from(buffer, start + _PHY_OFFSET_AT)[0])
        return Message(
            batch.topic_of(str(buffer[topic_at : topic_at + topic_size], "utf-8", "replace"), raw),
            batch.broker_name,
            queue_id,
            QueueOffset(queue_offset),
            phy_offset,
            decompress(body, sys_flag, batch.max_body_bytes) if sys_flag & SYS_FLAG_COMPRESSED else body,
            decode_properties(raw),
            offset_message_id(self._store_host(), phy_offset),
            _INT64.unpack_from(buffer, start + _BORN_AT)[0],
            stored,
            _INT32.unpack_from(buffer, body_at - 16)[0],
            _INT32.unpack_from(buffer, start + _FLAG_AT)[0],
        )


class _Member(MessageView):
    """A message of a record that holds several. Fields that it does not have itself are the record's."""

    __slots__ = ("_body", "_properties", "_queue_offset")

    def __init__(
        self, batch: MessageBatch, parts: Located, queue_offset: int, body: memoryview, properties: bytes
    ) -> None:
        super().__init__(batch, parts)
        self._queue_offset = queue_offset
        self._body = body
        self._properties = properties

    @property
    def queue_offset(self) -> QueueOffset:
        return QueueOffset(self._queue_offset)

    @property
    def body(self) -> memoryview | bytes:
        return self._body

    @property
    def raw_properties(self) -> bytes:
        return self._properties

    def message(self) -> Message:
        return Message(
            self.topic,
            self.broker_name,
            self.queue_id,
            self.queue_offset,
            self.phy_offset,
            bytes(self._body),
            self.properties,
            self.offset_msg_id,
            self.born_at_ms,
            self.stored_at_ms,
            self.reconsume_times,
            self.flag,
        )


class _Unreadable(MessageView):
    """A record that cannot be read, or whose members cannot, as one message: `body` and `message()` raise the error. If
    decoding the answer raised it, the answer would be asked for without end, and its other messages would be lost."""

    __slots__ = ("_error",)

    def __init__(self, batch: MessageBatch, parts: Located, error: RmqhaError) -> None:
        super().__init__(batch, parts)
        self._error = error

    @property
    def is_unreadable(self) -> bool:
        return True

    @property
    def body(self) -> memoryview | bytes:
        self._refuse()

    def message(self) -> Message:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise type(self._error)(str(self._error))


class _Damaged(_Unreadable):
    """Bytes in the place of a record. Its offsets are read from where a record has them, and may be damaged too."""

    __slots__ = ("size_bytes",)

    def __init__(self, batch: MessageBatch, head: bytes, size_bytes: int, error: RmqhaError) -> None:
        """`batch`: one of its own; `head`: bytes of the shortest record."""
        batch.buffer = memoryview(head)
        _, _, _, queue_id, _, queue_offset, _, _, _ = HEAD.unpack_from(head)
        end = len(head)
        super().__init__(batch, (end, 0, queue_id, queue_offset, end - 3, 0, end, 0, end, 0, 0), error)
        self.size_bytes = size_bytes

    @property
    def is_damaged(self) -> bool:
        return True


class MessageBatch(Sequence[MessageView]):
    """The wanted messages of one pull's answer, in the order of their queue. `len`, an index and a loop decode only the
    fields that are used of each view; `messages()` decodes all."""

    __slots__ = ("_views", "broker_name", "buffer", "is_cut", "is_retry", "max_body_bytes", "read_to")

    def __init__(
        self,
        broker_name: str,
        body: bytes | memoryview,
        *,
        from_offset: int = 0,
        tags: frozenset[str] | None = None,
        is_retry: bool = False,
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        """Messages below `from_offset` and those with another tag than `tags` are left out. `is_retry`: the records are
        a retry topic's, and each names the topic it was sent to. A compressed body stands for `max_body_bytes` at most.

        A damaged record is a view that `is_unreadable`. Where nothing says how long it is it is the last one."""
        self.broker_name = broker_name
        self.buffer = memoryview(body)
        self.is_retry = is_retry
        self.max_body_bytes = max_body_bytes
        self.is_cut = False
        """True if the last view stands for all the rest: a damaged record, and what may stand behind it."""
        self.read_to = from_offset
        """Offset behind the last record that was found."""
        views = self._find(from_offset)
        self._views = views if tags is None else [view for view in views if view.is_unreadable or view.tags in tags]

    def __len__(self) -> int:
        return len(self._views)

    @overload
    def __getitem__(self, index: int) -> MessageView: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[MessageView]: ...

    def __getitem__(self, index: int | slice) -> MessageView | Sequence[MessageView]:
        return self._views[index]

    def __iter__(self) -> Iterator[MessageView]:
        return iter(self._views)

    def after(self, index: int) -> MessageBatch:
        """The batch without its first `index` messages; itself for 0."""
        if not index:
            return self
        rest = MessageBatch(self.broker_name, b"", is_retry=self.is_retry, max_body_bytes=self.max_body_bytes)
        rest.buffer, rest._views = self.buffer, self._views[index:]
        return rest

    def without_cut(self) -> MessageBatch:
        """The batch without the view that stands for the rest."""
        whole = self.after(0)
        whole._views = self._views[:-1]
        return whole

    def messages(self) -> list[Message]:
        """All messages, decoded. Raises as `decompress`."""
        return [view.message() for view in self._views]

    def topic_of(self, stored_topic: str, properties: bytes | memoryview) -> str:
        """The topic that a message was sent to."""
        if not self.is_retry:
            return stored_topic
        return _text(find_property(bytes(properties), _RETRY_TOPIC)) or stored_topic

    def _find(self, from_offset: int) -> list[MessageView]:
        buffer, end, at = self.buffer, len(self.buffer), 0
        unpack_phy_offset = _INT64.unpack_from
        views: list[MessageView] = []
        behind = from_offset
        while at < end:
            try:
                if end - at < MIN_RECORD_BYTES:
                    raise BadRecordError(f"expected a record, found only {end - at} bytes")
                parts = locate(buffer, at, end, unpack_phy_offset(buffer, at + _PHY_OFFSET_AT)[0])
            except BadRecordError as error:
                damaged = self._damaged(at, error)
                views.append(damaged)
                at += damaged.size_bytes
                continue
            at += parts[0]
            behind = parts[3] + 1
            if parts[1] & SYS_FLAG_INNER_BATCH:
                whole = MessageView(self, parts)
                try:
                    members = [view for view in self._members(whole, parts) if view.queue_offset >= from_offset]
                except (RemoteProtocolError, UsageError) as error:
                    views.append(_Unreadable(self, parts, error))
                else:
                    views += members
                    behind = members[-1].queue_offset + 1 if members else behind
            elif parts[3] >= from_offset:
                views.append(MessageView(self, parts))
        self.read_to = max(from_offset, behind)
        return views

    def _damaged(self, at: int, error: BadRecordError) -> _Damaged:
        """The damaged record at `at`: of the size that it names if that leads to another record or to the end, else all
        the rest."""
        rest_bytes = len(self.buffer) - at
        size = rest_bytes
        if rest_bytes >= MIN_RECORD_BYTES:
            (named,) = _INT32.unpack_from(self.buffer, at)
            behind = bytes(self.buffer[at + named + 4 : at + named + 8])
            if MIN_RECORD_BYTES <= named < rest_bytes and behind in _MAGICS:
                size = named
            self.is_cut = size != named
        else:
            self.is_cut = True
        head = bytes(self.buffer[at : at + MIN_RECORD_BYTES]).ljust(MIN_RECORD_BYTES, b"\0")
        why = RemoteProtocolError(f"group {self.broker_name} sent what is no record: {error}")
        return _Damaged(MessageBatch(self.broker_name, b""), head, size, why)

    def _members(self, record: MessageView, parts: Located) -> Iterator[MessageView]:
        """Members of one record that holds a batch, as in request 320; their queue offsets follow each other."""
        data = memoryview(record.body)
        named = whole_number(record.properties.get(PROPERTY_INNER_BASE, ""))
        queue_offset = record.queue_offset if named is None or named < 0 else named
        position = 0
        try:
            while position < len(data):
                _, _, _, _, body_bytes = _INNER_HEAD.unpack_from(data, position)
                body_at = position + _INNER_HEAD.size
                properties_at = body_at + body_bytes + _INNER_PROPERTIES.size
                (properties_bytes,) = _INNER_PROPERTIES.unpack_from(data, properties_at - _INNER_PROPERTIES.size)
                end = properties_at + properties_bytes
                if body_bytes < 0 or end > len(data):
                    raise RemoteProtocolError(f"group {self.broker_name} sent a batch whose member leaves it")
                body = data[body_at : body_at + body_bytes]
                yield _Member(self, parts, queue_offset, body, bytes(data[properties_at:end]))
                position, queue_offset = end, queue_offset + 1
        except struct.error as error:
            raise RemoteProtocolError(f"group {self.broker_name} sent a batch that is cut off: {error}") from error


def decode_messages(broker_name: str, body: bytes | memoryview) -> list[Message]:
    """All messages of a pull's answer, members of inner batches one by one. Raises as MessageBatch."""
    return MessageBatch(broker_name, body).messages()


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode("utf-8", "replace")
