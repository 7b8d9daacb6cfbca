"""The group rules as stories: each ruling named has a test that fails without it."""

from __future__ import annotations

import json

import pytest

from rmqha.ha.action import AckStatus, CallController
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.identity import Role, name_in_check_code
from rmqha.model.offset import Epoch, PhyOffset
from rmqha.wire.command import Command
from tests.ha.group import Group, started


def test_a_refusal_of_the_controllers_is_told_once_and_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(1)
    group.kill(1)
    answer, why = group.controller.answer, "two processes with one identity"

    def refused(command: Command) -> Command | None:
        if command.code == RequestCode.CONTROLLER_REGISTER_BROKER:
            return command.reply(ResponseCode.CONTROLLER_INVALID_REQUEST, remark=why)
        return answer(command)

    monkeypatch.setattr(group.controller, "answer", refused)
    node = group.restart(1)
    group.run(5000)
    told = [fields["reason"] for fields in node.trace.named("controller_refuses")]
    assert told == [f"code {ResponseCode.CONTROLLER_INVALID_REQUEST}: {why}"]
    monkeypatch.undo()
    group.run(5000)
    assert not node.replica.state(group.now_ms).controller_refusal


def test_ids_are_applied_for_in_two_phases_and_kept() -> None:
    group = Group(1)
    codes = [command.code for command in group.controller.seen]
    assert codes[:3] == [
        RequestCode.CONTROLLER_GET_NEXT_BROKER_ID,
        RequestCode.CONTROLLER_APPLY_BROKER_ID,
        RequestCode.CONTROLLER_GET_CONFIG,
    ]
    assert codes[3] == RequestCode.CONTROLLER_REGISTER_BROKER
    assert group[1].identity.id == 1
    group.kill(1)
    again = group.restart(1)
    assert again.replica.broker_id == 1


def test_the_id_of_the_file_is_applied_for_first() -> None:
    """`rmqha up` numbers the nodes, so that broker-a-3 has the id 3, whichever of them is up first."""
    group = Group(0)
    group.options["broker_id"] = 3
    node = group.add(1)
    applied = next(item for item in group.controller.seen if item.code == RequestCode.CONTROLLER_APPLY_BROKER_ID)
    assert (applied.ext["appliedBrokerId"], applied.ext["wished"]) == ("3", "true")
    assert name_in_check_code(applied.ext["registerCheckCode"]) == "broker-a-3"
    assert node.replica.broker_id == 3


def test_an_id_that_another_has_is_given_up_for_the_next_one() -> None:
    group = Group(1)
    group.options["broker_id"] = 1
    node = group.add(2)
    group.run(500)
    assert node.replica.broker_id == 2
    last = [item for item in group.controller.seen if item.code == RequestCode.CONTROLLER_APPLY_BROKER_ID][-1]
    assert "wished" not in last.ext and name_in_check_code(last.ext["registerCheckCode"]) == "broker-a-1"


def test_cp_stays_out_of_a_controller_that_elects_uncleanly() -> None:
    """Ruling 10."""
    group = Group(1)
    group.kill(1)
    group.controller.config_text = b"enableElectUncleanMaster=true\n"
    node = group.restart(1)
    group.run(2000)
    assert node.replica.role is Role.STARTING
    assert "enableElectUncleanMaster=false" in node.replica.state(group.now_ms).to_json()["controllerRefusal"]
    assert "controller_unfit" in node.trace.names()
    group.controller.config_text = b"enableElectUncleanMaster=true\nprobeTimeoutMs=50\n"
    group.run(5000)
    assert node.replica.state(group.now_ms).controller == "registered"


def test_a_replica_that_the_controllers_have_forgotten_keeps_its_id() -> None:
    group = Group(1)
    group.kill(1)
    group.controller.forgotten = {1}
    again = group.restart(1)
    group.run(500)
    assert again.replica.broker_id == 1
    assert again.identity.temp is None
    assert again.replica.state(group.now_ms).controller == "registered"


def test_a_started_group_is_whole_and_every_send_is_on_all_replicas() -> None:
    group = started()
    assert group.master_is(1)
    assert group.controller.members == [1, 2, 3]
    token = group.send(1)
    group.settle()
    assert group[1].done[token] is AckStatus.OK
    assert [group[number].log.max_phy_offset for number in (1, 2, 3)] == [100, 100, 100]
    assert group[2].log.epochs == group[1].log.epochs
    group.run(50)
    assert [group[number].log.confirm for number in (1, 2, 3)] == [100, 100, 100]


def test_cp_refuses_before_the_write_while_the_confirmed_set_is_below_a_majority() -> None:
    """Ruling 1 (b)."""
    group = Group(3)
    group.cut = {(2, 1), (3, 1)}
    group.elect(1)
    group.run(100)
    code, remark = group[1].replica.admission(group.now_ms)
    assert code is ResponseCode.SYSTEM_ERROR
    assert remark.startswith("in-sync replicas not enough")


def test_a_waiting_send_is_not_acknowledged_when_the_set_shrinks_to_the_master() -> None:
    """Ruling 1: RocketMQ checks the minimum only before the append and would answer SEND_OK with one copy."""
    group = started()
    group.cut = {(1, 2), (1, 3), (2, 1), (3, 1)}
    token = group.send(1)
    group.kill(2)
    group.kill(3)
    group.run(2500)
    assert group.controller.members == [1]
    assert token not in group[1].done
    group.run(1000)
    assert group[1].done[token] is AckStatus.FLUSH_SLAVE_TIMEOUT
    assert group[1].log.confirm == 0


def test_a_cut_off_master_acknowledges_nothing_and_loses_the_fork() -> None:
    group = started()
    group.controller.away = True
    group.cut = {(1, 2), (1, 3), (2, 1), (3, 1)}
    token = group.send(1, b"lost" * 25)
    group.run(1500)
    assert token not in group[1].done
    group.controller.away = False
    group.elect(2, tell=(2, 3))
    group.run(100)
    assert group.master_is(2)
    kept = group.send(2, b"kept" * 25)
    group.settle()
    assert group[2].done[kept] is AckStatus.OK
    group.cut = set()
    group.run(600)
    assert group[1].done[token] is AckStatus.SERVICE_NOT_AVAILABLE
    assert group[1].replica.role is Role.SLAVE
    assert group[1].log.data == group[2].log.data == bytearray(b"kept" * 25)
    assert group[1].log.epochs == group[2].log.epochs


def test_acks_count_against_the_union_while_an_answer_is_lost() -> None:
    """Ruling 1: a lost answer keeps the union until the controller shows the outcome (apache/rocketmq 5663)."""
    group = started()
    group.kill(3)
    group.run(300)
    group.controller.lose_alter_replies = True
    token = group.send(1)
    group.run(300)
    assert group.controller.members == [1, 2]  # applied, but the master cannot know
    assert group[1].replica.state(group.now_ms).ack_union == [1, 2, 3]
    assert token not in group[1].done
    group.controller.lose_alter_replies = False
    group.run(600)  # the next heartbeat's answer shows the set
    assert group[1].done[token] is AckStatus.OK


def test_a_dead_slave_is_shrunk_out_and_rejoins() -> None:
    group = started()
    group.kill(2)
    token = group.send(1)
    group.run(200)
    assert token not in group[1].done
    group.run(500)
    assert group.controller.members == [1, 3]
    assert group[1].done[token] is AckStatus.OK
    group.restart(2)
    group.run(300)
    assert group.controller.members == [1, 2, 3]
    assert group[2].log.data == group[1].log.data


def test_two_slaves_that_leave_at_once_leave_in_one_request() -> None:
    """apache/rocketmq PR 9897."""
    group = started()
    group.controller.seen.clear()
    group.kill(2)
    group.kill(3)
    group.run(700)
    alters = [
        json.loads(bytes(command.body))["syncStateSet"]
        for command in group.controller.seen
        if command.code == RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET
    ]
    assert alters == [[1]]


def test_an_idle_slave_is_not_stalled_when_the_next_send_comes() -> None:
    group = started()
    group.run(20_000)
    assert group.controller.members == [1, 2, 3]
    group.auto_sync = False
    group.send(1)
    group.run(200)
    assert group.controller.members == [1, 2, 3]


def test_a_slave_that_stops_acking_is_shrunk_within_the_stall_bound() -> None:
    group = started()
    group.cut = {(2, 1)}  # data flows, acks do not
    token = group.send(1)
    group.run(1800)
    assert token not in group[1].done
    group.run(400)
    assert 2 not in group.controller.members
    assert group[1].done[token] is AckStatus.OK


def test_a_new_cp_master_shows_nothing_uncommitted_before_its_set_has_a_majority() -> None:
    """An uncommitted record must not become visible on one copy: the next election could cut it."""
    group = started()
    group.cut = {(3, 1)}
    group.send(1)  # slave 2 gets it; slave 3 gets it too but its ack never arrives: not committed
    group.settle()
    assert group[1].log.confirm == 0
    group.kill(1)
    group.kill(3)
    group.elect(2)
    group.run(300)
    assert group[2].log.max_phy_offset == 100
    assert group[2].log.confirm == 0
    assert group[2].replica.role is Role.PROMOTING
    group.restart(3)
    group.run(300)
    assert group.master_is(2)
    assert group[2].log.confirm == 100
    assert group[2].log.dispatched == 100


def test_an_ap_master_raises_confirm_and_dispatches_before_it_serves() -> None:
    """A7."""
    group = started(ha_mode="ap", broker_role="ASYNC_MASTER")
    group.cut = {(3, 1)}
    group.send(1)
    group.settle()
    assert group[2].log.confirm == 0
    group.kill(1)
    group.kill(3)
    group.elect(2)
    group.run(50)
    assert group.master_is(2)
    assert group[2].log.confirm == group[2].log.dispatched == 100


def test_ap_acknowledges_alone_and_cp_does_not() -> None:
    group = started(ha_mode="ap")
    group.cut = {(1, 2), (1, 3)}
    token = group.send(1)
    group.settle()
    assert group[1].done[token] is AckStatus.OK


def test_a_restarted_master_commits_nothing_before_the_set_epoch_has_moved() -> None:
    """A former life's request for a bigger set may still be under way; the union could not know its members."""
    group = started()
    group.kill(1)
    group.controller.refuse_alter = ResponseCode.SYSTEM_ERROR
    again = group.restart(1)
    group.run(300)
    assert again.replica.is_master
    code, remark = again.replica.admission(group.now_ms)
    assert code is ResponseCode.SYSTEM_ERROR
    assert "before its restart" in remark
    before = group.controller.set_epoch
    group.controller.refuse_alter = 0
    group.run(300)
    assert group.controller.set_epoch > before
    assert again.replica.admission(group.now_ms)[0] is ResponseCode.SUCCESS


def test_a_notice_without_a_proof_is_a_reason_to_ask_and_no_more() -> None:
    group = started()
    first, second = group[1].replica, group[2].replica

    def asked() -> int:
        return [item.code for item in group.controller.seen].count(RequestCode.CONTROLLER_GET_REPLICA_INFO)

    before = asked()
    second.role_notified_unproven(group.now_ms)
    group.settle()
    assert group.master_is(1) and not group.master_is(2) and asked() == before + 1, "it was a lie"
    group.controller.elect(2)
    for _ in range(50):
        second.role_notified_unproven(group.now_ms)
    group.settle()
    assert group.master_is(2), "it was true"
    assert asked() <= before + 3, "one question is under way and one follows, however often it is said"
    first.role_notified_unproven(group.now_ms)
    group.settle()
    assert not group.master_is(1)


def test_a_doubted_notice_is_not_lost_behind_a_question_under_way() -> None:
    """The answer that is under way may say what was before."""
    group = started()
    second = group[2].replica
    second.role_notified_unproven(group.now_ms)
    (asked,) = [item for item in second.actions() if isinstance(item, CallController)]
    ext, body = group.controller.group()
    group.controller.elect(2)
    second.role_notified_unproven(group.now_ms)
    assert not [item for item in second.actions() if isinstance(item, CallController)], "it waits for the first answer"
    second.controller_replied(group.now_ms, asked.call_id, asked.command.reply(ext=ext, body=body))
    group.settle()
    assert group.master_is(2)


def test_an_old_notice_is_no_proof_that_nothing_of_a_former_life_is_under_way() -> None:
    """Found by the specification (docs/internals/spec): a restarted master hears of its election again by a late
    notice, which shows the set of then. The set of now is news to it, and yet a request of its former life may still
    be applied."""
    group = Group()
    old_notice = group.controller.elect(1)
    group[1].replica.role_notified(group.now_ms, old_notice)
    group.run(1000)
    assert group.controller.members == [1, 2, 3]
    group.kill(3)
    group.run(1000)
    ext, body = group.controller.group()
    assert group.controller.members == [1, 2]
    group.kill(1)
    group.controller.away = True
    again = group.restart(1)
    again.replica.role_notified(group.now_ms, old_notice)
    group.run(100)
    assert again.replica.is_master
    again.replica.role_notified(group.now_ms, Command(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, ext, body))
    group.run(100)
    code, remark = again.replica.admission(group.now_ms)
    assert (code, "before its restart" in remark) == (ResponseCode.SYSTEM_ERROR, True), remark
    group.controller.away = False
    group.run(1500)
    assert again.replica.admission(group.now_ms)[0] is ResponseCode.SUCCESS


def test_an_unclean_replica_neither_beats_nor_asks_for_election_until_it_has_followed() -> None:
    """Ruling 3."""
    group = started()
    group.send(1)
    group.settle()
    group.kill(2)
    group[2].log.truncate(PhyOffset(0))
    group[2].log.unclean = True
    group.controller.seen.clear()
    group.cut = {(2, 1)}
    node = group.restart(2)
    group.run(1000)
    asked = {c.code for c in group.controller.seen if c.ext.get("brokerId") == "2"}
    assert RequestCode.BROKER_HEARTBEAT not in asked
    assert RequestCode.CONTROLLER_ELECT_MASTER not in asked
    assert asked == {RequestCode.CONTROLLER_REGISTER_BROKER}
    group.cut = set()
    group.run(1500)
    assert not node.log.unclean
    assert node.log.data == group[1].log.data
    asked = {c.code for c in group.controller.seen if c.ext.get("brokerId") == "2"}
    assert RequestCode.BROKER_HEARTBEAT in asked


def test_an_unclean_replica_waits_for_its_answer_without_spinning() -> None:
    """A deadline in the past while a request is under way kept a core busy; the simulation found it."""
    group = Group(1)
    group.kill(1)
    group[1].log.unclean = True
    group.restart(1)
    group.controller.silent = True
    group.run(3000)
    assert group[1].replica.role is Role.STARTING


def test_a_slave_whose_disk_hangs_does_not_spin() -> None:
    """Under SYNC_FLUSH the first ack waits for the disk, and nothing else has a reason to wake."""
    group = started(flush_disk_type="SYNC_FLUSH")
    group.auto_sync = False
    group.send(1)
    group.settle()
    group.kill(1)
    group.elect(2)
    group.run(12_000)
    assert group[3].log.max_phy_offset == 100
    assert group[2].replica.role is Role.PROMOTING


def test_an_unclean_master_does_not_resume_its_epoch() -> None:
    """Ruling 3: it may have lost bytes and would write others under the same (epoch, start)."""
    group = started(1)
    assert group.master_is(1)
    group.kill(1)
    group[1].log.unclean = True
    node = group.restart(1)
    group.run(1000)
    group.elect(1)  # decided without knowing: not accepted
    assert group[1].replica.role is Role.STARTING
    group.controller.elected_unclean = True
    group.elect(1)
    group.run(100)
    assert group.master_is(1)
    assert not node.log.unclean


def test_an_unclean_election_of_before_is_no_leave_to_resume() -> None:
    """Power goes once more in the epoch that an operator has begun: what tells of that election is old."""
    group = started(1)
    for _ in range(2):
        group.kill(1)
        group[1].log.unclean = True
        node = group.restart(1)
        group.run(1000)
        assert group[1].replica.role is Role.STARTING
        group.controller.elected_unclean = True
        if node.log.highest_epoch == 1:
            group.elect(1)
            group.run(100)
            assert group.master_is(1) and not node.log.unclean
    assert node.log.unclean


def test_a_master_that_goes_on_serves_when_all_it_had_is_committed_again() -> None:
    """Consumers may have seen it; the confirm offset on disk is an older one (consumers 1100012)."""
    group = started()
    for _ in range(3):
        group.send(1)
        group.settle()
    group.run(100)
    assert group[1].log.confirm_offset == 300
    for number in (1, 2, 3):
        group.kill(number)
    group[1].log.confirm = group[1].log.dispatched = 100
    node = group.restart(1)
    group.run(1000)
    assert (node.replica.role, node.replica.epoch) == (Role.PROMOTING, 1)
    group.restart(2)
    group.restart(3)
    group.run(1000)
    assert node.log.confirm_offset == 300
    assert group.master_is(1)


def test_stale_role_changes_are_refused_and_counted() -> None:
    """Ruling 4: the highest accepted epoch survives a restart, also one that left no entry."""
    group = started()
    group.elect(2)
    group.elect(3)
    assert group[1].log.highest_epoch == 3
    group.controller.master, group.controller.epoch = 1, 1
    group.controller.members = [1]
    group.run(600)
    assert group[1].replica.role is Role.SLAVE
    assert group[1].replica.state(group.now_ms).to_json()["staleRoleCount"] > 0
    group.kill(1)
    again = group.restart(1)
    group.run(300)
    assert again.replica.role is Role.STARTING


def test_an_empty_epoch_leaves_no_entry_that_could_lend_its_number() -> None:
    """apache/rocketmq 9942 and 9689: epochs without bytes, and a new epoch for the same master, are ordinary."""
    group = started()
    group.elect(2)
    group.run(100)
    group.elect(2)
    group.run(100)
    assert group[1].log.epochs == group[3].log.epochs == group[2].log.epochs
    token = group.send(2)
    group.settle()
    assert group[2].done[token] is AckStatus.OK
    assert [entry.epoch for entry in group[2].log.epochs] == [3]
    group.run(50)
    assert group[1].log.epochs == group[3].log.epochs == group[2].log.epochs


def test_a_new_master_cuts_half_a_record_before_its_epoch_starts() -> None:
    group = started()
    group.send(1)
    group.settle()
    group[2].log.half_record_bytes = 40
    group.kill(1)
    group.elect(2)
    assert group[2].log.max_phy_offset == 60
    assert [(e.epoch, e.start_offset) for e in group[2].log.epochs] == [(1, 0), (2, 60)]


def test_cp_never_cuts_below_the_own_confirm_offset() -> None:
    """Ruling 4: it stops with both histories instead."""
    group = started()
    group.send(1)
    group.send(1)
    group.run(50)
    assert group[3].log.confirm == 200
    group.kill(1)
    group.kill(2)
    group[2].log.truncate(PhyOffset(100))
    group.restart(2)
    group.elect(2)
    group.run(100)
    state = group[3].replica.state(group.now_ms).to_json()
    assert state["followState"] == "refused"
    assert "below the own confirm offset" in state["refusal"]
    assert group[3].log.max_phy_offset == 200


def test_two_replicas_in_cp_one_synced_copy() -> None:
    """Ruling 6."""
    group = started(2)
    token = group.send(1)
    group.settle()
    assert group[1].done[token] is AckStatus.OK
    assert not group[1].replica.sync_required
    group.auto_sync = False
    group.kill(1)
    group.elect(2)
    group[2].log.sync()
    group[2].replica.synced(group.now_ms)
    group.run(100)
    assert group.master_is(2)
    assert group[2].replica.sync_required
    alone = group.send(2)
    group.run(50)
    assert alone not in group[2].done
    group[2].log.sync()
    group[2].replica.synced(group.now_ms)
    group.settle()
    assert group[2].done[alone] is AckStatus.OK


def test_cp_without_controllers_accepts_only_while_the_whole_confirmed_set_is_reachable() -> None:
    """Ruling 5."""
    group = started()
    group.controller.away = True
    group.run(5000)
    token = group.send(1)
    group.settle()
    assert group[1].done[token] is AckStatus.OK
    group.kill(3)
    group.run(50)
    code, remark = group[1].replica.admission(group.now_ms)
    assert code is ResponseCode.SYSTEM_ERROR
    assert "away" in remark


def test_ap_without_controllers_shrinks_locally_and_says_since_when() -> None:
    """Ruling 5."""
    group = started(ha_mode="ap", all_ack_in_sync_state_set=True)
    group.controller.away = True
    group.kill(3)
    token = group.send(1)
    group.run(2500)
    assert group[1].done[token] is AckStatus.OK
    assert group[1].replica.state(group.now_ms).unconfirmed_for_ms is not None


def test_a_slave_under_sync_flush_acks_only_what_it_has_synced() -> None:
    group = started(flush_disk_type="SYNC_FLUSH")
    group.auto_sync = False
    token = group.send(1)
    group.settle()
    assert group[2].log.max_phy_offset == 100
    for number in (1, 2):
        group[number].log.sync()
        group[number].replica.synced(group.now_ms)
    group.settle()
    assert token not in group[1].done
    group[3].log.sync()
    group[3].replica.synced(group.now_ms)
    group.settle()
    assert group[1].done[token] is AckStatus.OK


def test_a_stopping_master_hands_over_when_its_slaves_have_everything() -> None:
    group = started()
    token = group.send(1)
    group[1].replica.stopping(group.now_ms)
    group.settle()
    assert group[1].done[token] is AckStatus.OK
    beats = [c for c in group.controller.seen if c.code == RequestCode.BROKER_HEARTBEAT and c.ext["brokerId"] == "1"]
    assert beats[-1].ext["stopping"] == "true"
    assert not group[1].replica.may_stop
    group.elect(2)
    assert group[1].replica.may_stop


@pytest.mark.parametrize("claim", [-1, 101, 2**62])
def test_an_ack_beyond_what_was_sent_drops_the_peer(claim: int) -> None:
    """apache/rocketmq 3015, 1155."""
    from rmqha.wire.ha_stream import SlaveAck

    group = started()
    group.send(1)
    group.settle()
    conn_id = next(iter(group[1].links))
    victim, _ = group[1].links[conn_id]
    group[1].replica.ha_received(group.now_ms, conn_id, SlaveAck(PhyOffset(claim)).encode())
    group.settle()
    assert conn_id not in group[1].links
    group.run(200)
    assert victim.number in group.controller.members
    assert group[1].log.epochs.last is not None
    assert group[1].log.epochs.last.epoch == Epoch(1)


def test_a_full_disk_refuses_sends_before_the_write() -> None:
    group = started()
    group[1].replica.disk_refusal = "the disk is full: free some space"
    assert group[1].replica.admission(group.now_ms) == (
        ResponseCode.SERVICE_NOT_AVAILABLE,
        "the disk is full: free some space",
    )
    assert not group[1].replica.state(group.now_ms).writable
    group[1].replica.disk_refusal = ""
    group.send(1)


def test_what_slaves_have_acknowledged_is_known_until_they_leave() -> None:
    group = started()
    group.send(1)
    group.settle()
    assert group[1].replica.slave_acks() == [(2, 100), (3, 100)]
    assert group[2].replica.slave_acks() == []
    group.kill(3)
    assert group[1].replica.slave_acks() == [(2, 100)]


def test_a_slave_asks_the_other_slaves_too_for_a_record_that_its_disk_has_lost() -> None:
    """Its master comes first, but may have removed what is old."""
    group = started()
    addresses = {number: node.config.address for number, node in group.nodes.items()}
    assert group[2].replica.holders(PhyOffset(0)) == [addresses[1], addresses[3]]
    group.controller.tells_registered = False
    assert group.restart(3).replica.holders(PhyOffset(0)) == [addresses[1]], "Apache's controllers name the master"
