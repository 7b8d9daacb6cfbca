"""Performs CallController over remoting: finds the leader, follows redirects, answers exactly once. Shell."""

from __future__ import annotations

import trio

from rmqha.broker.controller_route import ControllerRoute, is_redirect, named_leader
from rmqha.broker.replica_driver import ReplicaDriver
from rmqha.ha.action import CallController
from rmqha.host.remoting import RemotingClient
from rmqha.model.code import RequestCode
from rmqha.model.error import UnreachableError
from rmqha.wire.command import Command


class ControllerLink:
    """One task per call; calls are few (a heartbeat every half second, and what a role change needs)."""

    def __init__(self, driver: ReplicaDriver, client: RemotingClient, addresses: list[str], nursery: trio.Nursery):
        self._driver = driver
        self._client = client
        self._route = ControllerRoute(addresses)
        self._nursery = nursery

    @property
    def leader(self) -> str:
        return self._route.leader

    def call(self, action: CallController) -> None:
        self._nursery.start_soon(self._perform, action)

    async def _perform(self, action: CallController) -> None:
        reply = await self._ask(action.command, action.timeout_ms)
        self._driver.controller_replied(action.call_id, reply)

    async def _ask(self, command: Command, timeout_ms: int) -> Command | None:
        """None when nobody could be asked within `timeout_ms`."""
        deadline = trio.current_time() + timeout_ms / 1000
        route = self._route
        for _ in range(route.max_attempts):
            left_ms = round((deadline - trio.current_time()) * 1000)
            if left_ms <= 0:
                return None
            address = route.target
            try:
                reply = await self._client.call(address, _copy(command), route.attempt_timeout_ms(left_ms))
                if not is_redirect(reply):
                    route.answered(address)
                    return reply
                leader = named_leader(reply) or await self._look_up(address, route.attempt_timeout_ms(left_ms))
                route.redirected(address, leader)
            except UnreachableError:
                route.failed(address)
        return None

    async def _look_up(self, address: str, timeout_ms: int) -> str:
        """Whom a controller that refused without naming one takes for the leader (Apache's do so)."""
        reply = await self._client.call(address, Command(RequestCode.CONTROLLER_GET_METADATA_INFO), timeout_ms)
        return named_leader(reply)


def _copy(command: Command) -> Command:
    """A call writes its opaque into the command, so each attempt needs its own."""
    return Command(command.code, dict(command.ext), command.body)
