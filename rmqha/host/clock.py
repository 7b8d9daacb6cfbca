"""The Clock port over the operating system."""

from __future__ import annotations

import time
from datetime import datetime, timedelta

from rmqha.port import Clock


class HostClock:
    """Clocks of the operating system. Implements port.Clock."""

    def now_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000


def local_month_ms(wall_ms: int) -> tuple[int, int]:
    """Start and end (ms) of the month that a wall time is in, by the local calendar."""
    start = datetime.fromtimestamp(wall_ms // 1000).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    end = (start + timedelta(days=31)).replace(day=1)
    return int(start.timestamp() * 1000), int(end.timestamp() * 1000)


class ClockStepDetector:
    """Measure how far the wall clock was stepped since this was made, by comparing it with the monotonic clock. Slewing
    by NTP changes both clocks and does not count."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._distance_ms = clock.wall_ms() - clock.now_ms()

    def view(self) -> dict[str, int]:
        """Members for request 52001: `wallMs` now, and `clockSteppedMs`, above 0 if the clock was set forward."""
        wall_ms = self._clock.wall_ms()
        return {"wallMs": wall_ms, "clockSteppedMs": wall_ms - self._clock.now_ms() - self._distance_ms}
