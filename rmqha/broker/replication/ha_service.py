"""HA connections over TCP, both ends: listens for slaves, dials the master, moves bytes for the replica machine. Shell.

A connection is shown to the machine when its peer has shaken hands by the look of it, so probes and port scans never
reach it; they are bounded in number and time (apache/rocketmq 8875, `rmqha.broker.replication.ha_service`).
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

from rmqha.broker.replication.ha_guard import AcceptedConnection, HaGuard
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
from rmqha.wire import legacy_ha as plain_ha
from rmqha.wire.ha_stream import HaState

READ_BYTES = 1024 * 1024
"""Read size for a master's stream, which is written to the log out of this one buffer. Receiving into the mapped file
instead is slower: each page of it that is touched for the first time costs a fault (docs/operate/measurements.md)."""
AT_ONCE_BYTES = 64 * 1024
"""Bytes of the log's end that are sent without the writer; a slice of other work takes no longer."""
TURN_BYTES = 1024 * 1024
"""Encrypted for one slave in one turn of the event loop, if its socket takes it: a millisecond or two. Under a flood a
turn lasts 40 ms, and the log's end, for which senders wait, took one for each piece."""
ACK_READ_BYTES = 4096
"""Read size for a slave's stream, which holds only acks."""
DIAL_TIMEOUT_MS = 1000
HANDSHAKE_TIMEOUT_MS = 3000
HANDSHAKE_BYTES = 16
RESOLVE_TIMEOUT_MS = 1000
"""For what replicas' names stand for."""
HELD_BACK_S = 0.001
"""Time (s) for which something may wait for company: twice as long at most, for all that waits is looked at together.
Every frame wakes both ends, which costs as much as a dozen records."""
COLD_READ_COUNT = 4
"""Threads at most that read old parts of the log into memory: a disk that hangs keeps these and no others."""
MAX_QUEUED_COUNT = 1024
"""Frames that wait for one peer; the machine has one transfer under way, so more means heartbeats nobody reads."""


class _Log(NamedTuple):
    header: bytes
    phy_offset: PhyOffset
    size_bytes: int


class _Encrypted(NamedTuple):
    """The rest of what the socket did not take; `is_log`: bytes of the log end with it."""

    data: bytes
    is_log: bool


class _Connection:
    __slots__ = ("handle", "is_writing", "news", "queue", "scope", "tls", "told_at_s", "wake")

    def __init__(self) -> None:
        self.news = b""
        """A frame that tells only what the next one of this connection tells too, held back."""
        self.told_at_s = -math.inf
        """The time of the last one, or of the one that has told it instead."""
        self.handle: int | None = None
        """File descriptor of a socket that is connected: what is written goes there directly."""
        self.tls: TlsLink | None = None
        self.is_writing = False
        """The writer is in the midst of an item: nothing may come in between."""
        self.queue: deque[bytes | _Log | _Encrypted] = deque()
        self.wake = trio.Event()
        self.scope = trio.CancelScope()

    def tell(self, data: bytes, now_s: float) -> None:
        """Send at once, if a slave has not been told for a while; else with the next transfer, or a little later."""
        if self.news or now_s < self.told_at_s + HELD_BACK_S:
            self.news = data
        else:
            self.told_at_s = now_s
            self.send(data)

    def told_otherwise(self, now_s: float) -> None:
        """A transfer is about to tell what is held back."""
        if self.news:
            self.news, self.told_at_s = b"", now_s

    def let_go(self, now_s: float) -> None:
        """Send what has been held back long enough."""
        if self.news and now_s >= self.told_at_s + HELD_BACK_S:
            data, self.news, self.told_at_s = self.news, b"", now_s
            self.send(data)

    @property
    def is_free(self) -> bool:
        """True if the next write goes to the socket at once."""
        return self.handle is not None and not self.queue and not self.is_writing

    def send(self, data: bytes) -> None:
        """At once if nothing is on its way: an ack waits for no other task. What the kernel does not take is queued."""
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
        """Write while nothing is on its way, `view` being the front of the log's bytes; what the kernel does not take
        is queued. True if it took all."""
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
    """Performs the HA actions. Accepted connections count from 1 up; the machine numbers those that it opens. `plain`:
    peers speak the protocol of static groups."""

    def __init__(
        self,
        driver: ReplicaDriver,
        tracer: Tracer,
        nursery: trio.Nursery,
        guard: HaGuard | None = None,
        boundary: Boundary | None = None,
        *,
        plain: bool = False,
    ) -> None:
        """`guard` None asks for nothing; `boundary` None: an exception that nobody foresaw ends the broker."""
        self._driver = driver
        self._guard = guard or HaGuard("disabled", NO_SECURITY)
        self._boundary = boundary
        self._refusal = ""
        """The last one, which is traced once."""
        self._plain = plain
        self._tracer = tracer
        self._nursery = nursery
        self._connections: dict[int, _Connection] = {}
        self._cold_threads = trio.CapacityLimiter(COLD_READ_COUNT)
        self._next_id = itertools.count(1)
        self._unreachable = ""
        """The master that could not be dialled last: traced once, not per attempt."""
        self._handshakes = Handshakes()
        self._is_releasing = False
        """A task looks after what is held back."""
        self.refused_count = 0
        """Connections closed because too many had not shaken hands, or did not in time or in form."""

    # --- actions ----------------------------------------------------------------------------------------------------
    def open(self, conn_id: int, address: str) -> None:
        connection = self._connections[conn_id] = _Connection()
        self._nursery.start_soon(self._dial, conn_id, address, connection)

    def send(self, conn_id: int, data: bytes, *, may_wait: bool = False) -> None:
        connection = self._connections.get(conn_id)
        if connection is None:
            return
        if may_wait:
            connection.tell(data, time.monotonic())
            self._release_held(connection)
        else:
            connection.send(data)

    def send_log(self, conn_id: int, header: bytes, phy_offset: PhyOffset, size_bytes: int) -> None:
        """The log's newest bytes leave at once: somebody waits for their ack, and a writer that is to be woken would
        cost as much as a few of them. What is behind is a copy, and goes in the writer's turns."""
        connection = self._connections.get(conn_id)
        if connection is None:
            return
        item = _Log(header, phy_offset, size_bytes)
        connection.told_otherwise(time.monotonic())
        is_newest = phy_offset + size_bytes == self._driver.store.max_phy_offset
        if not is_newest or size_bytes > AT_ONCE_BYTES or not connection.is_free:
            connection.put(item)
        elif connection.write_log(item, self._driver.store.view(phy_offset, size_bytes)):
            self._driver.ha_sent(conn_id)

    def _release_held(self, connection: _Connection) -> None:
        if connection.news and not self._is_releasing:
            self._is_releasing = True
            self._nursery.start_soon(self._let_go)

    async def _let_go(self) -> None:
        """Look after what is held back until nothing is."""
        try:
            while any(connection.news for connection in self._connections.values()):
                await trio.sleep(HELD_BACK_S)
                now_s = time.monotonic()
                for connection in self._connections.values():
                    connection.let_go(now_s)
        finally:
            self._is_releasing = False

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
        """Serve one accepted connection to its end; a handler of trio.serve_listeners."""
        peer = network.peer_name(stream)
        try:
            await self._accepted(stream, peer)
        except Exception as error:  # noqa: BLE001  (told and counted, or raised again)
            self._failed(error, peer)

    def _failed(self, error: Exception, peer: str) -> None:
        """Its connection is closed already. What the machine or the log raised ends the broker all the same."""
        if self._boundary is None:
            raise error
        self._boundary.failed(error, peer)

    async def _accepted(self, stream: trio.SocketStream, peer: str) -> None:
        async with stream:
            network.tune(stream)
            welcome = await self._handshake(stream, peer)
            if welcome is None:
                self.refused_count += 1
                return
            conn_id = next(self._next_id)
            connection = self._connections[conn_id] = _Connection()
            self._driver.ha_accepted(conn_id, peer, welcome.claim)
            await self._run(conn_id, connection, welcome.stream, welcome.first)

    async def _handshake(self, stream: trio.SocketStream, peer: str) -> AcceptedConnection | None:
        """The stream and its first bytes if they begin a handshake; None: not worth the machine's time."""
        host = host_of(peer)
        size_bytes = plain_ha.REPORT_BYTES if self._plain else HANDSHAKE_BYTES
        welcome, data = None, b""
        try:
            with self._handshakes.enter(host, FIRST_REPORT_TIMEOUT_MS if self._plain else HANDSHAKE_TIMEOUT_MS):
                welcome = await self._guard.welcome(stream, host)
                audit = security.ambient.get().audit
                if audit is not None:
                    proved = {} if welcome.claim is None else welcome.claim.to_ext()
                    audit.tell(peer, "HA_CONNECTION", proved.items(), welcome.refused)
                if welcome.refused:
                    self._refused(peer, welcome.refused)
                    return None
                data = welcome.first
                while len(data) < size_bytes:
                    more = await welcome.stream.receive_some(size_bytes - len(data))
                    if not more:
                        return None
                    data += more
        except trio.BrokenResourceError:
            return None
        if welcome is None or len(data) < size_bytes:
            return None
        shaken = plain_ha.is_report(data) if self._plain else struct.unpack_from(">i", data)[0] == HaState.HANDSHAKE
        return welcome._replace(first=data) if shaken else None

    def _refused(self, peer: str, reason: str) -> None:
        if reason != self._refusal:
            self._refusal = reason
            self._tracer.event("ha_refused", peer=peer, reason=reason)

    async def _dial(self, conn_id: int, address: str, connection: _Connection) -> None:
        """`connection` may have been closed before this task began or while it dialed."""
        try:
            await self._dialled(conn_id, address, connection)
        except Exception as error:  # noqa: BLE001  (told and counted, or raised again)
            self._failed(error, address)
            self._forget(conn_id)

    async def _dialled(self, conn_id: int, address: str, connection: _Connection) -> None:
        try:
            stream = await self._guard.dial(await network.dial(address, DIAL_TIMEOUT_MS), address)
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
        """The connection is gone; the machine hears of it unless it closed the connection itself."""
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
                # A connection that is closed already may name bytes that are cut already.
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
        """Write one transfer, once it is in memory: nobody else waits for the disk. False if the connection was closed
        meanwhile."""
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
        """Write as `_write_log` does, by way of a copy, which is what gets encrypted."""
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

        The log may be cut as soon as the connection is closed, and never before. So the mapping is looked at only by a
        call that does not wait, and that copies: what sendfile leaves in the kernel's queues are the file's own pages,
        and a peer would be sent the zeros, or the next epoch's bytes, that replace what was cut.
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
    """Connections that have not shaken hands yet: bounded in number, and none can keep others out. Shell.

    When there is no room the oldest connection of the host that has most of them goes. So whoever opens connections
    and says nothing pushes out its own, and a replica at another address always gets in.
    """

    def __init__(self, max_count: int = MAX_COUNT, max_count_of_host: int = MAX_COUNT_OF_HOST) -> None:
        self.pushed_out_count = 0
        self._max_count = max_count
        self._max_count_of_host = max_count_of_host
        self._waiting: dict[trio.CancelScope, str] = {}
        """By their scopes, in the order of arrival: the host that each comes from."""

    def __len__(self) -> int:
        return len(self._waiting)

    @contextmanager
    def enter(self, host: str, timeout_ms: int) -> Iterator[trio.CancelScope]:
        """For as long as the handshake takes. The scope is cancelled when its time is over or another takes its room;
        a peer that has been pushed out must not go on."""
        counts = Counter(self._waiting.values())
        if counts[host] >= self._max_count_of_host:
            self._push_out(host)
        elif len(self._waiting) >= self._max_count:
            self._push_out(counts.most_common(1)[0][0])
        with trio.move_on_after(timeout_ms / 1000) as scope:
            self._waiting[scope] = host
            try:
                yield scope
            finally:
                self._waiting.pop(scope, None)

    def _push_out(self, host: str) -> None:
        oldest = next(scope for scope, item in self._waiting.items() if item == host)
        del self._waiting[oldest]
        self.pushed_out_count += 1
        oldest.cancel()
