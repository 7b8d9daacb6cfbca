"""What the page shows of a message, hostile ones above all."""

from __future__ import annotations

import json
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from nameserver.web.message_view import (
    BODY_LEAST_BYTES,
    BODY_LIMIT_BYTES,
    MAX_PROPERTIES,
    body_view,
    message_view,
    share_bytes,
    visible,
)
from rmqha.client.consumers.message import Message
from rmqha.model.offset import PhyOffset, QueueOffset


def message(body: bytes = b"hello", topic: str = "T", properties: dict[str, str] | None = None) -> Message:
    return Message(
        topic=topic,
        broker_name="broker-a",
        queue_id=1,
        queue_offset=QueueOffset(7),
        phy_offset=PhyOffset(100),
        body=body,
        properties=properties or {},
        offset_msg_id="7F00000100002A9F0000000000000064",
        born_at_ms=1,
        stored_at_ms=2,
        reconsume_times=0,
        flag=0,
    )


def test_text_is_shown_as_text_and_bytes_as_a_dump() -> None:
    shown = {"kind": "text", "bytes": 8, "compressed": False, "text": "grüße\n", "note": ""}
    assert body_view("grüße\n".encode(), 100) == shown
    assert body_view(b"", 100)["kind"] == "empty"
    found = body_view(b"\x00\x01ABC\xff" + b"x" * 12, 100)
    assert found["kind"] == "hex"
    assert found["text"].splitlines() == [
        "000000  00 01 41 42 43 ff 78 78 78 78 78 78 78 78 78 78  ..ABC.xxxxxxxxxx",
        f"000010  {'78 78':<47}  xx",
    ]


def test_a_long_body_is_cut_with_a_note_and_not_within_a_character() -> None:
    found = body_view("ü".encode() * 600, 1001)
    assert found["kind"] == "text"
    assert found["text"] == "ü" * 500
    assert found["note"].startswith("the first 1001 of 1200 bytes")
    assert body_view(b"\xff" * 50, 16)["text"].count("\n") == 0


def test_control_characters_make_a_dump_and_single_ones_are_shown() -> None:
    assert body_view(b"\x00\x01\x02\x03", 10)["kind"] == "hex"
    assert body_view(b"a long enough line\x1b[2J", 100)["text"] == "a long enough line\\u{1b}[2J"


def test_characters_that_turn_the_direction_are_shown_as_what_they_are() -> None:
    assert visible("abc\u202egnp.exe") == "abc\\u{202e}gnp.exe"
    assert visible("zero\u200bwidth\ufeff") == "zero\\u{200b}width\\u{feff}"


def test_markup_stays_as_it_is_since_the_page_sets_it_as_text() -> None:
    hostile = "<script>alert(1)</script>"
    found = message_view(message(hostile.encode(), hostile, {"KEYS": hostile, hostile: "\x01"}))
    assert (found["topic"], found["keys"], found["body"]["text"]) == (hostile, hostile, hostile)
    assert [hostile, "\\u{1}"] in found["properties"]


def test_properties_are_bounded() -> None:
    found = message_view(message(properties={f"p{number}": "v" * 5000 for number in range(150)}))
    assert (len(found["properties"]), found["propertiesLeftOut"]) == (MAX_PROPERTIES, 50)
    assert found["properties"][0][1].endswith("… (3976 more characters)")


def test_many_messages_share_the_limit() -> None:
    assert [share_bytes(count) for count in (0, 1, 4, 1000)] == [
        BODY_LIMIT_BYTES,
        BODY_LIMIT_BYTES,
        BODY_LIMIT_BYTES // 4,
        BODY_LEAST_BYTES,
    ]


@given(st.binary(max_size=300), st.integers(1, 200))
def test_any_body_is_shown_with_nothing_unseen(body: bytes, limit_bytes: int) -> None:
    found = body_view(body, limit_bytes)
    json.dumps(found)
    assert found["bytes"] == len(body)
    assert bool(found["note"]) == (len(body) > limit_bytes)
    assert all(char == "\n" or char == "\t" or unicodedata.category(char)[0] != "C" for char in found["text"])


@given(st.text(max_size=100))
def test_visible_shows_any_text(text: str) -> None:
    assert all(char in "\n\t" or unicodedata.category(char)[0] != "C" for char in visible(text))
    visible(text).encode()
