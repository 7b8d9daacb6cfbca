"""A registered replica that lies about its epoch: one word of it must not use up the numbers its group has left."""

from __future__ import annotations

import pytest

from controller.state.answers import MAX_EPOCH, MAX_EPOCH_AHEAD
from rmqha.model.code import ResponseCode
from tests.controller.harness import Broker, Cluster, group_of

WAYS = ("heartbeat", "accepted epoch", "answer to 1007")


def lie(cluster: Cluster, liar: Broker, how: str, epoch: int) -> None:
    """Tell an epoch once, in one of the ways in which replicas tell theirs."""
    known = liar.epoch
    if how == "accepted epoch":
        liar.accepted_epoch = epoch
        cluster.register(liar)
        liar.accepted_epoch = None
    else:
        liar.epoch = epoch
        if how == "heartbeat":
            cluster.send(liar.beat(), liar.session_id)
            cluster.run(10)
            liar.epoch = known


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("ahead", [MAX_EPOCH_AHEAD + 1, MAX_EPOCH])
def test_an_epoch_that_cannot_be_is_not_believed(how: str, ahead: int) -> None:
    """The master dies, and its heir leads and is heard."""
    cluster, brokers = group_of(3)
    master, heir, liar = brokers
    known = cluster.group().master_epoch
    for broker in brokers:
        broker.epoch, broker.max_offset = known, 100
    cluster.run(1000)
    lie(cluster, liar, how, min(MAX_EPOCH, known + ahead))
    cluster.crash(master)
    cluster.run(1000)
    group = cluster.group()
    assert group.master_id == heir.broker_id and group.master_epoch == known + 1
    liar.epoch = heir.epoch = group.master_epoch
    cluster.run(5000)
    assert cluster.group().master_id == heir.broker_id, "its heartbeats count"
    assert heir.last_answer is not None and heir.last_answer.code == ResponseCode.SUCCESS


@pytest.mark.parametrize("how", WAYS)
def test_one_that_controllers_may_have_forgotten_is(how: str) -> None:
    cluster, brokers = group_of(3)
    known = cluster.group().master_epoch
    lie(cluster, brokers[2], how, known + MAX_EPOCH_AHEAD)
    cluster.crash(brokers[0])
    cluster.run(1000)
    assert cluster.group().master_epoch == known + MAX_EPOCH_AHEAD + 1


def test_a_replica_is_told_why_it_does_not_count() -> None:
    cluster, brokers = group_of(2)
    liar = brokers[1]
    liar.epoch = MAX_EPOCH
    cluster.run(1000)
    answer = liar.last_answer
    assert answer is not None and answer.code == ResponseCode.CONTROLLER_INVALID_REQUEST
    assert f"epoch {MAX_EPOCH}" in (answer.remark or "")
    liar.accepted_epoch = MAX_EPOCH
    answer = cluster.register(liar)
    assert answer.code == ResponseCode.CONTROLLER_INVALID_REQUEST and f"epoch {MAX_EPOCH}" in (answer.remark or "")
