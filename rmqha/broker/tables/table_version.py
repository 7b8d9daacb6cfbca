"""Versions of a table and the changes between them, so that a slave takes changes instead of whole tables. No trio.

A change has the version (master epoch, sequence). One master writes in one epoch, and a slave takes changes in order or
the whole table: so two replicas with the same version have the same table. A version that a master does not remember
may be one of a fork, whatever its numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

MAX_REMEMBERED = 4096
"""Changes that are remembered; a slave that lacks more takes the whole table."""


class TableVersion(NamedTuple):
    """Version of a change. The higher epoch is newer, then the higher sequence."""

    epoch: int
    sequence: int

    def __str__(self) -> str:
        return f"{self.epoch}:{self.sequence}"

    @classmethod
    def parse(cls, text: str) -> TableVersion:
        """Version of a text. Raises ValueError."""
        epoch, colon, sequence = text.partition(":")
        if not colon:
            raise ValueError(f"{text!r} is no stamp; it must be epoch:sequence")
        return cls(int(epoch), int(sequence))


NO_VERSION = TableVersion(-1, -1)
"""Older than every change."""


class TableChanges:
    """Last changes of one table: the version of each, and the names of its entries."""

    def __init__(self, stamp: TableVersion) -> None:
        self._base = stamp
        self._changes: deque[tuple[TableVersion, frozenset[str]]] = deque()

    @property
    def last(self) -> TableVersion:
        return self._changes[-1][0] if self._changes else self._base

    def restart(self, stamp: TableVersion) -> None:
        """Forget the changes after the table was replaced."""
        self._base = stamp
        self._changes.clear()

    def advance(self, stamp: TableVersion, names: Iterable[str]) -> None:
        self._changes.append((stamp, frozenset(names)))
        if len(self._changes) > MAX_REMEMBERED:
            self._base = self._changes.popleft()[0]

    def since(self, stamp: TableVersion) -> list[str] | None:
        """Names whose entries changed after `stamp`, sorted; None if that version is unknown or too old. Until the
        first change nothing is known: the file may be of a release without versions."""
        if stamp.sequence <= 0:
            return None
        names: set[str] = set()
        for reached, touched in reversed(self._changes):
            if reached == stamp:
                return sorted(names)
            names |= touched
        return sorted(names) if stamp == self._base else None
