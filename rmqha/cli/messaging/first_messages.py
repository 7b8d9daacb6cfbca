"""Reads of the messages that are in a topic already, without a consumer: that needs an event loop, which costs more
than all the rest of a short command. Control plane."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rmqha.client.admin import Admin
from rmqha.client.consumers.read_range import ReadRange, first_offset_request
from rmqha.client.route import MessageQueue
from rmqha.model.code import PERM_READ, ResponseCode
from rmqha.model.error import RemoteError, RmqhaError
from rmqha.model.offset import MASTER_ID
from rmqha.ops.messaging.brokers import require_brokers
from rmqha.wire.command import Command

if TYPE_CHECKING:
    from rmqha.client.consumers.message import Message


@dataclass(frozen=True, slots=True)
class WantedMessages:
    """The messages to show: those of `read_range` with one of the `tags`, `limit` at most (None: all). `group`: name of
    the reader in requests."""

    group: str
    topic: str
    read_range: ReadRange
    tags: str
    limit: int | None


@dataclass(slots=True)
class ShownMessages:
    """Number of messages that were shown, and the offset at which each queue goes on."""

    count: int = 0
    offsets: dict[MessageQueue, int] = field(default_factory=dict)


async def show_first(namesrv: str, wanted: WantedMessages, show: Callable[[Message], None]) -> ShownMessages:
    """Show the first of the wanted messages of each queue, from where the part begins, else from the first.

    A broker that cannot be asked, and an unknown topic, are left to the consumer, which asks again and reports the
    reason. Raises UnreachableError if no name server answers."""
    seen = ShownMessages()
    async with Admin(namesrv) as admin:
        try:
            route = await admin.route(wanted.topic)
        except RemoteError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            return seen
        try:
            for queue, address in _queues(wanted.topic, route, wanted.read_range):
                await _show_queue(admin, queue, address, wanted, show, seen)
                if seen.count == wanted.limit:
                    break
        except RmqhaError:
            return seen
    return seen


async def check_readable(namesrv: str, topic: str) -> None:
    """Raise RmqhaError for a topic that may not be read: a reader would wait for ever. Raises UnreachableError if no
    broker is known."""
    async with Admin(namesrv) as admin:
        try:
            queues = (await admin.route(topic))["queues"]
        except RemoteError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            await require_brokers(admin)
            return  # the consumer says so
    if queues and not any(data["perm"] & PERM_READ and data["read"] for data in queues.values()):
        where = ", ".join(sorted(queues))
        raise RmqhaError(
            f"nobody may read topic {topic}: its permission in {where} forbids it; see rmqha topic describe {topic}"
        )


def _queues(topic: str, route: dict[str, Any], read_range: ReadRange) -> Iterator[tuple[MessageQueue, str]]:
    """Queues to read, each with the address of its master."""
    for name, data in sorted(route["queues"].items()):
        address = route["brokers"].get(name, {}).get(MASTER_ID)
        if address is None or not data["perm"] & PERM_READ:
            continue
        for queue_id in range(data["read"]):
            queue = MessageQueue(topic, name, queue_id)
            if read_range.queue in (None, queue):
                yield queue, address


async def _show_queue(
    admin: Admin,
    queue: MessageQueue,
    address: str,
    wanted: WantedMessages,
    show: Callable[[Message], None],
    seen: ShownMessages,
) -> None:
    offset = wanted.read_range.offset
    if offset is None:
        code, more = first_offset_request(wanted.read_range)
        ext = {"topic": queue.topic, "queueId": str(queue.queue_id), "bname": queue.broker_name, **more}
        text = (await admin.ask(address, Command(code, {"consumerGroup": wanted.group, **ext}))).ext.get("offset", "")
        if not text.isdigit():
            return
        offset = int(text)
    messages, following = await admin.read_queue(
        address, queue.broker_name, queue.topic, queue.queue_id, offset, group=wanted.group, tags=wanted.tags
    )
    for message in messages:
        if seen.count == wanted.limit:
            return
        show(message)
        seen.count += 1
        seen.offsets[queue] = message.queue_offset + 1
    seen.offsets[queue] = following
