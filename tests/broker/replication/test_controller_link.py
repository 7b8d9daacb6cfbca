"""Calls to the controllers: the leader is found, and each of them hears the heartbeats."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from rmqha.broker.replication.controller_link import ControllerLink
from rmqha.ha.action import CallController
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import NotSentError, UnreachableError
from rmqha.wire.command import Command
from tests.support.tracer import RecordingTracer

A, B, C = "127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"
TIMEOUT_MS = 1500


@dataclass
class Controllers:
    """Apache's three: each takes heartbeats, only `leader` takes the rest, and answers `refusal`. `frozen` ones never
    answer."""

    leader: str = A
    dead: set[str] = field(default_factory=set)
    frozen: set[str] = field(default_factory=set)
    refusal: int = ResponseCode.SUCCESS
    heard: list[tuple[str, int]] = field(default_factory=list)

    async def call(self, address: str, command: Command, timeout_ms: int | None) -> Command:
        assert timeout_ms is not None
        await trio.lowlevel.checkpoint()
        if address in self.dead:
            raise NotSentError(f"{address} is dead")
        self.heard.append((address, command.code))
        if address in self.frozen:
            await trio.sleep(timeout_ms / 1000)
            raise UnreachableError(f"{address} did not answer")
        if command.code == RequestCode.BROKER_HEARTBEAT or address == self.leader:
            return command.reply(self.refusal)
        return command.reply(ResponseCode.CONTROLLER_NOT_LEADER, {"controllerLeaderAddress": self.leader})

    def beats(self) -> list[str]:
        found = sorted(address for address, code in self.heard if code == RequestCode.BROKER_HEARTBEAT)
        self.heard.clear()
        return found


@dataclass
class Driver:
    replies: list[tuple[int, int | None]] = field(default_factory=list)

    def controller_replied(self, call_id: int, reply: Command | None) -> None:
        self.replies.append((call_id, None if reply is None else reply.code))


def action(call_id: int, code: int = RequestCode.BROKER_HEARTBEAT) -> CallController:
    return CallController(call_id, Command(code), TIMEOUT_MS)


async def test_every_controller_hears_a_heartbeat_and_the_driver_one_answer(nursery: trio.Nursery) -> None:
    controllers, driver, tracer = Controllers(), Driver(), RecordingTracer()
    link = ControllerLink(driver, controllers, [A, B, C], nursery, tracer)
    link.call(action(1))
    await wait_all_tasks_blocked()
    assert controllers.beats() == [A, B, C] and driver.replies == [(1, 0)]
    controllers.dead = {A}
    link.call(action(2))
    await wait_all_tasks_blocked()
    assert set(controllers.beats()) == {B, C} and driver.replies == [(1, 0), (2, 0)]


async def test_a_controller_that_falls_silent_and_answers_again_is_told_once(nursery: trio.Nursery) -> None:
    controllers, tracer = Controllers(dead={B}), RecordingTracer()
    link = ControllerLink(Driver(), controllers, [A, B], nursery, tracer)
    for call_id in range(2):
        link.call(action(call_id))
        await wait_all_tasks_blocked()
    controllers.dead.clear()
    link.call(action(2))
    await wait_all_tasks_blocked()
    assert tracer.events == [
        ("controller_silent", {"address": B, "reason": f"{B} is dead"}),
        ("controller_answers", {"address": B}),
    ]


async def test_another_request_goes_to_the_leader_only(nursery: trio.Nursery) -> None:
    controllers, driver = Controllers(leader=B), Driver()
    link = ControllerLink(driver, controllers, [A, B, C], nursery, RecordingTracer())
    link.call(action(1, RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET))
    await wait_all_tasks_blocked()
    assert [address for address, _ in controllers.heard] == [A, B] and driver.replies == [(1, 0)]


async def test_a_frozen_follower_gets_one_heartbeat_at_a_time(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    controllers, driver = Controllers(frozen={B}), Driver()
    link = ControllerLink(driver, controllers, [A, B], nursery, RecordingTracer())
    for call_id in range(4):
        link.call(action(call_id))
        await trio.sleep(0.6)
    assert controllers.beats().count(B) == 2  # at 0 s, and at 1.8 s: its answer was given up at 1.5 s
    assert driver.replies == [(call_id, 0) for call_id in range(4)]


@pytest.mark.parametrize("code", [RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, RequestCode.CONTROLLER_ELECT_MASTER])
async def test_a_refusal_behind_a_try_without_an_answer_is_no_proof_for_a_set(
    nursery: trio.Nursery, autojump_clock: MockClock, code: int
) -> None:
    """The copy that has no answer may arrive later, when what it was refused for is over: who was to come into the set
    has to be waited for until its epoch has moved."""
    refusal = ResponseCode.CONTROLLER_BROKER_NOT_ALIVE
    controllers, driver = Controllers(leader=B, frozen={A}, refusal=refusal), Driver()
    link = ControllerLink(driver, controllers, [A, B], nursery, RecordingTracer())
    link.call(action(1, code))
    await trio.sleep(2)
    assert [address for address, _ in controllers.heard] == [A, B]
    is_set = code == RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET
    assert driver.replies == [(1, ResponseCode.SYSTEM_ERROR if is_set else refusal)]
    controllers.frozen, controllers.dead = set(), {A}  # nothing is sent without a connection
    link = ControllerLink(driver, controllers, [A, B], nursery, RecordingTracer())
    link.call(action(2, code))
    await trio.sleep(2)
    assert driver.replies[1:] == [(2, refusal)]
    controllers.frozen, controllers.dead, controllers.refusal = {A}, set(), ResponseCode.SUCCESS
    link = ControllerLink(driver, controllers, [A, B], nursery, RecordingTracer())
    link.call(action(3, code))
    await trio.sleep(2)
    assert driver.replies[2:] == [(3, ResponseCode.SUCCESS)]
