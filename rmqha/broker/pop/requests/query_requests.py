"""Requests 200052, 200054 and 200055: available messages and waiting pops of a group. Data plane, no trio.

Codes and remarks are those of the neighbours of RocketMQ's PopMessageProcessor.
"""

from __future__ import annotations

from rmqha.broker.cold_reads import COLD_WAIT_MS
from rmqha.broker.pop.checkpoint import MAX_COUNT
from rmqha.broker.pop.order_table import OrderTable
from rmqha.broker.pop.positions import PopPositions, PopQueue
from rmqha.broker.pop.requests.finder import FoundMessages, PopFinder, PopLog, is_for
from rmqha.broker.pop.requests.polls import KEPT_FIELDS, KINDS, PollKey, Polls, wait_ms
from rmqha.broker.pop.requests.pop_request import PopRequest, PopRequestReader, attempt_id
from rmqha.broker.requests.record_access import was_refused
from rmqha.broker.requests.request import (
    AdmittingState,
    Channel,
    Handler,
    RequestError,
    number,
    require_admission,
    truth,
)
from rmqha.broker.tables.topics import TopicTable
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.port import Clock
from rmqha.wire.command import Command
from rmqha.wire.state.receipt import retry_topic


class PopQueryRequests:
    """Processor of the requests that ask for available messages of pops, and give none out but to peek."""

    def __init__(
        self,
        log: PopLog,
        state: AdmittingState,
        topics: TopicTable,
        positions: PopPositions,
        orders: OrderTable,
        clock: Clock,
        reader: PopRequestReader,
        finder: PopFinder,
        polls: Polls,
    ) -> None:
        self._log = log
        self._state = state
        self._topics = topics
        self._positions = positions
        self._orders = orders
        self._clock = clock
        self._reader = reader
        self._finder = finder
        self._polls = polls

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.POLLING_INFO: self._polling_info}

    # --- 200054 -------------------------------------------------------------------------------------------------------
    def notify(self, channel: Channel, command: Command) -> None:
        """Answer, now or later, that there are messages. Raises RequestError."""
        if not self._state.is_serving:
            require_admission(self._state)
        self._reader.require_reads("peeking")
        topic, group = self._reader.topic(command, channel.peer), self._reader.group(command)
        queue_id, is_ordered = number(command, "queueId"), truth(command, "order")
        attempt, kept = attempt_id(command), command.stub(*KEPT_FIELDS)
        key = PollKey(topic.name, group, queue_id, RequestCode.NOTIFICATION)

        def answer(wants_something: bool) -> bool:
            if wants_something and was_refused(channel, kept):
                return True
            now = self._topics.get(topic.name) or topic  # it may have got queues while the question waited
            has_message = self._has_message(key, now.read_queue_count, is_ordered, attempt)
            if wants_something and not has_message:
                return False
            channel.send(_notice(kept, has_message=has_message, is_full=False))
            return True

        if answer(True):
            return
        time_ms = wait_ms(command, self._clock.wall_ms())
        if not self._polls.hold(channel, kept, key, time_ms, answer, attempt):
            channel.send(_notice(kept, has_message=False, is_full=time_ms > 0))

    def _has_message(self, key: PollKey, queue_count: int, is_ordered: bool, attempt_id: str | None) -> bool:
        if self._finder.is_recovering():
            return False
        now_ms = self._clock.wall_ms()
        for queue_id in range(queue_count) if key.queue_id < 0 else (key.queue_id,):
            place = PopQueue(key.topic, key.group, queue_id)
            if is_ordered and (info := self._orders.get(place)) and info.blocks(attempt_id, now_ms):
                self._finder.blocked_until[place] = info.free_ms()
            elif self._finder.rest_of(key.topic, key.group, (queue_id,)):
                return True
        for kind in KINDS:
            name = retry_topic(key.topic, key.group, kind)
            topic = self._topics.get(name)
            if topic is not None and self._finder.rest_of(name, key.group, range(topic.read_queue_count)):
                return True
        return False

    # --- 200052, 200055 -----------------------------------------------------------------------------------------------
    def peek(self, channel: Channel, command: Command) -> None:
        """Answer with the messages that a pop would take, without taking them; later if they are not in memory. Raises
        RequestError."""
        self._reader.require_reads("peeking")
        topic, group = self._reader.topic(command, channel.peer), self._reader.group(command)
        max_count, queue_id = number(command, "maxMsgNums"), number(command, "queueId")
        if not 0 < max_count <= MAX_COUNT:
            raise RequestError(ResponseCode.INVALID_PARAMETER, f"maxMsgNums must be from 1 to {MAX_COUNT}")
        everything = PopRequest(
            topic.name, group, queue_id, max_count, 0, True, False, None, None, None, topic.read_queue_count
        )
        kept = command.stub(*KEPT_FIELDS)
        seen = self._seen(everything)

        def answer(wants_something: bool) -> bool:
            nonlocal seen
            if wants_something:
                if was_refused(channel, kept):
                    return True
                seen = self._seen(everything)
                if seen.is_cold:
                    return False
            channel.send(_shown(kept, seen))
            return True

        key = PollKey(topic.name, group, queue_id, RequestCode.PEEK_MESSAGE)
        if not seen.is_cold or not self._polls.hold(channel, kept, key, COLD_WAIT_MS, answer, None):
            answer(False)

    def _seen(self, everything: PopRequest) -> FoundMessages:
        """The messages that are in memory."""
        group, finder = everything.group, self._finder
        finder.next_turn()
        found = finder.nothing(everything)
        for place in [PopQueue(name, group, item) for name, ids in finder.runs(everything) for item in ids]:
            found.rest_count += finder.rest_of(place.topic, group, (place.queue_id,))
            left_count = everything.max_count - len(found.records)
            if left_count <= 0:
                continue
            low = self._log.queue_range(place.topic, place.queue_id)[0]
            offset = max(low, self._positions.next_offset(place) or 0)
            result = finder.pull(everything, place, offset, left_count, found, moves=False)
            is_own = place.topic == everything.topic
            records = () if result is None else result.records
            found.records += [bytes(record) for record in records if is_own or is_for(group, record)]
            found.size_bytes = sum(map(len, found.records))
        return found

    def _polling_info(self, channel: Channel, command: Command) -> Command:
        self._reader.require_reads("peeking")
        topic, group = self._reader.topic(command, channel.peer), self._reader.group(command)
        key = PollKey(topic.name, group, number(command, "queueId"), RequestCode.POP_MESSAGE)
        return command.reply(ResponseCode.SUCCESS, {"pollingNum": str(self._polls.size_of(key))})


def _notice(command: Command, *, has_message: bool, is_full: bool) -> Command:
    ext = {"hasMsg": str(has_message).lower(), "pollingFull": str(is_full).lower()}
    return command.reply(ResponseCode.SUCCESS, ext)


def _shown(command: Command, found: FoundMessages) -> Command:
    ext = {"popTime": "0", "invisibleTime": "0", "reviveQid": "0", "restNum": str(found.rest_count)}
    if found.records:
        return command.reply(ResponseCode.SUCCESS, ext, b"".join(found.records), "FOUND")
    if found.trouble:
        return command.reply(ResponseCode.SYSTEM_ERROR, {}, remark=found.trouble)
    return command.reply(ResponseCode.PULL_NOT_FOUND, ext, remark="NO_MESSAGE_IN_QUEUE")
