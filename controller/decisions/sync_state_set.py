"""Change of a SyncStateSet by the master (1001). Pure.

The fences and their order are RocketMQ's (ReplicasInfoManager.alterSyncStateSet): no change, master, master epoch, set
epoch, then every member known and alive, and the master among them.

A set below the majority is confirmed in CP too. The master then refuses to acknowledge (ruling 1), so the members that
left still hold every acknowledged message and stay eligible until a set that may acknowledge is confirmed. In every
other case the first confirmed change ends the eligibility (ruling 9).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from controller.decisions.refusal import Refusal
from controller.state.event import SyncStateSetAltered
from controller.state.replicas_info import BrokerGroup, min_in_sync_replicas, without
from rmqha.model.code import ResponseCode
from rmqha.model.offset import BrokerId


def alter_sync_state_set(
    group: BrokerGroup,
    master_id: int,
    master_epoch: int,
    new_set: Sequence[int],
    set_epoch: int,
    is_alive: Callable[[BrokerId], bool],
    *,
    accept_unchanged: bool = False,
) -> SyncStateSetAltered | Refusal:
    """Event of the change, or a refusal. `new_set` has no duplicates; `set_epoch` is that of the set the master knows.

    `accept_unchanged` (not RocketMQ's): a set without a change passes the other fences and raises the set epoch. So a
    master makes sure that none of its earlier requests can still be applied."""
    if not accept_unchanged and set(new_set) == set(group.sync_state_set):
        return Refusal(ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED, "the SyncStateSet is already so")
    if group.master_id is None or group.master_id != master_id:
        return Refusal(
            ResponseCode.CONTROLLER_INVALID_MASTER, f"{master_id} is not the master, which is {group.master_id}"
        )
    if master_epoch != group.master_epoch:
        return Refusal(
            ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH, f"the master epoch is {group.master_epoch}, not {master_epoch}"
        )
    if set_epoch != group.sync_state_set_epoch:
        return Refusal(
            ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH,
            f"the epoch of the SyncStateSet is {group.sync_state_set_epoch}, not {set_epoch}",
        )
    for member in sorted(new_set):
        if member not in group.replicas:
            return Refusal(ResponseCode.CONTROLLER_INVALID_REPLICAS, f"there is no replica {member}")
        if member != master_id and (member in group.drained_ids or group.replicas[BrokerId(member)].async_learner):
            why = "is drained" if member in group.drained_ids else "is an async learner"
            return Refusal(ResponseCode.CONTROLLER_INVALID_REPLICAS, f"{group.label(member)} {why} and in no set")
        if not is_alive(BrokerId(member)):
            return Refusal(ResponseCode.CONTROLLER_BROKER_NOT_ALIVE, f"{group.label(member)} is not alive")
    if master_id not in new_set:
        return Refusal(
            ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED, f"the set lacks its master {group.master_id}"
        )
    staying = tuple(member for member in group.sync_state_set if member in new_set)
    joining = tuple(BrokerId(member) for member in sorted(new_set) if member not in group.sync_state_set)
    members = staying + joining
    may_acknowledge = len(members) >= min_in_sync_replicas(group, group.master_id)
    return SyncStateSetAltered(
        group.broker_name,
        group.master_epoch,
        group.sync_state_set_epoch + 1,
        members,
        () if may_acknowledge else without(group.electable_ids, *members),
    )
