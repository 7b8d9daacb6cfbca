"""Probes the disk of the store: a small write made durable at each interval, in a thread. Shell.

A disk that hangs keeps the thread, not the broker: the heartbeats go on and say so.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from rmqha.ha.disk_health import DiskHealth
from rmqha.model.config.servers import BrokerConfig
from rmqha.port import Clock, Disk

PATH = "rmqha.probe"
PROBE = bytes(4096)
"""A block of its own each time, else a disk that has just filled up would still take some."""
MAX_FILE_BYTES = 64 * 1024
LOOK_INTERVAL_MS = 200


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
            await trio.sleep(LOOK_INTERVAL_MS / 1000)
            self._tell()

    def _tell(self) -> None:
        now_ms = self._clock.now_ms()
        self._found(self._health.problem(now_ms), self._health.hangs(now_ms))


def write_block(disk: Disk) -> str:
    """Write a block durably; the result is what the system said, "" if the bytes are durable."""
    try:
        file = disk.open_append(PATH)
        try:
            file.append(PROBE)
            file.sync()
            if file.size_bytes >= MAX_FILE_BYTES:
                # only now: on a full disk the blocks that this frees would let the next writes pass
                file.truncate(0)
        finally:
            file.close()
    except OSError as error:
        return f"{disk.label}/{PATH}: {error.strerror or error}"
    return ""
