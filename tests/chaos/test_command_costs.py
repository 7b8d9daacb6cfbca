"""An operator's commands answer at once: processor time of each until it prints something."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.chaos.conftest import Tell
from tests.support.command_cost import GOAL_MS, arguments_of, command_names, first_output_ms, lines, small_cluster
from tests.support.machine_speed import reference_ms

BOUND_MS = 3.0 * GOAL_MS
"""A start reads hundreds of files, which a busy host slows more than the work by which its speed is measured."""


def test_no_command_is_forgotten() -> None:
    assert sorted(lines()) == sorted(command_names())


@pytest.mark.chaos
def test_each_command_prints_at_once(tmp_path: Path, tell: Tell) -> None:
    with small_cluster(tmp_path) as (environment, places):
        found = {
            name: reference_ms(partial(first_output_ms, arguments_of(name, places), environment, tmp_path), BOUND_MS)
            for name in lines()
        }
    slowest = sorted(found, key=found.__getitem__, reverse=True)
    tell(", ".join(f"{name} {found[name]:.0f} ms" for name in slowest[:5]))
    assert {name: round(found[name]) for name in slowest if found[name] >= BOUND_MS} == {}
