"""Thousands of connections speak at once: each turn of the event loop serves some of them."""

from __future__ import annotations

import socket

import pytest
import trio

from rmqha.host import turns as module
from rmqha.host.remoting import Session, serve
from rmqha.host.turns import Turns
from rmqha.wire.command import Command
from rmqha.wire.frame import encode_frame

ADMITTED_COUNT = 40
CROWD_COUNT = 5 * ADMITTED_COUNT
URGENT = 2
FRAME = encode_frame(Command(1))


class TurnCount(trio.abc.Instrument):
    def __init__(self) -> None:
        self.count = 0

    def after_io_wait(self, timeout: float) -> None:
        self.count += 1


class Counter:
    """Notes the turn in which each request was read, and makes sessions urgent that ask for it."""

    def __init__(self, turn: TurnCount) -> None:
        self.turn = turn
        self.turns: list[int] = []
        self.urgent_turns: list[int] = []

    def opened(self, session: Session) -> None:
        session.attachment = self

    def received(self, session: Session, commands: list[Command]) -> None:
        for command in commands:
            session.is_urgent |= command.code == URGENT
            (self.urgent_turns if session.is_urgent else self.turns).append(self.turn.count)
            session.send(command.reply())

    def closed(self, session: Session) -> None:
        session.attachment = None


async def _answers(stream: socket.socket) -> None:
    await trio.lowlevel.wait_readable(stream)
    assert stream.recv(65536)


async def test_a_crowd_is_served_some_in_each_turn_and_the_urgent_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ADMITTED_COUNT", ADMITTED_COUNT)
    turn, turns = TurnCount(), Turns()
    service = Counter(turn)
    trio.lowlevel.add_instrument(turn)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turns.run)
        port: int = await nursery.start(
            lambda task_status: serve(
                service, "127.0.0.1:0", max_frame_bytes=65536, turns=turns, task_status=task_status
            )
        )
        crowd = [socket.create_connection(("127.0.0.1", port)) for _ in range(CROWD_COUNT + 1)]
        urgent = crowd.pop()
        urgent.send(encode_frame(Command(URGENT)))
        await _answers(urgent)
        for stream in crowd:  # every session has a task that waits for its socket
            stream.send(FRAME)
            await _answers(stream)
        service.turns.clear()
        service.urgent_turns.clear()

        for stream in [*crowd, urgent]:  # nothing runs meanwhile: all are readable in the same turn
            stream.send(FRAME)
        with trio.fail_after(10):
            for stream in [*crowd, urgent]:
                await _answers(stream)
        assert len(service.turns) == CROWD_COUNT
        most = max(service.turns.count(number) for number in set(service.turns))
        assert most <= 2 * ADMITTED_COUNT, f"{most} sessions were served in one turn"
        assert service.urgent_turns == [service.turns[0]], "the urgent one stood in line"
        for stream in [*crowd, urgent]:
            stream.close()
        nursery.cancel_scope.cancel()
    trio.lowlevel.remove_instrument(turn)


async def test_who_stands_in_line_may_leave() -> None:
    turns = Turns()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turns.run)
        with trio.CancelScope() as scope:
            scope.cancel()
            await turns.wait()
        assert scope.cancelled_caught
        with trio.fail_after(5):
            await turns.wait()
        nursery.cancel_scope.cancel()
