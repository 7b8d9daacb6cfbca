"""Blocking clients: `from rmqha.client.sync import Producer, Consumer, Admin`, for scripts, notebooks and threads.

Each runs the trio client of its name in a thread of its own; a method here is the one there, without `await`. Any
thread may call; Ctrl-C leaves a call and the client stays open.
"""

from __future__ import annotations

import atexit
import functools
import os
import queue
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
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
SelfT = TypeVar("SelfT", bound="Blocking[Any]")


class Blocking(Generic[ClientT]):
    """Context manager around a trio client; `open` and `close` do the same where a block does not fit, as between the
    cells of a notebook. What is left open is closed when Python ends."""

    def __init__(self, client: ClientT) -> None:
        self._client = client
        self._portal = Portal(client)

    def open(self: SelfT) -> SelfT:
        """Connect. Raises as entering the trio client does, and may be tried again then; UsageError if it is open or
        was."""
        try:
            self._portal.start().result()
        except KeyboardInterrupt:
            self._portal.stop(by_error=True)
            raise
        atexit.register(self.close)
        return self

    def close(self) -> None:
        """Close the client; calls of other threads fail. A second call does nothing."""
        self._leave(by_error=False)

    def __enter__(self: SelfT) -> SelfT:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave(by_error=error is not None)

    def _leave(self, *, by_error: bool) -> None:
        atexit.unregister(self.close)
        self._portal.stop(by_error=by_error).result()

    def _wait(self, future: Future[T], late: Callable[[T], None] | None = None) -> T:
        """Value of the future. `late` gets the value of a call that was left by Ctrl-C and had ended all the same."""
        try:
            return future.result()
        except BaseException:
            if not future.cancel() and late is not None and future.exception() is None:
                late(future.result())
            raise


def blocking(
    method: Callable[Concatenate[ClientT, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Blocking[ClientT], P], T]:
    """The method of the trio client, without `await`."""

    @functools.wraps(method)
    def call(self: Blocking[ClientT], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._wait(self._portal.submit(lambda: method(self._client, *args, **kwargs)))

    return call


def immediate(method: Callable[[ClientT], T]) -> Callable[[Blocking[ClientT]], T]:
    """The method that waits for nothing, called where the client runs: its state does not change meanwhile."""

    @functools.wraps(method)
    def call(self: Blocking[ClientT]) -> T:
        async def read() -> T:
            return cast("T", getattr(self._client, method.__name__)())  # a client of a subclass may have its own

        return self._wait(self._portal.submit(read))

    return call


class BlockingProducer(Blocking[TrioProducer]):
    """Blocking producer; any number of threads may send at the same time."""

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

    route = blocking(TrioProducer.route)
    send = blocking(TrioProducer.send)
    send_message = blocking(TrioProducer.send_message)
    send_batch = blocking(TrioProducer.send_batch)
    send_oneway = blocking(TrioProducer.send_oneway)
    recall = blocking(TrioProducer.recall)
    statistics = immediate(TrioProducer.statistics)

    def send_many(
        self,
        messages: Iterable[OutgoingMessage],
        *,
        window: int = 64,
        batch: int = 1,
        timeout_ms: int = SEND_TIMEOUT_MS,
        require_ok: bool = True,
        on_result: OnResult | None = None,
    ) -> SendTally:
        """Send all, at most `window` on their way at once, as `rmqha.client.Producer.send_many`. `messages` is
        iterated, and `on_result` called, in the thread that calls."""
        inbox: queue.SimpleQueue[tuple[int, OutgoingMessage, SendResult | RmqhaError] | None] = queue.SimpleQueue()
        feed = MessageFeed(self._portal, lambda: inbox.put(None))

        def keep(position: int, message: OutgoingMessage, outcome: SendResult | RmqhaError) -> None:
            inbox.put((position, message, outcome))

        future = self._portal.submit(
            lambda: self._client.send_many(
                feed,
                window=window,
                batch=batch,
                timeout_ms=timeout_ms,
                require_ok=require_ok,
                on_result=keep if on_result else None,
            )
        )
        future.add_done_callback(lambda _: inbox.put(None))
        room = max(window, 1)

        def take() -> int:
            """Take one item out of the inbox; 1 if it makes room."""
            told = inbox.get()
            if told is None:
                return 1
            if on_result is not None:
                on_result(*told)
            return 0

        failure: Exception | None = None
        try:
            source = iter(messages)
            while True:
                try:
                    message = next(source)
                except StopIteration:
                    break
                except Exception as error:  # noqa: BLE001 - raised once all before it have been told
                    failure = error
                    break
                while room == 0 or not inbox.empty():
                    room += take()
                if future.done():
                    break
                feed.put(message)
                room -= 1
            feed.end()
            while not (future.done() and inbox.empty()):
                take()
        except BaseException:
            future.cancel()
            raise
        if failure is not None:
            raise failure
        return self._wait(future)


class BlockingTransaction(TransactionControl):
    """Context manager around the application's own transaction. Entering stores the half message; leaving commits, or
    rolls back after `rollback()`; an exception decides nothing (see `rmqha.client.Transaction`)."""

    def __init__(self, producer: BlockingTransactionProducer, transaction: TrioTransaction) -> None:
        super().__init__(transaction)
        self._producer = producer

    def __enter__(self) -> BlockingTransaction:
        """Store the half message. Raises as `Producer.send`; then the application must not begin."""
        self._producer._wait(self._producer._portal.submit(self._transaction.__aenter__))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        leave = self._transaction.__aexit__
        self._producer._wait(self._producer._portal.submit(lambda: leave(kind, error, trace)))


class BlockingTransactionProducer(BlockingProducer):
    """Blocking producer that also sends messages within transactions. `check` is a plain function here, which threads
    call."""

    def __init__(
        self,
        namesrv: str,
        group: str,
        check: Callable[[Message], Outcome],
        *,
        topics: Sequence[str] = (),
        compression: str | None = "zlib",
        security: Security | None = None,
    ) -> None:
        """Take what `rmqha.client.TransactionProducer` takes."""

        async def answer(message: Message) -> Outcome:
            return await trio.to_thread.run_sync(check, message, abandon_on_cancel=True)

        self._transactions = TrioTransactionProducer(
            namesrv, group, answer, topics=topics, compression=compression, security=security
        )
        Blocking.__init__(self, self._transactions)

    def transaction(self, message: OutgoingMessage, *, timeout_ms: int = SEND_TIMEOUT_MS) -> BlockingTransaction:
        """Context manager of one transaction: `with producer.transaction(message) as transaction: ...`."""
        return BlockingTransaction(self, self._transactions.transaction(message, timeout_ms=timeout_ms))

    def prepare(self, message: OutgoingMessage, timeout_ms: int = SEND_TIMEOUT_MS) -> SendResult:
        """Store the half message; the caller must call `end`."""
        return self._wait(self._portal.submit(lambda: self._transactions.prepare(message, timeout_ms)))

    def end(self, half: SendResult, topic: str, outcome: Outcome, timeout_ms: int = SEND_TIMEOUT_MS) -> bool:
        """Tell the master the outcome; False: a broker will ask."""
        return self._wait(self._portal.submit(lambda: self._transactions.end(half, topic, outcome, timeout_ms)))

    @property
    def last_error(self) -> str:
        """The reason why the last end or answer was not taken, or the last `check` failed; "" if none did."""
        return self._transactions.last_error


class BlockingConsumer(Blocking[TrioConsumer]):
    """Blocking consumer and iterator of Message; one thread reads from it.

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

    commit = blocking(TrioConsumer.commit)
    retry = blocking(TrioConsumer.retry)
    refused = blocking(TrioConsumer.refused)
    assignment = immediate(TrioConsumer.assignment)
    statistics = immediate(TrioConsumer.statistics)

    def receive(self, *, timeout_ms: int | None = None) -> Message | None:
        """The next message; None after `timeout_ms` without one, with 0 if none has come already. Raises as
        `rmqha.client.Consumer.receive`."""
        return self._next(self._client.receive, Message, timeout_ms)

    def receive_batch(self, *, timeout_ms: int | None = None) -> MessageBatch | None:
        """The next messages of one queue; None after `timeout_ms` without one, with 0 if none has come already."""
        return self._next(self._client.receive_batch, MessageBatch, timeout_ms)

    def messages(self, *, idle_ms: int | None = None) -> Iterator[Message]:
        """All messages as they arrive, until none has come for `idle_ms`; None: until the consumer is closed, as by
        iterating the consumer itself."""
        with suppress(ClosedError):
            while (message := self.receive(timeout_ms=idle_ms)) is not None:
                yield message

    def batches(self, *, idle_ms: int | None = None) -> Iterator[MessageBatch]:
        """All messages as they arrive, in batches whose messages are decoded when they are used."""
        with suppress(ClosedError):
            while (batch := self.receive_batch(timeout_ms=idle_ms)) is not None:
                yield batch

    def __iter__(self) -> Iterator[Message]:
        return self.messages()

    def _leave(self, *, by_error: bool) -> None:
        # what nobody has got is not finished
        super()._leave(by_error=by_error or self._reading.is_behind)

    def _next(self, receive: Receive[T], kind: type[T], timeout_ms: int | None) -> T | None:
        keep = cast("Callable[[T | None], None]", self._reading.keep)
        return self._wait(self._portal.submit(lambda: self._reading.next(receive, kind, timeout_ms), keep), keep)


class BlockingPopConsumer(Blocking[TrioPopConsumer]):
    """Blocking pop consumer and iterator of PoppedMessage; one thread reads from it, any may acknowledge."""

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

    ack = blocking(TrioPopConsumer.ack)
    nack = blocking(TrioPopConsumer.nack)
    dead_letter = blocking(TrioPopConsumer.dead_letter)
    extend = blocking(TrioPopConsumer.extend)
    statistics = immediate(TrioPopConsumer.statistics)

    def receive(self, *, timeout_ms: int | None = None) -> PoppedMessage | None:
        """The next message; None after `timeout_ms` without one, with 0 if none has come already. Raises as
        `rmqha.client.PopConsumer.receive`."""
        receive, keep = self._client.receive, self._put_back
        return self._wait(
            self._portal.submit(lambda: self._reading.next(receive, PoppedMessage, timeout_ms), keep), keep
        )

    def __iter__(self) -> Iterator[PoppedMessage]:
        with suppress(ClosedError):
            while (message := self.receive()) is not None:
                yield message


class BlockingAdmin(Blocking[TrioAdmin]):
    """Blocking client for administration of name servers, brokers and controllers."""

    def __init__(self, namesrv: str, timeout_ms: int = TIMEOUT_MS, *, security: Security | None = None) -> None:
        """Take what `rmqha.client.Admin` takes."""
        super().__init__(TrioAdmin(namesrv, timeout_ms, security=security))

    cluster_info = blocking(TrioAdmin.cluster_info)
    route = blocking(TrioAdmin.route)
    topics = blocking(TrioAdmin.topics)
    create_topic = blocking(TrioAdmin.create_topic)
    delete_topic = blocking(TrioAdmin.delete_topic)
    progress = blocking(TrioAdmin.progress)
    reset_offsets = blocking(TrioAdmin.reset_offsets)
    query_message = blocking(TrioAdmin.query_message)
    read_queue = blocking(TrioAdmin.read_queue)
    replica_state = blocking(TrioAdmin.replica_state)
    history = blocking(TrioAdmin.history)
    controller_state = blocking(TrioAdmin.controller_state)
    epochs = blocking(TrioAdmin.epochs)
    controller_metadata = blocking(TrioAdmin.controller_metadata)
    sync_state = blocking(TrioAdmin.sync_state)
    elect_master = blocking(TrioAdmin.elect_master)
    ask = blocking(TrioAdmin.ask)
    statistics = immediate(TrioAdmin.statistics)


Producer = BlockingProducer
Consumer = BlockingConsumer
PopConsumer = BlockingPopConsumer
Admin = BlockingAdmin
Transaction = BlockingTransaction
TransactionProducer = BlockingTransactionProducer
