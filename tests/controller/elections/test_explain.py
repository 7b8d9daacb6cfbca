"""Requests 52010 and 52011, and what heartbeats tell: reasons that operators read."""

from __future__ import annotations

from rmqha.model.code import RequestCode, ResponseCode
from rmqha.wire.command import Command
from tests.controller.harness import GROUP, Cluster, explained, group_of


def resize(cluster: Cluster, total: int) -> Command:
    return cluster.call(RequestCode.RMQHA_RESIZE_GROUP, {"brokerName": GROUP, "totalReplicas": str(total)})


def test_why_this_master() -> None:
    cluster, brokers = group_of(3, ha_mode="cp")
    assert explained(cluster)["answer"].startswith("broker-a-1 is master of epoch 1: first election of the group (")
    brokers[1].priority = 7
    cluster.run(600)
    cluster.crash(brokers[0])
    cluster.run(100)
    view = explained(cluster)
    assert view["answer"] == (
        "broker-a-2 is master of epoch 2: the master died (master broker-a-1 is dead: probe failed; "
        "longest in the SyncStateSet)"
    )
    assert [(item["brokerId"], item["notElectable"]) for item in view["replicas"]] == [
        (1, "not alive"),
        (2, None),
        (3, None),
    ]
    assert view["elections"][-1]["atMs"] == 2502


def test_why_no_master_and_why_not_each_replica() -> None:
    cluster, brokers = group_of(4)
    assert cluster.alter([1, 2]).code == 0
    cluster.crash(brokers[1])
    cluster.crash(brokers[0])
    brokers[2].stopping, brokers[3].disk_problem = True, "input/output error"
    cluster.run(3000)
    view = explained(cluster)
    assert view["answer"] == (
        "there is no master: no member of the last SyncStateSet is ready to lead; "
        "waiting for one of: broker-a-1, broker-a-2"
    )
    assert [item["notElectable"] for item in view["replicas"]] == [
        "not alive",
        "not alive",
        "not in the SyncStateSet",
        "not in the SyncStateSet",
    ]
    assert view["elections"][-1]["cause"] == "NO_LIVE_MEMBER"
    assert view["elections"][-1]["reason"].startswith("no member of the last SyncStateSet")


def test_the_last_ten_elections_are_kept() -> None:
    cluster, brokers = group_of(2)
    for turn in range(12):
        target = 2 - turn % 2
        assert cluster.elect(target).code == 0
        for broker in brokers:
            broker.epoch = cluster.group().master_epoch
        assert cluster.alter([1, 2]).code == 0
    elections = explained(cluster)["elections"]
    assert [item["masterEpoch"] for item in elections] == list(range(4, 14))
    assert {item["causeText"] for item in elections} == {"an operator asked for it"}


def test_a_group_that_nobody_knows_is_said_so() -> None:
    answer = Cluster().call(RequestCode.RMQHA_EXPLAIN_GROUP, {"brokerName": "x"})
    assert answer.code == ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST
    assert answer.remark == "there is no group x; see rmqha status for those there are"


def test_the_masters_report_of_its_slaves_is_shown() -> None:
    cluster, brokers = group_of(2)
    command = brokers[0].beat()
    command.ext["slaves"] = "2:100:7:2048;3:x:0:0;;4:1"
    cluster.send(command, brokers[0].session_id)
    assert explained(cluster)["replicas"][0]["slaves"] == [
        {"brokerId": 2, "lagBytes": 100, "lagMs": 7, "bytesPerSecond": 2048}
    ]


def test_a_larger_group_waits_for_its_master() -> None:
    cluster, brokers = group_of(3, ha_mode="cp")
    answer = resize(cluster, 5)
    assert (answer.code, answer.ext) == (0, {"totalReplicas": "3", "nextTotalReplicas": "5"})
    cluster.run(600)
    assert brokers[0].last_answer is not None and brokers[0].last_answer.ext["totalReplicas"] == "5"
    assert cluster.group().total_replicas == 3
    assert resize(cluster, 7).code == ResponseCode.CONTROLLER_INVALID_REQUEST
    brokers[0].bound_total_replicas = 5
    cluster.run(600)
    assert (cluster.group().total_replicas, cluster.group().next_total_replicas) == (5, 0)
    assert explained(cluster)["totalReplicas"] == 5


def test_a_smaller_group_is_smaller_at_once() -> None:
    cluster, brokers = group_of(3, ha_mode="cp")
    cluster.crash(brokers[2])
    cluster.run(100)
    ids = {"clusterName": "DefaultCluster", "brokerName": GROUP, "brokerControllerIdsToClean": "3"}
    assert cluster.call(RequestCode.CONTROLLER_CLEAN_BROKER_METADATA, ids).code == 0
    assert resize(cluster, 2).code == 0
    cluster.run(10)
    assert (cluster.group().total_replicas, cluster.group().next_total_replicas) == (2, 0)


def test_a_change_survives_the_masters_death() -> None:
    cluster, brokers = group_of(3)
    assert resize(cluster, 4).code == 0
    cluster.crash(brokers[0])
    brokers[1].bound_total_replicas = 4
    cluster.run(1200)
    assert (cluster.group().master_id, cluster.group().total_replicas) == (2, 3), "it said so before it took its epoch"
    brokers[1].epoch = int(cluster.group().master_epoch)
    cluster.run(1200)
    assert (cluster.group().master_id, cluster.group().total_replicas) == (2, 4)
