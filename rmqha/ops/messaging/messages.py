"""Messages: searches by id, key, time or content; which groups have read one; copies of one. Control plane."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from ipaddress import ip_address

from rmqha.client.admin import Admin
from rmqha.client.consumers.expression import parse_tags
from rmqha.client.consumers.message import Message, decode_messages
from rmqha.client.consumers.offsets import answered_offset
from rmqha.client.producers.outgoing import OutgoingMessage
from rmqha.model.code import RequestCode
from rmqha.model.error import RemoteError, UnreachableError, UsageError
from rmqha.model.message import (
    DLQ_PREFIX,
    PROPERTY_CHECK_IMMUNITY_SECONDS,
    PROPERTY_CLUSTER,
    PROPERTY_CRC32,
    PROPERTY_DELAY,
    PROPERTY_INNER_BASE,
    PROPERTY_INNER_NUM,
    PROPERTY_KEYS,
    PROPERTY_MAX_OFFSET,
    PROPERTY_MAX_RECONSUME_TIMES,
    PROPERTY_MIN_OFFSET,
    PROPERTY_MSG_REGION,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_RECONSUME_TIME,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_TAGS,
    PROPERTY_TRACE_ON,
    PROPERTY_TRANSACTION_CHECK_TIMES,
    PROPERTY_TRANSACTION_ID,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET,
    PROPERTY_UNIQUE_KEY,
    PROPERTY_WAIT,
    RETRY_PREFIX,
    TIMER_PROPERTIES,
    parse_offset_message_id,
)
from rmqha.ops.answer import readable_answer
from rmqha.ops.messaging.brokers import QueueName, ask_json, brokers_of_topic, route_of_topic
from rmqha.ops.messaging.consumer_group import BROADCASTING, ConsumerGroup, describe_group, is_system_group
from rmqha.ops.messaging.topics import of_users
from rmqha.store.index.index_key import INDEX_UNIQUE_TYPE
from rmqha.wire.command import Command

READER_GROUP = "rmqha-receive"
MAX_SEARCHED_TOPICS = 100
"""Most topics that are searched for an id whose topic is not given."""
_OF_SERVERS = frozenset(
    (
        PROPERTY_CHECK_IMMUNITY_SECONDS,
        PROPERTY_CLUSTER,
        PROPERTY_CRC32,
        PROPERTY_DELAY,
        PROPERTY_INNER_BASE,
        PROPERTY_INNER_NUM,
        PROPERTY_KEYS,
        PROPERTY_MAX_OFFSET,
        PROPERTY_MAX_RECONSUME_TIMES,
        PROPERTY_MIN_OFFSET,
        PROPERTY_MSG_REGION,
        PROPERTY_ORIGIN_MESSAGE_ID,
        PROPERTY_PRODUCER_GROUP,
        PROPERTY_REAL_QUEUE_ID,
        PROPERTY_REAL_TOPIC,
        PROPERTY_RECONSUME_TIME,
        PROPERTY_RETRY_TOPIC,
        PROPERTY_TAGS,
        *TIMER_PROPERTIES,
        PROPERTY_TRACE_ON,
        PROPERTY_TRANSACTION_CHECK_TIMES,
        PROPERTY_TRANSACTION_ID,
        PROPERTY_TRANSACTION_PREPARED,
        PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET,
        PROPERTY_UNIQUE_KEY,
        PROPERTY_WAIT,
    )
)
"""Properties of a stored message that servers and clients set, not its application."""


class TrackState(Enum):
    """Kinds of progress of a group with one message."""

    READ = "read"
    WAITING = "waiting"
    FILTERED = "filtered"
    SENT_BACK = "sent back"
    DEAD = "dead letter"
    BROADCAST = "broadcast"


@dataclass(frozen=True, slots=True)
class MessageTrack:
    """One group's progress with a message. `ahead`: number of messages that it reads before; `tries`: number of times
    that the message was sent back."""

    group: str
    state: TrackState
    ahead: int = 0
    tries: int = 0
    member_count: int = 0


# --- by id ------------------------------------------------------------------------------------------------------------
async def by_id(admin: Admin, message_id: str, topic: str | None = None) -> list[Message]:
    """The message with that offset message id, or all copies with that unique id, the newest first. Several copies mean
    that a producer sent it again. Raises UsageError if there is none."""
    place = await _place_of(admin, message_id)
    if place is not None:
        return [await _at(admin, *place, message_id)]
    if topic:
        await route_of_topic(admin, topic)
    names = [topic] if topic else await _topics_to_search(admin)
    found: list[Message] = []
    for name in names:
        try:
            found += await admin.query_message(name, message_id, index_type=INDEX_UNIQUE_TYPE)
        except UnreachableError:
            if topic:
                raise
    if not found:
        where = f"topic {topic}" if topic else f"{len(names)} topic{'' if len(names) == 1 else 's'} of users"
        raise UsageError(f"no message with id {message_id} is in {where}; is it a producer's id, or too old?")
    return found


async def _topics_to_search(admin: Admin) -> list[str]:
    names = of_users(await admin.topics(), await admin.cluster_info())
    if len(names) > MAX_SEARCHED_TOPICS:
        raise UsageError(f"there are {len(names)} topics to search for that id: say which with --topic")
    return names


async def _place_of(admin: Admin, message_id: str) -> tuple[str, list[str], int] | None:
    """Place that an offset message id names: (group, its replicas with the one of the id first, physical offset). None
    for an id of another kind: it has as many digits, but names no broker."""
    try:
        (host, port), phy_offset = parse_offset_message_id(message_id)
    except ValueError:
        return None
    named = ip_address(host)
    address = f"{named}:{port}" if named.version == 4 else f"[{named}]:{port}"
    for name, group in (await admin.cluster_info())["brokers"].items():
        addresses = list(group["addresses"].values())
        if address in addresses:
            return name, sorted(addresses, key=lambda item: item != address), phy_offset
    return None


async def _at(admin: Admin, broker_name: str, addresses: Sequence[str], phy_offset: int, message_id: str) -> Message:
    """The message at an offset of a group's log, from the first replica that has it: all have the same there."""
    reason = ""
    for address in addresses:
        try:
            answer = await admin.ask(address, Command(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(phy_offset)}))
        except (UnreachableError, RemoteError) as error:
            reason = reason or str(error)
            continue
        found = decode_messages(broker_name, answer.body)
        if found:
            return found[0]
    raise UsageError(f"group {broker_name} has no message {message_id}: {reason or 'its answer is empty'}")


# --- by key, time, content --------------------------------------------------------------------------------------------
async def by_key(admin: Admin, topic: str, key: str, since_ms: int | None, until_ms: int | None) -> list[Message]:
    """Messages with that key, the newest first; the newest 64 of each group. Raises UsageError for an unknown topic."""
    await route_of_topic(admin, topic)
    found = await admin.query_message(topic, key, begin_ms=since_ms or 0, end_ms=until_ms or (1 << 63) - 1)
    return [message for message in found if until_ms is None or message.stored_at_ms < until_ms]


async def scan(
    admin: Admin,
    topic: str,
    since_ms: int | None,
    until_ms: int | None,
    wanted: Callable[[Message], bool],
    limit: int,
) -> AsyncGenerator[Message, None]:
    """Messages of a topic that were stored in that time and are wanted, at most `limit` of each queue, queue by queue
    in order. Messages stored after the scan began are left out."""
    queues = (await route_of_topic(admin, topic))["queues"]
    for broker in await brokers_of_topic(admin, topic):
        for queue_id in range(queues.get(broker.name, {}).get("read", 0)):
            place = {"topic": topic, "queueId": str(queue_id)}
            low = await _offset(admin, broker.address, place, since_ms, RequestCode.GET_MIN_OFFSET)
            high = await _offset(admin, broker.address, place, until_ms, RequestCode.GET_MAX_OFFSET)
            count = 0
            while low < high and count < limit:
                found, low_next = await admin.read_queue(
                    broker.address, broker.name, topic, queue_id, low, group=READER_GROUP
                )
                if not found and low_next <= low:
                    break
                low = low_next
                for message in found:
                    if message.queue_offset < high and count < limit and wanted(message):
                        count += 1
                        yield message


async def _offset(admin: Admin, address: str, place: dict[str, str], at_ms: int | None, end: RequestCode) -> int:
    """The queue offset at a time, or the queue's first or last one, which the request `end` asks for."""
    if at_ms is None:
        return answered_offset(await admin.ask(address, Command(end, dict(place))), address)
    command = Command(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {**place, "timestamp": str(at_ms)})
    return answered_offset(await admin.ask(address, command), address)


# --- who has read it --------------------------------------------------------------------------------------------------
async def track(admin: Admin, message: Message) -> list[MessageTrack]:
    """Progress of each consumer group of the message's topic with the message, by name."""
    brokers = await brokers_of_topic(admin, message.topic)
    address = next(broker.address for broker in brokers if broker.name == message.broker_name)
    body = await ask_json(admin, address, Command(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": message.topic}))
    with readable_answer(address, "a broker's"):
        names = sorted(str(name) for name in body.get("groupList") or [])
    tracks = []
    for name in names:
        if not is_system_group(name):
            group = await describe_group(admin, name, message.topic, whole=False)
            back = await _copies(admin, RETRY_PREFIX + name, message.msg_id)
            dead = await _copies(admin, DLQ_PREFIX + name, message.msg_id)
            tracks.append(tracked(group, message, back, dead))
    return tracks


async def _copies(admin: Admin, topic: str, message_id: str) -> list[Message]:
    try:
        await route_of_topic(admin, topic)
    except UsageError:
        return []
    return await admin.query_message(topic, message_id, index_type=INDEX_UNIQUE_TYPE)


def tracked(
    group: ConsumerGroup, message: Message, back: Collection[Message], dead: Collection[Message]
) -> MessageTrack:
    """Progress of a group with a message. `back`, `dead`: its copies in the group's retry and dead letter topics."""
    tries = max((copy.reconsume_times for copy in (*back, *dead)), default=0)
    count = len(group.members)
    if group.message_model == BROADCASTING:
        return MessageTrack(group.name, TrackState.BROADCAST, member_count=count)
    if dead:
        return MessageTrack(group.name, TrackState.DEAD, tries=tries, member_count=count)
    if back:
        return MessageTrack(group.name, TrackState.SENT_BACK, tries=tries, member_count=count)
    place = QueueName(message.broker_name, message.queue_id)
    committed = next(
        (item.committed for item in group.progress if (item.topic, item.queue) == (message.topic, place)), None
    )
    if committed is None or committed <= message.queue_offset:
        return MessageTrack(
            group.name, TrackState.WAITING, ahead=message.queue_offset - (committed or 0), member_count=count
        )
    # an expression over properties is not worked out here
    tags = "*" if message.topic in group.by_selector else group.subscriptions.get(message.topic, "*")
    wanted = parse_tags(tags)
    state = TrackState.READ if wanted is None or message.tags in wanted else TrackState.FILTERED
    return MessageTrack(group.name, state, member_count=count)


# --- again ------------------------------------------------------------------------------------------------------------
def copy_of(message: Message, topic: str) -> OutgoingMessage:
    """A new message with the same body, keys, tags and properties of the application."""
    properties = {name: value for name, value in message.properties.items() if name not in _OF_SERVERS}
    return OutgoingMessage(
        topic,
        message.body,
        keys=message.properties.get(PROPERTY_KEYS, ""),
        tags=message.properties.get(PROPERTY_TAGS, ""),
        properties=properties,
    )
