"""A directed switch (ruling 18) and a failed disk: the master waits for its successor, then the election is held."""

from __future__ import annotations

import pytest

from controller.state.event import Cause
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.offset import BrokerId
from tests.controller.harness import GROUP, explained, group_of

FAILED = ResponseCode.CONTROLLER_ELECT_MASTER_FAILED


def test_the_master_hands_over_before_the_target_is_elected() -> None:
    cluster, brokers = group_of(3)
    answer = cluster.elect(3)
    assert (answer.code, answer.ext["masterBrokerId"]) == (0, "3")
    assert brokers[0].hand_overs == [
        {"brokerName": GROUP, "masterEpoch": "1", "targetBrokerId": "3", "timeoutMs": "2000"}
    ]
    assert cluster.group().elections[-1].cause is Cause.DESIGNATED
    assert cluster.group().elections[-1].reason == "an operator asked for broker-a-3; the only candidate"


def test_a_hand_over_that_fails_changes_nothing_and_tells_why() -> None:
    cluster, brokers = group_of(3)
    brokers[0].hand_over = ResponseCode.SYSTEM_ERROR
    answer = cluster.elect(3)
    assert (answer.code, answer.remark) == (FAILED, "hand-over: broker-a-3 lacks 7 bytes")
    assert (cluster.group().master_id, cluster.group().master_epoch) == (1, 1)
    assert cluster.alter([1, 2]).code == 0, "the group is free again"


def test_a_master_that_does_not_answer_bounds_the_wait() -> None:
    cluster, brokers = group_of(3)
    brokers[0].hand_over = None
    before_ms = cluster.now_ms
    answer = cluster.elect(3)
    assert answer.code == FAILED and "did not answer in time" in (answer.remark or "")
    assert cluster.now_ms - before_ms <= 2060
    assert cluster.group().master_id == 1
    assert brokers[0].notices[-1].ext["targetBrokerId"] == "0", "its answer may be lost: it shall go on"


def test_a_target_that_dies_after_the_hand_over_lets_the_master_go_on() -> None:
    cluster, brokers = group_of(3)
    brokers[2].probes = "silent"
    answer = cluster.elect(3)
    assert answer.code == FAILED
    notice = brokers[0].notices[-1]
    assert (notice.code, notice.is_oneway) == (RequestCode.RMQHA_HAND_OVER, True)
    assert notice.ext == {"brokerName": GROUP, "masterEpoch": "1", "targetBrokerId": "0"}
    assert "hand_over_failed" in cluster.tracer.names()


@pytest.mark.parametrize("ha_mode", ["", "ap"])
def test_a_target_that_is_slow_to_answer_is_waited_for_while_there_is_a_master(ha_mode: str) -> None:
    cluster, brokers = group_of(3)
    cluster.group().replicas[BrokerId(1)].ha_mode = ha_mode
    brokers[2].probes = "slow"
    assert cluster.elect(3).code == 0
    assert cluster.group().master_id == 3


@pytest.mark.parametrize("ha_mode", ["", "ap"])
def test_a_master_that_knows_no_hand_over_is_replaced_at_once(ha_mode: str) -> None:
    """Apache's brokers are not even asked."""
    cluster, brokers = group_of(3)
    brokers[0].hand_over = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    cluster.group().replicas[BrokerId(1)].ha_mode = ha_mode
    assert cluster.elect(2).code == 0
    assert len(brokers[0].hand_overs) == (1 if ha_mode else 0)


def test_any_other_master_is_the_best_of_the_rest() -> None:
    cluster, brokers = group_of(3)
    brokers[2].max_offset = 2000
    cluster.run(600)
    answer = cluster.elect(None)
    assert (answer.code, answer.ext["masterBrokerId"]) == (0, "3")
    assert brokers[0].hand_overs[0]["targetBrokerId"] == "3"


def test_an_unclean_election_waits_for_nobody() -> None:
    cluster, brokers = group_of(3)
    assert cluster.alter([1]).code == 0
    brokers[0].max_offset = 5000
    cluster.run(600)
    answer = cluster.elect(2, unclean=True)
    assert (answer.code, answer.ext["bytesAtStake"]) == (0, "4000")
    assert brokers[0].hand_overs == []
    assert cluster.group().elections[-1].reason.endswith("4000 bytes at stake")


def test_a_resigning_leader_redirects_who_waits_for_a_hand_over() -> None:
    cluster, brokers = group_of(3, node_count=3)
    brokers[0].hand_over = None
    old = cluster.leader
    token = cluster.send_elect(3)
    cluster.run(5)
    cluster.cut = {old.node_id}
    cluster.run(1000)
    assert cluster.replies[token].code == ResponseCode.CONTROLLER_NOT_LEADER


# --- disk -----------------------------------------------------------------------------------------------------------


def test_a_master_with_a_failed_disk_is_replaced_and_not_elected_again() -> None:
    cluster, brokers = group_of(3)
    brokers[0].disk_problem = "no write ended for 5000 ms"
    cluster.run(600)
    group = cluster.group()
    assert (group.master_id, group.elections[-1].cause) == (2, Cause.DISK_FAILED)
    assert brokers[0].hand_overs[0]["targetBrokerId"] == "2"
    assert explained(cluster)["answer"] == (
        "broker-a-2 is master of epoch 2: the disk of the master failed "
        "(disk of master broker-a-1: no write ended for 5000 ms; the only candidate)"
    )
    for broker in brokers[1:]:
        broker.epoch, broker.max_offset = 2, 2000
    assert cluster.alter([1, 2, 3]).code == 0
    cluster.crash(brokers[1])
    cluster.run(100)
    assert cluster.group().master_id == 3, "replica 1 is longer in the set, but its disk is ill"


def test_an_ill_disk_is_better_than_no_master() -> None:
    cluster, brokers = group_of(3)
    for broker in brokers[1:]:
        broker.disk_problem = "No space left on device"
    cluster.run(600)
    cluster.crash(brokers[0])
    cluster.run(100)
    assert cluster.group().master_id == 2


def test_an_ill_disk_is_better_than_an_unclean_election() -> None:
    cluster, brokers = group_of(3, enable_elect_unclean_master=True)
    assert cluster.alter([1, 2]).code == 0
    brokers[1].disk_problem = "No space left on device"
    cluster.run(600)
    cluster.crash(brokers[0])
    cluster.run(100)
    assert cluster.group().master_id == 2


def test_a_failed_disk_without_a_successor_keeps_the_master_until_there_is_one() -> None:
    """Level-triggered: the report comes once, the successor later."""
    cluster, brokers = group_of(3)
    assert cluster.alter([1]).code == 0
    brokers[0].disk_problem = "no write ended for 5000 ms"
    cluster.run(3000)
    assert cluster.group().master_id == 1
    assert cluster.alter([1, 2]).code == 0
    cluster.run(1000)
    assert cluster.group().master_id == 2


def test_a_disk_that_is_well_again_ends_it() -> None:
    cluster, brokers = group_of(3)
    brokers[0].disk_problem, brokers[0].hand_over = "x", ResponseCode.SYSTEM_ERROR
    cluster.run(1000)
    brokers[0].disk_problem = ""
    cluster.run(600)
    tries = len(brokers[0].hand_overs)
    brokers[0].hand_over = 0
    cluster.run(30_000)
    assert (cluster.group().master_id, len(brokers[0].hand_overs)) == (1, tries)


def test_tries_to_leave_a_failed_disk_are_far_apart() -> None:
    """Each stops sends for up to two seconds."""
    cluster, brokers = group_of(3)
    brokers[0].disk_problem, brokers[0].hand_over = "x", ResponseCode.SYSTEM_ERROR
    cluster.run(60_000)
    assert 3 <= len(brokers[0].hand_overs) <= 7


def test_cp_leaves_a_disk_whose_master_cannot_answer() -> None:
    """Every member holds what was acknowledged."""
    cluster, brokers = group_of(3, ha_mode="cp")
    brokers[0].disk_problem, brokers[0].hand_over = "x", None
    cluster.run(3000)
    assert cluster.group().master_id == 2
