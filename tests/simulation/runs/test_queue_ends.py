"""A replica that must learn where idle queues end makes the majority without which its master does not serve."""

from __future__ import annotations

import pytest

from tests.simulation.options import seed_options
from tests.simulation.quiet import quiet
from tests.simulation.seeds import few
from tests.simulation.world import World

KILLED_AT_MS, BACK_AT_MS, CHAOS_MS = 6000, 6500, 20_000


@pytest.mark.parametrize("seed", few([1], range(2, 5)))
def test_a_master_that_waits_for_its_majority_tells_it(seed: int) -> None:
    """Of three one is dead, one has lost its disk, and the master was killed: it serves once the second is a member."""
    options = quiet(seed_options(seed), cp=True, chaos_ms=CHAOS_MS, send_interval_ms=20, kept_hours=0, kept_files=0)
    world = World(seed, options)
    acked_before: list[int] = []

    def clean() -> None:
        for broker in world.brokers:
            if broker.alive:
                broker.clean(0)

    def strike() -> None:
        (master,) = (broker for broker in world.brokers if broker.replica.is_master)
        new, dead = (broker for broker in world.brokers if broker is not master)
        assert master.store.min_phy_offset > 0
        dead.kill(power_loss=False)
        world.reports.replaced(new.host)
        new.replace_disk()
        master.kill(power_loss=False)
        world.groups[0].causes.disturbed()
        acked_before.append(len(world.groups[0].history.acked))
        for broker in (master, new):
            world.scheduler.at(BACK_AT_MS, broker.boot)

    def look() -> None:
        new = next(broker for broker in world.brokers if broker.store.queue_min_offsets.restart_count)
        assert not new.store.lacks_queue_ends
        assert len(world.groups[0].history.acked) > acked_before[0] + 50

    for at_ms in range(2500, KILLED_AT_MS - 500, 500):
        world.scheduler.at(at_ms, clean)
    world.scheduler.at(KILLED_AT_MS, strike)
    world.scheduler.at(CHAOS_MS - 2000, look)
    report = world.run()
    assert not report.failure, report.failure
