"""Requests 200051, 200151 and 200053: acknowledgement of popped messages, and change of their invisible time.

An acknowledgement is a timer message beside its checkpoint, answered when the group's ack rule holds it: it then counts
under any later master. A change is a new checkpoint and an acknowledgement of the old one, appended together. Codes and
remarks are RocketMQ's. Data plane, no trio.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from rmqha.broker.pop.checkpoint import Ack, CheckPoint, InOrder, Key, bits_to_offsets
from rmqha.broker.pop.counts import PopCounts
from rmqha.broker.pop.order_info import OTHER_POP, STALE
from rmqha.broker.pop.order_table import OrderTable
from rmqha.broker.pop.positions import HeldEntries, PopPositions, PopQueue, stand_at
from rmqha.broker.pop.revive import ReviveService
from rmqha.broker.replication.waiter import Answer, GatheringAppender
from rmqha.broker.requests.request import Channel, RequestError, SendHolder, no_topic, not_admitted, number, text
from rmqha.broker.tables.topics import TopicConfig, TopicTable
from rmqha.ha.action import AckStatus
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.error import UsageError
from rmqha.model.message import REVIVE_QUEUE_COUNT, TIMER_TOPIC
from rmqha.model.offset import QueueOffset
from rmqha.port import Clock
from rmqha.store.log.record import Host, NewMessage
from rmqha.wire import lenient_json
from rmqha.wire.command import Command
from rmqha.wire.frame import success_frame
from rmqha.wire.state.receipt import ORDERED_QUEUE_ID, Receipt, real_topic

MAX_ACKS = 1024
"""Bound on the checkpoints, and on the messages, that one request acknowledges: each costs some bytes of the log."""


class AckLog(Protocol):
    """Port to the queues' ranges; `Store` is one."""

    def queue_range(self, topic: str, queue_id: int) -> tuple[QueueOffset, QueueOffset]: ...


class _Acked(Answer):
    """Acknowledgements of one request, until they count."""

    __slots__ = ("_acks", "_revive")

    def __init__(
        self, channel: Channel, command: Command, frame: bytes, revive: ReviveService, acks: list[_Due]
    ) -> None:
        super().__init__(channel, command, frame)
        self._revive = revive
        self._acks = acks
        for due in acks:
            revive.ack_begins(due.key)

    def held(self) -> bytes:
        self._end(is_held=True)
        return self._frame

    def finish(self, status: AckStatus) -> None:
        if status is not AckStatus.OK:
            self._end(is_held=False)
        super().finish(status)

    def _end(self, *, is_held: bool) -> None:
        for key, ack, revive_queue_id, _ in self._acks:
            self._revive.ack_ends(key, ack, revive_queue_id, is_held=is_held)


class _Due(NamedTuple):
    key: Key
    """Key of the acknowledgement."""
    ack: Ack
    revive_queue_id: int
    due_ms: int


class _BatchItem(NamedTuple):
    """Messages of one checkpoint in a batch acknowledgement."""

    place: PopQueue
    start_offset: int
    revive_queue_id: int
    pop_ms: int
    invisible_ms: int
    bits: bytes

    @property
    def bit_count(self) -> int:
        return int.from_bytes(self.bits, "little").bit_count()

    @classmethod
    def of(cls, item: Any) -> _BatchItem:
        """Parse an item. Raises ValueError, TypeError, KeyError, OverflowError and binascii.Error."""
        if not isinstance(item, Mapping):
            raise TypeError("an acknowledgement is no object")
        group = str(_either(item, "c", "consumerGroup"))
        topic = real_topic(str(_either(item, "t", "topic")), group, str(_either(item, "r", "retry")))
        return cls(
            PopQueue(topic, group, int(_either(item, "q", "queueId"))),
            int(_either(item, "so", "startOffset")),
            int(_either(item, "rq", "reviveQueueId")),
            int(_either(item, "pt", "popTime")),
            int(_either(item, "it", "invisibleTime")),
            base64.b64decode(str(_either(item, "b", "bitSet")), validate=True),
        )


class _Batch(NamedTuple):
    broker_name: str
    items: list[_BatchItem]


def batch_items(data: bytes | memoryview) -> _Batch | None:
    """Items of request 200151's body, with at most MAX_ACKS messages; None if it has none. Raises RequestError and
    RemoteProtocolError if malformed or too large."""
    body = lenient_json.loads(data, is_strict=True) if data else None
    items = body.get("acks") if isinstance(body, dict) else None
    if not isinstance(body, dict) or not isinstance(items, list) or not items:
        return None
    if len(items) > MAX_ACKS:
        raise RequestError(ResponseCode.INVALID_PARAMETER, f"more than {MAX_ACKS} checkpoints at once")
    try:
        named = [_BatchItem.of(item) for item in items]
    except (ValueError, TypeError, KeyError, OverflowError, binascii.Error) as error:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"the batch cannot be read: {error}") from None
    if sum(item.bit_count for item in named) > MAX_ACKS:
        raise RequestError(ResponseCode.INVALID_PARAMETER, f"more than {MAX_ACKS} messages at once")
    return _Batch(str(body.get("brokerName") or ""), named)


class AckProcessor:
    """Processor of acknowledgements. `wake` tells pops that an ordered group may get more of a topic. `is_recovering`:
    this master has not recovered the groups' offsets yet."""

    def __init__(
        self,
        config: BrokerConfig,
        log: AckLog,
        appends: GatheringAppender,
        holder: SendHolder,
        topics: TopicTable,
        positions: PopPositions,
        orders: OrderTable,
        revive: ReviveService,
        clock: Clock,
        store_host: Host,
        wake: Callable[[str, str], None],
        counts: PopCounts,
        is_recovering: Callable[[], bool],
    ) -> None:
        self._log = log
        self._appends = appends
        self._holder = holder
        self._topics = topics
        self._positions = positions
        self._orders = orders
        self._revive = revive
        self._clock = clock
        self._store_host = store_host
        self._wake = wake
        self._counts = counts
        self._is_recovering = is_recovering
        self.acked_count = 0
        self.configure(config)

    def configure(self, config: BrokerConfig) -> None:
        self._config = config

    def process(self, channel: Channel, command: Command) -> None:
        """Answer now or when it counts; during a hand-over the request is held as a send is."""
        if not self._holder.hold(channel, [command]):
            self.admit(channel, command)

    def admit(self, channel: Channel, command: Command) -> None:
        """Process a request that was held."""
        code, remark = self._appends.admission()
        if code is not ResponseCode.SUCCESS:
            reply = not_admitted(command, code, remark)
        else:
            try:
                if command.code == RequestCode.ACK_MESSAGE:
                    self._ack(channel, command)
                elif command.code == RequestCode.BATCH_ACK_MESSAGE:
                    self._ack_batch(channel, command)
                else:
                    self._change(channel, command)
            except RequestError as error:
                reply = command.reply(error.code, {}, remark=str(error))
            else:
                return
        if not command.is_oneway:
            channel.send(reply)

    # --- 200051 -------------------------------------------------------------------------------------------------------
    def _ack(self, channel: Channel, command: Command) -> None:
        """Acknowledge one message. Raises RequestError."""
        place, receipt = self._named(command, channel.peer), self._receipt(command)
        offset = number(command, "offset")
        low, high = self._range(place, offset)
        if not low <= offset <= high:
            key = f"{place.topic}@{place.queue_id}"
            remark = f"offset is illegal, key:{key}, commit:{offset}, store:{low}~{high}"
            raise RequestError(ResponseCode.NO_MESSAGE, remark)
        if receipt.revive_queue_id == ORDERED_QUEUE_ID:
            done: list[InOrder] = []
            self._ack_in_order(place, offset, receipt.pop_ms, channel.peer, done)
            self._store(channel, command, [], done)
            return
        ack = Ack(*place, receipt.start_offset, receipt.pop_ms, receipt.broker_name, (offset,))
        self._store(channel, command, [_Due(ack.key, ack, receipt.revive_queue_id, receipt.due_ms)])

    def _named(self, command: Command, peer: str) -> PopQueue:
        """Queue that a request names. Raises RequestError."""
        name, queue_id = text(command, "topic"), number(command, "queueId")
        topic = self._topics.get(name)
        if topic is None:
            raise no_topic(name)
        if not self._has_queue(topic, queue_id):
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"queueId[{queue_id}] is illegal, topic:[{name}] topicConfig.readQueueNums:"
                f"[{topic.read_queue_count}] consumer:[/{peer}]",
            )
        return PopQueue(name, text(command, "consumerGroup"), queue_id)

    def _has_queue(self, topic: TopicConfig, queue_id: int) -> bool:
        """True of a queue of which pops may have got messages, even if its topic has it no more."""
        return queue_id >= 0 and (
            queue_id < topic.read_queue_count or self._log.queue_range(topic.name, queue_id)[1] > 0
        )

    def _range(self, place: PopQueue, offset: int) -> tuple[int, int]:
        """Range of the queue; if `offset` is beyond it, with the undispatched records that pops have taken."""
        low, high = self._log.queue_range(place.topic, place.queue_id)
        return (low, high) if offset < high else (low, max(high, self._positions.under_way_offset(place)))

    def _receipt(self, command: Command) -> Receipt:
        """Receipt of a request. Raises RequestError if this broker cannot have given it."""
        try:
            receipt = Receipt.decode(text(command, "extraInfo"))
        except ValueError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        self._check(receipt.broker_name, receipt.revive_queue_id, receipt.pop_ms, receipt.invisible_ms)
        return receipt

    def _check(self, broker_name: str, revive_queue_id: int, pop_ms: int, invisible_ms: int) -> None:
        """Raises RequestError if no pop of this broker can have these values."""
        now_ms = self._clock.wall_ms()
        longest_ms = self._config.timer_max_delay_sec * 1000
        is_ordered = revive_queue_id == ORDERED_QUEUE_ID
        fault = ""
        if broker_name != self._config.broker_name:
            fault = f"it is of broker {broker_name[:127]}"
        elif not is_ordered and not 0 <= revive_queue_id < REVIVE_QUEUE_COUNT:
            fault = f"there is no revive queue {revive_queue_id}"
        elif pop_ms < 0 or invisible_ms < 0 or (not is_ordered and pop_ms + invisible_ms > now_ms + longest_ms):
            fault = f"a pop at {pop_ms} for {invisible_ms} ms cannot be"
        if fault:
            raise RequestError(ResponseCode.MESSAGE_ILLEGAL, f"the receipt is none of this broker: {fault}")

    def _ack_in_order(self, place: PopQueue, offset: int, pop_ms: int, peer: str, done: list[InOrder]) -> None:
        """Add the group's new progress to `done`, the results of the request, if it has advanced. Raises
        RequestError."""
        if self._is_recovering():
            raise RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, "this new master is still to read what is done")
        if self._positions.is_void(place, pop_ms):
            return
        of_request = [item.next_offset for item in done if item[:3] == place]
        known = max(self._positions.next_offset(place) or 0, *of_request, 0)
        if offset < known:
            if not of_request and not self._positions.is_settled(place, offset):
                # the word that it is done may still be lost: the answer waits for a second one
                done.append(InOrder(*place, known, pop_ms))
            return
        info = self._orders.get(place)
        if info is None:
            # a new master does not know what was given: the first message that is not done may be
            following = offset + 1 if offset == known else OTHER_POP
        else:
            info.settle(known)
            following = info.done(offset, pop_ms)
        if following == STALE:
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"offset is illegal, key:{place.topic}@{place.group}@{place.queue_id}, old:{known}, commit:{offset}, "
                f"next:{following}, /{peer}",
            )
        if following < 0:
            return
        self.acked_count += 1
        self._orders.changed()
        if following > known:
            done.append(InOrder(*place, following, pop_ms))

    # --- 200151 -------------------------------------------------------------------------------------------------------
    def _ack_batch(self, channel: Channel, command: Command) -> None:
        """Acknowledge the messages of a batch. Raises RequestError."""
        found = batch_items(command.body)
        if found is None:
            _answer(channel, command, command.reply(ResponseCode.NO_MESSAGE, {}))
            return
        due, done = list[_Due](), list[InOrder]()
        for item in found.items:
            due += self._ack_of_batch(item, found.broker_name or self._config.broker_name, channel.peer, done)
        self._store(channel, command, due, done)

    def _ack_of_batch(self, item: _BatchItem, broker_name: str, peer: str, done: list[InOrder]) -> list[_Due]:
        """Acknowledgements of one item. Raises RequestError."""
        place, start, pop_ms, revive_id = item.place, item.start_offset, item.pop_ms, item.revive_queue_id
        self._check(broker_name, revive_id, pop_ms, item.invisible_ms)
        known = self._topics.get(place.topic)
        if known is None or not self._has_queue(known, place.queue_id):
            return []
        named = bits_to_offsets(start, item.bits, MAX_ACKS)
        low, high = self._range(place, named[-1] if named else start)
        offsets = [offset for offset in named if low <= offset <= high]
        if revive_id == ORDERED_QUEUE_ID:
            for offset in offsets:
                self._ack_in_order(place, offset, pop_ms, peer, done)
            return []
        ack = Ack(*place, start, pop_ms, broker_name, tuple(offsets), is_batch=True)
        return [_Due(ack.key, ack, revive_id, pop_ms + item.invisible_ms)] if offsets else []

    # --- 200053 -------------------------------------------------------------------------------------------------------
    def _change(self, channel: Channel, command: Command) -> None:
        """Change the invisible time of a message. Raises RequestError."""
        place, receipt = self._named(command, channel.peer), self._receipt(command)
        offset, invisible_ms = number(command, "offset"), number(command, "invisibleTime")
        longest_ms = self._config.timer_max_delay_sec * 1000
        if not 0 <= invisible_ms <= longest_ms:
            raise RequestError(ResponseCode.INVALID_PARAMETER, f"invisibleTime must be from 0 to {longest_ms} ms")
        low, high = self._range(place, offset)
        if not low <= offset < high:
            raise RequestError(ResponseCode.NO_MESSAGE, f"there is no message {offset} in the queue")
        now_ms = self._clock.wall_ms()
        if receipt.is_ordered:
            self._delay_in_order(channel, command, place, receipt, now_ms + invisible_ms)
            return
        ack = Ack(*place, receipt.start_offset, receipt.pop_ms, receipt.broker_name, (offset,))
        if self._revive.is_spent(ack.key, receipt.revive_queue_id, receipt.due_ms):
            remark = f"the invisible time of message {offset} was over at {receipt.due_ms}: it comes again"
            raise RequestError(ResponseCode.NO_MESSAGE, remark)
        # the acknowledgement is of the old checkpoint alone, so that the new one has a time of its own
        pop_ms = max(now_ms, receipt.pop_ms + 1)
        own = self._config.broker_name
        checkpoint = CheckPoint(*place, offset, pop_ms, invisible_ms, own, (offset,), is_changed=True)
        when = now_ms, self._store_host, self._config.timer_precision_ms
        changed = {
            "popTime": str(pop_ms),
            "invisibleTime": str(invisible_ms),
            "reviveQid": str(receipt.revive_queue_id),
        }
        new = checkpoint.message(self._revive.revive_topic, receipt.revive_queue_id, *when)
        self._store(channel, command, [_Due(ack.key, ack, receipt.revive_queue_id, receipt.due_ms)], (), new, changed)
        self._counts.changed(place.topic, place.group)

    def _delay_in_order(
        self, channel: Channel, command: Command, place: PopQueue, receipt: Receipt, visible_ms: int
    ) -> None:
        offset = number(command, "offset")
        ext: dict[str, str] = {}
        if offset >= (self._positions.next_offset(place) or 0):
            info = self._orders.get(place)
            if info is not None and info.delay(offset, receipt.pop_ms, visible_ms):
                self._orders.changed()
            ext = {
                "popTime": str(receipt.pop_ms),
                "invisibleTime": str(visible_ms - receipt.pop_ms),
                "reviveQid": str(receipt.revive_queue_id),
            }
            self._wake(place.topic, place.group)
        _answer(channel, command, command.reply(ResponseCode.SUCCESS, ext))

    # --- store --------------------------------------------------------------------------------------------------------
    def _store(
        self,
        channel: Channel,
        command: Command,
        acks: list[_Due],
        done: Sequence[InOrder] = (),
        first: NewMessage | None = None,
        ext: dict[str, str] | None = None,
    ) -> None:
        """Append `first`, the acknowledgements and the ordered progress with one call, and answer when they count.
        Acknowledgements of worked-off checkpoints need not be stored. Raises RequestError."""
        acks = [due for due in acks if not self._revive.is_over(due.key, due.revive_queue_id, due.due_ms)]
        now_ms, precision_ms = self._clock.wall_ms(), self._config.timer_precision_ms
        messages = [] if first is None else [first]
        when = now_ms, self._store_host, precision_ms
        if done:
            self._topics.create_internal(self._revive.revive_topic, REVIVE_QUEUE_COUNT)
        try:
            for _, ack, revive_id, due_ms in acks:
                messages.append(ack.message(self._revive.revive_topic, revive_id, due_ms, *when))
            for item in done:
                messages.append(item.message(self._revive.revive_topic, now_ms, self._store_host))
            self._appends.check(messages)
        except (UsageError, ValueError) as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"the acknowledgement cannot be stored: {error}") from None
        for _, ack, _, _ in acks:
            self.acked_count += len(ack.queue_offsets)
            self._counts.acked(ack)
        if not messages:
            _answer(channel, command, command.reply(ResponseCode.SUCCESS, ext))
            return
        takes = list[HeldEntries]()
        if done:
            timer_end = self._log.queue_range(TIMER_TOPIC, 0)[1]
            for item in done:
                takes.append(self._positions.take(PopQueue(*item[:3]), item.pop_ms, item.next_offset, timer_end))
        frame = b"" if command.is_oneway else success_frame(command, ext or {})
        acked = _Acked(channel, command, frame, self._revive, acks)
        self._appends.store_waiting(messages, partial(stand_at, takes), acked)
        for item in done:
            info = self._orders.get(PopQueue(*item[:3]))
            if info is None or not info.blocks(None, now_ms):
                self._wake(item.topic, item.group)


def _either(item: Mapping[str, Any], *names: str) -> Any:
    for name in names:
        if item.get(name) is not None:
            return item[name]
    raise KeyError(names[0])


def _answer(channel: Channel, command: Command, reply: Command) -> None:
    if not command.is_oneway:
        channel.send(reply)
