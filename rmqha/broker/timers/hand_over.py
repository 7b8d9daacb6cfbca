"""Change of a store between our broker and RocketMQ's while timer messages wait (ADR 14).

RocketMQ delivers what its timer log names, and what stands in the queue of the timer topic from the offset in
config/timercheck on. While ours runs there is no timer log, and that offset is the first entry's that waits. A clean
stop leaves a timer log of all that waits, so that nothing of what was delivered behind the first comes once more.
RocketMQ makes its wheel anew from that log.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from rmqha.broker.tables.delay_offsets import DelayOffsetTable
from rmqha.broker.timers.message import STEP_MS, due
from rmqha.broker.timers.service import WaitingList
from rmqha.model.message import TIMER_TOPIC
from rmqha.port import Disk, Tracer
from rmqha.store.log.mapped_file import file_name
from rmqha.store.log.record import BadRecordError, decode
from rmqha.store.timer import timer_log
from rmqha.store.timer.timer_log import ROLLED, BadTimerLogError, TimerUnit
from rmqha.store.timer.timer_wheel import is_wheel

MAX_FILE_BYTES = 2**31 - 1


class PlacedRecords(Protocol):
    """The log, asked for records by their places; `Store` is one."""

    def record_at(self, phy_offset: int) -> memoryview | None: ...


def take_over(disk: Disk, log: PlacedRecords, table: DelayOffsetTable, tracer: Tracer) -> None:
    """Make this the store of a broker of ours: what waits is in the queue alone, and config/timercheck says so before
    anything else is removed. Raises OSError."""
    wheels = [name for name in disk.list("") if is_wheel(name)]
    if not wheels and not disk.exists(timer_log.DIRECTORY):
        return
    waits_from = None if table.is_timer_ours else _first_that_waits(disk, log, table.timer.read_ms, tracer)
    table.claim_timer(waits_from)
    disk.remove_tree(timer_log.DIRECTORY)
    for name in wheels:
        disk.remove(name)


def give_over(
    disk: Disk, table: DelayOffsetTable, given: WaitingList, metrics: bytes, file_size_bytes: int, tracer: Tracer
) -> None:
    """Leave a timer log of what waits and its number by topic (config/timermetrics), for whoever opens the store next.
    Without them RocketMQ delivers some messages again, so that a disk that cannot hold them is no reason to stop
    otherwise than in order."""
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
    """The lowest queue offset of what RocketMQ has not stored again yet though by our rule it has; None if there is
    none. Its window begins when it puts a message into its wheel, ours when the message was stored."""
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
        when = due(record, STEP_MS)
        if when is not None and when.slot_ms < read_ms:
            first = record.queue_offset if first is None else min(first, record.queue_offset)
    return first


def _rolled(disk: Disk, tracer: Tracer) -> Iterator[TimerUnit]:
    """The units, in RocketMQ's timer log, of messages that are to be stored again before their time."""
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
