"""Requests 10, 310 and 320: check, append, and answer when the group's ack rule holds. Data plane, no trio.

A connection's commands of one socket read are one batch: appended together, awaited as one, answered in one write.
Codes and their order are those of RocketMQ's SendMessageProcessor; the replica's own refusal comes first (ruling 13).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol

from rmqha.broker.replication.append_throttle import AppendThrottle
from rmqha.broker.replication.waiter import FramesWaiter, TopicWaiter, Waiter, Waiting
from rmqha.broker.requests.record_access import require_producer, was_refused
from rmqha.broker.requests.request import Channel, Handler, RequestError, SendHolder, Steps, not_admitted, record_host
from rmqha.broker.requests.retry import RetryRules
from rmqha.broker.services.schedule import to_schedule
from rmqha.broker.services.traffic import Traffic
from rmqha.broker.services.transaction import RENEWAL_BYTES, to_half
from rmqha.broker.tables.topics import DEFAULT_TOPIC, TopicConfig, TopicTable, is_broker_only, refusal_to_send
from rmqha.broker.timers.message import deliver_at_ms, of_account, to_timer
from rmqha.kernel.batch_kernel import BatchKernel, SendPart, SendRead, SendResults, SendRules
from rmqha.model.code import SEE_FAQ, RequestCode, ResponseCode
from rmqha.model.config.delay_level import SCHEDULE_TOPIC, delay_level
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.error import UsageError
from rmqha.model.message import (
    DLQ_PREFIX,
    HALF_TOPIC,
    MAX_PROPERTIES_BYTES,
    PROPERTY_CLUSTER,
    PROPERTY_DELAY,
    PROPERTY_INNER_NUM,
    PROPERTY_MSG_REGION,
    PROPERTY_PRIORITY,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_SHARDING_KEY,
    PROPERTY_TIMER_DELETE_UNIQUE_KEY,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TIMER_OUT_MS,
    PROPERTY_TRACE_ON,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_UNIQUE_KEY,
    PROPERTY_WAIT,
    RESERVED_PROPERTIES,
    RETRY_PREFIX,
    SYS_FLAG_INNER_BATCH,
    SYS_FLAG_NEED_UNWRAP,
    SYS_FLAG_TRANSACTION_MASK,
    TIMER_PROPERTIES,
    TIMER_TOPIC,
    RecallHandle,
    UniqueKeys,
    decode_properties,
    encode_properties,
    find_property,
    has_reserved,
    offset_message_ids,
    priority_of,
    without_reserved,
)
from rmqha.model.offset import PhyOffset
from rmqha.model.principal import Principal
from rmqha.port import Clock
from rmqha.store.appender import AppendedBatch, SendSource
from rmqha.store.log.new_batch import NewBatch, Part
from rmqha.store.log.record import MAX_INNER_COUNT, NewMessage
from rmqha.wire.command import FLAG_ONEWAY, Command

MAX_BATCH_MESSAGES = 32768
_SHARDING_KEY = f"{PROPERTY_SHARDING_KEY}\x01".encode()
_INNER_HEAD_BYTES = 20
_inner_head = struct.Struct(">i8xii").unpack_from
"""Head of a message in a batch: totalSize, flag, bodyLength."""
_LEAST_INNER_BYTES = _INNER_HEAD_BYTES + 2
_INT16 = struct.Struct(">h")
_INT32_CHARS = 16
"""Larger than any value that Java writes."""

_DELAY, _DELIVER = PROPERTY_DELAY.encode(), PROPERTY_TIMER_DELIVER_MS.encode()
_PREPARED, _PRODUCER_GROUP = PROPERTY_TRANSACTION_PREPARED.encode(), PROPERTY_PRODUCER_GROUP.encode()


class MasterLog(Protocol):
    """Log for sends; `ReplicaDriver` is one."""

    def admission(self) -> tuple[ResponseCode, str]: ...

    def append(self, messages: list[NewMessage] | NewBatch) -> AppendedBatch:
        """Append messages consecutively in the log."""
        ...

    def append_sends(self, source: SendSource) -> SendResults | None:
        """Append the plain sends at the front; None if there is none."""
        ...

    def appended(self, end_offset: PhyOffset, waiter: Waiting | None) -> None:
        """Finish `waiter` when the log up to `end_offset`, the end of a batch, is acknowledged."""
        ...

    def appended_in_turn(self, end_offset: PhyOffset, waiter: Waiting) -> None:
        """Do as `appended`, possibly once for several connections of this turn."""
        ...


class HalfMessages(Protocol):
    """Half messages that wait; `TransactionService` is one."""

    def half_refusal(self, principal: Principal) -> str:
        """Reason why the account may have no more of them, else ""."""
        ...

    def prepared(self, queue_offset: int, principal: Principal) -> None:
        """Take note of one of that account that was appended."""
        ...


class _Request(NamedTuple):
    """Fields of a send under either of their names."""

    topic: str
    default_topic: str
    default_queue_count: int
    queue_id: int
    sys_flag: int
    born_at_ms: int
    flag: int
    properties: bytes
    reconsume_times: int
    is_batch: bool
    max_reconsume_times: int | None


class _Accepted(NamedTuple):
    """Checked send. `queue_id` is the requested queue; a delayed or prepared message waits in another one. An inner
    batch is one message."""

    command: Command
    request: _Request
    queue_id: int
    content: NewMessage | NewBatch

    @property
    def message_count(self) -> int:
        return len(self.content.parts) if isinstance(self.content, NewBatch) else 1


class _Refused(Exception):  # noqa: N818  (never leaves this module)
    def __init__(self, code: ResponseCode, remark: str) -> None:
        super().__init__(remark)
        self.code = code
        self.remark = remark


def _illegal(remark: str) -> _Refused:
    return _Refused(ResponseCode.MESSAGE_ILLEGAL, remark)


class SendProcessor:
    """Processor of sends, with counts for `mqadmin brokerStatus`: messages and bytes put, messages refused."""

    def __init__(
        self,
        config: BrokerConfig,
        topics: TopicTable,
        log: MasterLog,
        store_host: tuple[bytes, int],
        retries: RetryRules,
        level_count: int,
        throttle: AppendThrottle,
        when_held: Callable[[Callable[[str], None]], None],
        holder: SendHolder,
        kernel: BatchKernel,
        unique_keys: UniqueKeys,
        clock: Clock,
        recall_refusal: Callable[[Principal], str],
        halves: HalfMessages,
    ) -> None:
        """`when_held` calls back when the set has the present topics (`MetadataLeader.wait`). `holder` holds sends
        during or after a hand-over (`SendForwarder`). `recall_refusal` returns the reason why an account can recall
        no more timer messages now, or ""."""
        self._unique_keys, self._recall_refusal, self._halves = unique_keys, recall_refusal, halves
        self._config = config
        self._kernel = kernel
        self._topics = topics
        self._log = log
        self._throttle = throttle
        self._clock = clock
        self._store_host = store_host
        self._retries = retries
        self._level_count = level_count
        self._queue_timeout_ms = config.wait_time_mills_in_send_queue or 1 << 62
        self._ext = {PROPERTY_MSG_REGION: config.region_id, PROPERTY_TRACE_ON: str(config.trace_on).lower()}
        self._own = {**self._ext, PROPERTY_CLUSTER: config.broker_cluster_name}
        self._own_bytes = encode_properties(self._own)
        self._next_queue = 0
        self._has_made_topic = False
        self._when_held = when_held
        self._hold, self._is_holding = holder.hold, holder.is_holding
        self._rules = self._rules_of(config)
        """Rules for plain sends."""
        self.traffic: Traffic | None = None
        """Set if metrics are shown."""
        self.put_count = 0
        self.put_bytes = 0
        self.refused_count = 0
        self.failed_count = 0
        """Number of refused sends without a fault of their own: the group could not take them."""

    def configure(self, config: BrokerConfig) -> None:
        self._config = config
        self._rules = self._rules_of(config)

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.RMQHA_HOLDS_SENDS: self._answer_holding}

    def _answer_holding(self, channel: Channel, command: Command) -> Command:
        """Tell a client if sends of this connection are held here, to be accepted or forwarded."""
        return command.reply(ext={"holds": "true" if self._is_holding(channel) else "false"})

    def _rules_of(self, config: BrokerConfig) -> SendRules:
        return SendRules(
            config.max_frame_bytes,
            config.max_message_size,
            MAX_PROPERTIES_BYTES,
            self._own_bytes,
            _NOT_PLAIN,
            *self._store_host,
            tuple(self._ext.items()),
        )

    def take(self, reads: Sequence[tuple[Channel, bytes]], max_count: int) -> list[tuple[int, int]]:
        """Append the plain sends at the front of each channel's input, at most `max_count` of each, and leave the rest
        to `process`. Returns for each the index after them and their number. Conditions for all sends are checked
        first; if one fails for a channel, all its sends are left."""
        found = [(0, 0)] * len(reads)
        if self._throttle.is_full or self._log.admission()[0] is not ResponseCode.SUCCESS:
            return found
        places, parts, pieces, at = list[int](), list[SendPart](), list[bytes](), 0
        for place, (channel, data) in enumerate(reads):
            if channel.waited_ms <= self._queue_timeout_ms and not self._is_holding(channel):
                places.append(place)
                pieces.append(data)
                parts.append(SendPart(at, at + len(data), max_count, *record_host(channel.peer)))
                at += len(data)
        if not parts:
            return found
        read = SendRead(pieces[0] if len(pieces) == 1 else b"".join(pieces), parts)
        taken = self._log.append_sends(SendSource(self._kernel, read, self._rules, self._plain_queue_count))
        if taken is None:
            return found
        bounds = taken.bounds
        self.put_count += taken.record_count
        self.put_bytes += bounds[-1] - bounds[0]
        if self.traffic is not None:
            for (topic, message_count, size_bytes), tail in zip(taken.frames(), taken.tails(), strict=True):
                kind = "fifo" if _SHARDING_KEY in tail else "normal"
                self.traffic.note_sent(topic, kind, message_count, size_bytes)
        answers = list[tuple[Channel, bytes, int]]()
        for place, part, (count, end, frames) in zip(places, parts, taken.parts, strict=True):
            if count:
                found[place] = end - part.start, count
                answers.append((reads[place][0], frames, count))
        self._log.appended_in_turn(PhyOffset(bounds[-1]), FramesWaiter(answers))
        return found

    def _plain_queue_count(self, name: str) -> int:
        """Number of queues of a topic whose messages and senders need no checks; 0 for other topics."""
        topic = self._topics.get(name)
        if (
            topic is None
            or topic.is_batch
            or not topic.writable
            or (topic.order and not self._config.grants_sends)
            or is_broker_only(name)
            or name.startswith(RETRY_PREFIX)
        ):
            return 0
        return max(topic.write_queue_count, topic.read_queue_count)

    def process(self, channel: Channel, commands: list[Command]) -> None:
        """Answer each command now or after its acknowledgement, oneway ones never."""
        if channel.waited_ms > self._queue_timeout_ms:
            self._refuse_late(channel, commands, channel.waited_ms)
        elif self._hold(channel, commands):
            pass
        elif not self._throttle.takes(channel, sum(len(item.body) for item in commands)):
            channel.work(self._in_turn(channel, commands))
        else:
            self.admit(channel, commands)

    def _in_turn(self, channel: Channel, commands: list[Command]) -> Steps:
        """Process sends when the throttle permits."""
        turn = self._throttle.wait(channel, sum(len(item.body) for item in commands), self._queue_timeout_ms)
        yield turn
        commands = [command for command in commands if not was_refused(channel, command)]
        if turn.is_late:
            self._refuse_late(channel, commands, channel.waited_ms + self._queue_timeout_ms)
        elif commands and not self._hold(channel, commands):
            self.admit(channel, commands)
        self._throttle.took(turn)

    def admit(self, channel: Channel, commands: list[Command]) -> None:
        """Process commands that were held."""
        code, remark = self._log.admission()
        if code is not ResponseCode.SUCCESS:
            self.failed_count += len(commands)
            self.refused_count += len(commands)
            for command in commands:
                if not command.flag & FLAG_ONEWAY:
                    channel.send(not_admitted(command, code, remark))
            return
        born_host = record_host(channel.peer)
        self._has_made_topic = False
        accepted: list[_Accepted] = []
        for command in commands:
            try:
                request = self._keyed(_parse(command))
                accepted.append(_Accepted(command, request, *self._content(request, command, born_host, channel.peer)))
            except (_Refused, RequestError) as refused:
                self._refuse(channel, command, refused.code, str(refused))
        end_offset: PhyOffset | None = None
        waiting: list[Command] = []
        try:
            for run in _runs(accepted):
                try:
                    end_offset = self._store(channel, run, waiting)
                except UsageError:
                    # The store has rejected one of them and written none: process each alone.
                    for item in run:
                        try:
                            end_offset = self._store(channel, [item], waiting)
                        except UsageError as error:
                            self._refuse(channel, item.command, ResponseCode.MESSAGE_ILLEGAL, str(error))
        finally:
            if end_offset is not None:
                self._log.appended(end_offset, self._waiter(channel, waiting) if waiting else None)

    def require_sendable(self, channel: Channel, command: Command) -> None:
        """Raises RequestError if the send would be refused now; nothing is written."""
        code, remark = self._log.admission()
        if code is not ResponseCode.SUCCESS:
            self.failed_count += 1
            self.refused_count += 1
            raise RequestError(code, remark)
        try:
            self._content(self._keyed(_parse(command)), command, record_host(channel.peer), channel.peer)
        except _Refused as refused:
            self.refused_count += 1
            raise RequestError(refused.code, str(refused)) from None

    def _store(self, channel: Channel, accepted: list[_Accepted], waiting: list[Command]) -> PhyOffset:
        """Append messages with one call and answer those that do not wait; the answers of the others are added to
        `waiting`. Returns the end of the last record."""
        content = accepted[0].content
        if isinstance(content, NewMessage):
            stored = self._log.append([item.content for item in accepted if isinstance(item.content, NewMessage)])
        else:
            stored = self._log.append(content)
        self.put_count += len(stored.phy_offsets)
        self.put_bytes += stored.end_offset - stored.phy_offsets[0]
        if self.traffic is not None:
            self._note(self.traffic, accepted, stored)
        start = 0
        for item in accepted:
            command, request, queue_id, content = item
            first, count = start, item.message_count
            start += count
            if isinstance(content, NewMessage) and content.topic == HALF_TOPIC:
                self._halves.prepared(stored.queue_offsets[first], command.principal)
            if command.flag & FLAG_ONEWAY:
                continue
            phy_offsets = stored.phy_offsets[first:start]
            reply = self._reply(command, request, queue_id, phy_offsets, stored.queue_offsets[first])
            if isinstance(content, NewMessage) and content.topic == TIMER_TOPIC:
                self._add_recall_handle(reply, request, content)
            if content.sys_flag & SYS_FLAG_INNER_BATCH:
                reply.ext["batchUniqId"] = reply.ext["transactionId"]
            if find_property(request.properties, _WAIT) == b"false":
                channel.send(reply)
            else:
                waiting.append(reply)
        return stored.end_offset

    @staticmethod
    def _note(traffic: Traffic, accepted: list[_Accepted], stored: AppendedBatch) -> None:
        phy_offsets, start = stored.phy_offsets, 0
        last = accepted[-1]
        for item in accepted:
            _, request, _, content = item
            first, count = start, item.message_count
            start += count
            end = stored.end_offset if item is last else phy_offsets[start]
            kind = _KINDS.get(content.topic, "normal")
            tail = content.parts[0][1] if isinstance(content, NewBatch) else request.properties
            if kind != "transaction" and _SHARDING_KEY in tail:
                kind = "fifo"
            traffic.note_sent(request.topic, kind, count, end - phy_offsets[first])

    def _waiter(self, channel: Channel, replies: list[Command]) -> Waiting:
        waiter = Waiter(channel, replies)
        return TopicWaiter(waiter, self._when_held) if self._has_made_topic else waiter

    def _refuse_late(self, channel: Channel, commands: list[Command], waited_ms: int) -> None:
        """Refuse sends whose clients are about to retry: written now, they would be duplicates. Oneway sends are not
        retried."""
        oneway = [command for command in commands if command.flag & FLAG_ONEWAY]
        remark = (
            "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, "
            f"period in queue: {waited_ms}ms, size of queue: {len(commands)}"
        )
        for command in commands:
            if not command.flag & FLAG_ONEWAY:
                self._refuse(channel, command, ResponseCode.SYSTEM_BUSY, remark)
        if oneway and not self._hold(channel, oneway):
            self.admit(channel, oneway)

    def _refuse(self, channel: Channel, command: Command, code: ResponseCode, remark: str) -> None:
        self.refused_count += 1
        if not command.flag & FLAG_ONEWAY:
            channel.send(command.reply(code, {}, remark=remark))

    def _reply(
        self, command: Command, request: _Request, queue_id: int, phy_offsets: Sequence[int], queue_offset: int
    ) -> Command:
        ext = {
            "msgId": offset_message_ids(self._store_host, phy_offsets),
            "queueId": str(queue_id),
            "queueOffset": str(queue_offset),
            **self._ext,
        }
        key = find_property(request.properties, _UNIQUE_KEY)
        if key is not None:
            ext["transactionId"] = key.decode("utf-8", "replace")
        return command.reply(ResponseCode.SUCCESS, ext)

    def _add_recall_handle(self, reply: Command, request: _Request, waiting: NewMessage) -> None:
        """Add the handle by which the producer may recall its message, as RocketMQ does for all but consumers'
        retries."""
        if not request.topic.startswith(RETRY_PREFIX):
            found = decode_properties(waiting.properties)
            at_ms, key = int(found[PROPERTY_TIMER_OUT_MS]) + 1, found[PROPERTY_UNIQUE_KEY]
            reply.ext["recallHandle"] = RecallHandle(request.topic, self._config.broker_name, at_ms, key).encode()

    def _keyed(self, request: _Request) -> _Request:
        """Request with a unique key: small clients leave it to the broker, as RocketMQ's allows."""
        if request.is_batch or find_property(request.properties, _UNIQUE_KEY):
            return request
        made = encode_properties({PROPERTY_UNIQUE_KEY: self._unique_keys.make(self._clock.wall_ms())})
        separator = b"" if request.properties[-1:] in (b"", b"\x02") else b"\x02"
        return request._replace(properties=request.properties + separator + made)

    # --- checks -----------------------------------------------------------------------------------------------------
    def _content(
        self, request: _Request, command: Command, born_host: tuple[bytes, int], peer: str
    ) -> tuple[int, NewMessage | NewBatch]:
        """Requested queue, and the content to append. Raises _Refused and RequestError."""
        if request.topic.startswith(RETRY_PREFIX):
            request = self._retried(request, command.principal)
        topic = self._topic(request, command.principal)
        queue_id = self._queue_id(request, topic, peer)
        if _PRIORITY in request.properties and not request.is_batch:
            request, queue_id = _by_priority(request, queue_id, topic.write_queue_count)
        self._check(request, command)
        is_prepared = self._is_prepared(request)
        if is_prepared and command.principal.is_restricted:
            # who hears of it when it waits, and ends it
            require_producer(command, (find_property(request.properties, _PRODUCER_GROUP) or b"").decode())
            if fault := self._halves.half_refusal(command.principal):
                raise _Refused(ResponseCode.SYSTEM_BUSY, fault)
        sys_flag, body = request.sys_flag & ~SYS_FLAG_TRANSACTION_MASK, bytes(command.body)
        if request.is_batch:
            parts = self.split(body)
            if not topic.is_batch or find_property(request.properties, _UNIQUE_KEY) is None:
                if has_reserved(b"".join([tail for _, tail, _ in parts])):
                    parts = [(text, _tail_without_reserved(tail), flag) for text, tail, flag in parts]
                batch = NewBatch(
                    request.topic,
                    queue_id,
                    parts,
                    request.born_at_ms,
                    born_host,
                    self._store_host,
                    sys_flag,
                    request.reconsume_times,
                )
                return queue_id, batch
            properties = self._with_number(request.properties, len(parts))
            sys_flag |= SYS_FLAG_INNER_BATCH | SYS_FLAG_NEED_UNWRAP
        else:
            properties = self._with_own(request.properties)
        message = NewMessage(
            request.topic,
            queue_id,
            body,
            properties,
            request.born_at_ms,
            born_host,
            self._store_host,
            request.flag,
            sys_flag,
            request.reconsume_times,
        )
        if is_prepared:
            message = to_half(message, command.principal.mark)
            if len(message.properties) + RENEWAL_BYTES > MAX_PROPERTIES_BYTES:
                raise _illegal("the properties of a transactional message leave no room for those of its checks")
        elif not request.is_batch and (_DELAY in request.properties or _DELIVER in request.properties):
            message = self._delayed(message, command.principal)
        return queue_id, message

    def _delayed(self, message: NewMessage, principal: Principal) -> NewMessage:
        """Waiting form of a delayed message; a delay level overrides a time. Raises _Refused."""
        scheduled = to_schedule(message, self._level_count)
        if scheduled is not message:
            return scheduled
        properties, now_ms = decode_properties(message.properties), self._clock.wall_ms()
        try:
            at_ms = deliver_at_ms(properties, now_ms)
        except ValueError as error:
            raise _illegal(str(error)) from None
        if at_ms is None:
            return message
        if not self._config.timer_wheel_enable:
            raise _Refused(
                ResponseCode.SYSTEM_ERROR, "accurate timer message is not enabled, timerWheelEnable is false"
            )
        max_ms = self._config.timer_max_delay_sec * 1000
        if at_ms - now_ms > max_ms or (at_ms <= now_ms and PROPERTY_TIMER_DELETE_UNIQUE_KEY in properties):
            raise _illegal(
                f"timer message illegal, the delay time should not be bigger than the max delay {max_ms}ms; or if set "
                "del msg, the delay time should be bigger than the current time"
            )
        if PROPERTY_TIMER_DELETE_UNIQUE_KEY in properties:
            if fault := self._recall_refusal(principal):
                raise _Refused(ResponseCode.SYSTEM_BUSY, fault)
            message = of_account(message, principal.mark)
        if at_ms <= now_ms:
            return message
        if self.traffic is not None:
            self.traffic.note_delayed(message.topic, max(0, at_ms - message.born_at_ms) // 1000)
        return to_timer(message, at_ms, self._config.timer_precision_ms)

    def _retried(self, request: _Request, principal: Principal) -> _Request:
        """Request for a retry topic: after the last attempt it goes to the dead letters."""
        if request.is_batch:
            raise _illegal(f"batch request does not support retry group {request.topic}")
        group = request.topic.removeprefix(RETRY_PREFIX)
        if not self._retries.is_dead_send(group, request.reconsume_times, request.max_reconsume_times, principal):
            return request
        found = decode_properties(request.properties)
        if self.traffic is not None:
            named = found.get(PROPERTY_RETRY_TOPIC, "")
            self.traffic.note_dead(group, self._retries.origin_topic(named, request.topic, principal))
        properties = encode_properties({**found, PROPERTY_DELAY: "-1"})
        topic = self._retries.dead_letter_topic(group, principal)
        return request._replace(topic=topic, queue_id=0, properties=properties)

    def _topic(self, request: _Request, principal: Principal) -> TopicConfig:
        topic = self._topics.get(request.topic)
        if topic is not None and topic.order and not self._config.grants_sends:
            remark = f"the broker[{self._config.own_ip}] sending message is forbidden"
            raise _Refused(ResponseCode.NO_PERMISSION, remark)
        if topic is None or is_broker_only(topic.name):
            refusal = refusal_to_send(request.topic)
            if refusal is not None:
                raise _Refused(*refusal)
            topic = self._create(request, principal)
        if not topic.writable:
            raise _Refused(ResponseCode.NO_PERMISSION, f"the topic[{topic.name}] sending message is forbidden")
        return topic

    def _create(self, request: _Request, principal: Principal) -> TopicConfig:
        self._has_made_topic = True
        if request.topic.startswith(RETRY_PREFIX):
            return self._retries.provide(request.topic, 1, principal)
        no_room = self._topics.creation_refusal(request.topic, principal)
        if no_room:
            raise _Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{request.topic}] not exist: {no_room}")
        too_many = self._topics.take_creation_quota()
        if too_many:
            raise _Refused(ResponseCode.SYSTEM_BUSY, f"topic[{request.topic}] not exist: {too_many}")
        pattern = request.default_topic, request.default_queue_count
        topic = self._topics.create_for_send(request.topic, *pattern, principal)
        if topic is None:
            remark = f"topic[{request.topic}] not exist, apply first please!{SEE_FAQ}"
            raise _Refused(ResponseCode.TOPIC_NOT_EXIST, remark)
        return topic

    def _queue_id(self, request: _Request, topic: TopicConfig, peer: str) -> int:
        count = max(topic.write_queue_count, topic.read_queue_count)
        if request.queue_id >= count or (request.queue_id < 0 and not topic.write_queue_count):
            raise _Refused(
                ResponseCode.INVALID_PARAMETER,
                f"request queueId[{request.queue_id}] is illegal, {topic.text()} Producer: {peer}",
            )
        if request.queue_id >= 0:
            return request.queue_id
        self._next_queue += 1
        return self._next_queue % topic.write_queue_count

    def _check(self, request: _Request, command: Command) -> None:
        limit = self._config.max_message_size
        if len(command.body) > limit or len(request.properties) + len(self._own_bytes) > MAX_PROPERTIES_BYTES:
            raise _illegal(
                "the message is illegal, maybe msg body or properties length not matched. msg body length limit "
                f"{limit}B, msg properties length limit 32KB."
            )
        if request.sys_flag & SYS_FLAG_INNER_BATCH or find_property(request.properties, _INNER_NUM) is not None:
            raise _illegal("only the broker makes inner batches: send them by request 320")
        if _DELAY in request.properties or _DELIVER in request.properties:
            self._check_delay(request)

    def _is_prepared(self, request: _Request) -> bool:
        """True for a half message, by its property as in RocketMQ. Raises _Refused."""
        flagged = request.sys_flag & SYS_FLAG_TRANSACTION_MASK
        if not flagged and _PREPARED not in request.properties:
            return False
        properties = decode_properties(request.properties)
        if properties.get(PROPERTY_TRANSACTION_PREPARED, "").lower() != "true":
            if flagged:
                raise _illegal(f"a transactional message must have the property {PROPERTY_TRANSACTION_PREPARED}=true")
            return False
        is_timed = PROPERTY_TIMER_OUT_MS not in properties and not properties.keys().isdisjoint(TIMER_PROPERTIES)
        delayed = delay_level(properties.get(PROPERTY_DELAY)) > 0 or is_timed
        if request.reconsume_times > 0 and (delayed or request.topic.startswith(DLQ_PREFIX)):
            return False  # what a consumer of old sends back still says that it was prepared
        if request.is_batch or delayed:
            raise _illegal("a transactional message can be neither a batch nor delayed")
        if self._config.reject_transaction_message:
            raise _Refused(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._config.own_ip}] sending transaction message is forbidden",
            )
        return True

    @staticmethod
    def _check_delay(request: _Request) -> None:
        """Check the delay properties. Raises _Refused."""
        properties = decode_properties(request.properties)
        try:
            level = delay_level(properties.get(PROPERTY_DELAY))
        except ValueError as error:
            raise _illegal(str(error)) from None
        if request.is_batch and (level or not properties.keys().isdisjoint(TIMER_PROPERTIES)):
            raise _illegal("a batch cannot be delayed")

    def _with_own(self, properties: bytes) -> bytes:
        """The client's properties with the broker's three, which replace the client's of the same names."""
        properties = without_reserved(properties)
        if b"MSG_REGION" in properties or b"TRACE_ON" in properties or b"CLUSTER" in properties:
            return encode_properties({**decode_properties(properties), **self._own})
        if properties and properties[-1] != 2:
            properties += b"\x02"
        return properties + self._own_bytes

    def _with_number(self, properties: bytes, count: int) -> bytes:
        """Properties of a batch that is stored as one record, with the number of its messages."""
        if count > MAX_INNER_COUNT:
            raise _illegal(f"a batch of {count} messages; one record holds up to {MAX_INNER_COUNT}")
        return self._with_own(properties) + encode_properties({PROPERTY_INNER_NUM: str(count)})

    @staticmethod
    def split(body: bytes) -> list[Part]:
        """Messages of a batch body (formats.md §12.4), stored as the client wrote them."""
        parts: list[Part] = []
        position, end = 0, len(body)
        while position < end:
            if end - position < _LEAST_INNER_BYTES or len(parts) == MAX_BATCH_MESSAGES:
                raise _illegal(f"the batch does not hold whole messages: byte {position} of {end}")
            total_bytes, flag, body_bytes = _inner_head(body, position)
            start = position + _INNER_HEAD_BYTES
            body_end = start + body_bytes
            stop = position + total_bytes
            if (
                body_bytes < 0
                or not body_end + 2 <= stop <= end
                or (body[body_end] << 8) + body[body_end + 1] != stop - body_end - 2
                or body[body_end] > 127
            ):
                raise _illegal(f"message {len(parts)} of the batch leaves the body")
            parts.append((body[start:body_end], body[body_end:stop], flag))
            position = stop
        if not parts:
            raise _illegal("the batch holds no message")
        return parts


def _by_priority(request: _Request, queue_id: int, queue_count: int) -> tuple[_Request, int]:
    """Request with the queue of its priority, whatever the type of its topic, as in RocketMQ. A message of another
    special kind loses the property."""
    properties = decode_properties(request.properties)
    priority = priority_of(properties)
    if priority is None:
        return request, queue_id
    if priority >= 0:
        return request, max(0, min(priority, queue_count - 1))
    del properties[PROPERTY_PRIORITY]
    return request._replace(properties=encode_properties(properties)), queue_id


def _tail_without_reserved(tail: bytes) -> bytes:
    properties = without_reserved(tail[2:])
    return _INT16.pack(len(properties)) + properties


_NOT_PLAIN = tuple(
    name.encode()
    for name in (
        f"{PROPERTY_WAIT}\x01false",
        PROPERTY_DELAY,
        PROPERTY_TIMER_DELIVER_MS,
        PROPERTY_TRANSACTION_PREPARED,
        PROPERTY_INNER_NUM,
        *RESERVED_PROPERTIES,
        PROPERTY_MSG_REGION,
        PROPERTY_TRACE_ON,
        PROPERTY_CLUSTER,
        PROPERTY_PRIORITY,
        "\0",
    )
)
"""Texts in properties that exclude a message from the plain path."""
_KINDS = {SCHEDULE_TOPIC: "delay", TIMER_TOPIC: "delay", HALF_TOPIC: "transaction"}
_PRIORITY, _WAIT = PROPERTY_PRIORITY.encode(), PROPERTY_WAIT.encode()
_UNIQUE_KEY = PROPERTY_UNIQUE_KEY.encode()
_INNER_NUM = PROPERTY_INNER_NUM.encode()


def _runs(accepted: list[_Accepted]) -> Iterator[list[_Accepted]]:
    """Parts to append with one call each: a batch alone, and an inner batch, whose size depends on its queue offset."""
    run: list[_Accepted] = []
    for item in accepted:
        if isinstance(item.content, NewBatch) or item.content.sys_flag & SYS_FLAG_INNER_BATCH:
            if run:
                yield run
            yield [item]
            run = []
        else:
            run.append(item)
    if run:
        yield run


def _parse(command: Command) -> _Request:
    """Fields of a send. Raises _Refused for a missing field or a malformed number."""
    ext = command.ext
    try:
        if command.code == RequestCode.SEND_MESSAGE:
            return _Request(
                ext["topic"],
                ext.get("defaultTopic", DEFAULT_TOPIC),
                _int32(ext.get("defaultTopicQueueNums", "4")),
                _int32(ext["queueId"]),
                _int32(ext.get("sysFlag", "0")),
                _int64(ext.get("bornTimestamp", "0")),
                _int32(ext.get("flag", "0")),
                ext.get("properties", "").encode(),
                _int32(ext.get("reconsumeTimes", "0")),
                ext.get("batch") == "true",
                _int32(ext["maxReconsumeTimes"]) if ext.get("maxReconsumeTimes") else None,
            )
        return _Request(
            ext["b"],
            ext.get("c", DEFAULT_TOPIC),
            _int32(ext.get("d", "4")),
            _int32(ext["e"]),
            _int32(ext.get("f", "0")),
            _int64(ext.get("g", "0")),
            _int32(ext.get("h", "0")),
            ext.get("i", "").encode(),
            _int32(ext.get("j", "0")),
            command.code == RequestCode.SEND_BATCH_MESSAGE or ext.get("m") == "true",
            _int32(ext["l"]) if ext.get("l") else None,
        )
    except KeyError as missing:
        raise _Refused(ResponseCode.SYSTEM_ERROR, f"request {command.code} lacks the field {missing}") from None
    except ValueError as error:
        raise _Refused(ResponseCode.SYSTEM_ERROR, f"request {command.code}: {error}") from None


@lru_cache(maxsize=1024)
def _int32(value: str) -> int:
    if len(value) > _INT32_CHARS:
        raise ValueError(f"{value[:_INT32_CHARS]}… is not a 32 bit integer")  # nor shall it be remembered
    number = int(value)
    if not -(1 << 31) <= number < 1 << 31:
        raise ValueError(f"{value} is not a 32 bit integer")
    return number


def _int64(value: str) -> int:
    number = int(value)
    if not -(1 << 63) <= number < 1 << 63:
        raise ValueError(f"{value} is not a 64 bit integer")
    return number
