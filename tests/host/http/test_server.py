"""The HTTP server: real sockets for behaviour, in-memory streams under a mock clock for time."""

from __future__ import annotations

import socket
import ssl
import struct
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial

import pytest
import trio
import trio.testing
import trustme
from trio.testing import MemoryReceiveStream, MemorySendStream, MockClock, memory_stream_pair

from rmqha.host.access.security import Security, ServerTls
from rmqha.host.http import server as http
from rmqha.host.http.server import Post, Request, Response, Routes, Send, event, serve
from rmqha.host.net.boundary import Boundary
from rmqha.host.net.statistics import Statistics
from rmqha.model.error import BrokenInvariantError, StoreError, UsageError
from tests.support.patience import HANG_S
from tests.support.tracer import RecordingTracer


async def echo(request: Request) -> Response:
    return Response.json(
        {
            "method": request.method,
            "path": request.path,
            "tail": request.tail,
            "query": dict(request.query),
            "body": request.body.decode(),
        }
    )


async def fails(request: Request) -> Response:
    raise StoreError("the disk is gone; mend it")


async def is_a_bug(request: Request) -> Response:
    raise ZeroDivisionError("oops")


ROUTES: Routes = {"/echo": echo, "/files/*": echo, "/post": Post(echo), "/fails": fails, "/bug": is_a_bug}


class Met:
    """Bugs that requests have met."""

    def __init__(self) -> None:
        self.counts, self.trace = Statistics(), RecordingTracer()
        self.boundary = Boundary(self.counts, self.trace)

    def one(self, request: str, words: str) -> None:
        """Traced and counted once."""
        [(name, fields)] = self.trace.events
        assert (name, fields["request"], self.counts.failed_request_count) == ("request_failed", request, 1)
        assert fields["traceback"].startswith("Traceback") and words in fields["traceback"]
        assert fields["peer"].startswith("127.0.0.1:")


@asynccontextmanager
async def running(routes: Routes, met: Met | None = None) -> AsyncIterator[int]:
    """The port of a server."""
    met = met or Met()
    async with trio.open_nursery() as nursery:
        yield await nursery.start(partial(serve, routes, "127.0.0.1:0", boundary=met.boundary))
        nursery.cancel_scope.cancel()


async def read_all(stream: trio.abc.ReceiveStream) -> bytes:
    found = b""
    async for chunk in stream:
        found += chunk
    return found


async def ask(port: int, text: str) -> tuple[int, str, str]:
    """Status, head and body of the answer to the last of the requests in `text`."""
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(text.replace("\n", "\r\n").encode("latin-1"))
        with trio.fail_after(HANG_S):
            answer = (await read_all(stream)).decode()
    head, _, body = answer.partition("\r\n\r\n")
    return int(head.split()[1]), head, body


def get(path: str, *headers: str, method: str = "GET", host: str = "localhost") -> str:
    return "\n".join([f"{method} {path} HTTP/1.1", f"Host: {host}", "Connection: close", *headers, "", ""])


async def test_routes_query_and_tail_reach_the_handler() -> None:
    async with running(ROUTES) as port:
        status, head, body = await ask(port, get("/echo?a=1&b=%C3%A4&a=2"))
        assert (status, body) == (
            200,
            '{"method":"GET","path":"/echo","tail":"","query":{"a":"2","b":"\\u00e4"},"body":""}',
        )
        assert "Content-Type: application/json" in head and "nosniff" in head
        assert '"tail":"x/y z"' in (await ask(port, get("/files/x/y%20z")))[2]
        status, _, body = await ask(port, get("/post", "Content-Length: 3", method="POST") + "abc")
        assert status == 200 and '"body":"abc"' in body


async def test_head_has_the_length_and_no_body() -> None:
    async with running(ROUTES) as port:
        status, head, body = await ask(port, get("/echo", method="HEAD"))
        assert status == 200 and body == ""
        assert "Content-Length: 0" not in head and "Content-Length: " in head


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (get("/nowhere"), 404),
        (get("/files"), 404),
        (get("/files/*/x", host="localhost:80"), 200),
        (get("/echo", method="POST"), 405),
        (get("/post"), 405),
        (get("/echo", method="DELETE"), 405),
        (get("/echo", "X: " + "x" * 4 * http.HEAD_LIMIT_BYTES), 431),
        (get("/" + "x" * 4 * http.HEAD_LIMIT_BYTES), 431),
        (get("/post", f"Content-Length: {http.BODY_LIMIT_BYTES + 1}", method="POST"), 413),
        (get("/echo", "Content-Length: 3") + "abc", 413),
        (get("/echo", "Transfer-Encoding: chunked") + "1\na\n" * 9, 413),
        (get("/post", "Content-Length: -1", method="POST"), 400),
        (get("/post", "Transfer-Encoding: chunked", "Content-Length: 3", method="POST") + "zz\n", 400),
        ("not http at all\n\n", 400),
        (get("/echo%ff"), 400),
        (get("/fails"), 503),
        (get("/echo", host="evil.example"), 421),
        (get("/echo", host="127.0.0.1:1"), 200),
        (get("/echo", host="[::1]:1"), 200),
    ],
)
async def test_answers_of_the_server_itself(text: str, wanted: int) -> None:
    async with running(ROUTES) as port:
        status, _, body = await ask(port, text)
        assert status == wanted
        assert body, "one sentence at least"


async def test_a_body_in_chunks_is_bounded_too() -> None:
    chunk = "10000\n" + "x" * 65536 + "\n"
    async with running(ROUTES) as port:
        status, _, body = await ask(port, get("/post", "Transfer-Encoding: chunked", method="POST") + 20 * chunk)
        assert status == 413 and str(http.BODY_LIMIT_BYTES) in body


async def test_a_bug_of_a_handler_is_told_and_the_server_goes_on() -> None:
    met = Met()
    async with running(ROUTES, met) as port:
        status, _, body = await ask(port, get("/bug"))
        assert status == 500 and "oops" not in body
        met.one("GET /bug", "ZeroDivisionError: oops")
        for _ in range(20):
            assert (await ask(port, get("/bug")))[0] == 500
        assert (await ask(port, get("/echo")))[0] == 200
    assert met.counts.failed_request_count == 21 and len(met.trace.events) == 1, "told once a minute"


async def test_a_broken_invariant_that_a_handler_meets_ends_the_process() -> None:
    async def broken(request: Request) -> Response:
        raise BrokenInvariantError("the confirm offset went back")

    met = Met()

    async def asked() -> None:
        async with running({"/broken": broken}, met) as port, await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(get("/broken").encode())
            await trio.sleep_forever()

    with trio.fail_after(HANG_S), pytest.raises(BaseExceptionGroup) as caught:
        await asked()
    assert caught.value.subgroup(BrokenInvariantError) is not None
    assert met.trace.events == []


async def test_a_bug_of_a_connection_is_told_and_the_server_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*arguments: object) -> None:
        raise KeyError("x")

    met = Met()
    async with running(ROUTES, met) as port:
        monkeypatch.setattr(http._Connection, "_request", broken)
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(get("/echo").encode())
            with trio.fail_after(HANG_S):
                assert await stream.receive_some() == b""
        monkeypatch.undo()
        assert (await ask(port, get("/echo")))[0] == 200
    met.one("a connection", "KeyError: ")


async def test_a_connection_serves_several_requests_also_pipelined() -> None:
    twice = "GET /echo?n=1 HTTP/1.1\nHost: localhost\n\n" + get("/echo?n=2")
    async with running(ROUTES) as port:
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(twice.replace("\n", "\r\n").encode())
            with trio.fail_after(HANG_S):
                answer = await read_all(stream)
        assert answer.count(b"HTTP/1.1 200 OK") == 2
        assert answer.index(b'"n":"1"') < answer.index(b'"n":"2"')


async def test_events_flow_until_the_client_goes() -> None:
    ended = trio.Event()

    async def produce(send: Send) -> None:
        try:
            number = 0
            while True:
                number += 1
                await send(event({"n": number, "text": "a\nb"}, "tick"))
                await trio.sleep(0.01)
        finally:
            ended.set()

    async def live(request: Request) -> Response:
        return Response.events(produce)

    async with running({"/live": live}) as port:
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        await stream.send_all(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        seen = b""
        with trio.fail_after(HANG_S):
            while b'"n":3' not in seen:
                seen += await stream.receive_some()
            assert b"Content-Type: text/event-stream" in seen
            assert b'event: tick\ndata: {"n":1,"text":"a\\nb"}\n\n' in seen
            assert not ended.is_set()
            await stream.aclose()
            await ended.wait()


@pytest.mark.parametrize("is_writing", [True, False])
async def test_a_client_that_resets_a_stream_ends_only_that_stream(is_writing: bool) -> None:
    ended = trio.Event()

    async def live(request: Request) -> Response:
        async def produce(send: Send) -> None:
            try:
                while True:
                    await send(b"x" * 100_000)
                    await trio.sleep(0.01 if is_writing else 60)
            finally:
                ended.set()

        return Response.events(produce)

    async with running({**ROUTES, "/live": live}) as port:
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        await stream.send_all(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with trio.fail_after(HANG_S):
            await stream.receive_some(1)
            stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            await stream.aclose()
            await ended.wait()
        assert (await ask(port, get("/echo")))[0] == 200


async def test_a_bug_of_a_stream_is_told_and_the_server_lives() -> None:
    met = Met()

    async def live(request: Request) -> Response:
        async def produce(send: Send) -> None:
            await send(b"begun")
            raise ZeroDivisionError("oops")

        return Response.events(produce)

    async with running({**ROUTES, "/live": live}, met) as port:
        _, _, body = await ask(port, get("/live"))
        assert "begun" in body
        met.one("a stream", "ZeroDivisionError: oops")
        assert (await ask(port, get("/echo")))[0] == 200


async def test_a_stream_that_ends_by_itself_leaves_the_connection_usable() -> None:
    async def produce(send: Send) -> None:
        await send(b"one ")
        await send(b"")
        await send(b"two")

    async def short(request: Request) -> Response:
        return Response(stream=produce)

    async with running({"/short": short}) as port:
        status, head, body = await ask(port, get("/short"))
        assert status == 200 and "chunked" in head
        assert body == "4\r\none \r\n3\r\ntwo\r\n0\r\n\r\n"


async def test_where_all_are_busy_more_are_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_CONNECTION_COUNT", 1)
    release = trio.Event()

    async def slow(request: Request) -> Response:
        await release.wait()
        return Response.text("late")

    async with running({"/slow": slow, "/echo": echo}) as port:
        async with await trio.open_tcp_stream("127.0.0.1", port) as first:
            await first.send_all(b"GET /slow HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            await trio.testing.wait_all_tasks_blocked()
            status, _, body = await ask(port, get("/echo"))
            assert status == 503 and "too many connections" in body
            release.set()
            with trio.fail_after(HANG_S):
                assert b"200 OK" in await read_all(first)
        await trio.testing.wait_all_tasks_blocked()
        assert (await ask(port, get("/echo")))[0] == 200


async def test_silent_connections_make_room_the_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_CONNECTION_COUNT", 3)
    async with running(ROUTES) as port, AsyncExitStack() as stack:
        silent = []
        for said in (b"", b"GET /echo HTT", b"GET /echo HTTP/1.1\r\nHost: localhost\r\n\r\n"):
            silent.append(await stack.enter_async_context(await trio.open_tcp_stream("127.0.0.1", port)))
            await silent[-1].send_all(said)
            await trio.testing.wait_all_tasks_blocked()
        assert b"200 OK" in bytes(await silent[2].receive_some())
        assert (await ask(port, get("/echo")))[0] == 200
        with trio.fail_after(HANG_S), suppress(trio.BrokenResourceError):
            assert await silent[0].receive_some() == b""
        # the others are served on
        await silent[2].send_all(b"GET /echo HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        with trio.fail_after(HANG_S):
            assert b"200 OK" in await read_all(silent[2])


async def test_a_crowd_of_requests_leaves_everybody_else_a_turn() -> None:
    """A hundred clients that ask for what takes 2 ms of this thread: a heartbeat waits for one of them, not for all."""

    served = 0

    async def work(request: Request) -> Response:
        nonlocal served
        served += 1
        until = time.monotonic() + 0.002
        while time.monotonic() < until:
            pass
        return Response.text("done")

    async with running({"/work": work}) as port, trio.open_nursery() as nursery:

        async def client() -> None:
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                while True:
                    await stream.send_all(b"GET /work HTTP/1.1\r\nHost: localhost\r\n\r\n" * 10)
                    await stream.receive_some(1 << 16)

        for _ in range(100):
            nursery.start_soon(client)
        while served < 200:
            await trio.lowlevel.checkpoint()
        before, most = served, 0
        for _ in range(100):
            await trio.lowlevel.checkpoint()
            before, most = served, max(most, served - before)
        nursery.cancel_scope.cancel()
    assert most <= 2, "without turns it is a hundred"


async def test_a_port_in_use_is_a_usage_error() -> None:
    async with running(ROUTES) as port:
        with pytest.raises(UsageError, match=f"port {port} in use"):
            await serve(ROUTES, f"127.0.0.1:{port}", boundary=Met().boundary)


async def test_one_port_takes_https_too_and_nothing_else_where_tls_is_enforced() -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    for only in (False, True):
        security = Security(server_tls=ServerTls(context, only))
        async with trio.open_nursery() as nursery:
            port = await nursery.start(
                partial(serve, ROUTES, "127.0.0.1:0", boundary=Met().boundary, security=security)
            )
            plain = await trio.open_tcp_stream("127.0.0.1", port)
            async with trio.SSLStream(plain, trusting, server_hostname="localhost", https_compatible=True) as secure:
                await secure.send_all(get("/echo").replace("\n", "\r\n").encode())
                with trio.fail_after(HANG_S):
                    assert (await read_all(secure)).startswith(b"HTTP/1.1 200 OK")
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                await stream.send_all(get("/echo").replace("\n", "\r\n").encode())
                with trio.fail_after(HANG_S), suppress(trio.BrokenResourceError):
                    assert (await stream.receive_some() == b"") is only
            nursery.cancel_scope.cancel()


Client = trio.StapledStream[MemorySendStream, MemoryReceiveStream]


def connection(
    routes: Routes,
) -> tuple[Client, http._Connection]:
    client, server = memory_stream_pair()
    return client, http._Connection(
        server, routes, "peer:1", Met().boundary, http._OpenConnections(), trio.CancelScope(), local_only=False
    )


async def test_half_a_request_is_answered_408_in_bounded_time(autojump_clock: MockClock) -> None:
    client, served = connection(ROUTES)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(served.run, full=False))
        for byte in b"GET /echo HTTP/1.1\r\nX: " + 1000 * b"x":
            try:
                await client.send_all(bytes([byte]))
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                break
            await trio.sleep(1)
        assert b"408" in await read_all(client)
    assert trio.current_time() < http.REQUEST_TIMEOUT_S + 5


async def test_a_silent_client_is_let_go(autojump_clock: MockClock) -> None:
    client, served = connection(ROUTES)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(served.run, full=False))
        assert await read_all(client) == b""
    assert trio.current_time() == pytest.approx(http.IDLE_TIMEOUT_S, abs=3)


async def test_a_slow_handler_is_answered_504(autojump_clock: MockClock) -> None:
    async def slow(request: Request) -> Response:
        await trio.sleep(http.HANDLER_TIMEOUT_S + 1)
        return Response.text("late")

    client, served = connection({"/slow": slow})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(served.run, full=False))
        await client.send_all(get("/slow").replace("\n", "\r\n").encode())
        assert b"504" in await read_all(client)
