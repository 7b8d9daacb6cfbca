"""Data plane: a run of files of one fixed size, each named by the offset at which it starts, as if it were one file.

The CommitLog is one such run, every ConsumeQueue is one (formats.md §1). Files are mapped when first touched.
"""

from __future__ import annotations

import errno

from rmqha.model.error import StoreError
from rmqha.port import Disk, MappedRegion
from rmqha.store.problem import damaged, disk_errors, os_sentence, place

NAME_DIGITS = 20
_ZEROS = bytes(1 << 20)


def file_name(start_offset: int) -> str:
    return f"{start_offset:0{NAME_DIGITS}d}"


class MappedFile:
    """One file; `start_offset` is its name."""

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
        if self._region is None:
            size_bytes = self.end_offset - self.start_offset
            with disk_errors(self._disk, self.path, f"create or map a file of {size_bytes} bytes"):
                self._region = self._disk.map(self.path, size_bytes, create=True, reserve=self._reserve)
        return self._region

    def probe(self, from_offset: int, to_offset: int, choices: str) -> None:
        """Read what was ever written in [from, to): a bad sector is a StoreError with `choices` here, and the end of
        the process at a look through the mapping."""
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

    def zero(self, from_offset: int, to_offset: int) -> None:
        """Write zeros; not durable yet."""
        at = from_offset
        while at < to_offset:
            size = min(len(_ZEROS), to_offset - at)
            self.region.write(at - self.start_offset, _ZEROS[:size])
            at += size

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

    __slots__ = ("directory", "disk", "file_size_bytes", "files", "reserve", "strangers")

    def __init__(self, disk: Disk, directory: str, file_size_bytes: int, *, reserve: bool) -> None:
        self.disk = disk
        self.directory = directory
        self.file_size_bytes = file_size_bytes
        self.reserve = reserve
        self.files: list[MappedFile] = []
        self.strangers: list[str] = []
        """Names in the directory that are no file of the run; left alone."""

    def load(self, key: str) -> list[str]:
        """Find the files on disk. `key` is the configuration key of their size. Returns one sentence per finding.

        The last file may be short if it is all zeros, as after a crash while it was made; it is completed. Raises
        StoreError for another size and for a hole in the run.
        """
        lines: list[str] = []
        with disk_errors(self.disk, self.directory, "list the directory"):
            names = self.disk.list(self.directory)
        for name in names:
            if len(name) != NAME_DIGITS or not (name.isascii() and name.isdigit()):
                self.strangers.append(name)
                lines.append(f"{self.path(name)} is not one of the store's files and is left alone.")
                continue
            self.files.append(self._file(int(name)))
        for file in self.files:
            with disk_errors(self.disk, file.path, "read its size"):
                size = self.disk.size_bytes(file.path)
            if size == self.file_size_bytes:
                continue
            if size < self.file_size_bytes and file is self.files[-1] and self._is_zero(file.path):
                lines.append(f"{file.path} held {size} of {self.file_size_bytes} bytes and was completed with zeros.")
                continue
            raise StoreError(
                f"{place(self.disk, file.path)} has {size} bytes, but {key} is {self.file_size_bytes};"
                f" set the key to the size that the store was made with"
            )
        for older, newer in zip(self.files, self.files[1:], strict=False):
            if newer.start_offset != older.end_offset:
                raise damaged(
                    self.disk,
                    self.directory,
                    older.end_offset,
                    f"a file named {file_name(older.end_offset)}",
                    f"{file_name(newer.start_offset)} next",
                    "restore the missing file, or remove this replica's store and let it copy the group's",
                )
        return lines

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

    def add(self, start_offset: int) -> MappedFile:
        """Make the next file, on disk too. Raises StoreError (full disk), and then nothing has changed."""
        assert not self.files or self.files[-1].end_offset == start_offset
        file = self._file(start_offset)
        assert file.region.size_bytes == self.file_size_bytes
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
        """Up to `limit_bytes` from `offset` inside one file; empty if no file holds `offset`."""
        file = self.find(offset)
        if file is None or limit_bytes <= 0:
            return memoryview(b"")
        return file.region.view(offset - file.start_offset, min(limit_bytes, file.end_offset - offset))

    def close(self) -> None:
        for file in self.files:
            file.close()
