"""Clocks that a test moves, or that trio's virtual time moves."""

from __future__ import annotations

import trio

WALL_START_MS = 1_800_000_000_000


class ManualClock:
    """Stands until the test changes `ms`; the wall clock (`wall_start_ms` later) goes along."""

    def __init__(self, ms: int = 1_000, wall_start_ms: int = WALL_START_MS) -> None:
        self.ms = ms
        self.wall_start_ms = wall_start_ms

    def now_ms(self) -> int:
        return self.ms

    def wall_ms(self) -> int:
        return self.wall_start_ms + self.ms


class TrioClock:
    """Both clocks by trio's own, which `trio.testing.MockClock` may replace."""

    def now_ms(self) -> int:
        return round(trio.current_time() * 1000)

    def wall_ms(self) -> int:
        return self.now_ms()
