"""Bounds on CPU time hold on any machine, and still fail for work that is too much."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import median

import pytest

from tests.support.machine_speed import cpu_ms, fixed_work, reference_ms, slowness

LIMIT_MS = 100.0


def times(*values_ms: float) -> Callable[[], float]:
    return partial(next, iter(values_ms))


@pytest.mark.parametrize(
    ("measured_ms", "slow", "expected_ms"),
    [
        ((40.0,), 1.0, 40.0),
        ((180.0,), 2.0, 90.0),
        ((180.0, 170.0, 99.0), 1.0, 99.0),
        ((1000.0, 900.0, 800.0, 950.0, 990.0), 2.0, 400.0),
    ],
)
def test_the_first_try_within_the_limit_counts_else_the_least(
    measured_ms: tuple[float, ...], slow: float, expected_ms: float
) -> None:
    assert reference_ms(times(*measured_ms), LIMIT_MS, slowness=lambda: slow) == expected_ms


def test_what_cannot_be_done_again_is_tried_once() -> None:
    assert reference_ms(times(300.0), LIMIT_MS, try_count=1, slowness=lambda: 2.0) == 150.0


def test_much_more_work_is_beyond_a_bound_of_three_times_on_this_machine() -> None:
    """A hundred times the work: other guests may slow a host down by ten in the middle of a measurement."""
    assert slowness() >= 1

    def work(count: int) -> float:
        return cpu_ms(lambda: [fixed_work() for _ in range(count)])

    limit_ms = 3 * median(work(1) for _ in range(5)) / slowness()
    assert reference_ms(partial(work, 100), limit_ms) > limit_ms
