"""Formats of messages: each letter is what it stands for, each byte of a body arrives."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqha.cli.messaging.message_lines import compiled
from rmqha.model.error import UsageError
from tests.cli.messaging.test_receive import message


@given(st.binary(max_size=200))
def test_a_body_arrives_byte_for_byte(body: bytes) -> None:
    assert compiled("%v")(message(body)) == body
    assert compiled(r"<%v>\0%%")(message(body)) == b"<" + body + b">\x00%"


@given(st.text(st.characters(exclude_characters="%\\", exclude_categories=["Cs"]), max_size=50))
def test_other_text_is_itself(text: str) -> None:
    assert compiled(text)(message(b"x")) == text.encode()


def test_each_letter_stands_for_its_field() -> None:
    found = message(b"body", TAGS="A", KEYS="k1 k2", own="ü")
    assert compiled(r"%t %q %o %k %v %g %i %T\t\r\n\\")(found).decode() == ("T g-a:3 41 k1 k2 body A U 2000\t\r\n\\")
    assert json.loads(compiled("%h")(found)) == {"UNIQ_KEY": "U", "TAGS": "A", "KEYS": "k1 k2", "own": "ü"}


@pytest.mark.parametrize("text", ["%", "%x", "a%", "\\", "\\q", "%v\\"])
def test_what_stands_for_nothing_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="stands for nothing"):
        compiled(text)
