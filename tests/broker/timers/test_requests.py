"""Requests about what waits."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from rmqha.broker.timers.message import ROLL_WINDOW_MS
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.message import encode_properties
from rmqha.store.log.record import NewMessage
from rmqha.wire.command import Command
from tests.broker.support import Broker, send_command
from tests.broker.timers.test_service import now_ms, timed


@pytest.fixture
def waiting(broker: Broker) -> Broker:
    """Three of one topic within two minutes, and one of another, rolled."""
    start_ms = now_ms(broker) // 60_000 * 60_000 + 60_000
    for ahead_ms in (1, 30_000, 60_001):
        broker.ask(timed(UNIQ_KEY=f"K{ahead_ms}", TIMER_DELIVER_MS=start_ms + ahead_ms))
    broker.ask(timed(b"0", UNIQ_KEY="D", TIMER_DELIVER_MS=start_ms + 1, TIMER_DEL_UNIQKEY="other"))
    broker.ask(send_command("Other", i=f"UNIQ_KEY\x01O\x02TIMER_DELAY_MS\x01{ROLL_WINDOW_MS + 60_000}\x02"))
    broker.run()
    return broker


def answer(broker: Broker, code: RequestCode, **ext: str) -> dict[str, object]:
    reply = broker.ask(Command(code, ext))
    assert reply.code == 0, reply.remark
    found: dict[str, object] = json.loads(bytes(reply.body))
    return found


def test_counts_by_topic_have_rocketmqs_form(waiting: Broker) -> None:
    found = answer(waiting, RequestCode.GET_TIMER_METRICS)
    assert found["timingCount"] == {
        "Other": {"count": 1, "timeStamp": now_ms(waiting)},
        "T": {"count": 3, "timeStamp": now_ms(waiting)},
    }
    assert set(found["dataVersion"]) == {"counter", "stateVersion", "timestamp"}  # type: ignore[call-overload]


def test_what_waits_by_minute(waiting: Broker) -> None:
    found = answer(waiting, RequestCode.RMQHA_GET_TIMERS, version="1", topic="T")
    start_ms = now_ms(waiting) // 60_000 * 60_000 + 60_000
    assert found["minutes"] == [[start_ms, 2], [start_ms + 60_000, 1]]
    assert (found["waiting"], found["unread"], found["overdueMs"], found["delivers"]) == (5, 0, 0, True)
    everything = answer(waiting, RequestCode.RMQHA_GET_TIMERS, version="1")
    assert everything["topics"] == [["T", 3], ["Other", 1]]
    assert sum(count for _, count in everything["minutes"]) == 5  # type: ignore[attr-defined]
    assert answer(waiting, RequestCode.RMQHA_GET_TIMERS, version="1", topic="none")["minutes"] == []
    assert waiting.ask(Command(RequestCode.RMQHA_GET_TIMERS, {"version": "2"})).code == ResponseCode.SYSTEM_ERROR


def test_what_is_late_and_what_came(waiting: Broker) -> None:
    waiting.core.admin.sample()
    waiting.core.driver.stopping()
    waiting.run(200_000)
    late = answer(waiting, RequestCode.RMQHA_GET_TIMERS, version="1")
    assert late["overdueMs"] == waiting.core.timers.overdue_ms() > 60_000
    table = answer(waiting, RequestCode.GET_BROKER_RUNTIME_INFO)["table"]
    assert isinstance(table, dict)
    assert (table["timerCongestNum"], table["timerOffsetBehind"]) == ("5", "0")
    assert int(table["timerReadBehind"]) == waiting.core.timers.overdue_ms() // 1000


def test_the_engine_is_the_one_in_use(broker: Broker) -> None:
    asked = {wanted: broker.ask(Command(RequestCode.SWITCH_TIMER_ENGINE, {"E_T": wanted})) for wanted in ("F", "R", "")}
    codes = {wanted: reply.code for wanted, reply in asked.items()}
    invalid = ResponseCode.INVALID_PARAMETER
    assert codes == {"F": ResponseCode.SUCCESS, "R": invalid, "": invalid}
    assert "RocksDB" in (asked["R"].remark or "")


def test_a_clean_stop_leaves_the_counts(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker().start()
    broker.ask(timed(TIMER_DELAY_SEC=60))
    broker.run()
    broker.close()
    kept = json.loads((broker.directory / "config" / "timermetrics").read_text())
    assert kept["timingCount"]["T"]["count"] == 1


def _own(broker: Broker) -> NewMessage:
    host = (b"\x7f\0\0\1", 1)
    return NewMessage("T", 0, b"own", encode_properties({"UNIQ_KEY": "OWN"}), now_ms(broker), host, host)


def test_the_brokers_own_message_comes_at_its_time(broker: Broker) -> None:
    broker.ask(timed(b"makes the topic", TIMER_DELAY_MS=0))
    message = broker.core.timers.timed(_own(broker), now_ms(broker) + 5000)
    stored = broker.core.driver.append([message])
    broker.core.driver.appended(stored.end_offset, None)
    broker.run(4900)
    assert broker.store.queue_range("T", 0)[1] == 1
    broker.run(1200)
    broker.run()
    assert broker.store.queue_range("T", 0)[1] == 2
