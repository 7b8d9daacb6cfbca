"""Rates for `mqadmin clusterList` and brokerStatus: counters sampled once a second, averaged over ten."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable

WINDOW_COUNT = 11
RATE_WINDOW_MS = 10_000


class Rates:
    """Rates of many counters, by key. Only those that moved in the last two windows take room."""

    def __init__(self) -> None:
        self._current: dict[Hashable, int] = {}
        self._last: dict[Hashable, float] = {}
        self._since_ms = 0

    def add(self, key: Hashable, count: int) -> None:
        self._current[key] = self._current.get(key, 0) + count

    def sample(self, now_ms: int) -> None:
        """Call about once a second."""
        elapsed_ms = now_ms - self._since_ms
        if elapsed_ms >= RATE_WINDOW_MS:
            self._last = {key: count * 1000 / elapsed_ms for key, count in self._current.items()}
            self._current, self._since_ms = {}, now_ms

    def per_second(self, key: Hashable) -> float:
        """Rate a second over the last whole window."""
        return self._last.get(key, 0.0)


class Meter:
    """Rate of one counter. `sample` is called about once a second."""

    def __init__(self) -> None:
        self._samples: deque[tuple[int, int]] = deque(maxlen=WINDOW_COUNT)

    def sample(self, now_ms: int, count: int) -> None:
        if not self._samples or now_ms - self._samples[-1][0] >= 1000:
            self._samples.append((now_ms, count))

    def per_second(self) -> float:
        if len(self._samples) < 2:
            return 0.0
        (start_ms, start), (end_ms, end) = self._samples[0], self._samples[-1]
        return round((end - start) * 1000 / (end_ms - start_ms), 2)


class Meters:
    """Rates of counters that come and go, by key."""

    def __init__(self) -> None:
        self._meters: dict[Hashable, Meter] = {}

    def sample(self, now_ms: int, counts: Iterable[tuple[Hashable, int]]) -> None:
        """Call about once a second; a counter that is not there any more is forgotten."""
        kept = {}
        for key, count in counts:
            kept[key] = self._meters.get(key) or Meter()
            kept[key].sample(now_ms, count)
        self._meters = kept

    def per_second(self, key: Hashable) -> int:
        """0 for a counter that has gone back: a log that was cut."""
        meter = self._meters.get(key)
        return 0 if meter is None else max(0, round(meter.per_second()))


class DayCounts:
    """Values of a counter when this day and the day before began, in local time; 0 before the process started."""

    def __init__(self) -> None:
        self.this_morning = 0
        self.yesterday_morning = 0
        self._hour = 0

    def sample(self, hour: int, count: int) -> None:
        """`hour` of the local day; call at least once an hour."""
        if hour < self._hour:
            self.yesterday_morning, self.this_morning = self.this_morning, count
        self._hour = hour
