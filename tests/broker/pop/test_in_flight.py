"""What was popped and is not done, while an operator changes its topic or its group, or a new master lacks them."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from rmqha.broker.pop.checkpoint import offsets_to_bits
from rmqha.broker.tables.topics import TopicConfig
from rmqha.model.code import RequestCode
from rmqha.wire.command import Command
from tests.broker.pop.world import (
    INVISIBLE_MS,
    Popped,
    ack_all,
    later,
    named,
    pop,
    send,
)
from tests.broker.support import Broker, FakeChannel


def bodies(given: list[Popped]) -> list[bytes]:
    return [message.body for message in given]


def test_what_a_group_has_in_flight_comes_again_though_the_new_master_does_not_know_it(
    make_broker: Callable[..., Broker],
) -> None:
    """Its table was written on another replica, and is not told yet."""
    broker = make_broker().start()
    send(broker, b"a", b"b")
    ack_all(broker, pop(broker)[:1])
    broker.store.close()
    broker.open = False
    (broker.directory / "config/subscriptionGroup.json").unlink(missing_ok=True)
    broker = make_broker().start()
    assert broker.core.groups.get("G") is None
    later(broker, INVISIBLE_MS + 6000)
    assert broker.core.groups.get("G") is None
    assert bodies(pop(broker)) == [b"b"]


@pytest.mark.parametrize(("cleans", "count"), [("false", 1), ("true", 0)])
def test_what_is_in_flight_is_forgotten_with_the_offsets_of_its_group(broker: Broker, cleans: str, count: int) -> None:
    """Who deletes the settings alone has not said that it is to begin elsewhere."""
    send(broker, b"a", b"b")
    ack_all(broker, pop(broker)[:1])
    fields = {"groupName": "G", "cleanOffset": cleans}
    assert broker.ask(Command(RequestCode.DELETE_SUBSCRIPTIONGROUP, fields)).code == 0
    later(broker, INVISIBLE_MS + 6000)
    assert broker.store.queue_range("%RETRY%G_T", 0)[1] == count


def _shrunk(broker: Broker) -> Popped:
    """A message that was popped from a queue which its topic has no more."""
    broker.core.topics.put(TopicConfig("T", 4, 4))
    send(broker, b"a", queue_id=3)
    (given,) = pop(broker)
    broker.core.topics.put(TopicConfig("T", 2, 2))
    return given


def test_what_was_popped_is_acknowledged_though_its_topic_has_fewer_queues_now(broker: Broker) -> None:
    ack_all(broker, [_shrunk(broker)])
    later(broker, INVISIBLE_MS + 5000)
    assert pop(broker) == []


def test_what_was_popped_is_acknowledged_in_a_batch_though_its_topic_has_fewer_queues_now(broker: Broker) -> None:
    receipt = _shrunk(broker).receipt
    item = {
        "c": "G", "t": "T", "r": "0", "so": 0, "q": 3, "rq": receipt.revive_queue_id, "pt": receipt.pop_ms,
        "it": receipt.invisible_ms, "b": base64.b64encode(offsets_to_bits(0, [0])).decode(),
    }  # fmt: skip
    body = json.dumps({"brokerName": broker.config.broker_name, "acks": [item]}).encode()
    assert broker.ask(Command(RequestCode.BATCH_ACK_MESSAGE, {}, body)).code == 0
    later(broker, INVISIBLE_MS + 5000)
    assert pop(broker) == []


def test_what_was_popped_gets_another_time_though_its_topic_has_fewer_queues_now(broker: Broker) -> None:
    given = _shrunk(broker)
    changed = named(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, given, invisibleTime=3 * INVISIBLE_MS)
    assert broker.ask(changed).code == 0
    later(broker, INVISIBLE_MS + 5000)
    assert pop(broker) == []
    later(broker, 2 * INVISIBLE_MS)
    assert bodies(pop(broker)) == [b"a"]


def test_a_question_that_waits_knows_the_queues_that_its_topic_gets(broker: Broker) -> None:
    send(broker, b"a")
    ack_all(broker, pop(broker))
    fields = {"consumerGroup": "G", "topic": "T", "queueId": "-1", "pollTime": "9000", "bornTime": "0"}
    channel = FakeChannel()
    broker.core.processor.received(channel, [Command(RequestCode.NOTIFICATION, fields)])
    topic = broker.core.topics.get("T")
    assert channel.take() == [] and topic is not None
    new_id = topic.read_queue_count
    broker.core.topics.put(replace(topic, read_queue_count=new_id + 1, write_queue_count=new_id + 1))
    send(broker, b"b", queue_id=new_id)
    assert channel.one().ext["hasMsg"] == "true"
