"""Requests 200050, 200052, 200054 and 200055: messages for whoever asks, out of sight for a while. Data plane, no trio.

A pop stores a checkpoint for each queue that it takes from and is answered when the group's ack rule holds it: whatever
a client was given comes again unless it is acknowledged, whoever is master then. In order there is no checkpoint: the
offset of the group stays at the first message that is not done.
Codes and remarks are those of RocketMQ's PopMessageProcessor and its neighbours.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

from rmqha.broker.pop.checkpoint import MAX_COUNT, CheckPoint
from rmqha.broker.pop.counts import PopCounts
from rmqha.broker.pop.order_info import OrderInfo
from rmqha.broker.pop.order_table import OrderTable
from rmqha.broker.pop.polls import Line, Poll, Polls, poll_bytes
from rmqha.broker.pop.positions import PopPositions, PopQueue
from rmqha.broker.replication.waiter import GatheringAppender, Waiter, Waiting
from rmqha.broker.requests.record_access import denied
from rmqha.broker.requests.request import Channel, Handler, RequestError, number, text, truth
from rmqha.broker.requests.selectors import RecordFilter, compile_selector, require_property_filter
from rmqha.broker.services.statistics import BrokerStatistics
from rmqha.broker.services.traffic import Traffic
from rmqha.broker.tables.clients import TAG, parse_tags
from rmqha.broker.tables.groups import GroupTable
from rmqha.broker.tables.offsets import OffsetTable
from rmqha.broker.tables.topics import TopicConfig, TopicTable
from rmqha.ha.action import AckStatus
from rmqha.model.code import SEE_FAQ, RequestCode, ResponseCode
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.error import DamagedError, UsageError
from rmqha.model.message import (
    MAX_PROPERTIES_BYTES,
    PROPERTY_CRC32,
    PROPERTY_ORIGIN_GROUP,
    PROPERTY_POP_CK,
    REVIVE_QUEUE_COUNT,
    TIMER_TOPIC,
    decode_properties,
    encode_properties,
    find_property,
)
from rmqha.model.offset import PhyOffset, QueueOffset
from rmqha.port import Clock
from rmqha.store.log.record import Host, NewMessage, decode, encode, topic_field
from rmqha.store.reader import Matches, PullResult
from rmqha.wire.auth.acl_needs import needs
from rmqha.wire.command import Command
from rmqha.wire.state.receipt import (
    ORDERED_QUEUE_ID,
    RETRY_V1,
    RETRY_V2,
    Receipt,
    kind_of,
    message_count_info,
    message_offset_info,
    queue_count_info,
    retry_topic,
    start_offset_info,
)

FROM_MIN = 0
"""Value of initMode: a new group begins with the first message of a queue."""
RETRY_SHARE = 5
"""One pop in so many looks at the retry topic first."""
TOO_LATE_MS = 500
MAX_ATTEMPT_ID_CHARS = 256
"""It is kept as long as the messages that it got."""
KEPT_FIELDS = ("topic", "consumerGroup")
"""Fields of a pop that are kept while it waits: a header may have 256 KiB."""
ASKED_FIELDS = (
    *("topic", "consumerGroup", "queueId", "maxMsgNums", "invisibleTime", "initMode", "order"),
    *("exp", "expType", "attemptId"),
)
"""Fields of a pop that say what it wants: a client's next one mostly wants the same."""
MAX_KNOWN_COUNT, MAX_KNOWN_CHARS = 512, 1024
"""Bounds on what is known of such fields."""
_QUEUE_OFFSET = struct.Struct(">q")
_QUEUE_OFFSET_AT = 20
_ORIGIN_GROUP = PROPERTY_ORIGIN_GROUP.encode()
_KINDS = (RETRY_V1, RETRY_V2)
_Run: TypeAlias = "tuple[str, Sequence[int]]"
"""Queues of one topic: its name, their ids."""


class PopLog(Protocol):
    """The part of the store that pops read; `Store` is one."""

    @property
    def max_phy_offset(self) -> PhyOffset: ...

    def queue_range(self, topic: str, queue_id: int) -> tuple[QueueOffset, QueueOffset]: ...

    def units(self, topic: str, queue_id: int, offset: int, count: int) -> list[tuple[int, int, int]]: ...

    def pull(
        self,
        topic: str,
        queue_id: int,
        offset: QueueOffset,
        max_count: int,
        max_bytes: int,
        tags_codes: frozenset[int] | None,
        matches: Matches | None = None,
    ) -> PullResult: ...


class GetCounts(Protocol):
    """Counter of what consumers get; `PullProcessor` is one."""

    get_count: int
    miss_count: int
    traffic: Traffic | None


class _Pop(NamedTuple):
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
    """Length of its filter's expression."""


class _Known(NamedTuple):
    """A pop's fields as they were read, and what they were checked against."""

    pop: _Pop
    topic: TopicConfig
    group: Mapping[str, Any]
    config: BrokerConfig


class _Part(NamedTuple):
    """Messages of one queue."""

    place: PopQueue
    start_offset: int
    queue_offsets: tuple[int, ...]
    next_offset: int


@dataclass(slots=True)
class _Found:
    """Messages that one pop takes."""

    pop_ms: int
    revive_queue_id: int
    parts: list[_Part] = field(default_factory=list)
    records: list[bytes] = field(default_factory=list)
    size_bytes: int = 0
    rest_count: int = 0
    counts: list[str] = field(default_factory=list)


class _Given(Waiting):
    """A client that waits until the checkpoint of its messages counts. `is_polled`: it has waited for them before, so
    that its connection has no turn of its own now."""

    __slots__ = ("_channel", "_is_polled", "_reply")

    def __init__(self, channel: Channel, reply: Command, *, is_polled: bool) -> None:
        self._channel = channel
        self._reply = reply
        self._is_polled = is_polled

    def finish(self, status: AckStatus) -> None:
        if status is not AckStatus.OK:
            self._reply.body, self._reply.ext = b"", {}
            Waiter(self._channel, [self._reply]).finish(status)
        elif self._is_polled:
            self._channel.send_at_once(self._reply)
        else:
            self._channel.send(self._reply)


class PopProcessor:
    """`recovering` is true while a new master has not looked through the checkpoints that its log holds: it gives
    nothing yet."""

    def __init__(
        self,
        config: BrokerConfig,
        log: PopLog,
        appends: GatheringAppender,
        topics: TopicTable,
        groups: GroupTable,
        offsets: OffsetTable,
        positions: PopPositions,
        orders: OrderTable,
        clock: Clock,
        store_host: Host,
        revive_topic: str,
        memory_bytes: int,
        statistics: BrokerStatistics,
        gets: GetCounts,
        is_recovering: Callable[[], bool],
        counts: PopCounts,
    ) -> None:
        self._log = log
        self._appends = appends
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._positions = positions
        self._orders = orders
        self._clock = clock
        self._store_host = store_host
        self._revive_topic = revive_topic
        self._memory_bytes = memory_bytes
        self._statistics = statistics
        self._gets = gets
        self._is_recovering = is_recovering
        self._counts = counts
        self._turn = 0
        self._blocked_until: dict[PopQueue, int] = {}
        self._known: dict[tuple[str | None, ...], _Known] = {}
        self.polls = Polls(clock, _sources)
        self.configure(config)

    def configure(self, config: BrokerConfig) -> None:
        self._config = config
        self._max_bytes = config.max_transfer_bytes_on_message_in_memory

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.PEEK_MESSAGE: self._peek, RequestCode.POLLING_INFO: self._polling_info}

    # --- what the broker tells ----------------------------------------------------------------------------------------
    def dispatched(self, grown: Iterable[tuple[str, int]]) -> None:
        """These queues have grown."""
        if self.polls.count and self._appends.is_serving:
            self.polls.grown(grown)

    def timeout(self) -> None:
        """Answer polls whose time is up, and wake those whose queue gives messages again."""
        self.polls.timeout()
        if self._blocked_until:
            now_ms = self._clock.wall_ms()
            for place in [place for place, free_ms in self._blocked_until.items() if free_ms <= now_ms]:
                del self._blocked_until[place]
                self.polls.wake_group(place.topic, place.group)

    def role_changed(self) -> None:
        self._positions.clear()
        self._blocked_until.clear()
        self.polls.end_all()

    def refuse(self) -> None:
        """This broker is stopping: nobody waits any more."""
        self.polls.is_refusing = True
        self.polls.end_all()

    # --- 200050 -------------------------------------------------------------------------------------------------------
    def process(self, channel: Channel, command: Command) -> None:
        """Answer now or later. Raises RequestError."""
        self._admit()
        wait_ms = self._wait_ms(command)
        if wait_ms < -TOO_LATE_MS:
            raise RequestError(
                ResponseCode.POLLING_TIMEOUT, f"the broker[{self._config.own_ip}] pop message is timeout too much"
            )
        pop = self._parse(command, channel.peer)
        found = self._find(pop)
        if found.parts:
            self._give(channel, command, pop, found)
            return
        line, kept = Line(pop.topic, pop.group, pop.queue_id, RequestCode.POP_MESSAGE), command.stub(*KEPT_FIELDS)

        def answer(wants_something: bool) -> bool:
            return self._answer_poll(channel, kept, pop, wants_something)

        if not self._hold(channel, kept, line, wait_ms, answer, pop.attempt_id, pop.filter_chars):
            code = ResponseCode.POLLING_FULL if wait_ms > 0 else ResponseCode.POLLING_TIMEOUT
            channel.send(self._reply(command, pop, found, code))

    def _answer_poll(self, channel: Channel, command: Command, pop: _Pop, wants_something: bool) -> bool:
        if not wants_something:
            empty = _Found(self._clock.wall_ms(), self._revive_queue_id(pop))
            channel.send(self._reply(command, pop, empty, ResponseCode.POLLING_TIMEOUT))
            return True
        if self._refused(channel, command):
            return True
        if self._appends.admission()[0] is not ResponseCode.SUCCESS:
            return False
        found = self._find(pop)
        if not found.parts:
            return False
        self._give(channel, command, pop, found, is_polled=True)
        return True

    @staticmethod
    def _refused(channel: Channel, command: Command) -> bool:
        """True if the accounts have changed since it came, so that it is refused."""
        principal = command.principal
        if not principal.is_restricted or not (reason := principal.refusal(needs(command))):
            return False
        channel.send(command.reply(denied(command, reason).code, {}, remark=reason))
        return True

    def _hold(
        self,
        channel: Channel,
        command: Command,
        line: Line,
        wait_ms: int,
        answer: Callable[[bool], bool],
        attempt_id: str | None,
        filter_chars: int = 0,
    ) -> bool:
        polls, size_bytes = self.polls, poll_bytes(line.topic, line.group, attempt_id)
        is_full = polls.is_refusing or polls.is_full(line, channel, size_bytes)
        if wait_ms <= 0 or is_full or not polls.filters.hold(filter_chars):
            return False
        wait_ms = min(wait_ms, self._config.long_polling_max_ms)
        polls.add(Poll(channel, command, line, self._clock.now_ms() + wait_ms, answer, size_bytes, filter_chars))
        return True

    def _admit(self) -> None:
        code, remark = self._appends.admission()
        if code is not ResponseCode.SUCCESS:
            raise RequestError(code, remark)

    def _wait_ms(self, command: Command) -> int:
        """Time (ms) until the client wants an answer; it counts from when it asked, by its own clock."""
        poll_ms, born_ms = number(command, "pollTime"), number(command, "bornTime", 0)
        return poll_ms if born_ms == 0 else born_ms + poll_ms - self._clock.wall_ms()

    # --- checks -------------------------------------------------------------------------------------------------------
    def _require_reads(self, doing: str) -> None:
        """Raises RequestError if brokerPermission grants none."""
        if not self._config.grants_reads:
            raise RequestError(
                ResponseCode.NO_PERMISSION, f"the broker[{self._config.own_ip}] {doing} message is forbidden"
            )

    def _parse(self, command: Command, peer: str) -> _Pop:
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

    def _read(self, command: Command, peer: str) -> _Pop:
        max_count, invisible_ms = number(command, "maxMsgNums"), number(command, "invisibleTime")
        self._require_reads("pop")
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
        topic = self._topic(command, peer)
        if topic.is_batch:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"topic {topic.name} has batch queues, which cannot be popped"
            )
        group, wanted = self._group(command), self._filter(command)
        return _Pop(
            topic.name,
            group,
            number(command, "queueId"),
            max_count,
            invisible_ms,
            number(command, "initMode") == FROM_MIN,
            truth(command, "order"),
            _attempt_id(command),
            *wanted,
            topic.read_queue_count,
            0 if wanted == (None, None) else len(command.ext.get("exp") or ""),
        )

    def _topic(self, command: Command, peer: str) -> TopicConfig:
        name, queue_id = text(command, "topic"), number(command, "queueId")
        topic = self._topics.get(name)
        if topic is None:
            remark = f"topic[{name}] not exist, apply first please! {SEE_FAQ}"
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, remark)
        if not topic.readable:
            raise RequestError(ResponseCode.NO_PERMISSION, f"the topic[{name}] peeking message is forbidden")
        if queue_id >= topic.read_queue_count:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{queue_id}] is illegal, topic:[{name}] topicConfig.readQueueNums:"
                f"[{topic.read_queue_count}] consumer:[/{peer}]",
            )
        return topic

    def _group(self, command: Command) -> str:
        name = text(command, "consumerGroup")
        group = self._groups.get_or_create(name)
        if group is None:
            remark = f"subscription group [{name}] does not exist, {SEE_FAQ}"
            raise RequestError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
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

    # --- find ---------------------------------------------------------------------------------------------------------
    def _revive_queue_id(self, pop: _Pop) -> int:
        return ORDERED_QUEUE_ID if pop.is_ordered else self._turn % REVIVE_QUEUE_COUNT

    def _find(self, pop: _Pop) -> _Found:
        """The messages that it takes. Nothing of it is known to the log yet."""
        self._turn += 1
        found = _Found(self._positions.pop_ms(self._clock.wall_ms()), self._revive_queue_id(pop))
        if self._is_recovering():
            return found
        if pop.matches is not None:
            pop.matches.begin()
        for topic, queue_ids in self._runs(pop):
            for step, queue_id in enumerate(queue_ids):
                if len(found.records) >= pop.max_count:
                    found.rest_count += self._rest_of(topic, pop.group, queue_ids[step:])
                    break
                self._look(pop, PopQueue(topic, pop.group, queue_id), found)
        return found

    def _rest_of(self, topic: str, group: str, queue_ids: Iterable[int]) -> int:
        """Messages that the group has not taken, in all of these queues."""
        count, queue_range, next_offset = 0, self._log.queue_range, self._positions.next_offsets(topic, group)
        for queue_id in queue_ids:
            low, high = queue_range(topic, queue_id)
            offset = next_offset(queue_id)
            if offset is None:
                offset = low
            if offset < high:
                count += high - offset
        return count

    def _runs(self, pop: _Pop) -> list[_Run]:
        """Queues in the order in which they are looked at; the retry topic's first now and then. Both of its kinds
        cannot be told apart in an answer, so that each has its turn."""
        count, turn = pop.queue_count, self._turn
        if pop.queue_id >= 0:
            own: _Run = pop.topic, (pop.queue_id,)
        else:
            first = turn % count if count else 0
            own = pop.topic, (*range(first, count), *range(first))
        retry = None if pop.is_ordered else self._retry_run(pop)
        if retry is None:
            return [own]
        return [own, retry] if turn % RETRY_SHARE else [retry, own]

    def _retry_run(self, pop: _Pop) -> _Run | None:
        kinds = _KINDS if self._turn % 2 else _KINDS[::-1]
        for kind in kinds:
            name = retry_topic(pop.topic, pop.group, kind)
            topic = self._topics.get(name)
            if topic is not None and self._rest_of(name, pop.group, queue_ids := range(topic.read_queue_count)):
                return name, queue_ids
        return None

    def _look(self, pop: _Pop, place: PopQueue, found: _Found) -> None:
        self._take_reset(place)
        if pop.is_ordered and (info := self._orders.get(place)) and info.blocks(pop.attempt_id, found.pop_ms):
            self._blocked_until[place] = info.free_ms()
            return
        offset = self._positions.next_offset(place)
        if offset is None:
            offset = self._first_offset(pop, place)
            self._offsets.commit(place.group, place.topic, place.queue_id, offset)
        wanted = pop.max_count - len(found.records)
        result = self._pull(pop, place, offset, wanted, max(1, self._max_bytes - found.size_bytes))
        if result is None:
            return
        found.rest_count += max(0, result.max_offset - result.next_begin_offset)
        if result.records:
            self._take(pop, place, found, result)
        elif result.next_begin_offset > offset:
            self._positions.passed(place, result.next_begin_offset)

    def _pull(self, pop: _Pop, place: PopQueue, offset: int, count: int, max_bytes: int) -> PullResult | None:
        """None: nothing can be read there now."""
        bounds = count, max_bytes, pop.tags_codes, pop.matches
        try:
            result = self._log.pull(place.topic, place.queue_id, QueueOffset(offset), *bounds)
            if result.status is ResponseCode.PULL_OFFSET_MOVED:
                # the queue begins behind it, or ends before
                self._positions.forget(place)
                self._offsets.commit(place.group, place.topic, place.queue_id, result.next_begin_offset)
                result = self._log.pull(place.topic, place.queue_id, result.next_begin_offset, *bounds)
        except DamagedError:
            return None  # others go on; it waits until a replica has given the record back
        return result

    def _take_reset(self, place: PopQueue) -> None:
        offset = self._offsets.take_reset(place.group, place.topic, place.queue_id)
        if offset is not None:
            self._positions.forget(place)
            self._orders.remove(place)
            self._offsets.commit(place.group, place.topic, place.queue_id, offset)

    def _first_offset(self, pop: _Pop, place: PopQueue) -> int:
        """The offset at which a new group begins: the newest message's if it wants that and the queue is not all in
        memory, else the start."""
        low, high = self._log.queue_range(place.topic, place.queue_id)
        if pop.from_min or kind_of(place.topic) in _KINDS:
            return low
        if low == 0 and self._is_in_memory(place):
            return 0
        return max(0, high - 1)

    def _is_in_memory(self, place: PopQueue) -> bool:
        if not self._memory_bytes:
            return True
        units = self._log.units(place.topic, place.queue_id, 0, 1)
        budget = self._memory_bytes * self._config.access_message_in_memory_max_ratio // 100
        return bool(units) and self._log.max_phy_offset - units[0][0] <= budget

    def _take(self, pop: _Pop, place: PopQueue, found: _Found, result: PullResult) -> None:
        records = result.records
        if place.topic != pop.topic:
            records = [record for record in records if _is_for(pop.group, record)]
        if not records:
            self._positions.passed(place, int(result.next_begin_offset))
            return
        offsets = tuple(_QUEUE_OFFSET.unpack_from(record, _QUEUE_OFFSET_AT)[0] for record in records)
        start = offsets[0]
        found.parts.append(_Part(place, start, offsets, int(result.next_begin_offset)))
        for record in records:
            data = self._as_of(pop, place, found, start, record) if place.topic != pop.topic else bytes(record)
            found.records.append(data)
            found.size_bytes += len(data)

    def _as_of(self, pop: _Pop, place: PopQueue, found: _Found, start: int, data: memoryview) -> bytes:
        """A message of the retry topic as its client sees it: of the topic that it subscribes to, with its receipt."""
        record = decode(data)
        receipt = Receipt(
            start,
            found.pop_ms,
            pop.invisible_ms,
            found.revive_queue_id,
            kind_of(place.topic),
            self._config.broker_name,
            place.queue_id,
            record.queue_offset,
        )
        properties = decode_properties(record.properties)
        properties.pop(PROPERTY_CRC32, None)
        properties.setdefault(PROPERTY_POP_CK, receipt.encode())
        encoded = encode_properties(properties)
        if len(encoded) > MAX_PROPERTIES_BYTES:
            return bytes(data)
        message = record.anew(pop.topic, record.queue_id, encoded, record.store_host)
        name, version = topic_field(pop.topic)
        return encode(message, name, version, record.queue_offset, record.phy_offset, record.store_timestamp_ms)

    # --- give ---------------------------------------------------------------------------------------------------------
    def _give(self, channel: Channel, command: Command, pop: _Pop, found: _Found, *, is_polled: bool = False) -> None:
        """Store what makes the messages come again, and answer then. Raises RequestError."""
        if pop.is_ordered:
            for part in found.parts:
                self._give_in_order(pop, part, found)
            channel.send(self._reply(command, pop, found, ResponseCode.SUCCESS))
            return
        timer_end = self._log.queue_range(TIMER_TOPIC, 0)[1]
        self._topics.create_internal(self._revive_topic, REVIVE_QUEUE_COUNT)
        try:
            stored = self._appends.append_waiting([self._checkpoint(pop, part, found) for part in found.parts])
        except (UsageError, ValueError) as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"the checkpoint cannot be stored: {error}") from None
        for part in found.parts:
            self._positions.take(part.place, found.pop_ms, part.next_offset, timer_end, stored.end_offset)
            self._counts.given(part.place.topic, pop.group, len(part.queue_offsets))
        reply = self._reply(command, pop, found, ResponseCode.SUCCESS)
        self._appends.appended_in_turn(stored.end_offset, _Given(channel, reply, is_polled=is_polled))

    def _checkpoint(self, pop: _Pop, part: _Part, found: _Found) -> NewMessage:
        place = part.place
        checkpoint = CheckPoint(
            place.topic,
            place.group,
            place.queue_id,
            part.start_offset,
            found.pop_ms,
            pop.invisible_ms,
            self._config.broker_name,
            part.queue_offsets,
        )
        when = found.pop_ms, self._store_host, self._config.timer_precision_ms
        return checkpoint.message(self._revive_topic, found.revive_queue_id, *when)

    def _give_in_order(self, pop: _Pop, part: _Part, found: _Found) -> None:
        place, offsets = part.place, part.queue_offsets
        before = self._orders.get(place)
        info = OrderInfo.given(before, pop.attempt_id, found.pop_ms, pop.invisible_ms, offsets, found.pop_ms)
        self._orders.put(place, info)
        self._blocked_until[place] = info.free_ms()
        self._positions.passed(place, part.start_offset)  # nobody wants what lies before
        for offset, count in info.counts.items():
            found.counts.append(message_count_info(place.topic, place.queue_id, offset, count))
        least = min(info.counts.values()) if len(info.counts) == len(offsets) else 0
        found.counts.append(queue_count_info(place.topic, place.queue_id, least))

    def _reply(self, command: Command, pop: _Pop, found: _Found, code: ResponseCode) -> Command:
        ext = {
            "popTime": str(found.pop_ms),
            "invisibleTime": str(pop.invisible_ms),
            "reviveQid": str(found.revive_queue_id),
            "restNum": str(found.rest_count),
            "startOffsetInfo": ";".join(
                start_offset_info(part.place.topic, part.place.queue_id, part.start_offset) for part in found.parts
            ),
            "msgOffsetInfo": ";".join(
                message_offset_info(part.place.topic, part.place.queue_id, part.queue_offsets) for part in found.parts
            ),
        }
        if pop.is_ordered:
            ext["orderCountInfo"] = ";".join(found.counts)
        if code is not ResponseCode.SUCCESS:
            self._gets.miss_count += 1
            return command.reply(code, ext, remark="NO_MESSAGE_IN_QUEUE")
        count = len(found.records)
        self._gets.get_count += count
        self._statistics.given(pop.group, pop.topic, count, found.size_bytes)
        if self._gets.traffic is not None:
            self._gets.traffic.note_pulled(pop.group, pop.topic, count, found.size_bytes)
        return command.reply(code, ext, b"".join(found.records), "FOUND")

    # --- 200054 -------------------------------------------------------------------------------------------------------
    def notify(self, channel: Channel, command: Command) -> None:
        """Tell, now or when it is so, that there are messages. Raises RequestError."""
        if not self._appends.is_serving:
            self._admit()
        self._require_reads("peeking")
        topic, group = self._topic(command, channel.peer), self._group(command)
        queue_id, is_ordered = number(command, "queueId"), truth(command, "order")
        attempt_id, kept = _attempt_id(command), command.stub(*KEPT_FIELDS)
        line = Line(topic.name, group, queue_id, RequestCode.NOTIFICATION)

        def answer(wants_something: bool) -> bool:
            if wants_something and self._refused(channel, kept):
                return True
            has_message = self._has_message(line, topic.read_queue_count, is_ordered, attempt_id)
            if wants_something and not has_message:
                return False
            channel.send(_notice(kept, has_message=has_message, is_full=False))
            return True

        if answer(True):
            return
        wait_ms = self._wait_ms(command)
        if not self._hold(channel, kept, line, wait_ms, answer, attempt_id):
            channel.send(_notice(kept, has_message=False, is_full=wait_ms > 0))

    def _has_message(self, line: Line, queue_count: int, is_ordered: bool, attempt_id: str | None) -> bool:
        if self._is_recovering():
            return False
        now_ms = self._clock.wall_ms()
        for queue_id in range(queue_count) if line.queue_id < 0 else (line.queue_id,):
            place = PopQueue(line.topic, line.group, queue_id)
            if is_ordered and (info := self._orders.get(place)) and info.blocks(attempt_id, now_ms):
                self._blocked_until[place] = info.free_ms()
            elif self._rest_of(line.topic, line.group, (queue_id,)):
                return True
        for kind in _KINDS:
            name = retry_topic(line.topic, line.group, kind)
            topic = self._topics.get(name)
            if topic is not None and self._rest_of(name, line.group, range(topic.read_queue_count)):
                return True
        return False

    # --- 200052, 200055 -----------------------------------------------------------------------------------------------
    def _peek(self, channel: Channel, command: Command) -> Command:
        """Messages that a pop would take, without taking them."""
        self._require_reads("peeking")
        topic, group = self._topic(command, channel.peer), self._group(command)
        max_count, queue_id = number(command, "maxMsgNums"), number(command, "queueId")
        if not 0 < max_count <= MAX_COUNT:
            raise RequestError(ResponseCode.INVALID_PARAMETER, f"maxMsgNums must be from 1 to {MAX_COUNT}")
        everything = _Pop(
            topic.name, group, queue_id, max_count, 0, True, False, None, None, None, topic.read_queue_count
        )
        self._turn += 1
        records: list[bytes] = []
        size_bytes = rest = 0
        for place in [PopQueue(name, group, item) for name, ids in self._runs(everything) for item in ids]:
            rest += self._rest_of(place.topic, group, (place.queue_id,))
            if len(records) >= max_count:
                continue
            low = self._log.queue_range(place.topic, place.queue_id)[0]
            offset = max(low, self._positions.next_offset(place) or 0)
            bounds = max_count - len(records), max(1, self._max_bytes - size_bytes), None
            found = self._log.pull(place.topic, place.queue_id, QueueOffset(offset), *bounds).records
            is_own = place.topic == topic.name
            records += [bytes(record) for record in found if is_own or _is_for(group, record)]
            size_bytes = sum(map(len, records))
        ext = {"popTime": "0", "invisibleTime": "0", "reviveQid": "0", "restNum": str(rest)}
        if not records:
            return command.reply(ResponseCode.PULL_NOT_FOUND, ext, remark="NO_MESSAGE_IN_QUEUE")
        return command.reply(ResponseCode.SUCCESS, ext, b"".join(records), "FOUND")

    def _polling_info(self, channel: Channel, command: Command) -> Command:
        self._require_reads("peeking")
        topic, group = self._topic(command, channel.peer), self._group(command)
        line = Line(topic.name, group, number(command, "queueId"), RequestCode.POP_MESSAGE)
        return command.reply(ResponseCode.SUCCESS, {"pollingNum": str(self.polls.size_of(line))})


def _attempt_id(command: Command) -> str | None:
    """The text by which a client that has lost an answer is known again. Raises RequestError."""
    found = command.ext.get("attemptId")
    if found is not None and len(found) > MAX_ATTEMPT_ID_CHARS:
        raise RequestError(
            ResponseCode.INVALID_PARAMETER, f"attemptId has {len(found)} characters, {MAX_ATTEMPT_ID_CHARS} at most"
        )
    return found


def _sources(line: Line) -> tuple[str, ...]:
    return (line.topic, *(retry_topic(line.topic, line.group, kind) for kind in _KINDS))


def _is_for(group: str, data: memoryview) -> bool:
    """False of a message of a retry topic that comes again to another group: the name `%RETRY%a_b_T` may be that of
    group a and topic b_T, or of group a_b and topic T."""
    origin = find_property(decode(data).properties, _ORIGIN_GROUP)
    return origin is None or origin == group.encode()


def _notice(command: Command, *, has_message: bool, is_full: bool) -> Command:
    ext = {"hasMsg": str(has_message).lower(), "pollingFull": str(is_full).lower()}
    return command.reply(ResponseCode.SUCCESS, ext)
