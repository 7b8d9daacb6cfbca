"""The open loop: nothing is omitted, limits hold, an interrupt leaves what was measured."""

from __future__ import annotations

import os
import signal
import time

import trio

from rmqha.ops.bench.pace import Pace, Run, run_paced
from tests.support.patience import HANG_S


async def test_a_stall_is_felt_by_all_whom_it_would_have_hit() -> None:
    """One sender, one stall of 0.4 s at 250/s: a client that waits would see one slow request, a hundred were meant."""
    run = Run()

    async def send(number: int, due_ns: int) -> None:
        if number == 20:
            await trio.sleep(0.4)
        run.ended(due_ns)

    await run_paced(Pace(250, limit_s=10, limit_count=200, window=1), run, send)
    assert (run.offered, run.latency.count, run.unanswered) == (200, 200, 0)
    slow = sum(count for low, _, count in run.latency.bars() if low >= 65_536)
    assert slow > 60, "a hundred messages were due while it stood, three quarters of them for more than 65 ms"
    assert run.latency.max >= 400_000
    assert run.late.percentile(75) > 65_000, "and that they began late is known"


async def test_requests_begin_at_the_rate_and_not_before() -> None:
    run, began = Run(), list[tuple[int, int]]()

    async def send(number: int, due_ns: int) -> None:
        began.append((number, time.monotonic_ns() - due_ns))
        run.ended(due_ns)

    dues: dict[int, int] = {}
    await run_paced(Pace(500, limit_s=0.2), run, send, dues.__setitem__)
    assert run.offered == len(began) == len(dues) == 100
    assert all(late_ns >= 0 for _, late_ns in began)
    assert dues[99] - dues[0] == round(99 * 1e9 / 500)


async def test_what_has_no_answer_counts_with_its_age() -> None:
    run = Run()

    async def send(number: int, due_ns: int) -> None:
        if number % 10 == 0:
            await trio.sleep_forever()
        run.ended(due_ns)

    with trio.fail_after(HANG_S):
        await run_paced(Pace(1000, limit_s=1, limit_count=50, grace_s=0.3), run, send)
    assert (run.unanswered, run.latency.count) == (5, 50)
    assert run.latency.max >= 250_000


async def test_an_interrupt_ends_it_with_what_there_is() -> None:
    run = Run()

    async def send(number: int, due_ns: int) -> None:
        run.ended(due_ns)
        if number == 30:
            os.kill(os.getpid(), signal.SIGINT)

    with trio.fail_after(HANG_S):
        await run_paced(Pace(200, limit_s=60), run, send)
    assert run.interrupted
    assert 31 <= run.latency.count < 1000
