"""What every process of a run stands on: time, connections, the trace and the seed's draws."""

from __future__ import annotations

from dataclasses import dataclass

from rmqha.sim.clock import SimClock
from rmqha.sim.prng import SimPrng
from rmqha.sim.scheduler import Scheduler
from rmqha.sim.transport import Transport
from tests.simulation.marks import MarkingTracer


@dataclass(frozen=True, slots=True)
class Ground:
    scheduler: Scheduler
    transport: Transport
    tracer: MarkingTracer
    prng: SimPrng
    clock_drift_ppm: int

    def clock(self, host: str) -> SimClock:
        """Of a host: it runs fast or slow, and has a wall time of its own."""
        drift, draws = self.clock_drift_ppm, self.prng.child(f"clock-{host}")
        return SimClock(self.scheduler, 1_000_000 + draws.between(-drift, drift), draws.below(1_000_000))
