"""Requests that a member of a consumer group answers: its state (307), a message consumed on demand (309). No trio.

The broker passes them on by the connection that the member's heartbeats come from, and answers what it answers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from rmqha.broker.requests.record_access import require_reader
from rmqha.broker.requests.request import Channel, Handler, RequestError, text
from rmqha.broker.tables.clients import ClientTable
from rmqha.broker.tables.groups import GroupTable
from rmqha.broker.tables.topics import TopicTable
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.message import parse_offset_message_id
from rmqha.model.offset import PhyOffset
from rmqha.store.integrity.record_starts import StoredRecord
from rmqha.wire.command import Command

CALL_TIMEOUT_MS = 10_000
"""Wait for a client, as long as Apache's broker's."""
MAX_CALL_COUNT = 100
"""Requests passed on at a time."""

Done = Callable[[Command | str], None]
"""Takes the member's answer, or why there is none."""
Call = Callable[[Channel, Command, int, Done], None]
"""Send a request to a client by its connection and wait so many milliseconds."""


class CallLog(Protocol):
    """The part of the store that the answers need; `Store` is one."""

    @property
    def confirm_offset(self) -> PhyOffset: ...

    def verified_record_at(self, phy_offset: int) -> StoredRecord | None: ...


class ConsumerCalls:
    """`call` sends a request to a consumer by its connection."""

    def __init__(
        self, broker_name: str, log: CallLog, topics: TopicTable, groups: GroupTable, clients: ClientTable, call: Call
    ) -> None:
        self._broker_name = broker_name
        self._log = log
        self._topics = topics
        self._groups = groups
        self._clients = clients
        self._call = call
        self._call_count = 0

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self._consume_directly,
        }

    def _running_info(self, channel: Channel, command: Command) -> None:
        self._pass_on(channel, command, dict(command.ext), b"")

    def _consume_directly(self, channel: Channel, command: Command) -> None:
        """The member gets the stored record in the body."""
        ext = command.ext | {"brokerName": self._broker_name}
        topic = self._topics.get(command.ext.get("topic") or "")
        if topic is not None:
            ext["topicSysFlag"] = str(topic.sys_flag)
        group = self._groups.get(text(command, "consumerGroup"))
        if group is not None:
            ext["groupSysFlag"] = str(group.get("groupSysFlag", 0))
        self._pass_on(channel, command, ext, self._record(command))

    def _record(self, command: Command) -> bytes:
        try:
            _, offset = parse_offset_message_id(text(command, "msgId"))
        except ValueError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        found = self._log.verified_record_at(offset)
        if found is None or offset + len(found.data) > self._log.confirm_offset:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}")
        require_reader(command, found.record, None)
        return bytes(found.data)

    def _pass_on(self, channel: Channel, command: Command, ext: dict[str, str], body: bytes) -> None:
        group, client_id = text(command, "consumerGroup"), text(command, "clientId")
        member = self._member(group, client_id)
        if self._call_count >= MAX_CALL_COUNT:
            raise RequestError(ResponseCode.SYSTEM_BUSY, f"{MAX_CALL_COUNT} requests wait for consumers; try later")
        self._call_count += 1

        def done(outcome: Command | str) -> None:
            self._call_count -= 1
            if isinstance(outcome, str):
                remark = f"consumer <{group}> <{client_id}> Timeout: {outcome}"
                channel.send(command.reply(ResponseCode.CONSUME_MSG_TIMEOUT, {}, remark=remark))
            else:
                reply = command.reply(outcome.code, dict(outcome.ext), bytes(outcome.body), outcome.remark)
                channel.send(reply)

        self._call(member, Command(command.code, ext, body), CALL_TIMEOUT_MS, done)

    def _member(self, group: str, client_id: str) -> Channel:
        found = self._clients.consumer_group(group)
        for channel, member in found.channels.items() if found else ():
            if member.client_id == client_id:
                return channel
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online")
