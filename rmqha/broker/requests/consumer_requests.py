"""Requests of consumers besides pulls: heartbeats, members (34, 35, 38, 300), offsets (14, 15, 29–31), a record
(33), entries of a queue (321)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from rmqha.broker.requests.group_requests import subscription_json
from rmqha.broker.requests.record_access import denied, require_reader, was_refused
from rmqha.broker.requests.request import (
    Channel,
    Handler,
    LargeRequestQueue,
    MetadataReplication,
    PausingWork,
    RequestError,
    ServingState,
    Work,
    answer_when,
    is_of_lost_tail,
    number,
    text,
)
from rmqha.broker.services.group_notices import GroupNotices
from rmqha.broker.tables.clients import MAX_GROUPS_PER_CHANNEL, ClientTable, names_refusal
from rmqha.broker.tables.groups import GroupTable
from rmqha.broker.tables.offsets import OffsetTable
from rmqha.broker.tables.topics import TopicTable
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.message import RETRY_PREFIX
from rmqha.model.offset import PhyOffset, QueueOffset
from rmqha.model.principal import Principal
from rmqha.port import Clock
from rmqha.store.integrity.record_starts import StoredRecord
from rmqha.store.reader import Unit
from rmqha.wire import lenient_json
from rmqha.wire.auth.shown import groups_shown, shown_in_steps
from rmqha.wire.command import Command
from rmqha.wire.steps import sorted_in_steps

MAX_UNIT_COUNT = 1024
"""Bound on the entries of a queue in one answer."""
LARGE_HEARTBEAT_BYTES = 32 * 1024
"""Size from which heartbeats are parsed one at a time: their JSON takes up to twenty times as much memory."""


class ConsumerLog(Protocol):
    """Port to the store; `Store` is one."""

    @property
    def confirm_offset(self) -> PhyOffset: ...

    def queue_range(self, topic: str, queue_id: int) -> tuple[QueueOffset, QueueOffset]: ...

    def queue_end(self, topic: str, queue_id: int) -> QueueOffset: ...

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> QueueOffset: ...

    def verified_record_at(self, phy_offset: int) -> StoredRecord | None: ...

    def units(self, topic: str, queue_id: int, offset: int, count: int) -> list[Unit]: ...


class ConsumerRequests:
    def __init__(
        self,
        log: ConsumerLog,
        serving: ServingState,
        topics: TopicTable,
        groups: GroupTable,
        offsets: OffsetTable,
        clients: ClientTable,
        metadata_leader: MetadataReplication,
        notices: GroupNotices,
        clock: Clock,
    ) -> None:
        self._log = log
        self._serving = serving
        self._notices = notices
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._clients = clients
        self._metadata_leader = metadata_leader
        self._clock = clock
        self._large_heartbeats = LargeRequestQueue()

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.HEART_BEAT: self._heartbeat,
            RequestCode.UNREGISTER_CLIENT: self._unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self._consumer_list,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self._consumed_by,
            RequestCode.QUERY_CONSUMER_OFFSET: self._query_offset,
            RequestCode.UPDATE_CONSUMER_OFFSET: self._update_offset,
            RequestCode.GET_MAX_OFFSET: self._max_offset,
            RequestCode.GET_MIN_OFFSET: self._min_offset,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self._offset_by_time,
            RequestCode.VIEW_MESSAGE_BY_ID: self._view_message,
            RequestCode.QUERY_CONSUME_QUEUE: self._queue_entries,
        }

    # --- membership -------------------------------------------------------------------------------------------------
    def _heartbeat(self, channel: Channel, command: Command) -> PausingWork:
        if len(command.body) < LARGE_HEARTBEAT_BYTES:
            return (yield from self._take_heartbeat(channel, command))
        has_waited = False
        for turn in self._large_heartbeats.enter(channel, len(command.body)):
            has_waited = True
            yield turn
        try:
            if has_waited and was_refused(channel, command):
                return None
            return (yield from self._take_heartbeat(channel, command))
        finally:
            self._large_heartbeats.leave(channel)

    def _take_heartbeat(self, channel: Channel, command: Command) -> Work:
        body = lenient_json.loads(command.body, is_strict=True)
        changed: list[str] = []
        try:
            if not isinstance(body, dict):
                raise TypeError
            if fault := (yield from names_refusal(body)):
                raise RequestError(ResponseCode.SYSTEM_ERROR, fault)
            complete = not body.get("withoutSub") or self._clients.knows_subscriptions(body)
            if self._serving.is_serving:
                yield from self._provide(body, command.principal)
            client = command.language, command.version, command.principal, self._clock.wall_ms()
            yield from self._clients.heartbeat(channel, body, *client, changed)
        except (KeyError, TypeError, ValueError):
            raise RequestError(ResponseCode.SYSTEM_ERROR, "the heartbeat's body is not one") from None
        finally:
            for group in changed:  # groups that the client has joined, though a later one was refused
                self.notify(group)
        # IS_SUB_CHANGE "true" makes a client that left its subscriptions out send them.
        ext = {
            "IS_SUPPORT_HEART_BEAT_V2": "true",
            "IS_SUB_CHANGE": "false" if body.get("withoutSub") and complete else "true",
        }
        return command.reply(ResponseCode.SUCCESS, ext)

    def _provide(self, body: Mapping[str, Any], principal: Principal) -> Iterator[None]:
        """Create the settings and the retry topic of each group in a heartbeat."""
        for item in list(body.get("consumerDataSet") or [])[:MAX_GROUPS_PER_CHANNEL]:
            if not self._serving.is_serving:
                return  # it was the master when the heartbeat came
            name = str(item["groupName"])
            settings = self._groups.get_or_create(name, principal)
            retry = RETRY_PREFIX + name
            if settings is None or self._topics.get(retry) is not None:
                continue
            if not self._topics.creation_refusal(retry, principal):
                self._topics.create_internal(retry, max(1, int(settings["retryQueueNums"])), principal)
                yield

    def _unregister(self, channel: Channel, command: Command) -> Command:
        consumer, producer = command.ext.get("consumerGroup"), command.ext.get("producerGroup")
        client_id = command.ext.get("clientID", "")
        if command.principal.is_restricted and self._clients.is_on_other_channel(
            channel, client_id, producer, consumer
        ):
            raise denied(command, f"client {client_id} is connected by another connection")
        if producer:
            self._clients.unregister(channel, producer, consumer=False)
        if consumer and self._clients.unregister(channel, consumer, consumer=True):
            self.notify(consumer)
        return command.reply()

    def notify(self, group: str) -> None:
        """Notify a group's members of a change, unless its settings forbid that."""
        settings = self._groups.get(group)
        if settings is None or settings.get("notifyConsumerIdsChangedEnable", True):
            self._notices.changed(group)

    def closed(self, channel: Channel) -> None:
        self._large_heartbeats.leave(channel)
        for group in self._clients.closed(channel):
            self.notify(group)

    def _consumer_list(self, channel: Channel, command: Command) -> Work:
        name = text(command, "consumerGroup")
        group = self._clients.consumer_group(name)
        if group is None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {name}")
        body = yield from lenient_json.dumps_in_steps({"consumerIdList": lenient_json.Items(group.client_ids())})
        return command.reply(body=body)

    def _consumed_by(self, channel: Channel, command: Command) -> Work:
        """Groups that subscribe to the topic now or have an offset in it, for mqadmin's queryMsgBy…."""
        topic = text(command, "topic")
        connected, offsets = (yield from self._clients.groups_of(topic)), self._offsets
        others = [name for name in connected if not offsets.has(name, topic)]
        yield
        found = yield from sorted_in_steps([*offsets.groups_of(topic), *others])
        groups = yield from shown_in_steps(groups_shown, command.principal, found)
        body = yield from lenient_json.dumps_in_steps({"groupList": lenient_json.Items(groups)})
        return command.reply(body=body)

    # --- offsets ----------------------------------------------------------------------------------------------------
    def _query_offset(self, channel: Channel, command: Command) -> Command:
        topic, queue_id = text(command, "topic"), number(command, "queueId")
        offset = self._offsets.query(text(command, "consumerGroup"), topic, queue_id)
        if offset is None and command.ext.get("setZeroIfNotFound", "true") != "false":
            # A group that is new to a queue with its first record starts there.
            low, high = self._log.queue_range(topic, queue_id)
            offset = low if low == self._topics.begin_of(topic, queue_id) < high else None
        if offset is None:
            raise RequestError(
                ResponseCode.QUERY_NOT_FOUND, "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
            )
        return command.reply(ResponseCode.SUCCESS, {"offset": str(offset)})

    def _update_offset(self, channel: Channel, command: Command) -> None:
        group, topic, queue_id = text(command, "consumerGroup"), text(command, "topic"), number(command, "queueId")
        offset = number(command, "commitOffset")
        if not self._serving.is_serving:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "this broker is not the master; it keeps no offsets")
        # A heartbeat or a pull creates a group, a commit does not, as in RocketMQ.
        if self._groups.get(group) is None:
            raise RequestError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} not exist!")
        known = self._topics.get(topic)
        if known is None:
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"Topic {topic} not exist!")
        # a member that leaves a queue which an operator has removed still commits its offset
        known_offset = self._offsets.query(group, topic, queue_id)
        if not 0 <= queue_id < known.read_queue_count and known_offset is None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"there is no queue {queue_id} of {topic}")
        # Clients without an offset commit -1: RocketMQ answers success and forgets the group's offset.
        is_kept = offset >= 0 and not is_of_lost_tail(self._log, known_offset, topic, queue_id, offset)
        if is_kept and not self._offsets.commit(group, topic, queue_id, offset, command.principal):
            raise RequestError(ResponseCode.SYSTEM_BUSY, "too many consumer groups: the offset is not kept")
        if not command.is_oneway:
            answer_when(self._metadata_leader.wait_commit, channel, command.reply())

    def _max_offset(self, channel: Channel, command: Command) -> Command:
        _, high = self._log.queue_range(text(command, "topic"), number(command, "queueId"))
        return command.reply(ResponseCode.SUCCESS, {"offset": str(high)})

    def _min_offset(self, channel: Channel, command: Command) -> Command:
        low, _ = self._log.queue_range(text(command, "topic"), number(command, "queueId"))
        return command.reply(ResponseCode.SUCCESS, {"offset": str(low)})

    def _offset_by_time(self, channel: Channel, command: Command) -> Command:
        topic, queue_id, timestamp_ms = text(command, "topic"), number(command, "queueId"), number(command, "timestamp")
        if command.ext.get("boundaryType", "").lower() != "upper":
            offset = self._log.offset_by_time(topic, queue_id, timestamp_ms)
        else:
            # the last one stored by then; 0 if none was, as RocketMQ's
            low, _ = self._log.queue_range(topic, queue_id)
            behind = self._log.offset_by_time(topic, queue_id, timestamp_ms + 1)
            offset = QueueOffset(behind - 1 if behind > low else 0)
        return command.reply(ResponseCode.SUCCESS, {"offset": str(offset)})

    def _queue_entries(self, channel: Channel, command: Command) -> Command:
        """Entries of a queue, and the subscription by which a group filters them."""
        topic, queue_id, index = text(command, "topic"), number(command, "queueId"), number(command, "index")
        low, high = self._log.queue_range(topic, queue_id)
        if not high:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"{queue_id}@{topic} is not exist!")
        units = self._log.units(topic, queue_id, index, max(0, min(number(command, "count", 0), MAX_UNIT_COUNT)))
        if not units and not low <= index < high:
            remark = f"Index {index} of {queue_id}@{topic} is not exist!"
            return command.reply(ResponseCode.SUCCESS, {}, remark=remark)
        body: dict[str, Any] = {
            "maxQueueIndex": int(high),
            "minQueueIndex": int(low),
            "queueData": [
                {"eval": False, "physicOffset": phy_offset, "physicSize": size, "tagsCode": code}
                for phy_offset, size, code in units
            ],
        }
        group = command.ext.get("consumerGroup")
        if group:
            members = self._clients.consumer_group(group)
            subscription = members.subscriptions.get(topic) if members is not None else None
            if subscription is None:
                body["filterData"] = f"{group}@{topic} is not online!"
            else:
                body["filterData"] = "null" if subscription.selector is None else subscription.expression
                body["subscriptionData"] = subscription_json(subscription)
        return command.reply(body=lenient_json.dumps(body))

    def _view_message(self, channel: Channel, command: Command) -> Command:
        offset = number(command, "offset")
        found = self._log.verified_record_at(offset)
        if found is None or offset + len(found.data) > self._log.confirm_offset:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}")
        require_reader(command, found.record, command.ext.get("topic"), self._topics)
        return command.reply(body=bytes(found.data))
