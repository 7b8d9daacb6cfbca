"""What `rmqha status` says of a replica that is not well."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rmqha.cli.cluster_table import cluster_json, print_cluster
from rmqha.cli.render import Printer
from rmqha.ha.stream.copy_progress import CopyProgress
from rmqha.model.offset import PhyOffset
from rmqha.ops.cluster_view import (
    ClusterView,
    GroupView,
    NodeView,
    copy_sentence,
    faults,
    notes,
    outside_sentence,
    problems,
    problems_of,
)
from rmqha.ops.local.cluster_state import ClusterState, NodeRecord, last_line
from rmqha.wire.state.controller_state import GroupState, RegisteredReplica
from rmqha.wire.state.replica_state import ReplicaState


@pytest.mark.parametrize(
    ("at_ms", "own_max", "words"),
    [
        (100, 0, "copies the log: 0 of 3,000 MB, 0.0 MB/s"),
        (1000, 120_000_000, "copies the log: 120 of 3,000 MB, 120.0 MB/s, 24 s left"),
        (1000, 3_000_000_000, ""),
    ],
)
def test_a_copy_in_words(at_ms: int, own_max: int, words: str) -> None:
    progress = CopyProgress()
    progress.begin(0, PhyOffset(0), PhyOffset(3_000_000_000))
    progress.moved(at_ms, PhyOffset(own_max))
    state = progress.state(at_ms, PhyOffset(own_max))
    assert copy_sentence(state) == words


def state_of(**told: Any) -> ReplicaState:
    least = {"role": "SLAVE", "epoch": 1, "maxPhyOffset": 0, "confirmOffset": 0, "writable": False}
    return ReplicaState.from_json(least | told)


def test_who_has_all_and_is_no_member() -> None:
    assert outside_sentence(state_of(lacksQueueEnds=False)) == "not in the SyncStateSet"
    assert "asks its master where idle queues end" in outside_sentence(state_of(lacksQueueEnds=True))


def told_of(master_id: int | None, members: Sequence[int], maintained: Sequence[str] = ()) -> GroupState:
    """The group as the leading controller has it."""
    return GroupState(
        master_broker_id=master_id,
        master_epoch=3,
        sync_state_set=members,
        sync_state_set_epoch=4,
        total_replicas=2,
        replicas=[RegisteredReplica(broker_id=2, address=address, in_maintenance=True) for address in maintained],
    )


def group_of_two(*, second_runs: bool, maintained: bool) -> ClusterView:
    """A master, and a slave that runs or not."""
    records = [NodeRecord(f"g-{number}", "broker", f"127.0.0.1:1091{number}", group="g") for number in (1, 2)]
    told = told_of(1, [1, 2] if second_runs else [1], [records[1].address] if maintained else [])
    master = state_of(brokerId=1, role="MASTER", writable=True)
    slave = state_of(brokerId=2, role="SLAVE") if second_runs else None
    return ClusterView(
        ClusterState(Path("/nowhere"), "c", "cp", "c.toml", {record.name: record for record in records}),
        {"g-1": NodeView(records[0], True, master), "g-2": NodeView(records[1], second_runs, slave)},
        {"g": GroupView("g", told, {0: records[0].address})},
    )


@pytest.mark.parametrize(
    ("runs", "maintained", "wrong", "note"),
    [
        (True, False, {}, {}),
        (True, True, {}, {"g-2": "in maintenance; end it with rmqha maintenance off g-2"}),
        (False, True, {}, {"g-2": "in maintenance, stopped; end it with rmqha maintenance off g-2"}),
        (False, False, {"g-2": "not running"}, {}),
    ],
)
def test_a_replica_stopped_in_maintenance_is_no_problem(
    runs: bool, maintained: bool, wrong: dict[str, str], note: dict[str, str]
) -> None:
    view = group_of_two(second_runs=runs, maintained=maintained)
    assert (problems(view), notes(view)) == (wrong, note)
    told = cluster_json(view)
    assert (told["healthy"], told["problems"], told["notes"]) == (not wrong, wrong, note)
    assert [row["inMaintenance"] for row in told["nodes"]] == [False, maintained]
    out = io.StringIO()
    print_cluster(view, Printer(out, 80, is_styled=False))
    row = next(line for line in out.getvalue().splitlines() if line.startswith("g-2 "))
    assert ("maint" in row, "in, m" in row) == (maintained and not runs, maintained and runs)
    assert all(f"{name}: {words}" in out.getvalue() for name, words in (wrong | note).items())


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"diskProblem": "No space left on device"}, "disk: No space left on device"),
        ({"unclean": True}, "it lost power"),
        ({"addressProblem": "brokerIP1 is told to clients and no address of this machine"}, "brokerIP1 is told"),
    ],
)
def test_status_tells_what_health_calls_a_fault_of_a_member(told: dict[str, Any], words: str) -> None:
    view = group_of_two(second_runs=True, maintained=False)
    view.nodes["g-2"] = replace(view.nodes["g-2"], replica=state_of(brokerId=2, **told))
    assert problems(view) == {} and faults(view)["g-2"].startswith(words)
    document = cluster_json(view)
    assert not document["healthy"] and list(document["problems"]) == ["g-2"]


def test_the_last_line_of_a_log_that_a_crash_has_torn(tmp_path: Path) -> None:
    path = tmp_path / "node.log"
    assert last_line(path) == ""
    path.write_bytes(b"first\n" * 20_000 + b"the reason\n" + bytes(9000))
    assert last_line(path) == "the reason"
    path.write_bytes(bytes(9000) + b"the reason | \n\n")
    assert last_line(path) == "the reason"


def test_a_drained_replica_may_be_stopped() -> None:
    view = group_of_two(second_runs=False, maintained=False)
    told = view.groups["g"].reported
    assert told is not None
    gone = RegisteredReplica(broker_id=2, address="127.0.0.1:10912", drained=True)
    view.groups["g"] = replace(view.groups["g"], reported=replace(told, replicas=[gone]))
    assert problems(view) == {}
    assert notes(view) == {"g-2": "drained, stopped; take it back with rmqha drain g-2 --undo"}


@pytest.mark.parametrize(
    ("told", "trouble"),
    [
        (None, "no controller leads"),
        (told_of(None, [1]), "has no master"),
        (replace(told_of(None, [1]), why_no_master="waiting for 1"), "has no master: waiting for 1"),
    ],
)
def test_a_replica_is_not_back_while_nobody_can_say_that_it_is_in_the_set(
    told: GroupState | None, trouble: str
) -> None:
    """`rmqha start` waits for that, and once called a replica in the set whose group had no master."""
    view = group_of_two(second_runs=True, maintained=False)
    assert problems_of(view, ["g-2"]) == {}
    view.groups["g"] = replace(view.groups["g"], reported=told)
    view.nodes["g-2"] = replace(view.nodes["g-2"], replica=state_of(brokerId=2, role="STARTING"))
    assert problems_of(view, ["g-2"]) == {"g-2": f"group g: {trouble}; see rmqha explain g"}
    assert problems_of(view, ["g", "g-2"]) == problems(view) == {"g": trouble}, "once"
