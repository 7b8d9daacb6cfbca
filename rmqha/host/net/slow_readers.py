"""Bound on the memory that a server's answers may take while their readers do not take them, all together.

Beyond the bound sessions are closed: first those that have taken nothing for STUCK_S, then the others, of each kind
those that hold most. So a consumer that reads, however much, is closed only when there is nobody else.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

MAX_UNREAD_BYTES = 48 * 1024 * 1024
NOTED_BYTES = 16 * 1024
"""Less of one session is not looked at, as most answers are gone at once."""
STUCK_S = 0.5


class AnswerReader(Protocol):
    """A session whose peer has not taken all answers."""

    def close_unread(self) -> None:
        """Its answers take too much: drop them and close."""
        ...


class SlowReaders:
    def __init__(self, max_bytes: int = MAX_UNREAD_BYTES, now_s: Callable[[], float] = time.monotonic) -> None:
        self._max_bytes = max_bytes
        self._now_s = now_s
        self._held: dict[AnswerReader, tuple[int, float]] = {}
        """Bytes, and when the peer last took some, or was given the first."""
        self.total_bytes = 0

    def hold(self, reader: AnswerReader, size_bytes: int) -> None:
        """Note that `size_bytes` of answers wait for `reader` now."""
        before_bytes, moved_at_s = self._held.pop(reader, (0, 0.0))
        if size_bytes > NOTED_BYTES:
            if size_bytes < before_bytes or not before_bytes:
                moved_at_s = self._now_s()
            self._held[reader] = size_bytes, moved_at_s
        else:
            size_bytes = 0
        self.total_bytes += size_bytes - before_bytes
        if self.total_bytes > self._max_bytes:
            self._close_some()

    def _close_some(self) -> None:
        enough_bytes = self._max_bytes - self._max_bytes // 8
        stuck_since_s = self._now_s() - STUCK_S
        for reader in sorted(self._held, key=lambda item: (self._held[item][1] > stuck_since_s, -self._held[item][0])):
            if self.total_bytes <= enough_bytes:
                break
            self.total_bytes -= self._held.pop(reader)[0]
            reader.close_unread()
