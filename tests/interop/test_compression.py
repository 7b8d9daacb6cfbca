"""Bodies that our producer compresses, read by Apache's consumer."""

from __future__ import annotations

import hashlib

import pytest
import trio

from rmqha.client.producer import Producer
from tests.interop.lab import Lab
from tests.interop.processes import until

pytestmark = pytest.mark.interop

TIMEOUT_S = 60
BODY = "ünï✓ ".encode() * 2000


def test_a_java_consumer_reads_every_compression_of_ours(lab: Lab) -> None:
    lab.start_our_name_server()
    node = lab.run(lab.our_broker("broker", totalReplicas="1"))
    until("it serves", lambda: lab.route("TBW102").get("0") == node.address, TIMEOUT_S, node.running)
    bodies = {name: f"{number} {name} ".encode() + BODY for number, name in enumerate(("zlib", "lz4", "zstd"))}

    async def send(name: str) -> None:
        async with Producer(lab.name_server, compression=name) as producer:
            await producer.send("Packed", bodies[name], timeout_ms=10_000)

    for name in bodies:
        trio.run(send, name)
    consumer = lab.client("Consume", "Packed", "push", "readers")
    wanted = {hashlib.sha256(body).hexdigest() for body in bodies.values()}

    def digests() -> set[str]:
        return {line.split()[-1] for line in consumer.lines() if line.startswith("GOT ")}

    until("all bodies are there", lambda: digests() == wanted, TIMEOUT_S, consumer)
