"""Sends during and after a hand-over of the mastership: held, and forwarded to the new master. Shell.

A client learns of another master when it next asks for the route, up to 30 s later with Java's default. With code 14 it
would retry the same broker at once and give up. So a planned switch causes no errors: sends meanwhile wait unwritten
and go to the new master, or are accepted here if the switch fails. A master that was killed and restarted as a slave,
or was replaced, forwards sends too. A new master whose set has no other member yet lets sends wait for the short time
until it has one, since a Java client would use up its retries at once. Requests of one connection keep their order.

A request reaches the new master once, or again if it was surely not written: there was no connection, or the new master
says so (UNWRITTEN). The outcome of any other attempt without an answer is unknown, and the client is told so: brokers
never store twice what was sent once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import trio

from rmqha.broker.requests.record_access import was_refused
from rmqha.broker.requests.request import FORWARDED, UNWRITTEN, Channel, Shares, Use, give_back_all, take_all
from rmqha.model.code import ResponseCode
from rmqha.model.error import NotSentError, UnreachableError
from rmqha.model.identity import Role
from rmqha.port import Clock, Tracer
from rmqha.wire.auth.acl import ON_BEHALF_OF
from rmqha.wire.command import FLAG_ONEWAY, Command, payload_bytes

HOLD_MS = 2500
"""Time (ms) for which sends are held: below the 3 s time-out of a Java producer, above the longest hand-over."""
MAX_HELD_COUNT, MAX_HELD_BYTES = 1000, 64 * 1024 * 1024
"""Bounds on held requests and their bytes, of which one account has half; more are refused with code 14."""
POLL_MS = 5
MASTER_CHANGED = "the master has changed; ask for the route"
"""Remark of the answer to a send that was held in vain: it is not written."""
DUPLICATE_POSSIBLE = "duplicatePossible"
"""Field of an answer with code 14, on which every client retries: the message may be stored already."""


class SwitchState(Protocol):
    """Port to the replica's role."""

    @property
    def role(self) -> Role: ...

    @property
    def is_master(self) -> bool: ...

    @property
    def hands_over(self) -> bool: ...

    @property
    def newest_master_address(self) -> str: ...


class RemoteCaller(Protocol):
    async def call(self, address: str, command: Command, timeout_ms: int) -> Command: ...

    async def oneway(self, address: str, command: Command) -> None: ...


class Tasks(Protocol):
    def start_soon(self, work: Callable[..., Awaitable[None]], *args: Any) -> None:
        """Run `work(*args)` as a task."""
        ...

    async def sleep(self, duration_ms: int) -> None: ...


class HostTasks:
    """Tasks over trio."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery

    def start_soon(self, work: Callable[..., Awaitable[None]], *args: Any) -> None:
        self._nursery.start_soon(work, *args)

    async def sleep(self, duration_ms: int) -> None:
        await trio.sleep(duration_ms / 1000)


class SendForwarder:
    """Forwarding of sends to the group's new master. `ready` returns True if sends would be accepted now; `admit` takes
    them as if they had just come. `window_ms`: time for which sends are forwarded after a start or a change of the
    master."""

    def __init__(
        self,
        own_address: str,
        window_ms: int,
        replica: SwitchState,
        ready: Callable[[], bool],
        admit: Callable[[Channel, list[Command]], None],
        client: RemoteCaller,
        tasks: Tasks,
        clock: Clock,
        tracer: Tracer,
    ) -> None:
        self._own_address = own_address
        self._window_ms = window_ms
        self._replica = replica
        self._ready = ready
        self._admit = admit
        self._client = client
        self._tasks = tasks
        self._clock = clock
        self._tracer = tracer
        self._until_ms = 0
        self._new_master_until_ms = 0
        self._traced = False
        """True if forwarding was traced in this window."""
        self._held: dict[Channel, deque[tuple[int, Command]]] = {}
        """(deadline, request) by connection, the oldest first; the first one is being handled."""
        self._held_counts, self._held_bytes = Shares(MAX_HELD_COUNT), Shares(MAX_HELD_BYTES)
        self.forwarded_count = 0

    def role_changed(self) -> None:
        """Begin a window after a change of role or master."""
        if self._replica.is_master:
            self._until_ms, self._new_master_until_ms = 0, self._clock.now_ms() + HOLD_MS
        else:
            self._until_ms, self._traced = self._clock.now_ms() + self._window_ms, False

    @property
    def _is_forwarding(self) -> bool:
        known = self._replica.newest_master_address not in ("", self._own_address)
        return known and self._clock.now_ms() < self._until_ms

    @property
    def _waits_for_set(self) -> bool:
        return self._clock.now_ms() < self._new_master_until_ms and self._replica.is_master and not self._ready()

    def is_holding(self, channel: Channel) -> bool:
        """True if sends by this connection would be held or forwarded now, within the bounds."""
        return channel in self._held or self._replica.hands_over or self._is_forwarding or self._waits_for_set

    def hold(self, channel: Channel, commands: list[Command]) -> bool:
        """Hold or forward requests; False if this broker must handle them itself."""
        if not self.is_holding(channel):
            return False
        if any(FORWARDED in item.ext for item in commands):
            return False
        if not take_all([use for item in commands for use in self._uses(item)]):
            return False
        queue, deadline_ms = self._held.get(channel), self._clock.now_ms() + HOLD_MS
        for command in commands:
            command.body = bytes(command.body)  # the socket's buffer is used again
        if queue is None:
            queue = self._held[channel] = deque()
            self._tasks.start_soon(self._drain, channel, queue)
        queue.extend((deadline_ms, command) for command in commands)
        return True

    def _uses(self, command: Command) -> list[Use]:
        """Uses that a held request makes: of a place and of memory."""
        principal = command.principal
        return [(self._held_counts, principal, 1), (self._held_bytes, principal, payload_bytes(command))]

    async def _drain(self, channel: Channel, queue: deque[tuple[int, Command]]) -> None:
        while queue:
            deadline_ms, command = queue[0]
            uses = self._uses(command)
            try:
                await self._handle(channel, command, deadline_ms)
            except Exception as error:  # noqa: BLE001  (told and counted, or raised again)
                channel.fail(error, [command])
            queue.popleft()
            give_back_all(uses)
        del self._held[channel]

    async def _handle(self, channel: Channel, command: Command, deadline_ms: int) -> None:
        replica = self._replica
        while (left_ms := deadline_ms - self._clock.now_ms()) > 0:
            master = replica.newest_master_address
            if replica.role is Role.MASTER and not replica.hands_over and not self._waits_for_set:
                if not was_refused(channel, command):
                    self._admit(channel, [command])
                return
            known = not replica.is_master and master not in ("", self._own_address)
            if known and await self._forward(channel, command, master, left_ms):
                return
            await self._tasks.sleep(POLL_MS)
        self._answer(channel, command, ResponseCode.SERVICE_NOT_AVAILABLE, MASTER_CHANGED)

    async def _forward(self, channel: Channel, command: Command, master: str, timeout_ms: int) -> bool:
        """Forward a request; False if the new master does not accept it yet and has written nothing."""
        ext = command.ext | {FORWARDED: self._own_address}
        if command.principal.is_restricted:
            ext[ON_BEHALF_OF] = command.principal.access_key
        request = Command(command.code, ext, command.body, language=command.language)
        try:
            if command.flag & FLAG_ONEWAY:
                await self._client.oneway(master, request)
                return True
            reply = await self._client.call(master, request, timeout_ms)
        except NotSentError:
            return False
        except UnreachableError as error:
            remark = f"the message was passed on to the new master and may be stored, its answer is lost: {error}"
            code = ResponseCode.SERVICE_NOT_AVAILABLE
            channel.send(command.reply(code, {DUPLICATE_POSSIBLE: "true"}, remark=remark))
            self._tracer.event("forwarded_answer_lost", master_address=master, reason=str(error))
            return True
        if reply.ext.get(UNWRITTEN) == "true":
            return False
        self.forwarded_count += 1
        if not self._traced:
            self._traced = True
            left_ms = max(0, self._until_ms - self._clock.now_ms())
            self._tracer.event("forwards_sends", master_address=master, for_ms=left_ms)
        channel.send(command.reply(reply.code, dict(reply.ext), bytes(reply.body), reply.remark))
        return True

    @staticmethod
    def _answer(channel: Channel, command: Command, code: ResponseCode, remark: str) -> None:
        if not command.flag & FLAG_ONEWAY:
            channel.send(command.reply(code, {}, remark=remark))
