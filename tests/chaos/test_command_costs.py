"""An operator's commands answer at once: processor time of each until it prints something."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.abuse.keys import Keys
from tests.chaos.conftest import Tell
from tests.support.command_cost import (
    GOAL_MS,
    SECURED,
    VARIANTS,
    arguments_of,
    command_names,
    first_output_ms,
    lines,
    small_cluster,
)
from tests.support.machine_speed import reference_ms

BOUND_MS = 3.0 * GOAL_MS
"""A start reads hundreds of files, which a busy host slows more than the work by which its speed is measured."""


def test_no_command_is_forgotten() -> None:
    assert sorted(lines()) == sorted(command_names())


@pytest.mark.chaos
def test_each_command_prints_at_once(tmp_path: Path, tell: Tell) -> None:
    with small_cluster(tmp_path) as (environment, places):
        _print_at_once([*VARIANTS, *lines()], environment, places, tmp_path, tell)


@pytest.mark.chaos
def test_with_tls_and_an_account_too(tmp_path: Path, tell: Tell) -> None:
    with small_cluster(tmp_path, Keys(tmp_path / "keys")) as (environment, places):
        names = [*VARIANTS, *SECURED, "down"]
        _print_at_once(names, environment, places, tmp_path, tell)


def _print_at_once(
    names: list[str], environment: dict[str, str], places: dict[str, str], directory: Path, tell: Tell
) -> None:
    found = {
        name: reference_ms(partial(first_output_ms, arguments_of(name, places), environment, directory), BOUND_MS)
        for name in names
    }
    slowest = sorted(found, key=found.__getitem__, reverse=True)
    tell(", ".join(f"{name} {found[name]:.0f} ms" for name in slowest[:5]))
    assert {name: round(found[name]) for name in slowest if found[name] >= BOUND_MS} == {}
