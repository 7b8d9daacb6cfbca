"""A simulated Raft group: real RaftNodes, disks that lose what was not synced, drifting clocks, one seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rmqha.model.offset import RaftIndex
from rmqha.raft.config import RaftConfig
from rmqha.raft.core import RaftRole
from rmqha.raft.log import StoredState
from rmqha.raft.node import RaftNode, Ready
from rmqha.raft.quorum import Configuration, id_of, identity
from rmqha.raft.reconfiguration import AddNode, MembershipChange, RemoveNode
from rmqha.sim.clock import SimClock
from rmqha.sim.network import LinkOptions, SimNetwork
from rmqha.sim.prng import SimPrng
from rmqha.sim.scheduler import Scheduler, Timer
from rmqha.sim.tracer import SimTracer
from rmqha.wire.raft_codec import decode_message, encode_message
from rmqha.wire.raft_message import AnyMessage, Entry, HardState, Snapshot
from tests.raft.checker import Application, Checker

MakeNode = Callable[[str, Configuration, StoredState, RaftConfig, SimPrng, SimTracer, int], RaftNode]


def make_node(
    node_id: str,
    initial: Configuration,
    stored: StoredState,
    config: RaftConfig,
    prng: SimPrng,
    tracer: SimTracer,
    now_ms: int,
) -> RaftNode:
    return RaftNode(node_id, initial, stored, config, prng, tracer, now_ms)


class Storage:
    """What survives a crash. A write that a crash interrupts leaves any of its steps' prefixes."""

    def __init__(self) -> None:
        self.hard_state = HardState()
        self.snapshot: Snapshot | None = None
        self.entries: dict[int, Entry] = {}

    def stored(self) -> StoredState:
        start = self.snapshot.index + 1 if self.snapshot else 1
        entries = tuple(self.entries[index] for index in range(start, start + len(self.entries)))
        return StoredState(self.hard_state.term, self.hard_state.voted_for, self.snapshot, entries)

    def persist(self, ready: Ready, steps: int | None = None) -> None:
        """Do what `ready` asks, or its first `steps` steps: an entry is a step, anything else too."""
        actions: list[Callable[[], None]] = []
        hard_state, truncate_from = ready.hard_state, ready.truncate_from
        snapshot, compaction = ready.snapshot, ready.compaction
        if hard_state is not None:
            actions.append(lambda: setattr(self, "hard_state", hard_state))
        if truncate_from is not None:
            actions.append(lambda: self._keep(lambda index: index < truncate_from))
        if snapshot is not None:
            actions.append(lambda: self._take_snapshot(snapshot, keep_log=False))
        for entry in ready.entries:
            actions.append(partial(self._put, entry))
        if compaction is not None:
            actions.append(lambda: self._take_snapshot(compaction, keep_log=True))
        for action in actions[:steps]:
            action()

    def _put(self, entry: Entry) -> None:
        self.entries[entry.index] = entry

    def _keep(self, wanted: Callable[[int], bool]) -> None:
        self.entries = {index: entry for index, entry in self.entries.items() if wanted(index)}

    def _take_snapshot(self, snapshot: Snapshot, *, keep_log: bool) -> None:
        self.snapshot = snapshot
        self._keep(lambda index: keep_log and index > snapshot.index)


UNSEEN_PAUSE_MS = 2
"""So many heartbeat intervals of a pause, at most, may pass for a slow disk: one before the next is due, one after."""


class StallTracer(SimTracer):
    """Tells `stalled` of each node that gives way since its disk stands still."""

    stalled: Callable[[str], None] = staticmethod(lambda name: None)

    def event(self, name: str, **fields: Any) -> None:
        super().event(name, **fields)
        if name == "raft_disk_stalled":
            self.stalled(fields["node"])


@dataclass(slots=True)
class Options:
    """What may go wrong in one run."""

    node_count: int = 3
    spare_count: int = 0
    """Nodes that run and are in nobody's list; they may be added."""
    fresh: bool = False
    """The nodes know each other's ids only, and form the group first."""
    max_sync_ms: int = 5
    drift_percent: int = 0
    link: LinkOptions = field(default_factory=LinkOptions)
    config: RaftConfig = field(default_factory=RaftConfig)
    snapshot_padding_bytes: int = 200
    beside: bool = True
    """The shell takes what needs no disk while the disk works."""


class Host:
    def __init__(self, name: str, clock: SimClock, prng: SimPrng) -> None:
        self.name = name
        self.clock = clock
        self.prng = prng
        self.incarnation = 1
        self.storage = Storage()
        self.application = Application()
        self.node: RaftNode | None = None
        self.life = 0
        self.paused = False
        self.writing: Ready | None = None
        self.stalled_until_ms = 0
        """Time (ms) of the scheduler until which the disk finishes nothing."""
        self.writing_since_ms = self.paused_at_ms = 0
        self.pauses_ms: list[int] = []
        """Lengths of the pauses since then."""
        self.held: list[Callable[[], None]] = []
        self.timer: Timer | None = None
        self.waiting: set[tuple[int, int]] = set()
        self.reads: dict[bytes, int] = {}
        self.led_term = 0
        self.unchecked_count = 0
        self.seen = (RaftRole.FOLLOWER, 0)

    @property
    def identity(self) -> str:
        return identity(self.name, str(self.incarnation))

    def log_terms(self) -> dict[int, int]:
        return {index: entry.term for index, entry in self.storage.entries.items()}


class Cluster:
    def __init__(self, seed: int, options: Options, make: MakeNode = make_node) -> None:
        self.options = options
        self.scheduler = Scheduler()
        self.prng = SimPrng(seed)
        self.tracer = StallTracer(self.scheduler)
        self.tracer.stalled = self._verify_stall
        self.network = SimNetwork(self.scheduler, self.prng.child("network"), options.link)
        self.checker = Checker()
        self._make = make
        self.voter_names = tuple(f"n{number}" for number in range(1, options.node_count + 1))
        self.names = (*self.voter_names, *(f"s{number}" for number in range(1, options.spare_count + 1)))
        self.lost: set[str] = set()
        """Identities whose disk is gone."""
        self.wiped_at_ms = self.changed_at_ms = 0
        drift = self.prng.child("drift")
        self.hosts: dict[str, Host] = {}
        for name in self.names:
            ppm = 1_000_000 + (drift.between(-1, 1) * options.drift_percent * 10_000)
            clock = SimClock(self.scheduler, ppm, origin_ms=drift.below(1_000_000))
            self.hosts[name] = Host(name, clock, self.prng.child(name))
        self.read_count = self.lease_read_count = self.write_count = self.change_count = 0
        self.on_moment: Callable[[], None] = lambda: None
        """Called when a node has taken another role or a leader has committed: the moment to strike."""

    # --- life and death ---------------------------------------------------------------------------------------------

    def start(self, host: Host) -> None:
        assert host.node is None
        host.life += 1
        stored = host.storage.stored()
        host.application = Application()
        if stored.snapshot is not None:
            self._restore(host, stored.snapshot)
        prng = host.prng.child(f"life {host.life}")
        config = self.options.config
        host.node = self._make(
            host.identity, self._initial(host), stored, config, prng, self.tracer, host.clock.now_ms()
        )
        self.network.attach(host.name, lambda source, data: self.receive(host, data))
        self.pump(host)

    def _initial(self, host: Host) -> Configuration:
        """What the host's configuration file says: the first voters and itself."""
        if not self.options.fresh and host.incarnation == 1 and host.name in self.voter_names:
            return Configuration(tuple(identity(name, "1") for name in self.voter_names))
        return Configuration.static(dict.fromkeys((*self.voter_names, host.name), ""))

    def wipe(self, host: Host) -> None:
        """The host, which does not run, gets a new disk."""
        assert host.node is None
        self.tracer.event("wipe", node=host.name)
        self.lost.add(host.identity)
        host.incarnation += 1
        host.storage = Storage()
        host.led_term = host.unchecked_count = 0
        self.wiped_at_ms = self.scheduler.now_ms

    def may_wipe(self, host: Host) -> bool:
        """False if a group could lose its majority by it: then what it has committed may be gone, or it can never
        elect again."""
        lost = {*self.lost, host.identity}
        if self.scheduler.now_ms < self.changed_at_ms + 2000:
            return False
        for other in self.hosts.values():
            configuration = other.node.configuration if other.node is not None else None
            if configuration is None:
                return False
            names = {configuration.name_of(member) for member in lost}
            if len(names & set(configuration.voters)) > (len(configuration.voters) - 1) // 2:
                return False
        return True

    def crash(self, host: Host) -> None:
        """Whatever was not synced is lost; a write under way is cut short anywhere."""
        if host.writing is not None:
            host.storage.persist(host.writing, host.prng.below(len(host.writing.entries) + 4))
        self.tracer.event("crash", node=host.name)
        self.network.detach(host.name)
        if host.timer is not None:
            host.timer.cancel()
        host.node, host.writing, host.paused = None, None, False
        host.held.clear()
        host.waiting.clear()
        host.reads.clear()

    def pause(self, host: Host) -> None:
        if host.node is not None and not host.paused:
            self.tracer.event("pause", node=host.name)
            host.paused = True
            host.paused_at_ms = self.scheduler.now_ms
            self.network.pause(host.name)

    def resume(self, host: Host) -> None:
        if host.paused:
            self.tracer.event("resume", node=host.name)
            host.paused = False
            host.pauses_ms.append(self.scheduler.now_ms - max(host.paused_at_ms, host.writing_since_ms))
            self.network.resume(host.name)
            held, host.held = host.held, []
            for action in held:
                self.scheduler.after(0, action)

    # --- driving ----------------------------------------------------------------------------------------------------

    def _guarded(self, host: Host, action: Callable[[], None]) -> Callable[[], None]:
        """`action`, in this life of the host only, and not while it stands still."""
        life = host.life

        def act() -> None:
            if host.life != life or host.node is None:
                return
            if host.paused:
                host.held.append(act)
            else:
                action()

        return act

    def receive(self, host: Host, data: bytes) -> None:
        assert host.node is not None
        host.node.step(host.clock.now_ms(), decode_message(data))
        self.pump(host)

    def pump(self, host: Host) -> None:
        """The shell's loop: take Ready after Ready, in the order that its docstring demands."""
        node = host.node
        assert node is not None
        while (ready := node.ready(host.clock.now_ms())) is not None:
            self._send(ready.early)
            self._apply(host, ready)
            if ready.must_persist and self.options.max_sync_ms:
                host.writing, host.writing_since_ms = ready, self.scheduler.now_ms
                host.pauses_ms.clear()
                delay_ms = host.prng.below(self.options.max_sync_ms + 1)
                delay_ms = max(delay_ms, host.stalled_until_ms - self.scheduler.now_ms)
                self.scheduler.after(delay_ms, self._guarded(host, partial(self._synced, host, ready)))
                if not self.options.beside:
                    break
            else:
                self._finish(host, ready)
        self._look(host, node)
        self._arm(host, node)

    def _synced(self, host: Host, ready: Ready) -> None:
        self._finish(host, ready)
        self.pump(host)

    def _finish(self, host: Host, ready: Ready) -> None:
        node = host.node
        assert node is not None
        if ready.must_persist:
            host.storage.persist(ready)
            host.writing = None
        node.advance(ready)
        self._send(ready.messages)

    def _apply(self, host: Host, ready: Ready) -> None:
        if ready.snapshot is not None:
            self._restore(host, ready.snapshot)
        for entry in ready.committed:
            self.checker.on_apply(host.name, host.application, entry)
            if (entry.term, entry.index) in host.waiting:
                host.waiting.remove((entry.term, entry.index))
                self.checker.on_acknowledge(entry)
        for read in ready.reads:
            needed_index = host.reads.pop(read.context)
            self.checker.on_read(host.name, "round", read.index, needed_index)
            self.read_count += 1

    def _restore(self, host: Host, snapshot: Snapshot) -> None:
        state, _, padding = snapshot.data.partition(b"|")
        self.checker.require(padding == b"." * self.options.snapshot_padding_bytes, "a snapshot lost bytes")
        host.application = Application(snapshot.index, bytes.fromhex(state.decode()))
        self.checker.check_state(host.name, host.application)

    def _send(self, messages: tuple[AnyMessage, ...]) -> None:
        for message in messages:
            self.checker.on_send(message)
            self.network.send(id_of(message.sender), id_of(message.to), encode_message(message))

    def _look(self, host: Host, node: RaftNode) -> None:
        seen = (node.role, node.commit_index if node.is_leader else 0)
        if seen != host.seen:
            host.seen = seen
            self.on_moment()
        if node.is_leader:
            self.checker.on_leader(host.name, node.term)
            self.checker.on_election(host.name, self._lease_holders(before_term=node.term))
            if host.led_term != node.term:
                host.led_term, host.unchecked_count = node.term, len(self.checker.decided)
            if host.unchecked_count and host.writing is None:
                decided_count, host.unchecked_count = host.unchecked_count, 0
                self.checker.on_leader_log(
                    host.name, node.term, host.log_terms(), range(node.snapshot_index, decided_count)
                )

    def _arm(self, host: Host, node: RaftNode) -> None:
        if host.timer is not None:
            host.timer.cancel()
        deadline_ms = node.deadline_ms()
        if deadline_ms is not None:
            host.timer = self.scheduler.at(
                host.clock.virtual_ms_of(deadline_ms), self._guarded(host, lambda: self._timeout(host))
            )

    def _timeout(self, host: Host) -> None:
        assert host.node is not None
        host.node.timeout(host.clock.now_ms())
        self.pump(host)

    def _verify_stall(self, name: str) -> None:
        """A leader gives way for its disk, not for a pause in which nobody could ask that."""
        host, config = self.hosts[name], self.options.config
        unseen_ms = UNSEEN_PAUSE_MS * config.heartbeat_interval_ms
        paused_ms = sum(max(0, pause_ms - unseen_ms) for pause_ms in host.pauses_ms)
        worked_ms = self.scheduler.now_ms - host.writing_since_ms - paused_ms
        drift = 100 + 2 * config.max_clock_drift_percent
        self.checker.require(
            host.writing is not None and worked_ms * drift >= config.quorum_timeout_ms * 100,
            f"{name} gives way though its disk has worked for {worked_ms} ms only",
        )

    # --- clients and operators --------------------------------------------------------------------------------------

    def running(self) -> list[Host]:
        return [host for host in self.hosts.values() if host.node is not None and not host.paused]

    def write(self, host: Host, data: bytes) -> tuple[int, int] | None:
        """A client asks `host`; it is acknowledged when the entry is applied there. (term, index), None if refused."""
        assert host.node is not None
        placed = host.node.propose(host.clock.now_ms(), data)
        if placed is not None:
            host.waiting.add(placed)
            self.write_count += 1
            self.pump(host)
        return placed

    def read_by_lease(self, host: Host) -> None:
        assert host.node is not None
        if host.node.lease_valid(host.clock.now_ms()):
            self.checker.on_read(host.name, "lease", host.application.index, self.checker.acknowledged_index)
            self.lease_read_count += 1

    def _lease_holders(self, before_term: int) -> list[str]:
        """Leaders of older terms that would answer a read now; one that stands still may wake up at any moment."""
        return [
            host.name
            for host in self.hosts.values()
            if host.node is not None and host.node.term < before_term and host.node.lease_valid(host.clock.now_ms())
        ]

    def read_by_round(self, host: Host, context: bytes) -> None:
        assert host.node is not None
        if host.node.read_index(host.clock.now_ms(), context):
            host.reads[context] = self.checker.acknowledged_index
            self.pump(host)

    def compact(self, host: Host) -> None:
        node, application = host.node, host.application
        assert node is not None
        if application.index > node.snapshot_index and application.index == node.compactable_index:
            data = application.state.hex().encode() + b"|" + b"." * self.options.snapshot_padding_bytes
            node.compact(RaftIndex(application.index), data)
            self.pump(host)

    def transfer(self, host: Host, to: str) -> None:
        assert host.node is not None
        if host.node.transfer_leadership(host.clock.now_ms(), self.hosts[to].identity):
            self.pump(host)

    def change(self, host: Host, wanted: MembershipChange) -> bool:
        """An operator asks `host`; False if it refuses."""
        assert host.node is not None
        placed = host.node.change_membership(host.clock.now_ms(), wanted)
        if not isinstance(placed, tuple):
            return False
        self.change_count += 1
        self.changed_at_ms = self.scheduler.now_ms
        self.pump(host)
        return True

    def add(self, host: Host, new: Host, *, voter: bool = True) -> bool:
        return self.change(host, AddNode(new.identity, "", voter))

    def remove(self, host: Host, name: str) -> bool:
        return self.change(host, RemoveNode(name))

    def members(self, leader: Host) -> list[Host]:
        """Hosts whose disk the leader's configuration names."""
        assert leader.node is not None
        return [host for host in self.hosts.values() if host.identity in leader.node.configuration.members]

    def leader(self) -> Host | None:
        """The running leader of the highest term."""
        leaders = [host for host in self.running() if host.node is not None and host.node.is_leader]
        return max(leaders, key=lambda host: host.node.term if host.node else 0, default=None)

    def run(self, duration_ms: int) -> None:
        self.scheduler.run_until(self.scheduler.now_ms + duration_ms)
