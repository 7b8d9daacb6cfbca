"""What steers a terminal, breaks a line or turns the reading order is escaped, everything else is left alone."""

from __future__ import annotations

import json
import unicodedata

import pytest

from rmqha.model.printable import is_printable, name_refusal, printable


@pytest.mark.parametrize("text", ["", "plain", "Zürich", "数据　库", "emoji 😀", "a\tb\nc", "[red]x[/red]", "\\x1b"])
def test_what_can_be_shown_is_left_alone(text: str) -> None:
    assert printable(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred", "\\u001b[31mred"),
        ("\x9b31m", "\\u009b31m"),
        ("a\rb\x00\x07", "a\\u000db\\u0000\\u0007"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("\u2066\u2028\ufeff", "\\u2066\\u2028\\ufeff"),
        ("\udc9b", "\\udc9b"),
        ("\U000e0041", "\\udb40\\udc41"),
    ],
)
def test_what_steers_a_terminal_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown and not is_printable(text)


def test_json_stays_the_same_document() -> None:
    value = {"name\u202e": "\x1b\x9b\u2028\U000e0041\x7f ok"}
    assert json.loads(printable(json.dumps(value, ensure_ascii=False))) == value


def test_no_control_or_direction_of_unicode_is_forgotten() -> None:
    for code in range(0x110000):
        char = chr(code)
        steers = unicodedata.category(char) in ("Cc", "Zl", "Zp", "Cs") or unicodedata.bidirectional(char) in (
            "LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"
        )  # fmt: skip
        if steers and char not in "\n\t":
            assert printable(char) != char, hex(code)


def test_names_of_peers_are_one_line_and_bounded() -> None:
    assert name_refusal("brokerName", "host-1.example") == "" == name_refusal("brokerName", "")
    assert name_refusal("brokerName", "a\nb") == "brokerName a\\u000ab holds characters that cannot be printed"
    assert name_refusal("brokerName", "x" * 256) == "brokerName has more than 255 characters"
