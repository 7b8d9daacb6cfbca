"""Current addresses of servers: host names that resolve to several addresses, and lists of an address server.

A name with one address stays as it is, so that TLS can check it. A name with several addresses, such as the headless
service of a container platform, is replaced by them. Names are resolved again at intervals, so that servers can be
added and removed without a restart.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Sequence

import trio

from rmqha.model.error import ConfigError
from rmqha.model.identity import is_numeric, join_address, parse_address
from rmqha.port import Tracer

LOOKUP_TIMEOUT_S = 5
MAX_ADDRESS_COUNT = 64
"""Most addresses of one list, of all lookups together."""

Lookup = Callable[[str, int], Awaitable[Sequence[str]]]
"""Function that resolves a host name and returns its IP addresses. Raises OSError."""


async def system_lookup(host: str, port: int) -> Sequence[str]:
    rows = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(row[4][0]) for row in rows]


class AddressWatch:
    """Watcher of one list of addresses. `given` returns the list as it is configured now; `apply` is called with the
    resolved addresses, in a stable order, whenever they have changed."""

    def __init__(
        self,
        key: str,
        given: Callable[[], Awaitable[Sequence[str]]],
        apply: Callable[[list[str]], None],
        interval_ms: int,
        tracer: Tracer,
        lookup: Lookup = system_lookup,
    ) -> None:
        self._key = key
        self._given = given
        self._apply = apply
        self._interval_ms = interval_ms
        self._tracer = tracer
        self._lookup = lookup
        self._known: dict[str, list[str]] = {}
        """Addresses of each name when it was found last."""
        self._current: list[str] = []
        self._failure = ""
        self._changed = trio.Event()

    def resolve_again(self) -> None:
        """Resolve at once: the configuration has changed."""
        self._changed.set()

    async def run(self) -> None:
        while True:
            self._changed = trio.Event()
            await self.resolve()
            with trio.move_on_after(self._interval_ms / 1000):
                await self._changed.wait()

    async def resolve(self) -> list[str]:
        """Resolve the list; returns the current addresses. A name that cannot be resolved keeps its last addresses."""
        failure = ""
        try:
            given = list(await self._given())
        except (ConfigError, OSError) as error:
            given, failure = [], str(error)
        if given:
            found: list[str] = []
            for address in given:
                try:
                    found += await self._expanded(address)
                except OSError as error:
                    failure = f"{address}: {error.strerror or error}"
                    found += self._known.get(address, [address])
            self._take(list(dict.fromkeys(found))[:MAX_ADDRESS_COUNT])
        if failure != self._failure:
            self._failure = failure
            self._tracer.event(
                "addresses_looked_up" if not failure else "addresses_not_looked_up", key=self._key, reason=failure
            )
        return list(self._current)

    async def _expanded(self, address: str) -> list[str]:
        host, port = parse_address(address)
        if is_numeric(host):
            return [address]
        numbers: Sequence[str] = ()
        with trio.move_on_after(LOOKUP_TIMEOUT_S):
            numbers = sorted(set(await self._lookup(host, port)))
        if not numbers:
            raise OSError(f"{host} was not found within {LOOKUP_TIMEOUT_S} s")
        self._known[address] = [address] if len(numbers) == 1 else [join_address(item, port) for item in numbers]
        return self._known[address]

    def _take(self, addresses: list[str]) -> None:
        if addresses == self._current:
            return
        if self._current:
            self._tracer.event("addresses_changed", key=self._key, addresses=";".join(addresses))
        self._current = addresses
        self._apply(addresses)
