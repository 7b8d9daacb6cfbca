"""What a replica knows of the timer messages that wait, held against its log: each entry that it knows is there, in its
slot and in order, none is missing that is not delivered, and of those that are taken back it knows that. No time counts
as known that its clock has not shown. A new master goes on by this, with nothing else to ask."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from rmqha.broker.tables.delay_offsets import DelayOffsetTable
from rmqha.broker.timers.message import Recall, due, recall, recalled_by
from rmqha.broker.timers.service import READ_COUNT, TimerService
from rmqha.broker.timers.snapshot import TimerSnapshots
from rmqha.broker.timers.waiting import WaitingTimers
from rmqha.model.config.delay_level import SCHEDULE_TOPIC
from rmqha.model.error import StoreError
from rmqha.model.message import TIMER_TOPIC
from rmqha.model.offset import PhyOffset
from rmqha.sim.disk import SimDisk
from rmqha.store.log.record import decode
from rmqha.store.reader import Unit
from rmqha.store.store import Store
from tests.simulation.checkers.logs.restart import Mute
from tests.simulation.history import InvariantError
from tests.simulation.processes.broker_process import BrokerProcess

STEPS_BETWEEN = 150
"""Steps of a broker between two looks, besides those at what has been read anew."""


class Stored(NamedTuple):
    """An entry of the timer topic's queue, as the log has it."""

    slot_ms: int
    named: Recall
    """The message that waits, or that it takes back."""
    takes_back: bool


@dataclass
class _Life:
    life: int
    begin_count: int
    was_known: bool = False
    left_steps: int = 0
    has_delivered: bool = False
    """Something may have been delivered from this memory."""
    stored: dict[int, Stored | None] = field(default_factory=dict)
    """By offset in the queue, what has been read; None: it names no time."""


class TimersKnown:
    def __init__(self) -> None:
        self._lives: dict[str, _Life] = {}
        self.judged_count = 0

    def stepped(self, broker: BrokerProcess) -> None:
        """A step of a broker."""
        known = self._lives.get(broker.host)
        timers = broker.core.timers
        if known is None or known.life != broker.life:
            # a snapshot may be that of a life that has delivered
            known = _Life(broker.life, timers.begin_count, has_delivered=broker.core.timer_snapshots._written_end > 0)
            self._lives[broker.host] = known
            self._watch(broker, known)
        is_new = not known.was_known and timers._taken_offset > 0
        if timers.begin_count != known.begin_count:
            known.begin_count, known.has_delivered, is_new = timers.begin_count, False, True
        known.has_delivered = known.has_delivered or broker.core.driver.is_serving
        known.left_steps -= 1
        if known.left_steps > 0 and not is_new:
            return
        known.left_steps = STEPS_BETWEEN
        known.was_known = timers._taken_offset > 0
        if timers._taken_offset:
            self.judged_count += 1
            verify(broker.host, broker.store, timers, known.stored, is_follower=not known.has_delivered)

    def _watch(self, broker: BrokerProcess, known: _Life) -> None:
        store, timers = broker.store, broker.core.timers
        truncate, restart_at, deliver = store.truncate, store.restart_at, timers.deliver

        def truncated(end_offset: PhyOffset) -> None:
            truncate(end_offset)
            known.stored.clear()
            known.left_steps = 0

        def restarted_at(phy_offset: PhyOffset) -> None:
            restart_at(phy_offset)
            known.stored.clear()
            known.left_steps = 0

        def delivered() -> None:
            deliver()
            if (known_ms := timers._known.ms) > (now_ms := timers._clock.wall_ms()):
                raise InvariantError(f"{broker.host} knows all timer messages up to {known_ms}, and it is {now_ms}")

        store.truncate, store.restart_at = truncated, restarted_at  # type: ignore[method-assign]
        timers.deliver = delivered  # type: ignore[method-assign]


class _Deaf:
    """Nobody hears of changes: what is opened to be looked at is no part of the run."""

    def table_changed(self) -> None:
        """Tell nobody."""

    save_tables_soon = topics_changed = table_changed

    def batch_topics_changed(self, topics: set[str]) -> None:
        """Tell nobody."""


def verify_start(where: str, disk: SimDisk, store: Store, broker: BrokerProcess) -> None:
    """`store` is opened on `disk`: what a start knows at once, by the snapshot if there is one, and when it has looked
    through the queue."""
    live = broker.core
    table = DelayOffsetTable(disk, live.delay_offsets._clock, store, _Deaf())
    own = live.timers
    timers = TimerService(
        *(store, live.driver, table, own._clock, Mute(), own._store_host), own.rules, _rest, live.topics
    )
    table.clamp(lambda level: store.queue_range(SCHEDULE_TOPIC, level - 1)[1], timers.end_offset)
    try:
        TimerSnapshots(disk, timers, table, live.timers._clock, Mute())
    except StoreError as error:
        raise InvariantError(f"{where} would not start: {error}") from error
    known: dict[int, Stored | None] = {}
    verify(where, store, timers, known)
    while timers._take():
        pass
    verify(where, store, timers, known)


def _rest() -> None:
    """It is not asked to deliver."""


def verify(
    where: str, store: Store, timers: TimerService, read: dict[int, Stored | None], *, is_follower: bool = False
) -> None:
    """`read`: entries that were read before. `is_follower`: nothing was delivered from this memory."""
    low, high = store.queue_range(TIMER_TOPIC, 0)
    taken, progress = timers._taken_offset, timers._progress
    if taken > high:
        raise InvariantError(f"{where} knows of {taken} timer messages of {high}")
    if timers._pending is None and timers._front != progress.front:
        raise InvariantError(f"{where} has worked off {timers._front} and delivers nothing; delivered is {progress}")
    first = max(low, progress.first_offset)
    stored = dict(_stored(store, first, taken, read))
    waits: dict[int, int] = {}
    for waiting in (timers._waiting, timers._late):
        _verify_order(where, waiting)
        for slot_ms, offset in waiting:
            if offset >= taken:
                raise InvariantError(f"{where} waits for timer message {offset}, and has looked at {taken}")
            waits[offset] = slot_ms
    for offset, entry in stored.items():
        if entry is None:
            continue
        known_ms = waits.get(offset, entry.slot_ms)
        if known_ms != entry.slot_ms:
            raise InvariantError(f"{where} has timer message {offset} at {known_ms}; it comes at {entry.slot_ms}")
        is_owed = (entry.slot_ms, offset) >= timers._front or (is_follower and offset >= progress.taken_offset)
        if offset not in waits and is_owed:
            raise InvariantError(f"{where} does not know that timer message {offset} comes at {entry.slot_ms}")
    _verify_taken_back(where, timers, stored, waits)


def _verify_taken_back(
    where: str, timers: TimerService, stored: dict[int, Stored | None], waits: dict[int, int]
) -> None:
    """A message that waits, and behind which stands what takes it back."""
    taken_back = {entry.named: offset for offset, entry in stored.items() if entry is not None and entry.takes_back}
    for offset in waits if taken_back else ():
        entry = stored.get(offset)
        if entry is None or entry.takes_back or taken_back.get(entry.named, -1) < offset:
            continue
        if entry.named not in timers._recalls:
            raise InvariantError(
                f"{where} does not know that timer message {offset} is taken back by {taken_back[entry.named]}"
            )


def _verify_order(where: str, waiting: WaitingTimers) -> None:
    """Progress within a slot is an offset: what lies below it counts as delivered."""
    for slot_ms, slot in waiting._slots.items():
        items = slot.items[slot.taken_count :]
        if any(first >= second for first, second in pairwise(items)):
            raise InvariantError(f"{where} has the timer messages of slot {slot_ms} out of order")


def _stored(store: Store, first: int, end: int, read: dict[int, Stored | None]) -> Iterator[tuple[int, Stored | None]]:
    start, units = first, list[Unit]()
    for offset in range(first, end):
        if offset not in read:
            if not start <= offset < start + len(units):
                start, units = offset, store.units(TIMER_TOPIC, 0, offset, READ_COUNT)
            phy_offset, size_bytes, _ = units[offset - start]
            read[offset] = _read(store.view(PhyOffset(phy_offset), size_bytes))
        yield offset, read[offset]


def _read(view: memoryview) -> Stored | None:
    record = decode(view)
    when, takes_back = due(record), recall(record)
    return None if when is None else Stored(when.slot_ms, takes_back or recalled_by(record), takes_back is not None)
