"""`rmqha log`: the files of a message store, offline, on a live or dead store, ours or Apache RocketMQ's."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from rmqha.cli.options import echo_json, output_option
from rmqha.cli.render import console, table
from rmqha.cli.storage.log_export import export_lines, export_parquet
from rmqha.cli.storage.log_quarantine import kept
from rmqha.cli.storage.log_record import body_of, json_line, table_line, time_text
from rmqha.cli.storage.log_sync import sync
from rmqha.cli.times import moment
from rmqha.host.read_disk import HostReadDisk
from rmqha.inspect.finding import Severity
from rmqha.inspect.fsck import Progress, Scope, check
from rmqha.inspect.log_query import RecordQuery, RecordTotals, entries, file_totals, queue_totals, record_of
from rmqha.inspect.store_inspection import EPOCHS_LIMIT_BYTES, StoreInspection, inspect_store
from rmqha.inspect.timer_inspection import TimerInspection, inspect_timers
from rmqha.model.error import StoreError, UsageError
from rmqha.model.message import PROPERTY_KEYS, PROPERTY_UNIQUE_KEY, decode_properties
from rmqha.model.pattern import Pattern
from rmqha.store.log.record import Record
from rmqha.store.meta.epoch_file import PATH as EPOCH_PATH
from rmqha.store.meta.epoch_file import BadEpochFileError
from rmqha.store.meta.epoch_file import parse as parse_epochs

F = TypeVar("F", bound=Callable[..., Any])


@click.group()
def log() -> None:
    """Inspect the files of a message store, offline.

    DIR is a broker's storePathRootDir. The store may be in use; nothing is locked or written, but for `kept --remove`
    and the copy that `sync` makes.
    """


log.add_command(kept)
log.add_command(sync)


# --- options ----------------------------------------------------------------------------------------------------------
def directory_argument(command: F) -> F:
    """DIR: the command gets `directory: Path`."""
    return click.argument("directory", type=click.Path(path_type=Path), metavar="DIR")(command)


def query_options(command: F) -> F:
    """Add the options that choose records: the command gets topic, queue, start, end, since, until, uncommitted."""
    for option in (
        click.option("--uncommitted", is_flag=True, help="Also what is behind the committed end."),
        click.option("--until", callback=moment, metavar="TIME", help="Stored before TIME."),
        click.option("--since", callback=moment, metavar="TIME", help="Stored at TIME or later."),
        click.option("--to", "end", type=click.IntRange(0), metavar="OFFSET", help="Physical offset to stop before."),
        click.option(
            "--from", "start", type=click.IntRange(0), default=0, metavar="OFFSET", help="Physical offset to begin at."
        ),
        click.option("--queue", type=click.IntRange(0), metavar="N", help="Only this queue."),
        click.option("--topic", metavar="T", help="Only this topic."),
    ):
        command = option(command)
    return command


def body_option(command: F) -> F:
    """`--body text|base64|none`: the command gets `body: str`."""
    return click.option(
        "--body", type=click.Choice(["text", "base64", "none"]), default="text", show_default=True,
        help="How bodies are shown.",
    )(command)  # fmt: skip


def _query(options: dict[str, Any]) -> RecordQuery:
    return RecordQuery(
        options["topic"], options["queue"], options["start"], options["end"], options["since"], options["until"],
        options["uncommitted"],
    )  # fmt: skip


@contextmanager
def until_pipe_closes() -> Iterator[None]:
    """Stop when the reader of the output is gone, e.g. `head`; nothing more may be written, not even at exit."""
    try:
        yield
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def progress_bar(text: str) -> Iterator[Progress]:
    """Show progress on standard error, only on a terminal."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    from rmqha.cli.rich_console import rich_console

    columns = (TextColumn("{task.description}"), BarColumn(20), DownloadColumn(), TransferSpeedColumn())
    with Bar(*columns, console=rich_console(sys.stderr), transient=True) as bar:
        task = bar.add_task(text, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


# --- commands ---------------------------------------------------------------------------------------------------------
@log.command("ls")
@directory_argument
@output_option
def ls_command(directory: Path, output: str) -> None:
    """List the log's files: offsets, records, bytes used, times of storing.

    Also what is behind the committed end. Exit code 1 if a file holds other bytes than records.

    Example: rmqha log ls data/broker-a-1
    """
    store = inspect_store(HostReadDisk(directory))
    try:
        sums = file_totals(store)
    except OSError as error:
        raise StoreError(f"{directory} cannot be read: {error.strerror or error}; check the disk") from None
    if output == "json":
        echo_json([
            {
                "file": item.piece.path, "startOffset": item.piece.start_offset, "endOffset": item.piece.end_offset,
                "records": item.records.count, "usedBytes": item.used_bytes,
                "firstStoreTimestamp": item.records.first_ms, "lastStoreTimestamp": item.records.last_ms,
                "problem": item.problem or None,
            }
            for item in sums
        ])  # fmt: skip
    else:
        names = (
            ("START", "right"),
            ("END", "right"),
            ("RECORDS", "right"),
            ("USED", "right"),
            ("FIRST", ""),
            ("LAST", ""),
        )
        console().print(table(names, [
            [
                item.piece.start_offset, item.piece.end_offset, item.records.count, item.used_bytes,
                time_text(item.records.first_ms, year=False), time_text(item.records.last_ms, year=False),
            ]
            for item in sums
        ]))  # fmt: skip
        click.echo(f"{len(sums)} files of {store.log.file_size_bytes} bytes, committed up to {store.committed_end}")
    for item in sums:
        if item.problem:
            click.echo(f"{item.piece.path} at {item.problem}; see rmqha fsck {directory}", err=True)
    if any(item.problem for item in sums):
        sys.exit(1)


@log.command("stat")
@directory_argument
@query_options
@output_option
def stat_command(directory: Path, output: str, **options: Any) -> None:
    """Count records and bytes by topic and queue, and tell how far timer messages are delivered.

    Example: rmqha log stat data/broker-a-1 --since 2026-11-21T14:00:00
    """
    store = inspect_store(HostReadDisk(directory))
    sums = queue_totals(store, _query(options))
    total = RecordTotals()
    for item in sums.values():
        total.count += item.count
        total.size_bytes += item.size_bytes
    epochs, timers = _epochs(store), inspect_timers(store.disk)
    if output == "json":
        echo_json({
            "queues": [
                {"topic": topic, "queueId": queue_id, **_totals_json(item)} for (topic, queue_id), item in sums.items()
            ],
            "records": total.count,
            "bytes": total.size_bytes,
            "minOffset": store.min_offset,
            "committedEnd": store.committed_end,
            "inUse": store.live,
            "epochs": [{"epoch": epoch, "startOffset": start} for epoch, start in epochs],
            "timers": None if timers is None else {
                "readTimeMs": timers.read_ms, "queueOffset": timers.queue_offset, "logUnits": timers.unit_count,
                "logWaiting": timers.waiting_count, "wheelSlots": timers.slot_count, "problem": timers.problem or None,
                "change": timers.change or None,
            },
        })  # fmt: skip
        return
    names = (
        ("TOPIC", ""), ("Q", "right"), ("RECORDS", "right"), ("BYTES", "right"), ("OFFSETS", "right"), ("FIRST", ""),
        ("LAST", ""),
    )  # fmt: skip
    rows = [
        [
            _shortened(topic), queue_id, item.count, item.size_bytes,
            f"{item.min_queue_offset}-{item.max_queue_offset}",
            time_text(item.first_ms, year=False)[:14], time_text(item.last_ms, year=False)[6:],
        ]
        for (topic, queue_id), item in sums.items()
    ]  # fmt: skip
    console().print(table(names, rows))
    click.echo(
        f"{total.count} records, {total.size_bytes} bytes; log {store.min_offset} to {store.committed_end} (committed)"
    )
    if epochs:
        click.echo("epochs, each with its start: " + ", ".join(f"{epoch}-{start}" for epoch, start in epochs))
    if timers is not None:
        for line in _timer_lines(timers):
            click.echo(line)


def _timer_lines(timers: TimerInspection) -> Iterator[str]:
    yield f"timers due before {time_text(timers.read_ms)} are delivered; from entry {timers.queue_offset} on they wait"
    if timers.unit_count or timers.slot_count:
        yield (
            f"timerlog/ names {timers.unit_count}, {timers.waiting_count} of them due later; timerwheel has"
            f" {timers.slot_count} used slots"
        )
    if timers.change:
        yield timers.change
    if timers.problem:
        yield f"{timers.problem}; see rmqha fsck"


def _shortened(topic: str) -> str:
    return topic if len(topic) <= 24 else topic[:11] + "…" + topic[-12:]


def _totals_json(item: RecordTotals) -> dict[str, Any]:
    return {
        "records": item.count, "bytes": item.size_bytes,
        "minQueueOffset": item.min_queue_offset, "maxQueueOffset": item.max_queue_offset,
        "firstStoreTimestamp": item.first_ms, "lastStoreTimestamp": item.last_ms,
    }  # fmt: skip


def _epochs(store: StoreInspection) -> list[tuple[int, int]]:
    """Epochs and start offsets of a store; [] without an epoch file. Raises StoreError for a damaged one."""
    if not store.disk.exists(EPOCH_PATH):
        return []
    try:
        history = parse_epochs(store.disk.read(EPOCH_PATH, EPOCHS_LIMIT_BYTES))
    except BadEpochFileError as error:
        raise StoreError(f"{store.disk.label}/{EPOCH_PATH} at byte {error.at}: {error}; see rmqha fsck") from None
    return [(entry.epoch, entry.start_offset) for entry in history]


def _records(store: StoreInspection, options: dict[str, Any]) -> Iterator[Record]:
    for entry, parts in entries(store, _query(options)):
        yield record_of(entry, parts)


def _print(records: Iterator[Record], output: str, body: str, limit: int | None) -> int:
    """Print records. Returns their number."""
    count = 0
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    if limit == 0:
        return 0
    for record in records:
        click.echo(json_line(record, body) if output == "json" else table_line(record, width, body))
        count += 1
        if count == limit:
            break
    return count


@log.command("cat")
@directory_argument
@query_options
@click.option("--limit", type=click.IntRange(0), metavar="N", help="At most N records.")
@body_option
@output_option
def cat_command(directory: Path, limit: int | None, body: str, output: str, **options: Any) -> None:
    """Print the records, one line each.

    With -o json one object per line: topic, queueId, queueOffset, physicalOffset, storeTimestamp, keys, tags,
    properties, body (bodyBase64 where it is no UTF-8) and more. A bad record ends the output with exit code 1.

    Example: rmqha log cat data/broker-a-1 --topic orders -o json | jq .body
    """
    store = inspect_store(HostReadDisk(directory))
    with until_pipe_closes():
        _print(_records(store, options), output, body, limit)


@log.command("grep")
@directory_argument
@click.argument("pattern", required=False)
@click.option("--key", metavar="K", help="Exactly this key or message id, instead of PATTERN.")
@click.option("-F", "--fixed", is_flag=True, help="PATTERN is text, no regular expression.")
@click.option("-i", "--ignore-case", is_flag=True, help="Upper and lower case are the same.")
@query_options
@click.option("--limit", type=click.IntRange(0), metavar="N", help="At most N records.")
@body_option
@output_option
def grep_command(
    directory: Path,
    pattern: str | None,
    key: str | None,
    fixed: bool,
    ignore_case: bool,
    limit: int | None,
    body: str,
    output: str,
    **options: Any,
) -> None:
    """Print the records whose body, keys, tags or other properties match PATTERN.

    PATTERN is a regular expression of RE2: no back-references and no look-around, and no text makes it slow.

    Exit code: 0 found, 1 not found or the log is damaged, 2 wrong usage.

    Example: rmqha log grep data/broker-a-1 "order-1[0-9]+"; rmqha log grep data/broker-a-1 --key order-17
    """
    if (pattern is None) == (key is None):
        raise UsageError("say what to look for: PATTERN or --key K, one of both")
    try:
        wanted = Pattern(pattern or "", ignore_case=ignore_case, literal=fixed)
    except ValueError as error:
        raise UsageError(
            f"PATTERN {pattern!r} is no regular expression: {error}; say -F to look for the text"
        ) from None
    store = inspect_store(HostReadDisk(directory))
    found = (
        record
        for record in _records(store, options)
        if (_has_key(record, key) if key is not None else _matches(record, wanted))
    )
    count = 0
    with until_pipe_closes():
        count = _print(found, output, body, limit)
    if not count:
        sys.exit(1)


def _has_key(record: Record, key: str) -> bool:
    properties = decode_properties(record.properties)
    return properties.get(PROPERTY_UNIQUE_KEY) == key or key in properties.get(PROPERTY_KEYS, "").split(" ")


def _matches(record: Record, wanted: Pattern) -> bool:
    if any(wanted.is_in(value.encode()) for value in decode_properties(record.properties).values()):
        return True
    return wanted.is_in(body_of(record)[0])


@log.command("export")
@directory_argument
@click.argument("target", type=click.Path(path_type=Path), metavar="FILE")
@click.option("--format", "kind", type=click.Choice(["jsonl", "parquet"]), help="Default: by the name of FILE.")
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@query_options
@body_option
def export_command(directory: Path, target: Path, kind: str | None, force: bool, body: str, **options: Any) -> None:
    """Write the records to FILE, as JSON lines (as `log cat -o json` prints) or as Parquet (needs pyarrow).

    FILE appears only when it is complete.

    Example: rmqha log export data/broker-a-1 orders.parquet --topic orders
    """
    if kind is None:
        kind = {".parquet": "parquet", ".jsonl": "jsonl", ".json": "jsonl", ".ndjson": "jsonl"}.get(target.suffix)
    if kind is None:
        raise UsageError(f"{target}: the name does not say which format; say --format jsonl or --format parquet")
    store = inspect_store(HostReadDisk(directory))
    write = export_parquet if kind == "parquet" else export_lines
    count = write(_records(store, options), target, body, force=force)
    click.echo(f"{count} records written to {target}", err=True)


@log.command("verify")
@directory_argument
@output_option
def verify_command(directory: Path, output: str) -> None:
    """Walk every record of the log: lengths, magic, own offset, CRC, queue entry.

    Says the first failure with file, byte, expected and found; `rmqha fsck` finds all, in all files. Exit code 1 if
    there is one.

    Example: rmqha log verify data/broker-a-1
    """
    with progress_bar("verify") as progress:
        report = check(HostReadDisk(directory), Scope.RECORDS, progress)
    faults = report.faults
    first = min(faults, key=lambda finding: finding.severity != Severity.ERROR) if faults else None
    if output == "json":
        echo_json({
            "sound": first is None, "records": report.record_count, "bytes": report.record_bytes,
            "endOffset": report.end_offset, "failures": len(faults),
            "first": None if first is None else {
                "file": first.path, "byte": first.at, "expected": first.expected, "found": first.found,
            },
        })  # fmt: skip
    else:
        click.echo(f"{report.record_count} records, {report.record_bytes} bytes, up to offset {report.end_offset}")
    if first is not None:
        more = f"; {len(faults) - 1} more: rmqha fsck {directory}" if len(faults) > 1 else ""
        click.echo(f"rmqha: {directory}/{first.sentence}{more}", err=True)
        sys.exit(1)
