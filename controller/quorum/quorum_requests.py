"""Operators' requests about the controllers' own group (requests 52020-52024). Pure.

Any node answers 52020 (state) and 52024 (take a snapshot), only the leader the others. A membership change is answered
once it is committed, a transfer of leadership as soon as it has begun.
"""

from __future__ import annotations

from collections.abc import Callable

from controller.config import ControllerConfig
from controller.quorum.peer_addresses import PeerAddresses
from controller.state.action import Action, Reply, Token
from controller.state.answers import InvalidRequestError, flag, text
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.identity import parse_address
from rmqha.model.offset import RaftIndex, Term
from rmqha.raft.node import RaftNode
from rmqha.raft.quorum import MAX_NAME_CHARS, SEPARATOR, id_of, identity
from rmqha.raft.reconfiguration import AddNode, MembershipChange, Refused, RemoveNode
from rmqha.wire import lenient_json
from rmqha.wire.command import Command

VERSION = 1
QUORUM_CODES = frozenset(
    {
        RequestCode.RMQHA_GET_QUORUM,
        RequestCode.RMQHA_ADD_CONTROLLER,
        RequestCode.RMQHA_REMOVE_CONTROLLER,
        RequestCode.RMQHA_TRANSFER_LEADERSHIP,
        RequestCode.RMQHA_TAKE_SNAPSHOT,
    }
)


class QuorumRequests:
    """Handlers of QUORUM_CODES. `not_leader` makes the redirect; `take_snapshot` begins a snapshot at `now_ms` and
    returns the index that it covers."""

    def __init__(
        self,
        config: ControllerConfig,
        raft: RaftNode,
        addresses: PeerAddresses,
        emit: Callable[[Action], None],
        not_leader: Callable[[Command], Command],
        take_snapshot: Callable[[int], RaftIndex],
    ) -> None:
        self._config = config
        self._raft = raft
        self._addresses = addresses
        self._emit = emit
        self._not_leader = not_leader
        self._take_snapshot = take_snapshot
        self._waiting: dict[RaftIndex, tuple[Term, Token, Command]] = {}
        """Proposed membership changes, by the index of their entry."""

    def serve(self, now_ms: int, token: Token, command: Command) -> None:
        """Handle a request whose code is one of QUORUM_CODES."""
        try:
            reply = self._reply(now_ms, token, command)
        except InvalidRequestError as problem:
            reply = command.reply(ResponseCode.CONTROLLER_INVALID_REQUEST, remark=str(problem))
        if reply is not None and not command.is_oneway:
            self._emit(Reply(token, reply))

    def applied(self, index: RaftIndex, term: Term) -> None:
        """Answer the request whose entry `index` is committed. An entry of another term has replaced it: no effect."""
        waiting = self._waiting.pop(index, None)
        if waiting is None:
            return
        placed_term, token, command = waiting
        reply = self._done(command, index) if placed_term == term else self._not_leader(command)
        if not command.is_oneway:
            self._emit(Reply(token, reply))

    # --- requests ---------------------------------------------------------------------------------------------------

    def _reply(self, now_ms: int, token: Token, command: Command) -> Command | None:
        """Answer to a request; None if it follows later. Raises InvalidRequestError."""
        ext = command.ext
        version = text(ext, "version", str(VERSION))
        if version != str(VERSION):
            raise InvalidRequestError(f"version {version[:20]!r} of the request; this controller understands {VERSION}")
        match command.code:
            case RequestCode.RMQHA_GET_QUORUM:
                return command.reply(body=lenient_json.dumps(self._view(now_ms)))
            case RequestCode.RMQHA_TAKE_SNAPSHOT:
                return command.reply(ext={"snapshotIndex": str(self._take_snapshot(now_ms))})
            case RequestCode.RMQHA_ADD_CONTROLLER:
                return self._change(now_ms, token, command, _node_to_add(ext))
            case RequestCode.RMQHA_REMOVE_CONTROLLER:
                return self._change(now_ms, token, command, RemoveNode(text(ext, "node")))
            case _:
                return self._transfer(now_ms, command)

    def _view(self, now_ms: int) -> dict[str, object]:
        return {
            "version": VERSION,
            "group": self._config.controller_dleger_group,
            "address": self._config.self_address,
            "leaderAddress": self._addresses.of(self._raft.leader_id),
            **self._raft.state(now_ms).to_json(),
            # the configuration has no addresses before the group is formed, and the own address is that of the key
            "addresses": dict(self._addresses.members()),
        }

    def _change(self, now_ms: int, token: Token, command: Command, wanted: MembershipChange) -> Command | None:
        placed = self._raft.change_membership(now_ms, wanted)
        if placed is None:
            return self._not_leader(command)
        if isinstance(placed, Refused):
            return command.reply(ResponseCode.CONTROLLER_INVALID_REQUEST, remark=placed.reason)
        term, index = placed
        self._waiting[index] = (term, token, command)
        return None

    def _done(self, command: Command, index: RaftIndex) -> Command:
        return command.reply(ext={"index": str(index)})

    def _transfer(self, now_ms: int, command: Command) -> Command:
        raft = self._raft
        if not raft.is_leader:
            return self._not_leader(command)
        node_id = text(command.ext, "node", "")
        target = raft.configuration.find(node_id) if node_id else raft.best_successor(now_ms)
        if target is None:
            remark = f"the group has no node {node_id}" if node_id else "there is no other voter"
            return command.reply(ResponseCode.CONTROLLER_INVALID_REQUEST, remark=remark)
        if target == raft.node_id:
            return command.reply(ext={"node": id_of(target)})
        if not raft.transfer_leadership(now_ms, target):
            remark = f"{id_of(target)} cannot take over: it has no vote, or another transfer is under way"
            return command.reply(ResponseCode.CONTROLLER_INVALID_REQUEST, remark=remark)
        return command.reply(ext={"node": id_of(target)})


def _node_to_add(ext: dict[str, str]) -> AddNode:
    node_id, incarnation, address = text(ext, "node"), text(ext, "incarnation"), text(ext, "address")
    for name, value in (("node", node_id), ("incarnation", incarnation), ("address", address)):
        if not 0 < len(value) <= MAX_NAME_CHARS // 3 or SEPARATOR in value:
            raise InvalidRequestError(f"{name} = {value[:40]!r} must be a short text without {SEPARATOR!r}")
    try:
        parse_address(address)
    except ValueError as problem:
        raise InvalidRequestError(str(problem)) from None
    return AddNode(identity(node_id, incarnation), address, voter=not flag(ext, "learner"))
