"""Sessions that end together: a few in each turn of the event loop, so that others go on in between."""

from __future__ import annotations

import gc
import socket
import weakref
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from random import Random

import pytest
import trio
from trio.testing import MockClock

from rmqha.host.net.deadlines import EXPIRED_COUNT, Deadline, Deadlines
from rmqha.host.net.poller import MAX_ENDED_COUNT
from rmqha.host.net.session import Session
from rmqha.host.net.statistics import Statistics
from rmqha.wire.command import Command
from rmqha.wire.frame import encode_frame
from tests.host.support import HEART_BEAT, Recorder, running

CROWD_COUNT = 200


class TurnOfEnd(Recorder, trio.abc.Instrument):
    """Notes the turn of the event loop in which each session has ended."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = 0
        self.ends: Counter[int] = Counter()

    def after_io_wait(self, timeout: float) -> None:
        self.turn += 1

    def closed(self, session: Session) -> None:
        super().closed(session)
        self.ends[self.turn] += 1


async def _until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        await trio.lowlevel.checkpoint()


async def _crowd(address: str, service: Recorder, words: bytes = b"") -> list[socket.socket]:
    host, port = address.split(":")
    crowd = []
    for _ in range(CROWD_COUNT):
        crowd.append(socket.create_connection((host, int(port))))
        crowd[-1].send(words)
        await _until(lambda: len(service.sessions) == len(crowd))
    await _until(lambda: not words or len(service.batches) == CROWD_COUNT)
    return crowd


@pytest.mark.parametrize(("words", "until_s"), [(b"", 3), (encode_frame(Command(HEART_BEAT)), 130)])
async def test_a_crowd_whose_time_is_up_ends_a_few_at_a_time(
    mock_clock: MockClock, words: bytes, until_s: float
) -> None:
    service, statistics = TurnOfEnd(), Statistics()
    trio.lowlevel.add_instrument(service)
    async with running(service, statistics) as address:
        crowd = await _crowd(address, service, words)
        mock_clock.jump(until_s)
        await _until(lambda: service.ends.total() == CROWD_COUNT)
        assert max(service.ends.values()) <= 2 * EXPIRED_COUNT
        assert statistics.idle_closed_count == CROWD_COUNT
        for stream in crowd:
            stream.close()
    trio.lowlevel.remove_instrument(service)


async def test_a_crowd_that_leaves_ends_a_few_at_a_time() -> None:
    service = TurnOfEnd()
    trio.lowlevel.add_instrument(service)
    async with running(service) as address:
        for stream in await _crowd(address, service):
            stream.close()
        await _until(lambda: service.ends.total() == CROWD_COUNT)
        assert max(service.ends.values()) <= 2 * MAX_ENDED_COUNT
    trio.lowlevel.remove_instrument(service)


async def test_each_expires_at_its_time_however_often_it_has_moved(autojump_clock: MockClock) -> None:
    random, deadlines, expired = Random(1), Deadlines(), dict[int, float]()
    live: dict[int, Deadline] = {}

    def add(number: int) -> None:
        def expire() -> None:
            assert expired.setdefault(number, trio.current_time()) == trio.current_time(), "once only"

        live[number] = deadlines.add(trio.current_time() + random.randint(1, 50), expire)

    wanted: dict[int, float] = {}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(deadlines.run)
        for number in range(300):
            add(number)
            for other in random.sample(range(number + 1), min(number + 1, 5)):
                if other in expired or other not in live:
                    continue
                if random.random() < 0.2:
                    deadlines.remove(live.pop(other))
                    wanted.pop(other, None)
                else:
                    deadlines.move(live[other], trio.current_time() + random.randint(1, 50))
            wanted |= {known: deadline.due_s for known, deadline in live.items()}
            await trio.sleep(0.25)
        await trio.sleep(60)
        nursery.cancel_scope.cancel()
    assert expired == pytest.approx(wanted)
    assert len(deadlines) == 0


async def test_what_is_removed_takes_no_room() -> None:
    deadlines = Deadlines()
    for _ in range(10_000):
        deadlines.remove(deadlines.add(1e9, lambda: None))
    assert len(deadlines._heap) < 200


async def test_more_than_a_turns_worth_go_on_in_the_next(autojump_clock: MockClock) -> None:
    deadlines, at = Deadlines(), list[int]()
    turn = TurnOfEnd()
    trio.lowlevel.add_instrument(turn)
    for _ in range(3 * EXPIRED_COUNT):
        deadlines.add(1.0, lambda: at.append(turn.turn))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(deadlines.run)
        await trio.sleep(2)
        nursery.cancel_scope.cancel()
    trio.lowlevel.remove_instrument(turn)
    assert [later - earlier for earlier, later in pairwise(sorted(set(at)))] == [1, 1]
    assert set(Counter(at).values()) == {EXPIRED_COUNT}


async def test_who_has_left_is_no_garbage() -> None:
    """A full collection, with thousands of sessions alive, takes tens of milliseconds."""
    service = TurnOfEnd()
    async with running(service) as address:
        for stream in await _crowd(address, service, encode_frame(Command(HEART_BEAT))):
            stream.close()
        await _until(lambda: service.ends.total() == CROWD_COUNT)
        for _ in range(4):
            await trio.lowlevel.checkpoint()
        gone = [weakref.ref(session) for session in service.sessions]
        gc.collect()
        gc.disable()
        try:
            service.sessions.clear()
            service.batches.clear()
            assert sum(session() is not None for session in gone) == 0
        finally:
            gc.enable()
