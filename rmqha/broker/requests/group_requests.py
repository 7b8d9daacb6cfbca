"""Requests of operators about consumer groups: connections, progress, resets.

Codes 32, 203, 204, 207, 208, 222, 303, 308, 314, 317, 328, 343, 345, 352 and 353; notice 220 tells the members of a
group that its offsets were reset.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import Any, Protocol

from rmqha.broker.requests.change_gate import ChangeGate
from rmqha.broker.requests.pull import PullProcessor
from rmqha.broker.requests.record_access import require_producer
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
from rmqha.broker.tables.clients import ClientChannelInfo, ClientTable, Subscription
from rmqha.broker.tables.groups import GroupTable, group_name_refusal
from rmqha.broker.tables.offsets import OffsetTable, pop_retry_topics
from rmqha.broker.tables.topics import TopicConfig, TopicTable
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.error import RemoteProtocolError
from rmqha.model.offset import QueueOffset
from rmqha.port import Clock
from rmqha.store.log.record import decode
from rmqha.store.reader import PullResult
from rmqha.wire import lenient_json
from rmqha.wire.auth.shown import shown_in_steps, topics_shown
from rmqha.wire.bodies import ONLY_EXISTING, SUBSCRIBED_ALIKE
from rmqha.wire.command import FLAG_ONEWAY, Command, Language
from rmqha.wire.state.receipt import POPPED_IN_FLIGHT
from rmqha.wire.steps import RUN_COUNT, sorted_in_steps

CLONED_AT_A_TIME = 16
"""Topics whose offsets are copied to another group in one step; each may have a thousand queues."""
SEARCHED_AT_A_TIME = 16
"""Queues that are searched for a time in one step."""
MAX_OFFSET = (1 << 63) - 1


class GroupLog(Protocol):
    """Port to the store; `Store` is one."""

    def queue_range(self, topic: str, queue_id: int) -> tuple[QueueOffset, QueueOffset]: ...

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> QueueOffset: ...

    def pull(
        self, topic: str, queue_id: int, offset: int, max_count: int, max_bytes: int, tags_codes: frozenset[int] | None
    ) -> PullResult: ...


class PoppedMessages(Protocol):
    """Port to the groups that pop; `PopServices` is one."""

    def in_flight_of(self, topic: str, group: str) -> int:
        """Number of a topic's messages that a group was given and that are not done."""
        ...

    def set_back(self, topic: str, group: str) -> None:
        """Take note of a reset of the group's offset."""
        ...


class GroupRequests:
    def __init__(
        self,
        config: BrokerConfig,
        log: GroupLog,
        changes: ChangeGate,
        topics: TopicTable,
        groups: GroupTable,
        offsets: OffsetTable,
        clients: ClientTable,
        pull: PullProcessor,
        clock: Clock,
        metadata_leader: MetadataReplication,
        group_gets: StatsItemSet,
        pops: PoppedMessages,
    ) -> None:
        self._config = config
        self._log = log
        self._changes = changes
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._clients = clients
        self._pull = pull
        self._clock = clock
        self._metadata_leader = metadata_leader
        self._gets = group_gets
        self._pops = pops

    def configure(self, config: BrokerConfig) -> None:
        self._config = config

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.GET_EARLIEST_MSG_STORETIME: self._earliest_store_time,
            RequestCode.CLONE_GROUP_OFFSET: self._clone_offsets,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self._consumer_connections,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self._producer_connections,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self._delete_group,
            RequestCode.GET_ALL_PRODUCER_INFO: self._all_producers,
            RequestCode.GET_CONSUME_STATS: self._consume_stats,
            RequestCode.GET_BROKER_CONSUME_STATS: self._broker_consume_stats,
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: self._reset_offset,
            RequestCode.QUERY_CONSUME_TIME_SPAN: self._time_span,
            RequestCode.QUERY_CORRECTION_OFFSET: self._correction_offsets,
            RequestCode.QUERY_TOPICS_BY_CONSUMER: self._topics_of_group,
            RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: self._subscription,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: self._group_config,
            RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: self._forbid,
        }

    # --- connections ------------------------------------------------------------------------------------------------
    def _consumer_connections(self, channel: Channel, command: Command) -> Work:
        name = text(command, "consumerGroup")
        group = self._clients.consumer_group(name)
        if group is None:
            raise RequestError(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name}] not online")
        topics = topics_shown(command.principal, sorted(group.subscriptions))
        body: dict[str, Any] = {
            "connectionSet": _connections(group.channels),
            "consumeFromWhere": group.consume_from_where,
            "consumeType": group.consume_type,
            "messageModel": group.message_model,
            "subscriptionTable": lenient_json.Entries(
                (topic, subscription_json(item))
                for topic in topics
                if (item := group.subscriptions.get(topic)) is not None
            ),
        }
        if len(alike := group.subscribed_alike()) > 1:
            body[SUBSCRIBED_ALIKE] = alike
        return command.reply(body=(yield from lenient_json.dumps_in_steps(body)))

    def _producer_connections(self, channel: Channel, command: Command) -> Work:
        name = text(command, "producerGroup")
        require_producer(command, name)
        members = self._clients.producer_group(name)
        if members is None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"the producer group[{name}] not exist")
        body = yield from lenient_json.dumps_in_steps({"connectionSet": _connections(members)})
        return command.reply(body=body)

    def _all_producers(self, channel: Channel, command: Command) -> Work:
        rows = lenient_json.Entries(
            (
                name,
                [
                    {
                        "clientId": member.client_id,
                        "language": _language(member.language),
                        "lastUpdateTimestamp": member.heard_at_ms,
                        "remoteIP": f"/{peer.peer}",  # as Java writes an address
                        "version": member.version,
                    }
                    for peer, member in list(members.items())
                ],
            )
            for name in self._clients.producer_groups()
            if (members := self._clients.producer_group(name)) is not None
        )
        return command.reply(body=(yield from lenient_json.dumps_in_steps({"data": rows})))

    def _topics_of_group(self, channel: Channel, command: Command) -> Work:
        found = yield from sorted_in_steps(self._offsets.topics_of(text(command, "group")))
        topics = yield from shown_in_steps(topics_shown, command.principal, found)
        members = {"brokerAddr": self._config.address, "topicList": lenient_json.Items(topics)}
        return command.reply(body=(yield from lenient_json.dumps_in_steps(members)))

    def _subscription(self, channel: Channel, command: Command) -> Command:
        """Subscription of a connected group to a topic."""
        name, topic = text(command, "group"), command.ext.get("topic") or ""
        group = self._clients.consumer_group(name)
        found = None if group is None else group.subscriptions.get(topic)
        body = {} if found is None else {"subscriptionData": subscription_json(found)}
        return command.reply(body=lenient_json.dumps({"group": name, **body, "topic": topic}))

    # --- settings ---------------------------------------------------------------------------------------------------
    def _group_config(self, channel: Channel, command: Command) -> Command:
        """Settings of a group, which a master creates as Apache's broker does, unless the caller forbids it."""
        name = text(command, "group")
        makes = self._changes.serving.is_serving and not truth(command, ONLY_EXISTING)
        settings = self._groups.get_or_create(name, command.principal) if makes else self._groups.get(name)
        if settings is None:
            raise RequestError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "No group in this broker")
        return command.reply(body=lenient_json.dumps(settings))

    def _forbid(self, channel: Channel, command: Command) -> Command | None:
        """Forbid or allow reading; without `readable` only answer. Only an existing group and topic can be
        forbidden."""
        group, topic = text(command, "group"), text(command, "topic")
        if not command.ext.get("readable"):
            return self._forbidden_reply(command, group, topic)
        self._changes.admit()
        forbidden = not truth(command, "readable")
        if forbidden and self._groups.get(group) is None:
            raise RequestError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"No group in this broker: {group}")
        if forbidden and self._topics.get(topic) is None:
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {topic}")
        try:
            self._groups.forbid(group, topic, forbidden)
        except ValueError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        answer_when(self._metadata_leader.wait, channel, self._forbidden_reply(command, group, topic))
        return None

    def _forbidden_reply(self, command: Command, group: str, topic: str) -> Command:
        body = {"group": group, "readable": not self._groups.is_forbidden(group, topic), "topic": topic}
        return command.reply(ResponseCode.SUCCESS, {}, lenient_json.dumps(body), "")

    def _delete_group(self, channel: Channel, command: Command) -> Work:
        """Delete the settings, then the offsets in steps: if the peer disconnects in between, some stay, and it must
        ask again. The topics in which popped messages come again are deleted too: they were given to the old group."""
        self._changes.admit()
        name = text(command, "groupName")
        self._groups.remove(name)
        if truth(command, "cleanOffset"):
            for retry in pop_retry_topics(self._offsets, self._groups.has, name):
                self._topics.remove(retry)
                yield
                self._changes.check()
            for _ in self._offsets.remove_group(name):
                yield
                self._changes.check()
        answer_when(self._metadata_leader.wait_reset, channel, command.reply())
        return None

    # --- progress ---------------------------------------------------------------------------------------------------
    def _queue(self, topic: str, queue_id: int) -> lenient_json.ObjectKey:
        return lenient_json.ObjectKey({"brokerName": self._config.broker_name, "queueId": queue_id, "topic": topic})

    def _stored_at_ms(self, topic: str, queue_id: int, offset: int) -> int:
        """storeTimestamp of the record at a queue offset, 0 if it was removed."""
        records = self._log.pull(topic, queue_id, offset, 1, 1, None).records if offset >= 0 else []
        return decode(records[0]).store_timestamp_ms if records else 0

    def _earliest_store_time(self, channel: Channel, command: Command) -> Command:
        """storeTimestamp of the first record; -1 for an empty queue."""
        topic, queue_id = text(command, "topic"), number(command, "queueId")
        first_ms = self._stored_at_ms(topic, queue_id, self._log.queue_range(topic, queue_id)[0])
        return command.reply(ResponseCode.SUCCESS, {"timestamp": str(first_ms or -1)})

    def _consume_stats(self, channel: Channel, command: Command) -> Work:
        group = text(command, "consumerGroup")
        shown, per_second, popped = [], 0.0, dict[str, int]()
        for place, name in enumerate((yield from self._topics_to_show(group, command))):
            if self._topics.get(name):
                shown.append(name)
                per_second += self._gets.per_second((group, name))
                if count := self._pops.in_flight_of(name, group):
                    popped[name] = count
            if place % RUN_COUNT == RUN_COUNT - 1:
                yield
        table = lenient_json.Entries(entry for topic in shown for entry in self._consumed(group, topic))
        members: dict[str, Any] = {"consumeTps": round(per_second, 2), "offsetTable": table}
        if popped:
            members[POPPED_IN_FLIGHT] = popped
        try:
            body = yield from lenient_json.dumps_in_steps(members, max_bytes=self._config.max_frame_bytes)
        except RemoteProtocolError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"{error}: name the topics of group {group}") from None
        return command.reply(body=body)

    def _broker_consume_stats(self, channel: Channel, command: Command) -> Work:
        """Progress of all groups with settings here, in their known topics; `isOrder` selects those that consume in
        order."""
        totals = [0, 0]
        parts, size_bytes = [], 0
        for place, group in enumerate(self._groups.names()):
            topics = yield from sorted_in_steps(self._offsets.topics_of(group))
            shown = []
            for name in topics:
                if self._is_wanted(group, name, truth(command, "isOrder")):
                    shown.append((yield from self._topic_progress(group, name, totals)))
                    size_bytes += len(shown[-1])
                    if size_bytes > self._config.max_frame_bytes:
                        remark = f"the answer has more than {self._config.max_frame_bytes} bytes, which no frame takes"
                        raise RequestError(ResponseCode.SYSTEM_ERROR, f"{remark}: ask for one group (208)")
            parts.append(b"{%s:[%s]}" % (lenient_json.dumps(group), b",".join(shown)))
            if place % RUN_COUNT == RUN_COUNT - 1:
                yield
        address = lenient_json.dumps(self._config.address)
        rows = b",".join(parts)
        body = b'{"brokerAddr":%s,"consumeStatsList":[%s],"totalDiff":%d,"totalInflightDiff":%d}'
        return command.reply(body=body % (address, rows, *totals))

    def _is_wanted(self, group: str, name: str, only_ordered: bool) -> bool:
        topic, connected = self._topics.get(name), self._clients.consumer_group(group)
        if topic is None or (only_ordered and not topic.order):
            return False
        return connected is None or not connected.subscriptions or name in connected.subscriptions

    def _topic_progress(self, group: str, name: str, totals: list[int]) -> Generator[None, None, bytes]:
        """Encode the answer to 208 for one topic, and add the lag and the messages in flight to `totals`."""

        def counted() -> Iterator[tuple[lenient_json.ObjectKey, dict[str, int]]]:
            for queue, progress in self._consumed(group, name):
                # a group that says it is beyond the end hides nobody's backlog
                totals[0] += max(0, progress["brokerOffset"] - progress["consumerOffset"])
                totals[1] += progress["pullOffset"] - progress["consumerOffset"]
                yield queue, progress

        rate = round(self._gets.per_second((group, name)), 2)
        members = {"consumeTps": rate, "offsetTable": lenient_json.Entries(counted())}
        return (yield from lenient_json.dumps_in_steps(members))

    def _consumed(self, group: str, topic: str) -> Iterator[tuple[lenient_json.ObjectKey, dict[str, int]]]:
        """Progress of the group in each queue of the topic."""
        known = self._topics.get(topic)
        for queue_id in range(0 if known is None else known.read_queue_count):
            consumed = self._offsets.query(group, topic, queue_id) or 0
            yield (
                self._queue(topic, queue_id),
                {
                    "brokerOffset": self._log.queue_range(topic, queue_id)[1],
                    "consumerOffset": consumed,
                    "lastTimestamp": self._stored_at_ms(topic, queue_id, consumed - 1),
                    "pullOffset": max(consumed, self._pull.pulled_to(group, topic, queue_id)),
                },
            )

    def _topics_to_show(self, group: str, command: Command) -> Generator[None, None, list[str]]:
        """Requested topics, else those with offsets; of a connected group, only its subscriptions."""
        asked = [name for name in (command.ext.get("topicList") or "").split(";") if name]
        if asked:
            return list(dict.fromkeys(asked))
        topic = command.ext.get("topic")
        if topic:
            topics = [topic]
        else:
            topics = yield from sorted_in_steps(self._offsets.topics_of(group))
            topics = yield from shown_in_steps(topics_shown, command.principal, topics)
        connected = self._clients.consumer_group(group)
        if connected is not None and connected.subscriptions:
            topics = [name for name in topics if name in connected.subscriptions]
        return topics

    def _correction_offsets(self, channel: Channel, command: Command) -> Work:
        """Lowest offset of all groups by queue, among groups whose next record is still there; 2^63-1 if `compareGroup`
        is behind it. `filterGroups` are ignored."""
        topic, compared = text(command, "topic"), text(command, "compareGroup")
        passed_over = set((command.ext.get("filterGroups") or "").split(","))
        lows: dict[int, QueueOffset] = {}
        found: dict[int, int] = {}
        examined_count = 0
        for group in self._offsets.groups_of(topic):
            for queue_id, offset in () if group in passed_over else self._offsets.queues_of(group, topic).items():
                if queue_id not in lows:
                    lows[queue_id] = self._log.queue_range(topic, queue_id)[0]
                if offset >= lows[queue_id]:
                    found[queue_id] = min(offset, found.get(queue_id, offset))
                examined_count += 1
            examined_count += 1
            if examined_count >= RUN_COUNT:
                examined_count = 0
                yield
        for queue_id, offset in self._offsets.queues_of(compared, topic).items():
            if found.get(queue_id, offset) > offset:
                found[queue_id] = MAX_OFFSET
        body = lenient_json.dumps({"correctionOffsets": found}, unquoted_integer_keys=True)
        return command.reply(body=body)

    def _time_span(self, channel: Channel, command: Command) -> Work:
        topic_name, group = text(command, "topic"), text(command, "group")
        topic = self._topic(topic_name)
        spans = lenient_json.Items(
            self._queue_span(group, topic_name, queue_id) for queue_id in range(topic.write_queue_count)
        )
        return command.reply(body=(yield from lenient_json.dumps_in_steps({"consumeTimeSpanSet": spans})))

    def _queue_span(self, group: str, topic: str, queue_id: int) -> dict[str, Any]:
        low, high = self._log.queue_range(topic, queue_id)
        consumed = self._offsets.query(group, topic, queue_id) or 0
        first_ms = self._stored_at_ms(topic, queue_id, low)
        next_ms = self._stored_at_ms(topic, queue_id, consumed) if consumed < high else 0
        return {
            "consumeTimeStamp": self._stored_at_ms(topic, queue_id, consumed - 1) if consumed else first_ms,
            "delayTime": self._clock.wall_ms() - next_ms if next_ms else 0,
            "maxTimeStamp": self._stored_at_ms(topic, queue_id, high - 1),
            "messageQueue": self._queue(topic, queue_id),
            "minTimeStamp": first_ms,
        }

    # --- reset ------------------------------------------------------------------------------------------------------
    def _topic(self, name: str) -> TopicConfig:
        topic = self._topics.get(name)
        if topic is None:
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"Topic {name} does not exist")
        return topic

    def _reset_offset(self, channel: Channel, command: Command) -> Work:
        """Reset a group. Timestamp −1 is the queue's end. With queue id and offset only that queue is set. Offsets are
        searched in steps, and set all at once."""
        self._changes.admit()
        topic_name, group = text(command, "topic"), text(command, "group")
        topic, timestamp_ms = self._topic(topic_name), number(command, "timestamp", -1)
        if not self._config.use_server_side_reset_offset:
            return (yield from self._reset_at_clients(command, topic, group, timestamp_ms))
        if self._groups.get(group) is None:
            raise RequestError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} does not exist")
        queue_id, offset = number(command, "queueId", -1), number(command, "offset", -1)
        if queue_id >= topic.read_queue_count:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"topic {topic_name} has no queue {queue_id}")
        if queue_id >= 0 and offset != -1:
            low, high = self._log.queue_range(topic_name, queue_id)
            if not low <= offset <= high:
                remark = f"Target offset {offset} not in consume queue range [{low}-{high}]"
                raise RequestError(ResponseCode.SYSTEM_ERROR, remark)
            targets = {queue_id: offset}
        else:
            queue_ids = [queue_id] if queue_id >= 0 else range(topic.read_queue_count)
            targets = yield from self._offsets_at(topic_name, queue_ids, timestamp_ms)
            self._changes.check()
        if not targets:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "No queues to reset.")
        for item, target in targets.items():
            self._offsets.reset(group, topic_name, item, target)
        self._pull.offsets_reset(group, topic_name)
        self._pops.set_back(topic_name, group)
        answer_when(
            self._metadata_leader.wait_reset, channel, command.reply(body=self._offset_body(topic_name, targets))
        )
        return None

    def _clone_offsets(self, channel: Channel, command: Command) -> Work:
        """Copy the group's offsets to another group: in one topic, or in all with offsets that it still subscribes to.
        In steps; a peer that disconnects must ask again."""
        self._changes.admit()
        source, target = text(command, "srcGroup"), text(command, "destGroup")
        if fault := group_name_refusal(target):
            raise RequestError(ResponseCode.INVALID_PARAMETER, fault)  # "a@b" would be group b, in topic "…@a"
        asked = command.ext.get("topic")
        topics = [asked] if asked else (yield from sorted_in_steps(self._offsets.topics_of(source)))
        connected = self._clients.consumer_group(source)
        if connected is not None and connected.subscriptions and not truth(command, "offline"):
            topics = [name for name in topics if name in connected.subscriptions]
        self._changes.check()
        for place, name in enumerate(topics):
            if place % CLONED_AT_A_TIME == CLONED_AT_A_TIME - 1:
                yield
                self._changes.check()
            topic = self._topics.get(name)
            for queue_id in range(topic.read_queue_count if topic else 0):
                offset = self._offsets.query(source, name, queue_id)
                if offset is not None and not self._offsets.commit(target, name, queue_id, offset, command.principal):
                    raise RequestError(ResponseCode.SYSTEM_BUSY, "too many consumer groups: the offset is not kept")
        answer_when(self._metadata_leader.wait_commit, channel, command.reply())
        return None

    def _reset_at_clients(self, command: Command, topic: TopicConfig, group: str, timestamp_ms: int) -> Work:
        """Let the members reset themselves, as brokers before 5.0 do. Without `isForce` no offset is raised."""
        targets = yield from self._offsets_at(topic.name, range(topic.write_queue_count), timestamp_ms)
        for queue_id, target in targets.items():
            consumed = self._offsets.query(group, topic.name, queue_id)
            if consumed is None:
                raise RequestError(ResponseCode.SYSTEM_ERROR, f"THe consumer group <{group}> not exist")
            targets[queue_id] = target if truth(command, "isForce") else min(target, consumed)
        connected = self._clients.consumer_group(group)
        if connected is None:
            raise RequestError(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"Consumer not online, so can not reset offset, Group: {group} Topic: {topic.name} "
                f"Timestamp: {timestamp_ms}",
            )
        ext = {"topic": topic.name, "group": group, "timestamp": str(timestamp_ms)}
        body = self._offset_body(topic.name, targets)
        for channel in connected.channels:
            channel.send(Command(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, ext, body, flag=FLAG_ONEWAY))
        return command.reply(body=body)

    def _offsets_at(
        self, topic: str, queue_ids: Iterable[int], timestamp_ms: int
    ) -> Generator[None, None, dict[int, int]]:
        """Offsets by queue id; each search reads many records, so a step has a few."""
        found: dict[int, int] = {}
        for queue_id in queue_ids:
            if timestamp_ms < 0:
                found[queue_id] = self._log.queue_range(topic, queue_id)[1]
            else:
                found[queue_id] = self._log.offset_by_time(topic, queue_id, timestamp_ms)
            if len(found) % SEARCHED_AT_A_TIME == 0:
                yield
        return found

    def _offset_body(self, topic: str, targets: Mapping[int, int]) -> bytes:
        table = {self._queue(topic, queue_id): offset for queue_id, offset in targets.items()}
        return lenient_json.dumps({"offsetTable": table})


def _connections(members: Mapping[Channel, ClientChannelInfo]) -> lenient_json.Items:
    return lenient_json.Items(
        {
            "clientAddr": channel.peer,
            "clientId": member.client_id,
            "language": _language(member.language),
            "version": member.version,
        }
        for channel, member in list(members.items())
    )


def _language(number: int) -> str:
    try:
        return Language(number).name
    except ValueError:
        return Language.OTHER.name


def subscription_json(item: Subscription) -> dict[str, Any]:
    """Subscription in the form of a heartbeat."""
    return {
        "classFilterMode": False,
        "codeSet": sorted(item.tags_codes or ()),
        "expressionType": item.expression_type,
        "subString": item.expression,
        "subVersion": item.version,
        "tagsSet": sorted(item.tags),
        "topic": item.topic,
    }
