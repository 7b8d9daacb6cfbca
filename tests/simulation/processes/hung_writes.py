"""A disk that hangs within a change of the log: what a thread of the host would do, one change of the disk at a time.

The work runs in a thread of its own that goes on only while the simulation waits for it, so that nothing is left to
chance: up to a change of the disk that the seed draws, and from there when the disk goes on. A process that dies
meanwhile leaves the log as it is between the two changes."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import PurePath
from types import FrameType
from typing import cast

from rmqha.sim.disk import DiskStopped
from rmqha.sim.prng import SimPrng
from tests.simulation.history import InvariantError

MOST_CHANGES = 16
"""Of a disk, before it hangs: a cut of some queues makes twice as many."""
MOST_EXTRA_MS = 200
_MACHINE = ("replica.py", "client.py")
_BESIDE = ("append_raw", "_unclean_election")
"""A file of the log is made ahead by a thread, and an operator's word is waited for by nobody else."""


class _Thread:
    def __init__(self, work: Callable[[], None]) -> None:
        self.has_ended = self.is_stopped = False
        self.error: BaseException | None = None
        self._work = work
        self._goes, self._waits = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def go_on(self) -> None:
        """Return when it stands again, or has ended."""
        self._goes.release()
        self._waits.acquire()
        if self.has_ended:
            self._thread.join()

    def stand(self) -> None:
        """Called within the work."""
        self._waits.release()
        self._goes.acquire()
        if self.is_stopped:
            raise DiskStopped

    def _run(self) -> None:
        self._goes.acquire()
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001  (raised again where the simulation goes on)
            self.error = error
        self.has_ended = True
        self._waits.release()


class LoopLock:
    """A lock of the store. Whoever waits for it while a change of the log stands holds the event loop."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._is_held = False

    def __enter__(self) -> None:
        if self._is_held:
            raise InvariantError(f"{self._host}: the event loop waits for a lock, and that for a disk that hangs")
        self._is_held = True

    def __exit__(self, *ended: object) -> None:
        self._is_held = False


class HungWrites:
    """The `LogWriter` of a process. `later` calls what it is given after so many ms, in this life of the process."""

    def __init__(
        self,
        host: str,
        draws: SimPrng,
        later: Callable[[int, Callable[[], None]], object],
        written: Callable[[BaseException | None], None],
    ) -> None:
        self._host = host
        self._draws = draws
        self._later = later
        self._written = written
        self._thread: _Thread | None = None
        self._is_inside = False
        self._left_count = 0
        self.left_ms: Callable[[], int] = lambda: 0
        """How long the disk hangs yet, 0 while it does not."""
        self.hung_count = 0

    @property
    def is_under_way(self) -> bool:
        return self._thread is not None

    def write(self, work: Callable[[], None]) -> bool:
        if not self.left_ms():
            work()
            return True
        self._left_count = self._draws.below(MOST_CHANGES)
        self._thread = _Thread(work)
        self._go_on(self._thread)
        if self._thread.has_ended:
            self._end()
            return True
        self.hung_count += 1
        self._later(self.left_ms() + self._draws.below(MOST_EXTRA_MS), self._resume)
        return False

    def _go_on(self, thread: _Thread) -> None:
        self._is_inside = True
        thread.go_on()
        self._is_inside = False

    def _resume(self) -> None:
        assert self._thread is not None
        self._left_count = -1
        self._go_on(self._thread)
        try:
            self._end()
        except (DiskStopped, InvariantError):
            raise
        except Exception as error:  # noqa: BLE001  (the broker ends with it)
            self._written(error)
        else:
            self._written(None)

    def _end(self) -> None:
        thread, self._thread = self._thread, None
        assert thread is not None and thread.has_ended
        if thread.error is not None:
            raise thread.error

    def at_change(self) -> None:
        """The disk is about to be changed while it hangs."""
        if self._is_inside:
            if self._left_count == 0:
                assert self._thread is not None
                self._thread.stand()
            self._left_count -= 1
        elif self.left_ms() and (place := _machine_above()):
            raise InvariantError(f"{self._host}: the event loop waits for a disk that hangs, in {place}")

    def abandon(self) -> None:
        """The process is dead: nothing more happens to its disk."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.is_stopped = True
            thread.go_on()


def _machine_above() -> str:
    """The replica's machine, if it is that which changes the disk, and "" else."""
    place, frame = "", cast(FrameType | None, sys._getframe(1))
    while frame is not None:
        code = frame.f_code
        if code.co_name in _BESIDE:
            return ""
        path = PurePath(code.co_filename)
        if path.name in _MACHINE and "ha" in path.parts and not place:
            place = f"{path.name} {code.co_name}"
        frame = frame.f_back
    return place
