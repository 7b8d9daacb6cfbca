"""Parser and checks of a pop's fields. Codes and remarks are RocketMQ's. Data plane, no trio."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from rmqha.broker.pop.checkpoint import MAX_COUNT
from rmqha.broker.requests.request import RequestError, no_group, no_topic, number, text, truth
from rmqha.broker.requests.selectors import RecordFilter, compile_selector, require_property_filter
from rmqha.broker.tables.clients import TAG, parse_tags
from rmqha.broker.tables.groups import GroupTable, priority_factor
from rmqha.broker.tables.topics import TopicConfig, TopicTable
from rmqha.model.code import ResponseCode
from rmqha.model.config.servers import BrokerConfig
from rmqha.wire.command import Command

FROM_MIN = 0
"""Value of initMode: a new group begins with the first message of a queue."""
MAX_ATTEMPT_ID_CHARS = 256
"""Bound on the attempt id, which is kept as long as the messages of the attempt."""
ASKED_FIELDS = (
    *("topic", "consumerGroup", "queueId", "maxMsgNums", "invisibleTime", "initMode", "order"),
    *("exp", "expType", "attemptId"),
)
"""Fields of a pop that determine its result: a client's next pop mostly has the same."""
MAX_KNOWN_COUNT, MAX_KNOWN_CHARS = 512, 1024
"""Bounds on the cache of parsed fields."""


class PopRequest(NamedTuple):
    """Parsed pop."""

    topic: str
    group: str
    queue_id: int
    max_count: int
    invisible_ms: int
    from_min: bool
    is_ordered: bool
    attempt_id: str | None
    tags_codes: frozenset[int] | None
    matches: RecordFilter | None
    queue_count: int
    filter_chars: int = 0
    """Length of the filter expression."""
    priority_factor: int = 0
    """Percentage of such pops that begin with the queue of the highest priority."""


class _Known(NamedTuple):
    """Parsed fields, and the objects that they were checked against."""

    pop: PopRequest
    topic: TopicConfig
    group: Mapping[str, Any]
    config: BrokerConfig


class PopRequestReader:
    """Parser that looks up topics and groups; a pop may create its group."""

    def __init__(self, config: BrokerConfig, topics: TopicTable, groups: GroupTable) -> None:
        self._topics = topics
        self._groups = groups
        self._known: dict[tuple[str | None, ...], _Known] = {}
        self.configure(config)

    def configure(self, config: BrokerConfig) -> None:
        self._config = config

    def require_reads(self, doing: str) -> None:
        """Raises RequestError if brokerPermission forbids reads."""
        if not self._config.grants_reads:
            raise RequestError(
                ResponseCode.NO_PERMISSION, f"the broker[{self._config.own_ip}] {doing} message is forbidden"
            )

    def parse(self, command: Command, peer: str) -> PopRequest:
        asked = tuple(map(command.ext.get, ASKED_FIELDS))
        known = self._known.get(asked)
        if known is not None:
            pop, topic, group, config = known
            if config is self._config and topic is self._topics.get(pop.topic) and group is self._groups.get(pop.group):
                return pop
        pop = self._read(command, peer)
        found_topic, found_group = self._topics.get(pop.topic), self._groups.get(pop.group)
        if (
            found_topic is not None
            and found_group is not None
            and pop.matches is None  # a filter counts what it has looked at
            and pop.attempt_id is None
            and sum(len(value) for value in asked if value) <= MAX_KNOWN_CHARS
        ):
            if len(self._known) >= MAX_KNOWN_COUNT:
                self._known.clear()
            self._known[asked] = _Known(pop, found_topic, found_group, self._config)
        return pop

    def _read(self, command: Command, peer: str) -> PopRequest:
        max_count, invisible_ms = number(command, "maxMsgNums"), number(command, "invisibleTime")
        self.require_reads("pop")
        if max_count > MAX_COUNT:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"the broker[{self._config.own_ip}] pop message's num is greater than {MAX_COUNT}",
            )
        if not self._config.timer_wheel_enable:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"the broker[{self._config.own_ip}] pop message is forbidden because timerWheelEnable is false",
            )
        max_ms = self._config.timer_max_delay_sec * 1000
        if max_count < 1 or not 0 < invisible_ms <= max_ms:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER, f"maxMsgNums must be 1 at least, invisibleTime from 1 to {max_ms} ms"
            )
        topic = self.topic(command, peer)
        if topic.is_batch:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"topic {topic.name} has batch queues, which cannot be popped"
            )
        group, wanted = self.group(command), self._filter(command)
        return PopRequest(
            topic.name,
            group,
            number(command, "queueId"),
            max_count,
            invisible_ms,
            number(command, "initMode") == FROM_MIN,
            truth(command, "order"),
            attempt_id(command),
            *wanted,
            topic.read_queue_count,
            0 if wanted == (None, None) else len(command.ext.get("exp") or ""),
            priority_factor(self._groups.get(group) or {}) if topic.has_priorities else 0,
        )

    def topic(self, command: Command, peer: str) -> TopicConfig:
        name, queue_id = text(command, "topic"), number(command, "queueId")
        topic = self._topics.get(name)
        if topic is None:
            raise no_topic(name)
        if not topic.readable:
            raise RequestError(ResponseCode.NO_PERMISSION, f"the topic[{name}] peeking message is forbidden")
        if queue_id >= topic.read_queue_count:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{queue_id}] is illegal, topic:[{name}] topicConfig.readQueueNums:"
                f"[{topic.read_queue_count}] consumer:[/{peer}]",
            )
        return topic

    def group(self, command: Command) -> str:
        name = text(command, "consumerGroup")
        group = self._groups.get_or_create(name, command.principal)
        if group is None:
            raise no_group(name)
        if not group.get("consumeEnable", True):
            raise RequestError(ResponseCode.NO_PERMISSION, f"subscription group no permission, {name}")
        return name

    def _filter(self, command: Command) -> tuple[frozenset[int] | None, RecordFilter | None]:
        expression, expression_type = command.ext.get("exp") or "*", command.ext.get("expType") or TAG
        try:
            if expression_type == TAG:
                return parse_tags(expression), None
            require_property_filter(self._config, expression_type)
            return None, RecordFilter(compile_selector(expression_type, expression))
        except ValueError:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed"
            ) from None


def attempt_id(command: Command) -> str | None:
    """Text by which a client that has lost an answer is recognised. Raises RequestError."""
    found = command.ext.get("attemptId")
    if found is not None and len(found) > MAX_ATTEMPT_ID_CHARS:
        raise RequestError(
            ResponseCode.INVALID_PARAMETER, f"attemptId has {len(found)} characters, {MAX_ATTEMPT_ID_CHARS} at most"
        )
    return found
