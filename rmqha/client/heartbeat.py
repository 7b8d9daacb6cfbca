"""A client's heartbeats (34) to each replica of its topics, to a slave too, which may be master soon. Control plane."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any

import trio

from rmqha.client.route import TopicRoute
from rmqha.client.session import ClientSession
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import UnreachableError
from rmqha.wire.command import Command

CALL_TIMEOUT_MS = 3_000
LEAVE_TIMEOUT_MS = 1_000
HEARTBEAT_MS = 30_000

_client_numbers = count(1)


class Heartbeats:
    """Heartbeats of one client. The session must be open before the first call."""

    def __init__(self, session: ClientSession, started_ms: int) -> None:
        """`started_ms`: wall clock, which tells clients with the same address and process id apart."""
        self._session = session
        self._started_ms = started_ms
        self._number = next(_client_numbers)
        self._heard: dict[str, float] = {}
        """Time (s, monotonic) at which a replica last answered a heartbeat, -inf while it never did, by address."""

    @property
    def client_id(self) -> str:
        """Unique among all clients: address, process, number in the process, start."""
        return f"{self._session.local_host}@{self._session.process_id}#{self._number}#{self._started_ms}"

    async def beat(self, route: TopicRoute, body: Callable[[], dict[str, Any]]) -> None:
        """Send a heartbeat to all replicas that have got none for HEARTBEAT_MS, all at once. A replica that does not
        answer gets another one at the next call. `body`: the sets of producers and consumers."""
        due = trio.current_time() - HEARTBEAT_MS / 1000
        addresses = [address for address in route.brokers() if self._heard.get(address, float("-inf")) <= due]
        if not addresses:
            return
        said = {"clientID": self.client_id, "heartbeatFingerprint": 0, "withoutSub": False, **body()}
        data = json.dumps(said, separators=(",", ":")).encode()
        async with trio.open_nursery() as nursery:
            for address in addresses:
                nursery.start_soon(self._tell, address, data)

    async def _tell(self, address: str, data: bytes) -> None:
        # it may hear this and its answer come too late for us: `leave` must reach it too
        self._heard.setdefault(address, float("-inf"))
        try:
            command = Command(RequestCode.HEART_BEAT, {}, data)
            answer = await self._session.remoting.call(address, command, CALL_TIMEOUT_MS)
        except UnreachableError:
            self.forget(address)
        else:
            if answer.code == ResponseCode.SUCCESS:
                self._heard[address] = trio.current_time()

    def forget(self, address: str) -> None:
        """Forget that the broker at `address` knows this client: its connection is gone."""
        self._heard.pop(address, None)

    async def leave(self, group: dict[str, str]) -> None:
        """Tell the brokers that the client leaves. `group`: `consumerGroup` or `producerGroup`, with its name."""
        async with trio.open_nursery() as nursery:
            for address in sorted(self._heard):
                nursery.start_soon(self._leave, address, group)

    async def _leave(self, address: str, group: dict[str, str]) -> None:
        with suppress(UnreachableError):
            command = Command(RequestCode.UNREGISTER_CLIENT, {"clientID": self.client_id, **group})
            await self._session.remoting.call(address, command, LEAVE_TIMEOUT_MS)
