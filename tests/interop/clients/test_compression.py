"""Compressed bodies: ours read by Apache's consumer, those of Apache's producer by our consumer while they are sent."""

from __future__ import annotations

import hashlib

import pytest
import trio

from rmqha.client.consumers.consumer import Consumer
from rmqha.client.producers.producer import Producer
from rmqha.model.message import (
    SYS_FLAG_COMPRESSED,
    SYS_FLAG_COMPRESSION_LZ4,
    SYS_FLAG_COMPRESSION_MASK,
    SYS_FLAG_COMPRESSION_ZLIB,
    SYS_FLAG_COMPRESSION_ZSTD,
)
from rmqha.store.log.record import decode
from tests.interop.lab.group import TIMEOUT_S
from tests.interop.lab.lab import Lab
from tests.interop.lab.processes import log_bytes, until

pytestmark = pytest.mark.interop

BODY = "ünï✓ ".encode() * 2000
JAVA_BODY_BYTES = 20_000
PER_PRODUCER = 20
FLAGS = {"zlib": SYS_FLAG_COMPRESSION_ZLIB, "lz4": SYS_FLAG_COMPRESSION_LZ4, "zstd": SYS_FLAG_COMPRESSION_ZSTD}


def test_each_side_reads_every_compression_of_the_other(lab: Lab) -> None:
    lab.start_our_name_server()
    node = lab.run(lab.our_broker("broker", totalReplicas="1"))
    until("it serves", lambda: lab.route("TBW102").get("0") == node.address, TIMEOUT_S, node.running)
    bodies = {name: f"{number} {name} ".encode() + BODY for number, name in enumerate(FLAGS)}

    async def send(name: str) -> None:
        async with Producer(lab.name_server, compression=name) as producer:
            await producer.send("Packed", bodies[name], timeout_ms=10_000)

    for name in bodies:
        trio.run(send, name)
    consumer = lab.client("Consume", "Packed", "push", "readers")
    wanted = {hashlib.sha256(body).hexdigest() for body in bodies.values()}

    def digests() -> set[str]:
        return {line.split()[4] for line in consumer.lines() if line.startswith("GOT ")}

    until("all bodies are there", lambda: digests() == wanted, TIMEOUT_S, consumer)
    consumer.kill()
    trio.run(_java_sends, lab, set(bodies.values()))
    assert _compressions(log_bytes(node.store)) == dict.fromkeys(FLAGS.values(), 1 + PER_PRODUCER), (
        "each body was compressed, and as it was asked for"
    )


async def _java_sends(lab: Lab, ours: set[bytes]) -> None:
    """A producer for each compression; our consumer reads while they send."""
    numbers = range(len(FLAGS) * PER_PRODUCER)
    wanted = ours | {str(number).encode().ljust(JAVA_BODY_BYTES, b".") for number in numbers}
    seen: set[bytes] = set()
    with trio.fail_after(TIMEOUT_S):
        async with Consumer(lab.name_server, "live", "Packed") as consumer:
            for turn, name in enumerate(FLAGS):
                settings = {"rocketmq.message.compressType": name.upper()}
                first = str(turn * PER_PRODUCER)
                lab.client("Produce", "Packed", first, str(PER_PRODUCER), str(JAVA_BODY_BYTES), "10", **settings)
            while len(seen) < len(wanted):
                seen.add((await consumer.receive()).body)
        assert seen == wanted
        views: set[bytes] = set()
        async with Consumer(lab.name_server, "late", "Packed", standalone=True) as consumer:
            while len(views) < len(wanted):
                views |= {bytes(view.body) for view in await consumer.receive_batch()}
        assert views == wanted


def _compressions(log: bytes) -> dict[int, int]:
    """How many records have each compression flag."""
    found: dict[int, int] = {}
    view = memoryview(log.rstrip(b"\0"))
    while view:
        record = decode(view)
        if record.sys_flag & SYS_FLAG_COMPRESSED:
            flag = record.sys_flag & SYS_FLAG_COMPRESSION_MASK
            found[flag] = found.get(flag, 0) + 1
        view = view[record.size_bytes :]
    return found
