"""What `rmqha status` and `rmqha up` print of a cluster."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from rmqha.cli.cluster_table import print_cluster
from rmqha.cli.render import Printer
from rmqha.ops.cluster_view import ClusterView, GroupView, NodeView
from rmqha.ops.local.cluster_state import ClusterState, NodeRecord
from rmqha.wire.state.replica_state import ReplicaState
from tests.ha.group import started


def shown(*states: ReplicaState) -> str:
    records = [
        NodeRecord(f"g-{number}", "broker", "127.0.0.1:10911", group="g") for number in range(1, len(states) + 1)
    ]
    cluster = ClusterState(Path("/nowhere"), "c", "cp", "c.toml", {record.name: record for record in records})
    nodes = {record.name: NodeView(record, True, state) for record, state in zip(records, states, strict=True)}
    view = ClusterView(cluster, nodes, {"g": GroupView("g")})
    out = io.StringIO()
    print_cluster(view, Printer(out, 80, is_styled=False))
    return out.getvalue()


@pytest.mark.parametrize("alone", [True, False])
def test_one_copy_synced_is_said_while_it_lasts(alone: bool) -> None:
    """Ruling 6."""
    group = started(2)
    if alone:
        group.kill(2)
        group.run(1000)
    assert ("one copy, synced" in shown(group[1].replica.state(group.now_ms))) == alone


@pytest.mark.parametrize(
    ("kernels", "line"),
    [
        (["native", "native"], "kernel: native"),
        (["native", "python: there is no library"], "kernel: native on g-1; python on g-2"),
        (["python", None], "kernel: python"),
        ([None, None], ""),
    ],
)
def test_which_kernel_runs_is_a_line(kernels: list[str | None], line: str) -> None:
    group = started(2)
    states = [group[1].replica.state(group.now_ms) for _ in kernels]
    for state, kernel in zip(states, kernels, strict=True):
        state.kernel = kernel
    assert [found for found in shown(*states).splitlines() if found.startswith("kernel")] == ([line] if line else [])
