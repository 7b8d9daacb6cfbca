"""A producer with several sends in flight, many of them batches (request 320), which are answered as a whole."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from rmqha.drill.history import Attempt, AttemptOutcome
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.message import PROPERTY_UNIQUE_KEY, encode_properties
from rmqha.wire.command import Command
from tests.simulation.clients.client_process import (
    PATIENCE_MS,
    QUEUE_COUNT,
    TIMEOUT_MS,
    TOPIC,
    ClientProcess,
    is_unwritten,
)
from tests.simulation.history import InvariantError, Send
from tests.simulation.processes.process import Rpc

IN_FLIGHT = 3
MOST_MESSAGES = 6
_HEAD = struct.Struct(">iiiii")
_PROPERTIES_BYTES = struct.Struct(">h")


class BatchingClient(ClientProcess):
    def boot(self) -> None:
        self.begin_life()
        self._rpc = Rpc(self, self._unasked)
        for _ in range(IN_FLIGHT):
            self._next()

    def _next(self) -> None:
        """The next send of one of those in flight."""
        if self._stopped:
            return
        first = len(self._history.sends)
        count = self._prng.between(2, MOST_MESSAGES) if self._prng.chance(2, 3) else 1
        sends = [Send(f"{self.host}-{number}", self.scheduler.now_ms) for number in range(first, first + count)]
        self._history.sends += sends
        if count == 1:
            self._attempt(sends[0])
        else:
            self._attempt_batch(sends)

    def _properties(self, sends: Sequence[Send]) -> dict[str, str]:
        """Properties of the batch itself."""
        return {"WAIT": "true"}

    def _attempt_batch(self, sends: Sequence[Send]) -> None:
        if self._stopped:
            return
        ext = self.fields(encode_properties(self._properties(sends)), is_batch=True)
        address = self._address()
        body = b"".join([_part(send.key, b"." * self._prng.below(200)) for send in sends])
        attempts = [Attempt(send.key, self.scheduler.now_ms) for send in sends]
        self._history.attempts += attempts
        command = Command(RequestCode.SEND_BATCH_MESSAGE, ext, body)
        timeout_ms = TIMEOUT_MS + self.held_ms
        self._rpc.call(
            address, command, timeout_ms, lambda reply: self._batch_answered(sends, attempts, address, reply)
        )

    def _batch_answered(
        self, sends: Sequence[Send], attempts: Sequence[Attempt], address: str, reply: Command | None
    ) -> None:
        now_ms = self.scheduler.now_ms
        for attempt in attempts:
            attempt.ended_at_ms = now_ms
        called_at_ms = attempts[0].called_at_ms
        if reply is None and now_ms - called_at_ms >= PATIENCE_MS + self.held_ms:
            self.unanswered(sends[0].key, address, called_at_ms, now_ms)
        if reply is not None and reply.code == ResponseCode.SUCCESS:
            ids = reply.ext["msgId"].split(",") * (len(sends) if "batchUniqId" in reply.ext else 1)
            if len(ids) != len(sends):
                raise InvariantError(
                    f"{address} answers {len(ids)} of the {len(sends)} messages from {sends[0].key} on"
                )
            queue_id, first = int(reply.ext["queueId"]), int(reply.ext["queueOffset"])
            for number, (send, attempt, offset_id) in enumerate(zip(sends, attempts, ids, strict=True), first):
                send.acked_at_ms, send.offset_id, send.broker = now_ms, offset_id, address
                send.queue_id, send.queue_offset = queue_id, number
                attempt.outcome, attempt.queue, attempt.queue_offset = (
                    AttemptOutcome.ACKED,
                    f"{TOPIC} {queue_id}",
                    number,
                )
            self.acknowledged(address, int(ids[-1][-16:], 16))
            self.after(self._interval_ms, self._next)
            return
        if is_unwritten(reply):
            for attempt in attempts:
                attempt.outcome = AttemptOutcome.REFUSED
        if self._prng.chance(1, 2):
            self._target += 1
        self.after(20, lambda: self._attempt_batch(sends))


class InnerBatchClient(BatchingClient):
    """To a topic with queue.type=BatchCQ, which it makes first: a batch is one record there."""

    def boot(self) -> None:
        self.begin_life()
        self._rpc = Rpc(self, self._unasked)
        self._make_topic()

    def _make_topic(self) -> None:
        queues = str(QUEUE_COUNT)
        ext = {"topic": TOPIC, "readQueueNums": queues, "writeQueueNums": queues, "perm": "6"}
        command = Command(RequestCode.UPDATE_AND_CREATE_TOPIC, ext | {"attributes": "+queue.type=BatchCQ"})
        self._rpc.call(self._address(), command, TIMEOUT_MS, self._made)

    def _made(self, reply: Command | None) -> None:
        if reply is not None and reply.code == ResponseCode.SUCCESS:
            for _ in range(IN_FLIGHT):
                self._next()
            return
        self._target += 1
        self.after(20, self._make_topic)

    def _properties(self, sends: Sequence[Send]) -> dict[str, str]:
        """As Java's producer does it, the batch has a key of its own: the first message's."""
        return super()._properties(sends) | {PROPERTY_UNIQUE_KEY: sends[0].key}


def _part(key: str, filler: bytes) -> bytes:
    """One message of a batch's body of request 320: size, magic, CRC, flag, body and properties."""
    body, properties = key.encode() + filler, encode_properties({PROPERTY_UNIQUE_KEY: key})
    size = _HEAD.size + len(body) + _PROPERTIES_BYTES.size + len(properties)
    return b"".join((_HEAD.pack(size, 0, 0, 0, len(body)), body, _PROPERTIES_BYTES.pack(len(properties)), properties))
