"""HA connections over TCP, both ends: listens for slaves, connects to the master, moves the machine's bytes. Shell.

The machine gets a connection once its first bytes begin a handshake, so probes and port scans never reach it. Their
number and time are bounded (apache/rocketmq 8875, `rmqha.broker.replication.ha_service`).
"""

from __future__ import annotations

import itertools
import math
import os
import struct
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import trio

from rmqha.broker.replication.ha_authenticator import AcceptedConnection, HaAuthenticator
from rmqha.broker.replication.replica_driver import ReplicaDriver
from rmqha.ha.stream.legacy_connection import FIRST_REPORT_TIMEOUT_MS
from rmqha.host.access import security
from rmqha.host.access.security import NO_SECURITY, AnyStream
from rmqha.host.access.tls_link import ENCRYPT_BYTES, TlsLink, TlsStream
from rmqha.host.net import network
from rmqha.host.net.boundary import Boundary
from rmqha.model.error import UnreachableError
from rmqha.model.identity import host_of
from rmqha.model.offset import PhyOffset
from rmqha.port import Tracer
from rmqha.wire import legacy_ha
from rmqha.wire.ha_stream import HaState

READ_BYTES = 1024 * 1024
"""Read size of a master's stream, which is written to the log from one buffer. Receiving into the mapped file is
slower: the first touch of each page is a fault (docs/operate/measurements.md)."""
DIRECT_WRITE_BYTES = 64 * 1024
"""Bytes of the log's end that are sent without the writer task, in less time than a slice of other work."""
TURN_BYTES = 1024 * 1024
"""Bytes that are encrypted for one slave in one turn of the event loop: a millisecond or two. Under full load a turn
lasts 40 ms, and with smaller pieces the log's end, for which senders wait, needed several turns."""
ACK_READ_BYTES = 4096
"""Read size of a slave's stream, which has only acks."""
DIAL_TIMEOUT_MS = 1000
HANDSHAKE_TIMEOUT_MS = 3000
HANDSHAKE_BYTES = 16
RESOLVE_TIMEOUT_MS = 1000
"""Time-out (ms) for the addresses of replicas' names."""
FRAME_DELAY_S = 0.005
"""Time (s) after a frame or a transfer for which a frame is delayed, so that the next transfer replaces it; at most
twice as long, since all delayed frames are checked together: a slave dispatches no sooner. Every frame wakes both ends,
at the cost of a dozen records, and under load a transfer comes every millisecond or two."""
COLD_READ_COUNT = 4
"""Threads that read old parts of the log into memory; a disk that hangs blocks only these."""
MAX_QUEUED_COUNT = 1024
"""Frames queued for one peer; the machine has one transfer at a time, so more are heartbeats that the peer does not
read."""


class _Log(NamedTuple):
    header: bytes
    phy_offset: PhyOffset
    size_bytes: int


class _Encrypted(NamedTuple):
    """Rest of a partial write; `is_log`: it completes a transfer of log bytes."""

    data: bytes
    is_log: bool


class _Connection:
    __slots__ = ("delayed_frame", "handle", "is_writing", "queue", "scope", "sent_at_s", "tls", "wake")

    def __init__(self) -> None:
        self.delayed_frame = b""
        """Delayed frame whose content the next frame has too."""
        self.sent_at_s = -math.inf
        """Time (s) of the last such frame, or of the last transfer."""
        self.handle: int | None = None
        """File descriptor of a connected socket, for direct writes."""
        self.tls: TlsLink | None = None
        self.is_writing = False
        """True while the writer task has written a part of an item: nothing else may be written."""
        self.queue: deque[bytes | _Log | _Encrypted] = deque()
        self.wake = trio.Event()
        self.scope = trio.CancelScope()

    def send_delayable(self, data: bytes, now_s: float) -> None:
        """Send a frame at once if neither one nor a transfer was sent lately; else with the next transfer, or after
        FRAME_DELAY_S."""
        if self.delayed_frame or now_s < self.sent_at_s + FRAME_DELAY_S:
            self.delayed_frame = data
        else:
            self.sent_at_s = now_s
            self.send(data)

    def drop_delayed(self, now_s: float) -> None:
        """Drop the delayed frame, whose content the transfer of `now_s` has."""
        self.delayed_frame, self.sent_at_s = b"", now_s

    def flush_delayed(self, now_s: float) -> None:
        """Send the delayed frame if its time is over."""
        if self.delayed_frame and now_s >= self.sent_at_s + FRAME_DELAY_S:
            data, self.delayed_frame, self.sent_at_s = self.delayed_frame, b"", now_s
            self.send(data)

    @property
    def is_free(self) -> bool:
        """True if the next write goes to the socket at once."""
        return self.handle is not None and not self.queue and not self.is_writing

    def send(self, data: bytes) -> None:
        """Write at once if nothing is queued, so that an ack waits for no other task; the rest of a partial write is
        queued."""
        if self.handle is None or not self.is_free:
            self.put(data)
        elif self.tls is not None:
            self._write_encrypted(self.handle, self.tls.encrypt(data), is_log=False)
        else:
            try:
                data = data[network.write_now(self.handle, data) :]
            except OSError:
                self.scope.cancel()
                return
            if data:
                self.put(data)

    def write_log(self, item: _Log, view: memoryview) -> bool:
        """Write `view`, the first of the log's bytes, if nothing is queued; the rest of a partial write is queued. True
        if all was written."""
        assert self.handle is not None and self.is_free
        header, phy_offset, size_bytes = item
        if self.tls is not None:
            return self._write_encrypted(self.handle, self.tls.encrypt(b"".join((header, view))), is_log=True)
        try:
            sent = os.writev(self.handle, [header, view])
        except BlockingIOError:
            sent = 0
        except OSError:
            self.scope.cancel()
            return False
        if sent == len(header) + size_bytes:
            return True
        of_log = max(0, sent - len(header))
        self.put(_Log(header[sent:], PhyOffset(phy_offset + of_log), size_bytes - of_log))
        return False

    def _write_encrypted(self, handle: int, data: bytes, *, is_log: bool) -> bool:
        try:
            rest = data[network.write_now(handle, data) :]
        except OSError:
            self.scope.cancel()
            return False
        if rest:
            self.put(_Encrypted(rest, is_log))
        return not rest

    def put(self, item: bytes | _Log | _Encrypted) -> None:
        self.queue.append(item)
        if len(self.queue) > MAX_QUEUED_COUNT:
            self.scope.cancel()
        self.wake.set()


class HaService:
    """Performs the HA actions. Accepted connections are numbered from 1; the machine numbers those that it opens.
    `plain`: legacy protocol of static groups."""

    def __init__(
        self,
        driver: ReplicaDriver,
        tracer: Tracer,
        nursery: trio.Nursery,
        authenticator: HaAuthenticator | None = None,
        boundary: Boundary | None = None,
        *,
        plain: bool = False,
    ) -> None:
        """`authenticator` None checks nothing; `boundary` None: an unexpected exception ends the broker."""
        self._driver = driver
        self._authenticator = authenticator or HaAuthenticator("disabled", NO_SECURITY)
        self._boundary = boundary
        self._refusal = ""
        """Last reason of a refusal, traced once."""
        self._plain = plain
        self._tracer = tracer
        self._nursery = nursery
        self._connections: dict[int, _Connection] = {}
        self._cold_threads = trio.CapacityLimiter(COLD_READ_COUNT)
        self._next_id = itertools.count(1)
        self._unreachable = ""
        """Master that was unreachable last, traced once."""
        self._handshakes = Handshakes()
        self._is_flushing = False
        """True while a task waits for delayed frames."""
        self.refused_count = 0
        """Connections refused for their number, or for a late or malformed handshake."""

    # --- actions ----------------------------------------------------------------------------------------------------
    def open(self, conn_id: int, address: str) -> None:
        connection = self._connections[conn_id] = _Connection()
        self._nursery.start_soon(self._dial, conn_id, address, connection)

    def send(self, conn_id: int, data: bytes, *, may_wait: bool = False) -> None:
        connection = self._connections.get(conn_id)
        if connection is None:
            return
        if may_wait:
            connection.send_delayable(data, time.monotonic())
            self._release_held(connection)
        else:
            connection.send(data)

    def send_log(self, conn_id: int, header: bytes, phy_offset: PhyOffset, size_bytes: int) -> None:
        """Write the log's newest bytes at once: senders wait for their ack, and waking the writer task would cost as
        much as some of them. Older bytes are a copy, for the writer's turns."""
        connection = self._connections.get(conn_id)
        if connection is None:
            return
        item = _Log(header, phy_offset, size_bytes)
        connection.drop_delayed(time.monotonic())
        is_newest = phy_offset + size_bytes == self._driver.store.max_phy_offset
        if not is_newest or size_bytes > DIRECT_WRITE_BYTES or not connection.is_free:
            connection.put(item)
        elif connection.write_log(item, self._driver.store.view(phy_offset, size_bytes)):
            self._driver.ha_sent(conn_id)

    def _release_held(self, connection: _Connection) -> None:
        if connection.delayed_frame and not self._is_flushing:
            self._is_flushing = True
            self._nursery.start_soon(self._flush_delayed_frames)

    async def _flush_delayed_frames(self) -> None:
        """Send delayed frames until there are none."""
        try:
            while any(connection.delayed_frame for connection in self._connections.values()):
                await trio.sleep(FRAME_DELAY_S)
                now_s = time.monotonic()
                for connection in self._connections.values():
                    connection.flush_delayed(now_s)
        finally:
            self._is_flushing = False

    def close(self, conn_id: int) -> None:
        connection = self._connections.pop(conn_id, None)
        if connection is not None:
            connection.scope.cancel()

    def resolve(self, names: tuple[str, ...]) -> None:
        self._nursery.start_soon(self._resolve, names)

    async def _resolve(self, names: tuple[str, ...]) -> None:
        numbers: dict[str, tuple[str, ...]] = {}
        with trio.move_on_after(RESOLVE_TIMEOUT_MS / 1000):
            for name in names:
                numbers[name] = await network.addresses_of(name)
        self._driver.ha_resolved(numbers)

    # --- connections ------------------------------------------------------------------------------------------------
    async def accept(self, stream: trio.SocketStream) -> None:
        """Serve one accepted connection until its end; a handler of trio.serve_listeners."""
        peer = network.peer_name(stream)
        try:
            await self._accepted(stream, peer)
        except Exception as error:  # noqa: BLE001  (told and counted, or raised again)
            self._failed(error, peer)

    def _failed(self, error: Exception, peer: str) -> None:
        """Report an error of a closed connection. An error of the machine or the log ends the broker."""
        if self._boundary is None:
            raise error
        self._boundary.failed(error, peer)

    async def _accepted(self, stream: trio.SocketStream, peer: str) -> None:
        async with stream:
            network.tune(stream)
            accepted = await self._handshake(stream, peer)
            if accepted is None:
                self.refused_count += 1
                return
            conn_id = next(self._next_id)
            connection = self._connections[conn_id] = _Connection()
            self._driver.ha_accepted(conn_id, peer, accepted.claim)
            await self._run(conn_id, connection, accepted.stream, accepted.first)

    async def _handshake(self, stream: trio.SocketStream, peer: str) -> AcceptedConnection | None:
        """Stream and first bytes of a handshake; None for other peers."""
        host = host_of(peer)
        size_bytes = legacy_ha.REPORT_BYTES if self._plain else HANDSHAKE_BYTES
        accepted, data = None, b""
        try:
            with self._handshakes.enter(host, FIRST_REPORT_TIMEOUT_MS if self._plain else HANDSHAKE_TIMEOUT_MS):
                accepted = await self._authenticator.accept(stream, host)
                audit = security.ambient.get().audit
                if audit is not None:
                    proved = {} if accepted.claim is None else accepted.claim.to_ext()
                    audit.record(peer, "HA_CONNECTION", proved.items(), accepted.refused)
                if accepted.refused:
                    self._refused(peer, accepted.refused)
                    return None
                data = accepted.first
                while len(data) < size_bytes:
                    more = await accepted.stream.receive_some(size_bytes - len(data))
                    if not more:
                        return None
                    data += more
        except trio.BrokenResourceError:
            return None
        if accepted is None or len(data) < size_bytes:
            return None
        is_handshake = (
            legacy_ha.is_report(data) if self._plain else struct.unpack_from(">i", data)[0] == HaState.HANDSHAKE
        )
        return accepted._replace(first=data) if is_handshake else None

    def _refused(self, peer: str, reason: str) -> None:
        if reason != self._refusal:
            self._refusal = reason
            self._tracer.event("ha_refused", peer=peer, reason=reason)

    async def _dial(self, conn_id: int, address: str, connection: _Connection) -> None:
        """Connect to a master. `connection` may be closed before or meanwhile."""
        try:
            await self._dialled(conn_id, address, connection)
        except Exception as error:  # noqa: BLE001  (told and counted, or raised again)
            self._failed(error, address)
            self._forget(conn_id)

    async def _dialled(self, conn_id: int, address: str, connection: _Connection) -> None:
        try:
            stream = await self._authenticator.dial(await network.dial(address, DIAL_TIMEOUT_MS), address)
        except UnreachableError as error:
            if address != self._unreachable:
                self._unreachable = address
                self._tracer.event("ha_unreachable", address=address, reason=str(error))
            self._forget(conn_id)
            return
        self._unreachable = ""
        async with stream:
            if conn_id in self._connections:
                self._driver.ha_opened(conn_id)
                await self._run(conn_id, connection, stream, b"")

    async def _run(self, conn_id: int, connection: _Connection, stream: AnyStream, first: bytes) -> None:
        connection.handle = stream.socket.fileno()
        connection.tls = stream.link if isinstance(stream, TlsStream) else None
        try:
            with connection.scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write, conn_id, connection, stream)
                    await self._read(conn_id, stream, first)
                    nursery.cancel_scope.cancel()
        finally:
            connection.handle = None  # the number may soon stand for another file
            self._forget(conn_id)

    def _forget(self, conn_id: int) -> None:
        """Remove a closed connection, and tell the machine unless it has closed it."""
        if self._connections.pop(conn_id, None) is not None:
            self._driver.ha_closed(conn_id)

    async def _read(self, conn_id: int, stream: AnyStream, first: bytes) -> None:
        if first:
            self._driver.ha_received(conn_id, first)
        buffer = memoryview(bytearray(READ_BYTES if conn_id < 0 else ACK_READ_BYTES))
        while conn_id in self._connections:
            try:
                if isinstance(stream, TlsStream):
                    data = memoryview(await stream.receive_into(buffer))
                else:
                    # a stream would try to read first, though what comes is an answer to what has just been sent
                    await trio.lowlevel.wait_readable(stream.socket)
                    data = buffer[: os.readv(stream.socket.fileno(), [buffer])]
            except BlockingIOError:
                continue
            except (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
                self._tracer.event("ha_broken", conn_id=conn_id, reason=str(error))
                return
            if not data:
                return
            self._driver.ha_received(conn_id, data)

    async def _write(self, conn_id: int, connection: _Connection, stream: AnyStream) -> None:
        try:
            while True:
                await connection.wake.wait()
                connection.wake = trio.Event()
                # A closed connection may name bytes that are cut already.
                while connection.queue and conn_id in self._connections:
                    item = connection.queue.popleft()
                    connection.is_writing = True
                    if isinstance(item, bytes):
                        await stream.send_all(item)
                        connection.is_writing = False
                    elif isinstance(item, _Encrypted):
                        assert isinstance(stream, TlsStream)
                        await stream.send_encrypted(item.data)
                        connection.is_writing = False
                        if item.is_log:
                            self._driver.ha_sent(conn_id)
                    elif await self._sent_log(conn_id, item, stream):
                        connection.is_writing = False
                        self._driver.ha_sent(conn_id)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            connection.scope.cancel()

    async def _sent_log(self, conn_id: int, item: _Log, stream: AnyStream) -> bool:
        """Write one transfer after its bytes are in memory, so that no other task waits for the disk. False if the
        connection was closed meanwhile."""
        load = self._driver.store.log_loader(item.phy_offset, item.size_bytes)
        if load is not None:
            try:
                await trio.to_thread.run_sync(load, abandon_on_cancel=True, limiter=self._cold_threads)
            except OSError as error:
                reason = f"the log at {item.phy_offset} cannot be read: {error.strerror}"
                self._tracer.event("ha_broken", conn_id=conn_id, reason=reason)
                raise trio.BrokenResourceError(reason) from error
            if conn_id not in self._connections:
                return False
        if isinstance(stream, trio.SocketStream):
            return await self._write_log(conn_id, item, stream)
        return await self._write_log_encrypted(conn_id, item, stream)

    async def _write_log_encrypted(self, conn_id: int, item: _Log, stream: TlsStream) -> bool:
        """Write as `_write_log` does, from an encrypted copy."""
        data, offset, left = item.header, item.phy_offset, item.size_bytes
        turn_bytes = 0
        while data or left:
            size_bytes = min(left, ENCRYPT_BYTES)
            if size_bytes:
                view = self._driver.store.view(offset, size_bytes)
                if not view:
                    raise trio.BrokenResourceError(f"the log's bytes at {offset} were removed before they were sent")
                data += bytes(view)
                offset, left = PhyOffset(offset + len(view)), left - len(view)
                del view  # or its file could not be given up while this task waits
            turn_bytes += len(data)
            rest = stream.write_now(data)
            data = b""
            if rest:
                await stream.send_encrypted(rest)
            elif left and turn_bytes >= TURN_BYTES:
                await trio.lowlevel.checkpoint()
            else:
                continue
            turn_bytes = 0
            if conn_id not in self._connections:
                return False
        await trio.lowlevel.checkpoint()
        return conn_id in self._connections

    async def _write_log(self, conn_id: int, item: _Log, stream: trio.SocketStream) -> bool:
        """Header and log bytes, straight from the mapped file. False if the connection was closed meanwhile.

        The log may be cut after the connection is closed, and never before. So only a call that does not wait, and that
        copies, reads the mapping. sendfile would leave the file's own pages in the kernel's queues, and send a peer the
        zeros, or the next epoch's bytes, that replace a cut part.
        """
        header, offset, left = item.header, item.phy_offset, item.size_bytes
        while header or left:
            view = self._driver.store.view(offset, left)
            if left and not view:
                raise trio.BrokenResourceError(f"the log's bytes at {offset} were removed before they were sent")
            try:
                sent = os.writev(stream.socket.fileno(), [header, view])
            except BlockingIOError:
                del view  # or its file could not be given up while this task waits
                await trio.lowlevel.wait_writable(stream.socket)
                if conn_id not in self._connections:
                    return False
                continue
            except OSError as error:
                raise trio.BrokenResourceError(str(error)) from error
            of_header = min(sent, len(header))
            header = header[of_header:]
            offset, left = PhyOffset(offset + sent - of_header), left - (sent - of_header)
        await trio.lowlevel.checkpoint()
        return conn_id in self._connections


MAX_COUNT = 128
MAX_COUNT_OF_HOST = 64


class Handshakes:
    """Connections before their handshake: bounded in number, and none can exclude others. Shell.

    Beyond the bound the oldest connection of the host with most of them is closed. So a host that opens connections and
    sends nothing closes its own, and a replica at another address can always connect.
    """

    def __init__(self, max_count: int = MAX_COUNT, max_count_of_host: int = MAX_COUNT_OF_HOST) -> None:
        self.evicted_count = 0
        self._max_count = max_count
        self._max_count_of_host = max_count_of_host
        self._waiting: dict[trio.CancelScope, str] = {}
        """Hosts by cancel scope, in the order of arrival."""

    def __len__(self) -> int:
        return len(self._waiting)

    @contextmanager
    def enter(self, host: str, timeout_ms: int) -> Iterator[trio.CancelScope]:
        """Scope of a handshake. It is cancelled at the time-out or when another connection takes its place; the peer
        must then be disconnected."""
        counts = Counter(self._waiting.values())
        if counts[host] >= self._max_count_of_host:
            self._evict(host)
        elif len(self._waiting) >= self._max_count:
            self._evict(counts.most_common(1)[0][0])
        with trio.move_on_after(timeout_ms / 1000) as scope:
            self._waiting[scope] = host
            try:
                yield scope
            finally:
                self._waiting.pop(scope, None)

    def _evict(self, host: str) -> None:
        oldest = next(scope for scope, item in self._waiting.items() if item == host)
        del self._waiting[oldest]
        self.evicted_count += 1
        oldest.cancel()
