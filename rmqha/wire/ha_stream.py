"""AutoSwitchHA, the replication stream between a slave and its master (formats.md §13.2).

The slave dials. Slave→master: handshake 16 B, acks 12 B. Master→slave: handshake 20+12n B, transfers 36+size B.
Both parsers are incremental: feed any split of the bytes. Source: RocketMQ 5 AutoSwitchHAClient and
AutoSwitchHAConnection for the layout; the golden stream in tests/golden/wire for the proof.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from rmqha.model.epoch import EpochEntry, EpochHistory
from rmqha.model.error import RemoteProtocolError
from rmqha.model.offset import BrokerId, Buffer, Epoch, PhyOffset

MAX_TRANSFER_BYTES = 1024 * 1024
"""Most log bytes of one transfer, for every peer (ruling 19). Java's default is 32 KiB."""
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
    """First frame of a slave."""

    broker_id: BrokerId
    sync_from_last_file: bool = False
    async_learner: bool = False

    def encode(self) -> bytes:
        """The frame's bytes."""
        return _SLAVE_HANDSHAKE.pack(HaState.HANDSHAKE, self.sync_from_last_file, self.async_learner, self.broker_id)


class SlaveAck(NamedTuple):
    """Ack of a slave: it holds (under SYNC_FLUSH: has synced) every byte below `max_offset`."""

    max_offset: PhyOffset

    def encode(self) -> bytes:
        """The frame's bytes."""
        return _SLAVE_ACK.pack(HaState.TRANSFER, self.max_offset)


@dataclass(frozen=True, slots=True)
class MasterHandshake:
    """Answer of a master to the slave's handshake."""

    max_phy_offset: PhyOffset
    last_epoch: Epoch
    entries: EpochHistory

    def encode(self) -> bytes:
        """The frame's bytes."""
        head = _MASTER_HANDSHAKE.pack(
            HaState.HANDSHAKE, _ENTRY.size * len(self.entries), self.max_phy_offset, self.last_epoch
        )
        return head + b"".join(_ENTRY.pack(entry.epoch, entry.start_offset) for entry in self.entries)


class TransferHeader(NamedTuple):
    """Header in front of `size_bytes` bytes of the log; 0: a heartbeat (phy_offset −1 if the master's log is empty)."""

    size_bytes: int
    phy_offset: PhyOffset
    epoch: Epoch
    epoch_start_offset: PhyOffset
    confirm_offset: PhyOffset

    def encode(self) -> bytes:
        """The header's bytes; the log's bytes follow it."""
        return _TRANSFER.pack(
            HaState.TRANSFER,
            self.size_bytes,
            self.phy_offset,
            self.epoch,
            self.epoch_start_offset,
            self.confirm_offset,
        )


class Transfer(NamedTuple):
    """A header and its bytes, or a piece of a transfer with the header that fits it."""

    header: TransferHeader
    data: Buffer


SlaveFrame = SlaveHandshake | SlaveAck
MasterFrame = MasterHandshake | Transfer


class SlaveStreamParser:
    """Parser of what a master reads. Raises RemoteProtocolError for anything that is not the protocol."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: Buffer) -> list[SlaveFrame]:
        """Frames that are complete with `data`; the rest is kept."""
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
    """Parser of what a slave reads. Raises RemoteProtocolError for anything that is not the protocol.

    Log bytes are neither copied nor collected: `Transfer.data` is a view of what was fed, and a transfer that arrives
    in pieces is given in pieces, each under a header with its own offset and size. So nothing that a peer announces
    takes memory here.
    """

    def __init__(self) -> None:
        self._head = bytearray()
        """Bytes of a frame whose header, or handshake, is not complete."""
        self._transfer: TransferHeader | None = None
        """Header of a transfer of which more is to come."""

    def feed(self, data: Buffer) -> list[MasterFrame]:
        """Parse bytes. The returned frames may refer to `data`: use them before it changes."""
        view, at = memoryview(data), 0
        end = len(view)
        frames: list[MasterFrame] = []
        while at < end:
            if self._transfer is not None:
                piece = view[at : at + self._transfer.size_bytes]
                frames.append(self._piece(self._transfer, piece))
                at += len(piece)
                continue
            if not self._head and end - at >= _TRANSFER.size:
                fields = _TRANSFER.unpack_from(view, at)
                if fields[0] == HaState.TRANSFER:
                    self._begin_transfer(frames, fields)
                    at += _TRANSFER.size
                    continue
            wanted = self._wanted_bytes()
            part = view[at : at + wanted - len(self._head)]
            self._head += part
            at += len(part)
            if len(self._head) == self._wanted_bytes():
                self._begin(frames)
                self._head.clear()
        return frames

    def _wanted_bytes(self) -> int:
        """Size of the present frame without log bytes, as far as its beginning tells."""
        head = self._head
        if len(head) < _MASTER_HANDSHAKE.size:
            return _MASTER_HANDSHAKE.size
        state, body_bytes, _, _ = _MASTER_HANDSHAKE.unpack_from(head)
        if state == HaState.TRANSFER:
            return _TRANSFER.size
        if state != HaState.HANDSHAKE:
            raise RemoteProtocolError(f"HA frame of a master begins with state {state}; expected 1 or 2")
        if body_bytes < 0 or body_bytes % _ENTRY.size or body_bytes > _ENTRY.size * MAX_ENTRY_COUNT:
            raise RemoteProtocolError(f"HA handshake announces {body_bytes} bytes of epoch entries")
        return _MASTER_HANDSHAKE.size + int(body_bytes)

    def _begin(self, frames: list[MasterFrame]) -> None:
        """Add the frame whose header is complete: a handshake, a heartbeat, or the begin of a transfer."""
        state, _, offset, epoch = _MASTER_HANDSHAKE.unpack_from(self._head)
        if state == HaState.HANDSHAKE:
            frames.append(MasterHandshake(PhyOffset(offset), Epoch(epoch), self._entries()))
            return
        self._begin_transfer(frames, _TRANSFER.unpack(self._head))

    def _begin_transfer(self, frames: list[MasterFrame], fields: tuple[int, ...]) -> None:
        _, size_bytes, offset, epoch, epoch_start, confirm = fields
        if not 0 <= size_bytes <= 4 * MAX_TRANSFER_BYTES:
            raise RemoteProtocolError(f"HA transfer announces {size_bytes} bytes at offset {offset}")
        header = TransferHeader(size_bytes, PhyOffset(offset), Epoch(epoch), PhyOffset(epoch_start), PhyOffset(confirm))
        if size_bytes:
            self._transfer = header
        else:
            frames.append(Transfer(header, b""))

    def _entries(self) -> EpochHistory:
        pairs = _ENTRY.iter_unpack(bytes(self._head[_MASTER_HANDSHAKE.size :]))
        try:
            return EpochHistory(EpochEntry(Epoch(epoch), PhyOffset(offset)) for epoch, offset in pairs)
        except ValueError as error:
            raise RemoteProtocolError(f"HA handshake: {error}") from None

    def _piece(self, header: TransferHeader, data: memoryview) -> Transfer:
        size_bytes = len(data)
        if size_bytes == header.size_bytes:
            self._transfer = None
            return Transfer(header, data)
        self._transfer = header._replace(
            size_bytes=header.size_bytes - size_bytes, phy_offset=PhyOffset(header.phy_offset + size_bytes)
        )
        return Transfer(header._replace(size_bytes=size_bytes), data)
