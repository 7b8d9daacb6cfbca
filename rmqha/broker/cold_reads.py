"""Pulls of messages that are not in memory: the parts of the store that threads are to read for them, in the order in
which they were wanted."""

from __future__ import annotations

from collections.abc import Callable

from rmqha.store.cold_range import ColdRange

ColdPart = tuple[str, int, ColdRange]
"""Topic, queue id, and the part of that queue's files and of the log."""


class ColdReads:
    """The parts that wait and those that are being read. Pulls that want the same part share one read."""

    def __init__(self, wake: Callable[[], None]) -> None:
        """`wake` is called when there is something to read."""
        self._wake = wake
        self._waiting: dict[ColdPart, None] = {}
        self._being_read: set[ColdPart] = set()

    def want(self, part: ColdPart) -> None:
        """Have `part` read, unless it waits or is being read."""
        if part not in self._waiting and part not in self._being_read:
            self._waiting[part] = None
            self._wake()

    def begin(self) -> ColdPart | None:
        """The next part to read; None if none waits. `end` follows."""
        if not self._waiting:
            return None
        part = next(iter(self._waiting))
        del self._waiting[part]
        self._being_read.add(part)
        return part

    def end(self, part: ColdPart) -> None:
        """Note that the read is over, whatever came of it."""
        self._being_read.discard(part)
