from __future__ import annotations

import pytest

from rmqha.model.config.delay_level import DEFAULT_DELAY_LEVELS, delay_level, parse_delay_levels


def test_the_18_levels_of_rocketmq() -> None:
    minutes = [60_000 * number for number in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120)]
    assert list(parse_delay_levels(DEFAULT_DELAY_LEVELS)) == [1000, 5000, 10_000, 30_000, *minutes]


def test_other_levels() -> None:
    assert parse_delay_levels(" 7s  2d ") == (7000, 172_800_000)


@pytest.mark.parametrize("text", ["", " ", "1", "1s 5", "s", "-1s", "1.5s", "1S", "1s,5s", "1000000000s"])
def test_what_is_no_list_of_levels(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no time|at least one"):
        parse_delay_levels(text)


def test_level_of_a_property() -> None:
    assert [delay_level(value) for value in (None, "", "0", "-1", "3", "99")] == [0, 0, 0, 0, 3, 99]


@pytest.mark.parametrize("value", ["x", "1.0", "٣", "--1", "-", " 1", "12345678901"])
def test_a_property_that_is_no_level(value: str) -> None:
    with pytest.raises(ValueError, match="no delay level"):
        delay_level(value)
