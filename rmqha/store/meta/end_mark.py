"""The end mark: how far the log was written, noted beside the log (rulings 3 and 29). Data plane.

`rmqha.end` is raised after each write to the log and before anybody hears of it, and never waits for the disk. A killed
process leaves it whole in the page cache: where the log's records end below it, one that was whole has rotted, and
what stands above it is a write that was under way. After a loss of power it says nothing, and need not: the replica
counts as unclean then. The controllers' log has one, too (`controller/quorum/raft_log.py`).

Two sectors are written in turn, so that a kill in the middle of a write leaves the one before. Each holds, big-endian:
"RQEM" | version u16 | flags u16 | offset i64 | CRC-32 of these 16 bytes u32. Flag 1: a sync has failed, and what the
system calls written need not be.
"""

from __future__ import annotations

import struct
from zlib import crc32

from rmqha.model.error import StoreError
from rmqha.port import Disk, MappedRegion
from rmqha.store.meta.problem import disk_errors, place

PATH = "rmqha.end"
SECTOR_BYTES = 512
VERSION = 1
_MAGIC = b"RQEM"
_HEAD = struct.Struct(">4sHHq")
_CRC = struct.Struct(">I")
SLOT_BYTES = _HEAD.size + _CRC.size
_FAILED = 1


def checksum(head: bytes) -> bytes:
    return _CRC.pack(crc32(head))


def decode(slot: bytes, where: str) -> tuple[int, bool] | None:
    """(offset, whether a sync has failed) of a slot; None for bytes that are none. Raises StoreError for a newer
    version."""
    head = slot[: _HEAD.size]
    if slot[_HEAD.size : SLOT_BYTES] != checksum(head):
        return None
    magic, version, flags, offset = _HEAD.unpack(head)
    if magic != _MAGIC or offset < 0:
        return None
    if version > VERSION:
        raise StoreError(
            f"{where} has version {version}, this release reads up to {VERSION};"
            " use the release that wrote it or a newer one"
        )
    return offset, bool(flags & _FAILED)


class EndMark:
    """The file `rmqha.end`. `offset` is None where nothing tells the log's end: in a store of an older release, or if
    both sectors are damaged."""

    __slots__ = ("_disk", "_path", "_region", "_turn", "failed", "is_exact", "offset")

    def __init__(self, disk: Disk, path: str = PATH) -> None:
        self._disk = disk
        self._path = path
        self._region: MappedRegion | None = None
        self._turn = 0
        self.offset: int | None = None
        self.is_exact = True
        """False if one sector is damaged: the log may have been written further than `offset`, but was acknowledged
        no further unless that sector has rotted."""
        self.failed = False
        """True if a sync had failed, and what it was to save has not been written again since."""

    def load(self) -> list[str]:
        """Read the mark. Returns one sentence per finding."""
        with disk_errors(self._disk, self._path, "read the file"):
            data = self._disk.read(self._path) if self._disk.exists(self._path) else b""
        lines: list[str] = []
        for at in range(0, 2 * SECTOR_BYTES, SECTOR_BYTES):
            if not any(data):
                break
            found = decode(data[at : at + SLOT_BYTES], place(self._disk, self._path))
            if found is None:
                problem = "expected the log's end with its checksum, found something else"
                lines.append(f"{self._path} at byte {at}: {problem}.")
                self.is_exact = False
                continue
            self.offset = max(self.offset or 0, found[0])
            self.failed = self.failed or found[1]
        if len(data) > 2 * SECTOR_BYTES:
            lines.append(f"{self._path} has {len(data)} bytes, expected {2 * SECTOR_BYTES}; it was started anew.")
            with disk_errors(self._disk, self._path, "remove the file"):
                self._disk.remove(self._path)
            self.offset, self.is_exact = None, False
        return lines

    def raise_to(self, offset: int) -> None:
        """Note that the log is written up to `offset`. Raises OSError."""
        self._write(offset)
        self.offset = offset

    def lower(self, offset: int) -> None:
        """Lower the mark to `offset`: before a cut, and when an opening has found the log's end. Raises OSError."""
        self._write(offset)
        self._write(offset)
        self.offset, self.is_exact = offset, True

    def settle(self, offset: int) -> None:
        """Note that the log ends at `offset`. Raises OSError."""
        if offset != self.offset or not self.is_exact:
            self.lower(offset)

    def set_failed(self, failed: bool) -> None:
        """Set the flag of a failed sync, in the page cache only: a failed sync makes just that doubtful. Raises
        OSError."""
        if failed != self.failed:
            self.failed = failed
            self.lower(self.offset or 0)

    def _write(self, offset: int) -> None:
        region = self._region
        if region is None:
            region = self._region = self._disk.map(self._path, 2 * SECTOR_BYTES, create=True, durable=False)
        head = _HEAD.pack(_MAGIC, VERSION, _FAILED if self.failed else 0, offset)
        region.write(self._turn * SECTOR_BYTES, head + checksum(head))
        self._turn ^= 1

    def close(self) -> None:
        if self._region is not None:
            self._region.close()
            self._region = None
