"""Health of the disk, which takes writes or does not: a decision over the probe of `broker/services/disk_probe.py`.
Pure."""

from __future__ import annotations


class DiskHealth:
    """A probe is a small write made durable. One that fails, or has not ended after `timeout_ms`, is a problem; the
    next one that ends well clears it."""

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._begun_ms: int | None = None
        self._error = ""
        self.last_ms: int | None = None
        """Time (ms) that the last probe that ended well took."""

    def begun(self, now_ms: int) -> None:
        self._begun_ms = now_ms

    def ended(self, now_ms: int, error: str = "") -> None:
        """`error`: what the system said, "" for a probe that ended well."""
        assert self._begun_ms is not None, "a probe ends after it has begun"
        if not error:
            self.last_ms = now_ms - self._begun_ms
        self._begun_ms, self._error = None, error

    def hangs(self, now_ms: int) -> bool:
        """True if a write may wait for ever now."""
        return self._begun_ms is not None and now_ms - self._begun_ms >= self._timeout_ms

    def problem(self, now_ms: int) -> str:
        """A sentence for operators; "" while all is well."""
        if self.hangs(now_ms):
            return f"a small write has not ended for {self._timeout_ms} ms"
        return self._error
