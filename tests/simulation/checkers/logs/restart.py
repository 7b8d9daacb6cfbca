"""What the next start of a process would find on its disk (`crash_probes.py`), held against what it has promised: what
is called synced is there, marks speak of what is there, queues and epochs are those of the log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from zlib import crc32

from controller.quorum.raft_log import DurableRaftLog
from rmqha.model.error import StoreError
from rmqha.model.offset import PhyOffset
from rmqha.sim.disk import SimDisk
from rmqha.sim.prng import SimPrng
from rmqha.store.log.record import BLANK, MAGIC_BLANK, BadRecordError, locate
from rmqha.store.meta.checkpoint import CheckpointFile, ProgressFile
from rmqha.store.queue.dispatch_service import walk
from rmqha.store.queue.queue_check import UNIT
from rmqha.store.store import Store
from tests.simulation.history import InvariantError
from tests.simulation.processes.broker_process import BrokerProcess

LAST_ENTRIES = 60
"""Of each queue are looked at, and all records behind the first of them."""
LAST_BYTES = 8192
DISPATCH_BYTES = 1 << 22


class Mute:
    def event(self, name: str, **fields: Any) -> None:
        """Say nothing: what is opened to be looked at is no part of the run."""


class NothingSurvives(SimPrng):
    """Draws of a disk of which nothing survives that was not synced: the worst that a loss of power may do."""

    def chance(self, numerator: int, denominator: int) -> bool:
        return False


def opened(where: str, disk: SimDisk, broker: BrokerProcess) -> Store:
    try:
        return Store.open(disk, broker.store_config, Mute())
    except StoreError as error:
        raise InvariantError(f"{where} would not start: {error}") from error


@dataclass(frozen=True, slots=True)
class Promise:
    """What a store has told others after a step: durable from then on."""

    highest_epoch: int
    unclean: bool

    @classmethod
    def of(cls, store: Store) -> Promise:
        return cls(store.highest_epoch, store.unclean)

    def is_old(self, store: Store) -> bool:
        return store.highest_epoch != self.highest_epoch or store.unclean != self.unclean


class Restart:
    """`store` is opened on a copy of the disk of `live`; `where` begins every complaint."""

    def __init__(self, where: str, store: Store, live: Store, promise: Promise, *, power_loss: bool) -> None:
        self._where = where
        self._store = store
        self._live = live
        self._promise = promise
        self._power_loss = power_loss

    def _wrong(self, what: str) -> InvariantError:
        return InvariantError(f"{self._where} {what}")

    def verify_promises(self) -> None:
        """Valid in the midst of a handler too."""
        store, promise = self._store, self._promise
        if store.highest_epoch < promise.highest_epoch:
            raise self._wrong(f"knows of epoch {store.highest_epoch}; it has accepted {promise.highest_epoch}")
        if not store.unclean and (self._power_loss or (promise.unclean and self._live.unclean)):
            raise self._wrong("counts as whole, though it has not followed a master since it lost its power")

    def verify_log(self) -> None:
        """After a handler: nothing that is called synced is gone after a loss of power, nothing at all after a kill."""
        store, live = self._store, self._live
        promised = live.synced_offset if self._power_loss else live.max_phy_offset
        end = store.max_phy_offset
        if end < promised and end + self._record_bytes(end) <= promised:
            raise self._wrong(f"would have a log that ends at {end}; {promised} was promised")
        if end > live.max_phy_offset and not self._fills(live.record_end_offset, end):
            raise self._wrong(f"would have a log that ends at {end}; it was cut to {live.max_phy_offset}")
        start = max(store.min_phy_offset, live.min_phy_offset, min(end, promised) - LAST_BYTES)
        if start < min(end, promised) and _sum(store, start, min(end, promised)) != _sum(
            live, start, min(end, promised)
        ):
            raise self._wrong(f"would have other bytes in [{start}, {min(end, promised)})")
        if not self._power_loss and store.unclean and not live.unclean:
            raise self._wrong("would count as unclean")
        known = [(item.epoch, item.start_offset) for item in live.epochs if item.start_offset <= end]
        found = [(item.epoch, item.start_offset) for item in store.epochs]
        if found != known:
            raise self._wrong(f"would have epochs {found} of a log that ends at {end}; it has {known}")

    def _fills(self, position: int, end: int) -> bool:
        """A file's blank end of which a slave has the head alone: a start takes it for whole, and it is zeros."""
        view = self._live.view(PhyOffset(position), BLANK.size)
        return len(view) == BLANK.size and BLANK.unpack_from(view, 0) == (end - position, MAGIC_BLANK)

    def _record_bytes(self, position: int) -> int:
        """Of the record at `position` of the live log: a half one is cut at a start."""
        view = self._live.view(PhyOffset(position), 8)
        if len(view) < 8:
            return BLANK.size  # no room for a record before the end of the file, or a part of its length
        return max(BLANK.size, int(BLANK.unpack_from(view, 0)[0]))

    def verify_epochs(self, master: Store | None) -> None:
        """A slave's entries are its master's: bytes without their entry would pass for an older epoch's."""
        if master is None:
            return
        store = self._store
        start, end = max(store.min_phy_offset, master.min_phy_offset), store.max_phy_offset
        known = [item for item in master.epochs if start <= item.start_offset < end]
        found = [item for item in store.epochs if start <= item.start_offset < end]
        if found != known:
            raise self._wrong(f"would have epochs {found} in [{start}, {end}), its master has {known}")

    def verify_queues(self) -> None:
        """The last entries of each queue are those of the log, once all of it is dispatched: whatever is confirmed next
        stands at its place."""
        store = self._store
        store.set_confirm_offset(store.max_phy_offset)
        try:
            while store.dispatch(DISPATCH_BYTES):
                pass
            self._verify_queues()
        except (StoreError, BadRecordError) as error:
            raise self._wrong(f"would meet {error}") from error

    def _verify_queues(self) -> None:
        store = self._store
        first, ends = int(store.max_phy_offset), dict[tuple[str, int], int]()
        for topic, queue_ids in store.queues().items():
            for queue_id in queue_ids:
                low, high = store.queue_range(topic, queue_id)
                units = store.units(topic, queue_id, max(low, high - LAST_ENTRIES), 1)
                ends[topic, queue_id] = high
                if units and units[0][0] >= store.min_phy_offset:
                    first = min(first, units[0][0])
        seen = dict[tuple[str, int], int]()
        position, end = first, int(store.max_phy_offset)
        while position < end:
            view = store.view(PhyOffset(position), end - position)
            size, magic = BLANK.unpack_from(view, 0)
            if magic != MAGIC_BLANK:
                _, _, queue_id, number, _, _, topic_at, topic_bytes, *_ = locate(view, 0, len(view), position)
                queue = str(view[topic_at : topic_at + topic_bytes], "utf-8"), queue_id
                units = store.units(*queue, number, 1)
                if not units or units[0][:2] != (position, size):
                    raise self._wrong(f"would not have the record at {position} as number {number} of {queue}: {units}")
                seen[queue] = number + 1
            position += size
        for queue, number in seen.items():
            if ends[queue] != number:
                raise self._wrong(f"would have {ends[queue]} entries in {queue}; its log goes up to {number}")


def _sum(store: Store, start: int, end: int) -> int:
    value, position = 0, start
    while position < end:
        piece = store.view(PhyOffset(position), end - position)
        if not len(piece):
            return -1
        value, position = crc32(piece, value), position + len(piece)
    return value


def last_body(store: Store) -> int | None:
    """Offset of the body of the last whole record behind the progress; None if there is none."""
    found, end = None, store.max_phy_offset
    start = max(store._progress.position or 0, store.min_phy_offset, store._log.file_start(max(0, end - 1)))
    for position, _, at, parts in walk(store._log, start, end) if start < end else ():
        if parts is not None and parts[5]:
            found = position + parts[4] - at
    return found


def verify_rot(where: str, store: Store, rotten_offset: int) -> None:
    if not store.unclean and store.max_phy_offset <= rotten_offset:
        raise InvariantError(f"{where} would end at {store.max_phy_offset}, and count as whole")


def verify_marks(where: str, disk: SimDisk, broker: BrokerProcess, *, after: bool) -> None:
    """Of a disk that has lost its power, before a start: every entry of a queue that the progress speaks of is there.
    After a handler progress and checkpoint are those that were saved last."""
    live, checkpoint, progress = broker.store, CheckpointFile(disk), ProgressFile(disk)
    checkpoint.load()
    progress.load(checkpoint.value)
    if after and (progress.position, checkpoint.value) != (live._progress.position, live._checkpoint.value):
        raise InvariantError(
            f"{where} would know {progress.position} and {checkpoint.value};"
            f" {live._progress.position} and {live._checkpoint.value} were saved"
        )
    position, start = progress.position or 0, live.min_phy_offset
    plain = {topic: queue_ids for topic, queue_ids in live.queues().items() if topic not in live.batch_topics}
    for topic, queue_ids in plain.items():
        for queue_id in queue_ids:
            low, high = live.queue_range(topic, queue_id)
            first = max(low, high - LAST_ENTRIES)
            for number, (offset, size, code) in enumerate(live.units(topic, queue_id, first, high - first), first):
                entry = UNIT.pack(offset, size, code)
                if start <= offset < position and _entry(disk, broker, topic, queue_id, number) != entry:
                    raise InvariantError(
                        f"{where} would lack entry {number} of {topic} {queue_id}, which is of a record at {offset};"
                        f" its progress says {position}"
                    )


def _entry(disk: SimDisk, broker: BrokerProcess, topic: str, queue_id: int, number: int) -> bytes:
    """Bytes of a queue's entry on a disk, b"" if its file is gone."""
    file_bytes = broker.config.mapped_file_size_consume_queue
    at = number * UNIT.size
    path = f"consumequeue/{topic}/{queue_id}/{at // file_bytes * file_bytes:020d}"
    at %= file_bytes
    return disk.read(path)[at : at + UNIT.size] if disk.exists(path) else b""


def verify_raft(where: str, log: DurableRaftLog, live: DurableRaftLog) -> None:
    """The vote, the term and every entry that a controller has made durable are there."""
    stored, state = log.stored, live._hard_state
    if (stored.term, stored.voted_for) != (state.term, state.voted_for) and stored.term <= state.term:
        raise InvariantError(f"{where} would be in term {stored.term} with {stored.voted_for!r}; it is in {state}")
    if log._last_index != live._last_index:
        raise InvariantError(f"{where} would have entries up to {log._last_index}; it has {live._last_index}")
