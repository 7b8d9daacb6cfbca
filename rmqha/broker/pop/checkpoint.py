"""Checkpoints and acknowledgements in RocketMQ's form: timer messages for the revive topic. Pure.

A checkpoint has the messages of a queue that a pop has given to a group, an acknowledgement those of them that are
done. Both are delivered when the invisible time is over: what is not acknowledged then is stored in a retry topic.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from rmqha.broker.timers.message import timed_message
from rmqha.model.message import (
    PROPERTY_FIRST_POP_TIME,
    PROPERTY_ORIGIN_GROUP,
    PROPERTY_REAL_TOPIC,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_TAGS,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_UNIQUE_KEY,
    REVIVE_QUEUE_COUNT,
    find_property,
)
from rmqha.store.log.record import Host, NewMessage, Record
from rmqha.wire import lenient_json

REVIVE_GROUP = "CID_RMQ_SYS_REVIVE_GROUP"
"""Group whose consumer offsets are the last worked-off entries of the revive queues."""
CHECKPOINT_TAG, ACK_TAG, BATCH_ACK_TAG = "ck", "ack", "bAck"
ORDER_TAG = "rmqhaOrder"
"""Tag of rmqha: RocketMQ's brokers ignore entries of the revive topic with unknown tags."""
ACK_INTERVAL_MS = 1000
"""Time (ms) by which a checkpoint is delivered before its acknowledgements."""
MAX_COUNT = 32
"""Bound on the messages of one pop: RocketMQ's bitmap of a checkpoint is an int."""
_MAX = 2**63 - 1
_CHANGED = "rmqhaChanged"
"""Member of rmqha in a checkpoint."""

Key: TypeAlias = "tuple[str, str, int, int, int, str]"
"""Key of a checkpoint: topic, group, queue id, start offset, pop time, broker."""


class CheckPoint(NamedTuple):
    topic: str
    group: str
    queue_id: int
    start_offset: int
    pop_ms: int
    invisible_ms: int
    broker_name: str
    queue_offsets: tuple[int, ...]
    """Offsets of the messages that were given, ascending."""
    put_times: int = 0
    """Number of times it was put back because a message could not be read."""
    is_changed: bool = False
    """True if it replaces one whose messages have another invisible time now: it does not show the group's offset."""

    @property
    def key(self) -> Key:
        return self.topic, self.group, self.queue_id, self.start_offset, self.pop_ms, self.broker_name

    @property
    def due_ms(self) -> int:
        return self.pop_ms + self.invisible_ms

    def to_json(self) -> dict[str, Any]:
        puts = {"rp": str(self.put_times)} if self.put_times else {}
        return {
            "bm": 0,
            "bn": self.broker_name,
            "c": self.group,
            "d": [offset - self.start_offset for offset in self.queue_offsets],
            "it": self.invisible_ms,
            "n": len(self.queue_offsets),
            "pt": self.pop_ms,
            "q": self.queue_id,
            "reviveTime": self.due_ms,
            "ro": 0,
            **puts,
            "so": self.start_offset,
            "t": self.topic,
            **({_CHANGED: True} if self.is_changed else {}),
        }

    @property
    def json_text(self) -> str:
        """Text of `to_json` at a third of the cost: each pop stores one."""
        topic, group, queue_id, start, pop_ms, invisible_ms, broker_name, offsets, put_times, is_changed = self
        steps = ",".join([str(offset - start) for offset in offsets])
        puts = f'"rp":"{put_times}",' if put_times else ""
        changed = f',"{_CHANGED}":true' if is_changed else ""
        return (
            f'{{"bm":0,"bn":{_quoted(broker_name)},"c":{_quoted(group)},"d":[{steps}],'
            f'"it":{invisible_ms},"n":{len(offsets)},"pt":{pop_ms},"q":{queue_id},'
            f'"reviveTime":{pop_ms + invisible_ms},"ro":0,{puts}"so":{start},"t":{_quoted(topic)}{changed}}}'
        )

    @classmethod
    def from_json(cls, value: Any, own_name: str) -> CheckPoint:
        """Checkpoint of a JSON value. Raises ValueError if malformed."""
        given = _object(value)
        start, count = _number(given, "so"), _number(given, "n", MAX_COUNT)
        steps = given.get("d")
        if steps is not None and (
            not isinstance(steps, list) or any(type(item) is not int or not 0 <= item < 2**31 for item in steps)
        ):
            raise ValueError("d is no list of distances")
        distances = steps[:count] if steps else range(count)  # old brokers have none: they gave all
        offsets = tuple(start + item for item in distances)
        puts = str(given.get("rp") or "0")
        return cls(
            _text(given, "t"),
            _text(given, "c"),
            _number(given, "q", 2**31 - 1),
            start,
            _number(given, "pt"),
            _number(given, "it"),
            str(given.get("bn") or own_name),
            offsets,
            int(puts) if puts.isascii() and puts.isdigit() and len(puts) <= 3 else 127,
            given.get(_CHANGED) is True,
        )

    def message(
        self, revive_topic: str, revive_queue_id: int, now_ms: int, host: Host, precision_ms: int
    ) -> NewMessage:
        """Timer message of the checkpoint. Raises ValueError for names that no record can have."""
        topic, group, queue_id, start, pop_ms, invisible_ms, broker_name = self[:7]
        unique_key = f"{topic}@{queue_id}@{start}@{group}@{pop_ms}@{broker_name}@{CHECKPOINT_TAG}"
        place = revive_topic, revive_queue_id, now_ms, host, precision_ms
        return _message(place, self.json_text, CHECKPOINT_TAG, unique_key, pop_ms + invisible_ms - ACK_INTERVAL_MS)


class Ack(NamedTuple):
    """Done messages of one checkpoint. `is_batch`: as in the request."""

    topic: str
    group: str
    queue_id: int
    start_offset: int
    pop_ms: int
    broker_name: str
    queue_offsets: tuple[int, ...]
    is_batch: bool = False

    @property
    def key(self) -> Key:
        return self[:6]

    def to_json(self) -> dict[str, Any]:
        offsets = {"ao": -1, "aol": list(self.queue_offsets)} if self.is_batch else {"ao": self.queue_offsets[0]}
        return {
            **offsets,
            "bn": self.broker_name,
            "c": self.group,
            "pt": self.pop_ms,
            "q": self.queue_id,
            "so": self.start_offset,
            "t": self.topic,
        }

    @property
    def json_text(self) -> str:
        """Text of `to_json`."""
        topic, group, queue_id, start, pop_ms, broker_name, offsets, is_batch = self
        done = f'"ao":-1,"aol":[{",".join(map(str, offsets))}]' if is_batch else f'"ao":{offsets[0]}'
        return (
            f'{{{done},"bn":{_quoted(broker_name)},"c":{_quoted(group)},"pt":{pop_ms},'
            f'"q":{queue_id},"so":{start},"t":{_quoted(topic)}}}'
        )

    @classmethod
    def from_json(cls, value: Any, own_name: str, *, is_batch: bool) -> Ack:
        """Acknowledgement of a JSON value. Raises ValueError if malformed."""
        given = _object(value)
        offsets = _either(given, "aol", "ackOffsetList") if is_batch else [_either(given, "ao", "ackOffset")]
        if not isinstance(offsets, list) or any(type(item) is not int or not 0 <= item <= _MAX for item in offsets):
            raise ValueError("it names no offsets")
        return cls(
            _text(given, "t", "topic"),
            _text(given, "c", "consumerGroup"),
            _number(given, "q", 2**31 - 1, "queueId"),
            _number(given, "so", _MAX, "startOffset"),
            _number(given, "pt", _MAX, "popTime"),
            str(_either(given, "bn", "brokerName") or own_name),
            tuple(offsets),
            is_batch,
        )

    def message(
        self, revive_topic: str, revive_queue_id: int, due_ms: int, now_ms: int, host: Host, precision_ms: int
    ) -> NewMessage:
        """Timer message that waits until the checkpoint's time. Raises ValueError for names that no record can have."""
        offset = -1 if self.is_batch else self.queue_offsets[0]
        unique_key = f"{self.topic}@{self.queue_id}@{offset}@{self.group}@{self.pop_ms}@{self.broker_name}@{ACK_TAG}"
        place = revive_topic, revive_queue_id, now_ms, host, precision_ms
        return _message(place, self.json_text, BATCH_ACK_TAG if self.is_batch else ACK_TAG, unique_key, due_ms)


class InOrder(NamedTuple):
    """Progress of a group that pops in order: everything before `next_offset` is done. `pop_ms`: time of the pop; 0 in
    records of earlier releases."""

    topic: str
    group: str
    queue_id: int
    next_offset: int
    pop_ms: int = 0

    @classmethod
    def from_json(cls, value: Any) -> InOrder:
        """Progress of a JSON value. Raises ValueError if malformed."""
        given = _object(value)
        if given.get("v") != 1:
            raise ValueError("it is of a version that is not known")
        pop_ms = _number(given, "pt") if "pt" in given else 0
        return cls(_text(given, "t"), _text(given, "c"), _number(given, "q", 2**31 - 1), _number(given, "o"), pop_ms)

    def message(self, revive_topic: str, now_ms: int, host: Host) -> NewMessage:
        """Message that stores the progress. Raises ValueError for names that no record can have."""
        identity = self.topic, self.queue_id, self.next_offset, self.group, ORDER_TAG
        body = {"c": self.group, "o": self.next_offset, "pt": self.pop_ms, "q": self.queue_id, "t": self.topic, "v": 1}
        place = revive_topic, self.queue_id % REVIVE_QUEUE_COUNT, now_ms, host, 1
        return _message(place, _text_of(body), ORDER_TAG, "@".join(map(str, identity)), now_ms)


def read(record: Record, own_name: str) -> CheckPoint | Ack | InOrder | None:
    """Content of a record of the revive topic; None for another tag. `own_name`: broker if the record names none.
    Raises ValueError if malformed."""
    tag = (find_property(record.properties, PROPERTY_TAGS.encode()) or b"").decode("utf-8", "replace")
    if tag not in (CHECKPOINT_TAG, ACK_TAG, BATCH_ACK_TAG, ORDER_TAG):
        return None
    value = lenient_json.loads(bytes(record.body))
    if tag == CHECKPOINT_TAG:
        return CheckPoint.from_json(value, own_name)
    if tag == ORDER_TAG:
        return InOrder.from_json(value)
    return Ack.from_json(value, own_name, is_batch=tag == BATCH_ACK_TAG)


def due_ms_of(record: Record) -> int:
    """Time (ms) of the checkpoint that a record of the revive topic belongs to, if given."""
    found = find_property(record.properties, PROPERTY_TIMER_DELIVER_MS.encode()) or b""
    return int(found) if found.isdigit() and len(found) <= 18 else 0


_Place: TypeAlias = "tuple[str, int, int, Host, int]"
"""Topic, queue id, present time (ms), the broker's host and `timerPrecisionMs`."""


def _message(place: _Place, body: str, tag: str, unique_key: str, at_ms: int) -> NewMessage:
    """Timer message for `at_ms` as `to_timer` makes it, or a message that is delivered at once."""
    if "\x02" in unique_key:
        raise ValueError("a name holds the character 0x02")
    topic, queue_id, now_ms, host, precision_ms = place
    pairs = (
        f"{PROPERTY_TAGS}\x01{tag}\x02{PROPERTY_TIMER_DELIVER_MS}\x01{at_ms}\x02"
        f"{PROPERTY_UNIQUE_KEY}\x01{unique_key}\x02"
    )
    if at_ms > now_ms:
        return timed_message(topic, queue_id, body.encode(), pairs, now_ms, host, at_ms, precision_ms)
    return NewMessage(topic, queue_id, body.encode(), pairs.encode(), now_ms, host, host)


def _text_of(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@lru_cache(maxsize=1024)
def _quoted(name: str) -> str:
    return _text_of(name)


def is_of_pop(properties: bytes, revive_topic: str) -> bool:
    """True of a timer message for the revive topic."""
    return find_property(properties, PROPERTY_REAL_TOPIC.encode()) == revive_topic.encode()


def is_popped_of(group: str, properties: bytes) -> bool:
    """True of a message of a retry topic that comes again to `group`, which has popped it: `%RETRY%a_b_T` may be the
    topic of group a and topic b_T, of group a_b and topic T, or of what the consumers of group a_b_T sent back."""
    origin = find_property(properties, PROPERTY_ORIGIN_GROUP.encode())
    if origin is not None:
        return origin == group.encode()
    is_sent_back = find_property(properties, PROPERTY_RETRY_TOPIC.encode()) is not None
    return not is_sent_back or find_property(properties, PROPERTY_FIRST_POP_TIME.encode()) is not None


# --- fields -----------------------------------------------------------------------------------------------------------
def _object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError("it is no object")
    return value


def _either(given: Mapping[str, Any], *names: str) -> Any:
    return next((given[name] for name in names if name in given), None)


def _text(given: Mapping[str, Any], *names: str) -> str:
    value = _either(given, *names)
    if not isinstance(value, str) or not value:
        raise ValueError(f"{names[0]} is no text")
    return value


def _number(given: Mapping[str, Any], name: str, most: int = _MAX, *more: str) -> int:
    value = _either(given, name, *more)
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"{name} is no number from 0 to {most}")
    return value


# --- which messages of a batch acknowledgement ------------------------------------------------------------------------
def bits_to_offsets(start_offset: int, bits: bytes, most: int) -> list[int]:
    """Offsets whose bit is set, the least significant first (java.util.BitSet), at most `most`. Raises ValueError."""
    offsets: list[int] = []
    for place, byte in enumerate(bits):
        for bit in range(8):
            if byte >> bit & 1:
                offsets.append(start_offset + place * 8 + bit)
                if len(offsets) > most:
                    raise ValueError(f"more than {most} messages are acknowledged at once")
    return offsets


def offsets_to_bits(start_offset: int, queue_offsets: Sequence[int]) -> bytes:
    """Inverse of `bits_to_offsets`, without zeros at the end."""
    if not queue_offsets:
        return b""
    bits = bytearray((max(queue_offsets) - start_offset) // 8 + 1)
    for offset in queue_offsets:
        bits[(offset - start_offset) // 8] |= 1 << (offset - start_offset) % 8
    return bytes(bits)
