"""One broker group of a run: its replicas and clients, what these were told, and the checkers of one group."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from rmqha.broker.replication.forward import HOLD_MS
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.identity import Role
from tests.simulation.checkers.clients import delays, popping, routes, tables, transactions
from tests.simulation.checkers.clients.answers import Answers
from tests.simulation.checkers.clients.consumption import Consumption, behind
from tests.simulation.checkers.clients.popping import Popping, PoppingInOrder
from tests.simulation.checkers.clients.routes import Routes
from tests.simulation.checkers.clients.service import Service
from tests.simulation.checkers.clients.set_back_places import SetBackPlaces
from tests.simulation.checkers.clients.set_back_times import SetBackTimes
from tests.simulation.checkers.clients.stamps import Stamps
from tests.simulation.checkers.clients.tables import Tables
from tests.simulation.checkers.clients.waiting_timers import TimersKnown
from tests.simulation.checkers.elections import connections
from tests.simulation.checkers.elections.alone import Alone
from tests.simulation.checkers.elections.causes import Causes
from tests.simulation.checkers.elections.electable import Electable
from tests.simulation.checkers.elections.elected import Elected
from tests.simulation.checkers.elections.hand_overs import HandOvers
from tests.simulation.checkers.elections.learners import Learners
from tests.simulation.checkers.elections.roles import Roles
from tests.simulation.checkers.elections.sets import Sets
from tests.simulation.checkers.elections.take_overs import TakeOvers
from tests.simulation.checkers.elections.under_way import sets_under_way
from tests.simulation.checkers.logs import agreement, growth, queues
from tests.simulation.checkers.logs.copies import Copies
from tests.simulation.checkers.logs.cuts import verify_ahead
from tests.simulation.checkers.logs.pool import Pool
from tests.simulation.checkers.logs.stops import Stops
from tests.simulation.checkers.logs.survival import Audit, audit
from tests.simulation.checkers.logs.visibility import Visibility
from tests.simulation.checkers.logs.wholeness import Wholeness
from tests.simulation.clients.batching_client import BatchingClient, InnerBatchClient
from tests.simulation.clients.client_process import TOPIC, ClientProcess
from tests.simulation.clients.consumer_process import ConsumerProcess
from tests.simulation.clients.group_client import ClientPlace, GroupClient
from tests.simulation.clients.pop_client import OrderedPopClient, PopClient, Popper
from tests.simulation.clients.pop_operator import PopOperator
from tests.simulation.clients.routed_client import RoutedClient
from tests.simulation.clients.table_client import TableClient
from tests.simulation.clients.transaction_client import TransactionClient
from tests.simulation.faults.live_rot import LiveRot
from tests.simulation.ground import Ground
from tests.simulation.history import History
from tests.simulation.options import IN_SYNC_TWO, WHOLE_SET, Options
from tests.simulation.processes.broker_process import BrokerProcess
from tests.simulation.processes.controller_process import ControllerProcess
from tests.simulation.processes.name_server_process import NameServerProcess
from tests.simulation.processes.versions import OF_BROKERS, drawn
from tests.simulation.tuning import tuned_broker, tuned_pool, tuned_store, tuned_timers, tuned_transactions

CLEAN_INTERVAL_MS = 500
DECIDER_COUNT = 2
SLOW_SCRUB = 40_000
"""Bytes a second where records rot: most are to be met by whoever reads them."""
TIMED_OUT = "heartbeat time-out"
"""Why a controller calls a broker dead that is silent."""
FIRST = "sim"
"""The group that is in every run."""


class BrokerGroup:
    """`controllers` and `name_servers` serve other groups too. `broker_numbers` and `client_numbers` are those of all
    groups, so that hosts have names of their own. `elected`, `told` and `cut` are set by the world: its faults follow
    what happens to replicas."""

    def __init__(
        self,
        name: str,
        options: Options,
        ground: Ground,
        controllers: Sequence[ControllerProcess],
        name_servers: Sequence[NameServerProcess],
        broker_numbers: Iterator[int],
        client_numbers: Iterator[int],
    ) -> None:
        self.name = name
        self.options = options
        self.name_servers = name_servers
        self._ground = ground
        self._controllers = controllers
        self.history = History()
        self.given_up: set[str] = set()
        """Keys of acknowledged messages that an operator has given up, electing a replica that lacks them."""
        self.elected: Callable[[BrokerProcess], None] = lambda broker: None
        self.told: Callable[[BrokerProcess, int], None] = lambda broker, epoch: None
        self.cut: Callable[[BrokerProcess], None] = lambda broker: None
        count = options.broker_count
        self.members = [self._broker(next(broker_numbers), is_learner=False) for _ in range(count)]
        """Those that may be in the set; the others are learners."""
        learners = [self._broker(next(broker_numbers), is_learner=True) for _ in range(options.learner_count)]
        self.brokers = [*self.members, *learners]
        self.hosts = [broker.host for broker in self.brokers]
        self._begin_checks(learners)
        self._controlled = {broker.host: broker.config for broker in self.brokers}
        if options.static:
            self.become_static(self.hosts[0])
        self.clients = [self._client(next(client_numbers)) for _ in range(options.client_count)]
        self.operators = [self._operator()] if options.tables else []
        self.consumers = [self._consumer(number) for number in range(1, options.consumer_count + 1)]
        self.deciders = [self._decider(number) for number in range(1, DECIDER_COUNT + 1) if options.transactions]
        """Producers of transactions."""
        self.poppers = self._poppers() if options.pop_count else []
        self.pop_operators = self._pop_operators() if options.pop_set_backs else []

    def _begin_checks(self, learners: Sequence[BrokerProcess]) -> None:
        options, ground = self.options, self._ground
        self.roles = Roles(self._controllers)
        self.visibility = Visibility(options.cp)
        self.copies = Copies(self.members, cp=options.cp, sync_flush=options.sync_flush)
        self.electable = Electable(self.name, self.members, cp=options.cp)
        self.elections = Elected(self.name)
        under_way = partial(sets_under_way, ground.transport, self._controllers, self.name)
        self.sets = Sets(self.name, self.members, under_way, cp=options.cp)
        self.hand_overs = HandOvers(self.members)
        self.take_overs = TakeOvers(self.members, cp=options.cp)
        self.wholeness = Wholeness(cp=options.cp)
        self.learners = Learners(self.name, learners)
        self.answers = Answers(self.brokers)
        self.tables = Tables(
            self.history,
            self.members,
            lambda: self.electable.ids,
            cp=options.cp,
            strict_offsets=options.strict_offsets,
        )
        self.consumption = Consumption(self._has_led, self._is_superseded, cp=options.cp)
        self.popping = Popping(self._times_ms, cp=options.cp)
        self.popping_in_order = PoppingInOrder(self._standing, self._is_superseded, cp=options.cp)
        self.routes = Routes(self.name)
        processes = [*self._controllers, *self.name_servers, *self.brokers]
        self.causes = Causes(ground.scheduler, ground.transport, processes)
        self.alone = Alone(ground.scheduler, self.causes, self.brokers, self._controllers, cp=options.cp)
        self.service = Service(
            self.name,
            ground.scheduler,
            self.causes,
            self.members,
            self._controllers,
            cp=options.cp,
            copy_count=2 if options.tuned or options.ap_level == IN_SYNC_TWO else 1,
        )
        in_cp = [self.wholeness.stepped] if options.cp else []
        self.stops = Stops()
        self.live_rot = LiveRot()
        sound = [self.live_rot.stepped] if options.live_rot_per_mille or options.flip_per_mille else []
        pooled = [Pool().stepped] if options.pool else []
        spoiled = (
            *(options.flip_per_mille, options.lie_per_mille, options.forget_sync_per_mille, options.rot_per_mille),
            *(options.rot_log_per_mille, options.misdirect_per_mille, options.rot_file_per_mille),
            *(options.live_rot_per_mille, options.mixed_releases, options.static, options.conversions),
        )
        timed = [SetBackTimes().stepped, SetBackPlaces().stepped] if options.pop_set_backs else []
        spoken = [] if any(spoiled) else [connections.spoken]
        waiting = [TimersKnown().stepped] if options.waits else []
        stamped = [Stamps().stepped] if options.follows_tables and not options.mixed_releases else []
        for broker in self.brokers:
            self.stops.watch(broker)
            broker.sends = connections.sent
            broker.takes_rotten_offers = options.live_rot_per_mille > 0
            broker.takes_foreign_offers = options.misdirect_per_mille > 0 and not options.record_crc
            broker.checks = (
                self.roles.stepped,
                self.visibility.stepped,
                self.electable.acknowledges,
                self.copies.stepped,
                self.sets.stepped,
                self.hand_overs.stepped,
                self.take_overs.stepped,
                *pooled,
                *stamped,
                *waiting,
                *spoken,
                *timed,
                connections.stepped,
                *in_cp,
                *sound,
                self.alone.stepped,
                self.service.stepped,
            )
            broker.static_checks = (self.copies.stepped, *sound)

    def _broker(self, number: int, *, is_learner: bool) -> BrokerProcess:
        host, options, ground = f"b{number}", self.options, self._ground
        config = BrokerConfig(
            broker_ip1=host,
            broker_name=self.name,
            ha_mode="cp" if options.cp else "ap",
            metadata_sync="" if options.follows_tables else "periodic",
            offset_sync="strict" if options.strict_offsets else "periodic",
            flush_disk_type="SYNC_FLUSH" if options.sync_flush else "ASYNC_FLUSH",
            slave_timeout=options.slave_timeout_ms,
            ha_ack_stall_bound_ms=min(BrokerConfig().ha_ack_stall_bound_ms, options.slave_timeout_ms - 100),
            sync_flush_timeout=options.slave_timeout_ms,  # its default is longer than a client waits
            total_replicas=options.broker_count,
            async_learner=is_learner,
            broker_role="ASYNC_MASTER" if options.ap_level != IN_SYNC_TWO else "SYNC_MASTER",
            in_sync_replicas=2 if options.ap_level == IN_SYNC_TWO else 1,
            all_ack_in_sync_state_set=options.ap_level == WHOLE_SET,
            controller_heartbeat_interval_millis=options.heartbeat_ms,
            mapped_file_size_commit_log=options.file_size_bytes,
            mapped_file_size_consume_queue=20 * 100 if options.kept_files else 20 * 1000,
            mapper_file_size_batch_consume_queue=46 * (20 if options.kept_files else 400),
            mapped_file_size_timer_log=2048,
            max_hash_slot_num=64,
            max_index_num=256,
            commit_log_max_bytes=options.kept_files * options.file_size_bytes,
            file_reserved_time=options.kept_hours,
            delete_when="",
            recall_message_enable=options.timed_per_mille > 0,
            clean_resource_interval=CLEAN_INTERVAL_MS,
            ha_transfer_batch_size=options.batch_bytes,
            scrub_bytes_per_second=SLOW_SCRUB if options.live_rot_per_mille else BrokerConfig().scrub_bytes_per_second,
            max_message_size=16 * 1024,
            enabled_append_prop_crc=options.record_crc,
            transient_store_pool_enable=options.pool,
        )
        prng = ground.prng.child(host)
        if options.tuned:
            config = tuned_broker(tuned_store(config, prng.child("store-keys")), prng.child("keys"))
        if options.timer_precisions:
            config = tuned_timers(config, prng.child("timer-keys"))
        if options.pool:
            config = tuned_pool(config, prng.child("pool-keys"))
        if options.transactions:
            config = tuned_transactions(config, prng.child("transaction-keys"))
        made = BrokerProcess(
            config,
            [process.config.self_address for process in self._controllers],
            ground.scheduler,
            ground.transport,
            ground.clock(host),
            prng,
            ground.tracer,
            self._observe,
        )
        made.follows_tables = options.follows_tables
        made.has_transactions = options.transactions
        made.forwards = options.forwards
        made.has_turns = options.turns
        made.is_cold = options.cold
        if options.mixed_releases:
            made.dialect = drawn(prng.child("version"), OF_BROKERS)
        made.name_servers = [process.address for process in self.name_servers]
        return made

    def _client(self, number: int) -> ClientProcess:
        batching = InnerBatchClient if self.options.batch_queues else BatchingClient
        kind = RoutedClient if self.name_servers else batching if self.options.batches else ClientProcess
        made = kind(self._place(f"p{number}"), self.options.send_interval_ms, self.history, number)
        made.unanswered = self.answers.missing
        made.delayed_per_mille = self.options.delayed_per_mille
        made.timed_per_mille = self.options.timed_per_mille
        made.waitless_per_mille = self.options.waitless_per_mille
        made.held_ms = HOLD_MS if self.options.forwards else 0
        made.acknowledged = self._acknowledged
        if isinstance(made, RoutedClient):
            made.broker_name = self.name
            made.name_servers = tuple(process.address for process in self.name_servers)
        return made

    def _acknowledged(self, address: str, phy_offset: int) -> None:
        self.copies.answered(address, phy_offset)
        self.take_overs.answered(address, phy_offset)
        self.service.acknowledged()

    def _place(self, host: str) -> ClientPlace:
        ground = self._ground
        addresses = [broker.config.address for broker in self.brokers]
        return ClientPlace(
            host, addresses, ground.scheduler, ground.transport, ground.clock(host), ground.prng.child(host)
        )

    def _operator(self) -> TableClient:
        made = TableClient(self._place(f"o{self.hosts[0][1:]}"), self.history, resets=self.options.resets)
        made.answered = self.tables.answered
        return made

    def _consumer(self, number: int) -> ConsumerProcess:
        made = ConsumerProcess(self._place(self._host("r", number)), self.consumption)
        made.unanswered = self.answers.missing
        return made

    def _decider(self, number: int) -> TransactionClient:
        made = TransactionClient(self._place(self._host("t", number)), self.history)
        made.unanswered = self.answers.missing
        made.held_ms = HOLD_MS if self.options.forwards else 0
        made.wants_immunity = not self.options.clock_step_per_mille
        return made

    def _poppers(self) -> list[Popper]:
        is_late = self.options.late_pops
        made: list[Popper] = [
            PopClient(self._place(self._host("q", number)), self.name, self.popping, is_late=is_late)
            for number in range(1, self.options.pop_count + 1)
        ]
        place = self._place(self._host("f", 1))
        made.append(OrderedPopClient(place, self.name, self.popping_in_order, is_late=is_late))
        for client in made:
            client.unanswered = self.answers.missing
        return made

    def _pop_operators(self) -> list[PopOperator]:
        place, options, groups = self._place(self._host("s", 1)), self.options, (self.popping, self.popping_in_order)
        return [PopOperator(place, *groups, options.set_back_pause_ms, both=options.late_pops)]

    def _host(self, kind: str, number: int) -> str:
        """Of a client, by its number in this group."""
        return f"{kind}{number}" if self.name == FIRST else f"{kind}{number}-{self.name}"

    # --- kinds of groups -------------------------------------------------------------------------------------------
    @property
    def is_static(self) -> bool:
        return self.brokers[0].is_static

    def become_static(self, master: str) -> None:
        """From the next start on, with the replica on host `master` as SYNC_MASTER."""
        slaves = [broker for broker in self.brokers if broker.host != master]
        for broker in self.brokers:
            broker_id = slaves.index(broker) + 1 if broker in slaves else 0
            broker.config = replace(
                broker.config,
                enable_controller_mode=False,
                ha_mode="ap",
                broker_role="SLAVE" if broker_id else "SYNC_MASTER",
                broker_id=broker_id,
                all_ack_in_sync_state_set=False,
            )

    def become_controlled(self, end_offset: int) -> None:
        """From the next start on, with a log that ends there."""
        self.copies.static_to = end_offset
        self.take_overs.accepted_loss()  # what a static group had acknowledged is for `survival` to judge
        for broker in self.brokers:
            broker.config = self._controlled[broker.host]

    def accepted_loss(self, end_offset: int) -> None:
        """An operator elects a replica uncleanly whose log ends there."""
        self.causes.disturbed()
        self.visibility.accepted_loss(end_offset)
        self.wholeness.accepted_loss()
        self.take_overs.accepted_loss()
        self.tables.accepted_loss()

    # --- what happens -----------------------------------------------------------------------------------------------
    def _observe(self, broker: BrokerProcess, what: str, values: dict[str, int]) -> None:
        if broker.is_static:
            return
        if what == "role":
            verify_ahead(broker)
            self.roles.role_taken(broker, values["role"], values["epoch"])
            if values["role"] == Role.MASTER:
                self.tables.elected(broker)
                self.wholeness.elected(broker, values["epoch"])
                self.take_overs.elected(broker, values["epoch"])
                self.alone.elected(broker)
                self.learners.elected(broker)
                self.elected(broker)
            else:
                self.told(broker, values["epoch"])
        elif what == "cut":
            self.cut(broker)
        elif what == "booted":
            self.wholeness.booted(broker)
        elif what == "gave-up":
            self.wholeness.gave_up(broker)

    def traced(self, name: str, fields: Mapping[str, Any]) -> None:
        """An event of a controller, about this group."""
        self.hand_overs.traced(name, fields)
        if name == "master_elected":
            self.causes.elected(fields["cause"], self.name, fields["epoch"])
        elif name in ("master_dead", "broker_dead") and fields["why"] == TIMED_OUT:
            for broker in self.brokers:
                if broker.broker_id == fields["broker_id"]:
                    self.causes.called_dead(broker, fields["node"])

    def _has_led(self, address: str) -> bool:
        return any(broker.config.address == address and self.roles.has_led(broker.host) for broker in self.brokers)

    def _is_superseded(self, address: str) -> bool:
        return any(
            broker.config.address == address and self.roles.is_superseded(broker.host) for broker in self.brokers
        )

    def _times_ms(self) -> list[int]:
        """Of all brokers, and of their logs: a stamp does not lie before the last one, though a clock is set back."""
        stores = [broker.store for broker in self.brokers if broker.end_offset]
        return [*(item.clock.wall_ms() for item in self.brokers), *(store.last_store_timestamp_ms for store in stores)]

    def _standing(self, address: str) -> tuple[str, int, int]:
        (broker,) = [item for item in self.brokers if item.config.address == address]
        return broker.host, broker.life, broker.replica.epoch

    def applied(self, controller: ControllerProcess) -> None:
        """A step of a controller."""
        self.electable.applied(controller)
        self.elections.applied(controller)
        self.sets.applied(controller)
        self.learners.applied(controller)

    @property
    def all_clients(self) -> list[GroupClient]:
        """Once they are stopped consumers still read their queues to the end."""
        others = *self.deciders, *self.poppers, *self.pop_operators
        return [*self.clients, *self.operators, *self.consumers, *others]

    def begin_sending(self) -> None:
        for client in self.all_clients:
            client.boot()
        self.service.wanted()

    def stop_sending(self) -> None:
        self.service.unwanted()
        for client in self.all_clients:
            client.stop()

    def conclude(self) -> None:
        """A calm group asks about the last transactions, and does what it is told. What is so old that a bad disk alone
        still has it can be mended from nowhere; it goes there too."""
        for decider in self.deciders:
            decider.conclude()
        for broker in self.brokers:
            start_offset = min((item.store.min_phy_offset for item in self.brokers if item is not broker), default=0)
            if broker.has_bad_disk and broker.store.min_phy_offset < start_offset:
                broker.clean(start_offset)

    # --- the end ----------------------------------------------------------------------------------------------------
    def missing(self) -> str:
        """What the group lacks of being whole, or ""."""
        lack = agreement.missing(self.brokers) or self.live_rot.missing(self.brokers)
        rotten = [broker.host for broker in self.brokers if broker.rotten and broker.has_rot(0, broker.end_offset)]
        if rotten and not lack:
            lack = f"what rotted on {rotten} is not mended"
        if self.options.lie_per_mille and not lack:
            lack = agreement.logs_differ(self.brokers)  # nobody knows what was lost before the scrubbers have met it
        if not lack and self.options.transactions:
            lack = transactions.missing(self.brokers, self.history)
        lack = lack or delays.missing(self.brokers)
        return lack or (tables.missing(self.brokers) if self.options.follows_tables else "")

    def do_without(self, one: BrokerProcess) -> bool:
        """Whether the others are whole, and their master's set holds all of them: `one` may lose what it has."""
        others = [broker for broker in self.members if broker is not one]
        if not all(item.alive and not item.store.unclean and not item.lost_power for item in others):
            return False
        masters = [item for item in others if item.replica.is_master]
        return len(masters) == 1 and {item.broker_id for item in others} <= set(
            masters[0].replica.state(0).to_json()["syncStateSet"]
        )

    def unread(self) -> str:
        """What consumers have not been given yet, or ""."""
        if self.poppers:
            working = [client.host for client in self.poppers if client.working_count]
            return popping.left(self.brokers) or (f"{working} work on messages" if working else "")
        return behind([item.offsets for item in self.consumers], self.brokers, TOPIC) if self.consumers else ""

    def missing_routes(self) -> str:
        """What a name server does not list as it is, or ""."""
        return routes.missing(self.name, self.name_servers, self.brokers)

    def verify(self) -> Audit:
        """Of the whole group."""
        for broker in self.brokers:
            self.visibility.verify(broker)
        agreement.verify(self.brokers)
        growth.verify(self.brokers, self._controllers)
        self.tables.verify(self.brokers)
        for broker in self.brokers:
            queues.verify(broker)
        if self.consumers:
            self.consumption.verify(self.history)
        # a delayed message is answered with its place in the queue of its level
        ordered = not self.options.waits
        found = audit(self.history, self.brokers[0], cp=self.options.cp, ordered=ordered, given_up=self.given_up)
        if self.options.waits:
            served = self._ground.tracer.serving_offsets
            trimmed_to = max(broker.store.min_phy_offset for broker in self.brokers)
            delivered = delays.verify(self.history, self.brokers[0], served, cp=self.options.cp, trimmed_to=trimmed_to)
            self._ground.tracer.event("delays_audited", **delivered._asdict())
        if self.poppers:
            popped = self.popping.verify(self.brokers[0])
            in_order_count = self.popping_in_order.verify(self.brokers[0])
            self._ground.tracer.event("pops_audited", **popped._asdict(), in_order_count=in_order_count)
        return found + self._transactions() if self.deciders else found

    def _transactions(self) -> Audit:
        check_max = min(broker.config.transaction_check_max for broker in self.brokers)
        found = transactions.verify(self.history, self.brokers[0], cp=self.options.cp, check_max=check_max)
        self._ground.tracer.event(
            "transactions_audited",
            acked=found.acked_count,
            committed=found.committed_count,
            duplicates=found.duplicate_count,
            given_up=found.given_up_count,
            lost=len(found.lost),
            lost_ends=found.lost_end_count,
        )
        return Audit(found.acked_count, len(found.lost), found.duplicate_count, found.lost)
