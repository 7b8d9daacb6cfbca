"""The plain HA protocol: bytes by hand, any split of them, and what is not the protocol."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqha.model.error import RemoteProtocolError
from rmqha.model.offset import PhyOffset
from rmqha.wire.legacy_ha import (
    MAX_OFFSET,
    LegacyTransfer,
    LegacyTransferParser,
    ReportParser,
    encode_header,
    encode_report,
    is_report,
)


def test_the_bytes_are_those_of_the_page() -> None:
    assert encode_report(PhyOffset(0x0102030405)) == bytes.fromhex("0000000102030405")
    assert encode_header(PhyOffset(4096), 3) + b"abc" == bytes.fromhex("0000000000001000 00000003") + b"abc"
    assert LegacyTransferParser().feed(bytes.fromhex("0000000000001000 00000003 616263")) == [
        LegacyTransfer(PhyOffset(4096), b"abc")
    ]
    assert ReportParser().feed(bytes.fromhex("0000000102030405")) == [0x0102030405]


@given(
    sizes=st.lists(st.integers(0, 50), max_size=8),
    reports=st.lists(st.integers(0, MAX_OFFSET - 1), max_size=8),
    step=st.integers(1, 17),
)
def test_any_split_gives_the_same_frames(sizes: list[int], reports: list[int], step: int) -> None:
    frames = [LegacyTransfer(PhyOffset(100 * n), bytes([n]) * size) for n, size in enumerate(sizes)]
    stream = b"".join(encode_header(frame.phy_offset, len(frame.data)) + frame.data for frame in frames)
    parser, got = LegacyTransferParser(), list[LegacyTransfer]()
    for at in range(0, len(stream), step):
        got += parser.feed(stream[at : at + step])
    assert got == frames
    stream = b"".join(encode_report(PhyOffset(offset)) for offset in reports)
    reader, offsets = ReportParser(), list[int]()
    for at in range(0, len(stream), step):
        offsets += reader.feed(stream[at : at + step])
    assert offsets == reports


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n", b"\xff" * 8, b"\0\0\0\1\0\0\0"])
def test_what_begins_otherwise_is_no_report(data: bytes) -> None:
    assert not is_report(data)
    assert is_report(encode_report(PhyOffset(0)))


def test_nonsense_is_refused_before_it_is_kept() -> None:
    with pytest.raises(RemoteProtocolError, match="is no offset"):
        ReportParser().feed(b"\xff" * 8)
    with pytest.raises(RemoteProtocolError, match="announces 67108864 bytes"):
        LegacyTransferParser().feed(encode_header(PhyOffset(0), 64 * 1024 * 1024))
    with pytest.raises(RemoteProtocolError, match="announces -1 bytes"):
        LegacyTransferParser().feed(encode_header(PhyOffset(0), -1))
