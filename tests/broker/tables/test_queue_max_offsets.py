"""A replica that began to copy behind the first records asks its master where the queues end (request 52032)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest
import trio
import trio.testing

from rmqha.broker.replication.metadata_sync import QueueMaxOffsetsSync
from rmqha.broker.tables.metadata_follower import FollowedMaster
from rmqha.broker.tables.queue_max_offsets import QueueMaxOffsets
from rmqha.host.net.remoting import RemotingClient
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import UnreachableError
from rmqha.model.offset import BrokerId, Epoch, PhyOffset
from rmqha.wire import lenient_json
from rmqha.wire.command import Command
from tests.broker.support import Broker, FakeChannel, send_command
from tests.support.patience import HANG_S

FILE_BYTES = 64 * 1024
MASTER = FollowedMaster("127.0.0.1:1", Epoch(1), BrokerId(1))
IDLE = ("idle", 1)


class Slave:
    """Replica 2, whose log begins where the master's does; `answer` stands between it and the master."""

    def __init__(self, broker: Broker, master: Broker) -> None:
        self.broker = broker
        self.store = broker.store
        self.of_master = master
        self.master: FollowedMaster | None = MASTER
        self.is_master = False
        self.is_following = True
        self.answer: Callable[[Command], Command | None] = lambda command: None
        self.asked = 0
        self.greetings = 0
        self.store.restart_at(master.store.min_phy_offset)
        ends = QueueMaxOffsets(self.store, self, lambda: self.master, self.greet, broker.tracer)
        self.sync = QueueMaxOffsetsSync(ends, self.store.queue_min_offsets, cast("RemotingClient", self))

    def greet(self) -> None:
        self.greetings += 1

    async def call(self, address: str, command: Command, timeout_ms: int) -> Command:
        assert (address, command.code) == (MASTER.address, RequestCode.RMQHA_GET_QUEUE_ENDS)
        self.asked += 1
        await trio.lowlevel.checkpoint()
        return self.answer(command) or told_by(self.of_master, command)

    def copy(self, end_offset: int) -> None:
        """Bytes and the confirm offset, as HA brings them."""
        own, master = self.store, self.of_master.store
        while own.max_phy_offset < end_offset:
            own.append_raw(own.max_phy_offset, master.view(own.max_phy_offset, end_offset - own.max_phy_offset))
        own.set_confirm_offset(own.max_phy_offset)
        while own.dispatch(1 << 20):
            pass

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.sync.run)
            yield
            nursery.cancel_scope.cancel()

    def events(self) -> list[tuple[str, dict[str, object]]]:
        return [item for item in self.broker.tracer.events if item[0].startswith("queue_ends")]


def told_by(broker: Broker, command: Command) -> Command:
    channel = FakeChannel()
    broker.core.processor.received(channel, [command])
    return channel.one()


@pytest.fixture
def slave(tmp_path: Path) -> Iterator[Slave]:
    """Its master has removed all records of one queue."""
    keys = {"mapped_file_size_commit_log": FILE_BYTES, "max_message_size": 32_768}
    master = Broker(tmp_path / "1", **keys).start()
    channel = FakeChannel()
    for _ in range(5):
        master.core.processor.received(channel, [send_command(IDLE[0], IDLE[1], b"old")])
    for number in range(6):
        master.core.processor.received(channel, [send_command("busy", 0, b"%d" % number * 20_000)])
        master.run()
    master.store.sync()
    master.store.trim(PhyOffset(FILE_BYTES))
    master.store.trim_derived()
    assert master.store.min_phy_offset == FILE_BYTES
    assert master.store.queue_range(*IDLE) == (5, 5)
    broker = Broker(tmp_path / "2", **keys)
    yield Slave(broker, master)
    master.store.close()
    broker.store.close()


async def until(holds: Callable[[], bool]) -> None:
    with trio.fail_after(HANG_S):
        while not holds():  # noqa: ASYNC110  (two machines without an event in common)
            await trio.sleep(0.001)


async def test_it_waits_until_it_has_what_the_master_answered_for(slave: Slave) -> None:
    end = slave.of_master.store.max_phy_offset
    async with slave.running():
        slave.copy(end - 1000)
        await until(lambda: slave.asked == 1)
        await trio.sleep(0.05)
        assert slave.store.lacks_queue_ends
        slave.copy(end)
        await until(lambda: not slave.store.lacks_queue_ends)
    assert slave.store.queue_range(*IDLE) == (5, 5)
    assert slave.store.queue_range("busy", 0) == slave.of_master.store.queue_range("busy", 0)
    assert slave.greetings == 1, "it greets its master again"
    assert slave.events() == [("queue_ends_learned", {"master": MASTER.address, "count": 1})]


async def test_a_log_that_a_thread_begins_anew_wakes_the_question(slave: Slave) -> None:
    """A replica that lost its disk ended here: an event of trio may be set in its own thread only."""
    async with slave.running():
        slave.copy(slave.of_master.store.max_phy_offset)
        await until(lambda: not slave.store.lacks_queue_ends)
        await trio.testing.wait_all_tasks_blocked()
        with trio.fail_after(HANG_S):
            await trio.to_thread.run_sync(slave.store.restart_at, PhyOffset(FILE_BYTES))
        await until(lambda: slave.asked == 2)


async def test_a_log_that_begins_anew_meanwhile_asks_again(slave: Slave) -> None:
    end = slave.of_master.store.max_phy_offset
    async with slave.running():
        await until(lambda: slave.asked == 1)
        slave.store.restart_at(PhyOffset(2 * FILE_BYTES))
        slave.copy(end)
        await until(lambda: not slave.store.lacks_queue_ends)
        assert slave.asked == 2
        slave.store.restart_at(PhyOffset(FILE_BYTES))
        slave.copy(end)
        await until(lambda: not slave.store.lacks_queue_ends)
    assert slave.store.queue_range(*IDLE) == (5, 5)


@pytest.mark.parametrize("change", ["master", "alignment"])
async def test_nothing_is_taken_of_who_is_followed_no_more(slave: Slave, change: str) -> None:
    async with slave.running():
        await until(lambda: slave.asked == 1)
        if change == "master":
            slave.master = None
        else:
            slave.is_following = False
        slave.copy(slave.of_master.store.max_phy_offset)
        await trio.sleep(0.15)
        assert slave.store.lacks_queue_ends
        slave.master, slave.is_following = MASTER, True
        await until(lambda: not slave.store.lacks_queue_ends)


async def test_apaches_master_does_not_know(slave: Slave) -> None:
    slave.answer = lambda command: command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
    async with slave.running():
        await until(lambda: not slave.store.lacks_queue_ends)
    (told, learned) = slave.events()
    assert "does not know request 52032" in str(told[1]["reason"])
    assert learned[1]["count"] == 0


def _unreachable(command: Command) -> Command | None:
    raise UnreachableError("nobody there")


BAD_BODIES: list[object] = [
    [],
    {},
    {"queues": 5},
    {"queues": [["T", 0]]},
    {"queues": [["../../etc", 0, 5]]},
    {"queues": [["T", -1, 5]]},
    {"queues": [["T", 0, 0]]},
    {"queues": [["T", "0", 5]]},
    {"queues": [["T", 0, 1 << 70]]},
]


@pytest.mark.parametrize("body", BAD_BODIES, ids=str)
async def test_an_answer_that_is_none_is_told_once(slave: Slave, body: object) -> None:
    data = json.dumps(body).encode()
    slave.answer = lambda command: command.reply(ext={"dispatchedOffset": "0"}, body=data)
    async with slave.running():
        await until(lambda: slave.asked >= 2)
        assert slave.store.lacks_queue_ends
        assert [name for name, _ in slave.events()] == ["queue_ends_not_learned"]


@pytest.mark.parametrize(
    "answer",
    [
        _unreachable,
        lambda command: command.reply(ResponseCode.SYSTEM_ERROR, remark="busy"),
        lambda command: command.reply(body=b"{}"),
    ],
)
async def test_it_asks_until_it_knows(slave: Slave, answer: Callable[[Command], Command | None]) -> None:
    slave.answer = answer
    slave.copy(slave.of_master.store.max_phy_offset)
    async with slave.running():
        await until(lambda: slave.asked == 2)
        slave.answer = lambda command: None
        await until(lambda: not slave.store.lacks_queue_ends)
    assert slave.store.queue_range(*IDLE) == (5, 5)


def test_only_a_master_tells(slave: Slave) -> None:
    reply = told_by(slave.broker, Command(RequestCode.RMQHA_GET_QUEUE_ENDS))
    assert (reply.code, reply.remark) == (ResponseCode.SYSTEM_ERROR, "this broker is not the master of its group")
    reply = told_by(slave.of_master, Command(RequestCode.RMQHA_GET_QUEUE_ENDS))
    assert lenient_json.loads(reply.body) == {"queues": [["busy", 0, 6], ["idle", 1, 5]]}
    assert reply.ext == {"dispatchedOffset": str(slave.of_master.store.max_phy_offset)}


def test_a_master_that_lacks_them_says_so(slave: Slave) -> None:
    slave.broker.start()
    assert slave.broker.core.driver.is_serving
    assert "master_lacks_queue_ends" in slave.broker.tracer.names()
