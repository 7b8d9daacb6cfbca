"""Each theme is a row of data: values of `Options`, some of them chosen by what the seed drew, and nothing else."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path

import pytest

from tests.simulation.options import Options
from tests.simulation.themes.table import THEMES

FILES = ("disks.py", "lives.py", "rough.py", "shells.py", "table.py")
SHARED = frozenset(("_one_bad", "ap_level"))
"""Parts that several themes name."""


def functions() -> dict[str, ast.FunctionDef]:
    trees = (ast.parse(Path(__file__).with_name(name).read_text()) for name in FILES)
    return {item.name: item for tree in trees for item in tree.body if isinstance(item, ast.FunctionDef)}


FUNCTIONS = functions()


def test_all_functions_of_the_folder_are_themes() -> None:
    of_themes = {theme.__name__ for theme in THEMES.values()}
    assert set(FUNCTIONS) - SHARED == of_themes - {"<lambda>"}


@pytest.mark.parametrize("name", sorted(set(FUNCTIONS) - SHARED))
def test_a_theme_is_a_sentence_and_one_row_of_values(name: str) -> None:
    theme = FUNCTIONS[name]
    assert ast.get_docstring(theme)
    *drawn, row = theme.body[1:]
    assert all(isinstance(item, ast.Assign) for item in drawn), "names for what is drawn come before the row"
    assert isinstance(row, ast.Return)
    assert isinstance(row.value, ast.Call)
    assert isinstance(row.value.func, ast.Name)
    assert row.value.func.id == "replace"
    fields = {item.name for item in dataclasses.fields(Options)}
    assert {item.arg for item in row.value.keywords} <= fields
