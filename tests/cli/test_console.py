"""Output that is no terminal: nothing of a table or a sentence is cut, and a row is a line."""

from __future__ import annotations

import io
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from rmqha.cli.render import console, table

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
    Console(file=out, width=30).print(table(COLUMNS, [("x" * 40, "y" * 40, "z" * 40)]))
    assert {letter: out.getvalue().count(letter) for letter in "xyz"} == dict.fromkeys("xyz", 40)
