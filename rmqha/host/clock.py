"""The Clock port over the operating system."""

from __future__ import annotations

import time


class HostClock:
    def now_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000
