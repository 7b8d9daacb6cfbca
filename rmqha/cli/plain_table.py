"""Tables as plain text: as wide as their cells, so that nothing is cut in a pipe. Loads no rich."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unicodedata import east_asian_width

import click

from rmqha.model.printable import printable

Column = tuple[str, str]
"""Heading, "left" or "right"."""


def _width(text: str) -> int:
    return sum(2 if east_asian_width(char) in "WF" else 1 for char in text)


def table_lines(columns: Sequence[Column], rows: Sequence[Sequence[Any]]) -> list[str]:
    """The heading and a line for each row, without blanks at the end."""
    cells = [[heading for heading, _ in columns]]
    cells += [["" if value is None else printable(str(value), lines=False) for value in row] for row in rows]
    widths = [max(_width(row[at]) for row in cells) for at in range(len(columns))]
    lines = []
    for row in cells:
        padded = []
        for text, width, (_, justify) in zip(row, widths, columns, strict=True):
            blanks = " " * (width - _width(text))
            padded.append(blanks + text if justify == "right" else text + blanks)
        lines.append("  ".join(padded).rstrip())
    return lines


def echo_table(columns: Sequence[Column], rows: Sequence[Sequence[Any]]) -> None:
    """Print it."""
    for line in table_lines(columns, rows):
        click.echo(line)
