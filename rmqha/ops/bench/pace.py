"""An open loop: requests begin at their intended times, whatever became of those before (no coordinated omission).

A client that waits for an answer before it sends the next request measures a stall of a second once, where a thousand
callers would have felt it. Here each request has an intended time; its latency counts from there, also while it still
waits for one of the senders. A request without an answer in the end counts with the age that it has reached.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import trio

from rmqha.ops.bench.histogram import LatencyHistogram

Send = Callable[[int, int], Awaitable[None]]
"""Function `send(number, due_ns)` that makes one request, waits for its end, and records the outcome."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Pace of a run: `rate` requests per second for `limit_s`, or `limit_count` of them, by `window` senders. When all
    have begun, answers are waited for `grace_s`."""

    rate: float
    limit_s: float
    limit_count: int | None = None
    window: int = 256
    grace_s: float = 5.0


@dataclass(slots=True)
class Run:
    """Outcome of a run. Times in microseconds from the intended begin."""

    latency: LatencyHistogram = field(default_factory=LatencyHistogram)
    """Latencies of answered requests, and of those without an answer as far as they had come."""
    late: LatencyHistogram = field(default_factory=LatencyHistogram)
    """Delays with which requests began: the part of the latency that is this client's."""
    offered: int = 0
    unanswered: int = 0
    elapsed_s: float = 0.0
    interrupted: bool = False

    def ended(self, due_ns: int) -> None:
        """Note that a request was answered just now."""
        self.latency.record((time.monotonic_ns() - due_ns) // 1000)


async def run_paced(
    pace: Pace, run: Run, send: Send, begin: Callable[[int, int], None] = lambda number, due: None
) -> None:
    """Make the requests; `begin` is called for each before it may start. An interrupt or SIGTERM ends the run early."""
    waiting: dict[int, int] = {}
    started_ns = time.monotonic_ns()
    todo, work = trio.open_memory_channel[tuple[int, int]](math.inf)

    async def worker(channel: trio.MemoryReceiveChannel[tuple[int, int]]) -> None:
        async with channel:
            async for number, due_ns in channel:
                run.late.record((time.monotonic_ns() - due_ns) // 1000)
                await send(number, due_ns)
                del waiting[number]

    async def feed() -> None:
        async with todo:
            while pace.limit_count is None or run.offered < pace.limit_count:
                due_ns = started_ns + round(run.offered * 1e9 / pace.rate)
                if due_ns - started_ns >= pace.limit_s * 1e9:
                    return
                ahead_ns = due_ns - time.monotonic_ns()
                # also when it is behind, so that the senders get their turn
                await trio.sleep(max(0, ahead_ns) / 1e9)
                number = run.offered
                run.offered += 1
                waiting[number] = due_ns
                begin(number, due_ns)
                todo.send_nowait((number, due_ns))

    async with trio.open_nursery() as outer:
        outer.start_soon(_stop_on_signal, outer.cancel_scope, run)
        async with trio.open_nursery() as nursery:
            async with work:
                for _ in range(pace.window):
                    nursery.start_soon(worker, work.clone())
            await feed()
            nursery.cancel_scope.deadline = trio.current_time() + pace.grace_s
        outer.cancel_scope.cancel()
    run.elapsed_s = (time.monotonic_ns() - started_ns) / 1e9
    run.unanswered = len(waiting)
    for due_ns in waiting.values():
        run.ended(due_ns)


async def _stop_on_signal(scope: trio.CancelScope, run: Run) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            run.interrupted = True
            scope.cancel()
