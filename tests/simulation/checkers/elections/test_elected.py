"""The checker of who is elected finds an outsider, and lets pass what is none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from controller.state.event import BrokerIdApplied, Cause, Event, MasterElected, SyncStateSetAltered
from controller.state.replicas_info import ReplicasInfo
from rmqha.model.offset import BrokerId, Epoch
from tests.simulation.checkers.elections.elected import Elected
from tests.simulation.history import InvariantError

NAME = "broker-a"
ONE, TWO, THREE = BrokerId(1), BrokerId(2), BrokerId(3)


class Controller:
    """One that applies an entry of one event in each step, or several entries in one."""

    def __init__(self) -> None:
        self.info, self.index, self.checker = ReplicasInfo(), 0, Elected(NAME)
        for broker_id in (ONE, TWO, THREE):
            self.step(BrokerIdApplied("c", NAME, broker_id, f"b{broker_id}:1", ""))
        self.step(MasterElected(NAME, ONE, Epoch(1), (), Cause.FIRST_ELECTION))
        self.step(SyncStateSetAltered(NAME, Epoch(1), 2, (ONE, TWO), ()))

    def step(self, *events: Event) -> None:
        for event in events:
            self.info.apply(event)
            self.index += 1
        seen: Any = SimpleNamespace(
            host="c1", life=1, machine=SimpleNamespace(info=self.info, _role_changes=SimpleNamespace(index=self.index))
        )
        self.checker.applied(seen)


def elected(broker_id: BrokerId, cause: Cause = Cause.MASTER_DEAD, eligible: tuple[BrokerId, ...] = ()) -> Event:
    return MasterElected(NAME, broker_id, Epoch(2), eligible, cause)


def test_a_member_and_an_eligible_one_may_be_elected() -> None:
    controller = Controller()
    controller.step(elected(TWO, eligible=(ONE,)))
    controller.step(MasterElected(NAME, ONE, Epoch(3), (), Cause.MASTER_DEAD))
    assert controller.checker.judged_count == 2


def test_an_outsider_is_found() -> None:
    with pytest.raises(
        InvariantError, match=r"replica 3 is elected in epoch 2 \(MASTER_DEAD\); only \[1, 2\] could be"
    ):
        Controller().step(elected(THREE))


def test_who_was_eligible_before_the_set_was_altered_is_found() -> None:
    controller = Controller()
    controller.step(elected(TWO, eligible=(ONE,)))
    controller.step(SyncStateSetAltered(NAME, Epoch(2), 4, (TWO, THREE), ()))
    with pytest.raises(InvariantError, match="replica 1 is elected in epoch 3"):
        controller.step(MasterElected(NAME, ONE, Epoch(3), (), Cause.MASTER_DEAD))


@pytest.mark.parametrize("cause", [Cause.UNCLEAN_BY_OPERATOR, Cause.UNCLEAN_AUTOMATIC])
def test_an_accepted_loss_is_none_of_its_business(cause: Cause) -> None:
    controller = Controller()
    controller.step(elected(THREE, cause))
    assert controller.checker.judged_count == 0


def test_entries_that_are_applied_together_show_no_state_between_them() -> None:
    controller = Controller()
    controller.step(SyncStateSetAltered(NAME, Epoch(1), 3, (ONE, THREE), ()), elected(THREE))
    assert controller.checker.judged_count == 0
