"""Names of the replicas of a group, for sentences about replicas of which only the id is known. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from rmqha.model.identity import name_replicas, node_label
from rmqha.ops.snapshot import ClusterSnapshot, NodeReport, ServerKind


class ReplicaNames:
    """Names of a group's replicas. `labels`: by broker id; a replica without one is named by its id."""

    def __init__(self, labels: Mapping[int, str] | None = None) -> None:
        self._labels = labels or {}

    def of(self, broker_id: int) -> str:
        return self._labels.get(broker_id) or node_label("", broker_id)

    def all_of(self, broker_ids: Iterable[int]) -> str:
        """Names of several replicas, in the order of their ids."""
        return ", ".join(self.of(broker_id) for broker_id in sorted(broker_ids)) or "nobody"


def with_names(snapshot: ClusterSnapshot) -> ClusterSnapshot:
    """The snapshot in which each broker's sentences name replicas; as it told them they have only ids."""
    names: dict[str, ReplicaNames] = {}
    nodes = []
    for node in snapshot.nodes:
        state = node.replica
        if state is not None and (state.why_not_writable or state.refusal or state.controller_refusal):
            if node.group not in names:
                names[node.group] = replica_names(snapshot.nodes, node.group)
            label = names[node.group].of
            named = replace(
                state,
                why_not_writable=name_replicas(state.why_not_writable, label),
                refusal=state.refusal and name_replicas(state.refusal, label),
                controller_refusal=state.controller_refusal and name_replicas(state.controller_refusal, label),
            )
            node = replace(node, replica=named)
        nodes.append(node)
    return replace(snapshot, nodes=tuple(nodes))


def replica_names(reports: Iterable[NodeReport], group: str) -> ReplicaNames:
    """Names by the controllers' reports, which also have replicas that do not answer, and by each broker's own."""
    reports = list(reports)
    local = {report.address: report.name for report in reports if report.kind is ServerKind.BROKER and report.name}
    labels: dict[int, str] = {}
    for report in reports:
        told = report.reported_groups.get(group)
        for item in told.replicas if told is not None else ():
            labels[item.broker_id] = node_label(
                local.get(item.address) or item.node_name or "", item.broker_id, item.address
            )
    for report in reports:
        state = report.replica
        if state is not None and state.broker_id is not None and report.group == group:
            labels[state.broker_id] = node_label(report.node_name, state.broker_id, report.address)
    return ReplicaNames(labels)
