"""Locks of ordered consumers: who gets them, how long, and what ends them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from rmqha.broker.tables import locks
from rmqha.broker.tables.locks import LOCK_LIFETIME_MS, LockTable, QueueKey
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.wire.command import Command
from tests.broker.support import Broker, send_command
from tests.support.clock import ManualClock


@pytest.fixture
def broker(broker: Broker) -> Broker:
    assert broker.ask(send_command("T")).code == 0
    return broker


ONE, TWO = QueueKey("T", "b", 0), QueueKey("T", "b", 1)


def lock_command(client_id: str, *queue_ids: int, code: int = RequestCode.LOCK_BATCH_MQ, group: str = "G") -> Command:
    queues = [{"brokerName": "b", "queueId": queue_id, "topic": "T"} for queue_id in queue_ids]
    body = {"clientId": client_id, "consumerGroup": group, "mqSet": queues, "onlyThisBroker": False}
    return Command(code, body=json.dumps(body).encode())


def locked(broker: Broker, client_id: str, *queue_ids: int, group: str = "G") -> list[int]:
    reply = broker.ask(lock_command(client_id, *queue_ids, group=group))
    assert reply.code == 0
    return [item["queueId"] for item in json.loads(bytes(reply.body))["lockOKMQSet"]]


def test_one_client_holds_a_queue_until_it_gives_it_up(broker: Broker) -> None:
    assert locked(broker, "a", 0, 1) == [0, 1]
    assert locked(broker, "b", 0, 1, 2) == [2]
    assert locked(broker, "b", 0, group="other") == [0], "groups do not meet"
    assert broker.ask(lock_command("b", 0, code=RequestCode.UNLOCK_BATCH_MQ)).code == 0
    assert locked(broker, "b", 0) == [], "only the holder can give it up"
    assert broker.ask(lock_command("a", 0, code=RequestCode.UNLOCK_BATCH_MQ)).code == 0
    assert locked(broker, "b", 0) == [0]
    assert locked(broker, "a", 0, 1) == [1]


def test_a_lock_lives_60_s_from_when_it_was_last_taken() -> None:
    clock = ManualClock()
    table = LockTable(clock)
    assert table.lock("G", [ONE, TWO], "a") == [ONE, TWO]
    clock.ms += LOCK_LIFETIME_MS // 2
    assert table.lock("G", [ONE], "a") == [ONE]
    clock.ms += LOCK_LIFETIME_MS // 2 + 1
    assert table.lock("G", [ONE, TWO], "b") == [TWO]
    assert table.is_ordered("G") and not table.is_ordered("H")
    clock.ms += LOCK_LIFETIME_MS + 1
    assert not table.is_ordered("G")
    assert table.lock("G", [ONE], "b") == [ONE]


def test_the_table_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "MAX_LOCK_COUNT", 2)
    clock = ManualClock()
    table = LockTable(clock)
    third = QueueKey("T", "b", 2)
    assert table.lock("G", [ONE, TWO, third], "a") == [ONE, TWO]
    clock.ms += LOCK_LIFETIME_MS + 1
    assert table.lock("H", [third, TWO, ONE], "b") == [third, TWO], "locks that have ended make room"


def test_a_queue_has_one_lock_whatever_its_broker_is_called(broker: Broker) -> None:
    queues = [{"brokerName": name, "queueId": 0, "topic": "T"} for name in ("b", "c")]

    def lock(client_id: str) -> list[Any]:
        body = json.dumps({"clientId": client_id, "consumerGroup": "G", "mqSet": queues}).encode()
        return list(json.loads(bytes(broker.ask(Command(RequestCode.LOCK_BATCH_MQ, body=body)).body))["lockOKMQSet"])

    assert lock("a") == queues and lock("b") == []
    assert broker.core.locks._places.used == 1


def test_queues_that_are_not_there_are_not_locked(broker: Broker) -> None:
    """One account would fill the table by names that it makes up, and nobody else consumed in order."""
    assert locked(broker, "a", -1, 3, 4, 5, 1 << 40) == [3]
    queue = {"brokerName": "b", "queueId": 0, "topic": "Nowhere"}
    body = json.dumps({"clientId": "a", "consumerGroup": "G", "mqSet": [queue]}).encode()
    reply = broker.ask(Command(RequestCode.LOCK_BATCH_MQ, body=body))
    assert json.loads(bytes(reply.body)) == {"lockOKMQSet": []}
    assert broker.core.locks._places.used == 1


def test_a_queue_that_was_taken_away_is_locked_as_long_as_it_may_hold_messages(broker: Broker) -> None:
    assert broker.ask(send_command("T", 3)).code == 0
    ext = {"topic": "T", "readQueueNums": "2", "writeQueueNums": "2", "perm": "6"}
    assert broker.ask(Command(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)).code == 0
    assert locked(broker, "a", 1, 2, 3) == [1, 3]


def test_a_new_role_forgets_all_locks(broker: Broker) -> None:
    assert locked(broker, "a", 0) == [0]
    broker.core.driver.stopping()
    controller = broker.controller
    controller.epoch, controller.master = 2, 2
    notice = controller.notice()
    broker.ask(notice)
    assert broker.ask(lock_command("a", 0)).code == ResponseCode.SYSTEM_ERROR
    assert not broker.core.locks.is_ordered("G")


def test_a_slave_gives_no_locks(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker()
    reply = broker.ask(lock_command("a", 0))
    assert reply.code == ResponseCode.SYSTEM_ERROR and reply.remark is not None and "not the master" in reply.remark


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"clientId":"a","consumerGroup":"G","mqSet":[{"topic":"T"}]}'])
@pytest.mark.parametrize("code", [RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ])
def test_a_body_that_is_none_is_refused(broker: Broker, code: int, body: Any) -> None:
    assert broker.ask(Command(code, body=body)).code == ResponseCode.SYSTEM_ERROR
