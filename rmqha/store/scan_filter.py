"""Which rows a reader wants, decided on the header and the topic before anything else is decoded (data plane)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqha.store.scan_columns import TIMESTAMP_MAX_MS, Records

NUMBERS = ("queueId", "queueOffset", "physicalOffset", "bornTimestamp", "storeTimestamp")
"""The numeric columns that can be filtered here. Timestamps in milliseconds; what no timestamp can hold is null, and
a null passes no filter."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Whole numbers low ≤ x ≤ high."""

    low: int = -(2**63)
    high: int = 2**63 - 1

    def meet(self, other: Interval) -> Interval:
        return Interval(max(self.low, other.low), min(self.high, other.high))


@dataclass(frozen=True, slots=True)
class RowFilter:
    """The AND of its parts; exact, so that nobody needs to filter again."""

    topics: frozenset[str] | None = None
    intervals: dict[str, Interval] = field(default_factory=dict)
    values: dict[str, frozenset[int]] = field(default_factory=dict)

    def with_topics(self, topics: frozenset[str]) -> RowFilter:
        return replace(self, topics=topics if self.topics is None else self.topics & topics)

    def with_interval(self, name: str, interval: Interval) -> RowFilter:
        met = self.intervals.get(name, Interval()).meet(interval)
        return replace(self, intervals=self.intervals | {name: met})

    def with_values(self, name: str, values: frozenset[int]) -> RowFilter:
        return replace(self, values=self.values | {name: self.values.get(name, values) & values})

    @property
    def physical_offsets(self) -> Interval:
        """Bounds of the offsets that can pass."""
        bounds = self.intervals.get("physicalOffset", Interval())
        values = self.values.get("physicalOffset")
        if values is not None:
            bounds = bounds.meet(Interval(min(values, default=0), max(values, default=-1)))
        return bounds

    def apply(self, records: Records) -> Records:
        for name in NUMBERS:
            interval, values = self.intervals.get(name), self.values.get(name)
            if interval is None and values is None:
                continue
            column = records.number(name)
            chosen = np.ones(len(column), bool)
            if name.endswith("Timestamp"):
                chosen = (column >= -TIMESTAMP_MAX_MS) & (column <= TIMESTAMP_MAX_MS)
            if interval is not None:
                chosen &= (column >= interval.low) & (column <= interval.high)
            if values is not None:
                chosen &= np.isin(column, sorted(values))
            records = records.select(chosen)
        if self.topics is not None and len(records):
            wanted = pc.is_in(records.topic, value_set=pa.array(sorted(self.topics), pa.string()))
            records = records.select(np.asarray(wanted))
        return records
