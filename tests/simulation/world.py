"""One run: build the world from a seed, let faults happen, heal, demand liveness, verify."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from controller.config import ControllerConfig
from rmqha.model.config import BrokerConfig
from rmqha.model.identity import Role
from rmqha.sim.clock import SimClock
from rmqha.sim.prng import SimPrng
from rmqha.sim.scheduler import Scheduler
from rmqha.sim.transport import Delays, Transport

from .batching_client import BatchingClient
from .broker_process import BrokerProcess
from .checkers import agreement, queues, routes, tables, transactions
from .checkers.alone import Alone
from .checkers.answers import Answers
from .checkers.causes import Causes
from .checkers.consumption import Consumption, behind
from .checkers.copies import Copies
from .checkers.electable import Electable
from .checkers.leaders import Leaders
from .checkers.learners import Learners
from .checkers.reports import Reports
from .checkers.roles import Roles
from .checkers.routes import Routes
from .checkers.survival import Audit, audit
from .checkers.tables import Tables
from .checkers.visibility import Visibility
from .checkers.wholeness import Wholeness
from .client_process import TOPIC, ClientProcess
from .consumer_process import ConsumerProcess
from .controller_process import ControllerProcess
from .faults import Faults
from .history import History, InvariantError
from .marks import MarkingTracer
from .name_server_process import NameServerProcess
from .options import Options, seed_options
from .routed_client import RoutedClient
from .table_client import TableClient
from .transaction_client import TransactionClient
from .tuning import tuned_broker, tuned_controller, tuned_controllers, tuned_store, tuned_transactions

START_MS = 20_000
OPERATOR_AFTER_MS = 5000
"""How long after the heal an operator watches a group without a master before saying `elect --unclean`."""
HEAL_MS = 60_000
HEIR_MS = 15_000
SETTLE_STEP_MS = 250
CLEAN_INTERVAL_MS = 500
DECIDER_COUNT = 2


@dataclass(frozen=True, slots=True)
class Report:
    """`failure` "" is a run without a violation."""

    seed: int
    failure: str
    audit: Audit | None
    simulated_ms: int
    event_count: int
    fault_count: int
    trace_hash: str
    recent: tuple[str, ...]
    marks: frozenset[str]
    """Rare paths that the run took (`marks.MARKS`)."""


class World:
    client_class: type[ClientProcess] = ClientProcess
    ordered = True
    """All messages of a queue are answered with their offset in that queue."""
    more_config: Mapping[str, Any] = MappingProxyType({})
    """Further keys of the brokers' configuration."""

    def __init__(self, seed: int, options: Options | None = None, only: frozenset[str] | None = None) -> None:
        """`only`: keys of the faults that may happen (`Faults.keys`), None for all that the seed draws."""
        prng = SimPrng(seed)
        self.seed = seed
        self.options = options or seed_options(seed)
        self.scheduler = Scheduler()
        self.tracer = MarkingTracer(self.scheduler, keep_count=400)
        self.history = History()
        self.operator_count = 0
        self.on_elected: Callable[[BrokerProcess], None] = lambda broker: None
        self.roles = Roles()
        self.visibility = Visibility(self.options.cp)
        self.copies = Copies(cp=self.options.cp, sync_flush=self.options.sync_flush)
        self.electable = Electable(cp=self.options.cp)
        self.wholeness = Wholeness(cp=self.options.cp)
        self.leaders = Leaders()
        self.learners = Learners()
        self.answers = Answers()
        self.tables = Tables(self.history, cp=self.options.cp, strict_offsets=self.options.strict_offsets)
        delays = Delays(0, self.options.max_delay_ms)
        self.transport = Transport(self.scheduler, prng.child("transport"), delays)
        self.transport.split_per_mille = self.options.split_per_mille
        self._prng = prng
        self.controllers = [self._controller(number) for number in range(1, self.options.controller_count + 1)]
        self.routes = Routes()
        self.name_servers = [self._name_server(number) for number in range(1, self.options.name_server_count + 1)]
        count = self.options.broker_count + self.options.learner_count
        self.brokers = [self._broker(number) for number in range(1, count + 1)]
        self.members = self.brokers[: self.options.broker_count]
        """Those that may be in the set; the others are learners."""
        self.causes = Causes(self.scheduler, self.transport)
        self.causes.processes = [*self.controllers, *self.name_servers, *self.brokers]
        self.answers.brokers = {broker.config.address: broker for broker in self.brokers}
        self.alone = Alone(self.scheduler, self.transport, self.causes, cp=self.options.cp)
        self.alone.brokers, self.alone.controllers = self.brokers, self.controllers
        in_cp = [self.copies.stepped, self.electable.acknowledges, self.wholeness.stepped]
        for broker in self.brokers:
            cp_only = in_cp if self.options.cp else []
            broker.checks = (self.roles.stepped, self.visibility.stepped, *cp_only, self.alone.stepped)
        self.reports = Reports(self.scheduler)
        self.tracer.watch = self._traced
        self.copies.brokers = self.electable.brokers = self.members
        self.learners.brokers = self.brokers[self.options.broker_count :]
        addresses = [broker.config.address for broker in self.brokers]
        self.clients = [self._client(f"p{number}", number, addresses) for number in range(self.options.client_count)]
        self.operators = [self._operator(addresses)] if self.options.tables else []
        self.consumption = Consumption(cp=self.options.cp)
        self.consumers = [self._consumer(number, addresses) for number in range(1, self.options.consumer_count + 1)]
        deciders = range(1, DECIDER_COUNT + 1) if self.options.transactions else ()
        self.deciders = [self._decider(f"t{number}", addresses) for number in deciders]
        """Producers of transactions."""
        self.faults = Faults(
            self.options,
            self.scheduler,
            self.transport,
            prng.child("faults"),
            self.tracer,
            self.brokers,
            self.controllers,
            self.name_servers,
            only,
        )
        self.faults.disturbed = self.causes.disturbed
        self.faults.wiped = lambda broker: self.reports.replaced(broker.host)

    def _traced(self, name: str, fields: dict[str, Any]) -> None:
        self.reports.traced(name, fields)
        if name == "master_elected":
            self.causes.elected(fields["cause"], fields["group"], fields["epoch"])

    def _clock(self, name: str) -> SimClock:
        drift = self.options.clock_drift_ppm
        draws = self._prng.child(f"clock-{name}")
        return SimClock(self.scheduler, 1_000_000 + draws.between(-drift, drift), draws.below(1_000_000))

    def _peers(self) -> str:
        return ";".join(f"c{number}-c{number}:9878" for number in range(1, self.options.controller_count + 1))

    def _controller(self, number: int) -> ControllerProcess:
        host = f"c{number}"
        config = ControllerConfig(controller_dleger_peers=self._peers(), controller_dleger_self_id=host)
        prng = self._prng.child(host)
        if self.options.tuned:
            shared = tuned_controllers(config, self._prng.child("controllers-keys"))
            config = tuned_controller(shared, prng.child("keys"))
        made = ControllerProcess(host, config, self.scheduler, self.transport, self._clock(host), prng, self.tracer)
        made.echo_per_mille = self.options.echo_per_mille
        made.stepped = self._controller_stepped
        return made

    def _name_server(self, number: int) -> NameServerProcess:
        host = f"n{number}"
        made = NameServerProcess(host, self.scheduler, self.transport, self._clock(host), self.tracer)
        made.stepped = self.routes.stepped
        return made

    def _client(self, host: str, number: int, addresses: list[str]) -> ClientProcess:
        kind = BatchingClient if self.options.batches else self.client_class
        made = (RoutedClient if self.name_servers else kind)(
            host,
            addresses,
            self.options.send_interval_ms,
            self.scheduler,
            self.transport,
            self._clock(host),
            self._prng.child(host),
            self.history,
            number,
        )
        made.unanswered = self.answers.missing
        if isinstance(made, RoutedClient):
            made.name_servers = tuple(process.address for process in self.name_servers)
        return made

    def _consumer(self, number: int, addresses: list[str]) -> ConsumerProcess:
        host = f"r{number}"
        clock, prng = self._clock(host), self._prng.child(host)
        made = ConsumerProcess(host, addresses, self.scheduler, self.transport, clock, prng, self.consumption)
        made.unanswered = self.answers.missing
        return made

    def _operator(self, addresses: list[str]) -> TableClient:
        host = "o1"
        clock, prng = self._clock(host), self._prng.child(host)
        return TableClient(host, addresses, self.scheduler, self.transport, clock, prng, self.history)

    def _decider(self, host: str, addresses: list[str]) -> TransactionClient:
        clock, prng = self._clock(host), self._prng.child(host)
        made = TransactionClient(host, addresses, self.scheduler, self.transport, clock, prng, self.history)
        made.unanswered = self.answers.missing
        made.wants_immunity = not self.options.clock_step_per_mille
        return made

    def _broker(self, number: int) -> BrokerProcess:
        host, options = f"b{number}", self.options
        config = BrokerConfig(
            broker_ip1=host,
            broker_name="sim",
            ha_mode="cp" if options.cp else "ap",
            metadata_sync="" if options.follows_tables else "periodic",
            offset_sync="strict" if options.strict_offsets else "periodic",
            flush_disk_type="SYNC_FLUSH" if options.sync_flush else "ASYNC_FLUSH",
            sync_flush_timeout=BrokerConfig().slave_timeout,  # its default is longer than a client waits
            total_replicas=options.broker_count,
            async_learner=number > options.broker_count,
            controller_heartbeat_interval_millis=options.heartbeat_ms,
            mapped_file_size_commit_log=options.file_size_bytes,
            mapped_file_size_consume_queue=20 * 100 if options.kept_files else 20 * 1000,
            max_hash_slot_num=64,
            max_index_num=256,
            commit_log_max_bytes=options.kept_files * options.file_size_bytes,
            file_reserved_time=options.kept_hours,
            delete_when="",
            clean_resource_interval=CLEAN_INTERVAL_MS,
            ha_transfer_batch_size=options.batch_bytes,
            max_message_size=16 * 1024,
            **self.more_config,
        )
        prng = self._prng.child(host)
        if options.tuned:
            config = tuned_broker(tuned_store(config, prng.child("store-keys")), prng.child("keys"))
        if options.transactions:
            config = tuned_transactions(config, prng.child("transaction-keys"))
        controllers = [f"c{each}:9878" for each in range(1, options.controller_count + 1)]
        made = BrokerProcess(
            config,
            controllers,
            self.scheduler,
            self.transport,
            self._clock(host),
            prng,
            self.tracer,
            self._observe,
        )
        made.follows_tables = options.follows_tables
        made.has_transactions = options.transactions
        made.name_servers = [process.address for process in self.name_servers]
        return made

    def _observe(self, broker: BrokerProcess, what: str, values: dict[str, int]) -> None:
        if what == "role":
            self.roles.role_taken(broker, values["role"], values["epoch"])
            if values["role"] == Role.MASTER:
                self.tables.elected(broker)
                self.wholeness.elected(broker)
                self.alone.elected(broker)
                self.learners.elected(broker)
                self.faults.elected(broker)
                self.on_elected(broker)
            else:
                self.faults.told(broker, values["epoch"])
        elif what == "cut":
            self.faults.cut(broker)

    def _controller_stepped(self, controller: ControllerProcess) -> None:
        self.leaders.stepped(controller)
        self.electable.applied(controller)
        self.learners.applied(controller)

    # --- the run ----------------------------------------------------------------------------------------------------
    def run(self) -> Report:
        failure, found = "", None
        try:
            found = self._run()
        except InvariantError as violation:
            failure = str(violation)
        except Exception:  # noqa: BLE001  (a crash of production code is a finding like any other)
            failure = traceback.format_exc()
        return Report(
            self.seed,
            failure,
            found,
            self.scheduler.now_ms,
            self.scheduler.event_count,
            self.faults.count,
            self.tracer.trace_hash(),
            tuple(self.tracer.recent),
            frozenset(self.tracer.marks),
        )

    def _run(self) -> Audit:
        for process in (*self.controllers, *self.name_servers, *self.brokers):
            process.boot()
        self._until_whole(START_MS, "the group did not start")
        for client in (*self.clients, *self.operators, *self.consumers, *self.deciders):
            client.boot()
        self.faults.start()
        self.scheduler.run_until(self.scheduler.now_ms + self.options.chaos_ms)
        self.faults.stop()
        acked = len(self.history.acked)
        self._until(HEAL_MS, lambda: "" if len(self.history.acked) > acked + 5 else "no send is acknowledged")
        if self.options.bereave:
            self._bereave()
        self._stop_clients()
        self._until_whole(HEAL_MS, "the group did not become whole again")
        self._let_consumers_end()
        if self.deciders:
            self._conclude()
        # only what is durable may go, and a sync that began before the heal may hang on
        syncing_ms = max(0, max(item.disturbed_at_ms for item in self.brokers) - self.scheduler.now_ms)
        limit_ms = syncing_ms + 10 * CLEAN_INTERVAL_MS
        self._until(limit_ms, lambda: agreement.too_long(self.brokers), "old files stayed")
        for broker in self.brokers:
            self.visibility.verify(broker)
        agreement.verify(self.brokers)
        self.tables.verify(self.brokers)
        for broker in self.brokers:
            queues.verify(broker)
        found = audit(self.history, self.brokers[0], cp=self.options.cp, ordered=self.ordered)
        if self.deciders:
            found = self._with_transactions(found)
        self.reports.verify(found.lost)
        self.tracer.event("audited", acked=found.acked_count, lost=found.lost_count, duplicates=found.duplicate_count)
        return found

    def _let_consumers_end(self) -> None:
        for consumer in self.consumers:
            consumer.stop()
        if self.consumers:
            self._until(HEAL_MS, lambda: behind([item.offsets for item in self.consumers], self.brokers, TOPIC))
            self.consumption.verify(self.history)

    def _stop_clients(self) -> None:
        for client in self.clients:
            client.stop()
        for operator in self.operators:
            operator.stop()
        for decider in self.deciders:
            decider.stop()

    def _conclude(self) -> None:
        """A calm group asks about the last transactions, and does what it is told."""
        for decider in self.deciders:
            decider.conclude()
        self._until_whole(HEAL_MS, "the last transactions did not end")

    def _with_transactions(self, found: Audit) -> Audit:
        check_max = min(broker.config.transaction_check_max for broker in self.brokers)
        more = transactions.verify(self.history, self.brokers[0], cp=self.options.cp, check_max=check_max)
        self.tracer.event(
            "transactions_audited",
            acked=more.acked_count,
            committed=more.committed_count,
            duplicates=more.duplicate_count,
            given_up=more.given_up_count,
            lost=len(more.lost),
            lost_ends=more.lost_end_count,
        )
        return Audit(
            found.acked_count + more.acked_count,
            found.lost_count + len(more.lost),
            found.duplicate_count + more.duplicate_count,
            (*found.lost, *more.lost),
        )

    def _bereave(self) -> None:
        """Ruling 9: the master dies, then who is elected, before it has done anything; a majority that holds all goes
        on without them."""
        self._until_whole(HEAL_MS, "the group did not become whole before its last trial")
        (master,) = [item for item in self.brokers if item.replica.is_master]
        self.tracer.event("fault", what="bereave", whom=master.host)
        self.causes.disturbed()
        master.kill(power_loss=False)
        heirs: list[BrokerProcess] = []
        lives: list[int] = []
        """Of the heir at its election: a fault of the run may kill it too, and start it again at once."""

        def elected(broker: BrokerProcess) -> None:
            if not heirs:
                heirs.append(broker)
                lives.append(broker.life)
                broker.at(broker.clock.now_ms(), lambda: broker.kill(power_loss=False))

        self.on_elected = elected
        self._until(
            HEIR_MS,
            lambda: "" if heirs and (not heirs[0].alive or heirs[0].life != lives[0]) else "nobody is elected",
        )
        if len(self.brokers) < 5:
            master.boot()
        acked = len(self.history.acked)
        complaint = f"with {[item.host for item in self.brokers if not item.alive]} away"
        self._until(HEIR_MS, lambda: "" if len(self.history.acked) > acked else "no send is acknowledged", complaint)
        for broker in (master, *heirs):
            if not broker.alive:
                broker.boot()

    def _operator_is_needed(self) -> bool:
        """Nobody takes messages; or the controllers' disk was lost, so that they wait for all replicas (ruling 8), and
        one does not count for want of a master to follow."""
        known = [item.machine.info.groups.get("sim") for item in self.controllers if item.machine.is_leading]
        forgotten = any(group is not None and group.master_id is None for group in known)
        return forgotten or not any(item.alive and item.admits for item in self.members)

    def _elect_unclean(self) -> None:
        """What `rmqha elect --unclean` advises: of all replicas the one with the highest (epoch, end). Needed only when
        every electable replica has lost power (ruling 3)."""
        if not any(broker.store.unclean for broker in self.members):
            return
        best = max(self.members, key=lambda item: (_last_epoch(item), item.store.max_phy_offset, item.host))
        self.operator_count += 1
        self.causes.disturbed()
        self.wholeness.accepted_loss()
        self.tables.accepted_loss()
        self.tracer.event("operator", elects=best.host, end=best.store.max_phy_offset)
        self.clients[0].elect_unclean(self.controllers[0].config.peers, "sim", best)

    def _empty_refused(self) -> None:
        """What a refusal to cut advises (3-3: the master's log and this one have nothing in common). Two masters at
        once may come to that in AP, when the part in common is old enough to be removed; in CP it is a violation."""
        if self.options.cp:
            return
        for broker in self.brokers:
            if broker.alive and not broker.replica.is_master and broker.replica.state(0).get("refusal"):
                self.tracer.event("operator", empties=broker.host, end=broker.store.max_phy_offset)
                self.operator_count += 1
                self.causes.disturbed()
                self.reports.replaced(broker.host)
                broker.replace_disk()
                broker.boot()

    def _take_back_drained(self) -> None:
        groups = [item.machine.info.groups.get("sim") for item in self.controllers if item.alive]
        for broker_id in sorted({each for group in groups if group is not None for each in group.drained_ids}):
            self.faults.drain(broker_id, drained=False)

    def unsettled(self) -> str:
        """What a whole group has still to do, or ""."""
        return ""

    def _until_whole(self, limit_ms: int, complaint: str) -> None:
        self._until(limit_ms, self._missing, complaint)

    def _missing(self) -> str:
        missing = agreement.missing(self.brokers) or self._open_transactions()
        missing = missing or self._unequal_tables() or self.unsettled()
        return missing or routes.missing(self.name_servers, self.brokers)

    def _open_transactions(self) -> str:
        return transactions.missing(self.brokers, self.history) if self.options.transactions else ""

    def _unequal_tables(self) -> str:
        return tables.missing(self.brokers) if self.options.follows_tables else ""

    def _until(self, limit_ms: int, lacks: Callable[[], str], complaint: str = "after the heal") -> None:
        end_ms = self.scheduler.now_ms + limit_ms
        operator_at_ms = self.scheduler.now_ms + OPERATOR_AFTER_MS
        while (lack := lacks()) and self.scheduler.now_ms < end_ms:
            self.scheduler.run_until(self.scheduler.now_ms + SETTLE_STEP_MS)
            self._take_back_drained()
            if self.scheduler.now_ms >= operator_at_ms:
                if self._operator_is_needed():
                    operator_at_ms = self.scheduler.now_ms + OPERATOR_AFTER_MS
                    self._elect_unclean()
                self._empty_refused()
        if lack:
            raise InvariantError(f"{complaint} within {limit_ms} ms: {lack}")


def _last_epoch(broker: BrokerProcess) -> int:
    last = broker.store.epochs.last
    return last.epoch if last is not None else 0
