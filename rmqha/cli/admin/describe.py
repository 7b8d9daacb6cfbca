"""`rmqha describe`: what clusters, groups and brokers are and promise, asked over the wire. Control plane."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from rmqha.host.asking.shell import Caller, ask_by, open_client
from rmqha.model.error import UnreachableError, UsageError
from rmqha.model.identity import parse_address
from rmqha.ops.cluster_view import damage_words
from rmqha.ops.group_view import (
    GroupReport,
    ask_broker,
    controllers_are_ours,
    elects_uncleanly,
    promise_of,
)
from rmqha.ops.guarantee import conditions
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


# --- what is told -----------------------------------------------------------------------------------------------------
async def _ask(
    namesrv: str, name: str | None, here: ClusterState | None
) -> tuple[list[GroupReport], dict[str, list[str]], str]:
    """The groups (or the one called `name`), each with conditions of its promise; and the note of `ask_known_groups`.
    UsageError for an unknown name."""
    async with open_client() as client:
        found, note = await ask_known_groups(client, namesrv, name, here)
        return found, {group.name: await _conditions(client, group) for group in found}, note


async def _conditions(client: Caller, group: GroupReport) -> list[str]:
    speaker = _speaker(group)
    if speaker is None:
        return []
    addresses = [item for item in speaker.keys.get("controllerAddr", "").split(";") if item]
    static = speaker.keys.get("enableControllerMode") == "false"
    return conditions(
        controllers_ours=None if static else await controllers_are_ours(client, addresses),
        master_ours=speaker.is_ours,
        unclean=None if static else await elects_uncleanly(client, addresses),
        is_cp=speaker.keys.get("haMode") == "cp",
        is_static=static,
    )


def _speaker(group: GroupReport) -> NodeReport | None:
    """The report whose keys count: the master's, else that of any broker that answers; None without one."""
    found = [view for view in group.masters if not view.error] or group.answering
    return found[0] if found else None


def _replica_json(view: NodeReport, group: GroupReport | None) -> dict[str, Any]:
    """One replica by its own report, and by its master's; None where a value is not known."""
    state = view.replica
    master = group.masters[0].replica if group is not None and group.masters else None
    members = master.sync_state_set if master is not None else None
    broker_id = state.broker_id if state is not None else None
    slaves = (master.slaves if master is not None else None) or ()
    lag_bytes = next((item.lag_bytes for item in slaves if item.broker_id == broker_id is not None), None)
    return {
        "address": view.address,
        "routedId": view.routed_id,
        "brokerId": broker_id,
        "role": state.role if state else None if view.is_ours else "APACHE",
        "epoch": state.epoch if state else None,
        "maxOffset": state.max_phy_offset if state else None,
        "confirmOffset": state.confirm_offset if state else None,
        "inSet": None if members is None or broker_id is None else broker_id in members,
        "lagBytes": 0 if state and state.leads else lag_bytes,
        "unclean": state.unclean if state else None,
        "diskProblem": (state.disk_problem if state else None) or None,
        "damage": (damage_words(state) if state else None) or None,
        "refusal": (state.refusal if state else None) or None,
        "error": view.error or None,
    }


def _group_json(group: GroupReport, wants: list[str]) -> dict[str, Any]:
    speaker = _speaker(group)
    if speaker is None:
        trouble = "; ".join(sorted({view.error for view in group.brokers}))
        raise UnreachableError(f"no broker of group {group.name} answers: {trouble}")
    master = group.masters[0] if group.masters else None
    state = master.replica if master else None
    told = state.to_json() if state else {}
    total = (state.total_replicas if state else None) or 0
    keys, found = promise_of(speaker)
    counted = sum(1 for view in group.brokers if view.keys.get("asyncLearner") != "true")
    return {
        "group": group.name,
        "cluster": group.cluster,
        "toldBy": speaker.address,
        "master": master.address if master else None,
        "masterId": told.get("brokerId"),
        **{name: told.get(name) for name in ("epoch", "totalReplicas", "syncStateSet", "writable")},
        "whyNotWritable": told.get("whyNotWritable") or None,
        **{name: told.get(name) for name in ("oneCopySynced", "ackRule")},
        "replicas": [_replica_json(view, group) for view in group.brokers],
        "missingReplicas": max(0, total - counted),
        "guarantee": {**asdict(found), "conditions": wants},
        "keys": [asdict(item) for item in keys.values()],
        "contradictions": _differences(group),
    }


def _differences(group: GroupReport) -> list[str]:
    """Keys that must be equal on all replicas and are not."""
    found = []
    for key in ("haMode", "flushDiskType", "totalReplicas", "mappedFileSizeCommitLog", "minInSyncReplicas"):
        values = {view.keys[key]: view.address for view in group.brokers if key in view.keys}
        if len(values) > 1:
            told = ", ".join(f"{value or 'empty'} on {address}" for value, address in sorted(values.items()))
            found.append(f"{key} differs between replicas: {told}")
    return found


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
    view = _group_json(group, wants[name])
    if output == "json":
        echo_json(view)
    else:
        _show_group(view)
    if not _is_well(view):
        sys.exit(1)


def _is_well(view: dict[str, Any]) -> bool:
    """True if the group takes messages and nothing contradicts. A Java master, which does not tell whether it is
    writable, counts as writable."""
    return view["master"] is not None and view["writable"] is not False and not view["contradictions"]


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
            views.append(_group_json(group, wants[group.name]))
        except UnreachableError as error:
            silent[group.name] = str(error)
    if output == "json":
        echo_json({"namesrv": namesrv, "groups": views, "silent": silent})
    else:
        _show_cluster(views, silent)
    if silent or not all(map(_is_well, views)):
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
    row = _replica_json(view, None)
    if output == "json":
        told = {
            "keys": [asdict(item) for item in keys.values()],
            "guarantee": asdict(found),
            "state": view.replica.to_json() if view.replica else {},
        }
        echo_json({"broker": name, **row, **told})
    else:
        out = console()
        out.print(Text(f"{name} at {view.address}: {_role_words(view)}", "bold"))
        _show_keys([asdict(item) for item in keys.values()])
        _show_promise(asdict(found) | {"conditions": []})
        for trouble in _troubles(row):
            out.print(Text(trouble, "red"))
    if _troubles(row):
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
            raise UsageError(f"{name} is no HOST:PORT, and no cluster is known here that has such a node") from None
        node = state.node(name)
        if not node.is_broker:
            raise UsageError(
                f"{name} is no broker; the brokers are {', '.join(item.name for item in state.brokers)}"
            ) from None
        return node.address
    return name


def _role_words(view: NodeReport) -> str:
    state = view.replica
    if state is None:
        return "a broker of Apache RocketMQ's; it tells its keys and no more"
    words = f"{state.role.lower()} of {state.broker_name}, id {state.broker_id}, epoch {state.epoch}"
    log = f"log {state.min_phy_offset} to {state.max_phy_offset}, confirmed to {state.confirm_offset}"
    follows = f"; follows {state.follows} ({state.follow_state})" if state.follows else ""
    return f"{words}; {log}{follows}"


def _troubles(row: dict[str, Any]) -> list[str]:
    found = [
        f"{name}: {row[key]}"
        for key, name in (("refusal", "refuses to follow"), ("diskProblem", "disk"), ("damage", "log"))
        if row[key]
    ]
    if row["unclean"]:
        found.append("unclean: it lost power, so it leads nobody until it has followed a master to its end")
    return found


# --- for people -------------------------------------------------------------------------------------------------------
def _show_group(view: dict[str, Any]) -> None:
    out = console()
    size = f" of {view['totalReplicas']}" if view["totalReplicas"] else ""
    members = "" if view["syncStateSet"] is None else f", set {view['syncStateSet']}{size}"
    master = f"master {view['master']}" if view["master"] else "no master"
    epoch = "" if view["epoch"] is None else f", epoch {view['epoch']}"
    out.print(Text(f"{view['group']} in {view['cluster']}: {master}{epoch}{members}", "bold"))
    in_set = {None: "", True: "in", False: "out"}
    rows = []
    for item in view["replicas"]:
        role = "down" if item["error"] else str(item["role"] or "?").lower()
        numbers = (item["epoch"], item["maxOffset"], item["confirmOffset"])
        broker_id = item["routedId"] if item["brokerId"] is None else item["brokerId"]
        rows.append([broker_id, role, *numbers, in_set[item["inSet"]], item["lagBytes"], item["address"]])
    out.print(table(REPLICA_COLUMNS, rows))
    if view["missingReplicas"]:
        known = f"{view['totalReplicas'] - view['missingReplicas']} of its {view['totalReplicas']} replicas"
        out.print(Text(f"the name servers know {known}; see rmqha health {view['group']}", "yellow"))
    _show_promise(view["guarantee"])
    _show_keys(view["keys"])
    if view["whyNotWritable"]:
        out.print(Text(f"takes no messages: {view['whyNotWritable']}", "red"))
    for item in view["replicas"]:
        for trouble in [*([item["error"]] if item["error"] else []), *_troubles(item)]:
            out.print(Text(f"{item['address']}: {trouble}", "red"))
    for trouble in view["contradictions"]:
        out.print(Text(trouble, "red"))


def _show_promise(found: dict[str, Any]) -> None:
    out = console()
    out.print(Text(f"{found['kind']}: {found['acknowledged']}"))
    for line in found["losses"]:
        out.print(Text(f"  {line}"))
    for line in [*found["notes"], *found["conditions"]]:
        out.print(Text(f"  note: {line}", "yellow"))


def _show_keys(keys: list[dict[str, Any]]) -> None:
    console().print(table(KEY_COLUMNS, [[item["key"], item["value"] or "(empty)", item["source"]] for item in keys]))


def _show_cluster(views: list[dict[str, Any]], silent: dict[str, str]) -> None:
    out = console()
    rows = []
    for view in views:
        total = f"{len(view['syncStateSet'])}/{view['totalReplicas']}" if view["syncStateSet"] is not None else None
        writable = {None: "?", True: "yes", False: "no"}[view["writable"]]
        rows.append([view["group"], view["guarantee"]["kind"], view["master"], view["epoch"], total, writable])
    out.print(table(GROUP_COLUMNS, rows))
    for view in views:
        out.print(Text(f"{view['group']}: {view['guarantee']['acknowledged']}"))
        if view["whyNotWritable"]:
            out.print(Text(f"{view['group']} takes no messages: {view['whyNotWritable']}", "red"))
    for name, trouble in silent.items():
        out.print(Text(f"{name}: {trouble}", "red"))
