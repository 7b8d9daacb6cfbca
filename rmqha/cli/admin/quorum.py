"""`rmqha quorum`: the controllers' own group: who is in it, who leads; add, remove, hand over. Control plane."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import click

from rmqha.cli.acting import acting_controllers_option
from rmqha.cli.options import controllers_option, echo_json, output_option
from rmqha.cli.render import Text, console, table
from rmqha.host.asking.shell import Caller, ask_by, open_client, open_tasks, sleep, within
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import RemoteError, RmqhaError, UnreachableError, UsageError
from rmqha.model.identity import node_label, parse_address
from rmqha.ops.answer import json_object, readable_answer
from rmqha.ops.asking import ask, ask_leader
from rmqha.ops.cluster_view import unsaved_words
from rmqha.ops.local.cluster_state import ClusterState
from rmqha.wire.command import Command

VERSION = "1"
CHANGE_TIMEOUT_MS = 5000
POLL_INTERVAL_S = 0.05

COLUMNS = [
    ("NODE", "left"),
    ("KIND", "left"),
    ("ROLE", "left"),
    ("TERM", "right"),
    ("LAST", "right"),
    ("COMMIT", "right"),
    ("SNAPSHOT", "right"),
    ("LAG", "right"),
    ("ADDRESS", "left"),
]


@dataclass(slots=True)
class Quorum:
    """The controllers' group by its leader's answer, or else by the first one; and each member's own answer."""

    leader: dict[str, Any] | None
    answer: dict[str, Any]
    """Answer of the leader, else of the first controller that answered."""
    members: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Each member's own answer, by id; {} of one that does not answer."""

    def problems(self) -> dict[str, str]:
        """Problems by node; those of the group itself under "". Empty if all is well."""
        found = {} if self.leader else {"": "no controller leads"}
        if not self.answer["formed"]:
            found[""] = "the group is not formed yet: its first election needs all of them"
        for member in self.answer["members"]:
            node, own = member["node"], self.members[member["node"]]
            if not own:
                found[node] = "does not answer"
            elif self.answer["formed"] and own["incarnation"] != member["incarnation"]:
                found[node] = (
                    f"has lost its disk: rmqha quorum remove {node}, then rmqha quorum add {member['address']}"
                )
            elif stalled := unsaved_words(own.get("unsavedMs", 0)):
                found[node] = stalled
            elif member["kind"] == "JOINING":
                found[node] = "is still catching up and has no vote yet"
        return found

    def title(self, node: str) -> str:
        """The name of a controller's node in the cluster directory, with its id beside it where they differ; else its
        id."""
        return node_titles(self.answer["addresses"], ClusterState.find(None)).get(node, node)

    def lag(self, node: str) -> int | None:
        """Entries that the follower is behind the leader; None if nobody knows."""
        followers = self.leader.get("followers", {}) if self.leader else {}
        if self.leader and node == self.leader["node"]:
            return 0
        return self.leader["lastIndex"] - followers[node]["matchIndex"] if self.leader and node in followers else None

    def as_json(self) -> dict[str, Any]:
        problems = self.problems()
        nodes = [
            member
            | {
                "address": self.answer["addresses"].get(member["node"], ""),
                "lag": self.lag(member["node"]),
                "state": self.members[member["node"]],
                "name": self.title(member["node"]),
                "problem": problems.get(member["node"]),
            }
            for member in self.answer["members"]
        ]
        leader = self.leader["node"] if self.leader else None
        return {"group": self.answer["group"], "leader": leader, "problem": problems.get(""), "nodes": nodes}


async def ask_quorum(client: Caller, controllers: list[str]) -> Quorum:
    """Ask the leader, and then every member for its own state. Raises UnreachableError if none answers."""
    answer = await _first_answer(client, controllers)
    leader = None
    if answer["leaderAddress"]:
        own = await _own_answer(client, answer["leaderAddress"])
        leader = own if own.get("role") == "LEADER" else None
    quorum = Quorum(leader, leader or answer)

    async def of_member(node: str, address: str) -> None:
        quorum.members[node] = await _own_answer(client, address)

    async with open_tasks() as tasks:
        for node, address in quorum.answer["addresses"].items():
            tasks.start_soon(of_member, node, address)
    return quorum


async def _first_answer(client: Caller, controllers: list[str]) -> dict[str, Any]:
    """The answer of the first controller that knows a leader, for one that was removed knows none; else of the first
    that answers."""
    trouble, first = "none is configured", None
    for address in controllers:
        try:
            answer = await ask_one(client, address)
        except UnreachableError as error:
            trouble = str(error)
            continue
        if answer["leaderAddress"]:
            return answer
        first = first or answer
    if first is None:
        raise UnreachableError(f"no controller could be asked: {trouble}")
    return first


async def _own_answer(client: Caller, address: str) -> dict[str, Any]:
    """The controller's answer about itself, {} if it does not answer."""
    try:
        return await ask_one(client, address)
    except RmqhaError:
        return {}


async def ask_one(client: Caller, address: str) -> dict[str, Any]:
    """The body of one controller's answer to request 52020. Raises RmqhaError."""
    try:
        reply = await ask(client, address, _command(RequestCode.RMQHA_GET_QUORUM))
    except RemoteError as error:
        raise _explained(error, address) from None
    return json_object(reply, address, "a controller's", ("node", "leaderAddress", "addresses", "members", "formed"))


def _command(code: RequestCode, **ext: str) -> Command:
    return Command(code, {"version": VERSION, **ext})


def _explained(error: RemoteError, address: str = "") -> RmqhaError:
    """The controller's refusal as one sentence."""
    if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        return RmqhaError(f"{address or 'that node'} is no controller of rmqha; only those can be asked about a quorum")
    return RmqhaError(error.remark or str(error))


async def _ask_leader(client: Caller, controllers: list[str], code: RequestCode, **ext: str) -> Command:
    quorum = await ask_quorum(client, controllers)
    known = [quorum.answer["leaderAddress"]] if quorum.answer["leaderAddress"] else []
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


@click.group()
def quorum() -> None:
    """The controllers' own group: who is in it, who leads."""


# --- show -------------------------------------------------------------------------------------------------------------


@quorum.command(epilog="Example: rmqha quorum show -o json")
@controllers_option
@output_option
def show(controllers: list[str], output: str) -> None:
    """Show every controller: kind, role, term, indexes, how far behind the leader.

    Exit code: 0 all is well, 1 something is not, 2 nobody to ask.
    """

    async def asking() -> Quorum:
        async with open_client() as client:
            return await ask_quorum(client, controllers)

    found = ask_by(asking)
    if output == "json":
        echo_json(found.as_json())
    else:
        print_quorum(found)
    if found.problems():
        sys.exit(1)


def print_quorum(found: Quorum) -> None:
    rows = []
    for member in found.answer["members"]:
        node = member["node"]
        own = found.members[node]
        role = str(own.get("role", "down")).lower()
        style = {"leader": "bold green", "down": "bold red"}.get(role, "")
        indexes = [own.get(key) for key in ("term", "lastIndex", "commitIndex", "snapshotIndex")]
        address = found.answer["addresses"].get(node, "")
        rows.append([found.title(node), member["kind"].lower(), Text(role, style), *indexes, found.lag(node), address])
    out = console()
    out.print(table(COLUMNS, rows))
    for node, problem in found.problems().items():
        out.print(Text(f"{found.title(node)}: {problem}" if node else problem, "red"))


# --- change -----------------------------------------------------------------------------------------------------------


@quorum.command(epilog="Example: rmqha quorum add 127.0.0.1:9881")
@click.argument("address", metavar="HOST:PORT")
@click.option("--learner", is_flag=True, help="Only receive the log, without a vote.")
@click.option("--timeout", type=click.FloatRange(min=0.1), default=60.0, show_default=True, help="Seconds to catch up.")
@acting_controllers_option
@output_option
def add(
    address: str, learner: bool, timeout: float, controllers: list[str], state: ClusterState | None, output: str
) -> None:
    """Add the running controller at HOST:PORT: it catches up as a learner, then becomes a voter.

    Start it first, with its own entry added to controllerDLegerPeers. Also for a controller that has lost its disk,
    after `rmqha quorum remove`.
    """
    try:
        parse_address(address)
    except ValueError as error:
        raise UsageError(str(error)) from None
    result = ask_by(_add, controllers, address, learner, timeout)
    if output == "json":
        echo_json(result)
    else:
        click.echo(f"{result['node']} at {result['address']} is a {result['kind'].lower()}; {_members(result, state)}")


async def _add(controllers: list[str], address: str, learner: bool, timeout_s: float) -> dict[str, Any]:
    async with open_client() as client:
        new = await ask_one(client, address)
        group = await ask_quorum(client, controllers)
        _check_new(new, group.answer, address)
        node, kind = new["node"], "LEARNER" if learner else "VOTER"
        await _ask_leader(
            client,
            controllers,
            RequestCode.RMQHA_ADD_CONTROLLER,
            node=node,
            incarnation=new["incarnation"],
            address=new["address"],
            learner=str(learner).lower(),
        )
        with within(timeout_s):
            found = await _until(client, controllers, lambda quorum: _kind(quorum, node) == kind)
            return {"node": node, "address": new["address"], "kind": kind, "members": found.answer["members"]}
    raise RmqhaError(
        f"{node} was added, but has not caught up within {timeout_s:g} s; it gets its vote when it has, "
        "see rmqha quorum show"
    )


def _check_new(new: dict[str, Any], group: dict[str, Any], address: str) -> None:
    """Raise RmqhaError if the controller at `address` must not be added."""
    own = {(member["node"], member["incarnation"]) for member in new["members"]}
    known = {(member["node"], member["incarnation"]) for member in group["members"]}
    if new["formed"] and not own & known:
        names = ", ".join(member["node"] for member in new["members"])
        raise RmqhaError(
            f"{address} belongs to another group of controllers ({names}); stop it and give it an empty "
            "controllerStorePath"
        )


def _kind(quorum: Quorum, node: str) -> str | None:
    return next((member["kind"] for member in quorum.answer["members"] if member["node"] == node), None)


def _members(result: dict[str, Any], state: ClusterState | None) -> str:
    addresses = {member["node"]: member["address"] for member in result["members"]}
    titles = node_titles(addresses, state or ClusterState.find(None))
    return "the group is " + ", ".join(titles.get(member["node"], member["node"]) for member in result["members"])


@quorum.command(epilog="Example: rmqha quorum remove ctl-3")
@click.argument("name", metavar="NODE")
@acting_controllers_option
@output_option
def remove(name: str, controllers: list[str], state: ClusterState | None, output: str) -> None:
    """Remove a controller from the group; stop its process afterwards.

    NODE is its id, its node's name in the cluster directory, or HOST:PORT. A leader that is removed hands over. The
    rest must have a majority that answers.
    """
    names = state or ClusterState.find(None)

    async def asking() -> dict[str, Any]:
        async with open_client() as client:
            node = member_id(name, (await ask_quorum(client, controllers)).answer["addresses"], names)
            await _ask_leader(client, controllers, RequestCode.RMQHA_REMOVE_CONTROLLER, node=node)
            with within(CHANGE_TIMEOUT_MS / 1000):
                found = await _until(
                    client, controllers, lambda quorum: bool(quorum.leader) and not _kind(quorum, node)
                )
                return {"removed": node, "members": found.answer["members"]}
        raise RmqhaError(f"{node} was removed, but nobody leads the group since; see rmqha quorum show")

    result = ask_by(asking)
    if output == "json":
        echo_json(result)
    else:
        click.echo(f"{result['removed']} is removed; {_members(result, state)}")


@quorum.command(epilog="Example: rmqha quorum transfer ctl-2")
@click.argument("name", metavar="[NODE]", required=False)
@acting_controllers_option
@output_option
def transfer(name: str | None, controllers: list[str], state: ClusterState | None, output: str) -> None:
    """Hand the leadership to another controller, or to the one that holds most of the log.

    NODE is its id, its node's name in the cluster directory, or HOST:PORT.
    """
    names = state or ClusterState.find(None)

    async def asking() -> tuple[str, str]:
        async with open_client() as client:
            addresses = (await ask_quorum(client, controllers)).answer["addresses"]
            ext = {"node": member_id(name, addresses, names)} if name else {}
            reply = await _ask_leader(client, controllers, RequestCode.RMQHA_TRANSFER_LEADERSHIP, **ext)
            with readable_answer(controllers[0], "a controller's"):
                target = reply.ext["node"]
            with within(CHANGE_TIMEOUT_MS / 1000):
                await _until(
                    client, controllers, lambda quorum: bool(quorum.leader) and quorum.answer["node"] == target
                )
                return target, node_titles(addresses, names).get(target, target)
        raise RmqhaError(f"{target} has not taken over; the group keeps its leader, see rmqha quorum show")

    leader, title = ask_by(asking)
    if output == "json":
        echo_json({"leader": leader})
    else:
        click.echo(f"{title} leads")


@quorum.command(epilog="Example: rmqha quorum snapshot")
@acting_controllers_option
@output_option
def snapshot(controllers: list[str], state: ClusterState | None, output: str) -> None:
    """Let every controller replace its log by a snapshot now."""

    async def asking() -> dict[str, int]:
        reached: dict[str, int] = {}
        async with open_client() as client:
            found = await ask_quorum(client, controllers)
            for node, address in found.answer["addresses"].items():
                if found.members[node]:
                    reply = await ask(client, address, _command(RequestCode.RMQHA_TAKE_SNAPSHOT))
                    with readable_answer(address, "a controller's"):
                        reached[node] = int(reply.ext["snapshotIndex"])
        return reached

    reached = ask_by(asking)
    if output == "json":
        echo_json(reached)
    else:
        for node, index in reached.items():
            click.echo(f"{node}: snapshot of everything up to entry {index}")
