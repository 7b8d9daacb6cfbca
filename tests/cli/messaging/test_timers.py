"""`rmqha timers`: bars by the minute, and who does not tell."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from rmqha.cli.messaging import timers
from rmqha.ops.messaging.brokers import BrokerAnswers
from rmqha.ops.messaging.timers import MINUTE_MS, STEPS_MINUTES, WaitingMessages, by_step

HOUR_MS = 60 * MINUTE_MS
BEGIN_MS = 480_000 * HOUR_MS
BODY: dict[str, Any] = {"nowMs": BEGIN_MS, "waiting": 7, "unread": 0, "overdueMs": 0}
FOUND = WaitingMessages.from_json(
    BODY | {"topics": [["orders", 6], ["a\x1b[1m", 1]], "minutes": [[BEGIN_MS, 5], [BEGIN_MS + 2 * MINUTE_MS, 2]]}
)


def run(monkeypatch: pytest.MonkeyPatch, told: BrokerAnswers[WaitingMessages], *arguments: str) -> Any:
    monkeypatch.setattr(timers, "ask_admin", lambda namesrv, question: told)
    return CliRunner(env={"COLUMNS": "80"}).invoke(timers.timers, ["--namesrv", "127.0.0.1:1", *arguments])


def test_a_bar_for_each_minute_and_what_waits_of_each_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(monkeypatch, BrokerAnswers({"a": FOUND, "b": FOUND}))
    lines = result.stdout.splitlines()
    assert result.exit_code == 0 and max(map(len, lines)) <= 80
    assert [line.count("█") for line in lines[1:4]] == [lines[1].count("█"), 0, -(-lines[1].count("█") * 2 // 5)]
    assert [line.split()[-1] for line in lines[1:4]] == ["10", "0", "4"]
    assert any(line.split() == ["orders", "12"] for line in lines) and "\x1b" not in result.stdout


def test_what_is_late_or_not_read_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    late = WaitingMessages(BEGIN_MS, 9, 5, 61_000, {}, {})
    result = run(monkeypatch, BrokerAnswers({"a": late}, {"b": "it is away"}))
    assert result.exit_code == 1
    assert "a: 5 entries have not been read" in result.stdout and "a: the first is 61 s late" in result.stdout
    assert "b does not tell: it is away" in result.stderr


def test_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(monkeypatch, BrokerAnswers({"a": FOUND}), "-o", "json")
    found = json.loads(result.stdout)
    assert found["groups"]["a"]["minutes"] == [[BEGIN_MS, 5], [BEGIN_MS + 2 * MINUTE_MS, 2]]
    assert found["groups"]["a"]["topics"]["orders"] == 6 and found["silent"] == {}


def test_nobody_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, BrokerAnswers({}, {"a": "it is away"})).exit_code != 0


@given(st.dictionaries(st.integers(0, 5000).map(lambda minute: BEGIN_MS + minute * MINUTE_MS), st.integers(1, 9)))
def test_steps_hold_everything_and_are_as_short_as_the_rows_allow(counts: dict[int, int]) -> None:
    step, rows = by_step(counts, 30)
    assert sum(count for _, count in rows) == sum(counts.values()) and len(rows) <= 30
    shorter = [item for item in STEPS_MINUTES if item < step]
    if shorter:
        step_ms = shorter[-1] * MINUTE_MS
        assert (max(counts) // step_ms - min(counts) // step_ms) >= 30
