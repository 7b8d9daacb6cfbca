"""An operator makes topics in a group of three: how long until the answer, and until every slave has them.

CP: the answer itself says that all have them on their disks (metadataSync=strict). AP: the master answers for itself.
The peer is one fdatasync of the same disk in the same run (figures.machine): a strict answer takes two of them, one
after the other, and a round trip.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import trio

from benchmarks.figures import fdatasync_ms, show, summary
from rmqha.drill.cluster import Cluster, quickstart
from rmqha.host.net.remoting import RemotingClient
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.wire.command import Command

TIMEOUT_MS = 10_000
POLL_S = 0.001
PATIENCE_S = 10.0


async def answered(client: RemotingClient, address: str, topic: str) -> None:
    ext = {"topic": topic, "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"}
    command = Command(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)
    reply = await client.call(address, command, TIMEOUT_MS)
    if reply.code != ResponseCode.SUCCESS:
        raise RuntimeError(f"{address} refused topic {topic}: {reply.remark}")


async def known(client: RemotingClient, address: str, topic: str) -> None:
    with trio.fail_after(PATIENCE_S):
        while True:
            reply = await client.call(address, Command(RequestCode.GET_TOPIC_CONFIG, {"topic": topic}), TIMEOUT_MS)
            if reply.code == ResponseCode.SUCCESS:
                return
            await trio.sleep(POLL_S)


async def topics(scratch: Path, mode: str, count: int) -> dict[str, Any]:
    """Milliseconds from the request, over `count` topics one after the other."""
    taken: dict[str, list[float]] = {"answer_ms": [], "on_all_slaves_ms": []}
    with Cluster.of(quickstart(mode), scratch, quiet=True) as cluster:
        await cluster.up()
        master = cluster.state.node(await cluster.master()).address
        slaves = [node.address for node in cluster.state.brokers if node.address != master]
        async with RemotingClient() as client:
            for number in range(count):
                started = time.perf_counter()
                await answered(client, master, f"topic-{number}")
                taken["answer_ms"].append((time.perf_counter() - started) * 1000)
                for slave in slaves:
                    await known(client, slave, f"topic-{number}")
                taken["on_all_slaves_ms"].append((time.perf_counter() - started) * 1000)
    return {name: summary(values) for name, values in taken.items()}


def metadata(scratch: Path, count: int) -> dict[str, Any]:
    """Both modes, one after the other."""
    found: dict[str, Any] = {"count": count, "fdatasync_ms": summary(fdatasync_ms(scratch))}
    for mode in ("cp", "ap"):
        directory = scratch / mode
        directory.mkdir()
        found[mode] = trio.run(topics, directory, mode, count)
    sync_ms = max(found["fdatasync_ms"]["median"], 0.01)
    rows = [
        {
            "mode": mode,
            "what": what,
            **found[mode][what],
            "median / fdatasync": round(found[mode][what]["median"] / sync_ms, 1),
        }
        for mode in ("cp", "ap")
        for what in ("answer_ms", "on_all_slaves_ms")
    ]
    show(f"{count} topics made one after the other", rows)
    return found
