"""The legacy HA protocol: the replication stream of static groups, without a controller (formats.md §13.1).

The slave dials and sends first. Slave→master: its max offset, 8 B, when it has grown and at intervals. Master→slave:
transfers, 12 + size B; size 0 is a heartbeat. There is no handshake, no epoch and no confirm offset. Both parsers take
any split of the bytes. Source: RocketMQ's DefaultHAClient and DefaultHAConnection for the layout.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from rmqha.model.error import RemoteProtocolError
from rmqha.model.offset import Buffer, PhyOffset

REPORT_BYTES = 8
MAX_TRANSFER_BYTES = 4 * 1024 * 1024
"""Most bytes of one transfer. No master sends more: Java's slave has a read buffer of this size, header included."""
MAX_OFFSET = 1 << 56
"""Bound on offsets; a larger number shows that the peer uses another protocol."""

_REPORT = struct.Struct(">q")
_TRANSFER = struct.Struct(">qi")


def encode_report(max_offset: PhyOffset) -> bytes:
    """Encode a slave's report: it holds (under SYNC_FLUSH: has synced) every byte below `max_offset`."""
    return _REPORT.pack(max_offset)


def encode_header(phy_offset: PhyOffset, size_bytes: int) -> bytes:
    """Encode the header in front of `size_bytes` bytes of the log from `phy_offset` on."""
    return _TRANSFER.pack(phy_offset, size_bytes)


def is_report(data: bytes) -> bool:
    """True if the first bytes of a connection may be a slave's report."""
    return len(data) >= REPORT_BYTES and 0 <= _REPORT.unpack_from(data)[0] < MAX_OFFSET


@dataclass(frozen=True, slots=True)
class LegacyTransfer:
    """Bytes of the log from `phy_offset` on; b"": a heartbeat."""

    phy_offset: PhyOffset
    data: bytes


class ReportParser:
    """Parser of what a master reads. Raises RemoteProtocolError for an offset that cannot be one."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: Buffer) -> list[PhyOffset]:
        """Offsets of the reports that are complete with `data`; the rest is kept."""
        data = self._rest + bytes(data)
        whole_bytes = len(data) - len(data) % REPORT_BYTES
        self._rest = data[whole_bytes:]
        offsets = [offset for (offset,) in _REPORT.iter_unpack(data[:whole_bytes])]
        for offset in offsets:
            if not 0 <= offset < MAX_OFFSET:
                raise RemoteProtocolError(f"a slave reports {offset}, which is no offset")
        return offsets


class LegacyTransferParser:
    """Parser of what a slave reads. Raises RemoteProtocolError for anything that is not the protocol."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: Buffer) -> list[LegacyTransfer]:
        """Transfers that are complete with `data`; the rest is kept."""
        self._buffer += data
        frames: list[LegacyTransfer] = []
        position = 0
        while len(self._buffer) - position >= _TRANSFER.size:
            offset, size_bytes = _TRANSFER.unpack_from(self._buffer, position)
            if not 0 <= size_bytes <= MAX_TRANSFER_BYTES or not 0 <= offset < MAX_OFFSET:
                raise RemoteProtocolError(f"the master announces {size_bytes} bytes at offset {offset}")
            start = position + _TRANSFER.size
            if len(self._buffer) < start + size_bytes:
                break
            frames.append(LegacyTransfer(PhyOffset(offset), bytes(self._buffer[start : start + size_bytes])))
            position = start + size_bytes
        del self._buffer[:position]
        return frames
