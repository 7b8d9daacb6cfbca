"""Disks that stand still: a leader's is given away, one that the group needs is told of."""

from __future__ import annotations

import pytest

from rmqha.raft.node import RaftNode
from tests.raft.cluster import Cluster, Host, Options

LONG_MS = 60_000


def led(node_count: int) -> tuple[Cluster, Host]:
    """A group at peace and its leader."""
    cluster = Cluster(3, Options(node_count=node_count))
    for host in cluster.hosts.values():
        cluster.start(host)
    cluster.run(1000)
    leader = cluster.leader()
    assert leader is not None
    return cluster, leader


def node_of(host: Host) -> RaftNode:
    assert host.node is not None
    return host.node


def stall(cluster: Cluster, host: Host, duration_ms: int = LONG_MS) -> None:
    host.stalled_until_ms = cluster.scheduler.now_ms + duration_ms


@pytest.mark.parametrize("node_count", [3, 5])
def test_a_leader_whose_disk_stands_still_hands_over(node_count: int) -> None:
    """The others' disks commit what it decides, so nobody would ever miss its own."""
    cluster, leader = led(node_count)
    stall(cluster, leader)
    cluster.write(leader, b"one")
    cluster.run(450)
    assert node_of(leader).is_leader, "a slow disk is no reason"
    assert leader.application.index == 2, "the others have saved it"
    cluster.run(250)
    other = cluster.leader()
    assert other is not None and other is not leader
    assert node_of(other).has_caught_up and node_of(other).lease_valid(other.clock.now_ms())
    assert not node_of(leader).lease_valid(leader.clock.now_ms())
    cluster.run(5000)
    assert cluster.leader() is other, "it does not come back before its disk does"
    assert node_of(leader).unsaved_ms(leader.clock.now_ms()) > 5000


def test_it_follows_once_its_disk_goes_on() -> None:
    cluster, leader = led(3)
    stall(cluster, leader, 2000)
    cluster.write(leader, b"one")
    cluster.run(1000)
    other = cluster.leader()
    assert other is not None and other is not leader
    cluster.write(other, b"two")
    cluster.run(2000)
    assert leader.application == other.application
    assert node_of(leader).unsaved_ms(leader.clock.now_ms()) == 0
    assert cluster.leader() is other


@pytest.mark.parametrize("stalled_count", [2, 3])
def test_a_leader_that_nobody_could_replace_goes_on_leading(stalled_count: int) -> None:
    """Without its vote no other disk makes a majority: it still answers what needs no decision."""
    cluster, leader = led(3)
    others = [host for host in cluster.hosts.values() if host is not leader]
    for host in [leader, *others][:stalled_count]:
        stall(cluster, host)
    cluster.write(leader, b"one")
    cluster.run(5000)
    assert cluster.leader() is leader and node_of(leader).lease_valid(leader.clock.now_ms())
    assert leader.application.index == 1, "nothing is decided"
    assert node_of(leader).state(leader.clock.now_ms()).unsaved_ms > 4500


def test_a_follower_tells_that_its_disk_stands_still() -> None:
    cluster, leader = led(3)
    follower = next(host for host in cluster.hosts.values() if host is not leader)
    stall(cluster, follower)
    assert node_of(follower).state(follower.clock.now_ms()).unsaved_ms == 0
    cluster.write(leader, b"one")
    cluster.run(3000)
    assert node_of(follower).state(follower.clock.now_ms()).unsaved_ms > 2500
    assert node_of(leader).state(leader.clock.now_ms()).unsaved_ms == 0
    assert cluster.leader() is leader
