"""One contract, two disks: what `port.Disk` promises holds on the host and in the simulator. Then the host's own."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import shutil
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rmqha.host import disk as host_disk
from rmqha.host.disk import READ_AHEAD_STEP_BYTES, HostDisk
from rmqha.host.tracer import HostTracer
from rmqha.port import Disk
from rmqha.sim.disk import SimDisk
from rmqha.sim.prng import SimPrng
from tests.host.old_python import make_old


@pytest.fixture(params=["host", "sim"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    found: Disk = HostDisk(tmp_path / "root") if request.param == "host" else SimDisk(SimPrng(1))
    return found


@pytest.fixture
def host(tmp_path: Path) -> Iterator[tuple[HostDisk, Path]]:
    yield HostDisk(tmp_path), tmp_path


def test_an_empty_disk(disk: Disk) -> None:
    assert disk.list("") == []
    assert disk.list("nowhere") == []
    assert not disk.exists("a")
    assert disk.space()[1] > 0
    assert disk.boot_id()
    assert disk.label
    for missing in (disk.read, disk.size_bytes, disk.remove, disk.modified_at_ms):
        with pytest.raises(FileNotFoundError):
            missing("a")


def test_atomic_files_in_directories(disk: Disk) -> None:
    disk.write_atomic("a/b/c", b"one")
    disk.write_atomic("a/b/c", memoryview(b"second"))
    assert disk.read("a/b/c") == b"second"
    assert disk.size_bytes("a/b/c") == 6
    assert disk.exists("a/b")
    assert disk.list("a") == ["b"]
    assert disk.list("a/b") == ["c"]
    disk.remove("a/b/c")
    assert not disk.exists("a/b/c")


def test_a_tree_goes_with_all_that_is_in_it(disk: Disk) -> None:
    disk.remove_tree("a")
    for again in range(2):
        disk.write_atomic("a/b/c/d", b"%d" % again)
        disk.write_atomic("a/b2", b"stays")
        disk.make_dirs("a/b/empty")
        disk.remove_tree("a/b")
        assert disk.list("a") == ["b2"]
        assert not disk.exists("a/b/c/d")


def test_a_region_is_zero_then_what_was_written(disk: Disk) -> None:
    region = disk.map("m", 8192, create=True)
    assert (region.size_bytes, disk.size_bytes("m")) == (8192, 8192)
    view = region.view(4090, 10)
    assert bytes(view) == bytes(10)
    region.write(4092, b"abcd")
    assert bytes(view) == b"\0\0abcd\0\0\0\0"
    region.sync()
    region.close()
    assert disk.read("m")[4092:4096] == b"abcd"
    again = disk.map("m", 8192)
    assert bytes(again.view(4092, 4)) == b"abcd"
    again.close()


def test_mapping_extends_but_never_shrinks(disk: Disk) -> None:
    with pytest.raises(FileNotFoundError):
        disk.map("m", 10)
    disk.write_atomic("m", b"short")
    region = disk.map("m", 10, create=True, reserve=False)
    assert bytes(region.view(0, 10)) == b"short" + bytes(5)
    region.close()
    with pytest.raises(ValueError):
        disk.map("m", 9)


def test_where_data_begins(disk: Disk) -> None:
    region = disk.map("m", 1 << 20, create=True)
    assert region.data_ranges(0) == region.data_ranges(70_000) == []
    region.write(300_000, b"x" * 10)
    region.write(600_000, b"y" * 5000)
    for start in (0, 300_005, 600_001):
        ranges = region.data_ranges(start)
        assert all(start <= low < high for low, high in ranges)
        for written in range(max(start, 300_000), 300_010), range(max(start, 600_000), 605_000):
            assert all(any(low <= at < high for low, high in ranges) for at in written)
    assert bytes(region.view(600_000, 5000)) == b"y" * 5000
    region.close()


def test_a_range_is_probed_piece_by_piece(disk: Disk) -> None:
    region = disk.map("m", 1 << 20, create=True)
    region.write(5000, b"x" * 300_000)
    at = 700
    while at < 1 << 20:
        size = region.probe(at, (1 << 20) - at)
        assert 0 < size <= (1 << 20) - at
        at += size
    region.close()


def test_a_bad_sector_is_an_error_of_the_probe(host: tuple[HostDisk, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimDisk(SimPrng(1))
    region = disk.map("m", 4096, create=True)
    disk.spoil("m", 1000)
    assert region.probe(300, 4096) == 212
    with pytest.raises(OSError, match="Input/output error"):
        region.probe(512, 1)
    with pytest.raises(OSError, match="Input/output error"):
        disk.read("m")

    def pread(fd: int, size: int, position: int) -> bytes:
        if position >= 512:
            raise OSError(errno.EIO, "Input/output error")
        return bytes(512 - position)

    mapped = host[0].map("m", 4096, create=True)
    monkeypatch.setattr(os, "pread", pread)
    assert mapped.probe(300, 4096) == 212
    with pytest.raises(OSError, match="Input/output error"):
        mapped.probe(512, 1)
    mapped.close()


def test_append_files_grow_and_shrink(disk: Disk) -> None:
    file = disk.open_append("log")
    file.append(b"one")
    file.append(memoryview(b"two"))
    file.sync()
    file.truncate(4)
    assert file.size_bytes == 4
    file.close()
    again = disk.open_append("log")
    again.append(b"!")
    assert again.size_bytes == 5
    again.close()
    assert disk.read("log") == b"onet!"


def test_renaming_files_and_directories(disk: Disk) -> None:
    disk.write_atomic("old/x", b"1")
    disk.write_atomic("old/y/z", b"2")
    disk.rename("old", "kept/old")
    assert disk.list("kept/old") == ["x", "y"]
    assert not disk.exists("old")
    disk.rename("kept/old/x", "x")
    assert disk.read("x") == b"1"
    with pytest.raises(FileNotFoundError):
        disk.rename("missing", "b")


def test_directories_can_be_made_beforehand(disk: Disk) -> None:
    disk.make_dirs("")
    disk.make_dirs("a/b")
    assert disk.exists("a/b")
    assert disk.list("a") == ["b"]


def test_one_holder_of_a_lock(disk: Disk) -> None:
    disk.make_dirs("")
    release = disk.lock("lock")
    assert release is not None
    assert disk.lock("lock") is None
    assert disk.read("lock") == b"lock"
    release()
    again = disk.lock("lock")
    assert again is not None
    again()


# --- the host's own ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("python", ["this", "old"])
def test_the_lock_excludes_other_processes_and_process_owned_locks(
    host: tuple[HostDisk, Path], monkeypatch: pytest.MonkeyPatch, python: str
) -> None:
    if python == "old":
        make_old(monkeypatch.delattr, monkeypatch.setattr)
    disk, root = host
    release = disk.lock("lock")
    assert release is not None
    with (root / "lock").open("r+b") as other, pytest.raises(BlockingIOError):
        fcntl.lockf(other, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)  # as Java's FileChannel.tryLock(0, 1) does
    program = (
        "import sys; from rmqha.host.disk import READ_AHEAD_STEP_BYTES, HostDisk;"
        "sys.exit(7 if HostDisk(sys.argv[1]).lock('lock') is None else 0)"
    )
    assert subprocess.run([sys.executable, "-c", program, str(root)], check=False).returncode == 7
    release()
    assert subprocess.run([sys.executable, "-c", program, str(root)], check=False).returncode == 0


def test_a_reserved_file_has_its_blocks(host: tuple[HostDisk, Path]) -> None:
    disk, root = host
    disk.map("full", 1 << 20, create=True).close()
    assert (root / "full").stat().st_blocks * 512 >= 1 << 20


def test_an_unreserved_file_gets_blocks_as_writes_reach_them(host: tuple[HostDisk, Path]) -> None:
    disk, root = host
    region = disk.map("sparse", 1 << 20, create=True, reserve=False)
    assert (root / "sparse").stat().st_blocks == 0
    for position in (0, 600_000, 20, 65_530, 1 << 19, (1 << 20) - 3):
        region.write(position, b"abc")
        assert bytes(region.view(position, 3)) == b"abc"
    region.sync()
    assert 4 * 65536 <= (root / "sparse").stat().st_blocks * 512 < 1 << 20
    region.close()


STEP = READ_AHEAD_STEP_BYTES


def _parts(path: Path) -> list[tuple[int, bool]]:
    """Each part of the mapping of `path`: its size, and if the system reads ahead in it."""
    parts: list[tuple[int, bool]] = []
    size_bytes = 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if line.endswith(f" {path}"):
            start, end = line.split()[0].split("-")
            size_bytes = int(end, 16) - int(start, 16)
        elif size_bytes and line.startswith("VmFlags:"):
            parts.append((size_bytes, "rr" not in line.split()))
            size_bytes = 0
    return parts


@pytest.mark.parametrize("reserve", [False, True])
def test_a_store_into_a_new_file_reads_nothing_ahead(host: tuple[HostDisk, Path], reserve: bool) -> None:
    """The system's read-ahead would stop the event loop at the first store into each new queue, and each 8 MiB of the
    log."""
    disk, root = host
    region = disk.map("new", 3 * STEP, create=True, reserve=reserve)
    region.write(0, b"abcd")
    region.write(STEP - 100, b"abcd")
    assert _parts(root / "new") == [(3 * STEP, False)]
    assert region.close()


@pytest.mark.parametrize("reserve", [False, True])
@pytest.mark.parametrize("record_bytes", [4000, 65_536, 3_000_000])
def test_what_was_written_is_read_ahead(host: tuple[HostDisk, Path], reserve: bool, record_bytes: int) -> None:
    disk, root = host
    size_bytes = 3 * STEP
    region = disk.map("log", size_bytes, create=True, reserve=reserve)
    end = 0
    while end + record_bytes < size_bytes:
        region.write(end, bytes(record_bytes))
        end += record_bytes
        if end // 1_000_000 == (end - record_bytes) // 1_000_000:
            continue
        parts = _parts(root / "log")
        assert sum(size for size, _ in parts) == size_bytes
        assert [is_ahead for _, is_ahead in parts][-1:] == [False]
        assert len(parts) <= 2
        ahead_bytes = sum(size for size, is_ahead in parts if is_ahead)
        assert end - STEP - record_bytes - mmap.PAGESIZE <= ahead_bytes <= end
    region.write(end, bytes(size_bytes - end))
    assert _parts(root / "log") == [(size_bytes, True)]
    region.write(0, b"again")
    assert _parts(root / "log") == [(size_bytes, True)]
    assert region.close()


def test_a_log_that_is_opened_again_is_read_ahead(host: tuple[HostDisk, Path]) -> None:
    """A log of a broker that had been started anew was read a page at a time, at 15 instead of 300 MiB a second."""
    disk, root = host
    disk.map("log", 3 * STEP, create=True).close()
    region = disk.map("log", 3 * STEP)
    assert _parts(root / "log") == [(3 * STEP, True)]
    region.write(STEP + 5, b"abcd")
    assert _parts(root / "log") == [(STEP, True), (2 * STEP, False)]
    region.write(STEP - 100, b"abcd")
    region.write(2 * STEP + 4095, b"abcd")
    assert _parts(root / "log") == [(2 * STEP, True), (STEP, False)]
    assert region.close()


def test_a_file_with_holes_that_is_opened_again_is_not_read_ahead(host: tuple[HostDisk, Path]) -> None:
    """Thousands of queues are opened at a start, and the end of each is looked for."""
    disk, root = host
    disk.map("queue", STEP, create=True, reserve=False).close()
    region = disk.map("queue", STEP)
    assert _parts(root / "queue") == [(STEP, False)]
    assert region.close()


def test_the_slots_of_an_index_are_never_read_ahead(host: tuple[HostDisk, Path]) -> None:
    disk, root = host
    size_bytes, entries_at = 50_000_000, 20_000_040
    region = disk.map("index", size_bytes, create=True, reserve=False)
    region.write(0, bytes(40))
    for position in range(entries_at, entries_at + 2 * STEP, 1000):
        region.write(position, bytes(1000))
        region.write(0, bytes(40))
    before, ahead, behind = _parts(root / "index")
    assert (before[1], ahead[1], behind[1]) == (False, True, False)
    assert before[0] == entries_at & -mmap.PAGESIZE
    assert STEP <= ahead[0] <= 2 * STEP
    assert region.close()


@pytest.mark.usefixtures("real_syncs")
@pytest.mark.parametrize("python", ["this", "old"])
def test_what_is_in_memory_is_told_and_can_be_read_into_it(
    host: tuple[HostDisk, Path], monkeypatch: pytest.MonkeyPatch, python: str
) -> None:
    if python == "old":
        make_old(monkeypatch.delattr, monkeypatch.setattr)
    disk, root = host
    size_bytes = 1 << 20
    disk.map("log", size_bytes, create=True).close()
    with (root / "log").open("r+b") as file:
        file.write(b"x" * size_bytes)
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    region = disk.map("log", size_bytes)
    assert region.is_in_memory(0, size_bytes) == _keeps_files_in_memory(root)
    region.loader(0, size_bytes)()
    assert region.is_in_memory(0, size_bytes)
    late = region.loader(size_bytes - 10, 10)
    assert region.close()
    late()


def test_a_bad_sector_within_a_range_is_an_error_of_its_loader(
    host: tuple[HostDisk, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux gives the bytes in front of it first."""
    disk, _ = host
    region = disk.map("log", 1 << 20, create=True)
    read, bad = [], 300_000

    def pread(_: int, size: int, position: int) -> bytes:
        if position == bad:
            raise OSError(errno.EIO, "Input/output error")
        size = min(size, bad - position) if position < bad else size
        read.append((position, size))
        return bytes(size)

    load = region.loader(1000, (1 << 20) - 1000)
    monkeypatch.setattr(os, "pread", pread)
    with pytest.raises(OSError, match="Input/output error"):
        load()
    assert sum(size for _, size in read) == bad - 1000
    region.loader(bad + 1, 500_000)()
    assert sum(size for _, size in read) == bad - 1000 + 500_000
    region.close()


def test_a_loader_keeps_no_file_open(host: tuple[HostDisk, Path]) -> None:
    disk, _ = host
    region = disk.map("log", 4096, create=True)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208  (of this process)
    called, not_called = region.loader(0, 100), region.loader(0, 100)
    called()
    del not_called
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
    del called
    region.close()


def test_advice_that_the_system_does_not_take_is_no_error(
    host: tuple[HostDisk, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process may have too many mappings to divide one."""
    disk, _ = host

    class Full(mmap.mmap):
        def madvise(self, *_: int) -> None:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", Full)
    region = disk.map("log", 3 * STEP, create=True, reserve=False)
    for position in range(0, 3 * STEP, 1 << 20):
        region.write(position, bytes(1 << 20))
    assert bytes(region.view(0, 3)) == bytes(3)
    assert region.close()


def _keeps_files_in_memory(directory: Path) -> bool:
    """True if its file system has no other place for them."""
    mounts = [line.split()[1:3] for line in Path("/proc/self/mounts").read_text().splitlines()]
    _, kind = max((place, kind) for place, kind in mounts if str(directory).startswith(place))
    return kind in ("tmpfs", "ramfs")


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM])
def test_a_system_that_cannot_tell_counts_as_memory(
    host: tuple[HostDisk, Path], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A file system, a kernel, and a container's filter of system calls."""
    disk, _ = host
    region = disk.map("log", 4096, create=True)

    def preadv(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "preadv", preadv)
    assert region.is_in_memory(0, 4096)
    region.close()


def no_library(*_: object, **__: object) -> object:
    raise OSError("Dynamic loading not supported")


@pytest.mark.parametrize("library", [lambda *_, **__: object(), no_library])
def test_a_c_library_that_cannot_tell_counts_as_memory(
    host: tuple[HostDisk, Path], monkeypatch: pytest.MonkeyPatch, library: Callable[..., object]
) -> None:
    """That of Alpine Linux, whose Python lacks the call too; one that is linked statically loads none."""
    make_old(monkeypatch.delattr, monkeypatch.setattr)
    monkeypatch.setattr(ctypes, "CDLL", library)
    monkeypatch.setattr(host_disk, "_libc_read_at_once", host_disk._libc_read_at_once.__wrapped__)
    disk, _ = host
    region = disk.map("log", 4096, create=True)
    assert region.is_in_memory(0, 4096)
    region.close()


def test_blocks_are_asked_for_once(host: tuple[HostDisk, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes that go to and fro in a file, as those of an index, cost a system call at the first touch only."""
    disk, _ = host
    region = disk.map("sparse", 1 << 20, create=True, reserve=False)
    asked: list[tuple[int, int]] = []
    reserve = os.posix_fallocate

    def counted(fd: int, offset: int, size: int) -> None:
        asked.append((offset, size))
        reserve(fd, offset, size)

    monkeypatch.setattr(os, "posix_fallocate", counted)
    for _ in range(3):
        for position in (0, 900_000, 65_534, 300_000, (1 << 20) - 4):
            region.write(position, b"abcd")
        region.write(0, bytes(200_000))
    assert asked == [(0, 1 << 16), (851968, 1 << 16), (0, 1 << 17), (262144, 1 << 16), (983040, 1 << 16), (0, 1 << 18)]
    region.close()


def test_a_full_disk_is_an_error_and_not_a_signal(host: tuple[HostDisk, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    disk, _ = host

    def full(fd: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    region = disk.map("sparse", 1 << 20, create=True, reserve=False)
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        disk.map("m", 1 << 20, create=True)
    assert not disk.exists("m"), "no half-made file stays"
    with pytest.raises(OSError, match="No space left"):
        region.write(0, b"x")
    region.close()


def test_a_file_that_does_not_fit_takes_nothing_from_others_meanwhile(
    host: tuple[HostDisk, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file system would set aside all that it has left before it says that this is too little: for a moment nobody
    else could write a byte."""
    disk, root = host
    free_bytes, asked = 3 << 20, list[int]()
    found = os.statvfs(root)
    blocks = free_bytes // found.f_frsize

    def fstatvfs(fd: int) -> os.statvfs_result:
        return os.statvfs_result((*found[:4], blocks, *found[5:]))

    def posix_fallocate(fd: int, offset: int, size: int) -> None:
        asked.append(size)

    monkeypatch.setattr(os, "fstatvfs", fstatvfs)
    monkeypatch.setattr(os, "posix_fallocate", posix_fallocate)
    with pytest.raises(OSError, match="No space left on device"):
        disk.map("log", 4 << 20, create=True)
    assert (asked, disk.exists("log")) == ([], False)
    disk.map("log", 2 << 20, create=True).close()
    assert asked == [2 << 20]
    found, blocks = os.statvfs_result((*found[:2], 0, *found[3:])), 0
    disk.map("unknown", 4 << 20, create=True).close()
    assert asked[1:] == [4 << 20], "a file system that does not tell its size, as a tmpfs without a limit"


def test_a_file_system_without_reservation_still_works(
    host: tuple[HostDisk, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, root = host

    def unsupported(fd: int, offset: int, size: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "posix_fallocate", unsupported)
    region = disk.map("m", 1 << 20, create=True)
    region.write(5, b"x")
    region.close()
    assert (root / "m").stat().st_size == 1 << 20


def test_a_view_outlives_its_region(host: tuple[HostDisk, Path]) -> None:
    disk, _ = host
    region = disk.map("m", 4096, create=True)
    region.write(0, b"kept")
    view = region.view(0, 4)
    region.close()
    region.close()
    disk.remove("m")
    assert bytes(view) == b"kept"


def test_sync_may_run_beside_writes(host: tuple[HostDisk, Path]) -> None:
    disk, root = host
    region = disk.map("m", 1 << 20, create=True)
    failures: list[OSError] = []

    def flush() -> None:
        try:
            for _ in range(20):
                region.sync()
        except OSError as error:
            failures.append(error)

    thread = threading.Thread(target=flush)
    thread.start()
    for position in range(0, 1 << 20, 1024):
        region.write(position, struct.pack(">q", position) * 128)
    thread.join()
    region.sync()
    region.close()
    assert failures == []
    assert (root / "m").read_bytes() == b"".join(struct.pack(">q", at) * 128 for at in range(0, 1 << 20, 1024))


def test_a_failed_atomic_write_leaves_the_old_file(
    host: tuple[HostDisk, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, root = host
    disk.write_atomic("a", b"old")

    def broken(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="Input/output"):
        disk.write_atomic("a", b"new")
    assert disk.read("a") == b"old"
    assert [path.name for path in root.iterdir()] == ["a"]


def test_a_linked_directory_has_the_room_of_its_own_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Path] = []

    def disk_usage(place: Path) -> tuple[int, int, int]:
        asked.append(place)
        return 100, 60, 40

    monkeypatch.setattr(shutil, "disk_usage", disk_usage)
    root, elsewhere = tmp_path / "store", tmp_path / "elsewhere"
    elsewhere.mkdir()
    root.mkdir()
    (root / "commitlog").symlink_to(elsewhere)
    (root / "nowhere").symlink_to(tmp_path / "unmounted")
    disk = HostDisk(root)
    assert [disk.space(path) for path in ("", "commitlog", "none/yet", "nowhere")] == [(60, 40)] * 4
    assert asked == [root, root / "commitlog", root, root]


def test_boot_id_is_the_kernels(host: tuple[HostDisk, Path]) -> None:
    assert host[0].boot_id() == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_a_system_that_hides_its_boot_id_has_none(host: tuple[HostDisk, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_disk, "_BOOT_ID", host[1] / "hidden")
    assert host[0].boot_id() == ""


def test_nothing_waits_for_the_disk_before_the_first_sync_of_a_file_that_need_not_be_durable(
    host: tuple[HostDisk, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, root = host
    synced: list[str] = []

    def record(fd: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{fd}").readlink().relative_to(root)))

    monkeypatch.setattr(os, "fsync", record)
    monkeypatch.setattr(os, "fdatasync", record)
    region = disk.map("queues/T/0/f", 4096, create=True, reserve=False, durable=False)
    other = disk.map("queues/T/1/f", 4096, create=True, reserve=False, durable=False)
    region.write(0, b"x")
    assert synced == []
    region.sync()
    assert synced == ["queues/T/0/f", "queues/T/0", "queues/T", "queues", "."]
    synced.clear()
    region.sync()
    other.sync()
    assert synced == ["queues/T/0/f", "queues/T/1/f", "queues/T/1", "queues/T"]
    synced.clear()
    disk.map("queues/T/2/f", 4096, create=True)
    assert synced == ["queues/T/2/f", "queues/T/2", "queues/T"]


def test_files_and_directories_are_closed_to_others_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        disk = HostDisk(tmp_path / "root")
        disk.write_atomic("config/a", b"x")
        disk.map("log/b", 4096, create=True).close()
        disk.open_append("raft/c").close()
        release = disk.lock("d")
        assert release is not None
        release()
        tracer = HostTracer(str(tmp_path / "root" / "logs" / "deep" / "log"))
        tracer.event("x")
        tracer.close()
    finally:
        os.umask(before)
    for path in (tmp_path / "root").rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o750 if path.is_dir() else 0o640), path
    assert (tmp_path / "root").stat().st_mode & 0o777 == 0o750


def test_what_is_locked_is_written_there_or_nowhere(tmp_path: Path) -> None:
    """An operator moves the directory away, and another one comes in its place: as a mount that goes leaves it."""
    root, aside = tmp_path / "root", tmp_path / "aside"
    disk = HostDisk(root)
    disk.make_dirs("")
    release = disk.lock("lock")
    assert release is not None
    root.rename(aside)
    writes: list[Callable[[], object]] = [
        lambda: disk.write_atomic("a", b"x"),
        lambda: disk.map("b", 4096, create=True),
        lambda: disk.open_append("c/d"),
        lambda: disk.make_dirs("e"),
        lambda: disk.rename("lock", "f"),
    ]
    for write in writes:
        with pytest.raises(OSError, match="no longer the one that was opened"):
            write()
    assert not root.exists()
    assert disk.space()[1] > 0
    root.mkdir()
    for write in writes:
        with pytest.raises(OSError, match="no longer the one that was opened"):
            write()
    assert list(root.iterdir()) == []
    root.rmdir()
    aside.rename(root)
    disk.write_atomic("a", b"x")
    release()
    root.rename(aside)
    disk.write_atomic("a", b"y")
    assert (root / "a").read_bytes() == b"y", "who holds no lock makes what it needs"


def test_zeroing_needs_no_blocks(host: tuple[HostDisk, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that another program has written, page by page."""
    disk, root = host
    (root / "sparse").write_bytes(b"x" * 5000)
    os.truncate(root / "sparse", 1 << 20)

    def refused(fd: int, start: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refused)
    region = disk.map("sparse", 1 << 20, reserve=False)
    region.zero(100, 50_000)
    assert bytes(region.view(0, 6000)) == b"x" * 100 + bytes(5900)
    region.close()


def test_a_failed_write_of_a_small_file_names_it(host: tuple[HostDisk, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    disk, root = host

    def write(fd: int, data: memoryview) -> int:
        raise OSError(errno.EFBIG, "File too large")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="File too large") as refused:
        patch.setattr(os, "write", write)
        disk.write_atomic("config/topics.json", b"{}")
    assert refused.value.filename == str(root / "config/topics.json")


def test_a_new_file_that_cannot_be_made_durable_keeps_no_descriptor(
    host: tuple[HostDisk, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit of open files may leave one descriptor: the file has it, and its directory none. Who waits for room tries
    again each second."""
    disk, root = host
    (root / "raft").mkdir(parents=True)

    def sync(directory: Path) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    before = sorted(path.name for path in Path("/proc/self/fd").iterdir())
    with monkeypatch.context() as patch, pytest.raises(OSError, match="Too many open files"):
        patch.setattr("rmqha.host.disk.sync_directory", sync)
        disk.open_append("raft/new")
    assert sorted(path.name for path in Path("/proc/self/fd").iterdir()) == before
    assert not disk.exists("raft/new"), "the next call makes it durable"
