"""Delayed and timer messages through faults: each that was acknowledged is delivered, by whichever master, at least
once."""

from __future__ import annotations

import pytest

from tests.simulation.checkers.clients import delays
from tests.simulation.run import Run
from tests.simulation.seeds import few


@pytest.mark.parametrize("theme", ["delays", "timers"])
@pytest.mark.parametrize("seed", few([1], range(2, 9)))
def test_none_is_left_out(seed: int, theme: str) -> None:
    world = Run(seed, theme).world()
    report = world.run()
    assert not report.failure, report.failure
    (group,) = world.groups
    found = delays.verify(group.history, group.brokers[0], world.tracer.serving_offsets)
    assert found.delivered_count > 20
    if (seed, theme) == (1, "timers"):
        assert found.taken_back_count > 20
