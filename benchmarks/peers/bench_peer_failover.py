"""kill -9 of the master of a group of three: how long nothing is acknowledged. Ours in CP, and the real RocketMQ 5.4.0.

    python -m benchmarks --only peerfailover

Each kind has its own name server with one controller in it, and its defaults, but that RocketMQ too acknowledges only
what all of the SyncStateSet has, two at least. The same client, ours, sends 200 a second to both, in turns. The figure
is the longest time without an acknowledgement from the kill on. Then the killed broker is started again, and the time
is taken from exec until the SyncStateSet of the controller has it again, under the same sends.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any, NamedTuple

import trio

from benchmarks.figures import show, summary
from benchmarks.peers.bench_load import brokers_of, java_if_there
from rmqha.drill.cluster import wall_ms
from rmqha.drill.traffic import DrillTraffic
from tests.interop.lab.group import whole_set
from tests.interop.lab.java import Java
from tests.interop.lab.lab import Lab, Node

OURS = {"haMode": "cp", "totalReplicas": "3"}
THEIRS = {"brokerRole": "SYNC_MASTER", "allAckInSyncStateSet": "true", "inSyncReplicas": "2"}
SETTLE_S = 2.0
POLL_S = 0.05
REJOIN_S = 90.0
ACKS_AFTER = 400
"""Two seconds of sends: later gaps of the same failover count too."""


class Kills(NamedTuple):
    silences_ms: list[float]
    rejoins_ms: list[float]
    failure_count: int
    """Sends that ended with an error."""


def back_in_set_ms(lab: Lab, node: Node) -> float:
    """Start it; from exec until it is a member."""
    started = time.perf_counter()
    node.process = lab.start(node.name, node.command)
    while node.address not in lab.members():
        if not node.running.alive or time.perf_counter() - started > REJOIN_S:
            raise RuntimeError(f"{node.name} is not in the set after {REJOIN_S:g} s\n{node.running.tail()}")
        time.sleep(POLL_S)
    return (time.perf_counter() - started) * 1000


async def kills(lab: Lab, brokers: list[Node], count: int) -> Kills:
    silences: list[float] = []
    rejoins: list[float] = []
    traffic = DrillTraffic()
    async with traffic.running(lab.name_server):
        for _ in range(count):
            await traffic.goes_on()
            await trio.sleep(SETTLE_S)
            address = await trio.to_thread.run_sync(lab.master)
            master = next(node for node in brokers if node.address == address)
            killed_at_ms = wall_ms()
            await trio.to_thread.run_sync(master.running.kill)
            await traffic.goes_on(ACKS_AFTER)
            silences.append(traffic.longest_gap_ms(killed_at_ms, wall_ms()))
            # a set that has not yet lost it would be taken for one that has it again
            await trio.to_thread.run_sync(whole_set, lab, *(node for node in brokers if node is not master))
            rejoins.append(await trio.to_thread.run_sync(back_in_set_ms, lab, master))
            await trio.to_thread.run_sync(whole_set, lab, *brokers)
    return Kills(silences, rejoins, len(traffic.failures))


def of_kind(java: Java | None, kind: str, scratch: Path, count: int) -> Kills:
    lab = Lab(java, scratch)
    try:
        if kind == "ours":
            lab.start_our_name_server()
        else:
            lab.start_java_name_server()
        brokers = brokers_of(lab, kind, OURS, THEIRS)
        return trio.run(kills, lab, brokers, count)
    finally:
        lab.close()
        shutil.rmtree(scratch)


def peer_failovers(scratch: Path, count: int, rounds: int) -> dict[str, Any]:
    java = java_if_there(scratch)
    kinds = ("ours", "rocketmq") if java is not None else ("ours",)
    found: dict[str, list[Kills]] = {kind: [] for kind in kinds}
    for number in range(rounds):
        for kind in kinds if number % 2 == 0 else kinds[::-1]:
            found[kind].append(of_kind(java, kind, scratch / kind, count))
    rows = []
    for kind, each in found.items():
        for what, values in (
            ("without an acknowledgement", [value for one in each for value in one.silences_ms]),
            ("exec to in the set again", [value for one in each for value in one.rejoins_ms]),
        ):
            failed = sum(one.failure_count for one in each)
            rows.append({"ms": f"{kind}: {what}", "kills": len(values), **summary(values), "sends that failed": failed})
    show("kill -9 of the master of three, and its return", rows)
    return {"rows": rows, "each": {kind: [one._asdict() for one in each] for kind, each in found.items()}}
