"""The tasks that drive a broker's machine and log: timer, dispatch, flush, housekeeping. Shell."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import count, repeat

import trio

from rmqha.broker.core import BrokerCore
from rmqha.broker.repeated_work import RepeatedWork
from rmqha.broker.replication.replica_driver import SliceSize
from rmqha.port import Clock

HOLD_TICK_MS = 100
"""Longest delay (ms) of a held pull's time-out."""
TRANSACTION_TICKS = 2
"""Ticks between two steps for transactions: the longest delay of a check, and the interval of their offsets. A timer of
its own would cost an idle broker more than the step."""
DISPATCH_DELAY_MS = 2
"""Longest time (ms) until a record is dispatched while nobody waits for it: a single sender's next send comes before a
dispatch ends, and would wait for it each time."""
ITSELF_DISPATCH_DELAY_MS = 20
"""Longest such time (ms) of records that nobody reads in a queue before their own time."""
SLAVE_DISPATCH_DELAY_MS = 10
"""Longest such time (ms) on a slave, for whose acknowledgements all senders wait."""
SCHEDULE_DELAY_MS = 5
"""Longest time (ms) until an entry of the timer topic after others is read: each pop stores one."""
INDEX_DELAY_MS = 20
"""Time (ms) for which dispatched records gather before they are indexed together."""
INDEX_STEP_BYTES = 64 * 1024
"""Log indexed in one slice: 64 records of 1 KiB take half a millisecond."""
MAX_INDEX_STEP_BYTES = 4 * INDEX_STEP_BYTES
"""Largest slice, for a large backlog: under steady load an index that is behind the cached records must read them from
the log, and falls behind further."""
INDEX_STEP_SHARE = 8
MIN_INDEX_STEP_BYTES = 2 * 1024
INDEX_STEP_MS = 4
"""Time (ms) of a slice after which the next one is smaller."""
INDEX_COPY_MS = 500
"""Pause (ms) while this replica copies a master's log, which has priority."""
INDEX_RETRY_MS = 60_000
"""Pause (ms) after an index that could not be written."""
ALLOCATE_RETRY_MS = 1000
"""Pause (ms) after a log file that could not be made."""
ALLOCATE_CHECK_MS = 20
"""Interval (ms) of checks of the room in the last file meanwhile."""
COLD_READ_COUNT = 4
"""Threads that read old messages into memory."""
SAMPLE_INTERVAL_MS = 1000
SAVE_INTERVAL_MS = 5000
MAX_SAVE_PAUSE_MS = 200
"""Longest pause (ms) between two writes of topics and groups, else the duration of the last: topics may be created all
the time, and each write has them all."""
MAX_NOTICE_PAUSE_S = 0.5
"""Longest pause (s) between two rounds of notices to large consumer groups."""


def dispatch_delay_ms(core: BrokerCore) -> int:
    """Longest time (ms) until records appended now are dispatched."""
    driver = core.driver
    has_readers = driver.has_readers
    if driver.is_opening or (has_readers and (core.pull.hold_count or core.pops.poll_count)):
        return 0
    if not driver.is_serving:
        return SLAVE_DISPATCH_DELAY_MS
    return DISPATCH_DELAY_MS if has_readers else ITSELF_DISPATCH_DELAY_MS


async def _written(write: Callable[[], object]) -> None:
    """Run a write in a thread and wait for its end, which a stop waits for too, since the table depends on it."""
    with trio.CancelScope(shield=True):
        await trio.to_thread.run_sync(write)


class BrokerLoops:
    """Each loop sleeps until the driver reports work."""

    def __init__(self, core: BrokerCore, clock: Clock) -> None:
        self._core = core
        self._driver = core.driver
        self._clock = clock
        self._dispatch, self._dispatch_wait = trio.Event(), trio.CancelScope()
        self._dispatch_woken_at_s = -math.inf
        self._index = trio.Event()
        self._flush = trio.Event()
        self._allocate = trio.Event()
        for begun in self._dispatch, self._index, self._allocate:
            begun.set()
        self._step = trio.Event()
        self._delivered, self._deliver_wait = trio.Event(), trio.CancelScope()
        self._delivered_at_s, self._deliver_by_s = -math.inf, math.inf
        self._copied = trio.Event()
        self._save_wanted = trio.Event()
        self._tables_wanted = trio.Event()
        self._search_wanted = trio.Event()
        self._cold_readers = trio.lowlevel.ParkingLot()
        self._cold_threads = trio.CapacityLimiter(COLD_READ_COUNT)
        self._notices_due = trio.Event()
        self._index_slice = SliceSize(MIN_INDEX_STEP_BYTES, MAX_INDEX_STEP_BYTES)
        self._sleeps_until_ms: int | None = None
        self._moved: trio.Event | None = None
        self.sync_count = 0

    # --- calls of the shell -------------------------------------------------------------------------------------------
    def wake_dispatch(self) -> None:
        """Dispatch at once for held pulls, on a new master that does not serve yet, and after a pause, else after a
        delay; requests that read queues dispatch themselves."""
        now_s, before_s = trio.current_time(), self._dispatch_woken_at_s
        self._dispatch_woken_at_s = now_s
        delay_s = dispatch_delay_ms(self._core) / 1000
        if not delay_s or now_s - before_s > delay_s:
            self._dispatch.set()
        elif now_s + delay_s < self._dispatch_wait.deadline:
            self._dispatch_wait.deadline = now_s + delay_s

    def wake_flush(self) -> None:
        self._flush.set()

    def wake_schedule(self) -> None:
        self._delivered.set()

    def wake_schedule_soon(self) -> None:
        """Deliver soon, after a pause at once."""
        soon_s = self._delivered_at_s + SCHEDULE_DELAY_MS / 1000
        if trio.current_time() >= soon_s:
            self._delivered.set()
        else:
            self._deliver_by_s = soon_s
            self._deliver_wait.deadline = min(self._deliver_wait.deadline, soon_s)

    def wake_transactions(self) -> None:
        self._copied.set()

    def wake_notices(self) -> None:
        self._notices_due.set()

    def wake_searches(self) -> None:
        self._search_wanted.set()

    def wake_cold_reads(self) -> None:
        self._cold_readers.unpark()

    def save_offsets_soon(self) -> None:
        self._save_wanted.set()

    def save_tables_soon(self) -> None:
        self._tables_wanted.set()

    def stepped(self) -> None:
        """Wake the timer only if it would sleep too long: this is called for every batch of sends."""
        deadline_ms, until_ms = self._driver.replica.deadline_ms(), self._sleeps_until_ms
        if deadline_ms is not None and (until_ms is None or deadline_ms < until_ms):
            self._step.set()
        if self._moved is not None:
            self._moved.set()

    # --- tasks --------------------------------------------------------------------------------------------------------
    async def until_may_stop(self) -> None:
        """Return when a stopping replica has nothing left to hand over, and no thread changes its log."""
        while not (self._core.replica.may_stop and self._driver.is_log_free):
            self._moved = trio.Event()
            await self._moved.wait()
        self._moved = None

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            for loop in (
                self._run_timer,
                self._run_dispatch,
                self._run_index,
                self._run_searches,
                *repeat(self._run_cold_reads, COLD_READ_COUNT),
                self._run_notices,
                self._run_flush,
                self._run_allocate,
                self._run_schedule,
                self._run_transactions,
                self._run_housekeeping,
                self._run_save,
                self._run_save_tables,
            ):
                nursery.start_soon(loop)
            if self._core.config.transient_store_pool_enable:
                nursery.start_soon(self._run_commit)

    async def _run_timer(self) -> None:
        while True:
            self._step = trio.Event()
            deadline_ms = self._driver.replica.deadline_ms()
            self._sleeps_until_ms = deadline_ms
            wait_ms = None if deadline_ms is None else deadline_ms - self._clock.now_ms()
            if wait_ms is None:
                await self._step.wait()
            elif wait_ms > 0:
                with trio.move_on_after(wait_ms / 1000):
                    await self._step.wait()
            else:
                self._driver.timeout()
                if self._is_step_due():
                    await trio.lowlevel.checkpoint()

    def _is_step_due(self) -> bool:
        deadline_ms = self._driver.replica.deadline_ms()
        return deadline_ms is not None and deadline_ms <= self._clock.now_ms()

    async def _run_dispatch(self) -> None:
        had_room = True
        while True:
            with trio.CancelScope() as self._dispatch_wait:
                await self._dispatch.wait()
            self._dispatch = trio.Event()
            while self._driver.dispatch_due and self._driver.dispatch():
                await trio.lowlevel.checkpoint()
            if self._core.store.allocation.is_due:
                self._allocate.set()  # the next sync may be long in coming
            has_room = not self._core.store.queue_refusal
            if not (had_room and has_room):
                self._core.retention.allocated()
            had_room = has_room
            self._index.set()

    async def _run_index(self) -> None:
        """Index after the queues, in slices, so that other tasks get turns in between. Full files are synced in a
        thread of their own, so that no send waits for that."""
        index = self._core.store.index
        while True:
            await self._index.wait()
            self._index = trio.Event()
            await trio.sleep(INDEX_DELAY_MS / 1000)
            while self._driver.is_log_free and not self._driver.is_copying and self._build_some():
                await trio.lowlevel.checkpoint()
            if self._driver.is_copying or not self._driver.is_log_free:
                await trio.sleep(INDEX_COPY_MS / 1000)
                self._index.set()
            if index.sync_due:
                await trio.to_thread.run_sync(index.sync)
            if index.has_failed:
                await trio.sleep(INDEX_RETRY_MS / 1000)
                index.retry()
                self._index.set()

    def _build_some(self) -> bool:
        """Index one slice; True if more remains. A record may have thousands of keys, so the duration of slices
        counts."""
        index, started_ms = self._core.store.index, self._clock.now_ms()
        before = index.position
        due_bytes = max(INDEX_STEP_BYTES, index.behind_bytes // INDEX_STEP_SHARE)
        more = index.build(min(self._index_slice.size_bytes, due_bytes))
        self._index_slice.took(self._clock.now_ms() - started_ms, index.position - before, INDEX_STEP_MS)
        return more

    async def _run_searches(self) -> None:
        while True:
            await self._search_wanted.wait()
            self._search_wanted = trio.Event()
            while self._driver.is_log_free and self._core.queries.step():
                await trio.lowlevel.checkpoint()
            if not self._driver.is_log_free:
                await trio.sleep(HOLD_TICK_MS / 1000)
                self._search_wanted.set()

    async def _run_cold_reads(self) -> None:
        """Read cold parts in threads of their own: a disk that hangs blocks these, not the broker, nor those that sync
        and save."""
        core, loaded = self._core, None
        while True:
            if not self._driver.is_log_free:
                await trio.sleep(HOLD_TICK_MS / 1000)
                continue
            if loaded is not None:
                core.loaded(loaded)
                loaded = None
            part = core.cold_reads.begin()
            if part is None:
                await self._cold_readers.park()
                continue
            topic, queue_id, cold_range = part
            load = core.store.loader(topic, queue_id, cold_range)
            try:
                await trio.to_thread.run_sync(load, abandon_on_cancel=True, limiter=self._cold_threads)
                loaded = part
            except OSError as error:
                core.unreadable(part, f"cannot read messages of {topic}, queue {queue_id}: {error.strerror}")
            finally:
                core.cold_reads.end(part)

    async def _run_notices(self) -> None:
        """Notify large groups that change all the time for a tenth of the time."""
        while True:
            await self._notices_due.wait()
            self._notices_due = trio.Event()
            began_at_s = trio.current_time()
            while self._core.notices.step():
                await trio.lowlevel.checkpoint()
            await trio.sleep(min(MAX_NOTICE_PAUSE_S, 9 * (trio.current_time() - began_at_s)))

    async def _run_flush(self) -> None:
        """Sync in a thread. One sync serves all bytes that were in the log at its begin, and the next begins at once if
        there are more."""
        store = self._core.store
        with RepeatedWork(store.sync, "flush") as sync:
            while True:
                with trio.move_on_after(self._core.config.flush_interval_commit_log / 1000):
                    await self._flush.wait()
                self._flush = trio.Event()
                while store.synced_offset < store.max_phy_offset:
                    self._driver.flush_begins()
                    await sync.do()
                    self.sync_count += 1
                    self._driver.synced()
                    if store.allocation.is_due or not self._driver.flush_due:
                        break
                if self._driver.flush_due:
                    self._flush.set()
                if store.allocation.is_due:
                    self._allocate.set()

    async def _run_allocate(self) -> None:
        """Allocate log files beside the flush, for which sends wait: that takes the disk a while."""
        while True:
            await self._allocate.wait()
            await trio.to_thread.run_sync(self._core.store.allocation.allocate_ahead)
            self._core.retention.allocated()
            if self._core.store.allocation.is_due:
                # no room for it, which may come; sends go on meanwhile, as long as the last file has room
                for _ in range(ALLOCATE_RETRY_MS // ALLOCATE_CHECK_MS):
                    await trio.sleep(ALLOCATE_CHECK_MS / 1000)
                    self._core.retention.allocated()
            else:
                self._allocate = trio.Event()

    async def _run_commit(self) -> None:
        while True:
            await trio.sleep(self._core.config.commit_interval_commit_log / 1000)
            self._driver.commit()

    async def _run_housekeeping(self) -> None:
        sampled_at_ms = 0
        for tick in count():
            await trio.sleep(HOLD_TICK_MS / 1000)
            if self._driver.is_log_free:
                self._core.pull.timeout()
                self._core.pops.timeout()
            self._core.metadata_leader.timeout()
            self._core.throttle.timeout()
            if not tick % TRANSACTION_TICKS:
                self.wake_transactions()
            now_ms = self._clock.now_ms()
            if now_ms >= sampled_at_ms + SAMPLE_INTERVAL_MS:
                sampled_at_ms = now_ms
                self._core.admin.sample()

    async def _run_schedule(self) -> None:
        while True:
            until_s = min(trio.current_time() + self._core.pause_ms() / 1000, self._deliver_by_s)
            with trio.move_on_at(until_s) as self._deliver_wait:
                await self._delivered.wait()
            self._delivered = trio.Event()
            self._delivered_at_s, self._deliver_by_s = trio.current_time(), math.inf
            self._core.deliver()

    async def _run_transactions(self) -> None:
        while True:
            await self._copied.wait()
            self._copied = trio.Event()
            while self._core.transactions.step():
                await trio.lowlevel.checkpoint()

    async def _run_save(self) -> None:
        while True:
            with trio.move_on_after(SAVE_INTERVAL_MS / 1000):
                await self._save_wanted.wait()
            self._save_wanted = trio.Event()
            trouble = ""
            try:
                await self._save()
            except OSError as error:
                # no reason to end: the disk probe moves the mastership away, and the next try may do better
                trouble = str(error)
            self._core.tables_saved(trouble)
            self._core.metadata_leader.saved()

    async def _save(self) -> None:
        """Write tables. Raises OSError; a failed write is repeated later."""
        for write in self._core.writes():
            await _written(write)

    async def _run_save_tables(self) -> None:
        """Write topics and groups. One write serves all changes before it."""
        while True:
            with trio.move_on_after(SAVE_INTERVAL_MS / 1000):
                await self._tables_wanted.wait()
            self._tables_wanted = trio.Event()
            began_at_ms, trouble = self._clock.now_ms(), ""
            for write in self._core.table_writes():
                try:
                    await _written(write)
                except OSError as error:
                    trouble = str(error)  # as above: no reason to end
            self._core.tables_written(trouble)
            await trio.sleep(min(MAX_SAVE_PAUSE_MS, self._clock.now_ms() - began_at_ms) / 1000)
