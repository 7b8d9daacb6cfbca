"""What every simulated client of a broker group is: a process with connections, that turns from broker to broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from rmqha.sim.clock import SimClock
from rmqha.sim.prng import SimPrng
from rmqha.sim.scheduler import Scheduler
from rmqha.sim.transport import Connection, Transport
from rmqha.wire.command import Command
from tests.simulation.processes.process import Process, Rpc


class ClientPlace(NamedTuple):
    """Where a client lives. `brokers`: the addresses of its group's."""

    host: str
    brokers: list[str]
    scheduler: Scheduler
    transport: Transport
    clock: SimClock
    prng: SimPrng


class GroupClient(Process):
    def __init__(self, place: ClientPlace) -> None:
        super().__init__(place.host, place.scheduler, place.transport, place.clock)
        self._brokers = place.brokers
        self._prng = place.prng
        self._target = 0
        self._stopped = False
        self.held_ms = 0
        """For so long a broker may hold a send before it takes it or passes it on."""
        self._rpc: Rpc
        self.unanswered: Callable[[str, str, int, int], None] = lambda key, address, called_at_ms, ended_at_ms: None
        """Told of what was asked, of whom, and when, if patience has ended."""

    def stop(self) -> None:
        """Begin nothing new."""
        self._stopped = True

    def _unasked(self, conn: Connection, command: Command) -> None:
        raise AssertionError(f"nobody asks {self.host} anything: {command}")
