"""A line in which one goes on at a time. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable


class RequestTurn:
    """A place in line; `rmqha.port.Pause`."""

    __slots__ = ("_resume", "owner", "size_bytes")

    def __init__(self, owner: Hashable, size_bytes: int) -> None:
        self.owner = owner
        self.size_bytes = size_bytes
        self._resume: Callable[[], None] | None = None

    def when_over(self, resume: Callable[[], None]) -> None:
        assert self._resume is None, "who waits goes on once"
        self._resume = resume

    def end(self) -> None:
        if self._resume is not None:
            self._resume()


class SingleFile:
    """The first in line goes on, the others wait."""

    def __init__(self) -> None:
        self._line: deque[RequestTurn] = deque()

    def enter(self, owner: Hashable, size_bytes: int) -> RequestTurn | None:
        """Stand in line with `size_bytes` of memory: the turn to wait for, None if it has come. `leave` follows."""
        turn = RequestTurn(owner, size_bytes)
        self._line.append(turn)
        return turn if len(self._line) > 1 else None

    def leave(self, owner: Hashable) -> None:
        """It is through, or gone."""
        if not self._line:
            return
        first = self._line[0]
        self._line = deque(turn for turn in self._line if turn.owner != owner)
        if self._line and self._line[0] is not first:
            self._line[0].end()
