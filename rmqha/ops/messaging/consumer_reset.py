"""Resets of a consumer group's offsets: first a plan of the change, then the change. Control plane.

The brokers set the offset of each queue themselves and tell connected members at their next pull
(useServerSideResetOffset, the default of ours and Apache's). A broker without that asks the members; of a group that is
not connected the offsets are committed as a member would.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum

from rmqha.client.admin import Admin
from rmqha.client.consumers.offsets import answered_offset
from rmqha.model.code import RequestCode
from rmqha.model.error import ConfigError, RmqhaError, UnreachableError, UsageError
from rmqha.ops.answer import readable_answer
from rmqha.ops.messaging.brokers import (
    AskedBroker,
    QueueName,
    all_brokers,
    ask_json,
    chosen,
    queue_table,
    require_masters,
    route_of_topic,
    side_by_side,
)
from rmqha.ops.messaging.consumer_group import BROADCASTING, ConsumerGroup, describe_group
from rmqha.wire.command import Command
from rmqha.wire.config_answer import parse_keys

SERVER_SIDE_KEY = "useServerSideResetOffset"
EARLIEST_TIME_AS_OFFSET = 10**11
"""Number from which on it is taken for a time in milliseconds, not for an offset."""


class ResetPlace(Enum):
    """Kinds of places at which a group may go on."""

    FIRST = "first"
    LAST = "last"
    TIME = "time"
    OFFSET = "offset"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class Target:
    """The place at which each queue goes on. `value`: milliseconds since 1970, an offset, or the number of messages to
    pass over."""

    place: ResetPlace
    value: int = 0


class ResetMethod(Enum):
    """Ways to change offsets at a broker: it does so itself, it asks the members, or the tool commits them."""

    BROKER = "broker"
    MEMBERS = "members"
    COMMIT = "commit"


@dataclass(frozen=True, slots=True)
class QueueState:
    """A queue before the change: the group's committed offset, None if it has none, and the queue's own ends."""

    queue: QueueName
    committed: int | None
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class QueueChange:
    """The offset of one queue before and after."""

    queue: QueueName
    before: int | None
    after: int

    @property
    def read_again(self) -> int:
        """Number of messages that the group will get again."""
        return max(0, (self.before or 0) - self.after)

    @property
    def passed_over(self) -> int:
        """Number of messages that the group will never get."""
        return max(0, self.after - (self.before or 0)) if self.before is not None else 0

    @property
    def moves(self) -> bool:
        """False if the group is there already."""
        return self.before != self.after


@dataclass(frozen=True)
class ResetPlan:
    """The change that `apply` will make. `ways` and `brokers` are by broker group."""

    group: str
    topic: str
    target: Target
    changes: tuple[QueueChange, ...]
    member_count: int
    ways: dict[str, ResetMethod]
    brokers: dict[str, AskedBroker]


@dataclass
class ResetResult:
    """Queues that were changed, and the reasons of the others."""

    done: list[QueueChange] = field(default_factory=list)
    failed: dict[QueueName, str] = field(default_factory=dict)


# --- pure -------------------------------------------------------------------------------------------------------------
def offset_after(state: QueueState, target: Target, at_time: int = 0) -> int:
    """The offset to go on at. `at_time`: offset of the first message that was stored at the target's time or later.
    Raises UsageError for an offset that the queue does not have."""
    match target.place:
        case ResetPlace.FIRST:
            return state.low
        case ResetPlace.LAST:
            return state.high
        case ResetPlace.TIME:
            return min(max(at_time, state.low), state.high)
        case ResetPlace.OFFSET:
            if not state.low <= target.value <= state.high:
                raise UsageError(_outside(state, target.value))
            return target.value
        case ResetPlace.SKIP:
            if state.committed is None:
                raise UsageError(
                    f"the group has committed nothing in {state.queue}, so it is unclear what to skip; "
                    "use rmqha consumer reset --to"
                )
            # messages that have gone by age count for nothing
            return min(max(state.committed, state.low) + target.value, state.high)


def _outside(state: QueueState, offset: int) -> str:
    told = f"offset {offset} is not in {state.queue}, which holds {state.low} to {state.high}; nothing was changed"
    if offset >= EARLIEST_TIME_AS_OFFSET:
        return f"{told}. For a time write it as 2026-11-21T14:00:00"
    return told


def chosen_topic(group: ConsumerGroup, topic: str | None) -> str:
    """The topic that is meant. Raises UsageError while that is unclear."""
    if topic is None:
        if len(group.topics) != 1:
            known = ", ".join(group.topics) or "no topic"
            raise UsageError(f"group {group.name} reads {known}: say which with --topic; nothing was changed")
        return group.topics[0]
    return topic


def chosen_queues(states: Sequence[QueueState], queue: QueueName | None, target: Target) -> list[QueueState]:
    """The queues that are meant. Raises UsageError while that is unclear."""
    if queue is not None:
        found = [state for state in states if state.queue == queue]
        if not found:
            known = ", ".join(str(state.queue) for state in states)
            raise UsageError(f"there is no queue {queue} of the topic; it has {known}")
        return found
    if target.place in (ResetPlace.OFFSET, ResetPlace.SKIP) and len(states) > 1:
        raise UsageError(
            f"the topic has {len(states)} queues and a number fits only one: say which with --queue, "
            f"such as {states[0].queue}; nothing was changed"
        )
    return list(states)


def require_movable(group: ConsumerGroup) -> None:
    """Raise UsageError for a group whose offsets are not at the brokers, UnreachableError unless all brokers have
    answered: else it is not known who is connected."""
    if group.silent:
        told = "; ".join(f"{name}: {why}" for name, why in sorted(group.silent.items()))
        raise UnreachableError(f"not every broker tells of group {group.name}, so nothing was changed: {told}")
    if group.message_model == BROADCASTING:
        raise UsageError(
            f"the members of group {group.name} each read all queues (BROADCASTING) and keep their offsets themselves; "
            "no broker can set them"
        )


# --- asked ------------------------------------------------------------------------------------------------------------
async def plan(
    admin: Admin, group: ConsumerGroup, topic: str, target: Target, queue: QueueName | None = None
) -> ResetPlan:
    """The change that a reset would make. Raises UsageError while it is unclear, UnreachableError unless every master
    of the topic answers: no group is moved in some queues only."""
    require_movable(group)
    route = await route_of_topic(admin, topic)
    brokers = chosen(route["brokers"])
    if queue is not None:
        brokers = [broker for broker in brokers if broker.name == queue.broker_name] or brokers
    require_masters(brokers)
    states: list[QueueState] = []
    for broker in brokers:
        read_count = route["queues"].get(broker.name, {}).get("read", 0)
        states += [state for state in await _states(admin, broker, group, topic) if state.queue.queue_id < read_count]
    changes, ways = [], {}
    by_name = {broker.name: broker for broker in brokers}
    for state in chosen_queues(sorted(states, key=lambda item: item.queue), queue, target):
        broker = by_name[state.queue.broker_name]
        at_time = await _offset_at(admin, broker, topic, state, target.value) if target.place is ResetPlace.TIME else 0
        changes.append(QueueChange(state.queue, state.committed, offset_after(state, target, at_time)))
    for name in sorted({change.queue.broker_name for change in changes}):
        ways[name] = await _way(admin, by_name[name], group, target)
    return ResetPlan(group.name, topic, target, tuple(changes), len(group.members), ways, by_name)


async def _states(admin: Admin, broker: AskedBroker, group: ConsumerGroup, topic: str) -> list[QueueState]:
    command = Command(RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic})
    rows = queue_table(await ask_json(admin, broker.address, command), broker.address)
    committed = {
        item.queue.queue_id: item.committed
        for item in group.progress
        if item.topic == topic and item.queue.broker_name == broker.name
    }
    found = []
    for (_, queue_id), row in rows.items():
        with readable_answer(broker.address, "a broker's"):
            low, high = int(row["minOffset"]), int(row["maxOffset"])
        found.append(QueueState(QueueName(broker.name, queue_id), committed.get(queue_id), low, high))
    return found


async def _offset_at(admin: Admin, broker: AskedBroker, topic: str, state: QueueState, at_ms: int) -> int:
    ext = {"topic": topic, "queueId": str(state.queue.queue_id), "timestamp": str(at_ms)}
    command = Command(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, ext)
    return answered_offset(await admin.ask(broker.address, command), broker.address)


async def _way(admin: Admin, broker: AskedBroker, group: ConsumerGroup, target: Target) -> ResetMethod:
    """The way to change offsets at a broker. Raises UsageError for a change that it can only make for a group that is
    not connected."""
    reply = await admin.ask(broker.address, Command(RequestCode.GET_BROKER_CONFIG))
    try:
        told = parse_keys(reply, broker.address).values.get(SERVER_SIDE_KEY, "true")
    except ConfigError as error:
        raise UsageError(f"the settings of {broker.name} cannot be read: {error}") from None
    if told != "false":
        return ResetMethod.BROKER
    if not any(broker.name in member.brokers for member in group.members):
        return ResetMethod.COMMIT
    if target.place in (ResetPlace.OFFSET, ResetPlace.SKIP):
        raise UsageError(
            f"members of {group.name} are connected to {broker.name}, which lets them set themselves back to a time "
            f"only ({SERVER_SIDE_KEY}=false): give first, last or a time, or stop the members"
        )
    return ResetMethod.MEMBERS


# --- changed ----------------------------------------------------------------------------------------------------------
async def apply(admin: Admin, made: ResetPlan) -> ResetResult:
    """Change what the plan says, queue by queue; queues that are there already are left alone."""
    moving = [change for change in made.changes if change.moves]
    asked: Collection[QueueChange] = [
        change for change in moving if made.ways[change.queue.broker_name] is not ResetMethod.MEMBERS
    ]
    done, failures = await side_by_side(asked, lambda change: _change(admin, made, change))
    result = ResetResult(list(done), {change.queue: str(error) for change, error in failures.items()})
    for name, way in made.ways.items():
        own = [change for change in moving if change.queue.broker_name == name]
        if way is ResetMethod.MEMBERS and own:
            try:
                await _ask_members(admin, made, made.brokers[name])
                result.done += own
            except RmqhaError as error:
                result.failed |= {change.queue: str(error) for change in own}
    result.done.sort(key=lambda change: change.queue)
    return result


async def _change(admin: Admin, made: ResetPlan, change: QueueChange) -> None:
    address = made.brokers[change.queue.broker_name].address
    place = {"topic": made.topic, "queueId": str(change.queue.queue_id)}
    if made.ways[change.queue.broker_name] is ResetMethod.COMMIT:
        ext = {**place, "consumerGroup": made.group, "commitOffset": str(change.after)}
        await admin.ask(address, Command(RequestCode.UPDATE_CONSUMER_OFFSET, ext))
    else:
        ext = {**place, "group": made.group, "offset": str(change.after), "timestamp": "-1", "isForce": "true"}
        await admin.ask(address, Command(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext))


async def _ask_members(admin: Admin, made: ResetPlan, broker: AskedBroker) -> None:
    timestamp_ms = {ResetPlace.FIRST: 0, ResetPlace.LAST: -1}.get(made.target.place, made.target.value)
    ext = {"topic": made.topic, "group": made.group, "timestamp": str(timestamp_ms), "isForce": "true"}
    await admin.ask(broker.address, Command(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext))


async def delete_group(admin: Admin, name: str) -> list[str]:
    """Delete settings and offsets at every broker. Returns the broker groups. Raises UsageError while a member is
    connected, UnreachableError unless every master answers."""
    group = await describe_group(admin, name, whole=False)
    brokers = await all_brokers(admin)
    if group.members:
        ids = ", ".join(member.client_id for member in group.members)
        raise UsageError(f"group {group.name} has members ({ids}): stop them first; nothing was deleted")
    if group.silent:
        told = "; ".join(f"{broker}: {why}" for broker, why in sorted(group.silent.items()))
        raise UnreachableError(f"not every broker tells of group {name}, so nothing was deleted: {told}")
    require_masters(brokers)
    ext = {"groupName": name, "cleanOffset": "true"}
    for broker in brokers:
        await admin.ask(broker.address, Command(RequestCode.DELETE_SUBSCRIPTIONGROUP, dict(ext)))
    return [broker.name for broker in brokers]
