"""A consumer group by the reports of all brokers: members, subscriptions, progress, and what keeps it from reading.
Control plane."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rmqha.client.admin import Admin
from rmqha.client.consumers.expression import TAG
from rmqha.model.access import SYSTEM_GROUP_PREFIX
from rmqha.model.code import PERM_READ, RequestCode, ResponseCode
from rmqha.model.error import RemoteError, UnreachableError, UsageError
from rmqha.model.message import DLQ_PREFIX, RETRY_PREFIX
from rmqha.ops.answer import readable_answer
from rmqha.ops.messaging.brokers import (
    AskedBroker,
    BrokerAnswers,
    QueueName,
    all_brokers,
    ask_json,
    brokers_of_topic,
    from_each,
    queue_table,
    require_brokers,
    route_of_topic,
    side_by_side,
)
from rmqha.ops.messaging.delayed import count_delayed
from rmqha.wire.bodies import ONLY_EXISTING, SUBSCRIBED_ALIKE
from rmqha.wire.command import Command
from rmqha.wire.state.receipt import POPPED_IN_FLIGHT

BROADCASTING = "BROADCASTING"
SYSTEM_GROUPS = frozenset(
    (
        "TOOLS_CONSUMER",
        "SCHEDULE_CONSUMER",
        "FILTERSRV_CONSUMER",
        "__MONITOR_CONSUMER",
        "SELF_TEST_C_GROUP",
        "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_OWNER",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_PULL",
        "rmqha-receive",
        "rmqha-dlq",
    )
)
"""Groups of servers and tools, which no application has made."""


def is_system_group(name: str) -> bool:
    """True for a group that no application has made."""
    return name in SYSTEM_GROUPS or name.startswith(SYSTEM_GROUP_PREFIX)


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """A group's progress in one queue. `committed` None: it has committed nothing there. `oldest_age_ms`: age of the
    first message that it has not read, None if there is none or it is not known. `read_at_ms`: time at which the last
    message that it has read was stored, 0 if that is not known. `first`: offset of the oldest stored message."""

    topic: str
    queue: QueueName
    committed: int | None
    end: int
    read_at_ms: int = 0
    oldest_age_ms: int | None = None
    first: int = 0

    @property
    def lag(self) -> int:
        """Number of messages that wait."""
        return max(0, self.end - max(self.committed or 0, self.first))

    @property
    def deleted(self) -> int:
        """Number of messages that retention has deleted before the group had read them; messages before its first
        commit do not count."""
        return 0 if self.committed is None else max(0, self.first - self.committed)


@dataclass(frozen=True, slots=True)
class GroupMember:
    """One client of the group. `brokers`: the broker groups that it is connected to."""

    client_id: str
    address: str
    language: str
    version: int
    brokers: tuple[str, ...]


@dataclass
class ConsumerGroup:
    """A consumer group. `by_selector`: subscribed topics whose expression is SQL92, not tags; `subscribed_alike`: ids
    of members, a list for each set of subscriptions if there are several; `paused`: reasons why the group reads less
    than it subscribes to, by place; `silent`: brokers without an answer, with the reason."""

    name: str
    members: list[GroupMember] = field(default_factory=list)
    message_model: str | None = None
    consume_from: str | None = None
    subscriptions: dict[str, str] = field(default_factory=dict)
    by_selector: set[str] = field(default_factory=set)
    subscribed_alike: list[list[str]] = field(default_factory=list)
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    progress: list[QueueProgress] = field(default_factory=list)
    popped: dict[str, int] = field(default_factory=dict)
    """Number of messages that were popped and are not acknowledged, by topic."""
    retries_waiting: int | None = None
    delayed: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By topic, the retry topic too: messages that wait in delay levels, and in how many ms the first of them comes."""
    delayed_unread: int = 0
    """Messages in delay levels beyond those that were searched; some of them may be for the group."""
    delayed_untold: list[str] = field(default_factory=list)
    """Brokers that do not tell what waits in delay levels, or not this account."""
    dead_letters: int | None = None
    paused: dict[str, str] = field(default_factory=dict)
    silent: dict[str, str] = field(default_factory=dict)

    @property
    def topics(self) -> list[str]:
        """Topics that it subscribes to or has offsets in, sorted; not its own retry topic."""
        return sorted({*self.subscriptions, *(item.topic for item in self.progress)} - {RETRY_PREFIX + self.name})

    @property
    def lag(self) -> int:
        """Number of messages that wait in all queues."""
        return sum(item.lag for item in self.progress)

    @property
    def deleted(self) -> int:
        """Number of messages that were deleted before the group had read them."""
        return sum(item.deleted for item in self.progress)

    @property
    def oldest_age_ms(self) -> int | None:
        """Age of the oldest message that waits."""
        return max((item.oldest_age_ms for item in self.progress if item.oldest_age_ms is not None), default=None)


@dataclass
class _GroupAnswers:
    """One broker's answers about a group."""

    settings: dict[str, Any] | None = None
    connections: dict[str, Any] | None = None
    topics: list[str] = field(default_factory=list)
    alike: list[list[str]] = field(default_factory=list)


async def group_names(admin: Admin, *, every: bool = False) -> BrokerAnswers[list[str]]:
    """Names of the consumer groups that have settings, by broker; `every`: also those of servers and tools."""

    async def ask(broker: AskedBroker) -> list[str]:
        body = await ask_json(admin, broker.address, Command(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG))
        with readable_answer(broker.address, "a broker's"):
            return sorted(name for name in body["subscriptionGroupTable"] if every or not is_system_group(name))

    return await from_each(await all_brokers(admin), ask)


async def describe_groups(admin: Admin, names: Collection[str]) -> list[ConsumerGroup]:
    """The groups, without ages of messages, retries and dead letters. An unknown one is empty."""
    brokers = await all_brokers(admin)
    found, _ = await side_by_side(list(names), lambda name: _describe(admin, name, brokers, None, ages=False))
    return [found[name] for name in names if name in found]


async def describe_group(admin: Admin, name: str, topic: str | None = None, *, whole: bool = True) -> ConsumerGroup:
    """Everything about a group, or about it in one topic; `whole` False leaves out retries, dead letters and what is
    paused. Raises UsageError for a group, or for a topic of it, that nobody knows."""
    brokers = await all_brokers(admin)
    group = await _describe(admin, name, brokers, topic, ages=True)
    if not (group.settings or group.members or group.progress):
        if group.silent:
            raise UnreachableError(_only_silent(name, group.silent))
        await require_brokers(admin)
        raise UsageError(f"no broker knows a consumer group {name!r}; see rmqha consumer ls")
    if topic is not None and topic not in group.topics:
        known = f"; it reads {', '.join(group.topics)}" if group.topics else ""
        raise UsageError(f"group {name} neither subscribes to topic {topic} nor has offsets there{known}")
    if whole:
        group.retries_waiting = sum(
            item.lag for item in await _progress_in(admin, group, RETRY_PREFIX + name, brokers, ages=False)
        )
        await _add_delayed(admin, group, brokers)
        group.dead_letters = await stored_count(admin, DLQ_PREFIX + name)
        group.paused |= await _paused(admin, group)
    return group


def _only_silent(name: str, silent: Mapping[str, str]) -> str:
    told = "; ".join(f"{broker}: {reason}" for broker, reason in sorted(silent.items()))
    return f"nobody tells of consumer group {name}: {told}"


async def _describe(
    admin: Admin, name: str, brokers: Collection[AskedBroker], topic: str | None, *, ages: bool
) -> ConsumerGroup:
    told = await from_each(brokers, lambda broker: _group_answers(admin, broker, name))
    group = ConsumerGroup(name, silent=dict(told.silent))
    topics: set[str] = set()
    for broker_name, answers in told.answers.items():
        if answers.settings:
            group.settings[broker_name] = answers.settings
        topics |= set(answers.topics)
        if answers.connections is not None:
            group.message_model = group.message_model or answers.connections.get("messageModel")
            group.consume_from = group.consume_from or answers.connections.get("consumeFromWhere")
            group.subscribed_alike = group.subscribed_alike or answers.alike
            for item in (answers.connections.get("subscriptionTable") or {}).values():
                group.subscriptions[str(item["topic"])] = str(item.get("subString") or "*")
                if item.get("expressionType", TAG) != TAG:
                    group.by_selector.add(str(item["topic"]))
    group.members = _members({name: answers.connections or {} for name, answers in told.answers.items()})
    group.subscriptions.pop(RETRY_PREFIX + name, None)
    wanted = sorted((topics | set(group.subscriptions)) - {RETRY_PREFIX + name})
    for each in wanted if topic is None else [item for item in wanted if item == topic]:
        group.progress += await _progress_in(admin, group, each, brokers, ages=ages)
    return group


async def _group_answers(admin: Admin, broker: AskedBroker, group: str) -> _GroupAnswers:
    """A broker's answers about a group: settings, connections, and topics with offsets, as far as it has them."""
    answers = _GroupAnswers()
    try:
        command = Command(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": group, ONLY_EXISTING: "true"})
        answers.settings = await ask_json(admin, broker.address, command)
    except RemoteError as error:
        if error.code not in (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, ResponseCode.REQUEST_CODE_NOT_SUPPORTED):
            raise
    try:
        command = Command(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": group})
        answers.connections = await ask_json(admin, broker.address, command)
    except RemoteError as error:
        if error.code != ResponseCode.CONSUMER_NOT_ONLINE:
            raise
    body = await ask_json(admin, broker.address, Command(RequestCode.QUERY_TOPICS_BY_CONSUMER, {"group": group}))
    with readable_answer(broker.address, "a broker's"):
        answers.topics = [str(topic) for topic in body.get("topicList") or []]
        _members({broker.name: answers.connections or {}})
        for item in ((answers.connections or {}).get("subscriptionTable") or {}).values():
            item["topic"]
        alike = (answers.connections or {}).get(SUBSCRIBED_ALIKE) or []
        answers.alike = [[str(client_id) for client_id in ids] for ids in alike]
    return answers


def _members(connections: Mapping[str, Mapping[str, Any]]) -> list[GroupMember]:
    """Clients by id, each with the brokers that know it."""
    found: dict[str, tuple[Mapping[str, Any], list[str]]] = {}
    for broker_name, answers in sorted(connections.items()):
        for item in answers.get("connectionSet") or ():
            found.setdefault(str(item["clientId"]), (item, []))[1].append(broker_name)
    return [
        GroupMember(
            client_id,
            str(item.get("clientAddr") or ""),
            str(item.get("language") or ""),
            int(item.get("version") or 0),
            tuple(names),
        )
        for client_id, (item, names) in sorted(found.items())
    ]


# --- how far ----------------------------------------------------------------------------------------------------------
async def _progress_in(
    admin: Admin, group: ConsumerGroup, topic: str, brokers: Iterable[AskedBroker], *, ages: bool
) -> list[QueueProgress]:
    """The group's progress in each queue of a topic, sorted. A broker without an answer is noted in `silent`."""
    asked = [broker for broker in brokers if broker.name not in group.silent]
    told = await from_each(asked, lambda broker: _progress_at(admin, broker, group.name, topic, ages=ages))
    group.silent |= told.silent
    for _, popped in told.answers.values():
        for name, count in popped.items():
            group.popped[name] = group.popped.get(name, 0) + count
    return sorted((item for rows, _ in told.answers.values() for item in rows), key=lambda item: item.queue)


async def _progress_at(
    admin: Admin, broker: AskedBroker, group: str, topic: str, *, ages: bool
) -> tuple[list[QueueProgress], dict[str, int]]:
    """The progress at one broker, and the number of messages that were popped there and are not acknowledged, by
    topic."""
    command = Command(RequestCode.GET_CONSUME_STATS, {"consumerGroup": group, "topic": topic})
    try:
        body = await ask_json(admin, broker.address, command)
    except RemoteError as error:
        if error.code != ResponseCode.TOPIC_NOT_EXIST:
            raise
        return [], {}
    rows = queue_table(body, broker.address)
    with readable_answer(broker.address, "a broker's"):
        popped = {str(name): int(count) for name, count in (body.get(POPPED_IN_FLIGHT) or {}).items()}
    age_of = await _ages(admin, broker, group, topic) if ages and rows else {}
    with readable_answer(broker.address, "a broker's"):
        waits_anywhere = any(int(row["consumerOffset"]) < int(row["brokerOffset"]) for row in rows.values())
    firsts = await _firsts(admin, broker, topic) if waits_anywhere else {}
    found = []
    for (_, queue_id), row in rows.items():
        with readable_answer(broker.address, "a broker's"):
            committed, end = int(row["consumerOffset"]), int(row["brokerOffset"])
            read_at_ms = int(row["lastTimestamp"])
        sure = committed > 0 or await _has_committed(admin, broker, group, topic, queue_id)
        waits = end > (committed if sure else 0)
        found.append(
            QueueProgress(
                topic,
                QueueName(broker.name, queue_id),
                committed if sure else None,
                end,
                read_at_ms if committed else 0,
                age_of.get(queue_id) if waits else None,
                firsts.get(queue_id, 0),
            )
        )
    return found, popped


async def _has_committed(admin: Admin, broker: AskedBroker, group: str, topic: str, queue_id: int) -> bool:
    """True if offset 0 in an answer to request 208 is a committed one: it also stands for no commit."""
    ext = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id), "setZeroIfNotFound": "false"}
    try:
        await admin.ask(broker.address, Command(RequestCode.QUERY_CONSUMER_OFFSET, ext))
    except RemoteError as error:
        if error.code != ResponseCode.QUERY_NOT_FOUND:
            raise
        return False
    return True


async def _firsts(admin: Admin, broker: AskedBroker, topic: str) -> dict[int, int]:
    """Offset of the oldest message, by queue id; {} of a broker without an answer."""
    try:
        body = await ask_json(admin, broker.address, Command(RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic}))
    except RemoteError:
        return {}
    rows = queue_table(body, broker.address)
    with readable_answer(broker.address, "a broker's"):
        return {queue_id: int(row["minOffset"]) for (_, queue_id), row in rows.items()}


async def _ages(admin: Admin, broker: AskedBroker, group: str, topic: str) -> dict[int, int]:
    """Age (ms) of the first message that waits, by queue id; {} of a broker without an answer."""
    command = Command(RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": topic, "group": group})
    try:
        body = await ask_json(admin, broker.address, command)
    except RemoteError:
        return {}
    with readable_answer(broker.address, "a broker's"):
        spans = [(item["messageQueue"]["queueId"], int(item["delayTime"])) for item in body["consumeTimeSpanSet"]]
    return {int(queue_id): delay_ms for queue_id, delay_ms in spans if delay_ms > 0}


async def stored_count(admin: Admin, topic: str) -> int:
    """Number of messages in a topic, 0 if there is no such topic. Raises UnreachableError, RemoteError."""
    try:
        brokers = await brokers_of_topic(admin, topic)
    except UsageError:
        return 0
    total = 0
    for broker in brokers:
        command = Command(RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic})
        rows = queue_table(await ask_json(admin, broker.address, command), broker.address)
        with readable_answer(broker.address, "a broker's"):
            total += sum(int(row["maxOffset"]) - int(row["minOffset"]) for row in rows.values())
    return total


async def _add_delayed(admin: Admin, group: ConsumerGroup, brokers: Iterable[AskedBroker]) -> None:
    """Add what waits in delay levels for the topics of the group."""
    asked = [broker for broker in brokers if broker.name not in group.silent]
    told = await count_delayed(admin, asked, {*group.topics, RETRY_PREFIX + group.name})
    group.silent |= told.silent
    for broker_name, found in sorted(told.answers.items()):
        if found is None:
            group.delayed_untold.append(broker_name)
            continue
        group.delayed_unread += found.unread
        for topic, (count, first_at_ms) in found.topics.items():
            before, first_in_ms = group.delayed.get(topic, (0, first_at_ms - found.now_ms))
            first_in_ms = max(0, min(first_in_ms, first_at_ms - found.now_ms))
            group.delayed[topic] = before + count, first_in_ms


async def _paused(admin: Admin, group: ConsumerGroup) -> dict[str, str]:
    """Settings of operators that keep the group from reading, by place."""
    found = {}
    for broker_name, settings in group.settings.items():
        if settings.get("consumeEnable") is False:
            found[broker_name] = (
                f"the group may not read here (consumeEnable=false); rmqha consumer alter {group.name} --resume"
            )
    for topic in group.topics:
        try:
            queues = (await route_of_topic(admin, topic))["queues"]
        except UsageError:
            found[topic] = "the topic is gone: the name servers do not know it"
            continue
        for broker_name, row in queues.items():
            if not row["perm"] & PERM_READ:
                found[f"{topic} in {broker_name}"] = "nobody may read the topic here (its permission)"
    return found
