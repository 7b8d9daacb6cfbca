"""Ask every node of a cluster how it is, and say what is not well. Control plane.

Each answer is one party's word: the broker's about itself (request 52000), the controllers' about the group (1004),
the name servers' about where clients go (106). A group is healthy when they agree.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import trio

from rmqha.ha.group_info import GroupInfo, parse_group_info
from rmqha.host.net.remoting import RemotingClient
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import RemoteError, RmqhaError, UnreachableError
from rmqha.ops.answer import reading
from rmqha.ops.local.cluster_file import NodeKind
from rmqha.ops.local.cluster_state import ClusterState, NodeRecord
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import loads
from rmqha.wire.state.controller_state import ControllerState, ExplainedGroup
from rmqha.wire.state.json_record import JsonRecord
from rmqha.wire.state.name_server_state import NameServerState
from rmqha.wire.state.replica_state import CopyState, DamageState, ReplicaState

ASK_TIMEOUT_MS = 1000
DAMAGE_FIX = 'start a replica that has it, or see "A record that nobody has" in docs/operate/recovery.md'
_STATES: dict[type[JsonRecord], tuple[RequestCode, str]] = {
    ReplicaState: (RequestCode.RMQHA_GET_REPLICA_STATE, "a broker's"),
    ControllerState: (RequestCode.RMQHA_GET_CONTROLLER_STATE, "a controller's"),
    NameServerState: (RequestCode.RMQHA_GET_NAMESRV_STATE, "a name server's"),
}
StateT = TypeVar("StateT", ReplicaState, ControllerState, NameServerState)


@dataclass(slots=True)
class NodeView:
    """A node as it was a moment ago: what its servers said of themselves, None of those that it has not or that did not
    answer."""

    node: NodeRecord
    alive: bool
    replica: ReplicaState | None = None
    controller: ControllerState | None = None
    name_server: NameServerState | None = None
    error: str = ""

    @property
    def answers(self) -> bool:
        return any(item is not None for item in (self.replica, self.controller, self.name_server))

    def state_json(self) -> dict[str, Any]:
        """The node's answers as JSON, {} if it did not answer."""
        if self.replica is not None:
            return self.replica.to_json()
        told = {} if self.name_server is None else self.name_server.to_json()
        if self.controller is None:
            return {"kind": "namesrv"} | told if self.name_server is not None else {}
        return self.controller.to_json() | ({"nameServer": told} if self.node.kind == NodeKind.NAMESRV.value else {})


@dataclass(slots=True)
class GroupView:
    """A group as the controllers see it (`info`, None if none of them answered) and as clients are routed."""

    name: str
    info: GroupInfo | None = None
    routes: dict[int, str] = field(default_factory=dict)
    """Broker id → address of the name servers' answer; the master is id 0."""
    in_maintenance: frozenset[str] = frozenset()
    """Addresses of the replicas whose absence an operator has announced (`rmqha maintenance on`)."""


@dataclass(slots=True)
class ClusterView:
    state: ClusterState
    nodes: dict[str, NodeView]
    groups: dict[str, GroupView]

    def replicas(self, group: str) -> list[NodeView]:
        return [view for view in self.nodes.values() if view.node.group == group]

    def is_maintained(self, node: NodeView) -> bool:
        """True if the controllers say so of this node; False if none of them told, and for what is no broker."""
        return node.node.is_broker and node.node.address in self.groups[node.node.group].in_maintenance


def asked(reply: Command, address: str) -> Command:
    """The reply if it is a success; RemoteError otherwise."""
    if reply.code != ResponseCode.SUCCESS:
        raise RemoteError(reply.code, reply.remark or "", address)
    return reply


async def ask(client: RemotingClient, address: str, command: Command) -> Command:
    """One request to one node. Raises UnreachableError or RemoteError."""
    return asked(await client.call(address, command, ASK_TIMEOUT_MS), address)


async def ask_leader(
    client: RemotingClient, addresses: list[str], command: Callable[[], Command], timeout_ms: int = ASK_TIMEOUT_MS
) -> tuple[Command, str]:
    """One request to the leader of the controllers, whichever of `addresses` that is: (reply, who answered).

    Raises RemoteError for its refusal, UnreachableError if no leader can be found."""
    waiting, tried = list(addresses), set[str]()
    trouble = "none is configured"
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
            trouble = f"{address} knows no leader" if not leader else f"{address} says that {leader} leads"
            waiting = [leader, *waiting] if leader else waiting
            continue
        return asked(reply, address), address
    raise UnreachableError(f"no controller could be asked: {trouble}")


async def look(client: RemotingClient, state: ClusterState) -> ClusterView:
    """Ask all nodes at once; never raises for a node that does not answer."""
    view = ClusterView(
        state,
        {name: NodeView(node, node.alive) for name, node in state.nodes.items()},
        {name: GroupView(name) for name in state.groups},
    )
    async with trio.open_nursery() as nursery:
        for node in view.nodes.values():
            if node.alive:
                nursery.start_soon(_look_at_node, client, node)
        for group in view.groups.values():
            nursery.start_soon(_look_at_group, client, state, group)
    return view


async def _look_at_node(client: RemotingClient, view: NodeView) -> None:
    async def state() -> None:
        if view.node.is_broker:
            view.replica = await state_of(client, view.node.address, ReplicaState)
        if view.node.controller_address and not view.node.is_broker:
            view.controller = await state_of(client, view.node.controller_address, ControllerState)
        if view.node.kind == NodeKind.NAMESRV.value:
            view.name_server = await state_of(client, view.node.address, NameServerState)

    view.error = await _said(state)


async def state_of(client: RemotingClient, address: str, schema: type[StateT]) -> StateT:
    """A server's own state. Raises UnreachableError or RemoteError."""
    with reading(address, _STATES[schema][1]):
        return await ask_state(client, address, schema)


async def ask_state(client: RemotingClient, address: str, schema: type[StateT]) -> StateT:
    """Ask a server for its own state; ValueError for an answer that is no such state."""
    return schema.from_json(json.loads(bytes((await ask(client, address, Command(_STATES[schema][0]))).body)))


async def _look_at_group(client: RemotingClient, state: ClusterState, view: GroupView) -> None:
    async def controllers() -> None:
        request = {"brokerName": view.name}
        reply, _ = await ask_leader(
            client, state.controller_addresses, lambda: Command(RequestCode.CONTROLLER_GET_REPLICA_INFO, dict(request))
        )
        view.info = parse_group_info(reply)
        reply, _ = await ask_leader(
            client, state.controller_addresses, lambda: Command(RequestCode.RMQHA_EXPLAIN_GROUP, dict(request))
        )
        explained = ExplainedGroup.from_json(json.loads(bytes(reply.body)))
        view.in_maintenance = frozenset(item.address for item in explained.replicas if item.in_maintenance)

    async def name_servers() -> None:
        for address in state.namesrv_addresses.split(";"):
            reply = await ask(client, address, Command(RequestCode.GET_BROKER_CLUSTER_INFO))
            table = loads(bytes(reply.body)).get("brokerAddrTable", {})
            addresses = table.get(view.name, {}).get("brokerAddrs", {})
            view.routes = {int(broker_id): where for broker_id, where in addresses.items()}

    await _said(controllers)
    await _said(name_servers)


async def _said(question: Callable[[], Awaitable[None]]) -> str:
    """Run it; what went wrong as a sentence, "" if nothing did."""
    try:
        await question()
    except RmqhaError as error:
        return str(error)
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        return f"its answer cannot be read: {error}"
    return ""


def problems(view: ClusterView) -> dict[str, str]:
    """Problems, node → sentence; groups under their own name. Empty = healthy."""
    found: dict[str, str] = {}
    for name, node in view.nodes.items():
        if not node.alive:
            if not view.is_maintained(node):  # `notes` has it
                found[name] = "not running"
        elif not node.answers:
            found[name] = f"does not answer: {node.error}" if node.error else "does not answer yet"
    for group in view.groups.values():
        members = {node.node.name: node for node in view.replicas(group.name) if node.alive}
        found |= {name: trouble for name, trouble in _group_problems(group, members).items() if name not in found}
    return found


def problems_of(view: ClusterView, names: Collection[str]) -> dict[str, str]:
    """Problems that keep the nodes and groups in `names` from being well. A broker whose group has no master is not,
    since who is in the SyncStateSet is not known then; where the group is in `names` too, that is said once."""
    found = problems(view)
    for group in view.groups.values():
        if group.name not in names and (trouble := _leaderless(group, view.replicas(group.name))):
            for node in view.replicas(group.name):
                found.setdefault(node.node.name, f"group {group.name}: {trouble}; see rmqha explain {group.name}")
    return {name: trouble for name, trouble in found.items() if name in names}


def notes(view: ClusterView) -> dict[str, str]:
    """Notes worth knowing that are no problems, node → sentence."""
    return {
        name: f"in maintenance{'' if node.alive else ', stopped'}; end it with rmqha maintenance off {name}"
        for name, node in view.nodes.items()
        if view.is_maintained(node)
    }


def _is_static(replicas: Iterable[NodeView]) -> bool:
    return any(node.replica is not None and node.replica.is_static for node in replicas)


def damage_words(state: ReplicaState) -> str:
    """A sentence on damage in a replica's log that does not mend by itself, "" if nothing is."""
    damage = state.damage or DamageState()
    if damage.refused is not None:
        return f"its log ends at {damage.refused.phy_offset}: {damage.refused.reason}"
    count = damage.lacked_count
    if not count or not damage.records:
        return state.scrub.unreadable if state.scrub is not None else ""
    first = damage.records[0]
    which = "one record of its log is" if count == 1 else f"{count} records of its log are"
    return f"{which} damaged, the one at {first.phy_offset} among them: {first.reason} ({first.lacked})"


def _leaderless(group: GroupView, replicas: Iterable[NodeView]) -> str:
    """The reason why nobody can say what its replicas are, "" if the controllers can."""
    if _is_static(replicas) or (group.info is not None and group.info.master_id is not None):
        return ""
    return "no controller answers" if group.info is None else "has no master"


def _group_problems(group: GroupView, replicas: dict[str, NodeView]) -> dict[str, str]:
    if _is_static(replicas.values()):
        return _static_problems(group, replicas)
    info = group.info
    if info is None or info.master_id is None:
        return {group.name: _leaderless(group, replicas.values())}
    found = {}
    for name, node in replicas.items():
        state = node.replica
        if state is None:
            continue  # `problems` tells that it does not answer
        broker_id, role = state.broker_id, state.role
        is_master = broker_id == info.master_id
        if broker_id is None:
            found[name] = state.controller_refusal or "has no id from the controller yet"
        elif role == "STARTING":
            found[name] = state.controller_refusal or "has no role from the controller yet"
        elif is_master and role != "MASTER":
            found[name] = f"elected, its role is still {role}"
        elif is_master and not state.writable:
            found[name] = f"master, not writable: {state.why_not_writable or 'no reason given'}"
        elif not is_master and role != "SLAVE":
            found[name] = f"its role is {role}, the controller's master is broker id {info.master_id}"
        elif broker_id in info.drained_ids or state.async_learner:
            if state.follow_state != "following":
                found[name] = state.refusal or "does not follow the master yet"
        elif info.members is not None and broker_id not in info.members:
            found[name] = state.disk_problem or state.refusal or copy_words(state.copy) or outside_words(state)
        elif is_master and group.routes.get(0) != node.node.address:
            found[group.name] = f"the name server does not route to the master {name} yet"
    return found


def copy_words(copy: CopyState | None) -> str:
    """A sentence on the progress of a replica that copies its master's log, "" for one that does not."""
    if not copy:
        return ""
    done, wanted = copy.copied_bytes / 1e6, (copy.copied_bytes + copy.left_bytes) / 1e6
    words = f"copies the log: {done:,.0f} of {wanted:,.0f} MB, {copy.bytes_per_second / 1e6:,.1f} MB/s"
    return words if copy.eta_ms is None else f"{words}, {-(-copy.eta_ms // 1000)} s left"


def outside_words(state: ReplicaState) -> str:
    """A sentence on a replica that follows, has all and is no member."""
    if state.lacks_queue_ends:
        return "not in the SyncStateSet: asks its master where idle queues end (request 52032)"
    return "not in the SyncStateSet"


def _static_problems(group: GroupView, replicas: dict[str, NodeView]) -> dict[str, str]:
    """A static group: the master is writable and routed, every slave follows it."""
    found = {}
    for name, node in replicas.items():
        state = node.replica
        if state is None:
            continue
        if state.leads:
            if not state.writable:
                found[name] = f"master, not writable: {state.why_not_writable or 'no reason given'}"
            elif group.routes.get(0) != node.node.address:
                found[group.name] = f"the name server does not route to the master {name} yet"
        elif state.follow_state != "following":
            found[name] = state.refusal or "does not follow its master yet"
    return found
