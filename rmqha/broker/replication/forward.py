"""Sends that come to a broker while it hands its mastership over, or after: held, and passed on. Shell.

A client learns of another master when it next asks for the route, up to 30 s later with Java's default. Code 14 would
make it try the same broker again at once and give up. So a planned switch is no error to it: what comes meanwhile
waits, nothing of it being written here, and goes to the new master, or is taken after all if the switch fails. A master
that was killed and is started again as a slave, or was overtaken, passes sends on too. A new master, which has nobody
in its set yet, lets sends wait for the moment that this takes instead of refusing them: a Java client would use up its
tries at once. Requests of one connection keep their order.

A request reaches the new master once, or again if nothing of it can have been written: there was no connection, or the
new master says so (UNWRITTEN). What came of any other try that was not answered is open, and its client is told so: the
brokers never store twice what was sent once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import trio

from rmqha.broker.requests.request import FORWARDED, UNWRITTEN, Channel
from rmqha.model.code import ResponseCode
from rmqha.model.error import NotSentError, UnreachableError
from rmqha.model.identity import Role
from rmqha.port import Clock, Tracer
from rmqha.wire.auth.acl import ON_BEHALF_OF
from rmqha.wire.command import FLAG_ONEWAY, Command, payload_bytes

HOLD_MS = 2500
"""Below the 3 s that a Java producer waits, above the longest hand-over. So long a new master lets sends wait, too."""
MAX_HELD_COUNT, MAX_HELD_BYTES = 1000, 64 * 1024 * 1024
"""Requests held at a time, and their bytes; more are refused with code 14."""
POLL_MS = 5
MASTER_CHANGED = "the master has changed; ask for the route"
"""Remark of the answer to a send that was held in vain: nothing of it is written."""
DUPLICATE_POSSIBLE = "duplicatePossible"
"""Field of an answer with code 14, on which every client tries again: the message may be there already."""


class SwitchState(Protocol):
    """The part of the replica that is read here."""

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
        """Begin `work(*args)` in a turn of its own."""
        ...

    async def sleep(self, duration_ms: int) -> None: ...


class HostTasks:
    """Implements Tasks with trio."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery

    def start_soon(self, work: Callable[..., Awaitable[None]], *args: Any) -> None:
        self._nursery.start_soon(work, *args)

    async def sleep(self, duration_ms: int) -> None:
        await trio.sleep(duration_ms / 1000)


class SendForwarder:
    """`ready`: whether sends would be taken now; `admit` takes them as if they had just come. `window_ms`: for how long
    sends are passed on after a start or a change of the master."""

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
        self._young_until_ms = 0
        self._told = False
        """True if it was traced in this window that sends are passed on."""
        self._held: dict[Channel, deque[tuple[int, Command]]] = {}
        """By connection: (deadline, request), the oldest first; the first one is being worked on."""
        self._held_count = self._held_bytes = 0
        self.forwarded_count = 0

    def role_changed(self) -> None:
        """The replica has another role, or follows another master."""
        if self._replica.is_master:
            self._until_ms, self._young_until_ms = 0, self._clock.now_ms() + HOLD_MS
        else:
            self._until_ms, self._told = self._clock.now_ms() + self._window_ms, False

    @property
    def _passes_on(self) -> bool:
        known = self._replica.newest_master_address not in ("", self._own_address)
        return known and self._clock.now_ms() < self._until_ms

    @property
    def _waits_for_company(self) -> bool:
        return self._clock.now_ms() < self._young_until_ms and self._replica.is_master and not self._ready()

    def is_holding(self, channel: Channel) -> bool:
        """True if sends that came now by this connection would be taken care of here, as far as there is room."""
        return channel in self._held or self._replica.hands_over or self._passes_on or self._waits_for_company

    def hold(self, channel: Channel, commands: list[Command]) -> bool:
        """True if they are taken care of."""
        if not self.is_holding(channel):
            return False
        queue, size_bytes = self._held.get(channel), sum(map(payload_bytes, commands))
        if (
            self._held_count + len(commands) > MAX_HELD_COUNT
            or self._held_bytes + size_bytes > MAX_HELD_BYTES
            or any(FORWARDED in item.ext for item in commands)
        ):
            return False
        deadline_ms = self._clock.now_ms() + HOLD_MS
        for command in commands:
            command.body = bytes(command.body)  # the socket's buffer is used again
        if queue is None:
            queue = self._held[channel] = deque()
            self._tasks.start_soon(self._work_on, channel, queue)
        queue.extend((deadline_ms, command) for command in commands)
        self._held_count += len(commands)
        self._held_bytes += size_bytes
        return True

    async def _work_on(self, channel: Channel, queue: deque[tuple[int, Command]]) -> None:
        while queue:
            deadline_ms, command = queue[0]
            size_bytes = payload_bytes(command)
            try:
                await self._settle(channel, command, deadline_ms)
            except Exception as error:  # noqa: BLE001  (told and counted, or raised again)
                channel.fail(error, [command])
            queue.popleft()
            self._held_count -= 1
            self._held_bytes -= size_bytes
        del self._held[channel]

    async def _settle(self, channel: Channel, command: Command, deadline_ms: int) -> None:
        replica = self._replica
        while (left_ms := deadline_ms - self._clock.now_ms()) > 0:
            master = replica.newest_master_address
            if replica.role is Role.MASTER and not replica.hands_over and not self._waits_for_company:
                self._admit(channel, [command])
                return
            known = not replica.is_master and master not in ("", self._own_address)
            if known and await self._pass_on(channel, command, master, left_ms):
                return
            await self._tasks.sleep(POLL_MS)
        self._answer(channel, command, ResponseCode.SERVICE_NOT_AVAILABLE, MASTER_CHANGED)

    async def _pass_on(self, channel: Channel, command: Command, master: str, timeout_ms: int) -> bool:
        """False: the new master does not take it yet, and has written nothing of it."""
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
        if not self._told:
            self._told = True
            left_ms = max(0, self._until_ms - self._clock.now_ms())
            self._tracer.event("forwards_sends", master_address=master, for_ms=left_ms)
        channel.send(command.reply(reply.code, dict(reply.ext), bytes(reply.body), reply.remark))
        return True

    @staticmethod
    def _answer(channel: Channel, command: Command, code: ResponseCode, remark: str) -> None:
        if not command.flag & FLAG_ONEWAY:
            channel.send(command.reply(code, {}, remark=remark))
