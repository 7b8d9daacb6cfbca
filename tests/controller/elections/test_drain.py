"""Drained replicas, async learners and the preferred master, through controllers and brokers."""

from __future__ import annotations

from typing import Any

import pytest

from controller.state.event import Cause
from controller.state.image import decode_image, encode_image
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.wire.command import Command
from tests.controller.harness import CLUSTER, GROUP, Broker, Cluster, explained, group_of


def drain(cluster: Cluster, broker_id: int, *, drained: bool = True) -> Command:
    ext = {"brokerName": GROUP, "brokerId": str(broker_id), "drained": str(drained).lower()}
    return cluster.call(RequestCode.RMQHA_DRAIN_REPLICA, ext)


def shown(broker: Broker) -> str | None:
    assert broker.last_answer is not None
    return broker.last_answer.ext.get("drainedIds")


def test_a_drained_slave_is_out_of_the_set_at_once_and_everybody_is_told() -> None:
    cluster, brokers = group_of(3, ha_mode="cp")
    assert drain(cluster, 3).code == 0
    assert (cluster.group().master_id, cluster.group().sync_state_set) == (1, (1, 2))
    assert [broker.notices[-1].ext["drainedIds"] for broker in brokers] == ["3"] * 3
    cluster.run(600)
    assert [shown(broker) for broker in brokers] == ["3"] * 3
    assert cluster.alter([1, 2, 3]).code == ResponseCode.CONTROLLER_INVALID_REPLICAS
    assert explained(cluster)["replicas"][2]["notElectable"] == "not in the SyncStateSet"
    assert drain(cluster, 3, drained=False).code == 0
    assert cluster.alter([1, 2, 3]).code == 0


def test_a_drained_master_hands_over_and_is_not_elected_again() -> None:
    cluster, brokers = group_of(3, ha_mode="cp")
    assert drain(cluster, 1).code == 0
    cluster.run(600)
    group = cluster.group()
    assert (group.master_id, group.elections[-1].cause) == (2, Cause.DRAINED)
    assert brokers[0].hand_overs[0]["targetBrokerId"] == "2"
    for broker in brokers[1:]:
        broker.epoch, broker.max_offset = 2, 2000
    assert cluster.alter([2, 3]).code == 0
    cluster.crash(brokers[1])
    cluster.run(100)
    assert cluster.group().master_id == 3, "replica 1 has the lowest id, but it is drained"


def test_a_drained_master_whose_hand_over_fails_stays_and_is_asked_again_later() -> None:
    cluster, brokers = group_of(3, ha_mode="cp")
    brokers[0].hand_over = ResponseCode.SYSTEM_ERROR
    assert drain(cluster, 1).code == 0
    cluster.run(9000)
    assert (cluster.group().master_id, len(brokers[0].hand_overs)) == (1, 1)
    brokers[0].hand_over = 0
    cluster.run(3000)
    assert cluster.group().master_id == 2


def test_a_drained_replica_is_better_than_no_master() -> None:
    """It was drained while it led, and nobody else lives: it is still a member."""
    cluster, brokers = group_of(3, ha_mode="cp")
    brokers[0].hand_over = ResponseCode.SYSTEM_ERROR
    assert drain(cluster, 1).code == 0
    for broker in brokers:
        cluster.crash(broker)
    cluster.run(3000)
    assert cluster.group().master_id is None
    cluster.boot(brokers[0])
    cluster.run(1000)
    assert cluster.group().master_id == 1


def test_what_is_drained_survives_a_change_of_the_leading_controller() -> None:
    cluster, _ = group_of(3, ha_mode="cp", node_count=3)
    assert drain(cluster, 1).code == 0
    cluster.run(600)
    cluster.kill(cluster.leader)
    cluster.run(3000, until=cluster.has_leader)
    assert cluster.group().drained_ids == (1,)


def test_a_drain_that_leaves_too_few_is_refused_in_a_sentence() -> None:
    cluster, _ = group_of(3, ha_mode="cp")
    assert drain(cluster, 3).code == 0
    answer = drain(cluster, 2)
    assert answer.code == ResponseCode.CONTROLLER_INVALID_REQUEST
    assert answer.remark == (
        "without broker-a-2 1 live members of the SyncStateSet remain and broker-a needs 2; "
        "start or join another replica and wait until it is in the set"
    )
    assert cluster.group().drained_ids == (3,)


# --- maintenance ------------------------------------------------------------------------------------------------------
def maintain(cluster: Cluster, broker_id: int, *, on: bool = True) -> Command:
    ext = {"brokerName": GROUP, "brokerId": str(broker_id), "on": str(on).lower()}
    return cluster.call(RequestCode.RMQHA_SET_MAINTENANCE, ext)


def test_a_master_in_maintenance_hands_over_and_stays_in_the_set() -> None:
    cluster, brokers = group_of(3, ha_mode="cp")
    assert maintain(cluster, 1).code == 0
    cluster.run(600)
    group = cluster.group()
    assert (group.master_id, group.elections[-1].cause) == (2, Cause.MAINTENANCE)
    assert brokers[0].hand_overs[0]["targetBrokerId"] == "2"
    for broker in brokers:
        broker.epoch, broker.max_offset = 2, 2000
    assert cluster.alter([1, 2, 3]).code == 0, "it is a member as ever"
    assert cluster.elect(1).code == ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
    cluster.crash(brokers[1])
    cluster.run(100)
    assert cluster.group().master_id == 3, "replica 1 has the lowest id, but it is in maintenance"
    assert explained(cluster)["replicas"][0]["notElectable"] == "in maintenance"
    assert maintain(cluster, 1, on=False).code == 0
    assert cluster.group().maintenance_ids == ()


def test_one_in_maintenance_leads_if_nobody_else_can() -> None:
    cluster, brokers = group_of(2)
    for number in (1, 2):
        assert maintain(cluster, number).code == 0
    cluster.run(3000)
    group = cluster.group()
    assert group.master_id == 2, "replica 1 handed over while replica 2 was not in maintenance yet"
    assert [item.cause for item in group.elections] == [Cause.FIRST_ELECTION, Cause.MAINTENANCE]
    brokers[0].epoch = brokers[1].epoch = 2
    assert cluster.alter([1, 2]).code == 0
    cluster.crash(brokers[1])
    cluster.run(1000)
    assert cluster.group().master_id == 1


def test_a_master_that_nobody_can_take_over_from_hands_over_once_somebody_can() -> None:
    cluster, brokers = group_of(2)
    cluster.crash(brokers[1])
    cluster.run(3000)
    assert cluster.alter([1]).code == 0
    assert maintain(cluster, 1).code == 0
    cluster.run(3000)
    assert (cluster.group().master_id, brokers[0].hand_overs) == (1, [])
    cluster.boot(brokers[1])
    cluster.run(1000)
    assert cluster.group().master_id == 1, "not in the set yet"
    assert cluster.alter([1, 2]).code == 0
    cluster.run(1000)
    assert cluster.group().master_id == 2


def test_a_group_in_maintenance_may_be_resized_and_cleaned() -> None:
    cluster, brokers = group_of(2)
    cluster.crash(brokers[1])
    cluster.run(3000)
    assert cluster.alter([1]).code == 0
    assert maintain(cluster, 1).code == 0 and maintain(cluster, 2).code == 0
    ids = {"clusterName": CLUSTER, "brokerName": GROUP, "brokerControllerIdsToClean": "2"}
    assert cluster.call(RequestCode.CONTROLLER_CLEAN_BROKER_METADATA, ids).code == 0
    assert cluster.group().maintenance_ids == (1,)
    assert cluster.call(RequestCode.RMQHA_RESIZE_GROUP, {"brokerName": GROUP, "totalReplicas": "1"}).code == 0
    brokers[0].bound_total_replicas = 1
    cluster.run(1000)
    assert (cluster.group().total_replicas, cluster.group().next_total_replicas) == (1, 0)


def test_maintenance_survives_a_change_of_the_leading_controller_and_a_snapshot() -> None:
    cluster, _ = group_of(3, ha_mode="cp", node_count=3)
    assert maintain(cluster, 3).code == 0
    assert decode_image(encode_image(cluster.leader.machine.info)) == cluster.leader.machine.info
    cluster.kill(cluster.leader)
    cluster.run(3000, until=cluster.has_leader)
    assert cluster.group().maintenance_ids == (3,)


def test_maintenance_of_what_is_not_there() -> None:
    cluster, _ = group_of(2)
    for name, broker_id, words in ((GROUP, 7, "has no replica 7"), ("nowhere", 1, "there is no group nowhere")):
        ext = {"brokerName": name, "brokerId": str(broker_id), "on": "true"}
        answer = cluster.call(RequestCode.RMQHA_SET_MAINTENANCE, ext)
        assert answer.code != 0 and words in (answer.remark or "")


# --- learners ---------------------------------------------------------------------------------------------------------
def test_a_learner_registers_and_is_not_elected_when_all_others_are_dead() -> None:
    cluster, brokers = group_of(2, enable_elect_unclean_master=True)
    learner = Broker(3, epoch=1, max_offset=1000, total_replicas=2, ha_mode="ap", async_learner=True)
    cluster.boot(learner)
    cluster.run(600)
    assert cluster.group().replicas[3].async_learner  # type: ignore[index]
    for broker in brokers:
        cluster.crash(broker)
    cluster.run(5000)
    assert cluster.group().master_id is None
    assert explained(cluster)["replicas"][2]["notElectable"] == "an async learner"


# --- the preferred master -------------------------------------------------------------------------------------------


def switched(**keys: Any) -> tuple[Cluster, list[Broker]]:
    """Replica 2 leads, all are in the set; replica 1 is preferred."""
    cluster, brokers = group_of(3, preferred_master_after_ms=5000, **keys)
    assert cluster.elect(2).code == 0
    for broker in brokers:
        broker.epoch, broker.max_offset = 2, 2000
    assert cluster.alter([1, 2, 3]).code == 0
    return cluster, brokers


def test_the_role_goes_back_once_all_has_been_calm_for_long_enough() -> None:
    cluster, brokers = switched(preferred_master_rebalance=True)
    cluster.run(4400)
    assert cluster.group().master_id == 2
    cluster.run(1600)
    group = cluster.group()
    assert (group.master_id, group.elections[-1].cause) == (1, Cause.PREFERRED)
    assert brokers[1].hand_overs[-1]["targetBrokerId"] == "1"
    assert group.elections[-1].reason.startswith("broker-a-1 is preferred and has been caught up for 5")
    epoch = group.master_epoch
    cluster.run(60_000)
    assert cluster.group().master_epoch == epoch, "and there it stays"


def test_by_default_the_role_stays_where_it_is() -> None:
    cluster, _ = switched()
    cluster.run(60_000)
    assert cluster.group().master_id == 2
    assert explained(cluster)["preferredBrokerId"] == 1


def test_the_lowest_priority_is_preferred() -> None:
    cluster, brokers = group_of(3, preferred_master_rebalance=True, preferred_master_after_ms=1000)
    brokers[2].priority = 5
    cluster.run(3000)
    assert cluster.group().master_id == 3


@pytest.mark.parametrize("trouble", ["a replica is out of the set", "a disk is ill", "a replica is stopping", "a lag"])
def test_never_during_trouble(trouble: str) -> None:
    cluster, brokers = switched(preferred_master_rebalance=True)
    cluster.run(3000)
    match trouble:
        case "a replica is out of the set":
            assert cluster.alter([1, 2]).code == 0
        case "a disk is ill":
            brokers[2].disk_problem = "no write ended for 5000 ms"
        case "a replica is stopping":
            brokers[2].stopping = True
        case _:
            brokers[0].max_offset, brokers[1].max_offset = 0, 2**30
    cluster.run(30_000)
    assert cluster.group().master_id == 2
    brokers[2].disk_problem, brokers[2].stopping = "", False
    for broker in brokers:
        broker.max_offset = 2**30
    if trouble == "a replica is out of the set":
        assert cluster.alter([1, 2, 3]).code == 0
    cluster.run(4500)
    assert cluster.group().master_id == 2, "the calm begins anew"
    cluster.run(2000)
    assert cluster.group().master_id == 1


def test_a_hand_over_that_fails_is_tried_again_after_as_long() -> None:
    cluster, brokers = switched(preferred_master_rebalance=True)
    brokers[1].hand_over = ResponseCode.SYSTEM_ERROR
    cluster.run(30_000)
    assert cluster.group().master_id == 2
    assert 4 <= len(brokers[1].hand_overs) <= 6


def test_a_new_leader_gives_the_role_back_too() -> None:
    cluster, _ = switched(preferred_master_rebalance=True, node_count=3)
    cluster.run(3000)
    cluster.kill(cluster.leader)
    cluster.run(20_000)
    assert cluster.group().master_id == 1


def test_switching_it_on_at_run_time_is_enough() -> None:
    cluster, _ = switched()
    cluster.run(10_000)
    text = b"preferredMasterRebalance=true"
    token = cluster.send(Command(RequestCode.CONTROLLER_UPDATE_CONFIG, {}, text))
    cluster.run(10_000, until=lambda: cluster.group().master_id == 1)
    assert cluster.replies[token].code == 0
    assert cluster.group().master_id == 1
