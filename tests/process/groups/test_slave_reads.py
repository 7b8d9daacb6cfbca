"""Slaves serve reads: of old messages, and of all that is committed while the group has no master."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from rmqha.client.consumers.consumer import Consumer
from rmqha.client.consumers.message import Message
from rmqha.client.producers.outgoing import OutgoingMessage
from rmqha.client.producers.producer import Producer
from rmqha.drill.cluster import Cluster, quickstart, until
from tests.support.patience import HANG_MS, HANG_S

COUNT = 600
MORE = 100
BODY = b"x" * 20_000
"""A consumer reads a MiB ahead in each queue: there must be more than that."""


async def send(producer: Producer, first: int, count: int) -> None:
    bodies = (str(number).encode() + BODY for number in range(first, first + count))
    tally = await producer.send_many((OutgoingMessage("Reads", body) for body in bodies), timeout_ms=HANG_MS)
    assert tally.acknowledged == count


async def read(consumer: Consumer, count: int) -> list[Message]:
    return [await consumer.receive() for _ in range(count)]


async def got(cluster: Cluster) -> dict[str, int]:
    return {name: state.get_count or 0 for name, state in (await cluster.replica_states()).items()}


@pytest.mark.parametrize("mode", ["ap", "cp"])
async def test_a_consumer_reads_on_while_its_group_has_no_master(tmp_path: Path, mode: str) -> None:
    """Controller and master are dead: nobody can be elected. What is committed stays readable, no offset moves, and the
    consumer goes on with the master when there is one again."""
    with trio.fail_after(HANG_S), Cluster.of(quickstart(mode, controllers=1), tmp_path, quiet=True) as cluster:
        await cluster.up()
        namesrv = cluster.spec.namesrv_addresses
        (controller,) = (node.name for node in cluster.state.nodes.values() if node.kind == "controller")
        async with (
            Producer(namesrv, compression=None) as producer,
            Consumer(namesrv, "G", "Reads", start="first") as consumer,
        ):
            await send(producer, 0, COUNT)
            read_first = await read(consumer, 10)
            await cluster.wait_level()
            master = await cluster.master()
            await cluster.kill(controller)
            await cluster.kill(master)
            rest = await read(consumer, COUNT - 10)
            found = {(item.queue_id, item.queue_offset) for item in (*read_first, *rest)}
            assert len(found) == COUNT
            served = await got(cluster)
            assert set(served.values()) != {0} and master not in served
            with trio.move_on_after(1) as quiet:
                await consumer.receive()
            assert quiet.cancelled_caught and consumer.statistics()["offset_moves"] == 0
            await cluster.start(controller, master)
            await send(producer, COUNT, MORE)
            more = await read(consumer, MORE)
            assert {(item.queue_id, item.queue_offset) for item in more}.isdisjoint(found)
            assert consumer.statistics()["offset_moves"] == 0


async def test_old_messages_are_read_from_a_slave(tmp_path: Path) -> None:
    keys: dict[str, str | int | bool] = {"accessMessageInMemoryMaxRatio": 0}
    with trio.fail_after(HANG_S), Cluster.of(quickstart("cp", broker=keys), tmp_path, quiet=True) as cluster:
        await cluster.up()
        namesrv = cluster.spec.namesrv_addresses
        async with Producer(namesrv, compression=None) as producer:
            for first in range(0, 2 * COUNT, COUNT):
                await send(producer, first, COUNT)
        await cluster.wait_level()
        async with Consumer(namesrv, "G", "Reads", start="first") as consumer:
            messages = await read(consumer, 2 * COUNT)
            assert len({item.body for item in messages}) == 2 * COUNT
            assert consumer.statistics()["offset_moves"] == 0
        master = await cluster.master()

        async def slaves_served() -> int:
            return sum(count for name, count in (await got(cluster)).items() if name != master)

        assert await until(slaves_served, "messages read from a slave") >= COUNT
