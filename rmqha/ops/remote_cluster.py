"""A cluster without a directory here, found by asking its servers: commands take it as they take a directory's.

Control plane. A node has the name that the controllers or its file give it, else its address.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from rmqha.host.asking.shell import open_client
from rmqha.model.error import UnreachableError
from rmqha.ops.cluster_view import ClusterView
from rmqha.ops.local.cluster_state import ClusterState, NodeRecord
from rmqha.ops.local.node_kind import NodeKind
from rmqha.ops.snapshot import ClusterSnapshot, NodeReport, ServerKind
from rmqha.ops.survey import BootstrapAddresses, Survey, SurveyScope

FIND_S = 3.0
NOWHERE = Path("/dev/null")
"""Directory of a cluster that has none here: it can hold nothing, and nothing can be written into it."""
KINDS = {
    ServerKind.NAME_SERVER: NodeKind.NAMESRV,
    ServerKind.CONTROLLER: NodeKind.CONTROLLER,
    ServerKind.BROKER: NodeKind.BROKER,
}


@dataclass(frozen=True, slots=True)
class RemoteNode(NodeRecord):
    """A server elsewhere: its process is not visible, only whether it answers."""

    answers: bool = True

    @property
    def alive(self) -> bool:
        return self.answers


class RemoteCluster(ClusterState):
    """A cluster elsewhere. `found`: the snapshot in which its servers were found."""

    is_remote = True
    found: ClusterSnapshot

    @property
    def where(self) -> str:
        return f"found by {self.namesrv_addresses or ';'.join(self.controller_addresses)}"

    def properties(self, name: str) -> dict[str, str]:
        return {}

    def view(self) -> ClusterView:
        """The cluster as it was when it was found: no server is asked again."""
        reports = [replace(node, name=node.title, runs=node.answers) for node in self.found.nodes]
        return ClusterView.of(self, ClusterSnapshot.of(reports))


def cluster_of(snapshot: ClusterSnapshot) -> RemoteCluster:
    """The cluster of a survey's nodes. Raises UnreachableError if none answers, or if those that do know no others."""
    if not snapshot.answered:
        trouble = "; ".join(node.error for node in snapshot.nodes) or "no address is given"
        raise UnreachableError(f"nobody of that cluster answers: {trouble}")
    if all(node.kind is ServerKind.NAME_SERVER for node in snapshot.nodes):
        asked = ", ".join(node.address for node in snapshot.nodes)
        raise UnreachableError(f"{asked} knows no broker and no controller: is that the name server of the cluster?")
    states = [node.replica for node in snapshot.nodes if node.replica is not None]
    told = [group.cluster_name for node in snapshot.nodes for group in node.reported_groups.values()]
    names = [*told, *(state.cluster_name for state in states)]
    modes = sorted({state.ha_mode for state in states if state.ha_mode})
    nodes = {record.name: record for record in map(_record, snapshot.nodes)}
    made = RemoteCluster(NOWHERE, names[0] if names else "", "/".join(modes), "", nodes)
    made.found = snapshot
    return made


def _record(node: NodeReport) -> NodeRecord:
    is_controller = node.kind is ServerKind.CONTROLLER
    return RemoteNode(
        node.title,
        KINDS[node.kind].value,
        node.address,
        node.address if is_controller else "",
        node.group if node.kind is ServerKind.BROKER else "",
        answers=node.answers,
    )


async def find_remote(name_servers: tuple[str, ...], controllers: tuple[str, ...]) -> RemoteCluster:
    """Find a cluster by asking these servers, and all that they name."""
    async with open_client() as client:
        bootstrap = BootstrapAddresses(name_servers, controllers)
        return cluster_of(await Survey(client, bootstrap, FIND_S, extent=SurveyScope.NAMED).run())
