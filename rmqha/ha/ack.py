"""Producers that wait for acknowledgement, in one deque ordered by offset. Data plane: no task and no timer each."""

from __future__ import annotations

from collections import deque

from rmqha.ha.action import AckStatus, Complete, Token
from rmqha.model.offset import PhyOffset

LATENCY_PLACES = 64
"""Acknowledgements are counted by the binary digits of their milliseconds: place n holds those below 2**n ms."""


class AckQueue:
    """Waits in the order of their end offsets; all have the same time-out, so deadlines rise too."""

    __slots__ = ("_timeout_ms", "_waits", "latency_counts", "latency_total_ms")

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self.latency_counts = [0] * LATENCY_PLACES
        """Since the start."""
        self.latency_total_ms = 0
        self._waits: deque[tuple[PhyOffset, int, Token]] = deque()

    def __len__(self) -> int:
        return len(self._waits)

    def add(self, now_ms: int, end_offset: PhyOffset, token: Token) -> None:
        assert not self._waits or self._waits[-1][0] <= end_offset, "waits come in log order"
        self._waits.append((end_offset, now_ms + self._timeout_ms, token))

    def release(self, now_ms: int, acked_offset: PhyOffset) -> list[Complete]:
        """Everything that ends at or below `acked_offset` is acknowledged."""
        waits = self._waits
        done: list[Complete] = []
        counts, start_ms, total_ms = self.latency_counts, now_ms + self._timeout_ms, 0
        while waits and waits[0][0] <= acked_offset:
            _, deadline_ms, token = waits.popleft()
            waited_ms = start_ms - deadline_ms
            counts[waited_ms.bit_length()] += 1
            total_ms += waited_ms
            done.append(Complete(token, AckStatus.OK))
        self.latency_total_ms += total_ms
        return done

    def counted_latencies(self) -> list[int]:
        """`latency_counts` without the empty places at its end."""
        counts = self.latency_counts
        return counts[: max((place for place, count in enumerate(counts, 1) if count), default=0)]

    def acknowledged_at_once(self) -> None:
        """Count one that need not wait."""
        self.latency_counts[0] += 1

    def expire(self, now_ms: int, status: AckStatus) -> list[Complete]:
        """Waits whose deadline has come end with `status`."""
        waits = self._waits
        done: list[Complete] = []
        while waits and waits[0][1] <= now_ms:
            done.append(Complete(waits.popleft()[2], status))
        return done

    def abandon(self) -> list[Complete]:
        """Demotion: every wait ends at once with SERVICE_NOT_AVAILABLE (ruling 13)."""
        done = [Complete(token, AckStatus.SERVICE_NOT_AVAILABLE) for _, _, token in self._waits]
        self._waits.clear()
        return done

    def deadline_ms(self) -> int | None:
        return self._waits[0][1] if self._waits else None

    def oldest_added_at_ms(self) -> int | None:
        return self._waits[0][1] - self._timeout_ms if self._waits else None

    def oldest_end_offset(self) -> PhyOffset | None:
        return self._waits[0][0] if self._waits else None
