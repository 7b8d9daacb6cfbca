"""Replicas under Apache's controllers: their heartbeats are answered without a word about the group, and the notice of
an election is sent once, to brokers that were heard of lately."""

from __future__ import annotations

from rmqha.ha.action import AckStatus
from rmqha.ha.controller_client import INFO_INTERVAL_MS
from rmqha.model.code import RequestCode
from tests.ha.group import Group, started


def under_apaches(count: int = 3, **options: object) -> Group:
    group = started(count, **options)
    group.controller.tells_group = group.controller.tells_registered = False
    return group


def test_who_missed_the_notice_of_an_election_finds_the_new_master_all_the_same() -> None:
    """Else the slave dials the dead master for ever, and the new one never has a majority."""
    group = under_apaches()
    group.kill(1)
    group.elect(2, tell=(2,))
    group.run(INFO_INTERVAL_MS + 1000)
    assert group.controller.members == [2, 3]
    token = group.send(2)
    group.settle()
    assert group[2].done[token] is AckStatus.OK


def test_who_missed_its_own_election_leads_all_the_same() -> None:
    group = under_apaches()
    group.kill(1)
    group.elect(2, tell=(3,))
    group.run(INFO_INTERVAL_MS + 1000)
    assert group.master_is(2) and group.controller.members == [2, 3]


def test_a_master_that_missed_its_deposition_steps_down() -> None:
    """It has lost nobody: the others go on following it until they hear."""
    group = under_apaches(2)
    group.elect(2, tell=())
    group.run(INFO_INTERVAL_MS + 1000)
    assert group.master_is(2) and not group.master_is(1)
    assert group.controller.members == [1, 2]


def test_the_controllers_are_asked_once_an_interval() -> None:
    """Ours tell it with each heartbeat and are not asked."""

    def asked(group: Group) -> int:
        group.controller.seen.clear()
        group.run(10 * INFO_INTERVAL_MS)
        return [item.code for item in group.controller.seen].count(RequestCode.CONTROLLER_GET_REPLICA_INFO)

    assert asked(started()) == 0
    assert 3 * 5 <= asked(under_apaches()) <= 3 * 11


def test_replicas_that_the_controllers_have_forgotten_register_again() -> None:
    """Apache's controllers go on answering their heartbeats with success."""
    group = under_apaches()
    group.controller.forgot_group = True
    group.controller.forgotten = {1, 2, 3}
    group.controller.seen.clear()
    group.run(INFO_INTERVAL_MS + 1000)
    applied = {
        item.ext["appliedBrokerId"]
        for item in group.controller.seen
        if item.code == RequestCode.CONTROLLER_APPLY_BROKER_ID
    }
    assert applied == {"1", "2", "3"}


def restarted_unclean(others: tuple[int, ...] = ()) -> Group:
    group = under_apaches(1)
    group.kill(1)
    for other in others:
        group.controller.addresses[other] = f"127.0.0.1:{10911 + 10 * other}"
    group[1].log.unclean = True
    group.controller.master = None
    group.controller.epoch += 1
    group.restart(1)
    group.run(3000)
    return group


def test_the_only_replica_of_a_group_of_one_leads_again_after_a_loss_of_power() -> None:
    """Apache's controllers elect nobody uncleanly, and nobody else has a log: else the group would be gone for good."""
    group = restarted_unclean()
    assert not group[1].log.unclean
    assert group[1].trace.named("unclean_accepted")
    group.elect(1)
    assert group.master_is(1)


def test_a_group_of_one_that_has_another_registered_replica_stays_out() -> None:
    group = restarted_unclean(others=(2,))
    assert group[1].log.unclean


def test_under_our_controllers_the_only_replica_waits_for_its_election() -> None:
    group = started(1)
    group.kill(1)
    group[1].log.unclean = True
    group.restart(1)
    group.run(3000)
    assert group[1].log.unclean


def test_an_id_that_the_controllers_do_not_give_back_is_asked_for_each_second_and_told_once() -> None:
    """Apache's controllers give a group that they have forgotten the id 1 first: who has another one waits."""
    group = under_apaches(1)
    group.controller.forgot_group = group.controller.refuses_ids = True
    group.controller.forgotten = {1}
    group.controller.seen.clear()
    group.run(10 * INFO_INTERVAL_MS)
    applied = [item.code for item in group.controller.seen].count(RequestCode.CONTROLLER_APPLY_BROKER_ID)
    assert 5 <= applied <= 11
    assert len(group[1].trace.named("controller_refuses")) == 1
    assert "2014" in (group[1].replica.state(group.now_ms).controller_refusal or "")
    group.controller.forgot_group = group.controller.refuses_ids = False
    group.run(2 * INFO_INTERVAL_MS)
    assert not group[1].replica.state(group.now_ms).controller_refusal
