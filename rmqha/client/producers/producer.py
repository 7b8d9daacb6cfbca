"""Producer: sends until the group has acknowledged, through failovers. Data plane.

Rules: a try that fails asks the name server at once and goes on at the new master with the same UNIQ_KEY, so that a
duplicate, which a lost answer makes possible, can be recognised. A message with an ordering key or a queue waits for
its group; any other takes a queue of another group. `send_many` keeps the order per key by having one message of a key
on its way at a time: several in flight could be stored in another order after a failure, whatever a client does next.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import ip_address
from types import TracebackType
from typing import NoReturn

import trio

from rmqha.client import compression as compressions
from rmqha.client.arguments import require_type
from rmqha.client.names import check_group
from rmqha.client.producers.batching import BatchPipeline
from rmqha.client.producers.hedge import Hedge, HedgedRequest
from rmqha.client.producers.outgoing import Outgoing, OutgoingMessage, batch_part, check_message
from rmqha.client.producers.pipeline import Pipeline
from rmqha.client.producers.result import (
    NOTHING_WRITTEN,
    STATUS_OF_CODE,
    OnResult,
    SendResult,
    SendStatus,
    SendTally,
    result_of,
)
from rmqha.client.producers.timing import recall, timer_properties
from rmqha.client.route import MessageQueue, TopicRoute
from rmqha.client.route_table import Backoff
from rmqha.client.session import ClientSession
from rmqha.host.access.security import Security
from rmqha.host.clock import local_month_ms
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import RemoteError, RmqhaError, UnreachableError, UsageError
from rmqha.model.message import UniqueKeys, java_string_hash
from rmqha.wire.command import Command

SEND_TIMEOUT_MS = 3_000
RETRIABLE = frozenset(
    (
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
    )
)


@dataclass(slots=True)
class _Progress:
    """Outcome so far of the tries of one message."""

    timeout_ms: int
    deadline: float
    failure: RmqhaError | None = None
    tries: int = 0
    copies_possible: int = 0
    avoid: str = ""
    has_outdated_route: bool = False
    """True once a broker had no such queue."""


@dataclass(slots=True)
class _Plan:
    """The queues of a route, listed once per route."""

    route: TopicRoute
    ordered: list[MessageQueue]
    writable: list[MessageQueue]
    turn: int = 0


class Producer:
    """Producer of messages. Async context manager; any number of tasks may send at the same time over one connection
    per broker."""

    def __init__(
        self,
        namesrv: str,
        group: str = "rmqha-producer",
        *,
        compression: str | None = "zlib",
        security: Security | None = None,
    ) -> None:
        """`namesrv`: "host:port" or several joined by ";". Bodies over 4 KiB are compressed by "zlib", "lz4" or "zstd";
        None leaves them. Raises UsageError for anything else, a missing package, a group that no broker takes."""
        check_group(group)
        self._session = ClientSession(namesrv, self._asked, security, self._lost)
        self._routes = self._session.routes
        self._remoting = self._session.remoting
        self._group = group
        self._compression = None if compression is None else compressions.compression(compression)
        self._unique_keys: UniqueKeys | None = None
        self._plans: dict[str, _Plan] = {}
        self._hedge = Hedge(self._routes, self._remoting)
        self._hedged_count = 0
        self._in_flight = 0
        self._tally = SendTally()

    async def __aenter__(self) -> Producer:
        await self._session.__aenter__()
        host = ip_address(self._session.local_host).packed
        # two producers of a process, or of two containers with the same address and pid, must not make the same ids
        self._unique_keys = UniqueKeys(host, self._session.process_id, secrets.randbits(32), local_month_ms)
        self._session.nursery.start_soon(self._hedge.run)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.__aexit__(kind, error, trace)

    async def route(self, topic: str) -> TopicRoute:
        """Route of `topic`. Raises UnreachableError if no name server answers, RemoteError (17) if none knows it."""
        return await self._routes.get(topic)

    async def send(
        self,
        topic: str,
        body: bytes,
        *,
        keys: str = "",
        tags: str = "",
        properties: Mapping[str, str] | None = None,
        key: str | None = None,
        queue_id: int | None = None,
        deliver_at: datetime | None = None,
        delay: timedelta | None = None,
        timeout_ms: int = SEND_TIMEOUT_MS,
        require_ok: bool = False,
    ) -> SendResult:
        """Send one message and wait for the answer, trying again until `timeout_ms` are over.

        With `deliver_at` (which has a time zone) or `delay` consumers get it then, and the result's `recall_handle`
        takes it back before. `delay` counts from when the broker takes the message.

        With `require_ok` an answer that the record is stored but not copied or flushed in time is tried again as well,
        else it is returned with that status, as the Java client does.
        Raises UsageError for a message that no broker takes, RemoteError for an answer that a retry cannot change or
        the last one before the deadline, UnreachableError if no answer came, RemoteProtocolError for one that cannot be
        read: the message may be stored then.
        """
        timed = timer_properties(deliver_at, delay, properties or {}, _wall_ms())
        message = OutgoingMessage(topic, body, keys, tags, timed, key, queue_id)
        return await self.send_message(message, timeout_ms=timeout_ms, require_ok=require_ok)

    async def recall(self, handle: str, *, timeout_ms: int = SEND_TIMEOUT_MS) -> str:
        """Take back a message that waits for its time, and return its id. `handle`: the `recall_handle` of its send's
        result.

        Once the call returns the message is not delivered any more; no error tells that there was no such one. Raises
        UsageError for what is no handle, RemoteError for a broker that refuses (604: its time has come, 16: its
        recallMessageEnable is false) or has not confirmed in time, UnreachableError if no answer came."""
        return await recall(self._routes, self._remoting, self._group, handle, timeout_ms)

    async def send_message(
        self, message: OutgoingMessage, *, timeout_ms: int = SEND_TIMEOUT_MS, require_ok: bool = False
    ) -> SendResult:
        """Send a message made by the application, as `send` does."""
        check_message(message)
        return await self._deliver(self._outgoing(message), timeout_ms, require_ok)

    async def send_batch(
        self, messages: Sequence[OutgoingMessage], *, timeout_ms: int = SEND_TIMEOUT_MS, require_ok: bool = False
    ) -> SendResult:
        """Send messages of one topic as one request into one queue: all are stored one after the other or none is.

        The first message decides on the queue. `queue_offset` is that of the first. Raises as `send`."""
        if not messages:
            raise UsageError("a batch holds no message")
        first = messages[0]
        for message in messages:
            check_message(message)
            if message.topic != first.topic or message.lane != first.lane:
                raise UsageError("the messages of a batch must share their topic and their ordering key or queue")
            if name := message.ignored_in_batches:
                raise UsageError(f"property {name} does nothing in a batch: send the message by itself")
        unique_keys = [message.unique_key or self._unique_key() for message in messages]
        return await self._send_parts(
            first, list(map(batch_part, messages, unique_keys)), unique_keys, timeout_ms, require_ok
        )

    async def _send_parts(
        self,
        first: OutgoingMessage,
        parts: Sequence[bytes],
        unique_keys: Sequence[str],
        timeout_ms: int,
        require_ok: bool,
    ) -> SendResult:
        whole = OutgoingMessage(first.topic, b"".join(parts), key=first.key, queue_id=first.queue_id)
        check_message(whole)
        outgoing = Outgoing(RequestCode.SEND_BATCH_MESSAGE, self._group, whole, self._unique_key(), _wall_ms(), None)
        outgoing.unique_key = ",".join(unique_keys)
        return await self._deliver(outgoing, timeout_ms, require_ok)

    async def send_oneway(self, message: OutgoingMessage) -> None:
        """Hand the message to the connection and forget it: no answer, no retry, no promise. Raises UnreachableError if
        the group has no master or its connection cannot be made."""
        check_message(message)
        outgoing = self._outgoing(message)
        queue, address = self._choose(await self._routes.get(message.topic), outgoing, "")
        if address is None:
            raise UnreachableError(f"group {queue.broker_name} has no master")
        await self._remoting.oneway(address, outgoing.request(queue))
        self._tally.sent += 1

    async def send_many(
        self,
        messages: Iterable[OutgoingMessage] | AsyncIterable[OutgoingMessage],
        *,
        window: int = 64,
        batch: int = 1,
        timeout_ms: int = SEND_TIMEOUT_MS,
        require_ok: bool = True,
        on_result: OnResult | None = None,
    ) -> SendTally:
        """Send all, at most `window` on their way at once, and report each as it ends: `on_result(position, message,
        result or error)`.

        `batch` above 1 puts up to so many of them into one request when they are there at the same time; long bodies
        that are compressed, and delayed messages, go alone. Messages with the same ordering key (or queue id) are
        stored in the order given (a copy of a batch that a lost answer left follows it as a whole); one that fails for
        good leaves a gap and the next goes on. `timeout_ms` counts per message from its first try. Never raises for a
        message; UsageError for a window below 1 or below `batch`, for what is no OutgoingMessage, where the producer is
        not open, and once it is closed meanwhile: then no further message is taken. What `messages` raises is raised
        once all before it have been reported; what `on_result` raises ends the sending at once."""
        check_open = self._session.check_open
        check_open()

        async def send(message: OutgoingMessage) -> SendResult:
            return await self.send_message(message, timeout_ms=timeout_ms, require_ok=require_ok)

        async def send_parts(first: OutgoingMessage, parts: Sequence[bytes], unique_keys: Sequence[str]) -> SendResult:
            return await self._send_parts(first, parts, unique_keys, timeout_ms, require_ok)

        if batch > 1:
            compresses = self._compression is not None
            batches = BatchPipeline(send, send_parts, self._unique_key, check_open, on_result, compresses=compresses)
            return await batches.run(messages, window, batch)
        return await Pipeline(send, check_open, on_result).run(messages, window)

    def statistics(self) -> dict[str, int]:
        """Counts since the start; `in_flight` is now."""
        return {
            "sent": self._tally.sent,
            "acknowledged": self._tally.acknowledged,
            "failed": self._tally.failed,
            "retried": self._tally.retried,
            "duplicates_possible": self._tally.duplicates_possible,
            "hedged": self._hedged_count,
            "in_flight": self._in_flight,
            **{f"route_{name}": count for name, count in self._routes.statistics().items()},
        }

    # -- one message -----------------------------------------------------------------------------------------------

    def _unique_key(self) -> str:
        """A new UNIQ_KEY. Raises UsageError where the producer was not opened."""
        if self._unique_keys is None:
            raise self._session.not_open()
        return self._unique_keys.make(_wall_ms())

    def _asked(self, address: str, command: Command) -> Command | None:
        """Refuse requests that brokers push: none concerns a producer."""
        return None

    def _lost(self, address: str) -> None:
        """The connection to `address` is gone."""

    def _outgoing(self, message: OutgoingMessage, sys_flag: int = 0) -> Outgoing:
        compression, code = self._compression, RequestCode.SEND_MESSAGE_V2
        unique_key = message.unique_key or self._unique_key()
        return Outgoing(code, self._group, message, unique_key, _wall_ms(), compression, sys_flag)

    async def _deliver(self, outgoing: Outgoing, timeout_ms: int, require_ok: bool) -> SendResult:
        require_type("timeout_ms", timeout_ms, (int, float), "; 3000 are three seconds")
        progress = _Progress(timeout_ms, trio.current_time() + timeout_ms / 1000)
        self._tally.sent += 1
        self._in_flight += 1
        try:
            result = await self._try_on(outgoing, progress, require_ok)
        except RmqhaError:
            self._tally.failed += 1
            raise
        finally:
            self._in_flight -= 1
        self._tally.add(result)
        return result

    async def _try_on(self, outgoing: Outgoing, progress: _Progress, require_ok: bool) -> SendResult:
        """Try until an answer or the deadline ends it. The usual case, a cached route and an answer, takes one cancel
        scope: they cost more than the rest of this method."""
        topic, backoff = outgoing.topic, Backoff()
        while True:
            route = self._routes.cached(topic) or await self._ask_route(topic, progress)
            if route is not None:
                queue, address = self._choose(route, outgoing, progress.avoid)
                progress.avoid = queue.broker_name
                answer = await self._ask(outgoing, queue, address, progress)
                if answer is not None and address is not None:
                    result = self._judge(answer, outgoing, queue, address, route, progress)
                    if result is not None and (result.status is SendStatus.SEND_OK or not require_ok):
                        return result
            with trio.CancelScope(deadline=progress.deadline):
                await self._routes.recover(topic, backoff)
            if trio.current_time() >= progress.deadline:
                _raise_too_late(outgoing, progress)

    async def _ask_route(self, topic: str, progress: _Progress) -> TopicRoute | None:
        with trio.CancelScope(deadline=progress.deadline):
            try:
                return await self._routes.get(topic)
            except UnreachableError as error:
                progress.failure = error
        return None

    async def _ask(
        self, outgoing: Outgoing, queue: MessageQueue, address: str | None, progress: _Progress
    ) -> Command | None:
        """One request. None if no answer came, with the reason in `progress`."""
        if address is None:
            progress.failure = UnreachableError(f"group {queue.broker_name} has no master")
            return None
        progress.tries += 1
        with trio.CancelScope(deadline=progress.deadline) as scope:
            waiting = HedgedRequest(outgoing.topic, queue.broker_name, address, trio.current_time(), scope)
            self._hedge.tries.add(waiting)
            try:
                return await self._remoting.call(address, outgoing.request(queue), None)
            except UnreachableError as error:
                progress.failure = error
                progress.copies_possible += 1
                return None
            finally:
                self._hedge.tries.remove(waiting)
        progress.copies_possible += 1
        if waiting.given_up:
            self._hedged_count += 1
            progress.failure = UnreachableError(
                f"{address} did not answer and is no longer master of {queue.broker_name}"
            )
        return None

    def _judge(
        self,
        answer: Command,
        outgoing: Outgoing,
        queue: MessageQueue,
        address: str,
        route: TopicRoute,
        progress: _Progress,
    ) -> SendResult | None:
        """The result that an answer stands for, None to try again. Raises RemoteError or RemoteProtocolError if trying
        again cannot help."""
        status = STATUS_OF_CODE.get(answer.code)
        if status is not SendStatus.SEND_OK:
            progress.failure = RemoteError(answer.code, answer.remark or "", address)
        if status is None:
            # A master that has just been promoted may not know a topic yet that the name server still routes to it.
            lagging = answer.code == ResponseCode.TOPIC_NOT_EXIST and not route.auto_created
            if answer.code == ResponseCode.INVALID_PARAMETER and not progress.has_outdated_route:
                # the topic was made again with fewer queues: nothing is written, and a new route says which there are
                progress.has_outdated_route = True
                return None
            if answer.code not in RETRIABLE and not lagging:
                raise RemoteError(answer.code, answer.remark or "", address)
            progress.copies_possible += answer.code not in NOTHING_WRITTEN
            return None
        tries, copies = progress.tries, progress.copies_possible
        result = result_of(answer, status, outgoing.unique_key, queue, address, tries=tries, copies_possible=copies)
        progress.copies_possible += status is not SendStatus.SEND_OK
        return result

    def _choose(self, route: TopicRoute, outgoing: Outgoing, avoid: str) -> tuple[MessageQueue, str | None]:
        """The queue for the next try and the address of its master, if there is one. Raises UsageError if there is no
        such queue."""
        plan = self._plans.get(outgoing.topic)
        if plan is None or plan.route is not route:
            plan = _Plan(route, route.ordered_queues(), route.write_queues(), plan.turn if plan else 0)
            self._plans[outgoing.topic] = plan
        if not plan.ordered:
            raise RemoteError(ResponseCode.NO_PERMISSION, f"topic {outgoing.topic} has no queue that may be written")
        queue = self._pinned_queue(plan, outgoing) if outgoing.pinned else self._next_queue(plan, avoid)
        return queue, route.master(queue.broker_name)

    def _pinned_queue(self, plan: _Plan, outgoing: Outgoing) -> MessageQueue:
        if outgoing.queue_id is None:
            return plan.ordered[abs(java_string_hash(outgoing.key or "")) % len(plan.ordered)]
        for queue in plan.ordered:
            if queue.queue_id == outgoing.queue_id:
                return queue
        raise UsageError(f"topic {outgoing.topic} has no queue {outgoing.queue_id} that may be written")

    def _next_queue(self, plan: _Plan, avoid: str) -> MessageQueue:
        queues = plan.writable or plan.ordered
        for _ in range(len(queues)):
            plan.turn += 1
            queue = queues[plan.turn % len(queues)]
            if queue.broker_name != avoid:
                return queue
        return queues[plan.turn % len(queues)]


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _raise_too_late(outgoing: Outgoing, progress: _Progress) -> NoReturn:
    text = f"topic {outgoing.topic}: not acknowledged within {progress.timeout_ms} ms after {progress.tries} tries"
    failure = progress.failure
    if isinstance(failure, RemoteError):
        raise RemoteError(failure.code, f"{failure.remark or 'no remark'} ({text})", failure.address)
    raise UnreachableError(f"{text}; last: {failure or 'no answer'}")
