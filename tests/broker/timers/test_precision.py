"""Another `timerPrecisionMs` while messages wait: none comes early, none late, none twice, and the change is told."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqha.broker.tables.config_table import DataVersion
from rmqha.broker.timers import timer_check
from rmqha.broker.timers.message import ROLL_WINDOW_MS, STEP_MS, due, from_timer, plain_due, timed_message, to_timer
from rmqha.host.read_disk import HostReadDisk
from rmqha.inspect.timer_inspection import inspect_timers
from rmqha.model.message import decode_properties, encode_properties
from rmqha.store.log.record import Record
from rmqha.store.timer import timer_wheel, timer_width
from rmqha.store.timer.timer_log import DELETES
from rmqha.store.timer.timer_wheel import SLOT_BYTES, SLOT_COUNT, WHEEL_BYTES, WheelSlot
from rmqha.store.timer.timer_width import TimerWidths, wheel_width
from tests.broker.support import Broker
from tests.broker.timers.test_hand_over import KEYS, logged, theirs
from tests.broker.timers.test_recall import recall
from tests.broker.timers.test_service import TIMER_TOPIC, bodies, now_ms, records, timed
from tests.store.damage.damaged import fsck
from tests.store.support import message

NOW_MS = 1_800_000_000_000
HOST = (b"\x7f\0\0\1", 1)
PRECISIONS_MS = st.sampled_from([10, 100, 200, 300, 500, 999, 1000, 60_000])
OFFSETS = st.integers(0, 2**40)


def stored(properties: bytes, stored_ms: int) -> Record:
    place = {"queue_id": 0, "queue_offset": 0, "phy_offset": 0, "size_bytes": 0}
    rest = {"version": 1, "body_crc": 0, "flag": 0, "sys_flag": 0, "reconsume_times": 0}
    times = {"born_at_ms": stored_ms, "store_timestamp_ms": stored_ms, "prepared_transaction_offset": 0}
    whose = {"born_host": HOST, "store_host": HOST, "body": memoryview(b"x"), "topic": TIMER_TOPIC}
    return Record(**place, **rest, **times, **whose, properties=properties)  # type: ignore[arg-type]


@given(PRECISIONS_MS, st.integers(1, 3 * ROLL_WINDOW_MS), st.integers(0, 999), st.integers(0, 40), st.booleans())
def test_whatever_it_was_stored_with_it_comes_at_its_time(
    precision_ms: int, delay_ms: int, fraction_ms: int, lag_ms: int, is_delay: bool
) -> None:
    """And within the widest slot of RocketMQ's that begins with it: what its brokers are told of goes by that. A
    message that waits in several rounds keeps its time."""
    asked_ms = NOW_MS + fraction_ms
    at_ms, stored_ms = asked_ms + delay_ms, asked_ms + lag_ms
    name, value = ("TIMER_DELAY_MS", delay_ms) if is_delay else ("TIMER_DELIVER_MS", at_ms)
    given_properties = encode_properties({"UNIQ_KEY": "K", name: str(value)})
    waiting = to_timer(message(topic="T", properties=given_properties), at_ms, precision_ms)
    wheel_ms = int(decode_properties(waiting.properties)["TIMER_OUT_MS"])
    record = stored(waiting.properties, stored_ms)
    while True:
        when = due(record)
        assert when is not None and plain_due(record.store_timestamp_ms, record.properties) == (when, b"T")
        again = from_timer(record, when.slot_ms + STEP_MS, HOST)
        assert again is not None
        if not when.is_rolled:
            break
        assert again.topic == TIMER_TOPIC
        record = stored(again.properties, when.slot_ms + STEP_MS + lag_ms)
    assert not when.is_rolled and wheel_ms // 1000 == when.slot_ms // 1000
    assert at_ms <= when.slot_ms + STEP_MS <= at_ms + lag_ms + STEP_MS
    assert again.topic == "T" and "rmqhaDueMs" not in decode_properties(again.properties)


@given(PRECISIONS_MS, st.integers(1, 3 * ROLL_WINDOW_MS), st.integers(0, 5000), st.text("TIMER_DELAY_MS@", max_size=40))
def test_who_makes_a_message_that_waits_knows_when_it_comes(
    precision_ms: int, delay_ms: int, lag_ms: int, key: str
) -> None:
    at_ms = NOW_MS + delay_ms
    pairs = f"TAGS\x01ck\x02TIMER_DELIVER_MS\x01{at_ms}\x02UNIQ_KEY\x01{key}\x02"
    made = timed_message("T", 3, b"x", pairs, NOW_MS, HOST, at_ms, precision_ms)
    plain = message(topic="T", queue_id=3, properties=pairs.encode())
    assert made.properties == to_timer(plain, at_ms, precision_ms).properties
    assert (made.due(NOW_MS + lag_ms), b"T") == plain_due(NOW_MS + lag_ms, made.properties)


@given(PRECISIONS_MS, st.integers(NOW_MS, NOW_MS + 10_000))
def test_what_does_not_tell_its_time_comes_when_the_widest_slot_is_over_that_it_may_be_in(
    precision_ms: int, at_ms: int
) -> None:
    waiting = to_timer(message(topic="T", properties=b"A\x01b\x02"), at_ms, precision_ms)
    when = due(stored(waiting.properties, NOW_MS))
    assert when is not None and at_ms <= when.slot_ms + STEP_MS <= (at_ms - 1) // 1000 * 1000 + 1000


# --- a restart --------------------------------------------------------------------------------------------------------
def restarted(make_broker: Callable[..., Broker], old: Broker, precision_ms: int, *, is_killed: bool = False) -> Broker:
    if is_killed:
        old.store.sync()
        old.core.save()
        old.store.abandon()
        old.open = False
    elif old.open:
        old.close()
    found = make_broker(timer_precision_ms=precision_ms, recall_message_enable=True, **KEYS)
    found.clock.ms = old.clock.ms
    return found.start()


def with_three(make_broker: Callable[..., Broker], precision_ms: int) -> tuple[Broker, int]:
    """Messages that were sent at the begin of a second, to come 1, 450 and 999 ms into the third one after it."""
    broker = make_broker(timer_precision_ms=precision_ms, recall_message_enable=True, **KEYS).start()
    broker.run(1000 - now_ms(broker) % 1000)
    begin_ms = now_ms(broker)
    for ahead_ms in (999, 1, 450):
        broker.ask(timed(b"%d" % ahead_ms, UNIQ_KEY=f"K{ahead_ms}", TIMER_DELAY_MS=3000 + ahead_ms))
    return broker, begin_ms + 3000


@pytest.mark.parametrize("is_killed", [False, True], ids=["stopped", "killed"])
@pytest.mark.parametrize(("before_ms", "after_ms"), [(1000, 100), (100, 1000), (500, 200), (60_000, 10)])
def test_each_comes_at_its_time_after_a_restart_with_another_precision(
    make_broker: Callable[..., Broker], before_ms: int, after_ms: int, is_killed: bool
) -> None:
    broker, second_ms = with_three(make_broker, before_ms)
    broker.run(1000)
    broker = restarted(make_broker, broker, after_ms, is_killed=is_killed)
    came: dict[bytes, int] = {}
    broker.run(second_ms - now_ms(broker) - 1)
    for _ in range(1100):
        broker.run(1)
        for body in bodies(broker):
            came.setdefault(body, now_ms(broker) - second_ms)
    assert bodies(broker) == [b"1", b"450", b"999"]
    assert all(0 <= late - int(body) <= 1 + STEP_MS for body, late in came.items()), came


@pytest.mark.parametrize("precisions_ms", [(1000, 100), (100, 1000)])
def test_what_is_taken_back_under_another_precision_does_not_come(
    make_broker: Callable[..., Broker], precisions_ms: tuple[int, int]
) -> None:
    """Before the change or behind it, and if the store goes to RocketMQ's broker both are in one slot of its wheel."""
    before_ms, after_ms = precisions_ms
    broker, second_ms = with_three(make_broker, before_ms)
    handles = [
        broker.ask(timed(b"%d" % number, UNIQ_KEY=f"R{number}", TIMER_DELIVER_MS=second_ms + 777)).ext
        for number in (1, 2)
    ]
    assert broker.ask(recall(handles[0]["recallHandle"])).code == 0
    broker = restarted(make_broker, broker, after_ms)
    assert broker.ask(recall(handles[1]["recallHandle"])).code == 0
    broker.run()
    broker.close()
    found = logged(broker.directory)
    recalls = [unit for unit in found if unit.flags & DELETES]
    place = {item.phy_offset: decode_properties(item.properties) for item in records(broker, TIMER_TOPIC)}
    keys = {place[unit.phy_offset]["UNIQ_KEY"]: unit.slot_ms // after_ms for unit in found if not unit.flags & DELETES}
    assert len(recalls) == 2
    for unit in recalls:
        assert keys[place[unit.phy_offset]["TIMER_DEL_UNIQKEY"]] == unit.slot_ms // after_ms
    broker = restarted(make_broker, broker, after_ms)
    broker.run(second_ms - now_ms(broker))
    broker.run(2000)
    assert bodies(broker) == [b"1", b"450", b"999"]


def test_the_change_is_told_until_all_have_come(make_broker: Callable[..., Broker]) -> None:
    broker, second_ms = with_three(make_broker, 1000)
    broker = restarted(make_broker, broker, 1000)
    assert not broker.tracer.named("timer_precision_changed")
    broker = restarted(make_broker, broker, 150)
    (event,) = broker.tracer.named("timer_precision_changed")
    assert (event["before_ms"], event["now_ms"], event["before_offset"]) == (1000, 100, 3)
    broker = restarted(make_broker, broker, 100, is_killed=True)
    broker.close()
    sentence = (
        "messages that wait below entry 3 of the timer queue were stored with timerPrecisionMs=1000, now it is 100"
    )
    (note,) = [item for item in fsck(broker.directory).findings if item.path == timer_check.PATH]
    assert note.at == timer_width.NOTE_AT and sentence in note.sentence
    inspection = inspect_timers(HostReadDisk(broker.directory))
    assert inspection is not None and inspection.change == f"config/timercheck at byte {note.at}: {sentence}"
    assert fsck(broker.directory).faults == []
    broker = restarted(make_broker, broker, 100)
    broker.run(second_ms + 5000 - now_ms(broker))
    broker.run(120_000)
    broker.ask(timed(TIMER_DELAY_MS=1))
    broker.run(120_000)
    broker.close()
    assert [item for item in fsck(broker.directory).findings if item.path == timer_check.PATH] == []


def test_the_precision_is_known_of_what_waits_though_nothing_has_come_yet(make_broker: Callable[..., Broker]) -> None:
    broker, _ = with_three(make_broker, 1000)
    broker.run()
    broker = restarted(make_broker, broker, 100, is_killed=True)
    assert len(broker.tracer.named("timer_precision_changed")) == 1


def test_a_change_without_a_message_that_waits_is_not_told(make_broker: Callable[..., Broker]) -> None:
    broker, _ = with_three(make_broker, 1000)
    broker.run(60_000)
    broker.run(120_000)
    broker.ask(timed(TIMER_DELAY_MS=1))
    broker.run(120_000)
    assert broker.core.timers.waiting_count == 0
    broker = restarted(make_broker, broker, 100)
    assert not broker.tracer.named("timer_precision_changed")


def wheel_of(slots: dict[int, int]) -> bytes:
    """A wheel with a slot at each time (ms), of the width beside it."""
    data = bytearray(WHEEL_BYTES)
    for time_ms, width_ms in slots.items():
        slot = WheelSlot(time_ms // width_ms, 0, 0, 1)
        data[slot.byte : slot.byte + SLOT_BYTES] = slot.encode()
    return bytes(data)


def test_the_precision_of_rocketmqs_broker_is_known_by_its_wheel(make_broker: Callable[..., Broker]) -> None:
    broker, second_ms = with_three(make_broker, 1000)
    broker.close()
    for path in (broker.directory / "timerlog").iterdir():
        path.unlink()
    (broker.directory / "timerlog").rmdir()
    wheel = wheel_of({second_ms + number * 500: 500 for number in range(4)})
    theirs(broker.directory, second_ms - 2000, 0, b"", wheel)
    broker = restarted(make_broker, broker, 1000)
    (event,) = broker.tracer.named("timer_precision_changed")
    assert (event["before_ms"], event["now_ms"], event["before_offset"]) == (500, 1000, 3)
    broker.run(second_ms - now_ms(broker))
    broker.run(1000)
    assert bodies(broker) == [b"1", b"450", b"999"]


# --- the note and the wheel -------------------------------------------------------------------------------------------
@given(st.integers(1, 2**31 - 1), st.integers(0, 2**31 - 1), OFFSETS)
def test_the_note_stands_behind_what_others_read_and_change(width_ms: int, before_ms: int, end: int) -> None:
    widths, progress = TimerWidths(width_ms, before_ms, end), timer_check.TimerProgress(5000, 9, 20, 8)
    version = DataVersion()
    plain, noted = (timer_check.encode_file(progress, version, None, item) for item in (None, widths))
    assert plain[: timer_width.NOTE_AT] == noted[: timer_width.NOTE_AT] and len(plain) == len(noted) == 4096
    assert timer_width.decode(noted) == widths and timer_width.decode(plain) is None
    assert timer_check.decode(noted) == progress
    assert timer_width.decode(struct.pack(">7q", *range(7)) + noted[56:]) == widths
    for at in range(timer_width.NOTE_AT, timer_width.NOTE_AT + 32):
        assert timer_width.decode(noted[:at] + bytes([noted[at] ^ 1]) + noted[at + 1 :]) is None


def test_changes_of_the_width() -> None:
    first = TimerWidths(1000)
    assert first.changed(1000, 0, 9) == first.changed(100, 9, 9)._replace(width_ms=1000) == first
    changed = first.changed(100, 4, 9)
    assert changed == (100, 1000, 9) and changed.sentence and not first.sentence
    assert changed.settled(8) == changed and changed.settled(9) == (100, 0, 0)
    assert changed.changed(1000, 4, 12) == (1000, 100, 12)


@pytest.mark.parametrize("width_ms", [100, 200, 500, 1000])
def test_a_wheel_tells_its_width(width_ms: int) -> None:
    read_ms = NOW_MS
    data = wheel_of({read_ms + number * 1000: width_ms for number in range(-5, 5)})
    assert wheel_width(timer_wheel.slots(data), read_ms) == (width_ms, None)
    assert wheel_width(timer_wheel.slots(data), 0) is None and wheel_width((), read_ms) is None


def test_a_wheel_of_two_widths_is_a_finding_with_its_place(make_broker: Callable[..., Broker]) -> None:
    broker, second_ms = with_three(make_broker, 1000)
    broker.close()
    times = {second_ms + number * 1000: 1000 for number in range(5)}
    for late_ms, is_found in ((-60_000, False), (30_000, True)):
        other_ms = second_ms + late_ms
        (broker.directory / "timerwheel").write_bytes(wheel_of(times | {other_ms: 100}))
        faults = fsck(broker.directory).faults
        assert bool(faults) == is_found
        for fault in faults:
            assert fault.at == other_ms // 100 % SLOT_COUNT * SLOT_BYTES
            assert "expected slots of 1000 ms, as most are, found one of 100 ms" in fault.sentence
    (broker.directory / "timerwheel").write_bytes(wheel_of(dict.fromkeys(times, 200)))
    report = fsck(broker.directory)
    (note,) = [item for item in report.findings if item.path == "timerwheel"]
    assert (
        report.faults == [] and "its slots have 200 ms, what ours stored before has slots of 1000 ms" in note.sentence
    )
