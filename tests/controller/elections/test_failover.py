"""A machine with one voter: detection, election, hand-over. Each test fails without the rule it names."""

from __future__ import annotations

import pytest

from controller.elections.heartbeat import BrokerKey
from controller.state.event import Cause
from rmqha.ha.stream.registered import encode_registered
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.offset import BrokerId
from rmqha.raft.config import RaftConfig
from rmqha.raft.quorum import identity
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import loads
from tests.controller.harness import GROUP, Broker, Cluster, group_of
from tests.support.steps import done


def names_after(cluster: Cluster, start: int) -> list[str]:
    return [name for name in cluster.tracer.names()[start:] if name.startswith(("master_", "group_"))]


def test_closed_session_of_a_dead_master_elects_at_once() -> None:
    cluster, brokers = group_of(3)
    start, before_ms = len(cluster.tracer.events), cluster.now_ms
    cluster.crash(brokers[0])
    cluster.run(100, until=lambda: cluster.group().master_id == 2)
    assert cluster.now_ms - before_ms <= 5, "no heartbeat time-out is waited for"
    group = cluster.group()
    assert (group.master_id, group.master_epoch, group.sync_state_set) == (2, 2, (2,))
    assert names_after(cluster, start) == ["master_suspected", "master_dead", "master_elected"]
    assert dict(cluster.tracer.events)["master_elected"] == {
        "group": GROUP,
        "broker_id": 2,
        "epoch": 2,
        "cause": "MASTER_DEAD",
    }


def test_a_connection_that_stood_for_a_dead_broker_stands_for_nobody() -> None:
    """Its end, which may come late, is no news of a broker that has come back by another one."""
    cluster, brokers = group_of(3)
    cluster.pause(brokers[1])
    cluster.run(5000)
    leadership = cluster.leader.machine._leadership
    assert leadership is not None
    live = leadership.table.get(BrokerKey(GROUP, BrokerId(2)))
    assert live is not None and (live.alive, live.session_id) == (False, None)
    assert brokers[1].session_id not in leadership.table._sessions


def test_a_change_that_the_log_refused_is_taken_when_it_is_asked_for_again() -> None:
    """The controllers' leadership is handed to who lacks entries and never comes: nothing is proposed until that is
    given up, by the same leader."""
    cluster, _ = group_of(3, node_count=3)
    leader = cluster.leader
    lagging = next(node for node in cluster.nodes.values() if node is not leader)
    cluster.kill(lagging)
    assert cluster.alter([1, 2]).code == ResponseCode.SUCCESS
    assert leader.machine._raft.transfer_leadership(cluster.now_ms, identity(lagging.node_id, lagging.incarnation))
    assert cluster.alter([1, 2, 3]).code == ResponseCode.CONTROLLER_NOT_LEADER
    cluster.run(3 * RaftConfig().election_timeout_ms)
    assert cluster.leader is leader
    assert cluster.alter([1, 2, 3]).code == ResponseCode.SUCCESS


def test_silence_after_a_closed_session_is_death() -> None:
    cluster, brokers = group_of(3)
    cluster.pause(brokers[0])
    cluster.close_session(brokers[0].session_id)
    before_ms = cluster.now_ms
    cluster.run(500, until=lambda: cluster.group().master_id != 1)
    assert 50 <= cluster.now_ms - before_ms < 60


def test_an_answered_probe_keeps_the_master() -> None:
    cluster, brokers = group_of(3)
    start = len(cluster.tracer.events)
    cluster.close_session(brokers[0].session_id)
    cluster.run(10_000)
    assert cluster.group().master_id == 1
    assert names_after(cluster, start) == ["master_suspected", "master_answers"]


def test_a_master_that_answers_probes_but_heartbeats_no_more_ends_with_its_time_out() -> None:
    cluster, brokers = group_of(3)
    brokers[0].beating = False
    last_ms = cluster.now_ms
    cluster.run(10_000, until=lambda: cluster.group().master_id != 1)
    assert 1500 <= cluster.now_ms - last_ms <= 2010


def test_the_late_end_of_an_older_session_evicts_nobody() -> None:
    cluster, brokers = group_of(3)
    old = brokers[0].session_id
    cluster.boot(brokers[0])
    assert brokers[0].session_id != old
    brokers[0].probes = "refuse"
    start = len(cluster.tracer.events)
    cluster.close_session(old)
    cluster.run(5000)
    assert cluster.group().master_id == 1
    assert names_after(cluster, start) == []


def test_a_heartbeat_binds_a_new_session_after_the_old_one_was_lost() -> None:
    cluster, brokers = group_of(3)
    cluster.close_session(brokers[0].session_id)
    cluster.run(1000)
    cluster.crash(brokers[0])
    cluster.run(20)
    assert cluster.group().master_id == 2


def test_a_late_heartbeat_is_probed_and_a_refusal_is_death() -> None:
    cluster, brokers = group_of(3)
    brokers[0].beating, brokers[0].probes = False, "refuse"
    before_ms = cluster.now_ms
    cluster.run(5000, until=lambda: cluster.group().master_id != 1)
    assert 500 <= cluster.now_ms - before_ms <= 1010


def test_a_pause_shorter_than_the_time_out_changes_nothing() -> None:
    cluster, brokers = group_of(3)
    start = len(cluster.tracer.events)
    cluster.pause(brokers[0])
    cluster.run(1500)
    assert names_after(cluster, start) == ["master_suspected"]
    brokers[0].probes, brokers[0].beating = "answer", True
    cluster._beat(brokers[0], brokers[0].session_id)
    cluster.run(5000)
    assert cluster.group().master_id == 1


def test_a_pause_longer_than_the_time_out_elects() -> None:
    cluster, brokers = group_of(3)
    cluster.pause(brokers[0])
    before_ms = cluster.now_ms
    cluster.run(5000, until=lambda: cluster.group().master_id != 1)
    assert 1500 <= cluster.now_ms - before_ms <= 2010
    # it wakes up as a slave: the heartbeat's answer names the new master
    brokers[0].probes, brokers[0].beating = "answer", True
    cluster._beat(brokers[0], brokers[0].session_id)
    cluster.run(10)
    answer = brokers[0].last_answer
    assert answer is not None and answer.ext["masterBrokerId"] == str(cluster.group().master_id) != "1"


def test_the_fresh_log_end_decides_not_the_heartbeats() -> None:
    cluster, brokers = group_of(3)
    brokers[1].max_offset, brokers[2].max_offset = 2000, 2001  # after their last heartbeat
    cluster.crash(brokers[0])
    cluster.run(20)
    assert cluster.group().master_id == 3


def test_a_silent_candidate_is_skipped() -> None:
    cluster, brokers = group_of(3)
    brokers[1].max_offset, brokers[1].probes = 5000, "silent"
    before_ms = cluster.now_ms
    cluster.crash(brokers[0])
    cluster.run(400, until=lambda: cluster.group().master_id != 1)
    assert cluster.group().master_id == 3
    assert cluster.now_ms - before_ms <= 60


def test_an_answer_of_another_broker_at_the_address_counts_for_nothing() -> None:
    cluster, brokers = group_of(3)
    brokers[1].name, brokers[1].max_offset = "broker-b", 5000
    cluster.crash(brokers[0])
    cluster.run(400)
    assert cluster.group().master_id == 3


def test_only_members_of_the_set_are_elected() -> None:
    cluster, brokers = group_of(3)
    assert cluster.alter([1, 2]).code == 0
    brokers[2].max_offset = 9000
    cluster.crash(brokers[0])
    cluster.run(400)
    assert cluster.group().master_id == 2


def test_without_a_live_member_the_group_is_masterless_until_one_returns() -> None:
    cluster, brokers = group_of(3)
    assert cluster.alter([1, 2]).code == 0
    cluster.crash(brokers[1])
    cluster.crash(brokers[0])
    cluster.run(3000)
    group = cluster.group()
    assert (group.master_id, group.sync_state_set) == (None, (1, 2))
    answer = cluster.call(RequestCode.CONTROLLER_GET_REPLICA_INFO, {"brokerName": GROUP})
    assert answer.ext == {"masterEpoch": "1"}
    reason = loads(done(cluster.leader.machine.state(cluster.now_ms)))["groups"][GROUP]["whyNoMaster"]
    assert "waiting for one of: broker-a-1, broker-a-2" in reason
    before_ms = cluster.now_ms
    cluster.boot(brokers[1])
    cluster.run(1000, until=lambda: cluster.group().master_id is not None)
    assert (cluster.group().master_id, cluster.group().master_epoch) == (2, 2)
    assert cluster.now_ms - before_ms <= 10, "its registration triggers the election"


def test_a_survivor_stays_eligible_until_the_new_masters_first_alter() -> None:
    cluster, brokers = group_of(3, ha_mode="cp")
    cluster.crash(brokers[0])
    cluster.run(20)
    group = cluster.group()
    assert (group.master_id, group.sync_state_set, group.eligible) == (2, (2,), (3,))
    cluster.crash(brokers[1])
    cluster.run(20)
    assert cluster.group().master_id == 3
    assert cluster.group().eligible == (), "no survivor is left"


@pytest.mark.parametrize("ha_mode", ["ap", ""])
def test_nobody_is_eligible_beside_a_master_that_may_acknowledge_alone(ha_mode: str) -> None:
    """In AP, and with Apache's brokers, it acknowledges at once and asks for no other set while it is alone: a survivor
    that was elected hours later lost 818 acknowledged messages in an election that called itself clean."""
    cluster, brokers = group_of(3, ha_mode=ha_mode)
    cluster.crash(brokers[0])
    cluster.run(20)
    assert (cluster.group().master_id, cluster.group().eligible) == (2, ())
    cluster.crash(brokers[1])
    cluster.run(3000)
    assert cluster.group().master_id is None, "3 may lack what 2 has acknowledged"
    cluster.boot(brokers[1])
    cluster.run(3000)
    assert cluster.group().master_id == 2


def test_the_first_alter_ends_eligibility() -> None:
    cluster, brokers = group_of(3, ha_mode="cp")
    cluster.crash(brokers[0])
    cluster.run(20)
    assert cluster.group().eligible == (3,)
    cluster.boot(brokers[0])
    assert cluster.alter([1, 2]).code == 0
    assert cluster.group().eligible == ()
    cluster.crash(brokers[0])
    cluster.crash(brokers[1])
    cluster.run(3000)
    assert cluster.group().master_id is None, "3 may lack what 1 and 2 acknowledged"


def test_cp_members_of_a_set_below_the_majority_stay_eligible() -> None:
    cluster, brokers = group_of(3, ha_mode="cp")
    cluster.crash(brokers[1])
    cluster.crash(brokers[2])
    cluster.run(10)
    assert cluster.alter([1]).code == 0
    assert (cluster.group().sync_state_set, cluster.group().eligible) == ((1,), (2, 3))
    cluster.crash(brokers[0])
    cluster.run(100)
    assert cluster.group().master_id is None
    cluster.boot(brokers[2])
    cluster.run(100)
    assert cluster.group().master_id == 3


def test_cp_set_that_may_acknowledge_ends_eligibility() -> None:
    cluster, brokers = group_of(3, ha_mode="cp")
    cluster.crash(brokers[2])
    cluster.run(10)
    assert cluster.alter([1, 2]).code == 0
    assert cluster.group().eligible == ()


def test_two_replicas_in_cp_leave_nobody_eligible() -> None:
    """The promoted one acknowledges alone (ruling 6), so the other may not follow it."""
    cluster, brokers = group_of(2, ha_mode="cp")
    assert cluster.elect(2).code == 0
    assert (cluster.group().sync_state_set, cluster.group().eligible) == ((2,), ())
    cluster.crash(brokers[1])
    cluster.run(3000)
    assert cluster.group().master_id is None


def test_two_replicas_in_cp_promote_the_slave() -> None:
    cluster, brokers = group_of(2, ha_mode="cp")
    cluster.crash(brokers[0])
    cluster.run(20)
    assert cluster.group().master_id == 2


def test_every_live_replica_is_told_of_a_new_master() -> None:
    cluster, brokers = group_of(3)
    cluster.notified.clear()
    assert cluster.elect(2).code == 0
    assert [address for address, _ in cluster.notified] == [broker.address for broker in brokers]
    notice = brokers[0].notices[-1]
    assert notice.code == RequestCode.NOTIFY_BROKER_ROLE_CHANGED and notice.is_oneway
    assert notice.ext == {
        "masterBrokerId": "2",
        "masterAddress": brokers[1].address,
        "masterEpoch": "2",
        "syncStateSetEpoch": "3",
        "masterHaAddress": "127.0.0.1:20002",
        "registered": encode_registered({BrokerId(item.broker_id): (item.address, item.address) for item in brokers}),
        "totalReplicas": "3",
    }
    assert bytes(notice.body) == b'{"syncStateSet":[2],"syncStateSetEpoch":3}'


def test_no_notice_if_switched_off() -> None:
    cluster, _ = group_of(3, notify_broker_role_changed=False)
    assert cluster.elect(2).code == 0
    assert cluster.notified == []


def test_a_stopping_master_hands_over_and_is_released() -> None:
    cluster, brokers = group_of(3)
    brokers[2].max_offset = 2000
    brokers[0].stopping = True
    cluster.run(600)
    assert cluster.group().master_id == 3
    assert cluster.group().elections[-1].cause is Cause.CONTROLLED_SHUTDOWN
    cluster.run(600)
    answer = brokers[0].last_answer
    assert answer is not None and (answer.ext["released"], answer.ext["masterBrokerId"]) == ("true", "3")


def test_a_stopping_master_without_a_successor_is_released() -> None:
    cluster, brokers = group_of(3)
    assert cluster.alter([1]).code == 0
    brokers[0].stopping = True
    cluster.run(1200)
    answer = brokers[0].last_answer
    assert cluster.group().master_id == 1
    assert answer is not None and answer.ext["released"] == "true"


def test_a_stopping_replica_is_not_elected() -> None:
    cluster, brokers = group_of(3)
    brokers[1].stopping, brokers[1].max_offset = True, 5000
    cluster.run(600)
    cluster.crash(brokers[0])
    cluster.run(400)
    assert (cluster.group().master_id, cluster.group().master_epoch) == (3, 2)


def test_a_replica_whose_session_is_lost_is_not_elected_before_it_speaks_again() -> None:
    """It may have been restarted since and boot unclean, which only its next registration will tell."""
    cluster, brokers = group_of(3, ha_mode="cp")
    brokers[1].beating, brokers[1].max_offset = False, 5000
    cluster.close_session(brokers[1].session_id)
    cluster.run(10)
    cluster.crash(brokers[0])
    cluster.run(100)
    assert (cluster.group().master_id, cluster.group().master_epoch) == (3, 2)


def test_a_registration_that_waited_is_void_when_its_session_has_ended() -> None:
    """The replica is gone: only a time-out would tell it from one that lives. Simulation: `groups`, seed 1200003."""
    cluster, brokers = group_of(3)
    brokers[0].hand_over = None
    cluster.send_elect(2)
    cluster.crash(brokers[2])
    cluster.run(100)
    ext = {"brokerName": GROUP, "brokerId": "3", "brokerAddress": brokers[2].address}
    session_id = brokers[2].session_id + 1
    void = cluster.send(Command(RequestCode.CONTROLLER_REGISTER_BROKER, ext), session_id)
    kept = cluster.send(Command(RequestCode.CONTROLLER_REGISTER_BROKER, ext | {"brokerId": "2"}), session_id + 1)
    cluster.close_session(session_id)
    cluster.run(3000, until=lambda: kept in cluster.replies)
    assert kept in cluster.replies, "the hand-over is over"
    assert cluster.leader.machine.live_ids(cluster.now_ms, cluster.group()) == [1, 2]
    assert void not in cluster.replies


def test_a_replica_that_spoke_while_it_was_probed_lives() -> None:
    cluster, brokers = group_of(3)
    brokers[0].probes = "refuse"
    cluster.close_session(brokers[0].session_id)
    brokers[0].session_id += 100
    cluster.send(brokers[0].beat(), brokers[0].session_id)
    cluster.run(100)
    assert cluster.group().master_id == 1


def test_the_new_epoch_exceeds_that_of_replicas_that_were_not_asked() -> None:
    cluster, brokers = group_of(3)
    assert cluster.alter([1, 2]).code == 0
    brokers[2].epoch = 9
    cluster.run(600)
    cluster.crash(brokers[0])
    cluster.run(100)
    assert (cluster.group().master_id, cluster.group().master_epoch) == (2, 10)


def test_the_new_epoch_exceeds_what_replicas_have_accepted_without_a_record_of_it() -> None:
    """Found by `make sim SEED=701164`: controllers that had forgotten all gave an epoch a second master."""
    cluster = Cluster()
    for number in (1, 2):
        accepted = 3 if number == 2 else 2
        cluster.boot(Broker(number, epoch=2, max_offset=100, total_replicas=3, ha_mode="cp", accepted_epoch=accepted))
    assert cluster.elect(1, unclean=True).code == 0
    cluster.run(100)
    assert (cluster.group().master_id, cluster.group().master_epoch) == (1, 4)


@pytest.mark.parametrize("epoch", [-2, 2**31])
def test_an_accepted_epoch_out_of_range_is_refused(epoch: int) -> None:
    cluster = Cluster()
    broker = Broker(1, total_replicas=1, ha_mode="cp")
    cluster.boot(broker, beat=False)
    broker.accepted_epoch = epoch
    assert cluster.register(broker).code == ResponseCode.CONTROLLER_INVALID_REQUEST


def test_a_replica_that_booted_unclean_does_not_count_in_a_first_election() -> None:
    cluster = Cluster()
    for number in (1, 2):
        cluster.boot(Broker(number, total_replicas=3, ha_mode="cp"))
    cluster.boot(Broker(3, total_replicas=3, ha_mode="cp", max_offset=9), unclean=True, beat=False)
    cluster.run(5000)
    assert cluster.group().master_id is None


def test_first_election_waits_for_all_replicas_and_takes_the_longest_log() -> None:
    cluster = Cluster()
    brokers = [Broker(number, epoch=4, max_offset=number * 100, total_replicas=3, ha_mode="cp") for number in (1, 2, 3)]
    cluster.boot(brokers[0])
    cluster.boot(brokers[1])
    cluster.run(5000)
    assert cluster.group().master_id is None
    assert cluster.elect(2, designated=False).code == ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
    assert cluster.elect(2).code == ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
    cluster.boot(brokers[2])
    cluster.run(100)
    group = cluster.group()
    assert (group.master_id, group.sync_state_set) == (3, (3,))
    assert group.master_epoch == 5, "above every epoch that a replica has seen: the controllers may be new"


def test_operator_may_elect_uncleanly_before_all_have_come() -> None:
    cluster = Cluster()
    cluster.boot(Broker(1, max_offset=7, total_replicas=3, ha_mode="cp"))
    cluster.boot(Broker(2, max_offset=9, total_replicas=3, ha_mode="cp"))
    answer = cluster.elect(None, unclean=True)
    assert (answer.code, answer.ext["masterBrokerId"]) == (0, "2")


def test_first_asker_of_an_apache_group_becomes_master_unasked() -> None:
    cluster = Cluster()
    broker = Broker(1)
    cluster.boot(broker)
    broker.probes = "refuse"  # it asks before it listens
    cluster.run(2000)
    assert cluster.group().master_id is None
    answer = cluster.elect(1, designated=False)
    assert (answer.code, answer.ext["masterEpoch"], answer.ext["syncStateSetEpoch"]) == (0, "1", "1")


@pytest.mark.parametrize("ha_mode", ["ap", "cp"])
def test_automatic_unclean_election_is_for_ap_only(ha_mode: str) -> None:
    cluster, brokers = group_of(3, ha_mode=ha_mode, enable_elect_unclean_master=True)
    assert cluster.alter([1, 2]).code == 0
    cluster.crash(brokers[1])
    cluster.crash(brokers[0])
    cluster.run(3000)
    group = cluster.group()
    if ha_mode == "ap":
        assert (group.master_id, group.elections[-1].cause) == (3, Cause.UNCLEAN_AUTOMATIC)
        assert "unclean_election" in cluster.tracer.names()
    else:
        assert group.master_id is None


def test_unclean_election_is_off_by_default() -> None:
    cluster, brokers = group_of(3)
    assert cluster.alter([1, 2]).code == 0
    cluster.crash(brokers[1])
    cluster.crash(brokers[0])
    cluster.run(3000)
    assert cluster.group().master_id is None


def test_an_unclean_boot_of_the_master_vacates_it() -> None:
    cluster, brokers = group_of(3, ha_mode="cp")
    brokers[0].beating = False
    answer = cluster.boot(brokers[0], unclean=True, beat=False)
    assert "masterBrokerId" not in answer.ext
    cluster.run(100)
    group = cluster.group()
    assert (group.master_id, group.eligible) == (2, (3,))


def test_a_member_that_booted_unclean_is_not_elected() -> None:
    cluster, brokers = group_of(3, ha_mode="cp")
    brokers[1].beating = False
    cluster.boot(brokers[1], unclean=True, beat=False)
    assert (cluster.group().sync_state_set, cluster.group().sync_state_set_epoch) == ((1, 3), 3)
    brokers[1].max_offset = 9000
    cluster.crash(brokers[0])
    cluster.run(100)
    assert cluster.group().master_id == 3


def test_after_an_unclean_boot_of_the_only_member_an_operator_decides() -> None:
    cluster, brokers = group_of(3, ha_mode="cp", enable_elect_unclean_master=True)
    for broker in brokers:
        broker.beating = False
        cluster.boot(broker, unclean=True, beat=False)
    cluster.run(10_000)
    group = cluster.group()
    assert (group.master_id, group.sync_state_set, group.set_known) == (None, (), True)
    reason = loads(done(cluster.leader.machine.state(cluster.now_ms)))["groups"][GROUP]["whyNoMaster"]
    assert "an operator must elect with unclean" in reason
    brokers[2].max_offset = 3000
    assert cluster.elect(3).code == ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
    answer = cluster.elect(3, unclean=True)
    assert (answer.code, answer.ext["masterBrokerId"]) == (0, "3")
    assert cluster.group().elections[-1].cause is Cause.UNCLEAN_BY_OPERATOR


def test_a_heartbeat_after_an_unclean_boot_makes_it_a_candidate_again() -> None:
    cluster, brokers = group_of(3, ha_mode="cp")
    brokers[1].beating = False
    cluster.boot(brokers[1], unclean=True, beat=False)
    brokers[1].beating = True
    cluster._beat(brokers[1], brokers[1].session_id)
    assert cluster.alter([1, 2]).code == 0
    cluster.crash(brokers[0])
    cluster.run(100)
    assert cluster.group().master_id == 2


def test_designated_election_refuses_a_replica_outside_the_set() -> None:
    cluster, _ = group_of(3)
    assert cluster.alter([1, 2]).code == 0
    answer = cluster.elect(3)
    assert answer.code == ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
    assert "elect with unclean" in (answer.remark or "")
    assert cluster.group().master_id == 1
    assert cluster.elect(3, unclean=True).code == 0
    assert (cluster.group().master_id, cluster.group().eligible) == (3, ())


def test_designated_election_of_a_silent_replica_fails() -> None:
    cluster, brokers = group_of(3)
    brokers[1].probes = "silent"
    answer = cluster.elect(2)
    assert answer.code == ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
    assert "1007" in (answer.remark or "")
    assert cluster.group().master_id == 1


def test_electing_the_master_again_names_it() -> None:
    cluster, brokers = group_of(3)
    for answer in (cluster.elect(1), cluster.elect(2, designated=False)):
        assert answer.code == ResponseCode.CONTROLLER_MASTER_STILL_EXIST
        assert (answer.ext["masterBrokerId"], answer.ext["masterAddress"]) == ("1", brokers[0].address)
        assert b'"syncStateSet":[1,2,3]' in bytes(answer.body)


def test_a_failed_election_is_tried_again_by_itself() -> None:
    cluster, brokers = group_of(3)
    brokers[1].probes = brokers[2].probes = "silent"
    cluster.crash(brokers[0])
    cluster.run(300)
    assert cluster.group().master_id is None
    brokers[1].probes = brokers[2].probes = "answer"
    cluster.run(1000)
    assert cluster.group().master_id == 2


def test_no_spurious_election_in_an_hour() -> None:
    cluster, _ = group_of(3)
    start = len(cluster.tracer.events)
    cluster.run(3_600_000)
    assert cluster.tracer.names()[start:] == []
    assert cluster.group().master_epoch == 1


def test_a_pause_of_the_controller_itself_evicts_nobody() -> None:
    """SIGSTOP, or a starved machine: the timer runs before the heartbeats that wait in the sockets are read."""
    cluster, brokers = group_of(3)
    cluster.now_ms += 30_000
    node = cluster.leader
    node.machine.timeout(cluster.now_ms)
    node.pump()
    cluster.run(10_000)
    assert (cluster.group().master_id, cluster.group().master_epoch) == (1, 1)
    assert "controller_paused" in cluster.tracer.names()
    cluster.pause(brokers[0])
    before_ms = cluster.now_ms
    cluster.run(5000, until=lambda: cluster.group().master_id != 1)
    assert 1500 <= cluster.now_ms - before_ms <= 2010, "afterwards the time-out is what it was"


def test_a_master_that_dies_during_a_pause_of_the_controller_is_found_after_it() -> None:
    cluster, brokers = group_of(3)
    cluster.pause(brokers[0])
    cluster.now_ms += 30_000
    cluster.leader.machine.timeout(cluster.now_ms)
    cluster.leader.pump()
    before_ms = cluster.now_ms
    cluster.run(5000, until=lambda: cluster.group().master_id != 1)
    assert cluster.now_ms - before_ms <= 2010


def test_steps_of_the_wall_clock_change_no_decision() -> None:
    """Time-outs live on the monotonic clock; the wall only stamps elections."""
    cluster, brokers = group_of(3)
    cluster.leader.machine._leadership._elections._wall_offset_ms = lambda: -(10**15)  # type: ignore[union-attr]
    cluster.run(60_000)
    assert cluster.group().master_epoch == 1
    cluster.crash(brokers[0])
    cluster.run(100)
    assert (cluster.group().master_id, cluster.group().elections[-1].at_ms < 0) == (2, True)


class Elsewhere(Broker):
    """The same identity at another address: a copied store, or a replica that has moved."""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{30000 + self.broker_id}"


def test_a_copied_store_does_not_take_over_who_it_is_a_copy_of() -> None:
    """It once was master of the same epoch beside the original, and took the group's members out of the set."""
    cluster, brokers = group_of(3)
    copy = Elsewhere(1, total_replicas=3, ha_mode="cp", session_id=77)
    answer = cluster.register(copy)
    assert answer.code == ResponseCode.CONTROLLER_INVALID_REQUEST
    assert "lives at 127.0.0.1:20001, this one says 127.0.0.1:30001: two processes with one identity" in str(
        answer.remark
    )
    cluster.run(5000)
    assert (cluster.group().master_id, set(cluster.group().sync_state_set)) == (1, {1, 2, 3})
    assert cluster.group().replicas[BrokerId(1)].address == brokers[0].address


def test_a_replica_that_has_moved_is_taken_once_its_old_connection_is_silent() -> None:
    """Half-open: its old machine is gone, no close was seen, and it sends heartbeats from the new one already."""
    cluster, brokers = group_of(3)
    brokers[0].beating = False
    moved = Elsewhere(1, total_replicas=3, ha_mode="cp", session_id=77, beating=True)
    cluster.brokers[moved.address] = moved
    cluster._beat(moved, 77)
    cluster.run(1000)
    assert cluster.register(moved).code == ResponseCode.CONTROLLER_INVALID_REQUEST
    cluster.run(1000)
    assert cluster.register(moved).code == ResponseCode.SUCCESS
    assert cluster.group().replicas[BrokerId(1)].address == moved.address


def test_a_replica_whose_address_changes_while_it_runs_is_taken_at_once() -> None:
    cluster, brokers = group_of(3)
    renamed = Elsewhere(1, total_replicas=3, ha_mode="cp", session_id=brokers[0].session_id)
    assert cluster.register(renamed).code == ResponseCode.SUCCESS
    assert cluster.group().replicas[BrokerId(1)].address == renamed.address
