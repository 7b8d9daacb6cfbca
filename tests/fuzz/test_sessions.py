"""Damaged streams in numbers through what serves a connection: the accepting step, TLS, session, poller, and the name
server behind them. In this process over socket pairs, so that many come to a second. Nobody may crash, and no task,
descriptor or session may be left.

RMQHA_FRAME_CASES=1000000 is the long run (`make fuzz-frames`)."""

from __future__ import annotations

import os
import socket
import ssl
from collections import Counter
from functools import cache
from random import Random

import pytest
import trio
import trustme

from nameserver.config import NamesrvConfig
from nameserver.kv_config import KvConfig
from nameserver.server import NameServer
from rmqha.host.access.security import ServerTls, accept_link
from rmqha.host.net.poller import Poller
from rmqha.host.net.remoting import serve_session
from rmqha.host.net.session import Session, SessionHost
from rmqha.host.net.statistics import Statistics
from rmqha.host.tracer import HostTracer
from rmqha.model.code import RequestCode
from rmqha.wire.command import Command
from tests.fuzz.budget import fuzz_seconds
from tests.fuzz.damage import damaged, descriptors, pieces, tasks
from tests.support.clock import ManualClock
from tests.support.patience import HANG_S
from tests.support.seeds import drawn_seed

MAX_FRAME_BYTES = 1 << 20
TOGETHER = 100
"""Connections at a time."""
CASES_PER_CONNECTION = 4
"""At most: a frame that is refused ends its connection."""
CASES_PER_SECOND = {"plain": 3500, "tls": 350}
LEAST_CASES = {"plain": 4000, "tls": 400}
READ_BYTES = 1 << 20
CONFIG_CODES = (RequestCode.UPDATE_NAMESRV_CONFIG, RequestCode.PUT_KV_CONFIG)
"""They write files."""


class Routes:
    """A name server that counts who comes and goes."""

    def __init__(self) -> None:
        clock = ManualClock(0, 0)
        self._server = NameServer(NamesrvConfig(), HostTracer(clock=clock, write=lambda _: None), clock, KvConfig())
        self.open = self.answered = 0

    def opened(self, session: Session) -> None:
        self.open += 1

    def received(self, session: Session, commands: list[Command]) -> None:
        commands = [command for command in commands if command.code not in CONFIG_CODES]
        self.answered += len(commands)
        self._server.received(session, commands)

    def closed(self, session: Session) -> None:
        self.open -= 1
        self._server.closed(session)


@cache
def contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Of a server and of a client that trusts it."""
    ca = trustme.CA()
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    ca.issue_cert("localhost").configure_cert(server)
    ca.configure_trust(client)
    return server, client


class Peer:
    """The other end of a connection: a socket that never waits."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self.is_open = True

    def send(self, data: bytes) -> None:
        """What the socket does not take is lost: the connection ends in the middle of a frame."""
        try:
            if data and self._sock.send(data) < len(data):
                self.close()
        except OSError:
            self.close()
        self.read()

    def read(self) -> bytes:
        found = b""
        try:
            while self.is_open:
                more = self._sock.recv(READ_BYTES)
                found += more
                if not more:
                    self.close()
        except BlockingIOError:
            return found
        except OSError:
            self.close()
        return found

    def close(self) -> None:
        self.is_open = False
        self._sock.close()


class TlsPeer(Peer):
    """The same behind a handshake; what is sent before its end goes out as it is, as from one who does not speak it."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = contexts()[1].wrap_bio(self._in, self._out, server_hostname="localhost")
        self.is_secure = False

    def shake(self, spoil: Random | None = None) -> None:
        """One step of the handshake. With `spoil` some bits of what goes out are changed."""
        self._in.write(super().read())
        try:
            self._tls.do_handshake()
            self.is_secure = True
        except ssl.SSLWantReadError:
            pass  # the handshake goes on with what the peer sends next
        except ssl.SSLError:
            self.close()
        data = bytearray(self._out.read())
        if spoil is not None and data:
            for _ in range(spoil.randint(1, 8)):
                data[spoil.randrange(1, len(data))] ^= 1 << spoil.randrange(8)
        if self.is_open:
            super().send(bytes(data))

    def send(self, data: bytes) -> None:
        if self.is_secure and self.is_open and data:
            self._tls.write(data)
            data = self._out.read()
        super().send(data)


async def turns(count: int) -> None:
    for _ in range(count):
        await trio.lowlevel.checkpoint()


async def serve_one(
    routes: Routes, counts: Statistics, poller: Poller, tls: ServerTls | None, sock: socket.socket
) -> None:
    """What `remoting.serve` does with a connection that it has accepted."""
    stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
    is_served, link = await accept_link(stream, tls, 5_000)
    if not is_served:
        counts.refused_count += 1
        await trio.aclose_forcefully(stream)
        return
    session = Session(
        counts.opened_count + 1,
        stream,
        "peer:1",
        SessionHost(counts, MAX_FRAME_BYTES, 1 << 24, poller),
        tls=link,
    )
    await serve_session(routes, session, counts, idle_timeout_ms=60_000)


async def talk(random: Random, peers: list[Peer]) -> int:
    """Cases to all peers, a piece to each in turn, so that the server reads every piece by itself. How many cases."""
    count = 0
    for _ in range(CASES_PER_CONNECTION):
        streams = [(peer, pieces(random, damaged(random))) for peer in peers if peer.is_open]
        count += len(streams)
        for number in range(4):
            for peer, parts in streams:
                if peer.is_open and number < len(parts):
                    peer.send(parts[number])
            await turns(3)
        for peer in peers:
            if peer.is_open and random.random() < 0.1:
                peer.close()
            elif peer.is_open:
                peer.read()
    return count


async def handshakes(random: Random, peers: list[TlsPeer]) -> None:
    """Most peers shake hands; some spoil it, some send something else."""
    for peer in peers:
        if random.random() < 0.1:
            peer.send(damaged(random))
    spoiled = {peer for peer in peers if random.random() < 0.3}
    for _ in range(6):
        for peer in peers:
            if peer.is_open and not peer.is_secure:
                peer.shake(random if peer in spoiled else None)
        await turns(4)


@pytest.mark.parametrize("kind", ["plain", "tls"])
async def test_nothing_is_left_of_any_connection(kind: str) -> None:
    wanted = max(LEAST_CASES[kind], int(fuzz_seconds() * CASES_PER_SECOND[kind]))
    if "RMQHA_FRAME_CASES" in os.environ:
        wanted = int(os.environ["RMQHA_FRAME_CASES"]) // (1 if kind == "plain" else 100)
    seed = drawn_seed()
    random, routes, counts = Random(seed), Routes(), Statistics()
    tls = ServerTls(contexts()[0], only=False) if kind == "tls" else None
    poller, done, secured = Poller(), 0, 0
    async with trio.open_nursery() as server:
        server.start_soon(poller.run)
        await turns(3)
        before, tasks_before = descriptors(), tasks()
        while done < wanted:
            async with trio.open_nursery() as connections:
                pairs = [socket.socketpair() for _ in range(TOGETHER)]
                for ours, _ in pairs:
                    connections.start_soon(serve_one, routes, counts, poller, tls, ours)
                if kind == "tls":
                    shaking = [TlsPeer(theirs) for _, theirs in pairs]
                    await handshakes(random, shaking)
                    secured += sum(peer.is_secure for peer in shaking)
                    peers: list[Peer] = [*shaking]
                else:
                    peers = [Peer(theirs) for _, theirs in pairs]
                done += await talk(random, peers)
                for peer in peers:
                    peer.close()
                with trio.fail_after(HANG_S):
                    while connections.child_tasks:
                        await trio.lowlevel.checkpoint()
            assert (routes.open, counts.session_count, counts.queued_bytes) == (0, 0, 0)
            # one of an earlier test may be collected meanwhile, so there may be fewer
            assert (descriptors() - before, tasks(), poller._entries) == (Counter(), tasks_before, {}), (
                f"after {done} cases"
            )
        server.cancel_scope.cancel()
    print(f"{done} cases, {counts.opened_count} sessions, {routes.answered} requests, {counts.bad_frame_count} refused")
    assert counts.bad_frame_count > done / 20 and routes.answered > done / 20
    assert kind == "plain" or (secured and counts.refused_count)
