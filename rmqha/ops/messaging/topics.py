"""Topics: those of users; the settings of one in each broker group, and changes of them. Control plane."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rmqha.client.admin import Admin
from rmqha.model.code import PERM_READ, PERM_WRITE, RequestCode, ResponseCode
from rmqha.model.error import RemoteError, UnreachableError, UsageError
from rmqha.model.message import REPLY_TOPIC_POSTFIX
from rmqha.ops.answer import readable_answer
from rmqha.ops.messaging.brokers import (
    AskedBroker,
    EditResult,
    QueueName,
    all_brokers,
    ask_json,
    brokers_of_topic,
    masters_of,
    queue_table,
    side_by_side,
)
from rmqha.wire.command import Command

_SYSTEM = frozenset(
    (
        "TBW102",
        "SELF_TEST_TOPIC",
        "SCHEDULE_TOPIC_XXXX",
        "BenchmarkTest",
        "OFFSET_MOVED_EVENT",
        "TRANS_CHECK_MAX_TIME_TOPIC",
    )
)
_SYSTEM_PREFIXES = ("%", "RMQ_SYS_", "rmq_sys_")
DEFAULT_QUEUE_COUNT = 8
"""Queues of a new topic in each group."""
PERMISSIONS = {"none": 0, "write": PERM_WRITE, "read": PERM_READ, "both": PERM_READ | PERM_WRITE}


def of_users(names: Sequence[str], info: Mapping[str, Any]) -> list[str]:
    """The topics of users, without the servers' own: retries, dead letters, answers, and one named like each group and
    cluster of `info`, which is `Admin.cluster_info`."""
    answers = (name + REPLY_TOPIC_POSTFIX for name in info["clusters"])
    servers = {*info["brokers"], *info["clusters"], *answers, *_SYSTEM}
    return [name for name in names if name not in servers and not name.startswith(_SYSTEM_PREFIXES)]


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """The settings of a topic in one broker group."""

    read_queues: int
    write_queues: int
    perm: int
    order: bool = False
    sys_flag: int = 0
    filter_type: str = "SINGLE_TAG"
    attributes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicEdit:
    """Changes that an operator wants; None leaves a setting as it is. `attributes`: the new value of each, or None to
    remove it."""

    read_queues: int | None = None
    write_queues: int | None = None
    perm: int | None = None
    attributes: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicChange:
    """A topic in one broker group before and after a change. `unread`: number of messages in queues that cannot be read
    afterwards."""

    broker: AskedBroker
    before: TopicSettings
    after: TopicSettings
    attributes: str
    unread: Mapping[QueueName, int] = field(default_factory=dict)

    @property
    def changes(self) -> bool:
        """False if the group has these settings already."""
        return self.before != self.after


def edited(settings: TopicSettings, edit: TopicEdit) -> TopicSettings:
    """The settings after the edit. Raises UsageError for more write queues than read queues: nobody could read the
    others."""
    attributes: dict[str, str] = dict(settings.attributes)
    for name, value in edit.attributes.items():
        if value is None:
            if name not in attributes:
                raise UsageError(f"the topic has no attribute {name!r}; it has {', '.join(attributes) or 'none'}")
            del attributes[name]
        else:
            attributes[name] = value
    made = replace(
        settings,
        read_queues=settings.read_queues if edit.read_queues is None else edit.read_queues,
        write_queues=settings.write_queues if edit.write_queues is None else edit.write_queues,
        perm=settings.perm if edit.perm is None else settings.perm & ~(PERM_READ | PERM_WRITE) | edit.perm,
        attributes=attributes,
    )
    if made.write_queues > made.read_queues and made != settings:
        raise UsageError(
            f"{made.write_queues} queues to write and {made.read_queues} to read would take messages that nobody "
            "reads; give both"
        )
    return made


def attributes_text(edit: TopicEdit) -> str:
    """The field of request 17: `+name=value` sets, `-name` removes."""
    return ",".join(f"-{name}" if value is None else f"+{name}={value}" for name, value in edit.attributes.items())


async def plan_edit(admin: Admin, topic: str, edit: TopicEdit, groups: Collection[str] = ()) -> list[TopicChange]:
    """The change in each of `groups`, or in all that hold the topic. Raises UsageError for an unknown topic or a group
    that does not hold it, UnreachableError unless every master answers."""
    found = []
    for broker in masters_of(
        await brokers_of_topic(admin, topic),
        groups,
        lambda name, known: UsageError(f"group {name} does not hold topic {topic}; it is in {known}"),
    ):
        before = await settings_at(admin, broker, topic)
        after = edited(before, edit)
        unread = (
            await _unread(admin, broker, topic, after.read_queues) if after.read_queues < before.read_queues else {}
        )
        found.append(TopicChange(broker, before, after, attributes_text(edit), unread))
    return found


async def settings_at(admin: Admin, broker: AskedBroker, topic: str) -> TopicSettings:
    """The settings of a topic at a broker (request 351)."""
    body = await ask_json(admin, broker.address, Command(RequestCode.GET_TOPIC_CONFIG, {"topic": topic}))
    with readable_answer(broker.address, "a broker's"):
        return TopicSettings(
            int(body["readQueueNums"]),
            int(body["writeQueueNums"]),
            int(body["perm"]),
            bool(body.get("order")),
            int(body.get("topicSysFlag") or 0),
            str(body.get("topicFilterType") or "SINGLE_TAG"),
            {str(name): str(value) for name, value in (body.get("attributes") or {}).items()},
        )


async def _unread(admin: Admin, broker: AskedBroker, topic: str, read_queues: int) -> dict[QueueName, int]:
    """Number of messages in each queue that can no longer be read."""
    command = Command(RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic})
    rows = queue_table(await ask_json(admin, broker.address, command), broker.address)
    with readable_answer(broker.address, "a broker's"):
        counts = {queue_id: int(row["maxOffset"]) - int(row["minOffset"]) for (_, queue_id), row in rows.items()}
    return {
        QueueName(broker.name, queue_id): count
        for queue_id, count in sorted(counts.items())
        if queue_id >= read_queues and count
    }


async def apply_edit(admin: Admin, topic: str, changes: Collection[TopicChange]) -> EditResult:
    """Change the topic, in all groups at once. In CP each answers once its SyncStateSet holds the change."""
    return await _update_each(
        admin, topic, {change.broker: (change.after, change.attributes) for change in changes if change.changes}
    )


async def _update_each(admin: Admin, topic: str, wanted: Mapping[AskedBroker, tuple[TopicSettings, str]]) -> EditResult:
    async def update(broker: AskedBroker) -> Command:
        settings, attributes = wanted[broker]
        ext = {
            "topic": topic,
            "defaultTopic": "TBW102",
            "readQueueNums": str(settings.read_queues),
            "writeQueueNums": str(settings.write_queues),
            "perm": str(settings.perm),
            "topicFilterType": settings.filter_type,
            "topicSysFlag": str(settings.sys_flag),
            "order": str(settings.order).lower(),
            "attributes": attributes,
        }
        return await admin.ask(broker.address, Command(RequestCode.UPDATE_AND_CREATE_TOPIC, ext))

    done, failures = await side_by_side(wanted, update)
    return EditResult(
        tuple(broker.name for broker in done), {broker.name: str(error) for broker, error in failures.items()}
    )


# --- made -------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class TopicCreation:
    """Groups in which a topic is to be made with `settings`, and its settings in those that hold it already."""

    settings: TopicSettings
    making: tuple[AskedBroker, ...]
    existing: Mapping[str, TopicSettings]


async def plan_creation(
    admin: Admin, topic: str, queue_count: int | None, attributes: Mapping[str, str], groups: Collection[str] = ()
) -> TopicCreation:
    """The creation in each of `groups`, or in all that the name servers know; nothing changes where the topic exists.
    `queue_count`: None for the usual one, or that which it has. Raises UsageError if it exists with another number of
    queues or other attributes than these, UnreachableError for an unknown group or one without a master."""
    brokers = masters_of(
        await all_brokers(admin),
        groups,
        lambda name, known: UnreachableError(f"there is no group {name}; known are {known}"),
    )
    existing: dict[str, TopicSettings] = {}
    making = []
    for broker in brokers:
        try:
            existing[broker.name] = await settings_at(admin, broker, topic)
        except RemoteError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            making.append(broker)
    for name, settings in existing.items():
        _require_same(topic, name, settings, queue_count, attributes)
    count = DEFAULT_QUEUE_COUNT if queue_count is None else queue_count
    settings = TopicSettings(count, count, PERM_READ | PERM_WRITE, attributes=attributes)
    return TopicCreation(settings, tuple(making), existing)


def _require_same(
    topic: str, group: str, settings: TopicSettings, queue_count: int | None, attributes: Mapping[str, str]
) -> None:
    if queue_count is not None and (settings.read_queues, settings.write_queues) != (queue_count, queue_count):
        found, option = (
            f"{settings.read_queues} queues to read and {settings.write_queues} to write",
            f"--queues {queue_count}",
        )
    else:
        differing = {name: value for name, value in attributes.items() if settings.attributes.get(name) != value}
        if not differing:
            return
        name, value = next(iter(differing.items()))
        found = f"{name}={settings.attributes[name]}" if name in settings.attributes else f"no attribute {name}"
        option = f"--attribute {name}={value}"
    raise UsageError(
        f"topic {topic} exists in {group} with {found}, so nothing was made; to change it: rmqha topic alter {topic} "
        f"{option}"
    )


async def create(admin: Admin, topic: str, made: TopicCreation) -> EditResult:
    """Make the topic, in all groups at once. In CP each answers once its SyncStateSet holds it."""
    text = attributes_text(TopicEdit(attributes=made.settings.attributes))
    return await _update_each(admin, topic, dict.fromkeys(made.making, (made.settings, text)))
