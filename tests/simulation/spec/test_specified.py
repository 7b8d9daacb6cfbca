"""Simulated runs are runs of the specification, and one with a rule planted wrong is not."""

from __future__ import annotations

import re

import pytest

from tests.simulation.history import InvariantError
from tests.simulation.planted.mutations import planted
from tests.simulation.run import SPECIFIED_EVERY, Run
from tests.simulation.spec.specification import NONE, Declared, MasterView, Register
from tests.simulation.spec.specifying import is_in_the_model, specify
from tools.check_spec import MODEL

STEPS = {
    "Elect": Register.elect,
    "Deliver": Register.deliver,
    "DeliverAndAnswer": MasterView._take_set,
    "Shown": MasterView._take_set,
    "Refuse": MasterView._end,
    "TimeOut": MasterView._end,
    "Propose": MasterView._propose,
    "Commit": MasterView._commit,
    "Learn": MasterView._begin,
    "Resume": MasterView._begin,
    "ResumeLate": MasterView._begin,
    "RegisterUnclean": Register.leave,
    "Resize": Register.resize,
    "Resized": Register.resized,
}
OTHER_CHECKERS = frozenset(("Append", "Connect", "Copy", "Ack", "HearTotal", "Lose", "Restart", "PowerLoss"))
"""Actions on logs, which the checkers of copies, visibility and wholeness watch, faults, and one without a guard."""
FOUND = {
    "acks against the shrunk set (ruling 1)": ("rough:7", "all that may be in force is waited for"),
    "CP shrinks without the controller (ruling 5)": ("rough:7", "all that may be in force is waited for"),
    "no majority needed (ruling 1)": ("rough:7", "a majority is confirmed before anything is committed"),
    "silent members are left out (ruling 1)": ("rough:7", "all that may be in force has acknowledged"),
    "the fastest member decides (ruling 1)": ("rough:7", "all that may be in force has acknowledged"),
    "a slave joins when it connects": ("rough:1", "who joins holds what may have been acknowledged"),
    "a restarted master trusts the old set (ruling 1)": ("orphans:7", "a restarted master settles first"),
    "the set epoch is not fenced": ("orphans:7", "the set is what its master has asked for"),
    "an older master is followed (ruling 4)": ("stale:2", "no replica accepts an older master"),
    "anyone is elected": ("operators:2", "one of the set or an eligible one is elected"),
    "whoever lives is elected (ruling 9)": ("loose:1", "one of the set or an eligible one is elected"),
    "who leads alone leaves others eligible (ruling 9)": ("loose:2", "stays eligible after an election"),
}
"""Planted bug to a run, and the rule of the specification that this breaks."""


def failure_beside_the_specification(run: Run) -> tuple[str, int]:
    """How it fails, and how many steps of the model it has taken."""
    world = run.world()
    watches = specify(world)
    return world.run().failure, sum(item.step_count for item in watches)


@pytest.mark.spec
@pytest.mark.parametrize("name", sorted(FOUND))
def test_a_wrong_rule_is_no_step_of_the_specification(name: str) -> None:
    run, rule = FOUND[name]
    with planted(name):
        failure, _ = failure_beside_the_specification(Run.parse(run))
    assert "the specification has no such step: " in failure and rule in failure, failure


@pytest.mark.spec
@pytest.mark.parametrize("run", sorted({run for run, _ in FOUND.values()} | {"drains:1", "moments:2", "alone:1"}))
def test_a_sound_run_is_one_of_the_specification(run: str) -> None:
    failure, step_count = failure_beside_the_specification(Run.parse(run))
    assert (failure, step_count > 50) == ("", True)


def test_every_action_of_the_model_has_its_place() -> None:
    actions = set(re.findall(r"^inline ([A-Z]\w+)", MODEL.read_text(), re.MULTILINE))
    assert set(STEPS) | OTHER_CHECKERS == actions


def test_some_seeds_of_every_theme_are_held_against_it() -> None:
    assert is_in_the_model(Run(SPECIFIED_EVERY, "rough").options)
    (broker, *_) = Run(SPECIFIED_EVERY, "rough").world().brokers
    (other, *_) = Run(SPECIFIED_EVERY + 1, "rough").world().brokers
    assert "Specified.stepped" in str(broker.checks[0]) and "Specified" not in str(other.checks)


def cp_register() -> Register:
    made = Register(declared={number: Declared(is_cp=True, total=3) for number in (1, 2, 3)}, total=3)
    made.elect(1, 1, NONE, accepts_loss=True)
    made.requests.add((1, 1, 1, frozenset((1, 2, 3))))
    made.deliver(1, 2, frozenset((1, 2, 3)), NONE)
    return made


def test_what_nobody_has_asked_for_is_not_applied() -> None:
    with pytest.raises(InvariantError, match="the set is what its master has asked for"):
        cp_register().deliver(1, 3, frozenset((1, 2)), NONE)


def test_a_request_of_an_older_epoch_meets_a_fence() -> None:
    register = cp_register()
    register.elect(2, 2, frozenset((1, 3)), accepts_loss=False)
    before = register.state
    register.deliver(1, 4, frozenset((1, 2, 3)), NONE)
    assert register.state == before


def test_in_ap_nobody_stays_eligible() -> None:
    register = cp_register()
    register.declared = {number: Declared() for number in (1, 2, 3)}
    with pytest.raises(InvariantError, match="stays eligible after an election"):
        register.elect(2, 2, frozenset((1,)), accepts_loss=False)
