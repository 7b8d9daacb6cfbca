"""`rmqha log kept`: show and remove what a store has put aside. Control plane."""

from __future__ import annotations

import re
import time
from pathlib import Path

import click

from rmqha.cli.options import confirm, echo_json, output_option, yes_option
from rmqha.cli.render import console, table
from rmqha.cli.storage.log_record import time_text
from rmqha.host.read_disk import HostReadDisk
from rmqha.inspect.store_inspection import require_store
from rmqha.model.error import RmqhaError, UsageError
from rmqha.ops.diagnosis.quarantine import QuarantineEntry, find, remove, summary
from rmqha.store.layout import LOCK_PATH

_AGE = re.compile(r"([0-9]{1,9})([smhd])")
_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
LIVE_LEAST_MS = 3_600_000
"""Age (ms) below which files may still be written by the broker that runs on the store."""


def _age(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """Callback of an option: an age in milliseconds."""
    found = _AGE.fullmatch(value) if value is not None else None
    if value is not None and found is None:
        raise UsageError(f"--older-than {value!r} is no age: write a number and s, m, h or d, such as 7d")
    return None if found is None else int(found[1]) * _UNIT_MS[found[2]]


@click.command("kept")
@click.argument("directory", type=click.Path(path_type=Path), metavar="DIR")
@click.option("--remove", "do_remove", is_flag=True, help="Remove those older than --older-than, after a question.")
@click.option("--older-than", "age_ms", callback=_age, metavar="AGE", help="Unchanged for so long, such as 7d or 12h.")
@yes_option
@output_option
def kept(directory: Path, do_remove: bool, age_ms: int | None, yes: bool, output: str) -> None:
    """Show what the store DIR has put aside, and remove it.

    That is: old logs (replaced-<n>), what starts have cut from the log's end (rmqha.cut-<n>), what fsck --repair has
    changed (rmqha.fsck-<n>). Nobody reads them but people; no broker removes them. Nothing else is ever touched.

    The store may be in use: then nothing younger than an hour is removed.

    Example: rmqha log kept data/broker-a-1; rmqha log kept data/broker-a-1 --remove --older-than 7d
    """
    if do_remove and age_ms is None:
        raise UsageError("--remove needs --older-than, such as 7d")
    if yes and not do_remove:
        raise UsageError("--yes belongs to --remove")
    reader = HostReadDisk(directory)
    try:
        require_store(reader)
        if do_remove and (age_ms or 0) < LIVE_LEAST_MS and reader.is_locked(LOCK_PATH):
            raise UsageError(f"{directory} is in use, so nothing younger than 1h is removed: --older-than 1h or more")
        found = find(directory)
        before_ms = time.time_ns() // 1_000_000 - (age_ms or 0)
        chosen = [item for item in found if item.changed_at_ms <= before_ms]
        removed = _confirmed(directory, chosen, yes) if do_remove else []
    except OSError as error:
        place = error.filename or directory
        raise RmqhaError(
            f"{place}: {error.strerror or error}; see rmqha log kept {directory} for what is left"
        ) from None
    if output == "json":
        shown = chosen if age_ms is not None else found
        echo_json({"kept": [item.as_json() for item in shown], "removed": [item.name for item in removed]})
    elif do_remove:
        click.echo(f"{directory}: removed {summary(removed)}" if chosen else f"{directory}: nothing kept is that old")
    else:
        _show(directory, chosen if age_ms is not None else found)


def _confirmed(directory: Path, chosen: list[QuarantineEntry], yes: bool) -> list[QuarantineEntry]:
    names = ", ".join(item.name for item in chosen)
    question = f"remove {summary(chosen)} from {directory} for good: {names}?"
    if chosen:
        confirm(question, "nothing removed", yes=yes)
    return remove(directory, chosen)


def _show(directory: Path, items: list[QuarantineEntry]) -> None:
    columns = (("NAME", ""), ("FILES", "right"), ("BYTES", "right"), ("CHANGED", ""), ("WHAT", ""))
    rows = [
        [item.name, item.file_count, item.size_bytes, time_text(item.changed_at_ms, year=False), item.what]
        for item in items
    ]
    if rows:
        console().print(table(columns, rows))
    click.echo(f"{directory} keeps {summary(items)}")
