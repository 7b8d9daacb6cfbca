"""A static group in memory: both ends of the plain HA protocol, the ack rules, what goes wrong."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from rmqha.ha.action import AckStatus, Action, CloseHa, Complete, HandedOver, OpenHa, RoleChanged, SendHa, SendLog
from rmqha.ha.static_replica import STOP_AFTER_MS, StaticReplica
from rmqha.ha.stream.legacy_connection import FIRST_REPORT_TIMEOUT_MS
from rmqha.model.code import ResponseCode
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.error import ConfigError
from rmqha.model.identity import Role
from rmqha.model.offset import PhyOffset
from rmqha.wire.legacy_ha import encode_header, encode_report
from tests.ha.memory_log import MemoryLog
from tests.support.tracer import RecordingTracer

MASTER_HA = "127.0.0.1:10912"


def record(phy_offset: int, size_bytes: int = 100) -> bytes:
    """Not a message, but it begins like one: size, magic, own offset."""
    head = struct.pack(">iI20xq", size_bytes, 0xDAA320A7, phy_offset)
    return head + bytes([phy_offset % 251]) * (size_bytes - len(head))


class Member:
    def __init__(self, log: MemoryLog | None = None, **keys: Any) -> None:
        self.log = log or MemoryLog()
        self.trace = RecordingTracer()
        self.config = BrokerConfig(enable_controller_mode=False, **keys)
        self.config.check("test")
        self.replica = StaticReplica(self.config, self.log, self.trace)
        self.done: dict[Any, AckStatus] = {}
        self.roles: list[RoleChanged] = []
        self.closed: list[str] = []
        self.sent = bytearray()

    def add(self, now_ms: int, token: str = "") -> None:
        """Append a record as master; wait for it under `token`."""
        self.log.append_raw(self.log.max_phy_offset, record(self.log.max_phy_offset))
        if token:
            self.replica.wait(now_ms, self.log.max_phy_offset, token)
        self.replica.appended(now_ms)


class Pair:
    """A master and a slave. `settle` performs what both want; `cut` loses everything between them."""

    def __init__(self, slave_log: MemoryLog | None = None, master_log: MemoryLog | None = None, **keys: Any) -> None:
        self.now_ms = 1000
        self.cut = False
        self.auto_sync = True
        role = keys.pop("broker_role", "ASYNC_MASTER")
        self.master = Member(master_log, broker_role=role, listen_port=10911, **keys)
        self.slave = Member(slave_log, broker_role="SLAVE", broker_id=1, listen_port=10921, **keys)
        self.link: tuple[int, int] | None = None
        self.accepted = 0
        for member in (self.master, self.slave):
            member.replica.start(self.now_ms)
        self.settle()

    def connect(self) -> None:
        self.slave.replica.master_discovered(self.now_ms, "127.0.0.1:10911", MASTER_HA)
        self.settle()

    def settle(self) -> None:
        busy = True
        while busy:
            busy = False
            for member in (self.master, self.slave):
                log = member.log
                if self.auto_sync and log.synced < log.max_phy_offset:
                    log.sync()
                    member.replica.synced(self.now_ms)
                if log.dispatched < log.confirm:
                    log.dispatch(1 << 30)
                    member.replica.dispatched(self.now_ms)
                for action in member.replica.actions():
                    busy = True
                    self.perform(member, action)

    def perform(self, member: Member, action: Action) -> None:
        match action:
            case OpenHa(conn_id, address):
                assert address == MASTER_HA
                if self.cut:
                    self.slave.replica.ha_closed(self.now_ms, conn_id)
                else:
                    self.accepted += 1
                    self.link = (self.accepted, conn_id)
                    self.master.replica.ha_accepted(self.now_ms, self.accepted, "127.0.0.1:4711")
                    self.slave.replica.ha_opened(self.now_ms, conn_id)
            case SendHa(conn_id, data):
                self.deliver(member, conn_id, data)
            case SendLog(conn_id, header, phy_offset, size_bytes):
                self.deliver(member, conn_id, header + bytes(member.log.view(phy_offset, size_bytes)))
                member.replica.ha_sent(self.now_ms, conn_id)
            case CloseHa(_, reason):
                member.closed.append(reason)
                self.lose()
            case Complete(token, status):
                member.done[token] = status
            case RoleChanged():
                member.roles.append(action)

    def deliver(self, member: Member, conn_id: int, data: bytes) -> None:
        if self.link is None or self.cut or conn_id not in self.link:
            return
        if member is self.master:
            self.slave.replica.ha_received(self.now_ms, self.link[1], data)
        else:
            self.master.replica.ha_received(self.now_ms, self.link[0], data)

    def lose(self) -> None:
        """The connection is gone; both ends hear of it."""
        if self.link is not None:
            (accepted, dialed), self.link = self.link, None
            self.master.replica.ha_closed(self.now_ms, accepted)
            self.slave.replica.ha_closed(self.now_ms, dialed)

    def run(self, ms: int) -> None:
        """Let time pass, deadline by deadline."""
        end_ms = self.now_ms + ms
        while True:
            due = [item.replica.deadline_ms() for item in (self.master, self.slave)]
            next_ms = min((item for item in due if item is not None), default=end_ms)
            if next_ms > end_ms:
                break
            self.now_ms = max(self.now_ms, next_ms)
            for member in (self.master, self.slave):
                member.replica.timeout(self.now_ms)
            self.settle()
            if next_ms == end_ms:
                break
        self.now_ms = end_ms


def test_roles_are_those_of_the_configuration_and_sends_follow() -> None:
    pair = Pair()
    assert pair.master.replica.role is Role.MASTER and pair.slave.replica.role is Role.SLAVE
    assert [item.role for item in pair.master.roles] == [Role.MASTER]
    assert pair.master.replica.admission(0)[0] is ResponseCode.SUCCESS
    assert pair.slave.replica.admission(0)[0] is ResponseCode.SERVICE_NOT_AVAILABLE
    assert pair.slave.replica.broker_id == 1 and pair.master.replica.broker_id == 0


def test_the_slave_copies_what_is_there_and_what_comes() -> None:
    log = MemoryLog()
    log.append_raw(PhyOffset(0), record(0) + record(100))
    pair = Pair(master_log=log)
    pair.connect()
    assert pair.slave.log.data == log.data
    pair.master.add(pair.now_ms)
    pair.settle()
    assert pair.slave.log.data == log.data and pair.slave.log.confirm == log.max_phy_offset == 300
    assert pair.slave.roles[-1].master_address == "127.0.0.1:10911"


def test_consumers_see_what_an_async_master_has_appended() -> None:
    pair = Pair()
    pair.master.add(pair.now_ms, "a")
    pair.settle()
    assert pair.master.done == {"a": AckStatus.OK}
    assert pair.master.log.confirm == pair.master.log.dispatched == 100


def test_a_sync_master_waits_for_its_slave() -> None:
    pair = Pair(broker_role="SYNC_MASTER")
    pair.connect()
    pair.cut = True
    pair.master.add(pair.now_ms, "a")
    pair.settle()
    assert pair.master.done == {}
    pair.cut = False
    pair.lose()
    pair.run(50)
    assert pair.master.done == {"a": AckStatus.OK}
    assert pair.slave.log.data == pair.master.log.data


def test_a_sync_master_without_any_slave_says_so_at_once() -> None:
    pair = Pair(broker_role="SYNC_MASTER")
    pair.master.add(pair.now_ms, "a")
    pair.settle()
    assert pair.master.done == {"a": AckStatus.SLAVE_NOT_AVAILABLE}
    assert pair.master.log.confirm == 100, "written and served all the same"


def test_a_sync_master_does_not_wait_for_a_slave_that_is_far_behind() -> None:
    pair = Pair(broker_role="SYNC_MASTER", ha_max_gap_not_in_sync=150)
    pair.connect()
    pair.cut = True
    for token in "abc":
        pair.master.add(pair.now_ms, token)
    pair.settle()
    assert pair.master.done == {"b": AckStatus.SLAVE_NOT_AVAILABLE, "c": AckStatus.SLAVE_NOT_AVAILABLE}


def test_a_slave_that_stalls_costs_the_slave_time_out() -> None:
    pair = Pair(broker_role="SYNC_MASTER")
    pair.connect()
    pair.cut = True
    pair.master.add(pair.now_ms, "a")
    pair.run(pair.master.config.slave_timeout - 1)
    assert pair.master.done == {}
    pair.run(1)
    assert pair.master.done == {"a": AckStatus.FLUSH_SLAVE_TIMEOUT}


def test_two_slaves_are_waited_for_when_three_copies_are_wanted() -> None:
    pair = Pair(broker_role="SYNC_MASTER", in_sync_replicas=3)
    pair.connect()
    pair.master.add(pair.now_ms, "a")
    pair.settle()
    assert pair.master.done == {"a": AckStatus.SLAVE_NOT_AVAILABLE}
    pair.master.replica.ha_accepted(pair.now_ms, 77, "127.0.0.1:4712")
    pair.master.replica.ha_received(pair.now_ms, 77, encode_report(PhyOffset(100)))
    pair.master.add(pair.now_ms, "b")
    pair.settle()
    assert "b" not in pair.master.done
    pair.master.replica.ha_received(pair.now_ms, 77, encode_report(PhyOffset(200)))
    pair.settle()
    assert pair.master.done["b"] is AckStatus.OK


def test_under_sync_flush_a_slave_reports_what_its_disk_holds() -> None:
    pair = Pair(broker_role="SYNC_MASTER", flush_disk_type="SYNC_FLUSH")
    pair.connect()
    pair.auto_sync = False
    pair.master.add(pair.now_ms, "a")
    pair.settle()
    pair.master.log.sync()
    pair.master.replica.synced(pair.now_ms)
    pair.settle()
    assert pair.slave.log.max_phy_offset == 100 and pair.master.done == {}
    pair.slave.log.sync()
    pair.slave.replica.synced(pair.now_ms)
    pair.settle()
    assert pair.master.done == {"a": AckStatus.OK}


def test_a_slave_ahead_of_its_master_is_turned_away_and_keeps_its_bytes() -> None:
    log = MemoryLog()
    log.append_raw(PhyOffset(0), record(0) + record(100))
    pair = Pair(slave_log=log)
    pair.connect()
    assert "holds 200, but this master ends at 0" in pair.master.closed[0]
    assert pair.slave.log.max_phy_offset == 200


def test_a_fork_is_noticed_where_no_record_begins() -> None:
    """The old master lost its tail in a power failure and went on; the slave ends where no record of it begins."""
    master, slave = MemoryLog(), MemoryLog()
    master.append_raw(PhyOffset(0), record(0) + record(100, 200))
    slave.append_raw(PhyOffset(0), record(0) + record(100, 150))
    pair = Pair(slave_log=slave, master_log=master)
    pair.connect()
    assert "the logs differ" in pair.slave.closed[0]
    assert pair.slave.log.max_phy_offset == 250
    assert "the logs differ" in pair.slave.replica.state(pair.now_ms).to_json()["refusal"]


def test_half_a_record_is_cut_before_the_slave_connects_again() -> None:
    pair = Pair()
    pair.connect()
    pair.master.add(pair.now_ms)
    pair.settle()
    pair.slave.log.append_raw(PhyOffset(100), record(100)[:30])
    pair.slave.log.half_record_bytes = 30
    pair.lose()
    pair.master.add(pair.now_ms)
    pair.run(100)
    assert pair.slave.log.data == pair.master.log.data


def test_an_empty_slave_gets_the_log_from_its_oldest_file_on() -> None:
    master = MemoryLog()
    master.restart_at(PhyOffset(4096))
    master.append_raw(PhyOffset(4096), record(4096))
    pair = Pair(master_log=master)
    pair.connect()
    assert pair.slave.log.min_phy_offset == 4096 and pair.slave.log.data == master.data


def test_a_slave_below_the_oldest_file_is_told_to_start_empty() -> None:
    master, slave = MemoryLog(), MemoryLog()
    master.restart_at(PhyOffset(4096))
    slave.append_raw(PhyOffset(0), record(0))
    pair = Pair(slave_log=slave, master_log=master)
    pair.connect()
    assert "empty its store for a full copy" in pair.master.closed[0]
    assert pair.slave.log.max_phy_offset == 100


def test_a_report_of_bytes_that_were_never_sent_ends_the_connection() -> None:
    pair = Pair()
    pair.connect()
    assert pair.link is not None
    pair.master.replica.ha_received(pair.now_ms, pair.link[0], encode_report(PhyOffset(1000)))
    pair.settle()
    assert "reports 1000; only 0 was sent" in pair.master.closed[0]


def test_a_silent_peer_goes_and_heartbeats_keep_the_others() -> None:
    pair = Pair()
    pair.connect()
    pair.master.replica.ha_accepted(pair.now_ms, 50, "127.0.0.1:4712")
    pair.run(FIRST_REPORT_TIMEOUT_MS)
    assert pair.master.closed == [f"127.0.0.1:4712 did not report within {FIRST_REPORT_TIMEOUT_MS} ms"]


def test_heartbeats_keep_an_idle_connection() -> None:
    pair = Pair()
    pair.connect()
    pair.run(60_000)
    assert pair.master.closed == [] and pair.slave.closed == []
    assert pair.accepted == 1


def test_a_lost_master_is_dialed_again_until_it_is_back() -> None:
    pair = Pair()
    pair.connect()
    pair.cut = True
    pair.lose()
    pair.run(5000)
    pair.master.add(pair.now_ms)
    pair.cut = False
    pair.run(1001)
    assert pair.slave.log.data == pair.master.log.data


def test_the_configured_ha_address_comes_first() -> None:
    slave = Member(broker_role="SLAVE", broker_id=1, ha_master_address="10.0.0.9:10912")
    slave.replica.start(0)
    assert OpenHa(-1, "10.0.0.9:10912") in slave.replica.actions()
    slave.replica.master_discovered(10, "10.0.0.9:10911", "10.0.0.8:10912")
    assert not [item for item in slave.replica.actions() if isinstance(item, OpenHa)]
    assert slave.replica.master_address == "10.0.0.9:10911"


def test_a_stopping_master_lets_its_slaves_finish_but_not_for_ever() -> None:
    pair = Pair()
    pair.connect()
    pair.cut = True
    pair.master.add(pair.now_ms)
    pair.master.replica.stopping(pair.now_ms)
    pair.settle()
    assert pair.master.replica.admission(pair.now_ms)[0] is ResponseCode.SERVICE_NOT_AVAILABLE
    assert not pair.master.replica.may_stop
    pair.run(STOP_AFTER_MS)
    assert pair.master.replica.may_stop


def test_a_hand_over_is_refused_with_a_sentence() -> None:
    pair = Pair()
    pair.master.replica.hand_over(0, pair.master.replica.epoch, None, 100, "token")
    (refused,) = [item for item in pair.master.replica.actions() if isinstance(item, HandedOver)]
    assert "static group" in refused.refusal


def test_after_a_power_loss_the_master_goes_on_and_a_slave_is_whole_at_a_heartbeat() -> None:
    logs = MemoryLog(), MemoryLog()
    for log in logs:
        log.unclean = True
    pair = Pair(slave_log=logs[1], master_log=logs[0])
    assert not logs[0].unclean and logs[1].unclean
    pair.connect()
    assert not logs[1].unclean


def test_a_slave_is_whole_though_producers_never_pause() -> None:
    log = MemoryLog()
    log.unclean = True
    pair = Pair(slave_log=log)
    for _ in range(3):
        pair.master.add(pair.now_ms)
    pair.connect()
    assert not log.unclean and log.max_phy_offset == 300, "level once: what a power loss took is there again"


def test_before_it_has_its_role_a_static_master_is_on_no_list() -> None:
    config = BrokerConfig(enable_controller_mode=False)
    replica = StaticReplica(config, MemoryLog(), RecordingTracer())
    assert not replica.is_listed_unaligned, "its id is the master's, its epoch that of its last life"
    replica.start(0)
    assert replica.is_master and replica.is_listed_unaligned


def test_bytes_at_another_offset_end_the_connection() -> None:
    pair = Pair()
    pair.connect()
    pair.master.add(pair.now_ms)
    pair.settle()
    assert pair.link is not None
    pair.slave.replica.ha_received(pair.now_ms, pair.link[1], encode_header(PhyOffset(500), 4) + b"abcd")
    pair.settle()
    assert "sent offset 500; this log ends at 100" in pair.slave.closed[0]
    assert pair.slave.log.max_phy_offset == 100


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"broker_role": "SLAVE"}, "must be 1 or more"),
        ({"broker_id": 2}, "must be 0; a slave needs brokerRole=SLAVE"),
        ({"ha_mode": "cp"}, "haMode=cp needs a controller"),
        ({"ha_master_address": "nonsense"}, "haMasterAddress"),
        ({"all_ack_in_sync_state_set": True}, "allAckInSyncStateSet needs a controller"),
    ],
)
def test_contradictory_keys_are_one_sentence(keys: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        BrokerConfig(enable_controller_mode=False, **keys).check("broker.conf")


def test_a_former_slave_made_master_cuts_the_half_record_at_its_end() -> None:
    log = MemoryLog()
    log.append_raw(PhyOffset(0), record(0) + record(100)[:40])
    log.half_record_bytes = 40
    pair = Pair(master_log=log)
    assert log.max_phy_offset == 100
    pair.master.add(pair.now_ms)
    pair.connect()
    assert pair.slave.log.data == record(0) + record(100)


def test_under_sync_flush_the_first_report_waits_until_all_is_on_disk() -> None:
    """It says where to send from: less than what is there would bring bytes twice."""
    log = MemoryLog()
    log.append_raw(PhyOffset(0), record(0) + record(100))
    slave = Member(log, broker_role="SLAVE", broker_id=1, flush_disk_type="SYNC_FLUSH", ha_master_address=MASTER_HA)
    log.synced = 100
    slave.replica.start(0)
    (dial,) = [item for item in slave.replica.actions() if isinstance(item, OpenHa)]
    slave.replica.ha_opened(0, dial.conn_id)
    assert not [item for item in slave.replica.actions() if isinstance(item, SendHa)]
    log.sync()
    slave.replica.synced(5)
    assert SendHa(dial.conn_id, encode_report(PhyOffset(200))) in slave.replica.actions()
