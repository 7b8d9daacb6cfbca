"""What `rmqha status` and `rmqha up` print of a cluster."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from rmqha.cli.render import print_cluster
from rmqha.ops.cluster_view import ClusterView, GroupView, NodeView
from rmqha.ops.local.cluster_state import ClusterState, NodeRecord
from rmqha.wire.state.replica_state import ReplicaState
from tests.ha.group import started


def shown(state: ReplicaState) -> str:
    record = NodeRecord("g-1", "broker", "127.0.0.1:10911", group="g")
    cluster = ClusterState(Path("/nowhere"), "c", "cp", "c.toml", {"g-1": record})
    view = ClusterView(cluster, {"g-1": NodeView(record, True, state)}, {"g": GroupView("g")})
    out = io.StringIO()
    print_cluster(view, Console(file=out, width=80))
    return out.getvalue()


@pytest.mark.parametrize("alone", [True, False])
def test_one_copy_synced_is_said_while_it_lasts(alone: bool) -> None:
    """Ruling 6."""
    group = started(2)
    if alone:
        group.kill(2)
        group.run(1000)
    assert ("one copy, synced" in shown(group[1].replica.state(group.now_ms))) == alone
