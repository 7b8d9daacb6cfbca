"""A4: who joins and leaves the SyncStateSet, by time and by bytes, rule by rule."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from rmqha.ha.action import AckStatus
from rmqha.ha.stream.log_sender import ConnectionState
from rmqha.ha.sync_state import Members
from rmqha.ha.sync_state_set_manager import CHECK_INTERVAL_MS, DISCONNECT_GRACE_MS, SyncStateSetManager
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.identity import Role
from rmqha.model.offset import BrokerId, Epoch, PhyOffset
from rmqha.wire.command import Command
from rmqha.wire.ha_stream import SlaveAck, SlaveHandshake
from tests.ha.group import Group, started
from tests.ha.memory_log import MemoryLog
from tests.support.tracer import RecordingTracer

CONN_ID = 50
ONE, TWO, SLAVE_ID = BrokerId(1), BrokerId(2), BrokerId(3)


class HandFed:
    """Replica 3 of a group, played by the test: it says what it likes, whatever it is sent."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.master = group[1].replica
        group[3].alive = False
        for conn_id in list(group[3].links):
            group.close(group[3], conn_id)
        group.settle()
        self.hear(SlaveHandshake(SLAVE_ID).encode(), first=True)

    def hear(self, data: bytes, *, first: bool = False) -> None:
        if first:
            self.master.ha_accepted(self.group.now_ms, CONN_ID, "127.0.0.1:9")
        self.master.ha_received(self.group.now_ms, CONN_ID, data)
        self.group.settle()

    def ack(self, offset: int) -> None:
        self.hear(SlaveAck(PhyOffset(offset)).encode())

    def takes(self) -> None:
        """The kernel took what was sent."""
        self.master.ha_sent(self.group.now_ms, CONN_ID)
        self.group.settle()

    @property
    def view(self) -> dict[str, Any]:
        members = self.master.state(self.group.now_ms).to_json()["setMembers"]
        return next((item for item in members if item["brokerId"] == SLAVE_ID), {})


def asynchronous(**options: Any) -> Group:
    return started(ha_mode="", broker_role="ASYNC_MASTER", **options)


def test_defaults_with_their_units() -> None:
    config = BrokerConfig()
    assert (config.ha_max_time_slave_not_catchup, config.ha_max_gap_not_in_sync) == (15_000, 256 * 1024 * 1024)
    assert (config.ha_ack_stall_bound_ms, DISCONNECT_GRACE_MS, CHECK_INTERVAL_MS) == (2000, 500, 100)


def test_a_slave_that_keeps_acking_but_falls_behind_leaves_by_time() -> None:
    """It acknowledges half of what comes: after 30 s it is where the master was 15 s ago. When it was level is known at
    some moments only, so it may leave earlier, but not before it was behind for haMaxTimeSlaveNotCatchup."""
    group = asynchronous()
    slave = HandFed(group)
    slave.ack(0)
    assert 3 in group.controller.members
    began_at_ms = group.now_ms
    acked = 0
    while 3 in group.controller.members:
        group.send(1, b"x" * 100)
        slave.takes()
        group.run(50)
        acked += 50
        slave.ack(acked)
        group.run(50)
        assert group.now_ms - began_at_ms < 40_000
    assert 15_000 <= group.now_ms - began_at_ms <= 30_200


def test_a_slave_one_message_behind_all_the_time_stays() -> None:
    group = asynchronous()
    slave = HandFed(group)
    slave.ack(0)
    for number in range(400):
        group.send(1, b"x" * 100)
        slave.takes()
        group.run(100)
        slave.ack(number * 100)
    assert group.controller.members == [1, 2, 3]


@pytest.mark.parametrize(("acked", "joins"), [(99, False), (100, True)])
def test_who_joins_holds_the_confirm_offset(acked: int, joins: bool) -> None:
    group = asynchronous()
    group.kill(3)
    group.run(1000)
    group.send(1)
    group.run(100)
    assert (group.controller.members, group[1].log.confirm) == ([1, 2], 100)
    slave = HandFed(group)
    slave.ack(acked)
    group.run(200)
    assert (3 in group.controller.members) == joins


def test_who_joins_has_reached_the_current_epochs_start() -> None:
    """A new CP master's confirm offset is still below its epoch's start: what it was elected with comes first."""
    group = started()
    group.cut = {(2, 1), (3, 1)}
    group.send(1)  # both slaves have it, nobody has acknowledged it
    group.settle()
    group.kill(1)
    group.kill(3)
    group.elect(2)
    group.run(100)
    assert (group[2].log.confirm, group[2].log.max_phy_offset) == (0, 100)
    master = group[2].replica
    master.ha_accepted(group.now_ms, CONN_ID, "127.0.0.1:9")
    master.ha_received(group.now_ms, CONN_ID, SlaveHandshake(SLAVE_ID).encode())
    master.ha_received(group.now_ms, CONN_ID, SlaveAck(PhyOffset(0)).encode())
    group.run(200)
    assert group.controller.members == [2]
    master.ha_sent(group.now_ms, CONN_ID)
    master.ha_received(group.now_ms, CONN_ID, SlaveAck(PhyOffset(100)).encode())
    group.run(200)
    assert group.controller.members == [2, 3]


def test_who_joins_a_restarted_master_holds_all_that_it_may_have_acknowledged() -> None:
    """Its confirm offset on disk may be older than what it acknowledged in its former life, in the same epoch."""
    group = started()
    group.kill(3)
    group.run(1000)
    token = group.send(1)
    group.run(100)
    assert (group[1].done[token], group.controller.members) == (AckStatus.OK, [1, 2])
    group.kill(1)
    group.kill(2)
    group[1].log.confirm = PhyOffset(0)
    master = group.restart(1).replica
    group.run(100)
    assert group[1].replica.role is Role.PROMOTING, "what consumers may have seen is not committed yet"
    master.ha_accepted(group.now_ms, CONN_ID, "127.0.0.1:9")
    master.ha_received(group.now_ms, CONN_ID, SlaveHandshake(SLAVE_ID).encode())
    master.ha_received(group.now_ms, CONN_ID, SlaveAck(PhyOffset(0)).encode())
    group.run(1000)
    assert 3 not in group.controller.members
    master.ha_sent(group.now_ms, CONN_ID)
    master.ha_received(group.now_ms, CONN_ID, SlaveAck(PhyOffset(100)).encode())
    group.run(1000)
    assert group.controller.members == [1, 3]
    assert group.master_is(1)


def test_a_learner_never_joins() -> None:
    group = asynchronous()
    group.kill(3)
    group.run(1000)
    master = group[1].replica
    master.ha_accepted(group.now_ms, CONN_ID, "127.0.0.1:9")
    master.ha_received(group.now_ms, CONN_ID, SlaveHandshake(SLAVE_ID, async_learner=True).encode())
    master.ha_received(group.now_ms, CONN_ID, SlaveAck(PhyOffset(0)).encode())
    group.run(5000)
    assert group.controller.members == [1, 2]


def test_changes_carry_master_epoch_and_set_epoch() -> None:
    group = started()
    group.controller.seen.clear()
    before = group.controller.set_epoch
    group.kill(3)
    group.run(700)
    (asked,) = [item for item in group.controller.seen if item.code == RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET]
    assert int(asked.ext["masterEpoch"]) == group.controller.epoch
    body = json.loads(bytes(asked.body))
    assert (body["syncStateSet"], body["syncStateSetEpoch"]) == ([1, 2], before)


def test_when_and_why_each_member_leaves_is_shown() -> None:
    group = started(ha_max_gap_not_in_sync=1000)
    slave = HandFed(group)
    slave.ack(0)
    assert (slave.view["leavesInMs"], slave.view["leavesBecause"]) == (None, None)
    group.send(1)
    group.run(300)
    assert (slave.view["ackOffset"], slave.view["silentForMs"], slave.view["leavesInMs"]) == (0, 300, 1700)
    group.send(1, b"x" * 1000)
    assert slave.view["leavesInMs"] == 0
    assert slave.view["leavesBecause"] == "it is more than haMaxGapNotInSync = 1000 bytes behind"


class AskedLink:
    """A controllers' link that remembers what it was asked and never answers by itself."""

    def __init__(self) -> None:
        self.asked: list[Members] = []

    def alter_sync_state_set(self, now_ms: int, epoch: Epoch, members: Members, set_epoch: int) -> int:
        self.asked.append(members)
        return len(self.asked)

    def ask_replica_info(self) -> None:
        pass


def test_an_answer_to_an_earlier_proposal_says_nothing_of_the_present_one() -> None:
    """The controllers show a newer set while the first request is under way; the refusal of that one comes late."""
    link: Any = AskedLink()
    manager = SyncStateSetManager(
        BrokerConfig(ha_mode="ap"), MemoryLog(), link, RecordingTracer(), lambda slave_id: True
    )
    manager.begin(0, ONE, Epoch(1), (ONE, TWO, SLAVE_ID), 1, resumed=False)
    manager.maintain(1000, [])
    manager.shown(1010, (ONE, TWO), 2)
    manager.maintain(1200, [])
    assert link.asked == [(ONE,), (ONE,)]
    refusal = Command(ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED)
    manager.replied(1210, 1, refusal)
    assert manager.state.proposed == (ONE,)
    manager.replied(1220, 2, refusal)
    assert manager.state.proposed is None


def test_a_new_mastership_waits_for_no_answer_of_the_last() -> None:
    """The answer, should it come, is about an epoch that is over."""
    link: Any = AskedLink()
    manager = SyncStateSetManager(BrokerConfig(), MemoryLog(), link, RecordingTracer(), lambda slave_id: True)
    manager.begin(0, ONE, Epoch(1), (ONE, TWO), 1, resumed=False)
    manager.maintain(1000, [])
    manager.begin(1100, ONE, Epoch(2), (ONE, TWO), 2, resumed=False)
    manager.maintain(2000, [])
    assert link.asked == [(ONE,), (ONE,)]
    manager.replied(2010, 1, Command(ResponseCode.CONTROLLER_BROKER_NOT_ALIVE))
    assert manager.state.proposed == (ONE,)


def test_a_master_gives_its_members_time_to_connect() -> None:
    link: Any = AskedLink()
    manager = SyncStateSetManager(BrokerConfig(), MemoryLog(), link, RecordingTracer(), lambda slave_id: True)
    manager.begin(10_000, ONE, Epoch(1), (ONE, TWO), 1, resumed=False)
    manager.maintain(10_000 + DISCONNECT_GRACE_MS - 1, [])
    assert link.asked == []
    manager.maintain(10_000 + DISCONNECT_GRACE_MS, [])
    assert link.asked == [(ONE,)]


def test_a_refusal_does_not_end_what_was_proposed_before_and_has_no_answer() -> None:
    """The lost request may be on its way still: who it lets in is waited for until a newer set shows how it ended."""
    link: Any = AskedLink()
    manager = SyncStateSetManager(BrokerConfig(), MemoryLog(), link, RecordingTracer(), lambda slave_id: True)
    manager.begin(0, ONE, Epoch(1), (ONE, TWO), 1, resumed=False)
    state = manager.state
    state.propose((ONE, TWO, SLAVE_ID))
    state.lost()
    state.propose((ONE,))
    state.refused()
    assert set(state.union) == {ONE, TWO, SLAVE_ID}
    assert state.decided((ONE, TWO), 2, answered=True)
    assert set(state.union) == {ONE, TWO}


@pytest.mark.parametrize(
    ("code", "union"),
    [
        (ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH, {ONE, TWO, SLAVE_ID}),
        (ResponseCode.CONTROLLER_BROKER_NOT_ALIVE, {ONE, TWO}),
    ],
)
def test_a_set_that_has_moved_is_no_refusal(code: ResponseCode, union: set[BrokerId]) -> None:
    """An earlier copy of the same request may have moved it: who it lets in is waited for."""
    link: Any = AskedLink()
    manager = SyncStateSetManager(BrokerConfig(), MemoryLog(), link, RecordingTracer(), lambda slave_id: True)
    manager.begin(0, ONE, Epoch(1), (ONE, TWO), 1, resumed=False)
    manager._propose(0, (ONE, TWO, SLAVE_ID))
    assert manager._alter_call_id is not None
    manager.replied(10, manager._alter_call_id, Command(code))
    assert set(manager.state.union) == union


def test_only_the_newest_connection_says_what_a_member_holds() -> None:
    """A member that has lost its power may come back with less than it had acknowledged before."""
    link: Any = AskedLink()
    manager = SyncStateSetManager(BrokerConfig(), MemoryLog(), link, RecordingTracer(), lambda slave_id: True)
    manager.begin(0, ONE, Epoch(1), (ONE, TWO), 1, resumed=False)

    def acks(*offsets: int | None) -> list[PhyOffset | None]:
        shaken = {"slave_id": TWO, "state": ConnectionState.TRANSFER, "async_learner": False}
        connections: Any = [SimpleNamespace(acked_offset=offset, **shaken) for offset in offsets]
        return manager.member_acks(connections)

    assert acks(200) == [200]
    assert acks() == [None]
    assert acks(None) == [None]
    assert acks(100) == [100]
