"""A request that waits for something: its connection is not read meanwhile, others are, and what follows it waits."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator

import pytest
import trio
import trio.testing
import trustme

from rmqha.host.access.security import Security, ServerTls
from rmqha.host.net.remoting import serve
from rmqha.host.net.session import Session
from rmqha.host.net.statistics import Statistics
from rmqha.port import Pause
from rmqha.wire.command import Command
from rmqha.wire.frame import FrameParser, encode_frame
from tests.support.patience import HANG_S

PAUSES = 3


class Wait:
    size_bytes = 1000

    def __init__(self) -> None:
        self.resume: Callable[[], None] | None = None

    def when_over(self, resume: Callable[[], None]) -> None:
        self.resume = resume


class NodeUnderTest:
    """Answers each request; PAUSES after what `wait` ends."""

    def __init__(self) -> None:
        self.waits: list[Wait] = []
        self.codes: list[int] = []
        self.closed_count = 0

    def opened(self, session: Session) -> None: ...

    def received(self, session: Session, commands: list[Command]) -> None:
        for command in commands:
            self.codes.append(command.code)
            if command.code == PAUSES:
                session.work(self._steps(session, command))
            else:
                session.send(command.reply())

    def _steps(self, session: Session, command: Command) -> Iterator[Pause | None]:
        yield None
        self.waits.append(Wait())
        yield self.waits[-1]
        session.send(command.reply())

    def closed(self, session: Session) -> None:
        self.closed_count += 1


def contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    authority = trustme.CA()
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.issue_cert("127.0.0.1").configure_cert(server)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    return server, client


async def opaques_of(stream: trio.abc.Stream, count: int) -> list[int]:
    parser, found = FrameParser(65536), list[int]()
    with trio.fail_after(HANG_S):
        while len(found) < count:
            found += [command.opaque for command in parser.feed(bytes(await stream.receive_some(65536)))]
    return found


@pytest.mark.parametrize("tls", [False, True])
async def test_a_pause_stops_one_connection_and_no_other(tls: bool) -> None:
    service, statistics = NodeUnderTest(), Statistics()
    server_context, client_context = contexts()
    security = Security(server_tls=ServerTls(server_context, True)) if tls else Security()

    async def connected(port: int) -> trio.abc.Stream:
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        return trio.SSLStream(stream, client_context) if tls else stream

    async with trio.open_nursery() as nursery:
        port: int = await nursery.start(
            lambda task_status: serve(
                service,
                "127.0.0.1:0",
                max_frame_bytes=65536,
                statistics=statistics,
                security=security,
                task_status=task_status,
            )
        )
        node_under_test, other = await connected(port), await connected(port)
        await node_under_test.send_all(
            b"".join(encode_frame(Command(code, opaque=n)) for n, code in enumerate((1, PAUSES, 1, PAUSES, 1)))
        )
        assert await opaques_of(node_under_test, 1) == [0]
        await node_under_test.send_all(encode_frame(Command(1, opaque=5)))
        await other.send_all(encode_frame(Command(7, opaque=9)))
        assert await opaques_of(other, 1) == [9]
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert service.codes.count(1) == 1, "what follows a request that waits was handled before it"
        assert statistics.partial_frames.total_bytes == Wait.size_bytes
        found: list[int] = []
        for turn in range(2):
            with trio.fail_after(HANG_S):
                while len(service.waits) <= turn:
                    await trio.testing.wait_all_tasks_blocked()
            resume = service.waits[turn].resume
            assert resume is not None
            resume()
            found += await opaques_of(node_under_test, 2 * (turn + 1) - len(found))
        found += await opaques_of(node_under_test, 5 - len(found))
        assert found == [1, 2, 3, 4, 5]
        assert statistics.partial_frames.total_bytes == 0
        for stream in (node_under_test, other):
            await trio.aclose_forcefully(stream)
        nursery.cancel_scope.cancel()


async def test_what_came_with_a_request_that_waits_counts_as_unhandled() -> None:
    service, statistics = NodeUnderTest(), Statistics()
    async with trio.open_nursery() as nursery:
        port: int = await nursery.start(
            lambda task_status: serve(
                service, "127.0.0.1:0", max_frame_bytes=65536, statistics=statistics, task_status=task_status
            )
        )
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        await stream.send_all(encode_frame(Command(PAUSES)) + encode_frame(Command(1, opaque=2, body=bytes(5000))))
        with trio.fail_after(HANG_S):
            while not service.waits:
                await trio.testing.wait_all_tasks_blocked()
        assert statistics.partial_frames.total_bytes == Wait.size_bytes + 5000
        resume = service.waits[0].resume
        assert resume is not None
        resume()
        assert len(await opaques_of(stream, 2)) == 2
        assert statistics.partial_frames.total_bytes == 0
        await trio.aclose_forcefully(stream)
        nursery.cancel_scope.cancel()


async def test_a_connection_that_ends_in_its_pause_is_let_go() -> None:
    service, statistics = NodeUnderTest(), Statistics()
    async with trio.open_nursery() as nursery:
        port: int = await nursery.start(
            lambda task_status: serve(
                service, "127.0.0.1:0", max_frame_bytes=65536, statistics=statistics, task_status=task_status
            )
        )
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        await stream.send_all(encode_frame(Command(PAUSES)))
        with trio.fail_after(HANG_S):
            while not service.waits:
                await trio.testing.wait_all_tasks_blocked()
        await stream.aclose()
        resume = service.waits[0].resume
        assert resume is not None
        resume()
        with trio.fail_after(HANG_S):
            while not service.closed_count:
                await trio.testing.wait_all_tasks_blocked(0.01)
        resume()
        assert statistics.partial_frames.total_bytes == 0
        nursery.cancel_scope.cancel()
