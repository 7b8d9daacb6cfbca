"""kill -9 of the master of a CP group of three until a producer has an acknowledgement of the next one; defaults.

The producer sends 200/s through all rounds. Phases are those of `rmqha.ops.local.phases`, cumulative from the kill. A
second,
short series counts the fdatasync calls between kill and first acknowledgement, in all processes that live. A third one
freezes the master (SIGSTOP) instead: no connection closes, so the heartbeat time-out decides.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import Any

import trio

from benchmarks.figures import show, summary
from rmqha.drill.audit import audit
from rmqha.drill.cluster import Cluster, Failover, Launch, quickstart
from rmqha.drill.fault import Freeze
from rmqha.drill.run import drill
from rmqha.drill.traffic import PER_SECOND, DrillTraffic
from rmqha.ops.local.cluster_state import ClusterState
from rmqha.ops.local.launch import launch
from rmqha.ops.local.phases import PHASES
from rmqha.ops.local.supervisor import spawn

COMMIT_LOG_FILE_BYTES = 64 * 1024 * 1024
COUNTED_ROUNDS = 5
SETTLE_S = 0.5


async def rounds_of(cluster: Cluster, count: int, *, started: bool = False) -> list[tuple[Failover, dict[str, int]]]:
    """Kill the master `count` times; each failover with its phases. Raises if anything acknowledged is lost."""
    found = []
    traffic = DrillTraffic()
    if not started:
        await cluster.up()
    async with traffic.running(cluster.spec.namesrv_addresses):
        for _ in range(count):
            await traffic.goes_on()
            victim = await cluster.master()
            # the restart before this round must not be measured with it
            await trio.sleep(SETTLE_S)
            killed_at_ms = await cluster.kill(victim)
            failover = Failover(victim, killed_at_ms, await cluster.master(without=victim))
            await traffic.goes_on()
            phases = await cluster.phases(failover, traffic.stamps)
            found.append((failover, {name: value for name, value in phases.items() if value is not None}))
            await cluster.start(victim)
    end = await cluster.wait_level()
    seen = audit(cluster.store(cluster.brokers[0]), end, traffic.acked)
    if seen.lost or traffic.failures:
        raise RuntimeError(f"the figures do not count: {seen.line}, {traffic.failures}")
    print(f"{len(traffic.acked)} acknowledged, {seen.line}")
    return found


def series(scratch: Path, count: int, launcher: Launch = launch) -> list[tuple[Failover, dict[str, int]]]:
    document = quickstart("cp", broker={"mappedFileSizeCommitLog": COMMIT_LOG_FILE_BYTES})
    made = Cluster.of(document, scratch)
    with Cluster(made.spec, launcher) as cluster:
        return trio.run(rounds_of, cluster, count)


def failovers(scratch: Path, count: int) -> dict[str, Any]:
    found = series(scratch, count)
    rows = []
    for name in PHASES:
        values = [phases[name] for _, phases in found if name in phases]
        rows.append({"phase": name, "n": len(values), **summary(values)})
    show(f"kill -9 of the master, ms from the kill, n={count}", rows)
    return {"rounds": count, "phases": rows, "each": [phases for _, phases in found]}


def pauses(scratch: Path, count: int) -> dict[str, Any]:
    """The drill `pause`, with its own audit. Raises if anything acknowledged is lost."""
    result = drill(Freeze("cp"), count, PER_SECOND, scratch, lambda done, text: None)
    if result.broken:
        raise RuntimeError(f"the figures do not count: {'; '.join(result.broken)}")
    rows = []
    for name in PHASES:
        values = [value for item in result.rounds if (value := item.phases.get(name)) is not None]
        rows.append({"phase": name, "n": len(values), **summary(values)})
    show(f"SIGSTOP of the master, ms from the signal, n={count}", rows)
    return {"paused": rows}


def syncs_on_the_path(scratch: Path, count: int = COUNTED_ROUNDS) -> dict[str, Any]:
    """Number of fdatasync and fsync calls that ended between kill and first acknowledgement, and how long they took."""

    def counted(state: ClusterState, name: str) -> None:
        output = state.output_path(name)
        output.parent.mkdir(parents=True, exist_ok=True)
        server = [state.node(name).kind, "-c", str(state.config_path(name))]
        arguments = [
            sys.executable,
            "-m",
            "benchmarks.failovers.counted_server",
            str(scratch / f"{name}.syncs"),
            *server,
        ]
        state.record_process(name, spawn(arguments, output))

    found = series(scratch, count, counted)
    rows = []
    for node in ("ns-1", "the new master", "the other slave"):
        counts, taken = [], []
        for failover, phases in found:
            name = {"the new master": failover.master, "ns-1": "ns-1"}.get(node) or next(
                path.stem
                for path in sorted(scratch.glob("broker*.syncs"))
                if path.stem not in (failover.hit, failover.master)
            )
            lines = [line.split() for line in (scratch / f"{name}.syncs").read_text().splitlines()]
            until_ms = failover.hit_at_ms + phases["first_ack_ms"]
            inside = [float(ms) for at_ms, ms in lines if failover.hit_at_ms <= int(at_ms) <= until_ms]
            counts.append(len(inside))
            taken += inside
        rows.append(
            {
                "fdatasync and fsync in": node,
                "calls (median)": statistics.median(counts),
                "ms each (median)": statistics.median(taken) if taken else 0.0,
                "ms each (max)": max(taken, default=0.0),
            }
        )
    show(f"calls between kill and first acknowledgement, n={count}", rows)
    return {"syncs": rows}
