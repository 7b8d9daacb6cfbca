"""Records that the page reads: whatever a body says it holds, only its beginning is decompressed."""

from __future__ import annotations

import struct
import tracemalloc
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial

import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from nameserver.web.message_view import BODY_LIMIT_BYTES, message_view
from nameserver.web.records import BATCH_START_BYTES, BODY_START_BYTES, message_previews
from rmqha.client.consumers.message import decode_messages
from rmqha.model.error import RemoteProtocolError
from rmqha.model.message import (
    SYS_FLAG_COMPRESSED,
    SYS_FLAG_COMPRESSION_LZ4,
    SYS_FLAG_COMPRESSION_ZLIB,
    SYS_FLAG_COMPRESSION_ZSTD,
    SYS_FLAG_INNER_BATCH,
    encode_properties,
)
from tests.client.fake import Stored, encode_stored
from tests.support.machine_speed import cpu_ms, reference_ms

BOMB_BYTES = 64 << 20
LIMIT_MS = 1000
"""CPU time on the reference machine."""
KINDS: dict[str, tuple[int, Callable[[bytes], bytes]]] = {
    "zlib": (SYS_FLAG_COMPRESSION_ZLIB, lambda body: zlib.compress(body, 9)),
    "lz4": (SYS_FLAG_COMPRESSION_LZ4, lz4.frame.compress),
    "zstd": (SYS_FLAG_COMPRESSION_ZSTD, zstandard.ZstdCompressor().compress),
}


def record(body: bytes, sys_flag: int = 0, properties: dict[str, str] | None = None) -> bytes:
    return encode_stored(Stored("T", 0, 0, body, properties or {}, sys_flag, {}))


@cache
def bomb(kind: str) -> tuple[bytes, int]:
    """As stored, and its flags: 64 MiB from some tens of KiB."""
    flag, compress = KINDS[kind]
    return compress(bytes(BOMB_BYTES)), SYS_FLAG_COMPRESSED | flag


@pytest.mark.parametrize("kind", KINDS)
def test_a_bomb_costs_no_more_than_what_is_shown(kind: str) -> None:
    body, flags = bomb(kind)
    if kind == "lz4":
        body = body[: 1 << 17]  # a broker's largest body is 4 MiB, and this one need not end
    answer = record(body, flags) * 32
    tracemalloc.start()
    found = message_previews("broker-a", answer, 100)
    most_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(found) == 32 and {len(item.message.body) for item in found} == {BODY_START_BYTES}
    assert reference_ms(partial(cpu_ms, partial(message_previews, "broker-a", answer, 100)), LIMIT_MS) < LIMIT_MS
    assert most_bytes < 32 << 20
    shown = message_view(found[0].message, 1024, packed_bytes=found[0].packed_bytes)["body"]
    assert (shown["bytes"], shown["compressed"]) == (len(body), True)
    assert shown["note"].startswith(f"the first 1024 bytes of what {len(body)} compressed ones hold")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [0, 1, BODY_LIMIT_BYTES, BODY_LIMIT_BYTES + 1, BODY_LIMIT_BYTES + 2])
def test_a_body_is_shown_as_a_consumer_gets_it(kind: str, size: int) -> None:
    flag, compress = KINDS[kind]
    plain = bytes(index * index % 251 for index in range(size))
    answer = record(compress(plain), SYS_FLAG_COMPRESSED | flag)
    (whole,) = decode_messages("b", answer)
    (found,) = message_previews("b", answer, 9)
    assert whole.body == plain
    assert found.message.body == plain[:BODY_START_BYTES]
    assert (found.packed_bytes > 0) == (size > BODY_START_BYTES)


def test_a_body_that_does_not_decompress_is_shown_as_it_is_stored() -> None:
    for flag, _ in KINDS.values():
        (found,) = message_previews("b", record(b"no stream at all", SYS_FLAG_COMPRESSED | flag), 9)
        shown = message_view(found.message, 1024, packed_bytes=found.packed_bytes, problem=found.problem)["body"]
        assert shown["kind"] == "hex" and "no stream at al" in shown["text"]
        assert shown["note"].startswith("a compressed body does not decompress")


def members(count: int, body: bytes = b"x") -> bytes:
    properties = encode_properties({"KEYS": "k"})
    one = struct.pack(">iiiii", 0, 0, 0, 0, len(body)) + body + struct.pack(">H", len(properties)) + properties
    return one * count


def test_members_of_a_batch_are_messages_as_far_as_its_beginning_goes() -> None:
    answer = record(members(3), SYS_FLAG_INNER_BATCH, {"INNER_BASE": "7"})
    assert [item.message for item in message_previews("b", answer, 9)] == decode_messages("b", answer)
    packed = zlib.compress(members(1000, bytes(4096)))
    found = message_previews("b", record(packed, SYS_FLAG_INNER_BATCH | SYS_FLAG_COMPRESSED), 10_000)
    assert 0 < len(found) == BATCH_START_BYTES // len(members(1, bytes(4096)))
    assert len(message_previews("b", record(members(1000), SYS_FLAG_INNER_BATCH), 32)) == 32


@pytest.mark.parametrize("data", [members(1)[:-1], members(1)[:22], b"\xff" * 40, b"\x00"])
def test_a_batch_that_is_none_is_told(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        message_previews("b", record(data, SYS_FLAG_INNER_BATCH), 9)


@given(st.binary(max_size=300), st.integers(0, 300), st.sampled_from([0, *(flag for flag, _ in KINDS.values())]))
def test_no_bytes_make_it_raise_anything_else(data: bytes, at: int, flag: int) -> None:
    good = record(zlib.compress(members(2)), SYS_FLAG_COMPRESSED | SYS_FLAG_INNER_BATCH | flag)
    for answer in (data, good[:at] + data, good[:at] + data + good[at + len(data) :]):
        with suppress(RemoteProtocolError):
            message_previews("b", answer, 9)
