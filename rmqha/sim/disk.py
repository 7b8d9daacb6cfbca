"""A disk in memory that loses data and fails as real disks do, from one seed.

A file has content as the running system sees it (the page cache) and content that is durable. A kill keeps the former.
A loss of power keeps, for each 512-byte sector written since the last sync, the old or the new bytes by chance; so
writes are lost, torn and reordered. `write_atomic`, `rename`, `remove` and the creation of a file are durable on
return, as `rmqha.port.Disk` says, but for `map(durable=False)`: such a file may be gone until it is synced.

A disk may also lie: `forgetting_syncs` fail and leave their pages clean (Linux), `lying_syncs` return and have lost or
misdirected a sector. The cache shows what was written until `drop_cache` or a loss of power.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Container, Sequence

from rmqha.model.offset import Buffer
from rmqha.port import Clock, Prng

SECTOR_BYTES = 512
_ZEROS = bytes(4096)


class DiskStopped(BaseException):
    """Raised at the operation chosen by `SimDisk.stop_after`: nothing after it happens until `crash`.

    It is no Exception, because the machine stops there: no code may handle it as an error of the disk."""


class _File:
    """One file. `content`: the page cache; `durable`: the content of the medium."""

    __slots__ = ("bad_sectors", "content", "dirty", "durable", "modified_at_ms", "named", "unlike")

    def __init__(self, data: Buffer, modified_at_ms: int) -> None:
        self.content = bytearray(data)
        self.durable = bytearray(data)
        self.dirty: list[tuple[int, int]] = []
        self.modified_at_ms = modified_at_ms
        self.bad_sectors: set[int] = set()
        self.named = True
        """True if the file's directory entry is durable."""
        self.unlike: list[tuple[int, int]] = []
        """Ranges [start, end) that are clean in the cache but differ on the medium."""

    def copy(self) -> _File:
        made = _File(b"", self.modified_at_ms)
        made.content, made.durable = bytearray(self.content), bytearray(self.durable)
        made.dirty, made.unlike = list(self.dirty), list(self.unlike)
        made.bad_sectors, made.named = set(self.bad_sectors), self.named
        return made

    def sync(self) -> None:
        self.named = True
        if self.unlike:
            self._write_back(())
            return
        if len(self.durable) != len(self.content):
            self.durable = bytearray(self.content)
        for start, end in self.dirty:
            self.durable[start:end] = self.content[start:end]
        self.dirty.clear()

    def _dirty_sectors(self) -> list[int]:
        return sorted({index for start, end in self.dirty for index in range(start // 512, -(-end // 512))})

    def _write_back(self, lost: Container[int]) -> None:
        """Write the dirty sectors to the medium, each as a whole, but not those in `lost`."""
        size = len(self.content)
        del self.durable[size:]
        self.durable.extend(bytes(size - len(self.durable)))
        for index in self._dirty_sectors():
            start, end = index * SECTOR_BYTES, min((index + 1) * SECTOR_BYTES, size)
            if index in lost:
                self.unlike.append((start, end))
            else:
                self.durable[start:end] = self.content[start:end]
        self.dirty.clear()
        self.unlike = [(start, end) for start, end in self.unlike if self.content[start:end] != self.durable[start:end]]

    def forget_dirty(self) -> None:
        """Fail a sync: nothing is written, and the pages are clean, so that the next sync writes nothing either."""
        self.unlike += self.dirty
        self.dirty.clear()

    def lie(self, prng: Prng, *, misdirects: bool) -> None:
        """Sync without an error, but lose one sector; if the disk `misdirects`, it may overwrite another sector of the
        file."""
        sectors = self._dirty_sectors()
        if not sectors:
            return
        self.named = True
        lost = sectors[prng.below(len(sectors))]
        self._write_back((lost,))
        size = len(self.content)
        count = -(-size // SECTOR_BYTES)
        if misdirects and count > 1 and prng.chance(1, 2):
            start, other = lost * SECTOR_BYTES, (lost + 1 + prng.below(count - 1)) % count * SECTOR_BYTES
            part = self.content[start : start + min(SECTOR_BYTES, size - max(start, other))]
            self.durable[other : other + len(part)] = part
            self.unlike.append((other, other + len(part)))

    def drop_cache(self) -> None:
        """Read the clean pages from the medium again."""
        if self.unlike:
            for start, end in self.unlike:
                part = self.durable[start:end]
                self.content[start:end] = part.ljust(min(end, len(self.content)) - start, b"\0")
            self.unlike.clear()

    def lose_power(self, prng: Prng) -> None:
        sectors = self._dirty_sectors()
        old, new = self.durable, self.content
        if len(old) != len(new):
            low, high = sorted((len(old), len(new)))
            size = low + prng.below(high - low + 1)
        else:
            size = len(old)
        survivor = bytearray(bytes(old[:size]).ljust(size, b"\0"))
        for index in sectors:
            if prng.chance(1, 2):
                start = index * SECTOR_BYTES
                part = new[start : min(start + SECTOR_BYTES, size)]
                survivor[start : start + len(part)] = part
        self.content, self.durable = survivor, bytearray(survivor)
        self.dirty.clear()
        self.unlike.clear()


class SimRegion:
    """A mapped file of a SimDisk."""

    __slots__ = ("_disk", "_file", "_generation", "_view", "size_bytes")

    def __init__(self, disk: SimDisk, file: _File) -> None:
        self._disk = disk
        self._file = file
        self._generation = disk.generation
        self._view = memoryview(file.content)
        self.size_bytes = len(file.content)

    def write(self, position: int, data: Buffer) -> None:
        assert self._generation == self._disk.generation, "a region of before the crash is written"
        size = len(data)
        end = position + size
        assert position >= 0 and end <= self.size_bytes, "a write leaves its region"
        disk = self._disk
        torn = None
        if disk.stop_after is None and not disk.failing:
            disk.operations += 1
        else:
            torn = disk.step("write", size)
        if torn is not None:
            end = position + torn
            data = memoryview(data)[:torn]
        if end > position:
            self._view[position:end] = data
            dirty = self._file.dirty
            if dirty and dirty[-1][1] == position:
                dirty[-1] = (dirty[-1][0], end)
            else:
                dirty.append((position, end))
        if torn is not None:
            raise DiskStopped

    def zero(self, position: int, size_bytes: int) -> None:
        self.write(position, bytes(size_bytes))

    def write_words(
        self, positions: Sequence[int], words: bytes, put: Callable[[memoryview, Sequence[int], bytes], None]
    ) -> None:
        for at, position in enumerate(positions):
            assert not position % 4, f"a word at {position}"
            self.write(position, words[4 * at : 4 * at + 4])

    def view(self, position: int, size_bytes: int) -> memoryview:
        view = self._view[position : position + size_bytes]
        return view.toreadonly() if self._disk.read_only_views else view

    def is_in_memory(self, position: int, size_bytes: int) -> bool:
        cold = self._disk.cold
        return cold is None or not cold.chance(1, 2)

    def loader(self, position: int, size_bytes: int) -> Callable[[], None]:
        assert position >= 0 and position + size_bytes <= self.size_bytes, "a read leaves its region"
        return lambda: None

    def data_ranges(self, position: int) -> list[tuple[int, int]]:
        """One range, up to the last byte that is not zero."""
        content = self._file.content
        used = len(content)
        while used >= len(_ZEROS) and content.startswith(_ZEROS, used - len(_ZEROS)):
            used -= len(_ZEROS)
        start = max(0, used - len(_ZEROS))
        used = start + len(content[start:used].rstrip(b"\0"))
        return [(position, used)] if position < used else []

    def probe(self, position: int, size_bytes: int) -> int:
        """Read one sector. Raises OSError for a bad one."""
        sector = position // SECTOR_BYTES
        if sector in self._file.bad_sectors:
            raise OSError(errno.EIO, "Input/output error")
        return min(size_bytes, (sector + 1) * SECTOR_BYTES - position)

    def sync(self) -> None:
        assert self._generation == self._disk.generation, "a region of before the crash is synced"
        self._disk.sync_file(self._file)

    def close(self) -> bool:
        """Do nothing: views stay valid."""
        return True


class SimAppendFile:
    """An append file of a SimDisk."""

    def __init__(self, disk: SimDisk, file: _File) -> None:
        self._disk = disk
        self._file = file
        self._generation = disk.generation

    @property
    def size_bytes(self) -> int:
        return len(self._file.content)

    def append(self, data: Buffer) -> None:
        assert self._generation == self._disk.generation, "a file of before the crash is written"
        torn = self._disk.step("write", len(data), grow=True)
        start = len(self._file.content)
        self._file.content += data if torn is None else memoryview(data)[:torn]
        self._file.dirty.append((start, len(self._file.content)))
        if torn is not None:
            raise DiskStopped

    def truncate(self, size_bytes: int) -> None:
        self._disk.step("write")
        del self._file.content[size_bytes:]
        self._file.content.extend(bytes(size_bytes - len(self._file.content)))
        self._file.dirty = [(start, min(end, size_bytes)) for start, end in self._file.dirty if start < size_bytes]

    def sync(self) -> None:
        assert self._generation == self._disk.generation, "a file of before the crash is synced"
        self._disk.sync_file(self._file)

    def close(self) -> None:
        """Do nothing: there is no descriptor."""


class SimDisk:
    """Disk of one simulated host. Faults are switched on by attributes; all chance comes from `prng`. Implements
    `rmqha.port.Disk`."""

    def __init__(self, prng: Prng, *, label: str = "sim", clock: Clock | None = None) -> None:
        self._prng = prng
        self._clock = clock
        self._label = label
        self._files: dict[str, _File] = {}
        self._directories: set[str] = set()
        self._locked: set[str] = set()
        self._boots = 1
        self.generation = 0
        self.operations = 0
        """Number of operations so far that change something."""
        self.stop_after: int | None = None
        """Number of the operation at which to stop (DiskStopped); a write is torn there at a random byte."""
        self.capacity_bytes: int | None = None
        """Sum of file sizes (bytes) above which an operation fails with ENOSPC; None: no bound."""
        self.failing: frozenset[str] = frozenset()
        """Kinds of operations that fail with EIO: "read", "write", "sync", "create", "rename", "remove"."""
        self.forgetting_syncs = 0
        """Number of next syncs with dirty pages that fail and leave the pages clean."""
        self.lying_syncs = 0
        """Number of next syncs with dirty pages that return without an error, but lose or misdirect a sector."""
        self.misdirects = True
        """True if a sector that such a sync loses may overwrite another one of the file."""
        self.used_bytes = 0
        self.watch: Callable[[], None] | None = None
        """Called before every change except a write to a mapped region, within the call that makes it."""
        self.hang: Callable[[], None] | None = None
        """Called before every such change too. It may block; the disk hangs until it returns."""
        self.cold: Prng | None = None
        """Random numbers by which each `is_in_memory` returns False for every second call; None: it is always True."""
        self.read_only_views = True
        """True if views are read-only. PyPy is slow with those: it copies the whole view at each access to a part."""

    # --- faults -----------------------------------------------------------------------------------------------------
    def step(self, kind: str, size_bytes: int = 0, *, grow: bool = False) -> int | None:
        """Count a change, and raise its fault. Returns the number of bytes of a write that are written before the stop,
        None for all."""
        if self.watch is not None:
            self.watch()
        if self.hang is not None:
            self.hang()
        self.operations += 1
        if self.stop_after is not None and self.operations >= self.stop_after:
            if kind == "write" and size_bytes and self.operations == self.stop_after:
                return self._prng.below(size_bytes + 1)
            raise DiskStopped
        if kind in self.failing:
            raise OSError(errno.EIO, "Input/output error")
        if grow or kind == "create":
            self._take_space(size_bytes)
        return None

    def _take_space(self, size_bytes: int) -> None:
        if self.capacity_bytes is not None and self.used_bytes + size_bytes > self.capacity_bytes:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.used_bytes += size_bytes

    def sync_file(self, file: _File) -> None:
        self.step("sync")
        if file.dirty and self.forgetting_syncs:
            self.forgetting_syncs -= 1
            file.forget_dirty()
            raise OSError(errno.EIO, "Input/output error")
        if file.dirty and self.lying_syncs:
            self.lying_syncs -= 1
            file.lie(self._prng, misdirects=self.misdirects)
        file.sync()

    def crash(self, *, power_loss: bool) -> None:
        """Kill the process, with `power_loss` the machine too. Locks are released, and old regions must not be used."""
        self.generation += 1
        self.stop_after = None
        self._locked.clear()
        if power_loss:
            self._boots += 1
            for path in sorted(self._files):
                file = self._files[path]
                if not file.named and self._prng.chance(1, 2):
                    self.used_bytes -= len(file.content)
                    del self._files[path]
                    continue
                file.lose_power(self._prng)
                file.named = True
        else:
            # old views must not see what comes later
            for file in self._files.values():
                file.content = bytearray(file.content)

    def copy(self, prng: Prng) -> SimDisk:
        """Copy of this disk, with cached and durable content but without faults; changes of one do not affect the
        other."""
        made = SimDisk(prng, label=self._label, clock=self._clock)
        made._files = {path: file.copy() for path, file in self._files.items()}
        made._directories = set(self._directories)
        made._boots, made.used_bytes, made.read_only_views = self._boots, self.used_bytes, self.read_only_views
        return made

    def rot(self, path: str, position: int, mask: int = 0xFF) -> None:
        """Flip bits of one byte, in memory and on the medium."""
        file = self._files[path]
        file.content[position] ^= mask
        if position < len(file.durable):
            file.durable[position] ^= mask

    def rot_sector(self, path: str, prng: Prng) -> int:
        """Damage a random sector: flip one bit, fill it with zeros, or copy another sector of the file over it (a
        misdirected or stale write). Returns the sector's position."""
        file = self._files[path]
        size = len(file.content)
        count = -(-size // SECTOR_BYTES)
        start = prng.below(count) * SECTOR_BYTES
        length = min(SECTOR_BYTES, size - start)
        kind = prng.below(3)
        if kind == 0:
            self.rot(path, start + prng.below(length), 1 << prng.below(8))
            return start
        source = prng.below(count) * SECTOR_BYTES
        new = bytes(length) if kind == 1 else bytes(file.content[source : source + length]).ljust(length, b"\0")
        file.content[start : start + length] = new
        part = file.durable[start : start + length]
        file.durable[start : start + len(part)] = new[: len(part)]
        return start

    def drop_cache(self) -> None:
        """Drop the page cache: from now on the content of the medium is read, also where a sync has failed or lied."""
        for file in self._files.values():
            file.drop_cache()

    def paths(self) -> list[str]:
        """Paths of files with content, in order."""
        return sorted(path for path, file in self._files.items() if file.content)

    def spoil(self, path: str, position: int) -> None:
        """Make the sector of the byte at `position` unreadable."""
        self._files[path].bad_sectors.add(position // SECTOR_BYTES)

    # --- the port ---------------------------------------------------------------------------------------------------
    @property
    def label(self) -> str:
        return self._label

    def _stamp(self) -> int:
        return self._clock.wall_ms() if self._clock is not None else 0

    def _file(self, path: str) -> _File:
        file = self._files.get(path)
        if file is None:
            if self._is_directory(path):
                raise IsADirectoryError(errno.EISDIR, "Is a directory")
            raise FileNotFoundError(errno.ENOENT, "No such file or directory")
        if "read" in self.failing:
            raise OSError(errno.EIO, "Input/output error")
        return file

    def _is_directory(self, path: str) -> bool:
        return path in self._directories or any(name.startswith(f"{path}/") for name in self._files)

    def exists(self, path: str) -> bool:
        return path in self._files or self._is_directory(path)

    def list(self, path: str) -> list[str]:
        if path in self._files:
            raise NotADirectoryError(errno.ENOTDIR, "Not a directory")
        prefix = f"{path}/" if path else ""
        names = {name[len(prefix) :].partition("/")[0] for name in self._files if name.startswith(prefix)}
        names |= {name[len(prefix) :].partition("/")[0] for name in self._directories if name.startswith(prefix)}
        return sorted(names - {""})

    def size_bytes(self, path: str) -> int:
        return len(self._file(path).content)

    def modified_at_ms(self, path: str) -> int:
        return self._file(path).modified_at_ms

    def read(self, path: str) -> bytes:
        file = self._file(path)
        if file.bad_sectors:
            raise OSError(errno.EIO, "Input/output error")
        return bytes(file.content)

    def write_atomic(self, path: str, data: Buffer) -> None:
        if self._is_directory(path):
            raise IsADirectoryError(errno.EISDIR, "Is a directory")
        old = self._files.get(path)
        self.step("create", max(0, len(data) - (len(old.content) if old else 0)))
        self._files[path] = _File(data, self._stamp())

    def map(
        self, path: str, size_bytes: int, *, create: bool = False, reserve: bool = True, durable: bool = True
    ) -> SimRegion:
        file = self._files.get(path)
        if file is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory")
            self.step("create", size_bytes)
            file = self._files[path] = _File(bytes(size_bytes), self._stamp())
            if not durable:
                file.named = False
                file.durable = bytearray()
        elif len(file.content) > size_bytes:
            raise ValueError(f"{path} has {len(file.content)} bytes, more than {size_bytes}")
        elif len(file.content) < size_bytes:
            self.step("create", size_bytes - len(file.content))
            file.content = bytearray(bytes(file.content).ljust(size_bytes, b"\0"))
            file.durable = bytearray(bytes(file.durable).ljust(size_bytes, b"\0"))
        return SimRegion(self, file)

    def open_append(self, path: str) -> SimAppendFile:
        if path not in self._files:
            self.step("create")
            self._files[path] = _File(b"", self._stamp())
        return SimAppendFile(self, self._files[path])

    def rename(self, old_path: str, new_path: str) -> None:
        if not self.exists(old_path):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory")
        self.step("rename")
        if old_path in self._files:
            self._files[new_path] = self._files.pop(old_path)
            return
        for name in [name for name in self._files if name.startswith(f"{old_path}/")]:
            self._files[new_path + name[len(old_path) :]] = self._files.pop(name)
        moved = {name for name in self._directories if name == old_path or name.startswith(f"{old_path}/")}
        self._directories = (self._directories - moved) | {new_path + name[len(old_path) :] for name in moved}

    def set_aside(self, path: str, new_path: str) -> None:
        self.rename(path, new_path)

    def is_mount_point(self, path: str) -> bool:
        return False

    def remove(self, path: str) -> None:
        file = self._file(path)
        self.step("remove")
        self.used_bytes -= len(file.content)
        del self._files[path]

    def remove_tree(self, path: str) -> None:
        if not self._is_directory(path):
            return
        self.step("rename")
        for name in [name for name in self._files if name.startswith(f"{path}/")]:
            self.used_bytes -= len(self._files.pop(name).content)
        self._directories -= {name for name in self._directories if f"{name}/".startswith(f"{path}/")}

    def make_dirs(self, path: str) -> None:
        if path:
            self._directories.add(path)

    def lock(self, path: str) -> Callable[[], None] | None:
        if path in self._locked:
            return None
        if path not in self._files:
            self.step("create")
            self._files[path] = _File(b"lock", self._stamp())
        self._locked.add(path)
        generation = self.generation

        def release() -> None:
            if self.generation == generation:
                self._locked.discard(path)

        return release

    def space(self, path: str = "") -> tuple[int, int]:
        capacity_bytes = 1 << 40 if self.capacity_bytes is None else self.capacity_bytes
        return self.used_bytes, max(0, capacity_bytes - self.used_bytes)

    def boot_id(self) -> str:
        return f"boot-{self._boots}"
