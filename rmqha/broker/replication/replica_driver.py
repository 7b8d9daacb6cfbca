"""The one place that calls the replica machine: feeds it, performs its actions in order, dispatches its log. No trio.

What interrupts a call ends the process, for machine and log may be half changed (`rmqha.model.error.whole`). Everything
runs in one thread. A performer of an action may call back into the driver (a connection that fails at once,
say): such calls only feed the machine, and the outermost call performs what came of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol, assert_never

from rmqha.broker.replication.tail_room import TailRoom
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
from rmqha.model.error import interrupted, whole
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
"""Log dispatched in one slice, so that other work gets its turn within milliseconds."""
COPY_BYTES = 4 * 1024 * 1024
"""A slave that is so far behind is copying, and dispatches so much at a time, in bulk."""
BACKLOG_BYTES = 16 * 1024 * 1024
"""Backlog that is dispatched in bulk too: record by record it would take a tenth of a second. With less a broker never
waits for NumPy to be imported."""
MIN_DISPATCH_BYTES = 4 * 1024
DISPATCH_MS = 8
"""A slice that takes longer is followed by a smaller one: the first record of a queue makes a file, which costs as much
as a thousand records, and clients make queues. In bulk COPY_DISPATCH_MS counts."""
COPY_DISPATCH_MS = 100


class HaPort(Protocol):
    """Performs the HA actions; answers by `ha_opened`, `ha_sent`, `ha_closed` and `ha_resolved` of the driver."""

    def open(self, conn_id: int, address: str) -> None: ...

    def send(self, conn_id: int, data: bytes, *, may_wait: bool) -> None:
        """`may_wait`: for the next frame of this connection, which takes its place, or some milliseconds."""
        ...

    def send_log(self, conn_id: int, header: bytes, phy_offset: PhyOffset, size_bytes: int) -> None: ...

    def close(self, conn_id: int) -> None: ...

    def resolve(self, names: tuple[str, ...]) -> None: ...


class ControllerPort(Protocol):
    """Performs CallController; answers by `controller_replied` exactly once."""

    def call(self, action: CallController) -> None: ...


class DriverEvents(Protocol):
    """Events of which the parts of a broker hear of its replica and log."""

    def role_changed(self, action: RoleChanged) -> None: ...

    def opened(self) -> None:
        """A new master takes sends from now on: its queues hold everything that is committed."""

    def dispatched(self, grown: Collection[tuple[str, int]]) -> None:
        """These queues have grown."""

    def appended(self, topics: Collection[str], start_offset: PhyOffset) -> None:
        """Records of these topics stand in the log from there on, and nobody has been sent them yet: what is given to
        `store_waiting` now goes with them."""

    def appended_waiting(self, messages: Sequence[NewMessage], batch: AppendedBatch) -> None:
        """These have been appended here, and come by themselves when their time has come."""

    def tell(self, state: ReplicaState) -> None:
        """Add what request 52000 shows of the other parts."""


class DriverShell(Protocol):
    """A `BrokerShell` is one."""

    def at_turn_end(self, work: Callable[[], None]) -> bool: ...

    def wake_dispatch(self) -> None: ...

    def wake_flush(self) -> None: ...

    def stepped(self) -> None: ...


class _Gathered(NamedTuple):
    """Records that one request stores."""

    messages: list[NewMessage]
    stored: Callable[[PhyOffset], None]
    answer: Answer


class ReplicaDriver:
    def __init__(
        self,
        replica: ReplicaMachine,
        store: Store,
        room: TailRoom,
        clock: Clock,
        tracer: Tracer,
        events: DriverEvents,
        shell: DriverShell,
        statistics: BrokerStatistics,
    ) -> None:
        self.replica = replica
        self.store = store
        self._room = room
        self._clock = clock
        self._tracer = tracer
        self._performing = False
        self._serving = False
        self._dispatch_slice = SliceSize(MIN_DISPATCH_BYTES, COPY_BYTES)
        self._writable = False
        self.ha: HaPort
        self.controller: ControllerPort
        self._events = events
        self._shell = shell
        self._statistics = statistics
        self._by_itself = (0, 0)
        """Start and end of the log's part that `store_waiting` has written last."""
        self._new_topics: dict[str, None] = {}
        """Topics of what was appended since `DriverEvents.appended`."""
        self._told_offset = PhyOffset(0)
        """End of the log at that time."""
        self._gathered: list[_Gathered] | None = None
        """Records that are to be appended together; None where each is appended at once."""
        self._admission: tuple[ResponseCode, str] | None = None
        """The admission that holds for them, once it is asked for."""
        self._waiting_for_flush = False
        self._is_turn_open = False
        """Sends of this turn wait for its end to be settled."""
        self.ha_breach_count = 0
        """HA connections closed for what the peer sent."""

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
        """It holds for all requests whose records are gathered."""
        if self._admission is not None:
            return self._admission
        found = self.replica.admission(self._clock.now_ms())
        if self._gathered is not None:
            self._admission = found
        return found

    def append(self, messages: list[NewMessage] | NewBatch, *, are_checked: bool = False) -> AppendedBatch:
        """`are_checked`: they have passed `check`."""
        wall_ms, began_ms = self._clock.wall_ms(), self._clock.now_ms()
        try:  # the decorator's work, without its cost
            batch = self._append(messages, wall_ms, are_checked=are_checked)
            self._statistics.put_times.took(self._clock.now_ms() - began_ms)
            return batch
        except Exception as error:  # noqa: BLE001  (it goes on, as what it means)
            interrupted(error)

    def check(self, messages: Sequence[NewMessage]) -> None:
        """Raises UsageError if one of them cannot be stored."""
        self.store.check(messages)

    def store_waiting(self, messages: list[NewMessage], stored: Callable[[PhyOffset], None], answer: Answer) -> None:
        """Append what comes by itself when its time has come: nobody looks for it in a queue before, so `catch_up`
        leaves it to the loops. It has passed `check`. `stored` is told where it ends in the log, `answer` when it
        counts. After `gather` both come with `store_gathered`, and all records with one write."""
        if self._gathered is not None:
            self._gathered.append(_Gathered(messages, stored, answer))
            return
        batch = self._append_by_itself(messages)
        stored(batch.end_offset)
        self.appended_in_turn(batch.end_offset, answer)

    def _append_by_itself(self, messages: list[NewMessage]) -> AppendedBatch:
        batch = self.append(messages, are_checked=True)
        first, (start, end) = batch.phy_offsets[0], self._by_itself
        self._by_itself = (start if first == end else first), batch.end_offset
        self._events.appended_waiting(messages, batch)
        return batch

    def _take_gathered(self) -> list[_Gathered]:
        gathered, self._gathered, self._admission = self._gathered or [], None, None
        return gathered

    def _append_gathered(self, gathered: list[_Gathered]) -> None:
        assert self.is_log_free, "a turn of pops changes no role, and nothing else happens in it"
        batch = self._append_by_itself([message for part in gathered for message in part.messages])
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
        """Append the plain sends at the front of what a connection has sent; None if there is none."""
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
            if self._tell_appended() or waiter is not None:
                self._flush_soon()
            self.replica.appended(now_ms)
            self._perform()
        except Exception as error:  # noqa: BLE001  (it goes on, as what it means)
            interrupted(error)

    def _flush_soon(self) -> None:
        """Somebody waits for what is in the log."""
        if self.replica.sync_required:
            self._waiting_for_flush = True
            self._shell.wake_flush()

    def _tell_appended(self) -> bool:
        """Tell of what is new in the log, and append what is stored for it: True if somebody waits for that."""
        gathered = None
        if self._new_topics and not self.store.uncommitted_bytes and self.gather():
            self._events.appended(self._new_topics, self._told_offset)
            gathered = self._take_gathered()
            if gathered:
                self._append_gathered(gathered)
                self.store.commit()
        self._new_topics.clear()
        self._told_offset = self.store.max_phy_offset
        return bool(gathered)

    def appended_in_turn(self, end_offset: PhyOffset, waiter: Waiting) -> None:
        """Do as `appended`, but where several connections are served in this turn once for all of them, at its end."""
        if not self._is_turn_open and not self._shell.at_turn_end(self._end_turn):
            self.appended(end_offset, waiter)
            return
        self._is_turn_open = True
        try:
            self.replica.wait(self._clock.now_ms(), end_offset, waiter)
        except Exception as error:  # noqa: BLE001  (it goes on, as what it means)
            interrupted(error)

    def gather(self) -> bool:
        """Gather what `store_waiting` is given until `store_gathered`, to append it and wait for it together: nothing
        else may append meanwhile. False if somebody does, or the log is being changed."""
        if self._gathered is not None or not self.is_log_free:
            return False
        self._gathered = []
        return True

    @whole
    def store_gathered(self) -> None:
        """Append it, and wait for it as `appended_in_turn` does."""
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
        self._tell_appended()
        self._flush_soon()
        self.replica.appended(self._clock.now_ms())
        self._perform()

    @whole
    def commit(self) -> None:
        """Let go what waits in memory for company (transientStorePoolEnable). Raises StoreError."""
        if self.is_log_free and self.store.commit():
            self.replica.appended(self._clock.now_ms())
            self._perform()

    @whole
    def roll(self) -> None:
        """End the active file. Raises StoreError when there is no room for the next one."""
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
    def master_told(self, master_address: str, ha_address: str) -> None:
        """A name server has said who the master of this static group is."""
        self.replica.master_told(self._clock.now_ms(), master_address, ha_address)
        self._perform()

    @whole
    def role_notified(self, command: Command) -> None:
        """Raises RemoteProtocolError if the notice cannot be read."""
        self.replica.role_notified(self._clock.now_ms(), command)
        self._perform()

    @whole
    def role_doubted(self) -> None:
        self.replica.role_doubted(self._clock.now_ms())
        self._perform()

    @whole
    def ha_accepted(self, conn_id: int, peer: str, claim: HaClaim | None = None) -> None:
        self.replica.ha_accepted(self._clock.now_ms(), conn_id, peer, claim)
        self._perform()

    @whole
    def ha_resolved(self, numbers: Mapping[str, tuple[str, ...]]) -> None:
        """The answer to ResolveHosts, which only groups with controllers ask for."""
        self.replica.ha_resolved(self._clock.now_ms(), numbers)
        self._perform()

    @whole
    def ha_opened(self, conn_id: int) -> None:
        self.replica.ha_opened(self._clock.now_ms(), conn_id)
        self._perform()

    @whole
    def ha_received(self, conn_id: int, data: Buffer) -> None:
        """`data` may be overwritten afterwards."""
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
        """The end of a change that `LogWriter.write` said would take its time; it raised `error`."""
        if error is not None:
            raise error
        self.replica.log_written(self._clock.now_ms())
        self._perform()
        if self._is_turn_open:
            self._end_turn()

    @property
    def is_log_free(self) -> bool:
        """Else the log is being changed by a thread that waits for the disk: nobody may look at it or change it."""
        return not self.replica.is_writing

    @property
    def is_copying(self) -> bool:
        """A slave that lacks much of its master's log: the copy goes before everything that is derived from it."""
        return self.replica.copy_left_bytes > COPY_BYTES

    @property
    def dispatch_due(self) -> bool:
        """A copy is dispatched in slices that are worth it."""
        behind_bytes = self.store.dispatch_behind_bytes if self.is_log_free else 0
        return behind_bytes > 0 and (behind_bytes > COPY_BYTES or not self.is_copying)

    def dispatch(self) -> bool:
        """Put one slice of committed records into the queues; True if more remains."""
        if not self.is_log_free:
            return False
        before, started_ms = self.store.dispatched_offset, self._clock.now_ms()
        in_bulk = self.is_copying or self.store.dispatch_behind_bytes >= BACKLOG_BYTES
        limit_bytes = COPY_BYTES if in_bulk else DISPATCH_BYTES
        more = self.store.dispatch(min(limit_bytes, self._dispatch_slice.size_bytes))
        done_bytes, taken_ms = self.store.dispatched_offset - before, self._clock.now_ms() - started_ms
        self._dispatch_slice.took(taken_ms, done_bytes, COPY_DISPATCH_MS if in_bulk else DISPATCH_MS)
        if self.store.dispatched_offset > before:
            if self.is_opening:
                # Only the way to serving waits for the queues; a master that serves is spared the call per batch.
                self.replica.dispatched(self._clock.now_ms())
                self._perform()
            self._events.dispatched(self.store.grown)
            self.store.grown.clear()
        return more and self.store.dispatched_offset > before

    @property
    def has_readers(self) -> bool:
        """Something that is to be dispatched may be looked for, or waited for, in a queue."""
        start, end = self._by_itself
        return self.store.dispatched_offset < start or self.store.confirm_offset > end

    def catch_up(self) -> None:
        """Dispatch for somebody who looks now, if a slice is enough."""
        if self.dispatch_due and self.has_readers and self.store.dispatch_behind_bytes <= DISPATCH_BYTES:
            self.dispatch()

    @property
    def flush_due(self) -> bool:
        """Somebody waits for the disk: sync at once, not at the next interval."""
        return self._waiting_for_flush

    def flush_begins(self) -> None:
        self._waiting_for_flush = False

    @whole
    def synced(self) -> None:
        self.replica.synced(self._clock.now_ms())
        self._perform()

    # --- look -------------------------------------------------------------------------------------------------------
    @property
    def is_serving(self) -> bool:
        """Master, and open: everything before its epoch is committed and dispatched."""
        return self.replica.role is Role.MASTER

    @property
    def is_opening(self) -> bool:
        """A new master, which serves once everything before its epoch is committed and dispatched."""
        return self.replica.role is Role.PROMOTING

    def state(self) -> ReplicaState:
        state = self.replica.state(self._clock.now_ms())
        self._events.tell(state)
        return state

    # --- actions ----------------------------------------------------------------------------------------------------
    def _perform(self) -> None:
        if self._performing:
            return
        self._performing = True
        try:
            while actions := self.replica.actions():
                for action in actions:
                    self._do(action)
        finally:
            self._performing = False
        self._observe()

    def _do(self, action: Action) -> None:
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
                self._by_itself, self._told_offset = (0, 0), PhyOffset(0)  # the log may be cut
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

    def _observe(self) -> None:
        """Do what follows from the machine's new state without being an action."""
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
        if self._room.is_waited_for:
            self._room.moved()
        self._shell.stepped()


def _count(message: NewMessage) -> int:
    """Messages that one record holds."""
    if not message.sys_flag & SYS_FLAG_INNER_BATCH:
        return 1
    count = find_property(message.properties, PROPERTY_INNER_NUM.encode())
    return int(count) if count and count.isdigit() else 1


# --- the size of a slice of work where the cost of a piece is the clients' choice -------------------------------------


class SliceSize:
    """Between `low_bytes` and `high_bytes`: as much as took `aim_ms` in the last slice that took longer, and twice as
    much after each one that took less than half."""

    def __init__(self, low_bytes: int, high_bytes: int) -> None:
        self._low_bytes, self._high_bytes = low_bytes, high_bytes
        self.size_bytes = high_bytes

    def took(self, taken_ms: int, done_bytes: int, aim_ms: int) -> None:
        if taken_ms > aim_ms:
            self.size_bytes = max(self._low_bytes, min(self.size_bytes, done_bytes * aim_ms // taken_ms))
        elif taken_ms * 2 < aim_ms and done_bytes * 2 >= self.size_bytes:
            self.size_bytes = min(self._high_bytes, self.size_bytes * 2)
