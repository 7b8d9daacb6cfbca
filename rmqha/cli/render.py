"""Text and tables for people: styled on a terminal; plain, and as wide as their content, on other outputs.

Loads no rich unless a table is wider than the terminal: it costs half as much as all the rest of a command that only
asks. Control plane.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from typing import Any, TextIO

from rmqha.cli.plain_table import Column, Table, cells_wide, padded
from rmqha.cli.plain_table import Text as Text
from rmqha.cli.safe_text import raw
from rmqha.model.printable import printable

CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
"""Terminal codes by the words of a style."""


def table(columns: Sequence[Column], rows: Sequence[Sequence[Any]], *, fold: bool = True) -> Table:
    """A table. `columns` are (heading, "left" or "right"). A cell too wide for the terminal goes on below; without
    `fold` it is cut, so that a row stays a line."""
    return Table(columns, rows, fold)


class Printer:
    """Printer of texts and tables to a stream; control characters in a text are escaped."""

    def __init__(self, stream: TextIO, width: int | None, *, is_styled: bool) -> None:
        """`width`: columns of the terminal; None if the stream is none."""
        self._stream = stream
        self._width = width
        self._is_styled = is_styled

    def print(self, shown: Text | Table | str, style: str = "") -> None:
        """Print a line, or the lines of a table. `style` is that of plain text."""
        if isinstance(shown, Table):
            self._print_table(shown)
            return
        text = Text(shown, style) if isinstance(shown, str) else shown
        self._write("".join(self._painted(printable(part), how) for part, how in text.parts))

    def _print_table(self, shown: Table) -> None:
        headings = [Text(heading, "bold") for heading, _ in shown.columns]
        rows = [headings, *([_cell(value) for value in row] for row in shown.rows)]
        texts = [[printable(str(cell), lines=False) for cell in row] for row in rows]
        widths = [max(cells_wide(row[at]) for row in texts) for at in range(len(headings))]
        if self._width is not None and sum(widths) + len(widths) - 1 > self._width:
            self._print_folded(shown)
            return
        for row, words in zip(rows, texts, strict=True):
            line = []
            for cell, word, width, (_, justify) in zip(row, words, widths, shown.columns, strict=True):
                ((_, style),) = cell.parts
                line.append(padded(word, width, justify, self._painted(word, style)))
            self._write(" ".join(line).rstrip())

    def _print_folded(self, shown: Table) -> None:
        from rmqha.cli.rich_console import drawn, rich_console

        out = rich_console(self._stream)
        assert self._width is not None
        out.width = self._width
        out.print(drawn(shown))

    def _painted(self, text: str, style: str) -> str:
        if not self._is_styled or not style or not text:
            return text
        return f"\x1b[{';'.join(CODES[word] for word in style.split())}m{text}\x1b[0m"

    def _write(self, line: str) -> None:
        self._stream.write(line + "\n")


def _cell(value: Any) -> Text:
    if isinstance(value, Text):
        assert len(value.parts) == 1, "a cell has one style"
        return value
    return Text("" if value is None else str(value))


def console() -> Printer:
    """The printer of standard output. FORCE_COLOR takes any stream for a terminal; NO_COLOR and TERM=dumb mean no
    styles."""
    stream = raw(sys.stdout)
    is_terminal = bool(os.environ.get("FORCE_COLOR")) or stream.isatty()
    is_plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM", "") in ("dumb", "unknown")
    width = shutil.get_terminal_size().columns if is_terminal else None
    return Printer(stream, width, is_styled=is_terminal and not is_plain)
