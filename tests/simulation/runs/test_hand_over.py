"""From one master to the next: no stretch without an acknowledgement is longer than a bound, planned or not."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import pytest

from rmqha.ha.hand_over import HandOver
from rmqha.model.offset import PhyOffset
from tests.simulation.options import seed_options
from tests.simulation.processes.broker_process import BrokerProcess
from tests.simulation.quiet import quiet
from tests.simulation.world import World

FIRST_MS, INTERVAL_MS, COUNT = 2500, 2500, 3
RESTART_MS = 1000
PLANNED_BOUND_MS, KILLED_BOUND_MS, POWER_BOUND_MS = 250, 400, 2500
"""In 18 runs the longest were 99, 122 and 1,627 ms: a master that has lost its power is missed after 1.5 s."""

Change = Callable[[World, BrokerProcess], None]


def hand_over(world: World, master: BrokerProcess) -> None:
    members = world.groups[0].members
    world.faults.switch_to(members[(members.index(master) + 1) % len(members)])


def kill(world: World, master: BrokerProcess) -> None:
    _end(world, master, power_loss=False)


def cut_power(world: World, master: BrokerProcess) -> None:
    _end(world, master, power_loss=True)


def _end(world: World, master: BrokerProcess, *, power_loss: bool) -> None:
    world.faults.tell("kill", master.host)
    master.kill(power_loss=power_loss)
    world.scheduler.after(RESTART_MS, master.boot)


def longest_stretch_ms(seed: int, change: Change, *, cp: bool) -> int:
    """Between two acknowledgements, while masters change some times and nothing else happens."""
    options = quiet(seed_options(seed), cp=cp, chaos_ms=FIRST_MS + INTERVAL_MS * COUNT, send_interval_ms=20)
    world = World(seed, options)
    epochs: list[int] = []

    def strike() -> None:
        masters = [item for item in world.brokers if item.alive and item.replica.is_master]
        if len(masters) == 1:
            epochs.append(int(masters[0].replica.epoch))
            change(world, masters[0])

    for number in range(COUNT):
        world.scheduler.at(FIRST_MS + INTERVAL_MS * number, strike)
    report = world.run()
    assert not report.failure, report.failure
    assert len(set(epochs)) == COUNT, f"masters of epochs {epochs}"
    if change is hand_over:
        assert world.groups[0].take_overs.planned_count == world.groups[0].hand_overs.judged_count == COUNT
    acked = sorted(send.acked_at_ms for send in world.groups[0].history.acked if send.acked_at_ms is not None)
    return max(after - before for before, after in pairwise(acked))


def _longest(change: Change, *, cp: bool) -> int:
    return max(longest_stretch_ms(seed, change, cp=cp) for seed in (1, 2, 3))


@pytest.mark.sim
@pytest.mark.parametrize("cp", [False, True])
@pytest.mark.parametrize(
    ("change", "bound_ms"),
    [(hand_over, PLANNED_BOUND_MS), (kill, KILLED_BOUND_MS), (cut_power, POWER_BOUND_MS)],
)
def test_a_change_of_masters_stops_service_for_a_bound_at_most(change: Change, bound_ms: int, cp: bool) -> None:
    assert _longest(change, cp=cp) <= bound_ms


@pytest.mark.sim
def test_a_hand_over_that_takes_long_is_seen() -> None:
    """The check can fail: planted is a target that never counts as level before the master's patience ends."""
    look = HandOver.advance

    def late(self: HandOver, now_ms: int, own_max: PhyOffset, ack: PhyOffset | None, waiting_count: int) -> Any:
        waiting = self._waiting
        is_early = waiting is not None and now_ms < waiting.begun_ms + 600
        return look(self, now_ms, own_max, None if is_early else ack, waiting_count)

    with patch.object(HandOver, "advance", late):
        assert longest_stretch_ms(1, hand_over, cp=True) > PLANNED_BOUND_MS
