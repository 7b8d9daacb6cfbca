"""Consumer: the messages of a topic as an async iterator, through failovers. Control plane; decoding is in `message`.

Life of a queue: the group's members divide the queues (heartbeat 34, list 38, notice 40) → a task per own queue finds
the start → pulls with long polling, one batch ahead of the reader → offsets of finished messages are committed each 5 s
and at the end. At a change of the master the queue goes on from its local offset, never from the broker's copy of the
committed one, which may be older. Messages come at least once. A message that `retry` sends back comes again by the
group's retry topic, which its members read as well.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Literal, get_args, overload

import trio

from rmqha.client.answers import number
from rmqha.client.compression import MAX_BODY_BYTES, BodyTooLargeError
from rmqha.client.consumers.assigned import PULL_MAX_COUNT, PrefetchedMessages, ProcessQueue, reset_offsets
from rmqha.client.consumers.expression import TAG
from rmqha.client.consumers.membership import ConsumerMembership, allocate_averagely, send_back_fields
from rmqha.client.consumers.message import Message, MessageBatch, MessageView
from rmqha.client.consumers.offsets import BrokerOffsets, FileOffsets, Offsets, answered_offset
from rmqha.client.consumers.read_range import ReadRange, first_offset_request
from rmqha.client.heartbeat import CALL_TIMEOUT_MS, LEAVE_TIMEOUT_MS
from rmqha.client.names import check_group, check_topic
from rmqha.client.route import MessageQueue
from rmqha.client.route_table import Backoff
from rmqha.client.session import ClientSession, ClosedError
from rmqha.host.access.security import Security
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import RemoteError, RemoteProtocolError, RmqhaError, UnreachableError, UsageError
from rmqha.model.message import RETRY_PREFIX
from rmqha.wire.command import Command

Start = Literal["committed", "first", "last"]

SUSPEND_MS = 15_000
PULL_TIMEOUT_MS = 20_000
CLOSE_TIMEOUT_MS = 3_000
SEND_BACK_TIMEOUT_MS = 10_000
COMMIT_MS = 5_000
REBALANCE_MS = 20_000
RETRY_MS = 1_000
RETRY_REFRESHES = 5
"""Number of times that a consumer asks for its group's retry topic at short intervals; then as often as for any
route."""
ROUTE_MS = 5_000
"""A consumer asks for the route more often than a producer: its long poll to a frozen master shows nothing for 15 s."""
EMPTY_ANSWER_MS = 50
OFFSET_RESET = "OFFSET_RESET"
"""Remark of an answer by which a broker tells a reset (useServerSideResetOffset)."""
PULL_MAX_BYTES = 1024 * 1024
SUSPEND_AND_SUBSCRIPTION = 2 | 4
"""sysFlag of a pull: hold it while there is nothing, and the subscription is in the request."""


class Batches:
    """Async iterator of `Consumer.receive_batch`."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    def __aiter__(self) -> Batches:
        return self

    async def __anext__(self) -> MessageBatch:
        try:
            return await self._consumer.receive_batch()
        except ClosedError:
            raise StopAsyncIteration from None


class Consumer:
    """Consumer of a topic. Async context manager and async iterator of Message, which ends with it; one task reads.

    A message (or batch) counts as finished when the next one is asked for, the last one when the block ends without an
    error.
    """

    def __init__(
        self,
        namesrv: str,
        group: str,
        topic: str,
        tags: str = "*",
        *,
        selector: str = "",
        start: Start = "committed",
        standalone: bool = False,
        read_range: ReadRange | None = None,
        offset_file: str | os.PathLike[str] | None = None,
        security: Security | None = None,
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        """`tags`: "*" or "A || B"; `selector`: SQL92 over the properties instead (brokers need enablePropertyFilter).
        `start`: where queues begin that have no offset of the group, or of the file, when this member starts: "first"
        and "committed" at the first message, "last" at the end, which is committed then, so that another member that
        takes the queue over goes on from there. A standalone consumer begins there in any case.

        By default the group's members share the queues. `offset_file` makes this a broadcast reader: it reads all
        queues and keeps its own offsets there. `standalone`: read all queues without joining the group, commit nothing;
        `read_range`: those that it reads, and from where.
        `max_body_bytes`: what a compressed body may stand for.

        Raises UsageError for a wrong address, topic, start or expression."""
        check_topic(topic)
        if not group:
            raise UsageError("a consumer needs the name of its group")
        check_group(group)
        if start not in get_args(Start):
            raise UsageError(f"start {start!r}: a consumer begins at committed, first or last")
        if offset_file is not None and standalone:
            raise UsageError("a standalone consumer keeps no offsets, so it takes no offset_file")
        if read_range is not None and not standalone:
            raise UsageError("only a standalone consumer reads a part of a topic")
        self._session = ClientSession(namesrv, self._asked, security, self._lost)
        self._routes = self._session.routes
        self._remoting = self._session.remoting
        self._group = group
        self._topic = topic
        self._membership = ConsumerMembership(
            self._session, group, topic, tags, selector=selector, broadcast=offset_file is not None
        )
        self._start = start
        self._max_body_bytes = max_body_bytes
        self._standalone = standalone
        self._read_range = read_range or ReadRange()
        self._offset_file = offset_file
        self._reads_all = standalone or offset_file is not None
        self._retry_topic = RETRY_PREFIX + group
        self._offsets: Offsets = BrokerOffsets(self._ask_group)
        self._assigned: dict[MessageQueue, ProcessQueue] = {}
        self._kept_offsets: dict[MessageQueue, tuple[int, int]] = {}
        """Offsets of queues that were lost before a commit succeeded: the finished one, and the one at the broker."""
        self._rebalanced = False
        self._retry_refreshes = 0
        self._wake = trio.Event()
        self._batch: PrefetchedMessages | None = None
        self._unfinished: tuple[ProcessQueue, int] | None = None
        self._ready_in, self._ready = trio.open_memory_channel[PrefetchedMessages](0)
        self._ready_in.close()  # nothing comes before it is open
        self._counts = dict.fromkeys(
            (
                "received",
                "pulls",
                "failed_pulls",
                "offset_moves",
                "rebalances",
                "commits",
                "failed_commits",
                "retried",
                "too_large",
                "errors",
            ),
            0,
        )
        self._last_error = ""
        self._refusal: RemoteError | None = None
        self._is_refused_or_closed = trio.Event()

    async def __aenter__(self) -> Consumer:
        """Open the consumer. Raises UnreachableError if no name server answers, RemoteError (17) if none knows the
        topic, UsageError and StoreError for a file of offsets that cannot be used."""
        if self._offset_file is not None:
            self._offsets = FileOffsets(self._offset_file, self._group)
        try:
            await self._session.__aenter__()
        except BaseException:
            self._offsets.close()
            raise
        try:
            route = await self._routes.get(self._topic)
            if self._read_range.queue is not None and self._read_range.queue not in route.read_queues():
                known = ", ".join(f"{queue.broker_name}:{queue.queue_id}" for queue in route.read_queues())
                queue = self._read_range.queue
                raise UsageError(
                    f"topic {self._topic} has no queue {queue.broker_name}:{queue.queue_id} to read; it has {known}"
                )
            self._ready_in, self._ready = trio.open_memory_channel[PrefetchedMessages](0)
            nursery = self._session.nursery
            for task in (self._keep_rebalanced, self._watch_routes, self._poll_routes, self._keep_committed):
                nursery.start_soon(task)
        except BaseException as error:
            self._offsets.close()
            await self._session.give_up(error)
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
            self._ready_in.close()
            self._is_refused_or_closed.set()
            self._batch = None
            with trio.move_on_after((CLOSE_TIMEOUT_MS - LEAVE_TIMEOUT_MS) / 1000):
                await self.commit()
            if not self._standalone:
                await self._membership.leave()
        self._offsets.close()
        await self._session.__aexit__(kind, error, trace)

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        try:
            return await self.receive()
        except ClosedError:
            raise StopAsyncIteration from None

    @overload
    async def receive(self, *, wait: Literal[True] = True) -> Message:
        """Wait for the next message."""

    @overload
    async def receive(self, *, wait: bool) -> Message | None:
        """Return None without `wait` if no message has come."""

    async def receive(self, *, wait: bool = True) -> Message | None:
        """The next message; waits as long as it takes, so bound it with `trio.move_on_after`. Without `wait` None if
        none has been read ahead.

        A message whose compressed body stands for more than `max_body_bytes` goes to the group's dead letters
        (`statistics` counts it as too_large); outside a group it is passed over.

        Raises UsageError if its body needs a library that is not installed, RemoteProtocolError if it does not
        decompress, holds a batch that cannot be read or is damaged; the next call gives the same message again,
        `receive_batch` the messages from it on. UsageError as well where the consumer is not open."""
        self._finish()
        while True:
            batch = self._batch
            if batch is None or batch.assigned.dropped or batch.index == len(batch.messages):
                batch = await self._next_batch(wait=wait)
                if batch is None:
                    return None
            view = batch.messages[batch.index]
            try:
                message = view.message()
            except BodyTooLargeError as error:
                await self._refuse(view, error)
                batch.index += 1
                batch.assigned.finished = max(batch.assigned.finished, view.queue_offset + 1)
            except (RemoteProtocolError, UsageError) as error:
                topic = view.topic or batch.assigned.queue.topic
                place = f"{topic} at {view.broker_name}:{view.queue_id}/{view.queue_offset}"
                raise type(error)(
                    f"message {view.msg_id} of {place}: {error}; receive_batch() gives it undecoded, to go on behind it"
                ) from error
            else:
                break
        batch.index += 1
        self._unfinished = batch.assigned, message.queue_offset + 1
        self._counts["received"] += 1
        return message

    async def _refuse(self, view: MessageView, error: RmqhaError) -> None:
        """Send a message that cannot be read here to the dead letters. Raises as `retry`: it comes again then."""
        if not self._reads_all:
            await self.retry(view, delay_level=-1)
        self._counts["too_large"] += 1
        self._note(f"message {view.msg_id} of {view.topic} at {view.queue_id}/{view.queue_offset}: {error}")

    def batches(self) -> Batches:
        """All messages as they arrive, in batches whose messages are decoded when they are used."""
        return Batches(self)

    @overload
    async def receive_batch(self, *, wait: Literal[True] = True) -> MessageBatch:
        """Wait for the next messages."""

    @overload
    async def receive_batch(self, *, wait: bool) -> MessageBatch | None:
        """Return None without `wait` if no message has come."""

    async def receive_batch(self, *, wait: bool = True) -> MessageBatch | None:
        """The next messages of one queue, up to PULL_MAX_COUNT, the rest of a batch that `receive` began. Waits as long
        as it takes; without `wait` None if none have been read ahead. A view whose `body` raises BodyTooLargeError is
        handed to the dead letters by `retry` with delay_level=-1."""
        self._finish()
        batch = self._batch
        if batch is None or batch.assigned.dropped or batch.index == len(batch.messages):
            batch = await self._next_batch(wait=wait)
            if batch is None:
                return None
        messages = batch.messages.after(batch.index)
        batch.index = len(batch.messages)
        self._unfinished = batch.assigned, batch.next_offset
        self._counts["received"] += len(messages)
        return messages

    async def retry(
        self, message: Message | MessageView, *, delay_level: int = 0, max_reconsume_times: int | None = None
    ) -> None:
        """Hand back a message that could not be processed: a member of the group gets it again later, and after too
        many times it goes to the dead letters (%DLQ%<group>). Then go on with the next: this one counts as finished.

        `delay_level`: 0 leaves the delay to the broker, which makes it longer each time; 1 to 18 say it; -1: to the
        dead letters at once. `max_reconsume_times` None takes the group's (16).
        Raises UsageError for a consumer outside a group, RemoteError or UnreachableError if the group has not stored it
        within SEND_BACK_TIMEOUT_MS."""
        if self._reads_all:
            raise UsageError("only a member of a group that shares its queues may hand messages back")
        ext = {"group": self._group, **send_back_fields(message, delay_level)}
        if max_reconsume_times is not None:
            ext["maxReconsumeTimes"] = str(max_reconsume_times)
        queue, backoff = MessageQueue(self._topic, message.broker_name, message.queue_id), Backoff()
        deadline = trio.current_time() + SEND_BACK_TIMEOUT_MS / 1000
        while True:
            try:
                await self._ask_group(queue, RequestCode.CONSUMER_SEND_MSG_BACK, ext)
                break
            except (RemoteError, UnreachableError) as error:
                if trio.current_time() >= deadline:
                    raise
                self._note(str(error))
            with trio.CancelScope(deadline=deadline):
                await self._routes.recover(self._topic, backoff)
        self._counts["retried"] += 1

    async def _next_batch(self, *, wait: bool) -> PrefetchedMessages | None:
        """The next batch with a message of a queue that is still this member's; None without `wait` if there is none
        yet. Raises UsageError where the consumer is not open, or is closed meanwhile."""
        while True:
            batch = self._batch
            if batch is not None and not batch.assigned.dropped:
                batch.assigned.finished = max(batch.assigned.finished, batch.next_offset)
            self._batch = None
            try:
                batch = self._batch = await self._ready.receive() if wait else self._ready.receive_nowait()
            except trio.EndOfChannel:
                raise self._session.not_open() from None
            except trio.WouldBlock:
                return None
            if len(batch.messages) and not batch.assigned.dropped:
                return batch

    def assignment(self) -> list[MessageQueue]:
        """The queues that this member reads now."""
        return sorted(queue for queue, assigned in self._assigned.items() if not assigned.dropped)

    async def commit(self) -> None:
        """Commit the finished offsets now; a commit that fails is tried again at the next turn. Raises UsageError where
        the consumer is not open."""
        self._session.check_open()
        if self._standalone:
            return
        await self._commit_all(self._assigned.values())

    async def refused(self) -> RemoteError:
        """Wait until a broker says that this consumer may not read (NO_PERMISSION): it goes on trying, for an operator
        may give it the right. Raises UsageError where the consumer is not open, or is closed meanwhile."""
        self._session.check_open()
        await self._is_refused_or_closed.wait()
        if self._refusal is None:
            raise self._session.not_open()
        return self._refusal

    def _note(self, error: str) -> None:
        self._last_error = error
        self._counts["errors"] += 1

    def _failed(self, error: RmqhaError) -> None:
        self._note(str(error))
        if isinstance(error, RemoteError) and error.code == ResponseCode.NO_PERMISSION:
            self._refusal = error
            self._is_refused_or_closed.set()

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

    def _lost(self, address: str) -> None:
        self._membership.forget(address)

    def _asked(self, address: str, command: Command) -> Command | None:
        """Answer requests that brokers push: that the group's members have changed, and that an operator sets its
        offsets."""
        if command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            self._wake.set()
            return None
        if command.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET and command.ext.get("group") == self._group:
            try:
                for queue, offset in reset_offsets(bytes(command.body), address):
                    self._reset(queue, offset)
            except RemoteProtocolError as error:
                self._note(str(error))
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
                await self._rebalance()
                if not self._reads_all and self._retry_refreshes < RETRY_REFRESHES:
                    wait_ms = RETRY_MS
            except RmqhaError as error:
                self._failed(error)
                wait_ms = RETRY_MS
            with trio.move_on_after(wait_ms / 1000):
                await self._wake.wait()

    async def _watch_routes(self) -> None:
        """Give up the long polls to brokers that are no longer the ones to ask, as soon as the route says so."""
        while True:
            await self._routes.wait_changed()
            for assigned in self._assigned.values():
                route = self._routes.cached(assigned.queue.topic)
                if route is not None and assigned.pull_scope is not None:
                    reader = route.reader(assigned.queue.broker_name, assigned.preferred_id)
                    if reader not in (None, assigned.address):
                        assigned.pull_scope.cancel()
            self._wake.set()

    async def _poll_routes(self) -> None:
        while True:
            await trio.sleep(ROUTE_MS / 1000)
            for topic in (self._topic,) if self._reads_all else (self._topic, self._retry_topic):
                with suppress(RmqhaError):
                    await self._routes.refresh(topic)

    async def _rebalance(self) -> None:
        route = await self._routes.get(self._topic)
        if route.auto_created:
            route = await self._routes.refresh(self._topic)
        if route.auto_created:
            raise RemoteError(ResponseCode.TOPIC_NOT_EXIST, f"topic {self._topic} has no messages yet")
        queues = [queue for queue in route.read_queues() if self._read_range.queue in (None, queue)]
        if self._offset_file is not None:
            await self._membership.heartbeat(route)
        elif not self._standalone:
            members, client_id = await self._membership.members(route), self._membership.client_id
            queues = allocate_averagely(queues, members, client_id)
            queues += allocate_averagely(await self._retry_queues(), members, client_id)
        mine = set(queues)
        lost = [assigned for queue, assigned in self._assigned.items() if queue not in mine]
        await self._drop(lost)
        gained = [queue for queue in queues if queue not in self._assigned]
        for queue in gained:
            assigned = self._assigned[queue] = ProcessQueue(queue)
            start = self._start if not self._rebalanced or self._standalone else "committed"
            self._session.nursery.start_soon(self._read_queue, assigned, start)
        if lost or gained:
            self._counts["rebalances"] += 1
        self._rebalanced = True

    async def _retry_queues(self) -> list[MessageQueue]:
        """Queues of the group's retry topic; [] until a broker has made it, as the first heartbeat lets it do."""
        route = self._routes.cached(self._retry_topic)
        if route is None or route.auto_created:
            self._retry_refreshes += 1
            try:
                route = await self._routes.refresh(self._retry_topic)
            except RmqhaError:
                return []
        if route.auto_created:
            return []
        self._retry_refreshes = RETRY_REFRESHES
        return route.read_queues()

    async def _drop(self, lost: Sequence[ProcessQueue]) -> None:
        """Stop reading queues; offsets that could not be committed are remembered in case the queues come back."""
        for assigned in lost:
            assigned.dropped = True
            assigned.scope.cancel()
            if self._unfinished is not None and self._unfinished[0] is assigned:
                self._unfinished = None
        await self._commit_all(lost)
        for assigned in lost:
            if not self._is_committed(assigned):
                self._kept_offsets[assigned.queue] = assigned.finished, assigned.committed
            # only now: a close in between commits it
            del self._assigned[assigned.queue]

    def _reset(self, queue: MessageQueue, offset: int) -> None:
        """Go on at `offset`, as an operator wants: messages that have been read ahead of the old place are dropped."""
        self._kept_offsets.pop(queue, None)
        old = self._assigned.get(queue)
        if old is None or old.dropped:
            return
        old.dropped = True
        if self._unfinished is not None and self._unfinished[0] is old:
            self._unfinished = None
        self._go_on(old, offset, offset)

    def _go_on(self, old: ProcessQueue, offset: int, finished: int) -> None:
        """Read the queue from `offset` on: nothing that was read before counts there."""
        old.scope.cancel()
        assigned = self._assigned[old.queue] = ProcessQueue(old.queue, pulled=offset, finished=finished)
        self._session.nursery.start_soon(self._read_queue, assigned, "committed")
        self._counts["offset_moves"] += 1

    # -- offsets ---------------------------------------------------------------------------------------------------

    async def _keep_committed(self) -> None:
        while True:
            await trio.sleep(COMMIT_MS / 1000)
            await self.commit()

    async def _commit_all(self, queues: Iterable[ProcessQueue]) -> None:
        """Commit the offsets of these queues, all broker groups at once: one that does not answer delays no other."""
        by_group: dict[str, list[ProcessQueue]] = {}
        for assigned in queues:
            by_group.setdefault(assigned.queue.broker_name, []).append(assigned)
        async with trio.open_nursery() as nursery:
            for of_group in by_group.values():
                nursery.start_soon(self._commit_in_turn, of_group)

    async def _commit_in_turn(self, queues: Sequence[ProcessQueue]) -> None:
        for assigned in queues:
            if self._assigned.get(assigned.queue) is not assigned:
                continue  # another may have it by now, or it goes on elsewhere
            began = trio.current_time()
            await self._commit(assigned)
            if not self._is_committed(assigned) and (trio.current_time() - began) * 1000 >= CALL_TIMEOUT_MS:
                return  # asked for each queue, a silent group would keep the others from the next turn

    def _is_committed(self, assigned: ProcessQueue) -> bool:
        """True if the broker knows all that is finished."""
        return self._standalone or assigned.finished < 0 or assigned.finished == assigned.committed

    async def _commit(self, assigned: ProcessQueue) -> None:
        if self._is_committed(assigned):
            return
        offset = assigned.finished
        try:
            await self._offsets.store(assigned.queue, offset)
        except RmqhaError as error:
            self._note(str(error))
            self._counts["failed_commits"] += 1
        else:
            assigned.committed = offset
            self._counts["commits"] += 1

    async def _ask_group(self, queue: MessageQueue, code: RequestCode, more: dict[str, str]) -> Command:
        """Ask the queue's master, or a slave if there is none. Raises UnreachableError, RemoteError."""
        route = await self._routes.get(queue.topic)
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

    async def _ask_offset(self, queue: MessageQueue, code: RequestCode, more: dict[str, str]) -> int:
        """Ask the queue's group for an offset. Raises UnreachableError, RemoteError, RemoteProtocolError."""
        return answered_offset(await self._ask_group(queue, code, more), f"group {queue.broker_name}")

    async def _first_offset(self, assigned: ProcessQueue, start: Start) -> int:
        """The offset to begin at. Raises UnreachableError, RemoteError."""
        queue = assigned.queue
        if (known := self._read_range.known.get(queue, self._read_range.offset)) is not None:
            return known
        if self._read_range.since_ms is not None:
            return await self._ask_offset(queue, *first_offset_request(self._read_range))
        if start == "committed" or not self._standalone:
            committed = await self._offsets.load(queue)
            assigned.committed = -1 if committed is None else committed
            kept, known = self._kept_offsets.get(queue, (-1, -1))
            if kept >= 0 and known == assigned.committed:
                assigned.finished = kept  # else another member, or an operator, has set it since
                return kept
            if committed is not None:
                return committed
        if start == "last" and queue.topic == self._topic:
            end = await self._ask_offset(queue, RequestCode.GET_MAX_OFFSET, {"committed": "true"})
            if not self._standalone:
                # another member may have the queue before anything is finished: what comes now is not passed over
                await self._offsets.store(queue, end)
                assigned.committed = end
            return end
        return await self._ask_offset(queue, *first_offset_request(self._read_range))

    # -- one queue -------------------------------------------------------------------------------------------------

    async def _read_queue(self, assigned: ProcessQueue, start: Start) -> None:
        backoff = Backoff()
        with assigned.scope:
            while assigned.pulled < 0:
                try:
                    assigned.pulled = await self._first_offset(assigned, start)
                except RmqhaError as error:
                    await self._pull_failed(assigned, error, backoff)
            self._kept_offsets.pop(assigned.queue, None)
            backoff.reset()
            while True:
                began = trio.current_time()
                offset = assigned.pulled
                try:
                    answer = await self._pull(assigned)
                    messages = self._accept(assigned, answer) if answer is not None else None
                except RmqhaError as error:
                    await self._pull_failed(assigned, error, backoff)
                    continue
                backoff.reset()
                if messages is not None and (messages or assigned.pulled > offset):
                    await self._ready_in.send(PrefetchedMessages(assigned, messages, assigned.pulled))
                elif answer is not None and (trio.current_time() - began) * 1000 < EMPTY_ANSWER_MS:
                    # an answer without progress that was not held, e.g. of a slave that is still behind
                    await trio.sleep(EMPTY_ANSWER_MS / 1000)

    async def _pull_failed(self, assigned: ProcessQueue, error: RmqhaError, backoff: Backoff) -> None:
        if assigned.queue.topic == self._topic:
            self._failed(error)
        else:
            self._note(str(error))
        self._counts["failed_pulls"] += 1
        await self._routes.recover(assigned.queue.topic, backoff)

    async def _pull(self, assigned: ProcessQueue) -> Command | None:
        """One pull; None if the route changed meanwhile. Raises UnreachableError."""
        queue = assigned.queue
        route = await self._routes.get(queue.topic)
        own_topic = queue.topic == self._topic
        address = route.reader(queue.broker_name, assigned.preferred_id)
        if address is None:
            raise UnreachableError(f"group {queue.broker_name} has no broker")
        ext = {
            "consumerGroup": self._group,
            "topic": queue.topic,
            "queueId": str(queue.queue_id),
            "queueOffset": str(assigned.pulled),
            "maxMsgNums": str(assigned.max_count),
            "maxMsgBytes": str(PULL_MAX_BYTES),
            "sysFlag": str(SUSPEND_AND_SUBSCRIPTION),
            "commitOffset": "0",
            "suspendTimeoutMillis": str(SUSPEND_MS),
            "subscription": self._membership.expression if own_topic else "*",
            "subVersion": str(self._membership.sub_version),
            "expressionType": self._membership.expression_type if own_topic else TAG,
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

    def _accept(self, assigned: ProcessQueue, answer: Command) -> MessageBatch:
        """The wanted messages of an answer; moves `pulled`. Raises RemoteError for what is no answer to a pull,
        RemoteProtocolError for an answer that cannot be read."""
        ext, offset, address = answer.ext, assigned.pulled, assigned.address
        next_offset = number(ext, "nextBeginOffset", address, offset, least=0)
        suggested = number(ext, "suggestWhichBrokerId", address, assigned.preferred_id)
        body: bytes | memoryview = b""
        match answer.code:
            case ResponseCode.SUCCESS if next_offset <= offset:
                raise RemoteProtocolError(
                    f"{address} gave messages from {offset} on and says that {next_offset} is next"
                )
            case ResponseCode.SUCCESS:
                body = answer.body
            case ResponseCode.PULL_NOT_FOUND | ResponseCode.PULL_RETRY_IMMEDIATELY:
                next_offset = max(next_offset, offset)
            case ResponseCode.PULL_OFFSET_MOVED if answer.remark == OFFSET_RESET:
                self._reset(assigned.queue, next_offset)
            case ResponseCode.PULL_OFFSET_MOVED:
                next_offset = self._moved(assigned, ext, next_offset)
            case _:
                assigned.preferred_id = 0
                raise RemoteError(answer.code, answer.remark or "", assigned.address)
        is_retry = assigned.queue.topic != self._topic
        tags = None if is_retry else self._membership.tags
        messages = MessageBatch(
            assigned.queue.broker_name,
            body,
            from_offset=offset,
            tags=tags,
            is_retry=is_retry,
            max_body_bytes=self._max_body_bytes,
        )
        if messages.is_cut and assigned.max_count > 1:
            # what stands behind a damaged record whose end nobody knows is found by asking for that one alone
            messages, next_offset, assigned.max_count = messages.without_cut(), messages.read_to, 1
        else:
            assigned.max_count = PULL_MAX_COUNT
        assigned.pulled = next_offset
        assigned.preferred_id = suggested
        return messages

    def _moved(self, assigned: ProcessQueue, ext: dict[str, str], next_offset: int) -> int:
        """The offset to go on at if the asked one is not in the queue. Below the queue's start: its start. Beyond its
        end: the master's answer counts, for a new master may have less (AP); a slave's does not, for it may only be
        behind."""
        offset = assigned.pulled
        low, high = number(ext, "minOffset", assigned.address, 0), number(ext, "maxOffset", assigned.address, offset)
        if offset > high:
            route = self._routes.cached(assigned.queue.topic)
            if route is None or assigned.address != route.master(assigned.queue.broker_name):
                return offset
            # what is finished, and what the reader still has, counts in the old log; the new one goes on where the
            # master says: messages may have come since to where this consumer has read already
            next_offset = min(next_offset, high)
            self._go_on(assigned, next_offset, min(assigned.finished, next_offset))
            return offset
        if offset < low:
            next_offset = low
        self._counts["offset_moves"] += 1
        return next_offset
