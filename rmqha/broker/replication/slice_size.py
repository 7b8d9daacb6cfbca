"""The size of a slice of work where the cost of a piece is the clients' choice. Pure."""

from __future__ import annotations


class SliceSize:
    """Between `low_bytes` and `high_bytes`: as much as took `aim_ms` in the last slice that took longer, and twice as
    much after each one that took less than half."""

    def __init__(self, low_bytes: int, high_bytes: int) -> None:
        self._low_bytes, self._high_bytes = low_bytes, high_bytes
        self.size_bytes = high_bytes

    def took(self, taken_ms: int, done_bytes: int, aim_ms: int) -> None:
        if taken_ms > aim_ms:
            self.size_bytes = max(self._low_bytes, min(self.size_bytes, done_bytes * aim_ms // taken_ms))
        elif taken_ms * 2 < aim_ms and done_bytes * 2 >= self.size_bytes:
            self.size_bytes = min(self._high_bytes, self.size_bytes * 2)
