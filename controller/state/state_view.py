"""State of a controller and of its groups (request 52003, `rmqha describe`). Pure.

Durable facts come from every node; liveness, offsets and reasons only from the leader (else None).
"""

from __future__ import annotations

from collections.abc import Generator

from controller.elections.heartbeat import BrokerKey
from controller.elections.leadership import Leadership
from controller.state.replicas_info import BrokerGroup, ReplicasInfo
from rmqha.ha.stream.copy_speed import parse_slaves
from rmqha.model.offset import BrokerId
from rmqha.wire.lenient_json import Entries, dumps_in_steps
from rmqha.wire.state.controller_state import ControllerState, ElectionState, GroupState, RaftState, RegisteredReplica


def controller_state(
    now_ms: int, info: ReplicasInfo, raft: RaftState, leadership: Leadership | None, release: str | None
) -> Generator[None, None, bytes]:
    """Body of an answer to 52003, in steps: each group is read in a step of its own. `release`: version of this
    process."""
    told = ControllerState(leading=leadership is not None, raft=raft, release=release).to_json()
    groups = Entries(
        (name, group_state(now_ms, group, leadership).to_json())
        for name in sorted(info.groups)
        if (group := info.groups.get(name)) is not None and group.replicas
    )
    return (yield from dumps_in_steps(told | {"groups": groups}))


def group_state(now_ms: int, group: BrokerGroup, leadership: Leadership | None) -> GroupState:
    return GroupState(
        cluster_name=group.cluster_name,
        master_broker_id=group.master_id,
        master_address=group.master_address,
        master_epoch=group.master_epoch,
        sync_state_set=sorted(group.sync_state_set),
        sync_state_set_epoch=group.sync_state_set_epoch,
        eligible=sorted(group.eligible),
        unclean_ids=sorted(group.unclean_ids),
        drained_ids=sorted(group.drained_ids),
        maintenance_ids=sorted(group.maintenance_ids),
        preferred_broker_id=leadership.preferred(group) if leadership is not None else None,
        set_known=group.set_known,
        total_replicas=group.total_replicas,
        next_total_replicas=group.next_total_replicas or None,
        ha_mode="cp" if group.is_cp else "ap",
        why_no_master=leadership.why_no_master(group.broker_name) if leadership is not None else None,
        elections=[
            ElectionState(
                master_epoch=item.master_epoch,
                broker_id=item.broker_id,
                cause=item.cause.name,
                at_ms=item.at_ms,
                reason=item.reason,
            )
            for item in group.elections
        ],
        replicas=[_replica(now_ms, group, broker_id, leadership) for broker_id in group.replicas],
    )


def _replica(now_ms: int, group: BrokerGroup, broker_id: BrokerId, leadership: Leadership | None) -> RegisteredReplica:
    replica = group.replicas[broker_id]
    state = RegisteredReplica(
        broker_id=broker_id,
        address=replica.address,
        node_name=replica.node_name or None,
        ha_address=replica.ha_address,
        total_replicas=replica.total_replicas,
        ha_mode=replica.ha_mode,
        is_master=broker_id == group.master_id,
        in_sync_state_set=broker_id in group.sync_state_set,
        async_learner=replica.async_learner,
        drained=broker_id in group.drained_ids,
        in_maintenance=broker_id in group.maintenance_ids,
    )
    if leadership is None:
        return state
    state.alive = leadership.is_alive(now_ms, group, broker_id)
    broker = leadership.table.get(BrokerKey(group.broker_name, broker_id))
    if broker is None:
        return state
    if group.master_id is not None:
        master = leadership.table.get(BrokerKey(group.broker_name, group.master_id))
        if master is not None:
            state.lag_bytes = max(0, master.log_end.max_offset - broker.log_end.max_offset)
    state.epoch, state.max_offset = broker.log_end.epoch, broker.log_end.max_offset
    state.confirm_offset = broker.confirm_offset
    state.silent_ms, state.timeout_ms = leadership.table.silent_ms(broker, now_ms), broker.timeout_ms
    state.priority, state.zone = broker.traits.priority, broker.traits.zone
    state.disk_problem = broker.disk_problem or None
    state.slaves = parse_slaves(broker.slaves)
    state.suspect, state.stopping, state.unclean = broker.suspect, broker.stopping, broker.unclean
    return state
