"""A small HTTP/1.1 server: routes to async handlers, over h11. Shell.

For health, metrics and a page, not for the open internet: requests are bounded in size and time, connections in number.
However many come at once, one request is read or answered between two turns of everything else in the process; when all
connections are taken, the one that has been silent for longest makes room.
A listener on loopback answers only to names of this machine, so that a web site cannot reach it through a browser by a
name of its own that points here (DNS rebinding). TLS is the process's own (`rmqha.host.access.security`), on the same
port.

    async def hello(request: Request) -> Response:
        return Response.text(f"hello {request.query.get('name', 'you')}\\n")

    await nursery.start(partial(serve, {"/hello": hello}, "127.0.0.1:8080", boundary=boundary))

A route that ends in "/*" takes what no longer route takes; `request.tail` is the rest of the path. A handler serves GET
and HEAD; `Post(handler)` serves POST.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Self
from urllib.parse import parse_qsl, unquote, urlsplit

import h11
import trio

from rmqha.host.access.security import Security, accept, ambient
from rmqha.host.net import network
from rmqha.host.net.boundary import Boundary
from rmqha.model.error import BrokenInvariantError, RmqhaError
from rmqha.model.identity import is_loopback

HEAD_LIMIT_BYTES = 16 * 1024
"""Most bytes of the request line and the header lines together; more is answered 431."""
BODY_LIMIT_BYTES = 1024 * 1024
"""Most bytes of a body; more is answered 413."""
MAX_CONNECTION_COUNT = 128
"""Most connections. One more closes the connection that has waited longest for its client; if none waits, it is
answered 503."""
REQUEST_TIMEOUT_S = 10.0
"""Time (s) from a request's first byte to its last."""
IDLE_TIMEOUT_S = 75.0
"""Time (s) between two requests of a connection: scrapes come each 15 to 60 s."""
HANDLER_TIMEOUT_S = 30.0
WRITE_TIMEOUT_S = 20.0
"""Time (s) that a client may take to read one piece of an answer."""
_READ_BYTES = 16 * 1024
_CLOSE_GRACE_S = 1.0


@dataclass(frozen=True)
class Request:
    """A request. `path` and `query` are decoded; of a query key given twice the last counts. Header names are in lower
    case. `tail`: rest of the path behind a route that ends in "/*"."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    peer: str = ""
    tail: str = ""


Send = Callable[[bytes], Awaitable[None]]


@dataclass(frozen=True)
class Response:
    """An answer. `stream`, if given, replaces `body`: it writes the body with the function that it gets, until it
    returns, or is cancelled because the client has disconnected."""

    body: bytes = b""
    status: int = 200
    content_type: str = "text/plain; charset=utf-8"
    headers: Mapping[str, str] = field(default_factory=dict)
    stream: Callable[[Send], Awaitable[None]] | None = None

    @classmethod
    def text(cls, text: str, status: int = 200) -> Self:
        return cls(text.encode(), status)

    @classmethod
    def json(cls, value: Any, status: int = 200) -> Self:
        return cls(json.dumps(value, separators=(",", ":")).encode(), status, "application/json")

    @classmethod
    def events(cls, produce: Callable[[Send], Awaitable[None]]) -> Self:
        """Server-Sent Events: `await send(event({...}))` for each."""
        return cls(content_type="text/event-stream", headers={"Cache-Control": "no-store"}, stream=produce)


def event(value: Any, name: str = "") -> bytes:
    """One Server-Sent Event with `value` as JSON (JSON escapes line ends, so it is one data line)."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(value, separators=(',', ':'))}\n\n".encode()


Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True)
class Post:
    """A route for POST instead of GET and HEAD."""

    handler: Handler


Routes = Mapping[str, Handler | Post]


async def serve(
    routes: Routes,
    address: str,
    *,
    boundary: Boundary,
    security: Security | None = None,
    task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Bind `address`, report the actual port by `task_status.started`, and serve until cancelled.

    An RmqhaError of a handler is answered 503 with its sentence; any other exception is a bug: answered 500, and it
    ends at `boundary`, since metrics must not end a broker. `security` None takes `rmqha.host.access.security.ambient`.
    Raises UsageError if the address cannot be bound.
    """
    secured = ambient.get() if security is None else security
    listeners = await network.listen(address)
    local_only = is_loopback(address.rpartition(":")[0])
    connections = _OpenConnections()

    async def handle(stream: trio.SocketStream) -> None:
        peer = ""
        try:
            with connections.opened() as scope:
                # a TLS handshake that is not finished counts as waiting for the client too
                with connections.silent(scope):
                    peer = network.peer_name(stream)
                    accepted = await accept(stream, secured.server_tls)
                if accepted is not None:
                    connection = _Connection(
                        accepted, routes, peer, boundary, connections, scope, local_only=local_only
                    )
                    await connection.run(full=connections.is_full)
        except Exception as error:  # noqa: BLE001
            boundary.failed(error, peer, request="a connection")
        finally:
            # refused, evicted, or served to its end
            await trio.aclose_forcefully(stream)

    task_status.started(network.local_port(listeners[0]))
    await trio.serve_listeners(handle, listeners)


class _RefusalError(Exception):
    """Refusal of a request: it is answered with `response`, and the connection closes."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.response = Response.text(f"{sentence}\n", status)


class _OpenConnections:
    """All connections of one listener."""

    def __init__(self) -> None:
        self._members: set[trio.CancelScope] = set()
        self._silent: dict[trio.CancelScope, None] = {}
        """Connections that wait for their client, the oldest first."""
        self._gate = trio.Lock()

    @property
    def is_full(self) -> bool:
        return len(self._members) > MAX_CONNECTION_COUNT

    @contextmanager
    def opened(self) -> Iterator[trio.CancelScope]:
        """Count one more connection in the block. If it is one too many, close the one that has waited longest for its
        client."""
        with trio.CancelScope() as scope:
            self._members.add(scope)
            if self.is_full and self._silent:
                oldest = next(iter(self._silent))
                del self._silent[oldest]
                self._members.discard(oldest)
                oldest.cancel()
            try:
                yield scope
            finally:
                self._members.discard(scope)

    @contextmanager
    def silent(self, scope: trio.CancelScope) -> Iterator[None]:
        """Mark the connection as waiting for its client in the block."""
        self._silent[scope] = None
        try:
            yield
        finally:
            self._silent.pop(scope, None)

    async def turn(self) -> None:
        """Wait for one turn of the event loop; of all connections only one continues in each turn."""
        async with self._gate:
            await trio.lowlevel.checkpoint()


class _Connection:
    """Connection of one client, served request by request."""

    def __init__(
        self,
        stream: trio.abc.Stream,
        routes: Routes,
        peer: str,
        boundary: Boundary,
        connections: _OpenConnections,
        scope: trio.CancelScope,
        *,
        local_only: bool,
    ) -> None:
        self._stream = stream
        self._routes = routes
        self._peer = peer
        self._boundary = boundary
        self._connections = connections
        self._scope = scope
        self._local_only = local_only
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_LIMIT_BYTES)
        self._head_only = False

    async def run(self, *, full: bool) -> None:
        """Serve the client to its end."""
        try:
            while await self._one(full=full):
                self._http.start_next_cycle()
            await self._close()
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError, h11.LocalProtocolError):
            # the client has disconnected or does not read: no answer can reach it
            return
        finally:
            await trio.aclose_forcefully(self._stream)

    async def _one(self, *, full: bool) -> bool:
        """Serve one request; False if the connection ends with it."""
        try:
            if full:
                raise _RefusalError(503, "too many connections at once; try again later")
            with self._connections.silent(self._scope):
                if not await self._first_byte():
                    return False
                with trio.fail_after(REQUEST_TIMEOUT_S):
                    request = await self._request()
            if request is None:
                return False
            await self._connections.turn()
            response = await self._answer(request)
        except _RefusalError as refusal:
            response = refusal.response
        except h11.RemoteProtocolError as error:
            too_long = error.error_status_hint == 431
            response = Response.text(
                "the request's head is too long\n" if too_long else "this is not HTTP/1.1\n", error.error_status_hint
            )
        except trio.TooSlowError:
            response = Response.text("the request did not arrive in time\n", 408)
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            await self._respond(response)
        return self._http.our_state is h11.DONE and self._http.their_state is h11.DONE

    # --- reading ----------------------------------------------------------------------------------------------------

    async def _first_byte(self) -> bool:
        """Wait for a request; False if none comes."""
        if self._http.trailing_data[0]:
            return True
        data: bytes | bytearray = b""
        with trio.move_on_after(IDLE_TIMEOUT_S):
            data = await self._stream.receive_some(_READ_BYTES)
        if data:
            self._http.receive_data(bytes(data))
        return bool(data)

    async def _next(self) -> h11.Event | type[h11.PAUSED]:
        while True:
            await self._connections.turn()
            found = self._http.next_event()
            if found is not h11.NEED_DATA:
                assert not isinstance(found, type) or found is h11.PAUSED
                return found
            if self._http.they_are_waiting_for_100_continue:
                await self._write(h11.InformationalResponse(status_code=100, headers=[]))
            self._http.receive_data(bytes(await self._stream.receive_some(_READ_BYTES)))

    async def _request(self) -> Request | None:
        """Read a request; None if the client has disconnected."""
        head = await self._next()
        if not isinstance(head, h11.Request):
            return None
        method = head.method.decode("ascii")
        self._head_only = method == "HEAD"
        headers = {name.decode("ascii"): value.decode("latin-1") for name, value in head.headers}
        if self._local_only and not is_loopback(_host_of(headers.get("host", "localhost"))):
            raise _RefusalError(421, "this server answers only to localhost; set httpHost to serve others")
        if method != "POST" and ("transfer-encoding" in headers or headers.get("content-length", "0") != "0"):
            # a body in chunks of one byte costs far more to read than to send, and it would not be used
            raise _RefusalError(413, f"{method} takes no body here")
        if int(headers.get("content-length", "0")) > BODY_LIMIT_BYTES:
            raise _RefusalError(413, f"the body is longer than {BODY_LIMIT_BYTES} bytes")
        body = bytearray()
        while isinstance(part := await self._next(), h11.Data):
            body += part.data
            if len(body) > BODY_LIMIT_BYTES:
                raise _RefusalError(413, f"the body is longer than {BODY_LIMIT_BYTES} bytes")
        try:
            target = urlsplit(head.target.decode("ascii"))
            query = dict(parse_qsl(target.query, keep_blank_values=True, max_num_fields=100, errors="strict"))
            path = unquote(target.path, errors="strict")
        except ValueError:
            raise _RefusalError(400, "the request's target is not a URL in UTF-8") from None
        return Request(method, path, query, headers, bytes(body), self._peer)

    # --- answering --------------------------------------------------------------------------------------------------

    async def _answer(self, request: Request) -> Response:
        route, tail = _find(self._routes, request.path)
        if route is None:
            return Response.text(f"there is nothing at {request.path}\n", 404)
        allowed = ("POST",) if isinstance(route, Post) else ("GET", "HEAD")
        if request.method not in allowed:
            listed = ", ".join(allowed)
            return Response(f"{request.path} takes {listed}\n".encode(), 405, headers={"Allow": listed})
        handler = route.handler if isinstance(route, Post) else route
        try:
            with trio.fail_after(HANDLER_TIMEOUT_S):
                return await handler(_with_tail(request, tail))
        except BrokenInvariantError:
            raise
        except RmqhaError as error:
            return Response.text(f"{error}\n", 503)
        except trio.TooSlowError:
            return Response.text("no answer in time\n", 504)
        except Exception as error:  # noqa: BLE001
            self._boundary.failed(error, self._peer, request=f"{request.method} {request.path}")
            return Response.text("this is a bug of the server; its log says more\n", 500)

    async def _respond(self, response: Response) -> None:
        headers = {
            "Content-Type": response.content_type,
            "Date": time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime()),
            "X-Content-Type-Options": "nosniff",
            **response.headers,
        }
        if response.stream is None:
            headers["Content-Length"] = str(len(response.body))
        if self._http.their_state is not h11.DONE:
            headers["Connection"] = "close"
        reason = HTTPStatus(response.status).phrase
        await self._write(
            h11.Response(status_code=response.status, headers=list(headers.items()), reason=reason.encode())
        )
        if self._head_only:
            pass
        elif response.stream is not None:
            await self._stream_body(response.stream)
        elif response.body:
            await self._write(h11.Data(data=response.body))
        await self._write(h11.EndOfMessage())

    async def _stream_body(self, produce: Callable[[Send], Awaitable[None]]) -> None:
        async def send(chunk: bytes) -> None:
            if chunk:
                await self._write(h11.Data(data=chunk))

        is_whole = False
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._until_gone, nursery.cancel_scope)
            try:
                await produce(send)
                is_whole = True
            except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
                is_whole = False  # the client has gone or does not read
            except Exception as error:  # noqa: BLE001
                self._boundary.failed(error, self._peer, request="a stream")
            nursery.cancel_scope.cancel()
        if not is_whole:
            raise trio.BrokenResourceError("the stream was not sent to its end")

    async def _until_gone(self, scope: trio.CancelScope) -> None:
        """Cancel the stream when the client sends anything, or disconnects: during a stream it has nothing to send."""
        try:
            await self._stream.receive_some(_READ_BYTES)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return
        finally:
            scope.cancel()

    async def _write(self, part: h11.Event) -> None:
        data = self._http.send(part)
        if data:
            with trio.fail_after(WRITE_TIMEOUT_S):
                await self._stream.send_all(data)

    async def _close(self) -> None:
        """Close so that the client can read the last answer: a close with unread bytes would reset the connection."""
        with trio.move_on_after(_CLOSE_GRACE_S):
            await _end_of_writing(self._stream)
            while await self._stream.receive_some(_READ_BYTES):
                pass


async def _end_of_writing(stream: trio.abc.Stream) -> None:
    if isinstance(stream, trio.SocketStream):
        await stream.send_eof()


def _host_of(value: str) -> str:
    """The name in a Host header, without its port."""
    return value[: value.find("]") + 1] if value.startswith("[") else value.partition(":")[0]


def _find(routes: Routes, path: str) -> tuple[Handler | Post | None, str]:
    if path in routes and not path.endswith("/*"):
        return routes[path], ""
    above = path
    while above:
        above = above.rpartition("/")[0]
        if f"{above}/*" in routes:
            return routes[f"{above}/*"], path[len(above) + 1 :]
    return None, ""


def _with_tail(request: Request, tail: str) -> Request:
    if not tail:
        return request
    return Request(request.method, request.path, request.query, request.headers, request.body, request.peer, tail)
