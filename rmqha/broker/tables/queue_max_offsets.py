"""Request 52032: where each queue ends, for a replica that began to copy behind the first records. No trio.

Queue offsets are given once for ever, and the log tells them: not of queues that are idle for longer than the log is
kept. A new replica copies what there is and would, as master, begin such a queue at 0 again, behind the back of its
consumers. So it asks its master, and copies as a learner does until it knows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from rmqha.broker.requests.request import Channel, Handler, RequestError
from rmqha.broker.tables.metadata_follower import CALL_TIMEOUT_MS, Awaits, FollowedMaster, object_of
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
"""Between two looks whether what the master answered for has been dispatched here."""


class FollowingState(Protocol):
    """This replica's place in its group; `Replica` is one."""

    @property
    def is_master(self) -> bool: ...

    @property
    def is_following(self) -> bool: ...


class QueueMaxOffsets:
    """`master` gives whom to follow now, None while this replica has no master or is it. `learned` is called when the
    ends are known: this replica greets its master again."""

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
        return {RequestCode.RMQHA_GET_QUEUE_ENDS: self._tell}

    def _tell(self, channel: Channel, command: Command) -> Command:
        # one that does not serve yet tells it too: it may be waiting for the majority that the replica is to make
        if not self._group.is_master:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "this broker is not the master of its group")
        body = lenient_json.dumps({"queues": self._store.queue_starts.ends()})
        return command.reply(ext={"dispatchedOffset": str(self._store.dispatched_offset)}, body=body)

    # --- slave ------------------------------------------------------------------------------------------------------
    async def learn(self, awaits: Awaits) -> None:
        """Until they are known. It may be ended at any await."""
        while self._store.lacks_queue_ends:
            master = self._master()
            if master is not None and self._group.is_following:
                try:
                    await self._ask(awaits, master)
                except (UnreachableError, RemoteProtocolError) as error:
                    self._note(str(error))
            if self._store.lacks_queue_ends:
                await awaits.sleep(RETRY_MS)
        self._trouble = ""

    async def _ask(self, awaits: Awaits, master: FollowedMaster) -> None:
        """Raises UnreachableError and RemoteProtocolError."""
        starts = self._store.queue_starts
        restart_count = starts.restart_count

        def holds() -> bool:
            """True if the answer is about this master's log, of which this replica's is a part."""
            is_same = self._master() == master and starts.restart_count == restart_count
            return is_same and self._group.is_following

        reply = await awaits.call(master.address, Command(RequestCode.RMQHA_GET_QUEUE_ENDS), CALL_TIMEOUT_MS)
        ends: list[QueueEnd] = []
        if reply.code == ResponseCode.SUCCESS:
            dispatched_offset, ends = parse(master.address, reply)
            while holds() and self._store.dispatched_offset < dispatched_offset:
                await awaits.sleep(POLL_MS)
        elif reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            self._note(f"{master.address} does not know request 52032: idle queues may begin at 0 again")
        else:
            self._note(f"{master.address} answered code {reply.code}: {reply.remark or ''}")
            return
        if holds() and starts.lacks:
            count = starts.learn(ends)
            self._tracer.event("queue_ends_learned", master=master.address, count=count)
            self._learned()

    def _note(self, reason: str) -> None:
        """Told once for each reason."""
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
