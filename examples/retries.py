"""Work that fails now and then: what could not be done is handed back, comes again later, and is dead after two tries.

python examples/retries.py [NAME_SERVER] [TOPIC]
"""

from __future__ import annotations

import sys

import trio

from rmqha.client import Consumer, Message, Producer

GROUP = "example-retries"


async def work(message: Message) -> None:
    """Stands for what an application does; jobs with a 3 fail at their first try."""
    if b"3" in message.body and message.reconsume_times == 0:
        raise RuntimeError("the printer is out of paper")


async def main(namesrv: str, topic: str) -> None:
    async with Producer(namesrv, GROUP) as producer:
        for number in range(5):
            await producer.send(topic, f"job {number}".encode(), timeout_ms=30_000)
    done = 0
    async with Consumer(namesrv, GROUP, topic) as consumer:
        async for message in consumer:
            try:
                await work(message)
            except RuntimeError as error:
                await consumer.retry(message, delay_level=1, max_reconsume_times=2)
                print(f"{message.body.decode()}: {error}; handed back, to come again after a second")
                continue
            done += 1
            print(f"{message.body.decode()}: done at try {message.reconsume_times + 1}")
            if done == 5:
                break


if __name__ == "__main__":
    arguments = dict(enumerate(sys.argv))
    trio.run(main, arguments.get(1, "127.0.0.1:9876"), arguments.get(2, "jobs"))
