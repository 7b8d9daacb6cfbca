"""Figures of a benchmark, and when they are not those of its rate. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rmqha.ops.bench.histogram import PERCENTILES, LatencyHistogram

BEHIND_SHARE, BEHIND_S = 0.05, 0.5
"""A run that took so much longer than its rate wanted says nothing of latency at that rate."""


@dataclass(slots=True)
class Figures:
    """Figures of one benchmark. `latency` and `late` are in microseconds. Counts are of messages."""

    kind: str
    measured: str
    """The event whose latency is measured."""
    topic: str
    size_bytes: int
    rate: float | None = None
    latency: LatencyHistogram = field(default_factory=LatencyHistogram)
    late: LatencyHistogram | None = None
    elapsed_s: float = 0.0
    done: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Count and first text by kind of failure."""
    interrupted: bool = False
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def per_second(self) -> float:
        return self.done / self.elapsed_s if self.elapsed_s else 0.0

    def add_failure(self, kind: str, text: str) -> None:
        """Count one more failure of this kind; the first text is kept."""
        count, first = self.reasons.get(kind, (0, text))
        self.reasons[kind] = count + 1, first

    @property
    def failed(self) -> bool:
        return any(self.counts.get(name) for name in ("failed", "unanswered", "lost"))

    def warning(self) -> str:
        """The reason why the latencies are not those of this rate, "" if they are."""
        if self.rate is None or self.late is None or self.interrupted:
            return ""
        late_us, latency_us = self.late.percentile(99), self.latency.percentile(99)
        wanted_s = self.counts.get("offered", 0) / self.rate
        if self.elapsed_s > wanted_s * (1 + BEHIND_SHARE) + BEHIND_S:
            return (
                f"only {self.per_second:,.0f}/s of {self.rate:,.0f}/s were done: group or client can do no more, so"
                " latencies grow with the length of the run; give a lower --rate"
            )
        if late_us > latency_us / 2 and late_us > 1000:
            return (
                f"1 in 100 requests began {late_us / 1000:.1f} ms late: that part of the latency is this client's own"
            )
        return ""

    def as_dict(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "measured": self.measured,
            "topic": self.topic,
            "sizeBytes": self.size_bytes,
            "rate": self.rate,
            "seconds": round(self.elapsed_s, 3),
            "done": self.done,
            "perSecond": round(self.per_second, 1),
            "bytesPerSecond": round(self.per_second * self.size_bytes),
            "counts": self.counts,
            "latencyMicroseconds": times(self.latency),
            "lateMicroseconds": None if self.late is None else times(self.late),
            "histogram": [list(bar) for bar in self.latency.bars()],
            "reasons": [{"count": count, "first": text} for count, text in self.reasons.values()],
            "interrupted": self.interrupted,
            "warning": self.warning(),
            **self.extra,
        }


def times(histogram: LatencyHistogram) -> dict[str, Any]:
    percentiles = {f"p{percent:g}": histogram.percentile(percent) for percent in PERCENTILES}
    return percentiles | {"max": histogram.max, "mean": round(histogram.mean, 1), "count": histogram.count}
