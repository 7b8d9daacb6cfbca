"""Requests of one session that wait for their responses, paired by opaque."""

from __future__ import annotations

import trio

from rmqha.wire.command import Command

_OPAQUE_MASK = 0x7FFFFFFF


class Call:
    """A request that waits for its response (RocketMQ: ResponseFuture)."""

    __slots__ = ("done", "response")

    def __init__(self) -> None:
        self.done = trio.Event()
        """Set when the response has come, or can no longer come."""
        self.response: Command | None = None


class Calls:
    """Requests of one session that have no response yet (RocketMQ: responseTable)."""

    def __init__(self) -> None:
        self._calls: dict[int, Call] = {}
        self._next_opaque = 0

    def begin(self, command: Command) -> Call:
        """Register a request; sets its opaque."""
        command.opaque = self._next_opaque
        self._next_opaque = command.opaque + 1 & _OPAQUE_MASK
        call = self._calls[command.opaque] = Call()
        return call

    def end(self, command: Command) -> None:
        """Remove a request: its caller waits no more."""
        self._calls.pop(command.opaque, None)

    def requests_of(self, commands: list[Command]) -> list[Command]:
        """Hand responses to their calls, and return the requests among `commands`. A late response, for which no call
        waits, is dropped."""
        if not self._calls and not any(command.flag & 1 for command in commands):
            return commands
        requests = []
        for command in commands:
            if not command.flag & 1:
                requests.append(command)
            elif (call := self._calls.get(command.opaque)) is not None:
                call.response = command
                call.done.set()
        return requests

    def give_up(self) -> None:
        """End all calls without a response: the session has ended."""
        for call in self._calls.values():
            call.done.set()
