"""Snapshots of the controllers' state: what they hold, in slices, while the groups change."""

from __future__ import annotations

from collections.abc import Callable

import cbor2
import pytest

from controller.state.event import decode_events
from controller.state.image import SLICE_GROUPS, decode_image, encode_image
from controller.state.replicas_info import ReplicasInfo
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import StoreError
from rmqha.raft.config import RaftConfig
from rmqha.raft.node import Ready
from rmqha.wire.command import Command
from rmqha.wire.raft_message import Entry, EntryKind, Snapshot
from tests.controller.harness import CLUSTER, GROUP, Broker, Cluster, Node, group_of


class Journal:
    """Every entry and snapshot that a sole controller makes durable."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entries: list[Entry] = []
        self.snapshots: list[Snapshot] = []
        persist: Callable[[Node, Ready], None] = Node._persist

        def recorded(node: Node, ready: Ready) -> None:
            self.entries.extend(ready.entries)
            self.snapshots += [ready.compaction] if ready.compaction is not None else []
            persist(node, ready)

        monkeypatch.setattr(Node, "_persist", recorded)

    def state(self, index: int) -> ReplicasInfo:
        """The state after that entry."""
        info = ReplicasInfo()
        for entry in self.entries:
            if entry.index <= index and entry.kind is EntryKind.DATA:
                for event in decode_events(entry.data):
                    info.apply(event)
        return info


def add_groups(cluster: Cluster, count: int) -> None:
    for number in range(count):
        ids = {"clusterName": CLUSTER, "brokerName": f"g{number}"}
        ext = {**ids, "appliedBrokerId": "1", "registerCheckCode": f"127.0.0.1:{number + 1};1"}
        cluster.send(Command(RequestCode.CONTROLLER_APPLY_BROKER_ID, ext))


GROUP_ROW = ["c", "g", 2, [[1, "a", "x", "h", 3, "CP", False]], 3, 1, 1, [1], 1, [1], [], True, [], 0, [], []]


@pytest.mark.parametrize(
    ("place", "value"), [(3, [{1: "a"}]), (3, {1: "a"}), (7, {1: 1}), (7, "1"), (12, [{1: 1, 2: 1, 3: 1}]), (14, b"")]
)
def test_a_map_or_a_text_in_the_place_of_an_array_is_refused(place: int, value: object) -> None:
    """Found by fuzzing: a map in the place of a replica ended the controller with a KeyError."""

    def image(row: list[object]) -> bytes:
        return cbor2.dumps([4, 1]) + cbor2.dumps(cbor2.dumps(row))

    assert list(decode_image(image(list(GROUP_ROW))).groups) == ["g"]
    with pytest.raises(StoreError, match="in the place of an array"):
        decode_image(image([*GROUP_ROW[:place], value, *GROUP_ROW[place + 1 :]]))


def test_a_snapshot_is_the_state_at_its_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """It once held entries above its index too, those of the same Ready: applied twice they may remove a member."""
    journal = Journal(monkeypatch)
    cluster, _ = group_of(1, snapshot_after_entries=16)
    node = cluster.leader
    node.persisting = False
    add_groups(cluster, 3 * RaftConfig().max_committed_entries)
    node.persisting = True
    node.pump()
    cluster.run(100)
    assert journal.snapshots
    for snapshot in journal.snapshots:
        assert decode_image(snapshot.data) == journal.state(snapshot.index)


def test_groups_change_while_a_snapshot_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(monkeypatch)
    cluster, _ = group_of(3, snapshot_after_entries=16)
    node = cluster.leader
    add_groups(cluster, 3 * SLICE_GROUPS)
    for turn in range(8):
        cluster.run(1)
        assert cluster.alter([1, 2] if turn % 2 else [1, 2, 3]).code in (
            0,
            ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
        )
    cluster.run(100)
    assert node.snapshot is not None
    assert decode_image(node.snapshot.data) == journal.state(node.snapshot.index)
    before = encode_image(node.machine.info)
    node.start()
    cluster.run(100)
    assert encode_image(node.machine.info) == before
    assert cluster.group().broker_name == GROUP


def test_one_input_looks_at_a_bounded_number_of_groups() -> None:
    """A new leader of many groups whose masters are all dead: each step is small, and all are dealt with."""
    grace_ms = 600_000
    cluster = Cluster(3, default_heartbeat_timeout_mills=grace_ms)
    cluster.run(3000, until=cluster.has_leader)
    for number in range(450):
        broker = Broker(1, name=f"g{number}")
        cluster.boot(broker, beat=False)
        broker.probes = "refuse"
        ext = {"clusterName": CLUSTER, "brokerName": broker.name, "brokerId": "1", "designateElect": "false"}
        cluster.call(RequestCode.CONTROLLER_ELECT_MASTER, ext)
    cluster.kill(cluster.leader)
    cluster.run(3000, until=cluster.has_leader)
    node = cluster.leader
    cluster.run(grace_ms - 5000)
    assert all(group.master_id == 1 for group in node.machine.info.groups.values()), "nobody is evicted at once"
    index = len(node.entries)
    cluster.run(6000)
    sizes = [len(decode_events(entry.data)) for entry in node.entries[index:] if entry.kind is EntryKind.DATA]
    assert sum(sizes) == 450 and max(sizes) <= 200
    assert all(group.master_id is None for group in node.machine.info.groups.values())
