"""The space reserve of a locked directory: small files are written on a full disk."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmqha.host import disk as host_disk
from rmqha.host.disk import HostDisk
from rmqha.model.offset import Buffer


@pytest.fixture
def host(tmp_path: Path) -> tuple[HostDisk, Path]:
    return HostDisk(tmp_path), tmp_path


@pytest.fixture
def full(host: tuple[HostDisk, Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[HostDisk]:
    """A locked directory of a disk that has no block and no inode beside the space reserve."""
    disk, root = host
    reserve, write, making = root / host_disk.RESERVE_NAME, os.write, os.open
    release = disk.lock("lock")
    assert release is not None
    disk.write_atomic("table", b"old")

    def refused() -> None:
        if reserve.exists():
            raise OSError(errno.ENOSPC, "No space left on device")

    def open_file(path: Path, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if flags & os.O_CREAT and path != reserve:
            refused()
        return making(path, flags, mode, dir_fd=dir_fd)

    def write_file(fd: int, data: Buffer) -> int:
        refused()
        return write(fd, data)

    monkeypatch.setattr(os, "open", open_file)
    monkeypatch.setattr(os, "write", write_file)
    yield disk
    release()


def test_small_files_are_written_on_a_full_disk(full: HostDisk) -> None:
    for content in (b"new", b"newer"):
        full.write_atomic("table", content)
        full.write_atomic("config/made", content)
        assert (full.read("table"), full.read("config/made")) == (content, content)
        assert full.size_bytes(host_disk.RESERVE_NAME) == host_disk.RESERVE_SIZE_BYTES, "it is kept for the next time"
    with pytest.raises(OSError, match="No space left"):
        full.open_append("log")


def test_a_full_disk_without_a_reserve_is_an_error(full: HostDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    full.remove(host_disk.RESERVE_NAME)

    def refused(fd: int, data: Buffer) -> int:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(os, "write", refused)
    with pytest.raises(OSError, match="Disk quota exceeded"):
        full.write_atomic("table", b"new")
    assert full.read("table") == b"old"
    monkeypatch.undo()
    full.write_atomic("table", b"new")
    assert full.exists(host_disk.RESERVE_NAME), "it is made again when there is room"


class FreeSpace:
    """The answer of fstatvfs: so many free bytes beside what the space reserve has taken of them."""

    def __init__(self, root: Path, room_bytes: int) -> None:
        self.room_bytes = room_bytes
        self._found = os.statvfs(root)
        self._reserve = root / host_disk.RESERVE_NAME

    def fstatvfs(self, fd: int) -> os.statvfs_result:
        taken_bytes = self._reserve.stat().st_blocks * host_disk.STAT_BLOCK_BYTES if self._reserve.exists() else 0
        free_blocks = max(0, self.room_bytes - taken_bytes) // self._found.f_frsize
        return os.statvfs_result((*self._found[:3], free_blocks, free_blocks, *self._found[5:]))


@pytest.fixture
def free_space(host: tuple[HostDisk, Path], monkeypatch: pytest.MonkeyPatch) -> FreeSpace:
    made = FreeSpace(host[1], 64 * 1024)
    monkeypatch.setattr(os, "fstatvfs", made.fstatvfs)
    return made


def test_a_reserve_leaves_half_of_the_room_to_other_files(host: tuple[HostDisk, Path], free_space: FreeSpace) -> None:
    disk, _ = host
    release = disk.lock("lock")
    assert release is not None
    for _ in range(3):
        assert disk.size_bytes(host_disk.RESERVE_NAME) == free_space.room_bytes // 2
        disk.write_atomic("table", b"new")
    release()
    disk.remove(host_disk.RESERVE_NAME)
    free_space.room_bytes = 0
    release = disk.lock("lock")
    assert release is not None
    assert not disk.exists(host_disk.RESERVE_NAME)
    release()


def test_a_reserve_grows_when_there_is_more_room(host: tuple[HostDisk, Path], free_space: FreeSpace) -> None:
    disk, _ = host
    release = disk.lock("lock")
    assert release is not None
    for room_bytes in (128 * 1024, 1 << 30):
        free_space.room_bytes = room_bytes
        disk.write_atomic("table", b"new")
        assert disk.size_bytes(host_disk.RESERVE_NAME) == min(room_bytes // 2, host_disk.RESERVE_SIZE_BYTES)
    release()


def test_a_reserve_that_cannot_grow_is_tried_once_a_write(
    host: tuple[HostDisk, Path], free_space: FreeSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quota, of which fstatvfs knows nothing."""
    disk, _ = host
    release = disk.lock("lock")
    assert release is not None
    size_bytes, tries = disk.size_bytes(host_disk.RESERVE_NAME), []

    def refused(fd: int, start: int, size: int) -> None:
        tries.append(size)
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(os, "posix_fallocate", refused)
    free_space.room_bytes = 1 << 30
    disk.write_atomic("table", b"new")
    assert tries == [host_disk.RESERVE_SIZE_BYTES]
    assert disk.size_bytes(host_disk.RESERVE_NAME) == size_bytes
    release()


def test_writes_on_a_full_disk_leave_the_reserve_whole(full: HostDisk, free_space: FreeSpace) -> None:
    free_space.room_bytes = host_disk.RESERVE_SIZE_BYTES
    for content in (b"new", b"newer"):
        full.write_atomic("table", content)
        assert full.read("table") == content
        assert full.size_bytes(host_disk.RESERVE_NAME) == host_disk.RESERVE_SIZE_BYTES


def test_two_threads_share_the_reserve(full: HostDisk) -> None:
    threads = [threading.Thread(target=full.write_atomic, args=(f"table{n}", b"new")) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(full.read(f"table{n}") == b"new" for n in range(8))
