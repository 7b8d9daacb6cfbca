"""Changes of the log that wait for the disk: who cuts, or begins an epoch, does it by the writer, and goes on after."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqha.ha.action import AckStatus, Action, CloseHa, OpenHa, SendHa
from rmqha.ha.log_writes import STUCK_AFTER_MS, WAITS_FOR_DISK, LogWrites
from rmqha.ha.stream.client import MAX_KEPT_BYTES, HaClient
from rmqha.ha.stream.replication_client import ClientState
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.epoch import EpochEntry, EpochHistory
from rmqha.model.identity import Role
from rmqha.model.offset import BrokerId, Epoch, PhyOffset
from rmqha.wire.ha_stream import MasterHandshake, TransferHeader
from tests.ha.group import Group, started
from tests.ha.memory_log import MemoryLog
from tests.support.tracer import SilentTracer

CHANGES = ("truncate", "restart_at", "clear_epochs", "append_epoch", "accept_epoch", "mark_clean", "mark_unclean")


class SlowWriter:
    """Begins each change; while `hangs` it is made by `end`."""

    def __init__(self) -> None:
        self.hangs = self.is_inside = False
        self.waiting: Callable[[], None] | None = None

    def write(self, work: Callable[[], None]) -> bool:
        assert self.waiting is None
        if self.hangs:
            self.waiting = work
            return False
        self._do(work)
        return True

    def end(self) -> None:
        work, self.waiting = self.waiting, None
        assert work is not None, "nothing waits for the disk"
        self._do(work)

    def _do(self, work: Callable[[], None]) -> None:
        self.is_inside = True
        work()
        self.is_inside = False


def watched(log: MemoryLog, writer: SlowWriter) -> list[str]:
    """Names of the changes made, each of which must be the writer's."""
    made: list[str] = []

    def wrap(name: str) -> None:
        change = getattr(log, name)

        def checked(*args: Any) -> Any:
            assert writer.is_inside, f"{name} holds the event loop"
            made.append(name)
            return change(*args)

        setattr(log, name, checked)

    for name in CHANGES:
        wrap(name)
    return made


@st.composite
def logs(draw: st.DrawFn) -> tuple[EpochHistory, int, int]:
    """Epochs, start and end of a log whose numbers are small, so that two of them meet often."""
    epochs = sorted(draw(st.sets(st.integers(1, 4), max_size=3)))
    starts = sorted(draw(st.sets(st.integers(0, 6), min_size=len(epochs), max_size=len(epochs))))
    entries = [EpochEntry(Epoch(epoch), PhyOffset(start)) for epoch, start in zip(epochs, starts, strict=True)]
    begin = starts[0] if starts else 0
    end = draw(st.integers(max([begin, *starts]), 8)) if starts else begin
    return EpochHistory(entries), begin, end


Made = tuple[HaClient, MemoryLog, SlowWriter, int]


def slave(own: tuple[EpochHistory, int, int], ha_mode: str = "cp", confirm: int = 0) -> Made:
    """A slave that has greeted its master; with the number of its connection."""
    log, writer = MemoryLog(), SlowWriter()
    log.epochs, log.start, end = own
    log.data = bytearray(end - log.start)
    log.confirm = max(log.start, min(confirm, end))
    config = BrokerConfig(ha_mode=ha_mode, total_replicas=3)
    client = HaClient(config, log, LogWrites(writer), BrokerId(2), SilentTracer())
    client.set_master_epoch(Epoch(2**31 - 1), Epoch(0))
    (dial,) = client.follow(0, "127.0.0.1:1")
    assert isinstance(dial, OpenHa)
    client.opened(0, dial.conn_id)
    return client, log, writer, dial.conn_id


def handshake(master: tuple[EpochHistory, int, int]) -> bytes:
    epochs, _, end = master
    last = epochs.last
    return MasterHandshake(PhyOffset(end), last.epoch if last else Epoch(-1), epochs).encode()


def look(log: MemoryLog) -> tuple[Any, ...]:
    return log.epochs, log.start, bytes(log.data), log.confirm, log.unclean


def sent(actions: list[Action]) -> list[bytes]:
    return [bytes(action.data) for action in actions if isinstance(action, SendHa)]


@given(logs(), logs(), st.sampled_from(["ap", "cp"]), st.integers(0, 8))
def test_a_log_is_changed_by_the_writer_only_and_the_same_when_the_disk_hangs(
    own: tuple[EpochHistory, int, int], master: tuple[EpochHistory, int, int], ha_mode: str, confirm: int
) -> None:
    data = handshake(master)
    at_once, log, writer, conn_id = slave(own, ha_mode, confirm)
    watched(log, writer)
    expected = sent(at_once.received(0, conn_id, data))
    late, late_log, late_writer, conn_id = slave(own, ha_mode, confirm)
    watched(late_log, late_writer)
    late_writer.hangs, before = True, look(late_log)
    found = sent(late.received(0, conn_id, data))
    if late_writer.waiting is not None:
        assert (late.state, found) == (ClientState.CUTTING, []), "nothing is acknowledged before the cut is durable"
        assert look(late_log) == before
        assert late.ack(10_000) == [] and late.deadline_ms() is None
        late_writer.end()
        found = sent(late._writes.written(1) + late.written(1))
    assert (look(late_log), late.state, late.truncated_bytes) == (look(log), at_once.state, at_once.truncated_bytes)
    assert found == expected


ONE = EpochHistory([EpochEntry(Epoch(1), PhyOffset(0))])
TWO = EpochHistory([EpochEntry(Epoch(1), PhyOffset(0)), EpochEntry(Epoch(2), PhyOffset(500))])
FORK = EpochHistory([EpochEntry(Epoch(1), PhyOffset(0)), EpochEntry(Epoch(2), PhyOffset(400))])


def transfer(phy_offset: int, data: bytes, epochs: EpochHistory = TWO) -> bytes:
    last = epochs.last
    assert last is not None
    return TransferHeader(len(data), PhyOffset(phy_offset), last.epoch, last.start_offset, PhyOffset(0)).encode() + data


def test_an_epochs_entry_is_durable_before_its_bytes_and_both_before_their_acknowledgement() -> None:
    client, log, writer, conn_id = slave((ONE, 0, 500))
    assert client.received(0, conn_id, handshake((TWO, 0, 520))) and writer.waiting is None
    writer.hangs = True
    made = watched(log, writer)
    buffer = bytearray(transfer(500, b"a" * 10))
    assert client.received(0, conn_id, buffer) == [] and (len(log.data), made) == (500, [])
    buffer[-10:] = b"x" * 10  # the shell reads into it again
    buffer = bytearray(transfer(510, b"b" * 10))
    assert client.received(0, conn_id, buffer) == [] and len(log.data) == 500
    buffer[-10:] = b"x" * 10
    assert client.ack(6000) == []
    writer.end()
    assert (made, len(log.data)) == (["append_epoch", "append_epoch"], 500), "False for the one that is there"
    assert len(sent(client._writes.written(1) + client.written(1))) == 1
    assert (log.epochs, bytes(log.data[500:])) == (TWO, b"a" * 10 + b"b" * 10)


@pytest.mark.parametrize("how", ["closed", "broken", "flooded"])
def test_a_connection_that_ends_meanwhile_leaves_the_cut_and_no_more(how: str) -> None:
    client, log, writer, conn_id = slave((TWO, 0, 600))
    writer.hangs = True
    client.received(0, conn_id, handshake((FORK, 0, 400)))
    states = [client.state]
    if how == "closed":
        client.closed(5, conn_id)
    elif how == "broken":
        client.received(5, conn_id, b"\xff" * 64)
    else:
        for start in range(0, MAX_KEPT_BYTES + 2, MAX_KEPT_BYTES // 2):
            client.received(5, conn_id, transfer(400 + start, bytes(MAX_KEPT_BYTES // 2), FORK))
    assert client.conn_id is None and [*states, client.state] == [ClientState.CUTTING, ClientState.IDLE]
    assert client.deadline_ms() is None and client.timeout(60_000) == [], "no other handshake sees half a cut"
    writer.end()
    assert client._writes.written(60_000) + client.written(60_000) == []
    assert (len(log.data), client.truncated_bytes, client.state) == (400, 200, ClientState.IDLE)
    (dial,) = client.timeout(60_000)
    assert isinstance(dial, OpenHa)


def test_what_a_connection_sent_while_the_disk_hung_is_not_read_in_the_next() -> None:
    client, log, writer, conn_id = slave((TWO, 0, 600))
    writer.hangs = True
    client.received(0, conn_id, handshake((FORK, 0, 400)))
    client.received(0, conn_id, transfer(400, b"a" * 10, FORK))
    client.leave("its master has moved")
    (dial,) = client.follow(5, "127.0.0.1:2")
    assert isinstance(dial, OpenHa)
    client.opened(5, dial.conn_id)
    client.received(5, dial.conn_id, handshake((FORK, 0, 410)))
    writer.end()
    actions = client._writes.written(10) + client.written(10)
    assert not [item for item in actions if isinstance(item, CloseHa)]
    assert (client.state, len(log.data)) == (ClientState.FOLLOWING, 400)


def test_a_log_that_only_goes_on_waits_for_nothing() -> None:
    """The way of every slave after an election."""
    for epochs, waits in ((ONE, False), (TWO, False), (FORK, True)):
        client, _, writer, conn_id = slave((ONE, 0, 500))
        writer.hangs = True
        client.received(0, conn_id, handshake((epochs, 0, 500)))
        assert (writer.waiting is not None) == waits


# --- the replica ------------------------------------------------------------------------------------------------------


def slow(number: int) -> tuple[Group, SlowWriter]:
    """A group of three, master 1; the disk of replica `number` hangs."""
    group, writer = started(), SlowWriter()
    group[number].replica._writes._writer = writer
    watched(group[number].log, writer)
    writer.hangs = True
    return group, writer


def end(group: Group, number: int, writer: SlowWriter) -> None:
    writer.end()
    group[number].replica.log_written(group.now_ms)
    group.settle()


def heartbeats(group: Group, number: int) -> list[dict[str, str]]:
    seen = [item.ext for item in group.controller.seen if item.code == RequestCode.BROKER_HEARTBEAT]
    return [item for item in seen if item["brokerId"] == str(number)]


@pytest.mark.parametrize("successor", [1, 2])
def test_a_master_whose_disk_takes_its_time_over_the_next_epoch_is_none(successor: int) -> None:
    group, writer = slow(1)
    group.cut = {(1, 2), (2, 1), (1, 3), (3, 1)}
    token = group.send(1)
    group.cut = set()
    group.elect(successor)
    replica = group[1].replica
    assert group[1].done[token] is AckStatus.SERVICE_NOT_AVAILABLE
    assert (replica.role, replica.is_master, replica.is_writing) == (Role.SLAVE, False, True)
    assert replica.admission(group.now_ms)[0] is ResponseCode.SERVICE_NOT_AVAILABLE
    assert (group[1].roles[-1].role, group[1].roles[-1].master_id) == (Role.SLAVE, None), "it serves no more"
    assert replica.state(group.now_ms).disk_problem == WAITS_FOR_DISK
    before = len(heartbeats(group, 1))
    group.run(STUCK_AFTER_MS - 100)
    told = {(item["diskProblem"], item["stopping"]) for item in heartbeats(group, 1)[before:]}
    assert told == {("", "false")}, "the disk may only be slow"
    before = len(heartbeats(group, 1))
    group.run(2000)
    beats = heartbeats(group, 1)[before:]
    told = {(item["diskProblem"], item["stopping"]) for item in beats[1:]}
    assert len(beats) >= 3 and told == {(WAITS_FOR_DISK, "true")}, "the controllers let another one lead"
    assert group[1].log.highest_epoch == 1
    writer.hangs = successor == 1
    end(group, 1, writer)  # the epoch is durable; a master's entry of it hangs next
    assert group[1].log.highest_epoch == 2
    if successor == 1:
        assert replica.is_writing and not replica.is_master
        writer.hangs = False
        end(group, 1, writer)
    group.run(3000)
    assert replica.role is (Role.MASTER if successor == 1 else Role.SLAVE)
    assert (heartbeats(group, 1)[-1]["diskProblem"], heartbeats(group, 1)[-1]["stopping"]) == ("", "false")
    assert replica.state(group.now_ms).disk_problem == ""
    token = group.send(successor)
    group.run(500)
    assert group[successor].done[token] is AckStatus.OK


def test_news_of_a_later_epoch_waits_and_is_asked_for() -> None:
    group, writer = slow(3)
    group.elect(2)
    assert group[3].replica.is_writing
    group.elect(1)
    group.run(10)
    assert group[3].replica.epoch == 1 and group[3].log.highest_epoch == 1
    writer.hangs = False
    end(group, 3, writer)
    assert group[3].replica.epoch == 3, "the next heartbeat's answer would tell it too, much later"
    group.run(1000)
    assert (group[3].replica.epoch, group[3].log.highest_epoch, group[3].replica.is_following) == (3, 3, True)


def test_a_new_master_whose_disk_hangs_at_the_entry_holds_nothing_but_itself() -> None:
    """Half a record at its end is cut with it."""
    group, writer = slow(2)
    log = group[2].log
    log.data += b"half"
    log.half_record_bytes = 4
    end_offset = log.record_end_offset
    group.elect(2)
    end(group, 2, writer)
    assert group[2].replica.is_writing and log.max_phy_offset == end_offset + 4
    assert not group[2].replica.is_master and group[2].log.epochs.last != EpochEntry(Epoch(2), end_offset)
    end(group, 2, writer)
    assert log.epochs.last == EpochEntry(Epoch(2), end_offset) and group[2].replica.is_master
