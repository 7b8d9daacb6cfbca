"""Properties, tag hash and ids against what a real broker stored and a real client computed."""

from __future__ import annotations

import base64
import json
import socket
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqha.model.message import (
    RecallHandle,
    UniqueKeys,
    are_whole,
    decode_properties,
    encode_properties,
    find_property,
    java_string_hash,
    offset_message_id,
    parse_offset_message_id,
    tags_code,
    unique_key,
)
from tests.golden.reader import frames, lines, manifest

NAMES = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=12)
VALUES = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), max_size=20)


def host(text: str) -> tuple[bytes, int]:
    address, _, port = text.lstrip("/").rpartition(":")
    return socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address), int(port)


def stored_messages() -> list[dict[str, Any]]:
    return [message for message in manifest()["messages"] if message["offsetMsgId"] is not None]


def test_offset_ids_of_the_real_broker() -> None:
    assert len(stored_messages()) > 600
    for message in stored_messages():
        place = (host(message["storeHost"]), message["commitLogOffset"])
        assert offset_message_id(*place) == message["offsetMsgId"]
        assert parse_offset_message_id(message["offsetMsgId"]) == place


@pytest.mark.parametrize("text", ["", "7F000001", "Z" * 32, "7F" * 20])
def test_no_offset_id(text: str) -> None:
    with pytest.raises(ValueError):
        parse_offset_message_id(text)


def test_unique_keys_of_the_real_client_are_made_of_our_fields() -> None:
    keys = {line["msgId"] for line in lines("store/sends.jsonl") if line.get("msgId") and "," not in line["msgId"]}
    # hosts with an IPv4 and with an IPv6 address
    assert {len(key) for key in keys} == {32, 56}
    for key in keys:
        data = bytes.fromhex(key)
        ip, tail = data[:-12], data[-12:]
        numbers = [int.from_bytes(part, "big") for part in (tail[:2], tail[2:6], tail[6:10], tail[10:])]
        pid, instance_hash, month_ms, counter = numbers
        assert unique_key(ip, pid, month_ms, counter, instance_hash) == key


def test_unique_key_wraps() -> None:
    assert unique_key(bytes(4), 0x12345, 2**32 + 7, 0x10001) == "00000000234500000000000000070001"


def test_unique_keys_count_from_the_months_start() -> None:
    asked: list[int] = []

    def month_of(wall_ms: int) -> tuple[int, int]:
        asked.append(wall_ms)
        return wall_ms // 1000 * 1000, wall_ms // 1000 * 1000 + 1000

    keys = UniqueKeys(bytes(4), 1, 2, month_of)
    made = [keys.make(wall_ms) for wall_ms in (5_003, 5_999, 6_000, 4_998)]
    assert made == [unique_key(bytes(4), 1, ms, number, 2) for number, ms in enumerate((3, 999, 0, 998), 1)]
    assert asked == [5_003, 6_000, 4_998], "5,999 is in the month of 5,003"


def test_properties_of_captured_sends() -> None:
    seen = 0
    for frame in frames():
        text = (frame["header"].get("extFields") or {}).get("i") if frame["code"] == 310 else None
        if text:
            properties = decode_properties(text.encode())
            assert encode_properties(properties) == text.encode()
            assert "UNIQ_KEY" in properties
            seen += 1
    assert seen > 20


@given(st.dictionaries(NAMES, VALUES, max_size=8))
def test_properties_round_trip(properties: dict[str, str]) -> None:
    data = encode_properties(properties)
    assert decode_properties(data) == properties
    for name, value in properties.items():
        assert find_property(data, name.encode()) == value.encode()


@given(st.binary(max_size=60).map(lambda data: data.replace(b"\x30", b"\x01").replace(b"\x31", b"\x02")), NAMES)
def test_find_property_agrees_with_decode(data: bytes, name: str) -> None:
    for wanted in (name, *decode_properties(data)):
        if "\ufffd" in wanted:
            continue
        found = find_property(data, wanted.encode())
        expected = decode_properties(data).get(wanted)
        assert (None if found is None else found.decode("utf-8", "replace")) == expected


@given(
    st.lists(st.sampled_from([b"a", b"\xc3\xa9", b"\xc3", b"\x01", b"\x02", b"\0", b"\n"]), max_size=12).map(b"".join)
)
def test_whole_properties_are_pairs_throughout(data: bytes) -> None:
    try:
        pairs = [pair.partition("\x01") for pair in data.decode().removesuffix("\x02").split("\x02")]
    except UnicodeDecodeError:
        pairs = []
    assert are_whole(data) == (bool(pairs) and all(name and separator for name, separator, _ in pairs))


@given(st.lists(st.sampled_from([b"a", b"b", b"\x01", b"\x02", b"\xff"]), max_size=20).map(b"".join))
def test_whatever_a_client_wrote_can_be_written_again(data: bytes) -> None:
    """A broker that could not would fail at the message whenever it is handed back, delayed or checked."""
    found = decode_properties(data)
    assert decode_properties(encode_properties(found)) == found


@pytest.mark.parametrize("properties", [{"a\x01": "b"}, {"a": "b\x02"}, {"": "b"}, {"a": "\x02", "b": ""}])
def test_separators_are_refused(properties: dict[str, str]) -> None:
    with pytest.raises(ValueError):
        encode_properties(properties)


@pytest.mark.parametrize(
    ("data", "expected"),
    [(b"a\x01b", {"a": "b"}), (b"a\x02b\x01c\x02", {"b": "c"}), (b"a\x011\x02a\x012\x02", {"a": "2"}), (b"", {})],
)
def test_lenient_decoding(data: bytes, expected: dict[str, str]) -> None:
    assert decode_properties(data) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    # values of String.hashCode as the Java language specification defines it
    [
        ("", 0),
        ("a", 97),
        ("TagA", 2598919),
        ("hello world", 1794106052),
        ("\U0001f680", 1773027),
        ("polygenelubricants", -(2**31)),
    ],
)
def test_java_string_hash(text: str, expected: int) -> None:
    assert java_string_hash(text) == expected


@given(st.text(max_size=50), st.integers(0, 5), st.text(max_size=50))
def test_the_hash_of_a_long_text_is_that_of_its_units_one_by_one(begin: str, times: int, end: str) -> None:
    text, value = begin * times + end, 0
    for (unit,) in struct.iter_unpack(">H", text.encode("utf-16-be")):
        value = (value * 31 + unit) % 2**32
    assert java_string_hash(text) % 2**32 == value and -(2**31) <= java_string_hash(text) < 2**31


def test_tag_hashes_of_the_real_consumers() -> None:
    """A consumer's heartbeat names its tags and their hashes."""
    seen = 0
    for frame in frames():
        body = base64.b64decode(frame["body_b64"]) if frame["code"] == 34 and not frame.get("body_truncated") else b"{}"
        for consumer in json.loads(body).get("consumerDataSet", []):
            for subscription in consumer["subscriptionDataSet"]:
                codes = {java_string_hash(tag) for tag in subscription["tagsSet"]}
                assert codes == set(subscription["codeSet"])
                seen += len(codes)
    assert seen > 0


def test_tags_code() -> None:
    assert tags_code(None) == tags_code("") == 0
    assert tags_code("TagA") == 2598919


# --- recall handles ---------------------------------------------------------------------------------------------------
def test_a_recall_handle_is_rocketmqs_text_in_base64() -> None:
    handle = RecallHandle("T", "b-0", 1_700_000_000_001, "0A0B").encode()
    assert handle == "djEgVCBiLTAgMTcwMDAwMDAwMDAwMSAwQTBC"
    assert RecallHandle.decode(handle) == ("T", "b-0", 1_700_000_000_001, "0A0B")


@given(st.binary(max_size=60) | st.text(max_size=40).map(lambda text: f"v1 T b 1 {text}".encode()))
def test_what_is_no_recall_handle_is_told_or_reads_back_the_same(words: bytes) -> None:
    handle = base64.urlsafe_b64encode(words).decode()
    try:
        found = RecallHandle.decode(handle)
    except ValueError as error:
        assert "no recall handle" in str(error)
    else:
        assert RecallHandle.decode(found.encode()) == found and found.unique_key.isprintable()


def test_a_recall_handle_without_padding_and_with_a_time_that_is_none() -> None:
    handle = base64.urlsafe_b64encode(b"v1 T b 1x K").decode()
    assert RecallHandle.decode(handle.rstrip("=")).at_ms == -1
    with pytest.raises(ValueError, match="base64"):
        RecallHandle.decode(handle[:-4] + "+/==")
