"""Work in a thread of its own: done once for each call, its errors raised by that, the thread ended."""

from __future__ import annotations

import threading

import pytest
import trio
import trio.testing

from rmqha.broker.repeated_work import RepeatedWork
from tests.support.patience import HANG_S


async def test_each_call_does_it_once_in_one_other_thread() -> None:
    threads: list[threading.Thread] = []
    with RepeatedWork(lambda: threads.append(threading.current_thread()), "x") as work, trio.fail_after(HANG_S):
        for count in range(1, 101):
            await work.do()
            assert len(threads) == count
    assert len(set(threads)) == 1 and not threads[0].is_alive()
    assert threads[0] is not threading.main_thread()


async def test_an_error_is_raised_by_the_call_that_met_it_alone() -> None:
    faults = [OSError("no"), None, ValueError("never")]

    def step() -> None:
        fault = faults.pop(0)
        if fault is not None:
            raise fault

    with RepeatedWork(step, "x") as work, trio.fail_after(HANG_S):
        with pytest.raises(OSError, match="no"):
            await work.do()
        await work.do()
        with pytest.raises(ValueError, match="never"):
            await work.do()


async def test_a_cancelled_call_ends_when_the_work_has() -> None:
    """What comes after it may close what the work uses."""
    begun, go_on = threading.Event(), threading.Event()
    ended = False

    def step() -> None:
        nonlocal ended
        begun.set()
        assert go_on.wait(HANG_S)
        ended = True

    scope = trio.CancelScope()

    async def call(work: RepeatedWork) -> None:
        with scope:
            await work.do()

    with RepeatedWork(step, "x") as work:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, work)
            assert await trio.to_thread.run_sync(begun.wait, HANG_S)
            scope.cancel()
            await trio.testing.wait_all_tasks_blocked()
            assert not ended
            go_on.set()
        assert ended


async def test_others_go_on_meanwhile() -> None:
    go_on = threading.Event()

    def step() -> None:
        assert go_on.wait(HANG_S)

    with RepeatedWork(step, "x") as work:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work.do)
            await trio.testing.wait_all_tasks_blocked()
            go_on.set()
