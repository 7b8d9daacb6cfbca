"""A slave whose disk has no room for its log's next file: it leaves the set, stays up, and comes back by itself."""

from __future__ import annotations

import pytest

from rmqha.ha.action import AckStatus
from rmqha.ha.stream.replication_client import ROOM_CHECK_MS
from rmqha.model.code import RequestCode
from tests.ha.group import Group, started
from tests.ha.memory_log import NO_ROOM, MemoryLog
from tests.ha.stream.test_full_copy import with_one_behind
from tests.ha.test_static_group import Pair


def full_slave(group: Group, number: int = 3, more: int = 10) -> MemoryLog:
    """The slave has room for so many bytes more."""
    log = group[number].log
    log.room_end = log.max_phy_offset + more
    return log


def heartbeats(group: Group, number: int) -> list[str]:
    """The disk problem that each heartbeat of a replica has told."""
    seen = (item.ext for item in group.controller.seen if item.code == RequestCode.BROKER_HEARTBEAT)
    return [ext["diskProblem"] for ext in seen if ext["brokerId"] == str(number)]


def test_it_leaves_the_set_and_says_why_and_the_others_go_on() -> None:
    group = started()
    log = full_slave(group)
    token = group.send(1)
    group.run(700)
    assert group[1].done[token] is AckStatus.OK
    assert sorted(group.controller.members) == [1, 2]
    assert log.max_phy_offset == log.room_end, "what its last file has room for is there"
    slave = group[3].replica
    assert slave.state(group.now_ms).disk_problem == NO_ROOM
    assert heartbeats(group, 3)[-1] == NO_ROOM
    assert not slave.state(group.now_ms).refusal, "it would follow"


def test_it_comes_back_by_itself_when_there_is_room() -> None:
    group = started()
    log = full_slave(group)
    group.send(1)
    group.run(3000)
    assert group[3].trace.names().count("log_lacks_room") == 1, "told once, however long it lasts"
    log.room_end = None
    token = group.send(1)
    group.run(2 * ROOM_CHECK_MS)
    assert group[1].done[token] is AckStatus.OK
    assert sorted(group.controller.members) == [1, 2, 3]
    assert log.data == group[1].log.data
    assert (group[3].replica.state(group.now_ms).disk_problem, heartbeats(group, 3)[-1]) == ("", "")


def test_it_does_not_come_and_go_while_there_is_none() -> None:
    """It is level at the end of its last file, and so would join with each try."""
    group = started()
    full_slave(group, more=0)
    group.run(30_000)
    assert sorted(group.controller.members) == [1, 2]
    assert group[1].trace.names().count("set_changed") <= 3
    token = group.send(1)
    group.run(50)
    assert group[1].done[token] is AckStatus.OK, "no send waits for it"


def test_a_log_is_not_given_up_for_another_that_has_no_room() -> None:
    group = with_one_behind()
    old = bytes(group[3].log.data)
    log = full_slave(group)
    group.restart(3)
    group.run(3000)
    assert bytes(log.data) == old and log.start == 0
    assert group[3].replica.state(group.now_ms).disk_problem == NO_ROOM
    assert group[3].trace.names().count("log_lacks_room") == 1
    assert group[3].trace.names().count("ha_dropped") == 1, "no try without room"
    assert "ha_restarted" not in group[3].trace.names()
    log.room_end = None
    group.run(3000)
    assert group[3].trace.names().count("ha_restarted") == 1
    assert log.start == group[1].log.start
    group.run(1000)
    assert sorted(group.controller.members) == [1, 2, 3]


@pytest.mark.parametrize("starts_full", [False, True])
def test_it_starts_without_room_and_stays(starts_full: bool) -> None:
    group = Group(3, ha_mode="ap")
    log = group[3].log
    log.room_end = 0 if starts_full else 5
    group.elect(1)
    group.run(1000)
    token = group.send(1)
    group.run(2000)
    assert group[1].done[token] is AckStatus.OK
    assert group[3].replica.state(group.now_ms).disk_problem == NO_ROOM
    log.room_end = None
    group.run(3000)
    assert log.data == group[1].log.data


def test_a_slave_of_a_static_group_waits_too() -> None:
    pair = Pair()
    pair.connect()
    pair.slave.log.room_end = 100
    for _ in range(2):
        pair.master.add(pair.now_ms)
        pair.settle()
    pair.run(5000)
    assert pair.slave.log.max_phy_offset == 100
    assert pair.slave.replica.state(pair.now_ms).disk_problem == NO_ROOM
    assert pair.accepted == 1, "no try without room"
    pair.slave.log.room_end = None
    pair.run(2 * ROOM_CHECK_MS)
    assert pair.slave.log.data == pair.master.log.data
    assert pair.slave.replica.state(pair.now_ms).disk_problem == ""


def test_a_static_broker_tells_that_its_disk_is_too_full() -> None:
    pair = Pair()
    pair.master.replica.disk_refusal = "the disk is full: 91.0 % are in use"
    assert pair.master.replica.state(pair.now_ms).disk_problem == pair.master.replica.disk_refusal
