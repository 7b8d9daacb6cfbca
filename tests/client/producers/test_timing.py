"""When a message of our own producer comes, and how it is taken back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from rmqha.client.producers.producer import Producer
from rmqha.client.producers.timing import recall, timer_properties
from rmqha.client.route import TopicRoute
from rmqha.client.route_table import Backoff
from rmqha.model.code import RequestCode
from rmqha.model.code import ResponseCode as Code
from rmqha.model.error import RemoteError, UnreachableError, UsageError
from rmqha.model.message import RecallHandle
from rmqha.wire.command import Command
from tests.client.fake import FakeCluster

NOW_MS = 1_800_000_000_000
HANDLE = RecallHandle("T", "g-a", NOW_MS, "ID").encode()


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        ({}, {}),
        ({"delay": timedelta(minutes=2)}, {"TIMER_DELAY_MS": "120000"}),
        ({"deliver_at": datetime.fromtimestamp(1_800_000_001, UTC)}, {"TIMER_DELIVER_MS": "1800000001000"}),
        (
            {"deliver_at": datetime.fromtimestamp(1_800_000_001.0004, timezone(timedelta(hours=9)))},
            {"TIMER_DELIVER_MS": "1800000001001"},
        ),
    ],
)
def test_a_time_becomes_a_property_and_never_an_earlier_one(asked: dict[str, Any], wanted: dict[str, str]) -> None:
    given = {"color": "red"}
    assert timer_properties(asked.get("deliver_at"), asked.get("delay"), given, NOW_MS) == given | wanted


LATER = datetime.fromtimestamp(1_900_000_000, UTC)


@pytest.mark.parametrize(
    ("deliver_at", "delay", "given", "words"),
    [
        (LATER, timedelta(seconds=1), {}, "deliver_at and delay each say"),
        (LATER.replace(tzinfo=None), None, {}, "has no time zone"),
        (datetime.fromtimestamp(1_800_000_000, UTC), None, {}, "is over"),
        (None, timedelta(0), {}, "must be a millisecond at least"),
        (None, timedelta(seconds=-1), {}, "must be a millisecond at least"),
        (None, timedelta(seconds=1), {"DELAY": "3"}, "property DELAY and deliver_at or delay each say"),
        (LATER, None, {"TIMER_DELIVER_MS": "3"}, "property TIMER_DELIVER_MS and deliver_at or delay each say"),
        (None, 30, {}, r"delay = 30 is int, not timedelta; for seconds write timedelta\(seconds=…\)"),
        ("2026-11-30T12:00:00Z", None, {}, "deliver_at = '2026-11-30T12:00:00Z' is str, not datetime"),
        (LATER, None, "color=red", "the argument properties is str, not Mapping"),
    ],
)
def test_what_is_no_time_or_says_it_twice_is_refused_in_a_sentence(
    deliver_at: datetime | None, delay: timedelta | None, given: dict[str, str], words: str
) -> None:
    with pytest.raises(UsageError, match=words) as told:
        timer_properties(deliver_at, delay, given, NOW_MS)
    assert "\n" not in str(told.value)


async def test_a_send_asks_for_its_time() -> None:
    async with FakeCluster() as fake, Producer(fake.namesrv) as producer:
        result = await producer.send("T", b"x", delay=timedelta(seconds=90))
        await producer.send("T", b"x", deliver_at=LATER)
        found = [item.properties for item in fake.stored]
    assert (found[0]["TIMER_DELAY_MS"], found[1]["TIMER_DELIVER_MS"]) == ("90000", "1900000000000")
    assert result.recall_handle == "", "an older broker gives none"


@dataclass
class Group:
    """Route and broker in one; `answers` are given in turn, None: the connection fails."""

    answers: Iterator[tuple[int, str] | None]
    masters: list[str] = field(default_factory=lambda: ["a:1"])
    asked: list[tuple[str, Command]] = field(default_factory=list)

    async def get(self, topic: str) -> TopicRoute:
        await trio.lowlevel.checkpoint()
        return TopicRoute(topic, {"g-a": {0: self.masters[0]}} if self.masters else {}, ())

    async def recover(self, topic: str, backoff: Backoff) -> None:
        await trio.sleep(0.05)
        if len(self.masters) > 1:
            self.masters.pop(0)

    async def call(self, address: str, command: Command, timeout_ms: int | None) -> Command:
        await trio.lowlevel.checkpoint()
        self.asked.append((address, command))
        answer = next(self.answers)
        if answer is None:
            raise UnreachableError("gone")
        return Command(answer[0], {"msgId": "ID"} if answer[0] == 0 else {}, remark=answer[1])


async def test_a_recall_goes_to_the_group_of_the_handle_through_a_switch(autojump_clock: MockClock) -> None:
    answers: list[tuple[int, str] | None] = [
        None,
        (Code.SERVICE_NOT_AVAILABLE, ""),
        (Code.FLUSH_SLAVE_TIMEOUT, ""),
        (0, ""),
    ]
    group = Group(iter(answers), ["a:1", "b:2"])
    assert await recall(group, group, "P", HANDLE, 3000) == "ID"
    assert [address for address, _ in group.asked] == ["a:1", "b:2", "b:2", "b:2"]
    assert {command.code for _, command in group.asked} == {RequestCode.RECALL_MESSAGE}
    assert group.asked[0][1].ext == {"producerGroup": "P", "topic": "T", "recallHandle": HANDLE}


@pytest.mark.parametrize("code", [Code.ILLEGAL_OPERATION, Code.NO_PERMISSION, Code.TOPIC_NOT_EXIST])
async def test_a_refusal_is_told_at_once(code: Code) -> None:
    group = Group(iter([(int(code), "why not")]))
    with pytest.raises(RemoteError, match="why not") as told:
        await recall(group, group, "P", HANDLE, 3000)
    assert told.value.code == code


async def test_what_nobody_confirms_in_time_is_told(autojump_clock: MockClock) -> None:
    never = iter(lambda: (int(Code.FLUSH_SLAVE_TIMEOUT), "too long"), None)
    slow, gone = Group(never), Group(iter(()), [])
    with pytest.raises(RemoteError, match="too long"):
        await recall(slow, slow, "P", HANDLE, 3000)
    with pytest.raises(UnreachableError, match="group g-a has no master"):
        await recall(gone, gone, "P", HANDLE, 3000)
    assert not gone.asked


async def test_what_is_no_handle_asks_nobody() -> None:
    group = Group(iter(()))
    for handle in ("", "none", HANDLE[:8]):
        with pytest.raises(UsageError, match="no recall handle"):
            await recall(group, group, "P", handle, 3000)
