"""Performs CallController over remoting: finds the leader, follows redirects, answers exactly once. Shell.

A heartbeat goes to every address of controllerAddr (ruling 33): each of Apache's controllers has a table of live
brokers, followers too, and a new leader deposes masters that are missing in its own.
"""

from __future__ import annotations

from typing import Protocol

import trio

from rmqha.broker.replication.controller_route import ControllerRoute, answer_to, is_redirect, named_leader
from rmqha.ha.action import CallController
from rmqha.model.code import RequestCode
from rmqha.model.error import NotSentError, UnreachableError
from rmqha.port import Tracer
from rmqha.wire.command import Command


class CallEnded(Protocol):
    """Port that takes the result of a call."""

    def controller_replied(self, call_id: int, reply: Command | None) -> None: ...


class Client(Protocol):
    """Port that calls addresses; `RemotingClient` is one."""

    async def call(self, address: str, command: Command, timeout_ms: int | None) -> Command: ...


class ControllerLink:
    """Link with one task per call; calls are few (a heartbeat every half second, and those of a role change)."""

    def __init__(
        self, driver: CallEnded, client: Client, addresses: list[str], nursery: trio.Nursery, tracer: Tracer
    ) -> None:
        self._driver = driver
        self._client = client
        self._addresses = addresses
        self._route = ControllerRoute(addresses)
        self._nursery = nursery
        self._tracer = tracer
        self._silent: set[str] = set()
        """Other addresses than the target that did not answer the last heartbeat."""
        self._heartbeating: set[str] = set()
        """Other addresses than the target with a running heartbeat."""

    def follow(self, addresses: list[str]) -> None:
        """Use these addresses from now on; a known leader is still asked first."""
        self._addresses = addresses
        self._route.follow(addresses)
        self._silent.intersection_update(addresses)

    def addresses(self) -> list[str]:
        """Configured addresses at present."""
        return self._addresses

    @property
    def leader(self) -> str:
        return self._route.leader

    def call(self, action: CallController) -> None:
        if action.command.code == RequestCode.BROKER_HEARTBEAT:
            for address in self._addresses:
                if address != self._route.target and address not in self._heartbeating:
                    self._heartbeating.add(address)
                    self._nursery.start_soon(self._send_heartbeat, address, action)
        self._nursery.start_soon(self._perform, action)

    async def _send_heartbeat(self, address: str, action: CallController) -> None:
        """Send a heartbeat to a controller that may become the leader; its answer has no effect now."""
        try:
            await self._client.call(address, _copy(action.command), action.timeout_ms)
            if address in self._silent:
                self._silent.remove(address)
                self._tracer.event("controller_answers", address=address)
        except UnreachableError as error:
            if address not in self._silent:
                self._silent.add(address)
                self._tracer.event("controller_silent", address=address, reason=str(error))
        finally:
            self._heartbeating.remove(address)

    async def _perform(self, action: CallController) -> None:
        reply = await self._ask(action.command, action.timeout_ms)
        self._driver.controller_replied(action.call_id, reply)

    async def _ask(self, command: Command, timeout_ms: int) -> Command | None:
        """Ask the leader; None if no controller answered within `timeout_ms`."""
        deadline = trio.current_time() + timeout_ms / 1000
        route, is_open = self._route, False
        for _ in range(route.max_attempts):
            left_ms = round((deadline - trio.current_time()) * 1000)
            if left_ms <= 0:
                return None
            address = route.target
            try:
                reply = await self._client.call(address, _copy(command), route.attempt_timeout_ms(left_ms))
            except UnreachableError as error:
                is_open = is_open or not isinstance(error, NotSentError)
                route.failed(address)
                continue
            if not is_redirect(reply):
                route.answered(address)
                return answer_to(command, reply, is_open=is_open)
            try:
                leader = named_leader(reply) or await self._find_leader(address, route.attempt_timeout_ms(left_ms))
            except UnreachableError:
                route.failed(address)
            else:
                route.redirected(address, leader)
        return None

    async def _find_leader(self, address: str, timeout_ms: int) -> str:
        """Ask a controller for the leader's address after a refusal without one, as Apache's controllers give."""
        reply = await self._client.call(address, Command(RequestCode.CONTROLLER_GET_METADATA_INFO), timeout_ms)
        return named_leader(reply)


def _copy(command: Command) -> Command:
    """Copy for one attempt: a call writes its opaque into the command."""
    return Command(command.code, dict(command.ext), command.body)
