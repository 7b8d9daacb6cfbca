"""Disks that stand still: a leader's is given away, one that the group needs is told of."""

from __future__ import annotations

import pytest

from rmqha.raft.node import RaftNode
from rmqha.sim.network import LinkOptions
from tests.raft.cluster import Cluster, Host, Options

LONG_MS = 60_000


def led(node_count: int, link: LinkOptions | None = None) -> tuple[Cluster, Host]:
    """A group at peace and its leader."""
    cluster = Cluster(3, Options(node_count=node_count, link=link or LinkOptions()))
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


def write_for(cluster: Cluster, leader: Host, duration_ms: int) -> None:
    """One proposal each millisecond, sooner than any answer comes, as long as `leader` leads."""
    for number in range(duration_ms):
        if cluster.leader() is leader:
            cluster.write(leader, b"%d" % number)
        cluster.run(1)


def test_proposals_without_a_pause_keep_no_leader_whose_disk_stands_still() -> None:
    """The last of them is never saved elsewhere yet."""
    cluster, leader = led(3, LinkOptions(min_delay_ms=5, max_delay_ms=10))
    stall(cluster, leader)
    write_for(cluster, leader, 450)
    assert node_of(leader).is_leader
    write_for(cluster, leader, 350)
    other = cluster.leader()
    assert other is not None and other is not leader


def test_disks_that_stand_still_after_the_leaders_are_seen() -> None:
    """They have saved what its disk works for, and nothing since: nobody could replace it."""
    cluster, leader = led(3)
    others = [host for host in cluster.hosts.values() if host is not leader]
    stall(cluster, leader)
    cluster.write(leader, b"one")
    cluster.run(300)
    for host in others:
        stall(cluster, host)
    cluster.write(leader, b"two")
    cluster.run(5000)
    assert cluster.leader() is leader
    assert cluster.write(leader, b"three") is not None, "it takes what others propose"


def test_a_pause_of_the_process_is_no_disk_that_stands_still() -> None:
    """SIGSTOP, or a machine that is suspended: what the disk did meanwhile is not read yet."""
    cluster, leader = led(3)
    term = node_of(leader).term
    stall(cluster, leader, 400)
    cluster.write(leader, b"one")
    cluster.run(330)
    for host in cluster.hosts.values():
        cluster.pause(host)
    cluster.run(200)
    for host in cluster.hosts.values():
        cluster.resume(host)
    cluster.run(1000)
    assert cluster.leader() is leader and node_of(leader).term == term
    assert node_of(leader).unsaved_ms(leader.clock.now_ms()) == 0


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
