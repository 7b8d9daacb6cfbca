"""Rates for `mqadmin clusterList` and brokerStatus: counters sampled once a second, averaged over ten."""

from __future__ import annotations

from collections import deque

WINDOW_COUNT = 11


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
