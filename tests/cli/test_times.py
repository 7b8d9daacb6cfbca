"""Times and ages, and tables that are never cut."""

from __future__ import annotations

import pytest

from rmqha.cli.plain_table import table_lines
from rmqha.cli.times import age_text, local_time, parse_time, short_time


@pytest.mark.parametrize(
    ("age_ms", "text"),
    [
        (None, ""),
        (0, "0ms"),
        (999, "999ms"),
        (1_000, "1s"),
        (61_000, "1m 1s"),
        (60_000, "1m"),
        (3_600_000, "1h"),
        (3_601_000, "1h"),
        (90_061_000, "1d 1h"),
    ],
)
def test_an_age_has_two_units_at_most(age_ms: int | None, text: str) -> None:
    assert age_text(age_ms) == text


def test_a_time_comes_back_from_its_text() -> None:
    at_ms = 1_795_478_269_793
    assert parse_time(local_time(at_ms)) == at_ms
    assert short_time(at_ms) == local_time(at_ms)[5:19]
    assert parse_time("2026-11-21T14:00:00+02:00") == 1_795_262_400_000
    for text in ("", "yesterday", "12", "2026-13-01"):
        assert parse_time(text) is None


def test_a_time_that_a_peer_made_up_is_its_number() -> None:
    assert local_time(0) == local_time(-1) == short_time(0) == ""
    assert local_time(1 << 62) == short_time(1 << 62) == str(1 << 62)


def test_a_table_is_as_wide_as_its_cells() -> None:
    long = "x" * 300
    lines = table_lines([("A", "left"), ("NUMBER", "right"), ("C", "left")], [[long, 7, None], ["語\n", 12345678, "e"]])
    assert lines[1] == f"{long}         7"
    assert lines[0] == f"A{' ' * 299}    NUMBER  C"
    # a wide character takes two columns, a line end is shown as what it is
    assert lines[2] == f"語\\u000a{' ' * 292}  12345678  e"
