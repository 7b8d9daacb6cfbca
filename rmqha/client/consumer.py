"""Consumer: the messages of a topic as an async iterator, through failovers. Control plane; decoding is in `message`.

Life of a queue: the group's members divide the queues (heartbeat 34, list 38, notice 40) → a task per own queue finds
the start → pulls with long polling, one batch ahead of the reader → what the reader has finished is committed each 5 s
and at the end. At a change of the master the queue goes on from its local offset, never from the broker's copy of the
committed one, which may be older (A13). Messages come at least once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal

import trio

from rmqha.client.membership import CALL_TIMEOUT_MS, Membership
from rmqha.client.message import Message, decode_messages
from rmqha.client.outgoing import check_topic
from rmqha.client.rebalance import allocate_averagely
from rmqha.client.route import Backoff, MessageQueue, TopicRoute
from rmqha.client.session import ClientSession
from rmqha.host.security import Security
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import RemoteError, RemoteProtocolError, RmqhaError, UnreachableError, UsageError
from rmqha.wire.command import Command

Start = Literal["committed", "first", "last"]

SUSPEND_MS = 15_000
PULL_TIMEOUT_MS = 20_000
CLOSE_TIMEOUT_MS = 3_000
COMMIT_MS = 5_000
REBALANCE_MS = 20_000
RETRY_MS = 1_000
ROUTE_MS = 5_000
"""A consumer asks for the route more often than a producer: its long poll to a frozen master shows nothing for 15 s."""
EMPTY_ANSWER_MS = 50
PULL_MAX_COUNT = 512
PULL_MAX_BYTES = 1024 * 1024
SUSPEND_AND_SUBSCRIPTION = 2 | 4
"""sysFlag of a pull: hold it while there is nothing, and the subscription is in the request."""


@dataclass(eq=False)
class _Assigned:
    """A queue that this member reads. `pulled` is the next offset to ask for, `finished` that of the reader."""

    queue: MessageQueue
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    pull_scope: trio.CancelScope | None = None
    address: str = ""
    preferred_id: int = 0
    pulled: int = -1
    finished: int = -1
    committed: int = -1
    dropped: bool = False


@dataclass(slots=True)
class _Batch:
    assigned: _Assigned
    messages: list[Message]
    next_offset: int
    index: int = 0


class Consumer:
    """Async context manager and async iterator of Message; one task reads from it.

    A message counts as finished when the next one is asked for, the last one when the block ends without an error.
    """

    def __init__(
        self,
        namesrv: str,
        group: str,
        topic: str,
        tags: str = "*",
        *,
        start: Start = "committed",
        standalone: bool = False,
        security: Security | None = None,
    ) -> None:
        """`tags`: "*" or "A || B". `start`: where queues begin at first: "committed" (nothing committed: the first
        message), "first" or "last". `standalone`: read all queues without joining the group, commit nothing.

        Raises UsageError for a wrong address, topic or expression."""
        check_topic(topic)
        if not group:
            raise UsageError("a consumer needs the name of its group")
        self._session = ClientSession(namesrv, on_request=self._asked, security=security)
        self._routes = self._session.routes
        self._remoting = self._session.remoting
        self._group = group
        self._topic = topic
        self._membership = Membership(self._session, group, topic, tags)
        self._start = start
        self._standalone = standalone
        self._assigned: dict[MessageQueue, _Assigned] = {}
        self._kept_offsets: dict[MessageQueue, int] = {}
        self._rebalanced = False
        self._wake = trio.Event()
        self._batch: _Batch | None = None
        self._unfinished: tuple[_Assigned, int] | None = None
        self._ready_in, self._ready = trio.open_memory_channel[_Batch](0)
        self._counts = dict.fromkeys(
            ("received", "pulls", "failed_pulls", "offset_moves", "rebalances", "commits", "failed_commits"), 0
        )
        self._last_error = ""

    async def __aenter__(self) -> Consumer:
        """Raises UnreachableError if no name server answers, RemoteError (17) if none knows the topic."""
        await self._session.__aenter__()
        try:
            await self._routes.get(self._topic)
            nursery = self._session.nursery
            for task in (self._keep_rebalanced, self._watch_routes, self._poll_routes, self._keep_committed):
                nursery.start_soon(task)
        except BaseException as error:
            await self._session.__aexit__(type(error), error, error.__traceback__)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._finish()
        with trio.move_on_after(CLOSE_TIMEOUT_MS / 1000, shield=True):
            # no task may join again or pull on while this member leaves
            self._session.nursery.cancel_scope.cancel()
            await self.commit()
            if not self._standalone:
                await self._membership.leave()
        await self._session.__aexit__(kind, error, trace)

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        return await self.receive()

    async def receive(self) -> Message:
        """The next message; waits as long as it takes, so bound it with `trio.move_on_after`."""
        self._finish()
        while True:
            batch = self._batch
            if batch is None:
                batch = self._batch = await self._ready.receive()
            if batch.assigned.dropped or batch.index == len(batch.messages):
                if not batch.assigned.dropped:
                    batch.assigned.finished = batch.next_offset
                self._batch = None
                continue
            message = batch.messages[batch.index]
            batch.index += 1
            self._unfinished = batch.assigned, message.queue_offset + 1
            self._counts["received"] += 1
            return message

    def assignment(self) -> list[MessageQueue]:
        """The queues that this member reads now."""
        return sorted(self._assigned)

    async def commit(self) -> None:
        """Tell the brokers now what has been finished; what fails is tried again at the next turn."""
        if self._standalone:
            return
        for assigned in list(self._assigned.values()):
            await self._commit(assigned)

    def statistics(self) -> dict[str, Any]:
        """Counts since the start, the queues of now, and the last error ("" if none)."""
        return {
            **self._counts,
            "queues": len(self._assigned),
            "last_error": self._last_error,
            **{f"route_{name}": number for name, number in self._routes.statistics().items()},
        }

    def _finish(self) -> None:
        if self._unfinished is not None:
            assigned, offset = self._unfinished
            assigned.finished = max(assigned.finished, offset)
            self._unfinished = None

    def _asked(self, address: str, command: Command) -> Command | None:
        """What brokers push: only the notice that the group's members have changed concerns a pulling client."""
        if command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            self._wake.set()
            return None
        return command.reply(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=f"a consumer does not serve {command.code}"
        )

    # -- members and queues ----------------------------------------------------------------------------------------

    async def _keep_rebalanced(self) -> None:
        while True:
            self._wake = trio.Event()
            wait_ms = REBALANCE_MS
            try:
                await self._rebalance(await self._routes.get(self._topic))
            except RmqhaError as error:
                self._last_error = str(error)
                wait_ms = RETRY_MS
            with trio.move_on_after(wait_ms / 1000):
                await self._wake.wait()

    async def _watch_routes(self) -> None:
        """Give up the long polls to who is no longer the one to ask, as soon as the route says so."""
        while True:
            await self._routes.wait_changed()
            route = self._routes.cached(self._topic)
            for assigned in self._assigned.values():
                if route is not None and assigned.pull_scope is not None:
                    reader = route.reader(assigned.queue.broker_name, assigned.preferred_id)
                    if reader not in (None, assigned.address):
                        assigned.pull_scope.cancel()
            self._wake.set()

    async def _poll_routes(self) -> None:
        while True:
            await trio.sleep(ROUTE_MS / 1000)
            with suppress(RmqhaError):
                await self._routes.refresh(self._topic)

    async def _rebalance(self, route: TopicRoute) -> None:
        if route.auto_created:
            raise RemoteError(ResponseCode.TOPIC_NOT_EXIST, f"topic {self._topic} has no messages yet")
        queues = route.read_queues()
        if not self._standalone:
            members = await self._membership.members(route)
            queues = allocate_averagely(queues, members, self._membership.client_id)
        mine = set(queues)
        lost = [assigned for queue, assigned in self._assigned.items() if queue not in mine]
        for assigned in lost:
            await self._drop(assigned)
        gained = [queue for queue in queues if queue not in self._assigned]
        for queue in gained:
            assigned = self._assigned[queue] = _Assigned(queue)
            start = self._start if not self._rebalanced or self._standalone else "committed"
            self._session.nursery.start_soon(self._read_queue, assigned, start)
        if lost or gained:
            self._counts["rebalances"] += 1
        self._rebalanced = True

    async def _drop(self, assigned: _Assigned) -> None:
        """Stop reading a queue; what could not be committed is remembered in case it comes back."""
        assigned.dropped = True
        assigned.scope.cancel()
        if self._unfinished is not None and self._unfinished[0] is assigned:
            self._unfinished = None
        del self._assigned[assigned.queue]
        if not await self._commit(assigned):
            self._kept_offsets[assigned.queue] = assigned.finished

    # -- offsets ---------------------------------------------------------------------------------------------------

    async def _keep_committed(self) -> None:
        while True:
            await trio.sleep(COMMIT_MS / 1000)
            await self.commit()

    async def _commit(self, assigned: _Assigned) -> bool:
        """True if the broker knows all that is finished."""
        offset = assigned.finished
        if self._standalone or offset < 0 or offset == assigned.committed:
            return True
        try:
            await self._ask_group(assigned.queue, RequestCode.UPDATE_CONSUMER_OFFSET, {"commitOffset": str(offset)})
        except RmqhaError as error:
            self._last_error = str(error)
            self._counts["failed_commits"] += 1
            return False
        assigned.committed = offset
        self._counts["commits"] += 1
        return True

    async def _ask_group(self, queue: MessageQueue, code: RequestCode, more: dict[str, str]) -> Command:
        """Ask the queue's master, or a slave if there is none. Raises UnreachableError, RemoteError."""
        route = await self._routes.get(self._topic)
        address = route.reader(queue.broker_name)
        if address is None:
            raise UnreachableError(f"group {queue.broker_name} has no broker")
        ext = {
            "consumerGroup": self._group,
            "topic": queue.topic,
            "queueId": str(queue.queue_id),
            "bname": queue.broker_name,
            **more,
        }
        answer = await self._remoting.call(address, Command(code, ext), CALL_TIMEOUT_MS)
        if answer.code != ResponseCode.SUCCESS:
            raise RemoteError(answer.code, answer.remark or "", address)
        return answer

    async def _first_offset(self, queue: MessageQueue, start: Start) -> int:
        """Where to begin. Raises UnreachableError, RemoteError."""
        if start == "committed":
            kept = self._kept_offsets.get(queue, -1)
            try:
                answer = await self._ask_group(queue, RequestCode.QUERY_CONSUMER_OFFSET, {})
                return max(kept, _offset(answer))
            except RemoteError as error:
                if error.code != ResponseCode.QUERY_NOT_FOUND:
                    raise
            if kept >= 0:
                return kept
        if start == "last":
            return _offset(await self._ask_group(queue, RequestCode.GET_MAX_OFFSET, {"committed": "true"}))
        return _offset(await self._ask_group(queue, RequestCode.GET_MIN_OFFSET, {}))

    # -- one queue -------------------------------------------------------------------------------------------------

    async def _read_queue(self, assigned: _Assigned, start: Start) -> None:
        backoff = Backoff()
        with assigned.scope:
            while assigned.pulled < 0:
                try:
                    assigned.pulled = await self._first_offset(assigned.queue, start)
                except RmqhaError as error:
                    await self._pull_failed(error, backoff)
            self._kept_offsets.pop(assigned.queue, None)
            backoff.reset()
            while True:
                began = trio.current_time()
                offset = assigned.pulled
                try:
                    answer = await self._pull(assigned)
                    messages = self._accept(assigned, answer) if answer is not None else []
                except RmqhaError as error:
                    await self._pull_failed(error, backoff)
                    continue
                backoff.reset()
                if messages or assigned.pulled > offset:
                    await self._ready_in.send(_Batch(assigned, messages, assigned.pulled))
                elif answer is not None and (trio.current_time() - began) * 1000 < EMPTY_ANSWER_MS:
                    # an answer without progress that was not held, e.g. of a slave that is still behind
                    await trio.sleep(EMPTY_ANSWER_MS / 1000)

    async def _pull_failed(self, error: RmqhaError, backoff: Backoff) -> None:
        self._last_error = str(error)
        self._counts["failed_pulls"] += 1
        await self._routes.recover(self._topic, backoff)

    async def _pull(self, assigned: _Assigned) -> Command | None:
        """One pull; None if the route changed meanwhile. Raises UnreachableError."""
        queue = assigned.queue
        route = await self._routes.get(self._topic)
        address = route.reader(queue.broker_name, assigned.preferred_id)
        if address is None:
            raise UnreachableError(f"group {queue.broker_name} has no broker")
        ext = {
            "consumerGroup": self._group,
            "topic": queue.topic,
            "queueId": str(queue.queue_id),
            "queueOffset": str(assigned.pulled),
            "maxMsgNums": str(PULL_MAX_COUNT),
            "maxMsgBytes": str(PULL_MAX_BYTES),
            "sysFlag": str(SUSPEND_AND_SUBSCRIPTION),
            "commitOffset": "0",
            "suspendTimeoutMillis": str(SUSPEND_MS),
            "subscription": self._membership.expression,
            "subVersion": str(self._membership.sub_version),
            "expressionType": "TAG",
            "bname": queue.broker_name,
        }
        self._counts["pulls"] += 1
        assigned.address = address
        with trio.CancelScope() as assigned.pull_scope:
            try:
                return await self._remoting.call(address, Command(RequestCode.PULL_MESSAGE, ext), PULL_TIMEOUT_MS)
            except UnreachableError:
                assigned.preferred_id = 0
                raise
            finally:
                assigned.pull_scope = None
        return None

    def _accept(self, assigned: _Assigned, answer: Command) -> list[Message]:
        """The wanted messages of an answer; moves `pulled`. Raises RemoteError for one that is no answer to a pull."""
        ext, offset = answer.ext, assigned.pulled
        next_offset = _number(ext, "nextBeginOffset", offset)
        suggested = _number(ext, "suggestWhichBrokerId", assigned.preferred_id)
        messages: list[Message] = []
        match answer.code:
            case ResponseCode.SUCCESS:
                tags = self._membership.tags
                messages = [
                    message
                    for message in decode_messages(assigned.queue.broker_name, answer.body)
                    if message.queue_offset >= offset and (tags is None or message.tags in tags)
                ]
            case ResponseCode.PULL_NOT_FOUND | ResponseCode.PULL_RETRY_IMMEDIATELY:
                next_offset = max(next_offset, offset)
            case ResponseCode.PULL_OFFSET_MOVED:
                next_offset = self._moved(assigned, ext, next_offset)
            case _:
                assigned.preferred_id = 0
                raise RemoteError(answer.code, answer.remark or "", assigned.address)
        assigned.pulled = next_offset
        assigned.preferred_id = suggested
        return messages

    def _moved(self, assigned: _Assigned, ext: dict[str, str], next_offset: int) -> int:
        """The offset is not in the queue. Below its start: go there. Beyond its end: the master's word counts, for a
        new one may have less (AP); a slave's does not, for it may only be behind."""
        offset = assigned.pulled
        low, high = _number(ext, "minOffset", 0), _number(ext, "maxOffset", offset)
        if offset > high:
            route = self._routes.cached(self._topic)
            if route is None or assigned.address != route.master(assigned.queue.broker_name):
                return offset
            next_offset = high
            # what is finished counts in the old log; the new one continues from its own end
            assigned.finished = min(assigned.finished, high)
        elif offset < low:
            next_offset = low
        self._counts["offset_moves"] += 1
        return next_offset


def _number(ext: dict[str, str], name: str, default: int) -> int:
    text = ext.get(name, "")
    return int(text) if text.lstrip("-").isdigit() else default


def _offset(answer: Command) -> int:
    offset = _number(answer.ext, "offset", -1)
    if offset < 0:
        raise RemoteProtocolError(f"an answer lacks its offset: {answer.ext}")
    return offset
