"""Rollback of the offsets of pops that depend on records which a cut of the log removes.

A group's offset depends on the checkpoints of its pops, that of a revive queue on the acknowledgements of what was
revived, the replica's own behind copies included. A replica has no offset before its log has those records
(`MetadataFollower`). A cut removes them, so it lowers the offsets: else messages that a client got and never
acknowledged would be given to nobody again. Messages of an offset that is lowered too far are given twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Protocol

from rmqha.broker.pop.checkpoint import (
    ACK_INTERVAL_MS,
    REVIVE_GROUP,
    Ack,
    CheckPoint,
    is_of_pop,
    read,
)
from rmqha.broker.pop.positions import PopQueue
from rmqha.broker.tables.offsets import OffsetTable
from rmqha.model.error import DamagedError, RemoteProtocolError
from rmqha.model.message import REVIVE_QUEUE_COUNT, TIMER_TOPIC
from rmqha.port import Tracer
from rmqha.store.log.record import BadRecordError, Located, Record, decode, verify
from rmqha.store.reader import Unit

STEP_COUNT = 256
"""Entries that one step reads."""
CLOCKS_MS = 5000
"""Bound (ms) on the difference of two masters' clocks."""


class CutLog(Protocol):
    """The part of a log that is read before its cut; the store has it."""

    def queue_range(self, topic: str, queue_id: int) -> tuple[int, int]: ...

    def units(self, topic: str, queue_id: int, offset: int, count: int) -> list[Unit]: ...

    def record_at(self, phy_offset: int) -> memoryview | None: ...

    def undispatched(self, start_offset: int) -> Iterator[tuple[memoryview, int, Located]]: ...

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int: ...


class PopOffsetRollback:
    """Rollback of one broker's pop offsets before a cut of its log."""

    def __init__(self, log: CutLog, offsets: OffsetTable, tracer: Tracer, revive_topic: str, broker_name: str) -> None:
        self._log = log
        self._offsets = offsets
        self._tracer = tracer
        self._revive_topic = revive_topic
        self._broker_name = broker_name

    def roll_back(self, end_offset: int) -> bool:
        """Lower offsets that depend on records from `end_offset` on, before their removal; True if any was lowered.
        Raises StoreError."""
        firsts: dict[PopQueue, int] = {}
        acked_ms: int | None = None
        for record in self._records(end_offset):
            try:
                found = read(record, self._broker_name)
            except (ValueError, RemoteProtocolError):
                continue  # it has moved nobody
            if isinstance(found, CheckPoint) and found.queue_offsets and not (found.put_times or found.is_changed):
                place = PopQueue(found.topic, found.group, found.queue_id)
                firsts[place] = min(found.queue_offsets[0], firsts.get(place, found.queue_offsets[0]))
            elif isinstance(found, Ack):
                acked_ms = found.pop_ms if acked_ms is None else min(acked_ms, found.pop_ms)
        limits = {(f"{place.topic}@{place.group}", place.queue_id): first for place, first in firsts.items()}
        if acked_ms is not None:
            limits |= self._worked_off(acked_ms)
        count = self._offsets.lower(limits)
        if count:
            self._tracer.event("pop_offsets_cut", count=count, end_offset=end_offset)
        return count > 0

    def _worked_off(self, popped_ms: int) -> dict[tuple[str, int], int]:
        """The entry of each revive queue before all checkpoints of pops since that time. A checkpoint comes there
        ACK_INTERVAL_MS before its time at the earliest."""
        since_ms, topic = popped_ms - ACK_INTERVAL_MS - CLOCKS_MS, self._revive_topic
        lasts = {}
        for queue_id in range(REVIVE_QUEUE_COUNT):
            try:
                first = self._log.offset_by_time(topic, queue_id, since_ms)
            except DamagedError:  # one of the records whose time is asked for
                first = self._log.queue_range(topic, queue_id)[0]
            lasts[f"{topic}@{REVIVE_GROUP}", queue_id] = first - 1
        return lasts

    def _records(self, end_offset: int) -> Iterator[Record]:
        """Valid records of pops that are removed, in no order."""
        queues = [(self._revive_topic, queue_id) for queue_id in range(REVIVE_QUEUE_COUNT)]
        for topic, queue_id in ((TIMER_TOPIC, 0), *queues):
            yield from self._of_pops(self._dispatched(topic, queue_id, end_offset))
        with suppress(DamagedError):  # what is behind it was never told to anybody
            found = self._log.undispatched(end_offset)
            yield from self._of_pops(view[at : at + parts[0]] for view, at, parts in found)

    def _dispatched(self, topic: str, queue_id: int, end_offset: int) -> Iterator[memoryview]:
        low, high = self._log.queue_range(topic, queue_id)
        while low < high:
            start = max(low, high - STEP_COUNT)
            units = self._log.units(topic, queue_id, start, high - start)
            for phy_offset, _, _ in reversed(units):
                if phy_offset < end_offset:
                    return
                record = self._log.record_at(phy_offset)
                if record is not None:
                    yield record
            high = start

    def _of_pops(self, records: Iterable[memoryview]) -> Iterator[Record]:
        for data in records:
            try:
                found = decode(data)
                is_timer = found.topic == TIMER_TOPIC and is_of_pop(found.properties, self._revive_topic)
                if not is_timer and found.topic != self._revive_topic:
                    continue
                verify(data, 0, len(data), found.phy_offset)
            except BadRecordError:
                continue  # rotten: what it said is not known
            yield found
