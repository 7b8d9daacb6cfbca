"""Delayed and timer messages: of each that was acknowledged and still waits in the log, the topic holds a copy,
whichever master stored it. In AP too: a failover may lose a message with all its copies, but leaves none out that it
keeps. No timer message comes before its time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rmqha.model.config.delay_level import SCHEDULE_TOPIC
from rmqha.model.message import PROPERTY_TIMER_OUT_MS, TIMER_TOPIC, find_property
from rmqha.store.log.record import decode

from ..broker_process import BrokerProcess
from ..client_process import TOPIC
from ..history import History, InvariantError
from .records import entries, located


class Found(NamedTuple):
    delivered_count: int
    duplicate_count: int


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


def verify(history: History, broker: BrokerProcess) -> Found:
    """When nothing waits any more."""
    waiting = {*_keys(broker, SCHEDULE_TOPIC), *_keys(broker, TIMER_TOPIC)}
    delivered = list(_keys(broker, TOPIC))
    _check_times(broker)
    acked = {send.key for send in history.acked}
    for key, body in _bodies(broker, TOPIC):
        if key in acked and body.rstrip(b".") != key.encode():
            raise InvariantError(f"{key} was delivered as {body[:80]!r}")
    copies = waiting.intersection(delivered)
    left_out = [send for send in history.acked if send.key in waiting and send.key not in copies]
    if left_out:
        raise InvariantError(
            f"{len(left_out)} of {len(waiting)} delayed messages are in the log and were never delivered; the first is"
            f" {left_out[0].key}"
        )
    return Found(len(copies), sum(key in copies for key in delivered) - len(copies))


def _check_times(broker: BrokerProcess) -> None:
    precision_ms = broker.config.timer_precision_ms
    for queue_id in broker.store.queues().get(TOPIC, ()):
        for entry in entries(broker, TOPIC, queue_id):
            record = decode(entry.view)
            slot = find_property(record.properties, PROPERTY_TIMER_OUT_MS.encode())
            if slot is not None and record.store_timestamp_ms < int(slot) + precision_ms:
                raise InvariantError(f"{entry.key} came at {record.store_timestamp_ms}, before the end of {int(slot)}")


def _bodies(broker: BrokerProcess, topic: str) -> Iterator[tuple[str, bytes]]:
    for queue_id in broker.store.queues().get(topic, ()):
        for entry in entries(broker, topic, queue_id):
            body_at, body_bytes = located(entry.view)[1][4:6]
            yield entry.key, bytes(entry.view[body_at : body_at + body_bytes])


def _keys(broker: BrokerProcess, topic: str) -> Iterator[str]:
    for queue_id in broker.store.queues().get(topic, ()):
        for entry in entries(broker, topic, queue_id):
            yield entry.key
