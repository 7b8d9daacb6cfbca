"""Every SEND_OK message survives (CP), at the queue offset it was acknowledged with, once or as a counted duplicate,
and in the order in which its producer sent. In AP losses are counted and reported."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from rmqha.model.message import PROPERTY_UNIQUE_KEY, decode_properties
from rmqha.model.offset import QueueOffset
from rmqha.store.record import decode

from ..broker_process import BrokerProcess
from ..history import History, InvariantError, Send


@dataclass(frozen=True, slots=True)
class Audit:
    acked_count: int
    lost_count: int
    duplicate_count: int


def audit(history: History, broker: BrokerProcess, *, cp: bool, ordered: bool) -> Audit:
    """Read the queues of a whole replica as a consumer would."""
    stored: Counter[str] = Counter()
    place: dict[str, set[int]] = {}
    for topic, queue_ids in broker.store.queues().items():
        for queue_id in queue_ids:
            for queue_offset, key in _read(broker, topic, queue_id):
                stored[key] += 1
                place.setdefault(key, set()).add(queue_offset)
    log_min = broker.store.min_phy_offset
    lost = [send for send in history.acked if not stored[send.key] and _place(send) >= log_min]
    moved = [send for send in history.acked if stored[send.key] and send.queue_offset not in place[send.key]]
    if cp and lost:
        send = lost[0]
        raise InvariantError(
            f"{len(lost)} acknowledged messages are lost; the first is {send.key}, acked by {send.broker} "
            f"at {send.acked_at_ms} ms"
        )
    if cp and moved:
        raise InvariantError(
            f"{moved[0].key} was acknowledged at queue offset {moved[0].queue_offset} and is not there"
        )
    if cp and ordered:
        check_order(history)
    return Audit(len(history.acked), len(lost), sum(count - 1 for count in stored.values()))


def check_order(history: History) -> None:
    """What one producer sent to one queue, each after the answer to the one before, stands there in that order."""
    last: dict[tuple[str, int], Send] = {}
    for send in sorted(history.acked, key=lambda item: item.acked_at_ms or 0):
        producer = send.key.rpartition("-")[0]
        before = last.get((producer, send.queue_id))
        if before is not None and send.queue_offset <= before.queue_offset:
            raise InvariantError(
                f"{send.key} was sent after {before.key} and stands before it in queue {send.queue_id}:"
                f" {send.queue_offset} against {before.queue_offset}"
            )
        last[producer, send.queue_id] = send


def _place(send: Send) -> int:
    """The physical offset that its offset message id names: below the log's min it was removed by rule."""
    return int(send.offset_id[-16:], 16)


def _read(broker: BrokerProcess, topic: str, queue_id: int) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    offset, most = broker.store.queue_range(topic, queue_id)
    while offset < most:
        result = broker.store.pull(topic, queue_id, offset, 1000, 1 << 30, None)
        for record in result.records:
            message = decode(record)
            if message.queue_offset != offset:
                raise InvariantError(f"{topic}/{queue_id} entry {offset} leads to a record of {message.queue_offset}")
            offset = QueueOffset(offset + 1)
            found.append((message.queue_offset, decode_properties(message.properties).get(PROPERTY_UNIQUE_KEY, "")))
        if not result.records:
            raise InvariantError(f"{topic}/{queue_id} cannot be read at {offset}; it ends at {most}")
    return found
