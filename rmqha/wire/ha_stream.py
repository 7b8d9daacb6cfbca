"""AutoSwitchHA, the replication stream between a slave and its master (formats.md §13.2).

The slave dials. Slave→master: handshake 16 B, acks 12 B. Master→slave: handshake 20+12n B, transfers 36+size B.
Both parsers are incremental: feed any split of the bytes, get whole frames. Source: RocketMQ 5 AutoSwitchHAClient and
AutoSwitchHAConnection for the layout; the golden stream in tests/golden/wire for the proof.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from rmqha.model.epoch import EpochEntry, EpochHistory
from rmqha.model.error import RemoteProtocolError
from rmqha.model.offset import BrokerId, Epoch, PhyOffset

MAX_TRANSFER_BYTES = 1024 * 1024
"""Cap of one transfer, for every peer (ruling 19). Java's own default is 32 KiB."""
MAX_ENTRY_COUNT = 100_000

_SLAVE_HANDSHAKE = struct.Struct(">ihhq")
_SLAVE_ACK = struct.Struct(">iq")
_MASTER_HANDSHAKE = struct.Struct(">iiqi")
_ENTRY = struct.Struct(">iq")
_TRANSFER = struct.Struct(">iiqiqq")
TRANSFER_HEADER_BYTES = _TRANSFER.size


class HaState(IntEnum):
    """First word of every frame."""

    READY = 0
    HANDSHAKE = 1
    TRANSFER = 2
    SUSPEND = 3
    SHUTDOWN = 4


@dataclass(frozen=True, slots=True)
class SlaveHandshake:
    broker_id: BrokerId
    sync_from_last_file: bool = False
    async_learner: bool = False

    def encode(self) -> bytes:
        return _SLAVE_HANDSHAKE.pack(HaState.HANDSHAKE, self.sync_from_last_file, self.async_learner, self.broker_id)


@dataclass(frozen=True, slots=True)
class SlaveAck:
    """The slave holds (under SYNC_FLUSH: has synced) every byte below `max_offset`."""

    max_offset: PhyOffset

    def encode(self) -> bytes:
        return _SLAVE_ACK.pack(HaState.TRANSFER, self.max_offset)


@dataclass(frozen=True, slots=True)
class MasterHandshake:
    max_phy_offset: PhyOffset
    last_epoch: Epoch
    entries: EpochHistory

    def encode(self) -> bytes:
        head = _MASTER_HANDSHAKE.pack(
            HaState.HANDSHAKE, _ENTRY.size * len(self.entries), self.max_phy_offset, self.last_epoch
        )
        return head + b"".join(_ENTRY.pack(entry.epoch, entry.start_offset) for entry in self.entries)


@dataclass(frozen=True, slots=True)
class TransferHeader:
    """`size_bytes` of log follow; 0 is a heartbeat (phy_offset −1 when the master's log is empty)."""

    size_bytes: int
    phy_offset: PhyOffset
    epoch: Epoch
    epoch_start_offset: PhyOffset
    confirm_offset: PhyOffset

    def encode(self) -> bytes:
        return _TRANSFER.pack(
            HaState.TRANSFER,
            self.size_bytes,
            self.phy_offset,
            self.epoch,
            self.epoch_start_offset,
            self.confirm_offset,
        )


@dataclass(frozen=True, slots=True)
class Transfer:
    header: TransferHeader
    data: bytes


SlaveFrame = SlaveHandshake | SlaveAck
MasterFrame = MasterHandshake | Transfer


class SlaveStreamParser:
    """What a master reads. Raises RemoteProtocolError for anything that is not the protocol."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[SlaveFrame]:
        self._buffer += data
        frames: list[SlaveFrame] = []
        position = 0
        while len(self._buffer) - position >= _SLAVE_ACK.size:
            (state,) = struct.unpack_from(">i", self._buffer, position)
            if state == HaState.TRANSFER:
                _, offset = _SLAVE_ACK.unpack_from(self._buffer, position)
                frames.append(SlaveAck(PhyOffset(offset)))
                position += _SLAVE_ACK.size
            elif state == HaState.HANDSHAKE:
                if len(self._buffer) - position < _SLAVE_HANDSHAKE.size:
                    break
                _, last_file, learner, broker_id = _SLAVE_HANDSHAKE.unpack_from(self._buffer, position)
                frames.append(SlaveHandshake(BrokerId(broker_id), last_file == 1, learner == 1))
                position += _SLAVE_HANDSHAKE.size
            else:
                raise RemoteProtocolError(f"HA frame of a slave begins with state {state}; expected 1 or 2")
        del self._buffer[:position]
        return frames


class MasterStreamParser:
    """What a slave reads. Raises RemoteProtocolError for anything that is not the protocol."""

    def __init__(self, max_transfer_bytes: int = 4 * MAX_TRANSFER_BYTES) -> None:
        self._buffer = bytearray()
        self._max_transfer_bytes = max_transfer_bytes

    def feed(self, data: bytes) -> list[MasterFrame]:
        self._buffer += data
        frames: list[MasterFrame] = []
        position = 0
        while len(self._buffer) - position >= _MASTER_HANDSHAKE.size:
            (state,) = struct.unpack_from(">i", self._buffer, position)
            taken = (
                self._handshake(position, frames)
                if state == HaState.HANDSHAKE
                else self._transfer(position, frames)
                if state == HaState.TRANSFER
                else -1
            )
            if taken < 0:
                raise RemoteProtocolError(f"HA frame of a master begins with state {state}; expected 1 or 2")
            if taken == 0:
                break
            position += taken
        del self._buffer[:position]
        return frames

    def _handshake(self, position: int, frames: list[MasterFrame]) -> int:
        _, body_bytes, max_phy_offset, last_epoch = _MASTER_HANDSHAKE.unpack_from(self._buffer, position)
        if body_bytes < 0 or body_bytes % _ENTRY.size or body_bytes > _ENTRY.size * MAX_ENTRY_COUNT:
            raise RemoteProtocolError(f"HA handshake announces {body_bytes} bytes of epoch entries")
        start = position + _MASTER_HANDSHAKE.size
        if len(self._buffer) < start + body_bytes:
            return 0
        pairs = _ENTRY.iter_unpack(bytes(self._buffer[start : start + body_bytes]))
        try:
            entries = EpochHistory(EpochEntry(Epoch(epoch), PhyOffset(offset)) for epoch, offset in pairs)
        except ValueError as error:
            raise RemoteProtocolError(f"HA handshake: {error}") from None
        frames.append(MasterHandshake(PhyOffset(max_phy_offset), Epoch(last_epoch), entries))
        return _MASTER_HANDSHAKE.size + int(body_bytes)

    def _transfer(self, position: int, frames: list[MasterFrame]) -> int:
        if len(self._buffer) - position < _TRANSFER.size:
            return 0
        _, size_bytes, offset, epoch, epoch_start, confirm = _TRANSFER.unpack_from(self._buffer, position)
        if not 0 <= size_bytes <= self._max_transfer_bytes:
            raise RemoteProtocolError(f"HA transfer announces {size_bytes} bytes at offset {offset}")
        start = position + _TRANSFER.size
        if len(self._buffer) < start + size_bytes:
            return 0
        header = TransferHeader(size_bytes, PhyOffset(offset), Epoch(epoch), PhyOffset(epoch_start), PhyOffset(confirm))
        frames.append(Transfer(header, bytes(self._buffer[start : start + size_bytes])))
        return _TRANSFER.size + int(size_bytes)
