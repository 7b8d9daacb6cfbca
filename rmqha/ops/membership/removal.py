"""Removal of a replica from its group. Control plane."""

from __future__ import annotations

from functools import partial

from rmqha.host.asking.shell import Caller, beside, open_client
from rmqha.model.code import RequestCode
from rmqha.model.error import RmqhaError, UsageError
from rmqha.ops.local.cluster_state import ClusterState, NodeRecord
from rmqha.ops.local.launch import notice
from rmqha.ops.local.supervisor import DRAIN_TIMEOUT_S, stop_all
from rmqha.ops.membership.group import ask_group, counted, replica_at, resize, tell, wait_group
from rmqha.wire.state.explained_state import ExplainedGroup, ExplainedReplica


async def remove_replica(state: ClusterState, record: NodeRecord, timeout_s: float) -> ExplainedGroup:
    """Stop a replica, let the controllers forget it, and lower totalReplicas. Raises RmqhaError."""
    group = record.group
    async with open_client() as client:
        view = await ask_group(client, state, group)
        replica = replica_at(view, record.address)
        if replica is None:
            return await _finish(client, state, record, view, timeout_s)
        check_removable(record.name, record.alive, replica)
        if record.alive and state.is_remote:
            raise UsageError(f"{record.name} runs: stop it on its machine first, this only makes the others forget it")
        if record.alive and record.process is not None:
            killed = await beside(partial(stop_all, [record.process], DRAIN_TIMEOUT_S))
            if killed:
                notice(f"{record.name} did not stop within {DRAIN_TIMEOUT_S:g} s and had to be killed")

        # the controllers must have noticed, else they would refuse to clean a living replica
        def gone(view: ExplainedGroup) -> bool:
            own = replica_at(view, record.address)
            return own is None or not own.alive

        _, noticed = await wait_group(client, state, group, timeout_s, gone)
        if not noticed:
            raise RmqhaError(f"the controllers still hear from {record.name} {timeout_s:g} s after it was stopped")
        ext = {
            "clusterName": state.name,
            "brokerName": group,
            "brokerControllerIdsToClean": str(replica.broker_id),
            "isCleanLivingBroker": "false",
        }
        await tell(client, state, RequestCode.CONTROLLER_CLEAN_BROKER_METADATA, ext)
        view = await ask_group(client, state, group)
        total = max(view.total_replicas, view.next_total_replicas or 0)
        if not replica.async_learner and total > len(counted(view)):
            await resize(client, state, group, total - 1, timeout_s)
        return await ask_group(client, state, group)


async def _finish(
    client: Caller, state: ClusterState, record: NodeRecord, view: ExplainedGroup, timeout_s: float
) -> ExplainedGroup:
    """Finish a removal that was interrupted: the controllers have forgotten the replica already."""
    if record.alive or state.is_remote or any(item.node_name == record.name for item in view.replicas):
        raise UsageError(f"the controllers know no replica at {record.address}; see rmqha explain {record.group}")
    total = max(view.total_replicas, view.next_total_replicas or 0)
    left = sum(1 for node in state.brokers if node.group == record.group and node.name != record.name)
    wanted = total if total <= max(left, len(counted(view))) else total - 1
    await resize(client, state, record.group, wanted, timeout_s)
    return await ask_group(client, state, record.group)


def check_removable(name: str, alive: bool, replica: ExplainedReplica) -> None:
    """Raise UsageError for a replica that its group still needs."""
    drain = f"run `rmqha drain {name}` first"
    if replica.is_master:
        raise UsageError(f"{name} is the master; {drain}")
    if replica.in_sync_state_set:
        raise UsageError(f"{name} is in the SyncStateSet; {drain}")
    if alive and not replica.drained and not replica.async_learner:
        raise UsageError(f"{name} runs and may join the SyncStateSet at any moment; {drain}")
