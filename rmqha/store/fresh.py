"""Data plane: records that this broker has just appended as master: dispatch need not read them in the log again.

Only a shortcut: a record counts where the log is dispatched from next, and whatever is not here is read from the log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from rmqha.store.derived import DispatchedRecord

MAX_COUNT = 16_384
"""Records that one follower may leave; then it has to read the log."""


class FreshRecords:
    """In log order, for each follower apart. `clear` whenever bytes of the log may become others."""

    def __init__(self) -> None:
        self._queues: list[deque[DispatchedRecord]] = []

    def follow(self) -> deque[DispatchedRecord]:
        """What is added from now on, for one follower to take from the left."""
        queue = deque[DispatchedRecord]()
        self._queues.append(queue)
        return queue

    def add(self, records: Sequence[DispatchedRecord]) -> None:
        for queue in self._queues:
            if len(queue) > MAX_COUNT:
                queue.clear()
            queue.extend(records)

    def clear(self) -> None:
        for queue in self._queues:
            queue.clear()
