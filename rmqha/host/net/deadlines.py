"""Deadlines of a server's sessions. Shell.

Closing a session takes some hundred microseconds. Cancel scopes with thousands of deadlines at the same time would all
close in one turn of the event loop. Here each turn closes a few.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable

import trio

EXPIRED_COUNT = 8
"""Deadlines that expire in one turn of the event loop."""


class Deadline:
    """Deadline of a session. Times are trio's."""

    __slots__ = ("due_s", "expire", "number", "ticket_s")

    def __init__(self, number: int, due_s: float, expire: Callable[[], None]) -> None:
        self.number = number
        self.due_s = self.ticket_s = due_s
        """Times (s) of its expiry and of the next check: a deadline is moved more often than it expires."""
        self.expire = expire


class Deadlines:
    """Deadlines of one server."""

    def __init__(self) -> None:
        self._live: dict[int, Deadline] = {}
        self._heap: list[tuple[float, int]] = []
        """Heap of (time of the next check in s, number of the deadline); removed deadlines may still be in it."""
        self._numbers = itertools.count()
        self._wakes_at_s = -math.inf
        self._wake = trio.Event()

    def __len__(self) -> int:
        return len(self._live)

    def add(self, due_s: float, expire: Callable[[], None]) -> Deadline:
        """Add a deadline: `expire` is called once, soon after `due_s`, unless it is removed before."""
        deadline = Deadline(next(self._numbers), due_s, expire)
        self._live[deadline.number] = deadline
        self._push(deadline)
        return deadline

    def call_in(self, delay_ms: int, expire: Callable[[], None]) -> Deadline:
        return self.add(trio.current_time() + delay_ms / 1000, expire)

    def move(self, deadline: Deadline, due_s: float) -> None:
        deadline.due_s = due_s
        if due_s < deadline.ticket_s and deadline.number in self._live:
            deadline.ticket_s = due_s
            self._push(deadline)

    def remove(self, deadline: Deadline) -> None:
        self._live.pop(deadline.number, None)
        if len(self._heap) > 2 * len(self._live) + 64:
            self._heap = [(item.ticket_s, item.number) for item in self._live.values()]
            heapq.heapify(self._heap)

    def _push(self, deadline: Deadline) -> None:
        heapq.heappush(self._heap, (deadline.ticket_s, deadline.number))
        if deadline.ticket_s < self._wakes_at_s:
            self._wake.set()

    async def run(self) -> None:
        """Expire deadlines until cancelled. Call it once."""
        while True:
            self._expire_some(trio.current_time())
            self._wake = trio.Event()
            self._wakes_at_s = self._heap[0][0] if self._heap else math.inf
            with trio.move_on_at(self._wakes_at_s):
                await self._wake.wait()
            self._wakes_at_s = -math.inf

    def _expire_some(self, now_s: float) -> None:
        expired_count = 0
        while self._heap and self._heap[0][0] <= now_s and expired_count < EXPIRED_COUNT:
            ticket_s, number = heapq.heappop(self._heap)
            deadline = self._live.get(number)
            if deadline is None or deadline.ticket_s != ticket_s:
                continue
            if deadline.due_s > now_s:
                deadline.ticket_s = deadline.due_s
                heapq.heappush(self._heap, (deadline.ticket_s, number))
            else:
                del self._live[number]
                expired_count += 1
                deadline.expire()
