"""Virtual time: a heap of events that run one at a time, in the order of their times, then of their creation."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop as _pop
from heapq import heappush as _push


class Timer:
    """An event in the future."""

    __slots__ = ("_action", "_made", "_queued_at_ms", "at_ms")

    def __init__(self, at_ms: int, made: int, action: Callable[[], object]) -> None:
        self.at_ms = self._queued_at_ms = at_ms
        self._made = made
        self._action: Callable[[], object] | None = action

    def cancel(self) -> None:
        """Cancel the action; no effect after it has run."""
        self._action = None

    @property
    def is_pending(self) -> bool:
        return self._action is not None


class Scheduler:
    """Scheduler of a simulation. `now_ms`: virtual time; a host sees it through its SimClock."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.event_count = 0
        self._heap: list[tuple[int, int, Timer]] = []
        """Heap of (time, number, timer). A moved timer stays at its old place until that is due, and is then pushed
        again."""
        self._made_count = 0

    def at(self, at_ms: int, action: Callable[[], object]) -> Timer:
        """Run `action` at `at_ms`, or now if that has passed, after all events that are already due then."""
        if at_ms < self.now_ms:
            at_ms = self.now_ms
        self._made_count = made = self._made_count + 1
        timer = Timer(at_ms, made, action)
        _push(self._heap, (at_ms, made, timer))
        return timer

    def after(self, delay_ms: int, action: Callable[[], object]) -> Timer:
        return self.at(self.now_ms + delay_ms, action)

    def move(self, timer: Timer, at_ms: int) -> Timer:
        """Move a timer, as if cancelled and made anew for `at_ms`; `timer` must be pending."""
        action = timer._action
        assert action is not None, "what has happened cannot be moved"
        if at_ms < self.now_ms:
            at_ms = self.now_ms
        if at_ms < timer._queued_at_ms:
            timer.cancel()
            return self.at(at_ms, action)
        timer.at_ms = at_ms
        self._made_count = timer._made = self._made_count + 1
        return timer

    def next_at_ms(self) -> int | None:
        """Time (ms) of the next event, None if there is none."""
        while self._heap:
            at_ms, made, timer = self._heap[0]
            if timer.is_pending and timer._made == made:
                return at_ms
            _pop(self._heap)
            if timer.is_pending:
                self._queue(timer)
        return None

    def _queue(self, timer: Timer) -> None:
        timer._queued_at_ms = timer.at_ms
        _push(self._heap, (timer.at_ms, timer._made, timer))

    def step(self) -> bool:
        """Run one event; False if there is none."""
        at_ms = self.next_at_ms()
        if at_ms is None:
            return False
        count = self.event_count
        self._run(at_ms, count + 1)
        return self.event_count > count

    def run_until(self, end_ms: int) -> None:
        """Run all events up to and including `end_ms`; now_ms is `end_ms` afterwards."""
        self._run(end_ms, None)
        self.now_ms = max(self.now_ms, end_ms)

    def _run(self, end_ms: int, most: int | None) -> None:
        """Run events until `end_ms`, or until `most` events have run since the beginning."""
        heap = self._heap
        while heap and heap[0][0] <= end_ms and (most is None or self.event_count < most):
            at_ms, made, timer = _pop(heap)
            action = timer._action
            if action is None:
                continue
            if timer._made != made:
                self._queue(timer)
                continue
            timer._action = None
            self.now_ms = at_ms
            self.event_count += 1
            action()
