from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rmqha.cli.local.remove import remove
from rmqha.model.error import RmqhaError, UsageError
from rmqha.ops.local.cluster_file import load
from rmqha.ops.local.cluster_state import QUICKSTART, ClusterState
from rmqha.ops.membership import removal
from rmqha.ops.membership.group import keep_advice, redundancy, refuse_to_stop_sends
from rmqha.ops.membership.joining import new_node
from rmqha.ops.membership.removal import check_removable
from rmqha.wire.state.explained_state import ExplainedGroup, ExplainedReplica

TEXT = """\
[cluster]
haMode = "cp"
[[group]]
name = "broker-a"
replicas = 3
[node.broker-a-2]
brokerZone = "east"
"""


def replica(broker_id: int = 1, **more: Any) -> ExplainedReplica:
    return ExplainedReplica(broker_id=broker_id, address=f"127.0.0.1:{broker_id}", **more)


def view(members: int, total: int, ha_mode: str = "cp") -> ExplainedGroup:
    return ExplainedGroup(
        master_broker_id=0,
        master_epoch=1,
        sync_state_set=range(members),
        sync_state_set_epoch=1,
        total_replicas=total,
        ha_mode=ha_mode,
        replicas=[replica(number, in_sync_state_set=number < members, alive=True) for number in range(total)],
    )


@pytest.mark.parametrize(
    ("members", "total", "ha_mode", "words"),
    [
        (3, 3, "cp", "3 of 3 copies of g remain in the SyncStateSet: sends go on if 1 more fails"),
        (5, 5, "cp", "sends go on if 2 more fail"),
        (2, 3, "cp", "the loss of one more takes no acknowledged message, but sends are refused until it is back"),
        (2, 2, "cp", "sends go on if 1 more fails"),
        (1, 2, "cp", "one copy, synced before each acknowledgement"),
        (1, 1, "cp", "1 of 1 copies of g remain in the SyncStateSet: one copy"),
        (2, 3, "ap", "it stays writable with one"),
    ],
)
def test_what_remains_is_said_in_words(members: int, total: int, ha_mode: str, words: str) -> None:
    assert redundancy(view(members, total, ha_mode), "g").endswith(words)


@pytest.mark.parametrize(("members", "total", "wanted", "needed"), [(3, 3, 9, 5), (2, 3, 4, 3), (1, 2, 3, 2)])
def test_a_total_that_would_stop_the_sends_is_refused(members: int, total: int, wanted: int, needed: int) -> None:
    with pytest.raises(RmqhaError, match=f"^with totalReplicas = {wanted} g .* {needed} .*, and {members} .* --yes$"):
        refuse_to_stop_sends(view(members, total), "g", wanted)


@pytest.mark.parametrize(
    ("members", "total", "ha_mode", "wanted"),
    [(3, 3, "cp", 5), (3, 3, "ap", 9), (1, 3, "cp", 3), (2, 5, "cp", 3), (1, 1, "cp", 2)],
    ids=["enough", "AP goes on with one", "stands already", "needs fewer", "one of two acknowledges alone"],
)
def test_other_totals_are_not_held_up(members: int, total: int, ha_mode: str, wanted: int) -> None:
    refuse_to_stop_sends(view(members, total, ha_mode), "g", wanted)


def test_a_dead_member_is_no_copy_that_remains() -> None:
    seen = view(3, 3)
    seen.replicas[2].alive = False
    assert redundancy(seen, "g").startswith("2 of 3")


@pytest.mark.parametrize(
    ("alive", "changes", "words"),
    [
        (True, {}, "runs and may join the SyncStateSet at any moment"),
        (False, {}, None),
        (True, {"drained": True}, None),
        (True, {"async_learner": True}, None),
        (False, {"is_master": True}, "is the master"),
        (False, {"in_sync_state_set": True}, "is in the SyncStateSet"),
    ],
)
def test_only_a_replica_that_nobody_relies_on_is_removed(
    alive: bool, changes: dict[str, bool], words: str | None
) -> None:
    if words is None:
        check_removable("broker-a-1", alive, replica(**changes))
        return
    with pytest.raises(UsageError, match=words):
        check_removable("broker-a-1", alive, replica(**changes))


@pytest.fixture
def state(tmp_path: Path) -> ClusterState:
    path = tmp_path / "cluster.toml"
    path.write_text(TEXT)
    return ClusterState.of(load(path, directory=tmp_path / "data"))


@pytest.mark.parametrize(("total", "next_total", "wanted"), [(3, None, 2), (3, 2, 2), (2, None, 2)])
def test_a_removal_that_was_cut_short_is_finished(
    total: int, next_total: int | None, wanted: int, state: ClusterState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controllers have forgotten the replica; totalReplicas, or only the record here, still counts it."""
    told = view(2, 2)
    for item, node in zip(told.replicas, state.brokers, strict=False):
        item.address, item.node_name = node.address, node.name
    told.total_replicas, told.next_total_replicas = total, next_total
    resized: list[int] = []

    async def ask_group(*_: object) -> ExplainedGroup:
        return told

    async def resize(client: object, state: object, group: str, number: int, timeout_s: float) -> None:
        resized.append(number)
        told.total_replicas, told.next_total_replicas = number, None

    monkeypatch.setattr(removal, "ask_group", ask_group)
    monkeypatch.setattr(removal, "resize", resize)
    state.directory.mkdir(mode=0o755)
    state.write()
    done = CliRunner().invoke(remove, ["broker-a-3", "--directory", str(state.directory)])
    assert done.exit_code == 0, done
    assert "broker-a-3 is no replica of broker-a any more: 2 of 2 copies" in done.stdout
    assert resized == [wanted]
    assert [node.name for node in ClusterState.require(state.directory).brokers] == ["broker-a-1", "broker-a-2"]
    told.replicas[1].address = "127.0.0.1:1"
    moved = CliRunner().invoke(remove, ["broker-a-2", "--directory", str(state.directory)])
    assert isinstance(moved.exception, UsageError) and "the controllers know no replica at" in str(moved.exception)


def test_a_new_node_is_what_the_file_would_have_with_one_replica_more(state: ClusterState) -> None:
    node = new_node(state, "broker-a-4", learner=False)
    assert (node.address, node.properties["totalReplicas"]) == ("127.0.0.1:10941", "4")
    assert "asyncLearner" not in node.properties
    learner = new_node(state, "broker-a-4", learner=True)
    assert (learner.properties["asyncLearner"], learner.properties["totalReplicas"]) == ("true", "3")
    assert new_node(state, "broker-a-2", learner=False).properties["brokerZone"] == "east"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("broker-a-5", "leaves a gap: the next replica of broker-a is broker-a-4"),
        ("broker-b-1", "is no new replica of a group"),
        ("broker-a-0", "is no new replica of a group"),
        ("ns-2", "is no new replica of a group"),
    ],
)
def test_a_name_that_is_not_the_next_one_is_refused(state: ClusterState, name: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        new_node(state, name, learner=False)


def test_a_cluster_file_that_is_gone_is_one_sentence(state: ClusterState) -> None:
    Path(state.cluster_file).unlink()
    with pytest.raises(UsageError, match="cannot read the cluster file"):
        new_node(state, "broker-a-4", learner=False)


def test_who_joins_a_quick_start_is_not_told_to_change_the_package(tmp_path: Path) -> None:
    """The file of `rmqha up` without one belongs to the package."""
    spec = load(QUICKSTART, ha_mode=None, directory=tmp_path)
    state = ClusterState.of(spec)
    assert keep_advice(state, "broker-a") == "", "it starts as many as there are"
    del state.nodes["broker-a-3"]
    assert keep_advice(state, "broker-a") == "start the cluster by `rmqha up --brokers 2` from now on"
    state.ha_mode = "ap"
    assert keep_advice(state, "broker-a") == "start the cluster by `rmqha up --brokers 2 --ap` from now on"
    own = tmp_path / "mine.toml"
    own.write_text(TEXT)
    state.cluster_file = str(own)
    assert keep_advice(state, "broker-a") == f"write replicas = 2 into {own}"
    own.unlink()
    assert keep_advice(state, "broker-a") == f"write replicas = 2 into {own}"
