"""Timer messages: when they are delivered, to whom, and what a failover, a lost ack, a clock and a cut do to them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmqha.broker.timers.message import STEP_MS
from rmqha.broker.timers.service import IDLE_MS, LEAST_PAUSE_MS, MAX_DELIVERY_COUNT
from rmqha.broker.timers.timer_check import TimerProgress
from rmqha.ha.action import AckStatus
from rmqha.model.code import ResponseCode
from rmqha.model.error import DamagedError
from rmqha.model.message import decode_properties, encode_properties
from rmqha.model.offset import PhyOffset
from rmqha.store.log.record import Record, decode
from rmqha.wire.command import Command
from tests.broker.support import Broker, FakeChannel, ack, send_command

TIMER_TOPIC = "rmq_sys_wheel_timer"


def timed(body: bytes = b"x", queue_id: int = 0, **properties: Any) -> Command:
    given = {"UNIQ_KEY": "ID", **{name: str(value) for name, value in properties.items()}}
    return send_command("T", queue_id, body, i=encode_properties(given).decode())


def records(broker: Broker, topic: str = "T", queue_id: int = 0) -> list[Record]:
    return [decode(item) for item in broker.store.pull(topic, queue_id, 0, 1000, 1 << 20).records]


def bodies(broker: Broker, topic: str = "T", queue_id: int = 0) -> list[bytes]:
    return [bytes(record.body) for record in records(broker, topic, queue_id)]


def now_ms(broker: Broker) -> int:
    return broker.clock.wall_ms()


# --- when and where to ------------------------------------------------------------------------------------------------
def test_it_comes_at_its_time_and_not_before(broker: Broker) -> None:
    at_ms = now_ms(broker) // 1000 * 1000 + 5_300
    reply = broker.ask(timed(b"late", 2, TIMER_DELIVER_MS=at_ms, TAGS="a"))
    assert reply.code == 0 and reply.ext["queueId"] == "2" and reply.ext["transactionId"] == "ID"
    broker.run(at_ms - now_ms(broker) - 1)
    assert bodies(broker, queue_id=2) == []
    broker.run(1)
    (record,) = records(broker, queue_id=2)
    found = decode_properties(record.properties)
    assert bytes(record.body) == b"late" and (found["TAGS"], found["REAL_TOPIC"], found["REAL_QID"]) == ("a", "T", "2")
    assert at_ms == record.store_timestamp_ms == int(found["TIMER_DEQUEUE_MS"])
    for _ in range(5):
        broker.run(60_000)
    assert len(bodies(broker, queue_id=2)) == 1 and broker.core.timers.waiting_count == 0


def test_each_at_its_own_time_and_equals_in_the_order_of_arrival(broker: Broker) -> None:
    for number, seconds in enumerate((9, 3, 6, 3, 9, 3)):
        broker.ask(timed(b"%d" % number, TIMER_DELAY_SEC=seconds))
    arrived = []
    for _ in range(12):
        broker.run(1000)
        arrived.append(len(bodies(broker)))
    assert bodies(broker) == [b"1", b"3", b"5", b"2", b"0", b"4"]
    assert sorted(set(arrived)) == [0, 3, 4, 6]


def test_each_of_a_second_comes_at_its_own_time(broker: Broker) -> None:
    """By the wheel they would come together, at the end of the second."""
    at_ms = now_ms(broker) // 1000 * 1000 + 3000
    for ahead_ms in (900, 2, 501, 502, 1000):
        broker.ask(timed(b"%d" % ahead_ms, TIMER_DELIVER_MS=at_ms + ahead_ms))
    broker.run(at_ms - now_ms(broker))
    for _ in range(1000):
        broker.run(1)
    late_ms = [record.store_timestamp_ms - at_ms - int(bytes(record.body)) for record in records(broker)]
    assert bodies(broker) == [b"2", b"501", b"502", b"900", b"1000"]
    assert all(0 <= late < STEP_MS for late in late_ms)


def test_the_pause_ends_when_the_next_one_is_due(broker: Broker) -> None:
    timers, at_ms = broker.core.timers, now_ms(broker) // 1000 * 1000 + 60_000
    assert timers.pause_ms() == IDLE_MS
    broker.ask(timed(TIMER_DELIVER_MS=at_ms))
    pauses_ms = []
    while not bodies(broker):
        pause_ms = broker.core.pause_ms()
        pauses_ms.append(pause_ms)
        broker.run(pause_ms)
    assert now_ms(broker) == at_ms and all(LEAST_PAUSE_MS <= pause_ms <= IDLE_MS for pause_ms in pauses_ms)
    assert len(pauses_ms) <= 63, "about one a second"
    assert timers.pause_ms() == IDLE_MS


def test_an_entry_that_comes_ends_the_pause(broker: Broker) -> None:
    broker.run()
    woken = broker.shell.woken["schedule"]
    broker.core.processor.received(FakeChannel(), [timed(TIMER_DELAY_MS=300)])
    broker.core.driver.dispatch()
    assert broker.shell.woken["schedule"] > woken


def test_what_is_due_already_comes_at_once(broker: Broker) -> None:
    known: list[dict[str, Any]] = [{"TIMER_DELIVER_MS": 5}, {"TIMER_DELAY_MS": 0}, {"TIMER_DELAY_MS": -7}]
    for properties in known:
        assert broker.ask(timed(**properties)).code == 0
    assert len(bodies(broker)) == 3 and bodies(broker, TIMER_TOPIC) == []


def test_what_has_waited_does_not_wait_again(broker: Broker) -> None:
    """A consumer that sends a message back sends its properties too."""
    assert broker.ask(timed(TIMER_DELAY_MS=5000, TIMER_OUT_MS=1)).code == 0
    assert bodies(broker) == [b"x"]


@pytest.mark.parametrize(
    "properties",
    [{"TIMER_DELAY_SEC": 259_201}, {"TIMER_DELAY_MS": "soon"}, {"TIMER_DELIVER_MS": ""}, {"TIMER_DELAY_SEC": "9" * 18}],
)
def test_a_time_that_cannot_be_is_refused(broker: Broker, properties: dict[str, Any]) -> None:
    reply = broker.ask(timed(**properties))
    assert reply.code == ResponseCode.MESSAGE_ILLEGAL and reply.remark
    assert broker.store.max_phy_offset == 0


def test_a_batch_and_the_half_of_a_transaction_cannot_wait(broker: Broker) -> None:
    batch = send_command(m="true", i="TIMER_DELAY_MS\x013\x02", body=b"")
    half = timed(TIMER_DELAY_MS=5000, TRAN_MSG="true", PGROUP="p")
    assert [broker.ask(item).code for item in (batch, half)] == [ResponseCode.MESSAGE_ILLEGAL] * 2


def test_switched_off(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker().start()
    broker.ask(timed(b"before", TIMER_DELAY_SEC=3))
    broker.core.live.update("timerWheelEnable=false")
    reply = broker.ask(timed(TIMER_DELAY_SEC=3))
    assert reply.code == ResponseCode.SYSTEM_ERROR and "timerWheelEnable" in (reply.remark or "")
    broker.run(4000)
    assert bodies(broker) == [b"before"]


def test_what_cannot_be_read_when_it_comes_is_waited_for(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    def rotten(*_: object) -> Record:
        raise DamagedError("planted")

    with monkeypatch.context() as patch:
        patch.setattr(broker.store, "plain_properties", lambda *_: None)
        patch.setattr(broker.store, "sound_record", rotten)
        broker.ask(timed(b"rots for a while", TIMER_DELAY_SEC=3))
        broker.run(1000)
        assert broker.core.timers.unread_count == 1
    broker.run(4000)
    assert bodies(broker) == [b"rots for a while"]


def test_many_at_once(broker: Broker) -> None:
    count = 2 * MAX_DELIVERY_COUNT + 3
    for number in range(count):
        broker.ask(timed(b"%d" % number, TIMER_DELAY_SEC=2))
    for _ in range(6):
        broker.run(1000)
    assert bodies(broker) == [b"%d" % number for number in range(count)]


def test_one_may_be_taken_back(broker: Broker) -> None:
    at_ms = now_ms(broker) + 10_000
    for key in ("A", "B"):
        broker.ask(timed(key.encode(), UNIQ_KEY=key, TIMER_DELIVER_MS=at_ms))
    assert broker.ask(timed(b"0", UNIQ_KEY="C", TIMER_DELIVER_MS=at_ms, TIMER_DEL_UNIQKEY="A")).code == 0
    late = timed(b"0", UNIQ_KEY="D", TIMER_DELIVER_MS=now_ms(broker), TIMER_DEL_UNIQKEY="B")
    assert broker.ask(late).code == ResponseCode.MESSAGE_ILLEGAL
    broker.run(11_000)
    assert bodies(broker) == [b"B"]


def test_one_that_waits_for_long_waits_in_two_rounds(broker: Broker) -> None:
    day_ms = 86_400_000
    at_ms = now_ms(broker) + 5 * day_ms // 2
    broker.ask(timed(b"x", TIMER_DELIVER_MS=at_ms))
    for _ in range(5):
        broker.run(day_ms // 2 - 1000)
        assert bodies(broker) == []
    assert len(bodies(broker, TIMER_TOPIC)) == 2
    broker.run(7000)
    broker.run()
    (record,) = records(broker)
    assert decode_properties(record.properties)["TIMER_ROLL_TIMES"] == "1" and record.store_timestamp_ms >= at_ms


def test_a_clock_that_was_put_back_brings_nothing_early(broker: Broker) -> None:
    broker.ask(timed(b"first", TIMER_DELAY_SEC=3600))
    broker.run(3_602_000)
    assert bodies(broker) == [b"first"]
    broker.clock.ms -= 3_000_000
    at_ms = now_ms(broker) + 600_000
    broker.ask(timed(b"second", TIMER_DELIVER_MS=at_ms))
    broker.run(599_000)
    assert bodies(broker) == [b"first"], "its time lies before what has been worked off, and has not come"
    broker.run(2_000)
    assert bodies(broker) == [b"first", b"second"] and records(broker)[1].store_timestamp_ms >= at_ms


# --- what must not be lost --------------------------------------------------------------------------------------------
def test_progress_moves_on_when_the_group_has_the_copy(pair: Broker) -> None:
    channel = FakeChannel()
    pair.core.processor.received(channel, [timed(TIMER_DELAY_SEC=2)])
    pair.run()
    assert channel.take() == []
    ack(pair)
    assert channel.one().code == 0
    pair.run(4000)
    end, timers = pair.store.max_phy_offset, pair.core.timers
    assert timers.delivered_count == 1 and pair.core.delay_offsets.timer.read_ms == 0
    for _ in range(5):
        pair.run(1000)  # each wait ends with FLUSH_SLAVE_TIMEOUT: no second copy
    assert pair.store.max_phy_offset == end and bodies(pair) == []
    ack(pair)
    assert pair.core.delay_offsets.timer.read_ms > 0 and bodies(pair) == [b"x"]


def test_an_abandoned_delivery_is_done_again(pair: Broker) -> None:
    pair.core.processor.received(FakeChannel(), [timed(TIMER_DELAY_SEC=2)])
    pair.run()
    ack(pair)
    pair.run(4000)
    pair.core.timers.role_changed()
    pair.run()
    assert pair.core.timers.delivered_count == 1, "what the log holds behind the group's end may take it back"
    ack(pair)
    pair.run()
    assert pair.core.timers.delivered_count == 2, "its copy may be cut, so it is stored again"


def test_a_restart_goes_on_within_a_slot(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker().start()
    count = MAX_DELIVERY_COUNT + 10
    for number in range(count):
        broker.ask(timed(b"%d" % number, TIMER_DELAY_SEC=2))
    broker.ask(timed(b"later", TIMER_DELAY_SEC=60))
    broker.run(4000)
    assert len(bodies(broker)) == MAX_DELIVERY_COUNT
    broker.close()
    again = make_broker().start()
    again.clock.ms = broker.clock.ms
    for _ in range(4):
        again.run(1)
    assert bodies(again) == [b"%d" % number for number in range(count)]
    again.run(60_000)
    assert bodies(again)[count:] == [b"later"]


def test_a_file_that_cannot_be_read_delivers_again_and_says_so(
    make_broker: Callable[..., Broker], tmp_path: Path
) -> None:
    broker = make_broker().start()
    broker.ask(timed(TIMER_DELAY_SEC=2))
    for _ in range(3):
        broker.run(2000)
    broker.core.save()
    broker.close()
    (path,) = tmp_path.rglob("timercheck")
    path.write_bytes(path.read_bytes()[:10])
    again = make_broker().start()
    again.clock.ms = broker.clock.ms
    for _ in range(3):
        again.run(1)
    assert bodies(again) == [b"x", b"x"]
    assert any("timercheck" in line for line in again.core.delay_offsets.findings)


def test_a_cut_takes_back_what_was_delivered_behind_it(broker: Broker) -> None:
    broker.ask(timed(TIMER_DELAY_SEC=2))
    end = broker.store.max_phy_offset
    for _ in range(3):
        broker.run(2000)
    assert bodies(broker) == [b"x"]
    broker.store.truncate(PhyOffset(end))
    assert bodies(broker) == [] and broker.core.timers.waiting_count == 1
    assert broker.core.delay_offsets.timer == TimerProgress()


def test_a_cut_of_what_waits_leaves_its_place_to_others(make_broker: Callable[..., Broker]) -> None:
    """Also where no older progress is known than one that counts the entry as delivered."""
    broker = make_broker().start()
    broker.ask(timed(b"kept", TIMER_DELAY_SEC=2))
    end = broker.store.max_phy_offset
    broker.ask(timed(b"cut", TIMER_DELAY_SEC=2))
    for _ in range(3):
        broker.run(2000)
    assert bodies(broker) == [b"kept", b"cut"]
    broker.core.save()
    broker.close()
    again = make_broker()
    again.store.truncate(PhyOffset(end))
    again.clock.ms = broker.clock.ms
    again.start()
    again.ask(timed(b"in its place", TIMER_DELIVER_MS=now_ms(again) + 3000))
    for _ in range(6):
        again.run(1000)
    assert bodies(again) == [b"in its place"], "the copies of the other had been acknowledged before they were cut"


def test_a_log_that_begins_anew_has_its_own_timers(make_broker: Callable[..., Broker]) -> None:
    """A first master that had replicated nothing copies the next one's log from 0 on."""
    broker, other = make_broker().start(), make_broker("other").start()
    for number in range(3):
        broker.ask(timed(b"%d" % number, TIMER_DELAY_SEC=60))
    other.ask(timed(b"theirs", TIMER_DELAY_SEC=2))
    broker.core.driver.role_notified(broker.controller.elect(2))
    broker.run(1000)
    store = broker.store
    store.restart_at(PhyOffset(0))
    assert store.append_raw(PhyOffset(0), other.store.view(PhyOffset(0), 1 << 20)) == ""
    store.set_confirm_offset(store.max_phy_offset)
    broker.run(0)
    assert broker.core.timers.waiting_count == 1
    broker.core.driver.role_notified(broker.controller.elect(1))
    for _ in range(4):
        broker.run(1000)
    assert bodies(broker) == [b"theirs"]


def test_half_a_record_at_a_new_masters_end_holds_up_nothing(broker: Broker) -> None:
    """It goes, and nobody sends."""
    broker.ask(timed(b"waits", TIMER_DELAY_SEC=5))
    end = broker.store.max_phy_offset
    broker.ask(send_command("T", body=b"z" * 500))
    half = bytes(broker.store.view(end, 100))
    broker.core.driver.role_notified(broker.controller.elect(2))
    broker.store.truncate(end)
    assert broker.store.append_raw(end, half) == ""
    for _ in range(3):
        broker.run(1000)
    broker.core.driver.role_notified(broker.controller.elect(1))
    for _ in range(5):
        broker.run(1000)
    assert bodies(broker) == [b"waits"]


def test_a_slave_follows_its_masters_progress(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker().start()
    for number, seconds in enumerate((2, 4, 60)):
        broker.ask(timed(b"%d" % number, TIMER_DELAY_SEC=seconds))
    broker.core.driver.stopping()
    controller = broker.controller
    controller.epoch, controller.master = 2, 2
    broker.ask(controller.notice())
    broker.run(1000)
    timers, table = broker.core.timers, broker.core.delay_offsets
    assert timers.waiting_count == 3
    slot_ms = timers._waiting.take(1 << 62, 1)[0].slot_ms
    timers.log_cut()
    told = {"dataVersion": {"counter": 9, "stateVersion": 2}, "offsetTable": {}, "timer": [slot_ms, 1, 3, 0]}
    table.replace({**told, "logEnd": 1 << 40})
    broker.run(10_000)
    assert timers.waiting_count == 3, "its log does not hold the copies"
    table.replace({**told, "logEnd": int(broker.store.max_phy_offset)})
    broker.run(10_000)
    assert timers.waiting_count == 2 and timers.delivered_count == 0 and bodies(broker) == []


def test_statuses(broker: Broker) -> None:
    broker.ask(timed(TIMER_DELAY_SEC=2))
    timers = broker.core.timers
    timers.finished(object(), AckStatus.OK)  # type: ignore[arg-type]
    assert timers.waiting_count == 1
