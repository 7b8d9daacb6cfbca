"""Send ten orders, each to the queue of its customer, and see each acknowledged by the whole group.

    python examples/produce.py [NAME_SERVER] [TOPIC]

A failover while it runs only makes it wait: every send is tried again at the new master until its deadline.
"""

from __future__ import annotations

import sys

import trio

from rmqha.client import Producer


async def main(namesrv: str, topic: str) -> None:
    async with Producer(namesrv, "example-producer") as producer:
        for number in range(10):
            customer = f"customer-{number % 3}"
            result = await producer.send(
                topic,
                f"order {number} of {customer}".encode(),
                keys=f"order-{number}",
                key=customer,
                timeout_ms=30_000,
                require_ok=True,
            )
            print(f"{result.status.name}  queue {result.queue_id} offset {result.queue_offset}  {result.msg_id}")
        print(producer.statistics())


if __name__ == "__main__":
    arguments = dict(enumerate(sys.argv))
    trio.run(main, arguments.get(1, "127.0.0.1:9876"), arguments.get(2, "orders"))
