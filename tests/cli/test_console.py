"""Output that is no terminal: nothing of a table or a sentence is cut, and a row is a line."""

from __future__ import annotations

import io
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqha.cli.render import Printer, Text, console, table
from rmqha.cli.rich_console import drawn, rich_console

CELL = st.text(st.characters(categories=("L", "N")), min_size=1, max_size=200)
COLUMNS = [("A", "left"), ("B", "right"), ("C", "left")]


@given(rows=st.lists(st.tuples(CELL, CELL, CELL), min_size=1, max_size=4))
def test_a_pipe_gets_every_cell_whole(rows: list[tuple[str, str, str]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", found := io.StringIO())
        console().print(table(COLUMNS, rows))
    lines = found.getvalue().splitlines()
    assert [tuple(line.split()) for line in lines[1:]] == rows


def test_a_terminal_that_is_too_narrow_folds_and_loses_nothing() -> None:
    out = io.StringIO()
    Printer(out, 30, is_styled=False).print(table(COLUMNS, [("x" * 40, "y" * 40, "z" * 40)]))
    assert {letter: out.getvalue().count(letter) for letter in "xyz"} == dict.fromkeys("xyz", 40)


def test_a_row_that_must_stay_a_line_is_cut() -> None:
    out = io.StringIO()
    Printer(out, 30, is_styled=False).print(table(COLUMNS, [("x" * 40, "y", "z")], fold=False))
    assert len(out.getvalue().splitlines()) == 2 and "…" in out.getvalue()


def test_a_wide_terminal_gets_the_same_table_as_a_narrow_one_that_it_fits() -> None:
    """The one is drawn here, the other by rich."""
    rows = [("broker-a-1", Text("12", "bold green"), "日本"), ("b", None, "in")]
    ours, rich = io.StringIO(), io.StringIO()
    Printer(ours, 80, is_styled=False).print(table(COLUMNS, rows))
    console = rich_console(rich)
    console.width = 80
    console.print(drawn(table(COLUMNS, rows)))
    assert ours.getvalue().splitlines() == [line.rstrip() for line in rich.getvalue().splitlines()]


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"FORCE_COLOR": "1", "TERM": "xterm"}, "\x1b[1;31mgone\x1b[0m\n"),
        ({"FORCE_COLOR": "1", "TERM": "xterm", "NO_COLOR": "1"}, "gone\n"),
        ({"FORCE_COLOR": "1", "TERM": "dumb"}, "gone\n"),
        ({"TERM": "xterm"}, "gone\n"),
    ],
)
def test_styles_reach_only_a_terminal_that_knows_them(
    variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FORCE_COLOR", "NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stdout", out := io.StringIO())
    console().print(Text("gone", "bold red"))
    assert out.getvalue() == expected
