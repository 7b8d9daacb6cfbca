"""A broker without its shells: store, machine, tables and processors wired together. No trio."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from zlib import crc32

from rmqha.broker.access.user_requests import UserRequests
from rmqha.broker.access.user_table import UserTable
from rmqha.broker.cold_reads import ColdPart, ColdReads
from rmqha.broker.pop.modes import ModeTable
from rmqha.broker.pop.services import ACK_CODES, PopServices
from rmqha.broker.replication.append_throttle import AppendThrottle
from rmqha.broker.replication.read_repair import ReadRepair
from rmqha.broker.replication.replica_driver import ReplicaDriver
from rmqha.broker.requests.admin import AdminRequests
from rmqha.broker.requests.change_gate import ChangeGate
from rmqha.broker.requests.consumer_calls import ConsumerCalls
from rmqha.broker.requests.consumer_requests import ConsumerRequests
from rmqha.broker.requests.group_requests import GroupRequests
from rmqha.broker.requests.processor import BrokerProcessor
from rmqha.broker.requests.pull import PullProcessor
from rmqha.broker.requests.query_requests import QueryRequests
from rmqha.broker.requests.request import Channel
from rmqha.broker.requests.retry import RetryRules, SendBackProcessor
from rmqha.broker.requests.selectors import SelectorRequests
from rmqha.broker.requests.send import SendProcessor
from rmqha.broker.requests.table_requests import TableRequests
from rmqha.broker.services.group_notices import GroupNotices
from rmqha.broker.services.live_config import LiveConfig
from rmqha.broker.services.replies import ReplyProcessor
from rmqha.broker.services.retention import Retention
from rmqha.broker.services.schedule import ScheduleService
from rmqha.broker.services.statistics import BrokerStatistics
from rmqha.broker.services.transaction_service import TransactionService
from rmqha.broker.shell import NO_HOST, BrokerShell, HostFacts
from rmqha.broker.tables.clients import ClientTable
from rmqha.broker.tables.delay_offsets import DelayOffsetTable
from rmqha.broker.tables.groups import GroupTable
from rmqha.broker.tables.locks import LockRequests, LockTable
from rmqha.broker.tables.metadata_follower import FollowedMaster
from rmqha.broker.tables.metadata_leader import MetadataLeader
from rmqha.broker.tables.offsets import FOREIGN_LAG_MS, OffsetTable
from rmqha.broker.tables.queue_max_offsets import QueueMaxOffsets
from rmqha.broker.tables.topics import TopicTable
from rmqha.broker.timers import hand_over
from rmqha.broker.timers.master_counts import MasterTimerCounts
from rmqha.broker.timers.message import TIMER_QUEUE_ID
from rmqha.broker.timers.recall import RecallProcessor
from rmqha.broker.timers.requests import TimerRequests
from rmqha.broker.timers.service import TimerRules, TimerService
from rmqha.broker.timers.snapshot import TimerSnapshots
from rmqha.broker.timers.waiting_requests import WaitingRequests
from rmqha.ha.action import RoleChanged
from rmqha.ha.machine import ReplicaMachine
from rmqha.ha.replica import Replica
from rmqha.ha.static_replica import StaticReplica
from rmqha.kernel.batch_kernel import BatchKernel
from rmqha.model.code import RequestCode
from rmqha.model.config.delay_level import parse_delay_levels
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.error import NoRoomError, StoreError
from rmqha.model.identity import Role
from rmqha.model.message import TIMER_TOPIC, UniqueKeys
from rmqha.model.offset import OPEN_END, BrokerId, Epoch, PhyOffset, QueueOffset
from rmqha.model.quota import QuotaLimits, Quotas
from rmqha.port import Clock, Disk, IdentityStore, Tracer
from rmqha.store.appender import AppendedBatch
from rmqha.store.integrity.scrubber import Scrubber
from rmqha.store.log.record import NewMessage, decode
from rmqha.store.meta.boot_file import LastStop
from rmqha.store.store import Store
from rmqha.store.timer.timer_width import slot_width_ms
from rmqha.wire import lenient_json
from rmqha.wire.command import Command
from rmqha.wire.state.replica_state import ReplicaState

TICK_MS = 100
"""Interval (ms) of deliveries of messages with a delay level."""
TIMER_ENTRIES = TIMER_TOPIC, TIMER_QUEUE_ID


class _GroupView:
    """View of the group for the metadata leader."""

    def __init__(self, replica: ReplicaMachine, store: Store, driver: ReplicaDriver) -> None:
        self._replica = replica
        self._store = store
        self._driver = driver
        self.slave_caught_up = driver.timeout
        self.other_members = replica.other_members
        self.may_follow_tables = replica.may_follow_tables

    @property
    def epoch(self) -> Epoch:
        return self._replica.epoch

    @property
    def log_end(self) -> PhyOffset:
        """End of everything that this master had when it was elected or has committed since."""
        last = self._store.epochs.last
        return max(self._store.dispatched_offset, last.start_offset if last is not None else PhyOffset(0))

    def end_of(self, topic: str, queue_id: int, epoch: int) -> int:
        """Bound on offsets that a consumer told a master of `epoch`: the end of the queue, for another master its end
        when this one took over, since that master's tail may be lost. No bound before this master serves: its queues
        may be behind its log, and offsets beyond them are lowered when it opens."""
        if not self._driver.is_serving:
            return OPEN_END
        low, high = (int(bound) for bound in self._store.queue_range(topic, queue_id))
        last = self._store.epochs.last
        if last is None or epoch >= last.epoch:
            return high
        while low < high:
            middle = (low + high) // 2
            records = self._store.pull(topic, queue_id, QueueOffset(middle), 1, 1, None).records
            if records and decode(records[0]).phy_offset < last.start_offset:
                low = middle + 1
            else:
                high = middle
        return low


class BrokerCore:
    """All parts of a broker. `driver.ha` and `driver.controller` must be set before `driver.start()`. It takes the
    events of driver and tables (`DriverEvents`, `TableEvents`)."""

    def __init__(
        self,
        config: BrokerConfig,
        disk: Disk,
        store: Store,
        identity: IdentityStore,
        clock: Clock,
        tracer: Tracer,
        store_host: tuple[bytes, int],
        shell: BrokerShell,
        kernel: BatchKernel,
        quotas: Quotas | None = None,
        host: HostFacts = NO_HOST,
    ) -> None:
        self.live = LiveConfig(disk, config, tracer)
        config = self.live.current
        self.kernel, self.quotas = kernel, quotas or Quotas(QuotaLimits())
        self.quotas.configure(config.quotas)
        self.store = store
        self._tracer, self._clock, self._shell, self.disk = tracer, clock, shell, disk
        self.replica = self._machine(config, identity)
        self.throttle = AppendThrottle(self.replica, clock)
        self.statistics = BrokerStatistics(config.broker_cluster_name)
        self.driver = ReplicaDriver(self.replica, store, self.throttle, clock, tracer, self, shell, self.statistics)
        synced = store.recovery.last_stop is LastStop.CLEAN  # else a write may have failed unseen (ruling 29)
        self.topics = TopicTable(
            disk, config, clock, self, store.batch_topics, store.queue_ends_of, self._log_end, is_synced=synced
        )
        store.hide_before(self.topics.begins)
        self.groups = GroupTable(disk, clock, config, self, is_synced=synced)
        self.offsets = self._offset_table(disk, is_synced=synced)
        self.clients, self.locks, self.modes = ClientTable(config), LockTable(clock), ModeTable(disk)
        self.notices = GroupNotices(self.clients, shell.wake_notices)
        self.retention = Retention(config, disk, self.driver, clock, tracer, shell.wake_retention, host.local_hour)
        self.delay_offsets = DelayOffsetTable(disk, clock, store, self, config.timer_precision_ms, is_synced=synced)
        hand_over.take_over(disk, store, self.delay_offsets, tracer)
        self.users = UserTable(disk, clock, self, config.authorization_rules, *config.named_users, is_synced=synced)
        tables = self.topics, self.groups, self.offsets, self.delay_offsets, self.users, self.modes
        group = _GroupView(self.replica, store, self.driver)
        self.metadata_leader = MetadataLeader(config, group, shell, *tables, clock, tracer)
        self.scrubber = Scrubber(store, kernel.skip_sound)
        levels_ms = parse_delay_levels(config.message_delay_level)
        delivery = store, self.driver, self.delay_offsets, clock, tracer, store_host
        self.schedule = ScheduleService(*delivery, levels_ms, shell.wake_schedule, self.topics)
        self.timers = TimerService(*delivery, _timer_rules(config), shell.wake_schedule, self.topics)
        self.delay_offsets.clamp(self.schedule.end_of, self.timers.end_offset)
        self.timer_snapshots = TimerSnapshots(disk, self.timers, self.delay_offsets, clock, tracer)
        store.on_truncate(self._deliveries_cut)
        store.on_truncate(lambda end_offset: self._offsets_cut())
        for table in tables:
            for line in table.findings:
                tracer.event("recovery", finding=line)
        self.retry_rules = rules = RetryRules(config, self.topics, self.groups, self.locks)
        levels, held = len(levels_ms), (self.metadata_leader.wait, shell)
        keys = _unique_keys(store_host, host, clock.wall_ms())
        self.transactions = TransactionService(
            config, store, self.driver, self.offsets, self.topics, self.clients, clock, tracer, store_host, shell
        )
        send_parts = (*held, kernel, keys, clock, self.timers.recall_refusal, self.transactions)
        self.send = SendProcessor(
            config, self.topics, self.driver, store_host, rules, levels, self.throttle, *send_parts
        )
        self.cold_reads = ColdReads(shell.wake_cold_reads)
        self.pull = self._pulls(config, host.memory_bytes)
        self.pops = self._pops(store_host, host.memory_bytes)
        hour = self.retention.local_hour
        watched = self.live, self.driver, self.send, self.pull, self.schedule, self.timers
        self.admin = AdminRequests(*watched, clock, host, hour, shell, self.statistics)
        self.send_back = SendBackProcessor(store, self.driver, rules, store_host, levels, self.statistics)
        self.processor = self._processor(config, clock, store_host)
        self._unwritten: set[str] = set()
        if not all(table.file.is_saved for table in (self.topics, self.groups, self.users)):
            self.save_tables()  # what is in doubt since a kill; a slave tries again before it polls
        self.live.add_listener(self._configure)

    def _offset_table(self, disk: Disk, *, is_synced: bool) -> OffsetTable:
        table = OffsetTable(disk, self, self._log_ms, is_synced=is_synced)
        if table.is_foreign:
            table.foreign_until_ms = self.store.last_store_timestamp_ms - (0 if is_synced else FOREIGN_LAG_MS)
        return table

    def _machine(self, config: BrokerConfig, identity: IdentityStore) -> ReplicaMachine:
        if not config.enable_controller_mode:
            return StaticReplica(config, self.store, self._tracer)
        rules = self._may_join, self._table_waits
        return Replica(config, self.store, identity, self._tracer, *rules, self._wall_offset_ms, self._shell)

    def _pulls(self, config: BrokerConfig, memory_bytes: int) -> PullProcessor:
        return PullProcessor(
            config,
            self.store,
            self.topics,
            self.groups,
            self.clients,
            self.offsets,
            self._clock,
            lambda: self.driver.is_serving,
            self._readers,
            memory_bytes,
            self.statistics,
            self.cold_reads,
        )

    def _pops(self, store_host: tuple[bytes, int], memory_bytes: int) -> PopServices:
        tables = self.topics, self.groups, self.offsets, self.clients
        modes = self.modes, self.metadata_leader.changed
        places = self._clock, self._tracer, store_host, self._shell, *modes, memory_bytes, self.statistics, self.pull
        reads = self.cold_reads
        pops = PopServices(self.config, self.disk, self.store, self.driver, tables, self.timers, *places, reads)
        for line in pops.findings:
            self._tracer.event("recovery", finding=line)
        self.store.before_cut(self._roll_back_pops)
        self.store.on_restart(self.timers.log_cut)
        return pops

    def _wall_offset_ms(self) -> int:
        """Distance (ms) of the wall clock from the monotonic one; it changes when the wall clock is set."""
        return self._clock.wall_ms() - self._clock.now_ms()

    def add_state(self, state: ReplicaState) -> None:
        self.retention.add_state(state)
        self.metadata_leader.add_state(state)
        state.damage, state.scrub = self.store.damage.state(), self.scrubber.state()

    def _log_ms(self) -> int:
        """Wall time (ms), but not before that of any record in the log, whichever clock stamped it."""
        return max(self._clock.wall_ms(), self.store.last_store_timestamp_ms)

    def _processor(self, config: BrokerConfig, clock: Clock, store_host: tuple[bytes, int]) -> BrokerProcessor:
        """Router of all requests, over the tables and the other parts."""
        store, driver, metadata_leader = self.store, self.driver, self.metadata_leader
        topics, groups, offsets, clients = self.topics, self.groups, self.offsets, self.clients
        consumers = ConsumerRequests(
            store, driver, topics, groups, offsets, clients, metadata_leader, self.notices, self._clock
        )
        puts, delays = self.statistics.topic_puts, self.delay_offsets
        changes = ChangeGate(driver, config.metadata_strict, self._table_waits)
        self.tables = TableRequests(
            config, store, changes, topics, groups, offsets, delays, puts, metadata_leader, self._shell.when_routed
        )
        gets = self.statistics.group_gets
        told = self.pull, clock, metadata_leader, gets, self.pops
        group = GroupRequests(config, store, changes, topics, groups, offsets, clients, *told)
        self.queries = QueryRequests(config, store.index, store, topics, self._shell.wake_searches)
        queries, locks = self.queries, LockRequests(self.locks, driver, self.topics, self.store)
        selectors = SelectorRequests(config)
        learned = self.driver.timeout
        fault = self.timers.recall_refusal
        self.recalls = RecallProcessor(config, topics, driver, self._shell, store_host, self.send, clock, fault)
        self.queue_ends = QueueMaxOffsets(store, self.replica, self._asked_master, learned, self._tracer)
        self.calls = ConsumerCalls(config.broker_name, store, topics, groups, clients, self._shell.call_client)
        self._configured = (
            topics,
            groups,
            clients,
            self.pull,
            self.retention,
            group,
            selectors,
            self.driver,
            self.send,
            self.retry_rules,
            self.recalls,
            self.transactions,
            self.pops,
        )
        self.read_repair = ReadRepair(store, self.replica, self._tracer, self._repair_settled)
        asked = (metadata_leader, consumers, self.calls, queries, self.tables, group, self.admin, locks, self.retention)
        users = UserRequests(self.users, changes, metadata_leader)
        self.master_timer_counts = MasterTimerCounts()
        waiting = self.timers, clock, lambda: delays.version, lambda: driver.is_serving
        self.timer_requests = TimerRequests(*waiting, lambda: self.master_timer_counts.of(self.followed_master))
        unresolved = WaitingRequests(self.transactions, self.schedule, clock, clients)
        others = self.timer_requests, unresolved, users, self.send, selectors
        parts = (*asked, *others, self.queue_ends, self.read_repair, self.pops)
        store_address = f"{config.own_ip}:{config.listen_port}"
        replies = ReplyProcessor(clients, self.send, self._shell.call_client, clock, store_address)
        appending = self.send, self.pull, self.send_back, self.transactions, self.recalls, replies
        return BrokerProcessor(
            *appending,
            self.pops,
            consumers,
            queries,
            parts,
            self.throttle,
            self._shell,
            lambda: driver.is_log_free,
            driver.catch_up,
            driver,
        )

    def _repair_settled(self) -> None:
        """Retry whatever waited for a damaged record, which was repaired or is lost."""
        self.pull.repaired()
        self.pops.polls.wake_all()
        self._shell.wake_schedule()
        self._shell.wake_transactions()

    @property
    def config(self) -> BrokerConfig:
        """Present configuration: some keys change while the broker runs."""
        return self.live.current

    @property
    def followed_master(self) -> FollowedMaster | None:
        """Master whose tables this replica replicates."""
        replica = self.replica
        if replica.role is not Role.SLAVE or not replica.master_address or replica.broker_id is None:
            return None
        return FollowedMaster(replica.master_address, replica.epoch, replica.broker_id)

    def holds_log(self, end_offset: int) -> bool:
        """True if this replica's log is a part of its master's, and reaches `end_offset`."""
        return self.replica.is_following and self.store.max_phy_offset >= end_offset

    def _asked_master(self) -> FollowedMaster | None:
        """Master whose ends of queues this replica may use now."""
        return self.followed_master if self.driver.is_log_free else None

    def _configure(self, config: BrokerConfig) -> None:
        self.timers.rules = _timer_rules(config)
        granted = self.topics.granted
        for part in self._configured:
            part.configure(config)
        if self.topics.granted != granted and self.replica.is_master:
            self.topics.permission_changed()
        self.quotas.configure(config.quotas)

    # --- events of driver and tables ----------------------------------------------------------------------------------
    def role_changed(self, action: RoleChanged) -> None:
        self.delay_offsets.drop_future_states()
        if action.role is Role.MASTER:
            self.delay_offsets.epoch = action.epoch
            self.offsets.new_epoch(action.epoch, self._clock.wall_ms())
            self.groups.new_epoch(action.epoch)
            self.topics.new_epoch(action.epoch)
            self.users.new_epoch(action.epoch)
            if self.store.lacks_queue_ends:
                self._tracer.event("master_lacks_queue_ends", epoch=action.epoch)
        self.metadata_leader.role_changed()
        self.locks.clear()
        self.schedule.role_changed()
        self.timers.role_changed()
        self.transactions.role_changed()
        self.pull.role_changed()
        self.pops.role_changed()
        if action.role is Role.SLAVE:
            self.pops.demoted()
        self._shell.role_changed(action)

    def opened(self) -> None:
        """Restore topics that only the queues have (ruling 16), and lower offsets beyond the queues, which now have
        everything that is committed."""
        self._clamp_offsets(self._dispatched_end, stamped=True)
        if self.topics.clamp_begins(self._dispatched_end):
            self.topics.save()  # by the older file a start would clamp again, and hide what comes until then
        restored = self.topics.restore(self.store.queues(), self.store.batch_topics)
        if restored:
            self._tracer.event("topics_restored", topics=restored)
        self._shell.wake_schedule()

    def appended(self, topics: Collection[str], start_offset: PhyOffset) -> None:
        self.pops.appended(topics, start_offset)

    def appended_waiting(self, messages: Sequence[NewMessage], batch: AppendedBatch) -> None:
        self.timers.appended(messages, batch)

    def dispatched(self, grown: Collection[tuple[str, int]]) -> None:
        if TIMER_ENTRIES in grown:
            self._shell.wake_schedule_soon()
        self.pull.dispatched(grown)
        self.pops.dispatched(grown)

    def loaded(self, part: ColdPart) -> None:
        """Try the reads again that waited for this part: a thread has loaded it into memory."""
        self.pull.loaded(part)
        self.pops.loaded(part)

    def unreadable(self, part: ColdPart, reason: str) -> None:
        """Try the reads again that waited for this part, which the disk cannot read; they may want it once more."""
        self.cold_reads.end(part)
        self.pull.unreadable(part, reason)
        self.pops.unreadable(part, reason)

    def _may_join(self, slave_id: BrokerId) -> bool:
        return self.metadata_leader.may_join(slave_id)

    def _table_waits(self) -> int:
        return self.metadata_leader.topic_waiting_count

    def table_changed(self) -> None:
        self.metadata_leader.changed()

    def save_tables_soon(self) -> None:
        self._shell.save_tables_soon()

    def topics_changed(self) -> None:
        self._shell.topics_changed()

    def batch_topics_changed(self, topics: set[str]) -> None:
        self.store.add_batch_topics(topics)

    def deliver(self) -> None:
        """Store due delayed and timer messages again. Raises StoreError."""
        if self.driver.is_log_free:
            self.schedule.deliver()
            self.timers.deliver()
            self.pops.step()

    def pause_ms(self) -> int:
        """Time (ms) after which `deliver` may find due messages; new entries and acknowledgements wake it earlier."""
        if not self.driver.is_log_free or self.schedule.is_waiting or self.pops.is_stepping:
            return TICK_MS
        return self.timers.pause_ms()

    def _roll_back_pops(self, end_offset: int) -> None:
        """Lower offsets that depend on a part of the log before its cut, durably. Raises OSError."""
        if self.pops.offset_rollback.roll_back(end_offset) and (unsaved := self.offsets.unsaved()) is not None:
            self.offsets.write(unsaved)

    def _deliveries_cut(self, end_offset: int) -> None:
        self.delay_offsets.log_cut(end_offset, self.schedule.end_of, self.timers.end_offset)
        self.timers.log_cut()

    def _readers(self) -> dict[int, int]:
        """Replicas from which consumers may read old messages: a master's slaves, or a slave itself."""
        if self.replica.is_master:
            return self.replica.slave_ends()
        own_id = self.replica.broker_id
        return {} if own_id is None else {own_id: self.store.confirm_offset}

    def _offsets_cut(self) -> None:
        """Lower offsets that depended on the removed part. Records that the queues merely lack so far are in the
        log."""
        try:
            self._clamp_offsets(self.store.queue_end)
        except StoreError:  # damaged: its dispatch, which comes to it next, tells so
            self._clamp_offsets(self._dispatched_end)

    def _log_end(self) -> int:
        """Physical offset of the next record."""
        return self.store.max_phy_offset + self.store.uncommitted_bytes

    def _dispatched_end(self, topic: str, queue_id: int) -> QueueOffset:
        return self.store.queue_range(topic, queue_id)[1]

    def _clamp_offsets(self, end_of: Callable[[str, int], QueueOffset], *, stamped: bool = False) -> None:
        count = self.offsets.clamp(end_of, stamped=stamped)
        if count:
            self._tracer.event("consumer_offsets_clamped", count=count)

    def admit(self, channel: Channel, commands: list[Command]) -> None:
        """Process sends, recalls and ends of transactions that were held."""
        for command in commands:
            if command.code == RequestCode.END_TRANSACTION:
                self.transactions.admit(channel, command)
            elif command.code == RequestCode.RECALL_MESSAGE:
                self.recalls.admit(channel, command)
            elif command.code in ACK_CODES:
                self.pops.acks.admit(channel, command)
            else:
                self.send.admit(channel, [command])

    def tables_saved(self, trouble: str, which: str = "offsets") -> None:
        """Take the end of a write of files; `trouble` is its error, else "". Only changes are traced."""
        was_behind = bool(self._unwritten)
        (self._unwritten.add if trouble else self._unwritten.discard)(which)
        if bool(self._unwritten) != was_behind:
            self._tracer.event("tables_not_saved" if trouble else "tables_saved", reason=trouble)

    def save(self) -> None:
        """Write the tables that lack changes. Raises OSError."""
        for write in chain(self.table_writes(), self.writes()):
            write()

    # --- the end ------------------------------------------------------------------------------------------------------
    def leave(self) -> None:
        """Refuse new requests and begin to hand over: the first step of a clean stop."""
        self.driver.stopping()
        self.pull.refuse()
        self.pops.refuse()

    def close(self) -> None:
        """Close after everything else has ended. Raises StoreError or OSError; the stop is then not clean."""
        try:
            self.finish()
        except BaseException:
            self.store.abandon()
            raise
        self.store.close()

    def finish(self) -> None:
        """Write what the next program with this store needs: the last step of a clean stop before the store is closed.
        Raises OSError and StoreError."""
        self.store.sync()  # the file of delay offsets says no more than the disk has
        with suppress(NoRoomError):
            self.store.dispatch_all()  # nor do the offsets of groups that pop say more than the queues have
        self.save()
        self.hand_over()

    def hand_over(self) -> None:
        """Leave a timer log of waiting messages, after `save`."""
        doubt, given = self.timers.doubt(), self.timers.hand_over()
        if doubt and self.timers.waiting_count:
            self._tracer.event("timer_log_not_written", reason=doubt)
        if given is not None:
            size_bytes = self.live.current.mapped_file_size_timer_log
            metrics = lenient_json.dumps(self.timer_requests.metrics())
            hand_over.give_over(self.disk, self.delay_offsets, given, metrics, size_bytes, self._tracer)

    def save_tables(self) -> None:
        """Write topics, groups and users now. A failed write is repeated later."""
        trouble = ""
        for write in self.table_writes():
            try:
                write()
            except OSError as error:
                trouble = str(error)
        self.tables_written(trouble)

    def table_writes(self) -> Iterator[Callable[[], None]]:
        """Writes of topics, groups, users and modes that lack changes, for any thread. Each raises OSError."""
        for table in (self.topics, self.groups, self.users):
            data = table.unsaved()
            if data is not None:
                yield partial(table.file.write, data)
        if (modes := self.modes.unsaved()) is not None:
            yield partial(self.modes.write, modes)

    def tables_written(self, trouble: str) -> None:
        """Take the end of all `table_writes`; `trouble` as in `tables_saved`."""
        self.tables_saved(trouble, "tables")
        waiting_count = self.metadata_leader.topic_waiting_count
        self.metadata_leader.saved()
        self.modes.saved()
        if waiting_count > self.metadata_leader.topic_waiting_count:
            self.driver.timeout()  # a hand-over may wait for what has been answered now

    def writes(self) -> Iterator[Callable[[], None]]:
        """Writes of the other tables that lack changes, for any thread. Each raises OSError. They end when a change of
        the log begins, whose thread changes the tables, and writes them in a cut."""
        for made in (self._offset_writes, self._delay_writes, self.timer_snapshots.writes, self._order_writes):
            if not self.driver.is_log_free:
                return
            yield from made()

    def _offset_writes(self) -> Iterator[Callable[[], None]]:
        self.pops.advance()
        offsets = self.offsets.unsaved()
        if offsets is not None:
            yield partial(self.offsets.write, offsets)

    def _delay_writes(self) -> Iterator[Callable[[], None]]:
        delays = self.delay_offsets.unsaved()
        if delays is not None:
            yield partial(self.delay_offsets.write, delays)

    def _order_writes(self) -> Iterator[Callable[[], None]]:
        orders = self.pops.orders.unsaved(self._clock.wall_ms())
        if orders is not None:
            yield partial(self.pops.orders.write, orders)


def _unique_keys(store_host: tuple[bytes, int], host: HostFacts, started_at_ms: int) -> UniqueKeys:
    """Unique keys that no earlier broker with the same address and process id has made."""
    instance_hash = crc32(f"{store_host} {started_at_ms}".encode())
    return UniqueKeys(store_host[0], int(host.process.get("pid", 0)), instance_hash, host.month_of)


def _timer_rules(config: BrokerConfig) -> TimerRules:
    return TimerRules(
        slot_width_ms(config.timer_precision_ms), config.timer_max_delay_sec * 1000, config.timer_wheel_enable
    )
