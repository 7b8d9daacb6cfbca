"""Choice of the rows that a reader wants, decided before their bodies are touched (data plane): first by the header,
then by the topic, and only for what is left by the properties."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmqha.model.pattern import compiled
from rmqha.scan.columns import TIMESTAMP_MAX_MS, Records

NUMBERS = ("queueId", "queueOffset", "physicalOffset", "bornTimestamp", "storeTimestamp")
"""The numeric columns that can be filtered here. Timestamps in milliseconds; what no timestamp can hold is null, and
a null passes no filter."""

FEW_TOPICS = 8
"""Most topics that are compared one after the other; more are looked up among all topics of a window."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Whole numbers low ≤ x ≤ high."""

    low: int = -(2**63)
    high: int = 2**63 - 1

    def meet(self, other: Interval) -> Interval:
        """The part that lies in both intervals."""
        return Interval(max(self.low, other.low), min(self.high, other.high))


ANY_NUMBER = Interval()


@dataclass(frozen=True, slots=True)
class RowFilter:
    """A filter of rows: the AND of its parts. It is exact, so that nobody needs to filter again."""

    topics: frozenset[str] | None = None
    intervals: dict[str, Interval] = field(default_factory=dict)
    values: dict[str, frozenset[int]] = field(default_factory=dict)
    topic_pattern: str | None = None
    """A regular expression (RE2's) that the whole topic must match."""
    queues: frozenset[tuple[str, int]] | None = None
    """(topic, queueId)"""
    queue_offsets: dict[tuple[str, int], Interval] = field(default_factory=dict)
    """Bounds of queueOffset; queues that are not named have none."""
    tags: frozenset[str] | None = None
    keys: frozenset[str] | None = None
    """A row needs one of them."""

    def with_topics(self, topics: frozenset[str]) -> RowFilter:
        """This filter, and only these topics."""
        return replace(self, topics=topics if self.topics is None else self.topics & topics)

    def with_interval(self, name: str, interval: Interval) -> RowFilter:
        """This filter, and only values of column `name` in the interval."""
        met = self.intervals.get(name, Interval()).meet(interval)
        return replace(self, intervals=self.intervals | {name: met})

    def with_queue_offsets(self, bounds: dict[tuple[str, int], Interval]) -> RowFilter:
        """This filter, and only these offsets of these (topic, queue)s."""
        met = {queue: self.queue_offsets.get(queue, Interval()).meet(limit) for queue, limit in bounds.items()}
        return replace(self, queue_offsets=self.queue_offsets | met)

    def with_tags(self, tags: frozenset[str]) -> RowFilter:
        """This filter, and only these tags."""
        return replace(self, tags=tags if self.tags is None else self.tags & tags)

    def with_values(self, name: str, values: frozenset[int]) -> RowFilter:
        """This filter, and only these values of column `name`."""
        return replace(self, values=self.values | {name: self.values.get(name, values) & values})

    def conditions(self) -> Iterator[list[Any]]:
        """The conditions on topic, tags, keys and numbers, each as [column, operator, value] in JSON's types; without
        those on single queues and the pattern."""
        for name, texts in (("topic", self.topics), ("tags", self.tags), ("keys", self.keys)):
            if texts is not None:
                yield [name, "in", sorted(texts)]
        for name, numbers in self.values.items():
            yield [name, "in", sorted(numbers)]
        for name, bounds in self.intervals.items():
            if bounds.low > ANY_NUMBER.low:
                yield [name, ">=", bounds.low]
            if bounds.high < ANY_NUMBER.high:
                yield [name, "<=", bounds.high]

    @property
    def conditions_by_column(self) -> dict[str, Any]:
        """All conditions of the filter by column, JSON-ready."""
        sets = {"topic": self.topics, "queues": self.queues, "tags": self.tags, "keys": self.keys, **self.values}
        found: dict[str, Any] = {name: sorted(chosen) for name, chosen in sets.items() if chosen is not None}
        if self.topic_pattern is not None:
            found["topicPattern"] = self.topic_pattern
        for name, bounds in self.intervals.items():
            found[f"{name} from"], found[f"{name} to"] = bounds.low, bounds.high
        for (topic, queue_id), bounds in self.queue_offsets.items():
            found[f"queueOffset of {topic}/{queue_id}"] = [bounds.low, bounds.high]
        return found

    @property
    def physical_offsets(self) -> Interval:
        """Bounds of the offsets that can pass."""
        return self._bounds("physicalOffset")

    @property
    def store_timestamps(self) -> Interval:
        """Bounds of the times that can pass, in ms."""
        return self._bounds("storeTimestamp")

    def _bounds(self, name: str) -> Interval:
        bounds, values = self.intervals.get(name, Interval()), self.values.get(name)
        return bounds if values is None else bounds.meet(Interval(min(values, default=0), max(values, default=-1)))

    def apply(self, records: Records) -> Records:
        """The records that pass, cheap tests first."""
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
        if self.names_topics and len(records):
            records = records.select(self.topic_mask(records))
        if self.tags is not None and len(records):
            records = records.select(_is_in(records.property(b"TAGS"), self.tags))
        if self.keys is not None and len(records):
            records = records.select(_any_in(records.keys, self.keys))
        return records

    @property
    def names_topics(self) -> bool:
        """True if the filter has a condition on the topic."""
        return bool(
            self.topics is not None or self.topic_pattern is not None or self.queues is not None or self.queue_offsets
        )

    def without_topics(self) -> RowFilter:
        """The filter without its conditions on topics and on single queues."""
        return replace(self, topics=None, topic_pattern=None, queues=None, queue_offsets={})

    def topic_mask(self, records: Records) -> NDArray[np.bool_]:
        """Mask of the records that pass the conditions on topics and on single queues."""
        if self._is_few_topics:
            masks = [records.topic_is(name) for name in self.topics or ()]
            return np.logical_or.reduce(masks) if masks else np.zeros(len(records), bool)
        names, code = records.topic_codes
        chosen: NDArray[np.bool_] = np.array([self._wants_topic(name) for name in names], bool)[code]
        if self.queues is None and not self.queue_offsets:
            return chosen
        queue_id, queue_offset = records.number("queueId"), records.number("queueOffset")
        for number, name in enumerate(names):
            of_topic = code == number
            if self.queues is not None:
                ids = [queue for topic, queue in self.queues if topic == name]
                chosen &= ~of_topic | np.isin(queue_id, ids)
            for (topic, queue), bounds in self.queue_offsets.items():
                if topic == name:
                    inside = (queue_offset >= bounds.low) & (queue_offset <= bounds.high)
                    chosen &= ~(of_topic & (queue_id == queue)) | inside
        return chosen

    @property
    def _is_few_topics(self) -> bool:
        others = self.topic_pattern is not None or self.queues is not None or bool(self.queue_offsets)
        names = self.topics
        return not others and names is not None and len(names) <= FEW_TOPICS and all("\ufffd" not in n for n in names)

    def _wants_topic(self, name: str) -> bool:
        return (self.topics is None or name in self.topics) and (
            self.topic_pattern is None or compiled(self.topic_pattern).is_whole(name.encode())
        )


def _is_in(texts: Any, wanted: frozenset[str]) -> NDArray[np.bool_]:
    """Mask of the texts that are one of these."""
    import pyarrow.compute as pc  # takes as long to load as all of this package

    return np.asarray(pc.is_in(texts, value_set=pa.array(sorted(wanted), pa.string())))


def _any_in(lists: Any, wanted: frozenset[str]) -> NDArray[np.bool_]:
    """Mask of the lists of strings that hold one of these."""
    hits_before = np.r_[0, np.cumsum(_is_in(lists.flatten(), wanted))]
    offsets = np.asarray(lists.offsets)
    found: NDArray[np.bool_] = hits_before[offsets[1:] - offsets[0]] > hits_before[offsets[:-1] - offsets[0]]
    return found
