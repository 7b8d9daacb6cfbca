"""Strict JSON, fastjson's integer keys and fastjson's object keys."""

from __future__ import annotations

import base64
import json
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqha.model.error import RemoteProtocolError
from rmqha.wire import lenient_json
from rmqha.wire.lenient_json import MAX_DEPTH, Entries, ObjectKey, dumps, dumps_in_steps, loads, loads_in_steps
from tests.golden.reader import frames
from tests.support.steps import done

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=6), inner, max_size=4)
    ),
    max_leaves=12,
)
OBJECT_KEYS = st.dictionaries(st.sampled_from("abc"), SCALARS, max_size=3).map(ObjectKey)


def golden_bodies() -> list[bytes]:
    whole = [entry for entry in frames() if entry["body_len"] and not entry.get("body_truncated")]
    return [body for entry in whole if (body := base64.b64decode(entry["body_b64"]))[:1] in (b"{", b"[")]


def test_every_captured_body_survives() -> None:
    lenient = 0
    for body in golden_bodies():
        value = loads(body)
        try:
            json.loads(body)
        except ValueError:
            lenient += 1
            # integer keys come back as text, so only the other member order and form can be compared
            assert loads(dumps(value)) == value
        else:
            assert dumps(value) == body
    assert lenient >= 10


def test_unquoted_integer_keys() -> None:
    assert loads('{"offsetTable":{"t@g":{0:90,1:100,-1:2}}}') == {"offsetTable": {"t@g": {"0": 90, "1": 100, "-1": 2}}}
    assert dumps({"a": {1: "x"}}, unquoted_integer_keys=True) == b'{"a":{1:"x"}}'
    assert dumps({"a": {1: "x"}}) == b'{"a":{"1":"x"}}'


def test_object_keys() -> None:
    text = b'{"offsetTable":{{"brokerName":"b","queueId":3,"topic":"t"}:{"maxOffset":2}},"topicPutTps":0.0}'
    value = loads(text)
    assert dumps(value) == text
    [(key, offsets)] = value["offsetTable"].items()
    assert isinstance(key, ObjectKey)
    assert (key["queueId"], offsets) == (3, {"maxOffset": 2})
    assert value["offsetTable"][ObjectKey({"topic": "t", "queueId": 3, "brokerName": "b"})] == {"maxOffset": 2}


@given(VALUES)
def test_strict_json_round_trips(value: Any) -> None:
    assert loads(dumps(value)) == value
    assert json.loads(dumps(value)) == value
    assert loads(json.dumps(value, indent=1)) == value


@given(st.dictionaries(OBJECT_KEYS | st.text("xyz", max_size=2), VALUES, max_size=4))
def test_object_keys_round_trip(value: dict[Any, Any]) -> None:
    assert loads(dumps(value)) == value


@given(VALUES)
def test_lenient_parser_agrees_with_the_strict_one(value: Any) -> None:
    # one unquoted key makes the strict parser refuse, so the other one reads the same text
    text = '{"v" : ' + json.dumps(value, indent=1) + " , 7 :\tnull}"
    assert loads(text) == {"v": value, "7": None}


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "{1:}", "{1:2,}", "{1 2}", "[1,]", "[1 2]", "{,}", "{{1:2}}", "{01:2}", "{1.5:2}", "{true:1}",
        "{1:2}x",
        "{1:NaN}", '{1:"\\ud800"}', '"\\udc00"', '{1:"a\nb"}', "[NaN]", "[Infinity]", "1E309", "{1:-1e400}",
        "nul", "'a'", '{1:"a}',
    ],
)  # fmt: skip
def test_refused(text: str) -> None:
    with pytest.raises(RemoteProtocolError):
        loads(text)


def test_not_utf8() -> None:
    with pytest.raises(RemoteProtocolError):
        loads(b'"\xff"')


@pytest.mark.parametrize("opening", ["[", '{"a":', "{1:", "{"])
def test_depth_is_bounded(opening: str) -> None:
    for depth in (MAX_DEPTH + 2, 100_000):
        with pytest.raises(RemoteProtocolError):
            loads(opening * depth + "{1:2}")


def test_an_object_written_in_steps_is_the_same() -> None:
    table = {f"topic-{number}": {"perm": 6, "9": [number]} for number in range(100)}
    offsets = {f"t{number}@g": {0: number, 1: 5} for number in range(70)}
    body = {"dataVersion": {"counter": 1}, "table": table, "empty": {}, "x": "é"}
    steps = dumps_in_steps({**body, "table": Entries(iter(table.items())), "empty": Entries(())})
    assert _run(steps) == (4, dumps(body))
    steps = dumps_in_steps({"offsetTable": Entries(offsets.items())}, unquoted_integer_keys=True)
    assert _run(steps)[1] == dumps({"offsetTable": offsets}, unquoted_integer_keys=True)


def _run(steps: Generator[None, None, bytes]) -> tuple[int, bytes]:
    count = 0
    while True:
        try:
            next(steps)
            count += 1
        except StopIteration as end:
            return count, end.value


NESTED: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=2), inner, max_size=6),
    max_leaves=30,
)


def largest(value: Any) -> int:
    """Characters of the longest text that is no object."""
    if not isinstance(value, dict):
        return len(json.dumps(value, ensure_ascii=False))
    return max((max(len(json.dumps(key)), largest(member)) for key, member in value.items()), default=2)


def in_steps(text: str, path: tuple[str, ...], window: int, taken: dict[str, Any]) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lenient_json, "WINDOW_CHARS", window)
        return done(loads_in_steps(text.encode(), path, taken.__setitem__, max_member_count=1000))


@given(value=NESTED, window=st.integers(8, 200), path=st.sampled_from(["", "a", "ab"]))
def test_steps_read_what_one_look_reads(value: Any, window: int, path: str) -> None:
    """Whatever the border of windows cuts; what is no object and does not fit in half of one is refused."""
    taken: dict[str, Any] = {}
    try:
        found = in_steps(json.dumps(value, ensure_ascii=False), tuple(path), window, taken)
    except RemoteProtocolError:
        assert 2 * largest(value) >= window - 2
        return
    place = found
    for key in path if taken else ():
        place = place[key]
    if taken:
        assert place == {}
        place.update(taken)
    assert found == value


@given(st.text('{}[]",:01-.e \\ab', max_size=60))
def test_steps_refuse_what_one_look_refuses(text: str) -> None:
    try:
        found = in_steps(text, ("?",), 16, {})
    except RemoteProtocolError:
        return
    assert found == loads(text, is_strict=True)


def test_members_are_counted() -> None:
    text = json.dumps({"a": {str(number): number for number in range(30)}}).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lenient_json, "WINDOW_CHARS", 16)
        assert len(done(loads_in_steps(text, (), lambda key, value: None, max_member_count=31))) == 0
        with pytest.raises(RemoteProtocolError, match="too many members"):
            done(loads_in_steps(text, (), lambda key, value: None, max_member_count=30))
