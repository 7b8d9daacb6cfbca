"""A replica that refuses to follow its master: the point where their logs part, and the bytes behind it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from rmqha.ha.stream.alignment import consistent_point
from rmqha.model.epoch import EpochEntry, EpochHistory
from rmqha.model.error import RmqhaError, UnreachableError
from rmqha.model.offset import Epoch, PhyOffset
from rmqha.ops.cluster_view import ClusterView, NodeView
from rmqha.wire.state.replica_state import ReplicaState


@dataclass(frozen=True, slots=True)
class RefusedFork:
    """A fork because of which a replica refuses to follow. `point`: offset up to which both logs are the same; the
    first offset of the logs if they share nothing."""

    node: str
    group: str
    master: str
    reason: str
    point: int
    own_bytes: int
    master_bytes: int

    @property
    def sentence(self) -> str:
        return (
            f"{self.node} follows nobody: {self.reason}. From byte {self.point:,} on it has {self.own_bytes:,} bytes "
            f"that {self.master}, the master of {self.group}, has not, and lacks {self.master_bytes:,} of that"
        )


def forks_of(view: ClusterView) -> list[RefusedFork]:
    """Forks of all replicas that refuse, by name. In a group without a master that answers there is none."""
    return [
        fork_between(view, node, master)
        for _, node in sorted(view.nodes.items())
        if node.replica is not None
        and node.replica.refusal
        and (master := master_of(view, node.node.group)) is not None
    ]


def silent_replicas(view: ClusterView) -> list[str]:
    """Names of the replicas that did not answer: whether they refuse is not known. Raises UnreachableError if none
    answered."""
    replicas = [node for _, node in sorted(view.nodes.items()) if node.node.is_broker]
    silent = [node.node.name for node in replicas if node.replica is None]
    if replicas and len(silent) == len(replicas):
        raise UnreachableError(f"none of {', '.join(silent)} answers; see rmqha status")
    return silent


def master_of(view: ClusterView, group: str) -> NodeView | None:
    """The node that reports itself as master, with the highest epoch; None without one."""
    leading = [node for node in view.replicas(group) if node.replica is not None and node.replica.leads]
    return max(leading, key=lambda node: (node.replica.epoch or 0) if node.replica is not None else 0, default=None)


def fork_between(view: ClusterView, node: NodeView, master: NodeView) -> RefusedFork:
    own, other = node.replica, master.replica
    assert own is not None and other is not None, "both have answered"
    found = consistent_point(history_of(own), PhyOffset(own.max_phy_offset), history_of(other))
    point = own.min_phy_offset if found is None else min(found, own.max_phy_offset, other.max_phy_offset)
    return RefusedFork(
        node.node.name,
        node.node.group,
        master.node.name,
        own.refusal or "",
        point,
        own.max_phy_offset - point,
        other.max_phy_offset - point,
    )


def require_repairable(view: ClusterView, name: str) -> RefusedFork:
    """The fork of a replica that may be copied anew: it refuses, another replica is master and takes messages, and the
    controllers do not count it in the set. Raises RmqhaError otherwise, UnreachableError if it does not answer."""
    node = view.nodes[name]
    if node.replica is None:
        raise UnreachableError(
            f"{name} does not answer; only a running replica says that it refuses: rmqha start {name}"
        )
    if not node.replica.refusal:
        raise RmqhaError(f"{name} refuses nothing; see rmqha status")
    master, told = master_of(view, node.node.group), view.groups[node.node.group].reported
    if master is None or told is None:
        raise RmqhaError(
            f"{node.node.group} has no master that answers, so there is nothing to copy; see rmqha explain"
        )
    if node.replica.broker_id in told.sync_state_set:
        raise RmqhaError(
            f"the controllers still count {name} in the SyncStateSet; wait until it has left, see rmqha status"
        )
    return fork_between(view, node, master)


def history_of(state: ReplicaState) -> EpochHistory:
    return EpochHistory(EpochEntry(Epoch(epoch), PhyOffset(start)) for epoch, start in state.epochs)
