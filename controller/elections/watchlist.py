"""The leader's schedule of looks at groups: in slices, so that a million replicas keep nobody waiting. Pure.

A new leader goes through all groups twice: at once, for those without a master, and when everybody has had the time to
report, for masters that have not. After that only groups without a live master are looked at, once in each period.
"""

from __future__ import annotations

from collections import deque

SLICE_GROUPS = 100
"""Groups looked at in one input: each may lead to an election."""
PASS_GROUPS = 250
"""Groups of the first pass in one input; most of them have a master and cost next to nothing."""


class Watchlist:
    """`names` are all groups; those that come to be later are no concern of the passes. `grace_until_ms` is when the
    second one begins."""

    def __init__(self, now_ms: int, names: list[str], grace_until_ms: int) -> None:
        self._names = names
        self._count = len(names)
        self._place = 0
        self._second = False
        self._pass_at_ms = now_ms
        self._grace_until_ms = grace_until_ms
        self._not_before_ms: dict[str, int] = {}
        self._scan_at_ms = now_ms
        self._slice_at_ms = now_ms
        self._scan: deque[str] = deque()

    # --- the two passes ---------------------------------------------------------------------------------------------

    def next_pass(self, now_ms: int) -> tuple[list[str], bool]:
        """Groups that the passes have come to, and whether masters must have reported by now."""
        if self._place == self._count or now_ms < self._pass_at_ms:
            return [], self._second
        second, start = self._second, self._place
        self._place = min(start + (SLICE_GROUPS if second else PASS_GROUPS), self._count)
        self._pass_at_ms = now_ms
        if self._place == self._count and not second:
            self._second, end = True, self._place
            self._place, self._pass_at_ms = 0, max(now_ms, self._grace_until_ms)
            return self._names[start:end], False
        return self._names[start : self._place], second

    def begin_again(self, now_ms: int, names: list[str]) -> None:
        """One more pass like the second, over all groups that there are now; nothing if that one is still to come."""
        if self._place == self._count:
            self._names, self._count, self._place, self._second, self._pass_at_ms = names, len(names), 0, True, now_ms

    # --- groups without a live master -------------------------------------------------------------------------------

    def watch(self, now_ms: int, name: str, period_ms: int) -> int:
        """Look at the group in each period from now on; the time before which not to try again unasked."""
        if not self._not_before_ms and not self._scan:
            self._scan_at_ms = now_ms + period_ms
        return self._not_before_ms.setdefault(name, now_ms)

    def postpone(self, name: str, until_ms: int) -> None:
        """Watch a group as `watch` does, but not before `at_ms` unless something changes."""
        self._not_before_ms[name] = until_ms

    def drop(self, name: str) -> None:
        self._not_before_ms.pop(name, None)

    def due(self, now_ms: int, period_ms: int) -> list[str]:
        """The next slice of watched groups."""
        if not self._scan and self._not_before_ms and now_ms >= self._scan_at_ms:
            self._scan_at_ms = now_ms + period_ms
            self._scan = deque(self._not_before_ms)
        self._slice_at_ms = now_ms
        return [self._scan.popleft() for _ in range(min(SLICE_GROUPS, len(self._scan)))]

    def __contains__(self, name: str) -> bool:
        return name in self._not_before_ms

    def deadline_ms(self) -> int | None:
        deadlines = []
        if self._place < self._count:
            deadlines.append(self._pass_at_ms)
        if self._scan:
            deadlines.append(self._slice_at_ms)
        elif self._not_before_ms:
            deadlines.append(self._scan_at_ms)
        return min(deadlines, default=None)
