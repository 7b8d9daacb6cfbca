"""The scheduler of a server's sessions: one task reads all sockets and gives each session slices of time. Shell.

A trio task that waits for its own socket costs 60 us for each turn of the event loop in which it reads; a poll for all
of them costs next to nothing. So trio waits for one epoll object, in which all sockets are registered. The sessions of
readable sockets are served by synchronous calls for TURN_S at most. Then timers and other tasks run: whatever clients
send, a leading controller keeps its lease, and a master hears its slaves' acks.

- Sessions that were not served wait in a fair queue (`rmqha.host.net.fair_queue`).
- Urgent sessions (`prioritize`), such as those of other servers, have a queue of their own, which is served first and
  takes half of a turn at most.
- Sessions whose peers have disconnected are served last, a few in each turn: when thousands leave at once, those that
  stay do not wait for them.
- A single session that sends each request as soon as the last one is answered is waited for by busy polling, for some
  microseconds: to sleep and be woken costs as much as the request.
"""

from __future__ import annotations

import os
import select
import time
from collections import deque
from collections.abc import Callable

import trio

from rmqha.host.net.fair_queue import FairQueue, QueueEntry
from rmqha.model.code import RequestCode

MAX_SERVED_COUNT = 64
"""Sessions served in one turn, half of them by each of the two orders."""
MAX_ENDED_COUNT = 8
"""Sessions that end in one turn: each has its own task, which closes it in the next."""
TURN_S = 0.005
"""Time (s) after which a turn ends, with the slice that is being served."""
MAX_DEFER_S = 0.002
"""Time (s) from a turn's begin after which deferred work is done (`Poller.at_turn_end`), once the slice that is being
served ends."""
SLICE_S = 0.002
"""Time (s) after which a session's slice ends, with the request that is being handled, while few sessions wait."""
MIN_SLICE_S = 0.000_25
"""Least value of that time (s), however many wait: to begin a slice costs some 50 us."""
ROUND_S = 0.03
"""Time (s) in which each of the sessions that wait should have a slice: the more there are, the shorter are slices."""
SLICE_COUNT = 64
"""Frames that are parsed and handled at a time: as many sends take what SLICE_S allows."""
POP_BATCH_COUNT = 8
"""Pops and their acknowledgements handled in one call. Each costs some 200 us: as many take what SLICE_S allows."""
EPOLLRDHUP: int = getattr(select, "EPOLLRDHUP", 0x2000)
"""Linux's bit for a peer that sends no more. PyPy, which runs simulations, does not name it."""
DISCONNECT_EVENTS = EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
"""Events of epoll for a socket whose peer sends no more."""
_C = RequestCode
_SENDS = _C.SEND_MESSAGE, _C.SEND_MESSAGE_V2, _C.SEND_BATCH_MESSAGE, _C.RMQHA_RAFT_MESSAGE
_POPS = _C.POP_MESSAGE, _C.ACK_MESSAGE, _C.BATCH_ACK_MESSAGE
BATCH_COUNTS: dict[int, int] = {**dict.fromkeys(_SENDS, SLICE_COUNT), **dict.fromkeys(_POPS, POP_BATCH_COUNT)}
"""Most requests handled in one call, by request code. Requests of these codes are cheaper in a batch: those of one kind
that follow each other in a slice are handed over together. Requests of other codes are handed over one by one."""
SHORT_SLICE_US = 250
"""Slices shorter than this (µs) are charged by the monotonic clock, longer ones by the thread's CPU time."""
MAX_POLL_EVENTS = 1024
"""Sockets that one poll reports at most."""
FULL_POLL_INTERVAL_S = 0.05
"""Interval (s) of polls for FULL_POLL_EVENTS while sessions wait. The time that a session has waited is exact to
this."""
FULL_POLL_EVENTS = 32_768
QUICK_TURN_S = 0.000_2
"""A turn is quick if it begins within this time (s) after the end of the last one."""
QUICK_TURN_COUNT = 8
"""Quick turns in a row of the same single session after which the poller waits for the next one by busy polling."""
BUSY_POLL_S = 0.000_05
"""Longest time (s) of busy polling. If nothing comes in it, the count of quick turns begins at 0."""
MAX_BUSY_POLLS = 500


class Poller:
    """Scheduler of the sessions of one server. `add` and `remove` may be called at any time, also during a turn."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._urgent = select.epoll()
        self._epoll.register(self._urgent.fileno(), select.EPOLLIN)
        self._wake = -1
        """File descriptor (eventfd) that ends the wait for sockets when a session is queued by a call."""
        self._entries: dict[int, QueueEntry] = {}
        self._queue, self._urgent_queue = FairQueue(), FairQueue()
        self._disconnected = deque[QueueEntry]()
        """Sessions whose peers have disconnected while they were in no queue, in the order in which that was seen."""
        self._is_parked = False
        """True while the task waits for sockets."""
        self.is_busy = False
        """True while a turn serves several sessions: work that can be done for all at once should wait for its end."""
        self._deferred: list[Callable[[], None]] = []
        self._measured_cpu_us = self._short_slices_us = 0.0
        """CPU time (µs) of this thread when it was last read in a busy turn, and the time (µs) of short slices since. A
        slice is not charged for the time in which the system ran another process. Reading the CPU time takes a
        microsecond or two, so short slices are measured by the clock."""
        self._ended_count = 0
        """Number of sessions that have ended in this turn."""
        self.slice_s = SLICE_S
        """Time (s) after which a slice of this turn ends, with the request that is being handled."""
        self.waited_ms = 0
        """Time (ms) for which the session that is being served has been queued."""
        self._full_polled_at_s = self._turn_ends_s = 0.0
        self._is_serving = False
        self._is_oldest_due = False
        """True if the last turn ended before the oldest session was served: in this one only short slices precede
        it."""
        self._sole_entry: QueueEntry | None = None
        """Session of the last turn if that served only one."""
        self._sole_ended_at_s = 0.0
        """Monotonic time (s) when that turn ended."""
        self._quick_turn_count = 0
        """Number of its quick turns in a row."""

    @property
    def is_turn_over(self) -> bool:
        """True if the turn has taken TURN_S: what can be queued should be."""
        return time.monotonic() >= self._turn_ends_s

    def add(self, handle: int, entry: QueueEntry) -> None:
        """Serve `entry` whenever the socket is readable, closed by its peer or broken, until `remove`."""
        self._entries[handle] = entry
        if entry.is_urgent:
            self._urgent.register(handle, select.EPOLLIN)
        else:
            self._epoll.register(handle, select.EPOLLIN | EPOLLRDHUP)

    def remove(self, handle: int) -> None:
        """Serve the socket's session no more; called before the socket is closed. Nothing happens if it is not
        there."""
        entry = self._entries.pop(handle, None)
        if entry is not None:
            entry.is_queued = False
            (self._urgent if entry.is_urgent else self._epoll).unregister(handle)
        if entry is self._sole_entry:
            self._sole_entry = None

    def end(self, handle: int) -> None:
        """Remove the socket of the session that is being served, which ends with this slice."""
        self._ended_count += 1
        self.remove(handle)

    def prioritize(self, handle: int) -> None:
        """Move the socket's session to the urgent queue."""
        entry = self._entries.get(handle)
        if entry is not None and not entry.is_urgent:
            self._epoll.unregister(handle)
            self._urgent.register(handle, select.EPOLLIN)
            entry.is_urgent = True

    def enqueue(self, entry: QueueEntry) -> None:
        """Queue a session that has more to do without having to read; it is never served in this call."""
        if not entry.is_queued:
            entry.queued_at_s = time.monotonic()
            self._push(self._urgent_queue if entry.is_urgent else self._queue, entry)

    @property
    def has_waiting(self) -> bool:
        """True if sessions wait to be served: the costs of those served now decide which are next."""
        return bool(self._queue or self._urgent_queue)

    def charge_deferred(self, entry: QueueEntry, cost_us: float, request_count: int) -> None:
        """Add the cost (µs) of deferred requests, `request_count` of them, to the last slice of `entry`."""
        (self._urgent_queue if entry.is_urgent else self._queue).charge_deferred(entry, cost_us, request_count)

    def at_turn_end(self, work: Callable[[], None], *, alone: bool = False) -> bool:
        """Defer `work` until this turn has served its last session, or until before a long slice of a session that
        defers nothing. False, and `work` is not deferred, unless the turn serves several sessions, or one and `alone`
        is set."""
        if self.is_busy or (alone and self._is_serving):
            self._deferred.append(work)
            return True
        return False

    def _push(self, queue: FairQueue, entry: QueueEntry) -> None:
        queue.push(entry)
        if self._is_parked:
            self._is_parked = False
            os.eventfd_write(self._wake, 1)

    async def run(self) -> None:
        """Serve until cancelled; called once. An exception of an entry's `serve` ends it."""
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        with self._epoll, self._urgent:
            try:
                self._epoll.register(self._wake, select.EPOLLIN)
                while True:
                    if self._queue or self._urgent_queue or self._disconnected:
                        await trio.lowlevel.checkpoint()
                    elif not await self._busy_poll():
                        self._is_parked = True
                        await trio.lowlevel.wait_readable(self._epoll.fileno())
                        self._is_parked = False
                    self._turn()
            finally:
                self._entries.clear()
                self._disconnected.clear()
                os.close(self._wake)

    async def _busy_poll(self) -> bool:
        """Poll for some microseconds, if turns have been quick; True if there is a session to serve."""
        if self._quick_turn_count < QUICK_TURN_COUNT:
            return False
        await trio.lowlevel.checkpoint()  # other tasks that can run go first
        if self._queue or self._urgent_queue or self._disconnected:
            return True
        poll, until_s = self._epoll.poll, time.monotonic() + BUSY_POLL_S
        for _ in range(MAX_BUSY_POLLS):
            if poll(0, 1):
                return True
            if time.monotonic() >= until_s:
                break
        self._quick_turn_count = 0
        return False

    def _turn(self) -> None:
        began_s = time.monotonic()
        self._turn_ends_s = began_s + TURN_S
        self._ended_count = 0
        self._is_serving = True
        sole_entry = self._poll_sockets(began_s)
        if sole_entry is None:
            self._serve_queues(began_s)
        else:
            self.slice_s = SLICE_S
            more, _ = self._serve(self._queue, sole_entry, began_s)
            if more:
                self._queue.push(sole_entry)
        self._is_serving = self.is_busy = False
        if self._deferred:
            self._run_deferred()
        if self._disconnected:
            self._serve_disconnected()
        if sole_entry is not None:
            is_quick = sole_entry is self._sole_entry and began_s - self._sole_ended_at_s < QUICK_TURN_S
            self._quick_turn_count = self._quick_turn_count + 1 if is_quick else 0
            self._sole_ended_at_s = time.monotonic()
        self._sole_entry = sole_entry

    def _serve_queues(self, began_s: float) -> None:
        queue, urgent_queue, now_s = self._queue, self._urgent_queue, began_s
        self.slice_s = min(SLICE_S, max(MIN_SLICE_S, ROUND_S / (len(queue) + 1)))
        self.is_busy = len(queue) + len(urgent_queue) > 1
        if self.is_busy:
            self._measured_cpu_us, self._short_slices_us = time.thread_time_ns() / 1000, 0.0
        if urgent_queue:
            now_s = self._serve_some(urgent_queue.pop_fairest, urgent_queue, now_s, now_s + TURN_S / 2)
        is_oldest_due, self._is_oldest_due = self._is_oldest_due, False
        if queue:
            pop_next = queue.pop_fairest_if_short if is_oldest_due else queue.pop_fairest
            now_s = self._serve_some(pop_next, queue, now_s, (now_s + began_s + TURN_S) / 2)
        if queue and (is_oldest_due or now_s < self._turn_ends_s - SLICE_S):
            self._serve_some(queue.pop_oldest, queue, now_s, self._turn_ends_s)
        elif queue:
            # slices as long as a turn: with one of each order other tasks of the event loop would wait for long
            self._is_oldest_due = True

    def _serve_disconnected(self) -> None:
        """Serve some sessions whose peers have disconnected, for SLICE_S."""
        began_s = now_s = time.monotonic()
        for _ in range(min(len(self._disconnected), MAX_ENDED_COUNT)):
            entry = self._disconnected.popleft()
            if not entry.is_queued:
                continue
            entry.is_queued = False
            more, now_s = self._serve(self._urgent_queue if entry.is_urgent else self._queue, entry, now_s)
            if more:
                entry.is_queued = True
                self._disconnected.append(entry)
            if now_s >= began_s + SLICE_S:
                break

    def _run_deferred(self) -> None:
        works, self._deferred = self._deferred, []
        for work in works:
            work()

    def _run_deferred_early(self) -> float:
        """Run deferred work within the turn; returns the time (s) when it ends."""
        self._is_serving = self.is_busy = False
        self._run_deferred()
        self._is_serving = self.is_busy = True
        self._measured_cpu_us, self._short_slices_us = time.thread_time_ns() / 1000, 0.0
        return time.monotonic()

    def _poll_sockets(self, now_s: float) -> QueueEntry | None:
        """Queue the sessions of readable sockets. If there is only one, and nothing is queued, it is returned
        instead."""
        entries, queue, count = self._entries, self._queue, MAX_POLL_EVENTS
        if (queue or self._disconnected) and now_s >= self._full_polled_at_s + FULL_POLL_INTERVAL_S:
            self._full_polled_at_s, count = now_s, FULL_POLL_EVENTS
        ready = self._epoll.poll(0, count)
        if len(ready) == 1 and not (queue or self._urgent_queue or self._disconnected) and ready[0][0] in entries:
            sole_entry = entries[ready[0][0]]
            sole_entry.queued_at_s = now_s
            queue.bypass(sole_entry)
            return sole_entry
        for handle, events in ready:
            entry = entries.get(handle)
            if entry is not None:
                if not events & DISCONNECT_EVENTS:
                    _push(queue, entry, now_s)
                elif not entry.is_queued:
                    entry.queued_at_s, entry.is_queued = now_s, True
                    self._disconnected.append(entry)
            elif handle == self._wake:
                os.eventfd_read(handle)
            else:
                for urgent_handle, _ in self._urgent.poll(0, MAX_POLL_EVENTS):
                    entry = entries.get(urgent_handle)
                    if entry is not None:
                        _push(self._urgent_queue, entry, now_s)
        return None

    def _serve_some(
        self, pop_next: Callable[[], QueueEntry | None], queue: FairQueue, now_s: float, end_s: float
    ) -> float:
        """Serve sessions from `pop_next` until `end_s`; returns the time (s) when it ends."""
        defer_until_s = self._turn_ends_s - TURN_S + MAX_DEFER_S
        for _ in range(MAX_SERVED_COUNT // 2):
            entry = pop_next()
            if entry is None:
                break
            if self._deferred and (entry.is_long or now_s >= defer_until_s):
                now_s = self._run_deferred_early()
            more, now_s = self._serve(queue, entry, now_s)
            if more:
                queue.push(entry)
            if now_s >= end_s or self._ended_count >= MAX_ENDED_COUNT:
                break
        return now_s

    def _serve(self, queue: FairQueue, entry: QueueEntry, now_s: float) -> tuple[bool, float]:
        """Serve one slice and charge it; returns True if there is more, and the time (s) when it ends."""
        self.waited_ms = int((now_s - entry.queued_at_s) * 1000)
        more = bool(entry.serve())
        ended_s = time.monotonic()
        cost_us = (ended_s - now_s) * 1e6
        if not self.is_busy:
            queue.charge(entry, cost_us)
        elif cost_us < SHORT_SLICE_US:
            self._short_slices_us += cost_us
            queue.charge(entry, cost_us)
        else:
            cpu_us = time.thread_time_ns() / 1000
            queue.charge(entry, max(0.0, cpu_us - self._measured_cpu_us - self._short_slices_us))
            self._measured_cpu_us, self._short_slices_us = cpu_us, 0.0
        return more, ended_s


def _push(queue: FairQueue, entry: QueueEntry, now_s: float) -> None:
    if not entry.is_queued:
        entry.queued_at_s = now_s
        queue.push(entry)
