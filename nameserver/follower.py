"""A name server follows the controllers' elections (request 52013), so that routes change by push. Shell.

One request is always under way; it is answered when a role changes. From the start, and when the controllers' log does
not reach back to what is known, all groups are read page by page.
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
"""Time (ms) that a controller may take beyond WAIT_MS."""
RETRY_S = 0.2
UNSUPPORTED_RETRY_S = 30.0


class ElectionFollower:
    """`index` is the version of what has been told to the routes: an index of the controllers' log, 0 before the first
    answer."""

    def __init__(self, addresses: list[str], routes: RouteTable, tracer: Tracer) -> None:
        self._route = ControllerRoute(addresses)
        self._routes = routes
        self._tracer = tracer
        self._place: int | None = None
        """Place at which the next page of all groups begins; None: no listing is under way."""
        self._page_index = 0
        self._quiet = False
        """The trouble has been traced already."""
        self.index = 0

    @property
    def leader(self) -> str:
        """The controller that answered last; "" while none does."""
        return self._route.leader

    async def run(self, client: RemotingClient) -> None:
        while True:
            pause_s = await self._ask(client)
            if pause_s:
                await trio.sleep(pause_s)

    async def _ask(self, client: RemotingClient) -> float:
        """One question; the pause before the next in seconds."""
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
        """Raises RemoteProtocolError for an answer that cannot be read; nothing is lost then, it is asked for again."""
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
