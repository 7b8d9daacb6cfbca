"""Thread in which a trio client runs for programs that are not on trio. Control plane.

Every call is a task there; the caller waits on a future of `concurrent.futures`, which a thread can block on and
asyncio can await. The client is entered and left by one task, so its own tasks end with it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeVar, cast

import trio

from rmqha.client.consumers.message import Message, MessageBatch
from rmqha.client.producers.outgoing import OutgoingMessage
from rmqha.client.producers.result import SendResult
from rmqha.client.producers.transaction import Transaction
from rmqha.client.session import ClosedError
from rmqha.model.error import UsageError

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class _EndedByError(Exception):
    """The application's block ended by an error: the client is left as by one, too."""


class Portal:
    """Access to one client in its thread: started once and stopped once. A start that failed may be tried again. Any
    thread may call."""

    def __init__(self, client: AbstractAsyncContextManager[Any]) -> None:
        self._client = client
        self._process_id = 0
        """Id of the process that has the thread: a fork of it has none."""
        self._started: Future[None] = Future()
        self._stopped: Future[None] = Future()
        self._token: trio.lowlevel.TrioToken | None = None
        self._nursery: trio.Nursery | None = None
        self._stop: trio.Event
        self._turn = threading.Lock()
        """Held while it is decided which comes first: the start or the stop."""
        self._is_starting = False
        self._is_stopping = False
        self._ends_by_error = False

    def start(self) -> Future[None]:
        """Enter the client. The future is done when it is entered, and fails with what entering raised. UsageError if
        it was started or stopped before."""
        with self._turn:
            if self._started.done() and self._started.exception() is not None and not self._is_stopping:
                self._started, self._stopped, self._is_starting = Future(), Future(), False
            if self._is_starting:
                raise UsageError("a client is opened once; make another one")
            if self._is_stopping:
                raise ClosedError("the client was closed: open another one")
            self._is_starting = True
            self._process_id = os.getpid()
            started, stopped = self._started, self._stopped
        try:
            threading.Thread(target=self._run, args=(started, stopped), name="rmqha-client", daemon=True).start()
        except RuntimeError as error:
            # the machine has no thread left: nothing will run
            started.set_exception(error)
            stopped.set_result(None)
            raise
        return started

    def stop(self, *, by_error: bool) -> Future[None]:
        """Leave the client; calls that wait fail. `by_error`: leave it as a block that an error ended. The future is
        done when the thread's work is over, and fails with what leaving raised. A fork leaves nothing: the client is
        its parent's."""
        if self._is_parents:
            done = Future[None]()
            done.set_result(None)
            return done
        with self._turn:
            self._is_stopping = True  # the thread reads it once it has its token
            if not self._is_starting and not self._stopped.done():
                self._stopped.set_result(None)
        if self._token is not None:

            def end() -> None:
                self._ends_by_error = by_error
                self._stop.set()

            self.soon(end)
        return self._stopped

    def submit(self, call: Callable[[], Awaitable[T]], late: Callable[[T], None] | None = None) -> Future[T]:
        """Run `call` as a task of the client. Cancelling the future cancels it; `late` gets a value that came all the
        same. UsageError in the future if the client is not open."""
        future: Future[T] = Future()
        if not self.soon(lambda: self._begin(call, future, late)):
            future.set_exception(_not_here() if self._is_parents else self._not_open())
        return future

    def _not_open(self) -> UsageError:
        if self._is_stopping:
            return ClosedError("the client was closed: open another one")
        return UsageError("the client is not open: use it by `with`, or call open()")

    @property
    def _is_parents(self) -> bool:
        """True in a fork of the process that has opened it."""
        return self._process_id not in (0, os.getpid())

    def soon(self, work: Callable[[], None]) -> bool:
        """Run `work` in the client's thread, in the order of these calls; False if the loop does not run."""
        if self._token is None or self._is_parents:
            return False
        try:
            self._token.run_sync_soon(work)
        except trio.RunFinishedError:
            return False
        return True

    def _begin(self, call: Callable[[], Awaitable[T]], future: Future[T], late: Callable[[T], None] | None) -> None:
        if self._nursery is None:
            if future.set_running_or_notify_cancel():
                future.set_exception(self._not_open())
        else:
            self._nursery.start_soon(self._answer, call, future, late)

    async def _answer(
        self, call: Callable[[], Awaitable[T]], future: Future[T], late: Callable[[T], None] | None
    ) -> None:
        with trio.CancelScope() as scope:

            def cancel(done: Future[T]) -> None:
                if done.cancelled():
                    self.soon(scope.cancel)

            future.add_done_callback(cancel)
            try:
                value = await call()
            except trio.Cancelled:
                if future.set_running_or_notify_cancel():
                    future.set_exception(ClosedError("the client was closed while a call waited"))
                raise
            except Exception as error:  # noqa: BLE001 - it is the caller's
                if future.set_running_or_notify_cancel():
                    future.set_exception(error)
                return
            if future.set_running_or_notify_cancel():
                future.set_result(value)
            elif late is not None:
                late(value)

    def _run(self, started: Future[None], stopped: Future[None]) -> None:
        failure: BaseException | None = None
        try:
            trio.run(self._main)
        except BaseException as error:  # noqa: BLE001 - told where the client was opened or is closed
            # the application has the error of its block itself
            failure = None if isinstance(error, _EndedByError) else error
        if failure is None:
            stopped.set_result(None)
        elif not started.done():
            started.set_exception(failure)
            stopped.set_result(None)
        else:
            stopped.set_exception(failure)

    async def _main(self) -> None:
        self._stop = trio.Event()
        self._token = trio.lowlevel.current_trio_token()
        if self._is_stopping:
            raise self._not_open()
        async with self._client:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                try:
                    self._started.set_result(None)
                    await self._stop.wait()
                finally:
                    self._nursery = None  # before it ends: one that has ended takes no call
                nursery.cancel_scope.cancel()
            if self._ends_by_error:
                raise _EndedByError


class MessageFeed:
    """Messages on their way from an application's iterable into `send_many`; `taken` is called, in the portal's
    thread, for each that has gone in."""

    def __init__(self, portal: Portal, taken: Callable[[], None]) -> None:
        self._portal = portal
        self._taken = taken
        self._into, self._out = trio.open_memory_channel[OutgoingMessage](float("inf"))

    def put(self, message: OutgoingMessage) -> None:
        """Add the next message; the caller keeps to its window. If the client has ended, `send_many` raises that."""
        self._portal.soon(lambda: self._into.send_nowait(message))

    def end(self) -> None:
        """End the feed: no further message comes."""
        self._portal.soon(self._into.close)

    def __aiter__(self) -> MessageFeed:
        return self

    async def __anext__(self) -> OutgoingMessage:
        try:
            message = await self._out.receive()
        except trio.EndOfChannel:
            raise StopAsyncIteration from None
        self._taken()
        return message


class Receive(Protocol[T_co]):
    """Method `receive`, or `receive_batch`, of a trio consumer."""

    def __call__(self, *, wait: bool) -> Awaitable[T_co | None]:
        """Receive; None without `wait` if nothing has come yet."""
        ...


class ConsumerReading:
    """Receives of one consumer, one at a time. A message whose caller gave up comes first the next time: asking the
    client again would count it as finished."""

    def __init__(self) -> None:
        self._lock = trio.Lock()
        self._kept: list[Message | MessageBatch] = []

    @property
    def is_behind(self) -> bool:
        """True while a received message was not given to a caller."""
        return bool(self._kept)

    async def next(self, receive: Receive[T], kind: type[T], timeout_ms: int | None) -> T | None:
        """Result of `receive`, None after `timeout_ms`; with 0 only what has come already. Raises UsageError if the
        kept result is of another kind."""
        wait = timeout_ms is None or timeout_ms > 0
        if not wait and self._lock.locked():
            return None  # another call has asked first
        with trio.move_on_after(float("inf") if timeout_ms is None or not wait else timeout_ms / 1000):
            async with self._lock:
                if not self._kept:
                    return await receive(wait=wait)
                if not isinstance(self._kept[0], kind):
                    name = "receive_batch" if isinstance(self._kept[0], MessageBatch) else "receive"
                    raise UsageError(f"a call that was broken off had received more: get it by {name}() first")
                return cast("T", self._kept.pop())
        return None

    def keep(self, taken: Message | MessageBatch | None) -> None:
        """Keep what came after its caller had given up."""
        if taken is not None:
            self._kept.append(taken)


def _not_here() -> UsageError:
    return UsageError("the client was opened before this process was forked: open one of its own here")


class TransactionControl:
    """Part of a transaction that waits for nothing, the same in `sync` and `aio`."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    def rollback(self) -> None:
        """Roll back: no consumer gets the message."""
        self._transaction.rollback()

    def leave_open(self) -> None:
        """Decide nothing now: the brokers are to ask `check`."""
        self._transaction.leave_open()

    @property
    def half(self) -> SendResult:
        """Result of the half message's send; its `msg_id` is that of the message."""
        return self._transaction.half

    @property
    def msg_id(self) -> str:
        """The id that the message of this transaction has."""
        return self._transaction.msg_id

    @property
    def confirmed(self) -> bool:
        """True once the group has stored how the transaction ended."""
        return self._transaction.confirmed
