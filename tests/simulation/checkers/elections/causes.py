"""Nobody is elected because a master is thought dead, when nothing has happened to its group and to the controllers for
a while."""

from __future__ import annotations

from collections.abc import Sequence

from rmqha.sim.scheduler import Scheduler
from rmqha.sim.transport import Transport
from tests.simulation.history import InvariantError
from tests.simulation.processes.process import Process

EFFECT_MS = 12_000
"""How long after a fault an election may be due to it: pauses and slow disks last 7 s, a dead master is seen within
2 s, and who could be elected may have to come back first."""


class Causes:
    """`processes` are the group's, the controllers and the name servers."""

    def __init__(self, scheduler: Scheduler, transport: Transport, processes: Sequence[Process]) -> None:
        self._scheduler = scheduler
        self._transport = transport
        self._processes = processes
        self._hosts = frozenset(process.host for process in processes)
        self.disturbed_at_ms = 0
        """When a fault that may concern the group happened last, was undone, or an operator acted."""

    @property
    def links_disturbed(self) -> bool:
        """A link that the group or the controllers use is blocked or slow now."""
        return self._transport.is_disturbed(self._hosts)

    def disturbed(self) -> None:
        """A fault happens, is undone, or an operator acts."""
        self.disturbed_at_ms = self._scheduler.now_ms

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
