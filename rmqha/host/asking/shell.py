"""The port by which an operator's question reaches servers, and the choice between its two implementations. Shell.

A question is a coroutine that asks servers. `ask_by` runs it over blocking sockets; a server and a live screen await it
under trio. It is written once, with the functions of this module: `open_client`, `open_tasks`, `within`, `sleep`.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Protocol, TypeVar

from rmqha.host.access.process_security import Security
from rmqha.host.asking import blocking
from rmqha.wire.command import Command

T = TypeVar("T")


class Caller(Protocol):
    """A client that sends requests and gets responses."""

    async def call(self, address: str, command: Command, timeout_ms: int | None) -> Command:
        """Send a request and return the response, whatever its code. Raises NotSentError if there is no connection,
        UnreachableError if it closes or no answer comes in time. `timeout_ms` None: a scope bounds the time."""
        ...


class TaskGroup(Protocol):
    """A group of concurrent tasks; leaving its context waits for all of them."""

    def start_soon(self, task: Callable[..., Awaitable[Any]], *args: Any) -> object: ...


class TimedScope(Protocol):
    """A block of a question with a time limit."""

    @property
    def cancelled_caught(self) -> bool:
        """True if the time was over before the block ended."""
        ...


def ask_by(question: Callable[..., Awaitable[T]], *args: Any) -> T:
    """Run a question over blocking sockets; returns its result and raises its exceptions."""
    return blocking.run(question, *args)


def open_client(security: Security | None = None) -> AbstractAsyncContextManager[Caller]:
    """Client for the running question; `security` None: that of the process."""
    if blocking.is_running():
        return blocking.BlockingClient(security)
    from rmqha.host.net.remoting import RemotingClient

    return RemotingClient(security=security)


def open_tasks() -> AbstractAsyncContextManager[TaskGroup]:
    if blocking.is_running():
        return blocking.ThreadTasks()
    import trio

    return trio.open_nursery()


def within(seconds: float) -> AbstractContextManager[TimedScope, bool]:
    """Context that bounds the time of its block; the end of the time is no error."""
    if blocking.is_running():
        return blocking.DeadlineScope(seconds)
    import trio

    return trio.move_on_after(seconds)


async def sleep(seconds: float) -> None:
    if blocking.is_running():
        await blocking.sleep(seconds)
        return
    import trio

    await trio.sleep(seconds)


def now_s() -> float:
    """Monotonic time (s)."""
    return time.monotonic()


async def beside(work: Callable[[], T]) -> T:
    """Result of work that takes long; under trio it runs in a thread."""
    if blocking.is_running():
        return work()
    import trio

    return await trio.to_thread.run_sync(work)
