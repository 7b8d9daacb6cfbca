"""Messages, bytes and times by topic and group since the start, on a broker with httpPort. No trio.

Clients choose the names, so the number of keys is bounded: further ones are counted under OTHER.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import TypeVar

from rmqha.model.series import Histogram

MAX_KEYS = 1000
OTHER = "other"
SIZE_BOUNDS_BYTES = (1024, 4096, 512 * 1024, 1024 * 1024, 2 * 1024 * 1024, 4 * 1024 * 1024)
"""Bounds of RocketMQ's histograms, also those below."""
FINISH_BOUNDS_S = (5, 60, 600, 3600, 12 * 3600, 24 * 3600)
DELAY_BOUNDS_S = (60, 600, 3600, 12 * 3600, 24 * 3600, 3 * 24 * 3600)
CREATION_BOUNDS_MS = (10, 100, 1000, 3000, 5000)
K = TypeVar("K")
V = TypeVar("V")
Wait = Callable[[Callable[[str], None]], None]
"""Calls back once, with "" or the reason of a failure."""


class Flow:
    """Counts of one key."""

    __slots__ = ("count", "size_bytes", "size_counts")

    def __init__(self) -> None:
        self.count = 0
        self.size_bytes = 0
        self.size_counts = [0] * (len(SIZE_BOUNDS_BYTES) + 1)

    @property
    def sizes(self) -> Histogram:
        """Sizes of records; each message of a batch counts with the mean size."""
        return Histogram(SIZE_BOUNDS_BYTES, list(self.size_counts), self.size_bytes)


class Traffic:
    """Counts by key. `sent` by (topic, message type), `pulled` by (group, topic), `dead` by (group, topic): new dead
    letters. `committed` and `rolled_back` by topic, `finished`: seconds of their transactions. `delayed` by topic:
    seconds until the delivery of timer messages. `topics_made`, `groups_made` by (success, of the system): milliseconds
    of an operator's request."""

    def __init__(self, now_ms: Callable[[], int] = lambda: 0) -> None:
        self._now_ms = now_ms
        self.sent: dict[tuple[str, str], Flow] = {}
        self.pulled: dict[tuple[str, str], Flow] = {}
        self.dead: dict[tuple[str, str], int] = {}
        self.committed: dict[str, int] = {}
        self.rolled_back: dict[str, int] = {}
        self.finished: dict[str, Histogram] = {}
        self.delayed: dict[str, Histogram] = {}
        self.topics_made: dict[tuple[bool, bool], Histogram] = {}
        self.groups_made: dict[tuple[bool, bool], Histogram] = {}

    def note_sent(self, topic: str, message_type: str, count: int, size_bytes: int) -> None:
        """Count a send. `size_bytes`: of the records in the log."""
        flow = self.sent.get((topic, message_type)) or _flow_of(self.sent, (topic, message_type), (OTHER, message_type))
        flow.count += count
        flow.size_bytes += size_bytes
        flow.size_counts[bisect_left(SIZE_BOUNDS_BYTES, size_bytes // count)] += count

    def note_pulled(self, group: str, topic: str, count: int, size_bytes: int) -> None:
        flow = self.pulled.get((group, topic)) or _flow_of(self.pulled, (group, topic), (OTHER, OTHER))
        flow.count += count
        flow.size_bytes += size_bytes

    def note_dead(self, group: str, topic: str) -> None:
        key = _key(self.dead, (group, topic), (OTHER, OTHER))
        self.dead[key] = self.dead.get(key, 0) + 1

    def note_ended(self, topic: str, committed: bool, seconds: float) -> None:
        """Count the end of a transaction `seconds` after its message was born; the time of a rollback does not
        count."""
        ended = self.committed if committed else self.rolled_back
        key = _key(ended, topic, OTHER)
        ended[key] = ended.get(key, 0) + 1
        if committed:
            self.finished.setdefault(key, Histogram(FINISH_BOUNDS_S)).add(seconds)

    def note_delayed(self, topic: str, seconds: float) -> None:
        self.delayed.setdefault(_key(self.delayed, topic, OTHER), Histogram(DELAY_BOUNDS_S)).add(seconds)

    def timed(self, made: dict[tuple[bool, bool], Histogram], is_system: bool, wait: Wait) -> Wait:
        """The pending answer `wait`, whose duration from now on and success are added to `made`."""
        began_ms = self._now_ms()

        def timed_wait(done: Callable[[str], None]) -> None:
            def noted(fault: str) -> None:
                made.setdefault((not fault, is_system), Histogram(CREATION_BOUNDS_MS)).add(self._now_ms() - began_ms)
                done(fault)

            wait(noted)

        return timed_wait


def _flow_of(flows: dict[tuple[str, str], Flow], key: tuple[str, str], other: tuple[str, str]) -> Flow:
    return flows.setdefault(_key(flows, key, other), Flow())


def _key(table: dict[K, V], key: K, other: K) -> K:
    """The key to count under: `key`, or `other` if the table is full."""
    return key if key in table or len(table) < MAX_KEYS else other
