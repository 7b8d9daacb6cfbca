"""The records of a queue as a consumer pulls them, read no further than the checkers at the end of a run need."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from rmqha.model.message import PROPERTY_UNIQUE_KEY, find_property
from rmqha.model.offset import QueueOffset
from rmqha.store.log.record import SYS_INNER_BATCH, Located, locate, message_count
from tests.simulation.history import InvariantError
from tests.simulation.processes.broker_process import BrokerProcess

PULL_COUNT = 1000
_UNIQUE_KEY = PROPERTY_UNIQUE_KEY.encode()
_INNER_HEAD = struct.Struct(">iiiii")


class Entry(NamedTuple):
    queue_offset: int
    """What the record itself says."""
    phy_offset: int
    stored_ms: int
    key: str
    view: memoryview
    is_indexed: bool = True
    """False: a message of an inner batch behind its first, whose key is the batch's."""


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
            properties = bytes(view[parts[8] :])
            key = find_property(properties, _UNIQUE_KEY) or b""
            keys = inner_keys(view, parts) if parts[1] & SYS_INNER_BATCH else [key.decode()]
            for number, each in enumerate(keys, found):
                yield Entry(number, phy_offset, parts[10], each, view, number == found)
            offset = QueueOffset(offset + len(keys))
        if not pulled.records:
            raise InvariantError(f"{broker.host}: {topic}/{queue_id} cannot be read at {offset}, below {end}")


def inner_keys(view: memoryview, parts: Located) -> list[str]:
    """Keys of the messages of an inner batch, as many as its record says."""
    body, keys, position = bytes(view[parts[4] : parts[4] + parts[5]]), [], 0
    while position < len(body):
        total_bytes, *_, body_bytes = _INNER_HEAD.unpack_from(body, position)
        properties = body[position + _INNER_HEAD.size + body_bytes + 2 : position + total_bytes]
        keys.append((find_property(properties, _UNIQUE_KEY) or b"").decode())
        position += total_bytes
    if len(keys) != message_count(parts[1], bytes(view[parts[8] : parts[8] + parts[9]])):
        raise InvariantError(f"the inner batch from {keys[0]} on says another number of messages than {len(keys)}")
    return keys


def located(view: memoryview) -> tuple[int, Located]:
    """(physical offset, parts) of the record that `view` begins with, by what it says itself."""
    phy_offset = int.from_bytes(view[28:36], "big")
    return phy_offset, locate(view, 0, len(view), phy_offset)
