"""Server and client of RocketMQ's request/response protocol over TCP. Shell. The connection itself, of either end, is
in `rmqha.host.net.session`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

import trio

from rmqha.host.access.process_security import no_longer_own_form
from rmqha.host.access.security import Security, accept_link, ambient, connect
from rmqha.host.clock import HostClock
from rmqha.host.net import network
from rmqha.host.net.boundary import Boundary
from rmqha.host.net.deadlines import Deadlines
from rmqha.host.net.poller import Poller
from rmqha.host.net.session import (
    IDLE_TIMEOUT_MS,
    MAX_QUEUED_BYTES,
    SendFastPath,
    Service,
    Session,
    SessionHost,
)
from rmqha.host.net.statistics import Statistics
from rmqha.host.net.turn_read_batch import TurnReadBatch
from rmqha.host.net.unverified_sessions import (
    LONG_FRAME_TIMEOUT_MS,
    UnverifiedSession,
    UnverifiedSessions,
    has_known_code,
)
from rmqha.host.process import FEW_FILES_ADVICE, max_session_count
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import NotSentError, RmqhaError, UnreachableError
from rmqha.wire.command import FLAG_ONEWAY, Command

if TYPE_CHECKING:
    from rmqha.host.access.auth_filter import AuthFilter, SignedSendFastPath
    from rmqha.host.access.peer_filter import PeerRules
    from rmqha.model.identity import Credentials
    from rmqha.model.quota import Quotas
    from rmqha.wire.auth.session_signature import SessionSigner

FIRST_REQUEST_TIMEOUT_MS = 2_000
MAX_SESSION_COUNT = 20_000
"""Most connections of a server; fewer where the process may not have so many file descriptors (`max_session_count`)."""


async def serve(
    service: Service,
    address: str,
    *,
    max_frame_bytes: int,
    idle_timeout_ms: int = IDLE_TIMEOUT_MS,
    max_queued_bytes: int = MAX_QUEUED_BYTES,
    statistics: Statistics | None = None,
    security: Security | None = None,
    quotas: Quotas | None = None,
    poller: Poller | None = None,
    boundary: Boundary | None = None,
    first_request_timeout_ms: int = FIRST_REQUEST_TIMEOUT_MS,
    peer_rules: PeerRules | None = None,
    fast_path: SignedSendFastPath | None = None,
    task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Bind `address`, report the actual port by `task_status.started`, and serve until cancelled.

    `security` None takes `rmqha.host.access.security.ambient`; `poller` None makes one. `boundary` takes unexpected
    exceptions of sessions; None: they end the server. `peer_rules`: requests that only servers of this cluster may
    send, where there are no accounts. `fast_path` answers plain sends; it is not used where a filter has to see each
    request (quotas, auditLogLevel=all). Raises UsageError if the address cannot be bound. When cancelled, sessions get
    a second to write what is queued. A connection without a valid request within `first_request_timeout_ms` is closed
    (`rmqha.host.net.unverified_sessions`); a TLS handshake before it has as long.
    """
    counts = Statistics() if statistics is None else statistics
    acceptor = _ConnectionAcceptor(
        service,
        _Limits(max_frame_bytes, idle_timeout_ms, max_queued_bytes, first_request_timeout_ms),
        _Access(ambient.get() if security is None else security, peer_rules, quotas),
        fast_path,
        counts,
        Poller() if poller is None else poller,
        boundary,
    )
    listeners = await network.listen(address)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(acceptor.poller.run)
        nursery.start_soon(acceptor.deadlines.run)
        task_status.started(network.local_port(listeners[0]))
        await trio.serve_listeners(acceptor.handle, listeners, handler_nursery=nursery)


@dataclass(frozen=True, slots=True)
class _Limits:
    """Limits of each connection of a server, as `serve` takes them."""

    max_frame_bytes: int
    idle_timeout_ms: int
    max_queued_bytes: int
    first_request_timeout_ms: int


@dataclass(frozen=True, slots=True)
class _Access:
    """Rules of who may send what, and how fast, to a server; each becomes a filter in front of the service.
    The files of `security` may be read again while the server runs: each connection takes what they say then."""

    security: Security
    peer_rules: PeerRules | None
    quotas: Quotas | None


class _ConnectionAcceptor:
    """Accepts the connections of one port and serves each through the filters that the configuration asks for."""

    def __init__(
        self,
        service: Service,
        limits: _Limits,
        access: _Access,
        fast_path: SignedSendFastPath | None,
        counts: Statistics,
        poller: Poller,
        boundary: Boundary | None,
    ) -> None:
        from rmqha.host.access.auth_filter import Audited, AuthFilter
        from rmqha.host.access.peer_filter import PeerFilter
        from rmqha.host.access.quota_filter import QuotaFilter, UnmeteredFastPath

        security, peer_rules, quotas = access.security, access.peer_rules, access.quotas
        self._guard: AuthFilter | None = None
        self.deadlines = counts.large_frames.deadlines = Deadlines()
        metered = None if quotas is None else QuotaFilter(service, quotas, HostClock(), counts, self.deadlines.call_in)
        self._service = service if metered is None else metered
        if security.audit is not None and security.audit.records_sends:
            fast_path = None
        self._fast_path: SendFastPath | None = (
            fast_path if fast_path is None or quotas is None else UnmeteredFastPath(fast_path, quotas)
        )
        """None where a filter must see each request."""
        if security.accounts is not None:
            self._service = self._guard = AuthFilter(
                self._service, security.accounts, counts, security.audit, security.acl_signature, fast_path, metered
            )
            self._fast_path = fast_path and self._guard
        else:
            if security.audit is not None:
                self._service = Audited(self._service, security.audit)
            if security.secret is not None and peer_rules is not None:
                peers = PeerFilter(self._service, security.secret, peer_rules, counts, security.audit, self._fast_path)
                self._service, self._fast_path = peers, peers
        self._limits = limits
        self._counts = counts
        self._security = security
        self.poller = poller
        self._boundary = boundary
        self._session_host = SessionHost(
            counts,
            limits.max_frame_bytes,
            limits.max_queued_bytes,
            poller,
            boundary,
            self._fast_path,
            None if self._fast_path is None else TurnReadBatch(self._fast_path, poller).add,
            self.deadlines,
        )
        self._unverified_sessions = UnverifiedSessions()
        self._opened_count = 0
        self._handshaking_count = 0
        self._max_sessions = min(MAX_SESSION_COUNT, max_session_count())

    async def handle(self, stream: trio.SocketStream) -> None:
        peer = network.peer_name(stream)
        try:
            await self._handle_one(stream, peer)
        except Exception as error:
            if self._boundary is None:
                raise
            self._boundary.failed(error, peer)
            await trio.aclose_forcefully(stream)

    async def _handle_one(self, stream: trio.SocketStream, peer: str) -> None:
        counts, unverified = self._counts, self._unverified_sessions
        if counts.session_count + self._handshaking_count >= self._max_sessions and not unverified.evict_oldest():
            counts.refused_count += 1
            if self._boundary is not None:
                is_short = self._max_sessions < MAX_SESSION_COUNT
                self._boundary.full(self._max_sessions, FEW_FILES_ADVICE if is_short else "see who keeps so many open")
            await trio.aclose_forcefully(stream)
            return
        self._opened_count = number = self._opened_count + 1
        with trio.CancelScope() as scope:
            unverified.add(number, scope.cancel)
            try:
                await self._serve(stream, peer, number)
            finally:
                unverified.remove(number)
        counts.pushed_out_count += scope.cancelled_caught

    async def _serve(self, stream: trio.SocketStream, peer: str, number: int) -> None:
        network.tune(stream)
        self._handshaking_count += 1
        try:
            is_served, tls = await accept_link(stream, self._security.server_tls, self._limits.first_request_timeout_ms)
        finally:
            self._handshaking_count -= 1
        if not is_served:
            self._counts.refused_count += 1
            await trio.aclose_forcefully(stream)
            return
        session = Session(
            number,
            stream,
            peer,
            self._session_host,
            unverified=self._unverified_session(peer, number),
            tls=tls,
        )
        await serve_session(self._service, session, self._counts, idle_timeout_ms=self._limits.idle_timeout_ms)

    def _unverified_session(self, peer: str, number: int) -> UnverifiedSession:
        now_s, timeout_ms, guard = trio.current_time(), self._limits.first_request_timeout_ms, self._guard
        return UnverifiedSession(
            now_s + timeout_ms / 1000,
            now_s + max(timeout_ms, LONG_FRAME_TIMEOUT_MS) / 1000,
            has_known_code if guard is None else partial(guard.is_plausible, peer),
            guard is not None,
            partial(self._unverified_sessions.remove, number),
        )


async def serve_session(service: Service, session: Session, statistics: Statistics, *, idle_timeout_ms: int) -> None:
    """Serve one accepted connection to its end."""
    statistics.opened_count += 1
    statistics.session_count += 1
    try:
        service.opened(session)
        await session.run(service.received, idle_timeout_ms=idle_timeout_ms, reader_writes=True)
    finally:
        statistics.session_count -= 1
        service.closed(session)


def may_be_cancellation(error: BaseException | None) -> bool:
    """True of an error that a nursery has to see: only it knows whether the cancellation is its own."""
    return isinstance(error, trio.Cancelled) or (
        isinstance(error, BaseExceptionGroup) and not isinstance(error, ExceptionGroup)
    )


class _Peer:
    """Connection to one address, open or being dialled."""

    def __init__(self) -> None:
        self.session: Session | None = None
        self.error: UnreachableError | None = None
        self.ready = trio.Event()


class RemotingClient:
    """Calls to any number of addresses, one connection each, opened on demand and again after a loss.

    An async context manager; leaving it closes the connections. `on_request` is called with each request of a peer; the
    command that it returns is sent back unless the request is oneway. `on_closed` is called with the address of a lost
    connection.
    """

    def __init__(
        self,
        *,
        max_frame_bytes: int = 16 * 1024 * 1024,
        on_request: Callable[[str, Command], Command | None] | None = None,
        on_closed: Callable[[str], None] | None = None,
        security: Security | None = None,
        not_open: Callable[[], RmqhaError] | None = None,
    ) -> None:
        """`security` None takes `rmqha.host.access.security.ambient`. `not_open`: the error of a call outside the
        context, which no further try will help; None: NotSentError."""
        self._security = ambient.get() if security is None else security
        self._on_request = on_request
        self._on_closed = on_closed
        self._not_open = not_open
        self._peers: dict[str, _Peer] = {}
        self._sign_own: set[str] = set()
        """Addresses of servers that accept our own form of signatures: Apache's, which covers less, is not used
        again."""
        self._statistics = Statistics()
        self._session_host = SessionHost(self._statistics, max_frame_bytes)
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
        if may_be_cancellation(error):
            await self._nursery_manager.__aexit__(kind, error, trace)
        else:
            # the body's own error leaves as it is, SystemExit and KeyboardInterrupt too; the nursery would wrap it
            await self._nursery_manager.__aexit__(None, None, None)

    def statistics(self) -> dict[str, int]:
        return self._statistics.as_dict()

    async def call(self, address: str, command: Command, timeout_ms: int | None) -> Command:
        """Send a request and return the response, whatever its code. Raises NotSentError if there is no connection,
        UnreachableError if it closes or no response comes in time. `timeout_ms` None: the caller has a cancel scope."""
        started = trio.current_time()
        peer = self._peers.get(address)
        session = peer.session if peer is not None else None
        if session is None or session.closed:
            session = await self._session(address, network.DIAL_TIMEOUT_MS if timeout_ms is None else timeout_ms)
            if timeout_ms is not None:
                timeout_ms = max(1, timeout_ms - round((trio.current_time() - started) * 1000))
        self._sign(session, command)
        return await session.call(command, timeout_ms)

    def _sign(self, session: Session, command: Command) -> None:
        """Sign a request; called in the turn in which it is sent, because signatures count requests in that order."""
        credentials = self._security.credentials
        if credentials is None:
            return
        signer: SessionSigner | None = session.attachment
        if signer is not None:
            signer.sign(command, credentials)
        elif not self._security.own_form_only:
            from rmqha.wire.auth.signature import sign

            sign(command, credentials)

    async def oneway(self, address: str, *commands: Command, timeout_ms: int = network.DIAL_TIMEOUT_MS) -> None:
        """Queue requests that get no response. Raises NotSentError if there is no connection."""
        session = await self._session(address, timeout_ms)
        for command in commands:
            command.flag |= FLAG_ONEWAY
            self._sign(session, command)
            session.send(command)

    def oneway_at_once(self, address: str, command: Command) -> bool:
        """Send as `oneway` does, in this turn of the event loop. False, with nothing done, if there is no open
        connection."""
        peer = self._peers.get(address)
        if peer is None or peer.session is None or peer.session.closed:
            return False
        command.flag |= FLAG_ONEWAY
        self._sign(peer.session, command)
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
                raise NotSentError(f"{address}: the client is closed") if self._not_open is None else self._not_open()
            peer = self._peers[address] = _Peer()
            self._nursery.start_soon(self._connect, address, peer)
        with trio.move_on_after(timeout_ms / 1000):
            await peer.ready.wait()
        if peer.session is not None:
            return peer.session
        if peer.error is not None:
            raise NotSentError(str(peer.error))
        raise NotSentError(f"{address} did not answer a connection within {timeout_ms} ms")

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
            session = Session(self._statistics.opened_count, stream, address, self._session_host)
            try:
                if self._security.credentials is None:
                    peer.session = session
                    peer.ready.set()
                    await self._run(session)
                else:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(self._open, address, peer, session, self._security.credentials)
                        await self._run(session)
                        nursery.cancel_scope.cancel()
            finally:
                self._statistics.session_count -= 1
        finally:
            peer.ready.set()
            if self._peers.get(address) is peer:
                del self._peers[address]
        if self._on_closed is not None:
            self._on_closed(address)

    async def _run(self, session: Session) -> None:
        await session.run(
            lambda _, commands: self._received(session, commands), idle_timeout_ms=None, reader_writes=False
        )

    async def _open(self, address: str, peer: _Peer, session: Session, credentials: Credentials) -> None:
        """Agree on the form of signatures, and over TLS prove the account once, so that none are needed; then the
        connection is ready."""
        from rmqha.wire.auth.session_signature import PROOF, PROOF_VERSION, VERSION, SessionSigner, session_proof
        from rmqha.wire.auth.signature import ACCESS_KEY

        hello = Command(RequestCode.RMQHA_OPEN_SESSION, {"version": VERSION, ACCESS_KEY: credentials.access_key})
        try:
            answer = await session.call(hello, network.DIAL_TIMEOUT_MS)
            if answer.code == ResponseCode.SUCCESS and (nonce := answer.ext.get("nonce")):
                session.attachment = signer = SessionSigner(nonce)
                self._sign_own.add(address)
                if answer.ext.get(PROOF) == PROOF_VERSION and session.binding:
                    hello.ext[PROOF] = session_proof(credentials, nonce, session.binding)
                    answer = await session.call(hello, network.DIAL_TIMEOUT_MS)
                    signer.proven = credentials if answer.code == ResponseCode.SUCCESS else None
            elif address in self._sign_own and not self._security.own_form_only:
                raise UnreachableError(no_longer_own_form(address))
        except UnreachableError as error:
            peer.error = error
            session.close()
            return
        peer.session = session
        peer.ready.set()

    def _received(self, session: Session, commands: list[Command]) -> None:
        for command in commands:
            reply = self._on_request(session.peer, command) if self._on_request is not None else None
            if reply is not None and not command.is_oneway:
                session.send(reply)
