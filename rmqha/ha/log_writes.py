"""Durable changes of a replica's log that it goes on from only when they are made: an epoch, its entry, a cut.

The disk may hang within any of them. The machine then waits, and nothing else touches the log, but time goes on: the
heartbeats do, and say for what this replica waits.
"""

from __future__ import annotations

from collections.abc import Callable

from rmqha.ha.action import Action
from rmqha.port import LogWriter

LONG_MS = 2000
"""A replica whose change takes longer is not fit to lead, and says so."""
Then = Callable[[int], list[Action]]
WAITS = "a change of the log waits for this disk"


class SynchronousLogWrites:
    """A `LogWriter` that makes each change within the call, however long the disk takes."""

    def write(self, work: Callable[[], None]) -> bool:
        work()
        return True


class LogWrites:
    """One change at a time."""

    def __init__(self, writer: LogWriter) -> None:
        self._writer = writer
        self._then: Then | None = None
        self._since_ms = 0
        self.is_waiting = False
        """A change is being made: the log is in between. Each frame of a master asks several times."""

    def is_stuck(self, now_ms: int) -> bool:
        return self.is_waiting and now_ms >= self._since_ms + LONG_MS

    def make(self, now_ms: int, work: Callable[[], None], then: Then) -> list[Action]:
        """Actions of `then`, which follows the change `work`; [] if the disk takes its time: they come of `written`."""
        assert self._then is None, "a change of the log begins within another"
        self._then, self._since_ms, self.is_waiting = then, now_ms, True
        return self.written(now_ms) if self._writer.write(work) else []

    def written(self, now_ms: int) -> list[Action]:
        """Go on: the change is made."""
        then, self._then, self.is_waiting = self._then, None, False
        assert then is not None, "a change of the log has ended that nobody began"
        return then(now_ms)
