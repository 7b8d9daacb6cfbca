"""Remoting frames against 1,609 captured ones, and the laws of the codec."""

from __future__ import annotations

import base64
import json
import struct
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqha.model.code import RequestCode
from rmqha.model.error import RemoteProtocolError
from rmqha.wire.command import Command, HeaderCodec, Language
from rmqha.wire.frame import (
    LARGE_BYTES,
    MAX_HEADER_BYTES,
    FrameParser,
    NumbersFrame,
    begins_with_no_send,
    encode_frame,
    success_frame,
)
from rmqha.wire.json_header import decode_json_header, encode_json_header
from rmqha.wire.rocketmq_header import MAX_EXT_COUNT, decode_rocketmq_header
from tests.golden.reader import frames, raw

LIMIT = 16 * 1024 * 1024
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
INT32 = st.integers(-(2**31), 2**31 - 1)
COMMANDS = st.builds(
    Command,
    st.integers(-32768, 32767),
    st.dictionaries(TEXT, TEXT, max_size=6),
    st.binary(max_size=60),
    flag=st.integers(0, 3),
    opaque=INT32,
    remark=st.none() | TEXT.filter(bool),
    language=st.sampled_from(Language).map(int),
    version=st.integers(0, 32767),
    codec=st.sampled_from(HeaderCodec),
)


def decode_one(data: bytes) -> Command:
    [command] = FrameParser(LIMIT).feed(data)
    return command


def header_frame(header: bytes, codec: int = 0, body: bytes = b"") -> bytes:
    return struct.pack(">II", 4 + len(header) + len(body), codec << 24 | len(header)) + header + body


def expect_header(command: Command, header: dict[str, Any]) -> None:
    """The command equals the header that the capture's own decoder read."""
    assert command.ext == {
        key: "" if value is None else value for key, value in (header.get("extFields") or {}).items()
    }
    assert (command.code, command.opaque, command.flag) == (header["code"], header["opaque"], header["flag"])
    assert (Language(command.language).name, command.version) == (header["language"], header["version"])
    assert command.remark == header.get("remark")
    assert command.codec.name == header["serializeTypeCurrentRPC"]


def test_every_captured_frame_decodes_to_its_header() -> None:
    count = 0
    for entry in frames():
        command = decode_one(raw(entry))
        expect_header(command, entry["header"])
        assert len(command.body) == entry["body_len"]
        assert bytes(command.body).startswith(base64.b64decode(entry["body_b64"])[:4096]) or "path_placeholder" in entry
        count += 1
    assert count == 1609


def test_captured_frames_are_encoded_alike() -> None:
    """Byte for byte, except that Java writes an empty extFields where it holds an empty map and none where it holds
    null, which a decoded command cannot tell apart."""
    other = 0
    for entry in frames():
        data = raw(entry)
        mine = encode_frame(decode_one(data))
        if mine != data:
            other += 1
            assert entry["header"]["extFields"] == {}
            assert entry["ser"] == "JSON"
            assert mine[8:] == data[8:].replace(b'"extFields":{},', b"", 1)
    assert other < 200


def test_the_first_words_of_a_header_tell_what_is_no_send() -> None:
    """Of all that Java writes; of another's header, where the code may stand anywhere, they tell nothing."""
    sends = RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE
    counts = {True: 0, False: 0}
    for entry in frames():
        data = raw(entry)
        assert begins_with_no_send(data) == (entry["ser"] == "JSON" and decode_one(data).code not in sends)
        counts[begins_with_no_send(data)] += 1
        assert not begins_with_no_send(data[:8])
    assert counts[True] > 100 < counts[False]
    assert not begins_with_no_send(header_frame(b'{"flag":0,"code":11}'))


@pytest.mark.parametrize("chunk", [1, 3, 8, 1000, 65536])
def test_the_captured_stream_in_chunks(chunk: int) -> None:
    some = [raw(entry) for entry in frames()][::9]
    stream, parser = b"".join(some), FrameParser(LIMIT)
    found: list[Command] = []
    for position in range(0, len(stream), chunk):
        found += parser.feed(stream[position : position + chunk])
    assert found == [decode_one(data) for data in some]
    assert parser.buffered_bytes == 0


@given(st.lists(COMMANDS, max_size=6), st.data())
def test_any_split_gives_the_same_commands(commands: list[Command], data: st.DataObject) -> None:
    stream, parser = b"".join(map(encode_frame, commands)), FrameParser(LIMIT)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    found: list[Command] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += parser.feed(stream[start:end])
    assert found == commands


@given(COMMANDS, COMMANDS, st.lists(st.binary(max_size=20), max_size=3))
def test_a_success_is_the_frame_of_its_reply(request: Command, reply: Command, pieces: list[bytes]) -> None:
    expected = encode_frame(request.reply(0, reply.ext, b"".join(pieces), reply.remark))
    assert success_frame(request, reply.ext, [memoryview(piece) for piece in pieces], reply.remark) == expected


@given(
    COMMANDS,
    st.dictionaries(TEXT | st.just("%d%s%"), st.integers(), min_size=1, max_size=6),
    TEXT.filter(bool) | st.just("%d%s%"),
    st.lists(st.binary(max_size=20), max_size=3),
)
def test_an_answer_of_numbers_is_the_frame_of_its_reply(
    request: Command, fields: dict[str, int], remark: str, pieces: list[bytes]
) -> None:
    reply = request.reply(0, {name: str(value) for name, value in fields.items()}, b"".join(pieces), remark)
    found = NumbersFrame(tuple(fields), remark).encode(request, tuple(fields.values()), pieces)
    assert found == encode_frame(reply)


@given(COMMANDS)
def test_json_header_is_the_json_that_the_standard_library_reads(command: Command) -> None:
    value = json.loads(encode_json_header(command))
    assert value.pop("extFields", {}) == command.ext
    assert value.pop("remark", None) == command.remark
    assert value == {
        "code": command.code,
        "flag": command.flag,
        "language": Language(command.language).name,
        "opaque": command.opaque,
        "serializeTypeCurrentRPC": "JSON",
        "version": command.version,
    }


@given(
    st.dictionaries(TEXT, TEXT | st.integers(-(2**63), 2**63) | st.booleans() | st.none(), max_size=5),
    st.sampled_from([None, 0, 1, "\t"]),
    st.booleans(),
)
def test_other_clients_headers(ext: dict[str, Any], indent: int | str | None, escape: bool) -> None:
    """Numbers and booleans arrive as their text, white space and member order do not matter, null is absent."""
    header = {"version": 121, "extFields": ext, "opaque": 5, "flag": 0, "language": "JAVASCRIPT", "code": 310}
    text = json.dumps(header, indent=indent, ensure_ascii=escape)
    command = decode_json_header(f" {text}\n".encode() if indent else text.encode())
    plain = {True: "true", False: "false"}
    assert command.ext == {
        key: plain[value] if isinstance(value, bool) else str(value) for key, value in ext.items() if value is not None
    }
    assert (command.code, command.opaque, command.version, command.language) == (310, 5, 121, Language.OTHER)


def test_fractions_keep_their_text() -> None:
    assert decode_json_header(b'{"code":1,"extFields":{"a":1.50,"b":-0.0,"c":1e3}}').ext == {
        "a": "1.50",
        "b": "-0.0",
        "c": "1e3",
    }


def test_answers_in_the_codec_asked_in() -> None:
    for codec in HeaderCodec:
        request = decode_one(encode_frame(Command(34, {"a": "b"}, opaque=9, codec=codec)))
        reply = decode_one(encode_frame(request.reply(0, {"c": ""}, b"body", "fine")))
        assert (reply.codec, reply.opaque, reply.ext, reply.is_response) == (codec, 9, {"c": ""}, True)


def test_codes_beyond_the_binary_header_travel_as_json() -> None:
    command = decode_one(encode_frame(Command(52000, codec=HeaderCodec.ROCKETMQ)))
    assert (command.code, command.codec) == (52000, HeaderCodec.JSON)


@pytest.mark.parametrize(
    "header",
    [
        b"", b"{", b"[]", b"null", b"1", b'"x"', b"{}", b'{"code":"1"}', b'{"code":1.0}', b'{"code":2147483648}',
        b'{"code":1,"opaque":-2147483649}', b'{"code":1,"flag":null}', b'{"code":1,"remark":5}',
        b'{"code":1,"extFields":[]}', b'{"code":1,"extFields":{"a":{}}}', b'{"code":1,"extFields":{"a":[1]}}',
        b'{"code":1,"extFields":{"a":"\\ud800"}}', b'{"code":1,"extFields":{"\\udc00":"a"}}',
        b'{"code":1,"remark":"\\ud83d"}', b'{"code":1,"extFields":{"a":NaN}}', b'{"code":1}x', b'{"code":1} {}',
        b"\xff\xfe", b'{"code":1,"extFields":{"a":"\x01"}}', b"[" * 100_000, b'{"a":' * 20_000,
        b'{"code":1,"a":' + b"9" * 5000 + b"}",
        b'{"code":1,"extFields":{' + b",".join(b'"%d":""' % n for n in range(MAX_EXT_COUNT + 1)) + b"}}",
    ],
)  # fmt: skip
def test_json_headers_that_are_none(header: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        FrameParser(LIMIT).feed(header_frame(header))


FIXED = struct.pack(">hbhii", 10, 0, 493, 1, 0)


@pytest.mark.parametrize(
    "header",
    [
        b"", FIXED,
        FIXED + struct.pack(">ii", -1, 0), FIXED + struct.pack(">ii", 5, 0), FIXED + struct.pack(">ii", 0, 3),
        FIXED + struct.pack(">ii", 0, -1), FIXED + struct.pack(">ii", 0, 1) + b"a",
        FIXED + struct.pack(">ii", 0, 2) + b"\0\1",
        FIXED + struct.pack(">iih", 0, 6, 1) + b"abcd", FIXED + struct.pack(">iihi", 0, 6, 0, 1),
        FIXED + struct.pack(">iihi", 0, 6, 0, -1), FIXED + struct.pack(">iih", 0, 9, 1) + b"\xff\0\0\0\2ab",
        FIXED + struct.pack(">i", 1) + b"\xff" + struct.pack(">i", 0),
        FIXED + struct.pack(">ii", 0, 10 * (MAX_EXT_COUNT + 1))
        + b"".join(struct.pack(">hii", 4, n, 0) for n in range(MAX_EXT_COUNT + 1)),
    ],
)  # fmt: skip
def test_binary_headers_that_are_none(header: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_rocketmq_header(header)


@pytest.mark.parametrize(
    "words",
    [(3, 0), (0, 0), (LIMIT + 1, 0), (0xFFFFFFFF, 0), (20, 17), (LIMIT, MAX_HEADER_BYTES + 1), (6, 2 << 24 | 2)],
)
def test_frames_that_are_none(words: tuple[int, int]) -> None:
    with pytest.raises(RemoteProtocolError):
        FrameParser(LIMIT).feed(struct.pack(">II", *words) + b"{}")


def test_the_longest_properties_fit_the_header() -> None:
    command = Command(310, {"i": "\x01" * 32767})
    assert decode_one(encode_frame(command)) == command


def test_what_is_left_comes_by_further_calls() -> None:
    commands = [Command(10, opaque=number) for number in range(7)]
    parser, stream = FrameParser(LIMIT), b"".join(map(encode_frame, commands))
    half = len(stream) // 7 // 2
    found = parser.feed(stream[:-half], 3)
    assert (len(found), parser.has_more) == (3, True)
    found += parser.feed(b"", 3)
    assert len(found) == 6
    found += parser.feed(b"", 3)
    assert (len(found), parser.has_more) == (6, False)
    found += parser.feed(stream[-half:], 3)
    assert [command.opaque for command in found] == list(range(7))
    assert (parser.has_more, parser.buffered_bytes) == (False, 0)


@pytest.mark.parametrize("max_count", [1, 2, 64])
@pytest.mark.parametrize("piece_bytes", [50_000, 65_536, 224 * 1024])
def test_large_frames_in_pieces(piece_bytes: int, max_count: int) -> None:
    sizes = (0, 3, LARGE_BYTES - 100, LARGE_BYTES, 300_000, 5, 1_000_000, 0, 200_000, 9)
    commands = [Command(310, {"i": "x"}, bytes(size), opaque=number) for number, size in enumerate(sizes)]
    stream, parser, found = b"".join(map(encode_frame, commands)), FrameParser(LIMIT), list[Command]()
    for begin in range(0, len(stream), piece_bytes):
        more = parser.feed(stream[begin : begin + piece_bytes], max_count)
        while more:
            assert len(more) <= max_count
            found += more
            more = parser.feed(b"", max_count) if parser.has_more else []
    assert found == commands
    assert all(type(command.body) is bytes for command in found)
    assert (parser.has_more, parser.buffered_bytes) == (False, 0)


def test_a_large_frame_is_left_to_the_parser() -> None:
    small, large = encode_frame(Command(310, body=b"x")), encode_frame(Command(310, body=bytes(LARGE_BYTES)))
    parser = FrameParser(LIMIT)
    parser.feed(small[:9])
    assert parser.unparsed(small[9:]) == small
    parser.feed(large[:9])
    assert parser.unparsed(large[9:] + small) == b""
    assert [len(command.body) for command in parser.feed(b"")] == [LARGE_BYTES, 1]


def test_half_a_frame_takes_the_memory_that_has_come_and_no_more() -> None:
    parser = FrameParser(1 << 24)
    assert parser.feed(struct.pack(">II", 1 << 24, 100)) == []
    assert sys.getsizeof(parser._buffer) < 200
