"""Popped messages through faults: none is given twice within its time, none is forgotten."""

from __future__ import annotations

import pytest

from tests.simulation.broker_group import BrokerGroup
from tests.simulation.run import Run
from tests.simulation.seeds import few


def group_of(seed: int, theme: str) -> BrokerGroup:
    """The group after a run without a failure."""
    world = Run(seed, theme).world()
    report = world.run()
    assert not report.failure, report.failure
    (group,) = world.groups
    return group


@pytest.mark.parametrize("seed", few([3, 11], range(4, 9)))
def test_none_is_forgotten_and_none_comes_early(seed: int) -> None:
    group = group_of(seed, "pop")
    found = group.popping.verify(group.brokers[0])
    assert found.given_count > found.acked_count > 20 and found.again_count > 5
    assert group.popping_in_order.given_count > 20


@pytest.mark.parametrize("seed", few([5], [2]))
def test_a_group_that_is_set_back_is_given_everything_from_there_on(seed: int) -> None:
    group = group_of(seed, "set-backs")
    found = group.popping.verify(group.brokers[0])
    assert found.given_count > found.acked_count > 20 and found.set_back_count > 5
