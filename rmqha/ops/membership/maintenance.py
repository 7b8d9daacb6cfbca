"""Drains of replicas out of the SyncStateSet, and their maintenance. Control plane."""

from __future__ import annotations

from rmqha.host.asking.shell import open_client
from rmqha.model.code import RequestCode
from rmqha.model.error import RmqhaError, UsageError
from rmqha.ops.local.cluster_state import ClusterState
from rmqha.ops.membership.group import ask_group, broker_node, counted, replica_at, tell, wait_group
from rmqha.wire.state.explained_state import ExplainedGroup, ExplainedReplica

SETTLE_S = 5.0


async def drain_replica(state: ClusterState, name: str, undo: bool, timeout_s: float) -> ExplainedGroup:
    """Take a replica out of the set and keep it out, or with `undo` let it take part again. Raises RmqhaError."""
    record = broker_node(state, name)
    async with open_client() as client:
        replica = known_replica(state, await ask_group(client, state, record.group), name)
        ext = {"brokerName": record.group, "brokerId": str(replica.broker_id), "drained": str(not undo).lower()}
        await tell(client, state, RequestCode.RMQHA_DRAIN_REPLICA, ext)

        def done(view: ExplainedGroup) -> bool:
            item = replica_at(view, record.address)
            if undo:
                return item is None or bool(item.in_sync_state_set) or item.async_learner or not item.alive
            is_out = item is None or not (item.is_master or item.in_sync_state_set)
            return is_out and view.master_broker_id is not None

        view, well = await wait_group(client, state, record.group, timeout_s, done)
        if well and not undo:
            # after a switch the others follow the new master within moments
            view, _ = await wait_group(client, state, record.group, SETTLE_S, _others_are_in)
    if not well and undo:
        raise RmqhaError(f"{name} is not drained any more, but not in the SyncStateSet after {timeout_s:g} s either")
    if not well:
        own = replica_at(view, record.address)
        where = "still master" if own is not None and own.is_master else "out of the set, but its group has no master"
        raise RmqhaError(
            f"{name} is drained and {where} after {timeout_s:g} s; the controllers go on trying, "
            f"`rmqha explain {record.group}` says why not yet, `rmqha drain {name} --undo` takes it back"
        )
    return view


def _others_are_in(view: ExplainedGroup) -> bool:
    return all(item.in_sync_state_set or not item.alive or item.drained for item in counted(view))


async def switch_maintenance(state: ClusterState, name: str, wanted: bool, timeout_s: float) -> ExplainedGroup:
    """Begin or end the maintenance of a replica, and wait until a master has handed over or the time is up. Raises
    RmqhaError."""
    record = broker_node(state, name)
    async with open_client() as client:
        replica = known_replica(state, await ask_group(client, state, record.group), name)
        ext = {"brokerName": record.group, "brokerId": str(replica.broker_id), "on": str(wanted).lower()}
        await tell(client, state, RequestCode.RMQHA_SET_MAINTENANCE, ext)

        def done(view: ExplainedGroup) -> bool:
            own = known_replica(state, view, name)
            others = any(item.in_sync_state_set and not item.is_master and item.alive for item in view.replicas)
            return not wanted or not own.is_master or not others

        view, _ = await wait_group(client, state, record.group, timeout_s, done)
    return view


def known_replica(state: ClusterState, view: ExplainedGroup, name: str) -> ExplainedReplica:
    """The replica of a node by the controllers. UsageError if they know none."""
    record = broker_node(state, name)
    found = replica_at(view, record.address)
    if found is None:
        raise UsageError(f"the controllers know no replica at {record.address}; see rmqha explain {record.group}")
    return found
