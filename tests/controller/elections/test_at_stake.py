"""Nobody leads who may lack acknowledged messages unless the bytes at stake are said. Each fails without its rule."""

from __future__ import annotations

import pytest

from rmqha.model.code import RequestCode
from tests.controller.harness import CLUSTER, GROUP, Broker, Cluster, group_of


def test_bytes_at_stake_are_told() -> None:
    cluster, brokers = group_of(3)
    assert cluster.alter([1]).code == 0
    brokers[0].max_offset, brokers[1].max_offset = 5000, 1500
    cluster.run(600)
    cluster.crash(brokers[0])
    cluster.run(100)
    assert cluster.elect(2, unclean=True).code == 0
    assert dict(cluster.tracer.events)["unclean_election"]["bytes_at_stake"] == 3500


def test_bytes_of_a_newer_epoch_are_at_stake_however_long_the_log_is() -> None:
    cluster, brokers = group_of(3)
    assert cluster.alter([1]).code == 0
    brokers[0].epoch, brokers[0].max_offset, brokers[1].max_offset = 2, 1500, 5000
    cluster.run(600)
    cluster.crash(brokers[0])
    cluster.run(100)
    assert cluster.elect(2, unclean=True).ext["bytesAtStake"] == "1"


def test_a_stale_replica_does_not_lead_by_a_clean_and_a_resize() -> None:
    """What only the dead master held is lost by an unclean election, which says so, and by nothing else."""
    cluster, brokers = group_of(2)
    assert cluster.alter([1]).code == 0
    brokers[0].max_offset = 5000
    cluster.run(600)
    cluster.crash(brokers[0])
    cluster.run(100)
    ids = {"clusterName": CLUSTER, "brokerName": GROUP, "brokerControllerIdsToClean": "1"}
    refused = cluster.call(RequestCode.CONTROLLER_CLEAN_BROKER_METADATA, ids)
    assert "broker-a-2 lacks 4000 bytes or more of it" in (refused.remark or "")
    cluster.call(RequestCode.RMQHA_RESIZE_GROUP, {"brokerName": GROUP, "totalReplicas": "1"})
    cluster.run(5000)
    assert cluster.group().master_id is None
    answer = cluster.elect(2, unclean=True)
    assert (answer.code, answer.ext["bytesAtStake"]) == (0, "4000")
    assert cluster.call(RequestCode.CONTROLLER_CLEAN_BROKER_METADATA, ids).code == 0
    cluster.run(1000)
    assert (cluster.group().master_id, sorted(cluster.group().replicas)) == (2, [2])


@pytest.mark.parametrize("key", [0, 2, 4])
def test_the_controllers_key_makes_no_first_election_smaller(key: int) -> None:
    cluster = Cluster(total_replicas=key)
    cluster.run(3000, until=cluster.has_leader)
    brokers = [Broker(number, total_replicas=3, ha_mode="ap", max_offset=number) for number in (1, 2, 3)]
    for broker in brokers[:2]:
        cluster.boot(broker)
    cluster.run(2000)
    assert cluster.group().master_id is None
    cluster.boot(brokers[2])
    cluster.run(2000)
    assert cluster.group().master_id == (3 if key <= 3 else None)
