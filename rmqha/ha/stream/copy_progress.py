"""A slave's progress in copying what its master had when they shook hands. Pure."""

from __future__ import annotations

from rmqha.model.offset import PhyOffset
from rmqha.wire.state.replica_state import CopyState

WINDOW_MS = 1000
"""A speed is that of the last whole window."""


class CopyProgress:
    """The progress of one connection: `begin` at its handshake, `moved` at every growth of the log."""

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
        """The log was given up: what is copied begins elsewhere."""
        self.begin(now_ms, own_max, PhyOffset(self._to))

    def moved(self, now_ms: int, own_max: PhyOffset) -> None:
        elapsed_ms = now_ms - self._seen_at_ms
        if elapsed_ms >= WINDOW_MS:
            self._bytes_per_second = (own_max - self._seen) * 1000 // elapsed_ms
            self._seen, self._seen_at_ms = own_max, now_ms

    def left_bytes(self, own_max: PhyOffset) -> int:
        return max(0, self._to - own_max)

    def state(self, now_ms: int, own_max: PhyOffset) -> CopyState | None:
        """None when nothing is left. `eta_ms` is None before the first second is over or while nothing
        comes."""
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
