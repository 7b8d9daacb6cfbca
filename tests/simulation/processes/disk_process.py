"""A simulated process with a disk: it may stop between any two changes of it, in the midst of a handler."""

from __future__ import annotations

from collections.abc import Callable

from rmqha.sim.disk import DiskStopped, SimDisk
from tests.simulation.processes.process import Process


class DiskProcess(Process):
    disk: SimDisk
    has_bad_disk = False
    """It may end with an error of its disk, or find one that keeps it from starting."""
    is_restored = False
    """Its disk is one of before, and the controllers need not know that yet."""
    _on_stop: Callable[[], None] | None = None

    def stop_within(self, change_count: int, strike: Callable[[], None]) -> None:
        """At that change of its disk, counted from now, nothing more happens in this life: `strike` kills it."""
        self.disk.stop_after = self.disk.operations + change_count
        self._on_stop = strike

    def stop_no_more(self) -> None:
        self.disk.stop_after = self._on_stop = None

    def post(self, life: int, work: Callable[[], None]) -> None:
        try:
            super().post(life, work)
        except DiskStopped:
            self.disk_stopped()

    def shielded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except DiskStopped:
            self.disk_stopped()

    def disk_stopped(self) -> None:
        strike, self._on_stop = self._on_stop, None
        assert strike is not None, f"the disk of {self.host} stops, and nobody asked for it"
        strike()
        assert not self.alive, f"{self.host} goes on in the midst of a change"
