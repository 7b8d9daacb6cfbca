"""The checkpoint file of RocketMQ, and beside it our own record of how far the store is known to be whole.

Source: formats.md §6. RocketMQ keeps times, which name a whole file to be read again after a crash; `ProgressFile`
keeps the position itself, so that a restart reads only what was written since the last sync.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from rmqha.port import Disk, MappedRegion
from rmqha.store.meta import sidecar
from rmqha.store.meta.problem import damaged, disk_errors, place

CHECKPOINT_PATH = "checkpoint"
CHECKPOINT_BYTES = 4096
PROGRESS_PATH = "rmqha.progress"
SLOT_BYTES = 512
_FIELDS = struct.Struct(">5q")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """RocketMQ's five numbers; times are store timestamps in ms."""

    physic_msg_timestamp_ms: int = 0
    logics_msg_timestamp_ms: int = 0
    index_msg_timestamp_ms: int = 0
    master_flushed_offset: int = 0
    confirm_phy_offset: int = 0

    def lowered(self, timestamp_ms: int, end_offset: int) -> Checkpoint:
        """The checkpoint that still holds when nothing later, and nothing behind `end_offset`, is left."""
        return Checkpoint(
            min(self.physic_msg_timestamp_ms, timestamp_ms),
            min(self.logics_msg_timestamp_ms, timestamp_ms),
            min(self.index_msg_timestamp_ms, timestamp_ms),
            min(self.master_flushed_offset, end_offset),
            min(self.confirm_phy_offset, end_offset),
        )

    def encode(self) -> bytes:
        return _FIELDS.pack(
            self.physic_msg_timestamp_ms,
            self.logics_msg_timestamp_ms,
            self.index_msg_timestamp_ms,
            self.master_flushed_offset,
            self.confirm_phy_offset,
        )

    @classmethod
    def decode(cls, data: bytes) -> Checkpoint:
        """ValueError if a number is negative, which none can be."""
        numbers = _FIELDS.unpack_from(data)
        for index, value in enumerate(numbers):
            if value < 0:
                raise ValueError(f"{index * 8}:{value}")
        return cls(*numbers)


class CheckpointFile:
    """The mapped file. Small writes, synced when the caller says so."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._region: MappedRegion | None = None
        self.value = Checkpoint()

    def load(self) -> list[str]:
        """Read what is there. Returns one sentence per finding: a damaged checkpoint costs time, not data."""
        with disk_errors(self._disk, CHECKPOINT_PATH, "read the file"):
            data = self._disk.read(CHECKPOINT_PATH) if self._disk.exists(CHECKPOINT_PATH) else bytes(CHECKPOINT_BYTES)
        if len(data) > CHECKPOINT_BYTES:
            raise damaged(
                self._disk,
                CHECKPOINT_PATH,
                CHECKPOINT_BYTES,
                "the end of the file",
                f"{len(data) - CHECKPOINT_BYTES} more bytes",
                "put back the right file or remove it",
            )
        lines = []
        if len(data) < CHECKPOINT_BYTES:
            lines.append(
                f"{CHECKPOINT_PATH} held {len(data)} of {CHECKPOINT_BYTES} bytes and was completed with zeros."
            )
        try:
            self.value = Checkpoint.decode(data.ljust(_FIELDS.size, b"\0"))
        except ValueError as error:
            at, _, found = str(error).partition(":")
            lines.append(
                f"{CHECKPOINT_PATH} at byte {at}: expected a time or offset, found {found}; it was started anew."
            )
        return lines

    @property
    def region(self) -> MappedRegion:
        if self._region is None:
            with disk_errors(self._disk, CHECKPOINT_PATH, "create or map the file"):
                self._region = self._disk.map(CHECKPOINT_PATH, CHECKPOINT_BYTES, create=True)
        return self._region

    def store(self, value: Checkpoint) -> None:
        """Write without sync."""
        self.region.write(0, value.encode())
        self.value = value

    def sync(self) -> None:
        with disk_errors(self._disk, CHECKPOINT_PATH, "write to stable storage"):
            self.region.sync()

    def close(self) -> None:
        if self._region is not None:
            self._region.close()
            self._region = None


class ProgressFile:
    """Position up to which the log's records are whole and durable, and their queue entries too.

    It has two slots of one sector, written in turn after the data was synced: whichever content of either a power loss
    leaves, it is true. A cut lowers both, durably, before it touches the log. The checkpoint's bytes are kept with it:
    if they differ, another program (a Java broker) has used the store since, and the position means nothing.
    With it stands how far the index of keys is durable (`Index.durable_offset`), which files of older releases lack.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._region: MappedRegion | None = None
        self._turn = 0
        self.position: int | None = None
        self.index_offset = 0
        self.unit_count = 0
        """Number of entries that the queues have below `position`. Fewer at the next start: some are missing."""
        self.is_foreign = False
        """True if another program has used the store since."""
        self.cut_offset: int | None = None
        """Offset at which a cut that may not have been finished was to end: zeros there may be followed by what it
        dropped."""

    def load(self, checkpoint: Checkpoint) -> list[str]:
        """Set `position` to the highest usable one, None if there is none. Returns one sentence per finding."""
        with disk_errors(self._disk, PROGRESS_PATH, "read the file"):
            data = self._disk.read(PROGRESS_PATH) if self._disk.exists(PROGRESS_PATH) else b""
        lines: list[str] = []
        if len(data) > 2 * SLOT_BYTES:
            lines.append(f"{PROGRESS_PATH} has {len(data)} bytes, expected {2 * SLOT_BYTES}; it was started anew.")
            with disk_errors(self._disk, PROGRESS_PATH, "remove the file"):
                self._disk.remove(PROGRESS_PATH)
            return lines
        for at in range(0, len(data), SLOT_BYTES):
            slot = data[at : at + SLOT_BYTES]
            if not any(slot):
                continue
            try:
                size = int.from_bytes(slot[:2], "big")
                fields = sidecar.decode(slot[2 : 2 + size], place(self._disk, PROGRESS_PATH))
                position, seen = sidecar.number(fields, "position"), fields.get("checkpoint")
                index_offset = sidecar.number(fields, "index") if "index" in fields else 0
                unit_count = sidecar.number(fields, "units") if "units" in fields else 0
                cut_offset = sidecar.number(fields, "cut") if "cut" in fields else None
            except sidecar.BadSidecarError as error:
                lines.append(
                    f"{PROGRESS_PATH} at byte {at}: {error}; the other slot or the checkpoint is used instead."
                )
                continue
            self.is_foreign = self.is_foreign or seen != checkpoint.encode()
            if seen == checkpoint.encode() and (position, index_offset) >= (self.position or 0, self.index_offset):
                self.position, self.index_offset, self.cut_offset = position, index_offset, cut_offset
                self.unit_count = unit_count
        self.is_foreign = self.is_foreign and self.position is None
        if self.position is None and any(data):
            lines.append(f"{CHECKPOINT_PATH} was written by another program since; its times are used.")
        return lines

    @property
    def _mapped(self) -> MappedRegion:
        if self._region is None:
            with disk_errors(self._disk, PROGRESS_PATH, "create or map the file"):
                self._region = self._disk.map(PROGRESS_PATH, 2 * SLOT_BYTES, create=True)
        return self._region

    def store(self, position: int, checkpoint: Checkpoint, index_offset: int, *, cut_offset: int | None = None) -> None:
        """Write one slot, without sync."""
        fields = {"position": position, "checkpoint": checkpoint.encode(), "index": index_offset}
        fields["units"] = self.unit_count
        data = sidecar.encode(fields if cut_offset is None else fields | {"cut": cut_offset})
        data = len(data).to_bytes(2, "big") + data
        assert len(data) <= SLOT_BYTES
        self._mapped.write(self._turn * SLOT_BYTES, data.ljust(SLOT_BYTES, b"\0"))
        self._turn ^= 1
        self.position, self.index_offset = position, index_offset

    def lower(self, position: int, checkpoint: Checkpoint, index_offset: int, *, cut_offset: int | None = None) -> None:
        """Write both slots, durably. A cut names where it will end."""
        self.store(position, checkpoint, index_offset, cut_offset=cut_offset)
        self.store(position, checkpoint, index_offset, cut_offset=cut_offset)
        self.sync()

    def sync(self) -> None:
        with disk_errors(self._disk, PROGRESS_PATH, "write to stable storage"):
            self._mapped.sync()

    def close(self) -> None:
        if self._region is not None:
            self._region.close()
            self._region = None
