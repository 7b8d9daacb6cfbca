"""Messages and bytes by topic and group since the start, for metrics. Only a broker with httpPort counts them. No trio.

Clients choose the names, so the number of places is bounded: what comes beyond is counted under OTHER.
"""

from __future__ import annotations

from bisect import bisect_left

from rmqha.model.series import Histogram

MAX_PLACES = 1000
OTHER = "other"
SIZE_BOUNDS_BYTES = (1024, 4096, 512 * 1024, 1024 * 1024, 2 * 1024 * 1024, 4 * 1024 * 1024)
"""Bounds of RocketMQ's histogram."""


class Flow:
    """Counts of what has passed one place."""

    __slots__ = ("count", "size_bytes", "size_counts")

    def __init__(self) -> None:
        self.count = 0
        self.size_bytes = 0
        self.size_counts = [0] * (len(SIZE_BOUNDS_BYTES) + 1)

    @property
    def sizes(self) -> Histogram:
        """Sizes of records; each of a batch counts with their mean size."""
        return Histogram(SIZE_BOUNDS_BYTES, list(self.size_counts), self.size_bytes)


class Traffic:
    """`sent` by (topic, message type), `pulled` by (group, topic)."""

    def __init__(self) -> None:
        self.sent: dict[tuple[str, str], Flow] = {}
        self.pulled: dict[tuple[str, str], Flow] = {}

    def note_sent(self, topic: str, message_type: str, count: int, size_bytes: int) -> None:
        """`size_bytes`: of the records in the log."""
        flow = self.sent.get((topic, message_type)) or _place(self.sent, (topic, message_type), (OTHER, message_type))
        flow.count += count
        flow.size_bytes += size_bytes
        flow.size_counts[bisect_left(SIZE_BOUNDS_BYTES, size_bytes // count)] += count

    def note_pulled(self, group: str, topic: str, count: int, size_bytes: int) -> None:
        flow = self.pulled.get((group, topic)) or _place(self.pulled, (group, topic), (OTHER, OTHER))
        flow.count += count
        flow.size_bytes += size_bytes


def _place(flows: dict[tuple[str, str], Flow], key: tuple[str, str], other: tuple[str, str]) -> Flow:
    return flows.setdefault(key if len(flows) < MAX_PLACES else other, Flow())
