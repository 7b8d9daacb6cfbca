"""Sends as clients write them, with faults: streams for both kernels."""

from __future__ import annotations

import struct
from functools import cache
from random import Random

from hypothesis import strategies as st

from rmqha.model.code import RequestCode
from rmqha.wire.command import Command, HeaderCodec, Language
from rmqha.wire.frame import FrameParser, encode_frame
from tests.broker.support import MAX_FRAME_BYTES, send_command
from tests.golden.reader import frames as golden_frames
from tests.golden.reader import raw

PLAIN = "UNIQ_KEY\x017F000001000000000000000000000A\x02WAIT\x01true\x02TAGS\x01TagA\x02"
PROPERTIES = [
    "",
    PLAIN,
    "KEYS\x01a b c\x02" + PLAIN,
    "TAGS\x01only\x02",
    "TAGS\x01",
    "UNIQ_KEY\x01first\x02UNIQ_KEY\x01second\x02",
    "aUNIQ_KEY\x01no\x02TAGS\x01x\x02TAGS\x01y",
    "UNIQ_KEY\x01with\x01one\x02",
    "colour\x01red",
    "noseparator",
    "text\x01\u4f60\u597d\x02",
    'quote\x01"\x02',
    "path\x01c:\\u0001\x02",
    "WAIT\x01false\x02",
    "WAIT\x01falsehood\x02",
    "DELAY\x013\x02",
    "TIMER_DELIVER_MS\x0199\x02",
    "TRAN_MSG\x01true\x02PGROUP\x01P\x02",
    "MSG_REGION\x01elsewhere\x02",
    "CLUSTER\x01mine\x02",
    "INNER_NUM\x013\x02",
    "__CRC32#\x010000000000\x02",
    "__SHARDINGKEY\x01s\x02",
    "big\x01" + "x" * 32_700 + "\x02",
    "zero\x01a\0b\x02",
    "zeros\x01" + "\0" * 600 + "\x02",
]
NUMBERS = ["0", "1", "3", "4", "-1", "007", "999999999", "2147483648", "", "x", "+1", "1_0", " 1"]
FIELDS: dict[str, list[str]] = {
    "b": [
        "T",
        "Narrow",
        "%Odd|name_-",
        "L" * 200,
        "ReadOnly",
        "Batches",
        "New",
        "%RETRY%G",
        "SCHEDULE_TOPIC_XXXX",
        "a/b",
    ],
    "e": NUMBERS,
    "f": ["0", "1", "2", "3", "4", "8", "16", "128", "256", "769", "-1", "x"],
    "g": ["0", "1795227462186", "-5", "999999999999999999", "99999999999999999999", "t"],
    "h": NUMBERS,
    "i": PROPERTIES,
    "j": ["0", "3", "-1", "9999999999"],
    "k": ["false", "true", "", "\u00fc"],
    "l": ["", "0", "16", "x"],
    "m": ["false", "true", "True", ""],
    "n": ["broker-a", "", 'a"b'],
    "forwardedBy": ["127.0.0.1:7"],
    "AccessKey": ["me"],
}
ORDER = "abcdefghijklmn"
PART_PROPERTIES = [
    b"",
    PLAIN.encode(),
    b"UNIQ_KEY\x01K\x02WAIT\x01false\x02DELAY\x013\x02TAGS\x01B\x02",
    b"UNIQ_KEY\x01K\x02__SHARDINGKEY\x01s\x02",
    b"TAGS\x01",
    b"TAGS\x01a\x02TAGS\x01b",
    "TAGS\x01\u4f60\x02".encode(),
    b"text\x01\xff\x02",
    b"CLUSTER\x01other\x02",
    b"__CRC32#\x010000000000\x02",
    b"zero\x01\0",
    b"zero\x01a\0b\x02",
    b"zeros\x01" + bytes(600) + b"\x02",
    b"big\x01" + b"x" * 32_763,
]


def part(body: bytes, properties: bytes, flag: int = 0) -> bytes:
    """A message in the body of a batch (formats.md §12.4)."""
    size = 22 + len(body) + len(properties)
    return struct.pack(">iIIii", size, 0, 0, flag, len(body)) + body + struct.pack(">H", len(properties)) + properties


PARTS = st.lists(
    st.builds(
        part,
        st.one_of(st.binary(max_size=40), st.just(b"y" * 30_000)),
        st.one_of(st.sampled_from(PART_PROPERTIES[:4]), st.sampled_from(PART_PROPERTIES)),
        st.sampled_from([0, 0, 7, -1]),
    ),
    max_size=6,
).map(b"".join)
"""Bodies of batches."""


@st.composite
def sends(draw: st.DrawFn) -> Command:
    """A send as clients write it, with few fields that are not the usual ones."""
    body = draw(st.one_of(st.binary(max_size=40), st.just(b"y" * 100_000), st.just(b"z" * 100_001)))
    command = send_command("T", draw(st.integers(0, 3)), body, i=draw(st.sampled_from(PROPERTIES[:5])), n="broker-a")
    for name in draw(st.lists(st.sampled_from(sorted(FIELDS)), max_size=2)):
        command.ext[name] = draw(st.sampled_from(FIELDS[name]))
    if draw(st.booleans()):
        command.ext = {name: command.ext[name] for name in sorted(command.ext, key=lambda name: (len(name), name))}
    for name in draw(st.lists(st.sampled_from("abcdefghijkmn"), max_size=1)) if draw(st.integers(0, 9)) == 0 else ():
        del command.ext[name]
    command.code = draw(st.sampled_from([310, 310, 310, 310, 310, 310, 10, 320, 320, 320, 34]))
    if command.code == RequestCode.SEND_BATCH_MESSAGE and draw(st.integers(0, 9)):
        command.body = draw(PARTS)
        if draw(st.integers(0, 9)) == 0:
            at = draw(st.integers(0, len(command.body)))
            command.body = command.body[:at] + draw(st.binary(max_size=3)) + command.body[at + 1 :]
    command.codec = draw(st.sampled_from(list(HeaderCodec)))
    command.flag = draw(st.sampled_from([0, 0, 0, 0, 0, 2, 4]))
    command.language = draw(st.sampled_from([Language.JAVA, Language.GO, Language.PYTHON]))
    command.version = draw(st.sampled_from([493, 0, 9, -1]))
    command.remark = draw(st.sampled_from([None, None, None, "r"]))
    return command


def batch_command(body: bytes, queue_id: int = 0, topic: str = "T") -> Command:
    """Request 320 as the Java client writes it."""
    ext = send_command(topic, queue_id, i="UNIQ_KEY\x01B0\x02WAIT\x01true\x02", m="true", n="broker-a").ext
    return Command(RequestCode.SEND_BATCH_MESSAGE, ext, body)


def stream_of(commands: list[Command], opaques: list[int]) -> bytes:
    for command, opaque in zip(commands, opaques, strict=True):
        command.opaque = opaque
    return b"".join(map(encode_frame, commands))


OPAQUES = st.sampled_from(
    [0, 1, 7, 12345, 999_999_999, 1_000_000_000, 2_099_999_999, 2_147_483_647, -1, -2_147_483_648]
)


def golden_streams() -> list[bytes]:
    """The sends of each recorded connection, byte for byte as they came."""
    streams: dict[tuple[str, str], bytes] = {}
    for entry in golden_frames():
        for command in FrameParser(MAX_FRAME_BYTES).feed(raw(entry)):
            if not command.is_response and command.code in (
                RequestCode.SEND_MESSAGE,
                RequestCode.SEND_MESSAGE_V2,
                RequestCode.SEND_BATCH_MESSAGE,
            ):
                key = entry["scenario"], entry["conn"]
                streams[key] = streams.get(key, b"") + raw(entry)
    return list(streams.values())


@cache
def _wholes() -> list[bytes]:
    """Frames to be damaged, in both codecs."""
    wholes = golden_streams()
    for codec in HeaderCodec:
        for number, properties in enumerate(PROPERTIES[:-1]):
            command = send_command("T", number % 4, b"body" * number, i=properties, n="broker-a")
            command.codec = codec
            wholes.append(encode_frame(command))
        for number in range(1, 2 * len(PART_PROPERTIES)):
            parts = [part(b"b" * number, PART_PROPERTIES[(number * place) % (len(PART_PROPERTIES) - 1)])
                     for place in range(1 + number % 4)]  # fmt: skip
            command = batch_command(b"".join(parts), number % 4)
            command.codec = codec
            wholes.append(encode_frame(command))
    return wholes


_TELLING = [
    b'"', b"\\", b"\0", b"\x01", b"\x02", b"\x7f", b"\xff", b"-", b"0", b"9", b"true", b"\\u0001", b"\\u0002",
    b"\\u0000", b"DELAY", b"WAIT\x01false", b"UNIQ_KEY\x01", b"TAGS\x01", b'","n":"', b'","l":"16', b"}", b",",
]  # fmt: skip
"""Pieces that decide between plain and not."""


def damaged_sends(random: Random) -> bytes:
    """Sends with a few bytes changed; half of them keep the sizes of their frames right."""
    data = bytearray().join(random.choice(_wholes()) for _ in range(random.randint(1, 3)))
    for _ in range(random.randint(0, 3)):
        at = random.randrange(len(data))
        match random.randrange(4):
            case 0:
                data[at] = random.randrange(256)
            case 1:
                piece = random.choice(_TELLING)
                data[at : at + len(piece)] = piece
            case 2:
                _resized(random, data, at)
            case _:
                data[at : at + random.randint(1, 4)] = random.choice(_TELLING)
    return bytes(data)


def _resized(random: Random, data: bytearray, at: int) -> None:
    """Put a piece into the first frame's header, and let its sizes say so."""
    if len(data) < 8:
        return
    size, word = int.from_bytes(data[:4], "big"), int.from_bytes(data[4:8], "big")
    piece, end = random.choice(_TELLING), 8 + (word & 0xFFFFFF)
    if size + len(piece) < 1 << 31 and end <= len(data):
        at = 8 + at % (end - 7)
        data[at:at] = piece
        data[:8] = (size + len(piece)).to_bytes(4, "big") + (word + len(piece)).to_bytes(4, "big")
