"""Topics with priorities (message.type=PRIORITY): a queue for each, and pops that begin with the highest."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from rmqha.broker.tables.topics import TopicConfig
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.message import PROPERTY_PRIORITY, decode_properties, encode_properties
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import loads
from tests.broker.pop.world import INVISIBLE_MS, later, pop
from tests.broker.support import Broker, send_command

QUEUE_COUNT = 4


@pytest.fixture
def broker(make_broker: Callable[..., Broker]) -> Broker:
    found = make_broker().start()
    found.core.topics.put(TopicConfig("T", QUEUE_COUNT, QUEUE_COUNT, attributes={"message.type": "PRIORITY"}))
    return found


def sent(broker: Broker, body: bytes, properties: dict[str, str], queue_id: int = 0, topic: str = "T") -> int:
    """The queue that it went to."""
    command = send_command(topic, queue_id, body, i=encode_properties(properties).decode())
    reply = broker.ask(command)
    assert reply.code == 0, reply
    return int(reply.ext["queueId"])


def with_priority(broker: Broker, body: bytes, priority: int, **properties: str) -> int:
    return sent(broker, body, {PROPERTY_PRIORITY: str(priority), **properties})


def stored(broker: Broker, queue_id: int, topic: str = "T") -> dict[str, str]:
    """Properties of the queue's only message."""
    (found,) = pop(broker, topic, f"Look{queue_id}", queueId=queue_id)
    return decode_properties(found.record.properties)


def set_factor(broker: Broker, change: dict[str, Any], group: str = "G") -> Command:
    body = json.dumps({"groupName": group, "attributes": change}).encode()
    return broker.ask(Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body))


@pytest.mark.parametrize(("priority", "queue_id"), [(0, 0), (2, 2), (3, 3), (4, 3), (2**31 - 1, 3)])
def test_each_priority_has_its_queue_and_the_last_one_those_above(broker: Broker, priority: int, queue_id: int) -> None:
    assert with_priority(broker, b"a", priority) == queue_id
    assert stored(broker, queue_id)[PROPERTY_PRIORITY] == str(priority)


@pytest.mark.parametrize("text", ["-1", "x", "", "99999999999", "1.5"])
def test_what_is_no_priority_changes_nothing(broker: Broker, text: str) -> None:
    assert sent(broker, b"a", {PROPERTY_PRIORITY: text}, 1) == 1
    assert stored(broker, 1)[PROPERTY_PRIORITY] == text


def test_the_type_of_the_topic_does_not_matter_to_a_send(broker: Broker) -> None:
    broker.core.topics.put(TopicConfig("Plain", QUEUE_COUNT, QUEUE_COUNT))
    assert sent(broker, b"a", {PROPERTY_PRIORITY: "2"}, topic="Plain") == 2


@pytest.mark.parametrize("other", [{"__SHARDINGKEY": "k"}, {"TIMER_DELAY_MS": "1000"}, {"DELAY": "1"}])
def test_a_message_of_another_kind_has_none(broker: Broker, other: dict[str, str]) -> None:
    assert with_priority(broker, b"a", 3, **other) == 0
    later(broker, 3000)
    assert PROPERTY_PRIORITY not in stored(broker, 0)


def test_pops_begin_with_the_highest_priority(broker: Broker) -> None:
    for body, priority in ((b"low", 0), (b"high", 3), (b"middle", 2), (b"higher", 3)):
        with_priority(broker, body, priority)
    given = [pop(broker, maxMsgNums=1)[0].body for _ in range(4)]
    assert given == [b"high", b"higher", b"middle", b"low"]
    assert [found.body for found in pop(broker, group="All")] == [b"high", b"higher", b"middle", b"low"]


def test_what_comes_again_comes_after_all_others(broker: Broker) -> None:
    with_priority(broker, b"again", 3)
    assert len(pop(broker)) == 1
    later(broker, INVISIBLE_MS + 5000)
    for number in range(10):
        with_priority(broker, b"%d" % number, 0)
    given = [pop(broker, maxMsgNums=1)[0].body for _ in range(11)]
    assert given == [*(b"%d" % number for number in range(10)), b"again"]


def test_a_group_of_factor_0_has_no_priorities(broker: Broker) -> None:
    assert set_factor(broker, {"+priority.factor": "0"}).code == 0
    for priority in range(QUEUE_COUNT):
        for _ in range(50):
            with_priority(broker, b"%d" % priority, priority)
    given = [pop(broker, maxMsgNums=1)[0].body for _ in range(40)]
    assert set(given[:8]) == {b"0", b"1", b"2", b"3"}
    assert set_factor(broker, {"-priority.factor": ""}).code == 0
    assert {pop(broker, maxMsgNums=1)[0].body for _ in range(8)} == {b"3"}


def test_half_of_the_pops_of_factor_50_leave_priorities_aside(broker: Broker) -> None:
    set_factor(broker, {"+priority.factor": "50"})
    for priority in range(QUEUE_COUNT):
        for _ in range(100):
            with_priority(broker, b"%d" % priority, priority)
    given = [pop(broker, maxMsgNums=1)[0].body for _ in range(100)]
    assert 55 <= given.count(b"3") <= 70 and {b"0", b"1", b"2"} <= set(given)


def test_pops_in_order_and_of_one_queue_know_no_priorities(broker: Broker) -> None:
    for priority in range(QUEUE_COUNT):
        with_priority(broker, b"%d" % priority, priority)
    first = [pop(broker, group=f"O{number}", order="true", maxMsgNums=1)[0].body for number in range(8)]
    assert len(set(first)) > 1
    assert [found.body for found in pop(broker, queueId=1)] == [b"1"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"+priority.factor": "101"}, "value is not in range(0, 100)"),
        ({"+priority.factor": "-1"}, "value is not in range(0, 100)"),
        ({"+priority.factor": "x"}, "value is not in range(0, 100)"),
        ({"+other": "1"}, "unsupported key: other"),
        ({"priority.factor": "1"}, "wrong format key: priority.factor"),
        ({"-priority.factor": ""}, "attempt to delete a nonexistent key: priority.factor"),
        ([1], "attributes must be an object, not list"),
    ],
)
def test_attributes_that_cannot_be_are_refused(broker: Broker, change: Any, said: str) -> None:
    reply = set_factor(broker, change)
    assert (reply.code, reply.remark) == (ResponseCode.SYSTEM_ERROR, said)
    assert broker.core.groups.get("G") is None


def test_attributes_are_kept_as_rocketmq_keeps_them(broker: Broker) -> None:
    set_factor(broker, {"+priority.factor": "30"})
    set_factor(broker, {})
    asked = Command(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "G"})
    assert loads(bytes(broker.ask(asked).body))["attributes"] == {"priority.factor": "30"}
