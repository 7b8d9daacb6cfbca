"""The records of a queue as a consumer pulls them, read no further than the checkers at the end of a run need."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from rmqha.model.message import PROPERTY_UNIQUE_KEY, find_property
from rmqha.model.offset import QueueOffset
from rmqha.store.log.record import Located, locate

from ..broker_process import BrokerProcess
from ..history import InvariantError

PULL_COUNT = 1000
_UNIQUE_KEY = PROPERTY_UNIQUE_KEY.encode()


class Entry(NamedTuple):
    queue_offset: int
    """What the record itself says."""
    phy_offset: int
    stored_ms: int
    key: str
    view: memoryview


def entries(broker: BrokerProcess, topic: str, queue_id: int) -> Iterator[Entry]:
    """All of a queue. A record that the queue holds at another place than its own is a finding."""
    store = broker.store
    offset, end = store.queue_range(topic, queue_id)
    while offset < end:
        pulled = store.pull(topic, queue_id, offset, PULL_COUNT, 1 << 30)
        for view in pulled.records:
            phy_offset, parts = located(view)
            found = parts[3]
            if found != offset:
                raise InvariantError(
                    f"{broker.host}: {topic}/{queue_id} entry {offset} leads to a record of {found}, at {phy_offset}"
                )
            offset = QueueOffset(offset + 1)
            key = find_property(bytes(view[parts[8] :]), _UNIQUE_KEY) or b""
            yield Entry(found, phy_offset, parts[10], key.decode(), view)
        if not pulled.records:
            raise InvariantError(f"{broker.host}: {topic}/{queue_id} cannot be read at {offset}, below {end}")


def located(view: memoryview) -> tuple[int, Located]:
    """(physical offset, parts) of the record that `view` begins with, by what it says itself."""
    phy_offset = int.from_bytes(view[28:36], "big")
    return phy_offset, locate(view, 0, len(view), phy_offset)
