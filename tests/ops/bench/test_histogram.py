"""The histogram against sorted lists."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from rmqha.ops.bench.histogram import LatencyHistogram

VALUES = st.lists(st.integers(0, 1 << 40), min_size=1, max_size=200)


def of(values: list[int]) -> LatencyHistogram:
    made = LatencyHistogram()
    for value in values:
        made.record(value)
    return made


@given(VALUES, st.floats(0.01, 100))
def test_a_percentile_is_at_most_one_percent_too_high(values: list[int], percent: float) -> None:
    exact = sorted(values)[max(0, math.ceil(percent * len(values) / 100) - 1)]
    found = of(values).percentile(percent)
    assert exact <= found <= exact + exact / 128


@given(VALUES)
def test_bars_hold_every_value_once(values: list[int]) -> None:
    bars = list(of(values).bars())
    assert sum(count for _, _, count in bars) == len(values)
    for low, behind, count in bars:
        assert count == sum(low <= value < behind for value in values)


def test_small_numbers_are_exact_and_nothing_is_nothing() -> None:
    made = of(list(range(1, 101)))
    assert [made.percentile(percent) for percent in (1, 50, 99, 99.9, 100)] == [1, 50, 99, 100, 100]
    assert (made.max, made.mean) == (100, 50.5)
    assert (LatencyHistogram().percentile(99), LatencyHistogram().mean, list(LatencyHistogram().bars())) == (0, 0.0, [])
