"""Messages and bytes by topic and group since the start, for metrics. Only a broker with httpPort counts them. No trio.

Clients choose the names, so the number of places is bounded: what comes beyond is counted under OTHER.
"""

from __future__ import annotations

from rmqha.model.message import DLQ_PREFIX, RETRY_PREFIX
from rmqha.model.series import Histogram

MAX_PLACES = 1000
OTHER = "other"
SIZE_BOUNDS_BYTES = (1024, 4096, 512 * 1024, 1024 * 1024, 2 * 1024 * 1024, 4 * 1024 * 1024)
"""Those of RocketMQ."""


class Flow:
    """What has passed one place."""

    __slots__ = ("count", "size_bytes", "sizes")

    def __init__(self) -> None:
        self.count = 0
        self.size_bytes = 0
        self.sizes = Histogram(SIZE_BOUNDS_BYTES)
        """Of records; those of one batch count as one of their mean size, as in RocketMQ."""

    def add(self, count: int, size_bytes: int) -> None:
        self.count += count
        self.size_bytes += size_bytes


class Traffic:
    """`sent` by (topic, message type), `pulled` by (group, topic)."""

    def __init__(self) -> None:
        self.sent: dict[tuple[str, str], Flow] = {}
        self.pulled: dict[tuple[str, str], Flow] = {}

    def note_sent(self, topic: str, message_type: str, count: int, size_bytes: int) -> None:
        """`size_bytes`: of the records in the log. Retry and dead letter topics do not count, as in RocketMQ."""
        if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            return
        flow = self.sent.get((topic, message_type)) or _place(self.sent, (topic, message_type), (OTHER, message_type))
        flow.add(count, size_bytes)
        flow.sizes.add(size_bytes // count)

    def note_pulled(self, group: str, topic: str, count: int, size_bytes: int) -> None:
        flow = self.pulled.get((group, topic)) or _place(self.pulled, (group, topic), (OTHER, OTHER))
        flow.add(count, size_bytes)


def _place(flows: dict[tuple[str, str], Flow], key: tuple[str, str], other: tuple[str, str]) -> Flow:
    return flows.setdefault(key if len(flows) < MAX_PLACES else other, Flow())
