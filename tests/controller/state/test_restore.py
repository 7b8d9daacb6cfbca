"""A follower reads a leader's snapshot slice by slice, while entries after it arrive."""

from __future__ import annotations

import pytest

from controller import machine
from controller.state.image import SLICE_GROUPS, encode_image
from rmqha.model.code import RequestCode
from tests.controller.harness import CLUSTER, Cluster, Node


def with_groups(cluster: Cluster, first: int, count: int) -> None:
    for number in range(first, first + count):
        ext = {
            "clusterName": CLUSTER,
            "brokerName": f"broker-{number}",
            "appliedBrokerId": "1",
            "registerCheckCode": "10.0.0.1:10911;1",
        }
        assert cluster.call(RequestCode.CONTROLLER_APPLY_BROKER_ID, ext).code == 0


def behind() -> tuple[Cluster, Node]:
    """A cluster with three slices of groups in its snapshot, and a follower that has nothing of it."""
    cluster = Cluster(3, snapshot_after_entries=16)
    cluster.run(3000, until=cluster.has_leader)
    follower = next(node for node in cluster.nodes.values() if node is not cluster.leader)
    cluster.cut = {follower.node_id}
    with_groups(cluster, 0, SLICE_GROUPS * 2 + 30)
    cluster.run(100)
    cluster.cut = set()
    return cluster, follower


def test_a_snapshot_is_read_in_slices_and_what_follows_it_is_applied_after_it() -> None:
    cluster, follower = behind()
    cluster.run(3000, until=lambda: follower.snapshot is not None)
    assert len(follower.machine.info.groups) == 0, "nothing shows before all is read"
    with_groups(cluster, 10_000, 3)
    cluster.run(1000)
    assert encode_image(follower.machine.info) == encode_image(cluster.leader.machine.info)


def test_what_a_snapshot_replaces_is_let_go_of_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "FREED_GROUPS", 10)
    cluster, follower = behind()
    cluster.run(1000)
    cluster.cut = {follower.node_id}
    with_groups(cluster, 20_000, 40)
    cluster.run(100)
    cluster.cut = set()
    before = follower.machine.info.groups
    count = len(before)
    assert count > 40
    freed = []

    def watch() -> bool:
        nonlocal count
        if len(before) != count and follower.machine.info.groups is not before:
            freed.append(count - len(before))
            count = len(before)
        return False

    cluster.run(3000, until=watch)
    assert count == 0 and max(freed) <= 10
    assert encode_image(follower.machine.info) == encode_image(cluster.leader.machine.info)


def test_a_node_that_is_still_reading_does_not_lead() -> None:
    cluster, follower = behind()
    cluster.run(3000, until=lambda: follower.snapshot is not None)
    for node in cluster.nodes.values():
        if node is not follower and node is not cluster.leader:
            cluster.kill(node)
    old = cluster.leader
    assert cluster.call(RequestCode.RMQHA_TRANSFER_LEADERSHIP, {"node": follower.node_id}).code == 0
    cluster.run(2000, until=lambda: follower.machine.is_leading)
    assert follower.machine.is_leading
    assert encode_image(follower.machine.info) == encode_image(old.machine.info)
