"""Nobody is elected because a master is thought dead, when nothing has happened to its group and to the controllers for
a while. Nor is a broker called dead for its silence, when nothing has happened to its group: that a controller stood
still, or has begun to lead, says nothing of brokers."""

from __future__ import annotations

from collections.abc import Sequence

from rmqha.sim.scheduler import Scheduler
from rmqha.sim.transport import Transport
from tests.simulation.history import InvariantError
from tests.simulation.processes.process import Process

EFFECT_MS = 12_000
"""How long after a fault an election may be due to it: pauses and slow disks last 7 s, a dead master is seen within
2 s, and who could be elected may have to come back first."""
HEARD_MS = 5000
"""So long after a fault a broker's heartbeats come as ever: its time-out is 2 s."""


class Causes:
    """`processes` are the group's, the controllers and the name servers."""

    def __init__(self, scheduler: Scheduler, transport: Transport, processes: Sequence[Process]) -> None:
        self._scheduler = scheduler
        self._transport = transport
        self._processes = processes
        self._hosts = frozenset(process.host for process in processes)
        self.disturbed_at_ms = 0
        """When a fault that may concern the group happened last, was undone, or an operator acted."""
        self._struck_at_ms = 0
        """The same of those that touch a broker."""

    @property
    def links_disturbed(self) -> bool:
        """A link that the group or the controllers use is blocked or slow now."""
        return self._transport.is_disturbed(self._hosts)

    def disturbed(self, *, touches_brokers: bool = True) -> None:
        """A fault happens, is undone, or an operator acts."""
        self.disturbed_at_ms = self._scheduler.now_ms
        if touches_brokers:
            self._struck_at_ms = self.disturbed_at_ms

    def called_dead(self, broker: Process, controller: str) -> None:
        """A controller has not heard `broker` for its time-out."""
        quiet_ms = self._scheduler.now_ms - max(self._struck_at_ms, broker.disturbed_at_ms)
        if quiet_ms > HEARD_MS and broker.alive and not broker.is_paused and not self.links_disturbed:
            raise InvariantError(
                f"{controller} calls {broker.host} dead for its silence; nothing has happened to it for {quiet_ms} ms"
            )

    def elected(self, cause: str, group: str, epoch: int) -> None:
        """Controllers elect."""
        if cause != "MASTER_DEAD" or self.links_disturbed:
            return
        if any(not process.alive or process.is_paused for process in self._processes):
            return
        quiet_ms = self._scheduler.now_ms - self.disturbed_at_ms
        if quiet_ms > EFFECT_MS:
            raise InvariantError(
                f"the master of {group} was called dead and another elected in epoch {epoch};"
                f" nothing had happened for {quiet_ms} ms"
            )
