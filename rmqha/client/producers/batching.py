"""Many sends in batches (request 320), in order where order was asked for. Data plane.

No message waits for others: those that have gathered while the requests under way were answered go out together, so a
slow source is sent one by one and a fast one in full batches. Messages of one lane (ordering key or queue) have one
request under way at a time; all others of a topic share one lane.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Sequence

import trio

from rmqha.client.arguments import require_type
from rmqha.client.producers.outgoing import COMPRESS_OVER_BYTES, OutgoingMessage, batch_part, check_message
from rmqha.client.producers.result import OnResult, SendResult, SendTally
from rmqha.model.code import ResponseCode
from rmqha.model.error import RemoteError, RmqhaError, UsageError

MAX_BATCH_BYTES = 1024 * 1024
"""Size above which a batch takes no further message; brokers take 4 MiB."""

Item = tuple[int, OutgoingMessage]
Lane = tuple[str, str | int | None]
SendOne = Callable[[OutgoingMessage], Awaitable[SendResult]]
SendParts = Callable[[OutgoingMessage, Sequence[bytes], Sequence[str]], Awaitable[SendResult]]
"""One request of the parts, whose unique keys follow, for the queue of the message. Raises RmqhaError."""


class BatchPipeline:
    """One call of `send_many` with `batch` above 1."""

    def __init__(
        self,
        send_one: SendOne,
        send_parts: SendParts,
        unique_key: Callable[[], str],
        check_open: Callable[[], None],
        on_result: OnResult | None,
        *,
        compresses: bool,
    ) -> None:
        """`check_open` raises UsageError once the producer is closed: no further message is taken then. `compresses`:
        long bodies are compressed, so they go alone; a batch is not compressed."""
        self._send_one = send_one
        self._send_parts = send_parts
        self._unique_key = unique_key
        self._check_open = check_open
        self._on_result = on_result
        self._longest = COMPRESS_OVER_BYTES if compresses else MAX_BATCH_BYTES
        self._tally = SendTally()
        self._failure: Exception | None = None
        """Exception that the application's iterable or `on_result` has raised."""
        self._scope: trio.CancelScope
        self._lines: dict[Lane, deque[Item]] = {}
        self._ready: deque[Lane] = deque()
        """Lanes that hold messages and, if ordered, have none under way."""
        self._open = 0
        self._ended = False
        self._work = trio.Event()
        self._room = trio.Event()

    async def run(
        self, messages: Iterable[OutgoingMessage] | AsyncIterable[OutgoingMessage], window: int, batch: int
    ) -> SendTally:
        """Send all `messages`, at most `window` at a time, at most `batch` in a request. Raises UsageError for a window
        below `batch`, and what the application raises."""
        if not 1 < batch <= window:
            raise UsageError(f"a window of {window} messages does not hold batches of {batch}")
        async with trio.open_nursery() as nursery:
            self._scope = nursery.cancel_scope
            for _ in range(window // batch):
                nursery.start_soon(self._send_all, batch)
            try:
                await self._admit_all(messages, window, batch)
            except Exception as error:  # noqa: BLE001 - raised once all that was admitted has been told
                self._failure = error
            self._ended = True
            self._wake()
        if self._failure is not None:
            raise self._failure
        return self._tally

    async def _admit_all(
        self, messages: Iterable[OutgoingMessage] | AsyncIterable[OutgoingMessage], window: int, batch: int
    ) -> None:
        if isinstance(messages, AsyncIterable):
            async for message in messages:
                self._admit(message)
                self._wake()
                await self._until_room(window)
        else:
            for message in messages:
                self._admit(message)
                if not self._tally.sent % batch:
                    self._wake()
                    await trio.lowlevel.checkpoint()
                    await self._until_room(window)

    def _admit(self, message: OutgoingMessage) -> None:
        self._check_open()
        require_type("a message of send_many", message, OutgoingMessage)
        lane: Lane = message.lane or (message.topic if isinstance(message.topic, str) else "", None)
        line = self._lines.get(lane)
        if line is None:
            line = self._lines[lane] = deque()
            self._ready.append(lane)
        line.append((self._tally.sent, message))
        self._tally.sent += 1
        self._open += 1

    async def _until_room(self, window: int) -> None:
        while self._open >= window:
            await self._room.wait()
            self._room = trio.Event()

    def _wake(self) -> None:
        self._work.set()
        self._work = trio.Event()

    async def _send_all(self, batch: int) -> None:
        while True:
            while not self._ready:
                if self._ended and not self._lines:
                    return
                await self._work.wait()
            lane = self._ready.popleft()
            line = self._lines[lane]
            items = [line.popleft() for _ in range(min(batch, len(line)))]
            ordered = lane[1] is not None
            if not ordered:
                self._done(lane)
            await self._send_items(items)
            if ordered:
                self._done(lane)
            self._open -= len(items)
            self._room.set()

    def _done(self, lane: Lane) -> None:
        """Note that the lane's request has ended: its next messages may go."""
        if self._lines[lane]:
            self._ready.append(lane)
        else:
            del self._lines[lane]
        self._wake()

    async def _send_items(self, items: list[Item]) -> None:
        """Send the items in their order, in as few requests as they allow."""
        together: list[tuple[Item, bytes, str]] = []
        size_bytes = 0
        for item in items:
            message = item[1]
            unique_key, part = message.unique_key or self._unique_key(), b""
            try:
                check_message(message)
                if len(message.body) <= self._longest and not message.ignored_in_batches:
                    part = batch_part(message, unique_key)
            except UsageError as error:
                self._note(item, error)
                continue
            if together and (not part or size_bytes + len(part) > MAX_BATCH_BYTES):
                await self._send_together(together)
                together, size_bytes = [], 0
            if not part:
                await self._send_alone(item)
                continue
            together.append((item, part, unique_key))
            size_bytes += len(part)
        if together:
            await self._send_together(together)

    async def _send_together(self, together: list[tuple[Item, bytes, str]]) -> None:
        if len(together) == 1:
            await self._send_alone(together[0][0])
            return
        first = together[0][0][1]
        unique_keys = [unique_key for _, _, unique_key in together]
        try:
            result = await self._send_parts(first, [part for _, part, _ in together], unique_keys)
        except RmqhaError as error:
            if isinstance(error, RemoteError) and error.code == ResponseCode.MESSAGE_ILLEGAL:
                # nothing of it has been stored: let each stand for itself
                for item, _, _ in together:
                    await self._send_alone(item)
                return
            for item, _, _ in together:
                self._note(item, error)
            return
        stored_ids = result.offset_msg_id.split(",")
        for index, (item, _, unique_key) in enumerate(together):
            self._note(
                item,
                SendResult(
                    result.status,
                    unique_key,
                    stored_ids[index] if index < len(stored_ids) else stored_ids[0],
                    result.broker_name,
                    result.queue_id,
                    result.queue_offset + index,
                    result.tries,
                    result.copies_possible,
                ),
            )

    async def _send_alone(self, item: Item) -> None:
        try:
            self._note(item, await self._send_one(item[1]))
        except RmqhaError as error:
            self._note(item, error)

    def _note(self, item: Item, outcome: SendResult | RmqhaError) -> None:
        if isinstance(outcome, SendResult):
            self._tally.add(outcome)
        else:
            self._tally.failed += 1
        if self._on_result is not None:
            try:
                self._on_result(*item, outcome)
            except Exception as error:  # noqa: BLE001 - raised by `run`, as it is
                self._failure = error
                self._scope.cancel()
