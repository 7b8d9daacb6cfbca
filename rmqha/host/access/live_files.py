"""Files that count anew when they change: certificates, keys, accounts, credentials. Shell.

What is made from them stays in force while a new file is broken, half written or readable by others.
"""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from rmqha.host.access.certificate import earliest_end_ms
from rmqha.model.error import UsageError

T = TypeVar("T")


def refuse_if_open_to_others(path: str, holds: str) -> None:
    """Raises UsageError if more than its owner and, for reading, its group may open this file; OSError."""
    if Path(path).stat().st_mode & (stat.S_IRWXO | stat.S_IWGRP):
        raise UsageError(f"{path} holds {holds} and others may open it: chmod 600 {path}")


def _stamp(path: str) -> tuple[int, ...]:
    """Differs once the file is another one, or has other bytes, or other rights."""
    try:
        found = Path(path).stat()
    except OSError as error:
        return (error.errno or -1,)
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


class LiveFiles(Generic[T]):
    """`current` is what `make` made of `paths` when they were good for the last time; `problem` says in one sentence
    why what they hold now is not in force, "" if it is."""

    def __init__(self, key: str, paths: tuple[str, ...], make: Callable[[], T], *, certificates: str = "") -> None:
        """`key` is the configuration key that names the first file; `certificates` the one whose certificates end some
        day. Raises UsageError, one sentence, if there is nothing to begin with."""
        self.key = key
        self.paths = paths
        self._make = make
        self._certificates = certificates
        self._seen = self._stamps()
        self.problem = ""
        self.expires_at_ms: int | None = None
        """Wall clock; when the first of the certificates ends."""
        self.current = self._load()

    @property
    def path(self) -> str:
        return self.paths[0]

    def refresh(self) -> bool:
        """Look again; True if a file has changed. What takes long is the caller's thread's."""
        seen = self._stamps()
        if seen == self._seen:
            return False
        self._seen = seen  # from before the reading: what is written meanwhile differs again
        try:
            self.current = self._load()
            self.problem = ""
        except UsageError as error:
            self.problem = str(error)
        return True

    def _load(self) -> T:
        made = self._make()
        if self._certificates:
            try:
                self.expires_at_ms = earliest_end_ms(Path(self._certificates).read_text("latin-1"))
            except OSError as error:
                raise UsageError(f"cannot read {self._certificates}: {error.strerror}") from None
        return made

    def _stamps(self) -> list[tuple[int, ...]]:
        return [_stamp(path) for path in self.paths]
