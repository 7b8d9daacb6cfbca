"""Delayed and timer messages: of each that was acknowledged and still waits in the log, the topic holds a copy,
whichever master stored it. In AP too: a failover may lose a message with all its copies, but leaves none out that it
keeps. No timer message comes before its time, and no master stores one twice in one life."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rmqha.broker.timers.message import recall, recalled_by
from rmqha.model.config.delay_level import SCHEDULE_TOPIC
from rmqha.model.message import PROPERTY_TIMER_DELAY_MS, PROPERTY_TIMER_OUT_MS, TIMER_TOPIC, find_property
from rmqha.store.log.record import Record, decode
from tests.simulation.checkers.logs.records import entries, located
from tests.simulation.clients.client_process import TOPIC
from tests.simulation.history import History, InvariantError
from tests.simulation.processes.broker_process import BrokerProcess


class Found(NamedTuple):
    delivered_count: int
    duplicate_count: int
    taken_back_count: int


def missing(brokers: Sequence[BrokerProcess]) -> str:
    """What the serving master has still to deliver, or ""."""
    for broker in brokers:
        if not broker.alive or not broker.core.driver.is_serving:
            continue
        timers = broker.core.timers
        if timers.waiting_count or timers.is_delivering:
            return f"{broker.host} has {timers.waiting_count} timer messages to deliver"
        levels = broker.core.schedule.statistics()
        for queue_id in broker.store.queues().get(SCHEDULE_TOPIC, ()):
            offset, end = levels.get(queue_id + 1, (0, broker.core.schedule.end_of(queue_id + 1)))
            if offset < end:
                return f"{broker.host} has delivered {offset} of {end} messages of delay level {queue_id + 1}"
    return ""


def verify(
    history: History,
    broker: BrokerProcess,
    serving_offsets: Sequence[int],
    *,
    cp: bool = False,
    trimmed_to: int = 0,
) -> Found:
    """When nothing waits any more. In CP a recall that was acknowledged is there. `serving_offsets`: where masters'
    logs ended as they began to serve. `trimmed_to`: what waited below it may have gone with the oldest files of a
    master whose disk was full."""
    waiting = {*_keys(broker, SCHEDULE_TOPIC), *_keys(broker, TIMER_TOPIC)}
    if trimmed_to:
        kept = *_records(broker, SCHEDULE_TOPIC), *_records(broker, TIMER_TOPIC)
        waiting = {key for key, record in kept if record.phy_offset >= trimmed_to}
    delivered = list(_keys(broker, TOPIC))
    _check_times(broker)
    _check_doubles(broker, sorted(serving_offsets))
    acked = {send.key for send in history.acked}
    for key, body in _bodies(broker, TOPIC):
        if key in acked and body.rstrip(b".") != key.encode():
            raise InvariantError(f"{key} was delivered as {body[:80]!r}")
    taken_back = _taken_back(broker)
    _check_taken_back(broker, taken_back)
    keys_taken_back = {key for key, _ in taken_back}
    lost = [item for item in history.taken_back if item.is_acked and (item.key, item.slot_ms) not in taken_back]
    if cp and lost and not broker.store.min_phy_offset:
        raise InvariantError(f"{len(lost)} acknowledged recalls are not in the log; the first is of {lost[0].key}")
    copies = waiting.intersection(delivered)
    left_out = [
        send
        for send in history.acked
        if send.key in waiting and send.key not in copies and send.key not in keys_taken_back
    ]
    if left_out:
        raise InvariantError(
            f"{len(left_out)} of {len(waiting)} delayed messages are in the log and were never delivered; the first is"
            f" {left_out[0].key}"
        )
    return Found(len(copies), sum(key in copies for key in delivered) - len(copies), len(taken_back))


def _records(broker: BrokerProcess, topic: str) -> Iterator[tuple[str, Record]]:
    for queue_id in broker.store.queues().get(topic, ()):
        for entry in entries(broker, topic, queue_id):
            yield entry.key, decode(entry.view)


def _taken_back(broker: BrokerProcess) -> dict[tuple[str, int], int]:
    """By key and slot, where the first recall stands in the log."""
    found: dict[tuple[str, int], int] = {}
    for key, record in _records(broker, TIMER_TOPIC):
        if (taken := recall(record)) is not None:
            found.setdefault((key, taken.slot_ms), int(record.phy_offset))
    return found


def _check_taken_back(broker: BrokerProcess, taken_back: dict[tuple[str, int], int]) -> None:
    for key, record in _records(broker, TOPIC):
        at = taken_back.get((key, recalled_by(record).slot_ms))
        if at is not None and at < record.phy_offset:
            raise InvariantError(f"{key} was taken back at {at} and delivered at {record.phy_offset}")


def _check_times(broker: BrokerProcess) -> None:
    """None is stored before its delay is over since it was put into the log, or the slot of RocketMQ's wheel is that
    holds its time, the widest that begins when that one does: replicas have other precisions."""
    stored_ms: dict[tuple[str, int], int] = {}
    for key, record in _records(broker, TIMER_TOPIC):
        place = key, _wheel_ms(record)
        stored_ms[place] = min(stored_ms.get(place, record.store_timestamp_ms), record.store_timestamp_ms)
    for key, record in _records(broker, TOPIC):
        if find_property(record.properties, PROPERTY_TIMER_OUT_MS.encode()) is None:
            continue
        wheel_ms = _wheel_ms(record)
        due_ms = wheel_ms + next(width_ms for width_ms in (1000, 500, 200, 100) if wheel_ms % width_ms == 0)
        delay_ms = find_property(record.properties, PROPERTY_TIMER_DELAY_MS.encode())
        if delay_ms is not None and (key, wheel_ms) in stored_ms:
            due_ms = min(due_ms, stored_ms[key, wheel_ms] + int(delay_ms))
        elif broker.store.min_phy_offset:
            due_ms = wheel_ms  # when it came went with the oldest files
        if record.store_timestamp_ms < due_ms:
            raise InvariantError(f"{key} came at {record.store_timestamp_ms}, before its time {due_ms}")


def _wheel_ms(record: Record) -> int:
    return int(find_property(record.properties, PROPERTY_TIMER_OUT_MS.encode()) or 0)


def _check_doubles(broker: BrokerProcess, starts: Sequence[int]) -> None:
    """A client may have stored a message twice itself: then it waits twice, and comes twice."""
    if broker.store.min_phy_offset:
        return  # what waited may have gone with the oldest files
    waiting = Counter(key for key, record in _records(broker, TIMER_TOPIC) if recall(record) is None)
    copies: Counter[tuple[str, int]] = Counter()
    for key, record in _records(broker, TOPIC):
        if find_property(record.properties, PROPERTY_TIMER_OUT_MS.encode()) is not None:
            copies[key, bisect_right(starts, record.phy_offset)] += 1
    for (key, number), count in copies.items():
        if count > waiting[key]:
            raise InvariantError(
                f"{key} waits {waiting[key]} times and came {count} times in life {number} of a master"
            )


def _bodies(broker: BrokerProcess, topic: str) -> Iterator[tuple[str, bytes]]:
    for queue_id in broker.store.queues().get(topic, ()):
        for entry in entries(broker, topic, queue_id):
            body_at, body_bytes = located(entry.view)[1][4:6]
            yield entry.key, bytes(entry.view[body_at : body_at + body_bytes])


def _keys(broker: BrokerProcess, topic: str) -> Iterator[str]:
    for queue_id in broker.store.queues().get(topic, ()):
        for entry in entries(broker, topic, queue_id):
            yield entry.key
