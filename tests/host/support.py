"""A service that remembers, a server around it, one session on a stream in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio

from rmqha.host.net.remoting import serve, serve_session
from rmqha.host.net.session import Service, Session, SessionHost
from rmqha.host.net.statistics import Statistics
from rmqha.host.net.unverified_sessions import UnverifiedSession
from rmqha.wire.command import Command

FRAME_LIMIT = 1 << 20
SEND = 310
HEART_BEAT = 34


class Recorder:
    """A service that remembers, and answers by `answer`."""

    def __init__(self, answer: Callable[[Command], Command | None] = lambda command: command.reply()) -> None:
        self.answer = answer
        self.sessions: list[Session] = []
        self.batches: list[list[Command]] = []
        self.closed_ids: list[int] = []
        self.arrived = trio.Event()
        self.left = trio.Event()

    def opened(self, session: Session) -> None:
        self.sessions.append(session)

    def received(self, session: Session, commands: list[Command]) -> None:
        self.batches.append(commands)
        self.arrived.set()
        for command in commands:
            reply = self.answer(command)
            if reply is not None and not command.is_oneway:
                session.send(reply)

    def closed(self, session: Session) -> None:
        self.closed_ids.append(session.id)
        self.left.set()


@asynccontextmanager
async def running(service: Service, statistics: Statistics | None = None, **keys: Any) -> AsyncIterator[str]:
    """The address of a server on a free port."""
    async with trio.open_nursery() as nursery:
        port = await nursery.start(
            lambda task_status: serve(
                service,
                "127.0.0.1:0",
                max_frame_bytes=FRAME_LIMIT,
                statistics=statistics,
                task_status=task_status,
                **keys,
            )
        )
        yield f"127.0.0.1:{port}"
        nursery.cancel_scope.cancel()


class CountingStream(trio.abc.Stream):
    """Counts the writes of the stream below."""

    def __init__(self, below: trio.abc.Stream) -> None:
        self._below = below
        self.writes: list[int] = []

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self._below.receive_some(max_bytes)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        self.writes.append(len(data))
        await self._below.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._below.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await self._below.aclose()


async def serve_one(
    service: Recorder,
    stream: trio.abc.Stream,
    statistics: Statistics,
    idle_timeout_ms: int = 120_000,
    max_queued_bytes: int = 1 << 26,
    unverified: UnverifiedSession | None = None,
) -> None:
    host = SessionHost(statistics, FRAME_LIMIT, max_queued_bytes)
    session = Session(5, stream, "test:1", host, unverified=unverified)
    await serve_session(service, session, statistics, idle_timeout_ms=idle_timeout_ms)
