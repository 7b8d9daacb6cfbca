"""The faults of `rmqha drill`: each knows its cluster, its victims, its effect, and how it is undone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import trio

from rmqha.drill.cluster import BROKERS, GROUP, Cluster, Failover, quickstart, until, wall_ms
from rmqha.drill.error import DrillError
from rmqha.drill.hosts import sandbox
from rmqha.drill.hosts.namespaces import HUB, Namespaces
from rmqha.drill.hosts.places import SMALL_FILES, cluster_of_disks, cluster_of_hosts, direct_client, drain, fill
from rmqha.drill.report import Round
from rmqha.drill.scenarios import SCENARIOS
from rmqha.drill.traffic import DirectAnswers
from rmqha.ops.local.node_history import collect

STALL_BOUND_MS = 2000
"""haAckStallBoundMs, as it stands by default."""
NOISE_MS = 1500
"""Time (ms) that a busy machine may add to a bound."""
ON_ITS_WAY_MS = 500
"""Time (ms) after which an acknowledgement from before the cut may still reach the client."""
DOWN_S = 2.0
"""Time (s) for which killed brokers stay down when nobody can take over."""
SLOW_STEP_S = 0.1
SLOW_RUNS = 0.1


class Fault(ABC):
    """A fault of one kind. `target`: whom it hits: the leader (the master), a minority (a slave), a majority (the
    master and a slave), or all. `hold_s`: time for which it lasts at least."""

    name = ""
    """Key in SCENARIOS, which has the possible targets."""
    hold_s = 0.0

    def __init__(self, mode: str = "cp", target: str = "") -> None:
        """Make the fault; `target` "" is the scenario's first one."""
        self.mode = mode
        self.target = target or SCENARIOS[self.name].targets[0]

    @property
    def replaces_master(self) -> bool:
        """True if another replica takes over while the fault lasts: in CP a minority cannot, in AP one survivor can."""
        return self.target == "leader" or (self.target == "major" and self.mode == "ap")

    @property
    def sends_go_on(self) -> bool:
        """True if sends are acknowledged while the fault lasts."""
        return self.replaces_master or self.target == "minor"

    def document(self) -> dict[str, Any]:
        """The cluster file of the scratch cluster."""
        return quickstart(self.mode)

    @contextmanager
    def cluster(self, scratch: Path) -> Iterator[Cluster]:
        """The cluster, not yet started. Raises FaultUnavailableError if this machine cannot have it."""
        with Cluster.of(self.document(), scratch, quiet=True) as cluster:
            yield cluster

    async def victims(self, cluster: Cluster) -> list[str]:
        master = await cluster.master()
        slaves = [name for name in BROKERS if name != master]
        return {
            "leader": [master],
            "minor": slaves[:1],
            "major": [master, slaves[0]],
            "all": [master, *slaves],
        }[self.target]

    @abstractmethod
    def injected(self, cluster: Cluster, found: Round) -> AbstractAsyncContextManager[None]:
        """Context manager: the fault lasts for as long as the block. Sets `found.fault_at_ms`."""

    async def effect(self, cluster: Cluster, found: Round) -> None:
        """Wait until the fault has had its effect, and set `found.master`. Raises DrillError if it never has."""
        if self.replaces_master:
            found.master = await cluster.master(without=found.hit)
        else:
            await trio.lowlevel.checkpoint()

    async def learn(self, cluster: Cluster, found: Round, stamps: list[int]) -> None:
        """Read the nodes' events of the fault, after all is well again. `stamps`: wall times of acknowledgements."""
        hit = found.hit[0]
        if self.replaces_master:
            found.phases = await cluster.phases(Failover(hit, found.fault_at_ms, found.master), stamps)
            found.failover_ms = found.phases["first_ack_ms"]
        else:
            found.master = await cluster.master()
            if self.target == "minor" and found.master != found.old_master:
                found.notes.append(f"{found.master} has become master")
        states = await cluster.replica_states(found.hit)
        found.cut_bytes = sum(state.truncated_bytes or 0 for state in states.values())

    def violations(self, found: Round, unavailable_ms: int) -> list[str]:
        """Sentences on promises that this kind of fault broke in a round, besides those that all drills check."""
        if self.target != "minor":
            return []
        wrong = [f"trouble of a slave made another master: {note}" for note in found.notes]
        if unavailable_ms > STALL_BOUND_MS + NOISE_MS:
            wrong.append(f"sends stood still for {unavailable_ms} ms, haAckStallBoundMs is {STALL_BOUND_MS}")
        return wrong


class KillMaster(Fault):
    name = "failover"

    def __init__(self, mode: str = "cp", target: str = "") -> None:
        super().__init__(mode, target)
        if not self.replaces_master:
            self.hold_s = DOWN_S

    @asynccontextmanager
    async def injected(self, cluster: Cluster, found: Round) -> AsyncIterator[None]:
        found.fault_at_ms = await cluster.kill(*found.hit)
        yield
        cluster.launch(*found.hit)


class Freeze(Fault):
    name = "pause"
    hold_s = 4.0

    @asynccontextmanager
    async def injected(self, cluster: Cluster, found: Round) -> AsyncIterator[None]:
        found.fault_at_ms = min([cluster.pause(name) for name in found.hit])
        try:
            yield
        finally:
            for name in found.hit:
                cluster.resume(name)


class NetworkFault(Fault):
    """A fault of the network; every node has a host of its own."""

    hold_s = 5.0

    def __init__(self, mode: str = "cp", target: str = "") -> None:
        super().__init__(mode, target)
        self._hosts: Namespaces | None = None
        self._scratch = Path()

    @contextmanager
    def cluster(self, scratch: Path) -> Iterator[Cluster]:
        sandbox.enter_own(network=True)
        sandbox.mount_tmpfs(Path("/run"), 1 << 20)
        with ExitStack() as stack:
            self._hosts = stack.enter_context(Namespaces(["ns-1", *BROKERS]))
            self._scratch = scratch
            stack.enter_context(self._hosts.inside(HUB))
            yield stack.enter_context(cluster_of_hosts(self._hosts, self.document(), scratch, quiet=True))


class BadNetwork(NetworkFault):
    """A bad network whose connections hold: no replica takes over, and sends go on, though slowly."""

    loss_per_mille = 0
    delay_ms = 0

    @property
    def replaces_master(self) -> bool:
        return False

    @property
    def sends_go_on(self) -> bool:
        return True

    @asynccontextmanager
    async def injected(self, cluster: Cluster, found: Round) -> AsyncIterator[None]:
        assert self._hosts is not None
        with ExitStack() as stack:
            found.fault_at_ms = wall_ms()
            spoiled = [
                self._hosts.spoiled(name, loss_per_mille=self.loss_per_mille, delay_ms=self.delay_ms)
                for name in found.hit
            ]
            cables = [stack.enter_context(bad) for bad in spoiled]
            yield
        for name, cable in zip(found.hit, cables, strict=True):
            if not cable.carried_count or (self.loss_per_mille and not cable.lost_count):
                raise DrillError(
                    f"{cable.carried_count} packets of {name} came by its bad cable, {cable.lost_count} were lost"
                )
            found.notes.append(f"{cable.carried_count} packets of {name} carried, {cable.lost_count} lost")

    def violations(self, found: Round, unavailable_ms: int) -> list[str]:
        if self.target != "minor" or found.master == found.old_master:
            return []
        return [f"a slave's bad cable made {found.master} master in the place of {found.old_master}"]


class Loss(BadNetwork):
    name = "loss"
    loss_per_mille = 100


class Delay(BadNetwork):
    name = "delay"
    delay_ms = 100


class Isolate(NetworkFault):
    name = "isolate"

    @asynccontextmanager
    async def injected(self, cluster: Cluster, found: Round) -> AsyncIterator[None]:
        assert self._hosts is not None
        heard = self._scratch / f"heard-{wall_ms()}"
        address = cluster.state.node(found.old_master).address

        async def acknowledged() -> int:
            await trio.lowlevel.checkpoint()
            return len(DirectAnswers.of_lines(heard.read_text()).acked) if heard.exists() else 0

        with direct_client(self._hosts, found.hit[0], address, heard):
            await until(acknowledged, f"an acknowledgement for the client beside {found.hit[0]}")
            found.fault_at_ms = wall_ms()
            for name in found.hit:
                self._hosts.cut(name)
            try:
                yield
            finally:
                joined_at_ms = wall_ms()
                for name in found.hit:
                    self._hosts.join(name)
        answers = DirectAnswers.of_lines(heard.read_text())
        found.direct = answers.acked
        found.stale_acked = answers.acked_between(found.fault_at_ms + ON_ITS_WAY_MS, joined_at_ms)


class SlowSlave(Fault):
    name = "slow-slave"
    hold_s = 6.0

    @asynccontextmanager
    async def injected(self, cluster: Cluster, found: Round) -> AsyncIterator[None]:
        found.fault_at_ms = wall_ms()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._slow, cluster, found.hit[0])
            yield
            nursery.cancel_scope.cancel()

    async def _slow(self, cluster: Cluster, name: str) -> None:
        while True:
            cluster.pause(name)
            try:
                await trio.sleep(SLOW_STEP_S * (1 - SLOW_RUNS))
            finally:
                cluster.resume(name)
            await trio.sleep(SLOW_STEP_S * SLOW_RUNS)


class DiskFault(Fault):
    """A fault of a disk; every broker has a small disk of its own. `freezable`: the disk can be stopped by
    `sandbox.set_frozen`. `there_when_made`: the fault begins only when `break_disk` has ended."""

    hold_s = 3.0
    freezable = False
    there_when_made = False

    def document(self) -> dict[str, Any]:
        return quickstart(self.mode, broker=SMALL_FILES)

    @contextmanager
    def cluster(self, scratch: Path) -> Iterator[Cluster]:
        sandbox.enter_own()
        with cluster_of_disks(self.document(), scratch, freezable=self.freezable) as cluster:
            yield cluster

    @abstractmethod
    def break_disk(self, store: Path) -> None:
        """Make the disk at `store` faulty."""

    @abstractmethod
    def repair_disk(self, store: Path) -> None:
        """Undo `break_disk`."""

    @asynccontextmanager
    async def injected(self, cluster: Cluster, found: Round) -> AsyncIterator[None]:
        (hit,) = found.hit
        store = cluster.store(hit)
        found.fault_at_ms = wall_ms()
        # in a thread: the producer lives in this one
        await trio.to_thread.run_sync(self.break_disk, store)
        if self.there_when_made:
            found.fault_at_ms = wall_ms()
        try:
            yield
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(self.repair_disk, store)
        if not cluster.state.node(hit).alive:
            found.notes.append(f"{hit} ended: {cluster.last_log_line(hit)}")
            cluster.launch(hit)

    async def learn(self, cluster: Cluster, found: Round, stamps: list[int]) -> None:
        await super().learn(cluster, found, stamps)
        if found.phases["detect_ms"] is None:
            # the master lives on and says itself what ails it: its successor is asked for then
            events, _ = await collect(cluster.state)
            told = [event.at_ms for event in events if event.name == "hand_over_begins"]
            after = [at_ms - found.fault_at_ms for at_ms in told if at_ms >= found.fault_at_ms]
            found.phases["detect_ms"] = min(after, default=None)

    def violations(self, found: Round, unavailable_ms: int) -> list[str]:
        return [f"a broker did not outlive the trouble of its disk: {note}" for note in found.notes]


class DiskFull(DiskFault):
    name = "disk-full"
    there_when_made = True

    def break_disk(self, store: Path) -> None:
        fill(store)

    def repair_disk(self, store: Path) -> None:
        drain(store)


class DiskReadOnly(DiskFault):
    name = "disk-read-only"

    def break_disk(self, store: Path) -> None:
        sandbox.cover_read_only(store)

    def repair_disk(self, store: Path) -> None:
        sandbox.uncover(store)


class DiskHang(DiskFault):
    name = "disk-hang"
    freezable = True

    def break_disk(self, store: Path) -> None:
        sandbox.set_frozen(store, True)

    def repair_disk(self, store: Path) -> None:
        sandbox.set_frozen(store, False)


class KillController(Fault):
    name = "kill-controller"
    hold_s = 1.0

    @property
    def replaces_master(self) -> bool:
        return False

    @property
    def sends_go_on(self) -> bool:
        return True

    def document(self) -> dict[str, Any]:
        return quickstart(self.mode, controllers=3)

    async def victims(self, cluster: Cluster) -> list[str]:
        return [await until(lambda: self._leader(cluster), "a leading controller")]

    async def _leader(self, cluster: Cluster, without: str = "") -> str:
        nodes = (await cluster.view()).nodes.values()
        names = [
            node.node.name for node in nodes if node.alive and node.controller is not None and node.controller.leading
        ]
        return next((name for name in names if name != without), "")

    @asynccontextmanager
    async def injected(self, cluster: Cluster, found: Round) -> AsyncIterator[None]:
        found.fault_at_ms = await cluster.kill(*found.hit)
        yield
        cluster.launch(*found.hit)

    async def effect(self, cluster: Cluster, found: Round) -> None:
        (hit,) = found.hit
        found.master = await until(lambda: self._leader(cluster, hit), "another leading controller")

    async def learn(self, cluster: Cluster, found: Round, stamps: list[int]) -> None:
        events, _ = await collect(cluster.state)
        after = [event for event in events if event.at_ms >= found.fault_at_ms]
        led = [event.at_ms for event in after if event.name == "controller_leads"]
        found.failover_ms = min(led) - found.fault_at_ms if led else None
        elected = [event for event in after if event.name == "master_elected" and event.get("group") == GROUP]
        if elected:
            found.notes.append(f"a master was elected: {elected[0].get('master_id')}")

    def violations(self, found: Round, unavailable_ms: int) -> list[str]:
        wrong = [f"the death of a controller moved the mastership: {note}" for note in found.notes]
        if unavailable_ms > NOISE_MS:
            wrong.append(f"sends stood still for {unavailable_ms} ms though only a controller died")
        return wrong


FAULTS: dict[str, type[Fault]] = {
    kind.name: kind
    for kind in (
        KillMaster,
        Isolate,
        Loss,
        Delay,
        Freeze,
        SlowSlave,
        DiskFull,
        DiskReadOnly,
        DiskHang,
        KillController,
    )
}
