"""A static pair under random histories: what was acknowledged is on the slave, which never holds anything else."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rmqha.ha.action import AckStatus
from rmqha.model.offset import PhyOffset
from tests.ha.test_static_group import Member, Pair

RECORD_BYTES = 100


class StaticPair(RuleBasedStateMachine):
    """Sends, lost connections, cut networks, ends inside a record, restarts and trims of both sides."""

    @initialize(role=st.sampled_from(["SYNC_MASTER", "ASYNC_MASTER"]))
    def begin(self, role: str) -> None:
        self.pair = Pair(broker_role=role, ha_transfer_batch_size=1024)
        self.sent = 0
        self.ends: dict[str, int] = {}

    @rule(count=st.integers(1, 30))
    def send(self, count: int) -> None:
        for _ in range(count):
            token = f"m{self.sent}"
            self.sent += 1
            self.pair.master.add(self.pair.now_ms, token)
            self.ends[token] = self.pair.master.log.max_phy_offset
        self.pair.settle()

    @rule()
    def told(self) -> None:
        self.pair.connect()

    @rule(cut=st.booleans())
    def network(self, cut: bool) -> None:
        self.pair.cut = cut
        self.pair.lose()
        self.pair.settle()

    @rule(ms=st.integers(1, 30_000))
    def wait(self, ms: int) -> None:
        self.pair.run(ms)

    @rule(half_bytes=st.integers(0, RECORD_BYTES - 1))
    def restart_slave(self, half_bytes: int) -> None:
        """Up to a record's worth of what it had is gone: recovery ends at a record, or inside one for a Java slave."""
        self.pair.lose()
        old = self.pair.slave
        log = old.log
        if half_bytes and log.record_end_offset > log.min_phy_offset:
            log.truncate(log.record_end_offset)
            whole = bytes(log.data[-RECORD_BYTES:])
            log.truncate(PhyOffset(log.max_phy_offset - RECORD_BYTES))
            begins = log.max_phy_offset
            log.append_raw(begins, whole[:half_bytes])
            log.half_record_bytes = half_bytes
        self.pair.slave = Member(log, broker_role="SLAVE", broker_id=1, listen_port=10921, ha_transfer_batch_size=1024)
        self.pair.slave.replica.start(self.pair.now_ms)
        self.pair.settle()

    @rule()
    def restart_master(self) -> None:
        self.pair.lose()
        old = self.pair.master
        master = Member(old.log, broker_role=old.config.broker_role, listen_port=10911, ha_transfer_batch_size=1024)
        master.done = dict(old.done)
        self.pair.master = master
        master.replica.start(self.pair.now_ms)
        self.pair.settle()

    @rule(records=st.integers(1, 20))
    def trim_master(self, records: int) -> None:
        """Old files go, though never what a connected slave still lacks (retention holds them)."""
        log = self.pair.master.log
        held = [offset for _, offset in self.pair.master.replica.slave_acks()]
        start = min(log.start + records * RECORD_BYTES, log.max_phy_offset, log.dispatched, *held)
        if start > log.start:
            log.trim(start - start % RECORD_BYTES)

    @rule(records=st.one_of(st.none(), st.integers(0, 3)))
    def room(self, records: int | None) -> None:
        """The slave's disk has room for so many records more, or for all: a file ends with one."""
        log = self.pair.slave.log
        log.room_end = None if records is None else log.record_end_offset + records * RECORD_BYTES

    @rule()
    def empty_slave(self) -> None:
        """The operator's way out for a slave that was turned away."""
        refused = any("empty its store" in reason for reason in self.pair.master.closed)
        if refused:
            self.pair.slave.log.restart_at(PhyOffset(0))
            self.pair.slave.log.half_record_bytes = 0
            self.restart_slave(0)

    @invariant()
    def the_slave_holds_a_part_of_the_masters_log(self) -> None:
        if not hasattr(self, "pair"):
            return
        master, slave = self.pair.master.log, self.pair.slave.log
        assert slave.max_phy_offset <= master.max_phy_offset
        first, last = max(master.start, slave.start), slave.max_phy_offset
        if first < last:
            assert slave.data[first - slave.start :] == master.data[first - master.start : last - master.start]

    @invariant()
    def what_a_sync_master_acknowledged_was_on_its_slave(self) -> None:
        if not hasattr(self, "pair") or self.pair.master.config.broker_role != "SYNC_MASTER":
            return
        reported = max((offset for _, offset in self.pair.master.replica.slave_acks()), default=0)
        for token, status in list(self.pair.master.done.items()):
            if token in self.ends and status is AckStatus.OK:
                end = self.ends.pop(token)
                assert reported >= end, f"{token} ends at {end}, no slave has reported more than {reported}"

    def teardown(self) -> None:
        """The network heals: the slave comes level, unless its bytes are below the master's oldest file."""
        if not hasattr(self, "pair"):
            return
        self.pair.cut = False
        self.pair.slave.log.room_end = None
        self.pair.connect()
        self.pair.run(12_000)
        master, slave = self.pair.master.log, self.pair.slave.log
        below = 0 < slave.max_phy_offset < master.start
        assert below or slave.max_phy_offset == master.max_phy_offset


TestStaticPair = StaticPair.TestCase
TestStaticPair.settings = settings(max_examples=60, stateful_step_count=30)
