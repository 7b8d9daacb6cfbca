"""A message on its way to a broker: as the application gives it, and the request for it. Data plane.

The properties, the short header names and the compression are those of the Java client (formats: request 310 and 320).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rmqha.client.arguments import require_type
from rmqha.client.compression import Compression
from rmqha.client.names import check_topic
from rmqha.client.route import MessageQueue
from rmqha.model.code import RequestCode
from rmqha.model.error import UsageError
from rmqha.model.message import (
    MAX_PROPERTIES_BYTES,
    PROPERTY_DELAY,
    PROPERTY_KEYS,
    PROPERTY_PRIORITY,
    PROPERTY_TAGS,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_UNIQUE_KEY,
    PROPERTY_WAIT,
    TIMER_PROPERTIES,
    encode_properties,
)
from rmqha.wire.command import Command

COMPRESS_OVER_BYTES = 4096
MAX_BODY_BYTES = 4 * 1024 * 1024
_RESERVED = (PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_UNIQUE_KEY, PROPERTY_WAIT)
_UNHEARD_IN_BATCHES = frozenset((PROPERTY_DELAY, *TIMER_PROPERTIES, PROPERTY_PRIORITY, PROPERTY_TRANSACTION_PREPARED))
"""Properties that brokers obey in a single message, but not in a batch's: there they are only stored."""
_BATCH_HEAD = struct.Struct(">iiiii")
_BATCH_PROPERTIES = struct.Struct(">h")


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """A message as an application sends it. `keys`: several are joined by one space. `key`: the ordering key, whose
    hash picks the queue; `queue_id` picks it directly (of the first group that has it). Without either the queues take
    turns. `unique_key`: the UNIQ_KEY, given by a caller that may send the same message again, so that copies are
    recognised; "": the client makes one."""

    topic: str
    body: bytes
    keys: str = ""
    tags: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)
    key: str | None = None
    queue_id: int | None = None
    unique_key: str = ""

    @property
    def lane(self) -> tuple[str, str | int] | None:
        """The message's lane: messages of one lane are stored in the order in which they were given; None: no order.
        One that `check_message` refuses for its types has none."""
        if (self.key is None and self.queue_id is None) or not isinstance(self.topic, str):
            return None
        if isinstance(self.key, str):
            return self.topic, self.key
        return (self.topic, self.queue_id) if self.key is None and isinstance(self.queue_id, int) else None

    @property
    def ignored_in_batches(self) -> str:
        """A property that brokers ignore if the message is in a batch; "" if it has none."""
        return min(_UNHEARD_IN_BATCHES & self.properties.keys(), default="")


def check_body(topic: str, body: object) -> None:
    """Raise UsageError unless a body is bytes: a caller without type checks may pass others."""
    if isinstance(body, bytes | bytearray):
        return
    if isinstance(body, memoryview):
        if body.itemsize == body.ndim == 1 and body.contiguous:
            return
        # its length is not that of its bytes
        raise UsageError(
            f"the body of a message for topic {topic} is a memoryview of other items than bytes: bytes(it)"
        )
    hint = "; encode it: body.encode()" if isinstance(body, str) else ""
    raise UsageError(f"the body of a message for topic {topic} is {type(body).__name__}, not bytes{hint}")


def _is_plain(message: OutgoingMessage) -> bool:
    """True if all fields but topic and body are of exactly their types, as almost always: a check of each with its
    sentence costs as much as all other checks."""
    given = message.properties
    return (
        type(message.keys) is type(message.tags) is type(message.unique_key) is str
        and (message.key is None or type(message.key) is str)
        and (message.queue_id is None or type(message.queue_id) is int)
        and type(given) is dict
        and (not given or {*map(type, given), *map(type, given.values())} == {str})
    )


def _check_types(message: OutgoingMessage) -> None:
    place = f"of a message for topic {message.topic}"
    require_type(f"keys {place}", message.keys, str, "; join them by a space")
    require_type(f"tags {place}", message.tags, str)
    require_type(f"unique_key {place}", message.unique_key, str)
    require_type(f"key {place}", "" if message.key is None else message.key, str)
    require_type(f"queue_id {place}", 0 if message.queue_id is None else message.queue_id, int)
    require_type(f"properties {place}", message.properties, Mapping)
    for name, value in message.properties.items():
        require_type(f"the name {name!r} of a property {place}", name, str)
        require_type(f"property {name} {place}", value, str, "; str(it) makes text of it")


def check_message(message: OutgoingMessage) -> None:
    """Raise UsageError for a message that every broker refuses."""
    require_type("a message", message, OutgoingMessage)
    check_topic(message.topic)
    check_body(message.topic, message.body)
    if not message.body:
        raise UsageError(f"a message for topic {message.topic} has an empty body")
    if len(message.body) > MAX_BODY_BYTES:
        raise UsageError(
            f"a message for topic {message.topic} has {len(message.body)} bytes; brokers take {MAX_BODY_BYTES} at most"
        )
    if not _is_plain(message):
        _check_types(message)
    if message.key is not None and not message.key.isascii():
        try:
            message.key.encode()
        except UnicodeEncodeError as error:
            raise UsageError(f"the ordering key of a message for topic {message.topic}: {error}") from None
    for name in _RESERVED:
        if name in message.properties:
            raise UsageError(f"property {name} is set by the client; use the argument for it")


def message_properties(message: OutgoingMessage, unique_key: str) -> bytes:
    """Properties as the Java client sets them. Raises UsageError if they are longer than a record can hold or hold
    a separator."""
    properties = dict(message.properties)
    if message.keys:
        properties[PROPERTY_KEYS] = message.keys
    if message.tags:
        properties[PROPERTY_TAGS] = message.tags
    properties[PROPERTY_UNIQUE_KEY] = unique_key
    properties[PROPERTY_WAIT] = "true"
    try:
        data = encode_properties(properties)
    except ValueError as error:
        raise UsageError(f"a message for topic {message.topic}: {error}") from None
    if len(data) > MAX_PROPERTIES_BYTES:
        raise UsageError(f"the properties of a message take {len(data)} bytes; {MAX_PROPERTIES_BYTES} fit")
    return data


class Outgoing:
    """The request for one message, and the queues that it may go to; `request` may be called again for each try."""

    __slots__ = ("body", "code", "ext", "key", "queue_id", "topic", "unique_key")

    def __init__(
        self,
        code: RequestCode,
        group: str,
        message: OutgoingMessage,
        unique_key: str,
        born_at_ms: int,
        compression: Compression | None,
        sys_flag: int = 0,
    ) -> None:
        self.code = code
        self.topic = message.topic
        self.key = message.key
        self.queue_id = message.queue_id
        self.unique_key = unique_key
        self.body = message.body
        if compression is not None and len(self.body) > COMPRESS_OVER_BYTES:
            self.body = compression.compress(self.body)
            sys_flag |= compression.sys_flag
        self.ext = {
            "a": group,
            "b": message.topic,
            "c": "TBW102",
            "d": "4",
            "e": "0",
            "f": str(sys_flag),
            "g": str(born_at_ms),
            "h": "0",
            "i": message_properties(message, unique_key).decode(),
            "j": "0",
            "k": "false",
            "m": "true" if code is RequestCode.SEND_BATCH_MESSAGE else "false",
            "n": "",
        }

    @property
    def pinned(self) -> bool:
        """True if the message must wait for its own queue."""
        return self.key is not None or self.queue_id is not None

    def request(self, queue: MessageQueue) -> Command:
        """The request that sends this message to `queue`."""
        return Command(self.code, {**self.ext, "e": str(queue.queue_id), "n": queue.broker_name}, self.body)


def batch_part(message: OutgoingMessage, unique_key: str) -> bytes:
    """One message of request 320's body: size, magic, CRC and flag (all but the size zero), body, properties. Raises
    UsageError as `message_properties`."""
    properties = message_properties(message, unique_key)
    size = _BATCH_HEAD.size + len(message.body) + _BATCH_PROPERTIES.size + len(properties)
    return b"".join(
        (
            _BATCH_HEAD.pack(size, 0, 0, 0, len(message.body)),
            message.body,
            _BATCH_PROPERTIES.pack(len(properties)),
            properties,
        )
    )


def encode_batch(messages: Sequence[OutgoingMessage], unique_keys: Sequence[str]) -> bytes:
    """Body of request 320."""
    return b"".join(map(batch_part, messages, unique_keys))
