"""Stores popped messages that were not acknowledged in time again, in the retry topic of their group.

Only the open master works. A checkpoint is worked off once all earlier answered acknowledgements are known: its time is
over, the timers have delivered everything up to that time, and the revive queue is read to its end at that moment. An
acknowledgement follows the copies of a checkpoint, so that the next reader of the queue, rmqha or RocketMQ's broker,
does not store them again. The offset of REVIVE_GROUP advances when all of it is acknowledged by the group's rule: a new
master may store some again, whose acknowledgement it lacks, but leaves none out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple, Protocol

from rmqha.broker.cold_reads import ColdEntries
from rmqha.broker.pop.checkpoint import (
    ACK_INTERVAL_MS,
    REVIVE_GROUP,
    Ack,
    CheckPoint,
    InOrder,
    Key,
    due_ms_of,
    is_popped_of,
    read,
)
from rmqha.broker.pop.counts import PopCounts
from rmqha.broker.pop.revive_queue import PendingCheckpoint, ReviveQueue
from rmqha.broker.replication.waiter import MessageAppender, Waiting
from rmqha.broker.services.schedule import ScheduleLog, append_all
from rmqha.broker.tables.groups import GroupTable
from rmqha.broker.tables.offsets import OffsetTable
from rmqha.broker.tables.topics import TopicTable
from rmqha.ha.action import AckStatus
from rmqha.model.code import ResponseCode
from rmqha.model.error import DamagedError, RemoteProtocolError, UsageError
from rmqha.model.message import (
    MAX_PROPERTIES_BYTES,
    PROPERTY_CRC32,
    PROPERTY_FIRST_POP_TIME,
    PROPERTY_ORIGIN_GROUP,
    REVIVE_QUEUE_COUNT,
    SYS_FLAG_INNER_BATCH,
    are_whole,
    decode_properties,
    encode_properties,
)
from rmqha.model.offset import PhyOffset
from rmqha.port import Clock, Tracer
from rmqha.store.integrity.damage import DamageTable
from rmqha.store.log.record import Host, NewMessage, Record
from rmqha.store.reader import Unit
from rmqha.wire.state.receipt import NORMAL, kind_of, normal_topic, retry_topic

READ_COUNT = 256
"""Entries of one queue that a step reads."""
READ_COUNTS = READ_COUNT, 64, 16, 4, 1
"""Entries that a step reads back: fewer where their records lie far apart."""
MAX_COPY_COUNT = 64
MAX_COPY_BYTES = 1024 * 1024
"""Bytes of bodies that one call stores again, unless one checkpoint has more: a pop gives some hundred KiB, or one
message."""
REPEATED_MS = 5000
"""Range (ms) before the last known delivery in which a new master's timers may deliver entries again."""
PUT_BACK_MS = (10_000, 20_000, 30_000, 60_000, 120_000, 300_000, 600_000)
"""Pauses (ms) before a message that cannot be read is tried again; the last one repeats."""
MAX_RECONSUME_TIMES = 2**31 - 1
MAX_TOLD_BYTES = MAX_PROPERTIES_BYTES - 32
"""Bytes of properties that revived messages may have besides the original ones; a CRC needs the rest."""


class ReviveLog(ScheduleLog, Protocol):
    """Log with checkpoints and messages; the store."""

    damage: DamageTable

    @property
    def last_store_timestamp_ms(self) -> int: ...

    @property
    def settled_offset(self) -> PhyOffset:
        """End of what is committed, durable and dispatched."""
        ...


class DeliveredTime(Protocol):
    """Port to the progress of timers; `TimerService` is one."""

    delivered_ms: int

    @property
    def front_ms(self) -> int:
        """Slots before this time are delivered, as far as this replica knows."""
        ...


class _Mark(NamedTuple):
    """Time up to which timers had delivered when the log ended at `phy_offset`. `ends`: ends of the queues, once that
    is dispatched."""

    delivered_ms: int
    phy_offset: int
    ends: tuple[int, ...] | None = None


class _Copies(Waiting):
    __slots__ = ("_service", "points")

    def __init__(self, service: ReviveService, points: list[tuple[int, PendingCheckpoint]]) -> None:
        self._service = service
        self.points = points
        """Checkpoints with their queue ids."""

    def finish(self, status: AckStatus) -> None:
        self._service.finished(self, status)


class ReviveService:
    """Revive service. `step` is called about every 100 ms and after each `wake`. `precision_ms` returns that of
    timers."""

    def __init__(
        self,
        log: ReviveLog,
        appends: MessageAppender,
        offsets: OffsetTable,
        topics: TopicTable,
        groups: GroupTable,
        timers: DeliveredTime,
        clock: Clock,
        tracer: Tracer,
        store_host: Host,
        revive_topic: str,
        broker_name: str,
        precision_ms: Callable[[], int],
        wake: Callable[[], None],
        counts: PopCounts,
        cold: ColdEntries,
    ) -> None:
        self._log = log
        self._appends = appends
        self._offsets = offsets
        self._topics = topics
        self._groups = groups
        self._timers = timers
        self._clock = clock
        self._tracer = tracer
        self._store_host = store_host
        self.revive_topic = revive_topic
        self._broker_name = broker_name
        self._precision_ms = precision_ms
        self._wake = wake
        self._counts = counts
        self._cold = cold
        self.revived_count = 0
        self.role_changed()

    def role_changed(self) -> None:
        """Forget the state, which is the new master's."""
        self._queues: list[ReviveQueue] | None = None
        self._copies: _Copies | None = None
        self._mark: _Mark | None = None
        self._worked_off: tuple[int, list[int]] | None = None
        """Worked-off entries of the queues, and the end of the log at that time."""
        self._acking: dict[Key, int] = {}
        self._reread_offsets: list[int] | None = None
        """For each queue the last entry after the worked-off ones that a new master must still read, -1 for none; None
        once timers deliver nothing twice."""
        self._repeated_from_ms = self._timers.front_ms - REPEATED_MS
        self._repeated_until_ms = 0
        self._unreadable: dict[int, int] = {}
        """By queue, the entry that the disk could not read last."""
        self.settled_ms = 0
        """Time (ms) up to which all checkpoints and their answered acknowledgements are known."""

    # --- events of clients ------------------------------------------------------------------------------------------
    def ack_begins(self, key: Key) -> None:
        """Take note of an acknowledgement that is stored and not answered yet."""
        self._acking[key] = self._acking.get(key, 0) + 1

    def ack_ends(self, key: Key, ack: Ack, revive_queue_id: int, *, is_held: bool) -> None:
        """Take note of its end. `is_held`: acknowledged by the group's rule."""
        left = self._acking.get(key, 0) - 1
        if left > 0:
            self._acking[key] = left
        else:
            self._acking.pop(key, None)
        if is_held and self._queues is not None and 0 <= revive_queue_id < len(self._queues):
            self._queues[revive_queue_id].acked(ack)

    def is_over(self, key: Key, revive_queue_id: int, due_ms: int) -> bool:
        """True if a checkpoint's messages were revived, or are all acknowledged."""
        if due_ms > self.settled_ms or self._queues is None or not 0 <= revive_queue_id < len(self._queues):
            return False
        return not self._queues[revive_queue_id].knows(key)

    def is_spent(self, key: Key, revive_queue_id: int, due_ms: int) -> bool:
        """True if a checkpoint's time is over: its messages were revived or soon will be, perhaps by an earlier master
        whose clock was ahead."""
        if due_ms <= max(self._clock.wall_ms(), self.settled_ms):
            return True
        if not self.settled_ms or self._queues is None:  # what it has done is not read yet
            return due_ms <= self._log.last_store_timestamp_ms
        return 0 <= revive_queue_id < len(self._queues) and self._queues[revive_queue_id].is_past(key)

    def in_flight(self) -> Counter[tuple[str, str]]:
        """Messages by topic and group whose time is over within a second and that are not acknowledged."""
        found: Counter[tuple[str, str]] = Counter()
        for queue in self._queues or ():
            for point in queue.points():
                found[point.checkpoint.topic, point.checkpoint.group] += len(point.open_offsets)
        return found

    # --- steps --------------------------------------------------------------------------------------------------------
    def step(self) -> None:
        """Read new entries, and revive due messages. Raises StoreError."""
        if not self._appends.is_serving:
            return
        if self._queues is None:
            self._queues = [ReviveQueue(self._committed(queue_id) + 1) for queue_id in range(REVIVE_QUEUE_COUNT)]
            self._reread_offsets = [queue.read_offset - 1 for queue in self._queues]
            self._repeated_until_ms = max(self._clock.wall_ms(), self._log.last_store_timestamp_ms)
        before = list(self._reread_offsets or ())
        if self._has_past():
            if self._reread_offsets != before:  # else a thread reads what is next
                self._wake()
            return
        has_read = [self._read(queue_id, queue) for queue_id, queue in enumerate(self._queues)]
        self._settle()
        if self._copies is None and self._appends.admission()[0] is ResponseCode.SUCCESS:
            self._revive()
        self._commit()
        if any(has_read):
            self._wake()

    def _has_past(self) -> bool:
        """Read worked-off entries, which timers may deliver again; True if more remain."""
        assert self._queues is not None
        if self._reread_offsets is None:
            return False
        if self.settled_ms > self._repeated_until_ms:
            self._reread_offsets = None
            for queue in self._queues:
                queue.forget_past()
            return False
        for queue_id, last in enumerate(self._reread_offsets):
            if last >= 0:
                self._reread_offsets[queue_id] = self._past_of(queue_id, last)
        return any(last >= 0 for last in self._reread_offsets)

    def _past_of(self, queue_id: int, last: int) -> int:
        """Next entry to read, -1 for none."""
        assert self._queues is not None
        low, high = self._log.queue_range(self.revive_topic, queue_id)
        last = min(last, high - 1)
        if last < low:
            return -1
        found_units = self._units_up_to(queue_id, low, last)
        if found_units is None:
            return last
        first, units = found_units
        is_last = first == low
        for offset, unit in enumerate(units, first):
            try:
                found = self._entry(self._log.sound_record(self.revive_topic, queue_id, offset, unit, _is_sound))
            except DamagedError:
                continue
            if isinstance(found, CheckPoint):
                self._queues[queue_id].past(found)
                self._repeated_until_ms = max(self._repeated_until_ms, found.due_ms)
                is_last = is_last or found.due_ms - ACK_INTERVAL_MS < self._repeated_from_ms
        return -1 if is_last else first - 1

    def _units_up_to(self, queue_id: int, low: int, last: int) -> tuple[int, list[Unit]] | None:
        """Give the entries up to `last` that may be checked together, with the first one's offset; None: later."""
        for count in READ_COUNTS:
            first = max(low, last - count + 1)
            wanted_count = last - first + 1
            try:
                bounds = self._cold.bounds(self.revive_topic, queue_id, first, wanted_count)
            except DamagedError:
                continue  # of another part, or the last one is left out
            if bounds is None:
                return None
            units = self._log.units(self.revive_topic, queue_id, first, min(wanted_count, bounds.last - first))
            if len(units) == wanted_count and (count == 1 or units[-1][0] + units[-1][1] <= bounds.log_end):
                return first, units
        return last, []

    @property
    def has_entries(self) -> bool:
        """True if any checkpoint, acknowledgement or ordered progress is in the revive queues."""
        return any(self._end(queue_id) for queue_id in range(REVIVE_QUEUE_COUNT))

    def lags(self) -> list[tuple[int, int]]:
        """Unread entries, and delay (ms) of the first due checkpoint, by revive queue; [] for a replica that works off
        none."""
        now_ms = self._clock.wall_ms()
        return [
            (max(0, self._end(queue_id) - queue.read_offset), queue.late_ms(now_ms))
            for queue_id, queue in enumerate(self._queues or ())
        ]

    @property
    def is_read(self) -> bool:
        """True if the queues have been read to their ends."""
        return self._queues is not None and all(
            queue.read_offset >= self._end(queue_id) for queue_id, queue in enumerate(self._queues)
        )

    def _committed(self, queue_id: int) -> int:
        offset = self._offsets.query(REVIVE_GROUP, self.revive_topic, queue_id)
        return -1 if offset is None else offset

    def _end(self, queue_id: int) -> int:
        return self._log.queue_range(self.revive_topic, queue_id)[1]

    def _read(self, queue_id: int, queue: ReviveQueue) -> bool:
        """Read a part of the queue; True if more remains."""
        low, high = self._log.queue_range(self.revive_topic, queue_id)
        if queue.read_offset < low:
            self._tracer.event("revive_entries_expired", queue_id=queue_id, count=low - queue.read_offset)
            queue.read_offset = low
        if queue.read_offset >= high:
            return False
        first = queue.read_offset
        try:
            bounds = self._cold.bounds(self.revive_topic, queue_id, first, READ_COUNT)
        except DamagedError as error:
            self._tell_unreadable(queue_id, first, error)
            return False  # passed over, its messages might never come again
        if bounds is None:
            return False
        for unit in self._log.units(self.revive_topic, queue_id, first, min(READ_COUNT, bounds.last - first)):
            offset = queue.read_offset
            if unit[0] + unit[1] > bounds.log_end and offset > first:
                break
            try:
                record = self._log.sound_record(self.revive_topic, queue_id, offset, unit, _is_sound)
            except DamagedError as error:
                if self._log.damage.is_awaited(error.phy_offset):
                    return False  # until a replica has given it back
                self._tracer.event("revive_entry_damaged", queue_id=queue_id, phy_offset=unit[0])
                queue.read(None, 0)
                continue
            entry = self._entry(record)
            if entry is not None:
                self._counts.read(entry)
            queue.read(entry, due_ms_of(record))
        return True

    def _tell_unreadable(self, queue_id: int, offset: int, error: DamagedError) -> None:
        """Trace that the disk cannot read an entry, once for each."""
        if self._unreadable.get(queue_id) != offset:
            self._unreadable[queue_id] = offset
            self._tracer.event("revive_held_by_disk", queue_id=queue_id, queue_offset=offset, reason=str(error))

    def _entry(self, record: Record) -> CheckPoint | Ack | None:
        try:
            found = read(record, self._broker_name)
            return None if isinstance(found, InOrder) else found
        except (ValueError, RemoteProtocolError) as error:
            self._tracer.event("revive_entry_unreadable", phy_offset=record.phy_offset, reason=str(error))
            return None

    def _settle(self) -> None:
        assert self._queues is not None
        mark = self._mark
        if mark is None:
            mark = self._mark = _Mark(self._timers.delivered_ms, self._log.max_phy_offset)
        if mark.ends is None:
            if self._log.dispatched_offset < mark.phy_offset:
                return
            mark = self._mark = mark._replace(ends=tuple(self._end(queue_id) for queue_id in range(len(self._queues))))
        assert mark.ends is not None
        if all(queue.read_offset >= end for queue, end in zip(self._queues, mark.ends, strict=True)):
            self.settled_ms = max(self.settled_ms, mark.delivered_ms)
            self._mark = None
            for queue in self._queues:
                queue.settle(self.settled_ms)

    def _commit(self) -> None:
        """Commit the worked-off offsets once the results of their entries are committed and durable: a replica with the
        offset has the acknowledgements and the copies."""
        if self._worked_off is None:
            found = [queue.worked_off_offset - 1 for queue in self._queues or ()]
            if any(done > self._committed(queue_id) for queue_id, done in enumerate(found)):
                self._worked_off = self._log.max_phy_offset, found
        elif self._log.settled_offset >= self._worked_off[0]:
            for queue_id, done in enumerate(self._worked_off[1]):
                if done > self._committed(queue_id):
                    self._offsets.commit(REVIVE_GROUP, self.revive_topic, queue_id, done)
            self._worked_off = None

    # --- revival ----------------------------------------------------------------------------------------------------
    def _revive(self) -> None:
        assert self._queues is not None
        points: list[tuple[int, PendingCheckpoint]] = []
        messages: list[NewMessage] = []
        size_bytes = copy_count = 0
        for queue_id, queue in enumerate(self._queues):
            while copy_count < MAX_COPY_COUNT and size_bytes < MAX_COPY_BYTES:
                point = queue.take_due(self.settled_ms, self._acking, self._is_readable)
                if point is None:
                    break
                copies, stored_offsets = self._copies_of(queue_id, point)
                messages += copies
                if stored_offsets:
                    messages.append(self._ack_of(queue_id, point.checkpoint, stored_offsets))
                size_bytes += sum(len(message.body) for message in copies)
                copy_count += len(copies)
                points.append((queue_id, point))
                put_back_count = len(copies) - len(stored_offsets)
                over_count = len(point.open_offsets) - put_back_count
                topic, group = point.checkpoint.topic, point.checkpoint.group
                self._counts.stored_again(topic, group, len(stored_offsets), over_count)
        if messages:
            self._copies = _Copies(self, points)
            end = append_all(self._appends, self._log, messages, self._refused)
            self.revived_count += copy_count
            self._appends.appended(end, self._copies)
        else:
            for queue_id, point in points:
                self._queues[queue_id].done(point)

    def _copies_of(self, queue_id: int, point: PendingCheckpoint) -> tuple[list[NewMessage], list[int]]:
        """Messages to store for its open ones, and their original offsets."""
        checkpoint = point.checkpoint
        origin = normal_topic(checkpoint.topic, checkpoint.group)
        copies: list[NewMessage] = []
        stored_offsets: list[int] = []
        known = all(self._topics.get(name) is not None for name in (origin, checkpoint.topic))
        if not known or self._is_forgotten(checkpoint):
            return copies, stored_offsets  # deleted: nobody will ask
        has_room = self._has_room(checkpoint)
        for offset in sorted(point.open_offsets):
            if not has_room:
                copies.append(self._put_back(queue_id, checkpoint, offset))
                continue
            try:
                record = self._message(point, offset)
            except DamagedError:
                copies.append(self._put_back(queue_id, checkpoint, offset))
                continue
            if record is None:
                self._tracer.event("popped_message_expired", topic=checkpoint.topic, queue_offset=offset)
            elif kind_of(checkpoint.topic) == NORMAL or is_popped_of(checkpoint.group, record.properties):
                copies.append(self._copy(checkpoint, record))
                stored_offsets.append(offset)
        return copies, stored_offsets

    def _is_forgotten(self, checkpoint: CheckPoint) -> bool:
        """True if an operator has deleted the group with its offsets since. A group without settings may be created by
        its next pop and continue: only its settings were deleted, or have not reached this new master."""
        place = checkpoint.group, checkpoint.topic, checkpoint.queue_id
        if self._groups.get(checkpoint.group) is not None or self._offsets.query(*place) is not None:
            return False
        return 0 < checkpoint.pop_ms <= self._offsets.set_back_ms(*place)

    def _ack_of(self, queue_id: int, checkpoint: CheckPoint, offsets: list[int]) -> NewMessage:
        """Acknowledgement of a checkpoint's messages that follows their copies."""
        ack = Ack(*checkpoint.key, tuple(offsets), is_batch=len(offsets) > 1)
        when = checkpoint.due_ms, self._clock.wall_ms(), self._store_host, self._precision_ms()
        return ack.message(self.revive_topic, queue_id, *when)

    def _is_readable(self, point: PendingCheckpoint) -> bool:
        """True if its messages are in memory, or cannot be read; what is missing is requested."""
        topic, queue_id = point.checkpoint.topic, point.checkpoint.queue_id
        waits = False
        for offset in sorted(point.open_offsets - point.checked.keys()):
            try:
                if self._cold.bounds(topic, queue_id, offset, 1) is None:
                    waits = True
                else:
                    point.checked[offset] = ""
            except DamagedError as error:
                point.checked[offset] = str(error)
        return not waits

    def _message(self, point: PendingCheckpoint, offset: int) -> Record | None:
        """Record of a message, whose properties may have any form: clients choose it. Raises DamagedError."""
        checkpoint = point.checkpoint
        if trouble := point.checked.get(offset):
            raise DamagedError(trouble)
        units = self._log.units(checkpoint.topic, checkpoint.queue_id, offset, 1)
        if not units:
            return None
        return self._log.sound_record(checkpoint.topic, checkpoint.queue_id, offset, units[0])

    def _copy(self, checkpoint: CheckPoint, record: Record) -> NewMessage:
        topic = checkpoint.topic
        if kind_of(topic) == NORMAL:
            topic = retry_topic(topic, checkpoint.group)
        self._provide(topic, checkpoint.group)
        properties = decode_properties(record.properties)
        for name in (PROPERTY_CRC32, PROPERTY_ORIGIN_GROUP):
            properties.pop(name, None)
        told = {PROPERTY_ORIGIN_GROUP: checkpoint.group}
        if not record.reconsume_times or PROPERTY_FIRST_POP_TIME not in properties:
            told[PROPERTY_FIRST_POP_TIME] = str(checkpoint.pop_ms)
        while len(encoded := encode_properties({**properties, **told})) > MAX_TOLD_BYTES and told:
            told.popitem()  # rather than the message
        message = record.as_new_message(topic, 0, encoded, self._store_host)
        message.sys_flag &= ~SYS_FLAG_INNER_BATCH
        message.born_host = self._store_host
        message.reconsume_times = min(record.reconsume_times + 1, MAX_RECONSUME_TIMES)
        return message

    def _has_room(self, checkpoint: CheckPoint) -> bool:
        """True if its messages can come again: their topic is there, or may be made."""
        topic = checkpoint.topic
        return kind_of(topic) != NORMAL or self._topics.has_retry_room(retry_topic(topic, checkpoint.group))

    def _provide(self, topic: str, group: str) -> None:
        """Give the group an offset there from the beginning: by it a deletion of the topic finds the group."""
        self._topics.create_retry(topic)
        if self._offsets.query(group, topic, 0) is None:
            self._offsets.commit(group, topic, 0, 0)

    def _put_back(self, queue_id: int, checkpoint: CheckPoint, offset: int) -> NewMessage:
        """Checkpoint of one message that is unreadable, or whose retry topic has no room: delivered again later."""
        now_ms = self._clock.wall_ms()
        pause_ms = PUT_BACK_MS[min(checkpoint.put_times, len(PUT_BACK_MS) - 1)]
        later = CheckPoint(
            checkpoint.topic,
            checkpoint.group,
            checkpoint.queue_id,
            offset,
            checkpoint.pop_ms,
            max(0, now_ms + pause_ms - checkpoint.pop_ms),
            checkpoint.broker_name,
            (offset,),
            checkpoint.put_times + 1,
        )
        return later.message(self.revive_topic, queue_id, now_ms, self._store_host, self._precision_ms())

    def _refused(self, message: NewMessage, error: UsageError) -> None:
        self._tracer.event("popped_message_not_stored_again", topic=message.topic, reason=str(error))

    def finished(self, copies: _Copies, status: AckStatus) -> None:
        if self._copies is not copies or self._queues is None:
            return
        if status is AckStatus.OK:
            self._copies = None
            for queue_id, point in copies.points:
                self._queues[queue_id].done(point)
            self._wake()
        elif status is AckStatus.SERVICE_NOT_AVAILABLE:
            self.role_changed()
        else:
            # The copies are in the log of this epoch. They will be committed, or this mastership ends: no second copy
            # now.
            self._appends.appended(self._log.max_phy_offset, copies)


def _is_sound(record: Record) -> bool:
    return are_whole(record.properties)
