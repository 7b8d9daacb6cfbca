"""A histogram of whole numbers that keeps every order of magnitude to one percent in a few thousand counters. Pure.

The idea is HdrHistogram's. Its Python package brings setuptools and pbr into every installation, for what stands here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

_EXACT_COUNT = 256
"""Numbers below it have a counter each; every doubling above shares 128 counters."""
_SHIFT_BITS = 7
PERCENTILES = (50.0, 90.0, 99.0, 99.9, 99.99)


def _slot(value: int) -> int:
    if value < _EXACT_COUNT:
        return value
    shift = value.bit_length() - _SHIFT_BITS - 1
    return (shift << _SHIFT_BITS) + (value >> shift)


def _highest(slot: int) -> int:
    """The highest value of a slot."""
    if slot < _EXACT_COUNT:
        return slot
    shift = (slot >> _SHIFT_BITS) - 1
    return ((slot - (shift << _SHIFT_BITS) + 1) << shift) - 1


class LatencyHistogram:
    """Histogram of whole numbers from 0 on, in a unit that the caller chooses. Values are at most 1/128 too high."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self.count = 0
        self.max = 0
        self.total = 0

    def record(self, value: int) -> None:
        value = max(0, value)
        self._counts[_slot(value)] += 1
        self.count += 1
        self.total += value
        self.max = max(self.max, value)

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0

    def percentile(self, percent: float) -> int:
        """The smallest value that at least `percent` of all do not exceed; 0 if there are none."""
        wanted = percent * self.count / 100
        seen = 0
        for slot, count in sorted(self._counts.items()):
            seen += count
            if seen >= wanted:
                return min(_highest(slot), self.max)
        return self.max

    def bars(self) -> Iterator[tuple[int, int, int]]:
        """Bars (from, below, count) of each doubling between the smallest and the largest value."""
        if not self.count:
            return
        sums: Counter[int] = Counter()
        for slot, count in self._counts.items():
            sums[_highest(slot).bit_length()] += count
        for bits in range(min(sums), max(sums) + 1):
            yield (1 << bits >> 1, 1 << bits, sums[bits])
