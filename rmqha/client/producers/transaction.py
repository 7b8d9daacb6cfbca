"""Transactions: messages that consumers see only if the application's own transaction committed. Data plane.

Life: the half message is stored, seen by nobody → the application does its part → commit or rollback (37). If that is
not sent, or is lost, a broker asks (39) a member of the producer's group, by any of its connections, and again until
it is answered. So only `check`, which looks up the outcome of the application's transaction, decides in the end.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from enum import IntEnum
from types import TracebackType

import trio

from rmqha.client.consumers.message import Message, decode_messages
from rmqha.client.heartbeat import CALL_TIMEOUT_MS, Heartbeats
from rmqha.client.names import check_topic
from rmqha.client.producers.outgoing import OutgoingMessage, check_message
from rmqha.client.producers.producer import SEND_TIMEOUT_MS, Producer
from rmqha.client.producers.result import SendResult
from rmqha.client.route_table import Backoff
from rmqha.host.access.security import Security
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import RemoteError, RemoteProtocolError, RmqhaError, UnreachableError, UsageError
from rmqha.model.message import (
    PROPERTY_DELAY,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_TRANSACTION_PREPARED,
    SYS_FLAG_TRANSACTION_COMMIT,
    SYS_FLAG_TRANSACTION_PREPARED,
    SYS_FLAG_TRANSACTION_ROLLBACK,
    parse_offset_message_id,
)
from rmqha.wire.command import Command

HEARTBEAT_CHECK_S = 1.0
CLOSE_TIMEOUT_MS = 3_000
MAX_CHECK_COUNT = 64
"""Most checks that run at a time. A broker asks again for a check that is passed over."""
_FINAL = frozenset(
    (ResponseCode.MESSAGE_ILLEGAL, ResponseCode.ILLEGAL_OPERATION, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
)
_PLACE = ("bname", "commitLogOffset", "tranStateTableOffset")
_log = logging.getLogger("rmqha.client")


class Outcome(IntEnum):
    """Outcome of an application's transaction; after UNKNOWN the broker asks again."""

    UNKNOWN = 0
    COMMIT = SYS_FLAG_TRANSACTION_COMMIT
    ROLLBACK = SYS_FLAG_TRANSACTION_ROLLBACK


Check = Callable[[Message], Awaitable[Outcome]]


class Transaction:
    """Async context manager around the application's own transaction. Entering stores the half message; leaving
    commits, or rolls back after `rollback()`.

    An exception that leaves the block decides nothing, since a transaction may fail to answer and yet have committed:
    the brokers ask `check` later. The same holds for an end that no broker confirmed (`confirmed` is False then).
    """

    def __init__(self, producer: TransactionProducer, message: OutgoingMessage, timeout_ms: int) -> None:
        self._producer = producer
        self._message = message
        self._timeout_ms = timeout_ms
        self._half: SendResult | None = None
        self._outcome = Outcome.COMMIT
        self.confirmed = False
        """True once the group has stored how the transaction ended."""

    @property
    def half(self) -> SendResult:
        """Result of the half message's send; its `msg_id` is that of the message."""
        if self._half is None:
            raise UsageError("the transaction has not begun: use it by `async with`")
        return self._half

    @property
    def msg_id(self) -> str:
        """The id that the message of this transaction has."""
        return self.half.msg_id

    def rollback(self) -> None:
        """Roll back: no consumer gets the message."""
        self._outcome = Outcome.ROLLBACK

    def leave_open(self) -> None:
        """Decide nothing now: the brokers are to ask `check`."""
        self._outcome = Outcome.UNKNOWN

    async def __aenter__(self) -> Transaction:
        """Store the half message. Raises as `Producer.send`; then the application must not begin. (If the half message
        was stored all the same, `check` is asked about it.)"""
        if self._half is not None:
            raise UsageError("a transaction is used once")
        self._half = await self._producer.prepare(self._message, self._timeout_ms)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        outcome = self._outcome
        if error is not None and outcome is Outcome.COMMIT:
            outcome = Outcome.UNKNOWN
        if outcome is not Outcome.UNKNOWN:
            self.confirmed = await self._producer.end(self.half, self._message.topic, outcome, self._timeout_ms)


class TransactionProducer(Producer):
    """A Producer that also sends messages within transactions, and answers what brokers ask about them."""

    def __init__(
        self,
        namesrv: str,
        group: str,
        check: Check,
        *,
        topics: Sequence[str] = (),
        compression: str | None = "zlib",
        security: Security | None = None,
    ) -> None:
        """`check(message)` returns the outcome of a transaction of this process or of another member of `group`, alive
        or dead; an exception is logged (`rmqha.client`) and counts as UNKNOWN. `topics`: topics whose brokers may ask
        from the start on; others may after the first transaction for them. Raises as Producer."""
        if not group:
            raise UsageError("a producer of transactions needs the name of its group")
        for topic in topics:
            check_topic(topic)
        super().__init__(namesrv, group, compression=compression, security=security)
        self._check = check
        self._topics = set(topics)
        self._new_topic = trio.Event()
        self._heartbeats = Heartbeats(self._session, time.time_ns() // 1_000_000)
        self._open_checks = 0
        self._counts = dict.fromkeys(("transactions", "confirmed", "checks", "failed_checks"), 0)
        self._last_error = ""

    async def __aenter__(self) -> TransactionProducer:
        await super().__aenter__()
        self._session.nursery.start_soon(self._keep_known)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with trio.move_on_after(CLOSE_TIMEOUT_MS / 1000, shield=True):
            self._session.nursery.cancel_scope.cancel()
            await self._heartbeats.leave({"producerGroup": self._group})
        await super().__aexit__(kind, error, trace)

    def transaction(self, message: OutgoingMessage, *, timeout_ms: int = SEND_TIMEOUT_MS) -> Transaction:
        """Context manager of one transaction: `async with producer.transaction(message) as transaction: ...`.
        `timeout_ms` bounds the entering, and again the leaving."""
        return Transaction(self, message, timeout_ms)

    async def prepare(self, message: OutgoingMessage, timeout_ms: int = SEND_TIMEOUT_MS) -> SendResult:
        """Store the half message; the caller must call `end`. Raises as `send`, UsageError for a delayed message."""
        if PROPERTY_DELAY in message.properties:
            raise UsageError(f"a message for topic {message.topic} has a delay, and a transaction takes none")
        check_message(message)
        marks = {PROPERTY_TRANSACTION_PREPARED: "true", PROPERTY_PRODUCER_GROUP: self._group}
        half = replace(message, properties={**message.properties, **marks})
        if message.topic not in self._topics:
            self._topics.add(message.topic)
            self._new_topic.set()
        self._counts["transactions"] += 1
        return await self._deliver(self._outgoing(half, SYS_FLAG_TRANSACTION_PREPARED), timeout_ms, require_ok=True)

    async def end(self, half: SendResult, topic: str, outcome: Outcome, timeout_ms: int = SEND_TIMEOUT_MS) -> bool:
        """Tell the master the outcome, through a failover. True once the outcome is stored; False: a broker will ask,
        and its refusal is in `last_error`, not raised. Raises UsageError for UNKNOWN, for a half message without a
        place, and where the producer is not open."""
        if outcome is Outcome.UNKNOWN:
            raise UsageError("an end must be COMMIT or ROLLBACK")
        try:
            _, phy_offset = parse_offset_message_id(half.offset_msg_id)
        except ValueError as error:
            raise UsageError(f"the half message {half.msg_id}: {error}") from None
        ext = self._end_fields(topic, half.msg_id, outcome) | {
            "bname": half.broker_name,
            "commitLogOffset": str(phy_offset),
            "tranStateTableOffset": str(half.queue_offset),
        }
        backoff = Backoff()
        with trio.move_on_after(timeout_ms / 1000):
            while True:
                try:
                    address = (await self._routes.get(topic)).master(half.broker_name)
                    if address is None:
                        raise UnreachableError(f"group {half.broker_name} has no master")
                    answer = await self._remoting.call(
                        address, Command(RequestCode.END_TRANSACTION, dict(ext)), timeout_ms
                    )
                except UsageError:
                    raise
                except RmqhaError as error:
                    self._last_error = str(error)
                else:
                    if answer.code == ResponseCode.SUCCESS:
                        self._counts["confirmed"] += 1
                        return True
                    self._last_error = f"{address} answered {answer.code}: {answer.remark or 'no remark'}"
                    if answer.code in _FINAL:
                        return False
                await self._routes.recover(topic, backoff)
        return False

    def statistics(self) -> dict[str, int]:
        """Counts as those of Producer; `confirmed` counts ends; `checks` questions of brokers, `failed_checks` those
        without an answer."""
        return {**super().statistics(), **self._counts}

    @property
    def last_error(self) -> str:
        """The reason why the last end or answer was not taken, or the last `check` failed; "" if none did."""
        return self._last_error

    # -- what brokers ask ------------------------------------------------------------------------------------------

    def _asked(self, address: str, command: Command) -> Command | None:
        if command.code != RequestCode.CHECK_TRANSACTION_STATE:
            return super()._asked(address, command)
        self._counts["checks"] += 1
        if self._open_checks < MAX_CHECK_COUNT:
            self._open_checks += 1
            self._session.nursery.start_soon(self._answer, address, command)
        else:
            self._counts["failed_checks"] += 1
        return None

    async def _answer(self, address: str, command: Command) -> None:
        """Answer a broker's check at the broker that asked, whose half message is meant."""
        try:
            confirmed = await self._look_up(address, command)
        except RmqhaError as error:
            confirmed, self._last_error = False, str(error)
        self._counts["confirmed" if confirmed else "failed_checks"] += 1
        self._open_checks -= 1

    async def _look_up(self, address: str, command: Command) -> bool:
        """True if the broker has stored the answer; False if there is none yet."""
        messages = decode_messages(command.ext.get("bname", ""), bytes(command.body))
        if len(messages) != 1:
            raise RemoteProtocolError(f"{address} asks about {len(messages)} messages at once")
        message = messages[0]
        try:
            outcome = Outcome(await self._check(message))
        except Exception as error:  # noqa: BLE001 - it is the application's; the broker asks again
            _log.warning("the check of transaction %s failed", message.msg_id, exc_info=error)
            self._last_error = f"{type(error).__name__}: {error}"
            return False
        if outcome is Outcome.UNKNOWN:
            return False
        ext = self._end_fields(message.topic, message.msg_id, outcome, command.ext)
        answer = await self._remoting.call(address, Command(RequestCode.END_TRANSACTION, ext), CALL_TIMEOUT_MS)
        if answer.code != ResponseCode.SUCCESS:
            raise RemoteError(answer.code, answer.remark or "", address)
        return True

    def _lost(self, address: str) -> None:
        self._heartbeats.forget(address)

    async def _keep_known(self) -> None:
        """Send heartbeats, so that every replica of the topics knows that this client can be asked."""
        while True:
            for topic in sorted(self._topics):
                try:
                    route = await self._routes.get(topic)
                except RmqhaError as error:
                    self._last_error = str(error)
                else:
                    await self._heartbeats.beat(route, self._producers)
            with trio.move_on_after(HEARTBEAT_CHECK_S):
                await self._new_topic.wait()
            self._new_topic = trio.Event()

    def _producers(self) -> dict[str, list[dict[str, str]]]:
        return {"producerDataSet": [{"groupName": self._group}], "consumerDataSet": []}

    def _end_fields(
        self, topic: str, msg_id: str, outcome: Outcome, asked: dict[str, str] | None = None
    ) -> dict[str, str]:
        """Fields of request 37; with the place only if `asked` has it."""
        asked = asked or {}
        fields = {
            "topic": topic,
            "producerGroup": self._group,
            "commitOrRollback": str(int(outcome)),
            "fromTransactionCheck": str(bool(asked)).lower(),
            "msgId": msg_id,
            "transactionId": asked.get("transactionId", msg_id),
        }
        return fields | {name: asked[name] for name in _PLACE if name in asked}
