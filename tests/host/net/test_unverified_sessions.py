"""Connections that have not said anything that counts: little room, little time, and the oldest make room."""

from __future__ import annotations

import struct
from typing import Any

import pytest
import trio
from trio.testing import MockClock, memory_stream_pair

from rmqha.host.net import remoting
from rmqha.host.net.remoting import RemotingClient
from rmqha.host.net.statistics import Statistics
from rmqha.host.net.unverified_sessions import PartialFrames, UnverifiedSession, UnverifiedSessions, has_known_code
from rmqha.wire.command import Command
from rmqha.wire.frame import encode_frame
from tests.host.support import HEART_BEAT, Recorder, running, serve_one
from tests.support.patience import HANG_MS, HANG_S


def test_the_oldest_goes_when_there_are_too_many() -> None:
    unverified, gone = UnverifiedSessions(max_count=3), list[int]()
    for number in range(5):
        unverified.add(number, lambda number=number: gone.append(number))  # type: ignore[misc]
    assert (gone, len(unverified)) == ([0, 1], 3)
    unverified.remove(2)
    assert unverified.evict_oldest()
    assert (gone, len(unverified)) == ([0, 1, 3], 1)
    unverified.remove(4)
    unverified.remove(4)
    assert not unverified.evict_oldest()


def test_a_request_counts_by_its_code() -> None:
    assert has_known_code(Command(34))
    assert not has_known_code(Command(9999))


class _Holder:
    def __init__(self, *, is_verified: bool) -> None:
        self.is_verified = is_verified
        self.is_shed = False

    def shed(self) -> None:
        self.is_shed = True


def test_half_frames_strangers_go_first_then_who_holds_most() -> None:
    frames = PartialFrames(1000)
    small, big, stranger = _Holder(is_verified=True), _Holder(is_verified=True), _Holder(is_verified=False)
    frames.hold(small, 100)
    frames.hold(stranger, 90)
    frames.hold(big, 800)
    assert frames.total_bytes == 990
    frames.hold(small, 150)
    assert (stranger.is_shed, big.is_shed, small.is_shed) == (True, True, False)
    assert frames.total_bytes == 150
    frames.hold(big, 0)
    frames.hold(small, 0)
    assert frames.total_bytes == 0


# sessions


def _unverified(**keys: Any) -> UnverifiedSession:
    return UnverifiedSession(trio.current_time() + 2, trio.current_time() + 10, **keys)


_HEADER = encode_frame(Command(HEART_BEAT))[8:]
_LONG = struct.pack(">II", len(_HEADER) + 100_004, len(_HEADER)) + _HEADER + bytes(70_000)
"""Of a frame of a known code, more than a stranger may send."""


@pytest.mark.parametrize(
    ("first_words", "idle_timeout_ms", "expected_s"),
    [
        (b"", 120_000, 2),
        (b"\0\0\0\x40", 120_000, 2),
        (b"\0\0\0\x40", 1_000, 1),
        (encode_frame(Command(9999)), 120_000, 2),
        (encode_frame(Command(HEART_BEAT)), 120_000, 120),
        (encode_frame(Command(9999)) + encode_frame(Command(HEART_BEAT)) + b"\0\0", 120_000, 120),
        (encode_frame(Command(HEART_BEAT)), 3_000, 3),
        (_LONG, 120_000, 10),
    ],
)
async def test_silence_closes(
    autojump_clock: MockClock, first_words: bytes, idle_timeout_ms: int, expected_s: float
) -> None:
    """Without a request that counts after two seconds, later after the idle bound; half a frame does not count."""
    ours, theirs = memory_stream_pair()
    statistics = Statistics()
    if first_words:
        await theirs.send_all(first_words)
    started = trio.current_time()
    await serve_one(Recorder(), ours, statistics, idle_timeout_ms, unverified=_unverified())
    assert trio.current_time() - started == pytest.approx(expected_s)
    assert statistics.idle_closed_count == 1
    assert statistics.partial_frames.total_bytes == 0


async def test_one_byte_at_a_time_does_not_keep_a_connection(autojump_clock: MockClock) -> None:
    ours, theirs = memory_stream_pair()
    async with trio.open_nursery() as nursery:

        async def drip() -> None:
            for byte in encode_frame(Command(HEART_BEAT, {"a": "b" * 100})):
                await theirs.send_all(bytes([byte]))
                await trio.sleep(0.1)

        nursery.start_soon(drip)
        started = trio.current_time()
        await serve_one(Recorder(), ours, Statistics(), unverified=_unverified())
        assert trio.current_time() - started == pytest.approx(2)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("words", "stays"),
    [
        (_LONG, True),
        (_LONG[:70_000], True),
        (struct.pack(">II", 200_004, 200_000) + bytes(70_000), False),
        (encode_frame(Command(9999)) + _LONG.replace(b'"code":34', b'"code":99'), False),
    ],
)
async def test_a_stranger_has_little_room(autojump_clock: MockClock, words: bytes, stays: bool) -> None:
    """A long first frame is read on if its header names a known request."""
    ours, theirs = memory_stream_pair()
    statistics, started = Statistics(), trio.current_time()
    await theirs.send_all(words)
    await serve_one(Recorder(), ours, statistics, unverified=_unverified())
    assert (trio.current_time() == started) is not stays
    assert statistics.bad_frame_count == (not stays)


async def test_where_there_are_accounts_they_say_which_request_counts(autojump_clock: MockClock) -> None:
    ours, theirs = memory_stream_pair()
    started = trio.current_time()
    await theirs.send_all(encode_frame(Command(HEART_BEAT)))
    await serve_one(Recorder(), ours, Statistics(), unverified=_unverified(is_guarded=True))
    assert trio.current_time() - started == pytest.approx(2)


async def test_half_frames_are_bounded_all_together(autojump_clock: MockClock) -> None:
    """Strangers go first, then who holds most; who holds little stays."""
    statistics = Statistics(partial_frames=PartialFrames(200_000))
    ends = [memory_stream_pair() for _ in range(4)]
    hello = encode_frame(Command(HEART_BEAT))
    words = [hello + _LONG[:50_000], hello + _LONG[:60_000], hello + _LONG[:100], _LONG[:50_000]]
    closed = list[int]()
    async with trio.open_nursery() as nursery:

        async def one(number: int) -> None:
            await serve_one(Recorder(), ends[number][0], statistics, unverified=_unverified())
            closed.append(number)

        for number, (_, theirs) in enumerate(ends):
            nursery.start_soon(one, number)
            await theirs.send_all(words[number])
        await trio.testing.wait_all_tasks_blocked()
        assert statistics.partial_frames.total_bytes == 160_100
        assert closed == []
        await ends[0][1].send_all(bytes(49_000))
        await trio.testing.wait_all_tasks_blocked()
        assert closed == [3], "the stranger"
        await ends[1][1].send_all(bytes(39_500))
        await ends[2][1].send_all(bytes(5_000))
        await trio.testing.wait_all_tasks_blocked()
        assert closed == [3, 1], "who holds most"
        assert statistics.shed_count == 2
        nursery.cancel_scope.cancel()
    assert statistics.partial_frames.total_bytes == 0


async def test_idle_sockets_make_room_for_new_ones_the_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remoting, "MAX_SESSION_COUNT", 4)
    statistics, service = Statistics(), Recorder()
    async with running(service, statistics) as address, RemotingClient() as known, RemotingClient() as second:
        await known.call(address, Command(HEART_BEAT), HANG_MS)
        idle = [await trio.open_tcp_stream("127.0.0.1", int(address.rpartition(":")[2])) for _ in range(3)]
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert statistics.session_count == 4
        await second.call(address, Command(HEART_BEAT), HANG_MS)
        with trio.fail_after(HANG_S):
            assert await idle[0].receive_some() == b"", "the oldest idle one is closed"
        await known.call(address, Command(HEART_BEAT), HANG_MS)
        with trio.move_on_after(0.1) as waited:
            await idle[1].receive_some()
        assert waited.cancelled_caught, "the others may stay"
        for stream in idle:
            await stream.aclose()
    assert (statistics.refused_count, statistics.pushed_out_count) == (0, 1)


async def test_the_time_for_the_first_request_begins_when_the_handshake_is_done(
    mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Java client may take seconds for its part of a handshake where others take the processor."""
    shaking, is_shaken = trio.Event(), trio.Event()

    async def slow(*_: object) -> tuple[bool, None]:
        shaking.set()
        await is_shaken.wait()
        return True, None

    monkeypatch.setattr(remoting, "accept_link", slow)
    statistics = Statistics()
    async with running(Recorder(), statistics) as address:
        stream = await trio.open_tcp_stream("127.0.0.1", int(address.rpartition(":")[2]))
        await shaking.wait()
        mock_clock.jump(1.9)
        is_shaken.set()
        while not statistics.session_count:
            await trio.lowlevel.checkpoint()
        mock_clock.jump(1.9)
        await trio.testing.wait_all_tasks_blocked()
        await stream.send_all(encode_frame(Command(HEART_BEAT)))
        assert await stream.receive_some(), "it is answered"
        await stream.aclose()
    assert statistics.idle_closed_count == 0
