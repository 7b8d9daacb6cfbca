"""Send 20,000 measurements in batches and read them back as lazily decoded batches: the fast way through the client.

    python examples/batches.py [NAME_SERVER] [TOPIC]

A batch's messages are views into the broker's answer; only what is looked at is decoded.
"""

from __future__ import annotations

import struct
import sys
import time

import trio

from rmqha.client import Consumer, OutgoingMessage, Producer

COUNT = 20_000
MEASUREMENT = struct.Struct("<Id")


async def main(namesrv: str, topic: str) -> None:
    async with Producer(namesrv, "example-batches") as producer:
        await producer.send(topic, b"start", timeout_ms=30_000)  # makes the topic, where brokers do that
        started = time.perf_counter()
        measurements = (OutgoingMessage(topic, MEASUREMENT.pack(number, number / 7)) for number in range(COUNT))
        tally = await producer.send_many(measurements, window=512, batch=64, timeout_ms=30_000)
        print(
            f"sent {tally.acknowledged} messages, {tally.acknowledged / (time.perf_counter() - started):,.0f} a second"
        )

    total = seen = 0
    started = time.perf_counter()
    async with Consumer(namesrv, "example-batches", topic) as consumer:
        async for batch in consumer.batches():
            for view in batch:
                if len(view.body) == MEASUREMENT.size:
                    number, _ = MEASUREMENT.unpack(view.body)
                    total += number
                    seen += 1
            if seen >= COUNT:
                break
    print(f"read {seen} messages, {seen / (time.perf_counter() - started):,.0f} a second; sum {total:,}")


if __name__ == "__main__":
    arguments = dict(enumerate(sys.argv))
    trio.run(main, arguments.get(1, "127.0.0.1:9876"), arguments.get(2, "measurements"))
