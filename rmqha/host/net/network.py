"""TCP over trio: dial and listen, with the socket options that a replica's peers need. Shell."""

from __future__ import annotations

import errno
import math
import os
import socket
from typing import Any

import trio

from rmqha.model.error import UnreachableError, UsageError
from rmqha.model.identity import NO_IPV6, host_of, is_loopback, join_address, parse_address

DIAL_TIMEOUT_MS = 3_000
BACKLOG_COUNT = 1024
_USER_TIMEOUT_MS = 10_000
_KEEPALIVE_IDLE_S = 5
LOOKUP_COUNT = 64
"""Most threads that wait for DNS lookups."""
LOOKUP_AGAIN_S = 5
"""Age (s) up to which a running lookup serves further lookups of the same name. The system's resolver repeats its
query after the same time."""


def tune(stream: trio.SocketStream) -> None:
    """Let the kernel notice a peer whose machine is gone: unanswered bytes or probes end the connection in about 10 s.
    A peer that is only slow or stopped keeps its connection; calls to it time out. (trio sets TCP_NODELAY itself.)"""
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_IDLE_S)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 5)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT_MS)


async def dial(address: str, timeout_ms: int = DIAL_TIMEOUT_MS) -> trio.SocketStream:
    """Connect to "host:port". Raises UnreachableError."""
    try:
        host, port = parse_address(address)
        with trio.fail_after(timeout_ms / 1000):
            stream = await trio.open_tcp_stream(host, port)
    except trio.TooSlowError:
        raise UnreachableError(f"{address} did not answer a connection within {timeout_ms} ms") from None
    except (OSError, ValueError) as error:
        raise UnreachableError(f"cannot connect to {address}: {_reason(error)}") from None
    tune(stream)
    return stream


class _Lookup:
    """A lookup by the system's resolver, and its result."""

    def __init__(self) -> None:
        self.began_at_s = math.inf
        """Monotonic time (s) at which a thread began the lookup; infinity while it waits for a thread."""
        self.done = trio.Event()
        self.found: list[Any] = []
        self.error: Exception | None = None


class NameLookups(trio.abc.HostnameResolver):
    """Resolver of host names in separate threads, for each name one at a time.

    If no DNS server answers, the system's lookup takes up to a minute, while dials give up after seconds and are
    repeated. Their lookups would take all of trio's threads, and no thread would be left to write to the disk.
    """

    def __init__(self) -> None:
        self._threads = trio.CapacityLimiter(LOOKUP_COUNT)
        self._youngest: dict[tuple[Any, ...], _Lookup] = {}
        """Newest running lookup by its arguments."""

    async def getaddrinfo(
        self,
        host: bytes | None,
        port: bytes | str | int | None,
        family: int = 0,
        type: int = 0,
        proto: int = 0,
        flags: int = 0,
    ) -> list[Any]:
        question = (host, port, family, type, proto, flags)
        lookup = self._youngest.get(question)
        if lookup is None or trio.current_time() - lookup.began_at_s >= LOOKUP_AGAIN_S:
            lookup = self._youngest[question] = _Lookup()
            trio.lowlevel.spawn_system_task(self._ask, question, lookup)
        await lookup.done.wait()
        if lookup.error is not None:
            raise lookup.error
        return list(lookup.found)

    async def getnameinfo(self, sockaddr: tuple[str, int] | tuple[str, int, int, int], flags: int) -> tuple[str, str]:
        return await trio.to_thread.run_sync(
            socket.getnameinfo, sockaddr, flags, abandon_on_cancel=True, limiter=self._threads
        )

    async def _ask(self, question: tuple[Any, ...], lookup: _Lookup) -> None:
        try:
            async with self._threads:
                lookup.began_at_s = trio.current_time()
                lookup.found = await trio.to_thread.run_sync(
                    socket.getaddrinfo, *question, abandon_on_cancel=True, limiter=trio.CapacityLimiter(1)
                )
        except (OSError, ValueError, OverflowError) as error:
            lookup.error = error
        except RuntimeError as error:
            lookup.error = OSError(f"no thread for the lookup of its name ({error})")
        finally:
            if self._youngest.get(question) is lookup:
                del self._youngest[question]
            lookup.done.set()


def _reason(error: Exception) -> str:
    """Reason of a failed dial: trio wraps the system's errors, one for each address of a name."""
    cause = error.__cause__
    if isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    return os.strerror(cause.errno) if isinstance(cause, OSError) and cause.errno else str(error)


class FirstRemotePeer:
    """Detector of the first peer that is not this machine."""

    def __init__(self) -> None:
        self.peer = ""
        """Address of the first remote peer, "" without one."""
        self._near: set[str] = set()

    def came(self, peer: str) -> bool:
        """Note a peer, "host:port"; True if it is the first one from another machine."""
        if self.peer:
            return False
        host = host_of(peer)
        if host in self._near or host == "unknown":
            return False
        if is_loopback(host) or is_own_address(host) is not False:
            self._near.add(host)
            return False
        self.peer = peer
        return True


def is_own_address(host: str) -> bool | None:
    """True if `host` is an address of this machine; None for a name that cannot be resolved now."""
    try:
        family, _, _, _, place = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    except OSError:
        return None
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(place)
        except OSError:
            return False
    return True


async def addresses_of(name: str) -> tuple[str, ...]:
    """IP addresses of a host name; () if it cannot be resolved now."""
    try:
        found = await trio.socket.getaddrinfo(name, 0, type=socket.SOCK_STREAM)
    except OSError:
        return ()
    return tuple(dict.fromkeys(str(place[0]) for *_, place in found))


async def listen(address: str) -> list[trio.SocketListener]:
    """Bind "host:port" (port 0: the system picks one) with SO_REUSEADDR.

    Raises UsageError, one sentence, when the port is taken, not allowed, or the host is none of this machine's.
    """
    try:
        host, port = parse_address(address, lowest_port=0)
    except ValueError as error:
        raise UsageError(str(error)) from None
    try:
        listeners = await _open(host, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise UsageError(
                f"port {port} in use on {host}: stop the process that listens there or choose another port"
            ) from None
        if error.errno == errno.EACCES:
            raise UsageError(f"port {port} on {host} needs privileges: choose a port from 1024 up") from None
        raise UsageError(f"cannot listen on {address}: {error.strerror}; choose an address of this machine") from None
    if port == 0:
        # each address family would get a port of its own
        for extra in listeners[1:]:
            await extra.aclose()
        del listeners[1:]
    return listeners


async def _open(host: str, port: int) -> list[trio.SocketListener]:
    """Listeners for all IP addresses of the host; on a machine without IPv6 only for those of IPv4."""
    try:
        return await trio.open_tcp_listeners(port, host=host, backlog=BACKLOG_COUNT)
    except OSError as error:
        numbers = await addresses_of(host) if error.errno in NO_IPV6 else ()
        older = [number for number in numbers if ":" not in number]
        if not older or older == [host]:
            raise
    opened: list[trio.SocketListener] = []
    try:
        for number in older:
            opened += await trio.open_tcp_listeners(port, host=number, backlog=BACKLOG_COUNT)
    except OSError:
        for listener in opened:
            listener.socket.close()
        raise
    return opened


def local_port(listener: trio.SocketListener) -> int:
    port: int = listener.socket.getsockname()[1]
    return port


def peer_name(stream: trio.SocketStream) -> str:
    """ "host:port" of the other end; "unknown:0" if it has gone already."""
    try:
        host, port = stream.socket.getpeername()[:2]
    except OSError:
        return "unknown:0"
    return join_address(host, port)


def write_now(handle: int, data: bytes) -> int:
    """Number of bytes that the socket takes without waiting. Raises OSError."""
    try:
        return os.write(handle, data)
    except BlockingIOError:
        return 0
