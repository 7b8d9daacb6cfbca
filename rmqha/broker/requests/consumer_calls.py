"""Requests that members of a consumer group answer: offsets (223), state of one member (307), consumption of a message
on demand (309). No trio.

The broker forwards them by the connection of the member's heartbeats, and returns the answer. Signatures of the request
are removed: the member sees no account, and Apache's signatures are valid for any request of their account.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from rmqha.broker.requests.record_access import require_reader, was_refused
from rmqha.broker.requests.request import Channel, Handler, RequestError, Shares, text
from rmqha.broker.tables.clients import ClientTable
from rmqha.broker.tables.groups import GroupTable
from rmqha.broker.tables.topics import TopicTable
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import RemoteProtocolError
from rmqha.model.message import parse_offset_message_id
from rmqha.model.offset import PhyOffset
from rmqha.model.principal import Principal
from rmqha.store.integrity.record_starts import StoredRecord
from rmqha.wire import lenient_json
from rmqha.wire.auth.signature import unsigned
from rmqha.wire.body_bound import body_refusal
from rmqha.wire.command import Command

CALL_TIMEOUT_MS = 10_000
"""Time-out (ms) of a client, as Apache's broker's."""
STATUS_TIMEOUT_MS = 5_000
"""Time-out (ms) of a request for offsets."""
MAX_CALL_COUNT = 100
"""Bound on requests that are being forwarded."""
KEPT_FIELDS = ("topic", "group", "consumerGroup")
"""Fields of a request that are kept until its answer: those that its rights depend on."""

Done = Callable[[Command | str], None]
"""Takes the member's answer, or the reason of a failure."""
Call = Callable[[Channel, Command, int, Done], None]
"""Sends a request to a client by its connection, with a time-out (ms)."""


class CallLog(Protocol):
    """Port to the store; `Store` is one."""

    @property
    def confirm_offset(self) -> PhyOffset: ...

    def verified_record_at(self, phy_offset: int) -> StoredRecord | None: ...


class ConsumerCalls:
    """Handlers of such requests. `call` sends a request to a consumer by its connection."""

    def __init__(
        self, broker_name: str, log: CallLog, topics: TopicTable, groups: GroupTable, clients: ClientTable, call: Call
    ) -> None:
        self._broker_name = broker_name
        self._log = log
        self._topics = topics
        self._groups = groups
        self._clients = clients
        self._call = call
        self._calls = Shares(MAX_CALL_COUNT)

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: self._status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self._consume_directly,
        }

    def _running_info(self, channel: Channel, command: Command) -> None:
        self._pass_on(channel, command, unsigned(command.ext), b"")

    def _consume_directly(self, channel: Channel, command: Command) -> None:
        """Send the stored record in the body to the member."""
        ext = unsigned(command.ext) | {"brokerName": self._broker_name}
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
        require_reader(command, found.record, None, self._topics)
        return bytes(found.data)

    def _status(self, channel: Channel, command: Command) -> None:
        """Ask all members, or the named one, at the same time; members without an answer are left out."""
        group, wanted = text(command, "group"), command.ext.get("clientAddr")  # it names a client, not an address
        found = self._clients.consumer_group(group)
        if found is None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"No Any Consumer online in the consumer group: [{group}]")
        members = {
            member.client_id: peer
            for peer, member in found.channels.items()
            if not wanted or member.client_id == wanted
        }
        most = self._calls.most_of(command.principal)
        if len(members) > most:
            remark = f"the group {group} has {len(members)} members; at most {most} are asked: name one"
            raise RequestError(ResponseCode.SYSTEM_ERROR, remark)
        self._take_calls(command.principal, len(members))
        asked = Command(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, {"topic": text(command, "topic"), "group": group})
        answers: dict[str, bytes] = {}
        """Convert each member's answer in the turn of its arrival."""
        waiting, kept = set(members), command.stub(*KEPT_FIELDS)

        def answer() -> None:
            if was_refused(channel, kept):
                return
            table = b",".join(lenient_json.dumps(name) + b":" + told for name, told in sorted(answers.items()))
            channel.send(kept.reply(body=b'{"consumerTable":{%s},"messageQueueTable":{}}' % table))

        def done_of(client_id: str) -> Done:
            def done(outcome: Command | str) -> None:
                self._calls.give_back(kept.principal.access_key)
                waiting.remove(client_id)
                if isinstance(outcome, Command) and outcome.code == ResponseCode.SUCCESS:
                    answers[client_id] = lenient_json.dumps(_queue_offsets(bytes(outcome.body)))
                if not waiting:
                    answer()

            return done

        if not members:
            answer()
        for client_id, peer in members.items():
            self._call(peer, Command(asked.code, dict(asked.ext)), STATUS_TIMEOUT_MS, done_of(client_id))

    def _take_calls(self, principal: Principal, count: int) -> None:
        if not self._calls.take(principal, count):
            raise RequestError(ResponseCode.SYSTEM_BUSY, f"{self._calls.used} requests wait for consumers; try later")

    def _pass_on(self, channel: Channel, command: Command, ext: dict[str, str], body: bytes) -> None:
        group, client_id = text(command, "consumerGroup"), text(command, "clientId")
        member = self._member(group, client_id)
        self._take_calls(command.principal, 1)
        kept = command.stub(*KEPT_FIELDS)

        def done(outcome: Command | str) -> None:
            self._calls.give_back(kept.principal.access_key)
            if was_refused(channel, kept):
                return
            if isinstance(outcome, str):
                remark = f"consumer <{group}> <{client_id}> Timeout: {outcome}"
                channel.send(kept.reply(ResponseCode.CONSUME_MSG_TIMEOUT, {}, remark=remark))
            else:
                reply = kept.reply(outcome.code, dict(outcome.ext), bytes(outcome.body), outcome.remark)
                channel.send(reply)

        self._call(member, Command(command.code, ext, body), CALL_TIMEOUT_MS, done)

    def _member(self, group: str, client_id: str) -> Channel:
        found = self._clients.consumer_group(group)
        for channel, member in found.channels.items() if found else ():
            if member.client_id == client_id:
                return channel
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online")


def _queue_offsets(body: bytes) -> dict[object, int]:
    """Offset by queue in a member's answer; none if it is malformed."""
    if body_refusal(Command(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, {}, body)):
        return {}
    try:
        found = lenient_json.loads(body)
    except RemoteProtocolError:
        return {}
    table = found.get("messageQueueTable") if isinstance(found, dict) else None
    if not isinstance(table, dict):
        return {}
    return {queue: offset for queue, offset in table.items() if isinstance(offset, int)}
