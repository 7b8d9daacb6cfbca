"""Large frames are read in turns: what they take of the memory is bounded, and nobody can keep the others out."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest
import trio
from trio.testing import MockClock

from rmqha.host.net.deadlines import Deadlines
from rmqha.host.net.large_frames import SLOW_S, TURN_S, LargeFrames, LargeFrameTurn, bytes_to_read
from rmqha.host.net.session import Session
from rmqha.host.net.statistics import Statistics
from rmqha.wire.command import Command
from rmqha.wire.frame import FrameParser, encode_frame
from tests.host.support import HEART_BEAT, Recorder, running
from tests.support.patience import HANG_S

BODY_BYTES = 300_000
BIG = encode_frame(Command(HEART_BEAT, body=bytes(BODY_BYTES)))
SMALL = encode_frame(Command(HEART_BEAT, body=b"small"))
READ_BYTES = 64 * 1024


def a_turn(frames: LargeFrames, told: list[str], name: str) -> LargeFrameTurn:
    return LargeFrameTurn(frames, lambda: told.append(f"{name} reads"), lambda: told.append(f"{name} stops"))


def test_a_read_ends_soon_behind_a_large_frame() -> None:
    """Of each of a hundred that waited for their turns 224 KiB had been read."""
    parser, sizes = FrameParser(1 << 20), list[int]()
    for size_bytes in (0, 100_000, 150_000, len(BIG) - 250_000):
        parser.feed(BIG[:size_bytes])
        sizes.append(bytes_to_read(parser, READ_BYTES, 200_000))
    assert sizes == [200_000, 200_000, len(BIG) - 250_000 + READ_BYTES, 200_000]
    parser.feed(SMALL[:-1])
    assert bytes_to_read(parser, READ_BYTES, 200_000) == 200_000


async def test_turns_by_the_bytes_that_are_announced() -> None:
    frames, told = LargeFrames(1_000_000), list[str]()
    frames.deadlines = Deadlines()
    first, second, third, huge = (a_turn(frames, told, name) for name in ("first", "second", "third", "huge"))
    first.update(60_000)
    assert frames.total_bytes == 0, "a small frame needs no turn"
    first.update(600_000)
    second.update(300_000)
    huge.update(5_000_000)
    third.update(70_000)
    assert [turn.is_waiting for turn in (first, second, huge, third)] == [False, False, True, True]
    first.update(600_000)
    assert frames.total_bytes == 900_000, "it has its turn already"
    first.has_arrived = second.has_arrived = True
    first.update(0)
    assert told == [], "who is larger than all together comes alone"
    second.update(70_000)
    assert (told, frames.total_bytes, second.is_waiting) == (["huge reads"], 5_000_000, True)
    huge.end()
    assert (told, frames.total_bytes) == (["huge reads", "third reads", "second reads"], 140_000)
    third.end()
    second.end()
    assert (frames.total_bytes, frames.waiting_count) == (0, 0)


async def test_who_is_slow_goes_to_the_end_of_the_line(autojump_clock: MockClock) -> None:
    frames, told = LargeFrames(100_000), list[str]()
    frames.deadlines = Deadlines()
    slow, handled, next_one = (a_turn(frames, told, name) for name in ("slow", "handled", "next"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(frames.deadlines.run)
        slow.update(90_000)
        await trio.sleep(10 * TURN_S)
        assert told == [], "nobody waits"
        next_one.update(90_000)
        handled.update(90_000)
        await trio.sleep(TURN_S)
        assert told == ["slow stops", "next reads"]
        next_one.has_arrived = True
        await trio.sleep(3 * TURN_S)
        assert told == ["slow stops", "next reads"], "a frame that is whole waits for the server, not for its peer"
        next_one.update(0)
        handled.end()
        assert told == ["slow stops", "next reads", "handled reads", "slow reads"]
        nursery.cancel_scope.cancel()


async def test_who_has_not_sent_all_keeps_nobody_waiting(autojump_clock: MockClock) -> None:
    frames, told = LargeFrames(500_000, 200_000), list[str]()
    frames.deadlines = Deadlines()
    slow, whole, quick, late, huge = (a_turn(frames, told, name) for name in ("slow", "whole", "quick", "late", "huge"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(frames.deadlines.run)
        slow.update(100_000)
        whole.update(100_000)
        whole.has_arrived = True
        quick.update(90_000)
        late.update(90_000)
        huge.update(400_000)
        assert told == [], "more would only be read ahead"
        await trio.sleep(1.5 * SLOW_S)
        assert told == ["quick reads"], "one that is whole waits for the server"
        await trio.sleep(SLOW_S)
        assert told == ["quick reads", "late reads"]
        whole.update(0)
        late.has_arrived = True
        late.update(0)
        assert told == ["quick reads", "late reads"], "huge would take too much"
        slow.end()
        assert (told[2:], frames.total_bytes) == (["huge reads"], 490_000)
        quick.end()
        huge.end()
        assert (frames.total_bytes, frames.waiting_count) == (0, 0)
        nursery.cancel_scope.cancel()


class Slow(Recorder):
    """Lets the large requests wait until it is told to go on."""

    def __init__(self) -> None:
        super().__init__()
        self.resumes: list[Callable[[], None]] = []
        self.sessions: list[Session] = []

    def received(self, session, commands):  # type: ignore[no-untyped-def]
        super().received(session, commands)
        self.sessions.append(session)
        if any(len(command.body) > READ_BYTES for command in commands):
            session.work(iter([_Wait(self.resumes)]))


class _Wait:
    def __init__(self, resumes: list[Callable[[], None]]) -> None:
        self._resumes = resumes

    size_bytes = BODY_BYTES

    def when_over(self, resume: Callable[[], None]) -> None:
        self._resumes.append(resume)


async def _until(is_so: Callable[[], object]) -> None:
    with trio.fail_after(HANG_S):
        while not is_so():
            await trio.lowlevel.checkpoint()


async def _send(streams: list[trio.SocketStream], data: bytes) -> None:
    async with trio.open_nursery() as nursery:
        for stream in streams:
            nursery.start_soon(stream.send_all, data)


def _large_count(service: Recorder) -> int:
    return sum(len(command.body) == BODY_BYTES for batch in service.batches for command in batch)


async def _known(address: str, service: Recorder, count: int) -> list[trio.SocketStream]:
    host, port = address.split(":")
    streams = [await trio.open_tcp_stream(host, int(port)) for _ in range(count)]
    for number, stream in enumerate(streams, start=1):
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * BODY_BYTES)
        await stream.send_all(SMALL)
        await _until(lambda number=number: len(service.batches) == number)  # type: ignore[misc]
    return streams


async def test_a_session_keeps_nothing_of_a_request_that_is_done() -> None:
    """A hundred connections that had sent a MiB each kept it: 100 MiB."""
    service = Slow()
    async with running(service, Statistics()) as address:
        [stream] = await _known(address, service, 1)
        await stream.send_all(BIG)
        await _until(lambda: service.resumes)
        session = service.sessions[-1]
        assert [len(command.body) for command in session._running_requests] == [BODY_BYTES]
        service.resumes.pop()()
        await _until(lambda: not session._running)
        assert not session._running_requests
        await stream.aclose()


async def test_what_large_frames_take_is_bounded_while_they_wait_for_the_log() -> None:
    count, service, statistics = 10, Slow(), Statistics(large_frames=LargeFrames(2 * len(BIG)))
    async with running(service, statistics) as address:
        streams = await _known(address, service, count + 1)
        small = streams.pop()
        async with trio.open_nursery() as senders:
            senders.start_soon(_send, streams, BIG)
            for handled_count in range(0, count, 2):
                await _until(lambda: len(service.resumes) == 2)
                await small.send_all(SMALL)
                answers = b""
                while len(answers) < len(encode_frame(Command(HEART_BEAT).reply())):
                    answers += await small.receive_some(READ_BYTES)
                assert _large_count(service) == handled_count + 2
                most_bytes = 2 * len(BIG) + count * READ_BYTES
                assert statistics.partial_frames.total_bytes <= most_bytes
                resumes, service.resumes = service.resumes, []
                for resume in resumes:
                    resume()
            await _until(lambda: _large_count(service) == count and not service.resumes)
        await _until(lambda: statistics.partial_frames.total_bytes == statistics.large_frames.total_bytes == 0)
        for stream in [*streams, small]:
            await stream.aclose()


async def test_half_a_large_frame_keeps_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmqha.host.net.large_frames.TURN_S", 0.01)
    monkeypatch.setattr("rmqha.host.net.large_frames.SLOW_S", 0.01)
    service, statistics = Recorder(), Statistics(large_frames=LargeFrames(2 * len(BIG)))
    async with running(service, statistics) as address:
        *stuck, honest = await _known(address, service, 5)
        await _send(stuck, BIG[:-1])
        await _until(lambda: statistics.large_frames.waiting_count)
        for number in range(1, 4):
            await honest.send_all(BIG)
            await _until(lambda number=number: _large_count(service) == number)  # type: ignore[misc]
        for stream in stuck:
            await stream.send_all(BIG[-1:])
        await _until(lambda: _large_count(service) == 7)
        for stream in [*stuck, honest]:
            await stream.aclose()
        await _until(lambda: statistics.large_frames.total_bytes == statistics.large_frames.waiting_count == 0)


async def test_a_newcomer_in_line_is_not_closed_for_its_silence(mock_clock: MockClock) -> None:
    """It has sent what it was let send, and has the time of a long first frame."""
    service, statistics = Recorder(), Statistics(large_frames=LargeFrames(2 * len(BIG)))
    async with running(service, statistics) as address:
        host, port = address.split(":")
        stuck = await _known(address, service, 2)
        await _send(stuck, BIG[:-1])
        await _until(lambda: statistics.large_frames.total_bytes == 2 * len(BIG))
        newcomer = await trio.open_tcp_stream(host, int(port))
        await newcomer.send_all(BIG[:1000])
        await _until(lambda: statistics.large_frames.waiting_count)
        mock_clock.jump(2.5)
        for _ in range(10):
            await trio.lowlevel.checkpoint()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(newcomer.send_all, BIG[1000:])
            await _until(lambda: _large_count(service) == 1)
        for stream in [*stuck, newcomer]:
            await stream.aclose()


async def test_who_reads_no_answers_keeps_nobody_out() -> None:
    """He is not read, so what he has sent is not handled; it counts as half frames do."""
    asks = Command(HEART_BEAT, {"long": "answer"})

    def answer(command: Command) -> Command:
        return command.reply(body=bytes(8 << 20) if command.ext else b"")

    service, statistics = Recorder(answer), Statistics(large_frames=LargeFrames(2 * len(BIG)))
    async with running(service, statistics) as address:
        *deaf, honest = await _known(address, service, 5)
        for number, stream in enumerate(deaf, start=1):
            await stream.send_all(BIG + 2 * encode_frame(asks) + BIG[: 1000 * (number % 2)])
            await _until(lambda number=number: statistics.queued_bytes > number << 20)  # type: ignore[misc]
        for number in range(1, 4):
            await honest.send_all(BIG)
            await _until(lambda number=number: _large_count(service) == len(deaf) + number)  # type: ignore[misc]
        for stream in [*deaf, honest]:
            await stream.aclose()
        await _until(lambda: statistics.partial_frames.total_bytes == statistics.large_frames.total_bytes == 0)


async def test_what_is_read_and_not_handled_counts_as_half_frames_do() -> None:
    asks = encode_frame(Command(HEART_BEAT, {"long": "answer"}))
    small = encode_frame(Command(HEART_BEAT, body=bytes(10_000)))

    def answer(command: Command) -> Command:
        return command.reply(body=bytes(16 << 20) if command.ext else b"")

    statistics = Statistics()
    async with running(Recorder(answer), statistics) as address:
        host, port = address.split(":")
        deaf = await trio.open_tcp_stream(host, int(port))
        await deaf.send_all(asks + 4 * small)
        await _until(lambda: statistics.partial_frames.total_bytes >= 40_000)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_read_all, deaf)
            await _until(lambda: statistics.sent_count == 5)
            assert statistics.partial_frames.total_bytes == 0
            nursery.cancel_scope.cancel()
        await deaf.aclose()


async def _read_all(stream: trio.SocketStream) -> None:
    while await stream.receive_some(1 << 20):
        pass
