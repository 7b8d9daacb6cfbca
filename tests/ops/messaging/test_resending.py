"""Dead letters of several queues in one order, without all of them in memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from rmqha.ops.messaging.brokers import AskedBroker, QueueName
from rmqha.ops.messaging.resending import DeadLetterQueue, in_order

ANSWER_COUNT = 2


class Cluster:
    """`read_queue` of an Admin: at most ANSWER_COUNT dead letters an answer."""

    def __init__(self, *stored_at_ms: list[int]) -> None:
        self.stored_at_ms = stored_at_ms
        self.told_count = 0

    async def read_queue(
        self, address: str, broker_name: str, topic: str, queue_id: int, offset: int, *, group: str
    ) -> tuple[list[Any], int]:
        times = self.stored_at_ms[queue_id][offset : offset + ANSWER_COUNT]
        self.told_count += len(times)
        places = enumerate(times, offset)
        found = [SimpleNamespace(stored_at_ms=at, queue_offset=place, queue_id=queue_id) for place, at in places]
        return found, offset + len(times)

    @property
    def queues(self) -> list[DeadLetterQueue]:
        broker = cast(AskedBroker, SimpleNamespace(address="a:1", name="g"))
        return [
            DeadLetterQueue("g", broker, QueueName("g", number), 0, len(times), 0, 0)
            for number, times in enumerate(self.stored_at_ms)
        ]


async def test_dead_letters_come_in_the_order_of_their_store_times() -> None:
    cluster = Cluster([1, 4, 5, 9, 12], [], [2, 3, 7, 8], [6])
    found = [(item.stored_at_ms, item.queue_id) async for item in in_order(cast(Any, cluster), cluster.queues)]
    assert found == [(1, 0), (2, 2), (3, 2), (4, 0), (5, 0), (6, 3), (7, 2), (8, 2), (9, 0), (12, 0)]


async def test_no_more_than_an_answer_of_each_queue_is_held() -> None:
    cluster = Cluster(list(range(0, 1000, 2)), list(range(1, 1001, 2)))
    count = 0
    async for _ in in_order(cast(Any, cluster), cluster.queues):
        count += 1
        assert cluster.told_count <= count + 2 * ANSWER_COUNT
    assert count == 1000
