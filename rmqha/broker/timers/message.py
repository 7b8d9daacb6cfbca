"""The two forms of a timer message: as it waits in the timer topic, and as it is delivered. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from rmqha.model.config.delay_level import SCHEDULE_TOPIC
from rmqha.model.message import (
    HALF_TOPIC,
    MAX_PROPERTIES_BYTES,
    PROPERTY_CRC32,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TIMER_DELAY_MS,
    PROPERTY_TIMER_DELAY_SEC,
    PROPERTY_TIMER_DELETE_UNIQUE_KEY,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TIMER_DEQUEUE_MS,
    PROPERTY_TIMER_ENQUEUE_MS,
    PROPERTY_TIMER_OUT_MS,
    PROPERTY_TIMER_ROLL_TIMES,
    PROPERTY_UNIQUE_KEY,
    TIMER_PROPERTIES,
    TIMER_TOPIC,
    are_whole,
    decode_properties,
    encode_properties,
    find_property,
)
from rmqha.store.log.record import Host, NewMessage, Record
from rmqha.store.timer.timer_width import MAX_WIDTH_MS, WIDTHS_MS, slot_width_ms

TIMER_QUEUE_ID = 0
ROLL_WINDOW_MS = 2 * 86_400_000
"""A message that is due later than this after it was stored is stored again in between: the log keeps files for three
days. Fixed, for a progress of delivery is true of one window only."""
_WAITING_TOPICS = (TIMER_TOPIC, HALF_TOPIC, SCHEDULE_TOPIC)
"""Nothing is delivered to these, whatever a property says."""
_MAX_MS = 2**63 - 1
STEP_MS = 2
"""Width of a slot: messages come when the slot is over that holds the last millisecond before their time. RocketMQ's
wheel has slots of `timerPrecisionMs`."""
_MAX_AHEAD_MS = 60_000
"""A time further behind the begin of a slot was not the reason for it."""
_OUT = PROPERTY_TIMER_OUT_MS.encode()
_WHENS = (
    (PROPERTY_TIMER_DELAY_SEC.encode(), 1000),
    (PROPERTY_TIMER_DELAY_MS.encode(), 1),
    (PROPERTY_TIMER_DELIVER_MS.encode(), 0),
)
"""The properties that name a time, the first one counts; milliseconds of a unit, 0 of the one that is no delay."""
_DELETE_KEY, _UNIQUE_KEY = PROPERTY_TIMER_DELETE_UNIQUE_KEY.encode(), PROPERTY_UNIQUE_KEY.encode()
_REAL_TOPIC, _REAL_QUEUE_ID = PROPERTY_REAL_TOPIC.encode(), PROPERTY_REAL_QUEUE_ID.encode()
_OUT_MARK, _REAL_TOPIC_MARK, _REAL_QUEUE_ID_MARK = (
    b"\x02" + name + b"\x01" for name in (_OUT, _REAL_TOPIC, _REAL_QUEUE_ID)
)
_ENQUEUE_MARK, _DEQUEUE_MARK = (
    name.encode() + b"\x01" for name in (PROPERTY_TIMER_ENQUEUE_MS, PROPERTY_TIMER_DEQUEUE_MS)
)
_CRC_MARK = PROPERTY_CRC32.encode() + b"\x01"
PROPERTY_DUE = "rmqhaDueMs"
"""The time that was named as a delay, in a copy that waits on: the moment from which it counts is not there. What is
delivered is without it."""
_TOLD_BYTES = 256
"""Room for what a delivery adds to the properties. It is for onlookers: without room they stay as they are stored."""
_DUE = PROPERTY_DUE.encode()
_DUE_MARK = _DUE + b"\x01"


class Due(NamedTuple):
    """Time (ms) of the slot at whose end a message that waits comes, and whether it is stored to wait again then: the
    slot of those that are is odd."""

    slot_ms: int
    is_rolled: bool


def deliver_at_ms(properties: Mapping[str, str], now_ms: int) -> int | None:
    """The time (ms) that a producer asks for; None if it asks for none, or if the message has waited already. Raises
    ValueError for what is no number that Java reads."""
    if PROPERTY_TIMER_OUT_MS in properties:
        return None
    for name in TIMER_PROPERTIES:
        value = properties.get(name)
        if value is None:
            continue
        digits = value[1:] if value[:1] in ("+", "-") else value
        if not (digits.isascii() and digits.isdigit()) or len(digits) > 19:
            raise ValueError(f"property {name} = {value[:40]!r} is no time in milliseconds or seconds")
        number = int(value) * (1000 if name == PROPERTY_TIMER_DELAY_SEC else 1)
        at_ms = number if name == PROPERTY_TIMER_DELIVER_MS else now_ms + number
        if at_ms > _MAX_MS:
            raise ValueError(f"property {name} = {value[:40]!r} lies too far ahead")
        return at_ms
    return None


def to_timer(message: NewMessage, at_ms: int, precision_ms: int) -> NewMessage:
    """The form in which a message waits for `at_ms`."""
    properties = decode_properties(message.properties)
    properties.pop(PROPERTY_CRC32, None)
    properties[PROPERTY_TIMER_OUT_MS] = str(_slot_ms(at_ms, precision_ms))
    properties[PROPERTY_REAL_TOPIC] = message.topic
    properties[PROPERTY_REAL_QUEUE_ID] = str(message.queue_id)
    return replace(message, topic=TIMER_TOPIC, queue_id=TIMER_QUEUE_ID, properties=encode_properties(properties))


@dataclass(slots=True)
class TimedMessage(NewMessage):
    """A message in the form of `to_timer`, of which it is known when and for which topic it comes."""

    wheel_ms: int = 0
    at_ms: int = 0
    real_topic: str = ""

    def due(self, stored_ms: int) -> Due:
        """The answer of `due` for its record, which names `at_ms`."""
        if self.wheel_ms - stored_ms >= ROLL_WINDOW_MS:
            return _due(self.wheel_ms, stored_ms, self.properties)
        return Due(_slot_before(self.wheel_ms, self.at_ms - 1, _last_slot_ms(self.wheel_ms)), False)


def timed_message(
    topic: str, queue_id: int, body: bytes, pairs: str, now_ms: int, host: Host, at_ms: int, precision_ms: int
) -> TimedMessage:
    """The form in which a message waits for `at_ms`, which its properties `pairs` name as TIMER_DELIVER_MS."""
    wheel_ms = _slot_ms(at_ms, precision_ms)
    properties = (
        f"{pairs}{PROPERTY_TIMER_OUT_MS}\x01{wheel_ms}\x02{PROPERTY_REAL_TOPIC}\x01{topic}\x02"
        f"{PROPERTY_REAL_QUEUE_ID}\x01{queue_id}\x02"
    ).encode()
    return TimedMessage(
        TIMER_TOPIC,
        TIMER_QUEUE_ID,
        body,
        properties,
        now_ms,
        host,
        host,
        wheel_ms=wheel_ms,
        at_ms=at_ms,
        real_topic=topic,
    )


def _slot_ms(at_ms: int, precision_ms: int) -> int:
    width_ms = slot_width_ms(precision_ms)
    return (at_ms - 1) // width_ms * width_ms


class _Placed(NamedTuple):
    """Time and place of a delivery, by the properties; each None if they do not say it."""

    wheel_ms: int | None
    topic: bytes | None
    queue_id: bytes | None


@lru_cache(maxsize=1)
def _placed(properties: bytes) -> _Placed:
    """Remembered for the last one: who delivers a message asks twice in turn."""
    out = _last(properties, _OUT_MARK, _OUT)
    wheel_ms = int(out) if out and out.isdigit() and len(out) <= 18 else None
    topic = _last(properties, _REAL_TOPIC_MARK, _REAL_TOPIC)
    return _Placed(wheel_ms, topic, _last(properties, _REAL_QUEUE_ID_MARK, _REAL_QUEUE_ID))


def _last(properties: bytes, mark: bytes, name: bytes) -> bytes | None:
    """The answer of `find_property` at half its cost, but for the first property; `mark`: the name between the bytes
    that surround it."""
    start = properties.rfind(mark) + len(mark)
    if start < len(mark):
        return find_property(properties, name)
    end = properties.find(b"\x02", start)
    return properties[start:] if end < 0 else properties[start:end]


def says_when_and_where_to(record: Record) -> bool:
    """True if it has what `to_timer` and RocketMQ's brokers put into each: no CRC covers properties."""
    wheel_ms, topic, queue_id = _placed(record.properties)
    is_placed = wheel_ms is not None and bool(topic) and bool(queue_id and queue_id.isdigit())
    return is_placed and are_whole(record.properties)


def due(record: Record) -> Due | None:
    """The slot in which a record of the timer topic comes, whatever `timerPrecisionMs` is and was when it was stored;
    None if it does not say when."""
    wheel_ms = _placed(record.properties).wheel_ms
    if wheel_ms is None:
        return None
    return _due(wheel_ms, record.store_timestamp_ms, record.properties)


def plain_due(stored_ms: int, properties: bytes) -> tuple[Due, bytes] | None:
    """The answer of `due`, and the topic for which it waits, by the store time and the properties of a record that
    takes none back; None if they are not what nearly all are like."""
    if _DELETE_KEY in properties:
        return None
    out, topic = _plain(properties, _OUT_MARK), _plain(properties, _REAL_TOPIC_MARK)
    if not topic or not out or not out.isdigit() or len(out) > 18 or _REAL_QUEUE_ID_MARK not in properties:
        return None
    return _due(int(out), stored_ms, properties), topic


def _plain(properties: bytes, mark: bytes) -> bytes:
    """A property that is there once and not the first one; b"" if that is not sure."""
    start = properties.find(mark) + len(mark)
    end = properties.find(b"\x02", start)
    if start < len(mark) or end < 0 or properties.find(mark[1:], end) >= 0:
        return b""
    return properties[start:end]


def _due(wheel_ms: int, stored_ms: int, properties: bytes) -> Due:
    ahead_ms = wheel_ms - stored_ms
    if ahead_ms < ROLL_WINDOW_MS:
        return Due(_slot_of(wheel_ms, stored_ms, properties), False)
    # what is left behind the window shall be long enough to be worth a round
    step_ms = ROLL_WINDOW_MS // 2 if ahead_ms < ROLL_WINDOW_MS * 4 // 3 else ROLL_WINDOW_MS
    return Due(stored_ms + step_ms | 1, True)


def _slot_of(wheel_ms: int, stored_ms: int, properties: bytes) -> int:
    """The last slot of the wheel's slot, or the one before the time that the producer has named, which lies within the
    wheel's slot too: whoever has delivered that one has delivered this. How wide the wheel's is only its begin says."""
    last_ms = _last_slot_ms(wheel_ms)
    return _slot_before(wheel_ms, _before_ms(stored_ms, properties, last_ms), last_ms)


def _slot_before(wheel_ms: int, before_ms: int | None, last_ms: int) -> int:
    if before_ms is not None and wheel_ms <= before_ms < wheel_ms + _MAX_AHEAD_MS:
        return max(wheel_ms, before_ms - before_ms % STEP_MS)
    return last_ms


def _last_slot_ms(wheel_ms: int) -> int:
    """The last slot of the widest of the wheel's slots that may begin then."""
    for width_ms in WIDTHS_MS:
        if wheel_ms % width_ms == 0:
            return wheel_ms + width_ms - STEP_MS
    return wheel_ms - wheel_ms % MAX_WIDTH_MS + MAX_WIDTH_MS - STEP_MS


def _before_ms(stored_ms: int, properties: bytes, last_ms: int) -> int | None:
    """The last millisecond before the time that the producer has named; None if it has named none. That of a delay is
    no later than `last_ms`: it counts from a moment not long before the message was stored for the first time."""
    if _DUE_MARK in properties:
        at_ms = find_property(properties, _DUE) or b""
        return int(at_ms) - 1 if at_ms.isdigit() and len(at_ms) <= 18 else None
    for name, unit_ms in _WHENS:
        if name not in properties or (value := find_property(properties, name)) is None:
            continue
        if not value.isdigit() or len(value) > 18:
            return None
        return min(stored_ms + int(value) * unit_ms - 1, last_ms) if unit_ms else int(value) - 1
    return None


class Recall(NamedTuple):
    """A message that is taken back, by topic and unique key: a producer may take back what it may send. `slot_ms` is
    the widest of the wheel's slots in which it was to be delivered, however often it is stored again before."""

    slot_ms: int
    key: bytes


def is_recall(record: Record) -> bool:
    return _DELETE_KEY in record.properties and bool(find_property(record.properties, _DELETE_KEY))


def recall(record: Record) -> Recall | None:
    """The message that a record takes back; None if it takes none back."""
    key = find_property(record.properties, _DELETE_KEY)
    return Recall(_recalled_ms(record), _key(record, key)) if key else None


def real_topic(record: Record) -> bytes:
    """The topic for which a record waits; b"" if it does not say."""
    return find_property(record.properties, _REAL_TOPIC) or b""


def recalled_by(record: Record) -> Recall:
    """The `recall` of a record that takes this one back."""
    return Recall(_recalled_ms(record), _key(record, find_property(record.properties, _UNIQUE_KEY) or b""))


def _recalled_ms(record: Record) -> int:
    slot_ms = int(find_property(record.properties, _OUT) or 0)
    return slot_ms - slot_ms % MAX_WIDTH_MS


def _key(record: Record, unique_key: bytes) -> bytes:
    topic = find_property(record.properties, _REAL_TOPIC) or b""
    # RocketMQ has "topic+key" too; plain is what 5.4.0 writes
    return topic + b"\x01" + unique_key.removeprefix(topic + b"+")


def from_timer(record: Record, now_ms: int, store_host: tuple[bytes, int]) -> NewMessage | None:
    """The message that is stored when the time of `record` has come: the delivered one, or one that waits again. None
    if it does not say where to."""
    properties = record.properties
    wheel_ms, topic_bytes, queue_id = _placed(properties)
    topic = str(topic_bytes or b"", "utf-8", "replace")
    queue_id = queue_id or b""
    if wheel_ms is None or not topic or topic in _WAITING_TOPICS or not queue_id.isdigit() or len(queue_id) > 9:
        return None
    enqueued_ms = record.store_timestamp_ms // 1000 * 1000
    is_rolled = wheel_ms - record.store_timestamp_ms >= ROLL_WINDOW_MS
    if not is_rolled and properties.endswith(b"\x02") and not _has_what_changes(properties):
        if len(properties) <= MAX_PROPERTIES_BYTES - _TOLD_BYTES:
            properties += b"%b%d\x02%b%d\x02" % (_ENQUEUE_MARK, enqueued_ms, _DEQUEUE_MARK, now_ms)
        return record.anew(topic, int(queue_id), properties, store_host)
    found = decode_properties(properties)
    found.pop(PROPERTY_CRC32, None)
    if not is_rolled:
        found.pop(PROPERTY_DUE, None)
    as_stored = dict(found)
    found[PROPERTY_TIMER_ENQUEUE_MS] = str(enqueued_ms)
    found[PROPERTY_TIMER_DEQUEUE_MS] = str(now_ms)
    if is_rolled:
        times = found.get(PROPERTY_TIMER_ROLL_TIMES, "0")
        found[PROPERTY_TIMER_ROLL_TIMES] = str(int(times) + 1 if times.isdigit() and len(times) < 9 else 1)
        last_ms = _last_slot_ms(wheel_ms)
        before_ms = _before_ms(record.store_timestamp_ms, properties, last_ms) if times == "0" else None
        if before_ms is not None and wheel_ms <= before_ms <= last_ms:
            found[PROPERTY_DUE] = str(before_ms + 1)
        topic, queue_id = TIMER_TOPIC, b"%d" % TIMER_QUEUE_ID
    if len(properties) > MAX_PROPERTIES_BYTES - _TOLD_BYTES:
        found = as_stored
    return record.anew(topic, int(queue_id), encode_properties(found), store_host)


def _has_what_changes(properties: bytes) -> bool:
    """True if a delivery would not only add to them."""
    return any(mark in properties for mark in (_ENQUEUE_MARK, _DEQUEUE_MARK, _CRC_MARK, _DUE_MARK))
