"""What controllers show: each its part of Raft, the leader alone what the groups are like."""

from __future__ import annotations

import pytest

from controller import metrics, operations
from controller.metrics import (
    ACTIVE_BROKERS,
    ENTRIES,
    FOLLOWER_LAG,
    GROUPS,
    GROUPS_LEFT_OUT,
    HAS_LEADER,
    HAS_MASTER,
    MASTER_EPOCH,
    MASTERLESS,
    ROLE,
    SET_SIZE,
    UNSAVED_MS,
    collect,
    readiness,
)
from controller.operations import OperationCounts, OperationResult
from rmqha.host.net.statistics import Statistics
from rmqha.model.code import RequestCode
from rmqha.model.offset import RaftIndex
from rmqha.model.series import MetricFamilies, Series, filled
from rmqha.wire.command import Command
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
    assert readiness(follower.machine, cluster.now_ms).role == "follower"
    now = readiness(leader.machine, cluster.now_ms)
    assert (now.role, now.ready) == ("leader", True)


def test_a_disk_that_finishes_nothing_is_shown() -> None:
    cluster, _ = group_of(1)
    leader = cluster.leader
    leader.persisting = False
    ext = {"node": "n9", "incarnation": "9", "address": "127.0.0.1:9"}
    cluster.send(Command(RequestCode.RMQHA_ADD_CONTROLLER, ext))
    began_ms, machine = cluster.now_ms, leader.machine
    ready = machine.ready(began_ms)
    assert ready is not None and ready.must_persist
    assert values(filled(collect(machine, began_ms + 1500, COUNTS)), UNSAVED_MS) == [1500]
    machine.advance(began_ms + 1500, ready)
    assert values(filled(collect(machine, began_ms + 1500, COUNTS)), UNSAVED_MS) == [0]


def test_a_controller_without_a_leader_is_not_ready() -> None:
    cluster = Cluster(3)
    cluster.run(3000, until=cluster.has_leader)
    alone, *others = list(cluster.nodes.values())
    for node in others:
        cluster.kill(node)
    cluster.run(5000)
    now = readiness(alone.machine, cluster.now_ms)
    assert (now.ready, now.reason) == (False, "the controllers have no leader: a majority of them must be reachable")


def test_the_number_of_series_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "MAX_GROUPS", 0)
    cluster, _ = group_of(3)
    families = filled(collect(cluster.leader.machine, cluster.now_ms, COUNTS))
    assert (values(families, GROUPS), values(families, GROUPS_LEFT_OUT), values(families, SET_SIZE)) == ([1], [1], [])


class _Us:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.us = 0

    def __call__(self) -> int:
        return self.us


def command(code: int, opaque: int) -> Command:
    return Command(code, {}, opaque=opaque)


def test_requests_are_counted_by_how_they_end() -> None:
    now = _Us()
    counts = OperationCounts(now)
    for opaque, code in enumerate((1001, 1001, 1005, 904, 4711, RequestCode.RMQHA_RAFT_MESSAGE)):
        counts.received(7, command(code, opaque))
    now.us = 40
    counts.answered(7, 0)
    counts.answered(7, 0)
    now.us = 2_000_000
    counts.answered(7, 1)
    counts.failed(7, 2)
    counts.answered(8, 3)
    counts.closed(7)
    counts.closed(7)
    assert counts.requests == {
        ("CONTROLLER_ALTER_SYNC_STATE_SET", OperationResult.SUCCESS): 2,
        ("CONTROLLER_GET_METADATA_INFO", OperationResult.FAILED): 1,
        ("CONTROLLER_BROKER_HEARTBEAT", OperationResult.TIMEOUT): 1,
    }
    (times,) = counts.request_times.values()
    shown = {bound: count for bound, count in zip(times.bounds, times.counts, strict=False) if count}
    assert shown == {50.0: 1, 3_000_000.0: 1} and times.total == 2_000_040


def test_requests_without_an_answer_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "MAX_BEGUN_COUNT", 2)
    counts = OperationCounts(_Us())
    for opaque in range(5):
        counts.received(1, command(1001, opaque))
    counts.closed(1)
    counts.received(2, command(1001, 0))
    counts.answered(2, 0)
    assert counts.requests.total() == 3


def test_entries_are_counted_by_how_they_end() -> None:
    now = _Us()
    counts = OperationCounts(now)
    for index in (1, 2, 3):
        counts.proposed(RaftIndex(index))
    now.us = 700
    counts.ended(RaftIndex(1), OperationResult.SUCCESS)
    counts.ended(RaftIndex(2), OperationResult.TIMEOUT)
    counts.proposed(RaftIndex(3))  # another leader's took the place of the first
    counts.ended(RaftIndex(3), OperationResult.FAILED)
    counts.refused()
    assert counts.entries == {OperationResult.SUCCESS: 1, OperationResult.TIMEOUT: 1, OperationResult.FAILED: 3}
    assert counts.entry_times.total == 700


def test_a_machine_tells_of_its_entries() -> None:
    """Every change that a leader proposed ends once; a follower proposes none."""
    cluster, _ = group_of(3)
    counts = {node.node_id: node.watch for node in cluster.nodes.values()}
    leading = counts.pop(cluster.leader.node_id)
    assert leading.entries[OperationResult.SUCCESS] >= 4, "three brokers and a master"
    assert set(leading.entries) == {OperationResult.SUCCESS} and not any(other.entries for other in counts.values())
    families = filled(collect(cluster.leader.machine, cluster.now_ms, COUNTS, leading))
    (shown,) = families.samples[ENTRIES]
    assert shown.labels["dledger_operation"] == "append" and shown.labels["dLedger_operation_status"] == "success"
    assert shown.value == leading.entries[OperationResult.SUCCESS]
