"""The session of an open client: connections, routes, a nursery for its own tasks. Control plane."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AsyncExitStack
from types import TracebackType

import trio

from rmqha.client.route import name_servers
from rmqha.client.route_table import ClientRoutes
from rmqha.host.access.security import Security
from rmqha.host.net.remoting import RemotingClient, may_be_cancellation
from rmqha.model.error import UsageError
from rmqha.model.identity import parse_address
from rmqha.wire.command import Command


class ClosedError(UsageError):
    """A client was used after it was closed."""


class ClientSession:
    """Session of one client; an async context manager. An error raised inside leaves as it is, not wrapped in a group
    by the nursery."""

    def __init__(
        self,
        namesrv: str,
        on_request: Callable[[str, Command], Command | None] | None = None,
        security: Security | None = None,
        on_closed: Callable[[str], None] | None = None,
    ) -> None:
        """`on_request` gets the requests that brokers push to the client; `security` None takes that of the process;
        `on_closed` gets the address of a lost connection. Raises UsageError if `namesrv` is no address list."""
        self._namesrv = namesrv
        self.remoting = RemotingClient(
            on_request=on_request, on_closed=on_closed, security=security, not_open=self.not_open
        )
        self.routes = ClientRoutes(self.remoting, namesrv)
        self.local_host = "127.0.0.1"
        self.process_id: int
        self._was_open = False
        self._is_open = False
        self._stack = AsyncExitStack()
        self.nursery: trio.Nursery

    async def __aenter__(self) -> ClientSession:
        """Open the session. Raises UsageError if it was open before, or outside of trio."""
        if self._was_open:
            raise UsageError("a client is opened once; make another one")
        require_trio()
        async with AsyncExitStack() as stack:
            self.process_id = os.getpid()  # clients may be made before a process forks, and opened behind
            self.local_host = await local_host_towards(name_servers(self._namesrv)[0])
            await stack.enter_async_context(self.remoting)
            self.nursery = await stack.enter_async_context(trio.open_nursery())
            self.nursery.start_soon(self.routes.run)
            self._stack = stack.pop_all()
            self._was_open = self._is_open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_open = False
        self.nursery.cancel_scope.cancel()
        if may_be_cancellation(error):
            await self._stack.__aexit__(kind, error, trace)
        else:
            await self._stack.aclose()

    async def give_up(self, error: BaseException) -> None:
        """Close the session after an opening that failed with `error`: it may be opened again."""
        await self.__aexit__(type(error), error, error.__traceback__)
        self._was_open = False

    def check_open(self) -> None:
        """Raise UsageError unless the client is open."""
        if not self._is_open:
            raise self.not_open()

    def not_open(self) -> UsageError:
        """The error of a call that needs an open client."""
        if self._was_open:
            return ClosedError("the client was closed: open another one")
        return UsageError("the client is not open: use it by `async with`")


def require_trio() -> None:
    """Raise UsageError unless trio runs here: under asyncio its own error would name no way out."""
    if not trio.lowlevel.in_trio_run():
        raise UsageError(
            "clients of rmqha.client run in trio.run(); take those of rmqha.client.aio for asyncio, "
            "of rmqha.client.sync for programs without an event loop"
        )


async def local_host_towards(address: str) -> str:
    """The IP address that this machine uses towards `address`, as ids of messages and clients carry it.

    Nothing is sent: connecting a datagram socket only picks the route. 127.0.0.1 if there is none."""
    host, port = parse_address(address)
    try:
        found = await trio.socket.getaddrinfo(host, port, type=trio.socket.SOCK_DGRAM)
        family, _, _, _, target = found[0]
        with trio.socket.socket(family, trio.socket.SOCK_DGRAM) as probe:
            await probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"
