"""What the Python client does with one broker: pipelined sends, eager and lazy reads, latency at 500 messages/s.

In the same run, as a limit: frames of the same sizes through a bare loopback socket.
"""

from __future__ import annotations

import math
import resource
import socket
import statistics
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import trio

from benchmarks.bench_send import echo_peer, request_for
from benchmarks.figures import show, summary
from benchmarks.starts.bench_start import answer, cpu_ms, memory
from rmqha.client.consumers.consumer import Consumer
from rmqha.client.producers.outgoing import OutgoingMessage
from rmqha.client.producers.producer import Producer
from rmqha.client.route import MessageQueue
from rmqha.drill.cluster import Cluster, quickstart
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.identity import parse_address
from rmqha.wire.command import Command
from rmqha.wire.frame import encode_frame

TOPIC = "bench"
WINDOW = 512
BATCH_COUNT = 64
RATE_PER_S = 500
SIZES = (128, 1024)


def bare_rate(size: int, seconds: float) -> float:
    """Messages per second of batch requests of the same size, sent and sent back by a bare socket, two under way."""
    frame = encode_frame(request_for(b"x" * size).request(MessageQueue(TOPIC, "broker-a", 0))) * BATCH_COUNT
    with echo_peer("raw") as port, socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(frame * 2)
        count = pending = 0
        started = time.perf_counter()
        while time.perf_counter() - started < seconds:
            pending += len(connection.recv(256 * 1024))
            whole, pending = divmod(pending, len(frame))
            if whole:
                connection.sendall(frame * whole)
                count += whole * BATCH_COUNT
        rate = count / (time.perf_counter() - started)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(256 * 1024):
            pass
        return rate


def numbered(size: int, seconds: float) -> Iterator[OutgoingMessage]:
    body, until = b"x" * size, time.perf_counter() + seconds
    while time.perf_counter() < until:
        for _ in range(BATCH_COUNT):
            yield OutgoingMessage(TOPIC, body)


async def send_rate(namesrv: str, size: int, seconds: float, batch: int) -> float:
    async with Producer(namesrv) as producer:
        await producer.send(TOPIC, b"x", timeout_ms=10_000)
        started = time.perf_counter()
        tally = await producer.send_many(numbered(size, seconds), window=WINDOW, batch=batch)
        elapsed_s = time.perf_counter() - started
        assert not tally.failed, tally
        return tally.acknowledged / elapsed_s


async def prefill(namesrv: str, topic: str, size: int, count: int) -> None:
    async with Producer(namesrv) as producer:
        body = b"x" * size
        messages = (OutgoingMessage(topic, body) for _ in range(count))
        tally = await producer.send_many(messages, window=WINDOW, batch=BATCH_COUNT, timeout_ms=10_000)
        assert tally.acknowledged == count, tally


async def read_rate(namesrv: str, topic: str, count: int, *, lazy: bool) -> float:
    """From the first message to the last."""
    seen = size = 0
    started = 0.0
    async with Consumer(namesrv, "bench", topic, start="first", standalone=True) as consumer:
        with trio.fail_after(120):
            if lazy:
                async for batch in consumer.batches():
                    started = started or time.perf_counter()
                    for view in batch:
                        size += len(view.body)
                    seen += len(batch)
                    if seen >= count:
                        break
            else:
                async for message in consumer:
                    started = started or time.perf_counter()
                    size += len(message.body)
                    seen += 1
                    if seen >= count:
                        break
        elapsed_s = time.perf_counter() - started
    return seen / elapsed_s


async def latency(namesrv: str, size: int, seconds: float) -> dict[str, float]:
    """Sends at a fixed rate, each timed from when it was due; and from stored to received, which has the store's clock
    of whole milliseconds, so half of one is taken off."""
    sends: list[float] = []
    reads: list[float] = []
    whole: list[float] = []
    count = int(RATE_PER_S * seconds)
    stamp = struct.Struct(">d")

    async def send(producer: Producer, due: float) -> None:
        await producer.send("latency", stamp.pack(due) + b"x" * (size - 8), timeout_ms=10_000)
        sends.append((time.perf_counter() - due) * 1000)

    async def read(consumer: Consumer) -> None:
        async for message in consumer:
            now_ms = time.time() * 1000
            if len(message.body) == size:
                reads.append(now_ms - message.stored_at_ms - 0.5)
                whole.append((time.perf_counter() - stamp.unpack_from(message.body)[0]) * 1000)
            if len(reads) == count:
                return

    async with Producer(namesrv) as producer:
        await producer.send("latency", b"x", timeout_ms=10_000)
        async with (
            Consumer(namesrv, "bench", "latency", start="first", standalone=True) as consumer,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(read, consumer)
            await trio.sleep(1)
            started = time.perf_counter()
            for number in range(count):
                due = started + number / RATE_PER_S
                await trio.sleep(max(0.0, due - time.perf_counter()))
                nursery.start_soon(send, producer, due)
    ordered = sorted(sends)
    return {
        "send ms median": statistics.median(sends),
        "send ms p99": ordered[math.ceil(len(ordered) * 0.99) - 1],
        "send ms max": ordered[-1],
        "stored to consumer ms mean": statistics.mean(reads),
        "sent to consumer ms median": summary(whole)["median"],
    }


def rates(cluster: Cluster, size: int, quick: bool) -> list[dict[str, Any]]:
    """Each with the CPU that a message costs either side, which a busy machine stretches less than the rate."""
    seconds, count = (2.0, 40_000) if quick else (6.0, 300_000)
    topic, namesrv = f"read-{size}", cluster.spec.namesrv_addresses
    broker = cluster.state.node("broker-a-1").pid
    trio.run(prefill, namesrv, topic, size, count)
    bare = bare_rate(size, 2.0)
    rows: list[dict[str, Any]] = [
        {
            "what": "bare loopback echo",
            "bytes": size,
            "per second": bare,
            "of bare": 1.0,
            "broker CPU us": "",
            "client CPU us": "",
        }
    ]
    for what, work in (
        ("sends one by one", partial(send_rate, namesrv, size, seconds, 1)),
        (f"sends by {BATCH_COUNT}", partial(send_rate, namesrv, size, seconds, BATCH_COUNT)),
        ("reads eager", partial(read_rate, namesrv, topic, count, lazy=False)),
        ("reads lazy", partial(read_rate, namesrv, topic, count, lazy=True)),
    ):
        spent = cpu_ms(broker), time.process_time(), time.perf_counter()
        rate = trio.run(work)
        messages = rate * (time.perf_counter() - spent[2]) / 1_000_000
        rows.append(
            {
                "what": what,
                "bytes": size,
                "per second": rate,
                "of bare": rate / bare,
                "broker CPU us": (cpu_ms(broker) - spent[0]) / 1000 / messages,
                "client CPU us": (time.process_time() - spent[1]) / messages,
            }
        )
    return rows


def idle_connections(scratch: Path, count: int) -> dict[str, Any]:
    """Private memory of a broker before and after `count` connections that have asked once and then say nothing."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    frame = encode_frame(Command(RequestCode.GET_BROKER_RUNTIME_INFO))
    with Cluster.of(quickstart("cp", 1), scratch) as cluster, ExitStack() as stack:
        trio.run(cluster.up)
        node = cluster.state.node("broker-a-1")
        # the first ones fill what every broker keeps
        for connections in (100, count):
            before = memory(node.pid)["RssAnon MiB"]
            started = time.perf_counter()
            sockets = []
            for _ in range(connections):
                sockets.append(stack.enter_context(socket.create_connection(parse_address(node.address), 30)))
                sockets[-1].sendall(frame)
                sockets[-1].recv(64 * 1024)
            elapsed_s = time.perf_counter() - started
        time.sleep(1)
        grown = memory(node.pid)["RssAnon MiB"] - before
        asked = answer(node.address, RequestCode.RMQHA_GET_REPLICA_STATE)
        assert asked is not None and asked.code == ResponseCode.SUCCESS
    row = {
        "connections": count,
        "RssAnon MiB": grown,
        "KiB each": grown * 1024 / count,
        "opened per second": count / elapsed_s,
    }
    show("idle connections to one broker", [row])
    return row


def clients(scratch: Path, quick: bool) -> dict[str, Any]:
    found, latencies = [], []
    for size in SIZES:
        document = quickstart("cp", 1, {"mappedFileSizeCommitLog": 256 * 1024 * 1024})
        with Cluster.of(document, scratch / str(size)) as cluster:
            trio.run(cluster.up)
            found += rates(cluster, size, quick)
            latencies.append(
                {"bytes": size, **trio.run(latency, cluster.spec.namesrv_addresses, size, 3.0 if quick else 15.0)}
            )
    idle = idle_connections(scratch / "idle", 1_000 if quick else 10_000)
    show("one Python client, one replica (CP)", found)
    show(f"{RATE_PER_S} messages per second", latencies)
    return {"window": WINDOW, "rates": found, "latency": latencies, "idle": idle}
