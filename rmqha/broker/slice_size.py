"""How much to do at once, where what a piece costs is the clients' choice. Pure."""

from __future__ import annotations


class SliceSize:
    """Between `low` and `high`: half of it after a slice that took longer than `aim_ms`, twice after one that took less
    than half."""

    def __init__(self, low: int, high: int, aim_ms: int) -> None:
        self._low, self._high, self._aim_ms = low, high, aim_ms
        self.size = high

    def took(self, taken_ms: int) -> None:
        if taken_ms > self._aim_ms:
            self.size = max(self._low, self.size // 2)
        elif taken_ms * 2 < self._aim_ms:
            self.size = min(self._high, self.size * 2)
