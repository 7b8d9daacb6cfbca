"""Hedge against a master that stops answering: a try is given up once its group has another master. Control plane.

A broker that hands its mastership over holds sends and passes them on, so it is asked first (52035): a send that it
holds will be answered, and would be stored twice if it went to the new master as well. A broker that has not answered
that for SILENT_MS is taken for frozen or cut off. The question goes out before there is another master, so that its
silence is known by then.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import trio

from rmqha.client.route import TopicRoute
from rmqha.model.code import RequestCode
from rmqha.model.error import RmqhaError, UnreachableError
from rmqha.wire.command import Command

CHECK_MS = 250
OVERDUE_MS = 500
"""Time (ms) without an answer after which the hedge searches another master, and asks the try's broker."""
SILENT_MS = 1_000
ASK_TIMEOUT_MS = 5_000


class Routes(Protocol):
    """Port to the routes of a producer; `ClientRoutes` implements it."""

    async def refresh(self, topic: str) -> TopicRoute:
        """Ask a name server now. Raises RmqhaError."""
        ...


class BrokerCaller(Protocol):
    """Port to a producer's connections, by which the hedge asks brokers; `RemotingClient` implements it."""

    async def call(self, address: str, command: Command, timeout_ms: int) -> Command:
        """Answer of the broker at `address`. Raises UnreachableError."""
        ...


@dataclass(slots=True, eq=False)
class HedgedRequest:
    """A request without an answer yet. `scope` ends it."""

    topic: str
    broker_name: str
    address: str
    started: float
    scope: trio.CancelScope
    has_moved: bool = False
    """True if its group had another master at the hedge's last check."""
    given_up: bool = False


class Hedge:
    """Watch over the tries of one producer, which fills `tries`."""

    def __init__(self, routes: Routes, remoting: BrokerCaller) -> None:
        self.tries: set[HedgedRequest] = set()
        self._routes = routes
        self._remoting = remoting
        self._asked: dict[str, float] = {}
        """Time at which a broker was asked that has not answered yet, by address."""

    async def run(self) -> None:
        """Check all tries each CHECK_MS, without end."""
        async with trio.open_nursery() as nursery:
            while True:
                await trio.sleep(CHECK_MS / 1000)
                overdue = self._overdue()
                await self._refresh_routes(overdue)
                now = trio.current_time()
                for address in {item.address for item in overdue}:
                    if (asked := self._asked.get(address)) is None:
                        self._asked[address] = now
                        nursery.start_soon(self._ask, address)
                    elif asked <= now - SILENT_MS / 1000:
                        self._give_up(self._moved(address))

    def _overdue(self) -> list[HedgedRequest]:
        since = trio.current_time() - OVERDUE_MS / 1000
        return [item for item in self.tries if item.started < since]

    async def _refresh_routes(self, overdue: list[HedgedRequest]) -> None:
        for topic in sorted({item.topic for item in overdue}):
            try:
                route = await self._routes.refresh(topic)
            except RmqhaError:
                return
            for item in overdue:
                if item.topic == topic:
                    item.has_moved = route.master(item.broker_name) not in (None, item.address)

    def _moved(self, address: str) -> list[HedgedRequest]:
        return [item for item in self.tries if item.has_moved and item.address == address]

    async def _ask(self, address: str) -> None:
        """Ask a broker whether it holds sends; if not, give up the tries whose group had moved before the question:
        since then the broker may have begun to hold sends."""
        moved = self._moved(address)
        try:
            answer = await self._remoting.call(address, Command(RequestCode.RMQHA_HOLDS_SENDS), ASK_TIMEOUT_MS)
            holds = answer.ext.get("holds") == "true"
        except UnreachableError:
            holds = False
        del self._asked[address]
        if not holds:
            self._give_up(moved)

    def _give_up(self, moved: Iterable[HedgedRequest]) -> None:
        for item in moved:
            if item in self.tries:
                item.given_up = True
                item.scope.cancel()
