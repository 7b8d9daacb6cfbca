"""RocketMQ's request/response protocol over TCP: a server shell and a client. Shell; no protocol state of its own
beyond pairing responses with requests.

One `received` call per socket read, one write per batch of replies. The server's reader also writes the replies of its
batch, so a peer that does not read is not read from either; replies that come later go through the session's writer.
A client's reader never writes, so two processes that flood each other cannot block for ever.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Protocol

import trio

from rmqha.host import network
from rmqha.host.guard import Guard
from rmqha.host.process import session_room
from rmqha.host.security import Security, accept, ambient, connect
from rmqha.host.turns import Turns
from rmqha.model.error import RemoteProtocolError, UnreachableError
from rmqha.wire.acl import sign
from rmqha.wire.command import FLAG_ONEWAY, Command
from rmqha.wire.frame import FrameParser, encode_frame

READ_BYTES = 64 * 1024
"""A longer one costs an mmap for every read: its size is beyond what malloc keeps (16 us instead of 2)."""
MAX_QUEUED_BYTES = 64 * 1024 * 1024
"""Replies that wait for one reader; beyond it the session is closed."""
MAX_ALL_QUEUED_BYTES = 512 * 1024 * 1024
"""Replies that wait for all readers of one port; beyond it those with more than FAIR_QUEUED_BYTES are closed."""
FAIR_QUEUED_BYTES = 8 * 1024 * 1024
HANDSHAKE_TIMEOUT_MS = 10_000
"""A connection must send its first whole frame within this time."""
IDLE_TIMEOUT_MS = 120_000
MAX_SESSION_COUNT = 20_000
"""Fewer where the process may not have so many descriptors (`session_room`)."""
_LAST_WORDS_S = 1.0
"""How long a closing session may take to write what is queued."""


@dataclass(slots=True)
class Statistics:
    """Counts since start, of one server or client."""

    session_count: int = 0
    opened_count: int = 0
    refused_count: int = 0
    received_count: int = 0
    received_bytes: int = 0
    sent_count: int = 0
    sent_bytes: int = 0
    queued_bytes: int = 0
    """Replies that wait for their readers now."""
    bad_frame_count: int = 0
    idle_closed_count: int = 0
    slow_reader_count: int = 0
    denied_count: int = 0
    timeout_count: int = 0

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


class Service(Protocol):
    """What a server does with its sessions. All three are synchronous: reply now or later by `session.send`.

    `received` may raise RemoteProtocolError, which closes and counts the session; any other exception is a bug and ends
    the server.
    """

    def opened(self, session: Session) -> None: ...

    def received(self, session: Session, commands: list[Command]) -> None: ...

    def closed(self, session: Session) -> None: ...


class _Call:
    """A request that waits for its response."""

    __slots__ = ("done", "response")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.response: Command | None = None


class Session:
    """One connection, seen from either end."""

    def __init__(
        self,
        session_id: int,
        stream: trio.abc.Stream,
        peer: str,
        statistics: Statistics,
        max_frame_bytes: int,
        *,
        max_queued_bytes: int = MAX_QUEUED_BYTES,
        turns: Turns | None = None,
    ) -> None:
        self.id = session_id
        self.peer = peer
        self.attachment: Any = None
        """For the service's use."""
        self.is_urgent = False
        """For the service to set: this session never stands in line."""
        self._stream = stream
        self._handle = stream.socket.fileno() if isinstance(stream, trio.SocketStream) else None
        """Of a plain socket: reading and writing it directly takes half of what its stream takes."""
        self._turns = turns
        self._statistics = statistics
        self._parser = FrameParser(max_frame_bytes)
        self._max_queued_bytes = max_queued_bytes
        self._queue: list[bytes] = []
        self._queued_bytes = 0
        self._corked = False
        self._writing = False
        self._half_written = False
        """A write is under way, or was cut off: nothing may follow the half frame."""
        self._aborted = False
        self._nonsense = False
        """The peer sent what is no frame of the protocol."""
        self._closed = False
        self._wake = trio.Event()
        self._scope = trio.CancelScope()
        self._calls: dict[int, _Call] = {}
        self._next_opaque = 0

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def queued_bytes(self) -> int:
        """Bytes that wait to be written."""
        return self._queued_bytes

    def send(self, command: Command) -> None:
        """Queue a frame; never blocks. On a closed session it does nothing: the peer is gone."""
        if self._closed or self._aborted:
            return
        frame = encode_frame(command)
        self._queue.append(frame)
        statistics = self._statistics
        self._queued_bytes += len(frame)
        statistics.queued_bytes += len(frame)
        if self._queued_bytes > self._max_queued_bytes or (
            statistics.queued_bytes > MAX_ALL_QUEUED_BYTES and self._queued_bytes > FAIR_QUEUED_BYTES
        ):
            statistics.slow_reader_count += 1
            self._queue.clear()
            self._abort()
        elif not self._corked and not self._writing:
            self._wake.set()

    def send_at_once(self, command: Command) -> None:
        """As `send`, but in this turn of the event loop if the socket takes it: for what must not wait for the next."""
        handle = self._handle
        if handle is None or self._queue or self._half_written or self._closed or self._aborted:
            self.send(command)
            return
        frame = encode_frame(command)
        try:
            sent = os.write(handle, frame)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._abort()
            return
        self._statistics.sent_bytes += sent
        if sent == len(frame):
            self._statistics.sent_count += 1
        else:
            self._queue.append(frame[sent:])
            self._queued_bytes += len(frame) - sent
            self._wake.set()

    async def call(self, command: Command, timeout_ms: int | None) -> Command:
        """Send a request and wait for its response, whatever its code. Sets the request's opaque.

        Raises UnreachableError when the session closes or no response comes in time; None leaves the time to a scope of
        the caller's, for a scope costs as much as the rest of a call.
        """
        opaque = self._next_opaque
        self._next_opaque = opaque + 1 & 0x7FFFFFFF
        command.opaque = opaque
        call = self._calls[opaque] = _Call()
        try:
            self.send(command)
            if self._nonsense:
                raise UnreachableError(self._foreign())
            if self._closed or self._aborted:
                raise UnreachableError(f"{self.peer} closed the connection")
            if timeout_ms is None:
                await call.done.wait()
            else:
                with trio.move_on_after(timeout_ms / 1000):
                    await call.done.wait()
            if call.response is not None:
                return call.response
            if self._nonsense:
                raise UnreachableError(self._foreign())
            if self._closed:
                raise UnreachableError(f"{self.peer} closed the connection before it answered")
            self._statistics.timeout_count += 1
            raise UnreachableError(f"{self.peer} did not answer request {command.code} within {timeout_ms} ms")
        finally:
            self._calls.pop(opaque, None)

    def _foreign(self) -> str:
        return f"{self.peer} does not speak RocketMQ's protocol: another program listens there, or it wants TLS"

    def close(self) -> None:
        """Stop reading, write what is queued (bounded time), close. Returns at once."""
        self._scope.cancel()

    def _abort(self) -> None:
        self._aborted = True
        self._scope.cancel()

    async def run(
        self, received: Callable[[Session, list[Command]], None], *, idle_timeout_ms: int | None, reader_writes: bool
    ) -> None:
        """Serve the connection until either end closes it. The caller owns the task."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write_queued)
                    await self._read(received, idle_timeout_ms, reader_writes)
                    nursery.cancel_scope.cancel()
        finally:
            self._closed = True
            for call in self._calls.values():
                call.done.set()
            with trio.CancelScope(shield=True):
                await self._last_words()
                self._statistics.queued_bytes -= self._queued_bytes
                self._queued_bytes = 0
                await trio.aclose_forcefully(self._stream)

    async def _read(
        self, received: Callable[[Session, list[Command]], None], idle_timeout_ms: int | None, reader_writes: bool
    ) -> None:
        statistics, feed = self._statistics, self._parser.feed
        kept_until = 0.0
        if idle_timeout_ms is not None:
            self._scope.deadline = trio.current_time() + min(HANDSHAKE_TIMEOUT_MS, idle_timeout_ms) / 1000
        try:
            while True:
                data = await self._receive()
                if not data:
                    return
                commands = feed(bytes(data))
                statistics.received_bytes += len(data)
                if not commands:
                    continue
                statistics.received_count += len(commands)
                if idle_timeout_ms is not None and (now := trio.current_time()) >= kept_until:
                    # moving it for every frame would cost as much as reading one
                    kept_until = now + idle_timeout_ms / 16_000
                    self._scope.deadline = now + idle_timeout_ms / 1000
                self._corked = True
                requests = self._take_responses(commands)
                if requests:
                    received(self, requests)
                self._corked = False
                if self._queue and not self._writing:
                    if reader_writes:
                        await self._flush()
                    else:
                        self._wake.set()
        except RemoteProtocolError:
            statistics.bad_frame_count += 1
            self._aborted = self._nonsense = True
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._aborted = True
        except trio.Cancelled:
            if idle_timeout_ms is not None and trio.current_time() >= self._scope.deadline:
                statistics.idle_closed_count += 1
            raise

    async def _receive(self) -> bytes | bytearray:
        """What has arrived, b"" at the end; in turn."""
        turns, handle = self._turns, self._handle
        if handle is None:
            data = await self._stream.receive_some(READ_BYTES)
            if turns is not None and not self.is_urgent and not turns.admits():
                await turns.wait()
            return data
        while True:
            await trio.lowlevel.wait_readable(handle)
            if turns is not None and not self.is_urgent and not turns.admits():
                await turns.wait()
            try:
                return os.read(handle, READ_BYTES)
            except BlockingIOError:
                continue
            except OSError as error:
                raise trio.BrokenResourceError(str(error)) from error

    async def _send_all(self, data: bytes) -> None:
        sent = 0
        if self._handle is not None:
            try:
                sent = os.write(self._handle, data)
            except BlockingIOError:
                sent = 0
            except OSError as error:
                raise trio.BrokenResourceError(str(error)) from error
        if sent < len(data):
            await self._stream.send_all(memoryview(data)[sent:])

    def _take_responses(self, commands: list[Command]) -> list[Command]:
        """Hand responses to their calls; the requests remain. A response that nobody waits for is late: dropped."""
        if not self._calls and not any(command.flag & 1 for command in commands):
            return commands
        requests = []
        for command in commands:
            if not command.flag & 1:
                requests.append(command)
            elif (call := self._calls.get(command.opaque)) is not None:
                call.response = command
                call.done.set()
        return requests

    async def _flush(self) -> None:
        """Write all that is queued, also what comes while writing, in one write per turn."""
        self._writing = True
        statistics = self._statistics
        while self._queue and not self._aborted:
            # a cancellation that is due comes here, with the queue whole, and not inside the write
            await trio.lowlevel.checkpoint_if_cancelled()
            batch, count = b"".join(self._queue), len(self._queue)
            self._queue.clear()
            self._half_written = True
            await self._send_all(batch)
            self._half_written = False
            self._queued_bytes -= len(batch)
            statistics.queued_bytes -= len(batch)
            statistics.sent_count += count
            statistics.sent_bytes += len(batch)
        self._writing = False

    async def _write_queued(self) -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake = trio.Event()
                if not self._writing:
                    await self._flush()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._abort()

    async def _last_words(self) -> None:
        if self._queue and not self._aborted and not self._half_written:
            with trio.move_on_after(_LAST_WORDS_S):
                try:
                    await self._flush()
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    self._queue.clear()


async def serve(
    service: Service,
    address: str,
    *,
    max_frame_bytes: int,
    idle_timeout_ms: int = IDLE_TIMEOUT_MS,
    max_queued_bytes: int = MAX_QUEUED_BYTES,
    statistics: Statistics | None = None,
    security: Security | None = None,
    turns: Turns | None = None,
    task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Bind `address`, report the actual port by `task_status.started`, and serve until cancelled.

    `security` None takes `rmqha.host.security.ambient`. Raises UsageError if the address cannot be bound. When
    cancelled, sessions get a second to write what is queued.
    """
    counts = Statistics() if statistics is None else statistics
    secured = ambient.get() if security is None else security
    if secured.accounts is not None:
        service = Guard(service, secured.accounts, counts)
    listeners = await network.listen(address)
    next_id = handshaking = 0
    max_sessions = min(MAX_SESSION_COUNT, session_room())

    async def handle(stream: trio.SocketStream) -> None:
        nonlocal next_id, handshaking
        if counts.session_count + handshaking >= max_sessions:
            counts.refused_count += 1
            await trio.aclose_forcefully(stream)
            return
        next_id += 1
        network.tune(stream)
        handshaking += 1
        try:
            accepted = await accept(stream, secured.server_tls)
        finally:
            handshaking -= 1
        if accepted is None:
            counts.refused_count += 1
            await trio.aclose_forcefully(stream)
            return
        await serve_stream(
            service,
            accepted,
            network.peer_name(stream),
            session_id=next_id,
            max_frame_bytes=max_frame_bytes,
            idle_timeout_ms=idle_timeout_ms,
            max_queued_bytes=max_queued_bytes,
            statistics=counts,
            turns=turns,
        )

    task_status.started(network.local_port(listeners[0]))
    await trio.serve_listeners(handle, listeners)


async def serve_stream(
    service: Service,
    stream: trio.abc.Stream,
    peer: str,
    *,
    session_id: int,
    max_frame_bytes: int,
    idle_timeout_ms: int,
    max_queued_bytes: int,
    statistics: Statistics,
    turns: Turns | None = None,
) -> None:
    """Serve one accepted connection to its end."""
    session = Session(
        session_id, stream, peer, statistics, max_frame_bytes, max_queued_bytes=max_queued_bytes, turns=turns
    )
    statistics.opened_count += 1
    statistics.session_count += 1
    service.opened(session)
    try:
        await session.run(service.received, idle_timeout_ms=idle_timeout_ms, reader_writes=True)
    finally:
        statistics.session_count -= 1
        service.closed(session)


class _Peer:
    """The connection to one address, or the dial that is under way."""

    def __init__(self) -> None:
        self.session: Session | None = None
        self.error: UnreachableError | None = None
        self.ready = trio.Event()


class RemotingClient:
    """Calls to any number of addresses, one connection each, opened on demand and again after a loss.

    An async context manager; leaving it closes the connections. `on_request` gets what peers ask by themselves (its
    returned command is sent back unless the request is oneway); `on_closed` is told the address of a lost connection.
    """

    def __init__(
        self,
        *,
        max_frame_bytes: int = 16 * 1024 * 1024,
        on_request: Callable[[str, Command], Command | None] | None = None,
        on_closed: Callable[[str], None] | None = None,
        security: Security | None = None,
    ) -> None:
        """`security` None takes `rmqha.host.security.ambient`."""
        self._security = ambient.get() if security is None else security
        self._max_frame_bytes = max_frame_bytes
        self._on_request = on_request
        self._on_closed = on_closed
        self._peers: dict[str, _Peer] = {}
        self._statistics = Statistics()
        self._nursery: trio.Nursery | None = None

    async def __aenter__(self) -> RemotingClient:
        self._nursery_manager = trio.open_nursery()
        self._nursery = await self._nursery_manager.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._nursery is not None
        self._nursery.cancel_scope.cancel()
        self._nursery = None
        if isinstance(error, Exception) and not isinstance(error, ExceptionGroup):
            # the body's own error leaves as it is; the nursery would wrap it in a group
            await self._nursery_manager.__aexit__(None, None, None)
        else:
            await self._nursery_manager.__aexit__(kind, error, trace)

    def statistics(self) -> dict[str, int]:
        return self._statistics.as_dict()

    async def call(self, address: str, command: Command, timeout_ms: int | None) -> Command:
        """The response, whatever its code. Raises UnreachableError: refused, closed or not answered in time. None: the
        caller bounds the time by a scope of its own."""
        started = trio.current_time()
        peer = self._peers.get(address)
        session = peer.session if peer is not None else None
        if session is None or session.closed:
            session = await self._session(address, network.DIAL_TIMEOUT_MS if timeout_ms is None else timeout_ms)
            if timeout_ms is not None:
                timeout_ms = max(1, timeout_ms - round((trio.current_time() - started) * 1000))
        if self._security.credentials is not None:
            sign(command, self._security.credentials)
        return await session.call(command, timeout_ms)

    async def oneway(self, address: str, *commands: Command, timeout_ms: int = network.DIAL_TIMEOUT_MS) -> None:
        """Queue requests that get no response. Raises UnreachableError if there is no connection."""
        session = await self._session(address, timeout_ms)
        for command in commands:
            command.flag |= FLAG_ONEWAY
            if self._security.credentials is not None:
                sign(command, self._security.credentials)
            session.send(command)

    def oneway_at_once(self, address: str, command: Command) -> bool:
        """As `oneway`, in this turn of the event loop. False, with nothing done, if there is no open connection."""
        peer = self._peers.get(address)
        if peer is None or peer.session is None or peer.session.closed:
            return False
        command.flag |= FLAG_ONEWAY
        if self._security.credentials is not None:
            sign(command, self._security.credentials)
        peer.session.send_at_once(command)
        return True

    def close(self, address: str) -> None:
        """Close the connection to `address`, if any; the next call opens a new one."""
        peer = self._peers.get(address)
        if peer is not None and peer.session is not None:
            del self._peers[address]
            peer.session.close()

    async def _session(self, address: str, timeout_ms: int) -> Session:
        peer = self._peers.get(address)
        if peer is None or (peer.session is not None and peer.session.closed):
            if self._nursery is None:
                raise UnreachableError(f"{address}: the client is closed")
            peer = self._peers[address] = _Peer()
            self._nursery.start_soon(self._connect, address, peer)
        with trio.move_on_after(timeout_ms / 1000):
            await peer.ready.wait()
        if peer.session is not None:
            return peer.session
        if peer.error is not None:
            raise UnreachableError(str(peer.error))
        raise UnreachableError(f"{address} did not answer a connection within {timeout_ms} ms")

    async def _connect(self, address: str, peer: _Peer) -> None:
        """Task of one connection, from dial to close."""
        try:
            try:
                stream = await connect(await network.dial(address), self._security.client_tls, address)
            except UnreachableError as error:
                peer.error = error
                return
            self._statistics.opened_count += 1
            self._statistics.session_count += 1
            session = Session(self._statistics.opened_count, stream, address, self._statistics, self._max_frame_bytes)
            peer.session = session
            peer.ready.set()
            try:
                await session.run(
                    lambda _, commands: self._received(session, commands), idle_timeout_ms=None, reader_writes=False
                )
            finally:
                self._statistics.session_count -= 1
        finally:
            peer.ready.set()
            if self._peers.get(address) is peer:
                del self._peers[address]
        if self._on_closed is not None:
            self._on_closed(address)

    def _received(self, session: Session, commands: list[Command]) -> None:
        for command in commands:
            reply = self._on_request(session.peer, command) if self._on_request is not None else None
            if reply is not None and not command.is_oneway:
                session.send(reply)
