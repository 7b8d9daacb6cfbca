"""Received messages: against the real system's log, every compression, and bytes that are none."""

from __future__ import annotations

import base64
import json
import sys
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import lz4.frame
import pyarrow
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from rmqha.client.compression import MAX_BODY_BYTES, compression, decompress
from rmqha.client.consumers.expression import parse_tags
from rmqha.client.consumers.membership import allocate_averagely
from rmqha.client.consumers.message import MessageBatch, decode_messages
from rmqha.client.producers.outgoing import OutgoingMessage, encode_batch
from rmqha.model.error import RemoteProtocolError, RmqhaError, UsageError
from tests.client.fake import Stored, encode_stored, split_batch


@pytest.mark.parametrize(
    ("sys_flag", "packed"),
    [
        (0x101, pyarrow.compress(b"body" * 99, "lz4", asbytes=True)),
        (0x201, zstandard.compress(b"body" * 99)),
        (0x201, zstandard.compress(bytes(range(256)) * 99, 1)),
        (0x301, zlib.compress(b"body" * 99)),
        (0x001, zlib.compress(b"body" * 99)),
        (0x300, b"body" * 99),
    ],
)
def test_every_compression_is_read(sys_flag: int, packed: bytes) -> None:
    assert decompress(memoryview(packed), sys_flag) in (b"body" * 99, bytes(range(256)) * 99)


@pytest.mark.parametrize("name", ["zlib", "lz4", "zstd"])
def test_what_a_producer_compresses_is_read(name: str) -> None:
    compress, sys_flag = compression(name)
    for body in (b"", b"x" * 5000, bytes(range(256)) * 999):
        assert decompress(compress(body), sys_flag) == body
        with pytest.raises(RemoteProtocolError, match=r"does not decompress|ends before"):
            decompress(compress(body)[:-3], sys_flag)


def test_a_compression_that_is_none_is_a_sentence() -> None:
    with pytest.raises(UsageError, match="there is no compression 'snappy'; known are zlib, lz4 and zstd"):
        compression("snappy")


@pytest.mark.parametrize("sys_flag", [0x101, 0x201, 0x301])
@pytest.mark.parametrize("cut", [0, 1])
def test_a_body_that_does_not_decompress_is_the_peers_fault(sys_flag: int, cut: int) -> None:
    whole = {
        0x101: pyarrow.compress(b"body" * 99, "lz4", asbytes=True),
        0x201: zstandard.compress(b"body" * 99),
        0x301: zlib.compress(b"body" * 99),
    }[sys_flag]
    with pytest.raises(RemoteProtocolError, match=r"does not decompress|ends before"):
        decompress(whole[:9] if cut else b"garbage and more of it", sys_flag)


@pytest.mark.parametrize("sys_flag", [0x101, 0x201, 0x301])
def test_a_body_that_would_fill_the_memory_is_refused(sys_flag: int) -> None:
    bomb = bytes(MAX_BODY_BYTES + 1)
    packers: dict[int, Callable[[bytes], bytes]] = {
        0x101: lz4.frame.compress,
        0x201: zstandard.compress,
        0x301: zlib.compress,
    }
    packed = packers[sys_flag](bomb)
    with pytest.raises(RemoteProtocolError, match="more than"):
        decompress(packed, sys_flag)


def test_members_of_a_stored_batch_come_one_by_one() -> None:
    messages = [OutgoingMessage("T", body, keys=f"k{number}") for number, body in enumerate((b"one", b"", b"three"))]
    body = encode_batch(messages, ["U0", "U1", "U2"])
    whole = Stored("T", 2, 40, body, {"INNER_BASE": "40", "INNER_NUM": "3"}, 0xC0, {})
    data = encode_stored(whole)
    found = decode_messages("g", data)
    assert [(item.queue_offset, item.body, item.keys, item.msg_id) for item in found] == [
        (40, b"one", "k0", "U0"),
        (41, b"", "k1", "U1"),
        (42, b"three", "k2", "U2"),
    ]
    with pytest.raises(RemoteProtocolError, match="leaves it"):
        decode_messages("g", encode_stored(replace(whole, body=body[:-1])))


@pytest.mark.parametrize("tags", [None, frozenset("A")])
@pytest.mark.parametrize(
    ("body", "sys_flag", "kind", "sentence"),
    [
        (encode_batch([OutgoingMessage("T", b"x")], ["U"]), 0xC1, RemoteProtocolError, "does not decompress"),
        (zlib.compress(b"x" * 999)[:-1], 0xC1, RemoteProtocolError, "ends before"),
        (b"packed", 0x2C1, UsageError, "zstd bodies need a package"),
        (b"cut", 0xC0, RemoteProtocolError, "cut off"),
    ],
    ids=["plain", "cut zlib", "zstd", "cut members"],
)
def test_a_batch_that_cannot_be_read_takes_no_other_message_with_it(
    monkeypatch: pytest.MonkeyPatch,
    tags: frozenset[str] | None,
    body: bytes,
    sys_flag: int,
    kind: type[RmqhaError],
    sentence: str,
) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    bad = Stored("T", 0, 5, body, {"UNIQ_KEY": "U"}, sys_flag, {})
    records = [Stored("T", 0, 4, b"a", {"TAGS": "A"}, 0, {}), bad, Stored("T", 0, 7, b"b", {"TAGS": "A"}, 0, {})]
    before, told, behind = MessageBatch("g", b"".join(map(encode_stored, records)), tags=tags)
    assert (before.body, behind.body, told.msg_id, told.queue_offset) == (b"a", b"b", "U", 5)
    assert [view.is_unreadable for view in (before, told, behind)] == [False, True, False]
    for _ in range(2):
        with pytest.raises(kind, match=sentence):
            told.message()
        with pytest.raises(kind, match=sentence):
            told.body  # noqa: B018 - it raises


@pytest.mark.parametrize("base", ["\N{SUPERSCRIPT TWO}", "9" * 5000, "-1", "", "x"], ids=range(5))
def test_a_batch_whose_base_is_no_offset_begins_at_its_record(base: str) -> None:
    body = encode_batch([OutgoingMessage("T", b"x")] * 2, ["U0", "U1"])
    found = decode_messages("g", encode_stored(Stored("T", 2, 40, body, {"INNER_BASE": base}, 0xC0, {})))
    assert [item.queue_offset for item in found] == [40, 41]


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_refused_not_crashed_on(data: bytes) -> None:
    if data:
        with pytest.raises(RemoteProtocolError):
            decode_messages("g", data)
    else:
        assert decode_messages("g", data) == []


@given(st.binary(min_size=1, max_size=200), st.integers(0, 199), st.integers(0, 255))
def test_a_damaged_member_never_does_more_than_refuse(body: bytes, position: int, value: int) -> None:
    packed = bytearray(encode_batch([OutgoingMessage("T", body), OutgoingMessage("T", body)], ["U0", "U1"]))
    packed[position % len(packed)] = value
    data = encode_stored(Stored("T", 0, 0, bytes(packed), {"INNER_BASE": "0"}, 0xC0, {}))
    try:
        found = decode_messages("g", data)
    except RemoteProtocolError:
        return
    assert sum(len(item.body) for item in found) <= len(packed)


@given(st.lists(st.tuples(st.binary(max_size=50), st.text(st.characters(codec="ascii", min_codepoint=32))), max_size=5))
def test_a_batch_body_reads_back(parts: list[tuple[bytes, str]]) -> None:
    messages = [OutgoingMessage("T", body, keys=keys) for body, keys in parts]
    found = list(split_batch(encode_batch(messages, [f"U{number}" for number in range(len(parts))])))
    assert [body for body, _ in found] == [body for body, _ in parts]
    assert [properties["UNIQ_KEY"] for _, properties in found] == [f"U{number}" for number in range(len(parts))]
    assert [properties.get("KEYS", "") for _, properties in found] == [keys for _, keys in parts]


@given(st.integers(0, 40), st.integers(1, 12))
def test_members_divide_all_queues_in_runs_that_differ_by_one_at_most(queue_count: int, member_count: int) -> None:
    queues = list(range(queue_count))
    members = sorted(f"m{number}" for number in range(member_count))
    shares = [allocate_averagely(queues, members, member) for member in members]
    assert [queue for share in shares for queue in share] == queues
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1 and sizes == sorted(sizes, reverse=True)
    assert allocate_averagely(queues, members, "stranger") == []


def test_tag_expressions() -> None:
    assert parse_tags("*") is None and parse_tags(" ") is None
    assert parse_tags(" A||B ") == frozenset(("A", "B"))
    with pytest.raises(UsageError):
        parse_tags("A || || B")


def test_a_java_pull_answer_reads_as_the_java_client_read_it() -> None:
    """The capture holds bodies of code 11's answers up to 4 KiB, whole."""
    path = Path(__file__).parent.parent.parent / "golden" / "wire" / "java-consumer.jsonl"
    found = []
    for line in path.read_text().splitlines():
        frame = json.loads(line)
        if frame.get("req_code") == 11 and frame["kind"] == "response" and frame["code"] == 0:
            raw = base64.b64decode(frame["body_b64"])
            if len(raw) == frame["body_len"]:
                found += decode_messages("gold-a", raw)
    assert found
    assert all(message.topic and message.msg_id and message.stored_at_ms for message in found)
    wire = [message for message in found if message.topic == "WireTopic"]
    assert {"TagA"} >= {message.tags for message in wire if message.keys.startswith("wk-")}
    assert any(message.body.decode().startswith("wire-0 ") for message in wire)
