"""A cluster of real processes, started by the code of `rmqha up`, whose nodes can be killed, frozen and started again.

Everything binds free ports and lives in a scratch directory; every process is signalled by its own id only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import trio

from rmqha.drill.error import DrillError
from rmqha.host.net.remoting import RemotingClient
from rmqha.model.error import RmqhaError
from rmqha.ops.asking import state_of
from rmqha.ops.cluster_view import ClusterView, ask_cluster
from rmqha.ops.local.cluster_file import ClusterSpec, parse
from rmqha.ops.local.cluster_state import ClusterState, NodeRecord
from rmqha.ops.local.launch import StepLines, last_log_line, launch, wait_healthy
from rmqha.ops.local.node_history import collect
from rmqha.ops.local.phases import failover_phases
from rmqha.ops.local.preflight import check_cluster, free_ports
from rmqha.ops.local.prepare import prepare
from rmqha.ops.local.supervisor import send_signal, wait_gone
from rmqha.wire.state.replica_state import ReplicaState

GROUP = "broker-a"
BROKERS = ("broker-a-1", "broker-a-2", "broker-a-3")
POLL_S = 0.02
HEALTHY_S = 120.0
GONE_S = 10.0
T = TypeVar("T")
Launch = Callable[[ClusterState, str], object]


def quickstart(
    mode: str = "cp",
    replicas: int = 3,
    broker: Mapping[str, str | int | bool] | None = None,
    *,
    controllers: int = 0,
    http: bool = False,
) -> dict[str, Any]:
    """The cluster file of the quick start on free ports, with smaller log files and more keys for the brokers, which
    take messages however full the disk is. `controllers`: number of controllers apart from the name server; 0: it
    embeds one. `http`: every node serves its health and metrics."""
    base = free_ports(80)
    alone: dict[str, Any] = {"count": controllers} if controllers else {}
    return {
        "cluster": {"name": "drill", "haMode": mode, **({"httpPort": base + 40} if http else {})},
        "namesrv": {"listenPort": base, "embedController": not controllers},
        "controllers": {"listenPort": base + 1, **alone},
        "group": [{"name": GROUP, "replicas": replicas, "listenPort": base + 10}],
        "broker": {"mappedFileSizeCommitLog": 16 * 1024 * 1024, "diskMaxUsedSpaceRatio": 100, **(broker or {})},
    }


@dataclass(frozen=True, slots=True)
class Failover:
    """One change of the master: the node that was hit, the wall time of that, and the new master."""

    hit: str
    hit_at_ms: int
    master: str

    def line(self, phases: Mapping[str, int | None]) -> str:
        told = " ".join(f"{name.removesuffix('_ms')} {value}" for name, value in phases.items())
        return f"{self.hit} -> {self.master}, ms from the fault: {told}"


class Cluster:
    """A cluster of real processes. Use as a context manager: leaving it kills all that still run. `launcher` starts one
    node; `quiet`: waiting prints nothing."""

    def __init__(self, spec: ClusterSpec, launcher: Launch = launch, *, quiet: bool = False) -> None:
        self.spec = spec
        self.state = prepare(spec, None)
        self._launch = launcher
        self._quiet = quiet
        self._children: set[int] = set()

    @classmethod
    def of(cls, document: dict[str, Any], scratch: Path, launcher: Launch = launch, *, quiet: bool = False) -> Cluster:
        spec = parse("drill.toml", document, directory=scratch / "cluster")
        check_cluster(spec)
        return cls(spec, launcher, quiet=quiet)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node in self.state.nodes.values():
            if node.process is not None:
                send_signal(node.process, signal.SIGKILL)
        for pid in sorted(self._children):
            self._reap(pid)

    # --- processes --------------------------------------------------------------------------------------------------
    def launch(self, *names: str) -> None:
        for name in names:
            self._launch(self.state, name)
            self._children.add(self.state.node(name).pid)

    async def up(self) -> None:
        self.launch(*self.state.nodes)
        await self.wait_healthy()

    async def start(self, *names: str) -> None:
        """Start nodes and wait until they are well: brokers back in the SyncStateSet."""
        self.launch(*names)
        await self.wait_healthy(names)

    async def wait_healthy(self, names: Collection[str] | None = None) -> ClusterView:
        """Wait until nothing is wrong with `names`, by default with any node and any group."""
        show = (lambda steps: None) if self._quiet else StepLines().show
        return await wait_healthy(self.state, names or [*self.state.nodes, *self.state.groups], HEALTHY_S, show)

    async def kill(self, *names: str) -> int:
        """Kill nodes (SIGKILL), all at once. Returns the wall time (ms) just before."""
        processes = [process for name in names if (process := self.state.node(name).process) is not None]
        at_ms = wall_ms()
        for process in processes:
            if not send_signal(process, signal.SIGKILL):
                raise DrillError(f"process {process.pid} had ended before it was killed")
        if await trio.to_thread.run_sync(wait_gone, processes, GONE_S):
            raise DrillError(f"{', '.join(names)}: not gone {GONE_S:g} s after kill -9")
        for process in processes:
            self._reap(process.pid)
        return at_ms

    def _reap(self, pid: int) -> None:
        os.waitpid(pid, 0)
        self._children.discard(pid)

    def pause(self, name: str) -> int:
        """Stop a node's process (SIGSTOP). Returns the wall time (ms) just before."""
        at_ms = wall_ms()
        self._signal(name, signal.SIGSTOP)
        return at_ms

    def resume(self, name: str) -> None:
        self._signal(name, signal.SIGCONT)

    def _signal(self, name: str, number: signal.Signals) -> None:
        process = self.state.node(name).process
        if process is None or not send_signal(process, number):
            raise DrillError(f"{name} has ended: {last_log_line(self.state, name)}")

    # --- view -------------------------------------------------------------------------------------------------------
    def store(self, name: str) -> Path:
        return self.state.data_path(self.state.node(name))

    def last_log_line(self, name: str) -> str:
        return last_log_line(self.state, name)

    async def view(self) -> ClusterView:
        async with RemotingClient() as client:
            return await ask_cluster(client, self.state)

    @property
    def brokers(self) -> list[str]:
        return [node.name for node in self.state.brokers]

    async def replica_states(self, names: Iterable[str] | None = None) -> dict[str, ReplicaState]:
        """States of the brokers by their own reports (52000); those that do not answer are left out."""
        found: dict[str, ReplicaState] = {}

        async def of(client: RemotingClient, node: NodeRecord) -> None:
            with contextlib.suppress(RmqhaError):
                found[node.name] = await state_of(client, node.address, ReplicaState)

        async with RemotingClient() as client, trio.open_nursery() as nursery:
            for name in names or self.brokers:
                if self.state.node(name).alive:
                    nursery.start_soon(of, client, self.state.node(name))
        return found

    async def master(self, *, without: str | Collection[str] = ()) -> str:
        """Wait for a writable master other than `without`. Returns its name."""
        others = [without] if isinstance(without, str) else list(without)

        async def writable() -> str:
            states = await self.replica_states([name for name in self.brokers if name not in others])
            return next((name for name, state in states.items() if state.writable), "")

        return await until(writable, f"a writable master besides {', '.join(others) or 'none'}")

    async def wait_level(self) -> int:
        """Wait until all replicas end and are committed at the same offset. Returns that."""

        async def level() -> int:
            states = await self.replica_states()
            ends = {end for state in states.values() for end in (state.max_phy_offset, state.confirm_offset)}
            return ends.pop() if len(states) == len(self.brokers) and len(ends) == 1 else 0

        return await until(level, "equal ends and confirm offsets")

    async def phases(self, failover: Failover, acked_at_ms: Iterable[int]) -> dict[str, int | None]:
        events, _ = await collect(self.state)
        return failover_phases(events, failover.hit_at_ms, GROUP, acked_at_ms)


async def until(question: Callable[[], Awaitable[T]], wanted: str, timeout_s: float = HEALTHY_S) -> T:
    """Ask until the answer is true, and return it. Raises DrillError after `timeout_s`."""
    with trio.move_on_after(timeout_s):
        while True:
            if answer := await question():
                return answer
            await trio.sleep(POLL_S)
    raise DrillError(f"{wanted}: not within {timeout_s:g} s")


def wall_ms() -> int:
    return time.time_ns() // 1_000_000
