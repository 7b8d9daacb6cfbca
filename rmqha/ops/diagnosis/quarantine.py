"""Files that a store has put aside and never removes by itself.

Each is a directory at the root of the store that no broker reads: `replaced-<n>`, `rmqha.cut-<n>`, `rmqha.fsck-<n>`. It
is renamed before its removal: a broker that makes a new one meanwhile finds no half of an old one under its name.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from rmqha.host.disk import HostDisk
from rmqha.inspect.fsck_metadata import SAVED_PREFIX
from rmqha.store.layout import REPLACED
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


def summary(items: list[QuarantineEntry]) -> str:
    """The directories in words: "2 directories with 1.5 MB"."""
    size_bytes = sum(item.size_bytes for item in items)
    size = f"{size_bytes / 1e6:,.1f} MB" if size_bytes >= 100_000 else f"{size_bytes:,} bytes"
    return f"{len(items)} {'directory' if len(items) == 1 else 'directories'} with {size}"
