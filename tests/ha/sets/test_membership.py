"""Who may be in the set: not drained replicas, nor async learners. The number of replicas changes at run time."""

from __future__ import annotations

import struct

import pytest

from rmqha.ha.action import AckStatus, CallController
from rmqha.model.code import RequestCode
from tests.ha.group import Group, Node, started


def drain(group: Group, *numbers: int) -> None:
    """As our controllers do: out of the set with the event, and told with every answer."""
    controller = group.controller
    controller.drained = list(numbers)
    controller.members = [item for item in controller.members if item not in numbers or item == controller.master]
    controller.set_epoch += 1
    group.run(600)


def alters(group: Group) -> int:
    return sum(1 for command in group.controller.seen if command.code == RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET)


def test_a_drained_slave_copies_on_is_waited_for_no_more_and_not_proposed_again() -> None:
    group = started()
    assert group.controller.members == [1, 2, 3]
    drain(group, 3)
    before = alters(group)
    group.send(1)
    group.run(5000)
    assert group[3].log.data == group[1].log.data
    assert group.controller.members == [1, 2]
    assert alters(group) == before, "the master knows: it does not ask in vain"
    group.cut = {(1, 3)}
    token = group.send(1)
    group.settle()
    assert group[1].done[token] is AckStatus.OK


def test_a_replica_that_is_put_back_joins_the_set_again() -> None:
    group = started()
    drain(group, 3)
    drain(group)
    group.run(1000)
    assert group.controller.members == [1, 2, 3]


def test_a_new_master_does_not_take_the_drained_one_into_its_set() -> None:
    group = started()
    drain(group, 1)
    group.elect(2)
    group.run(1000)
    assert (group.master_is(2), group.controller.members) == (True, [2, 3])
    assert group[1].replica.is_following


def with_learner(ha_mode: str) -> tuple[Group, Node]:
    """Replica 4 is an async learner of a group of three."""
    group = started(3, ha_mode=ha_mode)
    group.options["async_learner"] = True
    learner = group.add(4)
    group.run(1000)
    return group, learner


@pytest.mark.parametrize("ha_mode", ["ap", "cp"])
def test_a_learner_copies_and_is_neither_in_the_set_nor_waited_for(ha_mode: str) -> None:
    group, learner = with_learner(ha_mode)
    assert learner.replica.is_following
    assert group.controller.members == [1, 2, 3]
    for _ in range(3):
        group.send(1)
    group.run(600)
    assert learner.log.data == group[1].log.data
    assert learner.log.confirm == group[1].log.confirm > 0, "it serves what consumers may see"
    group.cut = {(1, 4)}
    token = group.send(1)
    group.settle()
    assert group[1].done[token] is AckStatus.OK
    slave = next(item for item in group[1].replica.state(group.now_ms).to_json()["slaves"] if item["brokerId"] == 4)
    assert slave["inSet"] is False


def test_a_learner_tells_the_controllers_and_never_asks_to_be_elected() -> None:
    group, learner = with_learner("cp")
    group.controller.master = None
    group.run(3000)
    mine = [command for command in group.controller.seen if command.ext.get("brokerId") == "4"]
    registrations = [command for command in mine if command.code == RequestCode.CONTROLLER_REGISTER_BROKER]
    assert registrations[0].ext["asyncLearner"] == "true"
    assert not [command for command in mine if command.code == RequestCode.CONTROLLER_ELECT_MASTER]
    others = [command for command in group.controller.seen if command.ext.get("brokerId") == "2"]
    assert [command for command in others if command.code == RequestCode.CONTROLLER_ELECT_MASTER]
    assert learner.replica.deadline_ms() is not None


@pytest.mark.parametrize("async_learner", [True, False])
def test_the_flag_of_a_java_handshake_makes_a_learner(async_learner: bool) -> None:
    """A Java slave says it on the HA stream alone: the controllers know nothing of it. State, isSyncFromLastFile,
    isAsyncLearner, brokerId; then its end."""
    group = started(2)
    group.controller.addresses[3] = "127.0.0.1:1"
    master = group[1].replica
    master.ha_accepted(group.now_ms, 99, "127.0.0.1:1")
    master.ha_received(group.now_ms, 99, struct.pack(">ihhq", 1, 0, async_learner, 3))
    group.settle()
    master.ha_received(group.now_ms, 99, struct.pack(">iq", 2, 0))
    group.run(300)
    slave = next(item for item in master.state(group.now_ms).to_json()["slaves"] if item["brokerId"] == 3)
    assert (slave["state"], slave["inSet"]) == ("transfer", not async_learner)
    assert group.controller.members == ([1, 2] if async_learner else [1, 2, 3])


def test_a_replica_declares_the_number_of_replicas_that_it_goes_by() -> None:
    """What the configuration says is the initial value only (ruling 15)."""
    group = started(1)
    group.controller.total_replicas = 3
    group.run(1000)
    declared = [
        command.ext["totalReplicas"]
        for command in group.controller.seen
        if command.code == RequestCode.CONTROLLER_REGISTER_BROKER
    ]
    assert declared == ["1", "3"]


def test_old_news_make_no_master_go_by_fewer_replicas() -> None:
    """Found by `make sim SEED=81 THEME=moments`: it would acknowledge with fewer than the controllers count on."""
    group = started(3)
    controller, master = group.controller, group[1].replica
    old_notice = controller.notice()
    old_notice.ext["totalReplicas"] = "3"
    for _ in range(2):  # it grows, or is as the configuration of another life says
        controller.total_replicas = 5
        group.run(1100)
        assert master.state(group.now_ms).total_replicas == 5
        master.role_notified(group.now_ms, old_notice)
        group.settle()
        assert master.state(group.now_ms).total_replicas == 5
    controller.total_replicas = 3
    group.run(1100)
    assert master.state(group.now_ms).total_replicas == 3


def test_of_two_answers_to_earlier_calls_neither_lowers_the_number_of_replicas() -> None:
    """Both calls were made before one was answered: which of the answers is the newer one is not known."""
    group = started(3)
    master, (ext, body) = group[1].replica, group.controller.group()
    master.role_notified_unproven(group.now_ms)
    master.disk_probed(group.now_ms, "it is slow")
    first, second = (item for item in master.actions() if isinstance(item, CallController))
    for call, told in ((first, 5), (second, 3)):
        answer = call.command.reply(ext=ext | {"totalReplicas": str(told)}, body=body)
        master.controller_replied(group.now_ms, call.call_id, answer)
        assert master.state(group.now_ms).total_replicas == 5
