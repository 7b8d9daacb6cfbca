"""The end of the last run: clean, by a kill, or by a loss of power (ruling 3). Control plane.

`abort` is RocketMQ's file: it exists while a broker runs. Our sidecar adds the kernel's boot id, which tells a killed
process (the page cache lives on) from a lost machine (it does not).
"""

from __future__ import annotations

from enum import IntEnum

from rmqha.port import Disk
from rmqha.store.meta import sidecar
from rmqha.store.meta.problem import disk_errors

ABORT_PATH = "abort"
PATH = "rmqha.boot"


class LastStop(IntEnum):
    CLEAN = 0
    KILLED = 1
    POWER_LOST = 2

    @property
    def text(self) -> str:
        return ("a clean stop", "a killed process", "a loss of power or a reboot")[self]


class BootFile:
    """The files that tell how the last run ended. `unclean` is the flag of ruling 3; it stays over restarts until
    `set_unclean(False)`."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._boot_id = ""
        self._recorded_id = ""
        self.unclean = False
        self.failed = False
        """A sync has failed, and what it was to make durable has not been written again since."""
        self.last_stop = LastStop.CLEAN

    def load(self) -> list[str]:
        """Judge the last stop. Returns one sentence per finding."""
        lines: list[str] = []
        known = ""
        try:
            fields = sidecar.read(self._disk, PATH) or {"boot_id": "", "unclean": False}
            match fields:
                case {"boot_id": str(known), "unclean": bool(unclean)}:
                    self.unclean, self.failed = unclean, fields.get("failed") is True
                case _:
                    raise sidecar.BadSidecarError(f"expected boot_id and unclean, found {sorted(map(str, fields))}")
        except sidecar.BadSidecarError as error:
            lines.append(f"{PATH}: {error}; the last stop counts as a loss of power.")
            self.unclean, known = True, ""
        with disk_errors(self._disk, PATH, "read the kernel's boot id"):
            self._boot_id = self._disk.boot_id()
        with disk_errors(self._disk, ABORT_PATH, "look for the file"):
            running = self._disk.exists(ABORT_PATH)
        if running or lines:
            is_same_boot = bool(known) and known == self._boot_id
            self.last_stop = LastStop.KILLED if is_same_boot else LastStop.POWER_LOST
        if self.last_stop is LastStop.POWER_LOST:
            self.unclean = True
            lines.append(
                "Power was lost or the machine restarted while this replica ran: it counts as unclean."
                if known and self._boot_id
                else "This replica did not stop cleanly and no boot id tells how: it counts as unclean."
            )
        # after a loss of power the old id stays until `recovered`, so that a second crash repeats the whole check
        self._recorded_id = known if self.last_stop is LastStop.POWER_LOST else self._boot_id
        return lines

    def running(self, process_id: int) -> None:
        """Note that the broker runs, before anything is changed: from now on a crash is seen."""
        self._write()
        with disk_errors(self._disk, ABORT_PATH, "write the file"):
            self._disk.write_atomic(ABORT_PATH, str(process_id).encode())

    def recovered(self) -> None:
        """Note that the checks after a loss of power or a failed sync are done, and their outcome is durable."""
        if self._recorded_id != self._boot_id or self.failed:
            self._recorded_id, self.failed = self._boot_id, False
            self._write()

    def set_failed(self) -> None:
        """Note that a sync has failed, which makes the store unclean too. Durable on return."""
        if not self.failed:
            self.failed = self.unclean = True
            self._write()

    def set_unclean(self, unclean: bool) -> None:
        """Set or clear `unclean`. Durable on return."""
        if unclean != self.unclean:
            self.unclean = unclean
            self._write()

    def stopped(self) -> None:
        """Note that everything is durable: the next start is a clean one."""
        with disk_errors(self._disk, ABORT_PATH, "remove the file"):
            self._disk.remove(ABORT_PATH)

    def _write(self) -> None:
        fields = {"boot_id": self._recorded_id, "unclean": self.unclean}
        sidecar.write(self._disk, PATH, fields | {"failed": True} if self.failed else fields)
