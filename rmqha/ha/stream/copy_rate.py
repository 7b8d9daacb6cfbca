"""The rate at which a slave outside of the SyncStateSet may copy: haTransferBytesPerSecond. Pure.

Members are never held back: sends wait for them.
"""

from __future__ import annotations

from collections.abc import Callable

from rmqha.model.offset import BrokerId

AHEAD_MS = 2
"""Time (ms) that a transfer may go early: a transfer for each millisecond would cost more than it evens out."""
BEHIND_MS = 100
"""Time (ms) that was not used, because the timer was late, may be made up for."""
SLICES_PER_S = 20
LEAST_BYTES = 1024


class CopyLimit:
    """One for a broker, changed while it runs. `is_member` tells who is, or may by now be, in the set."""

    def __init__(self, bytes_per_second: int, is_member: Callable[[BrokerId], bool]) -> None:
        self.bytes_per_second = bytes_per_second
        self._is_member = is_member

    def of(self, slave_id: BrokerId | None) -> int:
        """Bytes a second, 0 for no limit."""
        if not self.bytes_per_second or slave_id is None or self._is_member(slave_id):
            return 0
        return self.bytes_per_second


class CopyRate:
    """The rate of one connection: each transfer takes the time that it would take at the limit."""

    def __init__(self, now_ms: int) -> None:
        self._free_at_us = now_ms * 1000

    def free_at_ms(self) -> int:
        """Time (ms) at which the next transfer may begin."""
        return -(-self._free_at_us // 1000) - AHEAD_MS

    @staticmethod
    def most_bytes(bytes_per_second: int) -> int:
        """Most bytes of one transfer, so that the rate is even."""
        return max(LEAST_BYTES, bytes_per_second // SLICES_PER_S)

    def took(self, now_ms: int, size_bytes: int, bytes_per_second: int) -> None:
        begin_us = max(self._free_at_us, (now_ms - BEHIND_MS) * 1000)
        self._free_at_us = begin_us + -(-size_bytes * 1_000_000 // bytes_per_second)
