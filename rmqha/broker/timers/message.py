"""The two forms of a timer message: waiting in the timer topic, and delivered. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from rmqha.model.config.delay_level import SCHEDULE_TOPIC
from rmqha.model.message import (
    HALF_TOPIC,
    MAX_PROPERTIES_BYTES,
    PROPERTY_ACCOUNT,
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
from rmqha.model.principal import MARK_CHARS
from rmqha.store.log.record import Host, NewMessage, Record
from rmqha.store.timer.timer_width import MAX_WIDTH_MS, WIDTHS_MS, slot_width_ms

TIMER_QUEUE_ID = 0
ROLL_WINDOW_MS = 2 * 86_400_000
"""Longest wait (ms) in one record; a message with a later time is stored again in between, since the log keeps files
for three days. Fixed, because a progress of delivery is valid for one window only."""
_WAITING_TOPICS = (TIMER_TOPIC, HALF_TOPIC, SCHEDULE_TOPIC)
"""Topics to which nothing is delivered, whatever a property says."""
_MAX_MS = 2**63 - 1
STEP_MS = 2
"""Width (ms) of a slot: a message is delivered at the end of the slot with the last millisecond before its time.
RocketMQ's wheel has slots of `timerPrecisionMs`."""
_MAX_AHEAD_MS = 60_000
"""Bound (ms) on the distance from the begin of a slot to the time that caused it."""
_OUT = PROPERTY_TIMER_OUT_MS.encode()
_WHENS = (
    (PROPERTY_TIMER_DELAY_SEC.encode(), 1000),
    (PROPERTY_TIMER_DELAY_MS.encode(), 1),
    (PROPERTY_TIMER_DELIVER_MS.encode(), 0),
)
"""Properties with a time, the first one counts; milliseconds of the unit, 0 for an absolute time."""
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
"""Property of a waiting copy with the time of a delay, whose start is lost in a copy. A delivered message lacks it."""
_TOLD_BYTES = 256
"""Bytes of properties for a delivery's additions, which are informational: without room they are omitted."""
_DUE = PROPERTY_DUE.encode()
_DUE_MARK = _DUE + b"\x01"


class Due(NamedTuple):
    """Time (ms) of the slot at whose end a waiting message is delivered or, if `is_rolled`, stored to wait again; the
    slot of a rolled one is odd."""

    slot_ms: int
    is_rolled: bool


def deliver_at_ms(properties: Mapping[str, str], now_ms: int) -> int | None:
    """Time (ms) that a producer asks for; None if it asks for none, or the message has waited already. Raises
    ValueError for a number that Java cannot read."""
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
    """Form of a message that waits until `at_ms`."""
    properties = decode_properties(message.properties)
    properties.pop(PROPERTY_CRC32, None)
    properties[PROPERTY_TIMER_OUT_MS] = str(_slot_ms(at_ms, precision_ms))
    properties[PROPERTY_REAL_TOPIC] = message.topic
    properties[PROPERTY_REAL_QUEUE_ID] = str(message.queue_id)
    return replace(message, topic=TIMER_TOPIC, queue_id=TIMER_QUEUE_ID, properties=encode_properties(properties))


@dataclass(slots=True)
class TimedMessage(NewMessage):
    """Message in the form of `to_timer` with known time and topic of the delivery."""

    wheel_ms: int = 0
    at_ms: int = 0
    real_topic: str = ""

    def due(self, stored_ms: int) -> Due:
        """Result of `due` for its record, which has `at_ms`."""
        if self.wheel_ms - stored_ms >= ROLL_WINDOW_MS:
            return _due(self.wheel_ms, stored_ms, self.properties)
        return Due(_slot_before(self.wheel_ms, self.at_ms - 1, _last_slot_ms(self.wheel_ms)), False)


def timed_message(
    topic: str, queue_id: int, body: bytes, pairs: str, now_ms: int, host: Host, at_ms: int, precision_ms: int
) -> TimedMessage:
    """Form of a message that waits until `at_ms`, which its properties `pairs` have as TIMER_DELIVER_MS."""
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
    """Time and queue of a delivery in the properties; None if missing."""

    wheel_ms: int | None
    topic: bytes | None
    queue_id: bytes | None


@lru_cache(maxsize=1)
def _placed(properties: bytes) -> _Placed:
    """Parsed properties. The last result is cached, since a delivery asks twice in a row."""
    out = _last(properties, _OUT_MARK, _OUT)
    wheel_ms = int(out) if out and out.isdigit() and len(out) <= 18 else None
    topic = _last(properties, _REAL_TOPIC_MARK, _REAL_TOPIC)
    return _Placed(wheel_ms, topic, _last(properties, _REAL_QUEUE_ID_MARK, _REAL_QUEUE_ID))


def _last(properties: bytes, mark: bytes, name: bytes) -> bytes | None:
    """Result of `find_property` at half its cost, except for the first property; `mark`: the name between its
    delimiters."""
    start = properties.rfind(mark) + len(mark)
    if start < len(mark):
        return find_property(properties, name)
    end = properties.find(b"\x02", start)
    return properties[start:] if end < 0 else properties[start:end]


def says_when_and_where_to(record: Record) -> bool:
    """True if a record has the properties that `to_timer` and RocketMQ's brokers add: no CRC covers properties."""
    wheel_ms, topic, queue_id = _placed(record.properties)
    is_placed = wheel_ms is not None and bool(topic) and bool(queue_id and queue_id.isdigit())
    return is_placed and are_whole(record.properties)


def due(record: Record) -> Due | None:
    """Slot of a record of the timer topic, with any present and past `timerPrecisionMs`; None without a time."""
    wheel_ms = _placed(record.properties).wheel_ms
    if wheel_ms is None:
        return None
    return _due(wheel_ms, record.store_timestamp_ms, record.properties)


def plain_due(stored_ms: int, properties: bytes) -> tuple[Due, bytes] | None:
    """Result of `due`, and topic of the delivery, from store time and properties of a record that is no recall; None if
    the properties do not have the usual form."""
    if _DELETE_KEY in properties:
        return None
    out, topic = _plain(properties, _OUT_MARK), _plain(properties, _REAL_TOPIC_MARK)
    if not topic or not out or not out.isdigit() or len(out) > 18 or _REAL_QUEUE_ID_MARK not in properties:
        return None
    return _due(int(out), stored_ms, properties), topic


def _plain(properties: bytes, mark: bytes) -> bytes:
    """Property that is there once and not the first one; b"" if that is uncertain."""
    start = properties.find(mark) + len(mark)
    end = properties.find(b"\x02", start)
    if start < len(mark) or end < 0 or properties.find(mark[1:], end) >= 0:
        return b""
    return properties[start:end]


def _due(wheel_ms: int, stored_ms: int, properties: bytes) -> Due:
    ahead_ms = wheel_ms - stored_ms
    if ahead_ms < ROLL_WINDOW_MS:
        return Due(_slot_of(wheel_ms, stored_ms, properties), False)
    # the rest beyond the window must be long enough for a round of its own
    step_ms = ROLL_WINDOW_MS // 2 if ahead_ms < ROLL_WINDOW_MS * 4 // 3 else ROLL_WINDOW_MS
    return Due(stored_ms + step_ms | 1, True)


def _slot_of(wheel_ms: int, stored_ms: int, properties: bytes) -> int:
    """Last slot within the wheel's slot, or the slot before the producer's time if that is within it too: if the former
    is delivered, so is the latter. The begin of the wheel's slot is known, its width is not."""
    last_ms = _last_slot_ms(wheel_ms)
    return _slot_before(wheel_ms, _before_ms(stored_ms, properties, last_ms), last_ms)


def _slot_before(wheel_ms: int, before_ms: int | None, last_ms: int) -> int:
    if before_ms is not None and wheel_ms <= before_ms < wheel_ms + _MAX_AHEAD_MS:
        return max(wheel_ms, before_ms - before_ms % STEP_MS)
    return last_ms


def _last_slot_ms(wheel_ms: int) -> int:
    """Last slot of the widest wheel slot with that begin."""
    for width_ms in WIDTHS_MS:
        if wheel_ms % width_ms == 0:
            return wheel_ms + width_ms - STEP_MS
    return wheel_ms - wheel_ms % MAX_WIDTH_MS + MAX_WIDTH_MS - STEP_MS


def _before_ms(stored_ms: int, properties: bytes, last_ms: int) -> int | None:
    """Last millisecond before the producer's time; None without one. With a delay at most `last_ms`: it counts from
    shortly before the first store."""
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


def of_account(message: NewMessage, mark: str) -> NewMessage:
    """Recall that counts for the share of an account (`Principal.mark`), "" for nobody."""
    properties = decode_properties(message.properties)
    properties.pop(PROPERTY_ACCOUNT, None)
    if mark:
        properties[PROPERTY_ACCOUNT] = mark
    return replace(message, properties=encode_properties(properties))


def mark_of(record: Record) -> bytes:
    """The account whose share a recall counts for, as its properties say; b"" for none."""
    found = find_property(record.properties, PROPERTY_ACCOUNT.encode()) or b""
    return found if len(found) == MARK_CHARS else b""


class Recall(NamedTuple):
    """Recalled message by topic and unique key: a producer may recall what it may send. `slot_ms` is the widest slot of
    the wheel for its delivery, however often it is stored again before."""

    slot_ms: int
    key: bytes


def is_recall(record: Record) -> bool:
    return _DELETE_KEY in record.properties and bool(find_property(record.properties, _DELETE_KEY))


def recall(record: Record) -> Recall | None:
    """Message that a record recalls; None if it is no recall."""
    key = find_property(record.properties, _DELETE_KEY)
    return Recall(_recalled_ms(record), _key(record, key)) if key else None


def real_topic(record: Record) -> bytes:
    """Topic for which a record waits; b"" if missing."""
    return find_property(record.properties, _REAL_TOPIC) or b""


def recalled_by(record: Record) -> Recall:
    """Recall that would name this record."""
    return Recall(_recalled_ms(record), _key(record, find_property(record.properties, _UNIQUE_KEY) or b""))


def _recalled_ms(record: Record) -> int:
    slot_ms = int(find_property(record.properties, _OUT) or 0)
    return slot_ms - slot_ms % MAX_WIDTH_MS


def _key(record: Record, unique_key: bytes) -> bytes:
    topic = find_property(record.properties, _REAL_TOPIC) or b""
    # RocketMQ has "topic+key" too; plain is what 5.4.0 writes
    return topic + b"\x01" + unique_key.removeprefix(topic + b"+")


def from_timer(record: Record, now_ms: int, store_host: tuple[bytes, int]) -> NewMessage | None:
    """Message to store at the time of `record`: the delivered one, or one that waits again. None if topic or queue is
    missing."""
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
        return record.as_new_message(topic, int(queue_id), properties, store_host)
    found = decode_properties(properties)
    found.pop(PROPERTY_CRC32, None)
    if not is_rolled:
        found.pop(PROPERTY_DUE, None)
    as_stored = dict(found)
    found[PROPERTY_TIMER_ENQUEUE_MS] = str(enqueued_ms)
    found[PROPERTY_TIMER_DEQUEUE_MS] = str(now_ms)
    if is_rolled:
        times = found.get(PROPERTY_TIMER_ROLL_TIMES, "0")
        is_number = times.isascii() and times.isdigit() and len(times) < 9  # a client may have said anything
        found[PROPERTY_TIMER_ROLL_TIMES] = str(int(times) + 1 if is_number else 1)
        last_ms = _last_slot_ms(wheel_ms)
        before_ms = _before_ms(record.store_timestamp_ms, properties, last_ms) if times == "0" else None
        if before_ms is not None and wheel_ms <= before_ms <= last_ms:
            found[PROPERTY_DUE] = str(before_ms + 1)
        topic, queue_id = TIMER_TOPIC, b"%d" % TIMER_QUEUE_ID
    if len(properties) > MAX_PROPERTIES_BYTES - _TOLD_BYTES:
        found = as_stored
    return record.as_new_message(topic, int(queue_id), encode_properties(found), store_host)


def _has_what_changes(properties: bytes) -> bool:
    """True if a delivery must remove or change properties."""
    return any(mark in properties for mark in (_ENQUEUE_MARK, _DEQUEUE_MARK, _CRC_MARK, _DUE_MARK))
