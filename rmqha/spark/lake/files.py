"""The files of an archive: a directory, s3://…, or whatever fsspec knows."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs

from rmqha.model.error import UsageError
from rmqha.scan.storage import file_system

STATE = "_rmqha"


class ArchiveFiles:
    """The archive's files: a directory, s3://…, or what fsspec knows. Paths are relative."""

    def __init__(self, address: str, storage_options: Mapping[str, Any] | None = None) -> None:
        """`storage_options` are fsspec's. UsageError for an address that cannot be used."""
        self.address, self.storage_options = address, dict(storage_options or {})
        try:
            if storage_options:
                self._files, self._root = _of_fsspec(address, storage_options)
            elif "://" in address:
                self._files, self._root = pyarrow.fs.FileSystem.from_uri(address)
            else:
                self._files, self._root = pyarrow.fs.LocalFileSystem(), str(Path(address).absolute())
        except (pa.ArrowInvalid, OSError):
            self._files, self._root = _of_fsspec(address, {})
        self.is_local = isinstance(self._files, pyarrow.fs.LocalFileSystem)

    def local_path(self, path: str) -> Path:
        """The path of a file on this machine."""
        assert self.is_local
        return Path(self._root, path)

    def exists(self, path: str) -> bool:
        """True if there is such a file or directory."""
        return bool(self._files.get_file_info(self._at(path)).type != pyarrow.fs.FileType.NotFound)

    def names(self, path: str) -> list[str]:
        """Names of the files in a directory."""
        selected = pyarrow.fs.FileSelector(self._at(path), allow_not_found=True)
        return sorted(item.base_name for item in self._files.get_file_info(selected) if item.is_file)

    def size_bytes(self, path: str) -> int:
        """Size of a file."""
        return int(self._files.get_file_info(self._at(path)).size)

    def read(self, path: str) -> bytes:
        """A whole file."""
        with self._files.open_input_stream(self._at(path)) as file:
            return bytes(file.read())

    def open_input(self, path: str) -> Any:
        """Open a file for reading."""
        return self._files.open_input_file(self._at(path))

    def open_output(self, path: str) -> Any:
        """Open a new file for writing."""
        self.make_parent(path)
        return self._files.open_output_stream(self._at(path))

    def make_parent(self, path: str) -> None:
        """Make the directory of a file."""
        self._files.create_dir(self._at(path).rpartition("/")[0], recursive=True)

    def write(self, path: str, content: bytes) -> None:
        """Write a file, whole or not at all, and durably on a local disk."""
        aside = f"{path}.tmp" if self.is_local else path
        with self.open_output(aside) as file:
            file.write(content)
        if self.is_local:
            self.sync(aside)
            self.move(aside, path)

    def move(self, source: str, target: str) -> None:
        """Move a file, durably on a local disk."""
        self.make_parent(target)
        self._files.move(self._at(source), self._at(target))
        if self.is_local:
            sync_path(self.local_path(target).parent)

    def sync(self, path: str) -> None:
        """Make a file of a local disk durable."""
        if self.is_local:
            sync_path(self.local_path(path))

    def remove(self, path: str) -> None:
        """Remove a file."""
        self._files.delete_file(self._at(path))

    def clear(self, path: str) -> None:
        """Remove all files of a directory."""
        if self.exists(path):
            self._files.delete_dir_contents(self._at(path))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the archive against other archivers of this machine; an archive that is not local is not locked.
        UsageError if one is at work."""
        if not self.is_local:
            yield
            return
        self.make_parent(f"{STATE}/lock")
        with self.local_path(f"{STATE}/lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(f"{self.address} is being written by another archiver: wait for its end") from None
            yield

    def _at(self, path: str) -> str:
        return f"{self._root.rstrip('/')}/{path}" if path else self._root


def _of_fsspec(address: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    filesystem, root = file_system(address, options)
    return pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(filesystem)), root


def sync_path(path: Path) -> None:
    """Make a file, or the names in a directory, durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
