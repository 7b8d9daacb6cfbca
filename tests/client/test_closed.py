"""Calls on a client that is closed, or was never opened: each fails at once with one clear sentence."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
import trio
import trio.testing

from rmqha.client import aio, sync
from rmqha.client.admin import Admin
from rmqha.client.consumers.consumer import Consumer
from rmqha.client.consumers.message import Message
from rmqha.client.consumers.pop_consumer import PopConsumer, PoppedMessage
from rmqha.client.portal import Portal
from rmqha.client.producers.outgoing import OutgoingMessage
from rmqha.client.producers.producer import Producer
from rmqha.client.producers.result import SendResult, SendStatus
from rmqha.client.producers.transaction import Outcome, TransactionProducer
from rmqha.client.session import ClosedError
from rmqha.model.error import RemoteError, UnreachableError, UsageError
from rmqha.wire.state.receipt import NORMAL, Receipt
from tests.client.consumers.test_consumer import fill
from tests.client.fake import Do, FakeCluster
from tests.support.patience import HANG_S, until

MESSAGE = OutgoingMessage("T", b"x")
GIVEN = Message("T", "g-a", 0, 0, 0, b"x", {}, "7F00000100002A9F0000000000000000", 0, 0, 0, 0)  # type: ignore[arg-type]
POPPED = PoppedMessage(GIVEN, Receipt(0, 1, 2, 0, NORMAL, "g-a", 0, 0), 1 << 60, 1)
HALF = SendResult(SendStatus.SEND_OK, "U", "7F00000100002A9F0000000000000000", "g-a", 0, 0, 1, 0)
LONG_MS = 1000 * HANG_S
"""A call that tried again until then would hang the test."""


async def never(message: Message) -> Outcome:
    raise AssertionError(message)


CLIENTS: dict[str, Callable[[str], Any]] = {
    "producer": Producer,
    "transactions": lambda namesrv: TransactionProducer(namesrv, "P", never),
    "consumer": lambda namesrv: Consumer(namesrv, "G", "T"),
    "pop": lambda namesrv: PopConsumer(namesrv, "G", "T"),
    "admin": Admin,
}
CALLS: dict[str, tuple[str, Callable[[Any], Awaitable[object]]]] = {
    "send": ("producer", lambda client: client.send("T", b"x", timeout_ms=LONG_MS)),
    "send_ordered": ("producer", lambda client: client.send("T", b"x", key="k", timeout_ms=LONG_MS)),
    "send_batch": ("producer", lambda client: client.send_batch([MESSAGE], timeout_ms=LONG_MS)),
    "send_oneway": ("producer", lambda client: client.send_oneway(MESSAGE)),
    "send_many": ("producer", lambda client: client.send_many([MESSAGE])),
    "recall": ("producer", lambda client: client.recall("djEgVCBnLWEgMSBV", timeout_ms=LONG_MS)),
    "prepare": ("transactions", lambda client: client.prepare(MESSAGE, LONG_MS)),
    "end": ("transactions", lambda client: client.end(HALF, "T", Outcome.COMMIT, LONG_MS)),
    "retry": ("consumer", lambda client: client.retry(GIVEN)),
    "commit": ("consumer", lambda client: client.commit()),
    "refused": ("consumer", lambda client: client.refused()),
    "receive": ("consumer", lambda client: client.receive()),
    "receive_batch": ("consumer", lambda client: client.receive_batch()),
    "ack": ("pop", lambda client: client.ack(POPPED)),
    "nack": ("pop", lambda client: client.nack(POPPED)),
    "dead_letter": ("pop", lambda client: client.dead_letter(POPPED)),
    "topics": ("admin", lambda client: client.topics()),
    "route": ("admin", lambda client: client.route("T")),
    "replica_state": ("admin", lambda client: client.replica_state("127.0.0.1:1")),
}


@pytest.mark.parametrize("name", CALLS)
async def test_a_call_of_a_client_that_is_not_open_fails_at_once(name: str) -> None:
    kind, call = CALLS[name]
    async with FakeCluster({"g-a": 1}) as fake:
        client = CLIENTS[kind](fake.namesrv)
        with trio.fail_after(HANG_S):
            with pytest.raises(UsageError, match=r"^the client is not open: use it by `async with`$"):
                await call(client)
            async with client:
                pass
            began = trio.current_time()
            with pytest.raises(UsageError, match=r"^the client was closed: open another one$"):
                await call(client)
        if name in ("retry", "ack", "nack", "dead_letter"):
            assert trio.current_time() - began < 5, "they try again for ten seconds"


async def test_a_call_under_way_ends_with_the_client() -> None:
    async with FakeCluster({"g-a": 1}) as fake:
        fake.group.master.script = lambda node, command: Do.HANG
        ended: list[str] = []

        async def send(producer: Producer) -> None:
            with pytest.raises(UsageError, match="the client was closed"):
                await producer.send("T", b"x", timeout_ms=LONG_MS)
            ended.append("send")

        async def refused(consumer: Consumer) -> None:
            with pytest.raises(UsageError, match="the client was closed"):
                await consumer.refused()
            ended.append("refused")

        with trio.fail_after(HANG_S):
            async with (
                trio.open_nursery() as nursery,
                Producer(fake.namesrv) as producer,
                Consumer(fake.namesrv, "G", "T") as consumer,
            ):
                nursery.start_soon(send, producer)
                nursery.start_soon(refused, consumer)
                await fake.group.master.asked.wait()
                await trio.testing.wait_all_tasks_blocked()
        assert sorted(ended) == ["refused", "send"]


@pytest.mark.parametrize("batch", [1, 4])
async def test_send_many_takes_nothing_more_once_its_producer_is_closed(batch: int) -> None:
    """It would go through an endless source, and fail each message of it."""
    taken: list[int] = []

    async def endless() -> AsyncIterator[OutgoingMessage]:
        while True:
            taken.append(1)
            assert len(taken) < 10_000
            yield MESSAGE

    async with FakeCluster({"g-a": 1}) as fake:
        fake.group.master.script = lambda node, command: Do.HANG
        told: list[object] = []

        async def send_all(producer: Producer) -> None:
            with pytest.raises(ClosedError, match=r"^the client was closed: open another one$"):
                await producer.send_many(
                    endless(),
                    window=4,
                    batch=batch,
                    timeout_ms=LONG_MS,
                    on_result=lambda position, message, outcome: told.append(outcome),
                )

        with trio.fail_after(HANG_S):
            async with trio.open_nursery() as nursery, Producer(fake.namesrv) as producer:
                nursery.start_soon(send_all, producer)
                await fake.group.master.asked.wait()
                await trio.testing.wait_all_tasks_blocked()
        assert len(taken) <= 6
        assert len(told) >= 4 and all(isinstance(outcome, UsageError) for outcome in told)


@pytest.mark.parametrize("kind", CLIENTS)
async def test_a_client_is_opened_once(kind: str) -> None:
    """A consumer that was opened again would read none of the queues that it had."""
    async with FakeCluster() as fake:
        client = CLIENTS[kind](fake.namesrv)
        async with client:
            pass
        if kind == "admin":
            return
        with pytest.raises(UsageError, match=r"^a client is opened once; make another one$"):
            async with client:
                raise AssertionError("it must not open")


async def test_an_opening_that_failed_may_be_tried_again() -> None:
    async with FakeCluster() as fake:
        fill(fake.group, "a")
        fake.name_servers[0].topics.clear()
        consumer = Consumer(fake.namesrv, "G", "T")
        with pytest.raises(Exception, match="does not exist"):
            async with consumer:
                raise AssertionError("it must not open")
        fake.name_servers[0].topics.add("T")
        with trio.fail_after(HANG_S):
            async with consumer:
                assert (await consumer.receive()).body == b"a"


async def test_a_facade_whose_opening_failed_may_be_opened_again() -> None:
    async with FakeCluster() as fake:
        fill(fake.group, "a")

        def blocking() -> None:
            consumer = sync.Consumer(fake.namesrv, "G", "T")
            for _ in range(2):
                with pytest.raises(RemoteError, match="does not exist"):
                    consumer.open()
            fake.name_servers[0].topics.add("T")
            with consumer:
                message = consumer.receive(timeout_ms=LONG_MS)
                assert message is not None and message.body == b"a"
            with pytest.raises(UsageError, match="opened once"):
                consumer.open()

        async def awaited() -> None:
            consumer = aio.Consumer(fake.namesrv, "H", "T")
            with pytest.raises(RemoteError, match="does not exist"):
                await consumer.open()
            fake.name_servers[0].topics.add("T")
            async with consumer:
                assert (await consumer.receive()).body == b"a"

        with trio.fail_after(HANG_S):
            for work in (blocking, lambda: asyncio.run(awaited())):
                fake.name_servers[0].topics.clear()
                await trio.to_thread.run_sync(work)


def test_a_facade_that_got_no_thread_may_be_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    portal = Portal(Client())
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="new thread"):
        patch.setattr(threading.Thread, "start", refuse)
        portal.start()
    portal.start().result(HANG_S)
    portal.stop(by_error=False).result(HANG_S)


class Client(AbstractAsyncContextManager[None]):
    def __init__(self) -> None:
        self.was_entered = False

    async def __aenter__(self) -> None:
        self.was_entered = True

    async def __aexit__(self, *error: object) -> None: ...


def test_what_was_closed_before_it_was_opened_stays_closed() -> None:
    client = Client()
    portal = Portal(client)
    portal.stop(by_error=False).result(HANG_S)
    with pytest.raises(UsageError, match=r"^the client was closed: open another one$"):
        portal.start()
    portal.stop(by_error=False).result(HANG_S)
    assert not client.was_entered
    producer = sync.Producer("127.0.0.1:1")
    producer.close()
    with pytest.raises(UsageError, match=r"^the client was closed: open another one$"):
        producer.open()


def test_a_stop_while_the_thread_starts_stops_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C may come while `open` waits for the thread to begin."""
    client = Client()
    portal = Portal(client)
    start, stopped = threading.Thread.start, list[Any]()

    def stop_first(thread: threading.Thread) -> None:
        if thread.name == "rmqha-client":
            stopped.append(portal.stop(by_error=True))
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", stop_first)
    with pytest.raises(UsageError, match=r"^the client was closed: open another one$"):
        portal.start().result(HANG_S)
    stopped[0].result(HANG_S)
    assert not client.was_entered


def test_a_ctrl_c_while_the_thread_starts_opens_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        raise KeyboardInterrupt

    producer = sync.Producer("127.0.0.1:1")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(threading.Thread, "start", interrupted)
        producer.open()
    producer.close()
    with pytest.raises(UsageError, match=r"^the client was closed: open another one$"):
        producer.send("T", b"x")


def test_a_machine_without_a_thread_left_leaves_nothing_to_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    producer = sync.Producer("127.0.0.1:1")
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="new thread"):
        patch.setattr(threading.Thread, "start", refuse)
        producer.open()
    producer.close()


async def test_a_facade_that_was_closed_says_so() -> None:
    producer, consumer = sync.Producer("127.0.0.1:1"), aio.Consumer("127.0.0.1:1", "G", "T")
    producer.open()
    producer.close()
    with pytest.raises(UsageError, match=r"^the client was closed: open another one$"):
        producer.send("T", b"x")
    with pytest.raises(UnreachableError):
        consumer._portal.start().result(HANG_S)


@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), ValueError("x"), ExceptionGroup("two", [ValueError("y")])], ids=repr
)
async def test_what_ends_a_block_leaves_it_as_it_is(kind: str, error: BaseException) -> None:
    """Else `sys.exit(3)` in a block ends by another code, and no `except KeyboardInterrupt` around it sees Ctrl-C."""
    async with FakeCluster({"g-a": 1}) as fake:
        with pytest.raises(type(error)) as raised:
            async with CLIENTS[kind](fake.namesrv):
                raise error
        assert raised.value is error


@pytest.mark.parametrize("kind", CLIENTS)
async def test_a_block_that_is_cancelled_ends_with_its_scope(kind: str) -> None:
    async with FakeCluster({"g-a": 1}) as fake:
        with trio.CancelScope() as scope:
            async with CLIENTS[kind](fake.namesrv):
                scope.cancel()
                await trio.sleep_forever()
        assert scope.cancelled_caught


async def test_iterating_a_facade_ends_with_it() -> None:
    """As iterating the trio client does."""
    async with FakeCluster({"g-a": 1}) as fake:
        fill(fake.group, "ab", queue_count=1)
        found: list[bytes] = []

        def read() -> None:
            consumer = sync.Consumer(fake.namesrv, "G", "T").open()

            def iterate() -> None:
                found.extend(message.body for message in consumer)
                found.extend(bytes(view.body) for batch in consumer.batches() for view in batch)
                found.append(b"end")

            reader = threading.Thread(target=iterate)
            reader.start()
            until(lambda: consumer.statistics()["received"] == 2)
            consumer.close()
            reader.join(HANG_S)

        async def awaited() -> None:
            consumer = aio.Consumer(fake.namesrv, "H", "T")
            await consumer.open()

            async def iterate() -> None:
                async for message in consumer:
                    found.append(message.body)
                async for _ in consumer.batches():
                    raise AssertionError("it is closed")
                found.append(b"end")

            task = asyncio.ensure_future(iterate())
            while (await consumer.statistics())["received"] < 2:  # noqa: ASYNC110 - a test looks from outside
                await asyncio.sleep(0.005)
            await consumer.close()
            await task

        with trio.fail_after(HANG_S):
            await trio.to_thread.run_sync(read)
            await trio.to_thread.run_sync(lambda: asyncio.run(awaited()))
        assert found == [b"a", b"b", b"end"] * 2


def test_a_call_in_the_moment_of_the_end_is_too_late_and_breaks_nothing() -> None:
    """Trio runs what is due at once in any order: each round may have the one that broke it."""
    for _ in range(30):
        portal, began, late = Portal(Client()), threading.Event(), list[Future[None]]()

        async def ask_at_the_end(
            portal: Portal = portal, began: threading.Event = began, late: list[Future[None]] = late
        ) -> None:
            began.set()
            try:
                await trio.sleep_forever()
            finally:
                late.append(portal.submit(trio.lowlevel.checkpoint))

        portal.start().result(HANG_S)
        portal.submit(ask_at_the_end)
        assert began.wait(HANG_S)
        portal.stop(by_error=False).result(HANG_S)
        with pytest.raises(UsageError, match="the client was closed"):
            late[0].result(HANG_S)
