"""Unverified sessions, those without a valid request yet: bounds on bytes, time and number; memory of incomplete
frames.

A request is valid when the accounts allow it or, without accounts, when its code is known. Until then a session may
send FIRST_BYTES. A longer first frame (a message, a registration) is read completely if its header has a known request
code and, with accounts, a known access key: its signature can be checked only at its end.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from rmqha.model.code import RequestCode
from rmqha.wire.command import Command

FIRST_BYTES = 64 * 1024
MAX_UNVERIFIED_COUNT = 4096
"""Most unverified sessions. The oldest is closed beyond this number, and when the server has its most sessions."""
LONG_FRAME_TIMEOUT_MS = 10_000
"""Time-out (ms) of a whole first frame that is longer than FIRST_BYTES."""
MAX_PARTIAL_BYTES = 48 * 1024 * 1024
"""Most bytes of incomplete frames, of all sessions of a server."""
KNOWN_CODES = frozenset(map(int, RequestCode))


def has_known_code(command: Command) -> bool:
    return command.code in KNOWN_CODES


class UnverifiedSessions:
    """Unverified sessions of one server, the oldest first."""

    def __init__(self, max_count: int = MAX_UNVERIFIED_COUNT) -> None:
        self._max_count = max_count
        self._evictions: OrderedDict[int, Callable[[], None]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._evictions)

    def add(self, number: int, evict: Callable[[], None]) -> None:
        """Add a session; `evict` closes it."""
        self._evictions[number] = evict
        if len(self._evictions) > self._max_count:
            self.evict_oldest()

    def remove(self, number: int) -> None:
        """Remove a session after its first valid request or its end."""
        self._evictions.pop(number, None)

    def evict_oldest(self) -> bool:
        """Close the oldest session; False if there is none."""
        if not self._evictions:
            return False
        _, evict = self._evictions.popitem(last=False)
        evict()
        return True


@dataclass(slots=True)
class UnverifiedSession:
    """Limits of one unverified session. Times are trio's."""

    deadline_s: float
    """Deadline (s) of the first request."""
    long_frame_deadline_s: float
    is_plausible: Callable[[Command], bool] = has_known_code
    """Check of a long first frame's header: True if the frame is to be read completely."""
    is_guarded: bool = False
    """True if a filter decides which request is valid; else its code does."""
    on_verified: Callable[[], None] = lambda: None
    """Called after the first valid request."""


class FrameHolder(Protocol):
    """Session with an incomplete frame."""

    @property
    def is_verified(self) -> bool: ...

    def shed(self) -> None:
        """Close a session whose incomplete frame is among the largest when the bound is exceeded."""
        ...


class PartialFrames:
    """Bytes of the sessions' incomplete frames. Beyond the bound sessions without a valid request are closed first,
    then those with the largest frames."""

    def __init__(self, max_bytes: int = MAX_PARTIAL_BYTES) -> None:
        self._max_bytes = max_bytes
        self._held: dict[FrameHolder, int] = {}
        self.total_bytes = 0

    def hold(self, holder: FrameHolder, size_bytes: int) -> None:
        """Set the size of a session's incomplete frame."""
        before_bytes = self._held.pop(holder, 0)
        if size_bytes:
            self._held[holder] = size_bytes
        self.total_bytes += size_bytes - before_bytes
        if self.total_bytes > self._max_bytes:
            self._shed()

    def _shed(self) -> None:
        enough_bytes = self._max_bytes - self._max_bytes // 8
        for holder in sorted(self._held, key=lambda item: (item.is_verified, -self._held[item])):
            if self.total_bytes <= enough_bytes:
                break
            self.total_bytes -= self._held.pop(holder)
            holder.shed()
