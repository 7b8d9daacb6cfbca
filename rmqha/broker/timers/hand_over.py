"""Conversion of a store with waiting timer messages between rmqha's broker and RocketMQ's (ADR 14).

RocketMQ delivers the entries of its timer log, and those in the queue of the timer topic from the offset in
config/timercheck on. While rmqha runs there is no timer log, and that offset is the first waiting entry's. A clean stop
leaves a timer log of all waiting messages, so that later ones that were delivered are not delivered again. RocketMQ
rebuilds its wheel from that log.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Protocol

from rmqha.broker.tables.delay_offsets import DelayOffsetTable
from rmqha.broker.timers.message import TIMER_QUEUE_ID, due
from rmqha.broker.timers.service import WaitingList
from rmqha.model.message import TIMER_TOPIC
from rmqha.port import Disk, Tracer
from rmqha.store.log.mapped_file import file_name
from rmqha.store.log.record import BadRecordError, decode
from rmqha.store.timer import timer_log, timer_wheel
from rmqha.store.timer.timer_log import ROLLED, BadTimerLogError, TimerUnit
from rmqha.store.timer.timer_wheel import is_wheel
from rmqha.store.timer.timer_width import wheel_width

MAX_FILE_BYTES = 2**31 - 1
WHEEL_SLOT_COUNT = 1000
"""Slots of a wheel that are checked for their width."""


class PlacedRecords(Protocol):
    """Port to records by their offsets; `Store` is one."""

    @property
    def last_store_timestamp_ms(self) -> int: ...

    def record_at(self, phy_offset: int) -> memoryview | None: ...

    def queue_range(self, topic: str, queue_id: int) -> tuple[int, int]: ...


def take_over(disk: Disk, log: PlacedRecords, table: DelayOffsetTable, tracer: Tracer) -> None:
    """Convert the store for rmqha: waiting messages are in the queue alone, and config/timercheck says so before
    anything else is removed. Raises OSError."""
    wheels = [name for name in disk.list("") if is_wheel(name)]
    read_ms = table.timer.read_ms or log.last_store_timestamp_ms
    found_ms = 0 if table.is_timer_ours else _wheel_width_ms(disk, read_ms, tracer)
    widths = table.begin_widths(found_ms, log.queue_range(TIMER_TOPIC, TIMER_QUEUE_ID)[1])
    if widths is not None:
        tracer.event(
            "timer_precision_changed",
            before_ms=widths.before_ms,
            now_ms=widths.width_ms,
            before_offset=widths.before_end,
        )
    if not wheels and not disk.exists(timer_log.DIRECTORY):
        if widths is not None:
            table.claim_timer(None)
        return
    waits_from = None if table.is_timer_ours else _first_that_waits(disk, log, table.timer.read_ms, tracer)
    table.claim_timer(waits_from)
    disk.remove_tree(timer_log.DIRECTORY)
    for name in wheels:
        disk.remove(name)


def _wheel_width_ms(disk: Disk, read_ms: int, tracer: Tracer) -> int:
    """Width (ms) of the slots of RocketMQ's wheel, by some of them, 0 if unknown."""
    path, size_bytes = timer_wheel.PATH, timer_wheel.WHEEL_BYTES
    if not disk.exists(path) or disk.size_bytes(path) != size_bytes:
        return 0
    region = disk.map(path, size_bytes)
    try:
        found = wheel_width(islice(timer_wheel.slots(region.view(0, size_bytes)), WHEEL_SLOT_COUNT), read_ms)
    except BadTimerLogError as error:
        tracer.event("timer_log_damaged", path=path, reason=str(error))
        return 0
    finally:
        region.close()
    return 0 if found is None else found.width_ms


def give_over(
    disk: Disk, table: DelayOffsetTable, given: WaitingList, metrics: bytes, file_size_bytes: int, tracer: Tracer
) -> None:
    """Leave a timer log of the waiting messages and their number by topic (config/timermetrics). Without them RocketMQ
    delivers some messages again, so a disk error here does not change the stop."""
    log = timer_log.files(given.entries, given.written_ms, given.precision_ms, file_size_bytes)
    try:
        for number, content in enumerate(log):
            path = f"{timer_log.DIRECTORY}/{file_name(number * file_size_bytes)}"
            region = disk.map(path, file_size_bytes, create=True, reserve=False)
            region.write(0, content)
            region.sync()
            region.close()
        disk.make_dirs("config")
        disk.write_atomic(timer_log.METRICS_PATH, metrics)
        table.give_timer(given.end_offset)
    except OSError as error:
        tracer.event("timer_log_not_written", reason=str(error))


def _first_that_waits(disk: Disk, log: PlacedRecords, read_ms: int, tracer: Tracer) -> int | None:
    """Lowest queue offset that RocketMQ has not stored again yet though rmqha's rule says so; None for none. Its window
    begins when it puts a message into the wheel, rmqha's when the message was stored."""
    first: int | None = None
    for unit in _rolled(disk, tracer):
        if unit.slot_ms < read_ms:
            continue
        data = log.record_at(unit.phy_offset)
        try:
            record = decode(data) if data is not None else None
        except BadRecordError:
            continue  # it is told when its entry of the queue is read
        if record is None or record.topic != TIMER_TOPIC:
            continue
        when = due(record)
        if when is not None and when.slot_ms < read_ms:
            first = record.queue_offset if first is None else min(first, record.queue_offset)
    return first


def _rolled(disk: Disk, tracer: Tracer) -> Iterator[TimerUnit]:
    """Entries of RocketMQ's timer log whose messages are to be stored again before their time."""
    for name in disk.list(timer_log.DIRECTORY):
        path = f"{timer_log.DIRECTORY}/{name}"
        try:
            size_bytes = disk.size_bytes(path)
            if not name.isdecimal() or not 0 < size_bytes <= MAX_FILE_BYTES:
                continue
            region = disk.map(path, size_bytes)
            try:
                for start, end in region.data_ranges(0):
                    while start < end:
                        start += region.probe(start, end - start)
                for _, unit in timer_log.units(region.view(0, size_bytes), int(name)):
                    if unit.flags & ROLLED:
                        yield unit
            finally:
                region.close()
        except (OSError, BadTimerLogError) as error:
            tracer.event("timer_log_damaged", path=path, reason=str(error))
