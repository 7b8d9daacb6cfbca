"""A killed broker, from exec until it is back in the SyncStateSet of its CP group of three.

Twice: as the kill left it while a producer sends 200/s, and with marks that are 256 MiB older than its log, so that the
start must check those 256 MiB (of 1 KiB records). Phases, cumulative from exec: its port takes connections (Python and
imports are over), it answers (the store is open and checked), it follows the master, it is back in the set.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio

from benchmarks.figures import show, summary
from benchmarks.starts.bench_restart import Connection, Marks
from benchmarks.starts.bench_start import cpu_ms
from rmqha.client.producers.outgoing import OutgoingMessage
from rmqha.client.producers.producer import Producer
from rmqha.drill.cluster import Cluster, quickstart
from rmqha.drill.traffic import DrillTraffic
from rmqha.model.code import RequestCode
from rmqha.wire.command import Command

KEYS = {"mappedFileSizeCommitLog": 64 * 1024 * 1024, "maxHashSlotNum": 100_000, "maxIndexNum": 400_000}
BEHIND_BYTES = 256 * 1024 * 1024
BODY_BYTES = 900
BATCH_MESSAGES = 256
WINDOW = 4
POLL_S = 0.002
PATIENCE_S = 30.0
SETTLE_S = 1.0


def state(connection: Connection) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(bytes(connection.ask(Command(RequestCode.RMQHA_GET_REPLICA_STATE)).body))
    return found


def start_and_watch(cluster: Cluster, victim: str, master: str, taken: dict[str, list[float]]) -> None:
    """Start the victim and note when it gets where. Blocks: nothing else of this process may be in the way."""
    leader = Connection(cluster.state.node(master).address)
    own: list[Connection] = []
    started = time.perf_counter()
    cluster.launch(victim)

    def until(what: Callable[[], Any], phase: str) -> Any:
        while time.perf_counter() - started < PATIENCE_S:
            try:
                found = what()
            except OSError:
                found = None
            if found:
                taken.setdefault(phase, []).append((time.perf_counter() - started) * 1000)
                return found
            time.sleep(POLL_S)
        raise RuntimeError(f"{victim}: {phase}: not within {PATIENCE_S:g} s")

    def opened() -> bool:
        own.append(Connection(cluster.state.node(victim).address))
        return True

    def answered() -> dict[str, Any] | None:
        if not own:
            opened()
        try:
            return state(own[-1])
        except (RuntimeError, OSError):
            own.pop().close()  # whoever connects before the store is open is turned away
            return None

    until(opened, "port open")
    until(answered, "answers")
    until(lambda: state(own[-1]).get("followState") == "following", "follows")
    own_id = state(own[-1])["brokerId"]
    until(lambda: own_id in state(leader)["syncStateSet"], "in the set")
    taken.setdefault("CPU used by then", []).append(cpu_ms(cluster.state.node(victim).pid))
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    taken.setdefault("`python -c pass` just after", []).append((time.perf_counter() - started) * 1000)
    for connection in (*own, leader):
        connection.close()


async def fill(cluster: Cluster, size_bytes: int) -> None:
    """Send so many bytes of messages."""
    body = bytes(BODY_BYTES)
    count = size_bytes // 1024 // BATCH_MESSAGES
    batch = [OutgoingMessage("Fill", body) for _ in range(BATCH_MESSAGES)]
    async with Producer(cluster.spec.namesrv_addresses) as producer, trio.open_nursery() as nursery:

        async def send(times: int) -> None:
            for _ in range(times):
                await producer.send_batch(batch, timeout_ms=30_000, require_ok=True)

        for _ in range(WINDOW):
            nursery.start_soon(send, count // WINDOW)


async def _fresh(cluster: Cluster, rounds: int, taken: dict[str, list[float]]) -> None:
    traffic = DrillTraffic()
    async with traffic.running(cluster.spec.namesrv_addresses):
        for _ in range(rounds):
            await traffic.goes_on()
            await trio.sleep(SETTLE_S)
            victim = await cluster.master()
            await cluster.kill(victim)
            master = await cluster.master(without=victim)
            await traffic.goes_on()
            await trio.to_thread.run_sync(start_and_watch, cluster, victim, master, taken)
            await cluster.wait_healthy()


async def _behind(cluster: Cluster, rounds: int, taken: dict[str, list[float]]) -> list[str]:
    """The same broker each time, a slave, with the same old marks; what its openings checked."""
    master = await cluster.master()
    victim = next(name for name in cluster.brokers if name != master)
    marks = Marks(cluster.store(victim))
    await fill(cluster, BEHIND_BYTES)
    await cluster.wait_level()
    said = []
    for _ in range(rounds):
        await trio.sleep(SETTLE_S)
        await cluster.kill(victim)
        marks.put_back(power_lost=False)
        await trio.to_thread.run_sync(start_and_watch, cluster, victim, master, taken)
        await cluster.wait_healthy()
        said.append(recovery_line(cluster, victim))
    return said


def recovery_line(cluster: Cluster, name: str) -> str:
    lines = cluster.state.log_path(name).read_text().splitlines()
    return next((line for line in reversed(lines) if "recovery" in line), "")


def rejoins(scratch: Path, rounds: int) -> dict[str, Any]:
    """Rows of milliseconds for both series."""
    rows: list[dict[str, Any]] = []
    with Cluster.of(quickstart("cp", broker=KEYS), scratch, quiet=True) as cluster:
        trio.run(cluster.up)
        fresh: dict[str, list[float]] = {}
        trio.run(_fresh, cluster, rounds, fresh)
        behind: dict[str, list[float]] = {}
        said = trio.run(_behind, cluster, rounds, behind)
    for what, taken in (("as the kill left it", fresh), ("256 MiB to check", behind)):
        rows += [{"ms from exec": f"{what}: {phase}", **summary(values)} for phase, values in taken.items()]
    show(f"a killed broker back in the set, n={rounds}", rows)
    print(said[-1])
    return {"rounds": rounds, "rejoin": rows}
