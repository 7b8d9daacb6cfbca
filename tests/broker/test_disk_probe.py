"""The disk probe on real files, and on a disk whose write hangs."""

from __future__ import annotations

import threading
from pathlib import Path

import trio

from rmqha.broker.disk_probe import MAX_FILE_BYTES, PATH, DiskProbe
from rmqha.host.clock import HostClock
from rmqha.host.disk import HostDisk
from rmqha.model.config import BrokerConfig
from rmqha.port import AppendFile

CONFIG = BrokerConfig(disk_probe_interval_millis=1, disk_probe_timeout_millis=100)


class HangingDisk(HostDisk):
    """Opening a file for writing waits for `go_on`."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.go_on = threading.Event()

    def open_append(self, path: str) -> AppendFile:
        self.go_on.wait()
        return super().open_append(path)


async def until(found: list[str], wanted: str) -> None:
    """Poll for what no event tells, within five seconds."""
    with trio.fail_after(5):
        while not found or wanted not in found[-1]:  # noqa: ASYNC110
            await trio.sleep(0.005)


async def test_a_disk_that_hangs_is_found_and_forgiven(tmp_path: Path) -> None:
    disk, found = HangingDisk(tmp_path), list[str]()
    probe = DiskProbe(CONFIG, disk, HostClock(), found.append)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(probe.run)
        await until(found, "a small write has not ended for 100 ms")
        disk.go_on.set()
        with trio.fail_after(5):
            while found[-1]:  # noqa: ASYNC110
                await trio.sleep(0.005)
        nursery.cancel_scope.cancel()


async def test_a_disk_that_refuses_is_named(tmp_path: Path) -> None:
    (tmp_path / PATH).mkdir()
    found = list[str]()
    probe = DiskProbe(CONFIG, HostDisk(tmp_path), HostClock(), found.append)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(probe.run)
        await until(found, f"{tmp_path}/{PATH}: Is a directory")
        nursery.cancel_scope.cancel()


async def test_the_probes_file_stays_small(tmp_path: Path) -> None:
    (tmp_path / PATH).write_bytes(bytes(MAX_FILE_BYTES))
    probe = DiskProbe(CONFIG, HostDisk(tmp_path), HostClock(), lambda problem: None)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(probe.run)
        with trio.fail_after(5):
            while (tmp_path / PATH).stat().st_size >= MAX_FILE_BYTES:  # noqa: ASYNC110
                await trio.sleep(0.005)
        nursery.cancel_scope.cancel()
