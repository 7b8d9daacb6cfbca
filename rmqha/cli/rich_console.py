"""Output by rich: live screens, progress, and tables that are too wide for a terminal. Loading rich costs 50 ms, so
only these load it. Control plane."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table as RichTable
from rich.text import Text as RichText

from rmqha.cli.plain_table import Table
from rmqha.cli.plain_table import Text as Plain
from rmqha.cli.safe_text import raw
from rmqha.model.printable import printable


class SafeConsole(Console):
    """Console without markup, so that texts of peers get no style; control characters in a text are escaped."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(file=stream, highlight=False, soft_wrap=False, markup=False, emoji=False)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else printable(segment.text)
            yield segment if text == segment.text else Segment(text, segment.style)


def rich_console(stream: TextIO | None = None) -> Console:
    """The console of a stream, of standard output if none is given. Callers check `is_terminal` first."""
    return SafeConsole(raw(sys.stdout) if stream is None else raw(stream))


def drawn(shown: Plain | Table) -> RenderableType:
    """A text or table of ours as rich draws it; a cell too wide for the terminal goes on below, or is cut."""
    if isinstance(shown, Plain):
        return _styled(shown)
    made = RichTable(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for heading, justify in shown.columns:
        made.add_column(
            heading,
            justify="right" if justify == "right" else "left",
            no_wrap=not shown.folds,
            overflow="fold" if shown.folds else "ellipsis",
        )
    for row in shown.rows:
        made.add_row(*[_cell(value) for value in row])
    return made


def _styled(text: Plain) -> RichText:
    made = RichText(overflow="fold")
    for part, style in text.parts:
        made.append(part, style)
    return made


def _cell(value: object) -> RichText:
    """A cell's value as one line."""
    if isinstance(value, Plain):
        return _styled(value)
    return RichText("" if value is None else printable(str(value), lines=False))
