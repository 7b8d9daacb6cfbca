"""The only caller of the replica machine: feeds it, performs its actions in order, dispatches its log. No trio.

An exception within a call ends the process, since machine and log may be half changed (`rmqha.model.error.whole`).
Everything runs in one thread. Performing an action may call back into the driver (for example a connection that fails
at once): such calls only feed the machine, and the outermost call performs the resulting actions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol, assert_never

from rmqha.broker.replication.append_throttle import AppendThrottle
from rmqha.broker.replication.waiter import Answer, HandOverWaiter, WaiterGroup, Waiting
from rmqha.broker.services.statistics import BrokerStatistics
from rmqha.ha.action import (
    Action,
    CallController,
    CloseHa,
    Complete,
    HandedOver,
    OpenHa,
    ResolveHosts,
    RoleChanged,
    SendHa,
    SendLog,
)
from rmqha.ha.machine import ReplicaMachine
from rmqha.kernel.batch_kernel import SendResults
from rmqha.model.code import ResponseCode
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.error import NoRoomError, interrupted, whole
from rmqha.model.identity import Role
from rmqha.model.message import PROPERTY_INNER_NUM, SYS_FLAG_INNER_BATCH, find_property
from rmqha.model.offset import BrokerId, Buffer, Epoch, PhyOffset
from rmqha.port import Clock, Tracer
from rmqha.store.appender import AppendedBatch, SendSource
from rmqha.store.log.new_batch import NewBatch
from rmqha.store.log.record import NewMessage
from rmqha.store.store import Store
from rmqha.wire.auth.ha_proof import HaClaim
from rmqha.wire.command import Command
from rmqha.wire.state.replica_state import ReplicaState

DISPATCH_BYTES = 512 * 1024
"""Log dispatched in one slice, so that other work gets a turn within milliseconds."""
COPY_BYTES = 4 * 1024 * 1024
"""Lag beyond which a slave is copying; it then dispatches such slices in bulk."""
BACKLOG_BYTES = 16 * 1024 * 1024
"""Backlog that is dispatched in bulk too: record by record it would take a tenth of a second. With less a broker never
waits for the import of NumPy."""
MIN_DISPATCH_BYTES = 4 * 1024
DISPATCH_MS = 8
"""Bound (ms) on a slice; after a longer one the next is smaller. The first record of a queue creates a file at the cost
of a thousand records, and clients create queues. In bulk COPY_DISPATCH_MS counts."""
COPY_DISPATCH_MS = 100
ROOM_CHECK_MS = 1000
"""Pause (ms) after a dispatch for which the queues had no room."""


class HaPort(Protocol):
    """Performs the HA actions; reports by `ha_opened`, `ha_sent`, `ha_closed` and `ha_resolved` of the driver."""

    def open(self, conn_id: int, address: str) -> None: ...

    def send(self, conn_id: int, data: bytes, *, may_wait: bool) -> None:
        """Send a frame. `may_wait`: some milliseconds, or until the next frame of this connection, which replaces
        it."""
        ...

    def send_log(self, conn_id: int, header: bytes, phy_offset: PhyOffset, size_bytes: int) -> None: ...

    def close(self, conn_id: int) -> None: ...

    def resolve(self, names: tuple[str, ...]) -> None: ...


class ControllerPort(Protocol):
    """Performs CallController; reports by `controller_replied` exactly once."""

    def call(self, action: CallController) -> None: ...


class DriverEvents(Protocol):
    """Port that takes events of replica and log."""

    def role_changed(self, action: RoleChanged) -> None: ...

    def opened(self) -> None:
        """A new master begins to serve: its queues have everything that is committed."""

    def dispatched(self, grown: Collection[tuple[str, int]]) -> None:
        """These queues have grown."""

    def appended(self, topics: Collection[str], start_offset: PhyOffset) -> None:
        """Records of these topics were appended from `start_offset` on and not sent yet: records given to
        `store_waiting` now are sent with them."""

    def appended_waiting(self, messages: Sequence[NewMessage], batch: AppendedBatch) -> None:
        """These records of `store_waiting` were appended: nobody reads them in a queue before their time."""

    def add_state(self, state: ReplicaState) -> None:
        """Add the other parts' state to an answer to 52000."""


class DriverShell(Protocol):
    """Port to the shell; a `BrokerShell` is one."""

    def at_turn_end(self, work: Callable[[], None]) -> bool: ...

    def wake_dispatch(self) -> None: ...

    def wake_flush(self) -> None: ...

    def stepped(self) -> None: ...


class _Gathered(NamedTuple):
    """Records of one request."""

    messages: list[NewMessage]
    stored: Callable[[PhyOffset], None]
    answer: Answer


class ReplicaDriver:
    def __init__(
        self,
        replica: ReplicaMachine,
        store: Store,
        throttle: AppendThrottle,
        clock: Clock,
        tracer: Tracer,
        events: DriverEvents,
        shell: DriverShell,
        statistics: BrokerStatistics,
    ) -> None:
        self.replica = replica
        self.store = store
        self._throttle = throttle
        self._clock = clock
        self._tracer = tracer
        self._performing = False
        self._serving = False
        self._dispatch_slice = SliceSize(MIN_DISPATCH_BYTES, COPY_BYTES)
        self._dispatch_again_at_ms = 0
        self._writable = False
        self.ha: HaPort
        self.controller: ControllerPort
        self._events = events
        self._shell = shell
        self._statistics = statistics
        self._waiting_part = (0, 0)
        """Start and end of the part of the log that `store_waiting` wrote last."""
        self._new_topics: dict[str, None] = {}
        """Topics of records appended since the last `DriverEvents.appended`."""
        self._reported_offset = PhyOffset(0)
        """End of the log at that call."""
        self._gathered: list[_Gathered] | None = None
        """Records that are to be appended together; None if each is appended at once."""
        self._admission: tuple[ResponseCode, str] | None = None
        """Admission of the gathered records, once it was asked for."""
        self._waiting_for_flush = False
        self._is_turn_open = False
        """True if sends of this turn are settled at its end."""
        self.ha_breach_count = 0
        """HA connections closed for a protocol violation."""

    def configure(self, config: BrokerConfig) -> None:
        self.replica.limit_copies(config.ha_transfer_bytes_per_second)

    # --- time -------------------------------------------------------------------------------------------------------
    @whole
    def start(self) -> None:
        self.replica.start(self._clock.now_ms())
        self._perform()

    @whole
    def timeout(self) -> None:
        self.replica.timeout(self._clock.now_ms())
        self._perform()

    @whole
    def stopping(self) -> None:
        self.commit()
        self.replica.stopping(self._clock.now_ms())
        self._perform()

    # --- sends ------------------------------------------------------------------------------------------------------
    def admission(self) -> tuple[ResponseCode, str]:
        """Admission of an append; it holds for all gathered records."""
        if self._admission is not None:
            return self._admission
        found = self.replica.admission(self._clock.now_ms())
        if self._gathered is not None:
            self._admission = found
        return found

    def append(self, messages: list[NewMessage] | NewBatch, *, are_checked: bool = False) -> AppendedBatch:
        """Append messages. `are_checked`: they have passed `check`."""
        wall_ms, began_ms = self._clock.wall_ms(), self._clock.now_ms()
        try:  # the decorator's work, without its cost
            batch = self._append(messages, wall_ms, are_checked=are_checked)
            self._statistics.put_times.took(self._clock.now_ms() - began_ms)
            return batch
        except Exception as error:  # noqa: BLE001  (it goes on, as what it means)
            interrupted(error)

    def check(self, messages: Sequence[NewMessage]) -> None:
        """Raises UsageError if a message cannot be stored."""
        self.store.check(messages)

    def store_waiting(self, messages: list[NewMessage], stored: Callable[[PhyOffset], None], answer: Answer) -> None:
        """Append records that nobody reads in a queue before their time, so that `catch_up` leaves them to the loops.
        They must have passed `check`. `stored` gets the end of the record, `answer` its acknowledgement. After `gather`
        both come with `store_gathered`, which appends all records with one write."""
        if self._gathered is not None:
            self._gathered.append(_Gathered(messages, stored, answer))
            return
        batch = self._append_waiting(messages)
        stored(batch.end_offset)
        self.appended_in_turn(batch.end_offset, answer)

    def _append_waiting(self, messages: list[NewMessage]) -> AppendedBatch:
        batch = self.append(messages, are_checked=True)
        first, (start, end) = batch.phy_offsets[0], self._waiting_part
        self._waiting_part = (start if first == end else first), batch.end_offset
        self._events.appended_waiting(messages, batch)
        return batch

    def _take_gathered(self) -> list[_Gathered]:
        gathered, self._gathered, self._admission = self._gathered or [], None, None
        return gathered

    def _append_gathered(self, gathered: list[_Gathered]) -> None:
        assert self.is_log_free, "a turn of pops changes no role, and nothing else happens in it"
        batch = self._append_waiting([message for part in gathered for message in part.messages])
        ends, behind = (*batch.phy_offsets[1:], batch.end_offset), 0
        for part in gathered:
            behind += len(part.messages)
            part.stored(PhyOffset(ends[behind - 1]))
        self.replica.wait(self._clock.now_ms(), batch.end_offset, WaiterGroup([part.answer for part in gathered]))

    def _append(self, messages: list[NewMessage] | NewBatch, wall_ms: int, *, are_checked: bool) -> AppendedBatch:
        if isinstance(messages, NewBatch):
            batch = self.store.append_batch(messages, wall_ms)
            size_bytes = batch.end_offset - batch.phy_offsets[0]
            self._statistics.stored(messages.topic, len(batch.phy_offsets), size_bytes)
            self._new_topics[messages.topic] = None
            return batch
        topics = dict.fromkeys([message.topic for message in messages])
        self._new_topics |= topics
        if len(messages) == 1:
            one = self.store.append(messages[0], wall_ms)
            self._statistics.stored(messages[0].topic, _count(messages[0]), one.end_offset - one.phy_offset)
            return AppendedBatch((one.phy_offset,), (one.queue_offset,), one.end_offset, one.store_timestamp_ms)
        batch = self.store.append_encoded(self.store.encode_batch(messages, are_checked=are_checked), wall_ms)
        if len(topics) == 1:  # no inner batch is among several
            size_bytes = batch.end_offset - batch.phy_offsets[0]
            self._statistics.stored(messages[0].topic, len(messages), size_bytes, len(messages))
            return batch
        ends = (*batch.phy_offsets[1:], batch.end_offset)
        for message, start, end in zip(messages, batch.phy_offsets, ends, strict=True):
            self._statistics.stored(message.topic, _count(message), end - start)
        return batch

    def append_sends(self, source: SendSource) -> SendResults | None:
        """Append the plain sends at the front of a connection's input; None if there is none."""
        try:
            began_ms = self._clock.now_ms()
            taken = self.store.append_sends(source, self._clock.wall_ms())
            if taken is not None:
                self._statistics.put_times.took(self._clock.now_ms() - began_ms, taken.taken_count)
                self._count_sends(taken)
            return taken
        except Exception as error:  # noqa: BLE001  (it goes on, as what it means)
            interrupted(error)

    def _count_sends(self, taken: SendResults) -> None:
        bounds = taken.bounds
        topics = dict.fromkeys([run.topic for run in taken.runs])
        self._new_topics |= topics
        if len(topics) == 1:
            self._statistics.stored(taken.topics[0], taken.record_count, bounds[-1] - bounds[0], taken.taken_count)
        else:
            for topic, message_count, size_bytes in taken.frames():
                self._statistics.stored(topic, message_count, size_bytes)

    def appended(self, end_offset: PhyOffset, waiter: Waiting | None) -> None:
        now_ms = self._clock.now_ms()
        try:
            self.store.commit(everything=waiter is not None)
            if waiter is not None:
                self.replica.wait(now_ms, end_offset, waiter)
            if self._report_appended() or waiter is not None:
                self._flush_soon()
            self.replica.appended(now_ms)
            self._perform()
        except Exception as error:  # noqa: BLE001  (it goes on, as what it means)
            interrupted(error)

    def _flush_soon(self) -> None:
        """Flush soon: a sender waits for its records."""
        if self.replica.sync_required:
            self._waiting_for_flush = True
            self._shell.wake_flush()

    def _report_appended(self) -> bool:
        """Report new records, and append those stored in response: True if somebody waits for them."""
        gathered = None
        if self._new_topics and not self.store.uncommitted_bytes and self.gather():
            self._events.appended(self._new_topics, self._reported_offset)
            gathered = self._take_gathered()
            if gathered:
                self._append_gathered(gathered)
                self.store.commit()
        self._new_topics.clear()
        self._reported_offset = self.store.max_phy_offset
        return bool(gathered)

    def appended_in_turn(self, end_offset: PhyOffset, waiter: Waiting) -> None:
        """Do as `appended`, but once for all connections of this turn, at its end."""
        if not self._is_turn_open and not self._shell.at_turn_end(self._end_turn):
            self.appended(end_offset, waiter)
            return
        self._is_turn_open = True
        try:
            self.replica.wait(self._clock.now_ms(), end_offset, waiter)
        except Exception as error:  # noqa: BLE001  (it goes on, as what it means)
            interrupted(error)

    def gather(self) -> bool:
        """Gather records of `store_waiting` until `store_gathered` appends them together: nothing else may append
        meanwhile. False if records are gathered already, or the log is being changed."""
        if self._gathered is not None or not self.is_log_free:
            return False
        self._gathered = []
        return True

    @whole
    def store_gathered(self) -> None:
        """Append the gathered records, and wait for them as `appended_in_turn` does."""
        gathered = self._take_gathered()
        if not gathered:
            return
        self._append_gathered(gathered)
        if self._is_turn_open:
            return
        if self._shell.at_turn_end(self._end_turn):
            self._is_turn_open = True
        else:
            self._end_turn()

    @whole
    def _end_turn(self) -> None:
        if not self.is_log_free:
            return  # somebody else in the turn has made the log change in a thread: `log_written` goes on
        self._is_turn_open = False
        self.store.commit(everything=True)
        self._report_appended()
        self._flush_soon()
        self.replica.appended(self._clock.now_ms())
        self._perform()

    @whole
    def commit(self) -> None:
        """Commit the buffer of transientStorePoolEnable to the file. Raises StoreError."""
        if self.is_log_free and self.store.commit():
            self.replica.appended(self._clock.now_ms())
            self._perform()

    @whole
    def roll(self) -> None:
        """End the active file. Raises StoreError without room for the next one."""
        self.store.roll()
        self.appended(self.store.max_phy_offset, None)

    # --- controller and HA ------------------------------------------------------------------------------------------
    @whole
    def controller_replied(self, call_id: int, reply: Command | None) -> None:
        self.replica.controller_replied(self._clock.now_ms(), call_id, reply)
        self._perform()

    @whole
    def hand_over(self, epoch: Epoch, target: BrokerId | None, timeout_ms: int, waiter: HandOverWaiter) -> None:
        self.commit()
        self.replica.hand_over(self._clock.now_ms(), epoch, target, timeout_ms, waiter)
        self._perform()

    @whole
    def disk_probed(self, problem: str, hangs: bool) -> None:
        self.replica.disk_probed(self._clock.now_ms(), problem, hangs=hangs)
        self._perform()

    @whole
    def master_discovered(self, master_address: str, ha_address: str) -> None:
        """Take a name server's report of the static group's master."""
        self.replica.master_discovered(self._clock.now_ms(), master_address, ha_address)
        self._perform()

    @whole
    def role_notified(self, command: Command) -> None:
        """Take a notice of a role change. Raises RemoteProtocolError if it is malformed."""
        self.replica.role_notified(self._clock.now_ms(), command)
        self._perform()

    @whole
    def role_notified_unproven(self) -> None:
        self.replica.role_notified_unproven(self._clock.now_ms())
        self._perform()

    @whole
    def ha_accepted(self, conn_id: int, peer: str, claim: HaClaim | None = None) -> None:
        self.replica.ha_accepted(self._clock.now_ms(), conn_id, peer, claim)
        self._perform()

    @whole
    def ha_resolved(self, numbers: Mapping[str, tuple[str, ...]]) -> None:
        """Take the answer to ResolveHosts, which only groups with controllers ask for."""
        self.replica.ha_resolved(self._clock.now_ms(), numbers)
        self._perform()

    @whole
    def ha_opened(self, conn_id: int) -> None:
        self.replica.ha_opened(self._clock.now_ms(), conn_id)
        self._perform()

    @whole
    def ha_received(self, conn_id: int, data: Buffer) -> None:
        """Take received bytes; `data` may be overwritten afterwards."""
        end = self.store.max_phy_offset
        self.replica.ha_received(self._clock.now_ms(), conn_id, data)
        if self.store.max_phy_offset > end:
            self._flush_soon()
        self._perform()

    @whole
    def ha_sent(self, conn_id: int) -> None:
        self.replica.ha_sent(self._clock.now_ms(), conn_id)
        self._perform()

    @whole
    def ha_closed(self, conn_id: int) -> None:
        self.replica.ha_closed(self._clock.now_ms(), conn_id)
        self._perform()

    # --- log --------------------------------------------------------------------------------------------------------
    @whole
    def log_written(self, error: BaseException | None = None) -> None:
        """Take the end of a slow change of the log (`LogWriter.write` returned False); `error` is its exception."""
        if error is not None:
            raise error
        self.replica.log_written(self._clock.now_ms())
        self._perform()
        if self._is_turn_open:
            self._end_turn()

    @property
    def is_log_free(self) -> bool:
        """False while a thread that waits for the disk changes the log: nobody may read or change it."""
        return not self.replica.is_writing

    @property
    def is_copying(self) -> bool:
        """True if a slave lacks much of its master's log: copying then precedes everything derived from the log."""
        return self.replica.copy_left_bytes > COPY_BYTES

    @property
    def dispatch_due(self) -> bool:
        """True if there is enough to dispatch; a copying slave waits for large slices."""
        behind_bytes = self.store.dispatch_behind_bytes if self.is_log_free else 0
        if self.store.queue_refusal and self._clock.now_ms() < self._dispatch_again_at_ms:
            return False
        return behind_bytes > 0 and (behind_bytes > COPY_BYTES or not self.is_copying)

    def dispatch(self) -> bool:
        """Dispatch one slice of committed records to the queues; True if more remains. Queues without room are tried
        again after a pause."""
        if not self.is_log_free:
            return False
        before, started_ms = self.store.dispatched_offset, self._clock.now_ms()
        in_bulk = self.is_copying or self.store.dispatch_behind_bytes >= BACKLOG_BYTES
        limit_bytes = COPY_BYTES if in_bulk else DISPATCH_BYTES
        try:
            more = self.store.dispatch(min(limit_bytes, self._dispatch_slice.size_bytes))
        except NoRoomError:  # the store has told it
            self._dispatch_again_at_ms = started_ms + ROOM_CHECK_MS
            return False
        done_bytes, taken_ms = self.store.dispatched_offset - before, self._clock.now_ms() - started_ms
        self._dispatch_slice.took(taken_ms, done_bytes, COPY_DISPATCH_MS if in_bulk else DISPATCH_MS)
        if self.store.dispatched_offset > before:
            if self.is_opening:
                # Only a new master must wait for the queues; a serving master skips this call per batch.
                self.replica.dispatched(self._clock.now_ms())
                self._perform()
            self._events.dispatched(self.store.grown)
            self.store.grown.clear()
        return more and self.store.dispatched_offset > before

    @property
    def has_readers(self) -> bool:
        """True if a record to dispatch may be read, or waited for, in a queue."""
        start, end = self._waiting_part
        return self.store.dispatched_offset < start or self.store.confirm_offset > end

    def catch_up(self) -> None:
        """Dispatch before a read, if one slice is enough."""
        if self.dispatch_due and self.has_readers and self.store.dispatch_behind_bytes <= DISPATCH_BYTES:
            self.dispatch()

    @property
    def flush_due(self) -> bool:
        """True if a sender waits for the disk: sync at once, not at the next interval."""
        return self._waiting_for_flush

    def flush_begins(self) -> None:
        self._waiting_for_flush = False

    @whole
    def synced(self) -> None:
        self.replica.synced(self._clock.now_ms())
        self._perform()

    # --- queries ----------------------------------------------------------------------------------------------------
    @property
    def is_serving(self) -> bool:
        """True on a master that is open: everything before its epoch is committed and dispatched."""
        return self.replica.role is Role.MASTER

    @property
    def is_opening(self) -> bool:
        """True on a new master that does not serve yet."""
        return self.replica.role is Role.PROMOTING

    def state(self) -> ReplicaState:
        state = self.replica.state(self._clock.now_ms())
        self._events.add_state(state)
        return state

    # --- actions ----------------------------------------------------------------------------------------------------
    def _perform(self) -> None:
        if self._performing:
            return
        self._performing = True
        try:
            while actions := self.replica.actions():
                for action in actions:
                    self._perform_action(action)
        finally:
            self._performing = False
        self._react()

    def _perform_action(self, action: Action) -> None:
        match action:
            case Complete(token, status):
                assert isinstance(token, Waiting)
                token.finish(status)
            case SendLog(conn_id, header, phy_offset, size_bytes):
                self.ha.send_log(conn_id, header, phy_offset, size_bytes)
            case SendHa(conn_id, data, may_wait):
                self.ha.send(conn_id, data, may_wait=may_wait)
            case CallController():
                self.controller.call(action)
            case OpenHa(conn_id, address):
                self.ha.open(conn_id, address)
            case CloseHa(conn_id, reason, is_breach):
                self.ha_breach_count += is_breach
                self._tracer.event("ha_closed", conn_id=conn_id, reason=reason)
                self.ha.close(conn_id)
            case RoleChanged(role, epoch, master_id, master_address):
                self._writable = False
                self._waiting_part, self._reported_offset = (0, 0), PhyOffset(0)  # the log may be cut
                if role is not Role.MASTER:
                    self.store.discard_uncommitted()
                self._tracer.event(
                    "role_changed", role=role.name, epoch=epoch, master_id=master_id, master_address=master_address
                )
                self._events.role_changed(action)
            case ResolveHosts(names):
                self.ha.resolve(names)
            case HandedOver(token, _, _):
                assert isinstance(token, HandOverWaiter)
                token.finish(action)
            case _:
                assert_never(action)

    def _react(self) -> None:
        """React to the machine's new state."""
        serving = self.is_serving
        if serving and not self._serving:
            self._serving = True
            self._events.opened()
        self._serving = serving
        if serving and not self._writable and self.admission()[0] is ResponseCode.SUCCESS:
            self._writable = True
            self._tracer.event("writable", epoch=self.replica.epoch)
        if self.dispatch_due:
            self._shell.wake_dispatch()
        if self._throttle.is_waited_for:
            self._throttle.moved()
        self._shell.stepped()


def _count(message: NewMessage) -> int:
    """Number of messages in one record."""
    if not message.sys_flag & SYS_FLAG_INNER_BATCH:
        return 1
    count = find_property(message.properties, PROPERTY_INNER_NUM.encode())
    return int(count) if count and count.isdigit() else 1


# --- size of a slice of work whose cost per byte depends on clients ---------------------------------------------------


class SliceSize:
    """Size between `low_bytes` and `high_bytes`. A slice longer than `aim_ms` sets it to what took `aim_ms`; one
    shorter than half doubles it."""

    def __init__(self, low_bytes: int, high_bytes: int) -> None:
        self._low_bytes, self._high_bytes = low_bytes, high_bytes
        self.size_bytes = high_bytes

    def took(self, taken_ms: int, done_bytes: int, aim_ms: int) -> None:
        if taken_ms > aim_ms:
            self.size_bytes = max(self._low_bytes, min(self.size_bytes, done_bytes * aim_ms // taken_ms))
        elif taken_ms * 2 < aim_ms and done_bytes * 2 >= self.size_bytes:
            self.size_bytes = min(self._high_bytes, self.size_bytes * 2)
