"""Connections that have not sent a request that counts yet: little room, little time, and the oldest make room for new
ones. What half frames may take of the memory, all together.

A request counts when the accounts allow it or, without accounts, when its code is known. Until then a connection may
send FIRST_BYTES; a first frame that is longer (a message, a registration) is read on if its header names a known
request and, where there are accounts, one of them: its signature can be checked only when all of it is here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from rmqha.model.code import RequestCode
from rmqha.wire.command import Command

FIRST_BYTES = 64 * 1024
MAX_NEWCOMER_COUNT = 4096
"""Beyond it the oldest is closed, as when there is room for no more sessions."""
LONG_FRAME_TIMEOUT_MS = 10_000
"""For the whole of a first frame that is longer than FIRST_BYTES."""
MAX_HALF_BYTES = 48 * 1024 * 1024
"""Most bytes of half frames of all connections of a server."""
KNOWN_CODES = frozenset(map(int, RequestCode))


def has_known_code(command: Command) -> bool:
    return command.code in KNOWN_CODES


class Newcomers:
    """The newcomers of one server, the oldest first."""

    def __init__(self, max_count: int = MAX_NEWCOMER_COUNT) -> None:
        self._max_count = max_count
        self._push_outs: OrderedDict[int, Callable[[], None]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._push_outs)

    def came(self, number: int, push_out: Callable[[], None]) -> None:
        """`push_out` ends that connection."""
        self._push_outs[number] = push_out
        if len(self._push_outs) > self._max_count:
            self.push_out_oldest()

    def left(self, number: int) -> None:
        """It is known now, or gone."""
        self._push_outs.pop(number, None)

    def push_out_oldest(self) -> bool:
        """False if there is none."""
        if not self._push_outs:
            return False
        _, push_out = self._push_outs.popitem(last=False)
        push_out()
        return True


@dataclass(slots=True)
class Newcomer:
    """One of them, as its session sees it. Times are trio's."""

    deadline_s: float
    """For its first request."""
    long_frame_deadline_s: float
    is_plausible: Callable[[Command], bool] = has_known_code
    """Test of a long first frame's header: True if it is worth to be read on."""
    is_guarded: bool = False
    """A guard says which request counts; else that is for its code to say."""
    came: Callable[[], None] = lambda: None
    """Called when it is known."""


class FrameHolder(Protocol):
    """A session that holds a part of a frame."""

    @property
    def is_known(self) -> bool: ...

    def shed(self) -> None:
        """Close: it holds more than others, and all hold too much."""
        ...


class PartialFrames:
    """Bytes of incomplete frames that the sessions of one server hold. Beyond the bound those that are not known
    are closed first, then those that hold most."""

    def __init__(self, max_bytes: int = MAX_HALF_BYTES) -> None:
        self._max_bytes = max_bytes
        self._held: dict[FrameHolder, int] = {}
        self.total_bytes = 0

    def hold(self, holder: FrameHolder, size_bytes: int) -> None:
        """It holds so much now."""
        before_bytes = self._held.pop(holder, 0)
        if size_bytes:
            self._held[holder] = size_bytes
        self.total_bytes += size_bytes - before_bytes
        if self.total_bytes > self._max_bytes:
            self._shed()

    def _shed(self) -> None:
        enough_bytes = self._max_bytes - self._max_bytes // 8
        for holder in sorted(self._held, key=lambda item: (item.is_known, -self._held[item])):
            if self.total_bytes <= enough_bytes:
                break
            self.total_bytes -= self._held.pop(holder)
            holder.shed()
