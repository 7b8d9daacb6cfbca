"""Request 370: a timer message is taken back by its handle; whatever is no handle of this broker changes nothing."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rmqha.broker.timers import service
from rmqha.broker.timers.message import Recall
from rmqha.broker.timers.recall_set import RecallSet
from rmqha.broker.timers.service import MAX_DELIVERY_COUNT, READ_COUNT
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.message import RecallHandle, decode_properties
from rmqha.wire.command import FLAG_ONEWAY, Command
from tests.broker.support import Broker, FakeChannel, ack
from tests.broker.timers.test_service import TIMER_TOPIC, bodies, now_ms, records, timed

DAY_MS = 86_400_000


@pytest.fixture
def broker(make_broker: Callable[..., Broker]) -> Broker:
    return make_broker(recall_message_enable=True).start()


def recall(handle: str, topic: str = "T", **ext: str) -> Command:
    return Command(RequestCode.RECALL_MESSAGE, {"topic": topic, "recallHandle": handle, "producerGroup": "p", **ext})


def handle_of(broker: Broker, body: bytes = b"x", **properties: Any) -> str:
    when = {} if "TIMER_DELIVER_MS" in properties else {"TIMER_DELAY_SEC": 10}
    reply = broker.ask(timed(body, **(when | properties)))
    assert reply.code == 0
    return reply.ext["recallHandle"]


def text(words: str) -> str:
    return base64.urlsafe_b64encode(words.encode()).decode()


def test_the_handle_names_topic_broker_slot_and_message(broker: Broker) -> None:
    at_ms = now_ms(broker) // 1000 * 1000 + 5_300
    handle = broker.ask(timed(UNIQ_KEY="K", TIMER_DELIVER_MS=at_ms)).ext["recallHandle"]
    slot_ms = at_ms // 1000 * 1000
    assert base64.urlsafe_b64decode(handle).decode() == f"v1 T {broker.config.broker_name} {slot_ms + 1} K"
    assert RecallHandle.decode(handle).encode() == handle


def test_only_timer_messages_have_one(broker: Broker) -> None:
    late = timed(TIMER_DELIVER_MS=1)
    retried = timed(TIMER_DELAY_SEC=5)
    retried.ext["b"] = "%RETRY%g"
    for command in (timed(), timed(DELAY=3), late, retried):
        reply = broker.ask(command)
        assert reply.code == 0 and "recallHandle" not in reply.ext


def test_it_is_taken_back_and_its_equals_are_not(broker: Broker) -> None:
    at_ms = now_ms(broker) + 10_000
    handles = [
        broker.ask(timed(key.encode(), UNIQ_KEY=key, TIMER_DELIVER_MS=at_ms)).ext["recallHandle"] for key in "AB"
    ]
    reply = broker.ask(recall(handles[0]))
    assert (reply.code, reply.ext["msgId"], reply.ext["MSG_REGION"]) == (0, "A", "DefaultRegion")
    broker.run(12_000)
    broker.run(1000)
    assert bodies(broker) == [b"B"] and broker.core.timers.waiting_count == 0
    record = records(broker, TIMER_TOPIC)[2]
    stored = decode_properties(record.properties)
    assert (stored["TIMER_DEL_UNIQKEY"], stored["UNIQ_KEY"], stored["TAGS"]) == ("A", "A", "_RECALL_TAG_")
    assert (stored["REAL_TOPIC"], stored["PGROUP"]) == ("T", "p") and bytes(
        records(broker, TIMER_TOPIC)[2].body
    ) == b"0"


def test_switched_off(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker().start()
    handle = handle_of(broker)
    end = broker.store.max_phy_offset
    reply = broker.ask(recall(handle))
    assert (reply.code, reply.remark) == (ResponseCode.NO_PERMISSION, "recall failed, operation is forbidden")
    assert broker.store.max_phy_offset == end
    broker.core.live.update("recallMessageEnable=true")
    assert broker.ask(recall(handle)).code == 0


@pytest.mark.parametrize(
    ("handle", "topic", "remark"),
    [
        ("!!", "T", "recall handle is invalid"),
        ("djEgVA", "T", "recall handle is invalid"),
        (text("v2 T b 1 K"), "T", "recall handle is invalid"),
        (text("v1 T b 1 "), "T", "recall handle is invalid"),
        (text("v1 T b 1 K\x02REAL_TOPIC\x01U"), "T", "recall handle is invalid"),
        (base64.urlsafe_b64encode(b"v1 T b 1 \xff").decode(), "T", "recall handle is invalid"),
        (text("v1 U {name} {at} K"), "T", "recall failed, topic not match"),
        (text("v1 T other {at} K"), "T", "recall failed, broker service not available"),
        (text("v1 T {name} soon K"), "T", "recall failed, timestamp invalid"),
        (text("v1 T {name} {now} K"), "T", "recall failed, timestamp invalid"),
        (text("v1 T {name} {far} K"), "T", "recall failed, timestamp invalid"),
    ],
)
def test_what_is_no_handle_of_this_broker_changes_nothing(broker: Broker, handle: str, topic: str, remark: str) -> None:
    broker.ask(timed())
    now, name = now_ms(broker), broker.config.broker_name
    if handle.startswith("djE"):
        words = base64.urlsafe_b64decode(handle + "=" * (-len(handle) % 4))
        for mark, value in (("name", name), ("at", now + 5000), ("now", now), ("far", now + 3 * DAY_MS)):
            words = words.replace(b"{%s}" % mark.encode(), str(value).encode())
        handle = base64.urlsafe_b64encode(words).decode()
    end = broker.store.max_phy_offset
    reply = broker.ask(recall(handle, topic))
    assert (reply.code, reply.remark) == (ResponseCode.ILLEGAL_OPERATION, remark)
    assert broker.store.max_phy_offset == end


def test_a_topic_that_there_is_not_and_fields_that_lack(broker: Broker) -> None:
    handle = handle_of(broker)
    end = broker.store.max_phy_offset
    reply = broker.ask(recall(handle, "Nowhere"))
    assert reply.code == ResponseCode.TOPIC_NOT_EXIST and reply.remark == "recall failed, the topic[Nowhere] not exist"
    for name in ("topic", "recallHandle"):
        command = recall(handle)
        del command.ext[name]
        assert broker.ask(command).code == ResponseCode.SYSTEM_ERROR
    reply = broker.ask(recall(handle, producerGroup="p\x02REAL_TOPIC\x01U"))
    assert (reply.code, reply.remark) == (ResponseCode.SYSTEM_ERROR, "recall failed, execute error")
    assert broker.store.max_phy_offset == end


def test_a_producer_cannot_take_back_what_is_of_another_topic(broker: Broker) -> None:
    """Ids of messages are no secret: the handle is forged with a topic on which its sender has the right."""
    given = RecallHandle.decode(handle_of(broker, b"theirs", UNIQ_KEY="K"))
    own = timed(b"own")
    own.ext["b"] = "U"
    broker.ask(own)
    assert broker.ask(recall(given._replace(topic="U").encode(), "U")).code == 0
    broker.run(12_000)
    assert bodies(broker) == [b"theirs"]


def test_a_key_with_its_topic_before_it_counts_too(broker: Broker) -> None:
    """RocketMQ's brokers write it so from a version on, or if told to."""
    at_ms = now_ms(broker) + 5000
    broker.ask(timed(b"x", UNIQ_KEY="K", TIMER_DELIVER_MS=at_ms))
    broker.ask(timed(b"0", UNIQ_KEY="K", TIMER_DELIVER_MS=at_ms, TIMER_DEL_UNIQKEY="T+K"))
    broker.run(7000)
    assert bodies(broker) == []


def test_the_answer_comes_when_the_group_holds_it(pair: Broker) -> None:
    pair.core.recalls.configure(replace(pair.config, recall_message_enable=True))
    channel = FakeChannel()
    pair.core.processor.received(channel, [timed(TIMER_DELAY_SEC=10)])
    ack(pair)
    handle = channel.one().ext["recallHandle"]
    pair.core.processor.received(channel, [recall(handle)])
    pair.run()
    assert channel.take() == []
    ack(pair)
    assert channel.one().code == 0


def test_one_that_comes_during_a_hand_over_waits_as_a_send_does(broker: Broker) -> None:
    handle = handle_of(broker)
    broker.shell.holds = True
    channel = FakeChannel()
    broker.core.processor.received(channel, [recall(handle)])
    assert channel.take() == [] and [item.code for item in broker.shell.held] == [RequestCode.RECALL_MESSAGE]
    broker.core.admit(channel, broker.shell.held)
    broker.run()
    assert channel.one().code == 0


def test_oneway(broker: Broker) -> None:
    handle, channel = handle_of(broker), FakeChannel()
    for command in (recall("!!"), recall(handle)):
        command.flag |= FLAG_ONEWAY
        broker.core.processor.received(channel, [command])
        broker.run()
    broker.run(12_000)
    assert channel.take() == [] and bodies(broker) == []


def test_it_counts_behind_many_that_have_not_been_looked_at(broker: Broker) -> None:
    """All come in one step, more than are looked at in one."""
    channel, at_ms = FakeChannel(), now_ms(broker) + 5000
    broker.core.processor.received(channel, [timed(b"x", UNIQ_KEY="K", TIMER_DELIVER_MS=at_ms)])
    name = broker.config.broker_name
    for number in range(2 * READ_COUNT):
        later = timed(UNIQ_KEY=f"L{number}", TIMER_DELIVER_MS=at_ms + 60_000)
        broker.core.processor.received(channel, [later])
    handle = RecallHandle("T", name, (at_ms - 1) // 1000 * 1000 + 1, "K").encode()
    broker.core.processor.received(channel, [recall(handle)])
    broker.run(7000)
    for _ in range(5):
        broker.run(1)
    assert {item.code for item in channel.take()} == {0} and bodies(broker) == []


def test_many_of_a_slot_are_taken_back_in_several_steps(broker: Broker) -> None:
    at_ms, count = now_ms(broker) + 5000, 2 * MAX_DELIVERY_COUNT
    handles = [
        broker.ask(timed(b"%d" % number, UNIQ_KEY=str(number), TIMER_DELIVER_MS=at_ms)).ext["recallHandle"]
        for number in range(count)
    ]
    for handle in handles[::2]:
        assert broker.ask(recall(handle)).code == 0
    for _ in range(10):
        broker.run(1000)
    assert bodies(broker) == [b"%d" % number for number in range(1, count, 2)]


def test_one_that_waits_for_long_is_taken_back_before_or_after_it_was_stored_again(broker: Broker) -> None:
    early, late = (handle_of(broker, key, UNIQ_KEY=key.decode(), TIMER_DELAY_SEC=5 * 43_200) for key in (b"A", b"B"))
    assert broker.ask(recall(early)).code == 0
    broker.run(DAY_MS + 2000)
    broker.run()
    assert broker.ask(recall(late)).code == 0
    for _ in range(16):
        broker.run(DAY_MS // 8)
    assert bodies(broker) == [] and broker.core.timers.waiting_count == 0


def test_a_restart_knows_what_was_taken_back(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker(recall_message_enable=True).start()
    assert broker.ask(recall(handle_of(broker))).code == 0
    broker.close()
    again = make_broker().start()
    again.clock.ms = broker.clock.ms
    again.run(12_000)
    again.run()
    assert bodies(again) == [] and again.core.timers.waiting_count == 0


def test_it_counts_though_the_clock_was_put_back_behind_what_has_been_worked_off(broker: Broker) -> None:
    """A new master's clock may be behind: what is sent then comes late by the old one's."""
    handle_of(broker, b"first", TIMER_DELAY_SEC=600)
    broker.run(602_000)
    broker.clock.ms -= 300_000
    handle_of(broker, b"between", UNIQ_KEY="B", TIMER_DELAY_SEC=20)
    handle = handle_of(broker, b"second", UNIQ_KEY="S", TIMER_DELAY_SEC=60)
    broker.run()
    assert broker.ask(recall(handle)).code == 0
    for _ in range(4):
        broker.run(30_000)
    assert bodies(broker) == [b"first", b"between"] and broker.core.timers.waiting_count == 0


def test_so_many_are_taken_back_at_a_time(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "MAX_RECALL_COUNT", 2)
    at_ms = now_ms(broker) + 10_000
    handles = [handle_of(broker, UNIQ_KEY=key, TIMER_DELIVER_MS=at_ms) for key in "ABC"]
    assert [broker.ask(recall(handle)).code for handle in handles[:2]] == [0, 0]
    broker.run(1)
    end = broker.store.max_phy_offset
    reply = broker.ask(recall(handles[2]))
    words = "2 messages that wait are taken back already"
    assert (reply.code, reply.remark) == (ResponseCode.SYSTEM_BUSY, f"recall failed, {words}")
    reply = broker.ask(timed(b"0", UNIQ_KEY="C", TIMER_DELIVER_MS=at_ms, TIMER_DEL_UNIQKEY="C"))
    assert (reply.code, reply.remark) == (ResponseCode.SYSTEM_BUSY, words)
    assert broker.store.max_phy_offset == end
    broker.run(12_000)
    broker.run(1000)
    assert bodies(broker) == [b"x"] and broker.core.timers.waiting_count == 0
    later = handle_of(broker)
    assert broker.ask(recall(later)).code == 0


def test_slots_are_forgotten_in_their_order_whatever_order_they_came_in() -> None:
    known = RecallSet()
    for slot_ms in (5, 3, 9, 3):
        known.add(Recall(slot_ms, b"T\x01K"))
    known.add(Recall(3, b"T\x01L"))
    assert len(known) == 4
    known.drop_below(5)
    assert len(known) == 2 and Recall(3, b"T\x01L") not in known and Recall(5, b"T\x01K") in known
    assert known.has_slot(9) and not known.has_slot(3) and Recall(9, b"T\x01L") not in known
