"""Changes that the page may make: topics, a test message, messages sent again, reset consumer groups. Shell.

Each does the work of a command of `rmqha`, with the same checks, under the account of webCredentialsFile.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from rmqha.client.admin import Admin
from rmqha.client.names import check_topic
from rmqha.client.producers.outgoing import OutgoingMessage
from rmqha.client.producers.producer import Producer
from rmqha.model.error import RmqhaError, UsageError
from rmqha.ops.messaging import consumer_reset, messages, resending, topics
from rmqha.ops.messaging.consumer_group import describe_group

MAX_QUEUE_COUNT = 1024
MAX_BODY_CHARS = 64 * 1024
MAX_RESENT = 1_000
"""Dead letters that one request sends again at most."""
PRODUCER_GROUP = "rmqha-page"
SEND_TIMEOUT_MS = 10_000

Fields = Mapping[str, Any]
Action = Callable[[Admin, Callable[[], Producer], Fields], Awaitable[str]]


async def create_topic(admin: Admin, producer: Callable[[], Producer], fields: Fields) -> str:
    """Create a topic in all groups. Raises UsageError if it exists."""
    name, queues = _topic(fields), _count(fields, "queues", MAX_QUEUE_COUNT)
    if name in await admin.topics():
        raise UsageError(f"there is a topic {name} already; edit it instead")
    made = await admin.create_topic(name, queue_count=queues)
    if not made:
        raise UsageError("this name server knows no group, so nothing was made")
    return f"{name}: {queues} queues in {', '.join(made)}"


async def alter_topic(admin: Admin, producer: Callable[[], Producer], fields: Fields) -> str:
    """Change queues and permission of a topic in all its groups. Raises UsageError if messages would become
    unreadable."""
    name = _topic(fields)
    permission = str(fields.get("permission") or "")
    if permission not in topics.PERMISSIONS:
        raise UsageError(f"permission must be one of {', '.join(topics.PERMISSIONS)}")
    edit = topics.TopicEdit(
        read_queues=_count(fields, "readQueues", MAX_QUEUE_COUNT),
        write_queues=_count(fields, "writeQueues", MAX_QUEUE_COUNT),
        perm=topics.PERMISSIONS[permission],
    )
    changes = await topics.plan_edit(admin, name, edit)
    unread = sum(count for change in changes for count in change.unread.values())
    if unread:
        raise UsageError(
            f"{unread} messages would become unreadable; let them be read first, or say so to rmqha topic alter --yes"
        )
    result = await topics.apply_edit(admin, name, changes)
    if result.failed:
        refused = "; ".join(f"not in {group}: {why}" for group, why in result.failed.items())
        raise RmqhaError(f"{name}: changed in {', '.join(result.done) or 'no group'}, {refused}")
    return f"{name}: changed in {', '.join(result.done)}" if result.done else f"{name} is so already"


async def delete_topic(admin: Admin, producer: Callable[[], Producer], fields: Fields) -> str:
    """Delete a topic from all groups and name servers. `confirm` must be its name."""
    name = _topic(fields)
    if fields.get("confirm") != name:
        raise UsageError(f"nothing was deleted: write the topic's name, {name}, to confirm")
    if name not in topics.of_users(await admin.topics(), await admin.cluster_info()):
        raise UsageError(f"there is no topic {name} of users")
    return f"{name}: deleted in {', '.join(await admin.delete_topic(name))}"


async def send_message(admin: Admin, producer: Callable[[], Producer], fields: Fields) -> str:
    """Send a message to an existing topic."""
    name, body = _topic(fields), str(fields.get("body") or "")
    if not body or len(body) > MAX_BODY_CHARS:
        raise UsageError(f"a body must have 1 to {MAX_BODY_CHARS} characters")
    if name not in await admin.topics():
        raise UsageError(f"there is no topic {name}; make it first")
    message = OutgoingMessage(
        name, body.encode(), keys=str(fields.get("key") or "").strip(), tags=str(fields.get("tag") or "").strip()
    )
    async with producer() as sending:
        result = await sending.send_message(message, timeout_ms=SEND_TIMEOUT_MS, require_ok=True)
    place = f"{result.broker_name}:{result.queue_id}, offset {result.queue_offset}"
    return f"acknowledged at {place}; message id {result.msg_id}"


async def resend_dead_letters(admin: Admin, producer: Callable[[], Producer], fields: Fields) -> str:
    """Send a consumer group its dead letters again, except those sent again before."""
    group = str(fields.get("group") or "").strip()
    queues = await resending.queues_of(admin, group)
    async with producer() as sending:
        count = await resending.resend(admin, sending, group, queues, MAX_RESENT, every=False)
    more = " (at most so many at a time: once more sends the rest)" if count == MAX_RESENT else ""
    return f"{count} dead letters of {group} were sent to it again{more}"


async def resend_message(admin: Admin, producer: Callable[[], Producer], fields: Fields) -> str:
    """Send a copy of a message to its topic, for all groups that read it. `id`: message id; `topic`: its topic."""
    message_id, topic = str(fields.get("id") or "").strip(), _topic(fields)
    found = (await messages.by_id(admin, message_id, topic))[-1]
    if found.topic != topic:
        raise UsageError(f"that message is not of topic {topic}; nothing was sent")
    async with producer() as sending:
        made = messages.copy_of(found, topic)
        result = await sending.send_message(made, timeout_ms=SEND_TIMEOUT_MS, require_ok=True)
    return f"a copy was sent to {topic} as {result.msg_id}"


async def reset_consumer(admin: Admin, producer: Callable[[], Producer], fields: Fields) -> str:
    """Reset the offsets of a consumer group in a topic. Unless `confirm` is the group's name, nothing is changed and
    the error says what would be."""
    name = str(fields.get("group") or "").strip()
    group = await describe_group(admin, name, whole=False)
    topic = consumer_reset.chosen_topic(group, str(fields.get("topic") or "").strip() or None)
    made = await consumer_reset.plan(admin, group, topic, _target(fields))
    moving = [change for change in made.changes if change.moves]
    again, over = sum(change.read_again for change in moving), sum(change.passed_over for change in moving)
    words = f"{again} messages of {topic} read again, {over} passed over, {len(moving)} queues"
    if not moving:
        return f"{name} is there already, in every queue of {topic}"
    if str(fields.get("confirm") or "").strip() != name:
        raise UsageError(f"nothing was changed; it would be: {words}. Write the group's name, {name}, to confirm")
    result = await consumer_reset.apply(admin, made)
    if result.failed:
        why = "; ".join(f"{queue}: {reason}" for queue, reason in sorted(result.failed.items()))
        raise RmqhaError(f"{len(result.done)} of {len(moving)} queues were changed; not changed: {why}")
    return f"{name}: {words}"


def _target(fields: Fields) -> consumer_reset.Target:
    """Target of a reset. `to`: first, last, or time with `at`, milliseconds since 1970."""
    place = str(fields.get("to") or "")
    if place in ("first", "last"):
        return consumer_reset.Target(consumer_reset.ResetPlace(place))
    if place != "time":
        raise UsageError("to must be first, last or time")
    text = str(fields.get("at") or "").strip()
    if not (text.isascii() and text.isdigit()) or len(text) > 15:
        raise UsageError("at must be a time")
    return consumer_reset.Target(consumer_reset.ResetPlace.TIME, int(text))


def _topic(fields: Fields) -> str:
    name = str(fields.get("topic") or "").strip()
    if not name:
        raise UsageError("topic is missing")
    check_topic(name)
    return name


def _count(fields: Fields, name: str, limit: int) -> int:
    text = str(fields.get(name) or "").strip()
    if not (text.isascii() and text.isdigit()) or len(text) > 9 or not 1 <= int(text) <= limit:
        raise UsageError(f"{name} must be a number between 1 and {limit}")
    return int(text)


ACTIONS: Mapping[str, Action] = {
    "topic.create": create_topic,
    "topic.alter": alter_topic,
    "topic.delete": delete_topic,
    "message.send": send_message,
    "message.resend": resend_message,
    "dlq.resend": resend_dead_letters,
    "consumer.reset": reset_consumer,
}
