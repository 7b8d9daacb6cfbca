"""Bytes of the log that rot under running brokers, and are to be mended from a replica that has them.

A record rots on one replica only at a time, all others have it sound. Struck are bodies and their CRCs, in records that
are in the queues and durable: no start checks those again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rmqha.broker.timers.message import TIMER_QUEUE_ID
from rmqha.model.config.delay_level import SCHEDULE_TOPIC
from rmqha.model.message import TIMER_TOPIC
from rmqha.model.offset import PhyOffset
from rmqha.sim.disk import SimDisk
from rmqha.sim.prng import SimPrng
from rmqha.store.log.record import BadRecordError, Located, locate, verify
from tests.simulation.history import InvariantError
from tests.simulation.processes.broker_process import BrokerProcess

CRC = range(8, 12)
"""In a record. The rest of its head is left alone: a start that must read it for its queues refuses the store."""
_ALL = 1 << 40


class Rotten(NamedTuple):
    host: str
    disk: SimDisk
    path: str
    position: int
    """In the file."""
    phy_offset: int
    """Of the record."""
    sound: int
    """The byte that was there."""


class LiveRot:
    """`strike` changes a byte; `missing` tells what is still rotten; `stepped` is a checker."""

    def __init__(self) -> None:
        self.struck: list[Rotten] = []
        self._checked: dict[str, tuple[int, int]] = {}
        """Of each host: its life, and up to where its log was sound as it came."""

    def strike(self, brokers: Sequence[BrokerProcess], draws: SimPrng) -> str:
        """The host that it struck, "" if nothing could be struck."""
        victims = [broker for broker in brokers if broker.alive and not broker.is_paused]
        if len(victims) != len(brokers):
            return ""
        victim = victims[draws.below(len(victims))]
        store = victim.store
        found = self._record(victim, draws)
        if found is None:
            return ""
        phy_offset, size = found
        data = bytes(store.view(PhyOffset(phy_offset), size))
        for other in brokers:
            has = other.store
            inside = has.min_phy_offset <= phy_offset and phy_offset + size <= min(
                has.dispatched_offset, has.synced_offset
            )
            if other is not victim and not (inside and bytes(has.view(PhyOffset(phy_offset), size)) == data):
                return ""
        _, _, _, _, body_at, body_bytes, *_ = locate(memoryview(data), 0, size, phy_offset)
        places = [*CRC, *range(body_at, body_at + body_bytes)]
        at = places[draws.below(len(places))]
        file_bytes = victim.config.mapped_file_size_commit_log
        path, position = f"commitlog/{phy_offset // file_bytes * file_bytes:020d}", phy_offset % file_bytes + at
        self.struck.append(Rotten(victim.host, victim.disk, path, position, phy_offset, data[at]))
        mask = 1 << draws.below(8)
        victim.disk.rot(path, position, mask)
        victim.struck[phy_offset + at] = data[at], data[at] ^ mask
        return victim.host

    def _record(self, victim: BrokerProcess, draws: SimPrng) -> tuple[int, int] | None:
        """A record to strike: of a delayed or timer message that still waits, or any."""
        store = victim.store
        end = min(store._progress.position or 0, store.dispatched_offset)
        level = 1 + draws.below(2)
        low = victim.core.delay_offsets.get(level)
        units = store.units(SCHEDULE_TOPIC, level - 1, low, 100)
        units += store.units(TIMER_TOPIC, TIMER_QUEUE_ID, victim.core.delay_offsets.timer.first_offset, 100)
        waiting = [unit for unit in units if unit[0] + unit[1] <= end]
        if waiting and draws.chance(1, 2):
            phy_offset, size, _ = waiting[draws.below(len(waiting))]
            return (phy_offset, size) if self._parts(victim, phy_offset) is not None else None
        file_bytes = victim.config.mapped_file_size_commit_log
        if end <= store.min_phy_offset:
            return None
        goal = store.min_phy_offset + draws.below(end - store.min_phy_offset)
        position = max(goal // file_bytes * file_bytes, store.min_phy_offset)
        while (parts := self._parts(victim, position)) is not None and position + parts[0] <= end:
            if position + parts[0] > goal:
                return position, parts[0]
            position += parts[0]
        return None

    @staticmethod
    def _parts(victim: BrokerProcess, position: int) -> Located | None:
        view = victim.store.view(PhyOffset(position), _ALL)
        try:
            return verify(view, 0, len(view), position)
        except BadRecordError:
            return None

    def missing(self, brokers: Sequence[BrokerProcess]) -> str:
        """What is still rotten, or ""."""
        for rotten in self.struck:
            for broker in brokers:
                if broker.disk is rotten.disk and broker.alive and self._is_rotten(rotten, broker):
                    return f"the record at {rotten.phy_offset} of {rotten.host} is not mended"
        return ""

    @staticmethod
    def _is_rotten(rotten: Rotten, broker: BrokerProcess) -> bool:
        store = broker.store
        if not store.min_phy_offset <= rotten.phy_offset < store.max_phy_offset or not rotten.disk.exists(rotten.path):
            return False
        return LiveRot._parts(broker, rotten.phy_offset) is None

    def stepped(self, broker: BrokerProcess) -> None:
        """What a broker has taken since the last look is sound, unless it was struck here."""
        store, (life, checked) = broker.store, self._checked.get(broker.host, (-1, 0))
        end = store.record_end_offset
        position = max(checked, int(store.min_phy_offset)) if life == broker.life and checked <= end else end
        while position < end:
            view = store.view(PhyOffset(position), _ALL)
            if len(view) < 8 or (int.from_bytes(view[:4], "big"), bytes(view[4:8])) == (len(view), b"\xcb\xd4\x31\x94"):
                position += len(view)
                continue
            try:
                position += verify(view, 0, len(view), position)[0]
            except BadRecordError as error:
                if any(item.disk is broker.disk and item.phy_offset == position for item in self.struck):
                    break
                raise InvariantError(f"{broker.host} took a record at {position} that is not sound: {error}") from None
        self._checked[broker.host] = broker.life, max(position, end)
