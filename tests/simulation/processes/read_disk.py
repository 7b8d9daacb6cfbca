"""A simulated disk as commands see it that only look (`rmqha.port.ReadDisk`)."""

from __future__ import annotations

from rmqha.sim.disk import SimDisk


class _ReadFile:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size_bytes = len(data)

    def read_at(self, position: int, size_bytes: int) -> bytes:
        return self._data[position : position + size_bytes]

    def close(self) -> None:
        """Nothing is held."""


class SimReadDisk:
    def __init__(self, disk: SimDisk, label: str) -> None:
        self._disk = disk
        self.label = label
        self.exists = disk.exists
        self.list = disk.list

    def is_directory(self, path: str) -> bool:
        return not path or (self._disk.exists(path) and path not in self._disk.paths())

    def open_read(self, path: str) -> _ReadFile:
        return _ReadFile(self._disk.read(path))

    def read(self, path: str, limit_bytes: int) -> bytes:
        return self._disk.read(path)[:limit_bytes]

    def is_locked(self, path: str) -> bool:
        release = self._disk.lock(path) if self._disk.exists(path) else None
        if release is not None:
            release()
        return release is None and self._disk.exists(path)
