"""One random run: faults and clients while it is unsafe, then peace, then liveness is demanded."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from rmqha.model.error import RemoteProtocolError
from rmqha.raft.config import RaftConfig
from rmqha.sim.network import LinkOptions
from rmqha.sim.prng import SimPrng
from tests.raft.checker import ViolationError
from tests.raft.cluster import Cluster, Host, MakeNode, Options, make_node

FAULTS = (
    "blink",
    "crash",
    "crash_leader",
    "partition",
    "one_way",
    "isolate_leader",
    "corner_leader",
    "cut_from_leader",
    "heal",
    "pause",
    "pause_leader",
    "stall",
    "stall_leader",
    "transfer",
    "compact",
    "add",
    "add_learner",
    "remove",
    "remove_leader",
    "wipe",
)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is done to the nodes, and how often. An ambush strikes at once or a few milliseconds after a node took
    another role or a leader committed."""

    faults: tuple[str, ...] = FAULTS
    mean_gap_ms: int = 300
    ambush_percent: int = 0
    ambushes: tuple[str, ...] = ("crash", "crash_leader")
    mean_request_gap_ms: int = 15


@dataclass(frozen=True, slots=True)
class Outcome:
    trace_hash: str
    event_count: int
    write_count: int
    lease_read_count: int
    round_read_count: int
    term_count: int
    decided_count: int
    change_count: int
    wipe_count: int


def draw_options(prng: SimPrng) -> Options:
    """Swarm testing (Groce et al. 2012): each run has its own subset of what may go wrong."""
    rough = prng.chance(1, 2)
    link = LinkOptions(
        min_delay_ms=0,
        max_delay_ms=prng.between(0, 20),
        lost_per_mille=prng.below(100) if rough else 0,
        duplicated_per_mille=prng.below(100) if rough else 0,
        reordered_per_mille=prng.below(300) if rough else 0,
        max_reorder_delay_ms=prng.between(1, 400),
    )
    config = RaftConfig(
        max_append_entries=prng.between(1, 8), max_inflight_appends=prng.between(1, 8), snapshot_chunk_bytes=64
    )
    return Options(
        node_count=(1, 3, 3, 5)[prng.below(4)],
        spare_count=prng.below(3),
        fresh=prng.chance(1, 2),
        max_sync_ms=prng.between(0, 30),
        drift_percent=prng.below(2) * 10,
        link=link,
        config=config,
        beside=prng.chance(3, 4),
    )


def draw_plan(prng: SimPrng) -> Plan:
    faults = tuple(fault for fault in FAULTS if prng.chance(2, 3)) or ("crash",)
    ambushes = tuple(fault for fault in FAULTS if prng.chance(1, 4)) or ("crash",)
    ambush_percent = prng.below(2) * prng.below(40)
    # a cut-off node whose log misses nothing can only win while clients are quiet
    request_gap_ms = 300 if prng.chance(1, 4) else prng.between(2, 30)
    return Plan(faults, prng.between(50, 600), ambush_percent, ambushes, request_gap_ms)


class Run:
    def __init__(
        self, seed: int, options: Options | None = None, plan: Plan | None = None, make: MakeNode = make_node
    ) -> None:
        self.seed = seed
        prng = SimPrng(seed)
        self.cluster = Cluster(seed, options or draw_options(prng.child("options")), make)
        self.plan = plan or draw_plan(prng.child("plan"))
        self.faults_prng = prng.child("faults")
        self.clients_prng = prng.child("clients")
        self.end_ms = 0
        self.request_count = 0

    def execute(self, duration_ms: int = 5000) -> Outcome:
        """Raises ViolationError with the seed in its text, for broken assertions of the machine as well."""
        cluster = self.cluster
        self.end_ms = duration_ms
        try:
            for host in cluster.hosts.values():
                cluster.scheduler.after(self.faults_prng.below(100), partial(cluster.start, host))
            cluster.scheduler.after(300, self._fault)
            cluster.scheduler.after(100, self._client)
            cluster.on_moment = self._ambush
            cluster.run(duration_ms)
            self._make_peace()
            self._demand_liveness()
        except (AssertionError, RemoteProtocolError) as violation:
            recent = "\n  ".join(list(cluster.tracer.recent)[-30:])
            raise ViolationError(f"seed {self.seed}, {cluster.scheduler.now_ms} ms: {violation}\n  {recent}") from None
        return Outcome(
            cluster.tracer.trace_hash(),
            cluster.scheduler.event_count,
            cluster.write_count,
            cluster.lease_read_count,
            cluster.read_count,
            len(cluster.checker.leaders),
            len(cluster.checker.decided),
            cluster.change_count,
            len(cluster.lost),
        )

    def _client(self) -> None:
        """Clients ask any node, mostly those that lead."""
        cluster, prng = self.cluster, self.clients_prng
        for host in cluster.running():
            assert host.node is not None
            if not host.node.is_leader:
                continue
            self.request_count += 1
            match prng.below(4):
                case 0 | 1:
                    cluster.write(host, b"%d" % self.request_count)
                case 2:
                    cluster.read_by_lease(host)
                case _:
                    cluster.read_by_round(host, b"%d" % self.request_count)
        if cluster.scheduler.now_ms < self.end_ms:
            cluster.scheduler.after(prng.between(1, 2 * self.plan.mean_request_gap_ms), self._client)

    def _fault(self) -> None:
        if self.cluster.scheduler.now_ms >= self.end_ms:
            return
        self._strike(self.plan.faults)
        self.cluster.checker.on_logs({host.name: dict(host.storage.entries) for host in self.cluster.hosts.values()})
        self.cluster.scheduler.after(self.faults_prng.between(10, 2 * self.plan.mean_gap_ms), self._fault)

    def _strike(self, faults: tuple[str, ...]) -> None:
        if self.cluster.scheduler.now_ms >= self.end_ms:
            return
        fault = faults[self.faults_prng.below(len(faults))]
        self.cluster.tracer.event("fault", kind=fault)
        getattr(self, f"_{fault}")()

    def _ambush(self) -> None:
        prng = self.faults_prng
        if prng.chance(self.plan.ambush_percent, 100):
            delay_ms = prng.below(2) * prng.below(30)
            self.cluster.scheduler.after(delay_ms, lambda: self._strike(self.plan.ambushes))

    def _any_host(self) -> Host:
        return self.cluster.hosts[self.cluster.names[self.faults_prng.below(len(self.cluster.names))]]

    def _crash_host(self, host: Host) -> None:
        if host.node is None:
            return
        self.cluster.crash(host)
        delay_ms = self.faults_prng.between(0, 50 if self.faults_prng.chance(1, 2) else 1500)
        self.cluster.scheduler.after(delay_ms, lambda: self._restart(host))

    def _restart(self, host: Host) -> None:
        if host.node is None:
            self.cluster.start(host)

    def _blink(self) -> None:
        host = self._any_host()
        if host.node is not None:
            self.cluster.crash(host)
            self.cluster.scheduler.after(self.faults_prng.below(10), lambda: self._restart(host))

    def _crash(self) -> None:
        self._crash_host(self._any_host())

    def _crash_leader(self) -> None:
        self._crash_host(self.cluster.leader() or self._any_host())

    def _partition(self) -> None:
        sides: tuple[list[str], list[str]] = ([], [])
        for name in self.cluster.names:
            sides[self.faults_prng.below(2)].append(name)
        self.cluster.network.partition(*sides)

    def _one_way(self) -> None:
        source, target = self._any_host(), self._any_host()
        if source is not target:
            self.cluster.network.block(source.name, target.name)

    def _isolate_leader(self) -> None:
        leader = (self.cluster.leader() or self._any_host()).name
        self.cluster.network.partition([leader], [name for name in self.cluster.names if name != leader])

    def _corner_leader(self) -> None:
        """The leader keeps one follower: a minority of five shares what nobody else has."""
        leader, other = (self.cluster.leader() or self._any_host()).name, self._any_host().name
        rest = [name for name in self.cluster.names if name not in (leader, other)]
        self.cluster.network.partition({leader, other}, rest)

    def _cut_from_leader(self) -> None:
        leader, other = self.cluster.leader() or self._any_host(), self._any_host()
        if leader is not other:
            self.cluster.network.block(leader.name, other.name)
            self.cluster.network.block(other.name, leader.name)

    def _heal(self) -> None:
        self.cluster.network.partition()

    def _pause(self) -> None:
        self._pause_host(self._any_host())

    def _pause_leader(self) -> None:
        self._pause_host(self.cluster.leader() or self._any_host())

    def _pause_host(self, host: Host) -> None:
        self.cluster.pause(host)
        self.cluster.scheduler.after(self.faults_prng.between(20, 900), lambda: self.cluster.resume(host))

    def _stall(self) -> None:
        self._stall_disk(self._any_host())

    def _stall_leader(self) -> None:
        self._stall_disk(self.cluster.leader() or self._any_host())

    def _stall_disk(self, host: Host) -> None:
        host.stalled_until_ms = self.cluster.scheduler.now_ms + self.faults_prng.between(50, 2000)

    def _transfer(self) -> None:
        leader = self.cluster.leader()
        if leader is not None:
            self.cluster.transfer(leader, self._any_host().name)

    def _add(self) -> None:
        self._add_host(voter=True)

    def _add_learner(self) -> None:
        self._add_host(voter=False)

    def _add_host(self, *, voter: bool) -> None:
        leader, host = self.cluster.leader(), self._any_host()
        if leader is not None:
            self.cluster.add(leader, host, voter=voter)

    def _remove(self) -> None:
        self._remove_name(self._any_host().name)

    def _remove_leader(self) -> None:
        leader = self.cluster.leader()
        if leader is not None:
            self._remove_name(leader.name)

    def _remove_name(self, name: str) -> None:
        """Nobody takes a sound node away just after another one has lost its disk."""
        cluster, leader = self.cluster, self.cluster.leader()
        if leader is None or leader.node is None:
            return
        member = leader.node.configuration.find(name)
        if member in cluster.lost or cluster.scheduler.now_ms >= cluster.wiped_at_ms + 2000:
            cluster.remove(leader, name)

    def _wipe(self) -> None:
        host = self._any_host()
        if host.node is not None and self.cluster.may_wipe(host):
            self.cluster.crash(host)
            self.cluster.wipe(host)
            self.cluster.scheduler.after(self.faults_prng.below(500), lambda: self._restart(host))

    def _compact(self) -> None:
        for host in self.cluster.running():
            if self.faults_prng.chance(1, 2):
                self.cluster.compact(host)

    def _make_peace(self) -> None:
        cluster = self.cluster
        cluster.network.heal()
        for host in cluster.hosts.values():
            cluster.resume(host)
            self._restart(host)
        cluster.run(4000)

    def _demand_liveness(self) -> None:
        """A leader holds the lease, lost disks can be replaced, a write comes through, every member ends in the same
        state."""
        self._check_peace(b"last")
        for host in self.cluster.hosts.values():
            self._replace_lost(host)
        self._check_peace(b"very last")

    def _check_peace(self, data: bytes) -> None:
        cluster, checker = self.cluster, self.cluster.checker
        leader = self._require_leader()
        placed = cluster.write(leader, data)
        checker.require(placed is not None, "the leader refuses a write in peace")
        cluster.run(1000)
        cluster.read_by_lease(leader)
        checker.require(leader.node is not None and leader.node.lease_valid(leader.clock.now_ms()), "no lease in peace")
        checker.require(placed not in leader.waiting, "a write in peace is not acknowledged")
        for host in cluster.members(leader):
            checker.require(host.application.index == len(checker.decided), f"{host.name} has not caught up")
            checker.check_state(host.name, host.application)
        assert leader.node is not None
        checker.require(leader.node.configuration.is_voter(leader.identity), f"{leader.name} leads and is no voter")
        for member in leader.node.configuration.joining:
            checker.require(member in cluster.lost, f"{member}, which is well, has not become a voter")

    def _require_leader(self) -> Host:
        leader = self.cluster.leader()
        self.cluster.checker.require(leader is not None, "no leader in peace")
        assert leader is not None
        return leader

    def _replace_lost(self, host: Host) -> None:
        """An operator removes the lost disk and adds the new one under the same id."""
        cluster, checker = self.cluster, self.cluster.checker
        leader = self._require_leader()
        assert leader.node is not None
        known = leader.node.configuration.find(host.name)
        if known is None or known == host.identity:
            return
        checker.require(cluster.remove(leader, host.name), f"{known} cannot be removed")
        cluster.run(200)
        checker.require(cluster.add(leader, host), f"{host.identity} cannot be added")
        for _ in range(20):
            if not leader.node.configuration.is_voter(host.identity):
                cluster.run(500)
        checker.require(leader.node.configuration.is_voter(host.identity), f"{host.identity} does not vote")
