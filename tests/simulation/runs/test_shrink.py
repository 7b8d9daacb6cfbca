"""Shrinking a failing run to the faults it needs, coverage marks, and the command around them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from rmqha.sim.scheduler import Scheduler
from tests.simulation.__main__ import kept_seeds, main
from tests.simulation.marks import MARKS, MarkingTracer, not_hit
from tests.simulation.planted.mutations import planted
from tests.simulation.run import ROTATION, Run, theme_of
from tests.simulation.shrink import faults_of, fewest, shrink
from tests.simulation.themes.table import THEMES

BUG = "one of two goes on without asking (rulings 6, 7)"


def test_the_fewest_of_a_list_are_found() -> None:
    asked: list[list[str]] = []

    def fails(rest: Sequence[str]) -> bool:
        asked.append(list(rest))
        return {"c", "g"} <= set(rest)

    assert fewest("abcdefghij", fails, 1000) == ["c", "g"]
    assert len(asked) < 60
    assert len(fewest("abcdefghij", fails, 3)) > 2, "the limit of runs holds"


@pytest.mark.sim
def test_a_failing_run_keeps_only_the_faults_that_it_needs() -> None:
    with planted(BUG):
        kept, keys, failure = shrink(Run(1, "pair"))
        assert failure
        assert len(kept) < len(keys)
        for key in kept:
            assert not faults_of(Run(1, "pair"), frozenset(kept) - {key})[1], f"without {key} it fails too"


@pytest.mark.sim
def test_all_faults_allowed_is_the_run_itself() -> None:
    keys, _ = faults_of(Run(1, "heirs"))
    assert keys
    assert faults_of(Run(1, "heirs"), frozenset(keys))[0] == keys
    assert faults_of(Run(1, "heirs"), frozenset())[0] == []


def test_a_run_that_does_not_fail_cannot_be_shrunk() -> None:
    done = CliRunner().invoke(main, ["--seed", "1", "--theme", "heirs", "--shrink"])
    assert done.exit_code == 2
    assert "seed 1 does not fail with theme heirs" in done.output


def test_an_unknown_theme_is_an_error_with_the_list() -> None:
    done = CliRunner().invoke(main, ["--theme", "roguh"])
    assert done.exit_code == 2
    assert all(f"'{name}'" in done.output for name in THEMES)


def test_an_unknown_fault_is_an_error_with_the_list() -> None:
    done = CliRunner().invoke(main, ["--seed", "1", "--theme", "heirs", "--only", "kill@1"])
    assert done.exit_code == 2
    assert "no fault kill@1 happens in this run; there are" in done.output
    keys, _ = faults_of(Run(1, "heirs"))
    assert all(key in done.output.replace("\n", "") for key in keys)


def test_shrinking_needs_a_seed() -> None:
    assert CliRunner().invoke(main, ["--shrink"]).exit_code == 2


def test_every_theme_has_its_turn_and_a_row_on_the_page() -> None:
    assert {theme_of(seed, "all") for seed in range(1, 2 * len(ROTATION) + 1)} == set(THEMES)
    page = (Path(__file__).parents[3] / "docs/internals/simulation.md").read_text()
    assert set(re.findall(r"^\| `([a-z-]+)` \|", page.partition("| theme |")[2], re.M)) == set(THEMES)
    assert theme_of(7, "rough") == "rough"


def test_kept_seeds_name_a_theme_or_are_plain() -> None:
    assert all(run.theme in THEMES for run in kept_seeds())


def test_a_mark_is_hit_by_its_event_only() -> None:
    tracer = MarkingTracer(Scheduler())
    tracer.event("ha_aligned", case="2-2", cut_bytes=0)
    assert tracer.marks == set()
    tracer.event("ha_aligned", case="2-3", cut_bytes=7)
    assert tracer.marks == {"a fork is cut", "a slave is ahead of its master (2-3)"}
    assert not_hit(MARKS) == []
    assert "a fork is cut" not in not_hit(tracer.marks)
    assert len(not_hit(tracer.marks)) == len(MARKS) - 2
