"""Timer messages: they wait in one queue of the timer topic, and are stored again when their time has come.

All replicas know which entries wait, so that a new master goes on at once; only the open master delivers. Progress
moves on when the delivered copies are acknowledged by the group's rule (ruling 12) and counts in logs that hold them,
as with delay levels: a new master may deliver once more but leaves none out. All that is known here is read in the
queue again after a cut, and where less is delivered than this replica thought.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from rmqha.broker.replication.waiter import MessageAppender, Waiting
from rmqha.broker.services.schedule import ScheduleLog, append_all
from rmqha.broker.tables.delay_offsets import DelayOffsetTable
from rmqha.broker.tables.timer_check import TimerProgress
from rmqha.broker.timers.known import KnownTime
from rmqha.broker.timers.message import (
    TIMER_QUEUE_ID,
    due,
    from_timer,
    is_recall,
    recall,
    recalled_by,
    says_when_and_where_to,
)
from rmqha.broker.timers.taken_back import TakenBack
from rmqha.broker.timers.waiting import WaitingTimers
from rmqha.ha.action import AckStatus
from rmqha.model.code import ResponseCode
from rmqha.model.error import DamagedError, UsageError
from rmqha.model.message import TIMER_TOPIC
from rmqha.model.offset import PhyOffset
from rmqha.port import Clock, Tracer
from rmqha.store.log.record import NewMessage, Record
from rmqha.store.reader import Unit
from rmqha.store.timer.timer_log import DELETES, ROLLED

MAX_DELIVERY_COUNT = 64
"""Messages that are delivered with one append."""
TAKE_COUNT = 256
"""Entries that are read in one step to learn when they are due."""
MAX_RECALL_COUNT = 200_000
"""Messages that may be taken back at a time; each takes some hundred bytes until it would have come."""
FIRST_OFFSET_INTERVAL_MS = 60_000
"""Time between two looks for the lowest entry that waits."""
_TIME_BITS = 48
_TIME_MASK = (1 << _TIME_BITS) - 1


@dataclass(frozen=True, slots=True)
class TimerRules:
    precision_ms: int
    max_delay_ms: int
    is_enabled: bool = True
    """False: producers are refused. What waits already is delivered."""


class WaitingList(NamedTuple):
    """All that waits, for a timer log."""

    entries: Iterable[tuple[int, int, int, int]]
    """(slot time, flags, physical offset, size) of each, by its place in the queue; the last one is the newest of those
    that were looked at."""
    end_offset: int
    """Entries of the queue from there on have not been looked at."""
    written_ms: int
    precision_ms: int


class _Delivery(Waiting):
    """One append of due messages, until it is acknowledged."""

    __slots__ = ("_service", "end_offset", "progress")

    def __init__(self, service: TimerService, progress: TimerProgress, end_offset: PhyOffset) -> None:
        self._service = service
        self.progress = progress
        self.end_offset = end_offset

    def finish(self, status: AckStatus) -> None:
        self._service.finished(self, status)


class TimerService:
    """`deliver` is called about every 100 ms and whenever `wake` was."""

    def __init__(
        self,
        log: ScheduleLog,
        appends: MessageAppender,
        table: DelayOffsetTable,
        clock: Clock,
        tracer: Tracer,
        store_host: tuple[bytes, int],
        rules: TimerRules,
        wake: Callable[[], None],
    ) -> None:
        self._log = log
        self._appends = appends
        self._table = table
        self._clock = clock
        self._tracer = tracer
        self._store_host = store_host
        self.rules = rules
        self._wake = wake
        self.delivered_count = 0
        self._waiting = WaitingTimers()
        self._late = WaitingTimers()
        """Entries whose time had been worked off when they came, and those that cannot be read now."""
        self._recalls = TakenBack()
        self._known = KnownTime(log)
        self._begin()

    def _begin(self) -> None:
        """Look through the queue from the first entry that may wait."""
        for waiting in (self._waiting, self._late, self._recalls):
            waiting.clear()
        self._known.forget()
        self._pending: _Delivery | None = None
        progress = self._progress = self._table.timer
        self._front = progress.front
        """Entries below it were taken out to be delivered."""
        self._taken_offset = self._first_offset = progress.first_offset
        self._first_due_ms = 0

    @property
    def end_offset(self) -> int:
        """End of the queue in which timer messages wait."""
        return self._log.queue_range(TIMER_TOPIC, TIMER_QUEUE_ID)[1]

    @property
    def waiting_count(self) -> int:
        """Number of messages that wait, those included that have not been looked at."""
        return len(self._waiting) + len(self._late) + max(0, self.end_offset - self._taken_offset)

    def recall_fault(self) -> str:
        """The reason why no more messages can be taken back now, "" if they can."""
        count = len(self._recalls)
        return f"{count} messages that wait are taken back already" if count >= MAX_RECALL_COUNT else ""

    @property
    def is_delivering(self) -> bool:
        """Copies wait to be acknowledged."""
        return self._pending is not None

    def deliver(self) -> None:
        """Learn what has come, and store again what is due. Raises StoreError."""
        self._follow()
        if self._take():
            self._wake()
        self._known.look(self._taken_offset, self._clock.wall_ms())
        is_serving = self._appends.is_serving and self._appends.admission()[0] is ResponseCode.SUCCESS
        if is_serving and self._pending is None and self._taken_offset >= self._progress.taken_offset:
            self._deliver()

    def role_changed(self) -> None:
        """Forget what was on its way: it is the new master's to deliver."""
        if self._pending is not None or self._table.timer.is_behind(self._progress):
            self._begin()

    def log_cut(self) -> None:
        self._begin()

    def hand_over(self) -> WaitingList | None:
        """All that waits. None if that is not known for certain: a copy is on its way, progress is not written, or the
        queue has not been looked through."""
        is_known = self._pending is None and self._table.is_timer_written and self._table.timer == self._progress
        is_known = is_known and self._taken_offset >= max(1, self._progress.taken_offset)
        if not is_known:
            return None
        entries = self._entries() if self._waiting or self._late else ()
        return WaitingList(entries, self._taken_offset, self._clock.wall_ms(), self.rules.precision_ms)

    def _entries(self) -> Iterator[tuple[int, int, int, int]]:
        read_ms, newest = self._progress.read_ms, self._taken_offset - 1
        waiting = [offset << _TIME_BITS | slot_ms for part in (self._waiting, self._late) for slot_ms, offset in part]
        waiting.sort()
        low = self._log.queue_range(TIMER_TOPIC, TIMER_QUEUE_ID)[0]
        first, units = 0, list[Unit]()
        for item in waiting:
            offset, slot_ms = item >> _TIME_BITS, item & _TIME_MASK
            if offset < low:
                continue
            if not first <= offset < first + len(units):
                first, units = offset, self._log.units(TIMER_TOPIC, TIMER_QUEUE_ID, offset, TAKE_COUNT)
            unit = units[offset - first]
            flags = (ROLLED if slot_ms & 1 else 0) | (DELETES if self._takes_back(slot_ms, offset, unit) else 0)
            yield max(slot_ms, read_ms), flags, unit[0], unit[1]
        if waiting[-1] >> _TIME_BITS != newest >= low:
            # RocketMQ goes on in the queue behind the last unit: this one comes in a slot that has been
            (unit,) = self._log.units(TIMER_TOPIC, TIMER_QUEUE_ID, newest, 1)
            yield max(0, read_ms - self.rules.precision_ms), 0, unit[0], unit[1]

    def _takes_back(self, slot_ms: int, offset: int, unit: Unit) -> bool:
        if not self._recalls.has_slot(slot_ms):
            return False
        try:
            record = self._log.sound_record(TIMER_TOPIC, TIMER_QUEUE_ID, offset, unit, says_when_and_where_to)
        except DamagedError:
            return False
        return is_recall(record)

    # --- what waits ---------------------------------------------------------------------------------------------------
    def _follow(self) -> None:
        """A slave learns what its master has delivered."""
        progress = self._table.timer
        if progress == self._progress:
            return
        if self._pending is not None or progress.is_behind(self._progress):
            self._begin()
            return
        self._progress = progress
        for slot_ms, offset in self._waiting.take(progress.read_ms, len(self._waiting)):
            if (slot_ms, offset) >= progress.front:
                self._waiting.add(slot_ms, offset)
            elif offset >= progress.taken_offset:
                self._late.add(slot_ms, offset)
        for slot_ms, offset in self._late.take_all():
            if offset >= progress.taken_offset:
                self._late.add(slot_ms, offset)
        self._front = max(self._front, progress.front)
        self._drop_recalls()

    def _take(self) -> bool:
        """Learn of some entries when they are due; True if more have come."""
        low, high = self._log.queue_range(TIMER_TOPIC, TIMER_QUEUE_ID)
        self._taken_offset = max(self._taken_offset, low)
        if self._taken_offset >= high:
            return False
        for unit in self._log.units(TIMER_TOPIC, TIMER_QUEUE_ID, self._taken_offset, TAKE_COUNT):
            offset = self._taken_offset
            try:
                record = self._log.sound_record(TIMER_TOPIC, TIMER_QUEUE_ID, offset, unit, says_when_and_where_to)
            except DamagedError:
                return False  # all wait until a replica has given it back
            self._taken_offset += 1
            when = due(record)
            if when is None:
                self._tracer.event("timer_message_without_time", phy_offset=record.phy_offset)
                continue
            if (when.slot_ms, offset) >= self._front:
                self._waiting.add(when.slot_ms, offset)
            elif offset >= self._progress.taken_offset:
                self._late.add(when.slot_ms, offset)
            if (taken_back := recall(record)) is not None:
                self._recalls.add(taken_back)
        return self._taken_offset < high

    def _drop_recalls(self) -> None:
        """Forget those of slots that are worked off: a recall stands behind what it takes back."""
        if not self._late:
            slot_ms = self._front[0]
            is_worked_off = self._waiting.first_slot_ms() > slot_ms
            self._recalls.drop_below(slot_ms + is_worked_off)

    # --- deliver ------------------------------------------------------------------------------------------------------
    def _deliver(self) -> None:
        now_ms = self._clock.wall_ms()
        until_ms = min(now_ms - self.rules.precision_ms, self._known.ms - 1)
        entries = self._late.take(until_ms, MAX_DELIVERY_COUNT)
        due_now = self._waiting.take(until_ms, MAX_DELIVERY_COUNT - len(entries))
        if due_now:
            slot_ms, offset = due_now[-1]
            self._front = slot_ms, offset + 1
            entries += due_now
        if not entries:
            return
        messages = self._messages(entries, now_ms)
        progress = self._progress_now(now_ms)
        if messages:
            self._append(messages, progress)
        elif progress != self._progress:
            self._moved(progress, self._log.max_phy_offset)
            self._wake()

    def _messages(self, entries: list[tuple[int, int]], now_ms: int) -> list[NewMessage]:
        low = self._log.queue_range(TIMER_TOPIC, TIMER_QUEUE_ID)[0]
        messages: list[NewMessage] = []
        expired_count = 0
        for slot_ms, offset in entries:
            if offset < low:
                expired_count += 1
                continue
            (unit,) = self._log.units(TIMER_TOPIC, TIMER_QUEUE_ID, offset, 1)
            try:
                record = self._log.sound_record(TIMER_TOPIC, TIMER_QUEUE_ID, offset, unit, says_when_and_where_to)
            except DamagedError:
                self._late.add(slot_ms, offset)  # it waits until a replica has given it back
                continue
            message = self._message(record, now_ms)
            if message is not None:
                messages.append(message)
        if expired_count:
            self._tracer.event("timer_messages_expired", count=expired_count)
        return messages

    def _message(self, record: Record, now_ms: int) -> NewMessage | None:
        message = from_timer(record, now_ms, self._store_host)
        if message is None:
            self._tracer.event("timer_message_without_topic", phy_offset=record.phy_offset)
            return None
        if is_recall(record):
            return message if message.topic == TIMER_TOPIC else None
        return None if recalled_by(record) in self._recalls else message

    def _progress_now(self, now_ms: int) -> TimerProgress:
        """Progress once all that was taken out is delivered."""
        late = self._late.first_offset()
        if now_ms >= self._first_due_ms:
            self._first_due_ms = now_ms + FIRST_OFFSET_INTERVAL_MS
            firsts = late, self._waiting.first_offset(), self._taken_offset
            self._first_offset = min(offset for offset in firsts if offset is not None)
        taken = self._taken_offset if late is None else min(late, self._taken_offset)
        return TimerProgress(*self._front, taken, min(self._first_offset, taken))

    def _append(self, messages: list[NewMessage], progress: TimerProgress) -> None:
        end = append_all(self._appends, self._log, messages, self._refused)
        self.delivered_count += len(messages)
        self._pending = _Delivery(self, progress, end)
        self._appends.appended(end, self._pending)

    def _refused(self, message: NewMessage, error: UsageError) -> None:
        self._tracer.event("timer_message_not_delivered", topic=message.topic, reason=str(error))

    def finished(self, delivery: _Delivery, status: AckStatus) -> None:
        if self._pending is not delivery:
            return
        if status is AckStatus.OK:
            self._pending = None
            self._moved(delivery.progress, delivery.end_offset)
            self._wake()
        elif status is AckStatus.SERVICE_NOT_AVAILABLE:
            self._begin()
        else:
            # The copies stand in the log of this epoch, so they come or this mastership goes: no second copy now.
            self._appends.appended(self._log.max_phy_offset, delivery)

    def _moved(self, progress: TimerProgress, log_end: int) -> None:
        self._table.put_timer(progress, log_end)
        self._progress = progress
        self._drop_recalls()
