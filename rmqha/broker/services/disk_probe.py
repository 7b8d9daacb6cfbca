"""Probes the disk of the store: a small write made durable at each interval, in a thread. Shell.

A disk that hangs keeps the thread, not the broker: the heartbeats go on and say so.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from rmqha.model.config.servers import BrokerConfig
from rmqha.port import Clock, Disk

PATH = "rmqha.probe"
NEW_PATH = f"{PATH}.new"
PROBE = bytes(4096)
"""A block of its own each time, else a disk that has just filled up would still take some."""
MAX_FILE_BYTES = 64 * 1024
"""From this size on a new file takes its place."""
PROBE_INTERVAL_MS = 200


class DiskHealth:
    """A probe is a small write made durable. One that fails, or has not ended after `timeout_ms`, is a problem; the
    next one that ends well clears it."""

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._begun_ms: int | None = None
        self._error = ""
        self.last_ms: int | None = None
        """Time (ms) that the last probe that ended well took."""

    def begun(self, now_ms: int) -> None:
        self._begun_ms = now_ms

    def ended(self, now_ms: int, error: str = "") -> None:
        """`error`: what the system said, "" for a probe that ended well."""
        assert self._begun_ms is not None, "a probe ends after it has begun"
        if not error:
            self.last_ms = now_ms - self._begun_ms
        self._begun_ms, self._error = None, error

    def hangs(self, now_ms: int) -> bool:
        """True if a write may wait for ever now."""
        return self._begun_ms is not None and now_ms - self._begun_ms >= self._timeout_ms

    def problem(self, now_ms: int) -> str:
        """A sentence for operators; "" while all is well."""
        if self.hangs(now_ms):
            return f"a small write has not ended for {self._timeout_ms} ms"
        return self._error


class DiskProbe:
    """`found` is told the problem, "" for none, and whether it is a write that hangs: when one has ended, and several
    times a second while one takes long."""

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
            self._tell()
            await trio.sleep(self._interval_ms / 1000)

    async def _watch(self) -> None:
        while True:
            await trio.sleep(PROBE_INTERVAL_MS / 1000)
            self._tell()

    def _tell(self) -> None:
        now_ms = self._clock.now_ms()
        self._found(self._health.problem(now_ms), self._health.hangs(now_ms))


def write_block(disk: Disk) -> str:
    """Write a block durably, every sixteenth time into a new file: a disk may have blocks left and no inode. The result
    is what the system said, "" if the bytes are durable."""
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
            # only now: on a full disk the blocks that this frees would let the next writes pass
            disk.rename(NEW_PATH, PATH)
    except OSError as error:
        return f"{disk.label}/{path}: {making}{error.strerror or error}"
    return ""
