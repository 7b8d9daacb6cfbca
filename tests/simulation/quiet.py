"""A day without a fault: nobody is elected, nothing is lost, every message is acknowledged at its first try.

`python -m tests.simulation --day` runs it. Links are slow and clocks drift apart by 4 %, as they may; what happens is a
message now and then, heartbeats and the brokers' own chores.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tests.simulation.options import Options, seed_options
from tests.simulation.themes.rough import rough
from tests.simulation.world import Report, World

HOUR_MS = 3_600_000
SEND_INTERVAL_MS = 3000


def quiet(options: Options, **changes: Any) -> Options:
    """Nothing fails."""
    faults: dict[str, Any] = {name: 0 for name in vars(options) if name.endswith("_per_mille")}
    return replace(rough(options), **faults, **changes)


@dataclass(frozen=True, slots=True)
class QuietRun:
    report: Report
    epochs: list[int]
    """In which a replica was master."""
    terms: list[int]
    """In which a controller led."""
    sent_count: int
    """Since the producer has found the master."""
    tried_count: int
    """So often they were sent."""
    longest_wait_ms: int
    cpu_s: float
    """Of the processor, for all of the run."""

    @property
    def problems(self) -> list[str]:
        """What should not happen in a run without faults."""
        found = [self.report.failure] if self.report.failure else []
        if self.epochs != [1]:
            found.append(f"there were masters of epochs {self.epochs}, not of 1 alone")
        if len(self.terms) != 1:
            found.append(f"the controllers had leaders in terms {self.terms}, not in one")
        if self.tried_count != self.sent_count:
            found.append(f"{self.sent_count} messages took {self.tried_count} tries")
        audit = self.report.audit
        if audit is not None and (audit.lost_count or audit.duplicate_count):
            found.append(f"{audit.lost_count} messages are lost, {audit.duplicate_count} are there twice")
        return found

    @property
    def words(self) -> str:
        simulated_s = self.report.simulated_ms / 1000
        return (
            f"{simulated_s:.0f} simulated s in {self.cpu_s:.0f} s of a core ({simulated_s / self.cpu_s:.0f} a second,"
            f" {self.report.event_count / self.cpu_s:.0f} events a second): masters of epochs {self.epochs}, leaders of"
            f" terms {self.terms}; {self.sent_count} messages in {self.tried_count} tries, the slowest acknowledged"
            f" after {self.longest_wait_ms} ms"
        )


def run_quiet(seed: int, hours: float, passed: Callable[[int], None] | None = None, **changes: Any) -> QuietRun:
    """`hours` of three brokers and three controllers, unless `changes` of the options say otherwise. `passed` is told
    each full simulated hour."""
    usual = {
        "client_count": 1,
        "controller_count": 3,
        "send_interval_ms": SEND_INTERVAL_MS,
        "heartbeat_ms": 500,
        "clock_drift_ppm": 20_000,
        "max_delay_ms": 20,
    }
    world = World(seed, quiet(seed_options(seed), chaos_ms=int(hours * HOUR_MS), **(usual | changes)))
    if passed is not None:
        for hour in range(1, int(hours) + 1):
            world.scheduler.at(hour * HOUR_MS, partial(passed, hour))
    began = time.process_time()
    report = world.run()
    (group,) = world.groups
    spent = time.process_time() - began
    acked = [(send.begun_at_ms, send.acked_at_ms) for send in group.history.sends if send.acked_at_ms is not None]
    found_at_ms = min((acked_at_ms for _, acked_at_ms in acked), default=0)
    return QuietRun(
        report,
        group.roles.master_epochs,
        world.leaders.terms,
        sum(send.begun_at_ms >= found_at_ms for send in group.history.sends),
        sum(attempt.called_at_ms >= found_at_ms for attempt in group.history.attempts),
        max((acked_at_ms - begun_at_ms for begun_at_ms, acked_at_ms in acked if begun_at_ms >= found_at_ms), default=0),
        spent,
    )
