"""SQL92 selectors. What the real broker says of the same cases is asked in tests/interop/clients/test_selectors.py."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rmqha.model.selector import MAX_DEPTH, MAX_EXPRESSION_LENGTH, SelectorError, parse_selector

MESSAGE = {
    "i": "5", "neg": "-7", "big": "3000000000", "f": "1.5", "exp": "1e3", "text": "apple", "t": "true", "f_": "False",
    "quote": "it's", "empty": "", "space": " 5 ", "plus": "+5", "zeros": "0005", "nan": "NaN", "minus0": "-0.0",
    "TAGS": "TagA", "$d": "1", "hex": "0x1p3", "suffix": "5d", "under": "1_0",
}  # fmt: skip

WANTED = [
    "i = 5", "5 = i", "i = 5.0", "i > 4", "i >= 5", "i < 6", "i <= 5", "i <> 4", "4 < i", "neg = -7", "neg < 0",
    "neg = - 7", "i = +5", "i = --5", "big > 5.5", "big = 3000000000", "big = 3000000000L", "3000000000 = big",
    "f > 1.0", "f = 1.5", "exp = 1000.0", "1.5 = f", "text = 'apple'", "text <> 'pear'", "quote = 'it''s'",
    "text IS NOT NULL", "none IS NULL", "none is null", "empty IS NOT NULL", "empty = ''",
    "i BETWEEN 1 AND 9", "i between 5 and 5", "i NOT BETWEEN 6 AND 9", "i BETWEEN -1 AND 9",
    "text IN ('pear', 'apple')", "text IN (\n'pear'\t,'apple' ) AND i = 5", "text IN ( /* a */ 'pear', -- b\n 'apple')",
    "quote IN ('x''', 'it''s','')", "text NOT IN ('a'',','b') AND text IN('apple')",
    "text NOT IN ('pear')", "TAGS IN ('TagA','TagB','TagC','TagD','TagE')",
    "text CONTAINS 'ppl'", "text STARTSWITH 'app'", "text ENDSWITH 'le'", "text NOT CONTAINS 'x'",
    "text NOT STARTSWITH 'x'", "text NOT ENDSWITH 'x'", "'abc' CONTAINS 'b'",
    "t = TRUE", "f_ = FALSE", "text = FALSE", "TRUE", "NOT FALSE", "TRUE = TRUE", "TRUE <> FALSE",
    "i = 5 AND text = 'apple'", "i = 4 OR text = 'apple'", "(i = 4 OR i = 5) AND f > 1.0",
    "NOT (i = 4)", "none = 1 OR i = 5", "i = 5 OR none = 1", "NOT (1 = none)", "none = other",
    "plus = 5", "zeros = 5", "space > 4.0", "space = 5.0", "i > f", "suffix = 5.0", "hex = 8.0",
    "nan = nan", "nan > 1e300", "minus0 < minus1 OR minus0 = -0.5 OR minus0 < 0.5",
    "i = 5 -- nothing\n AND f = 1.5", "i /* of ** five */ = 5", "$d = 1", "i\t=\n5",
    "i = 5 trailing words are not read", "NOT text", "(NOT i) = TRUE", "NOT i <> 1", "i = 5 = TRUE",
    "1 <> TRUE", "i = 1 > 2", ".5 < f", "5. = i", "5E0 = i", "0 < i", "'x' = 'x'", "1 < 2", "1 = 1.0",
]  # fmt: skip

NOT_WANTED = [
    "i = 4", "i <> 5", "none = 1", "none <> 1", "NOT (none = 1)", "none > 1", "none BETWEEN 1 AND 2", "NULL",
    "none IN ('a')", "none NOT IN ('a')", "NOT (none IN ('a'))", "none CONTAINS 'a'", "none NOT CONTAINS 'a'",
    "text CONTAINS ''", "text NOT CONTAINS ''", "text", "t", "none", "FALSE", "NOT none",
    "text > 1", "text = 1", "1 = text", "text = 1 OR TRUE", "f > 1", "f = 1", "text > f", "i > text",
    "big = 5", "big <> 5", "TRUE = t", "TRUE = t OR TRUE", "i = TRUE", "1 = TRUE", "TRUE = FALSE",
    "none = 1 AND i = 5", "i = 5 AND none = 1", "NOT i = 1", "-text = 1", "empty = 1", "space = 5", "under = 10",
    "- TRUE = 1", "i = '05'", "quote = 'it'", "text IN ('APPLE')", "Text IS NOT NULL",
]  # fmt: skip

INVALID = [
    "", " ", "i =", "= 5", "i == 5", "i != 5", "5", "'a'", "-i", "i > '1'", "'1' > i", "i > TRUE",
    "i > NULL", "i = NULL", "NULL = i", "i <> NULL", "i IS 5", "i IS NOT 5", "i NOT 5", "i IN (5)",
    "i IN ()",
    "i IN ('a',)", "i IN ('a' 'b')", "i IN ('a', 5)", "i IN 'a'", "i IN (,'a')",
    "i IN ('a'", "5 IN ('a')", "(i) > ", "(i = 5", "i BETWEEN 9 AND 1", "i BETWEEN 1",
    "i BETWEEN 'a' AND 'b'",
    "i BETWEEN NULL AND 1", "i BETWEEN 1 AND TRUE", "TRUE = 1", "TRUE = 'a'", "i = 9223372036854775808",
    "i = 99999999999999999999999", "i = 0.0", "i = 1e999", "i = 'open", 'i = "5"', "i = 5 #", "i = 5 AND", "AND i = 5",
    "NOT", "NOT 5", "i CONTAINS 5", "i CONTAINS", "i > 1 > 2", "i = 5 /* open", "i = é", "+", "-", "()",
    "i AND 5 = 5 AND 'a'",
]  # fmt: skip


@pytest.mark.parametrize("expression", WANTED)
def test_wanted(expression: str) -> None:
    assert parse_selector(expression).matches(MESSAGE.get)


@pytest.mark.parametrize("expression", NOT_WANTED)
def test_not_wanted(expression: str) -> None:
    assert not parse_selector(expression).matches(MESSAGE.get)


@pytest.mark.parametrize("expression", INVALID)
def test_invalid(expression: str) -> None:
    with pytest.raises(SelectorError):
        parse_selector(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "(" * (MAX_DEPTH + 1) + "TRUE" + ")" * (MAX_DEPTH + 1),
        "NOT " * (MAX_DEPTH + 1) + "TRUE",
        "i" + " = 1" * (MAX_DEPTH + 2),
        "i" + " IS NULL" * (MAX_DEPTH + 2),
        "x" * (MAX_EXPRESSION_LENGTH + 1),
    ],
)
def test_bounds(expression: str) -> None:
    with pytest.raises(SelectorError):
        parse_selector(expression)


def test_the_deepest_expressions_still_work() -> None:
    deep = "(" * MAX_DEPTH + "i = 5" + ")" * MAX_DEPTH
    assert parse_selector(deep).matches(MESSAGE.get)
    wide = " AND ".join(["i = 5"] * 250)
    assert parse_selector(wide).matches(MESSAGE.get)
    chain = "NOT " * (MAX_DEPTH - 2) + "(i = 5" + " = TRUE" * (MAX_DEPTH - 2) + ")"
    assert parse_selector(chain).matches(MESSAGE.get)


def test_comments_without_end_cost_nothing() -> None:
    with pytest.raises(SelectorError):
        parse_selector("a = --1 AND " * 5000)


WORDS = """i f text none t big ( ) = <> > >= < <= , + - AND OR NOT BETWEEN IN IS NULL TRUE FALSE CONTAINS STARTSWITH
    ENDSWITH 'a' '5' 5 5.5 0 1e400 9999999999 -- /* */ # é"""
pieces = st.sampled_from(WORDS.split())


@given(st.lists(pieces, max_size=12).map(" ".join) | st.text(max_size=30), st.text(max_size=6))
@example("i = " + "9" * 5000, "")
@example("i = 5", "9" * 5000)
@example("i = 5", "0" * 5000 + "5")
@example("i = 5.5", "0x" + "f" * 600 + "p9999")
def test_any_text_is_a_selector_or_an_error(expression: str, value: str) -> None:
    try:
        selector = parse_selector(expression)
    except SelectorError as error:
        assert str(error)
    else:
        assert selector.matches(lambda name: value) in (True, False)
