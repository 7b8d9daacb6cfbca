"""Round trips and throughput between this machine and a node, by requests that change nothing. Bounded.

A request of a code that a server does not have is answered at once, by ours and by Apache RocketMQ's; `echo` answers
with the body, so that both directions are loaded.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import trio

from rmqha.host.net.remoting import RemotingClient, serve
from rmqha.host.net.session import Session
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.ops.bench.histogram import PERCENTILES, LatencyHistogram
from rmqha.wire.command import Command

TIMEOUT_MS = 3_000
TRIP_SHARE = 0.5
"""Share of the time for round trips; the rest is for the throughput."""
MAX_TRIP_COUNT = 20_000
BODY_BYTES = 256 * 1024
AT_ONCE = 4
MAX_FRAME_BYTES = 16 * 1024 * 1024


@dataclass(slots=True)
class NetFigures:
    """Figures of a network path. Times are in microseconds, sizes in bytes."""

    address: str
    echoes: bool = False
    trips: LatencyHistogram = field(default_factory=LatencyHistogram)
    sent_bytes: int = 0
    received_bytes: int = 0
    load_us: int = 0

    def as_dict(self) -> dict[str, Any]:
        return {
            "address": self.address,
            "peer": "selftest" if self.echoes else "server",
            "tripCount": self.trips.count,
            "tripMicroseconds": {f"p{percent:g}": self.trips.percentile(percent) for percent in PERCENTILES}
            | {"max": self.trips.max},
            "sentBytesPerSecond": self._rate(self.sent_bytes),
            "receivedBytesPerSecond": self._rate(self.received_bytes) if self.echoes else None,
            "verdict": self.verdict(),
        }

    def _rate(self, size_bytes: int) -> int:
        return round(size_bytes * 1e6 / self.load_us) if self.load_us else 0

    def verdict(self) -> str:
        """Verdict on the cost of the path for a group with a replica there. The time of Python at both ends is counted
        too."""
        ms, worst_ms = self.trips.percentile(50) / 1000, self.trips.percentile(99) / 1000
        word = "close" if ms < 2 else "another site" if ms < 20 else "far away"
        return (
            f"{word}: a send that waits for a replica there takes {ms:.2f} ms more (1 in 100: {worst_ms:.1f} ms); a"
            f" replica there can copy about {self._rate(self.sent_bytes) / 1e6:,.0f} MB/s"
        )


class _Echo:
    """The service of `echo`."""

    def opened(self, session: Session) -> None: ...

    def closed(self, session: Session) -> None: ...

    def received(self, session: Session, commands: list[Command]) -> None:
        for command in commands:
            if command.code == RequestCode.RMQHA_ECHO:
                session.send(command.reply(body=bytes(command.body)))
            else:
                session.send(command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark="this is rmqha selftest"))


async def echo(address: str, limit_s: float, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED) -> None:
    """Answer `measure` of another machine for `limit_s`. Raises UsageError if the address cannot be bound."""
    with trio.move_on_after(limit_s):
        await serve(_Echo(), address, max_frame_bytes=MAX_FRAME_BYTES, task_status=task_status)


async def measure(address: str, *, limit_s: float, limit_bytes: int) -> NetFigures:
    """Measure the path within about `limit_s`, sending at most about `limit_bytes`. Raises UnreachableError if there is
    no answer."""
    figures = NetFigures(address)
    started = trio.current_time()
    async with RemotingClient() as client:
        answer = await client.call(address, Command(RequestCode.RMQHA_ECHO), TIMEOUT_MS)
        figures.echoes = answer.code == ResponseCode.SUCCESS
        while figures.trips.count < MAX_TRIP_COUNT and trio.current_time() < started + limit_s * TRIP_SHARE:
            asked_ns = time.monotonic_ns()
            await client.call(address, Command(RequestCode.RMQHA_ECHO), TIMEOUT_MS)
            figures.trips.record((time.monotonic_ns() - asked_ns) // 1000)
        deadline = trio.current_time() + limit_s * (1 - TRIP_SHARE)
        asked_ns = time.monotonic_ns()
        async with trio.open_nursery() as nursery:
            for _ in range(AT_ONCE):
                nursery.start_soon(_load, client, figures, deadline, limit_bytes)
        figures.load_us = (time.monotonic_ns() - asked_ns) // 1000
    return figures


async def _load(client: RemotingClient, figures: NetFigures, deadline: float, limit_bytes: int) -> None:
    body = bytes(BODY_BYTES)
    while figures.sent_bytes + BODY_BYTES <= limit_bytes:
        figures.sent_bytes += BODY_BYTES
        answer = await client.call(figures.address, Command(RequestCode.RMQHA_ECHO, body=body), TIMEOUT_MS)
        figures.received_bytes += len(answer.body)
        if trio.current_time() >= deadline:
            return
