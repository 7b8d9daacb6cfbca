"""Trust of a command: files that only this user can have written, processes that are our servers."""

from __future__ import annotations

import os
import stat
from itertools import pairwise
from pathlib import Path

from rmqha.model.error import UsageError


def refuse_foreign(path: Path) -> None:
    """Raises UsageError for a file or directory that others may have written, or that is a link; OSError."""
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode):
        raise UsageError(f"{path} is a symbolic link, which rmqha did not make: nothing was touched")
    if found.st_uid != os.geteuid():
        raise UsageError(f"{path} belongs to user {found.st_uid}, not to you: run this as its owner")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UsageError(f"others may write {path}: look at what it holds, then chmod -R go-w {path}")


def refuse_foreign_if_there(path: Path) -> None:
    try:
        refuse_foreign(path)
    except FileNotFoundError:
        return


def is_server(pid: int, config: Path) -> bool:
    """True if the process runs one of our servers by this file."""
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="surrogateescape").split("\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False
    wanted = config.resolve()
    return any(Path(given).resolve() == wanted for flag, given in pairwise(arguments) if flag == "-c")


def is_plain_name(name: object) -> bool:
    """Names one entry of a directory."""
    return isinstance(name, str) and bool(name) and name not in (".", "..") and "/" not in name and "\0" not in name
