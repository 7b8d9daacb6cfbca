"""The Python client against a real broker: what needs one to be true."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from rmqha.client import aio, sync
from rmqha.client.admin import Admin
from rmqha.client.consumers.consumer import Consumer
from rmqha.client.consumers.message import Message
from rmqha.client.consumers.pop_consumer import PopConsumer
from rmqha.client.producers.outgoing import OutgoingMessage
from rmqha.client.producers.producer import Producer
from rmqha.client.producers.transaction import Outcome, TransactionProducer
from rmqha.drill.cluster import Cluster, quickstart
from rmqha.model.error import RemoteError, UnreachableError
from tests.support.patience import HANG_MS, HANG_S

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
KEYS: dict[str, str | int | bool] = {
    "messageDelayLevel": "1s 2s 3s",
    "enablePropertyFilter": True,
    "transactionTimeOut": 500,
    "transactionCheckInterval": 500,
}


async def test_what_a_real_broker_does_for_it(tmp_path: Path) -> None:
    with trio.fail_after(HANG_S), Cluster.of(quickstart("cp", 1, KEYS), tmp_path, quiet=True) as cluster:
        await cluster.up()
        namesrv = cluster.spec.namesrv_addresses
        async with Admin(namesrv) as admin, Producer(namesrv) as producer:
            assert await admin.create_topic("Orders", queue_count=2) == ["broker-a"]
            with pytest.raises(UnreachableError, match="no group broker-z; known are broker-a"):
                await admin.create_topic("Orders", groups=["broker-z"])
            messages = [
                OutgoingMessage("Orders", b"%d" % number, key=f"c{number % 3}", properties={"n": str(number)})
                for number in range(90)
            ]
            assert (await producer.send_many(messages, window=64, batch=16)).acknowledged == 90
            await _all_filters(namesrv)
            await _retries(namesrv, admin)
            await _resets(namesrv, admin)
            await _transactions(namesrv)
            await _pops(namesrv, admin)
            await trio.to_thread.run_sync(_blocking, namesrv)
            await trio.to_thread.run_sync(asyncio.run, _awaited(namesrv))
            await _examples(namesrv)
            await admin.delete_topic("Orders")
            with pytest.raises(RemoteError, match="17"):
                await admin.route("Orders")


async def _pops(namesrv: str, admin: Admin) -> None:
    """Two members take what there is; what is given back or not named in time comes again, and nothing else."""
    await admin.create_topic("Popped", queue_count=2)
    bodies = [b"%d" % number for number in range(40)]
    async with Producer(namesrv) as producer:
        for body in bodies:
            await producer.send("Popped", body, tags="a", key=body.decode(), timeout_ms=HANG_MS, require_ok=True)
    deliveries: dict[bytes, list[int]] = {body: [] for body in bodies}

    async def work(consumer: PopConsumer, done: trio.Event) -> None:
        async for message in consumer:
            deliveries[message.body].append(message.delivery_count)
            if int(message.body) % 10 == 0 and message.delivery_count == 1:
                await consumer.nack(message, delay_ms=200)
                continue
            if int(message.body) % 10 == 2:
                await consumer.extend(message, HANG_MS)
            await consumer.ack(message)
            if sum(map(len, deliveries.values())) == len(bodies) + 4:
                done.set()

    async with (
        PopConsumer(namesrv, "Poppers", "Popped", "a || b", invisible_ms=HANG_MS, count=8) as one,
        PopConsumer(namesrv, "Poppers", "Popped", "a || b", invisible_ms=HANG_MS, count=8) as other,
        trio.open_nursery() as nursery,
    ):
        done = trio.Event()
        nursery.start_soon(work, one, done)
        nursery.start_soon(work, other, done)
        await done.wait()
        nursery.cancel_scope.cancel()
    assert all(counts == ([1, 2] if int(body) % 10 == 0 else [1]) for body, counts in deliveries.items())
    async with PopConsumer(namesrv, "Forgetful", "Popped", invisible_ms=1000, count=1) as consumer:
        forgotten = (await consumer.receive()).message.msg_id
        message = await consumer.receive()
        while message.message.msg_id != forgotten:
            message = await consumer.receive()
        assert message.delivery_count > 1
        await consumer.dead_letter(message)
    async with Consumer(namesrv, "Buried", "%DLQ%Forgetful", standalone=True) as reader:
        assert (await reader.receive()).body == message.body
    async with PopConsumer(namesrv, "InOrder", "Popped", ordered=True, invisible_ms=HANG_MS, count=4) as consumer:
        by_queue: dict[int, list[int]] = {}
        while sum(map(len, by_queue.values())) < len(bodies):
            popped = await consumer.receive()
            by_queue.setdefault(popped.message.queue_id, []).append(int(popped.message.queue_offset))
            await consumer.ack(popped)
    assert all(offsets == sorted(offsets) for offsets in by_queue.values())
    await trio.to_thread.run_sync(_pops_blocking, namesrv)
    await trio.to_thread.run_sync(asyncio.run, _pops_awaited(namesrv))


def _pops_blocking(namesrv: str) -> None:
    with sync.PopConsumer(namesrv, "PopScripts", "Popped") as consumer:
        for _ in range(40):
            message = consumer.receive(timeout_ms=HANG_MS)
            assert message is not None
            consumer.ack(message)
        assert consumer.receive(timeout_ms=100) is None and consumer.statistics()["acked"] == 40


async def _pops_awaited(namesrv: str) -> None:
    async with aio.PopConsumer(namesrv, "PopTasks", "Popped") as consumer:
        for message in [await consumer.receive() for _ in range(40)]:
            await consumer.ack(message)
        assert (await consumer.statistics())["received"] == 40


def _blocking(namesrv: str) -> None:
    """A script that knows no trio: a topic of its own, sent, read, and nothing left over."""
    with sync.Admin(namesrv) as admin:
        admin.create_topic("Blocking", queue_count=2)
        with sync.Producer(namesrv) as producer:
            assert producer.send("Blocking", b"0", timeout_ms=HANG_MS, require_ok=True).status.name == "SEND_OK"
            messages = (OutgoingMessage("Blocking", b"%d" % number) for number in range(1, 50))
            assert producer.send_many(messages, batch=8).acknowledged == 49
        with sync.Consumer(namesrv, "Scripts", "Blocking") as consumer:
            read = [message.body for message in itertools.islice(consumer, 50)]
        assert sorted(map(int, read)) == list(range(50))
        assert [row["lag"] for row in admin.progress("Scripts", "Blocking")] == [0, 0]


async def _awaited(namesrv: str) -> None:
    async with aio.Producer(namesrv) as producer, aio.Consumer(namesrv, "Tasks", "Blocking") as consumer:
        sent = [producer.send("Blocking", b"%d" % number, require_ok=True) for number in range(50, 60)]
        assert {result.status.name for result in await asyncio.gather(*sent)} == {"SEND_OK"}
        assert sorted([int((await consumer.receive()).body) for _ in range(60)]) == list(range(60))


async def _all_filters(namesrv: str) -> None:
    async with Consumer(namesrv, "Filtered", "Orders", selector="n >= 80", standalone=True) as consumer:
        assert sorted([int((await consumer.receive()).body) for _ in range(10)]) == list(range(80, 90))


async def _retries(namesrv: str, admin: Admin) -> None:
    """Each message once, one of them again after its delay, and then it is dead."""
    seen: list[int] = []
    tries: list[int] = []
    async with Consumer(namesrv, "G", "Orders") as consumer:
        async for message in consumer:
            number = int(message.body)
            if number == 41:
                tries.append(message.reconsume_times)
                assert message.topic == "Orders"
                await consumer.retry(message, delay_level=1, max_reconsume_times=1)
            else:
                seen.append(number)
            if len(seen) == 89 and len(tries) == 2:
                break
    assert tries == [0, 1]
    for customer in range(3):
        of_customer = [number for number in seen if number % 3 == customer]
        assert of_customer == sorted(of_customer)
    assert [row["lag"] for row in await admin.progress("G", "Orders")] == [0, 0]
    async with Consumer(namesrv, "Dead", "%DLQ%G", standalone=True) as consumer:
        assert (await consumer.receive()).body == b"41"


async def _resets(namesrv: str, admin: Admin) -> None:
    """While the group reads: all comes again, and what is finished then counts from there."""
    async with Consumer(namesrv, "G", "Orders") as consumer:
        with trio.move_on_after(0.5):
            raise AssertionError(await consumer.receive())
        assert await admin.reset_offsets("G", "Orders", 0) == ["broker-a"]
        # a held pull hears of it too
        seen = sorted([int((await consumer.receive()).body) for _ in range(90)])
        assert seen == list(range(90))
    assert [row["lag"] for row in await admin.progress("G", "Orders")] == [0, 0]
    async with Consumer(namesrv, "G", "Orders") as consumer:
        await admin.reset_offsets("G", "Orders", 0)
        await consumer.receive()
    assert sum(row["lag"] for row in await admin.progress("G", "Orders")) == 89


async def _transactions(namesrv: str) -> None:
    """Ended at once, ended when asked, and asked of another member after the first has gone."""
    asked: list[str] = []

    async def check(message: Message) -> Outcome:
        await trio.lowlevel.checkpoint()
        asked.append(message.keys)
        return Outcome.COMMIT if message.keys.startswith("commit") else Outcome.ROLLBACK

    async def begin(producer: TransactionProducer, keys: str, end: str) -> None:
        async with producer.transaction(OutgoingMessage("Paid", keys.encode(), keys=keys)) as transaction:
            if end == "rollback":
                transaction.rollback()
            elif end == "open":
                transaction.leave_open()
        assert transaction.confirmed == (end != "open"), producer.last_error

    async with Admin(namesrv) as admin:
        await admin.create_topic("Paid")
    async with TransactionProducer(namesrv, "Payments", check) as producer:
        await begin(producer, "commit-1", "commit")
        await begin(producer, "rollback-1", "rollback")
        await begin(producer, "commit-2", "open")
        await begin(producer, "rollback-2", "open")
        async with Consumer(namesrv, "Books", "Paid", standalone=True) as consumer:
            assert {(await consumer.receive()).keys for _ in range(2)} == {"commit-1", "commit-2"}
            await begin(producer, "commit-3", "open")
    # its last transaction is open, and it has gone; another one of the group is asked
    async with (
        TransactionProducer(namesrv, "Payments", check, topics=["Paid"]) as producer,
        Consumer(namesrv, "Books", "Paid", standalone=True) as consumer,
    ):
        assert {(await consumer.receive()).keys for _ in range(3)} == {"commit-1", "commit-2", "commit-3"}
        with trio.move_on_after(0.5):
            raise AssertionError(await consumer.receive())
        assert set(asked) == {"commit-2", "rollback-2", "commit-3"}
        assert producer.statistics()["transactions"] == 0


async def _examples(namesrv: str) -> None:
    for name, said in (
        ("batches.py", b"messages"),
        ("retries.py", b"handed back"),
        ("transactions.py", b"order 3 is told: 70 euro"),
    ):
        command = [sys.executable, str(EXAMPLES / name), namesrv]
        done = await trio.run_process(command, capture_stdout=True, stderr=subprocess.STDOUT, check=False)
        assert done.returncode == 0 and said in done.stdout, done.stdout.decode()
