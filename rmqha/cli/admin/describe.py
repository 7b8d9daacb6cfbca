"""`rmqha describe`: what clusters, groups and brokers are and promise, asked over the wire. Control plane."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rmqha.cli.admin.describe_topic import topic_command
from rmqha.cli.admin.known_groups import ask_known_groups, cluster_here, tell
from rmqha.cli.options import (
    cluster_or_none,
    complete_node,
    echo_json,
    namesrv_option,
    output_option,
    place_options,
)
from rmqha.cli.render import Text, console, table
from rmqha.host.asking.shell import ask_by, open_client
from rmqha.model.error import UnreachableError, UsageError
from rmqha.model.identity import parse_address
from rmqha.ops.description.group import (
    GroupDescription,
    KeyDescription,
    PromiseDescription,
    ask_conditions,
    describe_group,
    describe_replica,
)
from rmqha.ops.group_view import GroupReport, ask_broker, promise_of
from rmqha.ops.snapshot import NodeReport

if TYPE_CHECKING:
    from rmqha.ops.local.cluster_state import ClusterState

REPLICA_COLUMNS = [
    ("ID", "right"),
    ("ROLE", "left"),
    ("EPOCH", "right"),
    ("MAX", "right"),
    ("CONFIRM", "right"),
    ("SET", "left"),
    ("LAG", "right"),
    ("ADDRESS", "left"),
]
KEY_COLUMNS = [("KEY", "left"), ("VALUE", "left"), ("SOURCE", "left")]
GROUP_COLUMNS = [
    ("GROUP", "left"),
    ("KIND", "left"),
    ("MASTER", "left"),
    ("EPOCH", "right"),
    ("SET", "right"),
    ("WRITABLE", "left"),
]


@click.group()
def describe() -> None:
    """Tell what a cluster, a group, a broker or a topic is and promises, in words."""


describe.add_command(topic_command)


# --- asking ----------------------------------------------------------------------------------------------------------
async def _ask(
    namesrv: str, name: str | None, here: ClusterState | None
) -> tuple[list[GroupReport], dict[str, list[str]], str]:
    """The groups (or the one called `name`), each with conditions of its promise; and the note of `ask_known_groups`.
    UsageError for an unknown name."""
    async with open_client() as client:
        found, note = await ask_known_groups(client, namesrv, name, here)
        return found, {group.name: await ask_conditions(client, group) for group in found}, note


# --- commands ---------------------------------------------------------------------------------------------------------
@describe.command("group", epilog="Example: rmqha describe group broker-a")
@click.argument("name", metavar="GROUP")
@namesrv_option
@output_option
def group_command(name: str, namesrv: str, output: str) -> None:
    """Tell what broker group GROUP is: its replicas, its keys with their source, and what it promises.

    Exit code: 0 it takes messages, 1 it does not or something contradicts, 2 nobody to ask.
    """
    (group,), wants, note = ask_by(_ask, namesrv, name, cluster_here())
    tell(note)
    view = describe_group(group, wants[name])
    if output == "json":
        echo_json(view.to_json())
    else:
        _show_group(view)
    if not view.is_healthy:
        sys.exit(1)


@describe.command("cluster", epilog="Example: rmqha describe cluster")
@click.argument("name", metavar="[CLUSTER]", required=False)
@namesrv_option
@output_option
def cluster_command(name: str | None, namesrv: str, output: str) -> None:
    """Tell which groups there are, who leads each, and what each promises.

    Exit code: 0 all take messages, 1 one does not, 2 nobody to ask.
    """
    groups, wants, note = ask_by(_ask, namesrv, None, cluster_here())
    tell(note)
    chosen = [group for group in groups if name in (None, group.cluster)]
    if not chosen:
        known = ", ".join(sorted({group.cluster for group in groups})) or "none"
        what = f"cluster {name!r}" if name else "broker"
        raise UsageError(f"the name servers {namesrv} know no {what}; they know the clusters: {known}")
    views = []
    silent = {}
    for group in chosen:
        try:
            views.append(describe_group(group, wants[group.name]))
        except UnreachableError as error:
            silent[group.name] = str(error)
    if output == "json":
        echo_json({"namesrv": namesrv, "groups": [view.to_json() for view in views], "silent": silent})
    else:
        _show_cluster(views, silent)
    if silent or not all(view.is_healthy for view in views):
        sys.exit(1)


@describe.command("broker", epilog="Example: rmqha describe broker broker-a-1")
@click.argument("name", metavar="BROKER", shell_complete=complete_node)
@place_options
@output_option
def broker_command(name: str, namesrv: str | None, controller: str | None, directory: Path | None, output: str) -> None:
    """Tell what BROKER is, a node of the cluster or HOST:PORT: its role, its log, its keys with their source.

    Exit code: 0 it is well, 1 something is not, 2 nobody to ask.
    """
    view = ask_by(_ask_one, _address_of(name, namesrv, controller, directory))
    if view.error:
        raise UnreachableError(view.error)
    keys, found = promise_of(view)
    row = describe_replica(view, None)
    if output == "json":
        told = {
            "keys": [asdict(item) for item in keys.values()],
            "guarantee": asdict(found),
            "state": view.replica.to_json() if view.replica else {},
        }
        echo_json({"broker": name, **row.to_json(), **told})
    else:
        out = console()
        out.print(Text(f"{name} at {view.address}: {_role_sentence(view)}", "bold"))
        _show_keys(KeyDescription.all_of(keys.values()))
        _show_promise(PromiseDescription.of(found))
        for trouble in row.troubles:
            out.print(Text(trouble, "red"))
    if row.troubles:
        sys.exit(1)


async def _ask_one(address: str) -> NodeReport:
    async with open_client() as client:
        return await ask_broker(client, address)


def _address_of(name: str, namesrv: str | None, controller: str | None, directory: Path | None) -> str:
    try:
        parse_address(name)
    except ValueError:
        state = cluster_or_none(namesrv, controller, directory)
        if state is None:
            raise UsageError(
                f"{name} is no HOST:PORT, and no cluster is known here that has such a node; name one by --directory "
                "or --namesrv"
            ) from None
        node = state.node(name)
        if not node.is_broker:
            raise UsageError(
                f"{name} is no broker; the brokers are {', '.join(item.name for item in state.brokers)}"
            ) from None
        return node.address
    return name


def _role_sentence(view: NodeReport) -> str:
    state = view.replica
    if state is None:
        return "a broker of Apache RocketMQ's; it tells its keys and no more"
    words = f"{state.role.lower()} of {state.broker_name}, id {state.broker_id}, epoch {state.epoch}"
    log = f"log {state.min_phy_offset} to {state.max_phy_offset}, confirmed to {state.confirm_offset}"
    follows = f"; follows {state.follows} ({state.follow_state})" if state.follows else ""
    return f"{words}; {log}{follows}"


# --- for people -------------------------------------------------------------------------------------------------------
def _show_group(view: GroupDescription) -> None:
    out = console()
    size = f" of {view.total_replicas}" if view.total_replicas else ""
    members = "" if view.sync_state_set is None else f", set {list(view.sync_state_set)}{size}"
    master = f"master {view.master}" if view.master else "no master"
    epoch = "" if view.epoch is None else f", epoch {view.epoch}"
    out.print(Text(f"{view.group} in {view.cluster}: {master}{epoch}{members}", "bold"))
    in_set = {None: "", True: "in", False: "out"}
    rows = []
    for item in view.replicas:
        role = "down" if item.error else (item.role or "?").lower()
        broker_id = item.routed_id if item.broker_id is None else item.broker_id
        numbers = (item.epoch, item.max_offset, item.confirm_offset)
        rows.append([broker_id, role, *numbers, in_set[item.in_set], item.lag_bytes, item.address])
    out.print(table(REPLICA_COLUMNS, rows))
    if view.missing_replicas:
        known = f"{(view.total_replicas or 0) - view.missing_replicas} of its {view.total_replicas} replicas"
        out.print(Text(f"the name servers know {known}; see rmqha health {view.group}", "yellow"))
    _show_promise(view.guarantee)
    _show_keys(view.keys)
    if view.why_not_writable:
        out.print(Text(f"takes no messages: {view.why_not_writable}", "red"))
    for item in view.replicas:
        for trouble in [*([item.error] if item.error else []), *item.troubles]:
            out.print(Text(f"{item.address}: {trouble}", "red"))
    for trouble in view.contradictions:
        out.print(Text(trouble, "red"))


def _show_promise(found: PromiseDescription) -> None:
    out = console()
    out.print(Text(f"{found.kind}: {found.acknowledged}"))
    for line in found.losses:
        out.print(Text(f"  {line}"))
    for line in [*found.notes, *found.conditions]:
        out.print(Text(f"  note: {line}", "yellow"))


def _show_keys(keys: Sequence[KeyDescription]) -> None:
    console().print(table(KEY_COLUMNS, [[item.key, item.value or "(empty)", item.source] for item in keys]))


def _show_cluster(views: Sequence[GroupDescription], silent: Mapping[str, str]) -> None:
    out = console()
    rows = []
    for view in views:
        members = None if view.sync_state_set is None else f"{len(view.sync_state_set)}/{view.total_replicas}"
        writable = {None: "?", True: "yes", False: "no"}[view.writable]
        rows.append([view.group, view.guarantee.kind, view.master, view.epoch, members, writable])
    out.print(table(GROUP_COLUMNS, rows))
    for view in views:
        out.print(Text(f"{view.group}: {view.guarantee.acknowledged}"))
        if view.why_not_writable:
            out.print(Text(f"{view.group} takes no messages: {view.why_not_writable}", "red"))
    for name, trouble in silent.items():
        out.print(Text(f"{name}: {trouble}", "red"))
