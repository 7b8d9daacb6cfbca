"""A replica whose disk refuses to record the newest epoch: it steps down, follows nobody, and comes back by itself."""

from __future__ import annotations

from rmqha.ha.action import AckStatus
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.identity import Role
from tests.ha.group import Group, started
from tests.ha.memory_log import MemoryLog

FULL = "rmqha.highestEpoch: cannot write the file: No space left on device"


def full_master() -> tuple[Group, MemoryLog]:
    """Master 1 of three, whose disk has just filled up."""
    group = started()
    group[1].log.disk_error = FULL
    return group, group[1].log


def roles(group: Group, number: int) -> list[tuple[Role, int | None]]:
    return [(action.role, action.master_id) for action in group[number].roles]


def test_a_master_that_cannot_record_the_next_epoch_steps_down_all_the_same() -> None:
    group, log = full_master()
    group.cut = {(1, 2), (2, 1), (1, 3), (3, 1)}
    waiting = group.send(1)
    group.elect(2)
    assert group[1].done[waiting] is AckStatus.SERVICE_NOT_AVAILABLE
    assert group[1].replica.admission(group.now_ms)[0] is ResponseCode.SERVICE_NOT_AVAILABLE
    assert not group[1].replica.is_master
    assert log.highest_epoch == 1
    assert group[1].replica.state(group.now_ms).disk_problem == FULL


def test_it_follows_nobody_in_an_epoch_that_it_has_not_recorded() -> None:
    group, _ = full_master()
    group.elect(2)
    group.run(3000)
    assert not group[1].replica.is_following
    assert group[1].links == {}
    assert roles(group, 1)[-1] == (Role.SLAVE, None)
    assert len(roles(group, 1)) == 2, "told once, though every heartbeat is another try"
    assert group[1].trace.names().count("epoch_not_accepted") == 1


def test_it_knows_whom_to_pass_sends_on_to() -> None:
    """Nobody may follow in an epoch that is not durable; to tell a client's send where to go needs no epoch."""
    group, _ = full_master()
    group.elect(2)
    group.run(600)
    assert group[1].replica.master_address == ""
    assert group[1].replica.newest_master_address == group[2].config.address
    group.elect(3)
    assert group[1].replica.newest_master_address == group[3].config.address


def test_it_follows_as_soon_as_the_disk_takes_the_epoch() -> None:
    group, log = full_master()
    group.elect(2)
    group.run(1000)
    log.disk_error = ""
    group.run(1000)
    assert (group[1].replica.is_following, log.highest_epoch) == (True, 2)
    token = group.send(2)
    group.run(300)
    assert group[2].done[token] is AckStatus.OK
    assert sorted(group.controller.members) == [1, 2, 3]
    assert group[1].replica.state(group.now_ms).disk_problem == ""


def test_a_replica_that_cannot_record_its_own_election_does_not_lead() -> None:
    group, log = full_master()
    group.elect(2)
    group.elect(1)
    group.run(600)
    assert not group[1].replica.is_master
    log.disk_error = ""
    group.run(1000)
    assert group[1].replica.is_master


def test_a_disk_that_is_fuller_than_allowed_is_told_to_the_controllers() -> None:
    group = started()
    group[1].replica.disk_refusal = "the disk is full: 91.0 % are in use"
    group.run(600)
    beats = [item for item in group.controller.seen if item.code == RequestCode.BROKER_HEARTBEAT]
    found = [item.ext["diskProblem"] for item in beats if item.ext["brokerId"] == "1"]
    assert found[-1] == "the disk is full: 91.0 % are in use"


HANGS = "a small write has not ended for 5000 ms"


def test_a_master_whose_disk_hangs_steps_down_without_a_write() -> None:
    """Its heartbeats go on, it follows nobody and leads nobody, and comes back by itself."""
    group = started()
    replica, log = group[1].replica, group[1].log
    log.disk_hangs = True
    replica.disk_probed(group.now_ms, HANGS, hangs=True)
    group.elect(2)
    group.run(3000)
    assert not replica.is_master and not replica.is_following and log.highest_epoch == 1
    assert replica.state(group.now_ms).disk_problem == HANGS
    before = len(group.controller.seen)
    group.run(2000)
    beats = [item.ext for item in group.controller.seen[before:] if item.code == RequestCode.BROKER_HEARTBEAT]
    assert {item["diskProblem"] for item in beats if item["brokerId"] == "1"} == {HANGS}
    log.disk_hangs = False
    replica.disk_probed(group.now_ms, "")
    group.run(2000)
    assert (group[1].replica.is_following, group[1].log.highest_epoch) == (True, 2)


def test_a_disk_that_only_refuses_is_tried_all_the_same() -> None:
    """Better a master that can still read: nobody else may be left."""
    group = started()
    group[1].replica.disk_probed(group.now_ms, "No space left on device")
    group.elect(2)
    group.run(1000)
    assert group[1].replica.is_following
