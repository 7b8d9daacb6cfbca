"""Messages that a consumer could not process: request 36, retry topics and dead letter topics.

A failed message is stored again under %RETRY%<group> after a delay that grows with each failure, or under %DLQ%<group>
after the last attempt (formats.md §10). The consumer is answered when the copy is acknowledged by the group's rule,
whatever its WAIT property says (ruling 12).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from rmqha.broker.replication.waiter import MessageAppender, Waiting
from rmqha.broker.requests.record_access import is_meant, require_reader
from rmqha.broker.requests.request import Channel, RequestError, number, text
from rmqha.broker.services.schedule import to_schedule
from rmqha.broker.services.statistics import BrokerStatistics
from rmqha.broker.services.traffic import Traffic
from rmqha.broker.tables.groups import GroupTable
from rmqha.broker.tables.locks import LockTable
from rmqha.broker.tables.topics import TopicConfig, TopicTable, topic_name_refusal
from rmqha.ha.action import AckStatus
from rmqha.model.code import SEE_FAQ, ResponseCode
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.error import UsageError
from rmqha.model.message import (
    DLQ_PREFIX,
    PROPERTY_CRC32,
    PROPERTY_DELAY,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_WAIT,
    RETRY_PREFIX,
    SYS_FLAG_INNER_BATCH,
    decode_properties,
    encode_properties,
    find_property,
    offset_message_id,
)
from rmqha.model.offset import PhyOffset
from rmqha.model.principal import UNRESTRICTED, Principal
from rmqha.store.integrity.record_starts import StoredRecord
from rmqha.store.log.record import NewMessage, Record
from rmqha.wire.auth.shown import topics_shown
from rmqha.wire.command import Command

DLQ_QUEUE_COUNT = 1
MAX_RECONSUME_TIMES = 2**31 - 1
"""Largest count that a record can have; clients may send it."""
FIRST_RETRY_LEVEL = 3
"""Delay level of the first retry if the consumer leaves it to the broker: 10 s by default."""


class RetryRules:
    """Rule for dead letters, and topics for retries, which are created on demand and registered at once."""

    def __init__(self, config: BrokerConfig, topics: TopicTable, groups: GroupTable, locks: LockTable) -> None:
        self._config = config
        self.topics = topics
        self._groups = groups
        self._locks = locks

    def configure(self, config: BrokerConfig) -> None:
        self._config = config

    def require_sends(self) -> None:
        """Raises RequestError if brokerPermission forbids sends."""
        if not self._config.grants_sends:
            remark = f"the broker[{self._config.own_ip}] sending message is forbidden"
            raise RequestError(ResponseCode.NO_PERMISSION, remark)

    def settings(self, group: str, principal: Principal = UNRESTRICTED) -> Mapping[str, Any]:
        """Settings of a group, which the account may create. Raises RequestError for an invalid name."""
        settings = None if topic_name_refusal(RETRY_PREFIX + group) else self._groups.get_or_create(group, principal)
        if settings is None:
            remark = f"subscription group not exist, {group} {SEE_FAQ}"
            raise RequestError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        return settings

    def provide(self, name: str, queue_count: int, principal: Principal) -> TopicConfig:
        """Topic of that name, created for the account if it is missing. Raises RequestError without room for it."""
        if fault := self.topics.creation_refusal(name, principal):
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist: {fault}")
        return self.topics.create_internal(name, queue_count, principal)

    def retry_topic(self, group: str, principal: Principal) -> str:
        name = RETRY_PREFIX + group
        topic = self.provide(name, max(1, int(self.settings(group)["retryQueueNums"])), principal)
        if not topic.writable:
            raise RequestError(ResponseCode.NO_PERMISSION, f"the topic[{name}] sending message is forbidden")
        return name

    def read_queue(self, retry_topic: str, queue_id: int) -> int:
        """Queue that consumers read: the topic keeps its original number of queues, whatever the group's settings."""
        return self.topics.read_queue(retry_topic, queue_id)

    def dead_letter_topic(self, group: str, principal: Principal) -> str:
        return self.provide(DLQ_PREFIX + group, DLQ_QUEUE_COUNT, principal).name

    def origin_topic(self, named: str, stored: str, principal: Principal) -> str:
        """The topic under which a message that failed is counted: the one that its properties name as its first, or
        `stored` if there is no such topic which the account may use. Clients choose the name."""
        is_known = self.topics.get(named) is not None and bool(topics_shown(principal, [named]))
        return named if is_known else stored

    def is_dead_send(
        self, group: str, reconsume_times: int, max_reconsume_times: int | None, principal: Principal
    ) -> bool:
        """True if a client's send to its retry topic becomes a dead letter: after the last attempt, or if the group
        consumes in order, where clients only send what they gave up. Raises RequestError as `settings`."""
        settings = self.settings(
            group, principal
        )  # without a group there is no such topic: clients could make any number
        limit = int(settings["retryMaxTimes"]) if max_reconsume_times is None else max_reconsume_times
        return reconsume_times > limit or self._locks.is_ordered(group)


class SendBackLog(Protocol):
    """Port to the store; `Store` is one."""

    @property
    def confirm_offset(self) -> PhyOffset: ...

    def verified_record_at(self, phy_offset: int) -> StoredRecord | None: ...


class _Back(Waiting):
    """Consumer that waits until its message is acknowledged."""

    __slots__ = ("_channel", "_reply")

    def __init__(self, channel: Channel, reply: Command) -> None:
        self._channel = channel
        self._reply = reply

    def finish(self, status: AckStatus) -> None:
        if status is not AckStatus.OK:
            self._reply.code, self._reply.remark = ResponseCode.SYSTEM_ERROR, status.name
        self._channel.send(self._reply)


class SendBackProcessor:
    """Processor of request 36. `level_count`: number of delay levels."""

    def __init__(
        self,
        log: SendBackLog,
        appends: MessageAppender,
        rules: RetryRules,
        store_host: tuple[bytes, int],
        level_count: int,
        statistics: BrokerStatistics,
    ) -> None:
        self._log = log
        self._appends = appends
        self._rules = rules
        self._store_host = store_host
        self._level_count = level_count
        self._statistics = statistics
        self._next_queue = 0
        self.traffic: Traffic | None = None

    def process(self, channel: Channel, command: Command) -> None:
        """Answer now or when the copy is acknowledged. Raises RequestError."""
        code, remark = self._appends.admission()
        if code is not ResponseCode.SUCCESS:
            raise RequestError(code, remark)
        group, phy_offset = text(command, "group"), number(command, "offset")
        if command.principal.is_restricted and (found := self._find(phy_offset)) is not None:
            require_reader(command, found, command.ext.get("originTopic"), self._rules.topics)
        settings = self._rules.settings(group, command.principal)
        self._rules.require_sends()
        queue_count = int(settings["retryQueueNums"])
        if queue_count <= 0:
            channel.send(command.reply())  # a group without retries drops what fails
            return
        retry_topic = self._rules.retry_topic(group, command.principal)
        record, named = self._find(phy_offset), (command.ext.get("originMsgId", ""), command.ext.get("originTopic", ""))
        if record is None or not is_meant(record, *named):
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {phy_offset}")
        limit = number(command, "maxReconsumeTimes", int(settings["retryMaxTimes"]))
        level = number(command, "delayLevel", 0)
        if record.reconsume_times >= limit or level < 0:
            topic, queue_id, level = self._rules.dead_letter_topic(group, command.principal), 0, 0
        else:
            self._next_queue += 1
            topic, queue_id = retry_topic, self._rules.read_queue(retry_topic, self._next_queue % queue_count)
            level = level or FIRST_RETRY_LEVEL + record.reconsume_times
        try:
            stored = self._appends.append([self._copy(record, topic, queue_id, level)])
        except (UsageError, ValueError) as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"MESSAGE_ILLEGAL: {error}") from None
        origin = (find_property(record.properties, PROPERTY_RETRY_TOPIC.encode()) or b"").decode("utf-8", "replace")
        origin_topic = self._rules.origin_topic(origin, record.topic, command.principal)
        self._statistics.sent_back(group, origin_topic)
        if self.traffic is not None and topic.startswith(DLQ_PREFIX):
            self.traffic.note_dead(group, origin_topic)
        self._appends.appended(stored.end_offset, _Back(channel, command.reply(ResponseCode.SUCCESS, {})))

    def _find(self, phy_offset: int) -> Record | None:
        found = self._log.verified_record_at(phy_offset)
        return None if found is None or phy_offset + len(found.data) > self._log.confirm_offset else found.record

    def _copy(self, record: Record, topic: str, queue_id: int, level: int) -> NewMessage:
        """Copy of a failed message to store. Raises ValueError."""
        if record.sys_flag & SYS_FLAG_INNER_BATCH:
            raise ValueError("a record of several messages cannot be sent back as a whole")
        properties = decode_properties(record.properties)
        properties.setdefault(PROPERTY_RETRY_TOPIC, record.topic)
        if not properties.get(PROPERTY_ORIGIN_MESSAGE_ID, "").strip():
            properties[PROPERTY_ORIGIN_MESSAGE_ID] = offset_message_id(record.store_host, record.phy_offset)
        properties.pop(PROPERTY_CRC32, None)
        properties[PROPERTY_WAIT] = "false"
        properties[PROPERTY_DELAY] = str(level)
        message = record.as_new_message(topic, queue_id, encode_properties(properties), self._store_host)
        message.reconsume_times = min(record.reconsume_times + 1, MAX_RECONSUME_TIMES)
        return to_schedule(message, self._level_count)
