"""Bound on the memory of a server's answers that wait to be written, because their readers are slow.

Beyond the bound sessions are closed: first those whose peers have read nothing for STUCK_S, then the others; of each
kind those with most bytes. So a consumer that reads, however slowly, is closed only if all others read too."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

MAX_UNREAD_BYTES = 48 * 1024 * 1024
MIN_COUNTED_BYTES = 16 * 1024
"""Bytes of one session that are not counted: most answers are written at once."""
STUCK_S = 0.5
"""Time (s) without reading after which a session is closed before the others."""


class SlowReader(Protocol):
    """A session whose peer has not taken all answers."""

    def close_unread(self) -> None:
        """Drop the session's queued answers, which need too much memory, and close it."""
        ...


class SlowReaders:
    """Bytes that wait in each session of one server."""

    def __init__(self, max_bytes: int = MAX_UNREAD_BYTES, now_s: Callable[[], float] = time.monotonic) -> None:
        self._max_bytes = max_bytes
        self._now_s = now_s
        self._held: dict[SlowReader, tuple[int, float]] = {}
        """Bytes that wait, and the time (s) when the peer last read some, or when the first were queued."""
        self.total_bytes = 0

    def hold(self, reader: SlowReader, size_bytes: int) -> None:
        """Note that `size_bytes` of answers wait for `reader` now."""
        before_bytes, moved_at_s = self._held.pop(reader, (0, 0.0))
        if size_bytes > MIN_COUNTED_BYTES:
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
