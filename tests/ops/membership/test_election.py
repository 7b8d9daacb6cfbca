from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rmqha.ops.cluster_view import ClusterView, GroupView, NodeView
from rmqha.ops.local.cluster_state import ClusterState, NodeRecord
from rmqha.ops.membership.election import at_stake, leads_already
from rmqha.wire.state.controller_state import GroupState, RegisteredReplica
from rmqha.wire.state.replica_state import ReplicaState

Log = tuple[list[list[int]], int]
"""Epochs with their starts, and the end."""


def told(*logs: Log | None, heard: RegisteredReplica | None = None) -> str:
    """What is said if the first replica is elected; None: one that does not answer. `heard`: the controllers' word."""
    records = [NodeRecord(f"g-{number}", "broker", f"h:{number}", group="g") for number in range(1, len(logs) + 1)]
    nodes = {}
    for record, log in zip(records, logs, strict=True):
        state = None
        if log is not None:
            values: dict[str, Any] = {"role": "SLAVE", "epoch": 1, "confirm_offset": 0, "writable": False}
            state = ReplicaState(epochs=log[0], max_phy_offset=log[1], **values)
        nodes[record.name] = NodeView(record, True, state)
    cluster = ClusterState(Path("/nowhere"), "c", "cp", "c.toml", {record.name: record for record in records})
    info = GroupState(
        master_broker_id=None,
        master_epoch=3,
        sync_state_set=[],
        sync_state_set_epoch=1,
        total_replicas=2,
        replicas=[] if heard is None else [heard],
    )
    view = ClusterView(cluster, nodes, {"g": GroupView("g", info)})
    return at_stake(view, view.groups["g"], nodes["g-1"])


@pytest.mark.parametrize(
    ("own", "other", "words"),
    [
        (([[1, 0]], 500), ([[1, 0]], 500), "g-1 ends at byte 500, epoch 1: no replica has more"),
        (([[1, 0]], 500), ([[1, 0]], 400), "no replica has more"),
        (([[1, 0]], 500), ([[1, 0]], 700), "g-2, whose last epoch is 1, has 200 bytes more, which would be lost"),
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


@pytest.mark.parametrize(
    ("own", "epoch", "end", "words"),
    [
        (
            ([[1, 0], [3, 300]], 800),
            3,
            2000,
            "at byte 2,000, epoch 3: at least 1,200 bytes would be lost, and what it took",
        ),
        (([[1, 0], [3, 300]], 800), 3, 800, "epoch 3: no more than that, but for what it took since then"),
        (([[1, 0]], 800), 3, 700, "at byte 700, epoch 3: what it has of that epoch would be lost"),
        (([], 0), 1, 0, "epoch 1: what it has of that epoch would be lost"),
    ],
)
def test_of_who_does_not_answer_the_controllers_tell(own: Log, epoch: int, end: int, words: str) -> None:
    heard = RegisteredReplica(broker_id=2, address="h:2", epoch=epoch, max_offset=end, silent_ms=12_300)
    said = told(own, None, heard=heard)
    assert "g-2 does not answer; the controllers heard from it last 12 s ago, at byte " in said and words in said


def test_a_leader_that_has_never_heard_of_it_knows_nothing() -> None:
    said = told(([[1, 0]], 800), None, heard=RegisteredReplica(broker_id=2, address="h:2"))
    assert "what g-2 has beyond that is unknown, it does not answer" in said


@pytest.mark.parametrize(
    ("own", "master_id", "epoch", "leads"),
    [
        ({"role": "MASTER", "broker_id": 1, "epoch": 3}, 1, 3, True),
        ({"role": "SLAVE", "broker_id": 1, "epoch": 3}, 1, 3, False),
        ({"role": "MASTER", "broker_id": 1, "epoch": 2}, 1, 3, False),
        ({"role": "MASTER", "broker_id": 1, "epoch": 3}, 2, 3, False),
    ],
)
def test_only_a_master_by_everybodys_word_need_not_be_elected(
    own: dict[str, Any], master_id: int, epoch: int, leads: bool
) -> None:
    state = ReplicaState(max_phy_offset=0, confirm_offset=0, writable=True, **own)
    info = GroupState(
        master_broker_id=master_id,
        master_epoch=epoch,
        sync_state_set=[],
        sync_state_set_epoch=1,
        total_replicas=2,
        replicas=[],
    )
    assert leads_already(info, NodeView(NodeRecord("g-1", "broker", "h:1", group="g"), True, state)) == leads
