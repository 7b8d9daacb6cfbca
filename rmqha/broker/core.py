"""A broker without its shells: store, machine, tables and processors wired together. No trio."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import Any

from rmqha.broker.replication.read_repair import ReadRepair
from rmqha.broker.replication.replica_driver import ReplicaDriver
from rmqha.broker.replication.tail_room import TailRoom
from rmqha.broker.requests.admin import AdminRequests
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
from rmqha.broker.services.live_config import LiveConfig
from rmqha.broker.services.retention import Retention
from rmqha.broker.services.schedule import ScheduleService
from rmqha.broker.services.transaction_service import TransactionService
from rmqha.broker.tables.clients import ClientTable
from rmqha.broker.tables.delay_offsets import DelayOffsetTable
from rmqha.broker.tables.groups import GroupTable
from rmqha.broker.tables.locks import LockRequests, LockTable
from rmqha.broker.tables.metadata_follower import Master
from rmqha.broker.tables.metadata_leader import MetadataLeader
from rmqha.broker.tables.offsets import OffsetTable
from rmqha.broker.tables.queue_max_offsets import QueueMaxOffsets
from rmqha.broker.tables.topics import TopicTable
from rmqha.ha.action import RoleChanged
from rmqha.ha.replica import Replica
from rmqha.ha.static_replica import StaticReplica
from rmqha.model.code import RequestCode
from rmqha.model.config.delay_level import parse_delay_levels
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.identity import Role
from rmqha.model.offset import QueueOffset
from rmqha.model.quota import QuotaLimits, Quotas
from rmqha.port import Clock, Disk, IdentityStore, Tracer
from rmqha.store.integrity.scrubber import Scrubber
from rmqha.store.log.record import decode
from rmqha.store.meta.boot_file import LastStop
from rmqha.store.store import Store
from rmqha.wire.command import Command
from rmqha.wire.state.replica_state import ReplicaState


class BrokerCore:
    """`driver.ha` and `driver.controller` must be set before `driver.start()`. `on_role` and `on_topics` are the
    shell's: tell the name servers."""

    def __init__(
        self,
        config: BrokerConfig,
        disk: Disk,
        store: Store,
        identity: IdentityStore,
        clock: Clock,
        tracer: Tracer,
        store_host: tuple[bytes, int],
        *,
        quotas: Quotas | None = None,
        process: dict[str, Any] | None = None,
        disk_usage: Callable[[], tuple[int, int, int]] = lambda: (0, 0, 0),
        history: Callable[[], list[dict[str, Any]]] = list,
        local_hour: Callable[[], int] | None = None,
        memory_bytes: int = 0,
    ) -> None:
        self.live = LiveConfig(disk, config, tracer)
        config = self.live.current
        self.quotas = quotas or Quotas(QuotaLimits())
        self.quotas.configure(config.quotas)
        self.store = store
        self._tracer, self._clock = tracer, clock
        self.replica: Replica | StaticReplica
        if config.enable_controller_mode:
            self.replica = Replica(config, store, identity, tracer, clock.wall_ms() - clock.now_ms())
        else:
            self.replica = StaticReplica(config, store, tracer)
        self.room = TailRoom(self.replica, clock)
        self.driver = ReplicaDriver(self.replica, store, self.room, clock, tracer)
        synced = store.recovery.last_stop is LastStop.CLEAN  # else a write may have failed unseen (ruling 29)
        self.topics = TopicTable(disk, config, clock, is_synced=synced)
        self.topics.batch_topics_changed = store.add_batch_topics
        self.groups = GroupTable(disk, clock, config, is_synced=synced)
        self.offsets = OffsetTable(disk, is_synced=synced)
        self.clients = ClientTable(config)
        self.locks = LockTable(clock)
        self.retention = Retention(config, disk, self.driver, clock, tracer, local_hour)
        self.delay_offsets = DelayOffsetTable(disk, clock, store, is_synced=synced)
        self.feed = self._table_feed(clock, tracer)
        self.feed.end_of = self._end_in
        self.scrubber = Scrubber(store)
        self.driver.tell_more = self._tell_more
        levels_ms = parse_delay_levels(config.message_delay_level)
        self.schedule = ScheduleService(store, self.driver, self.delay_offsets, clock, tracer, store_host, levels_ms)
        self.delay_offsets.clamp(self.schedule.end_of)
        store.on_truncate(lambda end_offset: self.delay_offsets.log_cut(end_offset, self.schedule.end_of))
        store.on_truncate(lambda end_offset: self._clamp_offsets())
        for table in (self.topics, self.groups, self.offsets, self.delay_offsets):
            for line in table.findings:
                tracer.event("recovery", finding=line)
        self.retry_rules = rules = RetryRules(self.topics, self.groups, self.locks)
        self.send = SendProcessor(config, self.topics, self.driver, store_host, rules, len(levels_ms), self.room)
        self.send.when_held = self.feed.wait
        self.transactions = TransactionService(
            config, store, self.driver, self.offsets, self.topics, self.clients, clock, tracer, store_host
        )
        self.pull = PullProcessor(
            config,
            store,
            self.topics,
            self.groups,
            self.clients,
            self.offsets,
            clock,
            lambda: self.driver.is_serving,
            memory_bytes,
        )
        self.pull.readers = self._readers
        shell = (process or {}, disk_usage, history, self.retention.local_hour)
        self.admin = AdminRequests(self.live, self.driver, self.send, self.pull, self.schedule, clock, *shell)
        send_back = SendBackProcessor(store, self.driver, rules, store_host, len(levels_ms))
        self.processor = self._processor(config, send_back, clock)
        self._save_together()
        self.search_soon: Callable[[], None] = self._search_all
        self.live.on_change = self._configure
        self.on_role: Callable[[RoleChanged], None] = lambda action: None
        self.driver.on_role = self._role_changed
        self.driver.on_serving = self._serving
        self.driver.on_dispatched = self.pull.dispatched

    def _tell_more(self, state: ReplicaState) -> None:
        self.retention.tell(state)
        self.feed.tell(state)
        state.damage, state.scrub = self.store.damage.state(), self.scrubber.state()

    def _search_all(self) -> None:
        while self.queries.step():
            pass

    def _save_together(self) -> None:
        self._unwritten: set[str] = set()
        self.save_tables_soon: Callable[[], None] = self.save_tables
        """Topics or groups have changed and somebody may wait for their files; a shell that has threads takes over."""
        save_soon = lambda: self.save_tables_soon()  # noqa: E731
        self.topics.save_soon = self.groups.save_soon = self.feed.save_tables_soon = save_soon
        if not (self.topics.file.is_saved and self.groups.file.is_saved):
            self.save_tables()  # what is in doubt since a kill; a slave tries again before it polls

    def _processor(self, config: BrokerConfig, send_back: SendBackProcessor, clock: Clock) -> BrokerProcessor:
        """All that answers requests, over the tables and the rest."""
        store, driver, feed = self.store, self.driver, self.feed
        topics, groups, offsets, clients = self.topics, self.groups, self.offsets, self.clients
        consumers = ConsumerRequests(store, driver, topics, groups, offsets, clients, feed)
        rates, delays = self.send.rates, self.delay_offsets
        self.tables = TableRequests(config, store, driver, topics, groups, offsets, delays, rates, feed)
        group = GroupRequests(config, store, driver, topics, groups, offsets, clients, self.pull, clock, feed)
        self.queries = QueryRequests(config, store.index, lambda: self.search_soon())
        queries, locks = self.queries, LockRequests(self.locks, driver)
        selectors = SelectorRequests(config)
        learned = self.driver.timeout
        self.queue_ends = QueueMaxOffsets(store, self.replica, lambda: self.followed_master, learned, self._tracer)
        self.calls = ConsumerCalls(config.broker_name, store, topics, groups, clients)
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
            self.transactions,
        )
        self.read_repair = ReadRepair(store, self.replica, self._tracer, self._repair_settled)
        asked = (feed, consumers, self.calls, queries, self.tables, group, self.admin, locks, self.retention)
        parts = (*asked, selectors, self.queue_ends, self.read_repair)
        return BrokerProcessor(self.send, self.pull, send_back, self.transactions, consumers, parts, self.room)

    def _repair_settled(self) -> None:
        """A damaged record is whole again, or nobody has it: whatever waits for one looks again."""
        self.pull.repaired()
        self.schedule.wake()
        self.transactions.wake()

    def _table_feed(self, clock: Clock, tracer: Tracer) -> MetadataLeader:
        """Whom strict changes wait for, and who may join the set, is the controllers' business only."""
        replica, tables = self.replica, (self.topics, self.groups, self.offsets, self.delay_offsets)
        if not isinstance(replica, Replica):
            return MetadataLeader(self.live.current, replica, lambda: (), *tables, clock, tracer)
        feed = MetadataLeader(self.live.current, replica, lambda: replica.other_members, *tables, clock, tracer)
        replica.joins_if(feed.may_join)
        feed.stepped = self.driver.timeout
        return feed

    @property
    def config(self) -> BrokerConfig:
        """As it is now: some keys change while the broker runs."""
        return self.live.current

    @property
    def followed_master(self) -> Master | None:
        """The master whose tables this replica takes."""
        replica = self.replica
        if replica.role is not Role.SLAVE or not replica.master_address or replica.broker_id is None:
            return None
        return Master(replica.master_address, replica.epoch, replica.broker_id)

    def _configure(self, config: BrokerConfig) -> None:
        for part in self._configured:
            part.configure(config)
        self.quotas.configure(config.quotas)

    def _role_changed(self, action: RoleChanged) -> None:
        self.delay_offsets.forget_ahead()
        if action.role is Role.MASTER:
            self.delay_offsets.epoch = action.epoch
            self.offsets.new_epoch(action.epoch, self._clock.wall_ms())
            self.groups.new_epoch(action.epoch)
            self.topics.new_epoch(action.epoch)
            if self.store.lacks_queue_ends:
                self._tracer.event("master_lacks_queue_ends", epoch=action.epoch)
        self.feed.role_changed()
        self.locks.clear()
        self.schedule.role_changed()
        self.transactions.role_changed()
        self.pull.role_changed()
        self.on_role(action)

    def _serving(self) -> None:
        """The queues hold everything that is committed: no topic of theirs may be missing (ruling 16), and no consumer
        may be told to have read more."""
        self._clamp_offsets(stamped=True)
        restored = self.topics.restore(self.store.queues(), self.store.batch_topics)
        if restored:
            self._tracer.event("topics_restored", topics=restored)

    def _readers(self) -> dict[int, int]:
        """Replicas that a consumer of old messages may read from: a master's slaves, or a slave itself."""
        if self.replica.is_master:
            acks: dict[int, int] = dict(self.replica.slave_acks())
            if self.config.enable_controller_mode:
                return acks
            # Nobody says which slave of a static group is which: what all of them hold each of them can serve.
            return dict.fromkeys(acks, min(acks.values(), default=0))
        own_id = self.replica.broker_id
        return {} if own_id is None else {own_id: self.store.confirm_offset}

    def _end_in(self, topic: str, queue_id: int, epoch: int) -> int:
        """Where the queue ends, for what a consumer has told a master of `epoch`: if that was another master, where it
        ended when this one took over, since what that one had behind may be lost."""
        low, high = (int(bound) for bound in self.store.queue_range(topic, queue_id))
        last = self.store.epochs.last
        if last is None or epoch >= last.epoch:
            return high
        while low < high:
            middle = (low + high) // 2
            records = self.store.pull(topic, queue_id, QueueOffset(middle), 1, 1, None).records
            if records and decode(records[0]).phy_offset < last.start_offset:
                low = middle + 1
            else:
                high = middle
        return low

    def _clamp_offsets(self, *, stamped: bool = False) -> None:
        end_of = self.store.queue_range
        count = self.offsets.clamp(lambda topic, queue_id: end_of(topic, queue_id)[1], stamped=stamped)
        if count:
            self._tracer.event("consumer_offsets_clamped", count=count)

    def admit(self, channel: Channel, commands: list[Command]) -> None:
        """Sends and ends of transactions that have been held long enough."""
        for command in commands:
            if command.code == RequestCode.END_TRANSACTION:
                self.transactions.admit(channel, command)
            else:
                self.send.admit(channel, [command])

    def tables_saved(self, trouble: str, which: str = "offsets") -> None:
        """Files were to be written; `trouble` is why they are not, "" if they are. Only a change is told."""
        was_behind = bool(self._unwritten)
        (self._unwritten.add if trouble else self._unwritten.discard)(which)
        if bool(self._unwritten) != was_behind:
            self._tracer.event("tables_not_saved" if trouble else "tables_saved", reason=trouble)

    def save(self) -> None:
        """Write the tables that are behind. Raises OSError."""
        for write in chain(self.table_writes(), self.writes()):
            write()

    def save_tables(self) -> None:
        """Write topics and groups now. What cannot be written is still to be."""
        trouble = ""
        for write in self.table_writes():
            try:
                write()
            except OSError as error:
                trouble = str(error)
        self.tables_written(trouble)

    def table_writes(self) -> Iterator[Callable[[], None]]:
        """One for each of topics and groups whose file is behind; a thread may call it. Each raises OSError."""
        for table in (self.topics, self.groups):
            data = table.unsaved()
            if data is not None:
                yield partial(table.file.write, data)

    def tables_written(self, trouble: str) -> None:
        """All of `table_writes` were called; `trouble` as of `tables_saved`."""
        self.tables_saved(trouble, "tables")
        self.feed.saved()

    def writes(self) -> Iterator[Callable[[], None]]:
        """One for each other table whose file follows from time to time and is behind; a thread may call it. Each
        raises OSError."""
        offsets = self.offsets.unsaved()
        if offsets is not None:
            yield partial(self.offsets.write, offsets)
        delays = self.delay_offsets.unsaved()
        if delays is not None:
            yield partial(self.delay_offsets.write, delays)
