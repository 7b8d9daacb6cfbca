"""Request 200050: pop of messages, which become invisible for a while. Data plane, no trio.

A pop stores a checkpoint for each queue that it takes from, and is answered when the group's ack rule holds it: the
messages come again unless they are acknowledged, under any later master. An ordered pop has no checkpoint: the group's
offset stays at the first message that is not done.
Codes and remarks are those of RocketMQ's PopMessageProcessor.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import islice

from rmqha.broker.cold_reads import COLD_WAIT_MS
from rmqha.broker.pop.checkpoint import CheckPoint
from rmqha.broker.pop.counts import GetCounts, PopCounts
from rmqha.broker.pop.order_info import OrderInfo
from rmqha.broker.pop.order_table import OrderTable
from rmqha.broker.pop.positions import PopPositions, stand_at
from rmqha.broker.pop.requests.finder import FoundMessages, FoundPart, PopFinder, PopLog
from rmqha.broker.pop.requests.polls import (
    KEPT_FIELDS,
    NewRecord,
    PendingPop,
    PollKey,
    Polls,
    new_records,
    wait_ms,
)
from rmqha.broker.pop.requests.pop_request import PopRequest, PopRequestReader
from rmqha.broker.replication.waiter import GatheringAppender
from rmqha.broker.requests.record_access import was_refused
from rmqha.broker.requests.request import Channel, RequestError, require_admission
from rmqha.broker.services.statistics import BrokerStatistics
from rmqha.broker.tables.topics import TopicTable
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.error import UsageError
from rmqha.model.message import REVIVE_QUEUE_COUNT, TIMER_TOPIC
from rmqha.model.offset import PhyOffset
from rmqha.port import Clock
from rmqha.store.log.record import Host, NewMessage
from rmqha.wire.command import Command
from rmqha.wire.frame import success_frame
from rmqha.wire.state.receipt import (
    NORMAL,
    kind_of,
    message_count_info,
    message_offset_info,
    queue_count_info,
    retry_topic,
    start_offset_info,
)

TOO_LATE_MS = 500
MAX_NEW_COUNT = 64
"""Uncommitted records of one turn that waiting pops read: two of them may take all."""


class PopProcessor:
    def __init__(
        self,
        config: BrokerConfig,
        log: PopLog,
        appends: GatheringAppender,
        topics: TopicTable,
        positions: PopPositions,
        orders: OrderTable,
        clock: Clock,
        store_host: Host,
        revive_topic: str,
        statistics: BrokerStatistics,
        gets: GetCounts,
        counts: PopCounts,
        reader: PopRequestReader,
        finder: PopFinder,
        polls: Polls,
    ) -> None:
        self._log = log
        self._appends = appends
        self._topics = topics
        self._positions = positions
        self._orders = orders
        self._clock = clock
        self._store_host = store_host
        self._revive_topic = revive_topic
        self._statistics = statistics
        self._gets = gets
        self._counts = counts
        self._reader = reader
        self._finder = finder
        self.polls = polls
        self.configure(config)

    def configure(self, config: BrokerConfig) -> None:
        self._config = config

    # --- events -----------------------------------------------------------------------------------------------------
    def dispatched(self, grown: Iterable[tuple[str, int]]) -> None:
        """Wake polls of queues that have grown."""
        if self.polls.count and self._appends.is_serving:
            self.polls.grown(grown)

    def appended(self, topics: Iterable[str], start_offset: PhyOffset) -> None:
        """Give uncommitted records of these topics to waiting pops, so that message and checkpoint are replicated in
        one round trip. Other polls are woken by `dispatched`."""
        keys = self.polls.takers(topics)
        if not keys or self._finder.is_recovering() or self._appends.admission()[0] is not ResponseCode.SUCCESS:
            return
        wanted = {key.topic for key in keys}
        records = new_records(islice(self._log.undispatched(start_offset), MAX_NEW_COUNT), wanted)
        for key in keys:
            self.polls.take(key, records)

    def timeout(self) -> None:
        """Answer polls whose time is over, and wake those of ordered queues that give messages again."""
        self.polls.timeout()
        blocked_until = self._finder.blocked_until
        if blocked_until:
            now_ms = self._clock.wall_ms()
            for place in [place for place, free_ms in blocked_until.items() if free_ms <= now_ms]:
                del blocked_until[place]
                self.polls.wake_group(place.topic, place.group)

    def role_changed(self) -> None:
        self._positions.clear()
        self._finder.blocked_until.clear()
        self.polls.end_all()

    def refuse(self) -> None:
        """Answer all polls before the broker stops."""
        self.polls.is_refusing = True
        self.polls.end_all()

    # --- 200050 -------------------------------------------------------------------------------------------------------
    def process(self, channel: Channel, command: Command) -> None:
        """Answer now or later. Raises RequestError."""
        require_admission(self._appends)
        time_ms = wait_ms(command, self._clock.wall_ms())
        if time_ms < -TOO_LATE_MS:
            raise RequestError(
                ResponseCode.POLLING_TIMEOUT, f"the broker[{self._config.own_ip}] pop message is timeout too much"
            )
        pop = self._reader.parse(command, channel.peer)
        if not pop.is_ordered and kind_of(pop.topic) == NORMAL:
            self._require_retry_room(pop, command)
        found = self._finder.find(pop, command.principal)
        if found.parts:
            self._give(channel, command, pop, found)
            return
        key, kept = PollKey(pop.topic, pop.group, pop.queue_id, RequestCode.POP_MESSAGE), command.stub(*KEPT_FIELDS)
        trouble = found.trouble

        def answer(wants_something: bool) -> bool:
            nonlocal trouble
            if not wants_something:
                channel.send(self._refusal(kept, pop, self._finder.nothing(pop, trouble), ResponseCode.POLLING_TIMEOUT))
                return True
            found = self._answer_poll(channel, kept, pop)
            if found is not None:
                trouble = found.trouble
            return found is None or bool(found.parts)

        def take(records: Sequence[NewRecord]) -> bool:
            return self._take_new(channel, kept, pop, records)

        taker = None if pop.is_ordered or pop.matches or pop.priority_factor else take
        held_ms = max(time_ms, COLD_WAIT_MS) if found.is_cold else time_ms
        if not self.polls.hold(channel, kept, key, held_ms, answer, pop.attempt_id, pop.filter_chars, taker):
            code = ResponseCode.POLLING_FULL if held_ms > 0 else ResponseCode.POLLING_TIMEOUT
            channel.send(self._refusal(command, pop, found, code))

    def _require_retry_room(self, pop: PopRequest, command: Command) -> None:
        """Raises RequestError if what is not acknowledged could not come again, for want of room for its topic."""
        name = retry_topic(pop.topic, pop.group)
        if fault := self._topics.retry_refusal(name, command.principal):
            raise RequestError(ResponseCode.SYSTEM_BUSY, f"topic[{name}] not exist: {fault}")

    def _answer_poll(self, channel: Channel, command: Command, pop: PopRequest) -> FoundMessages | None:
        """Give a pop that waits what there is now; None if it was refused."""
        if was_refused(channel, command):
            return None
        now = self._of_now(pop)
        if now is None or self._appends.admission()[0] is not ResponseCode.SUCCESS:
            return self._finder.nothing(pop)
        found = self._finder.find(now, command.principal)
        if found.parts:
            self._give(channel, command, pop, found)
        return found

    def _of_now(self, pop: PopRequest) -> PopRequest | None:
        """The pop with the present queues of its topic, which may have changed during the wait. None: the topic was
        deleted."""
        topic = self._topics.get(pop.topic)
        return None if topic is None else pop._replace(queue_count=topic.read_queue_count)

    def _take_new(self, channel: Channel, command: Command, pop: PopRequest, records: Sequence[NewRecord]) -> bool:
        if was_refused(channel, command):
            return True
        now = self._of_now(pop)
        found = self._finder.nothing(pop) if now is None else self._finder.find_new(now, records)
        if not found.parts:
            return False
        self._give(channel, command, pop, found)
        return True

    # --- give ---------------------------------------------------------------------------------------------------------
    def _give(self, channel: Channel, command: Command, pop: PopRequest, found: FoundMessages) -> None:
        """Store the checkpoints, and answer when they count. Raises RequestError."""
        if pop.is_ordered:
            for part in found.parts:
                self._give_in_order(pop, part, found)
            channel.send_frames(self._frame(command, pop, found), 1)
            return
        (timer_end,) = self._log.queue_ends(TIMER_TOPIC, (0,))
        self._topics.create_internal(self._revive_topic, REVIVE_QUEUE_COUNT)
        try:
            checkpoints = [self._checkpoint(pop, part, found) for part in found.parts]
            self._appends.check(checkpoints)
        except (UsageError, ValueError) as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"the checkpoint cannot be stored: {error}") from None
        takes = []
        for part in found.parts:
            takes.append(self._positions.take(part.place, found.pop_ms, part.next_offset, timer_end))
            self._counts.given(part.place.topic, pop.group, len(part.queue_offsets))
        pending = PendingPop(channel, command, self._frame(command, pop, found))
        self._appends.store_waiting(checkpoints, partial(stand_at, takes), pending)

    def _checkpoint(self, pop: PopRequest, part: FoundPart, found: FoundMessages) -> NewMessage:
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

    def _give_in_order(self, pop: PopRequest, part: FoundPart, found: FoundMessages) -> None:
        place, offsets = part.place, part.queue_offsets
        before = self._orders.get(place)
        info = OrderInfo.given(before, pop.attempt_id, found.pop_ms, pop.invisible_ms, offsets, found.pop_ms)
        self._orders.put(place, info)
        self._finder.blocked_until[place] = info.free_ms()
        self._positions.passed(place, part.start_offset)  # nobody wants what lies before
        for offset, count in info.counts.items():
            found.counts.append(message_count_info(place.topic, place.queue_id, offset, count))
        least = min(info.counts.values()) if len(info.counts) == len(offsets) else 0
        found.counts.append(queue_count_info(place.topic, place.queue_id, least))

    def _frame(self, command: Command, pop: PopRequest, found: FoundMessages) -> bytes:
        """Answer with the messages, which are counted."""
        count = len(found.records)
        self._gets.get_count += count
        self._statistics.given(pop.group, pop.topic, count, found.size_bytes)
        if self._gets.traffic is not None:
            self._gets.traffic.note_pulled(pop.group, pop.topic, count, found.size_bytes)
        return success_frame(command, _fields(pop, found), found.records, "FOUND")

    def _refusal(self, command: Command, pop: PopRequest, found: FoundMessages, code: ResponseCode) -> Command:
        """Answer without messages."""
        self._gets.miss_count += 1
        if found.trouble and code is ResponseCode.POLLING_TIMEOUT:
            return command.reply(ResponseCode.SYSTEM_ERROR, {}, remark=found.trouble)
        return command.reply(code, _fields(pop, found), remark="NO_MESSAGE_IN_QUEUE")


def _fields(pop: PopRequest, found: FoundMessages) -> dict[str, str]:
    starts, offsets = list[str](), list[str]()
    for (topic, _, queue_id), start_offset, queue_offsets, _ in found.parts:
        starts.append(start_offset_info(topic, queue_id, start_offset))
        offsets.append(message_offset_info(topic, queue_id, queue_offsets))
    ext = {
        "popTime": str(found.pop_ms),
        "invisibleTime": str(pop.invisible_ms),
        "reviveQid": str(found.revive_queue_id),
        "restNum": str(found.rest_count),
        "startOffsetInfo": ";".join(starts),
        "msgOffsetInfo": ";".join(offsets),
    }
    if pop.is_ordered:
        ext["orderCountInfo"] = ";".join(found.counts)
    return ext
