"""Files that a store has put aside and never removes by itself: `rmqha log kept` shows and removes them.

Each is a directory at the root of the store that no broker reads: `replaced-<n>`, `rmqha.cut-<n>`, `rmqha.fsck-<n>`. It
is renamed before its removal: a broker that makes a new one meanwhile finds no half of an old one under its name.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import click

from rmqha.cli.options import echo_json, output_option
from rmqha.cli.render import console, table
from rmqha.cli.storage.log_record import time_text
from rmqha.host.disk import HostDisk
from rmqha.host.read_disk import HostReadDisk
from rmqha.inspect.fsck_metadata import SAVED_PREFIX
from rmqha.inspect.store_inspection import require_store
from rmqha.model.error import RmqhaError, UsageError
from rmqha.store.layout import LOCK_PATH, REPLACED
from rmqha.store.log.commit_log import DIRECTORY as LOG_DIRECTORY
from rmqha.store.log.mapped_file import NAME_DIGITS
from rmqha.store.log.salvage import PREFIX as CUT_PREFIX

_DISCARDED = "rmqha.discarded-"
WHAT = {
    REPLACED: "the log before a copy of the master's",
    CUT_PREFIX: "cut from the log's end at a start",
    SAVED_PREFIX: "changed by fsck --repair",
    _DISCARDED: "its removal was interrupted",
}
_NAME = re.compile(f"({'|'.join(map(re.escape, WHAT))})[1-9][0-9]{{0,8}}")
_LOG_FILE = re.compile(f"[0-9]{{{NAME_DIGITS}}}")
_AGE = re.compile(r"([0-9]{1,9})([smhd])")
_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
LIVE_LEAST_MS = 3_600_000
"""Age (ms) below which files may still be written by the broker that runs on the store."""
_BLOCK_BYTES = 512


@dataclass(frozen=True, slots=True)
class QuarantineEntry:
    """One directory put aside. `size_bytes`: space that it takes on the disk; `changed_at_ms`: time of the last change
    inside."""

    name: str
    what: str
    file_count: int
    size_bytes: int
    changed_at_ms: int

    def as_json(self) -> dict[str, Any]:
        named = {"name": self.name, "what": self.what}
        return named | {"files": self.file_count, "bytes": self.size_bytes, "changedAt": self.changed_at_ms}


def find(store: Path) -> list[QuarantineEntry]:
    """Files that are kept in the directory of a store, by name. Raises OSError. Only an old log's link to a directory
    of another disk is followed."""
    with os.scandir(store) as entries:
        names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    return [_entry(store, name, found[1]) for name in sorted(names) if (found := _NAME.fullmatch(name))]


def _linked_files(store: Path, name: str) -> list[Path]:
    """The files of an old log that stands on another disk, which the store's own log has left."""
    link = store / name / LOG_DIRECTORY
    if not link.is_symlink() or not link.is_dir() or link.resolve() == (store / LOG_DIRECTORY).resolve():
        return []
    return sorted(path for path in link.resolve().iterdir() if _LOG_FILE.fullmatch(path.name))


def _entry(store: Path, entry_name: str, prefix: str) -> QuarantineEntry:
    directory = store / entry_name
    linked = [path.lstat() for path in _linked_files(store, entry_name)]
    file_count, size_bytes = len(linked), sum(found.st_blocks * _BLOCK_BYTES for found in linked)
    changed_ns = max([directory.lstat().st_mtime_ns, *(found.st_mtime_ns for found in linked)])
    for root, _, files in os.walk(directory, onerror=_raise):
        changed_ns = max(changed_ns, Path(root).lstat().st_mtime_ns)
        for name in files:
            found = (Path(root) / name).lstat()
            file_count += 1
            size_bytes += found.st_blocks * _BLOCK_BYTES
            changed_ns = max(changed_ns, found.st_mtime_ns)
    return QuarantineEntry(directory.name, WHAT[prefix], file_count, size_bytes, changed_ns // 1_000_000)


def _raise(error: OSError) -> None:
    raise error


def remove(store: Path, wanted: list[QuarantineEntry]) -> list[QuarantineEntry]:
    """Remove the `wanted` directories, but for those that have changed since. Returns the removed ones. Raises
    OSError."""
    removed = []
    for item in wanted:
        present = find(store)
        if item in present:
            taken = {other.name for other in present}
            free = next(name for number in count(1) if (name := f"{_DISCARDED}{number}") not in taken)
            HostDisk(store).rename(item.name, free)
            for path in _linked_files(store, free):
                path.unlink()
            shutil.rmtree(store / free)
            removed.append(item)
    return removed


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
@click.option("--yes", is_flag=True, help="Do not ask.")
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
        click.echo(f"{directory}: removed {words(removed)}" if chosen else f"{directory}: nothing kept is that old")
    else:
        _show(directory, chosen if age_ms is not None else found)


def _confirmed(directory: Path, chosen: list[QuarantineEntry], yes: bool) -> list[QuarantineEntry]:
    names = ", ".join(item.name for item in chosen)
    question = f"remove {words(chosen)} from {directory} for good: {names}?"
    if chosen and not yes and not click.confirm(question, err=True):
        raise UsageError("nothing removed")
    return remove(directory, chosen)


def words(items: list[QuarantineEntry]) -> str:
    """The directories in words: "2 directories with 1.5 MB"."""
    size_bytes = sum(item.size_bytes for item in items)
    size = f"{size_bytes / 1e6:,.1f} MB" if size_bytes >= 100_000 else f"{size_bytes:,} bytes"
    return f"{len(items)} {'directory' if len(items) == 1 else 'directories'} with {size}"


def _show(directory: Path, items: list[QuarantineEntry]) -> None:
    columns = (("NAME", ""), ("FILES", "right"), ("BYTES", "right"), ("CHANGED", ""), ("WHAT", ""))
    rows = [
        [item.name, item.file_count, item.size_bytes, time_text(item.changed_at_ms, year=False), item.what]
        for item in items
    ]
    if rows:
        console().print(table(columns, rows))
    click.echo(f"{directory} keeps {words(items)}")
