"""Requests of slaves and mqadmin about topics, groups and tables: 17, 18, 21, 43, 45, 200, 201, 202, 225 and 351."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from rmqha.broker.requests.change_gate import ChangeGate
from rmqha.broker.requests.request import (
    Channel,
    Handler,
    MetadataReplication,
    RequestError,
    Work,
    answer_when,
    number,
    text,
    truth,
)
from rmqha.broker.services.statistics import StatsItemSet
from rmqha.broker.services.traffic import Traffic, Wait
from rmqha.broker.tables.delay_offsets import DelayOffsetTable
from rmqha.broker.tables.groups import MAX_GROUP_BYTES, GroupTable, group_name_refusal, settings_refusal
from rmqha.broker.tables.offsets import OffsetTable, pop_retry_topics
from rmqha.broker.tables.topics import (
    DEFAULT_TOPIC,
    MAX_QUEUE_COUNT,
    TopicConfig,
    TopicTable,
    is_broker_only,
    merge_attributes,
    topic_name_refusal,
)
from rmqha.model.access import SYSTEM_GROUP_PREFIX
from rmqha.model.code import PERM_INHERIT, PERM_READ, PERM_WRITE, RequestCode, ResponseCode
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.offset import PhyOffset, QueueOffset
from rmqha.model.principal import Principal
from rmqha.store.log.record import decode
from rmqha.store.reader import PullResult
from rmqha.wire import lenient_json
from rmqha.wire.command import Command

MAX_ATTRIBUTES_LENGTH = 16 * 1024
FILTER_TYPES = ("SINGLE_TAG", "MULTI_TAG")
_TOPIC_DEFAULTS = {"readQueueNums": 16, "writeQueueNums": 16}
"""RocketMQ's own defaults."""
CHANGED_AT_A_TIME = 16
"""Topics or groups that one step checks or changes."""


class TableLog(Protocol):
    """Port to the store; `Store` is one."""

    @property
    def confirm_offset(self) -> PhyOffset: ...

    def queue_range(self, topic: str, queue_id: int) -> tuple[QueueOffset, QueueOffset]: ...

    def pull(
        self,
        topic: str,
        queue_id: int,
        offset: QueueOffset,
        max_count: int,
        max_bytes: int,
        tags_codes: frozenset[int] | None,
    ) -> PullResult: ...


class TableRequests:
    def __init__(
        self,
        config: BrokerConfig,
        log: TableLog,
        changes: ChangeGate,
        topics: TopicTable,
        groups: GroupTable,
        offsets: OffsetTable,
        delay_offsets: DelayOffsetTable,
        topic_puts: StatsItemSet,
        metadata_leader: MetadataReplication,
        when_routed: Callable[[Callable[[], None]], None],
    ) -> None:
        """`when_routed` calls back once the name servers know the present topics."""
        self._config = config
        self._log = log
        self._changes = changes
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._delay_table = delay_offsets
        self._topic_puts = topic_puts
        self._metadata_leader = metadata_leader
        self._when_routed = when_routed
        self.traffic: Traffic | None = None

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC: self._update_topic,
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: self._update_topics,
            RequestCode.DELETE_TOPIC_IN_BROKER: self._delete_topic,
            RequestCode.GET_TOPIC_CONFIG: self._topic_config,
            RequestCode.GET_ALL_TOPIC_CONFIG: self._all_topics,
            RequestCode.GET_TOPIC_STATS_INFO: self._topic_stats,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self._system_topics,
            RequestCode.GET_ALL_CONSUMER_OFFSET: self._all_offsets,
            RequestCode.GET_ALL_DELAY_OFFSET: self._delay_offsets,
            RequestCode.GET_TIMER_CHECK_POINT: self._timer_check,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self._update_group,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: self._update_groups,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self._all_groups,
        }

    # --- topics -----------------------------------------------------------------------------------------------------
    def _update_topic(self, channel: Channel, command: Command) -> None:
        self._changes.admit()
        topic = self._wanted_topic(
            TopicConfig(
                command.ext.get("topic", ""),
                number(command, "readQueueNums", 8),
                number(command, "writeQueueNums", 8),
                number(command, "perm", PERM_READ | PERM_WRITE),
                number(command, "topicSysFlag", 0),
                truth(command, "order"),
                command.ext.get("topicFilterType", "SINGLE_TAG"),
            ),
            command.ext.get("attributes") or "",
            command.principal,
        )
        if topic != self._topics.get(topic.name):
            self._topics.put(topic, command.principal)
        wait: Wait = self._held_and_routed
        if self.traffic is not None:
            wait = self.traffic.timed(self.traffic.topics_made, topic.name in self._topics.system_topics, wait)
        answer_when(wait, channel, command.reply())

    def _update_topics(self, channel: Channel, command: Command) -> Work:
        """Change several topics. All are checked before the first change; a change of role in between ends it."""
        self._changes.admit()
        wanted = []
        for item in _members(command, "topicConfigList"):
            changes, name = item.get("attributes") or {}, item.get("topicName")
            try:
                given = TopicConfig.from_json(
                    "", {**_TOPIC_DEFAULTS, **item, "topicName": name or "", "attributes": {}}
                )
                attributes = ",".join(f"{name}={value}" if name[:1] == "+" else name for name, value in changes.items())
            except (AttributeError, TypeError, ValueError, OverflowError) as error:
                raise RequestError(
                    ResponseCode.SYSTEM_ERROR, f"an entry of topicConfigList is no topic: {error}"
                ) from None
            self._wanted_topic(given, attributes, command.principal)
            wanted.append((given, attributes))
            if len(wanted) % CHANGED_AT_A_TIME == 0:
                yield
        for place, (given, attributes) in enumerate(wanted, 1):
            self._changes.check()
            topic = self._wanted_topic(given, attributes, command.principal)  # of the topic as it is by now
            if topic != self._topics.get(topic.name):
                self._topics.put(topic, command.principal)
            if place % CHANGED_AT_A_TIME == 0:
                yield
        answer_when(self._held_and_routed, channel, command.reply())
        return None

    def _wanted_topic(self, given: TopicConfig, attribute_changes: str, principal: Principal) -> TopicConfig:
        """Topic after the change. Raises RequestError."""
        name, read, write, perm = given.name, given.read_queue_count, given.write_queue_count, given.perm
        fault = topic_name_refusal(name)
        if not fault and (is_broker_only(name) or name == DEFAULT_TOPIC):
            fault = f"The topic[{name}] is conflict with system topic."
        if fault:
            raise RequestError(ResponseCode.INVALID_PARAMETER, fault)
        if not (0 <= read <= MAX_QUEUE_COUNT and 0 <= write <= MAX_QUEUE_COUNT):
            fault = f"a topic has 0 to {MAX_QUEUE_COUNT} queues, not {read} to read and {write} to write"
        elif not -(1 << 31) <= given.sys_flag < 1 << 31:
            fault = f"topicSysFlag {given.sys_flag} is not a 32 bit integer"
        elif perm & ~(PERM_READ | PERM_WRITE | PERM_INHERIT):
            fault = f"{perm} is no permission"
        elif given.filter_type not in FILTER_TYPES:
            fault = f"topicFilterType must be one of {', '.join(FILTER_TYPES)}"
        elif len(attribute_changes) > MAX_ATTRIBUTES_LENGTH:
            fault = f"the attributes of a topic have at most {MAX_ATTRIBUTES_LENGTH} characters"
        fault = fault or self._topics.creation_refusal(name, principal)
        if fault:
            raise RequestError(ResponseCode.SYSTEM_ERROR, fault)
        present = self._topics.get(name)
        try:
            attributes = merge_attributes(present.attributes if present else None, attribute_changes)
        except ValueError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        kept = (present.unknown, present.begins) if present else ({}, {})
        topic = replace(given, attributes=attributes, unknown=kept[0], begins=kept[1])
        if present is None and name in self._topics.batch_queue_topics and not topic.is_batch:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"topic {name} was deleted, and its queues, which stay, are of queue.type=BatchCQ: make it with "
                "+queue.type=BatchCQ, or take another name",
            )
        return topic

    def _held_and_routed(self, done: Callable[[str], None]) -> None:
        """Delay the answer until the topic has a route: else a client that sends at once might create it by its first
        send, in any group."""
        self._metadata_leader.wait(lambda fault: done(fault) if fault else self._when_routed(lambda: done("")))

    def _delete_topic(self, channel: Channel, command: Command) -> Work:
        """Delete the topic, the retry topics of its pops, and its consumers' offsets in steps: if the peer disconnects
        in between, some stay, and it must ask again. The queues stay until the log loses their records: a topic of the
        same name continues them, since no queue offset is used twice."""
        self._changes.admit()
        name = text(command, "topic")
        if name in self._topics.system_topics:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"The topic[{name}] is conflict with system topic.")
        self._topics.remove(name)
        for place, group in enumerate(self._offsets.groups_of(name), start=1):
            for retry in pop_retry_topics(self._offsets, self._groups.has, group, name):
                self._topics.remove(retry)
                for _ in self._offsets.remove_topic(retry):
                    yield
                    self._changes.check()
            if place % CHANGED_AT_A_TIME == 0:
                yield
                self._changes.check()
        for _ in self._offsets.remove_topic(name):
            yield
            self._changes.check()
        answer_when(self._metadata_leader.wait_reset, channel, command.reply())
        return None

    def _topic_config(self, channel: Channel, command: Command) -> Command:
        name = text(command, "topic")
        topic = self._topics.get(name)
        if topic is None:
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {name}")
        return command.reply(body=lenient_json.dumps(topic.to_json()))

    def _all_topics(self, channel: Channel, command: Command) -> Work:
        (first, count), total = _slice(command, "topicSeq", "maxTopicNum"), len(self._topics)
        is_last = count is None or first + count >= total
        members = yield from self._topics.members(first, count, is_last=is_last)
        ext = {"totalTopicNum": str(total)}
        body = yield from lenient_json.dumps_in_steps(members)
        return command.reply(ResponseCode.SUCCESS, ext, body)

    def _topic_stats(self, channel: Channel, command: Command) -> Work:
        name = text(command, "topic")
        topic = self._topics.get(name)
        if topic is None:
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist")
        queue_ids = range(max(topic.read_queue_count, topic.write_queue_count))
        table = lenient_json.Entries(self._queue_stats(name, queue_id) for queue_id in queue_ids)
        rate = round(self._topic_puts.per_second(name), 2)
        body = yield from lenient_json.dumps_in_steps({"offsetTable": table, "topicPutTps": rate})
        return command.reply(body=body)

    def _system_topics(self, channel: Channel, command: Command) -> Command:
        return command.reply(body=lenient_json.dumps({"topicList": sorted(self._topics.system_topics)}))

    def _queue_stats(self, topic: str, queue_id: int) -> tuple[lenient_json.ObjectKey, dict[str, int]]:
        low, high = self._log.queue_range(topic, queue_id)
        queue = lenient_json.ObjectKey({"brokerName": self._config.broker_name, "queueId": queue_id, "topic": topic})
        updated = self._stored_at_ms(topic, queue_id, high) if high > low else 0
        return queue, {"lastUpdateTimestamp": updated, "maxOffset": high, "minOffset": low}

    def _stored_at_ms(self, topic: str, queue_id: int, high: int) -> int:
        """storeTimestamp of a queue's last record."""
        result = self._log.pull(topic, queue_id, QueueOffset(high - 1), 1, 1, None)
        return decode(result.records[0]).store_timestamp_ms if result.records else 0

    # --- groups and offsets -----------------------------------------------------------------------------------------
    def _update_group(self, channel: Channel, command: Command) -> None:
        self._changes.admit()
        body = lenient_json.loads(command.body, is_strict=True)
        fault = self._group_refusal(body, len(command.body), command.principal)
        if fault:
            is_of_name = fault == group_name_refusal(_group_name(body))
            raise RequestError(ResponseCode.INVALID_PARAMETER if is_of_name else ResponseCode.SYSTEM_ERROR, fault)
        self._groups.put(body, command.principal)
        wait: Wait = self._metadata_leader.wait
        if self.traffic is not None:
            is_system = str(body["groupName"]).startswith(SYSTEM_GROUP_PREFIX)
            wait = self.traffic.timed(self.traffic.groups_made, is_system, wait)
        answer_when(wait, channel, command.reply())

    def _update_groups(self, channel: Channel, command: Command) -> Work:
        """Change several groups as `_update_topics` does."""
        self._changes.admit()
        wanted = _members(command, "groupConfigList")
        for place, item in enumerate(wanted, 1):
            fault = self._group_refusal(item, len(lenient_json.dumps(item)), command.principal)
            if fault:
                raise RequestError(ResponseCode.INVALID_PARAMETER, fault)
            if place % CHANGED_AT_A_TIME == 0:
                yield
        for place, item in enumerate(wanted, 1):
            self._changes.check()
            fault = self._groups.creation_refusal(item["groupName"], command.principal)
            if fault:
                raise RequestError(ResponseCode.SYSTEM_ERROR, fault)
            self._groups.put(item, command.principal)
            if place % CHANGED_AT_A_TIME == 0:
                yield
        answer_when(self._metadata_leader.wait, channel, command.reply())
        return None

    def _group_refusal(self, settings: Any, size_bytes: int, principal: Principal) -> str:
        """Reason why these cannot be the settings of a group, "" if they can."""
        name = _group_name(settings)
        fault = group_name_refusal(name) or settings_refusal(settings)
        if not fault and size_bytes > MAX_GROUP_BYTES:
            fault = f"the settings of a group have at most {MAX_GROUP_BYTES} bytes"
        if not fault:
            try:
                self._groups.attributes_with(settings)
            except ValueError as error:
                fault = str(error)
        return fault or self._groups.creation_refusal(name, principal)

    def _all_groups(self, channel: Channel, command: Command) -> Work:
        members = yield from self._groups.members(*_slice(command, "groupSeq", "maxGroupNum"))
        ext = {"totalGroupNum": str(len(self._groups))}
        body = yield from lenient_json.dumps_in_steps(members)
        return command.reply(ResponseCode.SUCCESS, ext, body)

    def _all_offsets(self, channel: Channel, command: Command) -> Work:
        members = yield from self._offsets.members()
        body = yield from lenient_json.dumps_in_steps(members, unquoted_integer_keys=True)
        return command.reply(body=body)

    def _delay_offsets(self, channel: Channel, command: Command) -> Command:
        """Delay offsets whose copies all members of the SyncStateSet have: Apache's slaves use them as they are."""
        table = self._delay_table.to_json(self._log.confirm_offset)
        return command.reply(body=lenient_json.dumps(table, unquoted_integer_keys=True))

    def _timer_check(self, channel: Channel, command: Command) -> Command:
        """Progress of timers with the same bound: the 56 bytes of RocketMQ's config/timercheck."""
        return command.reply(body=self._delay_table.timer_check(self._log.confirm_offset))


def _group_name(settings: Any) -> str:
    """Group of the settings, "" if missing."""
    name = settings.get("groupName") if isinstance(settings, dict) else None
    return name if isinstance(name, str) else ""


def _members(command: Command, name: str) -> list[dict[str, Any]]:
    """Objects of a list in the body, whose size `rmqha.wire.body_bound` bounds. Raises RequestError."""
    body = lenient_json.loads(command.body, is_strict=True)
    found = body.get(name) if isinstance(body, dict) else None
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"the body of request {command.code} has no list {name}")
    return found


def _slice(command: Command, first: str, count: str) -> tuple[int, int | None]:
    """Requested part of a table; older peers request all of it."""
    start = max(0, number(command, first, 0))
    wanted = number(command, count, 0)
    return start, wanted if wanted > 0 else None
