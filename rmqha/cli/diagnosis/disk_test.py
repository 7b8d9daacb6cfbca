"""Measured costs of a disk: small durable writes and a long one, made as a broker makes them. Bounded; leaves nothing
behind.

A durable write here is a 4 KiB write into a reserved file and an `fdatasync`, which is what SYNC_FLUSH waits for.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rmqha.cli.diagnosis.checks.mounts import Mount, mount_of
from rmqha.host.disk import HostDisk
from rmqha.model.error import UsageError
from rmqha.ops.bench.histogram import PERCENTILES, LatencyHistogram

BLOCK_BYTES = 4096
RING_BYTES = 4 * 1024 * 1024
"""Size of the file in which small writes go round."""
PIECE_BYTES = 1024 * 1024
WARM_UP_COUNT = 3
IMPOSSIBLE_SYNC_US = 40
"""Time (µs) of a sync below which it is no disk's: memory is that fast."""
SYNC_SHARE = 0.6
"""Share of the time for small writes; the rest is for the long write."""


@dataclass(slots=True)
class DiskFigures:
    """Figures of a disk. Times are in microseconds, sizes in bytes."""

    directory: str
    mount: Mount
    syncs: LatencyHistogram = field(default_factory=LatencyHistogram)
    written_bytes: int = 0
    write_us: int = 0
    """Time (µs) of the long write and the sync at its end."""

    @property
    def bytes_per_second(self) -> int:
        return round(self.written_bytes * 1e6 / self.write_us) if self.write_us else 0

    @property
    def median_us(self) -> int:
        return self.syncs.percentile(50)

    @property
    def in_memory(self) -> bool:
        """True if it seems that nothing here survives a loss of power."""
        return self.mount.in_memory or (self.syncs.count > 0 and self.median_us < IMPOSSIBLE_SYNC_US)

    def as_dict(self) -> dict[str, Any]:
        return {
            "directory": self.directory,
            "mountPoint": self.mount.point,
            "fileSystem": self.mount.kind,
            "syncCount": self.syncs.count,
            "syncMicroseconds": {f"p{percent:g}": self.syncs.percentile(percent) for percent in PERCENTILES}
            | {"max": self.syncs.max},
            "syncsPerSecond": self.syncs_per_second,
            "writtenBytes": self.written_bytes,
            "writeBytesPerSecond": self.bytes_per_second,
            "hint": self.honesty(),
            "verdict": self.verdict(),
        }

    @property
    def syncs_per_second(self) -> int:
        return round(1e6 / self.syncs.mean) if self.syncs.total else 0

    def honesty(self) -> str:
        """The reason why these figures may not be a disk's, "" if nothing speaks against it."""
        if self.mount.in_memory:
            return f"{self.mount.point} is {self.mount.kind}, memory: everything in it is gone with the power"
        if self.in_memory:
            return (
                f"a sync takes {self.median_us} us, faster than a disk can be: a cache answers, and unless that has a"
                " battery a loss of power takes what was synced"
            )
        if self.mount.on_network:
            return f"{self.mount.point} is {self.mount.kind}, a network file system: its server decides what a sync is"
        return ""

    def verdict(self) -> str:
        """Verdict on the cost of flushDiskType=SYNC_FLUSH there."""
        if self.in_memory:
            return "SYNC_FLUSH promises nothing here: what it waits for is not on a disk"
        ms, worst_ms = self.median_us / 1000, self.syncs.percentile(99) / 1000
        cost = f"it adds {ms:.2f} ms to a send (1 in 100: {worst_ms:.1f} ms)"
        alone = f"a client that waits for each send gets at most {self.syncs_per_second:,}/s, many clients share syncs"
        word = "costs little" if ms < 2 else "is to be felt" if ms < 10 else "is slow" if ms < 50 else "is very slow"
        return f"SYNC_FLUSH {word} here: {cost}; {alone}"


def measure(directory: Path, *, limit_s: float, limit_bytes: int, sync_count: int = 2000) -> DiskFigures:
    """Make both measurements in `directory`, which exists, within about `limit_s` and `limit_bytes`. `limit_bytes` 0:
    only the small writes. Raises UsageError if nothing can be written there."""
    figures = DiskFigures(str(directory), mount_of(directory))
    deadline = time.monotonic() + limit_s
    disk = HostDisk(directory)
    name = f"rmqha.selftest-{os.getpid()}"
    try:
        try:
            share = SYNC_SHARE if limit_bytes else 1.0
            _sync_often(disk, name, figures, time.monotonic() + limit_s * share, sync_count)
            if limit_bytes:
                _write_long(disk, name, figures, deadline, limit_bytes)
        finally:
            if disk.exists(name):
                disk.remove(name)
    except OSError as error:
        raise UsageError(f"cannot write in {directory}: {error.strerror or error}; choose another directory") from None
    return figures


def _sync_often(disk: HostDisk, name: str, figures: DiskFigures, deadline: float, count: int) -> None:
    region = disk.map(name, RING_BYTES, create=True)
    try:
        for number in range(WARM_UP_COUNT + count):
            block = number.to_bytes(8, "big") * (BLOCK_BYTES // 8)
            started = time.monotonic_ns()
            region.write(number * BLOCK_BYTES % RING_BYTES, block)
            region.sync()
            ended = time.monotonic_ns()
            if number >= WARM_UP_COUNT:
                figures.syncs.record((ended - started) // 1000)
                if ended >= deadline * 1e9:
                    break
    finally:
        region.close()
        disk.remove(name)


def _write_long(disk: HostDisk, name: str, figures: DiskFigures, deadline: float, limit_bytes: int) -> None:
    """Measure the long write: piece by piece with a sync each 16, so that the time limit is kept on a slow disk too."""
    size_bytes = max(1, limit_bytes // PIECE_BYTES) * PIECE_BYTES
    free_bytes = disk.space()[1]
    if free_bytes < 4 * size_bytes:
        raise UsageError(
            f"{figures.directory} has {free_bytes // 10**6:,} MB free, the test would write {size_bytes // 10**6:,} MB;"
            " give a smaller --mb"
        )
    piece = os.urandom(PIECE_BYTES)
    region = disk.map(name, size_bytes, create=True)
    try:
        started = time.monotonic_ns()
        for position in range(0, size_bytes, PIECE_BYTES):
            region.write(position, piece)
            figures.written_bytes += PIECE_BYTES
            if figures.written_bytes % (16 * PIECE_BYTES) == 0:
                region.sync()
                if time.monotonic() >= deadline:
                    break
        region.sync()
        figures.write_us = (time.monotonic_ns() - started) // 1000
    finally:
        region.close()
