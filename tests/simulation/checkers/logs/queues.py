"""At the end: the queues hold every record of the log, each at its place, and nothing else. Store times never fall
(ruling 18): searches by time and by key go by that."""

from __future__ import annotations

from rmqha.model.offset import PhyOffset
from rmqha.store.log.record import BLANK, MAGIC_BLANK, locate, message_count
from tests.simulation.history import InvariantError
from tests.simulation.processes.broker_process import BrokerProcess


def verify(broker: BrokerProcess) -> None:
    """On a replica that has dispatched all of its log."""
    store = broker.store
    counts: dict[tuple[str, int], int] = {}
    ends: dict[tuple[str, int], int] = {}
    ranges: dict[tuple[str, int], tuple[int, int]] = {}
    position, end, newest_ms = int(store.min_phy_offset), int(store.max_phy_offset), 0
    while position < end:
        view = store.view(PhyOffset(position), end - position)
        size, magic = BLANK.unpack_from(view, 0)
        if magic != MAGIC_BLANK:
            parts = locate(view, 0, len(view), position)
            _, sys_flag, queue_id, number, _, _, topic_at, topic_bytes, properties_at, properties_bytes, stored_ms = (
                parts
            )
            if stored_ms < newest_ms:
                raise InvariantError(f"{broker.host}: the record at {position} says {stored_ms}, after {newest_ms}")
            newest_ms = stored_ms
            queue = str(view[topic_at : topic_at + topic_bytes], "utf-8"), queue_id
            low, high = ranges[queue] if queue in ranges else ranges.setdefault(queue, store.queue_range(*queue))
            if not low <= number < high:
                raise InvariantError(
                    f"{broker.host}: the record at {position} is number {number} of {queue},"
                    f" which holds [{low}, {high})"
                )
            count = message_count(sys_flag, bytes(view[properties_at : properties_at + properties_bytes]))
            counts[queue] = counts.get(queue, 0) + count
            ends[queue] = number + count
        position += size
    for topic, queue_ids in store.queues().items():
        for queue_id in queue_ids:
            low, high = store.queue_range(topic, queue_id)
            queue = topic, queue_id
            if high - low != counts.get(queue, 0) or (low < high and ends[queue] != high):
                raise InvariantError(
                    f"{broker.host}: {queue} holds [{low}, {high}); the log has {counts.get(queue, 0)} of it"
                    f" up to {ends.get(queue, 0)}"
                )
