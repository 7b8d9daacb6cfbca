"""Turns in which the sessions of a server read large frames. Shell.

A large frame that is read before the log has room for it only takes memory and time: a hundred that come at once would
take all of the second in which they come. So a session asks for a turn before it reads one (`LargeFrameTurn`). Frames
whose turn it is, read or not yet handled, have QUICK_BYTES together at most, or there is only one. The others stay
unread in their sockets, queued in order. A frame that has not arrived after SLOW_S no longer counts for QUICK_BYTES,
only for MAX_LARGE_BYTES. After TURN_S, if others wait, its session goes to the end of the queue and keeps what it has
read."""

from __future__ import annotations

from collections.abc import Callable

import trio

from rmqha.host.net.deadlines import Deadline, Deadlines
from rmqha.wire.frame import FrameParser

LARGE_BYTES = 64 * 1024
"""A frame with an announced length above this needs a turn."""
MAX_LARGE_BYTES, QUICK_BYTES = 32 * 1024 * 1024, 8 * 1024 * 1024
TURN_S = 2.0
"""Time (s) of a turn after which it goes to another session, if one waits and the frame has not arrived."""
SLOW_S = 0.25
"""Time (s) in which QUICK_BYTES are read: a frame that has not arrived by then has not been sent in full."""


class LargeFrameTurn:
    """The turns of one session."""

    __slots__ = ("_frames", "_go_on", "_is_granted", "_stop", "has_arrived", "is_waiting")

    def __init__(self, frames: LargeFrames, go_on: Callable[[], None], stop: Callable[[], None]) -> None:
        """`go_on` makes the session read, `stop` makes it stop reading."""
        self._frames = frames
        self._go_on = go_on
        self._stop = stop
        self._is_granted = False
        self.is_waiting = False
        """True while the session is queued for a turn: it must not read."""
        self.has_arrived = False
        """Set by the session when the frame has been read."""

    def update(self, announced_bytes: int) -> None:
        """Note the length that the next frame announces; called when all frames before it have been handled."""
        if self._is_granted and self.has_arrived:
            self._is_granted = False
            self._frames.end(self)
        if announced_bytes > LARGE_BYTES and not self._is_granted and not self.is_waiting:
            self.has_arrived = False
            self._is_granted = self._frames.request(self, announced_bytes)
            self.is_waiting = not self._is_granted

    def grant(self) -> None:
        """Begin the turn."""
        self._is_granted, self.is_waiting = True, False
        self._go_on()

    def revoke(self) -> None:
        """End the turn, as the frame has not arrived in time, and queue it again."""
        self._is_granted, self.is_waiting = False, True
        self._stop()

    def end(self) -> None:
        """Give up the turn or the place in the queue: the session has ended."""
        self._go_on = self._stop = _nothing
        if self._is_granted or self.is_waiting:
            self._is_granted = self.is_waiting = False
            self._frames.end(self)


def _nothing() -> None:
    """Do nothing; replaces `go_on` and `stop` of a session that has ended."""


def bytes_to_read(parser: FrameParser, short_bytes: int, long_bytes: int) -> int:
    """Size of the next read of a socket that holds much. It ends soon behind a large frame: bytes of the next one would
    be held in memory until its turn comes."""
    announced_bytes = parser.announced_bytes
    if announced_bytes <= LARGE_BYTES:
        return long_bytes
    return min(long_bytes, announced_bytes - parser.buffered_bytes + short_bytes)


class LargeFrames:
    """Scheduler of the turns of one server's sessions."""

    def __init__(self, max_bytes: int = MAX_LARGE_BYTES, quick_bytes: int = QUICK_BYTES) -> None:
        self._max_bytes, self._quick_bytes = max_bytes, quick_bytes
        self._turns: dict[LargeFrameTurn, tuple[int, float]] = {}
        """Turns that were granted: announced bytes, and when it was granted (trio's time, s)."""
        self._queue: dict[LargeFrameTurn, int] = {}
        self._check_deadline: Deadline | None = None
        self.deadlines: Deadlines | None = None
        """Deadlines of the server, set before it serves; None: each request is granted at once."""
        self.total_bytes = 0
        """Announced bytes of granted turns."""
        self._slow: set[LargeFrameTurn] = set()
        """Granted turns whose frames have not arrived within SLOW_S."""
        self._slow_bytes = 0

    @property
    def waiting_count(self) -> int:
        return len(self._queue)

    def request(self, turn: LargeFrameTurn, size_bytes: int) -> bool:
        """Ask for a turn to read a frame of `size_bytes`. True if it is granted now; else `turn.grant` is called
        later."""
        if self.deadlines is None or not (self._queue or self._is_full(size_bytes)):
            self._grant(turn, size_bytes)
            return True
        self._queue[turn] = size_bytes
        self._check_soon(self.deadlines)
        return False

    def end(self, turn: LargeFrameTurn) -> None:
        """End a turn or its wait: the frame has been handled, or the session has ended."""
        self._queue.pop(turn, None)
        self._release_grant(turn)
        self._grant_next()

    def _is_full(self, size_bytes: int) -> bool:
        if not self._turns:
            return False
        quick_bytes = self.total_bytes - self._slow_bytes
        return self.total_bytes + size_bytes > self._max_bytes or (
            quick_bytes > 0 and quick_bytes + size_bytes > self._quick_bytes
        )

    def _grant(self, turn: LargeFrameTurn, size_bytes: int) -> None:
        self._turns[turn] = size_bytes, trio.current_time()
        self.total_bytes += size_bytes

    def _release_grant(self, turn: LargeFrameTurn) -> int:
        size_bytes, _ = self._turns.pop(turn, (0, 0.0))
        self.total_bytes -= size_bytes
        if turn in self._slow:
            self._slow.remove(turn)
            self._slow_bytes -= size_bytes
        return size_bytes

    def _grant_next(self) -> None:
        while self._queue:
            turn, size_bytes = next(iter(self._queue.items()))
            if self._is_full(size_bytes):
                break
            del self._queue[turn]
            self._grant(turn, size_bytes)
            turn.grant()

    def _check_soon(self, deadlines: Deadlines) -> None:
        if self._check_deadline is None:
            self._check_deadline = deadlines.add(trio.current_time() + SLOW_S, self._check_turns)

    def _check_turns(self) -> None:
        """Revoke turns older than TURN_S and note those older than SLOW_S, if others wait and the frame is
        incomplete."""
        self._check_deadline = None
        if not self._queue or self.deadlines is None:
            return
        now_s = trio.current_time()
        for turn, (size_bytes, since_s) in list(self._turns.items()):
            if turn.has_arrived:
                continue
            if since_s <= now_s - TURN_S:
                self._queue[turn] = self._release_grant(turn)
                turn.revoke()
            elif since_s <= now_s - SLOW_S and turn not in self._slow:
                self._slow.add(turn)
                self._slow_bytes += size_bytes
        self._grant_next()
        self._check_soon(self.deadlines)
