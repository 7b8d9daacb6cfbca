"""Virtual time: a heap of events that happen one at a time, in the order of their moments, then of their making."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class Timer:
    """An event to come."""

    __slots__ = ("_action", "at_ms")

    def __init__(self, at_ms: int, action: Callable[[], object]) -> None:
        self.at_ms = at_ms
        self._action: Callable[[], object] | None = action

    def cancel(self) -> None:
        """It will not happen; harmless if it has."""
        self._action = None

    def take(self) -> Callable[[], object] | None:
        """What is to be done, once; None if it was cancelled."""
        action, self._action = self._action, None
        return action

    @property
    def is_pending(self) -> bool:
        return self._action is not None


class Scheduler:
    """`now_ms` is the simulated world's own time; what a host takes for it is its SimClock's business."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.event_count = 0
        self._heap: list[tuple[int, int, Timer]] = []
        self._made_count = 0

    def at(self, at_ms: int, action: Callable[[], object]) -> Timer:
        """Do `action` at `at_ms`, or now if that has passed, after everything already due then."""
        at_ms = at_ms if at_ms > self.now_ms else self.now_ms
        timer = Timer(at_ms, action)
        self._made_count += 1
        heapq.heappush(self._heap, (at_ms, self._made_count, timer))
        return timer

    def after(self, delay_ms: int, action: Callable[[], object]) -> Timer:
        return self.at(self.now_ms + delay_ms, action)

    def next_at_ms(self) -> int | None:
        """The moment of the next event, None if nothing is to come."""
        while self._heap and not self._heap[0][2].is_pending:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def step(self) -> bool:
        """Let one event happen; False if there is none."""
        at_ms = self.next_at_ms()
        if at_ms is None:
            return False
        action = heapq.heappop(self._heap)[2].take()
        assert action is not None
        self.now_ms = at_ms
        self.event_count += 1
        action()
        return True

    def run_until(self, end_ms: int) -> None:
        """Let everything due up to and including `end_ms` happen; now_ms is `end_ms` afterwards."""
        heap, pop = self._heap, heapq.heappop
        while heap and heap[0][0] <= end_ms:
            at_ms, _, timer = pop(heap)
            action = timer.take()
            if action is not None:
                self.now_ms = at_ms
                self.event_count += 1
                action()
        self.now_ms = max(self.now_ms, end_ms)
