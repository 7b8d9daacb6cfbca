"""The HA stream against the one captured between two real brokers."""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqha.model.epoch import EpochEntry, EpochHistory
from rmqha.model.error import RemoteProtocolError
from rmqha.model.offset import BrokerId, Epoch, PhyOffset
from rmqha.wire.ha_stream import (
    TRANSFER_HEADER_BYTES,
    MasterFrame,
    MasterHandshake,
    MasterStreamParser,
    SlaveAck,
    SlaveFrame,
    SlaveHandshake,
    SlaveStreamParser,
    Transfer,
    TransferHeader,
)
from tests.golden.reader import lines

CAPTURE = lines("wire/ha-autoswitch.jsonl")


def whole(entry: dict[str, Any]) -> bytes:
    """The frame; the capture keeps 2 KiB of each, what is missing of the log bytes is made up."""
    data = bytes.fromhex(entry["hex"])
    return data + bytes(entry["len"] - len(data))


def expected(entry: dict[str, Any]) -> SlaveFrame | MasterFrame:
    """The frame that the capture's own decoder saw."""
    match entry["direction"], entry["kind"]:
        case "slave->master", "handshake":
            return SlaveHandshake(
                BrokerId(entry["slaveBrokerId"]), entry["syncFromLastFile"] == 1, entry["asyncLearner"] == 1
            )
        case "slave->master", "ack":
            return SlaveAck(entry["maxOffset"])
        case "master->slave", "handshake":
            history = EpochHistory(EpochEntry(Epoch(epoch), PhyOffset(start)) for epoch, start in entry["entries"])
            return MasterHandshake(entry["offset"], entry["epoch"], history)
        case _:
            header = TransferHeader(
                entry["bodySize"], entry["offset"], entry["epoch"], entry["epochStartOffset"], entry["confirmOffset"]
            )
            return Transfer(header, whole(entry)[TRANSFER_HEADER_BYTES:])


def parser_of(direction: str) -> SlaveStreamParser | MasterStreamParser:
    return SlaveStreamParser() if direction == "slave->master" else MasterStreamParser()


def encoded(frame: SlaveFrame | MasterFrame) -> bytes:
    return frame.header.encode() + bytes(frame.data) if isinstance(frame, Transfer) else frame.encode()


def fed(
    parser: SlaveStreamParser | MasterStreamParser, stream: bytes, cuts: list[int]
) -> list[SlaveFrame | MasterFrame]:
    """The frames of a stream that arrives in pieces, in a buffer that is used again for each."""
    found: list[SlaveFrame | MasterFrame] = []
    for start, end in pairwise([0, *cuts, len(stream)]):
        buffer = bytearray(stream[start:end])
        for frame in parser.feed(buffer):
            found.append(Transfer(frame.header, bytes(frame.data)) if isinstance(frame, Transfer) else frame)
        buffer[:] = b"\xee" * len(buffer)
    return found


def check(found: list[SlaveFrame | MasterFrame], frames: list[SlaveFrame | MasterFrame]) -> None:
    """They are the same, but that log bytes may come in pieces, each with the header that fits it."""
    rest = iter(found)
    for frame in frames:
        if not isinstance(frame, Transfer):
            assert next(rest) == frame
            continue
        at = 0
        while True:
            piece = next(rest)
            assert isinstance(piece, Transfer)
            size, offset = len(piece.data), PhyOffset(frame.header.phy_offset + at)
            assert piece.header == frame.header._replace(size_bytes=size, phy_offset=offset)
            assert piece.data == frame.data[at : at + size]
            at += size
            if at == frame.header.size_bytes:
                break
            assert size
    assert list(rest) == []


@pytest.mark.parametrize("direction", ["slave->master", "master->slave"])
@pytest.mark.parametrize("chunk", [1, 7, 36, 4096, 1 << 20])
def test_captured_streams(direction: str, chunk: int) -> None:
    connections = sorted({entry["conn"] for entry in CAPTURE})
    assert len(connections) == 2
    for connection in connections:
        entries = [item for item in CAPTURE if item["conn"] == connection and item["direction"] == direction]
        stream = b"".join(map(whole, entries))
        found = fed(parser_of(direction), stream, list(range(chunk, len(stream), chunk)))
        frames = [expected(entry) for entry in entries]
        check(found, frames)
        assert b"".join(map(encoded, frames)) == stream


def test_the_frame_at_an_epoch_boundary_is_read_as_it_is() -> None:
    """It carries the next epoch, whose start lies beyond its own offset."""
    headers = [expected(entry) for entry in CAPTURE if entry["kind"] == "data"]
    assert any(
        isinstance(item, Transfer) and item.header.epoch_start_offset > item.header.phy_offset for item in headers
    )


OFFSETS = st.integers(0, 2**63 - 1)
MASTER_FRAMES = st.builds(
    lambda size, *rest: Transfer(TransferHeader(size, *rest), b"x" * size),
    st.integers(0, 200), OFFSETS, st.integers(0, 2**31 - 1), OFFSETS, OFFSETS,
) | st.builds(
    lambda offset, epoch, starts: MasterHandshake(
        offset, epoch, EpochHistory(EpochEntry(Epoch(n + 1), start) for n, start in enumerate(sorted(starts)))
    ),
    OFFSETS, st.integers(0, 2**31 - 1), st.sets(OFFSETS, max_size=5),
)  # fmt: skip
SLAVE_FRAMES = st.builds(SlaveAck, OFFSETS) | st.builds(SlaveHandshake, OFFSETS, st.booleans(), st.booleans())


@given(st.lists(MASTER_FRAMES, max_size=8), st.lists(SLAVE_FRAMES, max_size=8), st.data())
def test_any_split_gives_the_same_frames(
    masters: list[MasterFrame], slaves: list[SlaveFrame], data: st.DataObject
) -> None:
    for parser, frames in ((MasterStreamParser(), masters), (SlaveStreamParser(), slaves)):
        stream = b"".join(map(encoded, frames))
        cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
        check(fed(parser, stream, cuts), list(frames))


def test_a_transfers_bytes_are_not_waited_for() -> None:
    """A peer that announces 4 MiB and sends a byte has cost no memory, and the byte counts."""
    parser = MasterStreamParser()
    header = TransferHeader(4 << 20, PhyOffset(700), Epoch(3), PhyOffset(0), PhyOffset(600))
    assert parser.feed(header.encode()) == []
    (piece,) = parser.feed(b"a")
    assert piece == Transfer(header._replace(size_bytes=1), b"a")
    (piece,) = parser.feed(b"bc")
    assert piece == Transfer(header._replace(size_bytes=2, phy_offset=PhyOffset(701)), b"bc")


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">iq", 3, 0),
        struct.pack(">iq", 0, 0),
        b"GET / HTTP/1.1\r\n",
    ],
)
def test_a_slave_that_is_none(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        SlaveStreamParser().feed(data)


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">iiqi", 1, 13, 0, 0),
        struct.pack(">iiqi", 1, -12, 0, 0),
        struct.pack(">iiqi", 1, 12 * 100_001, 0, 0),
        struct.pack(">iiqi", 1, 24, 0, 2) + struct.pack(">iqiq", 2, 5, 1, 9),
        struct.pack(">iiqiqq", 2, 5 << 20, 0, 1, 0, 0),
        struct.pack(">iiqiqq", 2, -1, 0, 1, 0, 0),
        struct.pack(">iiqi", 4, 0, 0, 0),
    ],
)
def test_a_master_that_is_none(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        MasterStreamParser().feed(data)
