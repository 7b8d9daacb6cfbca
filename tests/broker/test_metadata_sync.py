"""A slave takes its master's tables: topics and what was deleted, groups, consumer and delay offsets."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from rmqha.broker.metadata_sync import Master, MetadataSync
from rmqha.host.remoting import RemotingClient
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.offset import BrokerId, Epoch
from rmqha.wire.command import Command
from tests.broker.support import Broker, send_command

MASTER = Master("127.0.0.1:1", Epoch(1), BrokerId(2))


class Line:
    """A client whose only peer is a broker without sockets; `before` sees each request first."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.before: Callable[[Command], None] = lambda command: None

    async def call(self, address: str, command: Command, timeout_ms: int) -> Command:
        assert address == MASTER.address
        self.before(command)
        return self._broker.ask(command)


class Slave:
    def __init__(self, broker: Broker, line: Line) -> None:
        self.core = broker.core
        self.master: Master | None = MASTER
        self.sync = MetadataSync(
            self.core.topics,
            self.core.groups,
            self.core.offsets,
            self.core.delay_offsets,
            cast("RemotingClient", line),
            lambda: self.master,
            broker.tracer,
        )


@pytest.fixture
def line(broker: Broker) -> Line:
    """To a master with something in each table."""
    for topic in ("T", "Deleted"):
        broker.ask(send_command(topic))
    broker.ask(Command(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Deleted"}))
    broker.core.groups.put({"groupName": "G", "retryMaxTimes": 3})
    broker.core.offsets.commit("G", "T", 0, 1)
    broker.ask(send_command(i="DELAY\x011\x02"))
    broker.run(1000)
    return Line(broker)


@pytest.fixture
def slave(line: Line, make_broker: Callable[..., Broker]) -> Slave:
    return Slave(make_broker("slave"), line)


async def test_all_tables(slave: Slave) -> None:
    assert await slave.sync.pull(MASTER)
    core = slave.core
    assert core.topics.get("T") is not None and core.topics.deleted == {"Deleted"}
    group = core.groups.get("G")
    assert group is not None and group["retryMaxTimes"] == 3
    assert core.offsets.query("G", "T", 0) == 1
    assert core.delay_offsets.get(1) == 1 and core.delay_offsets.unsaved() is not None


async def test_what_comes_from_a_master_of_yesterday_is_dropped(slave: Slave, line: Line) -> None:
    def switch(command: Command) -> None:
        if command.code == RequestCode.GET_ALL_DELAY_OFFSET:
            slave.master = None

    line.before = switch
    await slave.sync.pull(MASTER)
    assert slave.core.offsets.query("G", "T", 0) == 1
    assert slave.core.delay_offsets.levels() == []


async def test_a_master_that_refuses_is_told_once(slave: Slave, line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(address: str, command: Command, timeout_ms: int) -> Command:
        return command.reply(ResponseCode.SYSTEM_ERROR, remark="no")

    monkeypatch.setattr(line, "call", refuse)
    assert not await slave.sync.pull(MASTER)
    assert not await slave.sync.pull(MASTER)
    names = [name for name, _ in slave.core._tracer.events]  # type: ignore[attr-defined]
    assert names.count("metadata_not_synced") == 1
