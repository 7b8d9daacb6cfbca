"""A topic over two groups of one replica each, and one of them dies: real processes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path

import trio

from rmqha.client.admin import Admin
from rmqha.client.consumers.consumer import Consumer
from rmqha.client.producers.producer import Producer
from rmqha.drill.cluster import Cluster, quickstart, until
from tests.support.patience import HANG_S

TOPIC = "Orders"
KEYS = [f"customer {number}" for number in range(12)]
PART = 3
FREE = 40


async def test_ordered_messages_wait_for_their_group_and_the_others_go_to_another(tmp_path: Path) -> None:
    document = quickstart("cp", 1)
    (group,) = document["group"]
    document["group"].append({**group, "name": "broker-b", "listenPort": group["listenPort"] + 20})
    with trio.fail_after(HANG_S), Cluster.of(document, tmp_path, quiet=True) as cluster:
        await cluster.up()
        namesrv = cluster.spec.namesrv_addresses
        old = await _new_group_joins(namesrv)
        seen: list[str] = []
        async with Producer(namesrv) as producer, trio.open_nursery() as nursery:
            home = {key: await _send(producer, key, 0) for key in KEYS}
            assert set(home.values()) == {"broker-a", "broker-b"}
            await cluster.kill("broker-a-1")
            nursery.start_soon(_read, namesrv, seen)
            done: list[str] = []
            async with trio.open_nursery() as senders:
                for key in KEYS:
                    senders.start_soon(_ordered, producer, key, home[key], done)
                for number in range(FREE):
                    result = await producer.send(TOPIC, b"free %d" % number)
                    assert result.broker_name == "broker-b"
                others = {key for key in KEYS if home[key] == "broker-b"}
                free = {f"free {number}" for number in range(FREE)}
                await until(_holds(lambda: set(done) == others and free <= set(seen)), "all that group b has to do")
                assert not old & set(seen), "what the dead group has, waits"
                await cluster.start("broker-a-1")
            expected = old | free | {f"{key} {number}" for key in KEYS for number in range(1 + PART)}
            await until(_holds(lambda: expected <= set(seen)), "all is read")
            nursery.cancel_scope.cancel()
    assert sorted(seen) == sorted(expected), "once each"
    numbers: dict[str, list[str]] = defaultdict(list)
    for body in seen:
        name, _, place = body.rpartition(" ")
        numbers[name].append(place)
    assert {key: numbers[key] for key in KEYS} == {key: [str(number) for number in range(1 + PART)] for key in KEYS}


async def _new_group_joins(namesrv: str) -> set[str]:
    """The topic is made in one group, later in the other one too; what was sent before stays where it is."""
    bodies = {f"old {number}" for number in range(8)}
    async with Admin(namesrv) as admin, Producer(namesrv) as producer:
        assert await admin.create_topic(TOPIC, queue_count=4, groups=["broker-a"]) == ["broker-a"]
        assert {(await producer.send(TOPIC, body.encode())).broker_name for body in bodies} == {"broker-a"}
        assert await admin.create_topic(TOPIC, queue_count=4, groups=["broker-b"]) == ["broker-b"]
        assert set((await admin.route(TOPIC))["brokers"]) == {"broker-a", "broker-b"}
        rows = await admin.progress("Nobody", TOPIC)
        assert {
            name: sum(row["lag"] for row in rows if row["broker"] == name) for name in ("broker-a", "broker-b")
        } == {
            "broker-a": len(bodies),
            "broker-b": 0,
        }
    return bodies


async def _send(producer: Producer, key: str, number: int) -> str:
    """The name of the group that took it."""
    return (await producer.send(TOPIC, f"{key} {number}".encode(), key=key, timeout_ms=40_000)).broker_name


async def _ordered(producer: Producer, key: str, home: str, done: list[str]) -> None:
    for number in range(1, 1 + PART):
        assert await _send(producer, key, number) == home
    done.append(key)


async def _read(namesrv: str, seen: list[str]) -> None:
    async with Consumer(namesrv, "Readers", TOPIC) as consumer:
        async for message in consumer:
            seen.append(message.body.decode())


def _holds(condition: Callable[[], bool]) -> Callable[[], Awaitable[bool]]:
    async def asked() -> bool:
        return condition()

    return asked
