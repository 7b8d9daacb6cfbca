"""All parts of pop consumption wired together. No trio."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from rmqha.broker.cold_reads import AwaitedReads, ColdEntries, ColdPart, ColdReads
from rmqha.broker.pop.counts import GetCounts, PopCounts
from rmqha.broker.pop.modes import ModeRequests, ModeTable
from rmqha.broker.pop.offset_rollback import PopOffsetRollback
from rmqha.broker.pop.order_table import OrderTable
from rmqha.broker.pop.positions import PopPositions, PopQueue
from rmqha.broker.pop.recovery import PopRecovery
from rmqha.broker.pop.requests.acks import AckProcessor
from rmqha.broker.pop.requests.finder import PopFinder, PopPlace
from rmqha.broker.pop.requests.polls import Polls, sources
from rmqha.broker.pop.requests.pop import PopProcessor
from rmqha.broker.pop.requests.pop_request import PopRequestReader
from rmqha.broker.pop.requests.query_requests import PopQueryRequests
from rmqha.broker.pop.revive import DeliveredTime, ReviveService
from rmqha.broker.replication.replica_driver import ReplicaDriver
from rmqha.broker.requests.request import Channel, Handler
from rmqha.broker.services.statistics import BrokerStatistics
from rmqha.broker.shell import BrokerShell
from rmqha.broker.tables.clients import ClientTable
from rmqha.broker.tables.groups import GroupTable
from rmqha.broker.tables.offsets import OffsetTable
from rmqha.broker.tables.topics import TopicTable
from rmqha.model.code import RequestCode
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.message import REVIVE_QUEUE_COUNT, REVIVE_TOPIC_PREFIX
from rmqha.model.offset import PhyOffset
from rmqha.port import Clock, Disk, Tracer
from rmqha.store.log.record import Host
from rmqha.store.store import Store
from rmqha.wire.command import Command

ACK_CODES = frozenset(
    {RequestCode.ACK_MESSAGE, RequestCode.BATCH_ACK_MESSAGE, RequestCode.CHANGE_MESSAGE_INVISIBLETIME}
)


class PopServices:
    """Parts of pop. `gets` counts messages for consumers; `memory_bytes` is that of the machine, 0 if unknown."""

    def __init__(
        self,
        config: BrokerConfig,
        disk: Disk,
        store: Store,
        driver: ReplicaDriver,
        tables: tuple[TopicTable, GroupTable, OffsetTable, ClientTable],
        timers: DeliveredTime,
        clock: Clock,
        tracer: Tracer,
        store_host: Host,
        shell: BrokerShell,
        modes: ModeTable,
        modes_changed: Callable[[], None],
        memory_bytes: int,
        statistics: BrokerStatistics,
        gets: GetCounts,
        reads: ColdReads,
    ) -> None:
        topics, groups, offsets, clients = tables
        self._clock = clock
        self._config = config
        self._topics = topics
        self._driver = driver
        self._store = store
        self._shell = shell
        self.counts = PopCounts()
        revive_topic = REVIVE_TOPIC_PREFIX + config.broker_cluster_name
        self._has_popped = False
        """True after any pop or notification request, also one that the log or the offsets show."""
        self._revive_entries = frozenset((revive_topic, queue_id) for queue_id in range(REVIVE_QUEUE_COUNT))
        self.positions = PopPositions(offsets)
        self.orders = OrderTable(disk, self.positions.is_void)
        self.findings = self.orders.findings
        self._entries = ColdEntries(store, reads, clock)
        """Reads of checkpoints, acknowledgements and messages that come again."""
        self._reads = AwaitedReads[PopPlace](reads, clock)
        self.recovery = PopRecovery(
            store, offsets, self.positions, tracer, revive_topic, config.broker_name, self._recovered, self._entries
        )
        self.offset_rollback = PopOffsetRollback(store, offsets, tracer, revive_topic, config.broker_name)
        around = store, driver, offsets, topics, groups, timers, clock, tracer, store_host
        names, told = (revive_topic, config.broker_name), (shell.wake_schedule, self.counts)
        self.revive = ReviveService(*around, *names, lambda: self._config.timer_precision_ms, *told, self._entries)
        self.reader = PopRequestReader(config, topics, groups)
        self.polls = Polls(config, clock, sources)
        places = topics, offsets, self.positions, self.orders
        self._finder = PopFinder(config, store, *places, clock, memory_bytes, self._is_recovering, self._reads)
        parts = self.reader, self._finder, self.polls
        known = topics, self.positions, self.orders, clock
        self.queries = PopQueryRequests(store, driver, *known, *parts)
        self.pop = PopProcessor(
            config, store, driver, *known, store_host, revive_topic, statistics, gets, self.counts, *parts
        )
        self.acks = AckProcessor(
            config,
            store,
            driver,
            shell,
            topics,
            self.positions,
            self.orders,
            self.revive,
            clock,
            store_host,
            self.polls.wake_group,
            self.counts,
            self._is_recovering,
        )
        self.mode_requests = ModeRequests(
            modes, driver, topics, groups, clients, clock, shell.ask_name_server, modes_changed, shell.save_tables_soon
        )

    @property
    def later(self) -> Mapping[int, Callable[[Channel, Command], None]]:
        """Requests that may be answered later."""
        return {
            RequestCode.POP_MESSAGE: self.pop.process,
            RequestCode.NOTIFICATION: self.queries.notify,
            RequestCode.PEEK_MESSAGE: self.queries.peek,
            **dict.fromkeys(ACK_CODES, self.acks.process),
        }

    def handlers(self) -> dict[int, Handler]:
        return {**self.queries.handlers(), **self.mode_requests.handlers()}

    def in_flight(self) -> Mapping[tuple[str, str], int]:
        """Messages by topic and group that were given and are not done, those in order included."""
        found = self.counts.in_flight.copy()
        for place, count in self.orders.open_counts():
            found[place.topic, place.group] += count
        return found

    def in_flight_of(self, topic: str, group: str) -> int:
        """Messages of `topic` that the group was given and that are not done."""
        known = self._topics.get(topic)
        places = (PopQueue(topic, group, item) for item in range(known.read_queue_count)) if known else ()
        in_order = sum(info.open_count for place in places if (info := self.orders.get(place)) is not None)
        return self.counts.in_flight.get((topic, group), 0) + in_order

    def set_back(self, topic: str, group: str) -> None:
        """Wake waiting pops of a group whose offset was reset."""
        self.polls.wake_group(topic, group)

    @property
    def poll_count(self) -> int:
        return self.polls.count

    def configure(self, config: BrokerConfig) -> None:
        self._config = config
        for part in (self.reader, self.polls, self._finder, self.pop):
            part.configure(config)
        self.acks.configure(config)

    # --- events -----------------------------------------------------------------------------------------------------
    def role_changed(self) -> None:
        self._reads.clear()
        self._entries.clear()
        self.counts.role_changed()
        self.recovery.role_changed()
        self.revive.role_changed()
        self.pop.role_changed()

    def demoted(self) -> None:
        """Forget messages given in order after the loss of the mastership."""
        self.orders.clear()

    def dispatched(self, grown: Iterable[tuple[str, int]]) -> None:
        if not self._has_popped and not self._revive_entries.isdisjoint(grown):
            self._shell.wake_schedule()
        self.pop.dispatched(grown)

    def appended(self, topics: Iterable[str], start_offset: PhyOffset) -> None:
        if self.poll_count:
            self.pop.appended(topics, start_offset)

    @property
    def is_stepping(self) -> bool:
        """False while no pop is known of, or this is no serving master."""
        if not self._driver.is_serving:
            return False
        self._has_popped = self._has_popped or self.recovery.is_marked or self.revive.has_entries
        return self._has_popped

    def step(self) -> None:
        """Read earlier checkpoints, and revive messages whose time is over. Raises StoreError."""
        if not self.is_stepping:
            return
        self.advance()
        if self.recovery.step():
            self._shell.wake_schedule()
        self.revive.step()
        self.recovery.mark(self._clock.now_ms())

    def advance(self) -> None:
        """Commit groups' offsets up to what is durable in the log and in the queues: an offset beyond the end of its
        queue would be lowered."""
        self.positions.advance(self._store.settled_offset)

    def timeout(self) -> None:
        self.pop.timeout()

    def loaded(self, part: ColdPart) -> None:
        """Try the reads again that waited for this part: a thread has loaded it into memory."""
        self._retry(part[0], self._reads.loaded(part), self._entries.loaded(part))

    def unreadable(self, part: ColdPart, reason: str) -> None:
        """The disk cannot read this part."""
        self._retry(part[0], self._reads.unreadable(part, reason), self._entries.unreadable(part, reason))

    def _retry(self, topic: str, places: Sequence[PopPlace], entries: Sequence[object]) -> None:
        self.polls.wake_groups(topic, {place.group for place, _ in places})
        if entries:
            self._shell.wake_schedule()

    def refuse(self) -> None:
        self.pop.refuse()

    def closed(self, channel: Channel) -> None:
        self.polls.closed(channel)

    def _is_recovering(self) -> bool:
        self._has_popped = True
        if not self._driver.is_serving:
            return True  # the queues lack records that it is to look through
        if not self.recovery.is_done and self.recovery.step():
            self._shell.wake_schedule()
        return not self.recovery.is_done

    def _recovered(self) -> None:
        self.polls.wake_all()
