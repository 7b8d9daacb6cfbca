"""What waits is known at a start without reading it, unless the log is another or less has been delivered."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmqha.broker.timers.service import TimerService
from rmqha.broker.timers.snapshot import LULL_MS, TimerSnapshot, decode, encode
from rmqha.broker.timers.timer_check import TimerProgress
from rmqha.broker.timers.waiting import Span
from rmqha.model.error import StoreError
from rmqha.model.offset import PhyOffset
from rmqha.store.meta import sidecar
from rmqha.store.meta.sidecar import BadSidecarError
from rmqha.store.timer import timer_log
from tests.broker.support import Broker
from tests.broker.timers.test_service import bodies, timed

COUNT = 30


def killed(make_broker: Callable[..., Broker]) -> Broker:
    """One that had a snapshot of what waits, and has died after more came."""
    broker = make_broker().start()
    broker.core.timer_snapshots.least_count = COUNT
    for number in range(COUNT):
        broker.ask(timed(b"%d" % number, UNIQ_KEY=f"K{number}", TIMER_DELAY_SEC=2 + number % 3 * 60))
    broker.ask(timed(b"0", UNIQ_KEY="D", TIMER_DELAY_SEC=62, TIMER_DEL_UNIQKEY="K1"))
    for _ in range(4):
        broker.run(1000)
        broker.store.sync()
        broker.core.save()
    assert len(bodies(broker)) == COUNT // 3 and (broker.directory / timer_log.SNAPSHOT_PATH).exists()
    broker.ask(timed(b"more", TIMER_DELAY_SEC=600))
    broker.store.sync()
    return broker


def again(make_broker: Callable[..., Broker], dead: Broker) -> Broker:
    if dead.open:
        dead.store.abandon()
        dead.open = False
    found = make_broker()
    found.clock.ms = dead.clock.ms
    return found


def run_out(broker: Broker) -> list[bytes]:
    broker.start()
    for _ in range(12):
        broker.run(60_000)
    return bodies(broker)


ALL = sorted([*(b"%d" % number for number in range(COUNT) if number != 1), b"more"])


def test_a_start_knows_what_waits(make_broker: Callable[..., Broker], monkeypatch: pytest.MonkeyPatch) -> None:
    broker = again(make_broker, killed(make_broker))
    timers = broker.core.timers
    assert timers._taken_offset == COUNT + 1
    assert timers.waiting_count == COUNT - COUNT // 3 + 2
    assert timers.topic_counts() == {"T": COUNT - COUNT // 3}
    looked_at: list[int] = []
    take = TimerService._add

    def add(self: TimerService, slot_ms: int, offset: int, topic: bytes) -> None:
        looked_at.append(offset)
        take(self, slot_ms, offset, topic)

    monkeypatch.setattr(TimerService, "_add", add)
    assert sorted(run_out(broker)) == ALL
    assert looked_at == [COUNT + 1]


def test_a_log_that_was_cut_and_has_grown_again_is_another(make_broker: Callable[..., Broker]) -> None:
    dead = killed(make_broker)
    ends = dead.store.units("rmq_sys_wheel_timer", 0, COUNT, 1)
    dead.store.abandon()
    dead.open = False
    broker = make_broker()
    broker.clock.ms = dead.clock.ms
    broker.store.truncate(PhyOffset(ends[0][0]))
    assert broker.core.timers._taken_offset < COUNT
    broker.start()
    broker.ask(timed(b"other", UNIQ_KEY="D", TIMER_DELAY_SEC=62))
    broker.store.sync()
    broker = again(make_broker, broker)
    assert broker.core.timers._taken_offset < COUNT
    assert {b"1", b"other"} <= set(run_out(broker))


def test_it_does_not_count_where_less_is_delivered(make_broker: Callable[..., Broker]) -> None:
    dead = killed(make_broker)
    dead.core.timer_snapshots.least_count = 1
    for _ in range(2):
        dead.ask(timed(b"more", TIMER_DELAY_SEC=600))
        dead.run(1000)
        dead.store.sync()
        dead.core.save()
    assert decode(sidecar.decode((dead.directory / timer_log.SNAPSHOT_PATH).read_bytes(), "")).progress.read_ms
    (dead.directory / "config" / "timercheck").unlink()
    broker = again(make_broker, dead)
    assert broker.core.timers._taken_offset == 0
    assert set(run_out(broker)) == set(ALL)


def test_a_damaged_one_is_told_and_the_queue_is_read(make_broker: Callable[..., Broker]) -> None:
    dead = killed(make_broker)
    path = dead.directory / timer_log.SNAPSHOT_PATH
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    broker = again(make_broker, dead)
    assert "timer_snapshot_damaged" in broker.tracer.names()
    assert sorted(run_out(broker)) == ALL


def test_one_of_a_newer_release_is_refused(make_broker: Callable[..., Broker]) -> None:
    dead = killed(make_broker)
    fields = sidecar.decode((dead.directory / timer_log.SNAPSHOT_PATH).read_bytes(), "x")
    (dead.directory / timer_log.SNAPSHOT_PATH).write_bytes(sidecar.encode({**fields, "version": 4}))
    with pytest.raises(StoreError, match="version 4"):
        again(make_broker, dead)


KEPT = TimerSnapshot(
    TimerProgress(5, 6, 7, 1),
    9,
    1000,
    77,
    [b"T"],
    {5: bytes(16)},
    [Span(0, 8, bytes(8), bytes(2))],
    [(4, 8)],
    {5: b"0123456789abcdef"},
)


def test_it_is_read_as_it_was_written() -> None:
    assert decode(encode(KEPT)) == KEPT


@pytest.mark.parametrize(
    "wrong",
    [
        *({"progress": [1, 2, 3]}, {"spans": [[0, 8, 1, 2]]}, {"late": [[1]]}, {"topics": "T"}, {"takenOffset": -1}),
        *({"version": 2}, {"byteOrder": "none"}, {"recalls": 5}, {"recallMarks": 5}, {"crc": "x"}),
    ],
)
def test_what_is_no_snapshot(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadSidecarError):
        decode({**encode(KEPT), **wrong})


def test_a_few_more_are_written_once_nothing_comes(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker().start()
    broker.core.timer_snapshots.least_count = 2

    def save(number: int, ms: int) -> int:
        for _ in range(number):
            broker.ask(timed(TIMER_DELAY_SEC=600))
        broker.run(ms)
        broker.store.sync()
        broker.core.save()
        path = broker.directory / timer_log.SNAPSHOT_PATH
        return decode(sidecar.decode(path.read_bytes(), "")).taken_offset

    assert save(200, 1000) == 200
    assert save(3, LULL_MS - 1) == 200
    assert save(0, LULL_MS) == 203
    assert save(1, LULL_MS) == 203


def test_none_is_written_while_the_progress_it_needs_is_not_on_the_disk(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker().start()
    broker.core.timer_snapshots.least_count = 2
    for _ in range(3):
        broker.ask(timed(TIMER_DELAY_SEC=2))
    broker.ask(timed(TIMER_DELAY_SEC=90))
    for _ in range(3):
        broker.run(1000)
    assert list(broker.core.timer_snapshots.writes()) == []
    path: Path = broker.directory / timer_log.SNAPSHOT_PATH
    broker.store.sync()
    broker.core.save()
    assert path.exists()
