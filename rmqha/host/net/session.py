"""One connection of RocketMQ's request/response protocol, seen from either end. Shell; no protocol state of its own
beyond pairing responses with requests.

What a server reads is handled in slices, of SLICE_COUNT frames and SLICE_S at most, with one `received` call for sends
that stand together, one for each other request, and one write for the replies of a slice, or of some pops; others are
served in between (`rmqha.host.net.poller`). What a server reads is answered before it reads on, so a peer that does not
read is not read from either; replies that come later go through the session's writer. A server decrypts and encrypts in
the same slices. A client's reader never writes, so two processes that flood each other cannot block for ever.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import trio

from rmqha.host.access.tls_link import TlsLink, TlsOutput, TlsStream
from rmqha.host.net import network
from rmqha.host.net.boundary import Boundary
from rmqha.host.net.calls import Calls
from rmqha.host.net.deadlines import Deadline, Deadlines
from rmqha.host.net.fair_queue import QueueEntry
from rmqha.host.net.large_frames import LARGE_BYTES, LargeFrameTurn, bytes_to_read
from rmqha.host.net.newcomers import FIRST_BYTES, Newcomer, has_known_code
from rmqha.host.net.poller import BATCH_COUNTS, POP_BATCH_COUNT, SLICE_COUNT, SLICE_S, Poller
from rmqha.host.net.slow_readers import NOTED_BYTES
from rmqha.host.net.statistics import Statistics
from rmqha.model.error import RemoteProtocolError, UnreachableError
from rmqha.model.identity import host_of
from rmqha.port import Pause
from rmqha.wire.command import Command
from rmqha.wire.frame import FrameParser, begins_otherwise, encode_frame

READ_BYTES, LARGE_READ_BYTES = 64 * 1024, 224 * 1024
"""Size of a read, and of one after a read that left something. A longer one costs an mmap, 16 us instead of 2."""
SLICE_QUEUED_BYTES = 1024 * 1024
"""A slice that has so much of replies ends: they are written first."""
RUN_COUNT = 16
"""Frames of one call at most where others wait: those of sends with many keys take a tenth of a millisecond each."""
MAX_QUEUED_BYTES = 64 * 1024 * 1024
"""Replies that wait for one reader; beyond it the session is closed."""
IDLE_TIMEOUT_MS = 120_000
_LAST_WORDS_S = 1.0
"""Time (s) that a closing session may take to write what is queued."""


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
        boundary: Boundary | None = None,
        newcomer: Newcomer | None = None,
        tls: TlsLink | None = None,
        taker: FrameTaker | None = None,
        gatherer: Gatherer | None = None,
        deadlines: Deadlines | None = None,
    ) -> None:
        """With a `poller` a socket is read by that, any other stream by a task of its own. `newcomer`: of a peer that
        is to say first who it is. `tls`: of a socket whose bytes are not clear. `taker` sees first what is read,
        by way of `gatherer` where others read in the same turn. `deadlines`: those of its server; None: its time ends
        by itself."""
        self.id, self.peer = session_id, peer
        self.attachment: Any = None
        """For the service's use."""
        self.is_urgent = False
        """For the service to set: this session shall not stand in line."""
        self.waited_ms = 0
        """Time (ms) for which what is being received has waited to be read; known of sockets with a poller only."""
        self._stream = stream
        self._handle = stream.socket.fileno() if isinstance(stream, trio.SocketStream) else None
        """File descriptor of a socket: reading and writing it directly takes half of what its stream takes."""
        self._poller, self._newcomer, self._entry = poller, newcomer, QueueEntry(self._serve, host_of(peer))
        self._half_bytes, self._is_all_read = 0, True
        """Bytes of a half frame, as counted in the statistics; the last read has left nothing in the socket."""
        self._unread = b""
        """Bytes that were received, but have not been fed to the parser."""
        self._left: list[Command] = []
        """Requests that wait for the next slice."""
        self._works, self._worked_on = deque[Iterator[Pause | None]](), list[Command]()
        """Work that requests have begun, which goes on before the next ones; those requests."""
        self._is_paused = False
        """The peer does not take its replies: it is not read either."""
        self._big = LargeFrameTurn(statistics.large_frames, self._go_on_reading, self._stop_reading)
        self._is_held, self._held_bytes = False, 0
        """True while what one of its requests waits for has not come: it has no turns."""
        self._go_on = trio.Event()
        """Set when it is held no more; for what a task of its own has read."""
        self._statistics = statistics
        self._boundary = boundary
        """None: an exception that nobody foresaw goes to whoever runs the session."""
        self._parser = FrameParser(max_frame_bytes)
        self._max_queued_bytes = max_queued_bytes
        self._tls, self._output = tls, None if tls is None else TlsOutput(tls)
        self._taker, self._gatherer = taker, gatherer
        self._is_for_parser = self._is_with_taker = False
        """The taker has left what is unread; it has it now."""
        self._queue: list[bytes] = []
        self._queued_count = self._queued_bytes = 0
        self._is_noted = self._corked = self._writing = False
        self._half_written = False
        """A write is under way, or was cut off: nothing may follow the half frame."""
        self._aborted = self._nonsense = False
        """`_nonsense`: the peer sent what is no frame of the protocol."""
        self._closing = self._closed = False
        self._ended = trio.Event()
        """Nothing more will be read."""
        self._nursery: trio.Nursery | None = None
        """Nursery of the writer, which many sessions never need; None when nothing more is read."""
        self._wake: trio.Event | None = None
        """Wakes the writer, once there is one."""
        self._scope = trio.CancelScope()
        self._received: Callable[[Session, list[Command]], None]  # set by `run`, before anything is read
        self._idle_timeout_ms: int | None = None
        self._deadlines, self._kept_until = deadlines, 0.0
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
    def is_known(self) -> bool:
        """It has sent a request that counts."""
        return self._newcomer is None

    @property
    def binding(self) -> bytes:
        """Name of its TLS that both ends know (`TlsLink.binding`); b"" without."""
        link = self._stream.link if isinstance(self._stream, TlsStream) else self._tls
        return link.binding if link is not None else b""

    def known(self) -> None:
        """It has, now."""
        if self._newcomer is not None:
            self._newcomer.came()
            self._newcomer = None

    def serves(self, owner: str) -> None:
        """Its turns are those of this account."""
        self._entry.owner = owner

    def shed(self) -> None:
        """Close: half frames take too much memory, and it holds most."""
        self._statistics.shed_count += 1
        self._abort()

    def close_unread(self) -> None:
        """Drop its answers and close: they take too much memory."""
        self._statistics.slow_reader_count += 1
        self._queue.clear()
        self._queued_count = 0
        self._abort()

    def send(self, command: Command) -> None:
        """Queue a frame; never blocks. On a closed session it does nothing: the peer is gone."""
        if self._closed or self._aborted:
            return
        try:
            frame = encode_frame(command)
        except Exception as error:  # noqa: BLE001  (told and counted, or raised again)
            self.fail(error)
            return
        self._enqueue(frame, 1)

    def send_frames(self, frames: bytes, count: int) -> None:
        """Send `count` frames that are encoded: with the rest of a slice while one is handled, else as `send_at_once`.
        To wake the writer for the answers of each acknowledgement would cost as much as two of them."""
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
        """Send as `send` does, but in this turn of the event loop if the socket takes it: for what must not wait for
        the next."""
        if self._closed or self._aborted:
            return
        try:
            frame = encode_frame(command)
        except Exception as error:  # noqa: BLE001  (as in `send`)
            self.fail(error)
            return
        self._write_at_once(frame, 1)

    def _write_at_once(self, frames: bytes, count: int) -> None:
        """Write what the socket takes now, unless something stands before it."""
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
        """Do the steps of a request in this session's turns, before its next requests. At a pause the session has no
        turns and is not read."""
        self._works.append(steps)

    async def call(self, command: Command, timeout_ms: int | None) -> Command:
        """Send a request and wait for its response, whatever its code. Sets the request's opaque.

        Raises UnreachableError when the session closes or no response comes in time; None leaves the time to a scope of
        the caller's, for a scope costs as much as the rest of a call.
        """
        call = self._calls.begin(command)
        try:
            self.send(command)
            self._check_open("closed the connection")
            if timeout_ms is None:
                await call.done.wait()
            else:
                with trio.move_on_after(timeout_ms / 1000):
                    await call.done.wait()
            if call.response is not None:
                return call.response
            self._check_open("closed the connection before it answered")
            self._statistics.timeout_count += 1
            raise UnreachableError(f"{self.peer} did not answer request {command.code} within {timeout_ms} ms")
        finally:
            self._calls.end(command)

    def _check_open(self, otherwise: str) -> None:
        if self._nonsense:
            otherwise = "does not speak RocketMQ's protocol: another program listens there, or it wants TLS"
        if self._nonsense or self._closed or self._aborted:
            raise UnreachableError(f"{self.peer} {otherwise}")

    def close(self) -> None:
        """Stop reading, write what is queued (bounded time), close. Returns at once."""
        self._closing = True
        self._scope.cancel()

    def fail(self, error: Exception, commands: Sequence[Command] = ()) -> None:
        """One of its requests met an exception that nobody foresaw: close. Raises `error` if that is not enough
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
            self._keep_until(idle_s if self._newcomer is None else min(self._newcomer.deadline_s, idle_s))
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    self._nursery = nursery
                    if self._has_queued:
                        self._wake_writer()
                    try:
                        await self._read_all(reader_writes)
                    finally:
                        self._nursery = None  # what is sent from now on is left to the last words
                    nursery.cancel_scope.cancel()
        finally:
            self._closed = True
            if self._deadline is not None and self._deadlines is not None:
                self._deadlines.remove(self._deadline)
            self._big.end()
            # nothing of it shall wait for the garbage collector: thousands leave together
            self._deadline, self._entry.serve = None, lambda: False
            self._calls.give_up()
            with trio.CancelScope(shield=True):
                await self._last_words()
                self._statistics.queued_bytes -= self._queued_bytes
                self._statistics.partial_frames.hold(self, 0)
                self._statistics.slow_readers.hold(self, 0)
                self._queued_bytes = 0
                await trio.aclose_forcefully(self._stream)

    async def _read_all(self, reader_writes: bool) -> None:
        try:
            if self._poller is not None and self._handle is not None:
                await self._be_read(self._poller, self._handle)
            else:
                await self._read(reader_writes)
        except trio.Cancelled:
            if self._deadlines is None and trio.current_time() >= self._scope.deadline:
                self._statistics.idle_closed_count += 1
            raise

    def _keep_until(self, time_s: float) -> None:
        """Close then if nothing comes; trio's time."""
        if self._deadlines is None:
            self._scope.deadline = time_s
        elif self._deadline is None:
            self._deadline = self._deadlines.add(time_s, self._expire)
        else:
            self._deadlines.move(self._deadline, time_s)

    def _expire(self) -> None:
        self._statistics.idle_closed_count += 1
        self._scope.cancel()

    async def _be_read(self, poller: Poller, handle: int) -> None:
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
            await self._ended.wait()
        finally:
            self._ended.set()
            poller.remove(handle)

    @property
    def _has_queued(self) -> bool:
        return bool(self._queue or (self._output is not None and self._output.sealed))

    @property
    def _has_backlog(self) -> bool:
        """Something that was read has not been handled."""
        return bool(self._left or self._unread or self._works) or self._parser.has_more

    @property
    def _has_no_turns(self) -> bool:
        return self._is_paused or self._is_held or self._big.is_awaited or self._is_with_taker

    def _serve(self) -> bool:
        """The poller's call: read once if nothing is left of before, handle a slice, answer. Whether there is more."""
        handle, poller = self._handle, self._poller
        assert handle is not None and poller is not None
        self._entry.begin_slice()
        if self._closing or self._aborted or self._has_no_turns:
            return False
        self.waited_ms = poller.waited_ms
        try:
            if not self._has_backlog and (not self._read_once(handle) or self._is_gathered()):
                return False
        except OSError:
            self._aborted = True
            self._end_reading()
            return False
        return self._handle_slice(handle, poller)

    def _is_gathered(self) -> bool:
        """True if what has been read goes to the taker with what others have sent in this turn; `taken` follows."""
        gatherer = self._gatherer
        if (
            gatherer is None
            or self._newcomer is not None
            or self.is_urgent
            or self._parser.buffered_bytes
            or begins_otherwise(self._unread)
            or self._ended.is_set()
            or not gatherer.add(self, self._unread)
        ):
            return False
        self._is_with_taker = self._entry.is_deferred = True
        self._entry.is_drained = self._is_all_read
        return True

    def taken(self, end: int, count: int, cost_us: float) -> None:
        """Go on with what was gathered: `count` frames, up to index `end`, have been answered, at such a cost."""
        handle, poller = self._handle, self._poller
        assert handle is not None and poller is not None
        self._is_with_taker = False
        poller.charge_deferred(self._entry, cost_us, count)
        if self._closing or self._aborted:
            return
        rest, self._unread = self._unread[end:], b""
        if count:
            self._statistics.received_bytes += end
            self._statistics.received_count += count
            self._big.is_whole = True
            self._stay()
        if not rest:
            return
        if count == SLICE_COUNT:
            self._statistics.received_bytes += len(rest)
            self._parser.put_back(rest)
            poller.enqueue(self._entry)
            return
        self._unread, self._is_for_parser = rest, True
        if poller.is_turn_over or self._handle_slice(handle, poller):
            poller.enqueue(self._entry)

    def _handle_slice(self, handle: int, poller: Poller) -> bool:
        """Handle a slice of what was read, and answer. True if there is more."""
        try:
            self._take()
            if self._has_queued and not self._writing and not self._write_some(handle, *self._take_queue()):
                self._pause()
                poller.remove(handle)
            if (self._is_paused or not (self._works or self._left)) and not self.is_urgent:
                self._ask_for_turn()
            if self._is_held or self._big.is_awaited:
                poller.remove(handle)
            elif self.is_urgent:
                poller.prioritize(handle)
            self._entry.is_drained = self._is_all_read and not self._has_backlog and not self._has_no_turns
            return self._has_backlog and not self._has_no_turns
        except RemoteProtocolError:
            self._foreign_words()
        except OSError:
            self._aborted = True
        self._end_reading()
        return False

    def _ask_for_turn(self) -> None:
        """The next frame may be one that is read in turns."""
        newcomer, announced_bytes = self._newcomer, 0 if self._is_paused else self._parser.announced_bytes
        if newcomer is not None and announced_bytes > LARGE_BYTES:
            header = self._parser.header()
            if header is None or not newcomer.is_plausible(header):
                announced_bytes = 0  # it will be refused before it is large
        self._big.announced(announced_bytes)
        if newcomer is not None and self._big.is_awaited:
            self._keep_until(newcomer.long_frame_deadline_s)

    def _read_once(self, handle: int) -> bool:
        """Read once; True if something came. Raises OSError."""
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
        self._ended.set()

    def _foreign_words(self) -> None:
        self._statistics.bad_frame_count += 1
        self._aborted = self._nonsense = True

    def _take_queue(self) -> tuple[bytes, int]:
        """The queued frames and their number; the queue is empty then."""
        frames, count = self._queue, self._queued_count
        self._queue, self._queued_count = [], 0
        return b"".join(frames), count

    def _write_some(self, handle: int, batch: bytes, count: int) -> bool:
        """Write `count` frames, which count as queued; what the socket does not take now is left to the writer. Whether
        it took all. Raises OSError."""
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
        """The peer does not take its replies."""
        self._is_paused = True
        if self._left:
            self._count_unhandled()

    def _resume(self) -> None:
        """The peer has taken its replies."""
        self._is_paused = False
        if self._left:
            self._count_unhandled()
        self._be_served_again()

    def _count_unhandled(self) -> None:
        """Count as half a frame all that was read and has to wait."""
        left_bytes = sum(len(command.body) for command in self._left) if self._is_paused or self._is_held else 0
        self._statistics.partial_frames.hold(self, self._half_bytes + self._held_bytes + left_bytes)

    def _hold(self, pause: Pause) -> None:
        self._is_held, self._held_bytes, self._go_on = True, pause.size_bytes, trio.Event()
        pause.when_over(self._let_go)

    def _let_go(self) -> None:
        self._is_held, self._held_bytes = False, 0
        if not self._closed:
            self._count_unhandled()
        self._go_on.set()
        self._go_on_reading()

    def _go_on_reading(self) -> None:
        if self._handle is not None and self._poller is not None and not self._ended.is_set():
            self._be_served_again()

    def _stop_reading(self) -> None:
        if self._handle is not None and self._poller is not None:
            self._poller.remove(self._handle)

    def _be_served_again(self) -> None:
        handle, poller = self._handle, self._poller
        assert handle is not None and poller is not None
        if self._has_no_turns:
            return
        poller.add(handle, self._entry)
        if self._has_backlog:
            poller.enqueue(self._entry)

    def _count_queued(self, size_bytes: int) -> None:
        self._queued_bytes += size_bytes
        self._statistics.queued_bytes += size_bytes
        if self._queued_bytes > NOTED_BYTES and not self._aborted:
            self._is_noted = True
            self._statistics.slow_readers.hold(self, self._queued_bytes)

    def _count_sent(self, size_bytes: int, count: int) -> None:
        statistics = self._statistics
        self._queued_bytes -= size_bytes
        statistics.queued_bytes -= size_bytes
        statistics.sent_count += count
        statistics.sent_bytes += size_bytes
        if self._is_noted and not self._aborted:
            self._is_noted = self._queued_bytes > NOTED_BYTES
            statistics.slow_readers.hold(self, self._queued_bytes)

    def _take(self) -> None:
        """A slice of what has been read. Raises RemoteProtocolError and what ends the process."""
        requests, start, end = self._left, 0, 0
        began_s = time.monotonic()
        run_count = RUN_COUNT if self._poller is not None and self._poller.is_busy else SLICE_COUNT
        try:
            self._corked = True
            count = 0
            if not self._works or self._work_on(began_s):
                requests = requests or self._next_requests()
                count = len(requests)
            while end < count:
                start, end = end, end + 1
                if (most := BATCH_COUNTS.get(requests[start].code)) is not None:
                    last = min(count, start + min(most, run_count))
                    while end < last and BATCH_COUNTS.get(requests[end].code) == most:
                        end += 1
                # the peer of some pops works on their answers while the next ones are worked on
                self._corked = most != POP_BATCH_COUNT or end == count
                self._received(self, requests if end - start == count else requests[start:end])
                if self._works:
                    self._worked_on = requests[start:end]
                    if not self._work_on(began_s):
                        break
                if end < count and (self._queued_bytes > SLICE_QUEUED_BYTES or time.monotonic() - began_s > SLICE_S):
                    break
        except RemoteProtocolError:
            raise
        except Exception as error:  # noqa: BLE001  (told and counted, or raised again)
            self.fail(error, requests[start:end] or (self._worked_on if self._works else []))
            self._works.clear()
            end = len(requests)
        self._left, self._corked, self._entry.request_count = requests[end:], False, end
        if self._is_held:
            self._count_unhandled()

    def _work_on(self, began_s: float) -> bool:
        """Work on; True if all is done that requests have begun."""
        while self._works:
            for pause in self._works[0]:
                if pause is not None:
                    self._hold(pause)
                    return False
                if time.monotonic() - began_s > SLICE_S:
                    return False
            self._works.popleft()
        self._worked_on = []  # or each session would keep its last large body
        return True

    def _next_requests(self) -> list[Command]:
        """Parsed now. Raises RemoteProtocolError."""
        statistics = self._statistics
        data, self._unread = self._unread, b""
        statistics.received_bytes += len(data)
        commands, taken_count = self._frames(data)
        half_bytes = self._parser.buffered_bytes
        if half_bytes != self._half_bytes:
            self._half_bytes = half_bytes
            statistics.partial_frames.hold(self, half_bytes)
        if commands or taken_count:
            self._big.is_whole = True
        if self._newcomer is not None:
            self._check_newcomer(self._newcomer, commands)
        if not commands and not taken_count:
            return commands
        statistics.received_count += len(commands) + taken_count
        if self._newcomer is None:  # else its time is running
            self._stay()
        return self._calls.requests_of(commands)

    def _stay(self) -> None:
        """Frames have come: the time in which it may be idle begins anew."""
        idle_timeout_ms = self._idle_timeout_ms
        if idle_timeout_ms is not None and (now := trio.current_time()) >= self._kept_until:
            # moving it for every frame would cost as much as reading one
            self._kept_until = now + idle_timeout_ms / 16_000
            self._keep_until(now + idle_timeout_ms / 1000)

    def _frames(self, data: bytes) -> tuple[list[Command], int]:
        """The frames of a slice: those that the taker has left, and the number of those that it has taken. Raises
        RemoteProtocolError."""
        taker, parser = self._taker, self._parser
        if taker is None or self._newcomer is not None or self._is_for_parser:
            self._is_for_parser = False
            return parser.feed(data, SLICE_COUNT), 0
        data = parser.unparsed(data)
        end, count = (0, 0) if begins_otherwise(data) else taker.take([(self, data)], SLICE_COUNT)[0]
        if count:
            data = data[end:]
            if count == SLICE_COUNT:
                parser.put_back(data)
                return [], count
        return parser.feed(data, SLICE_COUNT - count), count

    def _check_newcomer(self, newcomer: Newcomer, commands: list[Command]) -> None:
        """Raises RemoteProtocolError for a first frame that is too long for somebody unknown."""
        if not newcomer.is_guarded and any(map(has_known_code, commands)):
            self.known()
        elif self._half_bytes > FIRST_BYTES and not self._parser.has_more:
            header = self._parser.header()
            if header is None or not newcomer.is_plausible(header):
                raise RemoteProtocolError(f"a first frame of more than {FIRST_BYTES} bytes from nobody who is known")
            self._keep_until(newcomer.long_frame_deadline_s)

    async def _read(self, reader_writes: bool) -> None:
        """In this task: a client's end, and a stream that is no socket."""
        try:
            while not self._ended.is_set() and (data := await self._receive()):
                self._unread = bytes(data)
                while self._has_backlog and not self._aborted:
                    await self._have_turn()
                    if not self._queue or self._writing:
                        continue
                    if reader_writes:
                        await self._flush()
                    else:
                        self._wake_writer()
        except RemoteProtocolError:
            self._foreign_words()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._aborted = True

    async def _have_turn(self) -> None:
        """One slice."""
        if self._is_held:
            await self._go_on.wait()
        self._take()
        if self._has_backlog:
            await trio.lowlevel.checkpoint()

    async def _receive(self) -> bytes | bytearray:
        """Bytes that have arrived, b"" at the end."""
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
        """Write all that is queued, also what comes while writing, in one write per turn."""
        self._writing = True
        while self._has_queued and not self._aborted:
            # a cancellation that is due comes here, with the queue whole, and not inside the write
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
                if self._is_paused and not self._ended.is_set():
                    self._resume()
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            self._abort()

    async def _last_words(self) -> None:
        if self._has_queued and not self._aborted and not self._half_written:
            with trio.move_on_after(_LAST_WORDS_S):
                try:
                    await self._flush()
                except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
                    self._queue.clear()


class FrameTaker(Protocol):
    """Port of a service that answers plain sends as bytes, before anybody makes commands of them."""

    def take(self, reads: Sequence[tuple[Session, bytes]], max_count: int) -> list[tuple[int, int]]:
        """Answer as many whole frames at the front of what each session has sent as it can, `max_count` of each at
        most: for each the index behind them, and their number. Raises as `Service.received`."""
        ...


class Gatherer(Protocol):
    """Port of what hands to a `FrameTaker` in one call what the sessions of a turn have read."""

    def add(self, session: Session, data: bytes) -> bool:
        """Call `session.taken` at the end of this turn; False, and nothing is done, if it is to go by itself."""
        ...


class Service(Protocol):
    """Port of a server's work with its sessions. All three are synchronous: reply now or later by `session.send`.

    `received` may raise RemoteProtocolError, which closes and counts the session. Any other exception is a bug;
    `rmqha.host.net.boundary` says whether it ends the session or the process.
    """

    def opened(self, session: Session) -> None: ...

    def received(self, session: Session, commands: list[Command]) -> None: ...

    def closed(self, session: Session) -> None: ...
