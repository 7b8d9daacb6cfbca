"""Metrics as values: what a series is, and the sheet that a server fills when somebody scrapes it. Pure.

Nothing is kept between two scrapes, so a series whose role a replica has lost is gone with the next one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from rmqha.model.printable import printable


class Kind(Enum):
    """The value is Prometheus' name for it."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True)
class Series:
    """One metric. `labels` are its own, beside those of the server. `own`: RocketMQ has no such metric.

    The name of a counter ends in "_total", as it is exported.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    own: bool = True

    def __post_init__(self) -> None:
        assert (self.kind is Kind.COUNTER) == self.name.endswith("_total"), self.name


@dataclass(frozen=True)
class Sample:
    """`suffix` is "", or "_bucket", "_sum" or "_count" of a histogram."""

    labels: Mapping[str, str]
    value: float
    suffix: str = ""


@dataclass
class Histogram:
    """Counts by upper bound, the last count above all bounds. Bounds ascend; the unit is the series' own."""

    bounds: Sequence[float]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        if not self.counts:
            self.counts = [0] * (len(self.bounds) + 1)

    def add(self, value: float, count: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += count
        self.total += value * count


class Sheet:
    """What one server shows at one scrape. `base` are the labels of all its series."""

    def __init__(self, base: Mapping[str, str]) -> None:
        self._base = dict(base)
        self.samples: dict[Series, list[Sample]] = {}

    def put(self, series: Series, value: float, *labels: str) -> None:
        self._add(series, Sample(self._labels(series, labels), value))

    def put_histogram(self, series: Series, histogram: Histogram, *labels: str) -> None:
        known = self._labels(series, labels)
        count = 0
        for bound, more in zip((*map(_bound, histogram.bounds), "+Inf"), histogram.counts, strict=True):
            count += more
            self._add(series, Sample({**known, "le": bound}, count, "_bucket"))
        self._add(series, Sample(known, histogram.total, "_sum"))
        self._add(series, Sample(known, count, "_count"))

    def _labels(self, series: Series, labels: Iterable[str]) -> dict[str, str]:
        return {**self._base, **dict(zip(series.labels, map(_label, labels), strict=True))}

    def _add(self, series: Series, sample: Sample) -> None:
        self.samples.setdefault(series, []).append(sample)


Collecting = Generator[None, None, Sheet]
"""A sheet being filled, its value in the end. Each step takes about a millisecond: others get their turn in between."""


def filled(steps: Collecting) -> Sheet:
    """All steps at once."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            sheet: Sheet = end.value
            return sheet


def _label(text: str) -> str:
    """Of a name that a peer may have chosen."""
    return text if text.isprintable() else printable(text, lines=False)


def _bound(value: float) -> str:
    return repr(float(value))
