"""Metrics as values: series, and the metric families that a server collects at a scrape. Pure.

Nothing is kept between two scrapes, so a series that belongs to a role ends with the role.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from rmqha.model.printable import printable


class MetricKind(Enum):
    """Kind of a metric; the value is Prometheus' name."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True)
class Series:
    """One metric. `labels` are its own, beside those of the server. `own`: RocketMQ has no such metric.

    The name of a counter ends in "_total", as it is exported.
    """

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    own: bool = True

    def __post_init__(self) -> None:
        assert (self.kind is MetricKind.COUNTER) == self.name.endswith("_total"), self.name


@dataclass(frozen=True)
class Sample:
    """One value of a series. `suffix`: "", or "_bucket", "_sum" or "_count" of a histogram."""

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


class MetricFamilies:
    """Metrics that one server shows at one scrape. `base` are the labels of all its series."""

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


Collecting = Generator[None, None, MetricFamilies]
"""Collection of metric families in steps of about a millisecond, between which other tasks run; it returns the
families."""


def filled(steps: Collecting) -> MetricFamilies:
    """Run all steps of a collection at once; returns the families."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            families: MetricFamilies = end.value
            return families


def _label(text: str) -> str:
    """A label's text for a name that a peer may have chosen."""
    return text if text.isprintable() else printable(text, lines=False)


def _bound(value: float) -> str:
    return repr(float(value))


SESSIONS = Series("rmqha_remoting_sessions", MetricKind.GAUGE, "Open connections")
RECEIVED = Series("rmqha_remoting_received_total", MetricKind.COUNTER, "Requests received")
RECEIVED_BYTES = Series("rmqha_remoting_received_bytes_total", MetricKind.COUNTER, "Bytes received")
SENT_BYTES = Series("rmqha_remoting_sent_bytes_total", MetricKind.COUNTER, "Bytes sent")
REFUSED = Series(
    "rmqha_remoting_refused_total", MetricKind.COUNTER, "Connections refused: too many, or not as TLS wants them"
)
BAD_FRAMES = Series(
    "rmqha_remoting_bad_frames_total", MetricKind.COUNTER, "Connections closed for bytes that are no protocol"
)
SLOW_READERS = Series(
    "rmqha_remoting_slow_readers_total", MetricKind.COUNTER, "Connections closed as answers were not read"
)
PUSHED_OUT = Series(
    "rmqha_remoting_pushed_out_total",
    MetricKind.COUNTER,
    "Connections without a request that were closed to make room for new ones",
)
SHED = Series(
    "rmqha_remoting_shed_total", MetricKind.COUNTER, "Connections closed as half frames took too much memory together"
)
HALF_FRAME_BYTES = Series("rmqha_remoting_half_frame_bytes", MetricKind.GAUGE, "Bytes of frames that are not complete")
DENIED = Series("rmqha_remoting_denied_total", MetricKind.COUNTER, "Requests that the accounts do not allow")
FAILED = Series(
    "rmqha_remoting_failed_requests_total",
    MetricKind.COUNTER,
    "Requests that met a bug of the server; each closed its connection (event request_failed has the traceback)",
)
QUOTA_REFUSED = Series("rmqha_quota_refused_total", MetricKind.COUNTER, "Requests refused as beyond a quota")
_KEYS = {
    "session_count": SESSIONS,
    "received_count": RECEIVED,
    "received_bytes": RECEIVED_BYTES,
    "sent_bytes": SENT_BYTES,
    "refused_count": REFUSED,
    "bad_frame_count": BAD_FRAMES,
    "slow_reader_count": SLOW_READERS,
    "pushed_out_count": PUSHED_OUT,
    "shed_count": SHED,
    "half_frame_bytes": HALF_FRAME_BYTES,
    "denied_count": DENIED,
    "failed_request_count": FAILED,
    "quota_refused_count": QUOTA_REFUSED,
}
HTTP_FAILED = Series(
    "rmqha_http_failed_requests_total",
    MetricKind.COUNTER,
    "Requests to httpPort that met a bug of the server (event request_failed has the traceback)",
)
SERIES = (*_KEYS.values(), HTTP_FAILED)


def put_remoting(families: MetricFamilies, counts: Mapping[str, int]) -> None:
    """Add the metrics of remoting. `counts`: `rmqha.host.net.statistics.Statistics.as_dict`."""
    for key, series in _KEYS.items():
        families.put(series, counts[key])
