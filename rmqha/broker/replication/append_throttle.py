"""Admission of appends while senders wait for much of the log. Pure.

Slaves get records in the order of the log, so a send of a hundred bytes waits for everything appended before it, also
of oneway senders. While at most TAIL_BYTES are unacknowledged, small requests append at once. The larger the request,
the shorter the unacknowledged tail must be, down to NEAR_BYTES: two records of a megabyte never precede a small one.

Without room each connection may append LIGHT_BYTES, and everything else waits. When there is room, the next request is
the one that would be complete first if all waiting ones were served at the same time with equal shares (weighted fair
queueing): a small request waits for no megabytes of others. Every eighth turn is that of the oldest request, however
many others come.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Protocol

from rmqha.port import Clock

TAIL_BYTES = 2 * 1024 * 1024
"""Tail of 20 ms at a replication of 100 MB/s; a record may exceed it by its own size."""
NEAR_BYTES = 128 * 1024
"""Tail behind which any size may be appended: so much is sent while the next record is made."""
SHORTER_BY = 16
"""Bytes by which the tail must be shorter than TAIL_BYTES, per requested byte."""
LIGHT_BYTES = 4 * 1024
OLDEST_EVERY = 8
NOMINAL_BYTES = 64 * 1024
"""Size that is assumed for a small request with a record of unknown size."""
_FOR_EVER_MS = 1 << 62


class Acknowledging(Protocol):
    """Port to the replica's unacknowledged bytes."""

    @property
    def unacknowledged_bytes(self) -> int: ...


class Turn:
    """Waiting request; `rmqha.port.Pause`."""

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


class AppendThrottle:
    """Queue of one broker. Owners are hashable by identity; each has one turn at a time."""

    def __init__(self, replica: Acknowledging, clock: Clock) -> None:
        self._replica = replica
        self._clock = clock
        self._queue: list[tuple[int, int, Turn]] = []
        """Heap by the share at which a request is complete; ended turns may still be in it."""
        self._waiting: dict[object, Turn] = {}
        """Waiting turns in the order of arrival."""
        self._turn_count = 0
        self._called: dict[object, Turn] = {}
        """Turns that have ended and whose owners have not appended yet."""
        self._called_bytes = 0
        self._borrowed: dict[object, int] = {}
        self._served: dict[object, int] = {}
        self._share_bytes = self._number = 0
        """Bytes that each continuously waiting owner has had."""

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
        """True if the owner may append this size without a turn."""
        if not self._waiting and self._has_room(size_bytes):
            return True
        borrowed_bytes = self._borrowed.get(owner, 0) + size_bytes
        if borrowed_bytes > LIGHT_BYTES:
            return False
        self._borrowed[owner] = borrowed_bytes
        return True

    def wait(self, owner: object, size_bytes: int, timeout_ms: int = _FOR_EVER_MS) -> Turn:
        """Wait for a turn; `took` follows after its end."""
        assert owner not in self._waiting, "a connection's requests are handled one after the other"
        turn = self._waiting[owner] = Turn(owner, size_bytes, self._clock.now_ms() + timeout_ms)
        self._served[owner] = end = max(self._share_bytes, self._served.get(owner, 0)) + size_bytes
        self._number += 1
        heapq.heappush(self._queue, (end, self._number, turn))
        return turn

    def took(self, turn: Turn) -> None:
        """End a turn whose owner has appended or was refused."""
        if self._called.pop(turn.owner, None) is not None:
            self._called_bytes -= turn.size_bytes

    def remove(self, owner: object) -> None:
        """Remove an owner whose connection has closed."""
        turn = self._waiting.pop(owner, None)
        if turn is not None:
            turn.is_over = True
        called = self._called.get(owner)
        if called is not None:
            self.took(called)
        self._borrowed.pop(owner, None)
        self._served.pop(owner, None)
        self.moved()

    def moved(self) -> None:
        """End the turns for which there is room, after an acknowledgement or a cut of the log."""
        while (turn := self._next()) is not None and self._has_room(turn.size_bytes):
            self._borrowed.clear()
            self._turn_count += 1
            self._share_bytes += turn.size_bytes // len(self._waiting)
            del self._waiting[turn.owner]
            self._called[turn.owner] = turn
            self._called_bytes += turn.size_bytes
            turn.end(is_late=False)
        if not self._waiting:
            self._queue.clear()
            self._served.clear()
            self._share_bytes = 0

    def _next(self) -> Turn | None:
        """The next turn. Sizes borrowed meanwhile are small, so every turn comes."""
        if self._turn_count % OLDEST_EVERY == OLDEST_EVERY - 1 and self._waiting:
            return next(iter(self._waiting.values()))
        while self._queue and self._queue[0][2].is_over:
            heapq.heappop(self._queue)
        return self._queue[0][2] if self._queue else None

    def timeout(self) -> None:
        """End turns whose time is over."""
        now_ms = self._clock.now_ms()
        for turn in [turn for turn in self._waiting.values() if turn.deadline_ms <= now_ms]:
            del self._waiting[turn.owner]
            turn.end(is_late=True)
