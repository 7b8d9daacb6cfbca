"""Pops of messages that are not in memory wait for a thread that reads them, and hold up nobody else; so do looks, and
what comes again."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event
from typing import Any

import pytest
import trio

from rmqha.broker.cold_reads import COLD_WAIT_MS, MAX_LOAD_COUNT, TROUBLE_MS, ColdPart
from rmqha.broker.loops import BrokerLoops
from rmqha.host.disk import HostRegion
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.store import cold_range
from rmqha.wire.command import Command
from tests.broker.pop.test_pop import bodies
from tests.broker.pop.world import INVISIBLE_MS, ack_all, later, messages, pop, pop_command, send
from tests.broker.requests.test_cold_pulls import REASON, Client, Memory
from tests.broker.support import Broker, FakeChannel, send_command
from tests.support.patience import HANG_S

MakeBroker = Callable[..., Broker]


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Memory:
    return Memory(monkeypatch)


@pytest.fixture
def old(make_broker: MakeBroker) -> Broker:
    """A master of three messages that it had when it was started."""
    broker = make_broker().start()
    send(broker, b"a", b"b", b"c")
    broker.close()
    return make_broker().start()


def asked(broker: Broker, command: Command) -> FakeChannel:
    channel = FakeChannel()
    broker.core.processor.received(channel, [command])
    broker.run()
    return channel


def popping(broker: Broker, **ext: Any) -> FakeChannel:
    return asked(broker, pop_command(**ext))


def peek(**ext: Any) -> Command:
    command = pop_command(**ext)
    return Command(RequestCode.PEEK_MESSAGE, command.ext)


def begun(broker: Broker) -> ColdPart:
    part = broker.core.cold_reads.begin()
    assert part is not None, "nothing is to be read"
    return part


def load(broker: Broker) -> None:
    """Do what a thread of the loops does."""
    part = begun(broker)
    broker.core.store.loader(*part)()
    broker.core.cold_reads.end(part)
    broker.core.loaded(part)
    broker.run()


def fail(broker: Broker) -> ColdPart:
    """The disk cannot read the next part."""
    part = begun(broker)
    broker.core.unreadable(part, REASON)
    broker.core.cold_reads.end(part)
    broker.run()
    return part


def load_all(broker: Broker) -> None:
    while broker.core.cold_reads._waiting:
        load(broker)


def cold_at(
    monkeypatch: pytest.MonkeyPatch, size_of_file: int, first: int, last: int, *, forever: bool = False
) -> None:
    """A part of files of that size is not in memory, until it was read."""
    loader, is_cold = HostRegion.loader, [True]

    def is_in_memory(region: HostRegion, position: int, size_bytes: int) -> bool:
        is_there = position < last and first < position + size_bytes
        return not (is_cold[0] and region.size_bytes == size_of_file and is_there)

    def loads(region: HostRegion, position: int, size_bytes: int) -> Callable[[], None]:
        load = loader(region, position, size_bytes)

        def run() -> None:
            load()
            if region.size_bytes == size_of_file:
                is_cold[0] = forever

        return run

    monkeypatch.setattr(HostRegion, "is_in_memory", is_in_memory)
    monkeypatch.setattr(HostRegion, "loader", loads)
    monkeypatch.setattr(cold_range, "NEW_BYTES", 0)


@pytest.mark.parametrize("order", ["false", "true"])
def test_a_pop_waits_until_its_messages_are_in_memory(old: Broker, memory: Memory, order: str) -> None:
    memory.is_cold = True
    channel = popping(old, order=order)
    assert channel.take() == []
    assert old.shell.woken["cold_reads"] == 1
    load(old)
    assert bodies(messages(channel.one())) == [b"a", b"b", b"c"]
    assert old.core.pops.poll_count == 0


def test_pops_of_one_queue_share_a_read(old: Broker, memory: Memory) -> None:
    memory.is_cold = True
    channels = [popping(old, group=f"G{number}") for number in range(3)]
    load(old)
    assert old.core.cold_reads.begin() is None
    assert [bodies(messages(channel.one(), group=f"G{number}")) for number, channel in enumerate(channels)] == [
        [b"a", b"b", b"c"]
    ] * 3


def first_queue_cold(make_broker: MakeBroker, monkeypatch: pytest.MonkeyPatch) -> Broker:
    """Of two queues, each with one message; the second one's has been popped."""
    broker = make_broker().start()
    for queue_id in range(2):
        broker.ask(send_command(queue_id=queue_id, body=b"%d" % queue_id))
    broker.close()
    broker = make_broker().start()
    size = broker.store.max_phy_offset // 2
    cold_at(monkeypatch, broker.config.mapped_file_size_commit_log, 0, size)
    assert bodies(pop(broker)) == [b"1"]
    return broker


def test_a_cold_queue_holds_up_no_other(make_broker: MakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = first_queue_cold(make_broker, monkeypatch)
    channel = popping(broker)
    assert channel.take() == []
    load(broker)
    assert bodies(messages(channel.one())) == [b"0"]


def test_a_pop_that_waits_too_long_is_to_ask_again(old: Broker, memory: Memory) -> None:
    memory.is_cold = True
    channel = popping(old)
    old.run(COLD_WAIT_MS - 1)
    assert channel.take() == []
    old.run(1)
    assert channel.one().code == ResponseCode.POLLING_TIMEOUT
    load(old)
    assert bodies(pop(old)) == [b"a", b"b", b"c"]


def test_new_messages_read_nothing_for_those_that_wait(old: Broker, memory: Memory) -> None:
    memory.is_cold = True
    channel = popping(old, pollTime=15_000)
    begun(old)
    for _ in range(5):
        old.ask(send_command(body=b"d"))
    assert old.core.cold_reads.begin() is None
    assert channel.take() == []


def test_a_file_system_that_keeps_nothing_in_memory_stops_no_pop(old: Broker, memory: Memory) -> None:
    memory.is_cold = memory.keeps_nothing = True
    channel = popping(old, pollTime=15_000)
    for _ in range(MAX_LOAD_COUNT):
        assert channel.take() == []
        load(old)
    assert bodies(messages(channel.one())) == [b"a", b"b", b"c"]


def test_a_pop_begins_at_the_end_only_if_the_queue_is_not_in_memory(make_broker: MakeBroker, memory: Memory) -> None:
    """A new group that wants the newest: the first entry of the queue tells where it begins, and is read by a thread
    too."""
    broker = make_broker(memory_bytes=1 << 30).start()
    send(broker, b"a", b"b")
    broker.close()
    broker = make_broker(memory_bytes=1 << 30).start()
    memory.is_cold = True
    channel = popping(broker, initMode=1)
    assert channel.take() == []
    load_all(broker)
    assert bodies(messages(channel.one())) == [b"a", b"b"]


def test_a_bad_sector_is_told_and_nothing_is_passed_over(old: Broker, memory: Memory) -> None:
    """A look through the mapping would end the process (SIGBUS). The first read may have failed by what lies between
    its messages."""
    memory.is_cold = True
    channel = popping(old)
    first = fail(old)
    assert channel.take() == []
    second = fail(old)
    assert second[2].queue_bytes < first[2].queue_bytes
    assert old.core.cold_reads.begin() is None, "it is not read again and again"
    old.run(COLD_WAIT_MS)
    reply = channel.one()
    assert (reply.code, reply.remark) == (ResponseCode.SYSTEM_ERROR, REASON)
    reply = popping(old).one()
    assert (reply.code, reply.remark) == (ResponseCode.SYSTEM_ERROR, REASON)
    old.run(TROUBLE_MS)
    channel = popping(old)
    load(old)
    assert bodies(messages(channel.one())) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("fields", [{"maxMsgNums": 1}, {"expType": "TAG", "exp": "red || blue"}])
def test_one_read_that_failed_silences_no_group(old: Broker, memory: Memory, fields: dict[str, Any]) -> None:
    """The look that follows wants the same part again: of one entry, or of as many as a filter looks at."""
    memory.is_cold = True
    channel = popping(old, **fields)
    fail(old)
    load(old)
    if "exp" in fields:
        assert channel.take() == []
        old.run(COLD_WAIT_MS)
        assert channel.one().code == ResponseCode.POLLING_TIMEOUT, "there is nothing of these tags"
    else:
        assert bodies(messages(channel.one())) == [b"a"]


def test_a_group_that_wants_the_newest_does_not_wait_for_a_first_message_in_a_bad_sector(
    make_broker: MakeBroker, memory: Memory
) -> None:
    broker = make_broker(memory_bytes=1 << 30).start()
    send(broker, b"a", b"b")
    broker.close()
    broker = make_broker(memory_bytes=1 << 30).start()
    memory.is_cold = True
    channel = popping(broker, initMode=1)
    fail(broker)
    fail(broker)
    load_all(broker)
    assert bodies(messages(channel.one())) == [b"b"]


def test_a_look_through_the_checkpoints_goes_on_where_the_log_begins_now(
    old: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest files went while it waited for the disk."""
    recovery = old.core.pops.recovery
    current = [1, 0, 0, 10]
    monkeypatch.setattr(old.store, "queue_range", lambda topic, queue_id: (4, 10))
    assert recovery._read_step(current)
    assert current == [1, 0, 4, 10]


def test_a_bad_sector_between_messages_stops_no_group(old: Broker, memory: Memory) -> None:
    memory.is_cold = True
    channel = popping(old)
    fail(old)
    load(old)
    assert bodies(messages(channel.one())) == [b"a"]


def test_a_bad_sector_of_one_queue_holds_up_no_other(make_broker: MakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = first_queue_cold(make_broker, monkeypatch)
    fail(broker)
    channel = popping(broker, pollTime=8000)
    fail(broker)
    assert channel.take() == []
    broker.ask(send_command(queue_id=1, body=b"2"))
    assert bodies(messages(channel.one())) == [b"2"]
    channel = popping(broker, pollTime=1000)
    broker.run(1000)
    assert channel.one().code == ResponseCode.SYSTEM_ERROR


def test_a_rotten_record_that_nobody_gives_back_is_told(broker: Broker) -> None:
    """The group stays in front of it, and other queues go on."""
    for queue_id in range(2):
        broker.ask(send_command(queue_id=queue_id, body=b"number %d" % queue_id))
    broker.run(1000)
    path = broker.directory / "commitlog" / ("0" * 20)
    at = path.read_bytes().index(b"number 0")
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"N")
    assert bodies(pop(broker)) == [b"number 1"]
    assert pop(broker) == [], "a replica may give it back"
    broker.store.damage.lacked(0, "no other replica has it")
    reply = popping(broker).one()
    assert reply.code == ResponseCode.SYSTEM_ERROR and "expected a body with CRC" in str(reply.remark)


def test_a_look_waits_too(old: Broker, memory: Memory) -> None:
    memory.is_cold = True
    channel = asked(old, peek())
    assert channel.take() == []
    load(old)
    reply = channel.one()
    assert reply.code == ResponseCode.SUCCESS and b"a" in bytes(reply.body)
    assert bodies(pop(old)) == [b"a", b"b", b"c"]


def test_a_look_that_waits_too_long_shows_what_there_is(old: Broker, memory: Memory) -> None:
    memory.is_cold = True
    channel = asked(old, peek())
    old.run(COLD_WAIT_MS)
    assert channel.one().code == ResponseCode.PULL_NOT_FOUND
    load_all(old)
    channel = asked(old, peek())
    assert channel.one().code == ResponseCode.SUCCESS


def test_a_look_at_a_bad_sector_is_told(old: Broker, memory: Memory) -> None:
    memory.is_cold = True
    channel = asked(old, peek())
    fail(old)
    fail(old)
    reply = channel.one()
    assert (reply.code, reply.remark) == (ResponseCode.SYSTEM_ERROR, REASON)


def test_a_message_that_comes_again_is_read_by_a_thread(broker: Broker, memory: Memory) -> None:
    send(broker, b"a")
    pop(broker)
    later(broker, INVISIBLE_MS - 2000)
    memory.is_cold = memory.keeps_nothing = True
    later(broker, 5000)
    assert broker.core.pops.revive.revived_count == 0
    memory.keeps_nothing = False
    load_all(broker)
    later(broker, 1000)
    assert bodies(pop(broker)) == [b"a"]


def test_what_comes_again_waits_for_each_of_its_messages(broker: Broker, memory: Memory) -> None:
    """On a file system that keeps nothing in memory it comes all the same."""
    send(broker, b"a", b"b", b"c")
    pop(broker)
    memory.is_cold = memory.keeps_nothing = True
    for _ in range(60):
        broker.run(500)
        load_all(broker)
    assert broker.core.pops.revive.revived_count == 3


def test_a_popped_message_in_a_bad_sector_comes_once_it_can_be_read(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(broker, b"a", b"b")
    size = broker.store.max_phy_offset // 2
    pop(broker)
    cold_at(monkeypatch, broker.config.mapped_file_size_commit_log, 0, size)
    later(broker, INVISIBLE_MS + 3000)
    assert pop(broker) == []
    fail(broker)
    fail(broker)
    later(broker, 1000)
    (other,) = pop(broker)
    assert other.body == b"b", "the other one is not held up"
    ack_all(broker, [other])
    for _ in range(60):
        broker.run(500)
        load_all(broker)
    assert bodies(pop(broker)) == [b"a"]


def restarted(make_broker: MakeBroker, killed: Broker) -> Broker:
    """As after a kill: the tables say nothing of what was popped."""
    killed.store.sync()
    killed.store.close()
    killed.open = False
    return make_broker().start()


def test_a_new_master_reads_checkpoints_of_before_by_a_thread(make_broker: MakeBroker, memory: Memory) -> None:
    broker = make_broker().start()
    send(broker, b"a", b"b", b"c")
    ack_all(broker, pop(broker, maxMsgNums=2))
    memory.is_cold = memory.keeps_nothing = True
    broker = restarted(make_broker, broker)
    channel = popping(broker, pollTime=15_000)
    assert channel.take() == [] and broker.core.cold_reads._waiting
    memory.keeps_nothing = False
    load_all(broker)
    assert bodies(messages(channel.one())) == [b"c"]


def test_a_checkpoint_in_a_bad_sector_holds_up_no_pops(make_broker: MakeBroker, memory: Memory) -> None:
    """It would have told only that its messages were given already."""
    broker = make_broker().start()
    send(broker, b"a", b"b")
    ack_all(broker, pop(broker))
    memory.is_cold = True
    broker = restarted(make_broker, broker)
    channel = popping(broker, pollTime=60_000)
    for _ in range(20):
        if broker.core.cold_reads._waiting and not broker.core.pops.recovery.is_done:
            fail(broker)
        broker.run(100)
    assert broker.core.pops.recovery.is_done
    memory.is_cold = False
    assert "pop_record_unreadable" in broker.tracer.names()
    load_all(broker)
    assert bodies(messages(channel.one())) == [b"a", b"b"]


def test_what_is_in_a_bad_sector_of_the_revive_queue_is_not_passed_over(broker: Broker, memory: Memory) -> None:
    """Its messages would never come again. Once it can be read they do."""
    send(broker, b"a")
    pop(broker)
    memory.is_cold = True
    later(broker, INVISIBLE_MS + 3000)
    fail(broker)
    fail(broker)
    for _ in range(5):
        broker.run(100)
    assert broker.tracer.names().count("revive_held_by_disk") == 1
    assert broker.core.pops.revive.revived_count == 0
    memory.is_cold = False
    later(broker, TROUBLE_MS + 2000)
    load_all(broker)
    later(broker, 2000)
    assert bodies(pop(broker)) == [b"a"]


def test_a_new_role_answers_pops_that_wait(old: Broker, memory: Memory) -> None:
    memory.is_cold = True
    channel = popping(old)
    old.core.pops.role_changed()
    assert channel.one().code == ResponseCode.POLLING_TIMEOUT
    load(old)
    assert channel.take() == []


async def test_a_disk_that_hangs_holds_up_nobody_else(old: Broker, memory: Memory) -> None:
    memory.is_cold, memory.hang = True, Event()
    async with trio.open_nursery() as nursery:
        old.shell.loops = BrokerLoops(old.core, old.clock)
        nursery.start_soon(old.shell.loops.run)
        client = Client()
        answered = client.send_frames

        def send_frames(frames: bytes, count: int) -> None:
            answered(frames, count)
            client.is_answered.set()

        client.send_frames = send_frames  # type: ignore[method-assign]
        old.core.processor.received(client, [pop_command(pollTime=15_000)])
        assert old.ask(send_command(body=b"d")).code == ResponseCode.SUCCESS
        assert client.take() == []
        memory.hang.set()
        with trio.fail_after(HANG_S):
            await client.is_answered.wait()
        assert bodies(messages(client.one())) == [b"a", b"b", b"c", b"d"]
        nursery.cancel_scope.cancel()
