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

from benchmarks.bench_acks import java_if_there, three
from benchmarks.figures import show, summary
from rmqha.drill.cluster import wall_ms
from rmqha.drill.traffic import Traffic
from tests.interop.group import whole_set
from tests.interop.java import Java
from tests.interop.lab import Lab, Node

OURS = {"haMode": "cp", "totalReplicas": "3"}
THEIRS = {"brokerRole": "SYNC_MASTER", "allAckInSyncStateSet": "true", "inSyncReplicas": "2"}
SETTLE_S = 2.0
ACKS_AFTER = 400
"""Two seconds of sends: later gaps of the same failover count too."""


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
    lab = Lab(java, scratch)
    try:
        if kind == "ours":
            lab.start_our_name_server()
        else:
            lab.start_java_name_server()
        brokers = three(lab, kind, OURS, THEIRS)
        return trio.run(silences_ms, lab, brokers, count)
    finally:
        lab.close()
        shutil.rmtree(scratch)


def peer_failovers(scratch: Path, count: int, rounds: int) -> dict[str, Any]:
    java = java_if_there(scratch)
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
