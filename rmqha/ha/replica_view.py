"""JSON-ready views of a master's slaves, for request 52000. Offsets and sizes in bytes, times in ms."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rmqha.ha.stream.connection import HaConnection
from rmqha.ha.sync_state import SyncStateSet
from rmqha.model.offset import PhyOffset


def set_view(now_ms: int, sync: SyncStateSet) -> dict[str, Any]:
    since_ms = sync.unconfirmed_since_ms
    return {
        "syncStateSet": list(sync.confirmed),
        "syncStateSetEpoch": sync.set_epoch,
        "ackUnion": list(sync.union),
        "unconfirmedForMs": None if since_ms is None else now_ms - since_ms,
    }


def slaves_view(
    now_ms: int, connections: Iterable[HaConnection], sync: SyncStateSet, max_phy_offset: PhyOffset
) -> list[dict[str, Any]]:
    return [
        {
            "brokerId": item.slave_id,
            "peer": item.peer,
            "state": item.state.value,
            "ackOffset": item.acked_offset,
            "lagBytes": None if item.acked_offset is None else max_phy_offset - item.acked_offset,
            "lagMs": now_ms - item.caught_up_at_ms,
            "inSet": item.slave_id in sync.confirmed,
        }
        for item in connections
    ]
