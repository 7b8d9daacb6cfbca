"""Recovery of groups' offsets on a new master, from checkpoints and ordered progress in its log, before any message.

Offsets reach slaves and the disk some time after their commit. A group with an old offset would get messages again that
it has acknowledged. A checkpoint in the log has the group's offset at that time. The scan begins at a mark: a consumer
offset of REVIVE_GROUP in the timer topic, committed after the offsets of all checkpoints before it, so that a replica
with the mark has those offsets.
Ignored are pops before a reset or removal of the offset by an operator, and pops before an Apache broker, which stores
no such times, wrote the offsets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from rmqha.broker.cold_reads import ColdEntries
from rmqha.broker.pop.checkpoint import (
    CHECKPOINT_TAG,
    ORDER_TAG,
    REVIVE_GROUP,
    CheckPoint,
    InOrder,
    is_of_pop,
    read,
)
from rmqha.broker.pop.positions import PopPositions, PopQueue
from rmqha.broker.tables.offsets import OffsetTable
from rmqha.model.error import DamagedError, RemoteProtocolError
from rmqha.model.message import PROPERTY_TAGS, REVIVE_QUEUE_COUNT, TIMER_TOPIC, are_whole, find_property
from rmqha.port import Tracer
from rmqha.store.integrity.damage import DamageTable
from rmqha.store.log.record import Record
from rmqha.store.reader import IsWhole, Unit, any_record

STEP_COUNT = 256
"""Entries that one step reads."""
MARK_INTERVAL_MS = 1000
_TAGS = PROPERTY_TAGS.encode()
_MOVING = CHECKPOINT_TAG.encode(), ORDER_TAG.encode()
"""Tags of records with the offset of a group."""


class RecoveryLog(Protocol):
    """Log with checkpoints; the store."""

    damage: DamageTable

    def queue_range(self, topic: str, queue_id: int) -> tuple[int, int]: ...

    def units(self, topic: str, queue_id: int, offset: int, count: int) -> list[Unit]: ...

    def sound_record(
        self, topic: str, queue_id: int, offset: int, unit: Unit, is_whole: IsWhole = any_record
    ) -> Record: ...


class PopRecovery:
    """Recovery in steps until `is_done`; then `mark` is called periodically."""

    def __init__(
        self,
        log: RecoveryLog,
        offsets: OffsetTable,
        positions: PopPositions,
        tracer: Tracer,
        revive_topic: str,
        broker_name: str,
        done: Callable[[], None],
        cold: ColdEntries,
    ) -> None:
        self._log = log
        self._offsets = offsets
        self._positions = positions
        self._tracer = tracer
        self._revive_topic = revive_topic
        self._broker_name = broker_name
        self._done = done
        self._cold = cold
        self.is_done = False
        self._ranges: list[list[int]] | None = None
        """(topic's number, queue id, next entry, end) of the ranges that remain."""
        self._raised_count = 0
        self._marked_at_ms = 0

    @property
    def is_marked(self) -> bool:
        """True if a master of this group has popped and sent it with its offsets."""
        return self._offsets.query(REVIVE_GROUP, TIMER_TOPIC, 0) is not None

    def role_changed(self) -> None:
        self.is_done = False
        self._ranges = None
        self._raised_count = 0

    def step(self) -> bool:
        """Read a step; True if more remains."""
        if self.is_done:
            return False
        if self._ranges is None:
            self._ranges = self._begin()
        if self._ranges:
            current = self._ranges[-1]
            if not self._read_step(current):
                return False  # a replica is asked for a record, or a thread reads some
            if current[2] >= current[3]:
                self._ranges.pop()
        if self._ranges:
            return True
        self.is_done = True
        if self._raised_count:
            self._tracer.event("pop_offsets_raised", count=self._raised_count)
        self._done()
        return False

    def _begin(self) -> list[list[int]]:
        ranges = []
        for queue_id in range(REVIVE_QUEUE_COUNT):
            low, high = self._log.queue_range(self._revive_topic, queue_id)
            known = self._offsets.query(REVIVE_GROUP, self._revive_topic, queue_id)
            ranges.append([1, queue_id, max(low, 0 if known is None else known + 1), high])
        low, high = self._log.queue_range(TIMER_TOPIC, 0)
        mark = self._offsets.query(REVIVE_GROUP, TIMER_TOPIC, 0)
        ranges.append([0, 0, max(low, mark or 0), high])
        return [item for item in ranges if item[2] < item[3]]

    def _read_step(self, current: list[int]) -> bool:
        is_revive, queue_id, offset, _ = current
        topic = self._revive_topic if is_revive else TIMER_TOPIC
        low, _ = self._log.queue_range(topic, queue_id)
        if offset < low:
            current[2] = low  # the log's oldest files have gone meanwhile
            return True
        try:
            bounds = self._cold.bounds(topic, queue_id, offset, STEP_COUNT)
        except DamagedError as error:
            self._tracer.event("pop_record_unreadable", topic=topic, queue_offset=offset, reason=str(error))
            current[2] += 1
            return True
        if bounds is None:
            return False
        for unit in self._log.units(topic, queue_id, offset, min(STEP_COUNT, bounds.last - offset)):
            if unit[0] + unit[1] > bounds.log_end and current[2] > offset:
                break
            try:
                record = self._log.sound_record(topic, queue_id, current[2], unit, _is_readable)
            except DamagedError as error:
                if self._log.damage.is_awaited(error.phy_offset):
                    return False
            else:
                if is_revive or is_of_pop(record.properties, self._revive_topic):
                    self._raise(record)
            current[2] += 1
        return True

    def _raise(self, record: Record) -> None:
        if find_property(record.properties, _TAGS) not in _MOVING:
            return
        try:
            found = read(record, self._broker_name)
        except (ValueError, RemoteProtocolError):
            return  # the revive service tells of it
        if isinstance(found, InOrder):
            next_offset = found.next_offset
        elif isinstance(found, CheckPoint) and found.queue_offsets and not (found.put_times or found.is_changed):
            next_offset = found.queue_offsets[-1] + 1
        else:
            return
        place, pop_ms = PopQueue(found.topic, found.group, found.queue_id), found.pop_ms or record.store_timestamp_ms
        if pop_ms > self._offsets.foreign_until_ms and self._positions.raise_by_pop(place, pop_ms, next_offset):
            self._raised_count += 1

    def mark(self, now_ms: int) -> None:
        """Commit the mark: the entry up to which all checkpoints' offsets are committed."""
        if not self.is_done or now_ms < self._marked_at_ms + MARK_INTERVAL_MS:
            return
        self._marked_at_ms = now_ms
        first = self._positions.first_timer_offset()
        mark = self._log.queue_range(TIMER_TOPIC, 0)[1] if first is None else first
        known = self._offsets.query(REVIVE_GROUP, TIMER_TOPIC, 0)
        if known is None or mark > known:
            self._offsets.commit(REVIVE_GROUP, TIMER_TOPIC, 0, mark)


def _is_readable(record: Record) -> bool:
    return are_whole(record.properties)
