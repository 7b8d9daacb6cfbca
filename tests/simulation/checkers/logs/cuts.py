"""Right behind a cut of its log: no mark and no table of a replica speaks of what is gone, in memory or on its disk,
and what is appended next follows what is left. So where it gives its log up, or a file of it, and where it gets another
master: deliveries count on no copies of the last one's that it lacks."""

from __future__ import annotations

from rmqha.broker.tables.delay_offsets import RECENT_STATES, DelayOffsetTable
from rmqha.model.message import TIMER_TOPIC
from rmqha.model.offset import PhyOffset
from rmqha.sim.disk import SimDisk
from rmqha.store.store import Store
from tests.simulation.history import InvariantError
from tests.simulation.processes.broker_process import BrokerProcess


class Cuts:
    def __init__(self) -> None:
        self._lives: dict[str, int] = {}
        """By host: the life whose store is watched."""
        self._cut: dict[str, bool] = {}
        """Hosts whose handler under way has cut the log, and whether whole records went: of half a one no table
        speaks."""
        self.judged_count = 0

    def stepped(self, broker: BrokerProcess) -> None:
        """After a step of `broker`."""
        if self._lives.get(broker.host) != broker.life:
            self._lives[broker.host] = broker.life
            self._cut.pop(broker.host, None)
            self._watch(broker)
        whole = self._cut.pop(broker.host, None)
        if whole is not None:
            verify_cut(broker)
        if whole:
            self.judged_count += 1
            verify_tables(broker)

    def _watch(self, broker: BrokerProcess) -> None:
        store, cut = broker.store, broker.store.truncate

        def truncate(end_offset: PhyOffset) -> None:
            self._cut[broker.host] = self._cut.get(broker.host, False) or end_offset < store.record_end_offset
            cut(end_offset)

        store.truncate = truncate  # type: ignore[method-assign]
        restart, unlink = store.restart_at, store.schedule_unlink

        def restart_at(phy_offset: PhyOffset) -> None:
            restart(phy_offset)
            verify_given_up(broker)

        def schedule_unlink(now_ms: int, timeout_ms: int, retry_ms: int) -> bool:
            before = first_file(broker)
            more = unlink(now_ms, timeout_ms, retry_ms)
            if first_file(broker) > before:
                verify_removed(broker)
            return more

        store.restart_at = restart_at  # type: ignore[method-assign]
        store.schedule_unlink = schedule_unlink  # type: ignore[method-assign]


def first_file(broker: BrokerProcess) -> int:
    """Where the oldest file of the log on the disk begins."""
    names = broker.disk.list("commitlog") if broker.disk.exists("commitlog") else []
    return min((int(name) for name in names if name.isdigit()), default=0)


def verify_removed(broker: BrokerProcess) -> None:
    """Old files have just left the disk: what a start goes on from lies behind them."""
    position, first = broker.store._progress.position or 0, first_file(broker)
    if position < first:
        raise InvariantError(f"{broker.host} has removed what lies before {first}; its progress speaks of {position}")


def verify_given_up(broker: BrokerProcess) -> None:
    """Its log has just been set aside, and begins anew: no mark speaks of the old one."""
    store = broker.store
    low, high = store.min_phy_offset, store.max_phy_offset
    position, confirm = store._progress.position or 0, store._checkpoint.value.confirm_phy_offset
    wrong = [mark for mark in (position, confirm) if mark and not low <= mark <= high]
    if wrong:
        raise InvariantError(
            f"{broker.host} begins its log anew at {low}; its progress and checkpoint speak of {wrong}"
        )


def verify_ahead(broker: BrokerProcess) -> None:
    """It has just got another role, or another master."""
    end = broker.store.max_phy_offset
    if ahead := [state.log_end for state in broker.core.delay_offsets._states if state.log_end > end]:
        raise InvariantError(
            f"{broker.host} counts on copies up to {ahead[-1]} of its last master's log, and has {end}"
        )


def verify_cut(broker: BrokerProcess) -> None:
    """Right behind a cut of its log: no mark speaks of what is gone, and what is appended next follows what is left."""
    store, end = broker.store, broker.store.max_phy_offset
    marks = {
        "synced": store._synced,
        "confirm": store.confirm_offset,
        "dispatched": store.dispatched_offset,
        "progress": store._progress.position or 0,
        "checkpoint": store._checkpoint.value.confirm_phy_offset,
        "last epoch": store.epochs.last.start_offset if store.epochs.last else 0,
    }
    wrong = {name: offset for name, offset in marks.items() if offset > end}
    if wrong:
        raise InvariantError(f"{broker.host} has cut its log to {end}, and its marks say {wrong}")
    ahead = {key: number for key, number in store._offsets.next.items() if number != store._queue_end(key)}
    if ahead and store._offsets.covered == store.dispatched_offset:
        raise InvariantError(f"{broker.host} has cut its log to {end}, and appends next at {ahead}")
    for topic, queue_ids in store.queues().items():
        for queue_id in queue_ids:
            low, high = store.queue_range(topic, queue_id)
            last = store.units(topic, queue_id, high - 1, 1) if low < high else []
            if last and last[0][0] >= end:
                raise InvariantError(f"{broker.host} has cut its log to {end}, and {topic} {queue_id} ends with {last}")


def verify_tables(broker: BrokerProcess) -> None:
    """Of a replica that has cut its log: deliveries count no copies that are gone, no offset lies behind what the log
    has of its queue. The files of deliveries say so too: a kill may follow at once."""
    core, store = broker.core, broker.store
    end, where = store.max_phy_offset, f"{broker.host} has cut its log to {store.max_phy_offset}, and"
    table = core.delay_offsets
    if ahead := [state.log_end for state in table._states if state.log_end > end]:
        raise InvariantError(f"{where} counts on copies up to {ahead[-1]}")
    timer_end = store.queue_range(TIMER_TOPIC, 0)[1]
    if core.timers._taken_offset > timer_end:
        raise InvariantError(f"{where} knows of {core.timers._taken_offset} timer messages of {timer_end}")
    behind = {level: offset for level in table.levels() if (offset := table.get(level)) > core.schedule.end_of(level)}
    if behind or table.timer.taken_offset > timer_end:
        raise InvariantError(f"{where} has delivered {behind} and {table.timer} of {timer_end}")
    for key, queues in core.offsets.to_json()["offsetTable"].items():
        topic = key.rpartition("@")[0]
        beyond = {queue: at for queue, at in queues.items() if at > store.queue_end(topic, int(queue))}
        if beyond:
            raise InvariantError(f"{where} has offsets of {key} behind the queues: {beyond}")
    verify_deliveries(f"{where} its disk", broker.disk, store, table)


def verify_deliveries(where: str, disk: SimDisk, store: Store, live: DelayOffsetTable) -> None:
    """The files of deliveries on `disk` say no more than is true of a log that ends where that of `store` does: `live`
    knows what that is, as long as it has let go of no state."""
    if len(live._states) > RECENT_STATES:
        return
    found = DelayOffsetTable(disk, live._clock, store, live._events)
    held = [state for state in live._states if state.log_end <= store.max_phy_offset] or live._states[:1]
    most = {level: max(state.offsets.get(level, 0) for state in held) for level in found.levels()}
    ahead = {level: at for level in found.levels() if (at := found.get(level)) > most[level]}
    if ahead or all(state.timer.is_behind(found.timer) for state in held):
        raise InvariantError(
            f"{where} says that {ahead} and {found.timer} are delivered; a log that ends at {store.max_phy_offset}"
            f" holds {most} and {held[-1].timer}"
        )
