"""A broker's NameServerLink in the simulation: its coroutines, resumed by simulated events instead of trio."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, cast

from rmqha.broker.core import BrokerCore
from rmqha.broker.replication.nameserver_link import NameServerLink
from rmqha.ha.action import RoleChanged
from rmqha.host.net.remoting import RemotingClient
from rmqha.port import Tracer
from rmqha.sim.prng import SimPrng
from rmqha.wire.command import Command
from tests.simulation.processes.following import Later, SimPort

if TYPE_CHECKING:
    from tests.simulation.processes.process import Process, Rpc

LOOK_MS = 100
"""News reach a name server within so long at most; the host's tasks are woken at once."""


async def no_turn_needed() -> None:
    """The steps of a small table take no simulated time."""


class SimClient(SimPort):
    """What NameServerLink asks of a RemotingClient."""

    async def oneway(self, address: str, command: Command) -> None:
        self._rpc.oneway(address, command)


class Registering:
    def __init__(
        self, process: Process, rpc: Rpc, core: BrokerCore, addresses: list[str], tracer: Tracer, draws: SimPrng
    ) -> None:
        self._process = process
        self._draws = draws
        self._client = cast(RemotingClient, SimClient(process, rpc, draws))
        self._link = NameServerLink(
            core.config, core.driver, core.topics, addresses, process.clock, tracer, no_turn_needed
        )
        self.changed = self._link.changed
        rpc.lost = self._link.lost
        for address in addresses:
            self._keep(address)

    def role_changed(self, action: RoleChanged) -> None:
        self._link.role_changed(action)

    def _keep(self, address: str) -> None:
        registration, advertised = self._link._registrations[address], self._link._advertised()
        step = registration.next(self._process.clock.now_ms(), advertised)
        if step is None:
            self._process.after(self._draws.between(1, LOOK_MS), lambda: self._keep(address))
        else:
            self._resume(address, self._link._perform_step(self._client, address, registration, step, advertised))

    def _resume(self, address: str, telling: Coroutine[Any, Any, None]) -> None:
        try:
            later: Later[Any] = telling.send(None)
        except StopIteration:
            self._process.after(1, lambda: self._keep(address))
        else:
            later.then = lambda: self._resume(address, telling)
