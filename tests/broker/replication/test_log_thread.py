"""The thread that changes the log: a disk that hangs keeps it, and neither the loop nor the broker's end."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import trio

from rmqha.broker.replication.log_thread import LogThread
from tests.support.patience import HANG_S


class Told:
    def __init__(self) -> None:
        self.ends: list[BaseException | None] = []
        self.some = trio.Event()

    def __call__(self, error: BaseException | None) -> None:
        self.ends.append(error)
        self.some.set()


def fails() -> None:
    raise OSError("no space")


async def test_a_change_that_takes_no_time_is_made_within_the_call() -> None:
    done: list[str] = []
    told = Told()
    async with trio.open_nursery() as nursery:
        thread = LogThread(nursery, told, grace_s=HANG_S)
        assert thread.write(lambda: done.append(threading.current_thread().name))
        assert done == ["rmqha log change"]
        with pytest.raises(OSError, match="no space"):
            thread.write(fails)
    assert told.ends == []


@pytest.mark.parametrize("what", [None, OSError("no space")])
async def test_the_loop_goes_on_while_a_change_waits_for_the_disk(what: OSError | None) -> None:
    goes_on, told = threading.Event(), Told()

    def work() -> None:
        goes_on.wait()
        if what is not None:
            raise what

    async with trio.open_nursery() as nursery:
        assert not LogThread(nursery, told, grace_s=0).write(work)
        for _ in range(10):
            await trio.lowlevel.checkpoint()
        assert told.ends == []
        goes_on.set()
        with trio.fail_after(HANG_S):
            await told.some.wait()
    assert told.ends == [what]


async def test_a_change_that_hangs_for_ever_does_not_keep_the_broker_from_ending() -> None:
    goes_on, told = threading.Event(), Told()
    wait: Callable[[], object] = goes_on.wait
    with trio.fail_after(HANG_S):
        async with trio.open_nursery() as nursery:
            assert not LogThread(nursery, told, grace_s=0).write(lambda: (wait(), None)[1])
            await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
    assert told.ends == []
    goes_on.set()
