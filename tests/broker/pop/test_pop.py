"""Pop and acknowledge: nothing is given twice within its time, nothing that is not acknowledged is forgotten."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from rmqha.broker.core import BrokerCore
from rmqha.broker.pop.checkpoint import REVIVE_GROUP, CheckPoint, offsets_to_bits
from rmqha.broker.pop.requests import pop_request
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import UsageError
from rmqha.model.message import decode_properties, encode_properties
from rmqha.store.appender import AppendedBatch
from rmqha.store.log.record import EncodedBatch, NewMessage, decode
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import loads
from rmqha.wire.state.receipt import Receipt
from tests.broker.pop.world import (
    INVISIBLE_MS,
    Popped,
    ack_all,
    ack_command,
    later,
    messages,
    named,
    polled,
    pop,
    pop_command,
    send,
)
from tests.broker.support import Broker, FakeChannel, ack

REVIVE = "rmq_sys_REVIVE_LOG_DefaultCluster"


def bodies(given: list[Popped]) -> list[bytes]:
    return [message.body for message in given]


def test_a_message_is_given_once_and_comes_again_after_its_time(broker: Broker) -> None:
    send(broker, b"a", b"b")
    assert bodies(pop(broker)) == [b"a", b"b"]
    later(broker, INVISIBLE_MS - 1500)
    assert pop(broker) == []
    later(broker, 5000)
    again = pop(broker)
    assert bodies(again) == [b"a", b"b"]
    properties = decode_properties(again[0].record.properties)
    assert again[0].record.topic == "T" and again[0].receipt.kind == "1" and again[0].record.reconsume_times == 1
    assert properties["ORIGIN_GROUP"] == "G" and int(properties["1ST_POP_TIME"]) > 0


def test_a_message_that_was_popped_elsewhere_is_acknowledged_by_its_own_receipt(broker: Broker) -> None:
    """Who passes on what it has popped passes on the receipt as well, with all properties."""
    old = Receipt(3, 1, 2, 1, "1", "broker-a", 0, 9).encode()
    send(broker, b"passed on", POP_CK=old)
    (first,) = pop(broker)
    assert first.receipt.kind == "0"
    later(broker, INVISIBLE_MS + 5000)
    ack_all(broker, pop(broker))
    later(broker, INVISIBLE_MS + 5000)
    assert pop(broker) == []


def test_a_receipt_in_the_retry_topic_is_none(broker: Broker) -> None:
    """Apache's broker stores that of a batch's message, and passes it on to the retry topic."""
    send(broker, b"a")
    pop(broker)
    later(broker, INVISIBLE_MS + 5000)
    properties = encode_properties({"POP_CK": Receipt(3, 1, 2, 1, "1", "broker-a", 0, 9).encode(), "UNIQ_KEY": "U"})
    host = (b"\x7f\0\0\1", 50000)
    stored = broker.core.driver.append([NewMessage("%RETRY%G_T", 0, b"b", properties, 1, host, host)])
    broker.core.driver.appended(stored.end_offset, None)
    broker.run()
    again = pop(broker)
    assert bodies(again) == [b"a", b"b"]
    assert again[1].receipt == again[0].receipt._replace(queue_offset=1)
    ack_all(broker, again)
    later(broker, INVISIBLE_MS + 5000)
    assert pop(broker) == []


def test_operators_are_told_what_is_in_flight(broker: Broker) -> None:
    def told(group: str = "G") -> Any:
        return loads(bytes(broker.ask(Command(RequestCode.GET_CONSUME_STATS, {"consumerGroup": group})).body))

    send(broker, b"a", b"b", b"c")
    given = pop(broker)
    assert told()["rmqhaPoppedInFlight"] == {"T": 3}
    ack_all(broker, given[:1])
    later(broker, INVISIBLE_MS + 5000)  # the others wait in the retry topic
    assert "rmqhaPoppedInFlight" not in told()
    again = pop(broker)
    assert told()["rmqhaPoppedInFlight"] == {"T": 2}
    ack_all(broker, again)
    assert told().keys() == {"consumeTps", "offsetTable"}
    in_order = pop(broker, group="O", order="true")
    ack_all(broker, in_order[:1], "O")
    assert told("O")["rmqhaPoppedInFlight"] == {"T": 2}


def test_what_is_acknowledged_does_not_come_again(broker: Broker) -> None:
    send(broker, b"a", b"b", b"c")
    given = pop(broker)
    ack_all(broker, [given[0], given[2]])
    later(broker, INVISIBLE_MS + 5000)
    again = pop(broker)
    assert bodies(again) == [b"b"]
    ack_all(broker, again)
    later(broker, INVISIBLE_MS + 5000)
    assert pop(broker) == []


def test_an_acknowledgement_in_the_last_moment_counts(broker: Broker) -> None:
    send(broker, b"a")
    (given,) = pop(broker)
    later(broker, INVISIBLE_MS - 10)
    ack_all(broker, [given])
    later(broker, 5000)
    assert pop(broker) == [] and broker.core.pops.revive.revived_count == 0


def test_an_acknowledgement_after_its_time_that_was_answered_before_the_message_came_again_counts(
    broker: Broker,
) -> None:
    send(broker, b"a")
    (given,) = pop(broker)
    broker.clock.ms += INVISIBLE_MS + 100  # the timers are behind
    ack_all(broker, [given])
    later(broker, 5000)
    assert pop(broker) == [] and broker.core.pops.revive.revived_count == 0


def test_two_names_of_one_retry_topic_keep_their_messages_apart(broker: Broker) -> None:
    """`%RETRY%a_b_T` is where messages of group a_b and topic T come again, and those of group a and topic b_T."""
    send(broker, b"theirs")
    send(broker, b"ours", topic="b_T")
    pop(broker, group="a_b")
    assert bodies(pop(broker, topic="b_T", group="a")) == [b"ours"]
    later(broker, INVISIBLE_MS + 5000)
    fields = {"consumerGroup": "a", "topic": "b_T", "queueId": "-1", "maxMsgNums": "32"}
    peeked = broker.ask(Command(RequestCode.PEEK_MESSAGE, fields))
    assert b"theirs" not in bytes(peeked.body) and b"ours" in bytes(peeked.body)
    assert bodies(pop(broker, topic="b_T", group="a")) == [b"ours"]
    assert bodies(pop(broker, group="a_b")) == [b"theirs"]


def test_each_group_has_its_own(broker: Broker) -> None:
    send(broker, b"a")
    assert bodies(pop(broker, group="G")) == bodies(pop(broker, group="H")) == [b"a"]


def test_at_most_as_many_as_asked_for_and_all_in_the_end(broker: Broker) -> None:
    send(broker, *[b"%d" % number for number in range(10)])
    first = pop(broker, maxMsgNums=4)
    rest = pop(broker, maxMsgNums=32)
    assert sorted(bodies(first + rest)) == sorted(b"%d" % number for number in range(10)) and len(first) == 4


def test_the_checkpoint_has_the_form_of_rocketmqs(broker: Broker) -> None:
    send(broker, b"a", b"b", b"c", TAGS="x")
    send(broker, b"d", TAGS="y")
    given = pop(broker, exp="y")
    assert bodies(given) == [b"d"]
    unit = broker.store.units("rmq_sys_wheel_timer", 0, 0, 1)[0]
    data = broker.store.record_at(unit[0])
    assert data is not None
    record = decode(data)
    body, properties = json.loads(bytes(record.body)), decode_properties(record.properties)
    pop_ms = given[0].receipt.pop_ms
    name = broker.config.broker_name
    assert list(body) == ["bm", "bn", "c", "d", "it", "n", "pt", "q", "reviveTime", "ro", "so", "t"]
    assert (body["so"], body["d"], body["n"], body["c"], body["t"]) == (3, [0], 1, "G", "T")
    assert (body["pt"], body["it"], body["reviveTime"]) == (pop_ms, INVISIBLE_MS, pop_ms + INVISIBLE_MS)
    assert properties["UNIQ_KEY"] == f"T@0@3@G@{pop_ms}@{name}@ck" and properties["TAGS"] == "ck"
    assert properties["TIMER_DELIVER_MS"] == str(pop_ms + INVISIBLE_MS - 1000)
    assert properties["REAL_TOPIC"] == REVIVE and properties["REAL_QID"] == str(given[0].receipt.revive_queue_id)


def test_sql_filters_choose(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker(enable_property_filter=True).start()
    send(broker, b"a", n="1")
    send(broker, b"b", n="2")
    assert bodies(pop(broker, expType="SQL92", exp="n = 2")) == [b"b"]
    reply = broker.ask(pop_command(expType="SQL92", exp="n = = 2"))
    assert reply.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


def test_what_nobody_wants_is_passed_and_not_looked_at_again(broker: Broker) -> None:
    send(broker, b"a", b"b", TAGS="x")
    assert pop(broker, exp="y") == []
    assert broker.core.offsets.query("G", "T", 0) == 2


def test_a_waiting_pop_is_answered_by_the_next_message(broker: Broker) -> None:
    send(broker, b"a")
    pop(broker)
    channel = polled(broker)
    send(broker, b"b")
    assert bodies(messages(channel.one(), broker_name=broker.config.broker_name)) == [b"b"]


def test_a_waiting_pop_has_the_message_when_its_sender_is_answered(broker: Broker) -> None:
    """Nothing else runs in between."""
    send(broker, b"a")
    pop(broker)
    waiting, sender = polled(broker), FakeChannel()
    broker.core.processor.received(sender, [_sent(b"b")])
    assert sender.one().code == 0
    assert bodies(messages(waiting.one(), broker_name=broker.config.broker_name)) == [b"b"]


def test_a_waiting_pop_is_told_when_its_time_is_up(broker: Broker) -> None:
    send(broker, b"a")
    pop(broker)
    channel = polled(broker)
    broker.run(15_000)
    reply = channel.one()
    assert (reply.code, reply.remark) == (ResponseCode.POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE")
    assert broker.core.pops.poll_count == 0


def test_a_waiting_pop_gets_what_comes_again(broker: Broker) -> None:
    send(broker, b"a")
    pop(broker, invisibleTime=3000)
    channel = polled(broker)
    later(broker, 7000)
    assert bodies(messages(channel.one(), broker_name=broker.config.broker_name)) == [b"a"]


def test_a_connection_that_closes_waits_no_more(broker: Broker) -> None:
    send(broker, b"a")
    pop(broker)
    channel = polled(broker)
    broker.core.processor.closed(channel)
    send(broker, b"b")
    assert channel.take() == [] and bodies(pop(broker)) == [b"b"]


def test_another_time_is_kept_and_the_new_receipt_counts(broker: Broker) -> None:
    send(broker, b"a")
    (given,) = pop(broker)
    reply = broker.ask(named(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, given, invisibleTime=30_000))
    assert reply.code == 0 and reply.ext["invisibleTime"] == "30000"
    later(broker, 25_000)
    assert pop(broker) == []
    later(broker, 9000)
    assert bodies(pop(broker)) == [b"a"]


def test_another_time_in_the_moment_of_the_pop_is_not_an_acknowledgement(broker: Broker) -> None:
    send(broker, b"a")
    (given,) = pop(broker)
    assert given.receipt.pop_ms == broker.clock.wall_ms()  # the old checkpoint and the new one begin at one offset
    reply = broker.ask(named(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, given, invisibleTime=5000))
    assert reply.code == 0
    later(broker, 9000)
    assert bodies(pop(broker)) == [b"a"]


def test_a_message_is_given_back_at_once(broker: Broker) -> None:
    send(broker, b"a")
    (given,) = pop(broker)
    assert broker.ask(named(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, given, invisibleTime=0)).code == 0
    later(broker, 3000)
    assert bodies(pop(broker)) == [b"a"]


@pytest.mark.parametrize("late_ms", [0, 5000])
def test_a_time_that_is_over_cannot_be_changed(broker: Broker, late_ms: int) -> None:
    """The message has come again, or is about to: with another time it would come twice."""
    send(broker, b"a")
    (given,) = pop(broker)
    if late_ms:
        later(broker, INVISIBLE_MS + late_ms)
    else:
        broker.clock.ms += INVISIBLE_MS
    reply = broker.ask(named(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, given, invisibleTime=3000))
    assert (reply.code, reply.ext) == (ResponseCode.NO_MESSAGE, {})
    later(broker, 8000)
    again = pop(broker)
    assert bodies(again) == [b"a"]
    ack_all(broker, again)
    later(broker, INVISIBLE_MS)
    assert pop(broker) == []


@pytest.mark.parametrize("wait_ms", [0, 2000])
def test_a_new_master_whose_clock_is_behind_changes_no_time_that_was_over(
    make_broker: Callable[..., Broker], wait_ms: int
) -> None:
    broker = make_broker().start()
    send(broker, b"a", b"b")
    given = pop(broker, maxMsgNums=1)
    later(broker, INVISIBLE_MS - 5000)
    given += pop(broker, maxMsgNums=1)
    later(broker, 9000)
    broker.core.save()
    broker.store.sync()
    broker.store.close()
    broker.open = False
    broker = make_broker().start()
    later(broker, wait_ms)
    assert broker.clock.wall_ms() < given[0].receipt.due_ms
    changes = [named(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, message, invisibleTime=3000) for message in given]
    assert [broker.ask(change).code for change in changes] == [ResponseCode.NO_MESSAGE, ResponseCode.SUCCESS]
    later(broker, 30_000)
    assert sorted(bodies(pop(broker))) == [b"a", b"b"]


def test_a_batch_acknowledges_what_its_bits_say(broker: Broker) -> None:
    send(broker, b"a", b"b", b"c")
    given = pop(broker)
    receipt = given[0].receipt
    bits = base64.b64encode(offsets_to_bits(receipt.start_offset, [0, 2])).decode()
    item = {"c": "G", "t": "T", "r": "0", "so": receipt.start_offset, "q": 0, "rq": receipt.revive_queue_id}
    item |= {"pt": receipt.pop_ms, "it": receipt.invisible_ms, "b": bits}
    body = json.dumps({"brokerName": broker.config.broker_name, "acks": [item]}).encode()
    assert broker.ask(Command(RequestCode.BATCH_ACK_MESSAGE, {}, body)).code == 0
    later(broker, INVISIBLE_MS + 5000)
    assert bodies(pop(broker)) == [b"b"]
    assert broker.ask(Command(RequestCode.BATCH_ACK_MESSAGE, {}, b"")).code == ResponseCode.NO_MESSAGE


def test_a_question_whether_there_is_something(broker: Broker) -> None:
    send(broker, b"a")
    fields = {"consumerGroup": "G", "topic": "T", "queueId": "-1", "pollTime": "0", "bornTime": "0"}
    assert broker.ask(Command(RequestCode.NOTIFICATION, fields)).ext["hasMsg"] == "true"
    pop(broker)
    assert broker.ask(Command(RequestCode.NOTIFICATION, fields)).ext["hasMsg"] == "false"
    channel = FakeChannel()
    broker.core.processor.received(channel, [Command(RequestCode.NOTIFICATION, {**fields, "pollTime": "9000"})])
    assert channel.take() == []
    send(broker, b"b")
    assert channel.one().ext["hasMsg"] == "true"


def test_a_look_takes_nothing(broker: Broker) -> None:
    send(broker, b"a")
    fields = {"consumerGroup": "G", "topic": "T", "queueId": "0", "maxMsgNums": "5"}
    reply = broker.ask(Command(RequestCode.PEEK_MESSAGE, fields))
    assert reply.code == 0 and bytes(decode(memoryview(bytes(reply.body))).body) == b"a"
    assert bodies(pop(broker)) == [b"a"]
    assert broker.ask(Command(RequestCode.PEEK_MESSAGE, fields)).code == ResponseCode.PULL_NOT_FOUND


def test_the_number_of_waiting_pops(broker: Broker) -> None:
    send(broker, b"a")
    pop(broker)
    polled(broker)
    fields = {"consumerGroup": "G", "topic": "T", "queueId": "-1"}
    assert broker.ask(Command(RequestCode.POLLING_INFO, fields)).ext["pollingNum"] == "1"


@pytest.mark.parametrize(
    ("ext", "code"),
    [
        ({"maxMsgNums": 33}, ResponseCode.INVALID_PARAMETER),
        ({"maxMsgNums": 0}, ResponseCode.INVALID_PARAMETER),
        ({"invisibleTime": 0}, ResponseCode.INVALID_PARAMETER),
        ({"invisibleTime": 1 << 62}, ResponseCode.INVALID_PARAMETER),
        ({"queueId": 9}, ResponseCode.INVALID_PARAMETER),
        ({"topic": "Nowhere"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"consumerGroup": "a b"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"exp": "||"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ({"bornTime": 1}, ResponseCode.POLLING_TIMEOUT),
    ],
)
def test_a_pop_that_cannot_be_changes_nothing(broker: Broker, ext: dict[str, Any], code: ResponseCode) -> None:
    send(broker, b"a")
    end = broker.store.max_phy_offset
    assert broker.ask(pop_command(**ext)).code == code
    assert broker.store.max_phy_offset == end and bodies(pop(broker)) == [b"a"]


@pytest.mark.parametrize(
    ("ext", "code"),
    [
        ({"extraInfo": "x"}, ResponseCode.SYSTEM_ERROR),
        ({"extraInfo": "0 1 2 3 7 b 0 0"}, ResponseCode.SYSTEM_ERROR),
        ({"extraInfo": "0 1 2 3 0 other 0 0"}, ResponseCode.MESSAGE_ILLEGAL),
        ({"extraInfo": "0 1 2 77 0 {name} 0 0"}, ResponseCode.MESSAGE_ILLEGAL),
        ({"extraInfo": "0 1 999999999999999999 1 0 {name} 0 0"}, ResponseCode.MESSAGE_ILLEGAL),
        ({"offset": 5}, ResponseCode.NO_MESSAGE),
        ({"offset": -1}, ResponseCode.NO_MESSAGE),
        ({"queueId": 7}, ResponseCode.MESSAGE_ILLEGAL),
        ({"topic": "Nowhere"}, ResponseCode.TOPIC_NOT_EXIST),
    ],
)
@pytest.mark.parametrize("code_of", [RequestCode.ACK_MESSAGE, RequestCode.CHANGE_MESSAGE_INVISIBLETIME])
def test_a_receipt_that_cannot_be_changes_nothing(
    broker: Broker, code_of: RequestCode, ext: dict[str, Any], code: ResponseCode
) -> None:
    send(broker, b"a")
    (given,) = pop(broker)
    end = broker.store.max_phy_offset
    ext = {
        key: value.format(name=broker.config.broker_name) if isinstance(value, str) else value
        for key, value in ext.items()
    }
    assert broker.ask(named(code_of, given, **{"invisibleTime": 5, **ext})).code == code
    assert broker.store.max_phy_offset == end


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda core: core.topics.put(replace(core.topics.get("T"), perm=2)), ResponseCode.NO_PERMISSION),
        (lambda core: core.topics.remove("T"), ResponseCode.TOPIC_NOT_EXIST),
        (lambda core: core.groups.put({"groupName": "G", "consumeEnable": False}), ResponseCode.NO_PERMISSION),
        (lambda core: core.pops.configure(replace(core.config, broker_permission=2)), ResponseCode.NO_PERMISSION),
    ],
)
def test_a_pop_like_the_one_before_is_refused_once_something_forbids_it(
    broker: Broker, change: Callable[[BrokerCore], None], code: ResponseCode
) -> None:
    send(broker, b"a", b"b", b"c")
    assert bodies(pop(broker, maxMsgNums=1) + pop(broker, maxMsgNums=1)) == [b"a", b"b"]
    change(broker.core)
    assert broker.ask(pop_command(maxMsgNums=1)).code == code


def test_pops_of_any_number_of_wishes_are_known_within_bounds(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pop_request, "MAX_KNOWN_COUNT", 3)
    send(broker, b"a", TAGS="x")
    for number in range(10):
        assert pop(broker, exp=f"tag{number}", group=f"G{number}") == []
    assert bodies(pop(broker, exp="x", group="G10")) == [b"a"]
    reader = broker.core.pops.reader
    assert len(reader._known) <= 3
    known = dict(reader._known)
    pop(broker, exp=" || ".join(["longer"] * 200))
    assert reader._known == known


def test_an_acknowledgement_of_what_has_come_again_changes_nothing(broker: Broker) -> None:
    send(broker, b"a")
    (given,) = pop(broker)
    later(broker, INVISIBLE_MS + 5000)
    end = broker.store.max_phy_offset
    assert broker.ask(ack_command(given)).code == 0
    assert broker.store.max_phy_offset == end and bodies(pop(broker)) == [b"a"]


def test_nothing_is_given_before_the_group_holds_its_checkpoint(pair: Broker) -> None:
    """Apache's broker takes SLAVE_NOT_AVAILABLE for success (apache/rocketmq 4806)."""
    channel = FakeChannel()
    pair.core.processor.received(channel, [_sent(b"a")])
    ack(pair)
    assert channel.one().code == 0
    pair.core.processor.received(channel, [pop_command()])
    pair.run()
    assert channel.take() == [] and pair.core.offsets.query("G", "T", 0) == 0
    ack(pair)
    given = messages(channel.one(), broker_name=pair.config.broker_name)
    pair.store.sync()
    pair.core.pops.advance()
    assert bodies(given) == [b"a"] and pair.core.offsets.query("G", "T", 0) == 1
    pair.core.processor.received(channel, [ack_command(given[0])])
    pair.run()
    assert channel.take() == []
    ack(pair)
    assert channel.one().code == 0


def test_a_stop_before_the_next_dispatch_keeps_how_far_a_group_is(broker: Broker) -> None:
    """Apache's broker goes by the file of offsets and would give all of it again."""
    send(broker, b"a", b"b")
    broker.core.processor.received(FakeChannel(), [pop_command()])
    assert broker.store.dispatch_behind_bytes > 0
    broker.core.finish()
    assert broker.core.offsets.query("G", "T", 0) == 2


def test_pops_of_one_read_are_waited_for_and_answered_together(pair: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    channel, ended, pieces = FakeChannel(), list[int](), list[int]()
    send_frames = channel.send_frames

    def noted(frames: bytes, count: int) -> None:
        pieces.append(count)
        send_frames(frames, count)

    pair.core.processor.received(channel, [_sent(b"a"), _sent(b"b")])
    ack(pair)
    channel.take()
    appended = pair.core.replica.appended

    def counted(now_ms: int) -> None:
        ended.append(now_ms)
        appended(now_ms)

    monkeypatch.setattr(pair.core.replica, "appended", counted)
    monkeypatch.setattr(channel, "send_frames", noted)
    wrong, one = pop_command(maxMsgNums=99), pop_command(maxMsgNums=1)
    pair.core.processor.received(channel, [one, wrong, one, one])
    assert [reply.code for reply in channel.take()] == [29, 210] and len(ended) == 1
    ack(pair)
    given = [messages(reply, broker_name=pair.config.broker_name) for reply in channel.take()]
    assert [bodies(found) for found in given] == [[b"a"], [b"b"]]
    pair.core.processor.received(channel, [ack_command(found) for (found,) in given])
    assert channel.take() == [] and len(ended) == 2
    ack(pair)
    assert [reply.code for reply in channel.take()] == [0, 0] and pieces == [2, 2]
    pair.core.processor.received(channel, [_sent(b"c")])
    ack(pair)
    assert channel.one().code == 0, "no turn is left open"


def test_pops_of_connections_that_are_served_in_one_turn_are_settled_together(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    settled, appended = list[int](), broker.core.replica.appended

    def counted(now_ms: int) -> None:
        settled.append(now_ms)
        appended(now_ms)

    send(broker, *(b"%d" % number for number in range(6)))
    monkeypatch.setattr(broker.core.replica, "appended", counted)
    channels = [FakeChannel(), FakeChannel(), FakeChannel()]
    broker.shell.turn = []
    for channel in channels[:2]:
        broker.core.processor.received(channel, [pop_command(maxMsgNums=1), pop_command(maxMsgNums=1)])
    broker.core.processor.received(channels[2], [pop_command(maxMsgNums=1)])
    assert not settled and not any(channel.take() for channel in channels)
    broker.shell.end_turn()
    given = [bodies(messages(reply)) for channel in channels for reply in channel.take()]
    assert given == [[b"0"], [b"1"], [b"2"], [b"3"], [b"4"]] and len(settled) == 1
    assert bodies(pop(broker)) == [b"5"] and len(settled) > 1, "outside of a turn at once"


def test_what_pops_of_one_read_store_is_appended_with_one_write(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(broker, *(b"%d" % number for number in range(6)))
    channel, sizes = FakeChannel(), list[int]()
    append = broker.store.append_encoded

    def counted(batch: EncodedBatch, wall_ms: int) -> AppendedBatch:
        sizes.append(len(batch))
        return append(batch, wall_ms)

    monkeypatch.setattr(broker.store, "append_encoded", counted)
    broker.core.processor.received(channel, [pop_command(maxMsgNums=2) for _ in range(3)])
    given = [messages(reply) for reply in channel.take()]
    assert [bodies(found) for found in given] == [[b"0", b"1"], [b"2", b"3"], [b"4", b"5"]] and sizes == [3]
    broker.run()
    assert broker.core.offsets.query("G", "T", 0) == 0, "the disk has none of it yet"
    broker.store.sync()
    broker.core.pops.advance()
    assert broker.core.offsets.query("G", "T", 0) == 6
    broker.core.processor.received(channel, [ack_command(found[0]) for found in given])
    assert [reply.code for reply in channel.take()] == [0, 0, 0] and sizes == [3, 3]
    later(broker, INVISIBLE_MS + 5000)
    assert bodies(pop(broker)) == [b"1", b"3", b"5"]


def test_what_pops_have_stored_is_not_read_again_to_learn_when_it_is_due(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unread(*_: object) -> None:
        raise AssertionError("the record was read")

    send(broker, *(b"%d" % number for number in range(4)))
    timers = broker.core.timers
    monkeypatch.setattr(broker.store, "plain_properties", unread)
    given = pop(broker, maxMsgNums=2) + pop(broker, maxMsgNums=2, invisibleTime=90_000)
    ack_all(broker, given[1:])
    told, count = list(timers._waiting), timers.waiting_count
    assert count == len(told) == 5
    monkeypatch.undo()
    timers.log_cut()
    timers.deliver()
    assert list(timers._waiting) == told, "the log says the same"


def test_what_a_cut_takes_is_not_remembered(broker: Broker) -> None:
    send(broker, b"a")
    end, timers = broker.store.max_phy_offset, broker.core.timers
    channel = FakeChannel()
    broker.core.processor.received(channel, [pop_command()])
    assert channel.one().code == 0 and len(timers._new_entries) == 1
    broker.store.truncate(end)
    assert not timers._new_entries


def test_a_pop_of_several_that_cannot_be_stored_is_refused_alone(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(messages: Sequence[NewMessage]) -> None:
        if any(b"TooLarge" in bytes(message.body) for message in messages):
            raise UsageError("it is too large")

    monkeypatch.setattr(broker.store, "check", check)
    send(broker, b"a", b"b")
    channel, one = FakeChannel(), pop_command(maxMsgNums=1)
    broker.core.processor.received(channel, [one, pop_command(group="TooLarge", maxMsgNums=1), one])
    refused, *replies = channel.take()
    assert refused.code == ResponseCode.SYSTEM_ERROR and refused.remark and "cannot be stored" in refused.remark
    assert [bodies(messages(reply)) for reply in replies] == [[b"a"], [b"b"]]


def test_pops_of_one_read_go_over_the_end_of_a_log_file(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker(mapped_file_size_commit_log=8192, max_message_size=4000).start()
    send(broker, *(b"%d" % number for number in range(40)))
    channel, given = FakeChannel(), list[Popped]()
    for _ in range(5):
        broker.core.processor.received(channel, [pop_command(maxMsgNums=1) for _ in range(8)])
        given += [found for reply in channel.take() for found in messages(reply)]
        broker.core.processor.received(channel, [ack_command(found) for found in given[-8::2]])
        assert [reply.code for reply in channel.take()] == [0] * 4
    assert [int(found.body) for found in given] == list(range(40))
    later(broker, INVISIBLE_MS + 5000)
    assert sorted(map(int, bodies(pop(broker)))) == list(range(1, 40, 2))


def test_a_pop_whose_checkpoint_is_late_is_an_error_and_its_messages_come_after_their_time(pair: Broker) -> None:
    channel = FakeChannel()
    pair.core.processor.received(channel, [_sent(b"a")])
    ack(pair)
    channel.take()
    pair.core.processor.received(channel, [pop_command(invisibleTime=2500)])
    pair.run(1100)
    reply = channel.one()
    assert reply.code == ResponseCode.FLUSH_SLAVE_TIMEOUT and not reply.body
    pair.core.processor.received(channel, [pop_command()])
    pair.run()
    assert channel.one().code == ResponseCode.POLLING_TIMEOUT
    for _ in range(12):
        ack(pair)
        pair.run(500)
    ack(pair)
    pair.core.processor.received(channel, [pop_command()])
    ack(pair)
    assert bodies(messages(channel.one(), broker_name=pair.config.broker_name)) == [b"a"]


def _sent(body: bytes) -> Command:
    from tests.broker.support import send_command

    return send_command("T", 0, body, d="1")


def test_a_new_master_whose_offsets_are_behind_gives_nothing_again(make_broker: Callable[..., Broker]) -> None:
    """It was killed: consumer offsets reach the disk each five seconds."""
    broker = make_broker().start()
    send(broker, b"a", b"b")
    broker.core.save()
    given = pop(broker)
    ack_all(broker, given[:1])
    broker.store.close()  # tables are not written
    broker.open = False
    assert not (broker.directory / "config/consumerOffset.json").exists()
    broker = make_broker().start()
    assert pop(broker) == []
    later(broker, INVISIBLE_MS + 6000)
    assert bodies(pop(broker)) == [b"b"]


def test_what_has_come_again_does_not_come_once_more_under_the_next_owner(make_broker: Callable[..., Broker]) -> None:
    """It was stopped before it had committed that the revive queue is worked off so far."""
    broker = make_broker().start()
    send(broker, b"a", b"b", b"c")
    given = pop(broker)
    ack_all(broker, given[:1])
    retry, queue_id = "%RETRY%G_T", given[0].receipt.revive_queue_id
    for _ in range(200):
        if broker.store.queue_range(retry, 0)[1]:
            break
        broker.run(100)
    assert broker.core.offsets.query(REVIVE_GROUP, REVIVE, queue_id) is None
    broker.close()
    broker = make_broker().start()
    later(broker, INVISIBLE_MS + 6000)
    assert broker.store.queue_range(retry, 0)[1] == 2
    assert bodies(pop(broker)) == [b"b", b"c"]


def test_a_stop_in_order_keeps_what_is_in_flight(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker().start()
    send(broker, b"a", b"b")
    ack_all(broker, pop(broker)[:1])
    broker.close()
    broker = make_broker().start()
    assert pop(broker) == []
    later(broker, INVISIBLE_MS + 6000)
    assert bodies(pop(broker)) == [b"b"]


def test_a_broker_works_for_pops_only_if_somebody_has_popped(make_broker: Callable[..., Broker]) -> None:
    """The revive topic, which is always there, says nothing of it."""
    broker = make_broker().start()
    send(broker, b"a")
    later(broker, 2000)
    assert broker.core.topics.get(REVIVE) is not None
    told = [broker.core.pops.is_stepping]
    pop(broker)
    told.append(broker.core.pops.is_stepping)
    later(broker, 2000)
    broker.close()
    told.append(make_broker().start().core.pops.is_stepping)
    assert told == [False, True, True], "the offsets tell the next one"


def test_what_a_master_popped_before_it_was_killed_comes_again_though_nobody_pops(
    make_broker: Callable[..., Broker],
) -> None:
    """The offsets, which tell that it has popped, were not written: the log tells it when the time has come."""
    broker = make_broker().start()
    send(broker, b"a")
    pop(broker)
    broker.store.close()
    broker.open = False
    broker = make_broker().start()
    assert not broker.core.pops.is_stepping
    later(broker, INVISIBLE_MS + 5000)
    assert broker.core.pops.revive.revived_count == 1


def test_a_broker_that_sleeps_is_woken_by_the_first_checkpoint(make_broker: Callable[..., Broker]) -> None:
    """Nothing but its timers moved it before."""
    broker = make_broker().start()
    woken = broker.shell.woken["schedule"]
    broker.core.dispatched([("T", 0), ("rmq_sys_REVIVE_LOG_other", 1)])
    assert broker.shell.woken["schedule"] == woken
    broker.core.dispatched([("T", 0), (REVIVE, 7)])
    assert broker.shell.woken["schedule"] == woken + 1


def test_the_offset_of_the_revive_group_is_that_of_the_last_entry_that_is_worked_off(broker: Broker) -> None:
    send(broker, b"a")
    given = pop(broker)
    queue_id = given[0].receipt.revive_queue_id
    ack_all(broker, given)
    later(broker, INVISIBLE_MS + 5000)
    broker.store.sync()
    later(broker, 1000)
    assert broker.core.offsets.query(REVIVE_GROUP, REVIVE, queue_id) == 1
    assert broker.core.pops.revive.in_flight() == {}


def test_a_reset_moves_pops_too(broker: Broker) -> None:
    send(broker, b"a", b"b")
    ack_all(broker, pop(broker))
    broker.core.offsets.reset("G", "T", 0, 1)
    assert bodies(pop(broker)) == [b"b"]


def test_a_checkpoint_is_read_as_rocketmq_writes_it() -> None:
    text = (
        '{"bm":0,"bn":"b","c":"g","d":[0,2],"it":60000,"n":2,"pt":1700000000000,"q":3,"reviveTime":1700000060000,'
        '"ro":0,"rp":"1","so":7,"t":"T"}'
    )
    found = CheckPoint.from_json(json.loads(text), "own")
    assert found.queue_offsets == (7, 9) and found.put_times == 1 and found.due_ms == 1700000060000
    assert json.dumps(found.to_json(), separators=(",", ":")) == text
