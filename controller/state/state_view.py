"""The JSON-ready view of a controller (request 52003, `rmqha describe`). Pure."""

from __future__ import annotations

from typing import Any

from controller.elections.heartbeat import BrokerKey
from controller.elections.leadership import Leadership
from controller.state.replicas_info import BrokerGroup, ReplicasInfo
from rmqha.ha.stream.copy_speed import parse_slaves

VERSION = 1


def controller_state(
    now_ms: int, info: ReplicasInfo, raft: dict[str, Any], leadership: Leadership | None
) -> dict[str, Any]:
    """Durable facts from every node; liveness, offsets and reasons only from the leader (else null)."""
    return {
        "version": VERSION,
        "leading": leadership is not None,
        "raft": raft,
        "groups": {
            name: group_state(now_ms, group, leadership)
            for name, group in sorted(info.groups.items())
            if group.replicas
        },
    }


def group_state(now_ms: int, group: BrokerGroup, leadership: Leadership | None) -> dict[str, Any]:
    """One group of `controller_state`."""
    return {
        "clusterName": group.cluster_name,
        "masterBrokerId": group.master_id,
        "masterAddress": group.master_address,
        "masterEpoch": group.master_epoch,
        "syncStateSet": sorted(group.sync_state_set),
        "syncStateSetEpoch": group.sync_state_set_epoch,
        "eligible": sorted(group.eligible),
        "uncleanIds": sorted(group.unclean_ids),
        "drainedIds": sorted(group.drained_ids),
        "maintenanceIds": sorted(group.maintenance_ids),
        "preferredBrokerId": leadership.preferred(group) if leadership is not None else None,
        "setKnown": group.set_known,
        "totalReplicas": group.total_replicas,
        "nextTotalReplicas": group.next_total_replicas or None,
        "haMode": "cp" if group.is_cp else "ap",
        "whyNoMaster": leadership.why_no_master(group.broker_name) if leadership is not None else None,
        "elections": [
            {
                "masterEpoch": item.master_epoch,
                "brokerId": item.broker_id,
                "cause": item.cause.name,
                "atMs": item.at_ms,
                "reason": item.reason,
            }
            for item in group.elections
        ],
        "replicas": [_replica(now_ms, group, broker_id, leadership) for broker_id in group.replicas],
    }


def _replica(now_ms: int, group: BrokerGroup, broker_id: Any, leadership: Leadership | None) -> dict[str, Any]:
    replica = group.replicas[broker_id]
    view: dict[str, Any] = {
        "brokerId": broker_id,
        "address": replica.address,
        "haAddress": replica.ha_address,
        "totalReplicas": replica.total_replicas,
        "haMode": replica.ha_mode,
        "isMaster": broker_id == group.master_id,
        "inSyncStateSet": broker_id in group.sync_state_set,
        "asyncLearner": replica.async_learner,
        "drained": broker_id in group.drained_ids,
        "inMaintenance": broker_id in group.maintenance_ids,
        "alive": None,
    }
    if leadership is None:
        return view
    view["alive"] = leadership.is_alive(now_ms, group, broker_id)
    broker = leadership.table.get(BrokerKey(group.broker_name, broker_id))
    if broker is None:
        return view
    master = (
        leadership.table.get(BrokerKey(group.broker_name, group.master_id)) if group.master_id is not None else None
    )
    return view | {
        "epoch": broker.log_end.epoch,
        "maxOffset": broker.log_end.max_offset,
        "confirmOffset": broker.confirm_offset,
        "lagBytes": max(0, master.log_end.max_offset - broker.log_end.max_offset) if master is not None else None,
        "silentMs": leadership.table.silent_ms(broker, now_ms),
        "timeoutMs": broker.timeout_ms,
        "priority": broker.traits.priority,
        "zone": broker.traits.zone,
        "diskProblem": broker.disk_problem or None,
        "slaves": parse_slaves(broker.slaves),
        "suspect": broker.suspect,
        "stopping": broker.stopping,
        "unclean": broker.unclean,
    }
