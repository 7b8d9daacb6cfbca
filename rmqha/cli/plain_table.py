"""Tables as plain text: as wide as their cells, so that nothing is cut in a pipe. Loads no rich."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from unicodedata import east_asian_width

import click

from rmqha.model.printable import printable

Column = tuple[str, str]
"""A column: its heading, and "left" or "right"."""


class Text:
    """A text whose parts have styles: words such as bold and red, joined by blanks."""

    def __init__(self, text: str, style: str = "") -> None:
        self.parts = [(text, style)]

    def append(self, text: str, style: str = "") -> None:
        self.parts.append((text, style))

    def __str__(self) -> str:
        return "".join(text for text, _ in self.parts)


@dataclass(frozen=True, slots=True)
class Table:
    """A heading and rows, whose cells are texts or are shown by `str`; None is an empty one."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]
    folds: bool


def cells_wide(text: str) -> int:
    """Number of columns that a text takes on a terminal."""
    return len(text) if text.isascii() else sum(2 if east_asian_width(char) in "WF" else 1 for char in text)


def padded(text: str, width: int, justify: str, painted: str | None = None) -> str:
    """The text with blanks beside it up to `width` columns. `painted`: the text with codes that take no room."""
    blanks, shown = " " * (width - cells_wide(text)), text if painted is None else painted
    return blanks + shown if justify == "right" else shown + blanks


def table_lines(columns: Sequence[Column], rows: Sequence[Sequence[Any]]) -> list[str]:
    """The heading and a line for each row, without blanks at the end."""
    cells = [[heading for heading, _ in columns]]
    cells += [["" if value is None else printable(str(value), lines=False) for value in row] for row in rows]
    widths = [max(cells_wide(row[at]) for row in cells) for at in range(len(columns))]
    return [
        "  ".join(
            padded(text, width, justify) for text, width, (_, justify) in zip(row, widths, columns, strict=True)
        ).rstrip()
        for row in cells
    ]


def echo_table(columns: Sequence[Column], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table."""
    for line in table_lines(columns, rows):
        click.echo(line)
