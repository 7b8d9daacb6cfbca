"""Lag and copy speed of each slave: the field `slaves` of a master's heartbeat. Pure.

The field is `id:lagBytes:lagMs:bytesPerSecond`, one per slave, separated by `;`. Ours; other controllers ignore it.
"""

from __future__ import annotations

from collections.abc import Iterable

from rmqha.ha.stream.connection import HaConnection
from rmqha.model.offset import BrokerId, PhyOffset
from rmqha.wire.state.controller_state import ReportedSlave


class CopySpeed:
    """Rates between two heartbeats; 0 for a slave that has just connected."""

    def __init__(self) -> None:
        self._seen_at_ms = 0
        self._acked: dict[BrokerId, PhyOffset] = {}

    def report(self, now_ms: int, own_max: PhyOffset, connections: Iterable[HaConnection]) -> str:
        """The field's text; "" without a slave that has acknowledged anything."""
        elapsed_ms, before = now_ms - self._seen_at_ms, self._acked
        rows = []
        self._acked = {}
        for item in connections:
            if item.slave_id is None or item.acked_offset is None:
                continue
            copied = item.acked_offset - before.get(item.slave_id, item.acked_offset)
            speed = max(0, copied) * 1000 // elapsed_ms if elapsed_ms > 0 else 0
            lag_bytes = own_max - item.acked_offset
            lag_ms = now_ms - item.caught_up_at_ms if lag_bytes else 0
            rows.append(f"{item.slave_id}:{lag_bytes}:{lag_ms}:{speed}")
            self._acked[item.slave_id] = item.acked_offset
        self._seen_at_ms = now_ms
        return ";".join(rows)


def parse_slaves(text: str) -> list[ReportedSlave]:
    """Parse the field `slaves`. Items that cannot be read are left out, since another release may write others."""
    rows = []
    for item in text.split(";"):
        values = item.split(":")
        if len(values) >= 4 and all(value.isascii() and value.isdigit() for value in values):
            broker_id, lag_bytes, lag_ms, speed = map(int, values[:4])
            rows.append(ReportedSlave(broker_id=broker_id, lag_bytes=lag_bytes, lag_ms=lag_ms, bytes_per_second=speed))
    return rows
