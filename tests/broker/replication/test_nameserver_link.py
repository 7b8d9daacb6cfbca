"""Who waits until the name servers know of a change: thousands at a time, if somebody makes topics without an end."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from rmqha.broker.replication.nameserver_link import (
    HEADER_BYTES,
    RELEASED_COUNT,
    NameServerLink,
    NameServerRegistration,
)
from rmqha.broker.tables.topics import TopicConfig
from rmqha.host.clock import HostClock
from rmqha.host.net.remoting import RemotingClient
from rmqha.model.code import ResponseCode
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.error import UnreachableError
from rmqha.model.offset import BrokerId
from rmqha.wire.command import Command
from rmqha.wire.registration import parse_registration
from tests.broker.support import Broker
from tests.support.patience import HANG_S
from tests.support.steps import done

COUNT = 5 * RELEASED_COUNT + 7
ADDRESSES = ["127.0.0.1:1", "127.0.0.1:2"]


class Client:
    """Answers registrations once it may; the second address is not reached."""

    def __init__(self) -> None:
        self.may_answer = trio.Event()

    async def call(self, address: str, command: Command, timeout_ms: int | None) -> Command:
        if address == ADDRESSES[1]:
            raise UnreachableError("nobody is there")
        await self.may_answer.wait()
        return command.reply(ResponseCode.SUCCESS)

    async def oneway(self, address: str, command: Command) -> None:
        """Heartbeats."""
        await trio.lowlevel.checkpoint()


def link_of_master(tracer: Any, topics: Any, *, role: bool = True, **keys: Any) -> NameServerLink:
    replica = SimpleNamespace(
        is_master=role, is_following=False, is_listed_unaligned=False, seeks_master=False, broker_id=1
    )
    driver = SimpleNamespace(replica=replica, master_discovered=lambda *_: None)
    turn = trio.lowlevel.checkpoint
    return NameServerLink(BrokerConfig(**keys), cast(Any, driver), topics, ADDRESSES, HostClock(), tracer, turn)


@pytest.fixture
def link(broker: Broker) -> NameServerLink:
    return link_of_master(broker.tracer, broker.core.topics)


async def test_all_are_told_in_order_and_the_loop_turns_meanwhile(
    link: NameServerLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, is_settled = 0, NameServerRegistration.is_settled

    def counted(registration: NameServerRegistration, revision: int) -> bool:
        nonlocal looks
        looks += 1
        return is_settled(registration, revision)

    monkeypatch.setattr(NameServerRegistration, "is_settled", counted)
    client, told, turns = Client(), list[int](), list[int]()
    async with trio.open_nursery() as nursery:

        async def count_turns() -> None:
            while len(told) < COUNT:
                turns.append(len(told))
                await trio.lowlevel.checkpoint()

        link.changed()
        for number in range(COUNT):
            link.when_registered(lambda number=number: told.append(number))  # type: ignore[misc]
        assert looks <= 2 * len(ADDRESSES), "each newcomer looked at all who wait"
        nursery.start_soon(link.run, cast(RemotingClient, client))
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert not told
        client.may_answer.set()
        with trio.fail_after(HANG_S):
            await count_turns()
        nursery.cancel_scope.cancel()
    assert told == list(range(COUNT))
    assert max(after - before for before, after in itertools.pairwise(turns)) <= RELEASED_COUNT * len(ADDRESSES)
    assert looks <= 4 * COUNT


async def test_later_changes_wait_for_a_later_registration(link: NameServerLink) -> None:
    client, told = Client(), list[str]()
    async with trio.open_nursery() as nursery:
        link.changed()
        link.when_registered(lambda: told.append("first"))
        nursery.start_soon(link.run, cast(RemotingClient, client))
        await trio.testing.wait_all_tasks_blocked(0.01)
        link.changed()
        link.when_registered(lambda: told.append("second"))
        client.may_answer.set()
        client.may_answer = trio.Event()
        with trio.fail_after(HANG_S):
            while not told:
                await trio.lowlevel.checkpoint()
        assert told == ["first"]
        client.may_answer.set()
        with trio.fail_after(HANG_S):
            while len(told) < 2:
                await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert told == ["first", "second"]


def test_a_replica_on_no_list_keeps_nobody_waiting(broker: Broker) -> None:
    told: list[int] = []
    fenced = link_of_master(broker.tracer, broker.core.topics, role=False)
    for number in range(3):
        fenced.when_registered(lambda number=number: told.append(number))  # type: ignore[misc]
    assert told == [0, 1, 2]


@pytest.mark.parametrize("topic_count", [10, 500])
async def test_topics_that_do_not_fit_into_a_frame_are_compressed(broker: Broker, topic_count: int) -> None:
    """Else no name server took them, and soon no client found the group any more: topics of long names suffice."""
    names = [f"{number:0127d}" for number in range(topic_count)]
    for name in names:
        broker.core.topics.put(TopicConfig(name, 4, 4))
    max_frame_bytes, sent = HEADER_BYTES + 100_000, list[Command]()

    class NameServer(Client):
        async def call(self, address: str, command: Command, timeout_ms: int | None) -> Command:
            sent.append(command)
            return command.reply(ResponseCode.SUCCESS)

    link = link_of_master(broker.tracer, broker.core.topics, max_frame_bytes=max_frame_bytes)
    await link._register(cast(RemotingClient, NameServer()), ADDRESSES[0], BrokerId(0))
    (request,) = sent
    assert (request.ext["compressed"] == "true") is (topic_count == 500)
    assert len(request.body) + HEADER_BYTES <= max_frame_bytes
    found = done(parse_registration(request))
    assert found.topics.keys() >= set(names) and found.version is not None
