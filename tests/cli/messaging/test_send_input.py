"""Keys, tag, properties and delay that all messages get."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pytest

from rmqha.cli.messaging.send_input import SendInput, at_property, delay_property, later_property, parse_properties
from rmqha.client.producers.outgoing import OutgoingMessage
from rmqha.model.error import UsageError


def made(settings: SendInput) -> list[OutgoingMessage]:
    with settings.open() as messages:
        return [item.message for item in messages]


def test_each_message_gets_what_is_for_all() -> None:
    settings = SendInput("T", ("a", "b"), keys=("k1", "k2"), tag="A", properties={"n": "1"})
    for message, body in zip(made(settings), (b"a", b"b"), strict=True):
        assert message == OutgoingMessage("T", body, keys="k1 k2", tags="A", properties={"n": "1"})


def test_a_field_of_the_record_and_a_word_for_all(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text(json.dumps({"id": 7}) + "\n")
    settings = SendInput("T", path=path, format="jsonl", key_field="id", tag="A")
    assert [(message.keys, message.tags) for message in made(settings)] == [("7", "A")]
    with pytest.raises(UsageError, match="--key and --key-field each say it"):
        SendInput("T", path=path, format="jsonl", key_field="id", keys=("k",))
    with pytest.raises(UsageError, match="--tag and --tag-field each say it"):
        SendInput("T", path=path, format="jsonl", tag_field="id", tag="A")


@pytest.mark.parametrize("key", ["", "a b"])
def test_a_key_is_a_word(key: str) -> None:
    with pytest.raises(UsageError, match="must be a word"):
        SendInput("T", ("a",), keys=(key,))


def test_properties_are_pairs() -> None:
    assert parse_properties(("a=1", "b=", "c=x=y")) == {"a": "1", "b": "", "c": "x=y"}
    for wrong in (("a",), ("=1",), ("a=1", "a=2")):
        with pytest.raises(UsageError, match="--property"):
            parse_properties(wrong)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("1", {"DELAY": "1"}),
        ("18", {"DELAY": "18"}),
        ("1s", {"DELAY": "1"}),
        ("60s", {"DELAY": "5"}),
        ("2h", {"DELAY": "18"}),
        ("7s", {"TIMER_DELAY_MS": "7000"}),
        ("1d", {"TIMER_DELAY_MS": "86400000"}),
    ],
)
def test_a_delay_is_a_level_or_its_time(text: str, wanted: dict[str, str]) -> None:
    assert delay_property(text) == wanted


@pytest.mark.parametrize("text", ["", "0", "65", "-1", "1.5s", "1s 2s", "soon", "1 s"])
def test_other_delays_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="must be a level, 1 to 64, or a time such as 10s"):
        delay_property(text)


def test_a_time_is_of_this_zone_unless_it_says_otherwise() -> None:
    assert at_property("2026-11-21T14:00:00+01:00", 0) == {"TIMER_DELIVER_MS": "1795266000000"}
    local_ms = int(datetime(2026, 11, 21, 14).timestamp() * 1000)
    assert at_property("2026-11-21T14:00:00", 0) == at_property(str(local_ms), 0) == {"TIMER_DELIVER_MS": str(local_ms)}


@pytest.mark.parametrize(
    ("delay", "at", "given", "words"),
    [
        ("7s", "2026-11-21T14:00:00", {}, "--delay and --at each say it"),
        (None, "soon", {}, "'soon' is no time"),
        (None, "", {}, "'' is no time"),
        (None, "1970-01-01T00:00:00+00:00", {}, "is over"),
        (None, "99999999999999", {"TIMER_DELIVER_MS": "1"}, "--at and --property TIMER_DELIVER_MS each say it"),
        ("7s", None, {"TIMER_DELAY_MS": "1"}, "--delay and --property TIMER_DELAY_MS each say it"),
    ],
)
def test_what_says_no_time_or_two_is_refused(
    delay: str | None, at: str | None, given: dict[str, str], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        later_property(delay, at, given, 1)


def test_neither_is_nothing() -> None:
    assert later_property(None, None, {"a": "b"}, 1) == {}
