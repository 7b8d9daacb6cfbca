"""Progress of a slave in copying the log that its master had at the handshake, and the rate limit of such copies.
Pure."""

from __future__ import annotations

from collections.abc import Callable

from rmqha.model.offset import BrokerId, PhyOffset
from rmqha.wire.state.replica_state import CopyState

WINDOW_MS = 1000
"""Length (ms) of the windows over which the speed is measured; the last whole one counts."""


class CopyProgress:
    """Progress of one connection. `begin` is called at its handshake, `moved` each time the log has grown."""

    def __init__(self) -> None:
        self._from = self._to = self._seen = 0
        self._seen_at_ms = 0
        self._bytes_per_second = 0

    def begin(self, now_ms: int, own_max: PhyOffset, master_max: PhyOffset) -> None:
        self._from = self._seen = own_max
        self._to = max(own_max, master_max)
        self._seen_at_ms = now_ms
        self._bytes_per_second = 0

    def restart(self, now_ms: int, own_max: PhyOffset) -> None:
        """Begin at another offset: the log was emptied."""
        self.begin(now_ms, own_max, PhyOffset(self._to))

    def moved(self, now_ms: int, own_max: PhyOffset) -> None:
        elapsed_ms = now_ms - self._seen_at_ms
        if elapsed_ms >= WINDOW_MS:
            self._bytes_per_second = (own_max - self._seen) * 1000 // elapsed_ms
            self._seen, self._seen_at_ms = own_max, now_ms

    def left_bytes(self, own_max: PhyOffset) -> int:
        return max(0, self._to - own_max)

    def state(self, now_ms: int, own_max: PhyOffset) -> CopyState | None:
        """Progress of the copy; None when nothing is left. `eta_ms` is None during the first second and while no bytes
        arrive."""
        left_bytes = self.left_bytes(own_max)
        if not left_bytes:
            return None
        speed = self._bytes_per_second
        if now_ms >= self._seen_at_ms + 2 * WINDOW_MS:
            speed = (own_max - self._seen) * 1000 // (now_ms - self._seen_at_ms)  # it may stand still
        return CopyState(
            from_offset=self._from,
            to_offset=self._to,
            copied_bytes=own_max - self._from,
            left_bytes=left_bytes,
            bytes_per_second=speed,
            eta_ms=left_bytes * 1000 // speed if speed else None,
        )


# --- the rate at which a slave outside of the SyncStateSet may copy: haTransferBytesPerSecond -------------------------
# Members are never held back: sends wait for them.

AHEAD_MS = 2
"""Time (ms) by which a transfer may be early: a transfer each millisecond would cost more than it evens out."""
BEHIND_MS = 100
"""Longest unused time (ms), because a timer was late, that later transfers may make up for."""
SLICES_PER_S = 20
"""Number of transfers into which the bytes of a second are divided."""
LEAST_BYTES = 1024
"""Smallest size of a transfer."""


class CopyLimit:
    """Rate limit of a broker for copies; it may change at run time. `is_member`: True for slaves that are, or may be,
    in the set, which have no limit."""

    def __init__(self, bytes_per_second: int, is_member: Callable[[BrokerId], bool]) -> None:
        self.bytes_per_second = bytes_per_second
        self._is_member = is_member

    def of(self, slave_id: BrokerId | None) -> int:
        """Limit for a slave in bytes per second; 0: no limit."""
        if not self.bytes_per_second or slave_id is None or self._is_member(slave_id):
            return 0
        return self.bytes_per_second


class CopyRate:
    """Pacing of one connection: each transfer occupies the time that it takes at the limit."""

    def __init__(self, now_ms: int) -> None:
        self._free_at_us = now_ms * 1000

    def free_at_ms(self) -> int:
        """Time (ms) at which the next transfer may begin."""
        return -(-self._free_at_us // 1000) - AHEAD_MS

    @staticmethod
    def most_bytes(bytes_per_second: int) -> int:
        """Most bytes of one transfer, so that the rate is even."""
        return max(LEAST_BYTES, bytes_per_second // SLICES_PER_S)

    def charge(self, now_ms: int, size_bytes: int, bytes_per_second: int) -> None:
        begin_us = max(self._free_at_us, (now_ms - BEHIND_MS) * 1000)
        self._free_at_us = begin_us + -(-size_bytes * 1_000_000 // bytes_per_second)
