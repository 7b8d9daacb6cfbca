"""Reads the plain sockets of a server, all of them in one task. Shell.

A trio task that waits for its own socket costs 60 us for each turn of the event loop in which it reads; a list of what
is ready costs next to nothing. So trio waits for one epoll object only, which knows the sockets; what is ready in it is
read by synchronous calls, SERVED_COUNT of them in a turn. The others stand in line, the oldest first, and timers and
other tasks come in between: when thousands of connections have something to say at once, a leading controller still
keeps its lease. What must not stand in line either is served first in every turn (`hurry`).
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable

import trio

SERVED_COUNT = 64
"""Sockets read in one turn: at 0.1 to 0.3 ms for a request some 10 ms."""
LOOK_S = 0.05
"""How often the line is looked at, as long as there is one: so exact is what is told of the time spent in it."""
MAX_LINE_COUNT = 32_768


class Poller:
    """`add` and `remove` may be called at any time, also while what is ready is being served."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._urgent = select.epoll()
        self._epoll.register(self._urgent.fileno(), select.EPOLLIN)
        self._readers: dict[int, Callable[[], None]] = {}
        self._hurried: set[int] = set()
        self.is_busy = False
        """Several are served in this turn: what can be done for all together should wait for its end."""
        self.waited_ms = 0
        """How long the socket that is being read has stood in line."""
        self._came_at_s: dict[int, float] = {}
        """When each of those in line was first seen there."""
        self._looked_at_s = 0.0

    def add(self, handle: int, read: Callable[[], None]) -> None:
        """Call `read` whenever the socket is readable, at its end or broken, until `remove`."""
        self._readers[handle] = read
        self._epoll.register(handle, select.EPOLLIN)

    def remove(self, handle: int) -> None:
        """Before the socket is closed. Nothing happens if it is not there."""
        if self._readers.pop(handle, None) is None:
            return
        self._came_at_s.pop(handle, None)
        if handle in self._hurried:
            self._hurried.remove(handle)
            self._urgent.unregister(handle)
        else:
            self._epoll.unregister(handle)

    def hurry(self, handle: int) -> None:
        """This one never stands in line again."""
        if handle in self._readers and handle not in self._hurried:
            self._epoll.unregister(handle)
            self._urgent.register(handle, select.EPOLLIN)
            self._hurried.add(handle)

    async def run(self) -> None:
        """Serve, until cancelled; what `read` raises ends it. Once only."""
        readers, urgent = self._readers, self._urgent.fileno()
        with self._epoll, self._urgent:
            while True:
                await trio.lowlevel.wait_readable(self._epoll.fileno())
                ready = [handle for handle, _ in self._urgent.poll(0)]
                first = self._epoll.poll(0, SERVED_COUNT)
                ready += [handle for handle, _ in first if handle != urgent]
                if len(first) == SERVED_COUNT:
                    self._look_at_line()
                elif self._came_at_s:
                    self._came_at_s.clear()
                self.is_busy = len(ready) > 1
                for handle in ready:
                    read = readers.get(handle)
                    if read is not None:
                        self.waited_ms = self._left_line(handle) if self._came_at_s else 0
                        read()
                self.is_busy = False

    def _look_at_line(self) -> None:
        now_s = time.monotonic()
        if now_s >= self._looked_at_s + LOOK_S:
            self._looked_at_s = now_s
            for handle, _ in self._epoll.poll(0, MAX_LINE_COUNT):
                self._came_at_s.setdefault(handle, now_s)

    def _left_line(self, handle: int) -> int:
        """How long it has been there, ms."""
        came_at_s = self._came_at_s.pop(handle, None)
        return 0 if came_at_s is None else int((time.monotonic() - came_at_s) * 1000)
