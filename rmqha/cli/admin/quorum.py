"""`rmqha quorum`: the controllers' own group: who is in it, who leads; add, remove, hand over. Control plane."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import click

from rmqha.cli.options import controllers_option, echo_json, output_option
from rmqha.cli.render import Text, console, table
from rmqha.cli.target import target_controllers_option
from rmqha.host.asking.shell import ask_by, open_client
from rmqha.model.error import UsageError
from rmqha.model.identity import parse_address
from rmqha.ops.local.cluster_state import ClusterState
from rmqha.ops.membership.quorum import (
    Quorum,
    add_controller,
    ask_quorum,
    node_titles,
    remove_controller,
    take_snapshots,
    transfer_leadership,
)
from rmqha.wire.state.controller_state import QuorumMember

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


@click.group()
def quorum() -> None:
    """The controllers' own group: who is in it, who leads."""


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
        echo_json(quorum_json(found))
    else:
        print_quorum(found)
    if found.problems():
        sys.exit(1)


def quorum_json(found: Quorum) -> dict[str, Any]:
    problems = found.problems()
    nodes = []
    for member in found.answer.members:
        own = found.members[member.node]
        nodes.append(
            member.to_json()
            | {
                "address": found.answer.addresses.get(member.node, ""),
                "lag": found.lag(member.node),
                "state": {} if own is None else own.to_json(),
                "name": found.title(member.node),
                "problem": problems.get(member.node),
            }
        )
    leader = found.leader.node if found.leader else None
    return {"group": found.answer.group, "leader": leader, "problem": problems.get(""), "nodes": nodes}


def print_quorum(found: Quorum) -> None:
    rows = []
    for member in found.answer.members:
        node, own = member.node, found.members[member.node]
        role = "down" if own is None else own.role.lower()
        style = {"leader": "bold green", "down": "bold red"}.get(role, "")
        indexes = [None] * 4 if own is None else [own.term, own.last_index, own.commit_index, own.snapshot_index]
        address = found.answer.addresses.get(node, "")
        rows.append([found.title(node), member.kind.lower(), Text(role, style), *indexes, found.lag(node), address])
    out = console()
    out.print(table(COLUMNS, rows))
    for node, problem in found.problems().items():
        out.print(Text(f"{found.title(node)}: {problem}" if node else problem, "red"))


# --- change -----------------------------------------------------------------------------------------------------------


@quorum.command(epilog="Example: rmqha quorum add 127.0.0.1:9881")
@click.argument("address", metavar="HOST:PORT")
@click.option("--learner", is_flag=True, help="Only receive the log, without a vote.")
@click.option("--timeout", type=click.FloatRange(min=0.1), default=60.0, show_default=True, help="Seconds to catch up.")
@target_controllers_option
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
    found = ask_by(add_controller, controllers, address, learner, timeout)
    if output == "json":
        members = [member.to_json() for member in found.members]
        echo_json({"node": found.node, "address": found.address, "kind": found.kind, "members": members})
    else:
        group = _group_sentence(found.members, state)
        click.echo(f"{found.node} at {found.address} is a {found.kind.lower()}; {group}")


def _group_sentence(members: Iterable[QuorumMember], state: ClusterState | None) -> str:
    addresses = {member.node: member.address for member in members}
    titles = node_titles(addresses, state or ClusterState.find(None))
    return "the group is " + ", ".join(titles.get(node, node) for node in addresses)


@quorum.command(epilog="Example: rmqha quorum remove ctl-3")
@click.argument("name", metavar="NODE")
@target_controllers_option
@output_option
def remove(name: str, controllers: list[str], state: ClusterState | None, output: str) -> None:
    """Remove a controller from the group; stop its process afterwards.

    NODE is its id, its node's name in the cluster directory, or HOST:PORT. A leader that is removed hands over. The
    rest must have a majority that answers.
    """
    node, members = ask_by(remove_controller, controllers, name, state or ClusterState.find(None))
    if output == "json":
        echo_json({"removed": node, "members": [member.to_json() for member in members]})
    else:
        click.echo(f"{node} is removed; {_group_sentence(members, state)}")


@quorum.command(epilog="Example: rmqha quorum transfer ctl-2")
@click.argument("name", metavar="[NODE]", required=False)
@target_controllers_option
@output_option
def transfer(name: str | None, controllers: list[str], state: ClusterState | None, output: str) -> None:
    """Hand the leadership to another controller, or to the one that holds most of the log.

    NODE is its id, its node's name in the cluster directory, or HOST:PORT.
    """
    leader, title = ask_by(transfer_leadership, controllers, name, state or ClusterState.find(None))
    if output == "json":
        echo_json({"leader": leader})
    else:
        click.echo(f"{title} leads")


@quorum.command(epilog="Example: rmqha quorum snapshot")
@target_controllers_option
@output_option
def snapshot(controllers: list[str], state: ClusterState | None, output: str) -> None:
    """Let every controller replace its log by a snapshot now."""
    reached = ask_by(take_snapshots, controllers)
    if output == "json":
        echo_json(reached)
    else:
        for node, index in reached.items():
            click.echo(f"{node}: snapshot of everything up to entry {index}")
