"""A store that RocketMQ's broker had, and that it gets back, while timer messages wait."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from rmqha.broker.timers import timer_check
from rmqha.broker.timers.message import ROLL_WINDOW_MS
from rmqha.broker.timers.timer_check import TimerProgress
from rmqha.host.disk import HostDisk
from rmqha.model.message import decode_properties
from rmqha.store.timer.timer_log import DELETES, ROLLED, TimerUnit, units
from tests.broker.support import Broker
from tests.broker.timers.test_service import TIMER_TOPIC, bodies, now_ms, records, timed
from tests.store.support import unpack

KEYS = {"mapped_file_size_timer_log": 1024}
"""19 units a file."""
FILE_UNITS = 19
LOG = "timerlog"


def told(store: Path) -> tuple[int, int, int, int]:
    """The part of config/timercheck that RocketMQ goes by: read time, position in the timer log, queue offsets."""
    found: tuple[int, int, int, int] = struct.unpack(">4q", (store / timer_check.PATH).read_bytes()[:32])
    return found


def logged(store: Path) -> list[TimerUnit]:
    found = []
    for path in sorted((store / LOG).iterdir()):
        assert path.stat().st_size == KEYS["mapped_file_size_timer_log"]
        found += [unit for _, unit in units(path.read_bytes(), int(path.name))]
    return found


def bodies_of(found: list[TimerUnit], broker: Broker) -> list[bytes]:
    """Bodies of the messages that the units name, the mark at the end left out."""
    waiting = {item.phy_offset: bytes(item.body) for item in records(broker, TIMER_TOPIC)}
    return [waiting[unit.phy_offset] for unit in found if unit.slot_ms >= told(broker.directory)[0]]


def delivers_and_may_stop(broker: Broker) -> tuple[bool, bool]:
    return broker.core.timers.is_delivering, broker.core.replica.may_stop


def again(make_broker: Callable[..., Broker], broker: Broker) -> Broker:
    found = make_broker(**KEYS)
    found.clock.ms = broker.clock.ms
    return found.start()


# --- what RocketMQ gets -----------------------------------------------------------------------------------------------
def test_a_clean_stop_leaves_a_log_of_what_waits(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker(**KEYS).start()
    for number in range(50):
        broker.ask(timed(b"%d" % number, UNIQ_KEY=f"K{number}", TIMER_DELAY_SEC=2 if number % 2 else 60 + number))
    broker.ask(timed(b"rolled", UNIQ_KEY="R", TIMER_DELAY_MS=ROLL_WINDOW_MS + 5000))
    broker.ask(timed(b"taken back", UNIQ_KEY="D", TIMER_DELAY_SEC=60, TIMER_DEL_UNIQKEY="K0"))
    broker.ask(timed(b"soon", TIMER_DELAY_SEC=2))
    for _ in range(4):
        broker.run(1000)
    assert len(bodies(broker)) == 26
    broker.close()
    waiting, found = records(broker, TIMER_TOPIC), logged(broker.directory)
    assert len(list((broker.directory / LOG).iterdir())) == -(-len(found) // FILE_UNITS) == 2
    *named, mark = found
    kept = [record for record in waiting if bytes(record.body) not in {b"soon", *bodies(broker)}]
    assert [(unit.phy_offset, unit.size_bytes) for unit in named] == [
        (item.phy_offset, item.size_bytes) for item in kept
    ]
    for unit, record in zip(named, kept, strict=True):
        is_rolled = bytes(record.body) == b"rolled"
        due_ms = int(decode_properties(record.properties)["TIMER_OUT_MS"])
        assert (unit.slot_ms < due_ms) if is_rolled else (unit.slot_ms == due_ms)
        assert unit.flags == (ROLLED if is_rolled else DELETES if bytes(record.body) == b"taken back" else 0)
    read_ms, position, offset, master_offset = told(broker.directory)
    assert (position, offset, master_offset) == (0, len(waiting), len(waiting))
    assert mark.phy_offset == waiting[-1].phy_offset and mark.slot_ms < read_ms <= min(unit.slot_ms for unit in named)


def test_where_nothing_waits_there_is_no_log_and_nothing_to_look_for(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker(**KEYS).start()
    for _ in range(3):
        broker.ask(timed(TIMER_DELAY_SEC=2))
    for _ in range(4):
        broker.run(1000)
    broker.close()
    assert not (broker.directory / LOG).exists() and told(broker.directory)[2] == 3


def test_while_ours_runs_rocketmq_would_find_all_in_the_queue(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker(**KEYS).start()
    for seconds in (2, 60, 2, 90, 2):
        broker.ask(timed(b"%d" % seconds, TIMER_DELAY_SEC=seconds))
    broker.close()
    assert len(logged(broker.directory)) == 5
    broker = again(make_broker, broker)
    assert not (broker.directory / LOG).exists() and told(broker.directory)[2] == 0
    for round_ in range(3):
        broker.run(60_000)
        broker.run(1000)
        broker.store.sync()
        broker.core.save()
        assert told(broker.directory)[2] == [3, 5, 5][round_] and not (broker.directory / LOG).exists()
    assert bodies(broker) == [b"2", b"2", b"2", b"60", b"90"]


def test_a_full_disk_is_no_reason_to_stop_in_disorder(
    make_broker: Callable[..., Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = make_broker(**KEYS).start()
    broker.ask(timed(TIMER_DELAY_SEC=60))

    def full(*args: object, **keys: object) -> None:
        raise OSError(28, "No space left on device")

    broker.store.sync()
    broker.core.save()
    with monkeypatch.context() as patch:
        patch.setattr(HostDisk, "map", full)
        broker.core.hand_over()
    (event,) = broker.tracer.named("timer_log_not_written")
    assert "No space" in event["reason"]


def test_a_stop_settles_copies_on_their_way_before_it_hands_over(make_broker: Callable[..., Broker]) -> None:
    """Copies stand in the log and wait for the disk when the stop begins: it waits too."""
    broker = make_broker(flush_disk_type="SYNC_FLUSH", **KEYS).start()
    for body, seconds in ((b"due", 5), (b"due", 5), (b"waits", 60)):
        broker.ask(timed(body, TIMER_DELAY_SEC=seconds))
    broker.run()
    broker.clock.ms += 6000
    broker.core.deliver()
    broker.core.driver.stopping()
    assert delivers_and_may_stop(broker) == (True, False)
    broker.run()
    assert delivers_and_may_stop(broker) == (False, True)
    broker.close()
    assert bodies_of(logged(broker.directory), broker) == [b"waits"] and told(broker.directory)[2] == 3


def test_a_stop_between_two_slots_leaves_the_second(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker(**KEYS).start()
    for body, seconds in ((b"first", 3), (b"first", 3), (b"second", 5), (b"waits", 60)):
        broker.ask(timed(body, TIMER_DELAY_SEC=seconds))
    broker.run(4000)
    assert bodies(broker) == [b"first"] * 2
    broker.core.driver.stopping()
    broker.run(2000)
    assert bodies(broker) == [b"first"] * 2 and broker.core.replica.may_stop
    broker.close()
    assert bodies_of(logged(broker.directory), broker) == [b"second", b"waits"]


def test_a_stop_that_cannot_wait_longer_tells_that_some_may_come_twice(make_broker: Callable[..., Broker]) -> None:
    """RocketMQ is told of the first entry that waits, as after a kill."""
    broker = make_broker(flush_disk_type="SYNC_FLUSH", **KEYS).start()
    for body, seconds in ((b"waits", 60), (b"came", 2), (b"due", 5)):
        broker.ask(timed(body, TIMER_DELAY_SEC=seconds))
    for _ in range(3):
        broker.run(1000)
    assert bodies(broker) == [b"came"]
    broker.clock.ms += 3000
    broker.core.deliver()
    broker.close()
    (event,) = broker.tracer.named("timer_log_not_written")
    assert "not acknowledged" in event["reason"]
    assert told(broker.directory)[2] == 0 and not (broker.directory / LOG).exists()


@pytest.mark.parametrize("precision_ms", [100, 1000])
@pytest.mark.parametrize("clock_days", [-30, 0, 30])
def test_every_time_has_its_own_slot_in_rocketmqs_wheel(
    make_broker: Callable[..., Broker], precision_ms: int, clock_days: int
) -> None:
    """Two times of one slot would make RocketMQ forget the messages of one. Nothing comes early."""
    broker = make_broker(timer_precision_ms=precision_ms, timer_max_delay_sec=100 * 86_400, **KEYS).start()
    for hours in (1, 2, 47, 48 * 30, 1):
        broker.ask(timed(b"%d" % hours, TIMER_DELAY_SEC=hours * 3600))
    dues_ms = [int(decode_properties(item.properties)["TIMER_OUT_MS"]) for item in records(broker, TIMER_TOPIC)]
    broker.run()
    broker.clock.ms += clock_days * 86_400_000
    broker.core.driver.stopping()
    wall_ms = now_ms(broker)
    broker.close()
    found = logged(broker.directory)
    week = 7 * 86_400
    steps = [unit.slot_ms // precision_ms - wall_ms // precision_ms for unit in found]
    assert len(found) == 5 and all(-week <= step < week for step in steps)
    for unit, due_ms in zip(found, dues_ms, strict=True):
        assert unit.flags == ROLLED or unit.slot_ms >= due_ms


# --- what RocketMQ leaves ---------------------------------------------------------------------------------------------
def theirs(store: Path, read_ms: int, offset: int, log: bytes, wheel: bytes = b"") -> None:
    """The files as RocketMQ would leave them."""
    (store / "config").mkdir(exist_ok=True)
    (store / timer_check.PATH).write_bytes(
        struct.pack(">7q", read_ms, len(log), offset, offset, 0, 0, 0).ljust(4096, b"\0")
    )
    (store / LOG).mkdir()
    (store / LOG / f"{0:020d}").write_bytes(log.ljust(4096, b"\0"))
    (store / "timerwheel").write_bytes(wheel)
    (store / "timerwheel.52").write_bytes(wheel)


def test_what_waits_in_rocketmqs_store_comes_once_and_what_came_does_not(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker(**KEYS).start()
    for number, seconds in enumerate((3, 60, 4, 90, 5)):
        broker.ask(timed(b"%d" % number, TIMER_DELAY_SEC=seconds))
    broker.close()
    (broker.directory / LOG / f"{0:020d}").unlink()
    (broker.directory / LOG).rmdir()
    theirs(broker.directory, now_ms(broker) // 1000 * 1000 + 10_000, 5, b"")
    broker.clock.ms += 20_000
    broker = again(make_broker, broker)
    assert sorted(path.name for path in broker.directory.glob("timer*")) == []
    for _ in range(8):
        broker.run(20_000)
        broker.run(1)
    assert bodies(broker) == [b"1", b"3"]


def test_a_stop_within_a_slot_leaves_nothing_out_when_the_store_comes_back(make_broker: Callable[..., Broker]) -> None:
    """RocketMQ's broker goes on in whole slots from the read time that ours left."""
    broker = make_broker(**KEYS).start()
    begin_ms = now_ms(broker) // 1000 * 1000
    for body, after_ms in ((b"came", 2740), (b"left", 5100), (b"left", 5700), (b"later", 6500)):
        broker.ask(timed(body, TIMER_DELIVER_MS=begin_ms + after_ms))
    broker.run(4000)
    assert bodies(broker) == [b"came"]
    broker.close()
    read_ms = told(broker.directory)[0]
    waiting = len(records(broker, TIMER_TOPIC))
    shutil.rmtree(broker.directory / LOG)
    theirs(broker.directory, read_ms + 3000, waiting, b"")  # slots of three seconds, the last one that of second 4
    broker.clock.ms += 4000
    broker = again(make_broker, broker)
    broker.run()
    broker.run(1)
    assert bodies(broker) == [b"came", b"left", b"left", b"later"]


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_message_that_rocketmq_would_roll_later_than_ours_is_not_left_out(
    make_broker: Callable[..., Broker], is_whole: bool
) -> None:
    """Its window begins when it takes the message from the queue, which may be long after it was stored. A damaged log
    tells of nothing behind the damage, and is told."""
    broker = make_broker(**KEYS).start()
    broker.ask(timed(b"far", TIMER_DELAY_MS=ROLL_WINDOW_MS * 5 // 4))
    (far,) = records(broker, TIMER_TOPIC)
    broker.close()
    (broker.directory / LOG / f"{0:020d}").unlink()
    (broker.directory / LOG).rmdir()
    written_ms = now_ms(broker) // 1000 * 1000 + 3_600_000
    unit = TimerUnit(-1, ROLLED, written_ms, ROLL_WINDOW_MS // 2, far.phy_offset, far.size_bytes).encode()
    log = unit if is_whole else bytes(3) + b"\x01" + unit[4:]
    theirs(broker.directory, written_ms + ROLL_WINDOW_MS // 2 - 60_000, 1, log)
    broker.clock.ms += ROLL_WINDOW_MS // 2 + 3_600_000
    broker = again(make_broker, broker)
    damaged = broker.tracer.named("timer_log_damaged")
    assert bool(damaged) != is_whole and all("byte 0" in event["reason"] for event in damaged)
    for _ in range(2):
        broker.run(ROLL_WINDOW_MS)
        broker.run(1000)
    assert bodies(broker) == ([b"far"] if is_whole else [])


def test_a_golden_store_goes_on_under_ours(make_broker: Callable[..., Broker], tmp_path: Path) -> None:
    """n0: of 15 timer messages ten were delivered and five wait."""
    for name in ("n0", "n0-timerwheel"):
        unpack(name, tmp_path)
    names = {"broker_cluster_name": "GoldCluster", "broker_name": "gold-a"}
    sizes = {"mapped_file_size_consume_queue": 1000, "max_hash_slot_num": 500, "max_index_num": 200}
    broker = make_broker("n0", mapper_file_size_batch_consume_queue=4600, **sizes, **names, **KEYS)
    assert broker.core.delay_offsets.timer == TimerProgress(1795227286000, 0, 15, 0)
    assert sorted(path.name for path in broker.directory.glob("timer*")) == []
    while broker.core.timers.waiting_count != 5:
        broker.core.timers.deliver()
    broker.clock.ms += 1795232000000 - now_ms(broker)
    given = broker.core.timers.hand_over()
    assert given is not None and given.end_offset == 15
    wheel = [(slot_ms // 1000, flags) for slot_ms, flags, *_ in given.entries]
    assert wheel == [(second, 0) for second in (1795232841, 1795233127, 1795233223, 1795233402, 1795233594)]
