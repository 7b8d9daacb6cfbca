"""Single requests of an operator's tools to servers. Control plane."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TypeVar

from rmqha.host.asking.shell import Caller, beside
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import RemoteError, UnreachableError
from rmqha.ops.answer import readable_answer
from rmqha.wire.command import Command
from rmqha.wire.state.controller_state import ControllerState
from rmqha.wire.state.json_record import JsonRecord
from rmqha.wire.state.name_server_state import NameServerState
from rmqha.wire.state.replica_state import ReplicaState

ASK_TIMEOUT_MS = 1000
LARGE_BYTES = 64 * 1024
"""Size of an answer above which it is parsed in a thread."""
_STATES: dict[type[JsonRecord], tuple[RequestCode, str]] = {
    ReplicaState: (RequestCode.RMQHA_GET_REPLICA_STATE, "a broker's"),
    ControllerState: (RequestCode.RMQHA_GET_CONTROLLER_STATE, "a controller's"),
    NameServerState: (RequestCode.RMQHA_GET_NAMESRV_STATE, "a name server's"),
}
StateT = TypeVar("StateT", ReplicaState, ControllerState, NameServerState)


class NoControllerError(UnreachableError):
    """No controller that can be asked. The text is `why`, the cause, and `fix`."""

    def __init__(self, why: str, fix: str) -> None:
        super().__init__(f"{why}; {fix}")
        self.why = why
        self.fix = fix


def no_controller(trouble: str) -> NoControllerError:
    """The error for controllers of which none answers. `trouble`: the last one's, "" if there is none."""
    if not trouble:
        return NoControllerError("no controller is known here", "name one with --controller")
    return NoControllerError(
        f"no controller answers: {trouble}", "start one (see rmqha health), or name one that runs with --controller"
    )


def require_success(reply: Command, address: str) -> Command:
    """The reply if it is a success; RemoteError otherwise."""
    if reply.code != ResponseCode.SUCCESS:
        raise RemoteError(reply.code, reply.remark or "", address)
    return reply


async def ask(client: Caller, address: str, command: Command, timeout_ms: int | None = ASK_TIMEOUT_MS) -> Command:
    """Send one request to one node. `timeout_ms` None: a scope bounds the time. Raises UnreachableError or
    RemoteError."""
    return require_success(await client.call(address, command, timeout_ms), address)


async def ask_leader(
    client: Caller, addresses: list[str], command: Callable[[], Command], timeout_ms: int = ASK_TIMEOUT_MS
) -> tuple[Command, str]:
    """Send one request to the leader of the controllers, whichever of `addresses` that is. Returns the reply and the
    leader's address.

    Raises RemoteError for its refusal, NoControllerError if no leader can be found."""
    waiting, tried = list(addresses), set[str]()
    trouble = leaderless = ""
    while waiting:
        address = waiting.pop(0)
        if address in tried:
            continue
        tried.add(address)
        try:
            reply = await client.call(address, command(), timeout_ms)
        except UnreachableError as error:
            trouble = str(error)
            continue
        if reply.code == ResponseCode.CONTROLLER_NOT_LEADER:
            leader = reply.ext.get("controllerLeaderAddress", "")
            leaderless = f"{address} knows no leader" if not leader else f"{address} says that {leader} leads"
            waiting = [leader, *waiting] if leader else waiting
            continue
        return require_success(reply, address), address
    if leaderless:
        why = f"no controller leads: {leaderless}" + (f", and {trouble}" if trouble else "")
        raise NoControllerError(why, "a majority of them has to run: see rmqha quorum show")
    raise no_controller(trouble)


async def state_of(client: Caller, address: str, schema: type[StateT]) -> StateT:
    """A server's own state. Raises UnreachableError or RemoteError."""
    with readable_answer(address, _STATES[schema][1]):
        return await ask_state(client, address, schema)


async def ask_state(
    client: Caller, address: str, schema: type[StateT], timeout_ms: int | None = ASK_TIMEOUT_MS
) -> StateT:
    """Ask a server for its own state; ValueError for an answer that is no such state. `timeout_ms` None: a scope bounds
    the time."""
    body = bytes((await ask(client, address, Command(_STATES[schema][0]), timeout_ms)).body)
    if len(body) < LARGE_BYTES:
        return schema.from_json(json.loads(body))
    return await beside(lambda: schema.from_json(json.loads(body)))
