"""Requests 11 and 361: committed records of a queue, filtered by tags or properties, long polling. Data plane, no trio.

A pull that finds nothing and may wait is held until dispatch has added something to its queue that its filter wants,
or until its time-out. A hold remembers the position of its filter, so that nothing is filtered twice.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol

from rmqha.broker.cold_reads import COLD_WAIT_MS, MAX_LOAD_COUNT, ColdPart, ColdReads
from rmqha.broker.requests.record_access import denied, was_refused
from rmqha.broker.requests.request import (
    Channel,
    RequestError,
    Shares,
    Use,
    give_back_all,
    is_beyond,
    is_of_lost_tail,
    no_group,
    no_topic,
    number,
    take_all,
    text,
)
from rmqha.broker.requests.selectors import (
    MAX_EVALUATED,
    HeldFilters,
    RecordFilter,
    compile_selector,
    require_property_filter,
)
from rmqha.broker.services.statistics import BrokerStatistics
from rmqha.broker.services.traffic import Traffic
from rmqha.broker.tables.clients import TAG, ClientTable, ConsumerGroupInfo, parse_tags
from rmqha.broker.tables.groups import GroupTable, default_group
from rmqha.broker.tables.offsets import MAX_ENTRY_COUNT, OffsetTable
from rmqha.broker.tables.topics import TopicTable
from rmqha.model.code import ForbiddenType, ResponseCode
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.error import DamagedError
from rmqha.model.offset import MASTER_ID, PhyOffset, QueueOffset
from rmqha.model.principal import Principal
from rmqha.port import Clock
from rmqha.store.cold_range import ColdRange
from rmqha.store.integrity.damage import DamageTable
from rmqha.store.reader import NO_DISK_LIMITS, DiskLimits, PullResult, RecordPredicate
from rmqha.wire.auth.accesses import refusal_now
from rmqha.wire.command import Command
from rmqha.wire.frame import NumbersFrame

FLAG_COMMIT_OFFSET = 1
FLAG_SUSPEND = 2
FLAG_SUBSCRIPTION = 4

MAX_PULL_COUNT = 1024
MAX_PULL_BYTES = 4 * 1024 * 1024
"""Bounds on one answer, whatever the configuration says."""
DEFAULT_PULL_BYTES = 256 * 1024
MAX_HOLD_COUNT = 100_000
MAX_HOLD_COUNT_OF_ONE = 16
"""Bound on held pulls of one connection at one queue, one for each of its groups. Every message is shown to all of
them."""
TICK_MS = 100
"""Interval (ms) within which time-outs of holds are handled together."""
KEPT_FIELDS = ("topic", "consumerGroup")
"""Fields of a pull that are kept while it waits: a header may have 256 KiB."""
SLAVE_ANSWER_DELAY_MS = 100
"""Delay (ms) of a slave's empty answer to a waiting consumer, which asks again at once."""
FOUND = "FOUND"
_FIELDS = "nextBeginOffset", "minOffset", "maxOffset", "suggestWhichBrokerId", "topicSysFlag", "groupSysFlag"
_FOUND = NumbersFrame(_FIELDS, FOUND)
_PHY_OFFSET = struct.Struct(">q")
_PHY_OFFSET_AT = 28


class PullLog(Protocol):
    """Port to the store that pulls read; `Store` is one."""

    damage: DamageTable

    @property
    def max_phy_offset(self) -> PhyOffset: ...

    def queue_range(self, topic: str, queue_id: int) -> tuple[QueueOffset, QueueOffset]: ...

    def queue_end(self, topic: str, queue_id: int) -> QueueOffset: ...

    def pull(
        self,
        topic: str,
        queue_id: int,
        offset: QueueOffset,
        max_count: int,
        max_bytes: int,
        tags_codes: frozenset[int] | None,
        matches: RecordPredicate | None = None,
        on_disk: DiskLimits = NO_DISK_LIMITS,
        *,
        joined: bool = False,
        from_memory: bool = False,
    ) -> PullResult: ...


_Queue = tuple[str, int]
"""Topic and queue id."""


class _Filter(NamedTuple):
    """Filter of a pull; None takes all."""

    tags_codes: frozenset[int] | None = None
    matches: RecordFilter | None = None
    chars: int = 0
    """Length of its expression."""

    @property
    def takes_all(self) -> bool:
        return self.tags_codes is None and self.matches is None


class _Budget:
    """Budget of the filters of all holds at a queue that has grown, as `RecordFilter.used`."""

    def __init__(self) -> None:
        self.left = MAX_EVALUATED


class _Pull(NamedTuple):
    group: str
    topic: str
    queue_id: int
    offset: QueueOffset
    max_count: int
    max_bytes: int
    filter: _Filter
    suspend_ms: int
    topic_sys_flag: int
    group_sys_flag: int


class _Hold:
    """Held pull. `scanned_to` is the first offset that the filter has not seen."""

    __slots__ = ("channel", "cold_range", "command", "deadline_ms", "load_count", "pull", "scanned_to")

    def __init__(self, channel: Channel, command: Command, pull: _Pull, scanned_to: QueueOffset, deadline_ms: int):
        self.channel = channel
        self.command = command
        self.pull = pull
        self.scanned_to = scanned_to
        self.deadline_ms = deadline_ms
        self.cold_range: ColdRange | None = None
        """Part that is being read into memory for it; the hold waits for nothing else then."""
        self.load_count = 0
        """Reads into memory that were made for it."""

    @property
    def from_memory(self) -> bool:
        """False after MAX_LOAD_COUNT reads: some file systems keep nothing in memory."""
        return self.load_count < MAX_LOAD_COUNT


class PullProcessor:
    """Processor of pulls. `is_master` returns the present role. `readers` returns replicas that could serve reads
    instead of a master, or a slave itself: end of the log by id."""

    def __init__(
        self,
        config: BrokerConfig,
        log: PullLog,
        topics: TopicTable,
        groups: GroupTable,
        clients: ClientTable,
        offsets: OffsetTable,
        clock: Clock,
        is_master: Callable[[], bool],
        readers: Callable[[], Mapping[int, int]],
        memory_bytes: int,
        statistics: BrokerStatistics,
        cold_reads: ColdReads,
    ) -> None:
        """`memory_bytes` is that of the machine; 0: unknown, so that no consumer is sent to a slave."""
        self.configure(config)
        self._log = log
        self._topics = topics
        self._groups = groups
        self._clients = clients
        self._offsets = offsets
        self._clock = clock
        self._is_master = is_master
        self._memory_bytes = memory_bytes
        self._readers = readers
        self._statistics = statistics
        self._cold_reads = cold_reads
        self._holds: dict[_Queue, list[_Hold]] = {}
        self._held: dict[Channel, dict[_Queue, int]] = {}
        """Number of holds by connection and queue."""
        self._due: dict[int, dict[_Queue, None]] = {}
        """Queues of the holds with a time-out in a tick."""
        self._refusing = False
        self.traffic: Traffic | None = None
        """Set if metrics are shown."""
        self._pulled_to: dict[tuple[str, str, int], int] = {}
        self._places, self._held_filters = Shares(MAX_HOLD_COUNT), HeldFilters()
        self.get_count = 0
        self.miss_count = 0

    @property
    def hold_count(self) -> int:
        return self._places.used

    def configure(self, config: BrokerConfig) -> None:
        self._config = config
        self._max_count = min(config.max_transfer_count_on_message_in_memory, MAX_PULL_COUNT)
        self._max_bytes = min(config.max_transfer_bytes_on_message_in_memory, MAX_PULL_BYTES)

    # --- requests ---------------------------------------------------------------------------------------------------
    def process(self, channel: Channel, command: Command) -> None:
        """Answer now or later. Raises RequestError."""
        master = self._is_master()
        pull = self._parse(command, channel.peer, master)
        if not master:
            self._process_as_slave(channel, command, pull)
            return
        committed = number(command, "commitOffset", 0)
        if number(command, "sysFlag", 0) & FLAG_COMMIT_OFFSET and committed >= 0:
            known = self._offsets.query(pull.group, pull.topic, pull.queue_id)
            if not is_of_lost_tail(self._log, known, pull.topic, pull.queue_id, committed):
                self._offsets.commit(pull.group, pull.topic, pull.queue_id, committed, command.principal)
        reset = self._offsets.reset_for(pull.group, pull.topic, pull.queue_id, pull.offset)
        if reset is not None:
            channel.send(self._reset_reply(command, pull, reset))
            return
        result = self._read(pull, pull.offset, from_memory=True)
        if result.status is ResponseCode.PULL_OFFSET_MOVED and pull.offset > result.max_offset:
            result = self._moved_back(pull, result)
        if result.cold_range is not None:
            wait_ms = max(pull.suspend_ms, COLD_WAIT_MS)
            self._hold_or_answer(channel, command, pull, wait_ms, pull.offset, result.cold_range)
        elif pull.suspend_ms and _may_wait(result):
            self._hold_or_answer(channel, command, pull, pull.suspend_ms, QueueOffset(result.next_begin_offset))
        else:
            self._answer(channel, command, pull, result, True)

    def _moved_back(self, pull: _Pull, result: PullResult) -> PullResult:
        """Send a consumer that has read a lost tail back to its group's offset: new messages may have the offsets that
        it has read."""
        if not is_beyond(self._log, pull.topic, pull.queue_id, pull.offset):
            return result
        known = self._offsets.query(pull.group, pull.topic, pull.queue_id)
        if known is None or not result.min_offset <= known < result.max_offset:
            return result
        return result._replace(next_begin_offset=QueueOffset(known))

    def _process_as_slave(self, channel: Channel, command: Command, pull: _Pull) -> None:
        """Answer a pull on a slave with messages up to its confirm offset. It resets nobody: since it may be behind, a
        consumer beyond its end, or before its start, keeps its offset and asks the master."""
        if self._config.slave_reads:
            result = self._read(pull, pull.offset, from_memory=True)
            if result.cold_range is not None:
                self._hold_or_answer(channel, command, pull, COLD_WAIT_MS, pull.offset, result.cold_range)
                return
            if _gives(pull, result):
                self._answer(channel, command, pull, result, False)
                return
        self._hold_or_answer(channel, command, pull, min(pull.suspend_ms, SLAVE_ANSWER_DELAY_MS), pull.offset)

    def _parse(self, command: Command, peer: str, master: bool) -> _Pull:
        group_name, topic_name = text(command, "consumerGroup"), text(command, "topic")
        queue_id = number(command, "queueId")
        if not self._config.grants_reads:
            raise self._not_granted()
        group = self._group(group_name, master, command.principal)
        if not group.get("consumeEnable", True):
            raise _forbidden(ForbiddenType.GROUP, f"subscription group no permission, {group_name}")
        topic = self._topics.get(topic_name)
        if topic is None:
            raise no_topic(topic_name)
        if not topic.readable:
            raise _forbidden(ForbiddenType.TOPIC, f"the topic[{topic_name}] pulling message is forbidden")
        if not 0 <= queue_id < topic.read_queue_count:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{queue_id}] is illegal, topic:[{topic_name}] topicConfig.readQueueNums:"
                f"[{topic.read_queue_count}] consumer:[/{peer}]",
            )
        flags = number(command, "sysFlag", 0)
        max_bytes = number(command, "maxMsgBytes", DEFAULT_PULL_BYTES)
        return _Pull(
            group_name,
            topic_name,
            queue_id,
            QueueOffset(number(command, "queueOffset")),
            max(1, min(number(command, "maxMsgNums", 32), self._max_count)),
            max(1, min(max_bytes, self._max_bytes)),
            self._filter(command, flags, group_name, topic_name, bool(group.get("consumeBroadcastEnable", True))),
            self._suspend_ms(command, flags),
            topic.sys_flag,
            int(group.get("groupSysFlag", 0)),
        )

    def _not_granted(self) -> RequestError:
        remark = f"the broker[{self._config.own_ip}] pulling message is forbidden"
        return _forbidden(ForbiddenType.BROKER, remark)

    def _group(self, name: str, master: bool, principal: Principal) -> Mapping[str, Any]:
        """Settings of a group, which only a master creates; a slave uses the defaults for an unknown one."""
        group = self._groups.get_or_create(name, principal) if master else self._groups.get(name) or default_group(name)
        if group is None:
            raise no_group(name)
        return group

    def _suspend_ms(self, command: Command, flags: int) -> int:
        """Time (ms) for which the pull may be held; 0: it must be answered at once."""
        if not flags & FLAG_SUSPEND:
            return 0
        return max(0, min(number(command, "suspendTimeoutMillis", 0), self._config.long_polling_max_ms))

    def _filter(self, command: Command, flags: int, group_name: str, topic: str, broadcast_allowed: bool) -> _Filter:
        """Filter of the request's own subscription, or of the group's heartbeats."""
        if flags & FLAG_SUBSCRIPTION:
            expression, expression_type = command.ext.get("subscription", "*"), command.ext.get("expressionType") or TAG
            try:
                if expression_type == TAG:
                    tags_codes = parse_tags(expression)
                    return _Filter(tags_codes, chars=0 if tags_codes is None else len(expression))
                require_property_filter(self._config, expression_type)
                return _Filter(None, RecordFilter(compile_selector(expression_type, expression)), len(expression))
            except ValueError:
                raise RequestError(
                    ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed"
                ) from None
        group: ConsumerGroupInfo | None = self._clients.consumer_group(group_name)
        subscription = group.subscriptions.get(topic) if group is not None else None
        if group is None or subscription is None:
            raise RequestError(ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's group info not exist")
        if group.message_model == "BROADCASTING" and not broadcast_allowed:
            raise _forbidden(
                ForbiddenType.BROADCASTING, f"the consumer group[{group_name}] can not consume by broadcast way"
            )
        if self._groups.is_forbidden(group_name, topic):
            raise _forbidden(
                ForbiddenType.SUBSCRIPTION, f"the consumer group[{group_name}] is forbidden for topic[{topic}]"
            )
        if subscription.version < number(command, "subVersion", 0):
            # A Java client whose queues have changed may report that with its next heartbeat only, up to 30 s later. It
            # compares tags itself too, so an unfiltered answer contains whatever a newer subscription wants.
            if subscription.expression_type == TAG == command.ext.get("expressionType"):
                return _Filter()
            raise RequestError(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
        chars = len(subscription.expression)
        if subscription.expression_type == TAG:
            return _Filter(subscription.tags_codes, chars=0 if subscription.tags_codes is None else chars)
        require_property_filter(self._config, subscription.expression_type)
        selector = subscription.selector
        if selector is None:
            raise RequestError(
                ResponseCode.FILTER_DATA_NOT_EXIST,
                "The broker's consumer filter data is not exist!Your expression may be wrong!",
            )
        return _Filter(None, RecordFilter(selector), chars)

    # --- reading ----------------------------------------------------------------------------------------------------
    def _read(self, pull: _Pull, offset: QueueOffset, *, from_memory: bool = False) -> PullResult:
        """Read once. A damaged record must not end the broker: the pull waits for its repair, or gets an error.
        `from_memory`: messages that must be read into memory are requested, and waited for."""
        if pull.filter.matches is not None:
            pull.filter.matches.begin()
        try:
            bounds, wanted = (pull.max_count, pull.max_bytes), (pull.filter.tags_codes, pull.filter.matches)
            given = pull.topic, pull.queue_id, offset, *bounds, *wanted, self._on_disk(*bounds)
            result = self._log.pull(*given, joined=True, from_memory=from_memory)
            if result.cold_range is not None:
                self._cold_reads.want((pull.topic, pull.queue_id, result.cold_range))
            return result
        except DamagedError as error:
            status, awaited = ResponseCode.SYSTEM_ERROR, self._log.damage.is_awaited(error.phy_offset)
            remark = f"{error}{'; a replica is asked for it: pull again' if awaited else ''}"
            return PullResult(status, offset, QueueOffset(0), QueueOffset(0), [], remark, awaited)

    def _on_disk(self, max_count: int, max_bytes: int) -> DiskLimits:
        """Bounds for messages that are too old to be in memory."""
        if not self._memory_bytes:
            return NO_DISK_LIMITS
        return DiskLimits(
            self._log.max_phy_offset - self._in_memory_bytes,
            min(max_count, self._config.max_transfer_count_on_message_in_disk),
            min(max_bytes, self._config.max_transfer_bytes_on_message_in_disk),
        )

    @property
    def _in_memory_bytes(self) -> int:
        """Bytes at the log's end that count as being in memory, by RocketMQ's estimate."""
        return self._memory_bytes * self._config.access_message_in_memory_max_ratio // 100

    def _answer(self, channel: Channel, command: Command, pull: _Pull, result: PullResult, master: bool) -> None:
        """Answer a pull that is being handled."""
        if result.status is ResponseCode.SUCCESS and not result.remark:
            self._count(pull, result, master)
            frame = _FOUND.encode(command, self._numbers(pull, result), result.records)
            channel.send_frames(frame, 1)
        else:
            channel.send(self._reply(command, pull, result, master))

    def _reply(self, command: Command, pull: _Pull, result: PullResult, master: bool) -> Command:
        status = result.status
        if not master and status is not ResponseCode.SUCCESS:
            status = ResponseCode.PULL_RETRY_IMMEDIATELY
        self._count(pull, result, master)
        ext = dict(zip(_FIELDS, map(str, self._numbers(pull, result)), strict=True))
        remark = result.remark or (FOUND if status is ResponseCode.SUCCESS else status.name)
        return command.reply(status, ext, b"".join(result.records), remark)

    def _count(self, pull: _Pull, result: PullResult, master: bool) -> None:
        """Count an answer, and remember where the group is."""
        if result.status is ResponseCode.SUCCESS:
            count, size_bytes = result.record_count, sum(map(len, result.records))
            self.get_count += count
            self._statistics.given(pull.group, pull.topic, count, size_bytes)
            if self.traffic is not None:
                self.traffic.note_pulled(pull.group, pull.topic, count, size_bytes)
        else:
            self.miss_count += 1
        if master:
            place = (pull.group, pull.topic, pull.queue_id)
            if place in self._pulled_to or len(self._pulled_to) < MAX_ENTRY_COUNT:
                self._pulled_to[place] = int(result.next_begin_offset)

    def _numbers(self, pull: _Pull, result: PullResult) -> tuple[int, ...]:
        """Values of _FIELDS."""
        return (
            *(result.next_begin_offset, result.min_offset, result.max_offset, self._reader_for(pull, result)),
            *(pull.topic_sys_flag, pull.group_sys_flag),
        )

    def _reader_for(self, pull: _Pull, result: PullResult) -> int:
        """Id of the replica to ask next: the master (0), or another replica while the messages read here are too old to
        be in memory."""
        if not self._memory_bytes or not result.records or not self._config.slave_reads:
            return MASTER_ID
        last = result.records[-1]
        (read_from,) = _PHY_OFFSET.unpack_from(last, _PHY_OFFSET_AT)
        if self._log.max_phy_offset - read_from <= self._in_memory_bytes:
            return MASTER_ID
        read_to = read_from + len(last)
        able = [broker_id for broker_id, end_offset in self._readers().items() if end_offset >= read_to]
        wanted = int((self._groups.get(pull.group) or {}).get("whichBrokerWhenConsumeSlowly", MASTER_ID))
        return wanted if wanted in able else min(able, default=MASTER_ID)

    def pulled_to(self, group: str, topic: str, queue_id: int) -> int:
        """Next offset after the group's last pull here; 0 without one."""
        return self._pulled_to.get((group, topic, queue_id), 0)

    def _reset_reply(self, command: Command, pull: _Pull, offset: int) -> Command:
        """Answer after a reset of the group: the consumer must go on at `offset`."""
        low, high = self._log.queue_range(pull.topic, pull.queue_id)
        found = PullResult(ResponseCode.PULL_OFFSET_MOVED, QueueOffset(offset), low, high, [])
        reply = self._reply(command, pull, found, True)
        reply.remark = "OFFSET_RESET"
        return reply

    def _empty(self, pull: _Pull, next_offset: QueueOffset, master: bool) -> PullResult:
        """Answer to a hold after its time-out."""
        low, high = self._log.queue_range(pull.topic, pull.queue_id) if master else (QueueOffset(0), QueueOffset(0))
        waited = ResponseCode.PULL_NOT_FOUND if next_offset == pull.offset else ResponseCode.PULL_RETRY_IMMEDIATELY
        return PullResult(waited, next_offset, low, high, [])

    def _still_cold(self, hold: _Hold) -> PullResult:
        """Answer to a hold after its time-out while its messages are being read: there are some."""
        low, high = self._log.queue_range(hold.pull.topic, hold.pull.queue_id)
        return PullResult(ResponseCode.PULL_RETRY_IMMEDIATELY, hold.scanned_to, low, high, [])

    # --- holds ------------------------------------------------------------------------------------------------------
    def _hold_or_answer(
        self,
        channel: Channel,
        command: Command,
        pull: _Pull,
        wait_ms: int,
        scanned_to: QueueOffset,
        cold_range: ColdRange | None = None,
    ) -> None:
        key = pull.topic, pull.queue_id
        own_count = self._held.get(channel, {}).get(key, 0)
        may_wait = wait_ms > 0 and not self._refusing and own_count < MAX_HOLD_COUNT_OF_ONE
        if not may_wait or not take_all(self._uses(command.principal, pull)):
            master = self._is_master()
            result = self._read(pull, pull.offset) if cold_range else self._empty(pull, scanned_to, master)
            channel.send(self._reply(command, pull, result, master))
            return
        hold = _Hold(channel, command.stub(*KEPT_FIELDS), pull, scanned_to, self._clock.now_ms() + wait_ms)
        hold.cold_range = cold_range
        self._holds.setdefault(key, []).append(hold)
        self._held.setdefault(channel, {})[key] = own_count + 1
        self._due.setdefault(hold.deadline_ms // TICK_MS, {})[key] = None

    def _uses(self, principal: Principal, pull: _Pull) -> list[Use]:
        """Uses that a hold makes: of a place, and of memory for its filter."""
        return [(self._places, principal, 1), (self._held_filters, principal, pull.filter.chars)]

    def dispatched(self, grown: Iterable[tuple[str, int]]) -> None:
        """Answer the holds of queues that have grown if they have messages now."""
        if not self._is_master():
            return
        for key in grown:
            if key in self._holds:
                _, high = self._log.queue_range(*key)
                self._sweep(key, partial(self._try, high, _Budget()))

    def _try(self, high: QueueOffset, budget: _Budget, hold: _Hold) -> bool:
        """Answer a hold if there is something for it; `high` is its queue's end. Beyond the budget, holds with a filter
        are told to pull again, each then in a turn of its own connection."""
        if hold.cold_range is not None or hold.scanned_to >= high:
            return False
        if (refusal := self._refusal(hold)) is not None:
            hold.channel.send(refusal)
            return True
        wanted = hold.pull.filter
        if budget.left <= 0 and not wanted.takes_all:
            low, _ = self._log.queue_range(hold.pull.topic, hold.pull.queue_id)
            result = PullResult(ResponseCode.PULL_RETRY_IMMEDIATELY, hold.scanned_to, low, high, [])
            hold.channel.send(self._reply(hold.command, hold.pull, result, True))
            return True
        result = self._read(hold.pull, hold.scanned_to, from_memory=hold.from_memory)
        hold.cold_range = result.cold_range
        if hold.cold_range is not None:
            return False
        if wanted.matches is not None:
            budget.left -= wanted.matches.used
        elif wanted.tags_codes is not None:
            budget.left -= result.next_begin_offset - hold.scanned_to
        if _may_wait(result):
            hold.scanned_to = QueueOffset(result.next_begin_offset)
            return False
        hold.channel.send_at_once(self._reply(hold.command, hold.pull, result, True))
        return True

    def loaded(self, part: ColdPart) -> None:
        """Answer the pulls that waited for this part, which is in memory now."""
        topic, queue_id, cold_range = part
        if (topic, queue_id) in self._holds:
            _, high = self._log.queue_range(topic, queue_id)
            self._sweep((topic, queue_id), partial(self._try_loaded, cold_range, high, _Budget()))

    def _try_loaded(self, cold_range: ColdRange, high: QueueOffset, budget: _Budget, hold: _Hold) -> bool:
        if hold.cold_range != cold_range:
            return False
        hold.load_count += 1
        return self._try_again(high, budget, hold)

    def _try_again(self, high: QueueOffset, budget: _Budget, hold: _Hold) -> bool:
        """Answer a hold that waited for the disk, unless there is more to wait for."""
        hold.cold_range = None
        if self._is_master():
            return self._try(high, budget, hold)
        if (answer := self._refusal(hold)) is None:
            result = self._read(hold.pull, hold.scanned_to, from_memory=hold.from_memory)
            hold.cold_range = result.cold_range
            if hold.cold_range is not None:
                return False
            if not _gives(hold.pull, result):
                result = self._empty(hold.pull, hold.scanned_to, False)
            answer = self._reply(hold.command, hold.pull, result, False)
        hold.channel.send_at_once(answer)
        return True

    def unreadable(self, part: ColdPart, reason: str) -> None:
        """Answer the pulls that waited for this part with the disk's error. A slave sends them to the master."""
        topic, queue_id, cold_range = part
        if (topic, queue_id) in self._holds:
            _, high = self._log.queue_range(topic, queue_id)
            self._sweep((topic, queue_id), partial(self._tell_unreadable, cold_range, reason, high))

    def _tell_unreadable(self, cold_range: ColdRange, reason: str, high: QueueOffset, hold: _Hold) -> bool:
        if hold.cold_range != cold_range:
            return False
        if was_refused(hold.channel, hold.command):
            return True
        if hold.pull.max_count > 1 and hold.pull.filter.takes_all:
            # the bad sector may contain records between its messages
            hold.pull = hold.pull._replace(max_count=1)
            return self._try_again(high, _Budget(), hold)
        result = self._still_cold(hold)._replace(status=ResponseCode.SYSTEM_ERROR, remark=reason)
        hold.channel.send(self._reply(hold.command, hold.pull, result, self._is_master()))
        return True

    def _refusal(self, hold: _Hold) -> Command | None:
        """Refusal of a hold whose pull would be refused now."""
        if reason := refusal_now(hold.command):
            refused = denied(hold.command, reason)
            return hold.command.reply(refused.code, {}, remark=reason)
        if not self._config.grants_reads:
            refusal = self._not_granted()
            return hold.command.reply(refusal.code, refusal.ext, remark=str(refusal))
        return None

    def repaired(self) -> None:
        """Answer holds that waited for a damaged record, which was repaired or is lost."""
        self.dispatched(list(self._holds))

    def offsets_reset(self, group: str, topic: str) -> None:
        """Tell waiting members of the group their new offsets in the topic at once."""
        for key in [key for key in self._holds if key[0] == topic]:
            self._sweep(key, lambda hold: hold.pull.group == group and self._tell_reset(hold))

    def _tell_reset(self, hold: _Hold) -> bool:
        pull = hold.pull
        offset = self._offsets.reset_for(pull.group, pull.topic, pull.queue_id, pull.offset)
        if offset is None:
            return False
        if was_refused(hold.channel, hold.command):
            return True
        hold.channel.send(self._reset_reply(hold.command, pull, offset))
        return True

    def timeout(self) -> None:
        """Answer the holds whose time is over."""
        now_ms, master = self._clock.now_ms(), self._is_master()
        tick = now_ms // TICK_MS
        for due in sorted(item for item in self._due if item <= tick):
            for key in [key for key in self._due.pop(due) if key in self._holds]:
                self._sweep(key, lambda hold: hold.deadline_ms <= now_ms and self._give_up(hold, master))
                if due == tick and key in self._holds:  # some of them may be due later in it
                    self._due.setdefault(tick, {})[key] = None

    def deadline_ms(self) -> int | None:
        return min((hold.deadline_ms for holds in self._holds.values() for hold in holds), default=None)

    def role_changed(self) -> None:
        """Answer all holds, since they waited for queues of the old role."""
        master = self._is_master()
        for key in list(self._holds):
            self._sweep(key, lambda hold: self._give_up(hold, master))

    def refuse(self) -> None:
        """Hold no more pulls before the broker stops."""
        self._refusing = True
        self.role_changed()

    def closed(self, channel: Channel) -> None:
        for key in list(self._held.get(channel, ())):
            self._sweep(key, lambda hold: hold.channel is channel)

    def _give_up(self, hold: _Hold, master: bool) -> bool:
        if was_refused(hold.channel, hold.command):
            return True
        result = self._still_cold(hold) if hold.cold_range else self._empty(hold.pull, hold.scanned_to, master)
        hold.channel.send(self._reply(hold.command, hold.pull, result, master))
        return True

    def _sweep(self, key: _Queue, is_done: Callable[[_Hold], bool]) -> None:
        """Remove the holds of a queue for which `is_done` returns True."""
        kept: list[_Hold] = []
        for hold in self._holds[key]:
            if _is_done(hold, is_done):
                self._forget(key, hold)
            else:
                kept.append(hold)
        if kept:
            self._holds[key] = kept
        else:
            del self._holds[key]

    def _forget(self, key: _Queue, hold: _Hold) -> None:
        channel = hold.channel
        give_back_all(self._uses(hold.command.principal, hold.pull))
        held = self._held[channel]
        held[key] -= 1
        if not held[key]:
            del held[key]
            if not held:
                del self._held[channel]


def _forbidden(kind: ForbiddenType, remark: str) -> RequestError:
    return RequestError(ResponseCode.NO_PERMISSION, remark, {"forbiddenType": str(kind.value)})


def _is_done(hold: _Hold, is_done: Callable[[_Hold], bool]) -> bool:
    """Result of `is_done`; after an unexpected exception the hold and its session are closed."""
    try:
        return is_done(hold)
    except Exception as error:  # noqa: BLE001  (told and counted, or raised again)
        hold.channel.fail(error, [hold.command])
        return True


def _gives(pull: _Pull, result: PullResult) -> bool:
    """True for an answer that advances a consumer of a slave: messages, or the end of the filtered entries."""
    is_filtered = result.status is ResponseCode.PULL_RETRY_IMMEDIATELY and result.next_begin_offset > pull.offset
    return result.status is ResponseCode.SUCCESS or is_filtered


def _may_wait(result: PullResult) -> bool:
    """True at the queue's end, if the filter wants nothing up to it, or if the next record is being repaired."""
    if result.is_repaired_soon:
        return True
    if result.status is ResponseCode.PULL_RETRY_IMMEDIATELY:
        return result.next_begin_offset >= result.max_offset
    return result.status is ResponseCode.PULL_NOT_FOUND
