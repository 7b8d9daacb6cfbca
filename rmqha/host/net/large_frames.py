"""Turns of reading large frames. Shell.

A large frame that is read before the log has room for it only takes memory, and the time of everybody's turns: when a
hundred come at once, that of the second in which they come. So those that are read, or wait to be handled, announce
QUICK_BYTES at most at a time, or are one; the others stay unread in their sockets, in line. Who has not sent all of his
after SLOW_S keeps nobody waiting, up to MAX_BIG_BYTES; and whoever sends too slowly while others stand in line goes to
its end, with what came of his.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from rmqha.host.net.deadlines import Deadline, Deadlines
from rmqha.wire.frame import FrameParser

LARGE_BYTES = 64 * 1024
"""A frame that announces more than this needs a turn."""
MAX_BIG_BYTES, QUICK_BYTES = 32 * 1024 * 1024, 8 * 1024 * 1024
TURN_S = 2.0
"""Time (s) in which a frame should have come, if others wait."""
SLOW_S = 0.25
"""Time (s) in which QUICK_BYTES are read: what has not come then has not been sent."""


class LargeFrameTurn:
    """The turns of one session."""

    __slots__ = ("_frames", "_go_on", "_has_it", "_stop", "is_awaited", "is_whole")

    def __init__(self, frames: LargeFrames, go_on: Callable[[], None], stop: Callable[[], None]) -> None:
        """`go_on` and `stop`: read, and read no more."""
        self._frames = frames
        self._go_on = go_on
        self._stop = stop
        self._has_it = False
        self.is_awaited = False
        """It must not read: others do."""
        self.is_whole = False
        """For the session to set: the frame has come."""

    def announced(self, announced_bytes: int) -> None:
        """All that came before has been handled; what is coming now announces so much."""
        if self._has_it and self.is_whole:
            self._has_it = False
            self._frames.end(self)
        if announced_bytes > LARGE_BYTES and not self._has_it and not self.is_awaited:
            self.is_whole = False
            self._has_it = self._frames.begin(self, announced_bytes)
            self.is_awaited = not self._has_it

    def given(self) -> None:
        """Its turn has come."""
        self._has_it, self.is_awaited = True, False
        self._go_on()

    def taken(self) -> None:
        """Its turn is over, and the frame has not come."""
        self._has_it, self.is_awaited = False, True
        self._stop()

    def end(self) -> None:
        """The session has ended."""
        self._go_on = self._stop = _nothing
        if self._has_it or self.is_awaited:
            self._has_it = self.is_awaited = False
            self._frames.end(self)


def _nothing() -> None:
    """Do nothing: the session has ended."""


def bytes_to_read(parser: FrameParser, short_bytes: int, long_bytes: int) -> int:
    """Size of a read where much waits: of a large frame not far beyond its end, for the beginning of the next one is
    kept until its turn comes."""
    announced_bytes = parser.announced_bytes
    if announced_bytes <= LARGE_BYTES:
        return long_bytes
    return min(long_bytes, announced_bytes - parser.buffered_bytes + short_bytes)


class LargeFrames:
    """The large frames of one server's sessions."""

    def __init__(self, max_bytes: int = MAX_BIG_BYTES, quick_bytes: int = QUICK_BYTES) -> None:
        self._max_bytes, self._quick_bytes = max_bytes, quick_bytes
        self._turns: dict[LargeFrameTurn, tuple[int, float]] = {}
        """Bytes that were announced, and since when it is its turn, by trio's time."""
        self._line: dict[LargeFrameTurn, int] = {}
        self._check: Deadline | None = None
        self.deadlines: Deadlines | None = None
        """Deadlines of the server; set before it serves, None: nobody stands in line."""
        self.total_bytes = 0
        """Announced by those whose turn it is."""
        self._slow: set[LargeFrameTurn] = set()
        """Turns that keep nobody waiting."""
        self._slow_bytes = 0

    @property
    def waiting_count(self) -> int:
        return len(self._line)

    def begin(self, turn: LargeFrameTurn, size_bytes: int) -> bool:
        """True if it is its turn to read a frame of so many bytes; else it is given one later."""
        if self.deadlines is None or not (self._line or self._is_full(size_bytes)):
            self._give(turn, size_bytes)
            return True
        self._line[turn] = size_bytes
        self._check_soon(self.deadlines)
        return False

    def end(self, turn: LargeFrameTurn) -> None:
        """Its frame has been handled, or it is gone."""
        self._line.pop(turn, None)
        self._take(turn)
        self._call()

    def _is_full(self, size_bytes: int) -> bool:
        if not self._turns:
            return False
        quick_bytes = self.total_bytes - self._slow_bytes
        return self.total_bytes + size_bytes > self._max_bytes or (
            quick_bytes > 0 and quick_bytes + size_bytes > self._quick_bytes
        )

    def _give(self, turn: LargeFrameTurn, size_bytes: int) -> None:
        self._turns[turn] = size_bytes, trio.current_time()
        self.total_bytes += size_bytes

    def _take(self, turn: LargeFrameTurn) -> int:
        size_bytes, _ = self._turns.pop(turn, (0, 0.0))
        self.total_bytes -= size_bytes
        if turn in self._slow:
            self._slow.remove(turn)
            self._slow_bytes -= size_bytes
        return size_bytes

    def _call(self) -> None:
        while self._line:
            turn, size_bytes = next(iter(self._line.items()))
            if self._is_full(size_bytes):
                break
            del self._line[turn]
            self._give(turn, size_bytes)
            turn.given()

    def _check_soon(self, deadlines: Deadlines) -> None:
        if self._check is None:
            self._check = deadlines.add(trio.current_time() + SLOW_S, self._check_turns)

    def _check_turns(self) -> None:
        """If others wait: end the turns of those whose frames are too long in coming, and note who is slow."""
        self._check = None
        if not self._line or self.deadlines is None:
            return
        now_s = trio.current_time()
        for turn, (size_bytes, since_s) in list(self._turns.items()):
            if turn.is_whole:
                continue
            if since_s <= now_s - TURN_S:
                self._line[turn] = self._take(turn)
                turn.taken()
            elif since_s <= now_s - SLOW_S and turn not in self._slow:
                self._slow.add(turn)
                self._slow_bytes += size_bytes
        self._call()
        self._check_soon(self.deadlines)
