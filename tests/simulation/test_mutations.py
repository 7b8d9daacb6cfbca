"""Each planted bug is found by the seed named here: the checkers can fail. The table of docs/simulation.md."""

from __future__ import annotations

import pytest

from .mutations import MUTATIONS, planted
from .options import rough, seed_options, short_logs
from .world import World

ROUGH = {"anyone is elected (A9)": 30, "no majority needed (ruling 1)": 1}
"""Found only where faults are many."""

SHORT = {"old files go before they are committed (A20)": 1, "nobody is copied to again (A20)": 1}
"""Found only where the log is kept short."""

FOUND_BY = {
    "acks against the shrunk set (ruling 1)": 24,
    "no cut at a fork (ruling 2)": 3,
    "the cut is one byte off (ruling 2)": 17,
    "power loss forgotten (ruling 3)": 9,
    "sync does nothing": 10,
}


@pytest.mark.parametrize("name", sorted(FOUND_BY))
def test_the_bug_is_found_and_its_absence_is_not(name: str) -> None:
    seed = FOUND_BY[name]
    with planted(name):
        assert World(seed).run().failure, f"{name} is no longer found by seed {seed}; look for another"
    assert not World(seed).run().failure


@pytest.mark.parametrize("name", sorted(ROUGH))
def test_the_bug_is_found_among_many_faults(name: str) -> None:
    options = rough(seed_options(ROUGH[name]))
    with planted(name):
        assert World(ROUGH[name], options).run().failure
    assert not World(ROUGH[name], options).run().failure


@pytest.mark.parametrize("name", sorted(SHORT))
def test_the_bug_is_found_where_logs_are_short(name: str) -> None:
    options = short_logs(seed_options(SHORT[name]))
    with planted(name):
        assert World(SHORT[name], options).run().failure
    assert not World(SHORT[name], options).run().failure


def test_every_entry_names_a_mutation() -> None:
    assert {*FOUND_BY, *ROUGH, *SHORT} <= set(MUTATIONS)
