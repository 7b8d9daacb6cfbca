"""Brokers to ask about topics and consumer groups: one of each broker group, side by side. Control plane."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from rmqha.client.admin import Admin
from rmqha.host.asking.shell import open_tasks
from rmqha.model.code import ResponseCode
from rmqha.model.error import RemoteError, RmqhaError, UnreachableError, UsageError
from rmqha.model.offset import MASTER_ID
from rmqha.ops.answer import json_object, readable_answer
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import ObjectKey, loads

AT_ONCE = 16
"""Most requests under way at a time."""

T = TypeVar("T")
K = TypeVar("K")


@dataclass(frozen=True, slots=True, order=True)
class QueueName:
    """A queue of a topic, written broker:number as `receive` writes it."""

    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.broker_name}:{self.queue_id}"


def parse_queue(text: str) -> QueueName:
    """The queue that `text` names. Raises UsageError for what is not BROKER:N."""
    broker_name, colon, number = text.rpartition(":")
    if not colon or not broker_name or not (number.isascii() and number.isdigit()):
        raise UsageError(f"queue {text!r} must be written GROUP:N, such as broker-a:0")
    return QueueName(broker_name, int(number))


@dataclass(frozen=True, slots=True)
class AskedBroker:
    """The broker that is asked for its group: the master, or another replica while there is none."""

    name: str
    address: str
    is_master: bool


@dataclass(frozen=True, slots=True)
class EditResult:
    """Result of a change. `done`: broker groups in which settings were changed; `failed`: the others by the reason."""

    done: tuple[str, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)


@dataclass
class BrokerAnswers(Generic[T]):
    """Answers by broker group, and the reasons of groups without one."""

    answers: dict[str, T] = field(default_factory=dict)
    silent: dict[str, str] = field(default_factory=dict)

    def require_one(self) -> None:
        """Raise UnreachableError, with the reason of each group, if there are groups and none has answered."""
        if self.silent and not self.answers:
            raise UnreachableError("; ".join(f"{name}: {why}" for name, why in sorted(self.silent.items())))


def chosen(addresses: Mapping[str, Mapping[int, str]]) -> list[AskedBroker]:
    """The broker to ask of each group, by name; groups without any replica are left out."""
    return [
        AskedBroker(name, replicas.get(MASTER_ID) or replicas[min(replicas)], MASTER_ID in replicas)
        for name, replicas in sorted(addresses.items())
        if replicas
    ]


async def all_brokers(admin: Admin) -> list[AskedBroker]:
    """Brokers to ask of every group that the name servers know."""
    brokers = (await admin.cluster_info())["brokers"]
    return chosen({name: group["addresses"] for name, group in brokers.items()})


async def require_brokers(admin: Admin) -> None:
    """Raise UnreachableError if the name servers know no broker: then a search that finds nothing proves nothing."""
    if not await all_brokers(admin):
        raise UnreachableError(
            "the name servers know no broker: all are down, or register elsewhere, so what they hold is not known; "
            "see rmqha health"
        )


async def brokers_of_topic(admin: Admin, topic: str) -> list[AskedBroker]:
    """Brokers to ask of the groups that hold the topic. Raises UsageError for one that the name servers do not know."""
    return chosen((await route_of_topic(admin, topic))["brokers"])


async def route_of_topic(admin: Admin, topic: str) -> dict[str, Any]:
    """Route as `Admin.route` gives it. Raises UsageError for a topic that the name servers do not know."""
    try:
        return await admin.route(topic)
    except RemoteError as error:
        if error.code == ResponseCode.TOPIC_NOT_EXIST:
            await require_brokers(admin)
            raise UsageError(f"the name servers know no topic {topic!r}; see rmqha topic ls") from None
        raise


def require_masters(brokers: Iterable[AskedBroker]) -> None:
    """Raise UnreachableError unless all are masters: a change is refused before any part of it is made."""
    for broker in brokers:
        if not broker.is_master:
            raise UnreachableError(f"group {broker.name} has no master, so nothing was changed; wait for its election")


def masters_of(
    brokers: Sequence[AskedBroker], groups: Collection[str], refusal: Callable[[str, str], RmqhaError]
) -> list[AskedBroker]:
    """Masters of `groups` among `brokers`; all brokers if none is named. Raises `refusal` of the name of a group that
    has none, and of the names that there are; UnreachableError unless all are masters."""
    known = [broker.name for broker in brokers]
    for name in groups:
        if name not in known:
            raise refusal(name, ", ".join(known) or "none")
    found = [broker for broker in brokers if not groups or broker.name in groups]
    require_masters(found)
    return found


async def side_by_side(
    items: Collection[K], ask: Callable[[K], Awaitable[T]]
) -> tuple[dict[K, T], dict[K, RmqhaError]]:
    """Answers and failures by item, in the order of the items; AT_ONCE are asked at a time."""
    answers: dict[K, T] = {}
    failures: dict[K, RmqhaError] = {}
    waiting = iter(items)

    async def some() -> None:
        for item in waiting:
            try:
                answers[item] = await ask(item)
            except RmqhaError as error:
                failures[item] = error

    async with open_tasks() as tasks:
        for _ in range(min(AT_ONCE, len(items))):
            tasks.start_soon(some)
    return (
        {item: answers[item] for item in items if item in answers},
        {item: failures[item] for item in items if item in failures},
    )


async def from_each(brokers: Collection[AskedBroker], ask: Callable[[AskedBroker], Awaitable[T]]) -> BrokerAnswers[T]:
    """Ask all brokers at once."""
    answers, failures = await side_by_side(brokers, ask)
    return BrokerAnswers(
        {broker.name: answer for broker, answer in answers.items()},
        {broker.name: str(error) for broker, error in failures.items()},
    )


async def ask_json(admin: Admin, address: str, command: Command) -> dict[str, Any]:
    """The JSON object in a broker's answer. Raises RemoteError, UnreachableError."""
    return json_object(await admin.ask(address, command), address, "a broker's")


def queue_table(body: Mapping[str, Any], address: str) -> dict[tuple[str, int], Any]:
    """Rows of a table whose keys are queues, as objects or as their text, by (topic, queue id)."""
    found = {}
    with readable_answer(address, "a broker's"):
        for key, row in (body.get("offsetTable") or {}).items():
            place = key if isinstance(key, ObjectKey) else loads(key)
            found[str(place["topic"]), int(place["queueId"])] = row
    return found
