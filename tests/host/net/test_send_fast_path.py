"""A service that answers some requests as bytes: it sees what nobody else has to see before, in fair slices."""

from __future__ import annotations

import os
import random
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from rmqha.host.access.accounts import AccessFile
from rmqha.host.access.audit import AuditLog
from rmqha.host.access.peer_filter import PeerRules
from rmqha.host.access.security import Security
from rmqha.host.net import fair_queue, poller
from rmqha.host.net import session as session_module
from rmqha.host.net.boundary import Boundary
from rmqha.host.net.poller import SLICE_COUNT
from rmqha.host.net.remoting import serve
from rmqha.host.net.session import Session
from rmqha.host.net.statistics import Statistics
from rmqha.kernel.batch_kernel import SignedSend
from rmqha.kernel.python_kernel import PythonKernel
from rmqha.model.code import RequestCode
from rmqha.model.identity import Credentials
from rmqha.model.quota import Limit, QuotaLimits, Quotas
from rmqha.wire.auth.signature import sign
from rmqha.wire.command import Command
from rmqha.wire.frame import FrameParser, encode_frame
from tests.host.access.test_peer_filter import sharing
from tests.host.access.test_quota_filter import ACCOUNTS
from tests.support.patience import HANG_S
from tests.support.tracer import RecordingTracer

TAKEN, LEFT = RequestCode.SEND_MESSAGE_V2, RequestCode.HEART_BEAT
COUNT = 300


class Taking:
    """Takes requests with the code TAKEN, and answers all others by commands."""

    def __init__(self) -> None:
        self.calls: list[int] = []
        """Frames taken by each call that took some."""
        self.left: list[int] = []
        self.together: list[int] = []
        """Sessions of each call."""

    takes_any = True

    def opened(self, session: Session) -> None:
        """Nothing to do."""

    def closed(self, session: Session) -> None:
        """Nothing to do."""

    def take(self, reads: Sequence[tuple[Session, bytes]], max_count: int) -> list[tuple[int, int]]:
        self.together.append(len(reads))
        return [self._take(session, data, max_count) for session, data in reads]

    def signed(self, data: bytes, max_count: int, nonce: str, proven: str = "") -> list[SignedSend]:
        return PythonKernel().signed(data, max_count, nonce, proven)

    def _take(self, session: Session, data: bytes, max_count: int) -> tuple[int, int]:
        at, replies = 0, list[bytes]()
        while len(replies) < max_count and len(data) - at >= 8:
            end = at + 4 + int.from_bytes(data[at : at + 4], "big")
            found = FrameParser(65536).feed(data[at:end]) if end <= len(data) else []
            if not found or found[0].code != TAKEN:
                break
            replies.append(encode_frame(found[0].reply()))
            at = end
        if replies:
            self.calls.append(len(replies))
            session.send_frames(b"".join(replies), len(replies))
        return at, len(replies)

    def received(self, session: Session, commands: list[Command]) -> None:
        for command in commands:
            self.left.append(command.code)
            session.send(command.reply())


@asynccontextmanager
async def all_asked(
    service: Taking, counts: Statistics, number: int, **keys: Any
) -> AsyncIterator[list[trio.SocketStream]]:
    """Connections that are known: their first request has been answered."""
    async with trio.open_nursery() as nursery, AsyncExitStack() as open_streams:
        start = partial(
            serve, service, "127.0.0.1:0", max_frame_bytes=65536, statistics=counts, fast_path=service, **keys
        )
        port: int = await nursery.start(start)
        streams = []
        for _ in range(number):
            stream = await open_streams.enter_async_context(await trio.open_tcp_stream("127.0.0.1", port))
            await stream.send_all(encode_frame(Command(TAKEN)))
            await answers(stream, 1)
            assert not service.calls, "a newcomer's first request is looked at by all"
            assert service.left.pop() == TAKEN
            streams.append(stream)
        yield streams
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def asked(service: Taking, counts: Statistics, **keys: Any) -> AsyncIterator[trio.SocketStream]:
    """A connection that is known."""
    async with all_asked(service, counts, 1, **keys) as (stream,):
        yield stream


def take_all_of_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine must not end the turn, or the call, between two of those that send."""
    for name in ("TURN_S", "MAX_DEFER_S"):
        monkeypatch.setattr(poller, name, HANG_S)
    monkeypatch.setattr(fair_queue, "LONG_SLICE_US", HANG_S * 1e6)


async def answers(stream: trio.SocketStream, count: int) -> list[int]:
    parser, opaques = FrameParser(65536), list[int]()
    with trio.fail_after(HANG_S):
        while len(opaques) < count:
            opaques += [command.opaque for command in parser.feed(bytes(await stream.receive_some(65536)))]
    return opaques


@pytest.mark.parametrize("seed", range(3))
async def test_slices_of_what_was_read_in_order(seed: int) -> None:
    draws = random.Random(seed)
    codes = [draws.choice([TAKEN] * 9 + [LEFT]) for _ in range(COUNT)]
    stream_bytes = b"".join(encode_frame(Command(code, opaque=number)) for number, code in enumerate(codes))
    service, counts = Taking(), Statistics()
    async with asked(service, counts) as stream:
        before = counts.received_count, counts.sent_count, counts.received_bytes
        at = 0
        while at < len(stream_bytes):
            size = draws.choice([1, 7, 100, 5000, 60_000])
            await stream.send_all(stream_bytes[at : at + size])
            await trio.lowlevel.checkpoint()
            at += size
        assert await answers(stream, COUNT) == list(range(COUNT))
        assert service.left.count(LEFT) == codes.count(LEFT)
        assert sum(service.calls) + service.left.count(TAKEN) == codes.count(TAKEN)
        assert sum(service.calls) > 20, "behind one that is left, the rest of a slice is left too"
        assert max(service.calls) <= SLICE_COUNT
        assert counts.received_count - before[0] == COUNT
        assert counts.sent_count - before[1] == COUNT
        assert counts.received_bytes - before[2] == len(stream_bytes)
        assert counts.queued_bytes == 0


@pytest.mark.parametrize("seed", range(3))
async def test_what_several_send_in_a_turn_is_taken_in_one_call(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each connection all is answered in order, whatever the others send: frames that are left, or cut anywhere."""
    take_all_of_a_turn(monkeypatch)
    draws, service, counts, number = random.Random(seed), Taking(), Statistics(), 6
    streams_bytes, codes, firsts = [], list[int](), list[int]()
    for connection in range(number):
        own = [TAKEN, *(draws.choice([TAKEN] * 9 + [LEFT] * (connection % 3)) for _ in range(COUNT - 1))]
        codes += own
        frames = [encode_frame(Command(code, {}, b"x" * 300, opaque=opaque)) for opaque, code in enumerate(own)]
        firsts.append(len(frames[0]))
        streams_bytes.append(b"".join(frames))
    async with all_asked(service, counts, number) as streams:
        before = counts.received_count, counts.received_bytes
        places = [0] * number
        while any(map(len, streams_bytes)):
            for connection, stream in enumerate(streams):
                size = firsts[connection] if not places[connection] else draws.choice([0, 1, 7, 350, 5000, 40_000])
                piece, streams_bytes[connection] = streams_bytes[connection][:size], streams_bytes[connection][size:]
                places[connection] += len(piece)
                assert not piece or os.write(stream.socket.fileno(), piece) == len(piece)
            await trio.testing.wait_all_tasks_blocked()
        for stream in streams:
            assert await answers(stream, COUNT) == list(range(COUNT))
        assert max(service.together) == number, "the first ones, of all in one call"
        assert service.left.count(LEFT) == codes.count(LEFT)
        assert sum(service.calls) + service.left.count(TAKEN) == codes.count(TAKEN)
        assert max(service.calls) <= SLICE_COUNT
        assert counts.received_count - before[0] == COUNT * number
        assert counts.received_bytes - before[1] == sum(places)
        assert (counts.queued_bytes, counts.partial_frames.total_bytes) == (0, 0)


async def test_what_the_call_leaves_waits_when_the_turn_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the slices of all that sent together were one turn, whatever they took."""
    service, counts, number, passes, seen = Taking(), Statistics(), 6, 0, list[int]()

    async def count_passes() -> None:
        nonlocal passes
        while True:
            passes += 1
            await trio.lowlevel.checkpoint()

    received = service.received

    def costly(session: Session, commands: list[Command]) -> None:
        if commands[0].code == LEFT:
            seen.append(passes)
            time.sleep(2 * poller.TURN_S)
        received(session, commands)

    monkeypatch.setattr(service, "received", costly)
    async with all_asked(service, counts, number) as streams, trio.open_nursery() as nursery:
        nursery.start_soon(count_passes)
        frames = encode_frame(Command(TAKEN)) + encode_frame(Command(LEFT))
        for stream in streams:
            assert os.write(stream.socket.fileno(), frames) == len(frames)
        for stream in streams:
            await answers(stream, 2)
        nursery.cancel_scope.cancel()
    assert len(seen) == number and len(set(seen)) > 1, "not all in one pass of the event loop"


async def test_what_does_not_end_the_process_closes_those_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    take_all_of_a_turn(monkeypatch)

    class Failing(Taking):
        def take(self, reads: Sequence[tuple[Session, bytes]], max_count: int) -> list[tuple[int, int]]:
            if len(reads) > 1:
                raise LookupError("planted")
            return super().take(reads, max_count)

    service, tracer, counts = Failing(), RecordingTracer(), Statistics()
    async with all_asked(service, counts, 3, boundary=Boundary(counts, tracer)) as streams:
        for stream in streams[:2]:
            os.write(stream.socket.fileno(), encode_frame(Command(TAKEN, opaque=7)))
        with trio.fail_after(HANG_S):
            for stream in streams[:2]:
                assert await stream.receive_some(100) == b""
        await streams[2].send_all(encode_frame(Command(TAKEN, opaque=8)))
        assert await answers(streams[2], 1) == [8]
        assert counts.failed_request_count == 2


async def test_a_read_that_left_something_is_followed_by_a_large_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large frames come together to the fast path; who sends little gets a small read."""
    small_bytes, large_bytes = 4096, 16_384
    monkeypatch.setattr(session_module, "READ_BYTES", small_bytes)
    monkeypatch.setattr(session_module, "LARGE_READ_BYTES", large_bytes)
    service, counts = Taking(), Statistics()
    frames = [encode_frame(Command(TAKEN, {}, b"x" * 1000, opaque=number)) for number in range(24)]
    async with asked(service, counts) as stream:
        reads, read = list[tuple[int, int]](), os.read

        def noted(handle: int, size_bytes: int) -> bytes:
            data = read(handle, size_bytes)
            reads.append((size_bytes, len(data)))
            return data

        monkeypatch.setattr(os, "read", noted)
        assert os.write(stream.socket.fileno(), b"".join(frames)) == sum(map(len, frames)), "all of it waits"
        assert await answers(stream, 24) == list(range(24))
        await stream.send_all(frames[0])
        assert await answers(stream, 1) == [0]
    reads = [
        (asked_bytes, size_bytes) for asked_bytes, size_bytes in reads if asked_bytes in (small_bytes, large_bytes)
    ]
    assert reads[:2] == [(small_bytes, small_bytes), (large_bytes, large_bytes)]
    assert [asked_bytes for asked_bytes, _ in reads[1:]] == [
        large_bytes if size_bytes == asked_bytes else small_bytes for asked_bytes, size_bytes in reads[:-1]
    ]
    assert reads[-1][0] == small_bytes
    assert max(service.calls) > small_bytes // len(frames[0])


async def test_answers_that_come_later_are_written_in_their_turn() -> None:
    """An acknowledgement's answers wake no writer; those behind others keep their order."""

    class Waiting(Taking):
        def opened(self, session: Session) -> None:
            self.session = session

    service, counts = Waiting(), Statistics()
    frames = b"".join(encode_frame(Command(TAKEN, opaque=number, flag=1)) for number in range(3))
    async with asked(service, counts) as stream:
        sent_count = counts.sent_count
        service.session.send_frames(frames, 3)
        assert os.read(stream.socket.fileno(), 65536) == frames, "no turn of the loop between"
        assert (counts.sent_count - sent_count, counts.queued_bytes) == (3, 0)
        service.session.send(Command(LEFT, opaque=3, flag=1))
        service.session.send_frames(frames, 3)
        assert await answers(stream, 4) == [3, 0, 1, 2]
        large = b"".join(
            encode_frame(Command(TAKEN, {}, b"x" * 60_000, opaque=number, flag=1)) for number in range(300)
        )
        service.session.send_frames(large, 300)
        assert counts.queued_bytes > 0, "the socket does not take it all"
        service.session.send_frames(frames, 3)
        assert await answers(stream, 303) == [*range(300), 0, 1, 2]
        assert counts.queued_bytes == 0


async def test_a_slice_has_no_more_frames_than_one_of_commands() -> None:
    service = Taking()
    async with asked(service, Statistics()) as stream:
        await stream.send_all(b"".join(encode_frame(Command(TAKEN, opaque=number)) for number in range(COUNT)))
        await answers(stream, COUNT)
        assert sum(service.calls) == COUNT
        assert max(service.calls) == SLICE_COUNT


def _accounts(directory: Path) -> AccessFile:
    path = directory / "accounts.yml"
    path.write_text(ACCOUNTS)
    path.chmod(0o600)
    return AccessFile(path)


@pytest.fixture
def audit() -> Iterator[AuditLog]:
    """One that keeps every request."""
    made = AuditLog("broker", lambda line: None, RecordingTracer(), everything=True)
    yield made
    made.close()


@pytest.fixture
def audit_of_changes() -> Iterator[AuditLog]:
    made = AuditLog("broker", lambda line: None, RecordingTracer())
    yield made
    made.close()


@pytest.mark.parametrize(
    "guard", ["quotas", "audit", "audit of changes", "secret", "signed", "audit and secret", "nothing"]
)
async def test_nobody_who_must_see_each_request_is_passed_by(
    tmp_path: Path, guard: str, audit: AuditLog, audit_of_changes: AuditLog
) -> None:
    keys: dict[str, Any] = {"quotas": Quotas(QuotaLimits(account=Limit(1_000_000 if guard == "quotas" else 0)))}
    signs, audits = guard in ("secret", "signed", "audit and secret"), guard.startswith("audit")
    if signs or audits:
        keys |= {"security": sharing(tmp_path) if signs else Security(), "peer_rules": PeerRules()}
        kept = audit_of_changes if guard == "audit of changes" else audit
        keys["security"].audit = kept if audits else None
    service = Taking()
    async with asked(service, Statistics(), **keys) as stream:
        if guard == "signed":
            await stream.send_all(encode_frame(Command(RequestCode.RMQHA_OPEN_SESSION, opaque=5)))
            assert await answers(stream, 1) == [5], "a server's session: each request may carry its proof"
        await stream.send_all(encode_frame(Command(TAKEN, opaque=1)))
        assert await answers(stream, 1) == [1]
        assert service.calls == ([1] if guard in ("nothing", "secret", "audit of changes") else [])


@pytest.mark.parametrize("guard", ["nothing", "audit", "audit of changes"])
async def test_behind_accounts_signed_sends_are_taken_unless_each_is_kept(
    tmp_path: Path, guard: str, audit: AuditLog, audit_of_changes: AuditLog
) -> None:
    """The first one makes the connection known. One that is wrong goes the usual way, and so does what follows it."""
    security = Security(accounts=_accounts(tmp_path))
    security.audit = {"audit": audit, "audit of changes": audit_of_changes}.get(guard)
    service, counts = Taking(), Statistics()
    commands = [Command(TAKEN, {"b": "T"}, opaque=number) for number in range(4)]
    for command in commands:
        sign(command, Credentials(access_key="cluster", secret_key="12345678"))
    commands[2].ext["b"] = "U"
    first, *others = map(encode_frame, commands)
    async with trio.open_nursery() as nursery:
        start = partial(
            serve,
            service,
            "127.0.0.1:0",
            max_frame_bytes=65536,
            statistics=counts,
            fast_path=service,
            security=security,
        )
        port: int = await nursery.start(start)
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(first)
            assert await answers(stream, 1) == [0]
            await stream.send_all(b"".join(others))
            assert await answers(stream, 3) in ([1, 2, 3], [2, 1, 3])
        nursery.cancel_scope.cancel()
    assert counts.denied_count == 1
    assert (service.calls, len(service.left)) == (([], 3) if guard == "audit" else ([1], 2))


async def test_accounts_see_each_request(tmp_path: Path) -> None:
    """Unsigned ones are refused before anybody takes them."""
    service, counts, security = Taking(), Statistics(), Security(accounts=_accounts(tmp_path))
    async with trio.open_nursery() as nursery:
        start = partial(
            serve,
            service,
            "127.0.0.1:0",
            max_frame_bytes=65536,
            statistics=counts,
            fast_path=service,
            security=security,
        )
        port: int = await nursery.start(start)
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(b"".join(encode_frame(Command(TAKEN, opaque=number)) for number in range(3)))
            await answers(stream, 3)
        nursery.cancel_scope.cancel()
    assert (counts.denied_count, service.calls, service.left) == (3, [], [])


async def test_quotas_that_are_set_while_it_runs_count_at_once() -> None:
    service, quotas = Taking(), Quotas(QuotaLimits())
    async with asked(service, Statistics(), quotas=quotas) as stream:
        for limit, expected in ((None, [1]), (Limit(1_000_000), [1]), (None, [1, 1])):
            quotas.configure(QuotaLimits(account=limit) if limit is not None else QuotaLimits())
            await stream.send_all(encode_frame(Command(TAKEN)))
            await answers(stream, 1)
            assert service.calls == expected
