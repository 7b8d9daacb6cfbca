"""Delayed messages: they wait in the schedule topic, a queue per level, and are stored again at their time.

Only the open master delivers. A level's offset advances when the delivered copies are acknowledged by the group's rule
(ruling 12), and counts in logs that have them. So a new master, which continues from the offset that is true of its own
log, may deliver a message once more but leaves none out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from rmqha.broker.replication.waiter import MessageAppender, Waiting
from rmqha.broker.tables.delay_offsets import DelayOffsetTable
from rmqha.broker.tables.topics import TopicTable
from rmqha.ha.action import AckStatus
from rmqha.model.code import ResponseCode
from rmqha.model.config.delay_level import SCHEDULE_TOPIC, delay_level
from rmqha.model.error import DamagedError, UsageError
from rmqha.model.message import (
    HALF_TOPIC,
    PROPERTY_CRC32,
    PROPERTY_DELAY,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    TIMER_PROPERTIES,
    are_whole,
    decode_properties,
    encode_properties,
    find_property,
)
from rmqha.model.offset import PhyOffset, QueueOffset
from rmqha.port import Clock, Tracer
from rmqha.store.log.record import NewMessage, Record
from rmqha.store.reader import IsWhole, Unit, any_record

MAX_DELIVERY_COUNT = 64
"""Messages of one level that are delivered with one append."""
MAX_COUNTED = 20_000
"""Messages that one count of what waits reads."""
COUNTED_SLICE = 64
MAX_COUNTED_BYTES = 256 * 1024
"""Bytes of records after which a step of such a count ends."""
_CRC32 = PROPERTY_CRC32.encode() + b"\x01"


def to_schedule(message: NewMessage, level_count: int) -> NewMessage:
    """Form of a message with a delay level while it waits; the message itself without one. Levels above the last are
    the last. Raises ValueError if DELAY is no number."""
    properties = decode_properties(message.properties)
    properties.pop(PROPERTY_CRC32, None)
    level = min(delay_level(properties.get(PROPERTY_DELAY)), level_count)
    if not level:
        return message
    for name in TIMER_PROPERTIES:
        properties.pop(name, None)
    properties[PROPERTY_DELAY] = str(level)
    properties[PROPERTY_REAL_TOPIC] = message.topic
    properties[PROPERTY_REAL_QUEUE_ID] = str(message.queue_id)
    return replace(message, topic=SCHEDULE_TOPIC, queue_id=level - 1, properties=encode_properties(properties))


def has_destination(record: Record) -> bool:
    """True if a record has the properties that `to_schedule` and RocketMQ's brokers add: no CRC covers properties."""
    topic = find_property(record.properties, PROPERTY_REAL_TOPIC.encode())
    queue_id = find_property(record.properties, PROPERTY_REAL_QUEUE_ID.encode())
    return bool(topic and queue_id and queue_id.isdigit()) and are_whole(record.properties)


def from_schedule(record: Record, store_host: tuple[bytes, int]) -> NewMessage | None:
    """Message to deliver for a record of the schedule topic, with all properties but its CRC. None if topic or queue is
    missing."""
    topic = find_property(record.properties, PROPERTY_REAL_TOPIC.encode())
    queue_id = find_property(record.properties, PROPERTY_REAL_QUEUE_ID.encode())
    if not topic or not queue_id or not queue_id.isdigit() or len(queue_id) > 9:
        return None
    name = topic.decode("utf-8", "replace")
    if name in (HALF_TOPIC, SCHEDULE_TOPIC):
        return None
    properties = record.properties
    if _CRC32 in properties:
        found = decode_properties(properties)
        found.pop(PROPERTY_CRC32)
        properties = encode_properties(found)
    return record.as_new_message(name, int(queue_id), properties, store_host)


def append_all(
    appends: MessageAppender,
    log: ScheduleLog,
    messages: list[NewMessage],
    refused: Callable[[NewMessage, UsageError], None],
) -> PhyOffset:
    """Append messages with one call, or each alone if one cannot be stored, which stays where it waits and goes to
    `refused`. Returns the end of the last one."""
    try:
        return appends.append(messages).end_offset
    except UsageError:
        return _append_each(appends, log, messages, refused)


def _append_each(
    appends: MessageAppender,
    log: ScheduleLog,
    messages: list[NewMessage],
    refused: Callable[[NewMessage, UsageError], None],
) -> PhyOffset:
    for message in messages:
        try:
            appends.append([message])
        except UsageError as error:
            refused(message, error)
    return log.max_phy_offset


class ScheduleLog(Protocol):
    """Log in which messages wait and are stored again; the store, and of the driver what `SendLog` has."""

    def queue_range(self, topic: str, queue_id: int) -> tuple[QueueOffset, QueueOffset]: ...

    def units(self, topic: str, queue_id: int, offset: int, count: int) -> list[tuple[int, int, int]]: ...

    def sound_record(
        self, topic: str, queue_id: int, offset: int, unit: Unit, is_whole: IsWhole = any_record
    ) -> Record:
        """Valid record. Raises DamagedError after the damage was noted for repair."""
        ...

    def plain_properties(self, topic: str, queue_id: int, offset: int, unit: Unit) -> tuple[int, bytes] | None:
        """Store time (ms) and properties of a valid record of the common form; None: use `sound_record`."""
        ...

    def record_at(self, phy_offset: int) -> memoryview | None:
        """Bytes of the record at that offset, valid or not."""
        ...

    @property
    def max_phy_offset(self) -> PhyOffset: ...

    @property
    def dispatched_offset(self) -> PhyOffset:
        """End of the records that the queues have."""
        ...


class _Delivery(Waiting):
    """One append of a level's due messages, until it is acknowledged."""

    __slots__ = ("_service", "end_offset", "level", "next_offset")

    def __init__(self, service: ScheduleService, level: int, next_offset: int, end_offset: PhyOffset) -> None:
        self._service = service
        self.level = level
        self.next_offset = next_offset
        self.end_offset = end_offset

    def finish(self, status: AckStatus) -> None:
        self._service.finished(self, status)


@dataclass
class DelayedCounts:
    """Counts of messages that wait in delay levels. `read`: how many of them `rows` can have; `rows`: number and first
    delivery (ms), by the topic that they wait for."""

    waiting: int = 0
    read: int = 0
    rows: dict[str, tuple[int, int]] = field(default_factory=dict)


class ScheduleService:
    """Delivery of delayed messages. `deliver` is called about every 100 ms while `is_waiting`, else each second, which
    is the shortest level, and after each `wake`. `levels_ms` are the times of the levels; messages may wait in levels
    that were removed."""

    def __init__(
        self,
        log: ScheduleLog,
        appends: MessageAppender,
        offsets: DelayOffsetTable,
        clock: Clock,
        tracer: Tracer,
        store_host: tuple[bytes, int],
        levels_ms: Sequence[int],
        wake: Callable[[], None],
        topics: TopicTable,
    ) -> None:
        self._log = log
        self._appends = appends
        self._offsets = offsets
        self._clock = clock
        self._tracer = tracer
        self._store_host = store_host
        self.levels_ms = levels_ms
        self._pending: dict[int, _Delivery] = {}
        self.delivered_count = 0
        self.is_waiting = True
        """True if messages wait, as far as known."""
        self._wake = wake
        self._topics = topics

    def end_of(self, level: int) -> int:
        """End of a level's queue."""
        return self._log.queue_range(SCHEDULE_TOPIC, level - 1)[1]

    def deliver(self) -> None:
        """Store due messages again. Raises StoreError."""
        self.is_waiting = self._appends.is_serving
        if not self.is_waiting or self._appends.admission()[0] is not ResponseCode.SUCCESS:
            return
        self.is_waiting = False
        known = self._offsets.levels()
        topic = self._topics.get(SCHEDULE_TOPIC)
        for level in range(1, max(len(self.levels_ms), 0 if topic is None else topic.read_queue_count) + 1):
            if level not in self._pending and (level in known or self.end_of(level)):
                self._deliver(level, self.levels_ms[level - 1] if level <= len(self.levels_ms) else None)

    def count_waiting(self, topics: frozenset[str], found: DelayedCounts) -> Iterator[None]:
        """Count waiting messages, of these topics, of all if there is none, level by level in slices; at most
        MAX_COUNTED are read. Messages that come or go meanwhile may count or not."""
        known = self._topics.get(SCHEDULE_TOPIC)
        ranges = []
        for level in range(1, max(len(self.levels_ms), 0 if known is None else known.read_queue_count) + 1):
            low, high = self._log.queue_range(SCHEDULE_TOPIC, level - 1)
            offset = min(max(self._offsets.get(level), low), high)
            ranges.append((level, offset, high))
            found.waiting += high - offset
        for level, offset, high in ranges:
            while offset < high and found.read < MAX_COUNTED:
                units = self._log.units(SCHEDULE_TOPIC, level - 1, offset, min(COUNTED_SLICE, high - offset))
                if not units:
                    break  # retention has removed it, or a cut
                size_bytes = 0
                for unit in units[: MAX_COUNTED - found.read]:
                    found.read += 1
                    name = self._waiting_topic(level, offset, unit)
                    offset += 1
                    if not topics or name in topics:
                        count, first_at_ms = found.rows.get(name, (0, unit[2]))
                        found.rows[name] = count + 1, min(first_at_ms, unit[2])
                    size_bytes += unit[1]
                    if size_bytes > MAX_COUNTED_BYTES:
                        break
                yield

    def _waiting_topic(self, level: int, offset: int, unit: Unit) -> str:
        """Topic that a message waits for, "" if the record is damaged."""
        plain = self._log.plain_properties(SCHEDULE_TOPIC, level - 1, offset, unit)
        try:
            properties = (
                plain[1]
                if plain is not None
                else self._log.sound_record(SCHEDULE_TOPIC, level - 1, offset, unit).properties
            )
        except DamagedError:
            return ""
        return (find_property(properties, PROPERTY_REAL_TOPIC.encode()) or b"").decode("utf-8", "replace")

    def role_changed(self) -> None:
        """Forget pending deliveries, which are the new master's."""
        self._pending.clear()

    def statistics(self) -> dict[int, tuple[int, int]]:
        """(next offset, end) of each level that has delivered."""
        return {level: (self._offsets.get(level), self.end_of(level)) for level in self._offsets.levels()}

    def _deliver(self, level: int, delay_ms: int | None) -> None:
        low, high = self._log.queue_range(SCHEDULE_TOPIC, level - 1)
        known = self._offsets.get(level)
        offset = min(max(known, low), high)
        if offset > known:
            self._tracer.event("delayed_messages_expired", level=level, count=offset - known)
        if offset < high:
            self.is_waiting = True
            messages, offset = self._due(level, delay_ms, offset)
            if messages:
                self._append(level, messages, offset)
                return
        if offset != known:
            self._offsets.put(level, offset)

    def _due(self, level: int, delay_ms: int | None, offset: int) -> tuple[list[NewMessage], int]:
        """Due messages from `offset` on, and the offset after them. `delay_ms` None: the level was removed, so all are
        due."""
        now_ms = self._clock.wall_ms()
        messages = []
        deleted_count = 0
        for unit in self._log.units(SCHEDULE_TOPIC, level - 1, offset, MAX_DELIVERY_COUNT):
            phy_offset, _, deliver_at_ms = unit
            # A time further ahead than the level's delay comes from a clock that was set back: due now.
            if now_ms < deliver_at_ms and (delay_ms is None or deliver_at_ms <= now_ms + delay_ms):
                break
            try:
                record = self._log.sound_record(SCHEDULE_TOPIC, level - 1, offset, unit, has_destination)
            except DamagedError:
                break  # the level waits until a replica has given it back
            offset += 1
            message = from_schedule(record, self._store_host)
            if message is None:
                self._tracer.event("delayed_message_without_topic", level=level, phy_offset=phy_offset)
            elif self._topics.is_for_deleted(message.topic, phy_offset):
                deleted_count += 1
            else:
                message.queue_id = self._topics.read_queue(message.topic, message.queue_id)
                messages.append(message)
        if deleted_count:
            self._tracer.event("delayed_messages_of_deleted_topic", level=level, count=deleted_count)
        return messages, offset

    def _append(self, level: int, messages: list[NewMessage], next_offset: int) -> None:
        end = append_all(self._appends, self._log, messages, partial(self._refused, level))
        self.delivered_count += len(messages)
        delivery = self._pending[level] = _Delivery(self, level, next_offset, end)
        self._appends.appended(end, delivery)

    def _refused(self, level: int, message: NewMessage, error: UsageError) -> None:
        self._tracer.event("delayed_message_not_delivered", level=level, topic=message.topic, reason=str(error))

    def finished(self, delivery: _Delivery, status: AckStatus) -> None:
        level = delivery.level
        if self._pending.get(level) is not delivery:
            return
        if status is AckStatus.OK:
            del self._pending[level]
            self._offsets.put(level, delivery.next_offset, delivery.end_offset)
            self._wake()
        elif status is AckStatus.SERVICE_NOT_AVAILABLE:
            del self._pending[level]
        else:
            # The copies are in the log of this epoch. They will be committed, or this mastership ends: no second copy
            # now.
            self._appends.appended(self._log.max_phy_offset, delivery)
