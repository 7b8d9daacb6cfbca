"""PopConsumer: messages that a group's members take without owning a queue. Control plane.

Each broker group is asked by a task of its own, with long polling, once the reader has taken what came before: a
message's invisible time begins when it is given. A message counts as done when `ack` returns; until then it comes again
after its invisible time, whichever replica is master. In order (`ordered`) a queue gives nothing more until what it
gave is done.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, TypeAlias, overload
from uuid import uuid4

import trio

from rmqha.client.answers import number
from rmqha.client.arguments import require_type
from rmqha.client.compression import MAX_BODY_BYTES, BodyTooLargeError
from rmqha.client.consumers.membership import ConsumerMembership, send_back_fields
from rmqha.client.consumers.message import Message, MessageBatch, MessageView
from rmqha.client.heartbeat import CALL_TIMEOUT_MS
from rmqha.client.names import check_group, check_topic
from rmqha.client.route_table import Backoff
from rmqha.client.session import ClientSession, ClosedError
from rmqha.host.access.security import Security
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import RemoteError, RemoteProtocolError, RmqhaError, UnreachableError, UsageError
from rmqha.model.message import PROPERTY_POP_CK
from rmqha.wire.command import Command
from rmqha.wire.state.receipt import Receipt, kind_of, real_topic

INVISIBLE_MS = 60_000
POLL_MS = 15_000
POP_TIMEOUT_MS = 20_000
POP_COUNT = 16
MAX_POP_COUNT = 32
HEARTBEAT_MS = 20_000
RETRY_MS = 1_000
ROUTE_MS = 5_000
"""Time (ms) between two requests for a route, as of `Consumer`: a long poll to a frozen master shows nothing."""
ANSWER_TIMEOUT_MS = 10_000
"""Time (ms) in which `ack`, `nack` and `extend` try again."""
PAUSE_MS = 50
_NOTHING = (ResponseCode.POLLING_TIMEOUT, ResponseCode.POLLING_FULL, ResponseCode.PULL_NOT_FOUND)


@dataclass(slots=True)
class PoppedMessage:
    """A message and the receipt by which its broker knows this delivery. `visible_at_ms`: wall time (ms since 1970, by
    this machine's clock) from which others may get it; `extend` moves both."""

    message: Message
    receipt: Receipt
    visible_at_ms: int
    delivery_count: int
    """Number of times that the message was given to the group, this one included."""

    @property
    def body(self) -> bytes:
        """Body, decompressed."""
        return self.message.body


@dataclass(frozen=True, slots=True)
class _Unreadable:
    """A message that was given and cannot be read here: it comes again at `visible_at_ms`."""

    error: RmqhaError
    visible_at_ms: int


_Found: TypeAlias = "deque[PoppedMessage | _Unreadable]"


class PopConsumer:
    """Pop consumer of a topic. Async context manager and async iterator of PoppedMessage, which ends with it; one task
    reads from it, any may acknowledge."""

    def __init__(
        self,
        namesrv: str,
        group: str,
        topic: str,
        tags: str = "*",
        *,
        selector: str = "",
        ordered: bool = False,
        invisible_ms: int = INVISIBLE_MS,
        count: int = POP_COUNT,
        security: Security | None = None,
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        """`tags`: "*" or "A || B"; `selector`: SQL92 over the properties instead (brokers need enablePropertyFilter).
        `invisible_ms`: time to process a message; `count`: messages that are taken at once, 32 at most.
        `max_body_bytes`: what a compressed body may stand for; a message with more goes to the dead letters.

        Raises UsageError for a wrong address, topic, expression or number."""
        check_topic(topic)
        if not group:
            raise UsageError("a consumer needs the name of its group")
        check_group(group)
        require_type("count", count, int)
        require_type("invisible_ms", invisible_ms, int)
        if not 1 <= count <= MAX_POP_COUNT:
            raise UsageError(f"count {count}: from 1 to {MAX_POP_COUNT} messages are taken at once")
        if invisible_ms < 1:
            raise UsageError(f"invisible_ms {invisible_ms}: a message needs a time to be worked off")
        self._session = ClientSession(namesrv, self._asked, security, self._lost)
        self._routes = self._session.routes
        self._membership = ConsumerMembership(self._session, group, topic, tags, selector=selector, broadcast=False)
        self._group, self._topic = group, topic
        self._ordered = ordered
        self._invisible_ms = invisible_ms
        self._count = count
        self._max_body_bytes = max_body_bytes
        self._found: _Found = deque()
        self._found_in, self._found_out = trio.open_memory_channel[_Found](0)
        self._found_in.close()  # nothing comes before it is open
        self._asking: dict[str, trio.CancelScope] = {}
        """Tasks that ask, by broker name."""
        self._polled: dict[str, tuple[str, trio.CancelScope]] = {}
        """Pops that wait, by broker name: the address that was asked."""
        self._counts = dict.fromkeys(
            ("received", "pops", "failed_pops", "acked", "changed", "dead", "expired", "filtered", "too_large"), 0
        )
        self._last_error = ""

    async def __aenter__(self) -> PopConsumer:
        """Open the consumer. Raises UnreachableError if no name server answers, RemoteError (17) if none knows the
        topic."""
        await self._session.__aenter__()
        try:
            await self._routes.get(self._topic)
            self._found_in, self._found_out = trio.open_memory_channel[_Found](0)
            for task in (self._keep_asking, self._watch_routes, self._poll_routes):
                self._session.nursery.start_soon(task)
        except BaseException as error:
            await self._session.give_up(error)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the group; messages that were not acknowledged come again after their time."""
        with trio.move_on_after(CALL_TIMEOUT_MS / 1000, shield=True):
            self._session.nursery.cancel_scope.cancel()
            self._found_in.close()
            self._found.clear()
            await self._membership.leave()
        await self._session.__aexit__(kind, error, trace)

    def __aiter__(self) -> AsyncIterator[PoppedMessage]:
        return self

    async def __anext__(self) -> PoppedMessage:
        try:
            return await self.receive()
        except ClosedError:
            raise StopAsyncIteration from None

    @overload
    async def receive(self, *, wait: Literal[True] = True) -> PoppedMessage:
        """Wait for the next message."""

    @overload
    async def receive(self, *, wait: bool) -> PoppedMessage | None:
        """Return None without `wait` if no message has come."""

    async def receive(self, *, wait: bool = True) -> PoppedMessage | None:
        """The next message; waits as long as it takes, so bound it with `trio.move_on_after`. Without `wait` None if
        none has come yet. A message whose time was over before it was asked for is left out: it comes again.

        Raises UsageError if its body needs a library that is not installed, RemoteProtocolError if it does not
        decompress or is damaged: the next call gives the next message, and this one comes again after its time.
        UsageError as well where the consumer is not open."""
        while True:
            while self._found:
                found = self._found.popleft()
                if found.visible_at_ms > _now_ms():
                    if isinstance(found, _Unreadable):
                        raise found.error
                    self._counts["received"] += 1
                    return found
                self._counts["expired"] += 1
            try:
                self._found.extend(await self._found_out.receive() if wait else self._found_out.receive_nowait())
            except trio.EndOfChannel:
                raise self._session.not_open() from None
            except trio.WouldBlock:
                return None

    def _put_back(self, message: PoppedMessage | None) -> None:
        """Let the message be the next, while its time lasts: a caller that gave up has not got it."""
        if message is not None:
            self._found.appendleft(message)
            self._counts["received"] -= 1

    async def ack(self, message: PoppedMessage) -> None:
        """Acknowledge the message; answered once the group's ack rule holds that. Raises RemoteError, or
        UnreachableError if no master has answered within ANSWER_TIMEOUT_MS: it may come again then."""
        await self._tell(RequestCode.ACK_MESSAGE, message, {})
        self._counts["acked"] += 1

    async def nack(self, message: PoppedMessage, *, delay_ms: int = 0) -> None:
        """Give the message back: it comes again in `delay_ms`. Raises as `ack`."""
        await self.extend(message, delay_ms)

    async def dead_letter(self, message: PoppedMessage) -> None:
        """Put the message to the group's dead letters (%DLQ%<group>) and acknowledge it. Raises as `ack`."""
        require_type("a popped message", message, PoppedMessage)
        await self._to_dead_letters(message.message)
        await self._tell(RequestCode.ACK_MESSAGE, message, {})

    async def extend(self, message: PoppedMessage, invisible_ms: int) -> None:
        """Keep the message invisible to others for `invisible_ms` from now on. Raises as `ack`; it may come twice
        then."""
        require_type("the time (ms)", invisible_ms, int)
        if invisible_ms < 0:
            raise UsageError(f"{invisible_ms} ms: a time is not negative")
        ext = {"invisibleTime": str(invisible_ms)}
        asked_at_ms = _now_ms()
        answer = await self._tell(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, message, ext)
        self._counts["changed"] += 1
        message.visible_at_ms = asked_at_ms + invisible_ms
        if "popTime" not in answer.ext:
            return  # in order, of a message that is done already
        pop_ms, invisible, revive_id = _times(answer, message.message.broker_name)
        receipt = message.receipt._replace(pop_ms=pop_ms, invisible_ms=invisible, revive_queue_id=revive_id)
        if not receipt.is_ordered:
            receipt = receipt._replace(start_offset=message.message.queue_offset)
        message.receipt = receipt

    def statistics(self) -> dict[str, Any]:
        """Counts since the start, the broker groups that are asked, and the last error ("" if none)."""
        return {**self._counts, "brokers": len(self._asking), "last_error": self._last_error}

    # --- requests about one message -----------------------------------------------------------------------------------
    async def _tell(self, code: RequestCode, message: PoppedMessage, more: dict[str, str]) -> Command:
        require_type("a popped message", message, PoppedMessage)
        ext = self._fields(message.message, message.receipt) | more
        return await self._insist(message.message.broker_name, code, ext)

    def _fields(self, message: Message | MessageView, receipt: Receipt) -> dict[str, str]:
        return {
            "consumerGroup": self._group,
            "topic": real_topic(self._topic, self._group, receipt.kind),
            "queueId": str(message.queue_id),
            "offset": str(message.queue_offset),
            "extraInfo": receipt.encode(),
        }

    async def _to_dead_letters(self, message: Message | MessageView) -> None:
        ext = {"group": self._group, "consumerGroup": self._group, "topic": self._topic}
        fields = ext | {"queueId": str(message.queue_id)} | send_back_fields(message, delay_level=-1)
        await self._insist(message.broker_name, RequestCode.CONSUMER_SEND_MSG_BACK, fields)
        self._counts["dead"] += 1

    async def _insist(self, broker_name: str, code: RequestCode, ext: dict[str, str]) -> Command:
        """Ask until the group has taken it. Raises RemoteError, UnreachableError."""
        deadline, backoff = trio.current_time() + ANSWER_TIMEOUT_MS / 1000, Backoff()
        while True:
            try:
                return await self._ask(broker_name, await self._master(broker_name), Command(code, ext))
            except (RemoteError, UnreachableError) as error:
                self._last_error = str(error)
                is_final = isinstance(error, RemoteError) and error.code in _FINAL
                if is_final or trio.current_time() >= deadline:
                    raise
            with trio.CancelScope(deadline=deadline):
                await self._routes.recover(self._topic, backoff)

    async def _master(self, broker_name: str) -> str:
        """Address of the group's master. Raises UnreachableError."""
        route = await self._routes.get(self._topic)
        address = route.master(broker_name)
        if address is None:
            raise UnreachableError(f"group {broker_name} has no master")
        return address

    async def _ask(
        self, broker_name: str, address: str, command: Command, timeout_ms: int = CALL_TIMEOUT_MS
    ) -> Command:
        """Ask the broker at `address` once. Raises UnreachableError, RemoteError."""
        command.ext["bname"] = broker_name
        answer = await self._session.remoting.call(address, command, timeout_ms)
        if answer.code == ResponseCode.SUCCESS or (command.code == RequestCode.POP_MESSAGE and answer.code in _NOTHING):
            return answer
        raise RemoteError(answer.code, answer.remark or "", address)

    def _lost(self, address: str) -> None:
        self._membership.forget(address)

    def _asked(self, address: str, command: Command) -> Command | None:
        if command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            return None  # members share no queues
        return command.reply(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=f"a pop consumer does not serve {command.code}"
        )

    # --- pops ---------------------------------------------------------------------------------------------------------
    async def _keep_asking(self) -> None:
        """Run a task for each broker group of the topic, and the heartbeats by which operators see this member."""
        while True:
            wait_ms = HEARTBEAT_MS
            try:
                route = await self._routes.get(self._topic)
                names = {queue.broker_name for queue in route.read_queues()}
                for name in self._asking.keys() - names:
                    self._asking.pop(name).cancel()
                for name in names - self._asking.keys():
                    scope = self._asking[name] = trio.CancelScope()
                    self._session.nursery.start_soon(self._ask_on, name, scope)
                await self._membership.heartbeat(route)
            except RmqhaError as error:
                self._last_error = str(error)
                wait_ms = RETRY_MS
            with trio.move_on_after(wait_ms / 1000):
                await self._routes.wait_changed()

    async def _watch_routes(self) -> None:
        """Give up the pops that wait at a broker that is no longer master, as soon as the route says so."""
        while True:
            await self._routes.wait_changed()
            route = self._routes.cached(self._topic)
            for name, (address, scope) in self._polled.items():
                if route is not None and route.master(name) not in (None, address):
                    scope.cancel()

    async def _poll_routes(self) -> None:
        while True:
            await trio.sleep(ROUTE_MS / 1000)
            try:
                await self._routes.refresh(self._topic)
            except RmqhaError as error:
                self._last_error = str(error)

    async def _ask_on(self, broker_name: str, scope: trio.CancelScope) -> None:
        backoff, attempt_id = Backoff(), uuid4().hex
        with scope:
            while True:
                try:
                    found = await self._pop(broker_name, attempt_id)
                except RmqhaError as error:
                    # the same attempt again: in order its messages may have been given already
                    self._last_error = str(error)
                    self._counts["failed_pops"] += 1
                    await self._routes.recover(self._topic, backoff)
                    continue
                backoff.reset()
                if found is None:
                    continue
                attempt_id = uuid4().hex
                if found:
                    await self._found_in.send(found)
                else:
                    await trio.sleep(PAUSE_MS / 1000)

    async def _pop(self, broker_name: str, attempt_id: str) -> _Found | None:
        """The messages of one pop; None if the master has changed meanwhile. Raises UnreachableError, RemoteError,
        RemoteProtocolError, UsageError."""
        ext = {
            "consumerGroup": self._group,
            "topic": self._topic,
            "queueId": "-1",
            "maxMsgNums": str(self._count),
            "invisibleTime": str(self._invisible_ms),
            "pollTime": str(POLL_MS),
            "bornTime": "0",
            "initMode": "0",
            "expType": self._membership.expression_type,
            "exp": self._membership.expression,
            "order": str(self._ordered).lower(),
            "attemptId": attempt_id,
        }
        self._counts["pops"] += 1
        address = await self._master(broker_name)
        answer: Command | None = None
        with trio.CancelScope() as scope:
            self._polled[broker_name] = address, scope
            try:
                answer = await self._ask(broker_name, address, Command(RequestCode.POP_MESSAGE, ext), POP_TIMEOUT_MS)
            finally:
                del self._polled[broker_name]
        if answer is None:
            return None
        return await self._taken(broker_name, answer) if answer.code == ResponseCode.SUCCESS else deque()

    async def _taken(self, broker_name: str, answer: Command) -> _Found:
        """The messages of an answer. Those that are not for this consumer are acknowledged: one whose tag has the hash
        of another tag, and one that stands for too many bytes, which goes to the dead letters. In order, messages
        behind one that cannot be read are not given: that one comes again first. Raises RemoteProtocolError."""
        kept_ms = _now_ms() + self._invisible_ms
        batch = MessageBatch(broker_name, answer.body, max_body_bytes=self._max_body_bytes)
        receipts = Receipts(answer, broker_name)
        found: _Found = deque()
        stopped = set[int]()
        for view in batch:
            if view.queue_id in stopped:
                continue
            if not view.is_damaged:  # nobody can tell which receipt that one has
                receipt = receipts.of(view)
            wanted = self._membership.tags
            if wanted is not None and view.tags not in wanted and not view.is_unreadable:
                self._counts["filtered"] += 1
                await self._done_with(view, receipt)
                continue
            try:
                message = view.message()
            except BodyTooLargeError as error:
                self._counts["too_large"] += 1
                self._last_error = f"message {view.msg_id} of {view.topic}: {error}"
                await self._done_with(view, receipt, is_dead=True)
            except (RemoteProtocolError, UsageError) as error:
                self._last_error = f"message {view.msg_id} of {view.topic}: {error}"
                found.append(_Unreadable(error, kept_ms))
                if self._ordered and view.is_damaged:
                    break  # it may be of any queue
                if self._ordered:
                    stopped.add(view.queue_id)
            else:
                found.append(PoppedMessage(message, receipt, kept_ms, receipts.count_of(view)))
        return found

    async def _done_with(self, view: MessageView, receipt: Receipt, *, is_dead: bool = False) -> None:
        """Acknowledge a message that is not for this consumer. If the broker refuses, it comes again, and the others
        are given."""
        try:
            if is_dead:
                await self._to_dead_letters(view)
            await self._insist(view.broker_name, RequestCode.ACK_MESSAGE, self._fields(view, receipt))
        except (RemoteError, UnreachableError) as error:
            self._last_error = str(error)


_FINAL = frozenset(
    {
        ResponseCode.MESSAGE_ILLEGAL,
        ResponseCode.NO_MESSAGE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.INVALID_PARAMETER,
        ResponseCode.TOPIC_NOT_EXIST,
    }
)
"""Codes that no other try will change."""


class Receipts:
    """Receipts of one answer's messages, and how often they were given."""

    def __init__(self, answer: Command, broker_name: str) -> None:
        """Raises RemoteProtocolError."""
        self._answer = answer
        self._broker_name = broker_name
        self._starts: dict[tuple[str, int], int] = {}
        """First queue offset of the pop, by kind of topic and queue."""
        self._counts: dict[str, int] = {}
        """In order, by queue or message: how often it was given before."""
        for kind, queue_id, start in self._words("startOffsetInfo"):
            at = self._number(queue_id, "startOffsetInfo")
            self._starts[kind, at] = self._number(start, "startOffsetInfo")
        for _, name, count in self._words("orderCountInfo"):
            self._counts[name] = self._number(count, "orderCountInfo")

    def of(self, view: MessageView) -> Receipt:
        """The receipt that the message carries if it comes again, else the one that the answer tells. A message may
        carry that of another pop too, which its producer has passed on. Raises RemoteProtocolError."""
        given = view.properties.get(PROPERTY_POP_CK)
        pop_ms, invisible_ms, revive_id = _times(self._answer, self._broker_name)
        try:
            if given and given.split(" ")[1:2] == [str(pop_ms)]:
                return Receipt.decode(given)
            # one that comes again and has no room for a receipt comes by its retry topic's name
            start = self._starts[kind := kind_of(view.topic), view.queue_id]
        except (KeyError, ValueError) as error:
            raise RemoteProtocolError(
                f"group {view.broker_name} gave a message without a receipt that can be read: {error}"
            ) from None
        queue = view.broker_name, view.queue_id, int(view.queue_offset)
        return Receipt(start, pop_ms, invisible_ms, revive_id, kind, *queue)

    def count_of(self, view: MessageView) -> int:
        """Number of times that the message was given to the group, this one included."""
        before = self._counts.get(f"qo{view.queue_id}%{view.queue_offset}")
        return 1 + max(view.reconsume_times, self._counts.get(str(view.queue_id), 0) if before is None else before)

    def _words(self, name: str) -> list[list[str]]:
        """Entries of three words each. Raises RemoteProtocolError."""
        entries = [item.split(" ") for item in self._answer.ext.get(name, "").split(";") if item]
        if any(len(words) != 3 for words in entries):
            raise RemoteProtocolError(f"the answer of group {self._broker_name} to a pop has no readable {name}")
        return entries

    def _number(self, word: str, name: str) -> int:
        return number({name: word}, name, f"group {self._broker_name}", least=0)


def _times(answer: Command, broker_name: str) -> tuple[int, int, int]:
    """Time (ms since 1970) at which the messages were given, for how long (ms), and the revive queue. Raises
    RemoteProtocolError."""
    ext, whose = answer.ext, f"group {broker_name}"
    return number(ext, "popTime", whose), number(ext, "invisibleTime", whose), number(ext, "reviveQid", whose)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
