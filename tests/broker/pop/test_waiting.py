"""A pop that waits takes a message once it is stored: the group holds it and its checkpoint by one round trip."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rmqha.broker.replication.replica_driver import DISPATCH_BYTES
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.offset import PhyOffset
from rmqha.wire.command import Command
from rmqha.wire.frame import encode_frame
from rmqha.wire.ha_stream import SlaveAck
from tests.broker.pop.world import (
    INVISIBLE_MS,
    Popped,
    ack_command,
    messages,
    named,
    pop_command,
)
from tests.broker.support import Broker, FakeChannel, ack, send_command


def sent(broker: Broker, *bodies: bytes, queue_id: int = 0, tags: str = "") -> FakeChannel:
    """The channel of sends that the slave has not acknowledged."""
    channel, named = FakeChannel(), f"TAGS\x01{tags}\x02" if tags else ""
    sends = [send_command("T", queue_id, body, d="2", i=named) for body in bodies]
    broker.core.processor.received(channel, sends)
    return channel


def polled(broker: Broker, **ext: Any) -> FakeChannel:
    channel = FakeChannel()
    broker.core.processor.received(channel, [pop_command(pollTime=15_000, **ext)])
    assert channel.take() == []
    return channel


def held(broker: Broker) -> None:
    """The slave has everything; nothing of it is dispatched yet."""
    broker.core.driver.ha_sent(1)
    broker.core.driver.ha_received(1, SlaveAck(PhyOffset(broker.store.max_phy_offset)).encode())


def later(broker: Broker, ms: int) -> None:
    """Let time pass, with a slave that acknowledges."""
    for _ in range(ms // 500):
        broker.run(500)
        ack(broker)


def given(broker: Broker, channel: FakeChannel) -> list[Popped]:
    return messages(channel.one(), broker_name=broker.config.broker_name)


def bodies(found: list[Popped]) -> list[bytes]:
    return [message.body for message in found]


@pytest.fixture
def ready(pair: Broker) -> Broker:
    """Its groups have read both queues of a topic to their ends."""
    for queue_id in range(2):
        sent(pair, b"before", queue_id=queue_id)
    ack(pair)
    for group in ("G", "H"):
        channel = FakeChannel()
        pair.core.processor.received(channel, [pop_command(group=group)])
        ack(pair)
        for message in given(pair, channel):
            pair.core.processor.received(channel, [ack_command(message, group)])
        ack(pair)
    pair.core.driver.ha_sent(1)
    return pair


def test_one_round_trip_is_enough(ready: Broker) -> None:
    channel = polled(ready)
    start, before = ready.store.max_phy_offset, len(ready.ports.ha_actions)
    sender = sent(ready, b"a")
    logs = [action for action in ready.ports.ha_actions[before:] if action[0] == "log"]
    assert logs == [("log", 1, start, ready.store.max_phy_offset - start)]
    ready.run()
    assert sender.take() == channel.take() == [], "nobody is told before the group holds it"
    held(ready)
    assert sender.one().code == 0
    assert bodies(given(ready, channel)) == [b"a"]


def test_each_group_that_waits_has_it_by_the_same_round_trip(ready: Broker) -> None:
    channels = [polled(ready, group=group) for group in ("G", "H")]
    sent(ready, b"a", queue_id=1)
    held(ready)
    assert [bodies(given(ready, channel)) for channel in channels] == [[b"a"]] * 2


def test_of_one_group_only_one_has_it(ready: Broker) -> None:
    first, second = polled(ready), polled(ready)
    sent(ready, b"a")
    ack(ready)
    assert bodies(given(ready, first)) == [b"a"] and second.take() == []
    sent(ready, b"b")
    ack(ready)
    assert bodies(given(ready, second)) == [b"b"]


def test_what_one_turn_brings_comes_together_and_is_acknowledged_at_once(ready: Broker) -> None:
    channel = polled(ready)
    ready.shell.turn = []
    for queue_id in (0, 1, 0):
        frame = encode_frame(send_command("T", queue_id, b"a%d" % queue_id, d="2", i="UNIQ_KEY\x01K\x02"))
        assert ready.core.processor.take([(FakeChannel(), frame)], 1) == [(len(frame), 1)]
    ready.shell.end_turn()
    held(ready)
    found = given(ready, channel)
    assert bodies(found) == [b"a0", b"a1", b"a0"]
    ready.core.processor.received(channel, [ack_command(message) for message in found[:2]])
    longer = named(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, found[2], invisibleTime=3 * INVISIBLE_MS)
    ready.core.processor.received(channel, [longer])
    held(ready)
    assert [reply.code for reply in channel.take()] == [0, 0, 0], "though no queue has them yet"
    later(ready, 2 * INVISIBLE_MS)
    again = FakeChannel()
    ready.core.processor.received(again, [pop_command()])
    assert again.one().code == ResponseCode.POLLING_TIMEOUT


def test_no_more_than_it_asked_for(ready: Broker) -> None:
    first, second = polled(ready, maxMsgNums=1), polled(ready, maxMsgNums=2)
    sent(ready, b"a", b"b", b"c", b"d")
    held(ready)
    assert [bodies(given(ready, channel)) for channel in (first, second)] == [[b"a"], [b"b", b"c"]]
    third = popped(ready)
    assert bodies(third) == [b"d"]


def popped(broker: Broker) -> list[Popped]:
    channel = FakeChannel()
    broker.core.processor.received(channel, [pop_command()])
    ack(broker)
    return given(broker, channel)


def test_what_is_in_front_comes_first(ready: Broker) -> None:
    sent(ready, b"a")
    channel = polled(ready)
    sent(ready, b"b")
    held(ready)
    assert channel.take() == []
    ready.run()
    ack(ready)
    assert bodies(given(ready, channel)) == [b"a", b"b"]


def test_only_messages_of_its_tags(ready: Broker) -> None:
    channel = polled(ready, exp="x")
    sent(ready, b"a", tags="y")
    ack(ready)
    sent(ready, b"b", tags="x")
    held(ready)
    assert bodies(given(ready, channel)) == [b"b"]


def test_only_messages_of_its_queue(ready: Broker) -> None:
    channel = polled(ready, queueId=1)
    sent(ready, b"a", queue_id=0)
    ack(ready)
    assert channel.take() == []
    sent(ready, b"b", queue_id=1)
    held(ready)
    assert bodies(given(ready, channel)) == [b"b"]


@pytest.mark.parametrize("way", [{"order": "true"}, {"exp": "TAGS is not null", "expType": "SQL92"}])
def test_in_order_and_with_a_filter_it_waits_until_it_may_be_seen(ready: Broker, way: dict[str, str]) -> None:
    ready.core.pops.configure(replace(ready.config, enable_property_filter=True))
    channel, end = polled(ready, **way), ready.store.max_phy_offset
    sent(ready, b"a", tags="x")
    assert ready.store.units("T", 0, 1, 1) == [] and ready.store.max_phy_offset - end < 300
    ack(ready)
    ack(ready)
    assert bodies(given(ready, channel)) == [b"a"]


def test_whose_consumer_is_gone_comes_again_after_its_time_and_not_before(ready: Broker) -> None:
    channel = polled(ready)
    sent(ready, b"a")
    ready.core.processor.closed(channel)
    ack(ready)
    assert bodies(given(ready, channel)) == [b"a"], "nobody hears of it"
    later(ready, INVISIBLE_MS - 1500)
    early = FakeChannel()
    ready.core.processor.received(early, [pop_command()])
    assert early.one().code == ResponseCode.POLLING_TIMEOUT
    later(ready, 5000)
    assert bodies(popped(ready)) == [b"a"]


def test_a_group_that_is_set_back_meanwhile_gets_it_again(ready: Broker) -> None:
    channel = polled(ready)
    sent(ready, b"a")
    fields = {"topic": "T", "group": "G", "timestamp": "0", "isForce": "true"}
    ready.core.processor.received(FakeChannel(), [Command(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)])
    ack(ready)
    assert bodies(given(ready, channel)) == [b"a"]
    assert sorted(bodies(popped(ready))) == [b"a", b"before", b"before"]


def test_what_its_queue_does_not_have_yet_is_given_once(ready: Broker) -> None:
    """A turn brings more bytes than are dispatched for a pop that looks."""
    channel = polled(ready)
    much = [send_command("U", 0, bytes(90_000), d="2") for _ in range(DISPATCH_BYTES // 90_000 + 1)]
    ready.core.processor.received(FakeChannel(), [send_command("T", 0, b"a", d="2"), *much])
    held(ready)
    assert bodies(given(ready, channel)) == [b"a"]
    ready.store.sync()
    ready.core.save()
    assert ready.store.dispatch_behind_bytes > DISPATCH_BYTES
    again = FakeChannel()
    for _ in range(2):
        ready.core.processor.received(again, [pop_command()])
        later(ready, 500)
        assert again.one().code == ResponseCode.POLLING_TIMEOUT


@pytest.mark.parametrize("way", [{}, {"order": "true"}], ids=["at once", "once it may be seen"])
def test_a_queue_that_its_topic_has_got_meanwhile(ready: Broker, way: dict[str, str]) -> None:
    topic = ready.core.topics.get("T")
    assert topic is not None
    new_id = topic.read_queue_count
    channel = polled(ready, **way)
    ready.core.topics.put(replace(topic, read_queue_count=new_id + 1, write_queue_count=new_id + 1))
    sent(ready, b"first", queue_id=new_id)
    ack(ready)
    if not way:  # the group has no offset in that queue yet: it comes when it may be seen, and a word more
        ack(ready)
    assert bodies(given(ready, channel)) == [b"first"]
