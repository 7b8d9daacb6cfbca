"""The disk of the operating system, under one root directory."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from itertools import count
from pathlib import Path
from threading import Lock

from rmqha.host.read_disk import FLOCK, OFD_SETLK, HostTree
from rmqha.model.offset import Buffer
from rmqha.port import AppendFile, MappedRegion

RESERVE_STEP_SHIFT = 16
RESERVE_STEP_BYTES = 1 << RESERVE_STEP_SHIFT
WORD_BYTES = 4
STAT_BLOCK_BYTES = 512
MAPPED_WRITE_BYTES = 4096
"""Size (bytes) from which a write uses pwrite: the first store into each mapped page costs a page fault (measured: 10
us for 4 KiB, 0.8 us by pwrite). Both use the same page cache."""
PROBE_BYTES = 256 * 1024
READ_AHEAD_STEP_BYTES = 4 * 1024 * 1024
"""Growth (bytes) of a file after which read-ahead is switched on for the new part."""
READ_AHEAD_JUMP_BYTES = 16 * 1024 * 1024
"""Distance (bytes) from the last write beyond which a write begins another part of the file, as the entries of an index
file do."""
FILE_MODE, DIRECTORY_MODE = 0o640, 0o750
"""Modes of files and directories: the owner may write, the group may read. A umask may only remove rights."""
RESERVE_NAME = "rmqha.reserve"
RESERVE_SIZE_BYTES = 1024 * 1024
LEAST_RESERVE_BYTES = 4096
"""Size (bytes) below which a reserve is not worth its inode."""
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a disk, or a quota, without a free block or inode."""
_ZEROS = memoryview(bytes(1 << 20))
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_GONE = "rmqha.gone"
"""Name of a directory that is being removed."""
_RWF_NOWAIT = 8
_NO_NOWAIT = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.EPERM)
"""Errors if the system lacks RWF_NOWAIT; EPERM comes from a container's seccomp filter that does not know the call."""
_NO_FALLOCATE = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
NOT_THE_SAME = "the directory is no longer the one that was opened: it was moved or removed, or its disk was unmounted"


def _reserve(fd: int, start: int, end: int) -> None:
    """Allocate blocks for [start, end), so that a full disk is an error here and not a SIGBUS at a later store into the
    mapping. On file systems without that call the file stays sparse."""
    try:
        os.posix_fallocate(fd, start, end - start)
    except OSError as error:
        if error.errno not in _NO_FALLOCATE:
            raise


def _refuse_too_little_room(fd: int, size_bytes: int) -> None:
    """Raise OSError (ENOSPC) if the file system has too little room for a file of this size. Without this check an
    allocation takes all free blocks before it fails, and no other file can grow meanwhile."""
    found = os.fstatvfs(fd)
    missing_bytes = size_bytes - os.fstat(fd).st_blocks * STAT_BLOCK_BYTES
    if found.f_blocks and missing_bytes > found.f_bavail * found.f_frsize:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def make_directories(directory: Path) -> None:
    """Create a directory and its missing parents, with DIRECTORY_MODE."""
    if not directory.is_dir():
        make_directories(directory.parent)
        directory.mkdir(mode=DIRECTORY_MODE, exist_ok=True)


def sync_directory(directory: Path) -> None:
    """Make the entries of a directory durable."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def directory_beside(directory: Path) -> Path:
    """A new empty directory on the disk of `directory`: beside it, or in it where it is the disk's root or nothing may
    be made beside it."""
    if directory.parent.stat().st_dev == directory.stat().st_dev:
        with suppress(PermissionError):
            return _numbered_directory(directory.parent, directory.name)
    return _numbered_directory(directory, directory.name)


def _numbered_directory(parent: Path, name: str) -> Path:
    for number in count(1):
        made = parent / f"{name}.{number}"
        with suppress(FileExistsError):
            made.mkdir(mode=DIRECTORY_MODE)
            sync_directory(parent)
            return made
    raise AssertionError("numbers do not end")


def _read_at_once(fd: int, position: int) -> None:
    """Read a byte without waiting for the disk. Raises BlockingIOError if it is not in memory, and OSError."""
    try:
        os.preadv(fd, [bytearray(1)], position, _RWF_NOWAIT)
    except NotImplementedError:
        # Python was built for systems without the call, as uv's and conda's are
        _libc_read_at_once()(fd, position)


@cache
def _libc_read_at_once() -> Callable[[int, int], None]:
    """Implementation of `_read_at_once` by the C library of this process. If that lacks the call too, as musl's, it
    raises OSError (ENOSYS)."""
    import ctypes

    call: Callable[..., int] | None = None
    with suppress(OSError):  # of a Python that is linked statically
        call = getattr(ctypes.CDLL(None, use_errno=True), "preadv64v2", None)

    def read(fd: int, position: int) -> None:
        if call is None:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        byte = ctypes.create_string_buffer(1)
        parts = (ctypes.c_size_t * 2)(ctypes.addressof(byte), 1)
        if call(fd, parts, 1, ctypes.c_int64(position), _RWF_NOWAIT) < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    return read


class _ReadAhead:
    """Advice to the system about one mapping: read data ahead, but not empty space. A file with holes that is opened
    again, such as the last one of each queue, gets no read-ahead for its present content: the end of its data is not
    known.

    The first store into a page that is not in memory reads this page and the disk's read-ahead, also where the file has
    no data. A read-ahead of 8 MiB takes 1 to 16 ms of a core. Without read-ahead a cold file is read one page at a
    time, twenty times as slowly.
    """

    __slots__ = ("_map", "_size_bytes", "_without_from", "next_at")

    def __init__(self, map_: mmap.mmap, size_bytes: int, *, is_sparse: bool) -> None:
        self._map = map_
        self._size_bytes = size_bytes
        self._without_from = -1
        """Position from which on there is no read-ahead, near the last write; -1: nothing was written yet."""
        self.next_at = 0
        """Position: `grew` must be called for a write that ends at or above it."""
        if is_sparse:
            self._advise(mmap.MADV_RANDOM, 0, size_bytes)

    def grew(self, position: int, end: int) -> None:
        """Advise anew before a write to [position, end)."""
        page = position & -mmap.PAGESIZE
        known = self._without_from
        if known < 0:
            self._advise(mmap.MADV_RANDOM, page, self._size_bytes - page)
        elif end == self._size_bytes and page - known <= READ_AHEAD_JUMP_BYTES:
            page = self._size_bytes
        if known < page <= known + READ_AHEAD_JUMP_BYTES and known >= 0:
            self._advise(mmap.MADV_NORMAL, known, page - known)
        self._without_from = max(known, page)
        self.next_at = self._without_from + READ_AHEAD_STEP_BYTES
        if self.next_at > self._size_bytes > self._without_from:
            self.next_at = self._size_bytes

    def _advise(self, advice: int, start: int, size_bytes: int) -> None:
        with suppress(OSError):  # a process may have too many mappings to divide one: it is advice only
            self._map.madvise(advice, start, size_bytes)


class HostRegion:
    """A mapped file. Writes go to the page cache; `sync` flushes them by descriptor, which does not hold the GIL."""

    __slots__ = ("_fd", "_map", "_read_ahead", "_unreserved", "_unsynced", "_view", "size_bytes")

    def __init__(self, fd: int, size_bytes: int, *, reserved: bool, unsynced: list[Path]) -> None:
        self._fd = fd
        self._unsynced = unsynced
        """Directories whose entries must be synced: the file, or a directory above it, is new there."""
        self.size_bytes = size_bytes
        self._map = mmap.mmap(fd, size_bytes)
        is_sparse = os.fstat(fd).st_blocks * STAT_BLOCK_BYTES < size_bytes
        self._read_ahead = _ReadAhead(self._map, size_bytes, is_sparse=is_sparse)
        self._view = memoryview(self._map)
        self._unreserved = bytearray(b"" if reserved else b"\1" * -(-size_bytes // RESERVE_STEP_BYTES))
        """1 for each RESERVE_STEP_BYTES of the file that may have no blocks yet; empty if all have."""

    def write(self, position: int, data: Buffer) -> None:
        end = position + len(data)
        steps = self._unreserved
        if steps and (
            steps[position >> RESERVE_STEP_SHIFT]
            or steps[end - 1 >> RESERVE_STEP_SHIFT]
            or end - position > RESERVE_STEP_BYTES
        ):
            self._reserve_steps(position, end)
        if end >= self._read_ahead.next_at:
            self._read_ahead.grew(position, end)
        if end - position < MAPPED_WRITE_BYTES:
            self._map[position:end] = data
        else:
            rest = memoryview(data)
            while rest:
                written = os.pwrite(self._fd, rest, position)
                position += written
                rest = rest[written:]

    def zero(self, position: int, size_bytes: int) -> None:
        """Write zeros where the file has data: no block is reserved, as in a file that another program has written."""
        behind = position + size_bytes
        for start, end in self.data_ranges(position):
            at, stop = max(start, position), min(end, behind)
            while at < stop:
                at += os.pwrite(self._fd, _ZEROS[: stop - at], at)

    def write_words(
        self, positions: Sequence[int], words: bytes, put: Callable[[memoryview, Sequence[int], bytes], None]
    ) -> None:
        steps, shift = self._unreserved, RESERVE_STEP_SHIFT
        if steps and positions and any(steps[min(positions) >> shift : (max(positions) >> shift) + 1]):
            for step in {position >> shift for position in positions}:
                self._reserve_steps(step << shift, (step << shift) + WORD_BYTES)
        put(self._view, positions, words)

    def _reserve_steps(self, position: int, end: int) -> None:
        steps = self._unreserved
        first, behind = position >> RESERVE_STEP_SHIFT, (end - 1 >> RESERVE_STEP_SHIFT) + 1
        if any(steps[first:behind]):
            stop = min(self.size_bytes, behind << RESERVE_STEP_SHIFT)
            _reserve(self._fd, first << RESERVE_STEP_SHIFT, stop)
            steps[first:behind] = bytes(behind - first)

    def view(self, position: int, size_bytes: int) -> memoryview:
        return self._view[position : position + size_bytes]

    def data_ranges(self, position: int) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        try:
            while position < self.size_bytes:
                start = os.lseek(self._fd, position, os.SEEK_DATA)
                position = os.lseek(self._fd, start, os.SEEK_HOLE)
                found.append((start, position))
        except OSError as error:
            if error.errno in _NO_FALLOCATE:
                return [(position, self.size_bytes)]
            if error.errno != errno.ENXIO:
                raise
        return found

    def probe(self, position: int, size_bytes: int) -> int:
        # pread returns b"" behind the end of a file that another program has cut: that is no read error
        return len(os.pread(self._fd, min(size_bytes, PROBE_BYTES), position)) or size_bytes

    def is_in_memory(self, position: int, size_bytes: int) -> bool:
        last = position + size_bytes - 1
        try:
            _read_at_once(self._fd, position)
            if position // mmap.PAGESIZE != last // mmap.PAGESIZE:
                _read_at_once(self._fd, last)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in _NO_NOWAIT:
                raise
        return True

    def loader(self, position: int, size_bytes: int) -> Callable[[], None]:
        return _Loader(os.dup(self._fd), position, size_bytes)

    def sync(self) -> None:
        os.fdatasync(self._fd)
        while self._unsynced:
            sync_directory(self._unsynced[-1])
            self._unsynced.pop()

    def close(self) -> bool:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        try:
            self._view.release()
            self._map.close()
        except BufferError:
            return False
        return True


class _Loader:
    """Function that reads a range of a file once, through its own descriptor; that is closed also if it is never
    called."""

    def __init__(self, fd: int, position: int, size_bytes: int) -> None:
        self._fd = fd
        self._position = position
        self._end = position + size_bytes

    def __call__(self) -> None:
        try:
            at = self._position
            while at < self._end:
                # up to a bad sector it gives less than it was asked for, and at the sector the error
                at += len(os.pread(self._fd, min(PROBE_BYTES, self._end - at), at)) or self._end - at
        finally:
            self._close()

    def __del__(self) -> None:
        self._close()

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class HostAppendFile:
    """A file opened for writing at its end."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._size_bytes = os.fstat(fd).st_size

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def append(self, data: Buffer) -> None:
        rest = memoryview(data)
        while rest:
            written = os.write(self._fd, rest)
            self._size_bytes += written
            rest = rest[written:]

    def truncate(self, size_bytes: int) -> None:
        os.ftruncate(self._fd, size_bytes)
        self._size_bytes = size_bytes

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class SpaceReserve:
    """Space that a locked directory keeps for its small files: tables, epochs, the boot file, a controller's overrides.
    A frame of a controller's log, such as a vote, has no part in it.

    They are replaced as wholes, so each write needs a free block and a free inode, even where the new content is no
    longer than the old. On a full disk the reserve file is removed for the time of the write: what the old content held
    is free afterwards, and the reserve is made again of it. Threads may use it at the same time."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / RESERVE_NAME
        self._guard = Lock()
        self._is_whole = False

    def keep(self) -> None:
        """Make the file, or make it larger, unless it is whole."""
        if not self._is_whole:
            with self._guard:
                self._make()

    @contextmanager
    def released(self) -> Iterator[bool]:
        """Release the space within the block: True unless there was none."""
        with self._guard:
            self._is_whole = False
            try:
                released_bytes = self._path.lstat().st_blocks * STAT_BLOCK_BYTES
                self._path.unlink()
            except FileNotFoundError:
                yield False
                return
            try:
                yield True
            finally:
                self._make(released_bytes)

    def _make(self, released_bytes: int = 0) -> None:
        with suppress(OSError):  # the disk is full, or was made read-only: the next write tries again
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)
            try:
                size_bytes = _allocate_reserve(fd, released_bytes)
            finally:
                os.close(fd)
            self._is_whole = size_bytes >= RESERVE_SIZE_BYTES
            if size_bytes < LEAST_RESERVE_BYTES:
                self._path.unlink()


def _allocate_reserve(fd: int, released_bytes: int) -> int:
    """Allocate blocks for the reserve: half of those that are free, so that other files can still grow, but as many as
    were just released. Returns its size (bytes)."""
    own_bytes = os.fstat(fd).st_blocks * STAT_BLOCK_BYTES
    room_bytes = own_bytes + _free_bytes(fd)
    size_bytes = min(RESERVE_SIZE_BYTES, room_bytes, max(released_bytes, room_bytes // 2))
    while size_bytes >= LEAST_RESERVE_BYTES and size_bytes > own_bytes:
        try:
            os.posix_fallocate(fd, 0, size_bytes)
            return size_bytes
        except OSError as error:
            if error.errno not in _NO_SPACE:
                raise
            os.ftruncate(fd, own_bytes)
        if own_bytes >= LEAST_RESERVE_BYTES:
            break  # one try a write
        size_bytes //= 2  # the file system needs blocks of its own, or a quota allows less
    return own_bytes


def _free_bytes(fd: int) -> int:
    """Free space (bytes). An allocation of more would take all of it for a moment before it fails."""
    found = os.fstatvfs(fd)
    if not found.f_blocks:
        return RESERVE_SIZE_BYTES  # the file system does not tell
    return found.f_frsize * (found.f_bavail if os.geteuid() else found.f_bfree)


class HostDisk(HostTree):
    """Files below a root directory. Implements `rmqha.port.Disk`. The first write creates the root. From `lock` on the
    root must stay the same directory: if it is moved away or unmounted, no new one is created in its place. From then
    on `write_atomic` also succeeds on a full disk, as far as the space reserve goes."""

    _locked_root: os.stat_result | None = None
    _space_reserve: SpaceReserve | None = None

    def _make_parent(self, path: Path) -> None:
        """Make the directories above `path`; each new one is durable in its own parent."""
        for directory in self._make_directories(path):
            sync_directory(directory)

    def _make_directories(self, path: Path) -> list[Path]:
        """Make the directories above `path`; returns the parents of the new ones, which must be synced."""
        self._refuse_other_root()
        missing = []
        parent = path.parent
        while not parent.is_dir():
            missing.append(parent)
            parent = parent.parent
        for directory in reversed(missing):
            directory.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
        return [directory.parent for directory in reversed(missing)]

    def _refuse_other_root(self) -> None:
        known = self._locked_root
        if known is None:
            return
        try:
            is_same = os.path.samestat(known, self._root.stat())
        except FileNotFoundError:
            is_same = False
        if not is_same:
            raise OSError(errno.ESTALE, NOT_THE_SAME)

    def size_bytes(self, path: str) -> int:
        found = self._at(path).stat()
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, "Is a directory")
        return found.st_size

    def modified_at_ms(self, path: str) -> int:
        return self._at(path).stat().st_mtime_ns // 1_000_000

    def read(self, path: str) -> bytes:
        return self._at(path).read_bytes()

    def write_atomic(self, path: str, data: Buffer) -> None:
        reserve = self._space_reserve
        try:
            self._replace(path, data)
        except OSError as error:
            if reserve is None or error.errno not in _NO_SPACE:
                raise
            with reserve.released() as has_space:
                if not has_space:
                    raise
                self._replace(path, data)
            return
        if reserve is not None:
            reserve.keep()

    def _replace(self, path: str, data: Buffer) -> None:
        target = self._at(path)
        self._make_parent(target)
        temporary = target.with_name(target.name + ".tmp")
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(fd, rest) :]
            os.fsync(fd)
        except BaseException as error:
            temporary.unlink(missing_ok=True)
            if isinstance(error, OSError):
                error.filename = str(target)  # a failed write names no file by itself
            raise
        finally:
            os.close(fd)
        temporary.replace(target)
        sync_directory(target.parent)

    def map(
        self, path: str, size_bytes: int, *, create: bool = False, reserve: bool = True, durable: bool = True
    ) -> MappedRegion:
        target = self._at(path)
        unsynced = self._make_directories(target) if create else []
        fd = os.open(target, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), FILE_MODE)
        fresh = False
        try:
            found = os.fstat(fd).st_size
            if found > size_bytes:
                raise ValueError(f"{target} has {found} bytes, more than {size_bytes}")
            fresh = found == 0
            if found < size_bytes:
                if reserve:
                    _refuse_too_little_room(fd, size_bytes)
                    _reserve(fd, 0, size_bytes)
                os.ftruncate(fd, size_bytes)
                unsynced.append(target.parent)
            region = HostRegion(fd, size_bytes, reserved=reserve and fresh, unsynced=unsynced)
            if durable and unsynced:
                region.sync()
            return region
        except BaseException:
            os.close(fd)
            if create and fresh:
                target.unlink(missing_ok=True)  # the next call must make it durable
            raise

    def open_append(self, path: str) -> AppendFile:
        target = self._at(path)
        self._make_parent(target)
        fresh = not target.exists()
        fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, FILE_MODE)
        try:
            if fresh:
                sync_directory(target.parent)
            return HostAppendFile(fd)
        except BaseException:
            os.close(fd)
            if fresh:
                target.unlink(missing_ok=True)  # the next call must make it durable
            raise

    def rename(self, old_path: str, new_path: str) -> None:
        old, new = self._at(old_path), self._at(new_path)
        self._make_parent(new)
        old.rename(new)
        sync_directory(new.parent)
        if old.parent != new.parent:
            sync_directory(old.parent)

    def set_aside(self, path: str, new_path: str) -> None:
        old, new = self._at(path), self._at(new_path)
        if not old.is_symlink():
            self.rename(path, new_path)
            return
        self._make_parent(new)
        new.symlink_to(old.resolve())
        sync_directory(new.parent)
        link = old.with_name(f"rmqha.{old.name}")
        link.unlink(missing_ok=True)  # a crash left it
        link.symlink_to(directory_beside(old.resolve()))
        link.replace(old)
        sync_directory(old.parent)

    def is_mount_point(self, path: str) -> bool:
        target = self._at(path)
        return not target.is_symlink() and target.is_mount()

    def remove(self, path: str) -> None:
        target = self._at(path)
        target.unlink()
        sync_directory(target.parent)

    def remove_tree(self, path: str) -> None:
        if not self._at(path).is_dir():
            return
        gone = self._at(_GONE)
        if gone.exists():
            shutil.rmtree(gone)  # a crash left it
        self.rename(path, _GONE)
        shutil.rmtree(gone)

    def make_dirs(self, path: str) -> None:
        self._make_parent(self._at(path) / "x")

    def lock(self, path: str) -> Callable[[], None] | None:
        """Take an open-file-description lock. It excludes Java's process-owned lock on the same byte. Unlike that kind
        it also excludes a second opener in this process, and survives the closing of other descriptors."""
        fd = os.open(self._at(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            wanted = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
            try:
                fcntl.fcntl(fd, OFD_SETLK, wanted)
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    raise
                os.close(fd)
                return None
            if os.fstat(fd).st_size == 0:
                os.write(fd, b"lock")
            # held open, else another directory could get its inode number
            root = os.open(self._root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except BaseException:
            os.close(fd)
            raise
        self._locked_root = os.fstat(root)
        self._space_reserve = SpaceReserve(self._root)
        self._space_reserve.keep()

        def release() -> None:
            self._locked_root = self._space_reserve = None
            os.close(root)
            os.close(fd)

        return release

    def usage(self, path: str = "") -> tuple[int, int, int]:
        """(total, used, usable) bytes of the file system that `path` lies on, or will."""
        existing = self._at(path)
        while not existing.exists():
            existing = existing.parent
        return shutil.disk_usage(existing)

    def space(self, path: str = "") -> tuple[int, int]:
        _, used, free = self.usage(path)
        return used, free

    def boot_id(self) -> str:
        with suppress(FileNotFoundError):  # a sandbox (ProcSubset=pid of systemd) hides all of /proc but processes
            return _BOOT_ID.read_text("ascii").strip()
        return ""
