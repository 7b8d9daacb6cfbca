"""Requests 324 and 325: reply to a message whose producer waits (the Java client's `request`). No trio.

The request message names the waiting client (REPLY_TO_CLIENT). Its consumer sends the reply to the topic
<cluster>_REPLY_TOPIC. The broker pushes it (326) by the connection of that client's heartbeats, stores it as any send,
and answers both: the code says whether the client has taken it. Codes and remarks are RocketMQ's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from rmqha.broker.requests.record_access import was_refused
from rmqha.broker.requests.request import Channel, RequestError, Shares, Steps, Use, give_back_all, take_all
from rmqha.broker.tables.clients import ClientTable
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.message import (
    PROPERTY_TRANSACTION_PREPARED,
    REPLY_TOPIC_POSTFIX,
    SYS_FLAG_TRANSACTION_MASK,
    decode_properties,
    encode_properties,
)
from rmqha.port import Clock
from rmqha.wire.command import Command

PUSH_TIMEOUT_MS = 10_000
"""Time (ms) to wait for the client, as RocketMQ's."""
MAX_PUSH_COUNT = 1000
MAX_PUSH_BYTES = 64 * 1024 * 1024
"""Bound on the replies that are being pushed."""
MAX_FLAG_CHARS = 16
PROPERTY_REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
PROPERTY_PUSH_REPLY_TIME = "PUSH_REPLY_TIME"
_AS_SEND = {
    RequestCode.SEND_REPLY_MESSAGE: RequestCode.SEND_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE_V2: RequestCode.SEND_MESSAGE_V2,
}
_LONG_NAMES = {
    "a": "producerGroup",
    "b": "topic",
    "c": "defaultTopic",
    "d": "defaultTopicQueueNums",
    "e": "queueId",
    "f": "sysFlag",
    "g": "bornTimestamp",
    "h": "flag",
    "i": "properties",
    "j": "reconsumeTimes",
    "k": "unitMode",
}
"""Fields of a push by their names in request 325."""

Done = Callable[[Command | str], None]
Call = Callable[[Channel, Command, int, Done], None]


class ReplySends(Protocol):
    """Port that stores sends; `SendProcessor` is one."""

    def require_sendable(self, channel: Channel, command: Command) -> None:
        """Raises RequestError if the send would be refused now."""

    def admit(self, channel: Channel, commands: list[Command]) -> None: ...


class ReplyProcessor:
    """Processor of replies. `call` sends a request to a client by its connection."""

    def __init__(self, clients: ClientTable, sends: ReplySends, call: Call, clock: Clock, store_address: str) -> None:
        """`store_address`: "host:port" of this broker, as in records."""
        self._clients = clients
        self._sends = sends
        self._call = call
        self._clock = clock
        self._store_address = store_address
        self._push_counts, self._push_bytes = Shares(MAX_PUSH_COUNT), Shares(MAX_PUSH_BYTES)

    def process(self, channel: Channel, command: Command) -> None:
        """Answer after the client has taken the reply, or cannot, and it is stored. Raises RequestError."""
        body = bytes(command.body)  # the socket's buffer is used again
        code = _AS_SEND[RequestCode(command.code)]
        as_send = Command(code, dict(command.ext), body, version=command.version)
        as_send.principal = command.principal
        as_send.ext.pop("m", None)  # a reply is never a batch
        as_send.ext.pop("batch", None)
        _forget_transaction(as_send)
        self._sends.require_sendable(channel, as_send)
        fields = _fields(command)
        properties = decode_properties(fields.get("properties", "").encode())
        client_id = properties.get(PROPERTY_REPLY_TO_CLIENT)
        if command.principal.is_restricted and not fields["topic"].endswith(REPLY_TOPIC_POSTFIX):
            # who may send to some topic of its own shall reach no client of others by that
            remark = f"push reply message fail, topic {fields['topic']} is not that of replies, *{REPLY_TOPIC_POSTFIX}."
            self._store(channel, command, as_send, remark)
            return
        if client_id is None:
            remark = f"reply message properties[{PROPERTY_REPLY_TO_CLIENT}] is null"
            self._store(channel, command, as_send, remark)
            return
        client = self._clients.producer_channel(client_id)
        if client is None:
            remark = f"push reply message fail, channel of <{client_id}> not found."
            self._store(channel, command, as_send, remark)
            return
        uses: list[Use] = [(self._push_counts, command.principal, 1), (self._push_bytes, command.principal, len(body))]
        if not take_all(uses):
            remark = f"{self._push_counts.used} replies are on their way; try later"
            raise RequestError(ResponseCode.SYSTEM_BUSY, remark)

        def done(outcome: Command | str) -> None:
            give_back_all(uses)
            if was_refused(channel, command):
                return
            is_taken = isinstance(outcome, Command) and outcome.code == ResponseCode.SUCCESS
            self._store(channel, command, as_send, "" if is_taken else f"push reply message to {client_id}fail.")

        push = self._push(channel.peer, fields, properties, body)
        self._call(client, push, PUSH_TIMEOUT_MS, done)

    def _push(self, peer: str, fields: dict[str, str], properties: dict[str, str], body: bytes) -> Command:
        now_ms = self._clock.wall_ms()
        ext = fields | {
            "properties": encode_properties({**properties, PROPERTY_PUSH_REPLY_TIME: str(now_ms)}).decode(),
            "bornHost": peer,
            "storeHost": self._store_address,
            "storeTimestamp": str(now_ms),
        }
        return Command(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, ext, body)

    def _store(self, channel: Channel, command: Command, as_send: Command, fault: str) -> None:
        """Store a reply, pushed or not; the answer has only its ids."""
        self._sends.admit(_Pushed(channel, command, fault), [as_send])


class _Pushed(Channel):
    """Channel of a pushed reply for the send that stores it."""

    def __init__(self, channel: Channel, command: Command, fault: str) -> None:
        """`fault`: reason why the client did not get the reply, or ""."""
        self._channel = channel
        self._command = command
        self._fault = fault
        self.peer = channel.peer
        self.waited_ms = channel.waited_ms

    def send(self, command: Command) -> None:
        if self._command.is_oneway:
            return
        ext = {"msgId": "0", "queueId": self._queue_id, "queueOffset": "0", **command.ext}
        code = ResponseCode.SYSTEM_ERROR if self._fault else command.code
        self._channel.send(self._command.reply(code, ext, remark=self._fault or command.remark))

    @property
    def _queue_id(self) -> str:
        return _fields(self._command).get("queueId", "0")

    def send_frames(self, frames: bytes, count: int) -> None:
        raise AssertionError("one reply is stored, not a run of sends")

    def send_at_once(self, command: Command) -> None:
        self.send(command)

    def work(self, steps: Steps) -> None:
        self._channel.work(steps)

    def fail(self, error: Exception, commands: Sequence[Command]) -> None:
        self._channel.fail(error, commands)


def _forget_transaction(as_send: Command) -> None:
    """Remove transaction properties: a reply is no half message, even if its message was one."""
    is_v2 = as_send.code == RequestCode.SEND_MESSAGE_V2
    properties, flag = ("i", "f") if is_v2 else ("properties", "sysFlag")
    text = as_send.ext.get(properties, "")
    if PROPERTY_TRANSACTION_PREPARED in text:
        kept = decode_properties(text.encode())
        kept.pop(PROPERTY_TRANSACTION_PREPARED, None)
        as_send.ext[properties] = encode_properties(kept).decode()
    given = as_send.ext.get(flag, "")
    if given.isdecimal() and len(given) <= MAX_FLAG_CHARS:  # what is longer is refused as that of a send
        as_send.ext[flag] = str(int(given) & ~SYS_FLAG_TRANSACTION_MASK)


def _fields(command: Command) -> dict[str, str]:
    """Fields of a push by their long names."""
    names = {name: name for name in _LONG_NAMES.values()}
    if command.code == RequestCode.SEND_REPLY_MESSAGE_V2:
        names = _LONG_NAMES
    return {long: command.ext[name] for name, long in names.items() if name in command.ext}
