"""Clients that send while faults happen, and record what was acknowledged."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count, pairwise
from secrets import token_hex

import trio

from rmqha.client.producers.outgoing import Outgoing, OutgoingMessage
from rmqha.client.producers.producer import Producer
from rmqha.client.route import MessageQueue
from rmqha.drill.cluster import GROUP, until, wall_ms
from rmqha.drill.scenarios import PER_SECOND
from rmqha.host.net.remoting import RemotingClient
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import RmqhaError, UnreachableError

TOPIC = "chaos"
LANE_COUNT = 16
GIVE_UP_MS = 30_000
DIRECT_PAUSE_S = 0.02
SEND_OK = str(int(ResponseCode.SUCCESS))


@dataclass(frozen=True, slots=True)
class AckedMessage:
    """One acknowledged message, and its place by the answer."""

    lane: int
    number: int
    msg_id: str
    queue_id: int
    queue_offset: int
    at_ms: int
    latency_ms: int = 0
    """Time (ms) from the call of send to its answer, with all its tries."""


@dataclass(frozen=True, slots=True)
class FailedSend:
    """One message whose send ended with an error: it may be stored."""

    body: str
    called_at_ms: int


@dataclass
class DrillTraffic:
    """Load of a drill, `per_second` in all: sixteen lanes, each one message at a time and in order, in its own
    queue."""

    per_second: int = PER_SECOND
    acked: list[AckedMessage] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    failed: list[FailedSend] = field(default_factory=list)
    duplicates_possible: int = 0
    stopping: bool = False

    @asynccontextmanager
    async def running(self, namesrv: str) -> AsyncIterator[None]:
        """Send for as long as the block lasts; at its end wait for what is under way."""
        async with Producer(namesrv) as producer:
            async with trio.open_nursery() as nursery:
                for lane in range(LANE_COUNT):
                    nursery.start_soon(self._lane, producer, lane)
                yield
                self.stopping = True
            self.duplicates_possible = producer.statistics()["duplicates_possible"]

    async def _lane(self, producer: Producer, lane: int) -> None:
        period_s = LANE_COUNT / self.per_second
        await trio.sleep(period_s * lane / LANE_COUNT)
        for number in count():
            if self.stopping:
                return
            started, called_at_ms, body = trio.current_time(), wall_ms(), f"{lane} {number}"
            try:
                result = await producer.send(
                    TOPIC, body.encode(), key=f"lane-{lane}", timeout_ms=GIVE_UP_MS, require_ok=True
                )
            except RmqhaError as error:
                self.failures.append(f"lane {lane} number {number}: {error}")
                self.failed.append(FailedSend(body, called_at_ms))
            else:
                stamp = wall_ms()
                taken_ms = round((trio.current_time() - started) * 1000)
                self.acked.append(
                    AckedMessage(lane, number, result.msg_id, result.queue_id, result.queue_offset, stamp, taken_ms)
                )
            await trio.sleep_until(started + period_s)

    @property
    def stamps(self) -> list[int]:
        return [item.at_ms for item in self.acked]

    async def goes_on(self, more: int = 60) -> None:
        """Wait for `more` further acknowledgements."""
        wanted = len(self.acked) + more

        async def enough() -> bool:
            await trio.lowlevel.checkpoint()
            return len(self.acked) >= wanted

        await until(enough, f"{more} more acknowledgements")

    def longest_gap_ms(self, from_ms: int, to_ms: int) -> int:
        """The longest time in the window without an acknowledgement."""
        inside = sorted(stamp for stamp in self.stamps if from_ms < stamp < to_ms)
        return max(after - before for before, after in pairwise([from_ms, *inside, to_ms]))


Heard = Callable[[int, str, str], None]
"""Callback for an answer: (wall stamp, answer code or "unreachable", UNIQ_KEY)."""


class DirectSender:
    """A client without a name server: it sends to one broker, whatever role that has."""

    def __init__(self, address: str, heard: Heard) -> None:
        self._address = address
        self._heard = heard

    async def run(self, timeout_ms: int) -> None:
        async with RemotingClient() as client, trio.open_nursery() as nursery:
            for queue_id in range(4):
                nursery.start_soon(self._send_on, client, queue_id, timeout_ms)

    async def _send_on(self, client: RemotingClient, queue_id: int, timeout_ms: int) -> None:
        while True:
            msg_id = token_hex(16).upper()
            message = OutgoingMessage(TOPIC, b"direct", queue_id=queue_id)
            outgoing = Outgoing(RequestCode.SEND_MESSAGE_V2, "direct", message, msg_id, wall_ms(), None)
            request = outgoing.request(MessageQueue(TOPIC, GROUP, queue_id))
            try:
                answer = str((await client.call(self._address, request, timeout_ms)).code)
            except UnreachableError:
                answer = "unreachable"
            self._heard(wall_ms(), answer, msg_id)
            await trio.sleep(DIRECT_PAUSE_S)


@dataclass
class DirectAnswers:
    """The answers that a DirectSender got."""

    acked: dict[str, int] = field(default_factory=dict)
    """Wall stamp of each answer SEND_OK, by UNIQ_KEY."""
    counts: Counter[str] = field(default_factory=Counter)

    def heard(self, at_ms: int, answer: str, msg_id: str) -> None:
        self.counts[answer] += 1
        if answer == SEND_OK:
            self.acked[msg_id] = at_ms

    @classmethod
    def of_lines(cls, text: str) -> DirectAnswers:
        """The answers in a file that `rmqha.drill.direct` wrote."""
        answers = cls()
        whole_lines = text.split("\n")[:-1]
        for line in whole_lines:
            at_ms, answer, msg_id = line.split()
            answers.heard(int(at_ms), answer, msg_id)
        return answers

    def acked_between(self, from_ms: int, to_ms: int) -> int:
        return sum(from_ms < at_ms < to_ms for at_ms in self.acked.values())
