"""Captured streams, damaged and split at random, in numbers: through the parser, and through a server's sockets."""

from __future__ import annotations

from random import Random

import trio
from trio.testing import wait_all_tasks_blocked

from rmqha.host.net.remoting import serve
from rmqha.host.net.session import Session
from rmqha.host.net.statistics import Statistics
from rmqha.model.error import RemoteProtocolError
from rmqha.wire.command import Command
from rmqha.wire.frame import FrameParser
from tests.fuzz.budget import fuzz_seconds
from tests.fuzz.damage import damaged, descriptors, pieces, tasks
from tests.support.seeds import drawn_seed

MAX_FRAME_BYTES = 1 << 20
CASES_PER_SECOND = 34_000
"""A million in the 30 seconds that CI gives."""
CONNECTIONS_PER_SECOND = 20


def test_a_parser_takes_or_refuses_whatever_comes() -> None:
    seed = drawn_seed()
    random = Random(seed)
    refused = 0
    for _ in range(max(20_000, int(fuzz_seconds() * CASES_PER_SECOND))):
        data = damaged(random)
        parser = FrameParser(MAX_FRAME_BYTES)
        try:
            for piece in pieces(random, data):
                parser.feed(piece)
        except RemoteProtocolError as error:
            refused += 1
            assert str(error)
        assert parser.buffered_bytes <= len(data)
    assert refused


class Silent:
    """Answers nothing; counts who comes and goes."""

    def __init__(self) -> None:
        self.open = 0

    def opened(self, session: Session) -> None:
        self.open += 1

    def received(self, session: Session, commands: list[Command]) -> None:
        for command in commands:
            session.send(command.reply())

    def closed(self, session: Session) -> None:
        self.open -= 1


async def test_a_server_loses_no_task_and_no_descriptor() -> None:
    seed = drawn_seed()
    random = Random(seed)
    service, counts = Silent(), Statistics()
    async with trio.open_nursery() as nursery:
        start = await nursery.start(
            lambda task_status: serve(
                service,
                "127.0.0.1:0",
                max_frame_bytes=MAX_FRAME_BYTES,
                idle_timeout_ms=10_000,
                statistics=counts,
                task_status=task_status,
            )
        )
        await wait_all_tasks_blocked()  # the poller has opened what it needs
        before, tasks_before = descriptors(), tasks()
        for _ in range(max(50, int(fuzz_seconds() * CONNECTIONS_PER_SECOND))):
            stream = await trio.open_tcp_stream("127.0.0.1", start)
            try:
                for piece in pieces(random, damaged(random)):
                    await stream.send_all(piece)
                if random.random() < 0.5:
                    await stream.send_eof()
                    while await stream.receive_some(65536):
                        pass
            except trio.BrokenResourceError:
                pass  # refused in the middle of what we sent
            await trio.aclose_forcefully(stream)
        for _ in range(2000):
            if not service.open and tasks() == tasks_before and not descriptors() - before:
                break
            await trio.sleep(0.01)
        assert (service.open, counts.session_count, tasks()) == (0, 0, tasks_before)
        assert not descriptors() - before
        nursery.cancel_scope.cancel()
    assert counts.bad_frame_count
