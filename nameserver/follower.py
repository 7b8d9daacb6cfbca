"""Follower of the controllers' elections (request 52013), which moves routes to a new master at once. Shell.

One request is always running; it is answered when a role changes. At the start, and if the controllers' log does not
reach back to the last known index, all groups are read page by page.
"""

from __future__ import annotations

import trio

from nameserver.route_info import RouteTable
from rmqha.broker.replication.controller_route import ControllerRoute, is_redirect, named_leader
from rmqha.host.net.remoting import RemotingClient
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import RemoteProtocolError, UnreachableError
from rmqha.port import Tracer
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import loads

WAIT_MS = 20_000
ANSWER_MS = 3_000
"""Time (ms) beyond WAIT_MS in which a controller must answer."""
RETRY_S = 0.2
UNSUPPORTED_RETRY_S = 30.0


class ElectionFollower:
    """Long poll of role changes. `index` is the last index of the controllers' log that the routes know, 0 before the
    first answer."""

    def __init__(self, addresses: list[str], routes: RouteTable, tracer: Tracer) -> None:
        self._route = ControllerRoute(addresses)
        self._routes = routes
        self._tracer = tracer
        self._place: int | None = None
        """Begin of the next page of all groups; None if no listing is running."""
        self._page_index = 0
        self._quiet = False
        """True if the present failure has been traced."""
        self.index = 0

    @property
    def leader(self) -> str:
        """Address of the controller that answered last; "" while none answers."""
        return self._route.leader

    async def run(self, client: RemotingClient) -> None:
        while True:
            pause_s = await self._ask(client)
            if pause_s:
                await trio.sleep(pause_s)

    async def _ask(self, client: RemotingClient) -> float:
        """Send one request. Returns the pause (s) before the next."""
        address = self._route.target
        try:
            reply = await client.call(address, self._question(), WAIT_MS + ANSWER_MS)
            if is_redirect(reply):
                self._route.redirected(address, named_leader(reply))
                return 0.0 if self._route.target != address else RETRY_S
            if reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                self._trouble(address, "it tells no elections; routes follow the brokers alone")
                return UNSUPPORTED_RETRY_S
            if reply.code != ResponseCode.SUCCESS:
                raise RemoteProtocolError(f"code {reply.code}: {reply.remark}")
            self._take(reply)
        except (UnreachableError, RemoteProtocolError) as error:
            self._trouble(address, str(error))
            self._route.failed(address)
            return RETRY_S
        self._route.answered(address)
        self._quiet = False
        return 0.0

    def _question(self) -> Command:
        ext = {"version": "1", "fromIndex": str(self.index), "waitMs": str(WAIT_MS)}
        if self._place is not None:
            ext["afterPlace"] = str(self._place)
        return Command(RequestCode.RMQHA_FOLLOW_GROUPS, ext)

    def _trouble(self, address: str, why: str) -> None:
        if not self._quiet:
            self._quiet = True
            self._tracer.event("elections_not_followed", controller=address, why=why)

    def _take(self, reply: Command) -> None:
        """Apply an answer. Raises RemoteProtocolError for a malformed one, which is then requested again."""
        try:
            document = loads(bytes(reply.body))
            rows = [(str(name), str(address), int(epoch)) for name, _, address, epoch in document["groups"]]
            index = int(reply.ext["index"])
            place = int(reply.ext["nextPlace"]) if "nextPlace" in reply.ext else None
        except (KeyError, TypeError, ValueError) as error:
            raise RemoteProtocolError(f"the list of elections cannot be read: {error!r}") from None
        for name, address, epoch in rows:
            self._routes.elected(name, address, epoch)
        if self._place is None:
            self._page_index = index
        self._place = place
        if place is None:
            self.index = self._page_index
