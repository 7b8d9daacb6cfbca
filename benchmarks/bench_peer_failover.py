"""kill -9 of the master of a group of three: how long nothing is acknowledged. Ours in CP, and the real RocketMQ 5.4.0.

    python -m benchmarks --only peerfailover

Each kind has its own name server with one controller in it, and its defaults, but that RocketMQ too acknowledges only
what all of the SyncStateSet has, two at least. The same client, ours, sends 200 a second to both, in turns. The figure
is the longest time without an acknowledgement from the kill on.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import trio

from benchmarks.bench_catchup import KEYS, without_c1_only
from benchmarks.figures import show, summary
from rmqha.drill.cluster import wall_ms
from rmqha.drill.traffic import Traffic
from tests.interop.group import whole_set
from tests.interop.java import Java, MissingError
from tests.interop.lab import Lab, Node
from tests.interop.processes import until

OURS = {"haMode": "cp", "totalReplicas": "3"}
THEIRS = {"brokerRole": "SYNC_MASTER", "allAckInSyncStateSet": "true", "inSyncReplicas": "2"}
START_S = 60
SETTLE_S = 2.0
ACKS_AFTER = 400
"""Two seconds of sends: later gaps of the same failover count too."""


def group(java: Java | None, kind: str, scratch: Path) -> tuple[Lab, list[Node]]:
    lab = Lab(java, scratch)
    names = [f"{kind}-{number}" for number in range(3)]
    if kind == "ours":
        lab.start_our_name_server()
        brokers = [lab.our_broker(name, **KEYS, **OURS) for name in names]
    else:
        lab.start_java_name_server()
        brokers = [lab.java_broker(name, **KEYS, **THEIRS) for name in names]
    for node in brokers:
        node.command = without_c1_only(node.command)
        lab.run(node)
    whole_set(lab, *brokers)
    until("there is a master", lambda: bool(lab.master()), START_S)
    return lab, brokers


async def silences_ms(lab: Lab, brokers: list[Node], count: int) -> tuple[list[int], int]:
    """Of each kill; and how many sends ended with an error."""
    found = []
    traffic = Traffic()
    async with traffic.running(lab.name_server):
        for _ in range(count):
            await traffic.goes_on()
            await trio.sleep(SETTLE_S)
            address = await trio.to_thread.run_sync(lab.master)
            master = next(node for node in brokers if node.address == address)
            killed_at_ms = wall_ms()
            await trio.to_thread.run_sync(master.running.kill)
            await traffic.goes_on(ACKS_AFTER)
            found.append(traffic.longest_gap_ms(killed_at_ms, wall_ms()))
            await trio.to_thread.run_sync(lab.run, master)
            await trio.to_thread.run_sync(whole_set, lab, *brokers)
    return found, len(traffic.failures)


def of_kind(java: Java | None, kind: str, scratch: Path, count: int) -> tuple[list[int], int]:
    lab, brokers = group(java, kind, scratch)
    try:
        return trio.run(silences_ms, lab, brokers, count)
    finally:
        lab.close()
        shutil.rmtree(scratch)


def peer_failovers(scratch: Path, count: int, rounds: int) -> dict[str, Any]:
    try:
        home = scratch / "java"
        home.mkdir()
        java: Java | None = Java(home)
    except MissingError as error:
        print(f"without the real RocketMQ: {error}")
        java = None
    kinds = ("ours", "rocketmq") if java is not None else ("ours",)
    silences: dict[str, list[int]] = {kind: [] for kind in kinds}
    failures = dict.fromkeys(kinds, 0)
    for _ in range(rounds):
        for kind in kinds:
            found, failed = of_kind(java, kind, scratch / kind, count)
            silences[kind] += found
            failures[kind] += failed
    rows = [
        {"": kind, "kills": len(found), **summary(found), "sends that failed": failures[kind]}
        for kind, found in silences.items()
    ]
    show("kill -9 of the master of three: ms without an acknowledgement", rows)
    return {"rows": rows, "each": silences}
