"""The parsers of everything that comes over a socket."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from rmqha.model.error import RemoteProtocolError
from rmqha.model.message import decode_properties, parse_offset_message_id
from rmqha.wire.command import Command, HeaderCodec
from rmqha.wire.frame import FrameParser, encode_frame
from rmqha.wire.ha_stream import MasterStreamParser, SlaveStreamParser
from rmqha.wire.json_header import decode_json_header
from rmqha.wire.legacy_ha import LegacyTransferParser, ReportParser
from rmqha.wire.lenient_json import dumps, loads
from rmqha.wire.registration import parse_registration
from rmqha.wire.rocketmq_header import decode_rocketmq_header
from tests.fuzz.budget import fuzz, only
from tests.golden.reader import frames, raw
from tests.support.steps import done

GOLDEN_FRAMES = [raw(entry) for entry in frames()][::7]
JSON_TEXT = st.text(alphabet='{}[]",:0123456789-+.eEtruefalsn \\\tab\ud83d', max_size=200)


@st.composite
def damaged_frames(draw: st.DrawFn) -> bytes:
    """A captured frame with some bytes changed, cut out or put in."""
    data = bytearray(draw(st.sampled_from(GOLDEN_FRAMES)))
    for _ in range(draw(st.integers(1, 4))):
        position = draw(st.integers(0, min(len(data), 600)))
        removed = draw(st.integers(0, 3))
        data[position : position + removed] = draw(st.binary(max_size=4))
    return bytes(data)


@fuzz
@given(damaged_frames() | st.binary(max_size=300))
def test_frames(data: bytes) -> None:
    parser = FrameParser(1 << 20)
    with only(RemoteProtocolError):
        for command in parser.feed(data):
            # whatever is accepted can be answered and passed on
            assert FrameParser(1 << 22).feed(encode_frame(command)) == [command]
    assert parser.buffered_bytes <= len(data)


@fuzz
@given(st.integers(0, 0xFFFFFFFF), st.integers(0, 0xFFFFFFFF), st.binary(max_size=64))
def test_frame_lengths_bound_memory(size: int, word: int, rest: bytes) -> None:
    parser = FrameParser(4096)
    with only(RemoteProtocolError):
        parser.feed(struct.pack(">II", size, word) + rest)
    assert parser.buffered_bytes <= 72


@fuzz
@given(JSON_TEXT)
def test_json_headers(text: str) -> None:
    with only(RemoteProtocolError):
        encode_frame(decode_json_header(text.encode("utf-8", "surrogatepass")))


@fuzz
@given(JSON_TEXT)
def test_json_ext_fields(text: str) -> None:
    with only(RemoteProtocolError):
        command = decode_json_header(f'{{"code":1,"extFields":{text}}}'.encode("utf-8", "surrogatepass"))
        assert all(isinstance(value, str) for value in command.ext.values())


@fuzz
@given(st.binary(max_size=120), st.integers(0, 60))
def test_binary_headers(data: bytes, ext_bytes: int) -> None:
    fixed = struct.pack(">hbhiii", 10, 0, 493, 1, 0, 0)
    for header in (data, fixed + data, fixed + struct.pack(">i", ext_bytes) + data[:ext_bytes]):
        with only(RemoteProtocolError):
            command = decode_rocketmq_header(header)
            assert command.codec == HeaderCodec.ROCKETMQ
            encode_frame(command)


@fuzz
@given(JSON_TEXT)
def test_lenient_json(text: str) -> None:
    with only(RemoteProtocolError):
        value = loads(text.encode("utf-8", "surrogatepass"))
        assert loads(dumps(value)) == value


@fuzz
@given(JSON_TEXT)
def test_registrations(text: str) -> None:
    ext = {"clusterName": "c", "brokerName": "b", "brokerId": "0", "brokerAddr": "a:1"}
    for wrapped in (text, f'{{"topicConfigSerializeWrapper":{{"topicConfigTable":{text}}}}}'):
        with only(RemoteProtocolError):
            done(parse_registration(Command(103, ext, wrapped.encode("utf-8", "surrogatepass"))))


@fuzz
@given(st.lists(st.sampled_from([0, 1, 2, 3, 12, 24, 36, -1, 2**31 - 1]), max_size=40), st.binary(max_size=20))
def test_ha_streams(words: list[int], tail: bytes) -> None:
    data = struct.pack(f">{len(words)}i", *words) + tail
    for parser in (SlaveStreamParser(), MasterStreamParser(), ReportParser(), LegacyTransferParser()):
        with only(RemoteProtocolError):
            for position in range(0, len(data), 7):
                parser.feed(data[position : position + 7])


@fuzz
@given(st.binary(max_size=200))
def test_properties_are_lenient(data: bytes) -> None:
    assert all(name for name in decode_properties(data))


@fuzz
@given(st.text(alphabet="0123456789ABCDEFabcdefgx ", min_size=30, max_size=57))
def test_offset_message_ids(text: str) -> None:
    with only(ValueError):
        (ip, _), _ = parse_offset_message_id(text)
        assert len(ip) in (4, 16)
