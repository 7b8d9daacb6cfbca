"""kill -9 of the master of a CP group of three that has 1, 1,000 or 20,000 topics.

The cost of a switch must not grow with the topics: each phase is shown for each number side by side. The tables are
written before the brokers start. The first FILLED_COUNT topics get a message through the master, so that every replica
has their queues; more do not fit into the open files of an ordinary machine (two for each queue).
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from secrets import token_hex
from typing import Any

import trio

from benchmarks.failovers.bench_failover import rounds_of
from benchmarks.figures import show
from rmqha.client.producers.outgoing import Outgoing, OutgoingMessage
from rmqha.client.route import MessageQueue
from rmqha.drill.cluster import GROUP, Cluster, quickstart, wall_ms
from rmqha.host.net.remoting import RemotingClient
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.ops.local.phases import PHASES

TOPIC_COUNTS = (1, 1000, 20_000)
QUEUE_FILE_BYTES = 20 * 50
"""Small, so that the files of 20,000 queues fit; a queue's number of files is what recovery looks at."""
LANE_COUNT = 8
FILLED_COUNT = 2000
TIMEOUT_MS = 10_000
RETRY_S = 0.1
FILL_S = 600.0


def topic(number: int) -> str:
    return f"topic-{number:06}"


def write_tables(cluster: Cluster, count: int) -> None:
    """config/topics.json of every replica, as a group that has had these topics for long."""
    table = {
        topic(number): {
            "attributes": {},
            "order": False,
            "perm": 6,
            "readQueueNums": 1,
            "topicFilterType": "SINGLE_TAG",
            "topicName": topic(number),
            "topicSysFlag": 0,
            "writeQueueNums": 1,
        }
        for number in range(count)
    }
    version = {"counter": count, "stateVersion": 0, "timestamp": 0}
    text = json.dumps({"dataVersion": version, "topicConfigTable": table})
    for name in cluster.brokers:
        directory = cluster.store(name) / "config"
        directory.mkdir(parents=True)
        (directory / "topics.json").write_text(text)


async def fill(cluster: Cluster, count: int) -> None:
    """One message for each topic, straight to the master. Raises RuntimeError if one is not taken."""
    numbers, give_up = iter(range(count)), trio.current_time() + FILL_S

    async def lane(client: RemotingClient) -> None:
        address = ""
        for number in numbers:
            message = OutgoingMessage(topic(number), b"one", queue_id=0)
            outgoing = Outgoing(RequestCode.SEND_MESSAGE_V2, "bench", message, token_hex(16).upper(), wall_ms(), None)
            while True:
                address = address or cluster.state.node(await cluster.master()).address
                request = outgoing.request(MessageQueue(topic(number), GROUP, 0))
                reply = await client.call(address, request, TIMEOUT_MS)
                if reply.code == ResponseCode.SUCCESS:
                    break
                address = ""
                if trio.current_time() > give_up:
                    raise RuntimeError(f"{topic(number)}: {reply.code} {reply.remark}")
                await trio.sleep(RETRY_S)

    async with RemotingClient() as client, trio.open_nursery() as nursery:
        for _ in range(LANE_COUNT):
            nursery.start_soon(lane, client)


async def with_topics(cluster: Cluster, topic_count: int, rounds: int) -> list[dict[str, int]]:
    await cluster.up()
    await fill(cluster, min(topic_count, FILLED_COUNT))
    await cluster.wait_level()
    return [phases for _, phases in await rounds_of(cluster, rounds, started=True)]


def failovers_by_topics(scratch: Path, rounds: int, counts: tuple[int, ...] = TOPIC_COUNTS) -> dict[str, Any]:
    found: dict[int, list[dict[str, int]]] = {}
    for count in counts:
        directory = scratch / f"topics-{count}"
        directory.mkdir()
        keys: dict[str, str | int | bool] = {
            "mappedFileSizeCommitLog": 64 * 1024 * 1024,
            "mappedFileSizeConsumeQueue": QUEUE_FILE_BYTES,
            "messageIndexEnable": False,
        }
        with Cluster.of(quickstart("cp", broker=keys), directory) as cluster:
            write_tables(cluster, count)
            found[count] = trio.run(with_topics, cluster, count, rounds)
    rows = []
    for name in PHASES:
        row: dict[str, Any] = {"phase": name}
        for count in counts:
            values = [phases[name] for phases in found[count] if name in phases]
            row[f"{count:,} topics median"] = statistics.median(values) if values else None
            row[f"{count:,} max"] = max(values, default=None)
        rows.append(row)
    show(f"kill -9 of the master by number of topics, ms from the kill, n={rounds} each", rows)
    return {"rounds": rounds, "phases": rows, "each": {str(count): item for count, item in found.items()}}
