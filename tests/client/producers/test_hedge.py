"""A try without an answer: given up for another master, but not while its broker holds it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
import trio
from trio.testing import MockClock

from rmqha.client.producers.hedge import CHECK_MS, OVERDUE_MS, SILENT_MS, Hedge, HedgedRequest
from rmqha.client.route import TopicRoute
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import UnreachableError
from rmqha.wire.command import Command

OLD, NEW, GROUP, TOPIC = "127.0.0.1:1", "127.0.0.1:2", "g-a", "T"
SOON_S = 0.001


@dataclass
class World:
    """Name server and old master in one. `says` None: the broker is frozen."""

    master: str = OLD
    says: Command | Exception | None = field(default_factory=lambda: Command(0, {"holds": "true"}))
    is_routed: bool = True
    asked: list[str] = field(default_factory=list)

    async def refresh(self, topic: str) -> TopicRoute:
        await trio.lowlevel.checkpoint()
        if not self.is_routed:
            raise UnreachableError("no name server answers")
        return TopicRoute(topic, {GROUP: {0: self.master}}, ())

    async def call(self, address: str, command: Command, timeout_ms: int) -> Command:
        assert command.code == RequestCode.RMQHA_HOLDS_SENDS
        self.asked.append(address)
        said = self.says
        await trio.sleep(timeout_ms / 1000 if said is None else SOON_S)
        if said is None:
            raise UnreachableError("no answer")
        if isinstance(said, Exception):
            raise said
        return said


class Story:
    def __init__(self, nursery: trio.Nursery) -> None:
        self.world = World()
        self.hedge = Hedge(self.world, self.world)
        nursery.start_soon(self.hedge.run)

    def send(self, address: str = OLD) -> HedgedRequest:
        item = HedgedRequest(TOPIC, GROUP, address, trio.current_time(), trio.CancelScope())
        self.hedge.tries.add(item)
        return item


@pytest.fixture
async def story() -> AsyncIterator[Story]:
    async with trio.open_nursery() as nursery:
        yield Story(nursery)
        nursery.cancel_scope.cancel()


async def seconds_until_given_up(item: HedgedRequest, limit_s: float = 10) -> float:
    began = trio.current_time()
    while not item.given_up and trio.current_time() < began + limit_s:  # noqa: ASYNC110  (nobody tells of it)
        await trio.sleep(SOON_S)
    assert item.given_up == item.scope.cancel_called
    return round(trio.current_time() - began, 6)  # 3.7 - 0.7 is less than 3


async def test_what_is_held_is_waited_for_however_long(story: Story, autojump_clock: MockClock) -> None:
    item = story.send()
    story.world.master = NEW
    assert await seconds_until_given_up(item) >= 10
    assert story.world.asked and set(story.world.asked) == {OLD}


REFUSED = Command(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, {})


@pytest.mark.parametrize("says", [Command(0, {"holds": "false"}), REFUSED, UnreachableError("closed")])
async def test_who_does_not_hold_it_is_given_up_at_the_next_look(
    story: Story, autojump_clock: MockClock, says: Command | Exception
) -> None:
    """Apache's brokers do not know the question."""
    story.world.says, story.world.master = says, NEW
    assert await seconds_until_given_up(story.send()) <= (OVERDUE_MS + CHECK_MS) / 1000 + 3 * SOON_S


async def test_nothing_is_given_up_while_the_group_has_no_other_master(story: Story, autojump_clock: MockClock) -> None:
    story.world.says = REFUSED
    item = story.send()
    assert await seconds_until_given_up(item, 3) >= 3
    story.world.is_routed, story.world.master = False, NEW
    assert await seconds_until_given_up(item, 3) >= 3, "the name servers are away"
    story.world.is_routed = True
    assert await seconds_until_given_up(item) <= CHECK_MS / 1000 + 3 * SOON_S


async def test_the_silence_of_a_frozen_master_is_known_before_there_is_another(
    story: Story, autojump_clock: MockClock
) -> None:
    story.world.says = None
    item = story.send()
    assert await seconds_until_given_up(item, 2) >= 2, "an election takes as long"
    story.world.master = NEW
    assert await seconds_until_given_up(item) <= CHECK_MS / 1000 + 3 * SOON_S
    young = story.send()
    assert await seconds_until_given_up(young) <= (OVERDUE_MS + CHECK_MS + SILENT_MS) / 1000


async def test_an_answer_from_before_the_switch_gives_nothing_up(story: Story, autojump_clock: MockClock) -> None:
    """The master that was slow then holds the send by now."""
    story.world.says = Command(0, {"holds": "false"})
    item = story.send()
    while not story.world.asked:  # noqa: ASYNC110  (the moment after it was asked)
        await trio.sleep(SOON_S / 10)
    story.world.master, story.world.says = NEW, Command(0, {"holds": "true"})
    assert await seconds_until_given_up(item) >= 10


async def test_only_what_waits_at_the_address_that_lost_its_mastership_is_given_up(
    story: Story, autojump_clock: MockClock
) -> None:
    story.world.says, story.world.master = REFUSED, NEW
    old, new = story.send(OLD), story.send(NEW)
    assert await seconds_until_given_up(old) < 1
    assert await seconds_until_given_up(new, 3) >= 3


async def test_what_has_been_answered_meanwhile_is_left_alone(story: Story, autojump_clock: MockClock) -> None:
    story.world.says, story.world.master = REFUSED, NEW
    item = story.send()
    while not story.world.asked:  # noqa: ASYNC110  (the moment after it was asked)
        await trio.sleep(SOON_S / 10)
    story.hedge.tries.remove(item)
    assert await seconds_until_given_up(item, 3) >= 3
