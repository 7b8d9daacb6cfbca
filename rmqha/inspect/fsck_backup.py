"""Control plane: the backup of what a repair changes, in a directory with a manifest to put it back by hand."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

from rmqha.inspect.fsck_metadata import SAVED_PREFIX
from rmqha.inspect.store_inspection import size_of
from rmqha.model.error import StoreError
from rmqha.port import Disk, ReadDisk
from rmqha.store.meta.problem import disk_errors, place

MANIFEST = "manifest.json"
PIECE_BYTES = 4 * 1024 * 1024


class RepairBackup:
    """Backup of one repair, in `directory`, `rmqha.fsck-<n>` with a new n. A saved file, and the manifest that names
    it, are durable when a method returns; a move is done after that."""

    def __init__(self, disk: Disk, reader: ReadDisk) -> None:
        self._disk = disk
        self._reader = reader
        with disk_errors(disk, "", "list the directory"):
            numbers = [name[len(SAVED_PREFIX) :] for name in disk.list("") if name.startswith(SAVED_PREFIX)]
        self.directory = f"{SAVED_PREFIX}{1 + max((int(text) for text in numbers if text.isdigit()), default=0)}"
        self.entries: list[dict[str, Any]] = []

    def copy(self, path: str, offset: int = 0, length_bytes: int | None = None) -> None:
        """Save a range of a file that is going to be overwritten, unless it is saved already. Raises StoreError."""
        with disk_errors(self._disk, path, "save its bytes"):
            size = size_of(self._reader, path)
            length = size - offset if length_bytes is None else length_bytes
            if length <= 0 or any(
                entry["file"] == path
                and entry["offset"] <= offset
                and entry["offset"] + entry["length"] >= offset + length
                for entry in self.entries
            ):
                return
            target = f"{self.directory}/bytes/{path}.{offset}"
            digest = self._copied(path, offset, length, target)
        self._note(path, offset, length, digest, target)

    def _copied(self, path: str, offset: int, length: int, target: str) -> str:
        digest = hashlib.sha256()
        out = self._disk.open_append(target)
        try:
            for piece in self._pieces(path, offset, length):
                digest.update(piece)
                out.append(piece)
            out.sync()
        finally:
            out.close()
        return digest.hexdigest()

    def _pieces(self, path: str, offset: int, length: int) -> Iterator[bytes]:
        file = self._reader.open_read(path)
        try:
            end = offset + length
            while offset < end:
                piece = file.read_at(offset, min(PIECE_BYTES, end - offset))
                if not piece:
                    raise StoreError(f"{place(self._disk, path)} became shorter while it was saved: try again")
                yield piece
                offset += len(piece)
        finally:
            file.close()

    def move(self, path: str) -> None:
        """Set a file or a whole directory aside. Raises StoreError."""
        with disk_errors(self._disk, path, "set it aside"):
            for name in self._files(path):
                length = size_of(self._reader, name)
                digest = hashlib.sha256()
                for piece in self._pieces(name, 0, length):
                    digest.update(piece)
                target = f"{self.directory}/moved/{name}"
                self.entries.append(_entry(name, 0, length, digest.hexdigest(), target))
            self._write_manifest()
            self._disk.rename(path, f"{self.directory}/moved/{path}")

    def _files(self, path: str) -> Iterator[str]:
        if not self._reader.is_directory(path):
            yield path
            return
        for name in self._reader.list(path):
            yield from self._files(f"{path}/{name}")

    def _note(self, path: str, offset: int, length: int, digest: str, target: str) -> None:
        self.entries.append(_entry(path, offset, length, digest, target))
        with disk_errors(self._disk, f"{self.directory}/{MANIFEST}", "write the file"):
            self._write_manifest()

    def _write_manifest(self) -> None:
        value = {
            "version": 1,
            "how": "saved holds the bytes that stood in file from offset on before the repair changed them;"
            " where saved is missing the repair was interrupted and file is unchanged",
            "entries": self.entries,
        }
        self._disk.write_atomic(f"{self.directory}/{MANIFEST}", json.dumps(value, indent=1).encode())


def _entry(path: str, offset: int, length: int, digest: str, target: str) -> dict[str, Any]:
    return {"file": path, "offset": offset, "length": length, "sha256": digest, "saved": target}
