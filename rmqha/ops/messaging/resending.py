"""Dead letters: listing them, and sending them to their group again. Control plane.

A dead letter goes back to the group's retry topic, which only that group reads: the topic that it was sent to has other
readers. The offset up to which dead letters have been sent again is committed for RESEND_GROUP, so that a second call
sends nothing twice.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, replace
from functools import partial
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from rmqha.client.admin import Admin
from rmqha.client.consumers.message import Message
from rmqha.client.consumers.offsets import answered_offset
from rmqha.client.producers.one_by_one import send_one_by_one
from rmqha.client.producers.outgoing import OutgoingMessage
from rmqha.host.asking.shell import ask_by
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import RemoteError, UsageError
from rmqha.model.message import DLQ_PREFIX, PROPERTY_ORIGIN_MESSAGE_ID, PROPERTY_RETRY_TOPIC, RETRY_PREFIX
from rmqha.ops.answer import readable_answer
from rmqha.ops.messaging.brokers import (
    AskedBroker,
    QueueName,
    ask_json,
    brokers_of_topic,
    queue_table,
    require_masters,
    route_of_topic,
)
from rmqha.ops.messaging.messages import copy_of
from rmqha.wire.command import Command

if TYPE_CHECKING:
    from rmqha.client.producers.producer import Producer
    from rmqha.client.producers.result import SendResult

RESEND_GROUP = "rmqha-dlq"
SEND_TIMEOUT_MS = 10_000


@dataclass(frozen=True, slots=True)
class DeadLetterQueue:
    """A queue of a group's dead letter topic. `resent`: offset up to which dead letters were sent again."""

    group: str
    broker: AskedBroker
    queue: QueueName
    low: int
    high: int
    resent: int
    newest_at_ms: int

    @property
    def count(self) -> int:
        """Number of stored dead letters."""
        return self.high - self.low

    @property
    def waiting(self) -> int:
        """Number of dead letters that were not sent again."""
        return self.high - max(self.low, min(self.resent, self.high))


def send_all(namesrv: str, messages: Sequence[OutgoingMessage]) -> list[SendResult]:
    """Send the messages, each until it is acknowledged. Raises as `Producer.send`."""
    results: list[SendResult] = []
    if not messages:
        return results
    one_by_one = partial(send_one_by_one, require_ok=True)
    unsent = ask_by(one_by_one, namesrv, RESEND_GROUP, messages, SEND_TIMEOUT_MS, results.append)
    if not unsent.messages:
        return results
    import trio

    from rmqha.client.producers.producer import Producer

    async def run() -> list[SendResult]:
        async with Producer(namesrv, RESEND_GROUP) as producer:
            return [
                await producer.send_message(message, timeout_ms=SEND_TIMEOUT_MS, require_ok=True)
                for message in unsent.messages
            ]

    first, *others = trio.run(run)
    return [*results, unsent.whole(first), *others]


async def groups_with_dead_letters(admin: Admin) -> list[str]:
    """Consumer groups that have a dead letter topic, sorted."""
    return [name.removeprefix(DLQ_PREFIX) for name in await admin.topics() if name.startswith(DLQ_PREFIX)]


async def queues_of(admin: Admin, group: str) -> list[DeadLetterQueue]:
    """Dead letter queues of a group, in all broker groups. Raises UsageError if it has none."""
    topic = DLQ_PREFIX + group
    try:
        brokers = await brokers_of_topic(admin, topic)
    except UsageError:
        raise UsageError(f"group {group} has no dead letters; see rmqha dlq ls") from None
    found = []
    for broker in brokers:
        command = Command(RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic})
        rows = queue_table(await ask_json(admin, broker.address, command), broker.address)
        for (_, queue_id), row in sorted(rows.items()):
            with readable_answer(broker.address, "a broker's"):
                low, high, newest_at_ms = (int(row[key]) for key in ("minOffset", "maxOffset", "lastUpdateTimestamp"))
            resent = await _resent(admin, broker, topic, queue_id)
            found.append(
                DeadLetterQueue(group, broker, QueueName(broker.name, queue_id), low, high, resent, newest_at_ms)
            )
    return found


async def _resent(admin: Admin, broker: AskedBroker, topic: str, queue_id: int) -> int:
    ext = {"consumerGroup": RESEND_GROUP, "topic": topic, "queueId": str(queue_id), "setZeroIfNotFound": "false"}
    try:
        answer = await admin.ask(broker.address, Command(RequestCode.QUERY_CONSUMER_OFFSET, ext))
        return answered_offset(answer, broker.address)
    except RemoteError as error:
        if error.code != ResponseCode.QUERY_NOT_FOUND:
            raise
        return 0


async def letters(admin: Admin, queue: DeadLetterQueue, offset: int) -> AsyncGenerator[Message, None]:
    """Dead letters of one queue, from an offset on up to the queue's `high`."""
    topic = DLQ_PREFIX + queue.group
    at = max(offset, queue.low)
    while at < queue.high:
        found, following = await admin.read_queue(
            queue.broker.address, queue.queue.broker_name, topic, queue.queue.queue_id, at, group=RESEND_GROUP
        )
        if following <= at:
            return
        at = following
        for message in found:
            if message.queue_offset < queue.high:
                yield message


async def in_order(admin: Admin, queues: Sequence[DeadLetterQueue]) -> AsyncGenerator[Message, None]:
    """Dead letters of these queues, in order of their store times; one answer of each queue is held in memory."""
    async with AsyncExitStack() as stack:
        told = [await stack.enter_async_context(aclosing(letters(admin, queue, 0))) for queue in queues]
        heads = list[tuple[int, int, Message]]()

        async def push(place: int) -> None:
            async for message in told[place]:
                heappush(heads, (message.stored_at_ms, place, message))
                return

        for place in range(len(told)):
            await push(place)
        while heads:
            _, place, message = heappop(heads)
            yield message
            await push(place)


def for_its_group(message: Message, group: str) -> OutgoingMessage:
    """A copy for the group's retry topic; its members get it as a message of the topic that it was sent to. Its tries
    are counted anew."""
    made = copy_of(message, RETRY_PREFIX + group)
    kept = {
        PROPERTY_RETRY_TOPIC: message.properties.get(PROPERTY_RETRY_TOPIC, message.topic),
        PROPERTY_ORIGIN_MESSAGE_ID: message.properties.get(PROPERTY_ORIGIN_MESSAGE_ID, message.offset_msg_id),
    }
    return replace(made, properties={**made.properties, **kept})


async def resend(
    admin: Admin, producer: Producer, group: str, queues: Sequence[DeadLetterQueue], limit: int | None, *, every: bool
) -> int:
    """Send dead letters to their group again: those that were not sent before, or `every` one. Returns their number;
    each counts once it is acknowledged. Raises UnreachableError unless every master answers."""
    require_masters(queue.broker for queue in queues)
    await route_of_topic(admin, RETRY_PREFIX + group)
    count = 0
    for queue in queues:
        begin = queue.low if every else max(queue.low, queue.resent)
        async with aclosing(letters(admin, queue, begin)) as found:
            async for message in found:
                if limit is not None and count >= limit:
                    return count
                await producer.send_message(for_its_group(message, group), timeout_ms=SEND_TIMEOUT_MS, require_ok=True)
                count += 1
                if message.queue_offset >= queue.resent:
                    await _commit(admin, queue, message.queue_offset + 1)
    return count


async def _commit(admin: Admin, queue: DeadLetterQueue, offset: int) -> None:
    ext = {
        "consumerGroup": RESEND_GROUP,
        "topic": DLQ_PREFIX + queue.group,
        "queueId": str(queue.queue.queue_id),
        "commitOffset": str(offset),
    }
    await admin.ask(queue.broker.address, Command(RequestCode.UPDATE_CONSUMER_OFFSET, ext))
