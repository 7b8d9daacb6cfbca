"""Many sends on their way at once, in order where order was asked for. Data plane.

A reader feeds as many workers as the window allows. Messages of one lane (ordering key or queue) queue up behind each
other: the worker that has sent one goes on with the next, so a lane has one message on its way at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable

import trio

from rmqha.client.arguments import require_type
from rmqha.client.producers.outgoing import OutgoingMessage
from rmqha.client.producers.result import OnResult, SendResult, SendTally
from rmqha.model.error import RmqhaError, UsageError


class Pipeline:
    """One call of `send_many`: a reader that feeds workers, and lanes in which messages of one key queue up."""

    def __init__(
        self,
        send_message: Callable[[OutgoingMessage], Awaitable[SendResult]],
        check_open: Callable[[], None],
        on_result: OnResult | None,
    ) -> None:
        """`check_open` raises UsageError once the producer is closed: no further message is taken then."""
        self._send_message = send_message
        self._check_open = check_open
        self._on_result = on_result
        self._tally = SendTally()
        self._failure: Exception | None = None
        """Exception that the application's iterable or `on_result` has raised."""
        self._scope: trio.CancelScope
        self._lanes: dict[tuple[str, str | int], deque[tuple[int, OutgoingMessage]]] = {}

    async def run(self, messages: Iterable[OutgoingMessage] | AsyncIterable[OutgoingMessage], window: int) -> SendTally:
        """Send all `messages`, at most `window` of them at a time. Raises UsageError for a window below 1, and what the
        application raises."""
        if window < 1:
            raise UsageError("the window must be 1 or more")
        room = trio.Semaphore(window)
        async with trio.open_nursery() as nursery:
            self._scope = nursery.cancel_scope
            ready, todo = trio.open_memory_channel[tuple[int, OutgoingMessage]](window)
            for _ in range(window):
                nursery.start_soon(self._work, todo.clone(), room)
            todo.close()
            async with ready:
                try:
                    if isinstance(messages, AsyncIterable):
                        async for message in messages:
                            await self._admit(message, ready, room)
                    else:
                        for message in messages:
                            await self._admit(message, ready, room)
                except Exception as error:  # noqa: BLE001 - raised once all that is under way has been told
                    self._failure = error
        if self._failure is not None:
            raise self._failure
        return self._tally

    async def _admit(
        self,
        message: OutgoingMessage,
        ready: trio.MemorySendChannel[tuple[int, OutgoingMessage]],
        room: trio.Semaphore,
    ) -> None:
        self._check_open()
        require_type("a message of send_many", message, OutgoingMessage)
        try:
            # a turn of the scheduler for each message would cost a tenth of a send
            room.acquire_nowait()
        except trio.WouldBlock:
            await room.acquire()
        item = (self._tally.sent, message)
        self._tally.sent += 1
        lane = message.lane
        if lane is not None:
            waiting = self._lanes.get(lane)
            if waiting is not None:
                waiting.append(item)
                return
            self._lanes[lane] = deque()
        ready.send_nowait(item)

    async def _work(self, todo: trio.MemoryReceiveChannel[tuple[int, OutgoingMessage]], room: trio.Semaphore) -> None:
        async with todo:
            while True:
                following: tuple[int, OutgoingMessage] | None
                try:
                    following = todo.receive_nowait()
                except trio.WouldBlock:
                    try:
                        following = await todo.receive()
                    except trio.EndOfChannel:
                        return
                except trio.EndOfChannel:
                    return
                while following is not None:
                    position, message = following
                    await self._send(position, message)
                    room.release()
                    following = self._following(message.lane)

    def _following(self, lane: tuple[str, str | int] | None) -> tuple[int, OutgoingMessage] | None:
        if lane is None:
            return None
        waiting = self._lanes[lane]
        if waiting:
            return waiting.popleft()
        del self._lanes[lane]
        return None

    async def _send(self, position: int, message: OutgoingMessage) -> None:
        outcome: SendResult | RmqhaError
        try:
            outcome = await self._send_message(message)
            self._tally.add(outcome)
        except RmqhaError as error:
            outcome = error
            self._tally.failed += 1
        if self._on_result is not None:
            try:
                self._on_result(position, message, outcome)
            except Exception as error:  # noqa: BLE001 - raised by `run`, as it is
                self._failure = error
                self._scope.cancel()
