"""One run: build the world from a seed, let faults happen, heal, demand liveness, verify."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from controller.config import ControllerConfig
from rmqha.sim.prng import SimPrng
from rmqha.sim.scheduler import Scheduler
from rmqha.sim.transport import Delays, Transport
from tests.simulation.broker_group import CLEAN_INTERVAL_MS, FIRST, BrokerGroup
from tests.simulation.checkers.clients.crosstalk import Crosstalk
from tests.simulation.checkers.controllers.leaders import Leaders
from tests.simulation.checkers.controllers.members import Members
from tests.simulation.checkers.controllers.sessions import Sessions
from tests.simulation.checkers.controllers.states import States, unfinished
from tests.simulation.checkers.logs import agreement, growth
from tests.simulation.checkers.logs.cuts import Cuts
from tests.simulation.checkers.logs.reports import Reports
from tests.simulation.checkers.logs.survival import Audit
from tests.simulation.faults.conversion import Conversion
from tests.simulation.faults.draw import Faults
from tests.simulation.faults.quorum_faults import missing_members
from tests.simulation.faults.rescue import Rescue
from tests.simulation.faults.stale_election import StaleElection
from tests.simulation.faults.strikes import Stage
from tests.simulation.ground import Ground
from tests.simulation.history import InvariantError
from tests.simulation.marks import MarkingTracer
from tests.simulation.options import Options, seed_options
from tests.simulation.probes.crash_probes import CrashProbes
from tests.simulation.processes.broker_process import BrokerProcess
from tests.simulation.processes.controller_process import ControllerProcess
from tests.simulation.processes.name_server_process import NameServerProcess
from tests.simulation.processes.versions import OF_CONTROLLERS, drawn
from tests.simulation.tuning import tuned_controller, tuned_controllers

START_MS = 20_000
HEAL_MS = 60_000
HEIR_MS = 15_000
SETTLE_STEP_MS = 250
CONVERT_AFTER_MS = 2000
GROWTH_EVERY, GROWTH_MS = 5, 2000
"""Of so many seeds one is looked at for growth in the midst of the faults, each time after so long."""


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
    """What all broker groups share, controllers, name servers and faults among it, and the groups."""

    def __init__(self, seed: int, options: Options | None = None, only: frozenset[str] | None = None) -> None:
        """`only`: keys of the faults that may happen (`Faults.keys`), None for all that the seed draws."""
        prng = SimPrng(seed)
        self.seed = seed
        self.options = options or seed_options(seed)
        self.scheduler = Scheduler()
        self.tracer = MarkingTracer(self.scheduler, keep_count=400)
        self.on_elected: Callable[[BrokerProcess], None] = lambda broker: None
        delays = Delays(0, self.options.max_delay_ms)
        self.transport = Transport(self.scheduler, prng.child("transport"), delays)
        self.transport.split_per_mille = self.options.split_per_mille
        self._ground = Ground(self.scheduler, self.transport, self.tracer, prng, self.options.clock_drift_ppm)
        controller_count = self.options.controller_count + self.options.spare_controller_count
        self.controllers = [self._controller(number) for number in range(1, controller_count + 1)]
        self.name_servers = [self._name_server(number) for number in range(1, self.options.name_server_count + 1)]
        self.groups = self._groups()
        self.brokers = [broker for group in self.groups for broker in group.brokers]
        """Of all groups."""
        self.leaders = Leaders(self.controllers, leases=not self.options.suspend_per_mille)
        self.states = States()
        self.members = Members()
        self.sessions = Sessions()
        self.reports = Reports(self.scheduler)
        self.cuts = Cuts()
        for broker in self.brokers:
            broker.checks = (*broker.checks, self.cuts.stepped)
        self.tracer.watch = self._traced
        stage = Stage(
            self.options,
            self.scheduler,
            self.transport,
            prng.child("faults"),
            self.tracer,
            self.groups,
            self.controllers,
            self.name_servers,
            only,
        )
        self.faults = Faults(stage)
        self.faults.disturbed = self._disturbed
        if self.options.moment_per_mille:
            for broker in self.brokers:
                broker.checks = (*broker.checks, self.faults.moments.stepped)
        if self.options.timer_moment_per_mille:
            for broker in self.brokers:
                broker.checks = (*broker.checks, self.faults.timer_moments.stepped)
        if self.options.outcast_per_mille or self.options.return_per_mille:
            for broker in self.brokers:
                broker.asks_for_set = self.faults.sets.asked
        if self.options.kill_half_per_mille:
            for broker in self.brokers:
                broker.checks = (*broker.checks, self.faults.half_stepped)
        if self.options.crash_probes:
            probes = CrashProbes(prng.child("crash-probes"), self.brokers, self.controllers, self.options.crash_probes)
            self.crash_probes: CrashProbes | None = probes
            for broker in self.brokers:
                broker.checks = (*broker.checks, probes.stepped)
        else:
            self.crash_probes = None
        self.faults.wiped = lambda broker: self.reports.replaced(broker.host)
        for group in self.groups:
            group.elected, group.told, group.cut = self._elected, self.faults.told, self.faults.cut
        self.crosstalk = self._watched_crosstalk() if len(self.groups) > 1 else None
        self._rescues = [self._rescue(group) for group in self.groups]

    def _groups(self) -> list[BrokerGroup]:
        broker_numbers, client_numbers, made = count(1), count(0), []
        first = replace(self.options, more_groups=())
        more = [replace(first, broker_count=size.broker_count, cp=size.cp) for size in self.options.more_groups]
        for place, options in enumerate((first, *more), 1):
            group = BrokerGroup(
                FIRST if place == 1 else f"{FIRST}{place}",
                options,
                self._ground,
                self.controllers,
                self.name_servers,
                broker_numbers,
                client_numbers,
            )
            made.append(group)
        return made

    def _watched_crosstalk(self) -> Crosstalk:
        made = Crosstalk(self.scheduler, self.transport, self.groups, self.controllers)
        self.transport.dial_listeners.append(made.dialed)
        for broker in self.brokers:
            broker.heard = made.heard
            broker.checks = (*broker.checks, made.stepped)
        return made

    def _rescue(self, group: BrokerGroup) -> Rescue:
        def take_back(group: BrokerGroup, broker_id: int) -> None:
            self.faults.drain(group, broker_id, drained=False)

        return Rescue(group, self.controllers, self.scheduler, self.tracer, self.reports, take_back)

    def _traced(self, name: str, fields: dict[str, Any]) -> None:
        self.reports.traced(name, fields)
        if self.options.moment_per_mille:
            self.faults.moments.traced(name, fields)
        if self.options.timer_moment_per_mille:
            self.faults.timer_moments.traced(name, fields)
        if self.crash_probes is not None:
            self.crash_probes.traced(name, fields)
        if self.crosstalk is not None:
            self.crosstalk.traced(name, fields)
        if "group" in fields:
            for group in self.groups:
                if group.name == fields["group"]:
                    group.traced(name, fields)

    def _disturbed(self, hosts: Sequence[str]) -> None:
        """What touches a replica concerns its group; what touches controllers and name servers alone, every group."""
        hosts_of_brokers = [broker.host for broker in self.brokers]
        for group in self.groups:
            touches_brokers = any(host in group.hosts for host in hosts)
            if touches_brokers or all(host not in hosts_of_brokers for host in hosts):
                group.causes.disturbed(touches_brokers=touches_brokers)

    def _peers(self, own: int) -> str:
        """The group as it is formed, and a controller of its own that is to be added later."""
        numbers = range(1, self.options.controller_count + 1)
        return ";".join(f"c{number}-c{number}:9878" for number in sorted({*numbers, own}))

    def _controller(self, number: int) -> ControllerProcess:
        host, ground = f"c{number}", self._ground
        config = ControllerConfig(controller_dleger_peers=self._peers(number), controller_dleger_self_id=host)
        if self.options.snapshot_after_entries:
            config = replace(config, snapshot_after_entries=self.options.snapshot_after_entries)
        prng = ground.prng.child(host)
        if self.options.tuned:
            shared = tuned_controllers(config, ground.prng.child("controllers-keys"))
            config = tuned_controller(shared, prng.child("keys"))
        made = ControllerProcess(host, config, self.scheduler, self.transport, ground.clock(host), prng, self.tracer)
        made.echo_per_mille = self.options.echo_per_mille
        made.most_entries = self.options.append_entries
        made.chunk_bytes = self.options.snapshot_chunk_bytes
        made.segment_bytes = self.options.raft_segment_bytes
        if self.options.mixed_releases:
            made.dialect = drawn(prng.child("version"), OF_CONTROLLERS)
        made.stepped = self._controller_stepped
        return made

    def _name_server(self, number: int) -> NameServerProcess:
        host = f"n{number}"
        made = NameServerProcess(host, self.scheduler, self.transport, self._ground.clock(host), self.tracer)
        made.stepped = self._name_server_stepped
        return made

    def _elected(self, broker: BrokerProcess) -> None:
        self.faults.elected(broker)
        self.on_elected(broker)

    def _controller_stepped(self, controller: ControllerProcess) -> None:
        self.leaders.stepped(controller)
        self.states.stepped(controller)
        self.members.stepped(controller)
        self.sessions.stepped(controller)
        if self.crash_probes is not None:
            self.crash_probes.controller_stepped(controller)
        for group in self.groups:
            group.applied(controller)
        if self.options.set_moment_per_mille:
            self.faults.moments.applied(controller)
        if self.crosstalk is not None:
            self.crosstalk.applied(controller)

    def _name_server_stepped(self, process: NameServerProcess) -> None:
        for group in self.groups:
            group.routes.stepped(process)
        if self.crosstalk is not None:
            self.crosstalk.listed(process)

    # --- the run ----------------------------------------------------------------------------------------------------
    def run(self) -> Report:
        failure, found = "", None
        try:
            found = self._run()
        except InvariantError as violation:
            failure = str(violation)
        except Exception as error:  # noqa: BLE001  (a crash of production code is a finding like any other)
            # a checker that an event reaches in the midst of a change ends that change, which says so
            verdict = error.__cause__
            failure = str(verdict) if isinstance(verdict, InvariantError) else traceback.format_exc()
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
        for group in self.groups:
            group.begin_sending()
        self._chaos()
        for number in range(self.options.conversions):
            self._convert(number)
            self._chaos()
        self._until_all_acknowledge(HEAL_MS, more_than=5)
        if self.options.bereave:
            for group in self.groups:
                self._bereave(group)
        if self.options.elects_stale:
            for group, rescue in zip(self.groups, self._rescues, strict=True):
                self._elect_stale(group, rescue)
        for group in self.groups:
            group.stop_sending()
        self._until_whole(HEAL_MS, "the group did not become whole again")
        self._until(HEAL_MS, self._unread, "after the heal")
        for group in self.groups:
            group.conclude()
        self._until_whole(HEAL_MS, "the last transactions did not end")
        # only what is durable may go, and a sync that began before the heal may hang on
        syncing_ms = max(0, max(item.disturbed_at_ms for item in self.brokers) - self.scheduler.now_ms)
        limit_ms = syncing_ms + 10 * CLEAN_INTERVAL_MS
        self._until(limit_ms, self._too_much, "old files stayed")
        found = [self._verify(group) for group in self.groups]
        return sum(found[1:], found[0])

    def _too_much(self) -> str:
        """A replica's files that should be gone, or ""."""
        behind = ((broker.host, growth.left_behind(broker)) for broker in self.brokers)
        return agreement.too_long(self.brokers) or next((f"{host} keeps {path}" for host, path in behind if path), "")

    def _chaos(self) -> None:
        self.faults.start()
        end_ms = self.scheduler.now_ms + self.options.chaos_ms
        while self.seed % GROWTH_EVERY == 0 and self.scheduler.now_ms + GROWTH_MS < end_ms:
            self.scheduler.run_until(self.scheduler.now_ms + GROWTH_MS)
            growth.verify_busy(self.brokers, self.controllers)
        self.scheduler.run_until(end_ms)
        self.faults.stop()

    def _convert(self, number: int) -> None:
        """Each group becomes of the other kind, from whatever state the faults have left."""
        for group in self.groups:
            prng = self._ground.prng.child(f"conversion-{number}-{group.name}")
            self.scheduler.run_until(self.scheduler.now_ms + prng.between(0, CONVERT_AFTER_MS))
            conversion = Conversion(group, self.scheduler, prng, self.tracer)
            self._until(HEAL_MS, conversion.lack, "the group cannot be converted")
            self._until_all_acknowledge(HEAL_MS, complaint="after the conversion")

    def _verify(self, group: BrokerGroup) -> Audit:
        if self.crosstalk is not None:
            self.crosstalk.verify(group)
        found = group.verify()
        self.reports.verify(found.lost)
        self.tracer.event("audited", acked=found.acked_count, lost=found.lost_count, duplicates=found.duplicate_count)
        return found

    def _bereave(self, group: BrokerGroup) -> None:
        """Ruling 9: the master dies, then who is elected, before it has done anything; a majority that holds all goes
        on without them."""
        self._until_whole(HEAL_MS, "the group did not become whole before its last trial")
        (master,) = [item for item in group.brokers if item.replica.is_master]
        self.tracer.event("fault", what="bereave", whom=master.host)
        group.causes.disturbed()
        master.kill(power_loss=False)
        heirs: list[BrokerProcess] = []
        lives: list[int] = []
        """Of the heir at its election: a fault of the run may kill it too, and start it again at once."""

        def elected(broker: BrokerProcess) -> None:
            if not heirs and broker in group.brokers:
                heirs.append(broker)
                lives.append(broker.life)
                broker.at(broker.clock.now_ms(), lambda: broker.kill(power_loss=False))

        self.on_elected = elected
        self._until(
            HEIR_MS,
            lambda: "" if heirs and (not heirs[0].alive or heirs[0].life != lives[0]) else "nobody is elected",
            f"after {master.host} has died",
        )
        if len(group.brokers) < 5:
            master.boot()
        complaint = f"with {[item.host for item in group.brokers if not item.alive]} away"
        self._until_all_acknowledge(HEIR_MS, complaint=complaint)
        for broker in (master, *heirs):
            if not broker.alive:
                broker.boot()

    def _elect_stale(self, group: BrokerGroup, rescue: Rescue) -> None:
        """An operator has the choice between a stale replica and none, then between two histories."""
        self._until_whole(HEAL_MS, "the group did not become whole before its last trial")
        prng = self._ground.prng.child(f"stale-election-{group.name}")
        trial = StaleElection(group, self.controllers, self.scheduler, self.transport, prng, self.tracer)
        self._until(HEAL_MS, trial.lack, "the stale election")
        rescue.accepts_loss = True
        self._until_whole(HEAL_MS, "the group did not become whole after the stale election")
        self._until_all_acknowledge(HEIR_MS, complaint="after the stale election")

    def _until_whole(self, limit_ms: int, complaint: str) -> None:
        self._until(limit_ms, self._missing, complaint)

    def _missing(self) -> str:
        lacks = (group.missing() for group in self.groups)
        unrouted = (group.missing_routes() for group in self.groups)
        open_changes = (unfinished(self.controllers, group.name) for group in self.groups)
        lack = next(filter(None, (*lacks, *unrouted, *open_changes)), "")
        unlevel = self.options.change_members_per_mille and not lack
        return missing_members(self.controllers) if unlevel else lack

    def _unread(self) -> str:
        return next(filter(None, (group.unread() for group in self.groups)), "")

    def _until_all_acknowledge(self, limit_ms: int, more_than: int = 0, complaint: str = "after the heal") -> None:
        """Sends of each group."""
        due = [(group, len(group.history.acked) + more_than) for group in self.groups]

        def lack() -> str:
            silent = [group.name for group, count in due if len(group.history.acked) <= count]
            return f"no send is acknowledged by {silent}" if silent else ""

        self._until(limit_ms, lack, complaint)

    def _until(self, limit_ms: int, lacks: Callable[[], str], complaint: str) -> None:
        end_ms = self.scheduler.now_ms + limit_ms
        for rescue in self._rescues:
            rescue.begin()
        while (lack := lacks()) and self.scheduler.now_ms < end_ms:
            self.scheduler.run_until(self.scheduler.now_ms + SETTLE_STEP_MS)
            for rescue in self._rescues:
                rescue.look()
        if lack:
            raise InvariantError(f"{complaint} within {limit_ms} ms: {lack}")
