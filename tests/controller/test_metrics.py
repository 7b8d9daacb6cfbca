"""What controllers show: each its part of Raft, the leader alone what the groups are like."""

from __future__ import annotations

import pytest

from controller import metrics
from controller.metrics import (
    ACTIVE_BROKERS,
    FOLLOWER_LAG,
    GROUPS,
    GROUPS_LEFT_OUT,
    HAS_LEADER,
    HAS_MASTER,
    MASTER_EPOCH,
    MASTERLESS,
    ROLE,
    SET_SIZE,
    collect,
    standing,
)
from rmqha.host.net.statistics import Statistics
from rmqha.model.series import MetricFamilies, Series, filled
from tests.controller.harness import Cluster, group_of

COUNTS = Statistics().as_dict()


def values(families: MetricFamilies, series: Series) -> list[float]:
    return [item.value for item in families.samples.get(series, [])]


def test_a_leader_shows_the_groups_as_they_live_and_die() -> None:
    cluster, brokers = group_of(3)
    machine = cluster.leader.machine
    families = filled(collect(machine, cluster.now_ms, COUNTS))
    assert (values(families, ROLE), values(families, GROUPS), values(families, MASTERLESS)) == ([3], [1], [0])
    assert (values(families, ACTIVE_BROKERS), values(families, HAS_MASTER), values(families, MASTER_EPOCH)) == (
        [3],
        [1],
        [1],
    )
    assert families.samples[SET_SIZE][0].labels["broker_set"] == "broker-a"
    cluster.crash(brokers[0])
    cluster.run(100, until=lambda: cluster.group().master_id == 2)
    families = filled(collect(machine, cluster.now_ms, COUNTS))
    assert (values(families, ACTIVE_BROKERS), values(families, HAS_MASTER), values(families, MASTER_EPOCH)) == (
        [2],
        [1],
        [2],
    )
    cluster.crash(brokers[1])
    cluster.crash(brokers[2])
    cluster.run(5000)
    assert values(filled(collect(machine, cluster.now_ms, COUNTS)), MASTERLESS) == [1]


def test_followers_show_their_own_part_only() -> None:
    cluster = Cluster(3)
    cluster.run(3000, until=cluster.has_leader)
    cluster.run(500)
    leader = cluster.leader
    follower = next(node for node in cluster.nodes.values() if node is not leader)
    families = filled(collect(follower.machine, cluster.now_ms, COUNTS))
    assert (values(families, ROLE), values(families, HAS_LEADER)) == ([2], [1])
    assert values(families, GROUPS) == values(families, FOLLOWER_LAG) == []
    assert values(filled(collect(leader.machine, cluster.now_ms, COUNTS)), FOLLOWER_LAG) == [0, 0]
    assert standing(follower.machine, cluster.now_ms).role == "follower"
    now = standing(leader.machine, cluster.now_ms)
    assert (now.role, now.ready) == ("leader", True)


def test_a_controller_without_a_leader_is_not_ready() -> None:
    cluster = Cluster(3)
    cluster.run(3000, until=cluster.has_leader)
    alone, *others = list(cluster.nodes.values())
    for node in others:
        cluster.kill(node)
    cluster.run(5000)
    now = standing(alone.machine, cluster.now_ms)
    assert (now.ready, now.reason) == (False, "the controllers have no leader: a majority of them must be reachable")


def test_the_number_of_series_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "MAX_GROUPS", 0)
    cluster, _ = group_of(3)
    families = filled(collect(cluster.leader.machine, cluster.now_ms, COUNTS))
    assert (values(families, GROUPS), values(families, GROUPS_LEFT_OUT), values(families, SET_SIZE)) == ([1], [1], [])
