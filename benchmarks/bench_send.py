"""Sends per second: 64 senders that each wait for their acknowledgement, against 1 and 3 replicas (CP).

In the same run, as limits: the same client against a server that answers at once and stores nothing, and frames of the
same size through a bare socket with 64 under way.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import trio

from benchmarks.figures import show, summary
from rmqha.client.producers.outgoing import Outgoing, OutgoingMessage
from rmqha.client.producers.producer import Producer
from rmqha.client.route import MessageQueue
from rmqha.drill.cluster import Cluster, quickstart
from rmqha.host.net.remoting import RemotingClient
from rmqha.model.code import RequestCode
from rmqha.wire.frame import encode_frame

SENDERS = 64
WARM_UP_S = 1.0
TOPIC = "bench"
Send = Callable[[], Awaitable[object]]


async def rate(send: Send, seconds: float) -> dict[str, float]:
    """Sends per second of SENDERS tasks, and the milliseconds of each."""
    taken: list[float] = []
    counting = False

    async def sender() -> None:
        while True:
            started = time.perf_counter()
            await send()
            if counting:
                taken.append((time.perf_counter() - started) * 1000)

    async with trio.open_nursery() as nursery:
        for _ in range(SENDERS):
            nursery.start_soon(sender)
        await trio.sleep(WARM_UP_S)
        counting = True
        started = time.perf_counter()
        await trio.sleep(seconds)
        counting = False
        elapsed_s = time.perf_counter() - started
        nursery.cancel_scope.cancel()
    figures = summary(taken)
    return {"per second": len(taken) / elapsed_s, "ms median": figures["median"], "ms p90": figures["p90"]}


@contextmanager
def echo_peer(kind: str) -> Iterator[int]:
    arguments = [sys.executable, "-m", "benchmarks.echo", kind]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as peer:
        assert peer.stdin is not None
        assert peer.stdout is not None
        yield int(peer.stdout.readline())
        peer.stdin.close()


def request_for(body: bytes) -> Outgoing:
    message = OutgoingMessage(TOPIC, body)
    return Outgoing(RequestCode.SEND_MESSAGE_V2, "bench", message, "0" * 32, 0, compression=None)


def raw_rate(body: bytes, seconds: float) -> float:
    """Frames of a send's size per second through a bare loopback socket, SENDERS of them under way."""
    frame = encode_frame(request_for(body).request(MessageQueue(TOPIC, "broker-a", 0)))
    with echo_peer("raw") as port, socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(frame * SENDERS)
        count = pending = 0
        started = time.perf_counter()
        while time.perf_counter() - started < seconds:
            pending += len(connection.recv(65536))
            whole, pending = divmod(pending, len(frame))
            if whole:
                connection.sendall(frame * whole)
                count += whole
        return count / (time.perf_counter() - started)


async def remoting_rate(body: bytes, port: int, seconds: float) -> dict[str, float]:
    async with RemotingClient() as client:

        async def send() -> None:
            request = request_for(body).request(MessageQueue(TOPIC, "broker-a", 0))
            await client.call(f"127.0.0.1:{port}", request, 3000)

        return await rate(send, seconds)


async def group_rate(cluster: Cluster, body: bytes, seconds: float) -> dict[str, float]:
    async with Producer(cluster.spec.namesrv_addresses) as producer:
        await producer.send(TOPIC, body, timeout_ms=10_000)

        async def send() -> None:
            await producer.send(TOPIC, body, timeout_ms=10_000, require_ok=True)

        return await rate(send, seconds)


def sends(scratch: Path, quick: bool) -> dict[str, Any]:
    seconds = 2.0 if quick else 6.0
    rows: list[dict[str, Any]] = []
    for size in (128, 1024):
        body = b"x" * size
        bare = raw_rate(body, seconds)
        rows.append({"what": "bare loopback echo", "bytes": size, "per second": bare, "ms median": "", "ms p90": ""})
        with echo_peer("remoting") as port:
            row = trio.run(remoting_rate, body, port, seconds)
        rows.append({"what": "our remoting, nothing stored", "bytes": size, **row})
        for replicas in (1, 3):
            directory = scratch / f"{size}-{replicas}"
            document = quickstart("cp", replicas, {"mappedFileSizeCommitLog": 64 * 1024 * 1024})
            with Cluster.of(document, directory) as cluster:
                trio.run(cluster.up)
                row = trio.run(group_rate, cluster, body, seconds)
            rows.append({"what": f"CP group, replicas {replicas}", "bytes": size, **row})
        limit = rows[-3]["per second"]
        for row in rows[-4:]:
            row["of our remoting"] = row["per second"] / limit
    show(f"{SENDERS} senders that wait for each acknowledgement", rows)
    return {"senders": SENDERS, "seconds": seconds, "rates": rows}
