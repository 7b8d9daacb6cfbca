"""Patterns of users: what they match, and that none of them takes long."""

from __future__ import annotations

from functools import partial

import pytest

from rmqha.model.pattern import Pattern, compiled
from tests.support.machine_speed import cpu_ms, reference_ms

TEXT_BYTES = 4 << 20
LIMIT_MS = 5000
"""CPU time on the reference machine. Each takes some 10; Python's own engine some of them for ever."""
SLOW = (
    "(a+)+$", "(a|a)*$", "(a|aa)+$", "(.*)(.*)(.*)(.*)(.*)x", "(x+x+)+y", "^(([a-z])+.)+[A-Z]([a-z])+$", "(a?){1000}b",
    "(a|aa|aaa){1,300}c", "[a-q][^u-z]{13}x", ".*.*=.*", r"(\w+\s*)+$",
)  # fmt: skip


@pytest.mark.parametrize("text", SLOW)
def test_no_pattern_is_slow(text: str) -> None:
    pattern = Pattern(text)

    def look() -> None:
        for body in (b"a" * TEXT_BYTES, b"a" * 40 + b"!", b"x" * TEXT_BYTES):
            pattern.is_in(body)

    assert reference_ms(partial(cpu_ms, look), LIMIT_MS) < LIMIT_MS


def test_what_matches() -> None:
    assert Pattern("order-1[0-9]+").is_in(b"an order-17") and not Pattern("^order").is_in(b"an order")
    assert Pattern("Ä", ignore_case=True).is_in("xä".encode()) and not Pattern("Ä").is_in("xä".encode())
    assert Pattern("a.b", literal=True).is_in(b"a.b") and not Pattern("a.b", literal=True).is_in(b"axb")
    assert Pattern("a(", literal=True, ignore_case=True).is_in(b"xA(")
    assert Pattern("b+").is_in(b"\xff\xfeb\x00") and not Pattern("a.b").is_in(b"a\xffb")
    assert compiled("a|ab").is_whole(b"ab") and not compiled("a|ab").is_whole(b"abc")


@pytest.mark.parametrize("text", ["(", "[", "*", "a**", "a{1001}", "((a{100}){100}){100}", "a" * 1001, r"\u"])
def test_what_is_no_pattern_is_refused(text: str) -> None:
    with pytest.raises(ValueError) as caught:
        Pattern(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", [r"(a)\1", "a(?=b)", "(?!a)b", "(?<=a)b", "(?<!a)b", "(?>a)"])
def test_what_re2_leaves_out_is_said(text: str) -> None:
    with pytest.raises(ValueError, match="has no back-references and no look-around"):
        Pattern(text)
