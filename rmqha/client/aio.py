"""Clients for asyncio: `from rmqha.client.aio import Producer, Consumer, Admin`.

Each runs the trio client of its name in a thread of its own; a method here is the one there, to be awaited in any
asyncio loop. A call that is cancelled is cancelled there too.
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, suppress
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast

import trio

from rmqha.client.admin import TIMEOUT_MS
from rmqha.client.admin import Admin as TrioAdmin
from rmqha.client.compression import MAX_BODY_BYTES
from rmqha.client.consumers.consumer import Consumer as TrioConsumer
from rmqha.client.consumers.consumer import Start
from rmqha.client.consumers.message import Message, MessageBatch, MessageView
from rmqha.client.consumers.pop_consumer import INVISIBLE_MS, POP_COUNT, PoppedMessage
from rmqha.client.consumers.pop_consumer import PopConsumer as TrioPopConsumer
from rmqha.client.consumers.read_range import ReadRange
from rmqha.client.portal import ConsumerReading, MessageFeed, Portal, Receive, TransactionControl
from rmqha.client.producers.outgoing import OutgoingMessage
from rmqha.client.producers.producer import SEND_TIMEOUT_MS
from rmqha.client.producers.producer import Producer as TrioProducer
from rmqha.client.producers.result import OnResult, SendResult, SendStatus, SendTally
from rmqha.client.producers.transaction import Outcome
from rmqha.client.producers.transaction import Transaction as TrioTransaction
from rmqha.client.producers.transaction import TransactionProducer as TrioTransactionProducer
from rmqha.client.session import ClosedError
from rmqha.host.access.security import Security
from rmqha.model.error import RmqhaError

__all__ = [
    "Admin",
    "Consumer",
    "Message",
    "MessageBatch",
    "MessageView",
    "Outcome",
    "OutgoingMessage",
    "PopConsumer",
    "PoppedMessage",
    "Producer",
    "SendResult",
    "SendStatus",
    "SendTally",
    "Transaction",
    "TransactionProducer",
]

T = TypeVar("T")
P = ParamSpec("P")
ClientT = TypeVar("ClientT", bound=AbstractAsyncContextManager[Any])
SelfT = TypeVar("SelfT", bound="Awaited[Any]")


class Awaited(Generic[ClientT]):
    """Async context manager around a trio client; `open` and `close` do the same where a block does not fit."""

    def __init__(self, client: ClientT) -> None:
        self._client = client
        self._portal = Portal(client)
        self._loop: asyncio.AbstractEventLoop | None = None
        """The loop of the application, once it has opened the client."""

    async def open(self: SelfT) -> SelfT:
        """Connect. Raises as entering the trio client does, and may be tried again then; UsageError if it is open or
        was."""
        self._loop = asyncio.get_running_loop()
        started = self._portal.start()
        try:
            await asyncio.shield(asyncio.wrap_future(started))
        except asyncio.CancelledError:
            self._portal.stop(by_error=True)
            raise
        return self

    async def close(self) -> None:
        """Close the client; calls under way fail. A second call does nothing."""
        await self._leave(by_error=False)

    async def __aenter__(self: SelfT) -> SelfT:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._leave(by_error=error is not None)

    async def _leave(self, *, by_error: bool) -> None:
        await asyncio.shield(asyncio.wrap_future(self._portal.stop(by_error=by_error)))

    async def _wait(self, future: Future[T], late: Callable[[T], None] | None = None) -> T:
        """Value of the future. `late` gets the value of a cancelled call that had ended all the same."""
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if not future.cancel() and late is not None and future.exception() is None:
                late(future.result())
            raise


def awaited(
    method: Callable[Concatenate[ClientT, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Awaited[ClientT], P], Coroutine[Any, Any, T]]:
    """The method of the trio client, awaited in asyncio."""

    @functools.wraps(method)
    async def call(self: Awaited[ClientT], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._wait(self._portal.submit(lambda: method(self._client, *args, **kwargs)))

    return call


def immediate(method: Callable[[ClientT], T]) -> Callable[[Awaited[ClientT]], Coroutine[Any, Any, T]]:
    """The method that waits for nothing, called where the client runs: its state does not change meanwhile."""

    @functools.wraps(method)
    async def call(self: Awaited[ClientT]) -> T:
        async def read() -> T:
            return cast("T", getattr(self._client, method.__name__)())  # a client of a subclass may have its own

        return await self._wait(self._portal.submit(read))

    return call


class AwaitedProducer(Awaited[TrioProducer]):
    """Producer for asyncio; any number of tasks may send at the same time."""

    def __init__(
        self,
        namesrv: str,
        group: str = "rmqha-producer",
        *,
        compression: str | None = "zlib",
        security: Security | None = None,
    ) -> None:
        """Take what `rmqha.client.Producer` takes."""
        super().__init__(TrioProducer(namesrv, group, compression=compression, security=security))

    route = awaited(TrioProducer.route)
    send = awaited(TrioProducer.send)
    send_message = awaited(TrioProducer.send_message)
    send_batch = awaited(TrioProducer.send_batch)
    send_oneway = awaited(TrioProducer.send_oneway)
    recall = awaited(TrioProducer.recall)
    statistics = immediate(TrioProducer.statistics)

    async def send_many(
        self,
        messages: Iterable[OutgoingMessage] | AsyncIterable[OutgoingMessage],
        *,
        window: int = 64,
        batch: int = 1,
        timeout_ms: int = SEND_TIMEOUT_MS,
        require_ok: bool = True,
        on_result: OnResult | None = None,
    ) -> SendTally:
        """Send all, at most `window` on their way at once, as `rmqha.client.Producer.send_many`. `messages` is
        iterated, and `on_result` called, in the loop; what `on_result` raises is told to the loop's handler."""
        loop, room = asyncio.get_running_loop(), asyncio.Semaphore(max(window, 1))
        feed = MessageFeed(self._portal, lambda: _tell(loop, room.release))

        def keep(position: int, message: OutgoingMessage, outcome: SendResult | RmqhaError) -> None:
            if on_result is not None:
                _tell(loop, functools.partial(on_result, position, message, outcome))

        future = self._portal.submit(
            lambda: self._client.send_many(
                feed, window=window, batch=batch, timeout_ms=timeout_ms, require_ok=require_ok, on_result=keep
            )
        )
        future.add_done_callback(lambda _: _tell(loop, room.release))
        failure: Exception | None = None
        try:
            source = _each(messages)
            while True:
                try:
                    message = await anext(source)
                except StopAsyncIteration:
                    break
                except Exception as error:  # noqa: BLE001 - raised once all before it have been told
                    failure = error
                    break
                await room.acquire()
                if future.done():
                    break
                feed.put(message)
            feed.end()
            tally = await self._wait(future)
        except BaseException as error:
            future.cancel()
            if failure is not None and isinstance(error, RmqhaError):
                raise failure from error
            raise
        if failure is not None:
            raise failure
        return tally


class AwaitedTransaction(TransactionControl):
    """Async context manager around the application's own transaction. Entering stores the half message; leaving
    commits, or rolls back after `rollback()`; an exception decides nothing (see `rmqha.client.Transaction`)."""

    def __init__(self, producer: AwaitedTransactionProducer, transaction: TrioTransaction) -> None:
        super().__init__(transaction)
        self._producer = producer

    async def __aenter__(self) -> AwaitedTransaction:
        """Store the half message. Raises as `Producer.send`; then the application must not begin."""
        await self._producer._wait(self._producer._portal.submit(self._transaction.__aenter__))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        leave = self._transaction.__aexit__
        await self._producer._wait(self._producer._portal.submit(lambda: leave(kind, error, trace)))


class AwaitedTransactionProducer(AwaitedProducer):
    """Producer for asyncio that also sends messages within transactions. `check` runs in the loop that opened it."""

    def __init__(
        self,
        namesrv: str,
        group: str,
        check: Callable[[Message], Coroutine[Any, Any, Outcome]],
        *,
        topics: Sequence[str] = (),
        compression: str | None = "zlib",
        security: Security | None = None,
    ) -> None:
        """Take what `rmqha.client.TransactionProducer` takes."""
        self._check = check
        self._transactions = TrioTransactionProducer(
            namesrv, group, self._answer, topics=topics, compression=compression, security=security
        )
        Awaited.__init__(self, self._transactions)

    async def _answer(self, message: Message) -> Outcome:
        """Run `check` in the application's loop. Raises what it raises, RuntimeError if that loop has ended."""
        assert self._loop is not None, "a broker asks an open producer"
        ended, token = trio.Event(), trio.lowlevel.current_trio_token()
        asked = self._check(message)
        try:
            answer = asyncio.run_coroutine_threadsafe(asked, self._loop)
        except RuntimeError:
            asked.close()
            raise
        answer.add_done_callback(lambda _: token.run_sync_soon(ended.set))
        try:
            await ended.wait()
        except trio.Cancelled:
            answer.cancel()
            raise
        return answer.result()

    def transaction(self, message: OutgoingMessage, *, timeout_ms: int = SEND_TIMEOUT_MS) -> AwaitedTransaction:
        """Context manager of one transaction: `async with producer.transaction(message) as transaction: ...`."""
        return AwaitedTransaction(self, self._transactions.transaction(message, timeout_ms=timeout_ms))

    async def prepare(self, message: OutgoingMessage, timeout_ms: int = SEND_TIMEOUT_MS) -> SendResult:
        """Store the half message; the caller must call `end`."""
        return await self._wait(self._portal.submit(lambda: self._transactions.prepare(message, timeout_ms)))

    async def end(self, half: SendResult, topic: str, outcome: Outcome, timeout_ms: int = SEND_TIMEOUT_MS) -> bool:
        """Tell the master the outcome; False: a broker will ask."""
        return await self._wait(self._portal.submit(lambda: self._transactions.end(half, topic, outcome, timeout_ms)))

    @property
    def last_error(self) -> str:
        """The reason why the last end or answer was not taken, or the last `check` failed; "" if none did."""
        return self._transactions.last_error


class AwaitedConsumer(Awaited[TrioConsumer]):
    """Consumer for asyncio and async iterator of Message; one task reads from it.

    A message (or batch) counts as finished when the next one is asked for, the last one when the block ends without an
    error, or at `close`."""

    def __init__(
        self,
        namesrv: str,
        group: str,
        topic: str,
        tags: str = "*",
        *,
        selector: str = "",
        start: Start = "committed",
        standalone: bool = False,
        read_range: ReadRange | None = None,
        offset_file: str | os.PathLike[str] | None = None,
        security: Security | None = None,
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        """Take what `rmqha.client.Consumer` takes."""
        super().__init__(
            TrioConsumer(
                namesrv,
                group,
                topic,
                tags,
                selector=selector,
                start=start,
                standalone=standalone,
                read_range=read_range,
                offset_file=offset_file,
                security=security,
                max_body_bytes=max_body_bytes,
            )
        )
        self._reading = ConsumerReading()

    commit = awaited(TrioConsumer.commit)
    retry = awaited(TrioConsumer.retry)
    refused = awaited(TrioConsumer.refused)
    assignment = immediate(TrioConsumer.assignment)
    statistics = immediate(TrioConsumer.statistics)

    async def receive(self) -> Message:
        """The next message; bound it with `asyncio.wait_for`. Raises as `rmqha.client.Consumer.receive`."""
        return await self._next(self._client.receive, Message)

    async def receive_batch(self) -> MessageBatch:
        """The next messages of one queue."""
        return await self._next(self._client.receive_batch, MessageBatch)

    async def batches(self) -> AsyncIterator[MessageBatch]:
        """All messages as they arrive, in batches whose messages are decoded when they are used."""
        with suppress(ClosedError):
            while True:
                yield await self.receive_batch()

    async def __aiter__(self) -> AsyncIterator[Message]:
        with suppress(ClosedError):
            while True:
                yield await self.receive()

    async def _leave(self, *, by_error: bool) -> None:
        # what nobody has got is not finished
        await super()._leave(by_error=by_error or self._reading.is_behind)

    async def _next(self, receive: Receive[T], kind: type[T]) -> T:
        keep = cast("Callable[[T | None], None]", self._reading.keep)
        taken = await self._wait(self._portal.submit(lambda: self._reading.next(receive, kind, None), keep), keep)
        assert taken is not None, "without a limit of time something comes"
        return taken


class AwaitedPopConsumer(Awaited[TrioPopConsumer]):
    """Pop consumer for asyncio and async iterator of PoppedMessage; one task reads from it, any may acknowledge."""

    def __init__(
        self,
        namesrv: str,
        group: str,
        topic: str,
        tags: str = "*",
        *,
        selector: str = "",
        ordered: bool = False,
        invisible_ms: int = INVISIBLE_MS,
        count: int = POP_COUNT,
        security: Security | None = None,
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        """Take what `rmqha.client.PopConsumer` takes."""
        super().__init__(
            TrioPopConsumer(
                namesrv,
                group,
                topic,
                tags,
                selector=selector,
                ordered=ordered,
                invisible_ms=invisible_ms,
                count=count,
                security=security,
                max_body_bytes=max_body_bytes,
            )
        )
        self._reading = ConsumerReading()

    def _put_back(self, message: PoppedMessage | None) -> None:
        # in the client's thread, before its next call
        self._portal.soon(lambda: self._client._put_back(message))

    ack = awaited(TrioPopConsumer.ack)
    nack = awaited(TrioPopConsumer.nack)
    dead_letter = awaited(TrioPopConsumer.dead_letter)
    extend = awaited(TrioPopConsumer.extend)
    statistics = immediate(TrioPopConsumer.statistics)

    async def receive(self) -> PoppedMessage:
        """The next message; bound it with `asyncio.wait_for`. Raises as `rmqha.client.PopConsumer.receive`."""
        receive, keep = self._client.receive, self._put_back
        taken = await self._wait(
            self._portal.submit(lambda: self._reading.next(receive, PoppedMessage, None), keep), keep
        )
        assert taken is not None, "without a limit of time something comes"
        return taken

    async def __aiter__(self) -> AsyncIterator[PoppedMessage]:
        with suppress(ClosedError):
            while True:
                yield await self.receive()


class AwaitedAdmin(Awaited[TrioAdmin]):
    """Client for administration of name servers, brokers and controllers, for asyncio."""

    def __init__(self, namesrv: str, timeout_ms: int = TIMEOUT_MS, *, security: Security | None = None) -> None:
        """Take what `rmqha.client.Admin` takes."""
        super().__init__(TrioAdmin(namesrv, timeout_ms, security=security))

    cluster_info = awaited(TrioAdmin.cluster_info)
    route = awaited(TrioAdmin.route)
    topics = awaited(TrioAdmin.topics)
    create_topic = awaited(TrioAdmin.create_topic)
    delete_topic = awaited(TrioAdmin.delete_topic)
    progress = awaited(TrioAdmin.progress)
    reset_offsets = awaited(TrioAdmin.reset_offsets)
    query_message = awaited(TrioAdmin.query_message)
    read_queue = awaited(TrioAdmin.read_queue)
    replica_state = awaited(TrioAdmin.replica_state)
    history = awaited(TrioAdmin.history)
    controller_state = awaited(TrioAdmin.controller_state)
    epochs = awaited(TrioAdmin.epochs)
    controller_metadata = awaited(TrioAdmin.controller_metadata)
    sync_state = awaited(TrioAdmin.sync_state)
    elect_master = awaited(TrioAdmin.elect_master)
    ask = awaited(TrioAdmin.ask)
    statistics = immediate(TrioAdmin.statistics)


Producer = AwaitedProducer
Consumer = AwaitedConsumer
PopConsumer = AwaitedPopConsumer
Admin = AwaitedAdmin
Transaction = AwaitedTransaction
TransactionProducer = AwaitedTransactionProducer


def _tell(loop: asyncio.AbstractEventLoop, work: Callable[[], object]) -> None:
    """Run `work` in the loop, called from the client's thread; nothing is done for a loop that has ended."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(work)


async def _each(messages: Iterable[OutgoingMessage] | AsyncIterable[OutgoingMessage]) -> AsyncIterator[OutgoingMessage]:
    if isinstance(messages, AsyncIterable):
        async for message in messages:
            yield message
    else:
        for message in messages:
            yield message
