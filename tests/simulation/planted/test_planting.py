"""How planted bugs are measured: each alone, in the runs of the rotation, until one fails."""

from __future__ import annotations

from tests.simulation.planted.planting import Planted, look_for, runs_for, summary
from tests.simulation.run import ALL, theme_of

FASTEST = "the fastest member decides (ruling 1)"


def test_a_bug_is_found_by_the_first_run_that_fails() -> None:
    found = look_for(FASTEST, 1, 3, 3)
    assert (found.found_by, found.tried_count) == ("rough:1", 1)
    assert found.failure


def test_a_bug_that_no_run_sees_is_missed() -> None:
    assert look_for("a progress is not synced", 2, 1, 1) == Planted("a progress is not synced", "", 1, "")


def test_the_runs_are_those_of_the_rotation_whatever_their_order() -> None:
    runs = runs_for(FASTEST, 1, 200)
    assert runs[0].theme == "rough"
    assert sorted((run.seed, run.theme) for run in runs) == [(seed, theme_of(seed, ALL)) for seed in range(1, 201)]


def test_the_sum_names_what_was_missed() -> None:
    found = [Planted("one", "rough:1", 1, "b1 loses"), Planted("two", "", 200, "")]
    assert summary(found) == "1 of 2 planted bugs found; not found: two (200 runs)"
    assert summary(found[:1]) == "1 of 1 planted bugs found; not found: none"
