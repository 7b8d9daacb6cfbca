"""Pulls of messages that are not in memory: what a thread is to read for them. The order is that of their coming."""

from __future__ import annotations

from collections.abc import Callable

from rmqha.store.cold_range import ColdRange

QueueKey = tuple[str, int]
"""Topic and queue id."""


class ColdReads:
    """Each queue is in it once at most: the pulls that wait for its messages are tried again together."""

    def __init__(self, wake: Callable[[], None]) -> None:
        """`wake` is called when there is something to read."""
        self._wake = wake
        self._wanted: dict[QueueKey, ColdRange] = {}
        self.read_count = 0
        """Parts that were given out to be read, since the start."""

    def want(self, key: QueueKey, part: ColdRange) -> None:
        """Have `part` read, but where something of this queue is waited for already."""
        if key not in self._wanted:
            self._wanted[key] = part
            self._wake()

    def next(self) -> tuple[QueueKey, ColdRange] | None:
        """The next part to read, which is in the list no more."""
        if not self._wanted:
            return None
        key = next(iter(self._wanted))
        self.read_count += 1
        return key, self._wanted.pop(key)
