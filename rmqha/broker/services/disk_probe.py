"""Probes the disk of the store by a small durable write at each interval, in a thread. Shell.

A disk that hangs blocks the thread, not the broker: heartbeats go on and report it.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from rmqha.model.config.servers import BrokerConfig
from rmqha.port import Clock, Disk

PATH = "rmqha.probe"
NEW_PATH = f"{PATH}.new"
PROBE = bytes(4096)
"""A new block each time: after a disk has become full, an old one could still be written."""
MAX_FILE_BYTES = 64 * 1024
"""Size from which a new file replaces the old one."""
PROBE_INTERVAL_MS = 200


class DiskHealth:
    """Health by probes. A probe that fails, or takes longer than `timeout_ms`, is a problem until the next success."""

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._begun_ms: int | None = None
        self._error = ""
        self.last_ms: int | None = None
        """Duration (ms) of the last successful probe."""

    def begun(self, now_ms: int) -> None:
        self._begun_ms = now_ms

    def ended(self, now_ms: int, error: str = "") -> None:
        """Take the end of a probe. `error`: the system's text, "" for a success."""
        assert self._begun_ms is not None, "a probe ends after it has begun"
        if not error:
            self.last_ms = now_ms - self._begun_ms
        self._begun_ms, self._error = None, error

    def hangs(self, now_ms: int) -> bool:
        """True if a write may hang now."""
        return self._begun_ms is not None and now_ms - self._begun_ms >= self._timeout_ms

    def problem(self, now_ms: int) -> str:
        """Sentence for operators; "" without a problem."""
        if self.hangs(now_ms):
            return f"a small write has not ended for {self._timeout_ms} ms"
        return self._error


class DiskProbe:
    """Repeated test writes to the disks of a broker. `found` gets the problem, "" for none, and True if a write hangs:
    at the end of each probe, and several times a second during a long one."""

    def __init__(self, config: BrokerConfig, disk: Disk, clock: Clock, found: Callable[[str, bool], None]) -> None:
        self._interval_ms = config.disk_probe_interval_millis
        self._health = DiskHealth(config.disk_probe_timeout_millis)
        self._disk = disk
        self._clock = clock
        self._found = found

    async def run(self) -> None:
        while True:
            self._health.begun(self._clock.now_ms())
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch)
                # a thread that hangs cannot be cancelled; it is left behind when the broker ends
                error = await trio.to_thread.run_sync(write_block, self._disk, abandon_on_cancel=True)
                nursery.cancel_scope.cancel()
            self._health.ended(self._clock.now_ms(), error)
            self._report()
            await trio.sleep(self._interval_ms / 1000)

    async def _watch(self) -> None:
        while True:
            await trio.sleep(PROBE_INTERVAL_MS / 1000)
            self._report()

    def _report(self) -> None:
        now_ms = self._clock.now_ms()
        self._found(self._health.problem(now_ms), self._health.hangs(now_ms))


def write_block(disk: Disk) -> str:
    """Write a block durably, every sixteenth time into a new file, since a disk may have free blocks and no free inode.
    Returns the system's error, "" after success."""
    path, making = PATH, ""
    try:
        if disk.exists(PATH) and disk.size_bytes(PATH) >= MAX_FILE_BYTES:
            path, making = NEW_PATH, "no new file can be made (see df -i): "
        file = disk.open_append(path)
        making = ""
        try:
            file.append(PROBE)
            file.sync()
        finally:
            file.close()
        if path == NEW_PATH:
            # only now: on a full disk the freed blocks would let the next writes succeed
            disk.rename(NEW_PATH, PATH)
    except OSError as error:
        return f"{disk.label}/{path}: {making}{error.strerror or error}"
    return ""
