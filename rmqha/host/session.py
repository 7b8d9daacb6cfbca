"""One connection of RocketMQ's request/response protocol, seen from either end. Shell; no protocol state of its own
beyond pairing responses with requests.

One `received` call per socket read, one write per batch of replies. What a server reads is answered before it reads
on, so a peer that does not read is not read from either; replies that come later go through the session's writer. A
client's reader never writes, so two processes that flood each other cannot block for ever.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import trio

from rmqha.host.poller import Poller
from rmqha.model.error import RemoteProtocolError, UnreachableError
from rmqha.wire.command import Command
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
        poller: Poller | None = None,
    ) -> None:
        """With a `poller` a plain socket is read by that, else by a task of its own."""
        self.id = session_id
        self.peer = peer
        self.attachment: Any = None
        """For the service's use."""
        self.is_urgent = False
        """For the service to set: this session shall not stand in line."""
        self.waited_ms = 0
        """How long what is being received has waited to be read; known of plain sockets with a poller only."""
        self._stream = stream
        self._handle = stream.socket.fileno() if isinstance(stream, trio.SocketStream) else None
        """Of a plain socket: reading and writing it directly takes half of what its stream takes."""
        self._poller = poller
        self._is_paused = False
        """The peer does not take its replies: it is not read either."""
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
        self._closing = False
        self._closed = False
        self._ended = trio.Event()
        """Nothing more will be read."""
        self._wake = trio.Event()
        self._scope = trio.CancelScope()
        self._received: Callable[[Session, list[Command]], None] = lambda session, commands: None
        self._idle_timeout_ms: int | None = None
        self._kept_until = 0.0
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
        self._count_queued(len(frame))
        statistics = self._statistics
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
        self._count_queued(len(frame))
        try:
            self._write_some(handle, frame, 1)
        except OSError:
            self._abort()

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
        self._closing = True
        self._scope.cancel()

    def _abort(self) -> None:
        self._aborted = True
        self._scope.cancel()

    async def run(
        self, received: Callable[[Session, list[Command]], None], *, idle_timeout_ms: int | None, reader_writes: bool
    ) -> None:
        """Serve the connection until either end closes it. The caller owns the task."""
        self._received, self._idle_timeout_ms = received, idle_timeout_ms
        if idle_timeout_ms is not None:
            self._scope.deadline = trio.current_time() + min(HANDSHAKE_TIMEOUT_MS, idle_timeout_ms) / 1000
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write_queued)
                    await self._read_all(reader_writes)
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

    async def _read_all(self, reader_writes: bool) -> None:
        try:
            if self._poller is not None and self._handle is not None:
                await self._be_read(self._poller, self._handle)
            else:
                await self._read(reader_writes)
        except trio.Cancelled:
            if self._idle_timeout_ms is not None and trio.current_time() >= self._scope.deadline:
                self._statistics.idle_closed_count += 1
            raise

    async def _be_read(self, poller: Poller, handle: int) -> None:
        poller.add(handle, self._readable)
        try:
            await self._ended.wait()
        finally:
            self._ended.set()
            poller.remove(handle)

    def _readable(self) -> None:
        """The poller's call: read once, answer."""
        handle, poller = self._handle, self._poller
        assert handle is not None and poller is not None
        if self._closing or self._aborted:
            return
        self.waited_ms = poller.waited_ms
        try:
            if data := os.read(handle, READ_BYTES):
                self._take(data)
                if self._queue and not self._writing:
                    batch, count = b"".join(self._queue), len(self._queue)
                    self._queue.clear()
                    if not self._write_some(handle, batch, count):
                        self._is_paused = True
                        poller.remove(handle)
                if self.is_urgent:
                    poller.hurry(handle)
                return
        except BlockingIOError:
            return
        except RemoteProtocolError:
            self._statistics.bad_frame_count += 1
            self._aborted = self._nonsense = True
        except OSError:
            self._aborted = True
        poller.remove(handle)
        self._ended.set()

    def _write_some(self, handle: int, batch: bytes, count: int) -> bool:
        """Write `count` frames, which count as queued; what the socket does not take now is left to the writer. Whether
        it took all. Raises OSError."""
        sent = _write(handle, batch)
        rest = batch[sent:]
        self._count_sent(sent, count - bool(rest))
        if rest:
            self._queue.append(rest)
            self._wake.set()
        return not rest

    def _resume(self) -> None:
        handle, poller = self._handle, self._poller
        assert handle is not None and poller is not None
        self._is_paused = False
        poller.add(handle, self._readable)

    def _count_queued(self, size_bytes: int) -> None:
        self._queued_bytes += size_bytes
        self._statistics.queued_bytes += size_bytes

    def _count_sent(self, size_bytes: int, count: int) -> None:
        statistics = self._statistics
        self._queued_bytes -= size_bytes
        statistics.queued_bytes -= size_bytes
        statistics.sent_count += count
        statistics.sent_bytes += size_bytes

    def _take(self, data: bytes) -> None:
        """What has been read. Raises RemoteProtocolError."""
        statistics, idle_timeout_ms = self._statistics, self._idle_timeout_ms
        commands = self._parser.feed(data)
        statistics.received_bytes += len(data)
        if not commands:
            return
        statistics.received_count += len(commands)
        if idle_timeout_ms is not None and (now := trio.current_time()) >= self._kept_until:
            # moving it for every frame would cost as much as reading one
            self._kept_until = now + idle_timeout_ms / 16_000
            self._scope.deadline = now + idle_timeout_ms / 1000
        self._corked = True
        requests = self._take_responses(commands)
        if requests:
            self._received(self, requests)
        self._corked = False

    async def _read(self, reader_writes: bool) -> None:
        """In this task: TLS, and a client's end."""
        try:
            while data := await self._receive():
                self._take(bytes(data))
                if self._queue and not self._writing:
                    if reader_writes:
                        await self._flush()
                    else:
                        self._wake.set()
        except RemoteProtocolError:
            self._statistics.bad_frame_count += 1
            self._aborted = self._nonsense = True
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._aborted = True

    async def _receive(self) -> bytes | bytearray:
        """What has arrived, b"" at the end."""
        handle = self._handle
        if handle is None:
            return await self._stream.receive_some(READ_BYTES)
        while True:
            await trio.lowlevel.wait_readable(handle)
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
                sent = _write(self._handle, data)
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
        while self._queue and not self._aborted:
            # a cancellation that is due comes here, with the queue whole, and not inside the write
            await trio.lowlevel.checkpoint_if_cancelled()
            batch, count = b"".join(self._queue), len(self._queue)
            self._queue.clear()
            self._half_written = True
            await self._send_all(batch)
            self._half_written = False
            self._count_sent(len(batch), count)
        self._writing = False

    async def _write_queued(self) -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake = trio.Event()
                if not self._writing:
                    await self._flush()
                if self._is_paused and not self._ended.is_set():
                    self._resume()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._abort()

    async def _last_words(self) -> None:
        if self._queue and not self._aborted and not self._half_written:
            with trio.move_on_after(_LAST_WORDS_S):
                try:
                    await self._flush()
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    self._queue.clear()


def _write(handle: int, data: bytes) -> int:
    """How much of it the socket takes now. Raises OSError."""
    try:
        return os.write(handle, data)
    except BlockingIOError:
        return 0
