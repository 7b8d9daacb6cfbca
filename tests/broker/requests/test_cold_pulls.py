"""Pulls of messages that are not in memory wait for a thread that reads them, and hold up nobody else."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from threading import Event
from typing import Any

import pytest
import trio

from rmqha.broker.cold_reads import COLD_WAIT_MS, MAX_LOAD_COUNT, ColdPart
from rmqha.broker.loops import BrokerLoops
from rmqha.host.disk import HostRegion
from rmqha.model.code import ResponseCode
from rmqha.model.offset import QueueOffset
from rmqha.store import cold_range
from rmqha.store.reader import PullResult
from rmqha.wire.command import Command
from tests.broker.requests.test_pull import bodies, demoted
from tests.broker.support import Broker, FakeChannel, pull_command, send_command
from tests.support.patience import HANG_S

REASON = "cannot read messages of T, queue 0: Input/output error"


class Memory:
    """Stands for the system's memory: nothing is in it until it was read, and with `keeps_nothing` not then either."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_cold = self.keeps_nothing = False
        self.read: list[tuple[int, int]] = []
        self.seen: list[tuple[int, int, int]] = []
        """Size of the file, position and size of what was asked for."""
        self.error: OSError | None = None
        self.hang: Event | None = None
        loader = HostRegion.loader

        def is_in_memory(region: HostRegion, position: int, size_bytes: int) -> bool:
            assert 0 <= position < position + size_bytes <= region.size_bytes
            self.seen.append((region.size_bytes, position, size_bytes))
            return not self.is_cold

        def loads(region: HostRegion, position: int, size_bytes: int) -> Callable[[], None]:
            load = loader(region, position, size_bytes)

            def run() -> None:
                if self.hang is not None:
                    assert self.hang.wait(HANG_S)
                load()
                if self.error is not None:
                    raise self.error
                self.read.append((position, size_bytes))
                self.is_cold = self.keeps_nothing

            return run

        monkeypatch.setattr(HostRegion, "is_in_memory", is_in_memory)
        monkeypatch.setattr(HostRegion, "loader", loads)
        monkeypatch.setattr(cold_range, "NEW_BYTES", 0)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Memory:
    return Memory(monkeypatch)


@pytest.fixture
def old(make_broker: Callable[..., Broker]) -> Broker:
    """A master of three messages that it had when it was started."""
    broker = make_broker().start()
    for body in (b"a", b"b", b"c"):
        broker.ask(send_command(body=body))
    broker.close()
    return make_broker().start()


def asked(broker: Broker, command: Command | None = None) -> FakeChannel:
    channel = FakeChannel()
    broker.core.processor.received(channel, [command or pull_command()])
    broker.run()
    return channel


class Client(FakeChannel):
    """Tells when it is answered."""

    def __init__(self) -> None:
        super().__init__()
        self.is_answered = trio.Event()

    def send(self, command: Command) -> None:
        super().send(command)
        self.is_answered.set()

    send_at_once = send

    async def answer(self) -> Command:
        with trio.fail_after(HANG_S):
            await self.is_answered.wait()
        return self.one()


def pulling(broker: Broker) -> Client:
    client = Client()
    broker.core.processor.received(client, [pull_command()])
    broker.run()
    return client


def begun(broker: Broker) -> ColdPart:
    part = broker.core.cold_reads.begin()
    assert part is not None, "nothing is to be read"
    return part


def load(broker: Broker) -> None:
    """Do what a thread of the loops does."""
    part = begun(broker)
    broker.core.store.loader(*part)()
    broker.core.cold_reads.end(part)
    broker.core.pull.loaded(part)


def test_a_pull_waits_until_its_messages_are_in_memory(old: Broker, memory: Memory) -> None:
    memory.is_cold = True
    channel = asked(old)
    assert channel.take() == []
    assert old.shell.woken["cold_reads"] == 1
    load(old)
    assert bodies(channel.one()) == [b"a", b"b", b"c"]
    assert old.core.pull.hold_count == 0
    assert bodies(asked(old).one()) == [b"a", b"b", b"c"], "all is in memory now"


def test_entries_are_read_first_and_then_all_messages_that_are_wanted(
    old: Broker, memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.is_cold = memory.keeps_nothing = True
    asked(old, pull_command(offset=1, maxMsgNums="2"))
    load(old)
    assert memory.read == [(20, 40)]
    begun(old)  # it is wanted again

    def is_in_memory(region: HostRegion, position: int, size_bytes: int) -> bool:
        return region.size_bytes == old.config.mapped_file_size_consume_queue

    monkeypatch.setattr(HostRegion, "is_in_memory", is_in_memory)
    asked(old, pull_command(offset=1, maxMsgNums="2"))
    memory.read.clear()
    load(old)
    (_, log) = memory.read
    size = old.store.max_phy_offset // 3
    assert log == (size, 2 * size)


def test_pulls_of_one_queue_are_answered_together(old: Broker, memory: Memory) -> None:
    memory.is_cold = True
    channels = [asked(old, pull_command(consumerGroup=f"G{number}")) for number in range(3)]
    part = begun(old)
    channels.append(asked(old))
    assert old.core.cold_reads.begin() is None, "the part is read once"
    memory.is_cold = False
    old.core.pull.loaded(part)
    assert [bodies(channel.one()) for channel in channels] == [[b"a", b"b", b"c"]] * 4


def test_new_messages_are_not_asked_for(
    make_broker: Callable[..., Broker], memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were written by this process a moment ago: tailing consumers cost nothing more."""
    broker = make_broker().start()
    broker.ask(send_command(body=b"a"))
    monkeypatch.setattr(cold_range, "NEW_BYTES", 1 << 20)
    asked_for = []

    def is_in_memory(region: HostRegion, position: int, size_bytes: int) -> bool:
        asked_for.append(region.size_bytes)
        return True

    monkeypatch.setattr(HostRegion, "is_in_memory", is_in_memory)
    assert bodies(asked(broker).one()) == [b"a"]
    assert asked_for == [broker.config.mapped_file_size_consume_queue]


def test_who_waits_too_long_is_to_ask_again(old: Broker, memory: Memory) -> None:
    """Not that there is nothing new: tools take that for the end of the queue."""
    memory.is_cold = True
    channel = asked(old, pull_command(offset=1))
    old.run(COLD_WAIT_MS - 1)
    assert channel.take() == []
    old.run(1)
    reply = channel.one()
    assert (reply.code, reply.ext["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "1")
    load(old)
    assert channel.take() == []


def test_a_file_system_that_keeps_nothing_in_memory_stops_no_pull(old: Broker, memory: Memory) -> None:
    memory.is_cold = memory.keeps_nothing = True
    channel = asked(old)
    for _ in range(MAX_LOAD_COUNT):
        assert channel.take() == []
        load(old)
    assert bodies(channel.one()) == [b"a", b"b", b"c"]


def test_a_bad_sector_is_told(old: Broker, memory: Memory) -> None:
    """A look through the mapping would end the process (SIGBUS)."""
    memory.is_cold = True
    channel, other = asked(old, pull_command(maxMsgNums="1")), asked(old, pull_command(queue_id=1, sysFlag="6"))
    part = begun(old)
    old.core.pull.unreadable((*part[:2], part[2]._replace(log_bytes=77)), "another part")
    assert channel.take() == []
    old.core.pull.unreadable(part, REASON)
    reply = channel.one()
    assert (reply.code, reply.remark, reply.ext["nextBeginOffset"]) == (ResponseCode.SYSTEM_ERROR, REASON, "0")
    assert other.take() == []


def test_a_bad_sector_between_messages_stops_no_consumer(old: Broker, memory: Memory) -> None:
    """It may belong to another queue: messages come one by one then."""
    memory.is_cold = True
    channel = asked(old)
    old.core.pull.unreadable(begun(old), REASON)
    assert channel.take() == []
    load(old)
    assert bodies(channel.one()) == [b"a"]


def test_a_slave_with_a_bad_sector_sends_consumers_to_the_master(old: Broker, memory: Memory) -> None:
    demoted(old)
    memory.is_cold = True
    channel = asked(old, pull_command(offset=2, maxMsgNums="1"))
    old.core.pull.unreadable(begun(old), REASON)
    reply = channel.one()
    assert (reply.code, reply.ext["suggestWhichBrokerId"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "0")
    assert reply.ext["nextBeginOffset"] == "2"


def test_a_new_message_reads_nothing_for_those_that_wait(old: Broker, memory: Memory) -> None:
    memory.is_cold = True
    channel = asked(old, pull_command(sysFlag="6"))
    begun(old)
    for _ in range(5):
        old.ask(send_command(body=b"d"))
    assert old.core.cold_reads.begin() is None
    assert channel.take() == []


def test_a_load_for_others_does_not_count(old: Broker, memory: Memory) -> None:
    """Each pull has its own reads before it looks in any case."""
    memory.is_cold = memory.keeps_nothing = True
    waiting = asked(old, pull_command(offset=2, maxMsgNums="1"))
    part = begun(old)
    for _ in range(MAX_LOAD_COUNT + 1):
        asked(old, pull_command(consumerGroup="Other"))
        for _ in range(MAX_LOAD_COUNT):
            load(old)
    assert waiting.take() == []
    memory.is_cold = False
    old.core.pull.loaded(part)
    assert bodies(waiting.one()) == [b"c"]


def test_a_right_that_is_gone_meanwhile_counts(old: Broker, memory: Memory) -> None:
    memory.is_cold = True
    for slave in (False, True):
        if slave:
            demoted(old)
        channel = asked(old)
        old.core.pull.configure(replace(old.config, broker_permission=2))
        load(old)
        assert channel.one().code == ResponseCode.NO_PERMISSION
        old.core.pull.configure(old.config)
        memory.is_cold = True


@pytest.mark.parametrize("kernel", [False, True])
@pytest.mark.parametrize("filters", [{}, {"subscription": "A"}])
def test_a_pull_looks_at_nothing_behind_what_it_asked_for(
    make_broker: Callable[..., Broker],
    memory: Memory,
    monkeypatch: pytest.MonkeyPatch,
    kernel: bool,
    filters: dict[str, Any],
) -> None:
    broker = make_broker().start()
    for number in range(30):
        broker.ask(send_command(body=bytes(1000), i="TAGS\x01A\x02"))
        broker.ask(send_command(queue_id=1, body=b"%d" % number))
    broker.close()
    broker = make_broker().start()
    monkeypatch.setattr(cold_range, "MAX_COLD_BYTES", 5_000)
    if not kernel:
        monkeypatch.setattr(broker.store._reader, "_kernel", None)
    memory.seen.clear()
    offset = 0
    while offset < 30:
        reply = asked(broker, pull_command(offset=offset, maxMsgNums="30", **filters)).one()
        found = bodies(reply)
        assert 3 <= len(found) <= 4 or offset + len(found) == 30
        assert found == [bytes(1000)] * len(found)
        offset = int(reply.ext["nextBeginOffset"])
        log = [part for part in memory.seen if part[0] == broker.config.mapped_file_size_commit_log]
        assert 4_000 < log[-1][2] <= 5_000 or offset == 30
    assert offset == 30


def test_one_message_that_is_longer_than_what_is_asked_for_comes(
    old: Broker, memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold_range, "MAX_COLD_BYTES", 10)
    for offset, body in enumerate([b"a", b"b", b"c"]):
        assert bodies(asked(old, pull_command(offset=offset)).one()) == [body]


def test_a_slave_waits_too(old: Broker, memory: Memory) -> None:
    demoted(old)
    memory.is_cold = True
    channel = asked(old, pull_command(offset=2))
    load(old)
    assert bodies(channel.one()) == [b"c"]


def test_a_slave_that_lost_the_messages_meanwhile_moves_nobody(
    old: Broker, memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its log was cut, or its old files went: the master may have them."""
    demoted(old)
    memory.is_cold = True
    channel = asked(old, pull_command(offset=2))
    moved = PullResult(ResponseCode.PULL_OFFSET_MOVED, QueueOffset(1), QueueOffset(0), QueueOffset(1), [])
    monkeypatch.setattr(old.store, "pull", lambda *_, **__: moved)
    old.core.pull.loaded(begun(old))
    reply = channel.one()
    assert (reply.code, reply.ext["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "2")


def test_a_connection_that_has_gone_waits_no_more(old: Broker, memory: Memory) -> None:
    memory.is_cold = True
    channel = asked(old)
    old.core.processor.closed(channel)
    load(old)
    assert channel.take() == []
    assert old.core.pull.hold_count == 0


def test_a_new_role_answers_pulls_that_wait(old: Broker, memory: Memory) -> None:
    memory.is_cold = True
    channel = asked(old)
    demoted(old)
    assert channel.one().code == ResponseCode.PULL_RETRY_IMMEDIATELY


def test_a_broker_that_holds_no_more_pulls_reads_at_once(old: Broker, memory: Memory) -> None:
    old.core.pull._places.most = 0
    memory.is_cold = True
    assert bodies(asked(old).one()) == [b"a", b"b", b"c"]


async def test_a_disk_that_hangs_holds_up_nobody_else(old: Broker, memory: Memory) -> None:
    memory.is_cold, memory.hang = True, Event()
    async with trio.open_nursery() as nursery:
        old.shell.loops = BrokerLoops(old.core, old.clock)
        nursery.start_soon(old.shell.loops.run)
        client = pulling(old)
        assert old.ask(send_command(body=b"d")).code == ResponseCode.SUCCESS
        assert client.take() == []
        memory.hang.set()
        assert bodies(await client.answer()) == [b"a", b"b", b"c", b"d"]
        nursery.cancel_scope.cancel()


async def test_an_error_of_the_disk_is_told_by_the_loop(old: Broker, memory: Memory) -> None:
    memory.is_cold, memory.error = True, OSError(errno.EIO, "Input/output error")
    async with trio.open_nursery() as nursery:
        old.shell.loops = BrokerLoops(old.core, old.clock)
        nursery.start_soon(old.shell.loops.run)
        reply = await pulling(old).answer()
        assert (reply.code, reply.remark) == (ResponseCode.SYSTEM_ERROR, REASON)
        memory.error = None
        assert bodies(await pulling(old).answer()) == [b"a", b"b", b"c"], "the loop goes on"
        nursery.cancel_scope.cancel()


def test_a_store_is_asked_for_no_part_that_it_lost(old: Broker, memory: Memory) -> None:
    memory.is_cold = True
    asked(old)
    _, _, part = begun(old)
    old.store.loader("T", 3, part)()
    old.store.loader("Unknown", 0, part._replace(log_start=1 << 40, log_bytes=5))()
    assert memory.read == []
