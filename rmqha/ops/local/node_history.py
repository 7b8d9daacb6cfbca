"""The events of all nodes of a cluster directory, in order of wall time. Control plane."""

from __future__ import annotations

import json
from dataclasses import replace

from rmqha.host.asking.shell import Caller, open_client, open_tasks
from rmqha.model.code import RequestCode
from rmqha.model.error import RmqhaError
from rmqha.ops.asking import ask
from rmqha.ops.local.cluster_state import ClusterState, NodeRecord
from rmqha.ops.local.node_kind import NodeKind
from rmqha.wire.command import Command
from rmqha.wire.state.history import HistoryEvent, parse_history


async def collect(state: ClusterState) -> tuple[list[HistoryEvent], dict[str, str]]:
    """Events of all running nodes, sorted by time; and the reasons of nodes without an answer."""
    events: list[HistoryEvent] = []
    silent: dict[str, str] = {}

    async def of_node(client: Caller, node: NodeRecord) -> None:
        try:
            reply = await ask(client, node.address, Command(RequestCode.RMQHA_GET_HISTORY))
            events.extend(parse_history(json.loads(bytes(reply.body)), node.name))
        except RmqhaError as error:
            silent[node.name] = str(error)
        except ValueError as error:
            silent[node.name] = f"its answer cannot be read: {error}"

    async with open_client() as client, open_tasks() as tasks:
        for node in state.nodes.values():
            if node.alive:
                tasks.start_soon(of_node, client, node)
            else:
                silent[node.name] = "not running"
    return sorted(_once(events, state), key=lambda event: (event.at_ms, event.node)), silent


def _once(events: list[HistoryEvent], state: ClusterState) -> list[HistoryEvent]:
    """The events, each once. A controller in a name server's process shares its history; in a cluster elsewhere the two
    are two nodes."""
    hosts = {node.name: node.address.rpartition(":")[0] for node in state.nodes.values()}
    kinds = {node.name: node.kind for node in state.nodes.values()}
    told = {(hosts[event.node], _text(event)) for event in events if kinds[event.node] == NodeKind.NAMESRV.value}
    return [
        event
        for event in events
        if kinds[event.node] != NodeKind.CONTROLLER.value or (hosts[event.node], _text(event)) not in told
    ]


def _text(event: HistoryEvent) -> str:
    return json.dumps(replace(event, node="").to_json(), sort_keys=True)
