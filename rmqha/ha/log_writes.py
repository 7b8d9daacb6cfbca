"""Durable changes of a replica's log that must be complete before it goes on: a new epoch, an epoch entry, a
truncation.

The disk may hang within any of them. The replica then waits, and nothing else touches the log; heartbeats go on, and
report that it waits for its disk. Machine."""

from __future__ import annotations

from collections.abc import Callable

from rmqha.ha.action import Action
from rmqha.port import LogWriter

STUCK_AFTER_MS = 2000
"""Time (ms) of a change after which the replica reports that it is not fit to lead."""
Continuation = Callable[[int], list[Action]]
"""Called with the time (ms) when a change is complete; returns the actions that follow."""
WAITS_FOR_DISK = "a change of the log waits for this disk"


class SynchronousLogWrites:
    """A `LogWriter` that makes each change within the call and waits for the disk."""

    def write(self, work: Callable[[], None]) -> bool:
        work()
        return True


class LogWrites:
    """The change of the log that is under way, at most one."""

    def __init__(self, writer: LogWriter) -> None:
        self._writer = writer
        self._continuation: Continuation | None = None
        self._since_ms = 0
        self.is_waiting = False
        """True while a change is being made: the log must not be used. A plain attribute, as each frame reads it."""

    def is_stuck(self, now_ms: int) -> bool:
        return self.is_waiting and now_ms >= self._since_ms + STUCK_AFTER_MS

    def make(self, now_ms: int, work: Callable[[], None], continuation: Continuation) -> list[Action]:
        """Make the change `work`, then call `continuation` and return its actions. Returns [] if the writer needs time:
        `written` returns the actions then."""
        assert self._continuation is None, "a change of the log begins within another"
        self._continuation, self._since_ms, self.is_waiting = continuation, now_ms, True
        return self.written(now_ms) if self._writer.write(work) else []

    def written(self, now_ms: int) -> list[Action]:
        """Call the continuation; called when the change is complete."""
        continuation, self._continuation, self.is_waiting = self._continuation, None, False
        assert continuation is not None, "a change of the log has ended that nobody began"
        return continuation(now_ms)
