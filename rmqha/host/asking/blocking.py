"""Questions over blocking sockets, each task in a thread of its own, for commands that only ask. Shell.

Importing trio costs as much processor time as all the rest of a short command. TLS and signatures are as over trio. A
question is a coroutine that awaits nothing but the calls of a `BlockingClient` and the tasks of `ThreadTasks`, so it
never leaves the thread that runs it. Only one task runs at a time, the others wait in a call, as under an event loop: a
question needs no locks.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from rmqha.host.access.process_security import Security, ambient, no_longer_own_form
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import CLOSED, CLOSED_UNHEARD, FOREIGN, NotSentError, RemoteProtocolError, UnreachableError
from rmqha.model.identity import parse_address
from rmqha.wire.command import Command
from rmqha.wire.frame import FrameParser, encode_frame

if TYPE_CHECKING:
    from ssl import SSLContext, SSLSocket

    from rmqha.model.identity import Credentials
    from rmqha.wire.auth.session_signature import SessionSigner

T = TypeVar("T")

DIAL_TIMEOUT_MS = 3_000
MAX_FRAME_BYTES = 16 * 1024 * 1024
READ_BYTES = 256 * 1024


class _TooLate(BaseException):
    """Raised when the time of a scope is over. It is no Exception, so that no handler between the call and the scope
    catches it as an error."""

    def __init__(self, scope: DeadlineScope) -> None:
        super().__init__()
        self.scope = scope


_turn: ContextVar[threading.Lock | None] = ContextVar("turn", default=None)
"""Lock that the running task holds; None outside of `run`."""
_scopes: ContextVar[tuple[DeadlineScope, ...]] = ContextVar("scopes", default=())


def is_running() -> bool:
    """True within `run`."""
    return _turn.get() is not None


def run(question: Callable[..., Awaitable[T]], *args: Any) -> T:
    """Run a question in the calling thread; returns its result and raises its exceptions."""
    assert not is_running(), "a question asks by await"
    return copy_context().run(_run_first, question, args)


def _run_first(question: Callable[..., Awaitable[T]], args: tuple[Any, ...]) -> T:
    turn = threading.Lock()
    _turn.set(turn)
    with turn:
        return _outcome(question(*args))


def _outcome(awaited: Awaitable[T]) -> T:
    assert isinstance(awaited, Coroutine)
    try:
        awaited.send(None)
    except StopIteration as done:
        value: T = done.value
        return value
    awaited.close()
    raise AssertionError("a question over blocking sockets has awaited something of an event loop")


@contextmanager
def _others_run() -> Iterator[None]:
    """Let other tasks run while this one waits for the system."""
    turn = _turn.get()
    assert turn is not None, "outside of run"
    turn.release()
    try:
        yield
    finally:
        turn.acquire()


class DeadlineScope:
    """Context manager that bounds the time of the calls within it. When the time is over the block ends, without an
    error."""

    def __init__(self, seconds: float) -> None:
        self.deadline_s = time.monotonic() + seconds
        self.cancelled_caught = False
        """True if the time was over before the block ended."""

    def __enter__(self) -> DeadlineScope:
        self._before = _scopes.set((*_scopes.get(), self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        _scopes.reset(self._before)
        self.cancelled_caught = isinstance(error, _TooLate) and error.scope is self
        return self.cancelled_caught


def _first_to_end() -> DeadlineScope | None:
    """Scope around this task that ends first; None without one."""
    return min(_scopes.get(), key=lambda scope: scope.deadline_s, default=None)


async def sleep(seconds: float) -> None:
    """Wait, and let other tasks run."""
    scope = _first_to_end()
    end_s = time.monotonic() + seconds
    until_s = end_s if scope is None else min(end_s, scope.deadline_s)
    with _others_run():
        time.sleep(max(0.0, until_s - time.monotonic()))  # noqa: ASYNC251 - its thread is its own
    if scope is not None and until_s < end_s:
        raise _TooLate(scope)


class ThreadTasks:
    """Group of tasks, as an async context manager; leaving it waits for its tasks and raises the first error. A task is
    bounded by the time-outs of its calls and by the scopes around this context. The error of another task does not
    cancel it."""

    def __init__(self) -> None:
        self._scopes = _scopes.get()
        self._threads: list[threading.Thread] = []
        self._errors: list[BaseException] = []

    async def __aenter__(self) -> ThreadTasks:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, KeyboardInterrupt):
            return
        while self._threads:  # a task may start others
            thread = self._threads.pop()
            with _others_run():
                thread.join()
        if error is None and self._errors:
            raise self._errors[0]

    def start_soon(self, task: Callable[..., Awaitable[Any]], *args: Any) -> None:
        """Start a task; it runs when the current one waits next."""
        # a daemon: Ctrl-C does not wait for a silent peer
        thread = threading.Thread(target=copy_context().run, args=(self._run, task, args), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self, task: Callable[..., Awaitable[Any]], args: tuple[Any, ...]) -> None:
        turn = _turn.get()
        assert turn is not None, "outside of run"
        _scopes.set(self._scopes)
        with turn:
            try:
                _outcome(task(*args))
            except BaseException as error:  # noqa: BLE001 - raised by __aexit__
                self._errors.append(error)


class _Connection:
    """One connection; one call at a time."""

    def __init__(self, stream: socket.socket, address: str) -> None:
        self._stream = stream
        self._address = address
        self._parser = FrameParser(MAX_FRAME_BYTES)
        self._has_heard = False
        self.signer: SessionSigner | None = None
        """Signer in rmqha's own form; None if the server does not accept that."""

    @property
    def is_fresh(self) -> bool:
        """False if the peer has closed the connection, or has sent bytes that belong to no call."""
        return not select.select([self._stream], [], [], 0)[0]

    def secure(self, context: SSLContext, end_s: float) -> _Connection:
        """Perform the TLS handshake; returns the connection to use. Raises NotSentError; the connection is then
        closed."""
        from rmqha.host.access.client_security import TLS_HANDSHAKE_TIMEOUT_MS, tls_error_sentence

        left_s = min(end_s - time.monotonic(), TLS_HANDSHAKE_TIMEOUT_MS / 1000)
        try:
            if left_s <= 0:
                raise TimeoutError
            self._stream.settimeout(left_s)
            return _TlsConnection(context.wrap_socket(self._stream), self._address)
        except OSError as error:
            self._stream.close()
            raise NotSentError(tls_error_sentence(self._address, error)) from None

    def close(self) -> None:
        self._stream.close()

    def exchange(self, command: Command, deadline_s: float) -> Command | None:
        """Send a request and wait for its response; None if none has come in time. Raises UnreachableError."""
        try:
            if not self._wait_until(deadline_s):
                return None
            self._stream.sendall(encode_frame(command))
            while self._wait_until(deadline_s):
                data = self._stream.recv(READ_BYTES)
                if not data:
                    raise ConnectionResetError
                self._has_heard = True
                for found in self._parser.feed(data):
                    if found.is_response and found.opaque == command.opaque:
                        return found
        except TimeoutError:
            return None
        except RemoteProtocolError:
            raise UnreachableError(f"{self._address} {FOREIGN}") from None
        except OSError:
            raise UnreachableError(f"{self._address} {CLOSED if self._has_heard else CLOSED_UNHEARD}") from None
        return None

    def _wait_until(self, deadline_s: float) -> bool:
        """Set the socket's time-out to the time that is left; False if none is left."""
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            return False
        self._stream.settimeout(left_s)
        return True


class _TlsConnection(_Connection):
    """One connection with TLS. After the handshake the server sends session tickets, which are no response."""

    _stream: SSLSocket

    def __init__(self, stream: SSLSocket, address: str) -> None:
        super().__init__(stream, address)

    @property
    def is_fresh(self) -> bool:
        if super().is_fresh:
            return True
        from ssl import SSLWantReadError

        self._stream.settimeout(0)
        try:
            self._stream.recv(1)
        except SSLWantReadError:
            return True
        except OSError:
            return False
        return False


class BlockingClient:
    """Client of any number of addresses. Each call has a connection for itself, which the next call uses again. Async
    context manager; leaving it closes the connections."""

    def __init__(self, security: Security | None = None) -> None:
        """`security` None takes that of the process."""
        self._security = ambient.get() if security is None else security
        self._sign_own: set[str] = set()
        """Addresses of servers that accept our own form of signatures: Apache's, which covers less, is not used
        again."""
        self._idle: dict[str, list[_Connection]] = {}
        self._opaque = 0

    async def __aenter__(self) -> BlockingClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for connections in self._idle.values():
            for connection in connections:
                connection.close()
        self._idle.clear()

    async def call(self, address: str, command: Command, timeout_ms: int | None) -> Command:
        """Send a request and return the response, whatever its code. Raises NotSentError if there is no connection,
        UnreachableError if it closes or no answer comes in time. `timeout_ms` None: a scope bounds the time."""
        self._opaque = command.opaque = self._opaque + 1
        scope = _first_to_end()
        end_s = time.monotonic() + timeout_ms / 1000 if timeout_ms is not None else float("inf")
        is_bounded_by_scope = scope is not None and scope.deadline_s < end_s
        if scope is not None and is_bounded_by_scope:
            end_s = scope.deadline_s
        assert end_s < float("inf"), "a call without an end"
        kept = self._kept(address)
        try:
            with _others_run():
                connection = kept or self._open(address, end_s, DIAL_TIMEOUT_MS if timeout_ms is None else timeout_ms)
                try:
                    self._sign(connection, command)
                    found = connection.exchange(command, end_s)
                except BaseException:
                    connection.close()
                    raise
        except UnreachableError:
            if scope is not None and is_bounded_by_scope and time.monotonic() >= end_s:
                raise _TooLate(scope) from None
            raise
        if found is not None:
            self._idle.setdefault(address, []).append(connection)
            return found
        connection.close()
        if scope is not None and is_bounded_by_scope:
            raise _TooLate(scope)
        raise UnreachableError(f"{address} did not answer request {command.code} within {timeout_ms} ms")

    def _open(self, address: str, end_s: float, timeout_ms: int) -> _Connection:
        """Open a connection with this process's TLS and form of signatures. Raises NotSentError."""
        connection = _dial(address, end_s, timeout_ms)
        if (context := self._security.client_tls) is not None:
            connection = connection.secure(context, end_s)
        if (credentials := self._security.credentials) is not None:
            try:
                self._agree_on_form(connection, address, credentials, end_s)
            except BaseException:
                connection.close()
                raise
        return connection

    def _agree_on_form(self, connection: _Connection, address: str, credentials: Credentials, end_s: float) -> None:
        """Ask the server if it takes our own signatures. Raises NotSentError."""
        from rmqha.wire.auth.session_signature import VERSION, SessionSigner
        from rmqha.wire.auth.signature import ACCESS_KEY

        hello = Command(RequestCode.RMQHA_OPEN_SESSION, {"version": VERSION, ACCESS_KEY: credentials.access_key})
        try:
            answer = connection.exchange(hello, min(end_s, time.monotonic() + DIAL_TIMEOUT_MS / 1000))
        except UnreachableError as error:
            raise NotSentError(str(error)) from None
        if answer is None:
            raise NotSentError(f"{address} did not answer request {hello.code} in time")
        if answer.code == ResponseCode.SUCCESS and (nonce := answer.ext.get("nonce")):
            connection.signer = SessionSigner(nonce)
            self._sign_own.add(address)
        elif address in self._sign_own and not self._security.own_form_only:
            raise NotSentError(no_longer_own_form(address))

    def _sign(self, connection: _Connection, command: Command) -> None:
        credentials = self._security.credentials
        if credentials is None:
            return
        if connection.signer is not None:
            connection.signer.sign(command, credentials)
        elif not self._security.own_form_only:
            from rmqha.wire.auth.signature import sign

            sign(command, credentials)

    def _kept(self, address: str) -> _Connection | None:
        waiting = self._idle.get(address, [])
        while waiting:
            connection = waiting.pop()
            if connection.is_fresh:
                return connection
            connection.close()
        return None


def _places(host: str, port: int, end_s: float) -> list[Any]:
    """Socket addresses of a host, as `getaddrinfo` returns them; [] if the lookup takes too long. Raises OSError."""
    # as bytes: for text Python would load its IDNA codec
    name = host.encode() if host.isascii() else host
    found: list[Any] = []
    failure: list[OSError] = []

    def ask(flags: int = 0) -> None:
        try:
            found.extend(socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=flags))
        except OSError as error:
            failure.append(error)

    ask(socket.AI_NUMERICHOST)
    if failure:
        # a name: DNS servers may not answer, and the system's time-out is not known
        failure.clear()
        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        thread.join(max(0.0, end_s - time.monotonic()))
    if failure:
        raise failure[0]
    return list(found)


def _dial(address: str, end_s: float, timeout_ms: int) -> _Connection:
    """Connect to "host:port". Raises NotSentError."""
    silent = NotSentError(f"{address} did not answer a connection within {timeout_ms} ms")
    dialled_s = min(end_s, time.monotonic() + DIAL_TIMEOUT_MS / 1000)
    try:
        places = _places(*parse_address(address), dialled_s)
    except (OSError, ValueError) as error:
        raise NotSentError(f"cannot connect to {address}: {error}") from None
    failure: NotSentError = silent
    for family, kind, protocol, _, place in places:
        left_s = dialled_s - time.monotonic()
        if left_s <= 0:
            raise silent
        stream = socket.socket(family, kind, protocol)
        try:
            stream.settimeout(left_s)
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            stream.connect(place)
        except TimeoutError:
            stream.close()
            failure = silent
        except OSError as error:
            stream.close()
            reason = os.strerror(error.errno) if error.errno else str(error)
            failure = NotSentError(f"cannot connect to {address}: {reason}")
        else:
            return _Connection(stream, address)
    raise failure
