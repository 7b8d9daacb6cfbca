"""A broker's SendForwarder in the simulation: its coroutines, resumed by simulated events instead of trio."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from rmqha.broker.core import BrokerCore
from rmqha.broker.replication.forward import SendForwarder
from rmqha.ha.replica import Replica
from rmqha.model.code import ResponseCode
from rmqha.model.error import NotSentError, UnreachableError
from rmqha.port import Tracer
from rmqha.wire.command import Command
from tests.simulation.processes.following import Later

if TYPE_CHECKING:
    from tests.simulation.processes.process import Process, Rpc

NEVER_SENT = "never sent"


class ForwardingClient:
    """Implements Caller: it tells what was never sent from what has no answer, as a RemotingClient does."""

    def __init__(self, rpc: Rpc) -> None:
        self._rpc = rpc

    async def call(self, address: str, command: Command, timeout_ms: int) -> Command:
        answer: Later[Command | str | None] = Later()
        self._rpc.call(address, command, timeout_ms, answer.set, unsent=lambda: answer.set(NEVER_SENT))
        reply = await answer
        if isinstance(reply, str):
            raise NotSentError(f"no connection to {address}")
        if reply is None:
            raise UnreachableError(f"{address} does not answer")
        return reply

    async def oneway(self, address: str, command: Command) -> None:
        self._rpc.oneway(address, command)


class SimTasks:
    """Implements Tasks. Every turn of a task ends with `stepped`, as every entry into the process does."""

    def __init__(self, process: Process, stepped: Callable[[], None]) -> None:
        self._process = process
        self._stepped = stepped

    def start_soon(self, work: Callable[..., Awaitable[None]], *args: Any) -> None:
        running = cast(Coroutine[Any, Any, None], work(*args))
        self._process.after(0, partial(self._resume, running))

    async def sleep(self, duration_ms: int) -> None:
        over: Later[None] = Later()
        self._process.after(duration_ms, lambda: over.set(None))
        await over

    def _resume(self, running: Coroutine[Any, Any, None]) -> None:
        try:
            later: Later[Any] = running.send(None)
        except StopIteration:
            pass  # it has come to its end
        else:
            later.then = partial(self._resume, running)
        self._stepped()


def forwarding(
    process: Process, rpc: Rpc, core: BrokerCore, stepped: Callable[[], None], tracer: Tracer
) -> SendForwarder:
    """The forwarder of one life, as the host's server makes it."""
    replica = core.replica
    assert isinstance(replica, Replica)
    return SendForwarder(
        core.config.address,
        core.config.forward_sends_millis,
        replica,
        lambda: core.driver.admission()[0] is ResponseCode.SUCCESS,
        core.admit,
        ForwardingClient(rpc),
        SimTasks(process, stepped),
        process.clock,
        tracer,
    )
