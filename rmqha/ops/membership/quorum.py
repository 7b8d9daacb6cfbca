"""The controllers' own group: who is in it, who leads; add, remove, hand over. Control plane."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rmqha.host.asking.shell import Caller, open_client, open_tasks, sleep, within
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import RemoteError, RmqhaError, UnreachableError, UsageError
from rmqha.model.identity import node_label
from rmqha.ops.answer import readable_answer
from rmqha.ops.asking import ask, ask_leader, no_controller
from rmqha.ops.cluster_view import unsaved_sentence
from rmqha.ops.local.cluster_state import ClusterState
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import loads
from rmqha.wire.state.controller_state import QuorumMember, QuorumState

VERSION = "1"
CHANGE_TIMEOUT_MS = 5000
POLL_INTERVAL_S = 0.05


@dataclass(slots=True)
class Quorum:
    """The controllers' group by its leader's answer, or else by the first one; and each member's own answer."""

    leader: QuorumState | None
    answer: QuorumState
    """Answer of the leader, else of the first controller that answered."""
    members: dict[str, QuorumState | None] = field(default_factory=dict)
    """Each member's own answer, by id; None of one that does not answer."""

    def problems(self) -> dict[str, str]:
        """Problems by node; those of the group itself under "". Empty if all is well."""
        found = {} if self.leader else {"": "no controller leads"}
        if not self.answer.formed:
            found[""] = "the group is not formed yet: its first election needs all of them"
        for member in self.answer.members:
            node, own = member.node, self.members[member.node]
            if own is None:
                found[node] = "does not answer"
            elif self.answer.formed and own.incarnation != member.incarnation:
                found[node] = f"has lost its disk: rmqha quorum remove {node}, then rmqha quorum add {member.address}"
            elif stalled := unsaved_sentence(own.unsaved_ms):
                found[node] = stalled
            elif member.kind == "JOINING":
                found[node] = "is still catching up and has no vote yet"
        return found

    def title(self, node: str) -> str:
        """The name of a controller's node in the cluster directory, with its id beside it where they differ; else its
        id."""
        return node_titles(self.answer.addresses, ClusterState.find(None)).get(node, node)

    def lag(self, node: str) -> int | None:
        """Entries that the follower is behind the leader; None if nobody knows."""
        if self.leader is None:
            return None
        if node == self.leader.node:
            return 0
        follower = (self.leader.followers or {}).get(node)
        return None if follower is None else self.leader.last_index - follower.match_index

    def kind(self, node: str) -> str | None:
        """The kind of a member, VOTER, LEARNER or JOINING; None for another node."""
        return next((member.kind for member in self.answer.members if member.node == node), None)


async def ask_quorum(client: Caller, controllers: list[str]) -> Quorum:
    """Ask the leader, and then every member for its own state. Raises UnreachableError if none answers."""
    answer = await _first_answer(client, controllers)
    leader = None
    if answer.leader_address:
        own = await _own_answer(client, answer.leader_address)
        leader = own if own is not None and own.role == "LEADER" else None
    quorum = Quorum(leader, leader or answer)

    async def of_member(node: str, address: str) -> None:
        quorum.members[node] = await _own_answer(client, address)

    async with open_tasks() as tasks:
        for node, address in quorum.answer.addresses.items():
            tasks.start_soon(of_member, node, address)
    return quorum


async def _first_answer(client: Caller, controllers: list[str]) -> QuorumState:
    """The answer of the first controller that knows a leader, for one that was removed knows none; else of the first
    that answers."""
    trouble, first = "", None
    for address in controllers:
        try:
            answer = await ask_one(client, address)
        except UnreachableError as error:
            trouble = str(error)
            continue
        if answer.leader_address:
            return answer
        first = first or answer
    if first is None:
        raise no_controller(trouble)
    return first


async def _own_answer(client: Caller, address: str) -> QuorumState | None:
    """The controller's answer about itself, None if it does not answer."""
    try:
        return await ask_one(client, address)
    except RmqhaError:
        return None


async def ask_one(client: Caller, address: str) -> QuorumState:
    """One controller's answer to request 52020. Raises RmqhaError."""
    try:
        reply = await ask(client, address, _command(RequestCode.RMQHA_GET_QUORUM))
    except RemoteError as error:
        raise _explained(error, address) from None
    with readable_answer(address, "a controller's"):
        return QuorumState.from_json(loads(bytes(reply.body)))


def _command(code: RequestCode, **ext: str) -> Command:
    return Command(code, {"version": VERSION, **ext})


def _explained(error: RemoteError, address: str = "") -> RmqhaError:
    """The controller's refusal as one sentence."""
    if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        return RmqhaError(f"{address or 'that node'} is no controller of rmqha; only those can be asked about a quorum")
    return RmqhaError(error.remark or str(error))


async def _ask_leader(client: Caller, controllers: list[str], code: RequestCode, **ext: str) -> Command:
    quorum = await ask_quorum(client, controllers)
    known = [quorum.answer.leader_address] if quorum.answer.leader_address else []
    try:
        reply, _ = await ask_leader(client, [*known, *controllers], lambda: _command(code, **ext), CHANGE_TIMEOUT_MS)
    except RemoteError as error:
        raise _explained(error) from None
    return reply


def member_id(given: str, addresses: dict[str, str], state: ClusterState | None) -> str:
    """The id of the controller that an operator names: by its id, by its node's name in the cluster directory, or by
    its address. `addresses` by id; `state`: the cluster of that directory. Raises UsageError for another."""
    if given in addresses:
        return given
    known = state is not None and given in state.nodes
    address = state.nodes[given].controller_address if state is not None and known else given
    found = next((node for node, listens in addresses.items() if listens == address), None)
    if found is None:
        titles = node_titles(addresses, state)
        names = ", ".join(titles.get(node, node) for node in sorted(addresses))
        raise UsageError(f"the controllers know no {given} among them; they are {names}")
    return found


def node_titles(addresses: dict[str, str], state: ClusterState | None) -> dict[str, str]:
    """Names of the controllers of the cluster directory, by id; `addresses` by id."""
    names = {} if state is None else {node.controller_address: node.name for node in state.nodes.values()}
    return {node: node_label(names[address], node) for node, address in addresses.items() if address in names}


async def _until(client: Caller, controllers: list[str], holds: Callable[[Quorum], bool]) -> Quorum:
    """Ask again and again until `holds`; the caller bounds the time."""
    while True:
        quorum = await ask_quorum(client, controllers)
        if holds(quorum):
            return quorum
        await sleep(POLL_INTERVAL_S)


# --- change -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AddedController:
    """A controller that has been added, and the group's members since."""

    node: str
    address: str
    kind: str
    members: Sequence[QuorumMember]


async def add_controller(controllers: list[str], address: str, learner: bool, timeout_s: float) -> AddedController:
    """Add the running controller at `address` and wait until it has caught up. Raises RmqhaError."""
    async with open_client() as client:
        new = await ask_one(client, address)
        group = await ask_quorum(client, controllers)
        _check_new(new, group.answer, address)
        node, kind = new.node, "LEARNER" if learner else "VOTER"
        await _ask_leader(
            client,
            controllers,
            RequestCode.RMQHA_ADD_CONTROLLER,
            node=node,
            incarnation=new.incarnation,
            address=new.address,
            learner=str(learner).lower(),
        )
        with within(timeout_s):
            found = await _until(client, controllers, lambda quorum: quorum.kind(node) == kind)
            return AddedController(node, new.address, kind, found.answer.members)
    raise RmqhaError(
        f"{node} was added, but has not caught up within {timeout_s:g} s; it gets its vote when it has, "
        "see rmqha quorum show"
    )


def _check_new(new: QuorumState, group: QuorumState, address: str) -> None:
    """Raise RmqhaError if the controller at `address` must not be added."""
    own = {(member.node, member.incarnation) for member in new.members}
    known = {(member.node, member.incarnation) for member in group.members}
    if new.formed and not own & known:
        names = ", ".join(member.node for member in new.members)
        raise RmqhaError(
            f"{address} belongs to another group of controllers ({names}); stop it and give it an empty "
            "controllerStorePath"
        )


async def remove_controller(
    controllers: list[str], name: str, state: ClusterState | None
) -> tuple[str, Sequence[QuorumMember]]:
    """Remove the controller that `member_id` finds. Returns its id and the members that are left. Raises RmqhaError."""
    async with open_client() as client:
        node = member_id(name, (await ask_quorum(client, controllers)).answer.addresses, state)
        await _ask_leader(client, controllers, RequestCode.RMQHA_REMOVE_CONTROLLER, node=node)
        with within(CHANGE_TIMEOUT_MS / 1000):
            found = await _until(client, controllers, lambda quorum: bool(quorum.leader) and not quorum.kind(node))
            return node, found.answer.members
    raise RmqhaError(f"{node} was removed, but nobody leads the group since; see rmqha quorum show")


async def transfer_leadership(controllers: list[str], name: str | None, state: ClusterState | None) -> tuple[str, str]:
    """Let another controller lead: the one that `member_id` finds, or by default that with most of the log. Returns
    its id and its title. Raises RmqhaError."""
    async with open_client() as client:
        addresses = (await ask_quorum(client, controllers)).answer.addresses
        ext = {"node": member_id(name, addresses, state)} if name else {}
        reply = await _ask_leader(client, controllers, RequestCode.RMQHA_TRANSFER_LEADERSHIP, **ext)
        with readable_answer(controllers[0], "a controller's"):
            target = reply.ext["node"]
        with within(CHANGE_TIMEOUT_MS / 1000):
            await _until(client, controllers, lambda quorum: bool(quorum.leader) and quorum.answer.node == target)
            return target, node_titles(addresses, state).get(target, target)
    raise RmqhaError(f"{target} has not taken over; the group keeps its leader, see rmqha quorum show")


async def take_snapshots(controllers: list[str]) -> dict[str, int]:
    """Let every controller that answers replace its log by a snapshot. Returns the index that it covers, by id."""
    reached: dict[str, int] = {}
    async with open_client() as client:
        found = await ask_quorum(client, controllers)
        for node, address in found.answer.addresses.items():
            if found.members[node] is not None:
                reply = await ask(client, address, _command(RequestCode.RMQHA_TAKE_SNAPSHOT))
                with readable_answer(address, "a controller's"):
                    reached[node] = int(reply.ext["snapshotIndex"])
    return reached
