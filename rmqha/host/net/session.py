"""One connection of RocketMQ's request/response protocol, of a server or a client. Shell; the only protocol state is
the pairing of responses with requests.

- A server handles requests in slices of SLICE_COUNT frames and SLICE_S at most; the poller serves other sessions in
  between (`rmqha.host.net.poller`). A slice makes one `received` call for a run of sends, one for each other request,
  and one write for all its replies, or for those of a few pops. TLS is decrypted and encrypted in the same slices.
- A server answers what it has read before it reads more, so a peer that does not read its replies is not read either.
  Replies that come later are written by the session's writer task.
- A client's reader never writes, so two processes that flood each other cannot block for ever."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import trio

from rmqha.host.access.tls_link import TlsLink, TlsOutput, TlsStream
from rmqha.host.net import network
from rmqha.host.net.boundary import Boundary
from rmqha.host.net.calls import Calls
from rmqha.host.net.deadlines import Deadline, Deadlines
from rmqha.host.net.fair_queue import QueueEntry
from rmqha.host.net.large_frames import LARGE_BYTES, LargeFrameTurn, bytes_to_read
from rmqha.host.net.poller import BATCH_COUNTS, POP_BATCH_COUNT, SLICE_COUNT, SLICE_S, Poller
from rmqha.host.net.slow_readers import MIN_COUNTED_BYTES
from rmqha.host.net.statistics import Statistics
from rmqha.host.net.unverified_sessions import FIRST_BYTES, UnverifiedSession, has_known_code
from rmqha.model.error import CLOSED, CLOSED_UNHEARD, FOREIGN, RemoteProtocolError, UnreachableError
from rmqha.model.identity import host_of
from rmqha.port import Pause
from rmqha.wire.command import Command
from rmqha.wire.frame import FrameParser, begins_with_no_send, encode_frame

READ_BYTES, LARGE_READ_BYTES = 64 * 1024, 224 * 1024
"""Size of a read, and of a read after one that filled its buffer. A longer one costs an mmap, 16 us instead of 2."""
SLICE_QUEUED_BYTES = 1024 * 1024
"""Bytes of replies after which a slice ends, so that they are written."""
RUN_COUNT = 16
"""Most frames of one `received` call in a turn that serves other sessions: sends with many keys take 0.1 ms each."""
MAX_QUEUED_BYTES = 64 * 1024 * 1024
"""Bytes of replies that may wait for one reader; beyond it the session is closed."""
IDLE_TIMEOUT_MS = 120_000
CLOSE_FLUSH_TIMEOUT_S = 1.0
"""Longest time (s) in which a closing session writes what is queued."""


@dataclass(frozen=True, slots=True)
class SessionHost:
    """Parts that all sessions of a server, or of a client, share."""

    statistics: Statistics
    max_frame_bytes: int
    max_queued_bytes: int = MAX_QUEUED_BYTES
    poller: Poller | None = None
    """Reads the sockets; without one, and for a stream that is no socket, a task of the session does."""
    boundary: Boundary | None = None
    """None: unexpected exceptions are raised by `Session.run`."""
    fast_path: SendFastPath | None = None
    """Gets all bytes first, through a batch if several sessions are read in one turn."""
    add_to_batch: Callable[[Session, bytes], bool] | None = None
    """Adds a read to the batch of this turn, at whose end `Session.batch_handled` is called; False if it did not."""
    deadlines: Deadlines | None = None
    """None: each session has a deadline of its own."""


class Session:
    """One connection, seen from either end."""

    def __init__(
        self,
        session_id: int,
        stream: trio.abc.Stream,
        peer: str,
        host: SessionHost,
        *,
        unverified: UnverifiedSession | None = None,
        tls: TlsLink | None = None,
    ) -> None:
        """`unverified`: limits until the peer's first valid request; None: it is known. `tls` None: clear bytes."""
        statistics, poller = host.statistics, host.poller
        self.id, self.peer = session_id, peer
        self.attachment: Any = None
        """State that the service keeps with the session."""
        self.is_urgent = False
        """Set by the service: the session is served before those in the fair queue."""
        self.waited_ms = 0
        """Time (ms) for which the requests being handled have waited to be read; 0 without a poller."""
        self._stream = stream
        self._handle = stream.socket.fileno() if isinstance(stream, trio.SocketStream) else None
        """File descriptor of a socket. Reading and writing it directly takes half the time of its trio stream."""
        self._poller, self._unverified, self._entry = poller, unverified, QueueEntry(self._serve, host_of(peer))
        self._partial_bytes, self._is_all_read = 0, True
        """Bytes of an incomplete frame, as counted in the statistics. True if the last read has emptied the socket."""
        self._unread, self._has_heard = b"", poller is not None
        """Bytes that were read but not parsed. False while this client has received no byte of the server."""
        self._parsed: list[Command] = []
        """Requests that were parsed and wait for the next slice."""
        self._running, self._running_requests = deque[Iterator[Pause | None]](), list[Command]()
        """Steps of requests that are answered in several slices, which go on before the next requests; those
        requests."""
        self._is_paused = False
        """True while the peer does not read its replies: it is not read either."""
        self._large_frame = LargeFrameTurn(statistics.large_frames, self._go_on_reading, self._stop_reading)
        self._is_suspended, self._suspended_bytes = False, 0
        """True while a request waits at a pause, with so many bytes in memory: the session has no turns."""
        self._resumed = trio.Event()
        """Set when the pause is over; awaited where a task of the session reads."""
        self._statistics, self._boundary = statistics, host.boundary
        self._parser, self._max_queued_bytes = FrameParser(host.max_frame_bytes), host.max_queued_bytes
        self._tls, self._output = tls, None if tls is None else TlsOutput(tls)
        self._fast_path, self._add_to_batch = host.fast_path, host.add_to_batch
        self._skips_fast_path = self._is_in_batch = False
        """True if the fast path has left the unread bytes to the parser. True while they are in the read batch."""
        self._queue: list[bytes] = []
        self._queued_count = self._queued_bytes = 0
        self._is_counted = self._corked = self._writing = False
        self._half_written = False
        """True while a write is under way, and after one that was cut off: nothing may follow an incomplete frame."""
        self._aborted = self._is_foreign = False
        """True if the connection is broken. True if the peer sent bytes that are no frame of the protocol."""
        self._closing = self._closed = False
        self._read_ended = trio.Event()
        """Set when nothing more will be read."""
        self._nursery: trio.Nursery | None = None
        """Nursery of the writer task, which many sessions never need; None when nothing more is read."""
        self._wake: trio.Event | None = None
        """Event that wakes the writer task; None before it is started."""
        self._scope = trio.CancelScope()
        self._received: Callable[[Session, list[Command]], None]  # set by `run`, before anything is read
        self._idle_timeout_ms: int | None = None
        self._deadlines, self._extend_after_s = host.deadlines, 0.0
        self._deadline: Deadline | None = None
        self._calls = Calls()

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def queued_bytes(self) -> int:
        """Bytes that wait to be written."""
        return self._queued_bytes

    @property
    def is_verified(self) -> bool:
        """True once the peer has sent a valid request (`rmqha.host.net.unverified_sessions`)."""
        return self._unverified is None

    @property
    def binding(self) -> bytes:
        """TLS channel binding, which both ends know (`TlsLink.binding`); b"" without TLS."""
        link = self._stream.link if isinstance(self._stream, TlsStream) else self._tls
        return link.binding if link is not None else b""

    def mark_verified(self) -> None:
        """Remove the limits of an unverified session: a valid request has come."""
        if self._unverified is not None:
            self._unverified.on_verified()
            self._unverified = None

    def charge_to(self, owner: str) -> None:
        """Charge its slices to this account (`rmqha.host.net.fair_queue`)."""
        self._entry.owner = owner

    def shed(self) -> None:
        """Close because incomplete frames take too much memory, and this session holds most."""
        self._statistics.shed_count += 1
        self._abort()

    def close_unread(self) -> None:
        """Drop the queued replies and close: they take too much memory."""
        self._statistics.slow_reader_count += 1
        self._queue.clear()
        self._queued_count = 0
        self._abort()

    def send(self, command: Command) -> None:
        """Queue a frame for the writer; never blocks. Nothing happens on a closed session."""
        if self._closed or self._aborted:
            return
        try:
            frame = encode_frame(command)
        except Exception as error:  # noqa: BLE001  (told and counted, or raised again)
            self.fail(error)
            return
        self._enqueue(frame, 1)

    def send_frames(self, frames: bytes, count: int) -> None:
        """Send `count` encoded frames: with the other replies of the slice that is being handled, else as
        `send_at_once` does. Waking the writer for each of them would cost as much as two replies."""
        if self._closed or self._aborted:
            return
        if self._corked:
            self._enqueue(frames, count)
        else:
            self._write_at_once(frames, count)

    def _enqueue(self, frames: bytes, count: int) -> None:
        self._queue.append(frames)
        self._queued_count += count
        self._count_queued(len(frames))
        if self._queued_bytes > self._max_queued_bytes:
            self.close_unread()
        elif not self._corked and not self._writing:
            self._wake_writer()

    def send_at_once(self, command: Command) -> None:
        """Send as `send` does, but write in this turn of the event loop if the socket takes it."""
        if self._closed or self._aborted:
            return
        try:
            frame = encode_frame(command)
        except Exception as error:  # noqa: BLE001  (as in `send`)
            self.fail(error)
            return
        self._write_at_once(frame, 1)

    def _write_at_once(self, frames: bytes, count: int) -> None:
        """Write what the socket takes now, unless other frames are queued; queue the rest."""
        handle = self._handle
        if handle is None or self._has_queued or self._half_written:
            self._enqueue(frames, count)
            return
        self._count_queued(len(frames))
        try:
            self._write_some(handle, frames, count)
        except OSError:
            self._abort()

    def work(self, steps: Iterator[Pause | None]) -> None:
        """Run the steps of a request in this session's slices, before its next requests. While a step pauses, the
        session has no turns and is not read."""
        self._running.append(steps)

    async def call(self, command: Command, timeout_ms: int | None) -> Command:
        """Send a request and wait for its response, whatever its code. Sets the request's opaque.

        Raises UnreachableError when the session closes or no response comes in time. `timeout_ms` None: the caller has
        a cancel scope, which costs as much as the rest of a call."""
        call = self._calls.begin(command)
        try:
            self.send(command)
            self._check_open()
            if timeout_ms is None:
                await call.done.wait()
            else:
                with trio.move_on_after(timeout_ms / 1000):
                    await call.done.wait()
            if call.response is not None:
                return call.response
            self._check_open()
            self._statistics.timeout_count += 1
            raise UnreachableError(f"{self.peer} did not answer request {command.code} within {timeout_ms} ms")
        finally:
            self._calls.end(command)

    def _check_open(self) -> None:
        if self._is_foreign:
            raise UnreachableError(f"{self.peer} {FOREIGN}")
        if self._closed or self._aborted:
            raise UnreachableError(f"{self.peer} {CLOSED if self._has_heard else CLOSED_UNHEARD}")

    def close(self) -> None:
        """Stop reading, write what is queued for CLOSE_FLUSH_TIMEOUT_S at most, close. Returns at once."""
        self._closing = True
        self._scope.cancel()

    def fail(self, error: Exception, commands: Sequence[Command] = ()) -> None:
        """Close after an unexpected exception of `commands`. Raises `error` if it ends the process
        (`rmqha.host.net.boundary`)."""
        if self._boundary is None:
            raise error
        self._boundary.failed(error, self.peer, [command.code for command in commands])
        self.close()

    def _abort(self) -> None:
        self._aborted = True
        self._scope.cancel()

    async def run(
        self, received: Callable[[Session, list[Command]], None], *, idle_timeout_ms: int | None, reader_writes: bool
    ) -> None:
        """Serve the connection until either end closes it. The caller owns the task."""
        self._received, self._idle_timeout_ms = received, idle_timeout_ms
        if idle_timeout_ms is not None:
            idle_s = trio.current_time() + idle_timeout_ms / 1000
            self._set_deadline(idle_s if self._unverified is None else min(self._unverified.deadline_s, idle_s))
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    self._nursery = nursery
                    if self._has_queued:
                        self._wake_writer()
                    try:
                        await self._read_all(reader_writes)
                    finally:
                        self._nursery = None  # frames queued from now on are written by `_flush_before_close`
                    nursery.cancel_scope.cancel()
        finally:
            self._closed = True
            if self._deadline is not None and self._deadlines is not None:
                self._deadlines.remove(self._deadline)
            self._large_frame.end()
            # break reference cycles, so that nothing waits for the garbage collector: thousands leave together
            self._deadline, self._entry.serve = None, lambda: False
            self._calls.give_up()
            with trio.CancelScope(shield=True):
                await self._flush_before_close()
                self._statistics.queued_bytes -= self._queued_bytes
                self._statistics.partial_frames.hold(self, 0)
                self._statistics.slow_readers.hold(self, 0)
                self._queued_bytes = 0
                await trio.aclose_forcefully(self._stream)

    async def _read_all(self, reader_writes: bool) -> None:
        try:
            if self._poller is not None and self._handle is not None:
                await self._read_by_poller(self._poller, self._handle)
            else:
                await self._read_stream(reader_writes)
        except trio.Cancelled:
            if self._deadlines is None and trio.current_time() >= self._scope.deadline:
                self._statistics.idle_closed_count += 1
            raise

    def _set_deadline(self, time_s: float) -> None:
        """Set the time (trio's, s) at which the session closes if nothing comes."""
        if self._deadlines is None:
            self._scope.deadline = time_s
        elif self._deadline is None:
            self._deadline = self._deadlines.add(time_s, self._expire)
        else:
            self._deadlines.move(self._deadline, time_s)

    def _expire(self) -> None:
        self._statistics.idle_closed_count += 1
        self._scope.cancel()

    async def _read_by_poller(self, poller: Poller, handle: int) -> None:
        if self._tls is not None:
            try:
                self._unread = self._tls.decrypt(b"")
            except OSError:
                self._aborted = True
                return
        poller.add(handle, self._entry)
        if self._unread:
            poller.enqueue(self._entry)
        try:
            await self._read_ended.wait()
        finally:
            self._read_ended.set()
            poller.remove(handle)

    @property
    def _has_queued(self) -> bool:
        return bool(self._queue or (self._output is not None and self._output.sealed))

    @property
    def _has_backlog(self) -> bool:
        """True if something that was read has not been handled."""
        return bool(self._parsed or self._unread or self._running) or self._parser.has_more

    @property
    def _is_blocked(self) -> bool:
        return self._is_paused or self._is_suspended or self._large_frame.is_waiting or self._is_in_batch

    def _serve(self) -> bool:
        """Serve one slice for the poller: read once if nothing is left to handle, handle, answer. True if there is
        more."""
        handle, poller = self._handle, self._poller
        assert handle is not None and poller is not None
        self._entry.begin_slice()
        if self._closing or self._aborted or self._is_blocked:
            return False
        self.waited_ms = poller.waited_ms
        try:
            if not self._has_backlog and (not self._read_once(handle) or self._joins_read_batch()):
                return False
        except OSError:
            self._aborted = True
            self._end_reading()
            return False
        return self._handle_slice(handle, poller)

    def _joins_read_batch(self) -> bool:
        """Give the read to the batch of this turn, if it can be; then `batch_handled` is called at the turn's end."""
        add_to_batch = self._add_to_batch
        if (
            add_to_batch is None
            or self._unverified is not None
            or self.is_urgent
            or self._parser.buffered_bytes
            or begins_with_no_send(self._unread)
            or self._read_ended.is_set()
            or not add_to_batch(self, self._unread)
        ):
            return False
        self._is_in_batch = self._entry.is_deferred = True
        self._entry.is_drained = self._is_all_read
        return True

    def batch_handled(self, end: int, count: int, cost_us: float) -> None:
        """Go on behind the batch: the fast path has answered `count` frames up to index `end`, in `cost_us`."""
        handle, poller = self._handle, self._poller
        assert handle is not None and poller is not None
        self._is_in_batch = False
        poller.charge_deferred(self._entry, cost_us, count)
        if self._closing or self._aborted:
            return
        rest, self._unread = self._unread[end:], b""
        if count:
            self._statistics.received_bytes += end
            self._statistics.received_count += count
            self._large_frame.has_arrived = True
            self._extend_idle_deadline()
        if not rest:
            return
        if count == SLICE_COUNT:
            self._statistics.received_bytes += len(rest)
            self._parser.put_back(rest)
            poller.enqueue(self._entry)
            return
        self._unread, self._skips_fast_path = rest, True
        if poller.is_turn_over or self._handle_slice(handle, poller):
            poller.enqueue(self._entry)

    def _handle_slice(self, handle: int, poller: Poller) -> bool:
        """Handle requests for a slice, and write the replies. True if there is more."""
        try:
            self._handle_requests()
            if self._has_queued and not self._writing and not self._write_some(handle, *self._take_queue()):
                self._pause()
                poller.remove(handle)
            if (self._is_paused or not (self._running or self._parsed)) and not self.is_urgent:
                self._ask_for_turn()
            if self._is_suspended or self._large_frame.is_waiting:
                poller.remove(handle)
            elif self.is_urgent:
                poller.prioritize(handle)
            self._entry.is_drained = self._is_all_read and not self._has_backlog and not self._is_blocked
            return self._has_backlog and not self._is_blocked
        except RemoteProtocolError:
            self._close_foreign()
        except OSError:
            self._aborted = True
        self._end_reading()
        return False

    def _ask_for_turn(self) -> None:
        """Ask for a turn if the next frame is large (`rmqha.host.net.large_frames`)."""
        unverified, announced_bytes = self._unverified, 0 if self._is_paused else self._parser.announced_bytes
        if unverified is not None and announced_bytes > LARGE_BYTES:
            header = self._parser.header()
            if header is None or not unverified.is_plausible(header):
                announced_bytes = 0  # it will be refused before it is large
        self._large_frame.update(announced_bytes)
        if unverified is not None and self._large_frame.is_waiting:
            self._set_deadline(unverified.long_frame_deadline_s)

    def _read_once(self, handle: int) -> bool:
        """Read the socket once; True if something came. Raises OSError."""
        size_bytes = READ_BYTES if self._is_all_read else bytes_to_read(self._parser, READ_BYTES, LARGE_READ_BYTES)
        try:
            self._unread = data = os.read(handle, size_bytes)
        except BlockingIOError:
            return False
        self._is_all_read = len(data) < size_bytes
        if data and self._tls is not None:
            self._unread = self._tls.decrypt(data)
        if not data or (self._tls is not None and self._tls.is_over and not self._unread):
            self._end_reading()
        return bool(self._unread)

    def _end_reading(self) -> None:
        assert self._poller is not None and self._handle is not None
        self._poller.end(self._handle)
        self._read_ended.set()

    def _close_foreign(self) -> None:
        self._statistics.bad_frame_count += 1
        self._aborted = self._is_foreign = True

    def _take_queue(self) -> tuple[bytes, int]:
        """Take all queued frames out of the queue, and their number."""
        frames, count = self._queue, self._queued_count
        self._queue, self._queued_count = [], 0
        return b"".join(frames), count

    def _write_some(self, handle: int, batch: bytes, count: int) -> bool:
        """Write `count` frames, which are counted as queued; the writer writes what the socket does not take now. True
        if it took all. Raises OSError."""
        if self._output is None:
            begun_bytes = sent_bytes = network.write_now(handle, batch)
        else:
            begun_bytes, sent_bytes = self._output.write(handle, batch)
        rest = batch[begun_bytes:]
        self._count_sent(sent_bytes, count - bool(rest))
        if rest:
            self._queue.append(rest)
            self._queued_count += 1
        if self._has_queued:
            self._wake_writer()
        return not self._has_queued

    def _pause(self) -> None:
        """Stop reading: the peer does not read its replies."""
        self._is_paused = True
        if self._parsed:
            self._count_unhandled()

    def _resume(self) -> None:
        """Read on: the peer has read its replies."""
        self._is_paused = False
        if self._parsed:
            self._count_unhandled()
        self._serve_again()

    def _count_unhandled(self) -> None:
        """Count what was read and has to wait as bytes of an incomplete frame."""
        left_bytes = sum(len(command.body) for command in self._parsed) if self._is_paused or self._is_suspended else 0
        self._statistics.partial_frames.hold(self, self._partial_bytes + self._suspended_bytes + left_bytes)

    def _suspend(self, pause: Pause) -> None:
        self._is_suspended, self._suspended_bytes, self._resumed = True, pause.size_bytes, trio.Event()
        pause.when_over(self._continue)

    def _continue(self) -> None:
        self._is_suspended, self._suspended_bytes = False, 0
        if not self._closed:
            self._count_unhandled()
        self._resumed.set()
        self._go_on_reading()

    def _go_on_reading(self) -> None:
        if self._handle is not None and self._poller is not None and not self._read_ended.is_set():
            self._serve_again()

    def _stop_reading(self) -> None:
        if self._handle is not None and self._poller is not None:
            self._poller.remove(self._handle)

    def _serve_again(self) -> None:
        handle, poller = self._handle, self._poller
        assert handle is not None and poller is not None
        if self._is_blocked:
            return
        poller.add(handle, self._entry)
        if self._has_backlog:
            poller.enqueue(self._entry)

    def _count_queued(self, size_bytes: int) -> None:
        self._queued_bytes += size_bytes
        self._statistics.queued_bytes += size_bytes
        if self._queued_bytes > MIN_COUNTED_BYTES and not self._aborted:
            self._is_counted = True
            self._statistics.slow_readers.hold(self, self._queued_bytes)

    def _count_sent(self, size_bytes: int, count: int) -> None:
        statistics = self._statistics
        self._queued_bytes -= size_bytes
        statistics.queued_bytes -= size_bytes
        statistics.sent_count += count
        statistics.sent_bytes += size_bytes
        if self._is_counted and not self._aborted:
            self._is_counted = self._queued_bytes > MIN_COUNTED_BYTES
            statistics.slow_readers.hold(self, self._queued_bytes)

    def _handle_requests(self) -> None:
        """Handle requests for a slice. Raises RemoteProtocolError, and exceptions that end the process."""
        requests, start, end, count = self._parsed, 0, 0, 0
        began_s, poller = time.monotonic(), self._poller
        slice_s = SLICE_S if poller is None else poller.slice_s
        run_count = RUN_COUNT if poller is not None and poller.is_busy else SLICE_COUNT
        try:
            self._corked = True
            if not self._running or self._continue_running(began_s, slice_s):
                requests = requests or self._next_requests()
                count = len(requests)
            while end < count:
                start, end = end, end + 1
                if (most := BATCH_COUNTS.get(requests[start].code)) is not None:
                    last = min(count, start + min(most, run_count))
                    while end < last and BATCH_COUNTS.get(requests[end].code) == most:
                        end += 1
                # write replies of pops at once: the peer works on them while the next pops are handled
                self._corked = most != POP_BATCH_COUNT or end == count
                self._received(self, requests if end - start == count else requests[start:end])
                if self._running:
                    self._running_requests = requests[start:end]
                    if not self._continue_running(began_s, slice_s):
                        break
                if end < count and (self._queued_bytes > SLICE_QUEUED_BYTES or time.monotonic() - began_s > slice_s):
                    break
        except RemoteProtocolError:
            raise
        except Exception as error:  # noqa: BLE001  (told and counted, or raised again)
            self.fail(error, requests[start:end] or (self._running_requests if self._running else []))
            self._running.clear()
            end = len(requests)
        self._parsed, self._corked, self._entry.request_count = requests[end:], False, end
        if self._is_suspended:
            self._count_unhandled()

    def _continue_running(self, began_s: float, slice_s: float) -> bool:
        """Continue requests that are answered in steps, until the slice ends; True if all are done."""
        while self._running:
            for pause in self._running[0]:
                if pause is not None:
                    self._suspend(pause)
                    return False
                if time.monotonic() - began_s > slice_s:
                    return False
            self._running.popleft()
        self._running_requests = []  # otherwise each session would keep its last large body in memory
        return True

    def _next_requests(self) -> list[Command]:
        """Parse the unread bytes; returns the requests. Raises RemoteProtocolError."""
        statistics = self._statistics
        data, self._unread = self._unread, b""
        statistics.received_bytes += len(data)
        commands, taken_count = self._parse_frames(data)
        partial_bytes = self._parser.buffered_bytes
        if partial_bytes != self._partial_bytes:
            self._partial_bytes = partial_bytes
            statistics.partial_frames.hold(self, partial_bytes)
        if commands or taken_count:
            self._large_frame.has_arrived = True
        if self._unverified is not None:
            self._check_unverified(self._unverified, commands)
        if not commands and not taken_count:
            return commands
        statistics.received_count += len(commands) + taken_count
        if self._unverified is None:  # else its time is running
            self._extend_idle_deadline()
        return self._calls.requests_of(commands)

    def _extend_idle_deadline(self) -> None:
        """Restart the idle timeout: frames have come."""
        idle_timeout_ms = self._idle_timeout_ms
        if idle_timeout_ms is not None and (now := trio.current_time()) >= self._extend_after_s:
            # moving it for every frame would cost as much as reading one
            self._extend_after_s = now + idle_timeout_ms / 16_000
            self._set_deadline(now + idle_timeout_ms / 1000)

    def _parse_frames(self, data: bytes) -> tuple[list[Command], int]:
        """Give `data` to the fast path, and parse the rest; returns the parsed frames and the number of those that the
        fast path has answered. Raises RemoteProtocolError."""
        fast_path, parser = self._fast_path, self._parser
        if fast_path is None or self._unverified is not None or self._skips_fast_path:
            self._skips_fast_path = False
            return parser.feed(data, SLICE_COUNT), 0
        data = parser.unparsed(data)
        end, count = (0, 0) if begins_with_no_send(data) else fast_path.take([(self, data)], SLICE_COUNT)[0]
        if count:
            data = data[end:]
            if count == SLICE_COUNT:
                parser.put_back(data)
                return [], count
        return parser.feed(data, SLICE_COUNT - count), count

    def _check_unverified(self, unverified: UnverifiedSession, commands: list[Command]) -> None:
        """Check the limits of an unverified session. Raises RemoteProtocolError for a first frame that is too long."""
        if not unverified.is_guarded and any(map(has_known_code, commands)):
            self.mark_verified()
        elif self._partial_bytes > FIRST_BYTES and not self._parser.has_more:
            header = self._parser.header()
            if header is None or not unverified.is_plausible(header):
                raise RemoteProtocolError(f"a first frame of more than {FIRST_BYTES} bytes from nobody who is known")
            self._set_deadline(unverified.long_frame_deadline_s)

    async def _read_stream(self, reader_writes: bool) -> None:
        """Read in this task: the socket of a client, or a stream that is no socket."""
        try:
            while not self._read_ended.is_set() and (data := await self._receive()):
                self._unread, self._has_heard = bytes(data), True
                while self._has_backlog and not self._aborted:
                    await self._run_slice()
                    if not self._queue or self._writing:
                        continue
                    if reader_writes:
                        await self._flush()
                    else:
                        self._wake_writer()
        except RemoteProtocolError:
            self._close_foreign()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._aborted = True

    async def _run_slice(self) -> None:
        """Handle one slice, after a pause if there is one."""
        if self._is_suspended:
            await self._resumed.wait()
        self._handle_requests()
        if self._has_backlog:
            await trio.lowlevel.checkpoint()

    async def _receive(self) -> bytes | bytearray:
        """Read bytes when they arrive; b"" at the end."""
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
        if self._output is not None:
            for piece in self._output.pieces(data):
                await self._send_plain(piece)
        elif isinstance(self._stream, TlsStream):
            await self._stream.send_soon(data)
        else:
            await self._send_plain(data)

    async def _send_plain(self, data: bytes) -> None:
        sent = 0
        if self._handle is not None:
            try:
                sent = network.write_now(self._handle, data)
            except OSError as error:
                raise trio.BrokenResourceError(str(error)) from error
        if sent < len(data):
            await self._stream.send_all(memoryview(data)[sent:])

    async def _flush(self) -> None:
        """Write all queued frames, also those queued meanwhile, in one write per turn of the event loop."""
        self._writing = True
        while self._has_queued and not self._aborted:
            # a pending cancellation is raised here, while the queue is complete, and not inside the write
            await trio.lowlevel.checkpoint_if_cancelled()
            batch, count = self._take_queue()
            size_bytes = len(batch) + (0 if self._output is None else self._output.clear_bytes)
            self._half_written = True
            await self._send_all(batch)
            self._half_written = False
            self._count_sent(size_bytes, count)
        self._writing = False

    def _wake_writer(self) -> None:
        if self._wake is not None:
            self._wake.set()
        elif self._nursery is not None:
            self._wake = trio.Event()
            self._wake.set()
            self._nursery.start_soon(self._write_queued, self._wake)

    async def _write_queued(self, wake: trio.Event) -> None:
        try:
            while True:
                await wake.wait()
                self._wake = wake = trio.Event()
                if not self._writing:
                    await self._flush()
                if self._is_paused and not self._read_ended.is_set():
                    self._resume()
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            self._abort()

    async def _flush_before_close(self) -> None:
        if self._has_queued and not self._aborted and not self._half_written:
            with trio.move_on_after(CLOSE_FLUSH_TIMEOUT_S):
                try:
                    await self._flush()
                except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
                    self._queue.clear()


class SendFastPath(Protocol):
    """Port of a service that answers plain sends from their bytes, without making a Command of each."""

    def take(self, reads: Sequence[tuple[Session, bytes]], max_count: int) -> list[tuple[int, int]]:
        """Answer the complete frames at the front of each read that it can, `max_count` of each at most. Returns for
        each read the index behind them, and their number. Raises as `Service.received`."""
        ...


class Service(Protocol):
    """Port of a server's work with its sessions. All three are synchronous: reply now or later by `session.send`.

    `received` may raise RemoteProtocolError, which closes and counts the session. Any other exception is a bug;
    `rmqha.host.net.boundary` says whether it ends the session or the process.
    """

    def opened(self, session: Session) -> None: ...

    def received(self, session: Session, commands: list[Command]) -> None: ...

    def closed(self, session: Session) -> None: ...
