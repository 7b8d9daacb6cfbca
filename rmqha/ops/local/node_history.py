"""The events of all nodes of a cluster directory, in order of wall time. Control plane."""

from __future__ import annotations

import json
from typing import Any

from rmqha.host.asking.shell import Caller, open_client, open_tasks
from rmqha.model.code import RequestCode
from rmqha.model.error import RmqhaError
from rmqha.ops.asking import ask
from rmqha.ops.local.cluster_state import ClusterState, NodeRecord
from rmqha.ops.local.node_kind import NodeKind
from rmqha.wire.command import Command


async def collect(state: ClusterState) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Events of all running nodes with their "node", sorted by "at_ms"; and the reasons of nodes without an answer."""
    events: list[dict[str, Any]] = []
    silent: dict[str, str] = {}

    async def of_node(client: Caller, node: NodeRecord) -> None:
        try:
            reply = await ask(client, node.address, Command(RequestCode.RMQHA_GET_HISTORY))
            events.extend({**event, "node": node.name} for event in json.loads(bytes(reply.body))["events"])
        except RmqhaError as error:
            silent[node.name] = str(error)
        except (ValueError, KeyError, TypeError) as error:
            silent[node.name] = f"its answer cannot be read: {error}"

    async with open_client() as client, open_tasks() as tasks:
        for node in state.nodes.values():
            if node.alive:
                tasks.start_soon(of_node, client, node)
            else:
                silent[node.name] = "not running"
    return sorted(_once(events, state), key=lambda event: (event["at_ms"], event["node"])), silent


def _once(events: list[dict[str, Any]], state: ClusterState) -> list[dict[str, Any]]:
    """The events, each once. A controller in a name server's process shares its history; in a cluster elsewhere the two
    are two nodes."""
    hosts = {node.name: node.address.rpartition(":")[0] for node in state.nodes.values()}
    kinds = {node.name: node.kind for node in state.nodes.values()}
    told = {(hosts[event["node"]], _text(event)) for event in events if kinds[event["node"]] == NodeKind.NAMESRV.value}
    return [
        event
        for event in events
        if kinds[event["node"]] != NodeKind.CONTROLLER.value or (hosts[event["node"]], _text(event)) not in told
    ]


def _text(event: dict[str, Any]) -> str:
    return json.dumps({key: value for key, value in event.items() if key != "node"}, sort_keys=True)
