"""The nodes of a cluster as `rmqha status` shows them: a table for people, JSON for scripts. Control plane."""

from __future__ import annotations

from typing import Any

from rmqha.cli.render import Printer, Text, table
from rmqha.model.printable import printable
from rmqha.ops.cluster_view import ClusterView, NodeView, faults, notes


def node_row(view: ClusterView, node: NodeView) -> dict[str, Any]:
    """The values that are shown of a node, JSON-ready; None where one does not apply or is not known."""
    state = node.replica
    row: dict[str, Any] = {
        "node": node.node.name,
        "kind": node.node.kind,
        "role": (state.role.lower() if state is not None else "?") if node.alive else "down",
        "brokerId": None,
        "epoch": None,
        "maxOffset": None,
        "confirmOffset": None,
        "inSync": None,
        "address": node.node.address,
        "httpAddress": view.state.http_address(node.node.name) or None,
        "pid": node.node.pid if node.alive and not view.state.is_remote else None,
        "dataDirectory": None if view.state.is_remote else str(view.state.data_path(node.node)),
    }
    if node.node.is_broker:
        told = view.groups[node.node.group].reported
        broker_id = state.broker_id if state is not None else None
        row |= {"asyncLearner": state is not None and bool(state.async_learner), "drained": False}
        row |= {"inMaintenance": view.is_maintained(node)}
        if state is not None:
            row |= {"brokerId": broker_id, "epoch": state.epoch}
            row |= {"maxOffset": state.max_phy_offset, "confirmOffset": state.confirm_offset}
            row |= {"kernel": state.kernel} if state.kernel else {}
        if told is not None and broker_id is not None:
            row["inSync"] = broker_id in told.sync_state_set
            row["drained"] = broker_id in told.drained_ids
    release = node.release
    row |= {"release": release} if release else {}
    if not node.node.is_broker and node.answers:
        raft = node.controller.raft if node.controller is not None else None
        row |= {"role": raft.role.lower() if raft else node.node.kind, "epoch": raft.term if raft else None}
    return row


COLUMNS = [
    ("NODE", "left"),
    ("ROLE", "left"),
    ("ID", "right"),
    ("EPOCH", "right"),
    ("MAX", "right"),
    ("CONFIRM", "right"),
    ("SET", "left"),
    ("ADDRESS", "left"),
    ("PID", "right"),
]


def print_cluster(view: ClusterView, out: Printer) -> None:
    """Print the table of nodes, then the problems and notes."""
    rows = []
    kernels: dict[str, list[str]] = {}
    releases: dict[str, list[str]] = {}
    for node in view.nodes.values():
        row = node_row(view, node)
        if kernel := row.get("kernel"):
            kernels.setdefault(kernel.partition(":")[0], []).append(row["node"])
        if release := row.get("release"):
            releases.setdefault(release, []).append(row["node"])
        in_sync = {None: "", True: "in", False: "out"}[row["inSync"]]
        if not row["inSync"]:
            in_sync = "drained" if row.get("drained") else "learner" if row.get("asyncLearner") else in_sync
        if row.get("inMaintenance"):
            in_sync = "in, m" if row["inSync"] else "maint"
        down = "yellow" if row.get("inMaintenance") else "bold red"
        style = {"master": "bold green", "down": down}.get(row["role"], "")
        rows.append(
            [
                row["node"],
                Text(row["role"], style),
                *(row[key] for key in ("brokerId", "epoch", "maxOffset", "confirmOffset")),
                in_sync,
                row["address"],
                row["pid"],
            ]
        )
    out.print(table(COLUMNS, rows))
    where = f"cluster {view.state.name}, haMode={view.state.ha_mode}; {view.state.where}"
    out.print(Text(where))
    if releases:
        out.print(printable(f"release: {_by_name(releases)}", lines=False))
    if kernels:
        out.print(printable(f"kernel: {_by_name(kernels)}", lines=False))
    for name, node in view.nodes.items():
        follower = node.name_server
        if follower is not None and follower.event_index is not None:
            leader = follower.follows or "nobody yet"
            out.print(f"{name} routes by the elections of {leader} up to {follower.event_index}")
    for name, node in view.nodes.items():
        if node.replica is not None and node.replica.one_copy_synced:
            words = "one copy, synced: it acknowledges alone, each message from its disk, until the other is back"
            out.print(Text(f"{name}: {words}", "yellow"))
    for name, words in notes(view).items():
        out.print(Text(f"{name}: {words}", "yellow"))
    for name, trouble in faults(view).items():
        out.print(Text(f"{name}: {trouble}", "red"))


def _by_name(found: dict[str, list[str]]) -> str:
    """The one name if all nodes have it, else each name with its nodes."""
    if len(found) == 1:
        return next(iter(found))
    return "; ".join(f"{name} on {', '.join(nodes)}" for name, nodes in found.items())


def cluster_json(view: ClusterView) -> dict[str, Any]:
    """The cluster as JSON for scripts."""
    return {
        "name": view.state.name,
        "haMode": view.state.ha_mode,
        "directory": None if view.state.is_remote else str(view.state.directory),
        "namesrv": view.state.namesrv_addresses,
        "controllers": view.state.controller_addresses,
        "healthy": not faults(view),
        "problems": faults(view),
        "notes": notes(view),
        "nodes": [node_row(view, node) | {"state": node.state_json()} for node in view.nodes.values()],
        "groups": [
            {
                "name": group.name,
                "masterId": group.reported.master_broker_id if group.reported else None,
                "epoch": group.reported.master_epoch if group.reported else None,
                "syncStateSet": sorted(group.reported.sync_state_set) if group.reported else None,
                "routes": {str(broker_id): address for broker_id, address in sorted(group.routes.items())},
            }
            for group in view.groups.values()
        ],
    }
