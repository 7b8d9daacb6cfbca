"""Counts of pops by topic and group, for metrics and operators. Pure."""

from __future__ import annotations

from collections import Counter
from typing import Protocol, TypeAlias

from rmqha.broker.pop.checkpoint import Ack, CheckPoint
from rmqha.broker.services.traffic import Traffic
from rmqha.wire.state.receipt import normal_topic

MAX_PAIRS = 10_000
OTHER = "other", "other"
"""Topic and group under which further pairs are counted."""
Pair: TypeAlias = "tuple[str, str]"
"""Topic of the group's subscription, and group."""


class GetCounts(Protocol):
    """Counter of messages given to consumers; `PullProcessor` is one."""

    get_count: int
    miss_count: int
    traffic: Traffic | None


class PopCounts:
    """Counts since the start; `in_flight` since this replica became master."""

    def __init__(self) -> None:
        self.stored_checkpoints: Counter[Pair] = Counter()
        self.stored_acks: Counter[Pair] = Counter()
        self.read_checkpoints: Counter[Pair] = Counter()
        self.read_acks: Counter[Pair] = Counter()
        self.revived: Counter[Pair] = Counter()
        self.in_flight: Counter[Pair] = Counter()
        """Messages that were given, not acknowledged and not revived. Repeated acknowledgements of a message count
        repeatedly."""
        self._known: set[Pair] = set()
        self._pairs: dict[Pair, Pair] = {}
        """Pair of each topic, retry topics included, and group."""

    def role_changed(self) -> None:
        self.in_flight.clear()

    def given(self, topic: str, group: str, count: int) -> None:
        pair = self._pair(topic, group)
        self.stored_checkpoints[pair] += 1
        self.in_flight[pair] += count

    def acked(self, ack: Ack) -> None:
        pair = self._pair(ack.topic, ack.group)
        self.stored_acks[pair] += 1
        self._end(pair, len(ack.queue_offsets))

    def changed(self, topic: str, group: str) -> None:
        """Count a changed invisible time: a checkpoint, and the acknowledgement that `acked` counts."""
        self.given(topic, group, 1)

    def read(self, entry: CheckPoint | Ack) -> None:
        counts = self.read_checkpoints if isinstance(entry, CheckPoint) else self.read_acks
        counts[self._pair(entry.topic, entry.group)] += 1

    def stored_again(self, topic: str, group: str, count: int, over_count: int) -> None:
        """Note `count` messages of a pop that were stored again for their group. `over_count`: their number with those
        that are not stored, since nobody will ask for them."""
        pair = self._pair(topic, group)
        self.revived[pair] += count
        self._end(pair, over_count)

    def _end(self, pair: Pair, count: int) -> None:
        left = self.in_flight[pair] - count
        if left > 0:
            self.in_flight[pair] = left
        else:
            del self.in_flight[pair]

    def _pair(self, topic: str, group: str) -> Pair:
        pair = self._pairs.get((topic, group))
        if pair is None:
            pair = normal_topic(topic, group), group
            if pair not in self._known and len(self._known) >= MAX_PAIRS:
                return OTHER
            self._known.add(pair)
            self._pairs[topic, group] = pair
        return pair
