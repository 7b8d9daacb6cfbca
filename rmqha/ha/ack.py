"""Queue of sends that wait for acknowledgement, ordered by log offset. Data plane: no task and no timer for each
send."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from rmqha.ha.action import AckStatus, Complete, Token
from rmqha.model.offset import PhyOffset

LATENCY_CLASS_COUNT = 64
"""Number of latency classes. Class n counts acknowledgements that took n binary digits of milliseconds: below 2**n
ms."""


STALL_MS = 500
"""Waiting time (ms) above which a send counts as stalled."""
STALL_GAP_MS = 1_000
"""Longest time (ms) between stalled sends that are counted as one stall."""


@dataclass(slots=True)
class Stall:
    """Period in which sends waited longer than STALL_MS. `ended_with`: OK, or the last status that was not."""

    began_at_ms: int
    ended_at_ms: int
    longest_ms: int
    count: int
    ended_with: AckStatus


class AckQueue:
    """Waiting sends in the order of their end offsets. All have the same time-out, so the deadlines are in order
    too."""

    __slots__ = ("_timeout_ms", "_waits", "last_stall", "latency_counts", "latency_total_ms")

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self.latency_counts = [0] * LATENCY_CLASS_COUNT
        """Acknowledgements by latency class, since the start."""
        self.latency_total_ms = 0
        self.last_stall: Stall | None = None
        self._waits: deque[tuple[PhyOffset, int, Token]] = deque()

    def __len__(self) -> int:
        return len(self._waits)

    def add(self, now_ms: int, end_offset: PhyOffset, token: Token) -> None:
        assert not self._waits or self._waits[-1][0] <= end_offset, "waits come in log order"
        self._waits.append((end_offset, now_ms + self._timeout_ms, token))

    def release(self, now_ms: int, acked_offset: PhyOffset) -> list[Complete]:
        """Acknowledge all sends whose records end at or below `acked_offset`."""
        waits = self._waits
        done: list[Complete] = []
        counts, start_ms, total_ms = self.latency_counts, now_ms + self._timeout_ms, 0
        longest_ms = start_ms - waits[0][1] if waits and waits[0][0] <= acked_offset else 0
        while waits and waits[0][0] <= acked_offset:
            _, deadline_ms, token = waits.popleft()
            waited_ms = start_ms - deadline_ms
            counts[waited_ms.bit_length()] += 1
            total_ms += waited_ms
            done.append(Complete(token, AckStatus.OK))
        self.latency_total_ms += total_ms
        if longest_ms > STALL_MS:
            self._stalled(now_ms, longest_ms, len(done), AckStatus.OK)
        return done

    def _stalled(self, now_ms: int, longest_ms: int, count: int, status: AckStatus) -> None:
        """Note that `count` waits have ended, the oldest of which began `longest_ms` ago."""
        began_at_ms, last = now_ms - longest_ms, self.last_stall
        if last is None or began_at_ms > last.ended_at_ms + STALL_GAP_MS:
            self.last_stall = Stall(began_at_ms, now_ms, longest_ms, count, status)
            return
        last.ended_at_ms = now_ms
        last.longest_ms = max(last.longest_ms, longest_ms)
        last.count += count
        if status is not AckStatus.OK:
            last.ended_with = status

    def counted_latencies(self) -> list[int]:
        """Counts of latencies by class, without the empty classes at the end."""
        counts = self.latency_counts
        return counts[: max((place for place, count in enumerate(counts, 1) if count), default=0)]

    def acknowledged_at_once(self) -> None:
        """Count a send that did not wait."""
        self.latency_counts[0] += 1

    def expire(self, now_ms: int, status: AckStatus) -> list[Complete]:
        """End the waits that are due with `status`."""
        waits = self._waits
        done: list[Complete] = []
        added_at_ms = self.oldest_added_at_ms()
        while waits and waits[0][1] <= now_ms:
            done.append(Complete(waits.popleft()[2], status))
        if done and added_at_ms is not None and now_ms - added_at_ms > STALL_MS:
            self._stalled(now_ms, now_ms - added_at_ms, len(done), status)
        return done

    def abandon(self) -> list[Complete]:
        """End all waits with SERVICE_NOT_AVAILABLE, at a demotion (ruling 13)."""
        done = [Complete(token, AckStatus.SERVICE_NOT_AVAILABLE) for _, _, token in self._waits]
        self._waits.clear()
        return done

    def deadline_ms(self) -> int | None:
        return self._waits[0][1] if self._waits else None

    def oldest_added_at_ms(self) -> int | None:
        return self._waits[0][1] - self._timeout_ms if self._waits else None

    def oldest_end_offset(self) -> PhyOffset | None:
        return self._waits[0][0] if self._waits else None
