"""Reads the sockets of a server, all of them in one task, and gives each session its turns. Shell.

A trio task that waits for its own socket costs 60 us for each turn of the event loop in which it reads; a list of what
is ready costs next to nothing. So trio waits for one epoll object only, which knows the sockets; what is ready in it is
served by synchronous calls, for TURN_S and some of them at most, then timers and other tasks come: whatever
clients send, a leading controller keeps its lease, and a master hears its slaves' acks. The others stand in line, which
is fair (`rmqha.host.net.fair_queue`). What must not stand in line either is served first in every turn (`prioritize`),
but has no more than half of it. Whose peer has gone is served last, some in each turn: thousands that leave at once
must not stand before those who stay.

Who sends alone, each request as soon as the last one is answered, is waited for awake, some microseconds: to fall
asleep and be woken costs as much as the request.
"""

from __future__ import annotations

import os
import select
import time
from collections import deque
from collections.abc import Callable

import trio

from rmqha.host.net.fair_queue import FairQueue, Place
from rmqha.model.code import RequestCode

SERVED_COUNT = 64
"""Sessions served in one turn, half of them by each of the two orders."""
ENDED_COUNT = 8
"""Sessions that end in one turn: each has its own task, which closes it in the next."""
TURN_S = 0.005
"""After so long a turn ends with the slice that is being served."""
PUT_OFF_S = 0.002
"""Time (s) of a turn for which work is put off at most, but for the slice that is being served then."""
SLICE_S = 0.002
"""Time (s) that one session may take at a time, but for the request that it is at then."""
SLICE_COUNT = 64
"""Frames that are parsed and handled at a time: as many sends take what SLICE_S allows."""
POPS_TOGETHER = 8
"""Each costs some 200 us: so many take what SLICE_S allows."""
GONE = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
"""Events of a socket whose peer sends no more."""
_C = RequestCode
_SENDS = _C.SEND_MESSAGE, _C.SEND_MESSAGE_V2, _C.SEND_BATCH_MESSAGE, _C.RMQHA_RAFT_MESSAGE
_POPS = _C.POP_MESSAGE, _C.ACK_MESSAGE, _C.BATCH_ACK_MESSAGE
TOGETHER: dict[int, int] = {**dict.fromkeys(_SENDS, SLICE_COUNT), **dict.fromkeys(_POPS, POPS_TOGETHER)}
"""Requests that are cheaper together: those of one kind that follow each other in a slice are handed over in one call,
so many at most."""
SHORT_US = 250
POLL_COUNT = 1024
CHECK_S = 0.05
"""Interval (s) at which all of the line is looked at, as long as there is one: so exact is what is told of the time
spent in it."""
MAX_LINE_COUNT = 32_768
SOON_S = 0.000_2
"""A turn that begins so soon after the last one has come soon."""
SOON_COUNT = 8
"""Turns of one session alone, each of which came soon, until the next one is waited for awake."""
AWAKE_S = 0.000_05
"""Time (s) of a wait awake at most; if nothing comes in it, SOON_COUNT begins anew."""
AWAKE_POLLS = 500
"""Looks of a wait awake at most."""


class Poller:
    """`add` and `remove` may be called at any time, also while what is ready is being served."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._urgent = select.epoll()
        self._epoll.register(self._urgent.fileno(), select.EPOLLIN)
        self._wake = -1
        """File descriptor that ends the wait for sockets when somebody else wants a turn."""
        self._readers: dict[int, Place] = {}
        self._line, self._urgent_line = FairQueue(), FairQueue()
        self._gone = deque[Place]()
        """Places whose peers have gone while they stood in no line, in the order in which that was seen."""
        self._is_parked = False
        """The task waits for sockets."""
        self.is_busy = False
        """Several are served in this turn: what can be done for all together should wait for its end."""
        self._at_end: list[Callable[[], None]] = []
        self._cpu_us = self._short_us = 0.0
        """CPU time (µs) of this thread at the last look in a busy turn, and what short slices have taken since: a slice
        that the system has interrupted for another process was no longer for that. The look itself takes a microsecond
        or two, so short slices go without."""
        self._ended_count = 0
        """Number in this turn."""
        self.waited_ms = 0
        """Time (ms) for which the session that is being served has stood in line."""
        self._checked_at_s = self._turn_ends_s = 0.0
        self._is_serving = False
        self._is_oldest_due = False
        """The last turn was over before the order of age came: in this one only short slices stand before it."""
        self._lone: Place | None = None
        """The only one that was served in the last turn."""
        self._lone_ended_s = 0.0
        """The time when that turn ended."""
        self._soon_count = 0
        """Turns of it in a row that came soon."""

    @property
    def is_turn_over(self) -> bool:
        """The turn has taken all its time: what can stand in line should."""
        return time.monotonic() >= self._turn_ends_s

    def add(self, handle: int, place: Place) -> None:
        """Serve `place` whenever the socket is readable, at its end or broken, until `remove`."""
        self._readers[handle] = place
        if place.is_urgent:
            self._urgent.register(handle, select.EPOLLIN)
        else:
            self._epoll.register(handle, select.EPOLLIN | select.EPOLLRDHUP)

    def remove(self, handle: int) -> None:
        """Before the socket is closed. Nothing happens if it is not there."""
        place = self._readers.pop(handle, None)
        if place is not None:
            place.is_waiting = False
            (self._urgent if place.is_urgent else self._epoll).unregister(handle)
        if place is self._lone:
            self._lone = None

    def end(self, handle: int) -> None:
        """Remove it in its turn: its peer has gone, or is to go."""
        self._ended_count += 1
        self.remove(handle)

    def prioritize(self, handle: int) -> None:
        """This one stands in line no more, but with its like."""
        place = self._readers.get(handle)
        if place is not None and not place.is_urgent:
            self._epoll.unregister(handle)
            self._urgent.register(handle, select.EPOLLIN)
            place.is_urgent = True

    def stand_in_line(self, place: Place) -> None:
        """Serve it when its turn comes, never in this call."""
        if not place.is_waiting:
            place.came_at_s = time.monotonic()
            self._join(self._urgent_line if place.is_urgent else self._line, place)

    def charge_more(self, place: Place, cost_us: float, request_count: int) -> None:
        """The slice that was served last for `place` has taken so much more, for so many requests."""
        (self._urgent_line if place.is_urgent else self._line).charge_more(place, cost_us, request_count)

    def at_end(self, work: Callable[[], None], *, alone: bool = False) -> bool:
        """Do `work` when this turn has served its last session, or before a long slice of one that puts nothing off;
        False, and nothing is done, unless several are served in it, or one `alone`."""
        if self.is_busy or (alone and self._is_serving):
            self._at_end.append(work)
            return True
        return False

    def _join(self, line: FairQueue, place: Place) -> None:
        line.join(place)
        if self._is_parked:
            self._is_parked = False
            os.eventfd_write(self._wake, 1)

    async def run(self) -> None:
        """Serve, until cancelled; what `serve` raises, for which a session is not enough, ends it. Once only."""
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        with self._epoll, self._urgent:
            try:
                self._epoll.register(self._wake, select.EPOLLIN)
                while True:
                    if self._line or self._urgent_line or self._gone:
                        await trio.lowlevel.checkpoint()
                    elif not await self._comes_soon():
                        self._is_parked = True
                        await trio.lowlevel.wait_readable(self._epoll.fileno())
                        self._is_parked = False
                    self._turn()
            finally:
                self._readers.clear()
                self._gone.clear()
                os.close(self._wake)

    async def _comes_soon(self) -> bool:
        """True if somebody is to be served without a sleep before."""
        if self._soon_count < SOON_COUNT:
            return False
        await trio.lowlevel.checkpoint()  # whoever else has something to do goes first
        if self._line or self._urgent_line or self._gone:
            return True
        poll, until_s = self._epoll.poll, time.monotonic() + AWAKE_S
        for _ in range(AWAKE_POLLS):
            if poll(0, 1):
                return True
            if time.monotonic() >= until_s:
                break
        self._soon_count = 0
        return False

    def _turn(self) -> None:
        began_s = time.monotonic()
        self._turn_ends_s = began_s + TURN_S
        self._ended_count = 0
        self._is_serving = True
        lone = self._gather(began_s)
        if lone is None:
            self._serve_line(began_s)
        else:
            more, _ = self._serve(self._line, lone, began_s)
            if more:
                self._line.join(lone)
        self._is_serving = self.is_busy = False
        if self._at_end:
            self._do_put_off()
        if self._gone:
            self._serve_gone()
        if lone is not None:
            came_soon = lone is self._lone and began_s - self._lone_ended_s < SOON_S
            self._soon_count = self._soon_count + 1 if came_soon else 0
            self._lone_ended_s = time.monotonic()
        self._lone = lone

    def _serve_line(self, began_s: float) -> None:
        line, urgent_line, now_s = self._line, self._urgent_line, began_s
        self.is_busy = len(line) + len(urgent_line) > 1
        if self.is_busy:
            self._cpu_us, self._short_us = time.thread_time_ns() / 1000, 0.0
        if urgent_line:
            now_s = self._serve_some(urgent_line.least, urgent_line, now_s, now_s + TURN_S / 2)
        is_oldest_due, self._is_oldest_due = self._is_oldest_due, False
        if line:
            next_one = line.short if is_oldest_due else line.least
            now_s = self._serve_some(next_one, line, now_s, (now_s + began_s + TURN_S) / 2)
        if line and (is_oldest_due or now_s < self._turn_ends_s - SLICE_S):
            self._serve_some(line.oldest, line, now_s, self._turn_ends_s)
        elif line:
            # slices as long as a turn: with one of each order nobody else would have a turn of the event loop for long
            self._is_oldest_due = True

    def _serve_gone(self) -> None:
        """Serve some of those whose peers have gone, for a slice."""
        began_s = now_s = time.monotonic()
        for _ in range(min(len(self._gone), ENDED_COUNT)):
            place = self._gone.popleft()
            if not place.is_waiting:
                continue
            place.is_waiting = False
            more, now_s = self._serve(self._line, place, now_s)
            if more:
                place.is_waiting = True
                self._gone.append(place)
            if now_s >= began_s + SLICE_S:
                break

    def _do_put_off(self) -> None:
        works, self._at_end = self._at_end, []
        for work in works:
            work()

    def _do_put_off_early(self) -> float:
        """Do it within the turn; the time when it ends."""
        self._is_serving = self.is_busy = False
        self._do_put_off()
        self._is_serving = self.is_busy = True
        self._cpu_us, self._short_us = time.thread_time_ns() / 1000, 0.0
        return time.monotonic()

    def _gather(self, now_s: float) -> Place | None:
        """Put into line who is ready. One that would be alone there is returned instead."""
        readers, line, count = self._readers, self._line, POLL_COUNT
        if line and now_s >= self._checked_at_s + CHECK_S:
            self._checked_at_s, count = now_s, MAX_LINE_COUNT
        ready = self._epoll.poll(0, count)
        if len(ready) == 1 and not (line or self._urgent_line or self._gone) and ready[0][0] in readers:
            lone = readers[ready[0][0]]
            lone.came_at_s = now_s
            line.pass_by(lone)
            return lone
        for handle, events in ready:
            place = readers.get(handle)
            if place is not None:
                if not events & GONE:
                    _join(line, place, now_s)
                elif not place.is_waiting:
                    place.came_at_s, place.is_waiting = now_s, True
                    self._gone.append(place)
            elif handle == self._wake:
                os.eventfd_read(handle)
            else:
                for urgent, _ in self._urgent.poll(0, POLL_COUNT):
                    place = readers.get(urgent)
                    if place is not None:
                        _join(self._urgent_line, place, now_s)
        return None

    def _serve_some(self, next_one: Callable[[], Place | None], line: FairQueue, now_s: float, end_s: float) -> float:
        """The time when it ends."""
        put_off_until_s = self._turn_ends_s - TURN_S + PUT_OFF_S
        for _ in range(SERVED_COUNT // 2):
            place = next_one()
            if place is None:
                break
            if self._at_end and (place.is_long or now_s >= put_off_until_s):
                now_s = self._do_put_off_early()
            more, now_s = self._serve(line, place, now_s)
            if more:
                line.join(place)
            if now_s >= end_s or self._ended_count >= ENDED_COUNT:
                break
        return now_s

    def _serve(self, line: FairQueue, place: Place, now_s: float) -> tuple[bool, float]:
        """True if it wants more, and the time when it ends."""
        self.waited_ms = int((now_s - place.came_at_s) * 1000)
        more = bool(place.serve())
        ended_s = time.monotonic()
        cost_us = (ended_s - now_s) * 1e6
        if not self.is_busy:
            line.charge(place, cost_us)
        elif cost_us < SHORT_US:
            self._short_us += cost_us
            line.charge(place, cost_us)
        else:
            cpu_us = time.thread_time_ns() / 1000
            line.charge(place, max(0.0, cpu_us - self._cpu_us - self._short_us))
            self._cpu_us, self._short_us = cpu_us, 0.0
        return more, ended_s


def _join(line: FairQueue, place: Place, now_s: float) -> None:
    if not place.is_waiting:
        place.came_at_s = now_s
        line.join(place)
