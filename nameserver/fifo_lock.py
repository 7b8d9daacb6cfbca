"""A lock whose waiters get it in the order of arrival. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable


class LockRequest:
    """Waiting request for the lock; `rmqha.port.Pause`."""

    __slots__ = ("_resume", "owner", "size_bytes")

    def __init__(self, owner: Hashable, size_bytes: int) -> None:
        self.owner = owner
        self.size_bytes = size_bytes
        self._resume: Callable[[], None] | None = None

    def when_over(self, resume: Callable[[], None]) -> None:
        assert self._resume is None, "who waits goes on once"
        self._resume = resume

    def end(self) -> None:
        if self._resume is not None:
            self._resume()


class FifoLock:
    """Lock that the first waiter holds."""

    def __init__(self) -> None:
        self._queue: deque[LockRequest] = deque()

    def acquire(self, owner: Hashable, size_bytes: int) -> LockRequest | None:
        """Request the lock; None if it was free, else the pause that ends when it is granted. `release` follows."""
        request = LockRequest(owner, size_bytes)
        self._queue.append(request)
        return request if len(self._queue) > 1 else None

    def release(self, owner: Hashable) -> None:
        """Release the lock, or withdraw a waiting request."""
        if not self._queue:
            return
        first = self._queue[0]
        self._queue = deque(request for request in self._queue if request.owner != owner)
        if self._queue and self._queue[0] is not first:
            self._queue[0].end()
