from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rmqha.cli.local.elect import at_stake
from rmqha.ops.cluster_view import ClusterView, GroupView, NodeView
from rmqha.ops.local.cluster_state import ClusterState, NodeRecord
from rmqha.wire.state.replica_state import ReplicaState

Log = tuple[list[list[int]], int]
"""Epochs with their starts, and the end."""


def told(*logs: Log | None) -> str:
    """What is said if the first replica is elected; None: one that does not answer."""
    records = [NodeRecord(f"g-{number}", "broker", f"h:{number}", group="g") for number in range(1, len(logs) + 1)]
    nodes = {}
    for record, log in zip(records, logs, strict=True):
        state = None
        if log is not None:
            values: dict[str, Any] = {"role": "SLAVE", "epoch": 1, "confirm_offset": 0, "writable": False}
            state = ReplicaState(epochs=log[0], max_phy_offset=log[1], **values)
        nodes[record.name] = NodeView(record, True, state)
    cluster = ClusterState(Path("/nowhere"), "c", "cp", "c.toml", {record.name: record for record in records})
    view = ClusterView(cluster, nodes, {"g": GroupView("g")})
    return at_stake(view, view.groups["g"], nodes["g-1"])


@pytest.mark.parametrize(
    ("own", "other", "words"),
    [
        (([[1, 0]], 500), ([[1, 0]], 500), "g-1 ends at byte 500, epoch 1: no replica has more"),
        (([[1, 0]], 500), ([[1, 0]], 400), "no replica has more"),
        (([[1, 0]], 500), ([[1, 0]], 700), "g-2, whose last epoch is 1, has 200 bytes more, which would be cut"),
        # the longer log is a fork of the older epoch: epochs count before ends
        (([[1, 0]], 900), ([[1, 0], [2, 300]], 800), "g-2, whose last epoch is 2, has 500 bytes more"),
        (([[1, 0], [2, 300]], 800), ([[1, 0]], 900), "g-2, whose last epoch is 1, has 600 bytes more"),
        (([[1, 0], [3, 300]], 800), ([[1, 0], [2, 300]], 800), "g-2, whose last epoch is 2, has 500 bytes more"),
        (([[1, 0], [2, 300]], 800), ([[1, 0]], 300), "no replica has more"),
        (([], 0), ([[1, 0]], 700), "g-1 ends at byte 0, epoch none: g-2, whose last epoch is 1, has 700 bytes more"),
        (([[1, 0]], 700), ([], 0), "no replica has more"),
        (([[1, 0]], 700), None, "what g-2 has beyond that is unknown, it does not answer"),
    ],
)
def test_bytes_at_stake_are_counted_by_epochs(own: Log, other: Log | None, words: str) -> None:
    assert words in told(own, other)
