"""The files of a directory, for reading only. Implements `rmqha.port.ReadDisk` by pread."""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path

FLOCK = struct.Struct("hhqqi")
OFD_GETLK, OFD_SETLK = 36, 37
"""Linux's values of F_OFD_GETLK and F_OFD_SETLK. A Python built for older systems, as uv's and conda's, does not have
the names."""
_PIECE_BYTES = 1 << 30
"""Linux reads at most 2 GiB at once."""


class HostReadFile:
    """One open file. Implements `rmqha.port.ReadFile`."""

    __slots__ = ("_fd", "size_bytes")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.size_bytes = os.fstat(fd).st_size

    def read_at(self, position: int, size_bytes: int) -> bytes:
        data = os.pread(self._fd, min(size_bytes, _PIECE_BYTES), position)
        if len(data) == size_bytes or not data:
            return data
        parts = [data]
        done = len(data)
        while done < size_bytes and (more := os.pread(self._fd, min(size_bytes - done, _PIECE_BYTES), position + done)):
            parts.append(more)
            done += len(more)
        return b"".join(parts)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class HostTree:
    """The files below `root`."""

    def __init__(self, root: str | Path) -> None:
        self._root = Path(root).absolute()

    @property
    def label(self) -> str:
        return str(self._root)

    def _at(self, path: str) -> Path:
        return self._root / path if path else self._root

    def exists(self, path: str) -> bool:
        """True if there is a file or directory. Raises OSError if the system cannot tell. (From Python 3.14 on
        `Path.exists` then returns False, and a table in such a file would begin empty.)"""
        try:
            self._at(path).stat()
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return False
        return True

    def list(self, path: str) -> list[str]:
        return sorted(entry.name for entry in self._at(path).iterdir()) if self.exists(path) else []


class HostReadDisk(HostTree):
    """Files below a root directory, for reading. Implements `rmqha.port.ReadDisk`."""

    def is_directory(self, path: str) -> bool:
        return self._at(path).is_dir()

    def open_read(self, path: str) -> HostReadFile:
        # without O_NONBLOCK a named pipe in the place of a file would hold the caller for ever
        fd = os.open(self._at(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            return HostReadFile(fd)
        except BaseException:
            os.close(fd)
            raise

    def read(self, path: str, limit_bytes: int) -> bytes:
        file = self.open_read(path)
        try:
            return file.read_at(0, min(limit_bytes, file.size_bytes))
        finally:
            file.close()

    def is_locked(self, path: str) -> bool:
        """True if another process, ours or Java's, holds a lock that excludes `HostDisk.lock`."""
        try:
            fd = os.open(self._at(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except (FileNotFoundError, NotADirectoryError):
            return False
        try:
            asked = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
            answer = fcntl.fcntl(fd, OFD_GETLK, asked)
        finally:
            os.close(fd)
        return bool(FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)
