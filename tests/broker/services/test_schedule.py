"""Delayed messages: when they are delivered, to whom, and what a failover, a lost ack and a cut do to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rmqha.broker.services.schedule import MAX_DELIVERY_COUNT, from_schedule, to_schedule
from rmqha.ha.action import AckStatus
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.message import decode_properties, encode_properties
from rmqha.model.offset import PhyOffset
from rmqha.store.log.record import NewMessage, Record, decode
from rmqha.store.store import Store
from rmqha.wire import lenient_json
from rmqha.wire.command import Command
from tests.broker.support import Broker, FakeChannel, ack, pull_command, send_command
from tests.store.support import message

SCHEDULE = "SCHEDULE_TOPIC_XXXX"
HOST = (b"\x7f\0\0\1", 1)


def delayed(level: int | str, body: bytes = b"x", topic: str = "T", queue_id: int = 0, **more: str) -> Command:
    properties = encode_properties({"DELAY": str(level), "UNIQ_KEY": "ID", **more}).decode()
    return send_command(topic, queue_id, body, i=properties)


def records(broker: Broker, topic: str = "T", queue_id: int = 0) -> list[Record]:
    result = broker.store.pull(topic, queue_id, 0, 1000, 1 << 20)
    return [decode(record) for record in result.records]


def bodies(broker: Broker, topic: str = "T", queue_id: int = 0) -> list[bytes]:
    return [bytes(record.body) for record in records(broker, topic, queue_id)]


# --- the two forms of a message ---------------------------------------------------------------------------------------
def test_a_message_without_a_level_is_left_alone() -> None:
    for properties in (b"", b"DELAY\x010\x02", b"DELAY\x01-1\x02", b"A\x01b\x02"):
        item = message(properties=properties)
        assert to_schedule(item, 18) is item


@pytest.mark.parametrize(("asked", "level"), [("1", 1), ("18", 18), ("19", 18), ("999999", 18)])
def test_a_level_above_the_last_is_the_last(asked: str, level: int) -> None:
    waiting = to_schedule(message(topic="Real", queue_id=3, properties=b"DELAY\x01" + asked.encode() + b"\x02"), 18)
    assert (waiting.topic, waiting.queue_id) == (SCHEDULE, level - 1)
    assert decode_properties(waiting.properties) == {"DELAY": str(level), "REAL_TOPIC": "Real", "REAL_QID": "3"}


def test_a_client_cannot_say_where_a_message_goes_and_timers_give_way() -> None:
    given = {"REAL_TOPIC": "Other", "REAL_QID": "7", "DELAY": "2", "TIMER_DELAY_MS": "5", "__CRC32#": "0123456789"}
    waiting = to_schedule(message(topic="Real", properties=encode_properties(given)), 18)
    assert decode_properties(waiting.properties) == {"DELAY": "2", "REAL_TOPIC": "Real", "REAL_QID": "0"}


def golden_records(store: Store, topic: str) -> list[Record]:
    found = []
    for queue_id in store.queues()[topic]:
        result = store.pull(topic, queue_id, 0, 1000, 1 << 24)
        found += [decode(record) for record in result.records]
    return found


def comparable(item: Record | NewMessage) -> tuple[Any, ...]:
    properties = decode_properties(item.properties)
    return (item.topic, item.queue_id, bytes(item.body), properties, item.flag, item.sys_flag, item.reconsume_times)


def test_what_a_real_broker_stored_of_delayed_messages(golden: Store) -> None:
    """Each record that waited in the real broker's log gives the record that it delivered, and back."""
    waiting = golden_records(golden, SCHEDULE)
    delivered_to = [*golden_records(golden, "GoldDelay"), *golden_records(golden, "%RETRY%GID_goldretry")]
    arrived = {(record.topic, decode_properties(record.properties)["UNIQ_KEY"]): record for record in delivered_to}
    compared = 0
    for record in waiting:
        delivered = from_schedule(record, HOST)
        assert delivered is not None
        theirs = arrived.get((delivered.topic, decode_properties(record.properties)["UNIQ_KEY"]))
        if theirs is None:
            continue  # level 18 was not due when the capture ended
        assert comparable(delivered) == comparable(theirs)
        assert (delivered.born_at_ms, delivered.born_host) == (theirs.born_at_ms, theirs.born_host)
        assert comparable(to_schedule(delivered, 18)) == comparable(record)
        compared += 1
    assert compared == 13


# --- delivery ---------------------------------------------------------------------------------------------------------
def test_a_delayed_message_comes_when_its_time_has_come(broker: Broker) -> None:
    reply = broker.ask(delayed(1, b"late", queue_id=2, TAGS="a"))
    assert reply.code == 0 and reply.ext["queueId"] == "2" and reply.ext["transactionId"] == "ID"
    broker.ask(send_command(queue_id=2, body=b"now"))
    broker.run(999)
    assert bodies(broker, queue_id=2) == [b"now"]
    broker.run(1)
    now, late = records(broker, queue_id=2)
    assert (bytes(now.body), bytes(late.body)) == (b"now", b"late")
    found = decode_properties(late.properties)
    assert (found["DELAY"], found["REAL_TOPIC"], found["REAL_QID"], found["TAGS"]) == ("1", "T", "2", "a")
    assert late.store_host == (b"\x7f\0\0\1", 20911) and late.born_host == now.born_host
    broker.run(60_000)
    assert len(bodies(broker, queue_id=2)) == 2, "once"


def test_levels_do_not_wait_for_each_other(broker: Broker) -> None:
    broker.ask(delayed(2, b"5 s"))
    broker.ask(delayed(1, b"1 s"))
    broker.run(1000)
    assert bodies(broker) == [b"1 s"]
    broker.run(4000)
    assert bodies(broker) == [b"1 s", b"5 s"]


def test_own_levels(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker(message_delay_level="2s 1m").start()
    broker.ask(delayed(18, b"last"))
    broker.ask(delayed(1, b"first"))
    broker.run(2000)
    assert bodies(broker) == [b"first"]
    broker.run(58_000)
    assert bodies(broker) == [b"first", b"last"]


@pytest.mark.parametrize("has_delivered", [True, False])
def test_a_level_that_is_no_more_still_delivers(make_broker: Callable[..., Broker], *, has_delivered: bool) -> None:
    """Messages wait in its queue when messageDelayLevel gets shorter: at their time, as it was told."""
    broker = make_broker().start()
    if has_delivered:
        broker.ask(delayed(3, b"before"))
        broker.run(10_000)
    broker.ask(delayed(3, b"10 s"))
    broker.ask(delayed(18, b"2 h"))
    broker.close()
    broker = make_broker(message_delay_level="1s").start()
    broker.run(10_000 * has_delivered)  # its clock begins anew
    broker.ask(delayed(3, b"1 s now"))
    before = [b"before"] * has_delivered
    broker.run(2000)
    assert bodies(broker) == [*before, b"1 s now"]
    broker.run(10_000)
    assert bodies(broker) == [*before, b"1 s now", b"10 s"]
    broker.run(7_200_000)
    assert bodies(broker) == [*before, b"1 s now", b"10 s", b"2 h"]


def test_many_at_once(broker: Broker) -> None:
    count = 2 * MAX_DELIVERY_COUNT + 3
    for number in range(count):
        broker.ask(delayed(1, b"%d" % number))
    broker.run(1000)
    for _ in range(2):
        assert len(bodies(broker)) < count, "one look delivers one slice"
        broker.run()
    assert bodies(broker) == [b"%d" % number for number in range(count)], "in order"


def test_a_held_pull_gets_a_delayed_message(broker: Broker) -> None:
    broker.ask(send_command())
    broker.ask(delayed(1, b"late"))
    channel = FakeChannel()
    broker.core.processor.received(channel, [pull_command(offset=1, sysFlag="6")])
    broker.run(999)
    assert channel.take() == []
    broker.run(1)
    assert bytes(decode(memoryview(channel.one().body)).body) == b"late"


def test_a_clock_that_was_put_back_does_not_keep_messages_for_long(broker: Broker) -> None:
    broker.ask(delayed(3, b"x"))
    broker.clock.ms -= 1
    broker.run()
    assert bodies(broker) == [b"x"]


def test_bad_levels_and_batches(broker: Broker) -> None:
    for command in (delayed("x"), delayed("")):
        reply = broker.ask(command)
        expected = 0 if "DELAY\x01\x02" in command.ext["i"] else ResponseCode.MESSAGE_ILLEGAL
        assert reply.code == expected
    batch = send_command(m="true", i="DELAY\x013\x02", body=b"")
    assert broker.ask(batch).code == ResponseCode.MESSAGE_ILLEGAL


def test_a_level_voids_a_timer(broker: Broker) -> None:
    assert broker.ask(delayed(1, TIMER_DELAY_MS="5")).code == 0
    broker.run(1000)
    assert len(bodies(broker)) == 1


# --- what must not be lost --------------------------------------------------------------------------------------------
def test_the_offset_moves_on_when_the_group_has_the_copy(pair: Broker) -> None:
    channel = FakeChannel()
    pair.core.processor.received(channel, [delayed(1)])
    pair.run()
    assert channel.take() == []
    ack(pair)
    assert channel.one().code == 0
    pair.run(1000)
    end = pair.store.max_phy_offset
    assert pair.core.schedule.delivered_count == 1 and pair.core.delay_offsets.get(1) == 0
    for _ in range(5):
        pair.run(1000)  # each wait ends with FLUSH_SLAVE_TIMEOUT: no second copy
    assert pair.store.max_phy_offset == end and pair.core.delay_offsets.get(1) == 0 and bodies(pair) == []
    ack(pair)
    assert pair.core.delay_offsets.get(1) == 1 and bodies(pair) == [b"x"]


def test_a_slave_delivers_nothing_and_a_new_master_goes_on(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker().start()
    broker.ask(delayed(1, b"x"))
    broker.core.driver.stopping()
    controller = broker.controller
    controller.epoch, controller.master = 2, 2
    broker.ask(controller.notice())
    broker.run(5000)
    assert not broker.core.driver.is_serving and broker.core.schedule.delivered_count == 0
    broker.close()
    again = make_broker()
    again.controller.epoch = 3
    again.start()
    again.clock.ms = 60_000
    again.run()
    assert bodies(again) == [b"x"] and again.core.delay_offsets.get(1) == 1


def test_an_abandoned_delivery_is_done_again_by_the_next_master(pair: Broker) -> None:
    pair.core.processor.received(FakeChannel(), [delayed(1)])
    pair.run()
    ack(pair)
    pair.run(1000)
    assert pair.core.schedule.delivered_count == 1
    pair.core.schedule.role_changed()
    pair.run()
    assert pair.core.schedule.delivered_count == 2, "its copy may be cut, so it is stored again"


def test_a_late_answer_for_an_earlier_mastership_changes_nothing(broker: Broker) -> None:
    broker.ask(delayed(1))
    service, offsets = broker.core.schedule, broker.core.delay_offsets
    kept: list[Any] = []
    appended = broker.core.driver.appended
    broker.core.driver.appended = lambda end_offset, waiter: kept.append(waiter)  # type: ignore[method-assign]
    broker.run(1000)
    broker.core.driver.appended = appended  # type: ignore[method-assign]
    service.role_changed()
    (delivery,) = kept
    for status in AckStatus:
        delivery.finish(status)
    assert offsets.get(1) == 0


def test_records_that_say_nothing_are_passed_over(broker: Broker) -> None:
    """Once a replica has the same: else it is damage."""
    store, wall_ms, at = broker.store, broker.clock.wall_ms(), list[int]()
    for properties in (b"DELAY\x011\x02", b"DELAY\x011\x02REAL_TOPIC\x01T\x02REAL_QID\x01x\x02",
                       b"DELAY\x011\x02REAL_TOPIC\x01RMQ_SYS_TRANS_HALF_TOPIC\x02REAL_QID\x010\x02"):  # fmt: skip
        at.append(store.append(message(topic=SCHEDULE, properties=properties), wall_ms).phy_offset)
    broker.core.driver.appended(store.max_phy_offset, None)
    broker.ask(delayed(1, b"good"))
    broker.run(1000)
    for place in at[:2]:
        assert [record.phy_offset for record in store.damage.records][-1] == place
        assert bodies(broker) == [], "the level waits"
        store.damage.lacked(place, "it was written so", as_written=True)
        broker.run(100)
    assert bodies(broker) == [b"good"] and broker.core.delay_offsets.get(1) == 4
    assert broker.tracer.names().count("delayed_message_without_topic") == 3


def test_one_that_cannot_be_stored_does_not_stop_the_others(broker: Broker) -> None:
    bad = b"DELAY\x011\x02REAL_TOPIC\x01a b\x02REAL_QID\x010\x02"
    broker.ask(delayed(1, b"before"))
    broker.store.append(message(topic=SCHEDULE, properties=bad), broker.clock.wall_ms())
    broker.core.driver.appended(broker.store.max_phy_offset, None)
    broker.ask(delayed(1, b"behind"))
    broker.run(1000)
    assert bodies(broker) == [b"before", b"behind"]
    (told,) = [fields for name, fields in broker.tracer.events if name == "delayed_message_not_delivered"]
    assert told["topic"] == "a b"
    assert broker.core.delay_offsets.get(1) == 3


# --- the offsets ------------------------------------------------------------------------------------------------------
def test_a_cut_takes_the_offsets_back_and_a_start_looks_too(make_broker: Callable[..., Broker]) -> None:
    """Else what comes at those places later would count as delivered, and what was delivered in what is cut is lost."""
    broker = make_broker().start()
    for _ in range(2):
        broker.ask(delayed(1))
    start = broker.store.units(SCHEDULE, 0, 1, 1)[0][0]
    broker.run(1000)
    assert broker.core.delay_offsets.get(1) == 2
    broker.store.truncate(PhyOffset(start))
    assert broker.core.delay_offsets.get(1) == 0, "the copies are gone too"
    broker.core.delay_offsets.put(1, 5)
    broker.close()
    assert make_broker().core.delay_offsets.get(1) == 1


def test_slaves_and_operators_see_the_offsets(broker: Broker) -> None:
    broker.ask(delayed(1))
    broker.run(1000)
    reply = broker.ask(Command(RequestCode.GET_ALL_DELAY_OFFSET))
    assert b'"offsetTable":{1:1}' in bytes(reply.body)
    runtime = broker.ask(Command(RequestCode.GET_BROKER_RUNTIME_INFO))
    assert lenient_json.loads(runtime.body)["table"]["scheduleMessageOffset_1"] == "1,1"
