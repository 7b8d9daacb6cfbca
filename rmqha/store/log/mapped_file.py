"""Data plane: a run of files of one fixed size, each named by the offset at which it starts, as if it were one file.

The CommitLog is one such run, every ConsumeQueue is one (formats.md §1). Files are mapped when first touched.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from itertools import pairwise

from rmqha.model.error import StoreError
from rmqha.port import Disk, MappedRegion
from rmqha.store.meta.problem import damaged, disk_errors, os_sentence, place, room_errors

NAME_DIGITS = 20
MAX_OFFSET = 2**63 - 1
_ZEROS = bytes(1 << 20)


def nothing() -> None:
    """Do nothing: the loader of a range that is in memory."""


def file_name(start_offset: int) -> str:
    return f"{start_offset:0{NAME_DIGITS}d}"


def other_size(disk: Disk, path: str, size_bytes: int, key: str, key_bytes: int) -> StoreError:
    return StoreError(
        f"{place(disk, path)} has {size_bytes} bytes, but {key} is {key_bytes};"
        f" set the key to the size that the store was made with"
    )


def find_queues(disk: Disk, directory: str) -> tuple[list[tuple[str, int]], list[str]]:
    """(topic, queue id) of each directory two levels below `directory`, and one sentence for each name that is none."""
    found, lines = list[tuple[str, int]](), list[str]()
    with disk_errors(disk, directory, "list the directory"):
        topics = disk.list(directory)
    for topic in topics:
        for name in _names(disk, f"{directory}/{topic}", lines):
            path = f"{directory}/{topic}/{name}"
            is_id = name.isascii() and name.isdigit() and len(name) <= 10 and str(int(name)) == name
            if not is_id:
                lines.append(f"{path} is not one of the store's files and is left alone.")
            elif _names(disk, path, lines):
                found.append((topic, int(name)))
    return found, lines


def _names(disk: Disk, directory: str, lines: list[str]) -> list[str]:
    try:
        with disk_errors(disk, directory, "list the directory"):
            return disk.list(directory)
    except StoreError as error:
        if not isinstance(error.__cause__, NotADirectoryError):
            raise
        lines.append(f"{directory} is not one of the store's files and is left alone.")
        return []


def check_sizes(
    disk: Disk, directory: str, queues: Iterable[tuple[str, int]], key: str, file_size_bytes: int, unit_bytes: int
) -> None:
    """Raise StoreError if the files of `queues` below `directory` were made with another `file_size_bytes`: all have
    one size that is not this one. A single short file may have been cut short by a crash."""
    sizes: dict[int, str] = {}
    count = 0
    for topic, queue_id in queues:
        for name in disk.list(f"{directory}/{topic}/{queue_id}"):
            if _is_offset(name):
                path = f"{directory}/{topic}/{queue_id}/{name}"
                with disk_errors(disk, path, "read its size"):
                    sizes[disk.size_bytes(path)] = path
                count += 1
    if len(sizes) == 1 and file_size_bytes not in sizes:
        ((size_bytes, path),) = sizes.items()
        if size_bytes and size_bytes % unit_bytes == 0 and (count > 1 or size_bytes > file_size_bytes):
            raise other_size(disk, path, size_bytes, key, file_size_bytes)


def _is_offset(name: str) -> bool:
    return len(name) == NAME_DIGITS and name.isascii() and name.isdigit()


class MappedFile:
    """One file of a run; `start_offset` is its name."""

    __slots__ = ("_disk", "_region", "_reserve", "end_offset", "path", "start_offset")

    def __init__(self, disk: Disk, path: str, start_offset: int, size_bytes: int, *, reserve: bool) -> None:
        self._disk = disk
        self._reserve = reserve
        self.path = path
        self.start_offset = start_offset
        self.end_offset = start_offset + size_bytes
        self._region: MappedRegion | None = None

    @property
    def region(self) -> MappedRegion:
        """The mapped file; it is created if missing."""
        return self.open() if self._region is None else self._region

    def open(self, *, durable: bool = True) -> MappedRegion:
        """Map it, made if missing: without `durable` it waits for the first `sync`."""
        size_bytes = self.end_offset - self.start_offset
        with disk_errors(self._disk, self.path, f"create or map a file of {size_bytes} bytes"):
            region = self._disk.map(self.path, size_bytes, create=True, reserve=self._reserve, durable=durable)
        self._region = region
        return region

    def probe(self, from_offset: int, to_offset: int, choices: str) -> None:
        """Read what was ever written in [from, to): a bad sector is a StoreError with `choices` here, where a read
        through the mapping would end the process."""
        base, stop = self.start_offset, min(to_offset, self.end_offset) - self.start_offset
        at = from_offset - base
        try:
            for start, end in [(at, stop)] if stop - at <= len(_ZEROS) else self.region.data_ranges(at):
                at, end = start, min(end, stop)
                while at < end:
                    at += self.region.probe(at, end - at)
        except OSError as error:
            if error.errno != errno.EIO:
                raise StoreError(os_sentence(self._disk, self.path, "read the file", error)) from error
            raise damaged(self._disk, self.path, at, "bytes", "an input/output error of the disk", choices) from error

    def used_end(self, from_offset: int) -> int:
        """The offset behind the last byte that is not zero, `from_offset` if none from there on is."""
        used_end, base = from_offset, self.start_offset
        with disk_errors(self._disk, self.path, "read the file"):
            for start, end in self.region.data_ranges(from_offset - base):
                for at in range(start, end, len(_ZEROS)):
                    content = bytes(self.region.view(at, min(len(_ZEROS), end - at)))
                    if content != _ZEROS and (used := content.rstrip(b"\0")):
                        used_end = base + at + len(used)
        return used_end

    def rewrite(self, from_offset: int, to_offset: int) -> None:
        """Write what is there once more; not durable yet."""
        with disk_errors(self._disk, self.path, "write the file"):
            for at in range(from_offset - self.start_offset, to_offset - self.start_offset, len(_ZEROS)):
                size_bytes = min(len(_ZEROS), to_offset - self.start_offset - at)
                self.region.write(at, bytes(self.region.view(at, size_bytes)))

    def zero(self, from_offset: int, to_offset: int) -> None:
        """Write zeros; not durable yet."""
        with disk_errors(self._disk, self.path, "write the file"):
            self.region.zero(from_offset - self.start_offset, to_offset - from_offset)

    def sync(self) -> None:
        if self._region is not None:
            with disk_errors(self._disk, self.path, "write to stable storage"):
                self._region.sync()

    def close(self) -> bool:
        """False while somebody holds a view; `close` may then be called again."""
        if self._region is not None and self._region.close():
            self._region = None
        return self._region is None


class MappedFiles:
    """The run of files in one directory, oldest first, without holes."""

    __slots__ = ("directory", "disk", "file_size_bytes", "files", "foreign_files", "reserve", "short_offset")

    def __init__(self, disk: Disk, directory: str, file_size_bytes: int, *, reserve: bool) -> None:
        self.disk = disk
        self.directory = directory
        self.file_size_bytes = file_size_bytes
        self.reserve = reserve
        self.files: list[MappedFile] = []
        self.foreign_files: list[str] = []
        """Names in the directory that are no file of the run; left alone."""
        self.short_offset: int | None = None
        """Offset at which the last file had ended before it was completed with zeros; None if it was whole."""

    def load(self, key: str, choices: str) -> list[str]:
        """Find the files on disk. `key` is the configuration key of their size. Returns one sentence per finding.

        The last file may be short if it is all zeros, as after a crash while it was made, or if the others tell that it
        was cut short; it is completed. Raises StoreError with `choices` for another size, for a hole in the run and for
        what is no file.
        """
        lines = self._find()
        sizes = [self._size(file) for file in self.files]
        for file, size in zip(self.files, sizes, strict=True):
            if size == self.file_size_bytes:
                continue
            told = self.file_size_bytes in sizes
            if size < self.file_size_bytes and file is self.files[-1] and (told or self._is_zero(file.path)):
                lines.append(self._completed(file, size))
                self.short_offset = file.start_offset + size
                continue
            if told or size == 0:
                expected = f"{self.file_size_bytes} bytes, as in {key}"
                raise damaged(self.disk, file.path, min(size, self.file_size_bytes), expected, f"{size}", choices)
            raise other_size(self.disk, file.path, size, key, self.file_size_bytes)
        for name in self.foreign_files:
            if _is_offset(name):
                expected = f"a multiple of {key} = {self.file_size_bytes} as name"
                raise damaged(self.disk, self.path(name), 0, expected, name, f"set the key to its size, or {choices}")
        for older, newer in pairwise(self.files):
            if newer.start_offset != older.end_offset:
                raise damaged(
                    self.disk,
                    self.directory,
                    older.end_offset,
                    f"a file named {file_name(older.end_offset)}",
                    f"{file_name(newer.start_offset)} next",
                    f"restore the missing file, or {choices}",
                )
        return lines

    def load_derived(self) -> tuple[list[str], bool]:
        """Load files that can be made again from the log: from the first one on that has another size or does not
        follow the one before, all are removed. Returns one sentence per finding, and True if any was removed. If none
        is left, an empty one with the first one's name is made, which says where the run begins."""
        lines = self._find()
        good = 0
        for index, file in enumerate(self.files):
            size = self._size(file)
            short = size < self.file_size_bytes and index == len(self.files) - 1 and self._is_zero(file.path)
            if (index and file.start_offset != self.files[index - 1].end_offset) or (
                size != self.file_size_bytes and not short
            ):
                found = (
                    f"{size} bytes" if size != self.file_size_bytes else f"a file that starts at {file.start_offset}"
                )
                lines.append(
                    f"{file.path}: expected {self.file_size_bytes} bytes from {self._run_end(index)} on, found {found};"
                    " it and those behind were dropped to be made anew."
                )
                break
            if short:
                lines.append(self._completed(file, size))
            good += 1
        if good == len(self.files):
            return lines, False
        first = self.files[0].start_offset
        for file in reversed(self.files[good:]):
            with disk_errors(self.disk, file.path, "remove the file"):
                self.disk.remove(file.path)
        del self.files[good:]
        if not good and first:
            self.add(first)
        return lines, True

    def _completed(self, file: MappedFile, size_bytes: int) -> str:
        return f"{file.path} held {size_bytes} of {self.file_size_bytes} bytes and was completed with zeros."

    def _run_end(self, index: int) -> int:
        return self.files[index - 1].end_offset if index else self.files[0].start_offset

    def _find(self) -> list[str]:
        lines = []
        with disk_errors(self.disk, self.directory, "list the directory"):
            names = self.disk.list(self.directory)
        for name in names:
            start = int(name) if _is_offset(name) else -1
            if not 0 <= start < MAX_OFFSET - self.file_size_bytes or start % self.file_size_bytes:
                self.foreign_files.append(name)
                lines.append(f"{self.path(name)} is not one of the store's files and is left alone.")
                continue
            self.files.append(self._file(start))
        return lines

    def _size(self, file: MappedFile) -> int:
        with disk_errors(self.disk, file.path, "read its size"):
            return self.disk.size_bytes(file.path)

    def _is_zero(self, path: str) -> bool:
        with disk_errors(self.disk, path, "read the file"):
            return not any(self.disk.read(path))

    def path(self, name: str) -> str:
        return f"{self.directory}/{name}"

    def _file(self, start_offset: int) -> MappedFile:
        path = self.path(file_name(start_offset))
        return MappedFile(self.disk, path, start_offset, self.file_size_bytes, reserve=self.reserve)

    def find(self, offset: int) -> MappedFile | None:
        """The file that holds the byte at `offset`, None if there is none."""
        if not self.files:
            return None
        index = (offset - self.files[0].start_offset) // self.file_size_bytes
        return self.files[index] if 0 <= index < len(self.files) else None

    def is_in_memory(self, offset: int, size_bytes: int) -> bool:
        """True if a read of the range waits for no disk, as far as it lies in its first file (`MappedRegion`)."""
        file = self.find(offset)
        if file is None:
            return True
        size_bytes = min(size_bytes, file.end_offset - offset)
        return file.region.is_in_memory(offset - file.start_offset, size_bytes)

    def loader(self, offset: int, size_bytes: int) -> Callable[[], None]:
        """A function for another thread that reads that part into memory; it raises OSError."""
        file = self.find(offset)
        if file is None or not size_bytes:
            return nothing
        size_bytes = min(size_bytes, file.end_offset - offset)
        return file.region.loader(offset - file.start_offset, size_bytes)

    def add(self, start_offset: int, *, durable: bool = True) -> MappedFile:
        """Make the next file, on disk too; without `durable` for good by its next `sync`, which the caller sees to.
        Raises StoreError, without room a NoRoomError, and then nothing has changed."""
        assert not self.files or self.files[-1].end_offset == start_offset, f"{start_offset} follows no file"
        file = self._file(start_offset)
        with room_errors():
            file.open(durable=durable)
        self.files.append(file)
        return file

    def remove_from(self, offset: int) -> list[str]:
        """Remove the files that start at or behind `offset`, the last first, durably. Returns their paths."""
        removed: list[str] = []
        while self.files and self.files[-1].start_offset >= offset:
            file = self.files[-1]
            file.close()
            with disk_errors(self.disk, file.path, "remove the file"):
                if self.disk.exists(file.path):
                    self.disk.remove(file.path)
            self.files.pop()
            removed.append(file.path)
        return removed

    def detach_below(self, offset: int) -> list[MappedFile]:
        """Forget the files that end at or before `offset`; the last file stays. They are still open and on disk, the
        oldest first: removed in this order they leave no hole at any moment."""
        count = 0
        while count < len(self.files) - 1 and self.files[count].end_offset <= offset:
            count += 1
        detached = self.files[:count]
        del self.files[:count]
        return detached

    def view(self, offset: int, limit_bytes: int) -> memoryview:
        """View of at most `limit_bytes` from `offset` on, inside one file; empty if no file holds `offset`."""
        file = self.find(offset)
        if file is None or limit_bytes <= 0:
            return memoryview(b"")
        return file.region.view(offset - file.start_offset, min(limit_bytes, file.end_offset - offset))

    def close(self) -> None:
        for file in self.files:
            file.close()
