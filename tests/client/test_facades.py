"""Blocking clients and those for asyncio: the trio clients' behaviour, in threads."""

from __future__ import annotations

import asyncio
import inspect
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

import rmqha.client
from rmqha.client import aio, sync
from rmqha.client.admin import Admin
from rmqha.client.consumers import pop_consumer
from rmqha.client.consumers.consumer import Consumer
from rmqha.client.consumers.message import Message
from rmqha.client.consumers.pop_consumer import PopConsumer
from rmqha.client.portal import Portal
from rmqha.client.producers.outgoing import OutgoingMessage
from rmqha.client.producers.producer import Producer
from rmqha.client.producers.transaction import Outcome, Transaction, TransactionProducer
from rmqha.model.error import RmqhaError, StoreError, UsageError
from tests.client.consumers.test_consumer import fill
from tests.client.consumers.test_pop_consumer import Pops, stored
from tests.client.fake import FakeCluster
from tests.client.producers.test_transaction import COMMIT, ROLLBACK, ask
from tests.client.producers.test_transaction import until as until_there
from tests.client.test_closed import CLIENTS
from tests.support.patience import HANG_MS, HANG_S, until

MESSAGE = OutgoingMessage("T", b"paid", keys="order-1")


async def beside(work: Callable[[], object]) -> None:
    """Run what blocks while the fake cluster answers from this thread."""
    with trio.fail_after(HANG_S):
        await trio.to_thread.run_sync(work)


@pytest.mark.parametrize("facade", [sync, aio])
def test_all_of_the_trio_clients_is_there(facade: Any) -> None:
    assert set(facade.__all__) == set(rmqha.client.__all__)
    for client in (Producer, Consumer, PopConsumer, Admin, TransactionProducer, Transaction):
        ours = getattr(facade, client.__name__)
        public = {name for name in vars(client) if not name.startswith("_")}
        assert public - {"confirmed"} <= {name for name in dir(ours) if not name.startswith("_")}
        for name in public - {"receive", "receive_batch", "batches", "confirmed"}:
            if isinstance(getattr(client, name), property):
                assert isinstance(getattr(ours, name), property), name
                continue
            theirs = inspect.signature(getattr(client, name))
            assert list(inspect.signature(getattr(ours, name)).parameters) == list(theirs.parameters), name
        if client is not Transaction:  # producers make them
            assert inspect.signature(ours).parameters.keys() == inspect.signature(client).parameters.keys()


def unasked(message: Message) -> Outcome:
    raise AssertionError(message)


async def unasked_awaited(message: Message) -> Outcome:
    raise AssertionError(message)


@pytest.mark.parametrize("facade", [sync, aio])
async def test_a_transaction_ends_as_its_block_does(facade: Any) -> None:
    async with FakeCluster() as fake:

        def work() -> None:
            with sync.TransactionProducer(fake.namesrv, "P", unasked) as producer:
                with producer.transaction(MESSAGE) as transaction:
                    assert fake.group.ends == [] and len(transaction.msg_id) == 32
                assert transaction.confirmed and transaction.half.status is sync.SendStatus.SEND_OK
                with producer.transaction(MESSAGE) as transaction:
                    transaction.rollback()
                with pytest.raises(KeyError), producer.transaction(MESSAGE) as transaction:
                    raise KeyError("did the bank book it?")
                assert not transaction.confirmed
                assert producer.end(producer.prepare(MESSAGE), "T", Outcome.COMMIT)
                assert producer.statistics()["transactions"] == 4 and producer.last_error == ""
                assert producer.send("T", b"plain").status is sync.SendStatus.SEND_OK

        async def awaited() -> None:
            async with aio.TransactionProducer(fake.namesrv, "P", unasked_awaited) as producer:
                async with producer.transaction(MESSAGE) as transaction:
                    assert fake.group.ends == [] and len(transaction.msg_id) == 32
                assert transaction.confirmed and transaction.half.status is aio.SendStatus.SEND_OK
                async with producer.transaction(MESSAGE) as transaction:
                    transaction.rollback()
                with pytest.raises(KeyError):
                    async with producer.transaction(MESSAGE) as transaction:
                        raise KeyError("did the bank book it?")
                assert not transaction.confirmed
                assert await producer.end(await producer.prepare(MESSAGE), "T", Outcome.COMMIT)
                assert (await producer.statistics())["transactions"] == 4 and producer.last_error == ""
                assert (await producer.send("T", b"plain")).status is aio.SendStatus.SEND_OK

        await beside(work if facade is sync else lambda: asyncio.run(awaited()))
        assert [end.ext["commitOrRollback"] for end in fake.group.ends] == [COMMIT, ROLLBACK, COMMIT]


@pytest.mark.parametrize("facade", [sync, aio])
async def test_a_broker_asks_the_application_where_it_runs(facade: Any) -> None:
    asked: list[tuple[str, str]] = []
    is_over = threading.Event()

    def check(message: Message) -> Outcome:
        asked.append((message.keys, threading.current_thread().name))
        return Outcome.COMMIT

    async def check_awaited(message: Message) -> Outcome:
        await asyncio.sleep(0)
        return check(message)

    async with FakeCluster() as fake:

        def work() -> None:
            with sync.TransactionProducer(fake.namesrv, "P", check) as producer:
                with producer.transaction(MESSAGE) as transaction:
                    transaction.leave_open()
                assert is_over.wait(HANG_S)

        async def awaited() -> None:
            async with aio.TransactionProducer(fake.namesrv, "P", check_awaited) as producer:
                async with producer.transaction(MESSAGE) as transaction:
                    transaction.leave_open()
                assert await asyncio.to_thread(is_over.wait, HANG_S)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(beside, work if facade is sync else lambda: asyncio.run(awaited()))
            try:
                await until_there(lambda: fake.stored)
                await ask(fake)
                await until_there(lambda: fake.group.ends)
            finally:
                is_over.set()
        assert [end.ext["commitOrRollback"] for end in fake.group.ends] == [COMMIT]
        ((keys, thread),) = asked
        assert keys == "order-1" and thread != "rmqha-client"


async def test_a_check_in_a_loop_that_has_ended_is_a_failed_one() -> None:
    async def left_open() -> aio.TransactionProducer:
        producer = await aio.TransactionProducer(fake.namesrv, "P", unasked_awaited).open()
        async with producer.transaction(MESSAGE) as transaction:
            transaction.leave_open()
        return producer

    async with FakeCluster() as fake:
        producers: list[aio.TransactionProducer] = []
        await beside(lambda: producers.append(asyncio.run(left_open())))
        await ask(fake)
        await until_there(lambda: producers[0].last_error)
        assert producers[0].last_error == "RuntimeError: Event loop is closed"
        await beside(lambda: asyncio.run(producers[0].close()))


@pytest.mark.parametrize("name", sorted(CLIENTS))
def test_a_trio_client_in_asyncio_says_which_to_take(name: str) -> None:
    async def use() -> None:
        async with CLIENTS[name]("127.0.0.1:1"):
            raise AssertionError("it must not open")

    with pytest.raises(UsageError, match=r"run in trio\.run\(\); take those of rmqha\.client\.aio for asyncio"):
        asyncio.run(use())


@pytest.mark.parametrize("kind", [Producer, sync.Producer, aio.Producer])
async def test_a_body_that_is_no_bytes_is_one_clear_sentence(kind: Any) -> None:
    sentence = r"^the body of a message for topic T is str, not bytes; encode it: body\.encode\(\)$"
    async with FakeCluster() as fake:
        if kind is Producer:
            async with Producer(fake.namesrv) as producer:
                with pytest.raises(UsageError, match=sentence):
                    await producer.send("T", "text")  # type: ignore[arg-type]
                with pytest.raises(UsageError, match=r"is int, not bytes$"):
                    await producer.send_batch([OutgoingMessage("T", 7)])  # type: ignore[arg-type]
        elif kind is sync.Producer:

            def send() -> None:
                with sync.Producer(fake.namesrv) as blocking, pytest.raises(UsageError, match=sentence):
                    blocking.send("T", "text")  # type: ignore[arg-type]

            await beside(send)
        else:

            async def send_awaited() -> None:
                async with aio.Producer(fake.namesrv) as awaited:
                    with pytest.raises(UsageError, match=sentence):
                        await awaited.send("T", "text")  # type: ignore[arg-type]

            await beside(lambda: asyncio.run(send_awaited()))


async def test_the_blocking_clients_send_and_read() -> None:
    async with FakeCluster() as fake:

        def work() -> None:
            here = threading.get_ident()
            seen: list[int] = []

            def told(position: int, message: OutgoingMessage, outcome: object) -> None:
                assert threading.get_ident() == here and not isinstance(outcome, RmqhaError)
                seen.append(position)

            def made() -> Iterator[OutgoingMessage]:
                assert threading.get_ident() == here
                for number in range(200):
                    yield OutgoingMessage("T", b"%03d" % number, key="one")

            with sync.Producer(fake.namesrv) as producer:
                assert producer.send("T", b"first", require_ok=True).status is sync.SendStatus.SEND_OK
                assert producer.send_many(made(), window=8, batch=4, on_result=told).acknowledged == 200
                assert sorted(seen) == list(range(200))
                assert producer.statistics()["acknowledged"] > 0
            with sync.Consumer(fake.namesrv, "G", "T") as consumer:
                found = []
                for message in consumer:
                    found.append(message.body)
                    if len(found) == 201:
                        break
                assert [body for body in found if body != b"first"] == [b"%03d" % number for number in range(200)]
                assert consumer.receive(timeout_ms=1) is None
                assert list(consumer.messages(idle_ms=1)) == []
            with sync.Admin(fake.namesrv) as admin:
                assert set(admin.route("T")["brokers"]) == {"g-a"}

        await beside(work)
        assert sum(offset for (group, _, _), offset in fake.group.offsets.items() if group == "G") == 201


async def test_what_the_application_raises_ends_send_many() -> None:
    async with FakeCluster() as fake:

        def work() -> None:
            def made() -> Iterator[OutgoingMessage]:
                yield OutgoingMessage("T", b"a")
                raise KeyError("no more")

            def told(position: int, message: OutgoingMessage, outcome: object) -> None:
                raise ValueError("not wanted")

            endless = iter(lambda: OutgoingMessage("T", b"b"), None)
            with sync.Producer(fake.namesrv) as producer:
                with pytest.raises(KeyError, match="no more"):
                    producer.send_many(made())
                with pytest.raises(ValueError, match="not wanted"):
                    producer.send_many(endless, on_result=told)
                with pytest.raises(UsageError, match="window"):
                    producer.send_many(endless, window=0)
                assert producer.send("T", b"c").status is sync.SendStatus.SEND_OK

        await beside(work)


@pytest.mark.parametrize("facade", [sync, aio])
async def test_what_the_iterable_raises_is_raised_once_all_before_it_are_told(facade: Any) -> None:
    async with FakeCluster() as fake:
        told: list[int] = []

        def made() -> Iterator[OutgoingMessage]:
            for number in range(9):
                yield OutgoingMessage("T", b"%d" % number)
            raise KeyError("no more")

        def tell(position: int, message: OutgoingMessage, outcome: object) -> None:
            told.append(position)

        def work() -> None:
            with sync.Producer(fake.namesrv) as producer, pytest.raises(KeyError, match="no more"):
                producer.send_many(made(), on_result=tell)

        async def awaited() -> None:
            async with aio.Producer(fake.namesrv) as producer:
                with pytest.raises(KeyError, match="no more"):
                    await producer.send_many(made(), on_result=tell)

        await beside(work if facade is sync else lambda: asyncio.run(awaited()))
        assert sorted(told) == list(range(9)) and len(fake.stored) == 9


async def test_open_and_close_do_without_a_block() -> None:
    async with FakeCluster() as fake:

        def work() -> None:
            producer = sync.Producer(fake.namesrv)
            with pytest.raises(UsageError, match=r"is not open: use it by `with`, or call open\(\)"):
                producer.send("T", b"x")
            producer.open()
            producer.send("T", b"x")
            producer.close()
            producer.close()
            with pytest.raises(UsageError, match="the client was closed: open another one"):
                producer.send("T", b"x")
            with pytest.raises(UsageError, match="opened once"):
                producer.open()
            sync.Producer(fake.namesrv).close()

        before = {thread.ident for thread in threading.enumerate() if thread.name == "rmqha-client"}
        await beside(work)
        assert {thread.ident for thread in threading.enumerate() if thread.name == "rmqha-client"} <= before


async def test_opening_raises_what_entering_does(tmp_path: Path) -> None:
    async with FakeCluster() as fake:

        def work() -> None:
            consumer = sync.Consumer(fake.namesrv, "G", "T", offset_file=tmp_path)
            with pytest.raises(StoreError, match=re.escape(str(tmp_path))):
                consumer.open()
            consumer.close()

        await beside(work)


async def test_a_call_that_waits_ends_with_the_client() -> None:
    async with FakeCluster() as fake:
        fill(fake.group, [])
        told: list[BaseException] = []

        def work() -> None:
            consumer = sync.Consumer(fake.namesrv, "G", "T").open()

            def wait() -> None:
                with pytest.raises(UsageError, match=r"closed while a call waited|the client was closed") as raised:
                    consumer.receive()
                told.append(raised.value)

            waiting = threading.Thread(target=wait)
            waiting.start()
            assert consumer.receive(timeout_ms=1) is None
            consumer.close()
            waiting.join(HANG_S)

        await beside(work)
        assert len(told) == 1


_FORK = """
import os, sys
from rmqha.client.sync import Producer
from rmqha.model.error import UsageError
producer = Producer("127.0.0.1:1").open()
child = os.fork()
if child:
    producer.statistics()
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
try:
    producer.statistics()
except UsageError as error:
    assert "forked" in str(error), error
else:
    raise AssertionError("a call in a fork has no thread that answers it")
"""


def test_in_a_fork_a_call_is_one_clear_sentence_and_the_end_waits_for_nobody() -> None:
    subprocess.run([sys.executable, "-c", _FORK], check=True, timeout=HANG_S)


async def test_a_call_that_is_cancelled_while_the_client_opens_does_it_no_harm() -> None:
    entered, portals = threading.Event(), list[Portal]()

    class Client(AbstractAsyncContextManager[None]):
        async def __aenter__(self) -> None:
            future = portals[0].submit(trio.lowlevel.checkpoint)
            assert future.cancel()
            await trio.testing.wait_all_tasks_blocked()
            entered.set()

        async def __aexit__(self, *error: object) -> None: ...

    portal = Portal(Client())
    portals.append(portal)
    await beside(portal.start().result)
    assert entered.is_set()
    await beside(portal.stop(by_error=False).result)


async def test_a_client_whose_opening_was_broken_off_at_once_is_not_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a consumer it would have queues that nobody reads."""
    entered: list[bool] = []
    has_stopped = threading.Event()

    class Client(AbstractAsyncContextManager[None]):
        async def __aenter__(self) -> None:
            entered.append(True)

        async def __aexit__(self, *error: object) -> None: ...

    run = trio.run

    def run_late(main: Any) -> Any:
        has_stopped.wait(HANG_S)
        return run(main)

    def work() -> None:
        portal = Portal(Client())
        with monkeypatch.context() as patch:
            patch.setattr("rmqha.client.portal.trio.run", run_late)
            started, stopped = portal.start(), portal.stop(by_error=True)
            has_stopped.set()
            assert stopped.result(HANG_S) is None and not entered
        with pytest.raises(UsageError, match="the client was closed"):
            started.result(HANG_S)

    await beside(work)


async def test_a_block_that_an_error_ends_leaves_its_message_unfinished() -> None:
    async with FakeCluster() as fake:
        fill(fake.group, "ab", queue_count=1)

        def work() -> None:
            with pytest.raises(KeyError), sync.Consumer(fake.namesrv, "G", "T") as consumer:
                consumer.receive()
                raise KeyError
            with sync.Consumer(fake.namesrv, "G", "T") as consumer:
                message = consumer.receive()
                assert message is not None and message.body == b"a"

        await beside(work)


async def test_a_cancelled_receive_loses_nothing() -> None:
    """Broken off at any moment, in both worlds: each message comes once, in order."""
    async with FakeCluster() as fake:
        fill(fake.group, [f"{number:03}" for number in range(100)], queue_count=1)
        found: list[bytes] = []

        async def awaited() -> None:
            async with aio.Consumer(fake.namesrv, "G", "T") as consumer:
                turns = 0
                while len(found) < 100:
                    turns += 1
                    task = asyncio.ensure_future(consumer.receive())
                    for _ in range(turns % 7):
                        await asyncio.sleep(0)
                    if turns % 2:
                        task.cancel()
                    try:
                        found.append((await task).body)
                    except asyncio.CancelledError:
                        continue

        await beside(lambda: asyncio.run(awaited()))
        assert found == [b"%03d" % number for number in range(100)]


async def test_a_receive_that_may_not_wait_gives_what_has_come() -> None:
    async with FakeCluster() as fake:
        fill(fake.group, "abcdef", queue_count=1)  # the fake gives three at once

        def work() -> None:
            with sync.Consumer(fake.namesrv, "G", "T") as consumer:
                first = consumer.receive()
                second, third = consumer.receive(timeout_ms=0), consumer.receive(timeout_ms=0)
                assert [getattr(message, "body", None) for message in (first, second, third)] == [b"a", b"b", b"c"]
                batch = until(lambda: consumer.receive_batch(timeout_ms=0))
                assert batch is not None and [bytes(view.body) for view in batch] == [b"d", b"e", b"f"]
                assert consumer.receive(timeout_ms=0) is None and consumer.receive_batch(timeout_ms=-1) is None
                consumer.commit()
                assert fake.group.offsets["G", "T", 0] == 6

        await beside(work)


async def test_a_pop_s_receive_that_may_not_wait_gives_what_has_come() -> None:
    async with FakeCluster({"g-a": 1}) as fake:
        Pops([[stored(b"a", 4), stored(b"b", 5)], [stored(b"c", 6)]]).put_to(fake.group.master)

        def work() -> None:
            with sync.PopConsumer(fake.namesrv, "G", "T") as consumer:
                first, second = consumer.receive(), consumer.receive(timeout_ms=0)
                assert first is not None and second is not None
                assert (first.body, second.body) == (b"a", b"b")
                third = until(lambda: consumer.receive(timeout_ms=0))
                assert third is not None and third.body == b"c"
                assert consumer.receive(timeout_ms=0) is None

        await beside(work)


async def test_a_popped_message_that_a_caller_has_not_got_is_not_given_after_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_ms = [0]
    monkeypatch.setattr(pop_consumer, "_now_ms", lambda: now_ms[0])
    async with FakeCluster({"g-a": 1}) as fake:
        Pops([[stored(b"a", 4), stored(b"b", 5)]]).put_to(fake.group.master)

        def work() -> None:
            with sync.PopConsumer(fake.namesrv, "G", "T", invisible_ms=1000) as consumer:

                def give_up() -> None:
                    """The call ends by Ctrl-C while its answer comes."""

                    class Interrupted(Future[Any]):
                        def result(self, timeout: float | None = None) -> Any:
                            found = super().result(timeout)
                            if not interrupted:
                                interrupted.append(True)
                                raise KeyboardInterrupt
                            return found

                    interrupted: list[bool] = []
                    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
                        patch.setattr("rmqha.client.portal.Future", Interrupted)
                        consumer.receive()

                give_up()
                again = consumer.receive()
                assert again is not None and again.body == b"a" and consumer.statistics()["received"] == 1
                give_up()
                now_ms[0] = 1000
                assert consumer.receive(timeout_ms=0) is None, "another consumer has it by now"
                assert (consumer.statistics()["received"], consumer.statistics()["expired"]) == (1, 1)

        await beside(work)


async def test_what_a_caller_has_not_got_is_kept_and_not_finished() -> None:
    async with FakeCluster() as fake:
        fill(fake.group, "ab", queue_count=1)

        def work() -> None:
            with sync.Consumer(fake.namesrv, "G", "T") as consumer:
                message = consumer.receive()
                consumer._reading.keep(message)
                with pytest.raises(UsageError, match=r"get it by receive\(\) first"):
                    consumer.receive_batch()
                assert consumer.receive() == message
                consumer._reading.keep(message)
            with sync.Consumer(fake.namesrv, "G", "T") as consumer:
                assert consumer.receive() == message

        await beside(work)


async def test_the_clients_for_asyncio_send_and_read() -> None:
    async with FakeCluster() as fake:

        async def work() -> None:
            seen: list[int] = []

            def told(position: int, message: OutgoingMessage, outcome: object) -> None:
                seen.append(position)

            async def made() -> Any:
                for number in range(100):
                    yield OutgoingMessage("T", b"%03d" % number, key="one")

            async with aio.Producer(fake.namesrv) as producer:
                sent = [producer.send("T", b"x", require_ok=True) for _ in range(10)]
                assert {result.status for result in await asyncio.gather(*sent)} == {aio.SendStatus.SEND_OK}
                assert (await producer.send_many(made(), window=8, on_result=told)).acknowledged == 100
                assert sorted(seen) == list(range(100))
                assert (await producer.send_many([OutgoingMessage("T", b"y")])).acknowledged == 1
                with pytest.raises(UsageError, match="window"):
                    await producer.send_many(made(), window=0)
                assert (await producer.statistics())["acknowledged"] == 111
            found: list[bytes] = []
            async with aio.Consumer(fake.namesrv, "G", "T") as consumer:
                async for batch in consumer.batches():
                    found += [bytes(view.body) for view in batch]
                    if len(found) == 111:
                        break
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(consumer.receive(), 0.001)
            assert [body for body in found if body not in (b"x", b"y")] == [b"%03d" % number for number in range(100)]
            async with aio.Admin(fake.namesrv) as admin:
                assert set((await admin.route("T"))["brokers"]) == {"g-a"}

        await beside(lambda: asyncio.run(work()))


async def test_a_blocking_client_works_where_a_loop_runs() -> None:
    """A notebook's cell runs within asyncio."""
    async with FakeCluster() as fake:

        async def cell() -> None:
            with sync.Producer(fake.namesrv) as producer:
                assert producer.send("T", b"x", timeout_ms=HANG_MS).status is sync.SendStatus.SEND_OK

        await beside(lambda: asyncio.run(cell()))
