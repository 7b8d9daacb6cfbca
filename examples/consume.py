"""Read the orders that produce.py sends, as a member of a consumer group: start it twice and the queues are shared.

    python examples/consume.py [NAME_SERVER] [TOPIC]

Ends after ten seconds of silence; the next start goes on where this one stopped.
"""

from __future__ import annotations

import sys

import trio

from rmqha.client import Consumer


async def main(namesrv: str, topic: str) -> None:
    async with Consumer(namesrv, "example-consumer", topic) as consumer:
        while True:
            with trio.move_on_after(10) as silence:
                message = await consumer.receive()
                print(
                    f"queue {message.queue_id} offset {message.queue_offset}  {message.keys}  {message.body.decode()}"
                )
            if silence.cancelled_caught:
                break
        print(consumer.statistics())


if __name__ == "__main__":
    arguments = dict(enumerate(sys.argv))
    trio.run(main, arguments.get(1, "127.0.0.1:9876"), arguments.get(2, "orders"))
