"""The disk probe on real files, and on a disk whose write hangs."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest
import trio

from rmqha.broker.services.disk_probe import MAX_FILE_BYTES, PATH, DiskHealth, DiskProbe
from rmqha.host.clock import HostClock
from rmqha.host.disk import HostDisk
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.offset import Buffer
from rmqha.port import AppendFile
from tests.support.patience import HANG_S

CONFIG = BrokerConfig(disk_probe_interval_millis=1, disk_probe_timeout_millis=100)


def test_a_write_that_hangs_is_a_problem_until_one_ends_well() -> None:
    health = DiskHealth(1000)
    assert health.problem(0) == ""
    health.begun(100)
    assert health.problem(1099) == ""
    assert health.problem(1100) == "a small write has not ended for 1000 ms"
    health.ended(1500)
    assert (health.problem(1500), health.last_ms) == ("", 1400)


def test_a_write_that_fails_is_a_problem_until_one_ends_well() -> None:
    health = DiskHealth(1000)
    health.begun(0)
    health.ended(5, "/d/rmqha.probe: Input/output error")
    assert health.problem(900) == "/d/rmqha.probe: Input/output error"
    assert health.last_ms is None
    health.begun(1000)
    assert health.problem(1001) != "", "the next one has not ended yet"
    health.ended(1002)
    assert health.problem(1002) == ""


class HangingDisk(HostDisk):
    """Opening a file for writing waits for `go_on`."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.go_on = threading.Event()

    def open_append(self, path: str) -> AppendFile:
        self.go_on.wait()
        return super().open_append(path)


async def until(found: list[str], wanted: str) -> None:
    """Poll for what no event tells."""
    with trio.fail_after(HANG_S):
        while not found or wanted not in found[-1]:  # noqa: ASYNC110
            await trio.sleep(0.005)


async def test_a_disk_that_hangs_is_found_and_forgiven(tmp_path: Path) -> None:
    disk, found, hanging = HangingDisk(tmp_path), list[str](), list[bool]()

    def told(problem: str, hangs: bool) -> None:
        found.append(problem)
        hanging.append(hangs)

    probe = DiskProbe(CONFIG, disk, HostClock(), told)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(probe.run)
        await until(found, "a small write has not ended for 100 ms")
        assert True in hanging
        disk.go_on.set()
        with trio.fail_after(HANG_S):
            while found[-1]:  # noqa: ASYNC110
                await trio.sleep(0.005)
        assert hanging.pop() is False
        nursery.cancel_scope.cancel()


async def test_a_disk_that_refuses_is_named(tmp_path: Path) -> None:
    (tmp_path / PATH).mkdir()
    found = list[str]()
    probe = DiskProbe(CONFIG, HostDisk(tmp_path), HostClock(), lambda problem, hangs: found.append(problem))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(probe.run)
        await until(found, f"{tmp_path}/{PATH}: Is a directory")
        nursery.cancel_scope.cancel()


async def test_the_probes_file_stays_small(tmp_path: Path) -> None:
    (tmp_path / PATH).write_bytes(bytes(MAX_FILE_BYTES))
    probe = DiskProbe(CONFIG, HostDisk(tmp_path), HostClock(), lambda problem, hangs: None)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(probe.run)
        with trio.fail_after(HANG_S):
            while (tmp_path / PATH).stat().st_size >= MAX_FILE_BYTES:  # noqa: ASYNC110
                await trio.sleep(0.005)
        nursery.cancel_scope.cancel()


def used_bytes(root: Path) -> int:
    return sum(path.stat().st_size for path in root.iterdir())


class SmallFile:
    """An append file on a disk without a free block: all files together may have as many bytes as `limit_bytes`."""

    def __init__(self, file: AppendFile, root: Path, limit_bytes: int | None) -> None:
        self._file = file
        self._root = root
        self._limit_bytes = limit_bytes

    @property
    def size_bytes(self) -> int:
        return self._file.size_bytes

    def append(self, data: Buffer) -> None:
        if self._limit_bytes is not None and used_bytes(self._root) + len(data) > self._limit_bytes:
            raise OSError(errno.ENOSPC, "No space left on device")
        self._file.append(data)

    def truncate(self, size_bytes: int) -> None:
        self._file.truncate(size_bytes)

    def sync(self) -> None:
        self._file.sync()

    def close(self) -> None:
        self._file.close()


class SmallDisk(HostDisk):
    """Full as soon as `limit_bytes` is set: a file that gives blocks back may use them again."""

    limit_bytes: int | None = None

    def open_append(self, path: str) -> AppendFile:
        return SmallFile(super().open_append(path), self._root, self.limit_bytes)


@pytest.mark.parametrize("blocks", range(17))
async def test_a_full_disk_is_found_wherever_the_probes_file_has_got_to(tmp_path: Path, blocks: int) -> None:
    disk, found = SmallDisk(tmp_path), list[str]()
    (tmp_path / PATH).write_bytes(bytes(4096 * blocks))
    disk.limit_bytes = 4096 * blocks
    async with trio.open_nursery() as nursery:
        nursery.start_soon(DiskProbe(CONFIG, disk, HostClock(), lambda problem, hangs: found.append(problem)).run)
        await until(found, "No space left on device")
        nursery.cancel_scope.cancel()
    assert used_bytes(tmp_path) == 4096 * blocks


class FewFilesDisk(HostDisk):
    """Without a free inode while `is_out`: there are blocks, and no new file."""

    is_out = True

    def open_append(self, path: str) -> AppendFile:
        if self.is_out and not self.exists(path):
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().open_append(path)


async def test_a_disk_that_takes_blocks_and_no_new_file_is_found_and_forgiven(tmp_path: Path) -> None:
    disk, found = FewFilesDisk(tmp_path), list[str]()
    (tmp_path / PATH).write_bytes(bytes(MAX_FILE_BYTES // 2))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(DiskProbe(CONFIG, disk, HostClock(), lambda problem, hangs: found.append(problem)).run)
        await until(found, "no new file can be made (see df -i): No space left on device")
        assert used_bytes(tmp_path) == MAX_FILE_BYTES
        disk.is_out = False
        with trio.fail_after(HANG_S):
            while found[-1]:  # noqa: ASYNC110
                await trio.sleep(0.005)
        nursery.cancel_scope.cancel()
