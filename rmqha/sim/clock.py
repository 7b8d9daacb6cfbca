"""A host's two clocks over virtual time: its monotonic clock may run fast or slow, its wall clock may jump."""

from __future__ import annotations

from rmqha.sim.scheduler import Scheduler

EPOCH_AT_MS = 1_700_000_000_000
"""Time (ms) that wall clocks show when a simulation begins."""
_MILLION = 1_000_000


class SimClock:
    """Clocks of one host. A `rate_ppm` above a million runs fast; `origin_ms`: value (ms) of the monotonic clock at its
    begin; `wall_at_ms`: that of the wall clock. Implements port.Clock."""

    def __init__(
        self, scheduler: Scheduler, rate_ppm: int = _MILLION, origin_ms: int = 0, wall_at_ms: int = EPOCH_AT_MS
    ) -> None:
        assert rate_ppm > 0
        self._scheduler = scheduler
        self._rate_ppm = rate_ppm
        self._origin_ms = origin_ms
        self._wall_at_ms = wall_at_ms

    def now_ms(self) -> int:
        return self._origin_ms + self._scheduler.now_ms * self._rate_ppm // _MILLION

    def wall_ms(self) -> int:
        return self._wall_at_ms + self._scheduler.now_ms * self._rate_ppm // _MILLION

    def suspended_for(self, duration_ms: int) -> None:
        """Suspend the machine for `duration_ms`: its monotonic clock stands still, its wall clock runs on."""
        self._origin_ms -= duration_ms * self._rate_ppm // _MILLION

    def step_wall(self, by_ms: int) -> None:
        """Step the wall clock by `by_ms`."""
        self._wall_at_ms += by_ms

    def set_ahead(self, by_ms: int) -> None:
        """Set the wall clock `by_ms` ahead of the right time, whatever it shows now."""
        self._wall_at_ms = EPOCH_AT_MS + by_ms

    def virtual_ms_of(self, deadline_ms: int) -> int:
        """First virtual time (ms) at which now_ms() has reached `deadline_ms`."""
        return -((self._origin_ms - deadline_ms) * _MILLION // self._rate_ppm)
