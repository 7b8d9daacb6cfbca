"""Request 370: recall of a timer message by the handle in the answer to its send. Data plane.

The stored recall is a timer message of the same slot, so it is copied and survives as that does (`TimerService`).
Checks, codes and remarks are those of RocketMQ's RecallMessageProcessor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from rmqha.broker.replication.waiter import MessageAppender, Waiter
from rmqha.broker.requests.request import Channel, RequestError, SendHolder, not_admitted, record_host, text
from rmqha.broker.tables.topics import TopicTable
from rmqha.broker.timers.message import of_account, to_timer
from rmqha.model.code import ResponseCode
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.error import UsageError
from rmqha.model.message import (
    PROPERTY_MSG_REGION,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_TAGS,
    PROPERTY_TIMER_DELETE_UNIQUE_KEY,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_UNIQUE_KEY,
    RecallHandle,
    encode_properties,
)
from rmqha.model.principal import Principal
from rmqha.port import Clock
from rmqha.store.log.record import NewMessage
from rmqha.wire.command import Command

RECALL_TAG = "_RECALL_TAG_"
RECALL_BODY = b"0"


class PutCounts(Protocol):
    """Counter of producers' messages; `SendProcessor` is one."""

    put_count: int
    put_bytes: int


class RecallProcessor:
    """Processor of recalls. A recall that is answered with SUCCESS is safe by the group's rule; its message may have
    been delivered before, or never have existed."""

    def __init__(
        self,
        config: BrokerConfig,
        topics: TopicTable,
        appends: MessageAppender,
        holder: SendHolder,
        store_host: tuple[bytes, int],
        counts: PutCounts,
        clock: Clock,
        fault: Callable[[Principal], str],
    ) -> None:
        """`fault` returns the reason why an account can recall no more messages now, or ""."""
        self._fault = fault
        self._config = config
        self._topics = topics
        self._appends = appends
        self._holder = holder
        self._store_host = store_host
        self._counts = counts
        self._clock = clock

    def configure(self, config: BrokerConfig) -> None:
        self._config = config

    def process(self, channel: Channel, command: Command) -> None:
        """Answer now or when the recall is acknowledged; during a hand-over it is held as a send is."""
        if not self._holder.hold(channel, [command]):
            self.admit(channel, command)

    def admit(self, channel: Channel, command: Command) -> None:
        """Process a recall that was held."""
        code, remark = self._appends.admission()
        refusal = not_admitted(command, code, remark)
        if not self._config.recall_message_enable:
            refusal = command.reply(ResponseCode.NO_PERMISSION, {}, remark="recall failed, operation is forbidden")
        elif code is ResponseCode.SUCCESS:
            try:
                self._recall(channel, command)
            except RequestError as error:
                refusal = command.reply(error.code, {}, remark=str(error))
            else:
                return
        if not command.is_oneway:
            channel.send(refusal)

    def _recall(self, channel: Channel, command: Command) -> None:
        """Store a recall. Raises RequestError."""
        topic, given = text(command, "topic"), text(command, "recallHandle")
        if self._topics.get(topic) is None:
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"recall failed, the topic[{topic}] not exist")
        try:
            handle = RecallHandle.decode(given)
        except ValueError:
            raise _illegal("recall handle is invalid") from None
        if handle.topic != topic:
            raise _illegal("recall failed, topic not match")
        if handle.broker_name != self._config.broker_name:
            raise _illegal("recall failed, broker service not available")
        now_ms = self._clock.wall_ms()
        if not 0 < handle.at_ms - now_ms < self._config.timer_max_delay_sec * 1000:
            raise _illegal("recall failed, timestamp invalid")
        if fault := self._fault(command.principal):
            raise RequestError(ResponseCode.SYSTEM_BUSY, f"recall failed, {fault}")
        try:
            stored = self._appends.append([self._message(handle, channel, command, now_ms)])
        except (UsageError, ValueError):
            raise RequestError(ResponseCode.SYSTEM_ERROR, "recall failed, execute error") from None
        self._counts.put_count += 1
        self._counts.put_bytes += stored.end_offset - stored.phy_offsets[0]
        reply = command.reply(
            ResponseCode.SUCCESS, {"msgId": handle.unique_key, PROPERTY_MSG_REGION: self._config.region_id}
        )
        self._appends.appended(stored.end_offset, Waiter(channel, [] if command.is_oneway else [reply]))

    def _message(self, handle: RecallHandle, channel: Channel, command: Command, now_ms: int) -> NewMessage:
        properties = {
            PROPERTY_TIMER_DELETE_UNIQUE_KEY: handle.unique_key,
            PROPERTY_UNIQUE_KEY: handle.unique_key,
            PROPERTY_TIMER_DELIVER_MS: str(handle.at_ms),
            PROPERTY_TAGS: RECALL_TAG,
        }
        if group := command.ext.get("producerGroup"):
            properties[PROPERTY_PRODUCER_GROUP] = group
        message = NewMessage(
            handle.topic,
            0,
            RECALL_BODY,
            encode_properties(properties),
            now_ms,
            record_host(channel.peer),
            self._store_host,
        )
        return to_timer(of_account(message, command.principal.mark), handle.at_ms, self._config.timer_precision_ms)


def _illegal(remark: str) -> RequestError:
    return RequestError(ResponseCode.ILLEGAL_OPERATION, remark)
