"""Request 52032: end of each queue, for a replica that began its copy after the first records. No trio.

Queue offsets are never reused. The log has those of its records, but not of queues that were idle for longer than the
log is kept. A new replica copies the log and would, as master, restart such a queue at 0, below its consumers' offsets.
So it asks its master for the ends, and is a learner until it has them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from rmqha.broker.requests.request import Channel, Handler, RequestError
from rmqha.broker.tables.metadata_follower import CALL_TIMEOUT_MS, AsyncPort, FollowedMaster, object_of
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import RemoteProtocolError, UnreachableError
from rmqha.port import Tracer
from rmqha.store.queue.dispatch_service import valid_topic
from rmqha.store.queue.queue_min_offsets import QueueEnd
from rmqha.store.store import Store
from rmqha.wire import lenient_json
from rmqha.wire.command import Command

RETRY_MS = 100
POLL_MS = 10
"""Interval (ms) of checks whether the master's dispatched offset has been dispatched here."""


class FollowingState(Protocol):
    """Port to this replica's role; `Replica` is one."""

    @property
    def is_master(self) -> bool: ...

    @property
    def is_following(self) -> bool: ...


class QueueMaxOffsets:
    """Learns the ends of queues. `master` returns the master to ask, None without one or on the master. `learned` is
    called after success: this replica then connects to its master again."""

    def __init__(
        self,
        store: Store,
        group: FollowingState,
        master: Callable[[], FollowedMaster | None],
        learned: Callable[[], None],
        tracer: Tracer,
    ) -> None:
        self._store = store
        self._group = group
        self._master = master
        self._learned = learned
        self._tracer = tracer
        self._trouble = ""

    # --- master -----------------------------------------------------------------------------------------------------
    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.RMQHA_GET_QUEUE_ENDS: self._answer}

    def _answer(self, channel: Channel, command: Command) -> Command:
        # a master that does not serve yet answers too: it may need this replica for its majority
        if not self._group.is_master:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "this broker is not the master of its group")
        body = lenient_json.dumps({"queues": self._store.queue_min_offsets.ends()})
        return command.reply(ext={"dispatchedOffset": str(self._store.dispatched_offset)}, body=body)

    # --- slave ------------------------------------------------------------------------------------------------------
    async def learn(self, port: AsyncPort) -> None:
        """Ask until the ends are known. May be cancelled at any await."""
        while self._store.lacks_queue_ends:
            master = self._master()
            if master is not None and self._group.is_following:
                try:
                    await self._ask(port, master)
                except (UnreachableError, RemoteProtocolError) as error:
                    self._trace_once(str(error))
            if self._store.lacks_queue_ends:
                await port.sleep(RETRY_MS)
        self._trouble = ""

    async def _ask(self, port: AsyncPort, master: FollowedMaster) -> None:
        """Ask the master once. Raises UnreachableError and RemoteProtocolError."""
        starts = self._store.queue_min_offsets
        restart_count = starts.restart_count

        def holds() -> bool:
            """True if this replica's log is a part of that master's."""
            is_same = self._master() == master and starts.restart_count == restart_count
            return is_same and self._group.is_following

        reply = await port.call(master.address, Command(RequestCode.RMQHA_GET_QUEUE_ENDS), CALL_TIMEOUT_MS)
        ends: list[QueueEnd] = []
        if reply.code == ResponseCode.SUCCESS:
            dispatched_offset, ends = parse(master.address, reply)
            while holds() and self._store.dispatched_offset < dispatched_offset:
                await port.sleep(POLL_MS)
        elif reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            self._trace_once(f"{master.address} does not know request 52032: idle queues may begin at 0 again")
        else:
            self._trace_once(f"{master.address} answered code {reply.code}: {reply.remark or ''}")
            return
        if holds() and starts.lacks:
            count = starts.learn(ends)
            self._tracer.event("queue_ends_learned", master=master.address, count=count)
            self._learned()

    def _trace_once(self, reason: str) -> None:
        """Trace each reason once."""
        if reason != self._trouble:
            self._tracer.event("queue_ends_not_learned", reason=reason)
        self._trouble = reason


def parse(address: str, reply: Command) -> tuple[int, list[QueueEnd]]:
    """(dispatched offset, ends) of an answer. Raises RemoteProtocolError."""
    body: dict[str, Any] = object_of(address, reply)
    ends: list[QueueEnd] = []
    try:
        dispatched_offset = int(reply.ext["dispatchedOffset"])
        for topic, queue_id, end in body["queues"]:
            if not (isinstance(topic, str) and valid_topic(topic) and 0 <= queue_id < 1 << 31 and 0 < end < 1 << 62):
                raise ValueError(f"queue {queue_id} of {topic!r} cannot end at {end}")
            ends.append((topic, int(queue_id), int(end)))
    except (KeyError, TypeError, ValueError) as error:
        raise RemoteProtocolError(f"the answer of {address} to request 52032 cannot be read: {error!r}") from None
    return dispatched_offset, ends
