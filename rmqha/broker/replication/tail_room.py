"""Turns of appending while senders wait for much of the log. Pure.

What is appended reaches the slaves in the order of the log, so a send of a hundred bytes waits for all that was
appended before it, also by those who do not ask for an answer. As long as no more than TAIL_BYTES wait to be
acknowledged, whoever asks for little appends at once; the more somebody asks for, the shorter the tail must be, down to
NEAR_BYTES: two records of a megabyte never stand before a small one. Without room each connection has LIGHT_BYTES free,
and the rest stands in line; when there is room again, the next is whoever would have all that it asks for first if all
in line were served at the same time, each with an equal share of the bytes (weighted fair queueing): who asks for
little waits for no round of those who ask for megabytes. Each eighth turn is that of whoever has waited longest,
however many others come.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Protocol

from rmqha.port import Clock

TAIL_BYTES = 2 * 1024 * 1024
"""20 ms of a replication of 100 MB/s; a record may go beyond it by its own size."""
NEAR_BYTES = 128 * 1024
"""A tail behind which anything may be appended: so much is on its way while the next record is made."""
SHORTER_BY = 16
"""Bytes by which the tail must be shorter than TAIL_BYTES, for each byte that is asked for."""
LIGHT_BYTES = 4 * 1024
OLDEST_EVERY = 8
NOMINAL_BYTES = 64 * 1024
"""Taken for a small request that appends a record of a size that is not known yet."""
_FOR_EVER_MS = 1 << 62


class Acknowledging(Protocol):
    """The part of the replica that is read here."""

    @property
    def unacknowledged_bytes(self) -> int: ...


class Turn:
    """A place in line; `rmqha.port.Pause`."""

    __slots__ = ("_resume", "deadline_ms", "is_late", "is_over", "owner", "size_bytes")

    def __init__(self, owner: object, size_bytes: int, deadline_ms: int) -> None:
        self.owner = owner
        self.size_bytes = size_bytes
        self.deadline_ms = deadline_ms
        self.is_over = self.is_late = False
        self._resume: Callable[[], None] | None = None

    def when_over(self, resume: Callable[[], None]) -> None:
        assert not self.is_over and self._resume is None, "who waits goes on once"
        self._resume = resume

    def end(self, *, is_late: bool) -> None:
        self.is_over, self.is_late = True, is_late
        if self._resume is not None:
            self._resume()


class TailRoom:
    """The line of one broker. Owners are hashable by identity; each has one turn at a time."""

    def __init__(self, replica: Acknowledging, clock: Clock) -> None:
        self._replica = replica
        self._clock = clock
        self._line: list[tuple[int, int, Turn]] = []
        """A heap by the share at which its owner has it all; those that are over may still be in it."""
        self._waiting: dict[object, Turn] = {}
        """In the order of their coming."""
        self._turn_count = 0
        self._called: dict[object, Turn] = {}
        """They may append now and have not yet."""
        self._called_bytes = 0
        self._lent: dict[object, int] = {}
        self._had: dict[object, int] = {}
        self._share_bytes = self._number = 0
        """Bytes that each has had who was in line since it began."""

    @property
    def is_waited_for(self) -> bool:
        return bool(self._waiting)

    @property
    def is_full(self) -> bool:
        # every send asks: one call less
        return bool(self._waiting) or self._replica.unacknowledged_bytes + self._called_bytes > TAIL_BYTES

    def _has_room(self, size_bytes: int) -> bool:
        bound_bytes = max(NEAR_BYTES, TAIL_BYTES - SHORTER_BY * size_bytes)
        return self._replica.unacknowledged_bytes + self._called_bytes <= bound_bytes

    def takes(self, owner: object, size_bytes: int) -> bool:
        """True if it may append so much without a turn."""
        if not self._waiting and self._has_room(size_bytes):
            return True
        lent_bytes = self._lent.get(owner, 0) + size_bytes
        if lent_bytes > LIGHT_BYTES:
            return False
        self._lent[owner] = lent_bytes
        return True

    def wait(self, owner: object, size_bytes: int, timeout_ms: int = _FOR_EVER_MS) -> Turn:
        """Stand in line; `took` follows once the turn is over."""
        assert owner not in self._waiting, "a connection's requests are handled one after the other"
        turn = self._waiting[owner] = Turn(owner, size_bytes, self._clock.now_ms() + timeout_ms)
        self._had[owner] = end = max(self._share_bytes, self._had.get(owner, 0)) + size_bytes
        self._number += 1
        heapq.heappush(self._line, (end, self._number, turn))
        return turn

    def took(self, turn: Turn) -> None:
        """It has appended, or was refused."""
        if self._called.pop(turn.owner, None) is not None:
            self._called_bytes -= turn.size_bytes

    def left(self, owner: object) -> None:
        """It is gone."""
        turn = self._waiting.pop(owner, None)
        if turn is not None:
            turn.is_over = True
        called = self._called.get(owner)
        if called is not None:
            self.took(called)
        self._lent.pop(owner, None)
        self._had.pop(owner, None)
        self.moved()

    def moved(self) -> None:
        """The log was acknowledged, or cut: call those for whom there is room."""
        while (turn := self._next()) is not None and self._has_room(turn.size_bytes):
            self._lent.clear()
            self._turn_count += 1
            self._share_bytes += turn.size_bytes // len(self._waiting)
            del self._waiting[turn.owner]
            self._called[turn.owner] = turn
            self._called_bytes += turn.size_bytes
            turn.end(is_late=False)
        if not self._waiting:
            self._line.clear()
            self._had.clear()
            self._share_bytes = 0

    def _next(self) -> Turn | None:
        """The one whose turn comes next. What is lent meanwhile is little, so it comes."""
        if self._turn_count % OLDEST_EVERY == OLDEST_EVERY - 1 and self._waiting:
            return next(iter(self._waiting.values()))
        while self._line and self._line[0][2].is_over:
            heapq.heappop(self._line)
        return self._line[0][2] if self._line else None

    def timeout(self) -> None:
        """Call those who have waited as long as they may."""
        now_ms = self._clock.now_ms()
        for turn in [turn for turn in self._waiting.values() if turn.deadline_ms <= now_ms]:
            del self._waiting[turn.owner]
            turn.end(is_late=True)
