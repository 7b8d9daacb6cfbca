"""`rmqha transactions`: what is open, who could tell, and who does not."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
from click.testing import CliRunner

from rmqha.cli.admin import transactions
from rmqha.client.admin import Admin
from rmqha.model.code import ResponseCode
from rmqha.model.error import RemoteError
from rmqha.ops.messaging import transactions as asking
from rmqha.ops.messaging.brokers import BrokerAnswers
from rmqha.ops.messaging.transactions import OpenTransactions

NOW_MS = 1_800_000_000_000
ROWS = [["pay", "orders", 3, NOW_MS - 90_000, 2, 1], ["a\x1b[1m", "bills", 1, NOW_MS - 5_000, 0, 0]]
FOUND = OpenTransactions.from_json({"nowMs": NOW_MS, "waiting": 6, "unread": 2, "rowCount": 2, "rows": ROWS})
NONE = OpenTransactions(NOW_MS, 0, 0)


def run(
    monkeypatch: pytest.MonkeyPatch, told: BrokerAnswers[OpenTransactions], given_up: int | None, *arguments: str
) -> Any:
    monkeypatch.setattr(transactions, "ask_admin", lambda namesrv, question: (told, given_up))
    runner = CliRunner(env={"COLUMNS": "80"})
    return runner.invoke(transactions.transactions, ["--namesrv", "127.0.0.1:1", *arguments])


def test_a_line_for_each_producer_group_and_topic_the_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(monkeypatch, BrokerAnswers({"broker-a": FOUND}), 4)
    lines = result.stdout.splitlines()
    assert result.exit_code == 0 and max(map(len, lines[:3])) <= 80 and "\x1b" not in result.stdout
    assert lines[1].split() == ["broker-a", "pay", "orders", "3", "1m", "30s", "2", "1"]
    assert "broker-a: 2 others" in result.stdout and "nobody is asked" in lines[4]
    assert "4 transactions were given up: rmqha message find --topic TRANS_CHECK_MAX_TIME_TOPIC" in result.stdout


def test_nothing_open_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, BrokerAnswers({"broker-a": NONE}), 0).stdout == "no transaction is open\n"
    told = run(monkeypatch, BrokerAnswers({"broker-a": NONE}), 0, "--topic", "orders")
    assert told.stdout == "no transaction for topic orders is open\n"


def test_an_upper_bound_and_a_silent_broker_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    bound = OpenTransactions(0, 7, 7, is_upper_bound=True)
    result = run(monkeypatch, BrokerAnswers({"broker-a": bound}, {"broker-b": "it is away"}), 0)
    assert result.exit_code == 1 and "broker-a: at most 7 are open" in result.stdout
    assert "broker-b does not tell: it is away" in result.stderr


def test_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    found = json.loads(run(monkeypatch, BrokerAnswers({"broker-a": FOUND}), 4, "-o", "json").stdout)
    assert found["givenUp"] == 4 and found["silent"] == {}
    group = found["groups"]["broker-a"]
    assert (group["open"], group["notInRows"], group["isUpperBound"]) == (6, 2, False)
    assert group["rows"][0] == {
        "producerGroup": "pay", "topic": "orders", "open": 3, "oldestBornAtMs": NOW_MS - 90_000,
        "oldestAgeMs": 90_000, "checks": 2, "producers": 1,
    }  # fmt: skip


async def test_who_does_not_tell_how_many_were_given_up_hides_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that is away, or an account that may not read that topic, ended the command."""

    async def refused(admin: object, topic: str) -> int:
        raise RemoteError(ResponseCode.NO_PERMISSION, "no matched policies.", "127.0.0.1:1")

    monkeypatch.setattr(asking, "stored_count", refused)
    assert await asking.given_up_count(cast(Admin, None)) is None
    result = run(monkeypatch, BrokerAnswers({"broker-a": FOUND}), None)
    assert result.exit_code == 0 and "orders" in result.stdout and "given up is not known" in result.stderr
    assert json.loads(run(monkeypatch, BrokerAnswers({}), None, "-o", "json").stdout)["givenUp"] is None
