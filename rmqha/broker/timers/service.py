"""Timer messages: they wait in one queue of the timer topic, and are stored again at their time.

All replicas know the waiting entries, so that a new master continues at once; only the open master delivers. Progress
advances when the delivered copies are acknowledged by the group's rule (ruling 12) and counts in logs that have them,
as with delay levels: a new master may deliver a message once more but leaves none out. The state here is read from the
queue again after a cut, and when less is delivered than this replica assumed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from zlib import crc32

from rmqha.broker.replication.waiter import MessageAppender, Waiting
from rmqha.broker.services.schedule import ScheduleLog, append_all
from rmqha.broker.tables.delay_offsets import DelayOffsetTable
from rmqha.broker.tables.topics import TopicTable
from rmqha.broker.timers.message import (
    STEP_MS,
    TIMER_QUEUE_ID,
    TimedMessage,
    due,
    from_timer,
    is_recall,
    mark_of,
    plain_due,
    real_topic,
    recall,
    recalled_by,
    says_when_and_where_to,
    to_timer,
)
from rmqha.broker.timers.recall_set import KnownTime, RecallSet
from rmqha.broker.timers.snapshot import TimerSnapshot
from rmqha.broker.timers.timer_check import TimerProgress
from rmqha.broker.timers.waiting import TimerEntry, TopicNumbers, WaitingTimers
from rmqha.ha.action import AckStatus
from rmqha.model.code import ResponseCode
from rmqha.model.error import DamagedError, UsageError
from rmqha.model.message import TIMER_TOPIC
from rmqha.model.offset import PhyOffset
from rmqha.model.principal import Principal
from rmqha.port import Clock, Tracer
from rmqha.store.appender import AppendedBatch
from rmqha.store.log.record import NewMessage, Record
from rmqha.store.reader import Unit
from rmqha.store.timer.timer_log import DELETES, ROLLED
from rmqha.store.timer.timer_width import MAX_WIDTH_MS

MAX_DELIVERY_COUNT = 128
"""Messages that are delivered with one append."""
NEAR_COUNT = 8 * MAX_DELIVERY_COUNT
"""Entries of the queue that one read covers, for the due ones among them."""
MAX_NEW_ENTRY_COUNT = 4096
"""Bound on remembered new entries that were not read yet: some hundred bytes each."""
READ_COUNT = 256
"""Entries that one step reads for their times."""
LEAST_PAUSE_MS = 5
"""Pause (ms) after a delivery of everything due: messages that become due meanwhile share one append."""
REFUSED_MS = 100
"""Pause (ms) while due messages cannot be stored."""
IDLE_MS = 1000
MAX_RECALL_COUNT = 200_000
"""Bound on pending recalls; each needs some hundred bytes until its message's time."""
MAX_RECALL_COUNT_OF_ONE = MAX_RECALL_COUNT // 2
"""Bound on those of one account."""
FIRST_OFFSET_INTERVAL_MS = 60_000
"""Interval (ms) of searches for the lowest waiting entry."""
_NO_TOPIC = b""
"""Topic of recalls, which are not counted as waiting messages."""
_TIME_BITS = 48
_TIME_MASK = (1 << _TIME_BITS) - 1
_DAY_STEPS = 86_400
"""Slots of RocketMQ's wheel per direction, in steps of the precision; it has seven times as many: days, with the usual
precision."""


@dataclass(frozen=True, slots=True)
class TimerRules:
    precision_ms: int
    max_delay_ms: int
    is_enabled: bool = True
    """False: producers are refused. Waiting messages are delivered."""


class WaitingList(NamedTuple):
    """All waiting messages, for a timer log."""

    entries: Iterable[tuple[int, int, int, int]]
    """(slot time, flags, physical offset, size) of each, by its offset in the queue; the last one is the newest that
    was read."""
    end_offset: int
    """Entries of the queue from there on were not read."""
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
    """Service of timer messages. `deliver` is called after `pause_ms`, after each `wake` and each new entry."""

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
        topics: TopicTable,
    ) -> None:
        self._log = log
        self._appends = appends
        self._table = table
        self._clock = clock
        self._tracer = tracer
        self._store_host = store_host
        self.rules = rules
        self._wake = wake
        self._topic_table = topics
        self.delivered_count = 0
        self.delivered_counts: dict[str, int] = {}
        """By topic."""
        self.taken_count = 0
        """Number of entries that were read."""
        self._topics = TopicNumbers()
        self._waiting = WaitingTimers()
        self._late = WaitingTimers()
        """Entries whose slot was worked off when they came, and those that cannot be read now."""
        self._recalls = RecallSet()
        self._new_entries: dict[int, tuple[int, int, bytes]] = {}
        """New entries that were not read yet, as reported by their append: physical offset, slot and topic of each."""
        self._known = KnownTime(log)
        self.begin_count = 0
        """Number of times that the waiting entries were forgotten, to be read again."""
        self._begin()

    def _begin(self) -> None:
        """Read the queue from the first entry that may wait."""
        self.begin_count += 1
        for waiting in (self._waiting, self._late, self._recalls):
            waiting.clear()
        self._new_entries.clear()
        self._known.forget()
        self._pending: _Delivery | None = None
        progress = self._progress = self._table.timer
        self._front = progress.front
        """Entries below it were taken for delivery."""
        self._taken_offset = self._first_offset = progress.first_offset
        self._first_due_ms = 0
        self.delivered_ms = 0
        """Wall time (ms) before which all stored and due messages are delivered, if readable, and their copies
        acknowledged."""

    @property
    def front_ms(self) -> int:
        """Slots of the wheel before this time (ms) are delivered, as far as this replica knows."""
        return max(0, self._front[0] - MAX_WIDTH_MS)

    def pause_ms(self) -> int:
        """Time (ms) until the next message is due, or the next attempt; at most `IDLE_MS`, since clocks may be set."""
        if self._pending is not None or not self._appends.is_serving:
            return IDLE_MS
        first_ms = min(self._waiting.first_slot_ms(), self._late.first_slot_ms())
        left_ms = first_ms + STEP_MS - self._clock.wall_ms()
        if left_ms <= 0 and self._appends.admission()[0] is not ResponseCode.SUCCESS:
            return REFUSED_MS
        return min(max(LEAST_PAUSE_MS, left_ms), IDLE_MS)

    @property
    def end_offset(self) -> int:
        """End of the queue of timer messages."""
        return self._log.queue_range(TIMER_TOPIC, TIMER_QUEUE_ID)[1]

    @property
    def waiting_count(self) -> int:
        """Number of waiting messages, unread ones included."""
        return len(self._waiting) + len(self._late) + self.unread_count

    def topic_counts(self) -> dict[str, int]:
        """Number of waiting messages by topic, sorted, as far as they were read. Recalled ones count until their
        time."""
        counts: dict[str, int] = {}
        for waiting in (self._waiting, self._late):
            for topic, count in waiting.topic_counts.items():
                name = self._topics.name(topic)
                if count and name:
                    counts[name] = counts.get(name, 0) + count
        return dict(sorted(counts.items()))

    @property
    def unread_count(self) -> int:
        """Number of entries that were not read."""
        return max(0, self.end_offset - self._taken_offset)

    def overdue_ms(self) -> int:
        """Delay (ms) of the first waiting message, 0 if none is late."""
        until_ms = self._clock.wall_ms() - STEP_MS
        first_ms = self._waiting.due_slot_ms(until_ms)
        return 0 if first_ms is None else until_ms - first_ms

    def counts_by(self, step_ms: int, topic: str | None, counts: dict[int, int]) -> Iterator[None]:
        """Count as `WaitingTimers.counts_by` does."""
        number = None if topic is None else self._topics.find(topic.encode())
        if topic is None or number is not None:
            for waiting in (self._waiting, self._late):
                yield from waiting.counts_by(step_ms, number, counts)

    def recall_refusal(self, principal: Principal) -> str:
        """Reason why the account can recall no more messages now, else ""."""
        count = len(self._recalls)
        if count >= MAX_RECALL_COUNT:
            return f"{count} messages that wait are taken back already"
        mark = principal.mark.encode()
        if mark and self._recalls.count_of(mark) >= MAX_RECALL_COUNT_OF_ONE:
            return f"account {principal.access_key} has taken back {MAX_RECALL_COUNT_OF_ONE} messages that wait already"
        return ""

    @property
    def is_delivering(self) -> bool:
        """True while copies wait for their acknowledgement."""
        return self._pending is not None

    def deliver(self) -> None:
        """Read new entries, and store due messages again. Raises StoreError."""
        self._follow()
        if self._take():
            self._wake()
        self._known.check(self._taken_offset, self._clock.wall_ms())
        is_serving = self._appends.is_serving and self._appends.admission()[0] is ResponseCode.SUCCESS
        if is_serving and self._pending is None and self._taken_offset >= self._progress.taken_offset:
            self._deliver()

    def timed(self, message: NewMessage, at_ms: int) -> NewMessage:
        """Form of a broker's own message that waits until the wall time `at_ms` (ms) and is then delivered within
        `timerPrecisionMs`: append it as any other. A past time is the next moment; a distant one costs a copy for each
        two days."""
        return to_timer(message, at_ms, self.rules.precision_ms)

    def snapshot(self) -> TimerSnapshot | None:
        """All waiting messages for `restore`. None while copies are pending, or if nothing waits."""
        is_settled = self._pending is None and self._table.timer == self._progress
        if not is_settled or not self._waiting or self._taken_offset < max(1, self._progress.taken_offset):
            return None
        units = self._log.units(TIMER_TOPIC, TIMER_QUEUE_ID, self._taken_offset - 1, 1)
        record = self._log.record_at(units[0][0]) if units else None
        if record is None:
            return None
        return TimerSnapshot(
            self._progress,
            self._taken_offset,
            units[0][0],
            crc32(record),
            self._topics.names[:],
            self._recalls.kept(),
            self._waiting.spans(),
            list(self._late),
            self._recalls.kept_marks(),
        )

    def restore(self, kept: TimerSnapshot) -> bool:
        """Restore the waiting messages at a start; False if the snapshot is of another log, or less is delivered.
        Raises ValueError if it is malformed."""
        if self._table.timer.is_behind(kept.progress) or not self._has(kept):
            return False
        waiting, topics = WaitingTimers(), TopicNumbers(kept.topics)
        for span in kept.spans:
            waiting.add_span(span)
        late = WaitingTimers()
        for slot_ms, offset in kept.late:
            late.add(slot_ms, offset, topics.OTHERS)
        recalls = RecallSet()
        recalls.take(kept.recalls, kept.recall_marks)
        self._waiting, self._late, self._topics, self._recalls = waiting, late, topics, recalls
        self._progress, self._front, self._taken_offset = kept.progress, kept.progress.front, kept.taken_offset
        self._first_offset = kept.progress.first_offset
        self._follow()
        return True

    def _has(self, kept: TimerSnapshot) -> bool:
        """True if the last entry of the snapshot is in the queue."""
        units = self._log.units(TIMER_TOPIC, TIMER_QUEUE_ID, kept.taken_offset - 1, 1)
        record = self._log.record_at(kept.phy_offset)
        return bool(units) and units[0][0] == kept.phy_offset and record is not None and crc32(record) == kept.crc

    def appended(self, messages: Sequence[NewMessage], batch: AppendedBatch) -> None:
        """Remember messages that were appended here: reading them again would cost more."""
        for message, phy_offset, offset in zip(messages, batch.phy_offsets, batch.queue_offsets, strict=True):
            if isinstance(message, TimedMessage) and len(self._new_entries) < MAX_NEW_ENTRY_COUNT:
                slot_ms = message.due(batch.store_timestamp_ms).slot_ms
                self._new_entries[offset] = phy_offset, slot_ms, message.real_topic.encode()

    def role_changed(self) -> None:
        """Forget pending deliveries, which are the new master's."""
        self._new_entries.clear()
        if self._pending is not None or self._table.timer.is_behind(self._progress):
            self._begin()

    def log_cut(self) -> None:
        self._begin()

    def hand_over(self) -> WaitingList | None:
        """All waiting messages; None if they are not known for certain, or none has ever waited."""
        if self.doubt() or not self._taken_offset:
            return None
        wall_ms, precision_ms = self._clock.wall_ms(), self.rules.precision_ms
        entries = self._entries(wall_ms, precision_ms) if self._waiting or self._late else ()
        return WaitingList(entries, self._taken_offset, wall_ms, precision_ms)

    def doubt(self) -> str:
        """Reason why the waiting messages are not known for certain, else ""."""
        if self._pending is not None:
            return "copies of messages that were due are not acknowledged yet"
        if self._table.timer != self._progress or not self._table.is_timer_written:
            return "the progress of deliveries is not written yet"
        if self._taken_offset < self._progress.taken_offset:
            return "the queue of timer messages has not been looked through yet"
        return ""

    def _entries(self, wall_ms: int, precision_ms: int) -> Iterator[tuple[int, int, int, int]]:
        """Waiting entries with times that RocketMQ's wheel has slots for: a late one gets the next slot, a distant one
        counts as rolled, with an odd time."""
        read_ms, newest = self._progress.read_ms, self._taken_offset - 1
        day_ms = _DAY_STEPS * precision_ms
        least_ms, last_ms = max(read_ms, wall_ms - day_ms), wall_ms + 6 * day_ms | 1
        assert 0 < last_ms <= _TIME_MASK, f"a wall time of {wall_ms} ms"
        waiting = [
            offset << _TIME_BITS | min(max(1, slot_ms), last_ms)
            for part in (self._waiting, self._late)
            for slot_ms, offset in part
        ]
        waiting.sort()
        low = self._log.queue_range(TIMER_TOPIC, TIMER_QUEUE_ID)[0]
        first, units = 0, list[Unit]()
        for item in waiting:
            offset, slot_ms = item >> _TIME_BITS, item & _TIME_MASK
            if offset < low:
                continue
            if not first <= offset < first + len(units):
                first, units = offset, self._log.units(TIMER_TOPIC, TIMER_QUEUE_ID, offset, READ_COUNT)
            unit = units[offset - first]
            record = self._recall_or_recalled(slot_ms, offset, unit)
            if not slot_ms & 1:
                if record is not None:  # RocketMQ looks for what takes a message back in the message's slot only
                    slot_ms += MAX_WIDTH_MS - 1 - slot_ms % MAX_WIDTH_MS
                slot_ms -= slot_ms % precision_ms
            takes_back = record is not None and is_recall(record)
            flags = (ROLLED if slot_ms & 1 else 0) | (DELETES if takes_back else 0)
            yield max(slot_ms, least_ms), flags, unit[0], unit[1]
        if waiting[-1] >> _TIME_BITS != newest >= low:
            # RocketMQ goes on in the queue behind the last unit: this one comes in a slot that has been
            (unit,) = self._log.units(TIMER_TOPIC, TIMER_QUEUE_ID, newest, 1)
            yield max(0, read_ms - precision_ms, wall_ms - 7 * day_ms), 0, unit[0], unit[1]

    def _recall_or_recalled(self, slot_ms: int, offset: int, unit: Unit) -> Record | None:
        """Record of an entry that is a recall or recalled; None for any other."""
        if not self._recalls.has_slot(slot_ms - slot_ms % MAX_WIDTH_MS):
            return None
        try:
            record = self._log.sound_record(TIMER_TOPIC, TIMER_QUEUE_ID, offset, unit, says_when_and_where_to)
        except DamagedError:
            return None
        return record if is_recall(record) or recalled_by(record) in self._recalls else None

    # --- waiting entries --------------------------------------------------------------------------------------------
    def _follow(self) -> None:
        """Remove entries that the master has delivered, on a slave."""
        progress = self._table.timer
        if progress == self._progress:
            return
        if self._pending is not None or progress.is_behind(self._progress):
            self._begin()
            return
        self._progress = progress
        for entry in self._waiting.take(progress.read_ms, len(self._waiting)):
            if entry[:2] >= progress.front:
                self._waiting.add(*entry)
            elif entry.offset >= progress.taken_offset:
                self._late.add(*entry)
        for entry in self._late.take_all():
            if entry.offset >= progress.taken_offset:
                self._late.add(*entry)
        self._front = max(self._front, progress.front)
        self._drop_recalls()

    def _take(self) -> bool:
        """Read the times of some new entries; True if more have come."""
        low, high = self._log.queue_range(TIMER_TOPIC, TIMER_QUEUE_ID)
        if self._taken_offset < low:
            self._taken_offset = low
            self._new_entries.clear()
        if self._taken_offset >= high:
            return False
        self._table.timers_wait()
        for unit in self._log.units(TIMER_TOPIC, TIMER_QUEUE_ID, self._taken_offset, READ_COUNT):
            offset = self._taken_offset
            told = self._new_entries.pop(offset, None)
            if told is not None and told[0] == unit[0]:
                self._taken_offset += 1
                self._add(told[1], offset, told[2])
                continue
            plain = self._log.plain_properties(TIMER_TOPIC, TIMER_QUEUE_ID, offset, unit)
            when_and_where = plain_due(*plain) if plain is not None else None
            if when_and_where is not None:
                when, topic = when_and_where
                self._taken_offset += 1
                self._add(when.slot_ms, offset, topic)
                continue
            try:
                record = self._log.sound_record(TIMER_TOPIC, TIMER_QUEUE_ID, offset, unit, says_when_and_where_to)
            except DamagedError:
                return False  # all wait until a replica has given it back
            self._taken_offset += 1
            self._take_record(record, offset)
        return self._taken_offset < high

    def _take_record(self, record: Record, offset: int) -> None:
        when = due(record)
        if when is None:
            self._tracer.event("timer_message_without_time", phy_offset=record.phy_offset)
            return
        recalled = recall(record)
        self._add(when.slot_ms, offset, _NO_TOPIC if recalled is not None else real_topic(record))
        if recalled is not None:
            self._recalls.add(recalled, mark_of(record))

    def _add(self, slot_ms: int, offset: int, topic: bytes) -> None:
        self.taken_count += 1
        if (slot_ms, offset) >= self._front:
            self._waiting.add(slot_ms, offset, self._topics.of(topic))
        elif offset >= self._progress.taken_offset:
            self._late.add(slot_ms, offset, self._topics.of(topic))

    def _drop_recalls(self) -> None:
        """Drop recalls of worked-off slots; a recall is always behind its message in the queue."""
        if not self._late:
            last_ms = self._waiting.first_slot_ms() - MAX_WIDTH_MS
            self._recalls.drop_below(min(self._front[0], last_ms) + 1)

    # --- deliver ------------------------------------------------------------------------------------------------------
    def _deliver(self) -> None:
        now_ms = self._clock.wall_ms()
        until_ms = min(now_ms - STEP_MS, self._known.ms - 1)
        entries = self._late.take(until_ms, MAX_DELIVERY_COUNT)
        due_now = self._waiting.take(until_ms, MAX_DELIVERY_COUNT - len(entries))
        if due_now:
            self._front = due_now[-1].slot_ms, due_now[-1].offset + 1
            entries += due_now
        if not entries:
            self._all_delivered(until_ms)
            return
        messages = self._messages(entries, now_ms)
        progress = self._progress_now(now_ms)
        if not messages and len(entries) < MAX_DELIVERY_COUNT:
            self._all_delivered(until_ms)
        if messages:
            self._append(messages, progress)
        elif progress != self._progress:
            self._moved(progress, self._log.max_phy_offset)
            self._wake()

    def _all_delivered(self, slot_ms: int) -> None:
        """Note that everything up to that slot is delivered. If only the wheel's slot of an entry is known, its time
        may be any within it."""
        self.delivered_ms = max(self.delivered_ms, slot_ms - MAX_WIDTH_MS)

    def _messages(self, entries: list[TimerEntry], now_ms: int) -> list[NewMessage]:
        low = self._log.queue_range(TIMER_TOPIC, TIMER_QUEUE_ID)[0]
        messages: list[NewMessage] = []
        deleted_count = 0
        units = self._units([entry.offset for entry in entries if entry.offset >= low])
        for entry in entries:
            offset = entry.offset
            if offset < low:
                continue
            try:
                record = self._log.sound_record(
                    TIMER_TOPIC, TIMER_QUEUE_ID, offset, units[offset], says_when_and_where_to
                )
            except DamagedError:
                self._late.add(*entry)  # it waits until a replica has given it back
                continue
            message = self._message(record, now_ms)
            if message is not None and self._is_for_deleted(record):
                deleted_count += 1
            elif message is not None:
                message.queue_id = self._topic_table.read_queue(message.topic, message.queue_id)
                messages.append(message)
        if len(units) < len(entries):
            self._tracer.event("timer_messages_expired", count=len(entries) - len(units))
        if deleted_count:
            self._tracer.event("timer_messages_of_deleted_topic", count=deleted_count)
        return messages

    def _is_for_deleted(self, record: Record) -> bool:
        return self._topic_table.is_for_deleted(real_topic(record).decode("utf-8", "replace"), record.phy_offset)

    def _units(self, offsets: list[int]) -> dict[int, Unit]:
        """Entries of the queue at these offsets, which may be far apart."""
        found: dict[int, Unit] = {}
        first, units, offsets = 0, list[Unit](), sorted(offsets)
        for number, offset in enumerate(offsets):
            if not first <= offset < first + len(units):
                last = offsets[bisect_left(offsets, offset + NEAR_COUNT, number) - 1]
                first, units = offset, self._log.units(TIMER_TOPIC, TIMER_QUEUE_ID, offset, last - offset + 1)
            found[offset] = units[offset - first]
        return found

    def _message(self, record: Record, now_ms: int) -> NewMessage | None:
        message = from_timer(record, now_ms, self._store_host)
        if message is None:
            self._tracer.event("timer_message_without_topic", phy_offset=record.phy_offset)
            return None
        if is_recall(record):
            return message if message.topic == TIMER_TOPIC else None
        return None if self._recalls and recalled_by(record) in self._recalls else message

    def _progress_now(self, now_ms: int) -> TimerProgress:
        """Progress after the delivery of everything taken out."""
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
        for message in messages:
            self.delivered_counts[message.topic] = self.delivered_counts.get(message.topic, 0) + 1
        self._pending = _Delivery(self, progress, end)
        self._appends.appended(end, self._pending)

    def _refused(self, message: NewMessage, error: UsageError) -> None:
        self._tracer.event("timer_message_not_delivered", topic=message.topic, reason=str(error))

    def finished(self, delivery: _Delivery, status: AckStatus) -> None:
        if self._pending is not delivery:
            return
        if status is AckStatus.OK:
            self._pending = None
            if not self._late:
                self._all_delivered(self._front[0])
            self._moved(delivery.progress, delivery.end_offset)
            self._wake()
        elif status is AckStatus.SERVICE_NOT_AVAILABLE:
            self._begin()
        else:
            # The copies are in the log of this epoch. They will be committed, or this mastership ends: no second copy
            # now.
            self._appends.appended(self._log.max_phy_offset, delivery)

    def _moved(self, progress: TimerProgress, log_end: int) -> None:
        self._table.put_timer(progress, log_end)
        self._progress = progress
        self._drop_recalls()
