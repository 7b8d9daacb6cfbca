"""Records that rot under running brokers are mended, and nobody gets one, whatever else happens."""

from __future__ import annotations

import pytest

from tests.simulation.run import Run
from tests.simulation.seeds import few


@pytest.mark.parametrize("seed", few([1], range(2, 5)))
def test_all_is_mended(seed: int) -> None:
    world = Run(seed, "rotting").world()
    report = world.run()
    assert not report.failure, report.failure
    (group,) = world.groups
    assert len(group.live_rot.struck) >= 10
    assert not group.live_rot.missing(group.brokers)
