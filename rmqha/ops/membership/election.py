"""Elections that an operator asks for: whom, and what is at stake. Control plane."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rmqha.ha.stream.alignment import consistent_point
from rmqha.host.asking.shell import open_client
from rmqha.model.code import RequestCode
from rmqha.model.epoch import EpochEntry, EpochHistory
from rmqha.model.error import RmqhaError, UnreachableError, UsageError
from rmqha.model.offset import Epoch, PhyOffset
from rmqha.ops.asking import ask_leader
from rmqha.ops.cluster_view import ClusterView, GroupView, NodeView, ask_cluster
from rmqha.ops.local.cluster_state import ClusterState
from rmqha.ops.membership.group import ask_group, node_of, replica_label
from rmqha.wire.command import Command
from rmqha.wire.state.controller_state import GroupState
from rmqha.wire.state.json_record import JsonRecord
from rmqha.wire.state.replica_state import ReplicaState

ELECT_TIMEOUT_MS = 5000


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ElectionOutcome(JsonRecord):
    """The master of a group, by its node's name. `elected`: False if it was the master before."""

    group: str
    master: str
    address: str
    epoch: int
    elected: bool


async def preferred_node(state: ClusterState, group: str) -> str:
    """The node of the preferred replica. Raises RmqhaError while the controllers cannot tell."""
    async with open_client() as client:
        view = await ask_group(client, state, group)
    broker_id = view.preferred_broker_id
    if broker_id is None:
        raise RmqhaError(f"not every replica of {group} has reported its priority yet; see rmqha status")
    if broker_id == view.master_broker_id:
        raise RmqhaError(f"{replica_label(state, view, broker_id)} is preferred and the master of {group} already")
    return node_of(state, view, broker_id)


async def elect_master(
    state: ClusterState, group: str, target: str | None, unclean: bool, accept: Callable[[str], None]
) -> ElectionOutcome:
    """Let the controllers elect `target`, or by default the best member of the set. For an unclean election `accept`
    gets the sentence on what may be lost, and raises UsageError to leave it. Raises RmqhaError."""
    async with open_client() as client:
        view = await ask_cluster(client, state)
        seen = view.groups[group]
        if any(node.replica is not None and node.replica.is_static for node in view.replicas(group)):
            raise UsageError(
                f"{group} is a static group: its master is fixed by brokerRole; see docs/operate/migration.md"
            )
        if seen.reported is None:
            raise UnreachableError(f"no controller of {state.name} answers, so nobody can elect; see rmqha status")
        chosen = view.nodes[target] if target else _best_member(view, seen)
        if chosen.replica is None or chosen.replica.broker_id is None:
            raise RmqhaError(f"{chosen.node.name} does not answer, so it cannot be elected: start it first")
        if leads_already(seen.reported, chosen):
            name, address = chosen.node.name, chosen.node.address
            return ElectionOutcome(
                group=group, master=name, address=address, epoch=seen.reported.master_epoch, elected=False
            )
        if unclean:
            accept(at_stake(view, seen, chosen))
        ext = {
            "clusterName": state.name,
            "brokerName": group,
            "brokerId": str(chosen.replica.broker_id),
            "designateElect": "true",
            "unclean": "true" if unclean else "false",
        }
        request = lambda: Command(RequestCode.CONTROLLER_ELECT_MASTER, dict(ext))  # noqa: E731
        reply, _ = await ask_leader(client, state.controller_addresses, request, ELECT_TIMEOUT_MS)
    master = reply.ext.get("masterAddress", "")
    name = next((node.name for node in state.brokers if node.address == master), master)
    epoch = int(reply.ext.get("masterEpoch", 0))
    return ElectionOutcome(group=group, master=name, address=master, epoch=epoch, elected=True)


def leads_already(told: GroupState, chosen: NodeView) -> bool:
    """True if a replica is the master by the controllers' and by its own report: no election is needed."""
    state = chosen.replica
    assert state is not None, "who does not answer is not chosen"
    return state.leads and (state.broker_id, state.epoch) == (told.master_broker_id, told.master_epoch)


def _best_member(view: ClusterView, group: GroupView) -> NodeView:
    """The member of the set with the longest log, other than the master."""
    assert group.reported is not None
    members = set(group.reported.sync_state_set) - {group.reported.master_broker_id}
    fit = [
        (node.replica.max_phy_offset, node)
        for node in view.replicas(group.name)
        if node.replica is not None and node.replica.broker_id in members
    ]
    if not fit:
        raise RmqhaError(f"{group.name} has no other member of its SyncStateSet that answers; see rmqha status")
    return max(fit, key=lambda item: item[0])[1]


def at_stake(view: ClusterView, group: GroupView, chosen: NodeView) -> str:
    """A sentence on the records that may be lost if `chosen` becomes master although it is not in the set. Epochs come
    before ends: records of an epoch that it does not have are all lost, however long its log is."""
    assert chosen.replica is not None, "who does not answer is not chosen"
    own_end = chosen.replica.max_phy_offset
    parts = []
    for node in view.replicas(group.name):
        if node is chosen:
            continue
        if node.replica is None:
            parts.append(_as_last_heard(group, node, chosen.replica))
        elif lost := _cut_bytes(node.replica, chosen.replica):
            last = _history(node.replica).last
            epoch = last.epoch if last is not None else "none"
            parts.append(f"{node.node.name}, whose last epoch is {epoch}, has {lost:,} bytes more, which would be lost")
    loss = "; ".join(parts) or "no replica has more"
    last = _history(chosen.replica).last
    return f"{chosen.node.name} ends at byte {own_end:,}, epoch {last.epoch if last is not None else 'none'}: {loss}"


def _as_last_heard(group: GroupView, node: NodeView, master: ReplicaState) -> str:
    """A sentence on what a replica that does not answer may have beyond the end of `master`, by its last heartbeat."""
    name, rows = node.node.name, () if group.reported is None else group.reported.replicas
    row = next((row for row in rows if row.address == node.node.address), None)
    if row is None or row.max_offset is None or row.epoch is None:
        return f"what {name} has beyond that is unknown, it does not answer"
    last = _history(master).last
    when = "" if row.silent_ms is None else f" {row.silent_ms / 1000:.0f} s ago"
    end = f"at byte {row.max_offset:,}, epoch {row.epoch}"
    heard = f"{name} does not answer; the controllers heard from it last{when}, {end}"
    if (more := row.max_offset - master.max_phy_offset) > 0:
        return f"{heard}: at least {more:,} bytes would be lost, and what it took since then"
    if row.epoch > (last.epoch if last is not None else 0):
        return f"{heard}: what it has of that epoch would be lost"
    return f"{heard}: no more than that, but for what it took since then"


def _history(state: ReplicaState) -> EpochHistory:
    return EpochHistory(EpochEntry(Epoch(epoch), PhyOffset(start)) for epoch, start in state.epochs)


def _cut_bytes(state: ReplicaState, master: ReplicaState) -> int:
    """Bytes that the replica would cut to follow a master that now ends where `master` does."""
    end = PhyOffset(state.max_phy_offset)
    point = consistent_point(_history(state), end, _history(master))
    return end - (state.min_phy_offset if point is None else min(point, master.max_phy_offset))
