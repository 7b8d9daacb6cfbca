"""Requests about half messages without an end, and about messages in delay levels."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rmqha.broker.services import schedule, transaction_service
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.wire.command import Command
from tests.broker.services.test_schedule import delayed
from tests.broker.support import Broker
from tests.broker.transactions import COMMIT, ROLLBACK, end_of, oneway, prepared, producer

_NUMBERS = count()
TRANSACTIONS, DELAYED = RequestCode.RMQHA_GET_TRANSACTIONS, RequestCode.RMQHA_GET_DELAYED


def answer(broker: Broker, code: RequestCode, **ext: str) -> dict[str, Any]:
    reply = broker.ask(Command(code, {"version": "1", **ext}))
    assert reply.code == 0, reply.remark
    found: dict[str, Any] = json.loads(bytes(reply.body))
    return found


# --- transactions -----------------------------------------------------------------------------------------------------
def test_transactions_without_an_end_by_producer_group_and_topic(broker: Broker) -> None:
    born_ms = broker.clock.wall_ms()
    halves = [broker.ask(prepared(broker, key)) for key in "ABC"]
    broker.ask(prepared(broker, "D", "Other", PGROUP="Q"))
    oneway(broker, end_of(halves[0], COMMIT))
    oneway(broker, end_of(halves[1], ROLLBACK))
    producer(broker)
    found = answer(broker, TRANSACTIONS)
    assert (found["waiting"], found["unread"], found["rowCount"]) == (2, 0, 2)
    assert found["rows"] == [["P", "T", 1, born_ms, 0, 1], ["Q", "Other", 1, born_ms, 0, 0]]
    found = answer(broker, TRANSACTIONS, topic="Other")
    assert found["rows"] == [["Q", "Other", 1, born_ms, 0, 0]] and found["waiting"] == 1
    found = answer(broker, TRANSACTIONS, topic="none")
    assert found["rows"] == [] and found["waiting"] == 0, "or `rmqha transactions --topic` says nothing at all"


def test_an_end_whose_mark_was_not_read_counts_already(broker: Broker) -> None:
    half = broker.ask(prepared(broker))
    assert broker.ask(end_of(half, COMMIT)).code == 0
    assert answer(broker, TRANSACTIONS)["waiting"] == 0


def test_a_checked_transaction_is_one_and_tells_its_checks(broker: Broker) -> None:
    born_ms = broker.clock.wall_ms()
    broker.ask(prepared(broker))
    broker.run(200_000)
    ((group, topic, count, oldest_ms, checks, members),) = answer(broker, TRANSACTIONS)["rows"]
    assert (group, topic, count, oldest_ms, members) == ("P", "T", 1, born_ms, 0) and checks >= 1


def test_more_than_are_read_are_counted(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_service, "MAX_COUNTED", 5)
    for number in range(7):
        broker.ask(prepared(broker, str(number)))
    found = answer(broker, TRANSACTIONS)
    assert (found["waiting"], found["unread"], found["rows"][0][2]) == (7, 2, 5)


def test_a_long_name_of_a_producer_group_is_cut(broker: Broker) -> None:
    """Ten thousand of 30 KB would be 300 MB."""
    for number in range(2):
        assert broker.ask(prepared(broker, str(number), PGROUP=f"{'g' * 20_000}{number}")).code == 0
    ((group, _, count, *_),) = answer(broker, TRANSACTIONS)["rows"]
    assert (group, count) == ("g" * 255, 2)


def test_a_replica_that_takes_no_messages_does_not_tell(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    broker.ask(prepared(broker))
    monkeypatch.setattr(type(broker.core.driver), "is_serving", False)
    reply = broker.ask(Command(TRANSACTIONS, {"version": "1"}))
    assert reply.code == ResponseCode.SYSTEM_ERROR and "only a master" in (reply.remark or "")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=20)
@given(st.data())
def test_asking_changes_nothing_of_which_wait(make_broker: Any, data: st.DataObject) -> None:
    """Whenever it is asked, the answer is those that were prepared and not ended."""
    broker = make_broker(f"store-{next(_NUMBERS)}").start()
    try:
        halves: list[Command] = []
        for step in data.draw(st.lists(st.sampled_from(["prepare", "end", "ask", "run"]), min_size=1, max_size=25)):
            if step == "prepare":
                halves.append(broker.ask(prepared(broker, f"K{len(halves)}")))
            elif step == "end" and halves:
                oneway(broker, end_of(halves.pop(0), data.draw(st.sampled_from([COMMIT, ROLLBACK]))))
            elif step == "run":
                broker.run(40_000)
            else:
                assert answer(broker, TRANSACTIONS)["waiting"] == len(halves)
        assert sum(row[2] for row in answer(broker, TRANSACTIONS)["rows"]) == len(halves)
    finally:
        broker.close()


# --- delay levels -----------------------------------------------------------------------------------------------------
def test_what_waits_in_delay_levels_by_topic(broker: Broker) -> None:
    now_ms = broker.clock.wall_ms()
    for level, topic in ((3, "T"), (5, "T"), (4, "%RETRY%g"), (3, "Other")):
        broker.core.topics.create_internal("%RETRY%g", 1)
        assert broker.ask(delayed(level, topic=topic)).code == 0
    broker.run()
    found = answer(broker, DELAYED)
    assert (found["waiting"], found["unread"], found["rowCount"]) == (4, 0, 3)
    assert found["rows"] == [["T", 2, now_ms + 10_000], ["%RETRY%g", 1, now_ms + 30_000], ["Other", 1, now_ms + 10_000]]
    wanted = answer(broker, DELAYED, topics="%RETRY%g,none")
    assert wanted["rows"] == [["%RETRY%g", 1, now_ms + 30_000]] and wanted["waiting"] == 4
    broker.run(11_000)
    broker.run()
    assert [row[:2] for row in answer(broker, DELAYED)["rows"]] == [["%RETRY%g", 1], ["T", 1]]


def test_more_delayed_messages_than_are_read_are_counted(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "MAX_COUNTED", 3)
    for level in (3, 3, 4, 4, 5):
        broker.ask(delayed(level))
    broker.run()
    found = answer(broker, DELAYED)
    assert (found["waiting"], found["unread"], found["rows"][0][1]) == (5, 2, 3)


def test_a_step_of_the_count_ends_after_some_bytes(broker: Broker) -> None:
    """The CRC of each body is checked: 64 of 4 MB stopped all connections for a tenth of a second."""
    for _ in range(5):
        assert broker.ask(delayed(4, bytes(80_000))).code == 0
    broker.run()
    found = schedule.DelayedCounts()
    assert sum(1 for _ in broker.core.schedule.count_waiting(frozenset(), found)) == 2
    assert (found.waiting, found.read, found.rows["T"][0]) == (5, 5, 5)


@pytest.mark.parametrize("code", [TRANSACTIONS, DELAYED])
def test_another_version_is_refused(broker: Broker, code: RequestCode) -> None:
    assert broker.ask(Command(code, {"version": "2"})).code == ResponseCode.SYSTEM_ERROR
