"""Metrics and readiness of a controller, read from the machine for each scrape. RocketMQ 5's names where it has them.
Pure.

Every controller shows its own Raft state. Only the leader shows groups, so that each is counted once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from controller.machine import ControllerMachine
from controller.operations import OperationCounts, OperationResult
from rmqha.model.readiness import Readiness
from rmqha.model.series import Collecting, MetricFamilies, MetricKind, Series, put_remoting

MAX_GROUPS = 1000
"""Groups with series of their own; the sums count all."""
GROUPS_PER_STEP = 50
_APPEND = "append"
"""The only operation type of RocketMQ."""
_GROUP = ("cluster", "broker_set")
_ROLES = {"CANDIDATE": 1, "PRE_CANDIDATE": 1, "FOLLOWER": 2, "LEADER": 3}
"""Values of RocketMQ's controllers; 0 is any other role."""

ROLE = Series("role", MetricKind.GAUGE, "Raft role: 1 candidate, 2 follower, 3 leader", own=False)
ACTIVE_BROKERS = Series(
    "active_broker_num", MetricKind.GAUGE, "Leader only: live replicas of a group", _GROUP, own=False
)
REQUESTS = Series(
    "request_total",
    MetricKind.COUNTER,
    "Requests, by how they ended: success if they were answered, whatever it says; timeout if the asker was gone",
    ("request_type", "request_handle_status"),
    own=False,
)
REQUEST_TIME = Series(
    "request_latency_microseconds",
    MetricKind.HISTOGRAM,
    "Microseconds from a request to its answer",
    ("request_type",),
    own=False,
)
ENTRIES = Series(
    "dledger_op_total",
    MetricKind.COUNTER,
    "Raft entries that this controller proposed, by how they ended",
    ("dledger_operation", "dLedger_operation_status"),
    own=False,
)
ENTRY_TIME = Series(
    "dledger_op_latency_microseconds",
    MetricKind.HISTOGRAM,
    "Microseconds until a Raft entry is applied",
    ("dledger_operation", "dLedger_operation_status"),
    own=False,
)
TERM = Series("rmqha_controller_term", MetricKind.GAUGE, "Raft term")
HAS_LEADER = Series("rmqha_controller_has_leader", MetricKind.GAUGE, "1 if it knows the leader of the controllers")
COMMIT_INDEX = Series("rmqha_controller_commit_index", MetricKind.GAUGE, "Raft entries that a majority holds")
APPLIED_INDEX = Series("rmqha_controller_applied_index", MetricKind.GAUGE, "Raft entries that are applied")
SNAPSHOT_INDEX = Series(
    "rmqha_controller_snapshot_index", MetricKind.GAUGE, "Raft entries that the snapshot stands for"
)
UNSAVED_MS = Series(
    "rmqha_controller_unsaved_milliseconds",
    MetricKind.GAUGE,
    "Milliseconds for which the disk has been at work for what waits to be saved, 0 if nothing waits",
)
FOLLOWER_LAG = Series(
    "rmqha_controller_follower_lag_entries",
    MetricKind.GAUGE,
    "Leader only: Raft entries that a controller lacks",
    ("peer",),
)
GROUPS = Series("rmqha_controller_groups", MetricKind.GAUGE, "Leader only: broker groups")
MASTERLESS = Series(
    "rmqha_controller_groups_without_master", MetricKind.GAUGE, "Leader only: groups without a live master"
)
MASTER_EPOCH = Series(
    "rmqha_controller_master_epoch", MetricKind.GAUGE, "Leader only: epoch of a group's master", _GROUP
)
SET_SIZE = Series(
    "rmqha_controller_sync_state_set_size", MetricKind.GAUGE, "Leader only: members of a group's set", _GROUP
)
TOTAL_REPLICAS = Series("rmqha_controller_total_replicas", MetricKind.GAUGE, "Leader only: replicas of a group", _GROUP)
HAS_MASTER = Series("rmqha_controller_group_has_master", MetricKind.GAUGE, "Leader only: 1 if the master lives", _GROUP)
GROUPS_LEFT_OUT = Series(
    "rmqha_controller_groups_left_out", MetricKind.GAUGE, f"Leader only: groups beyond {MAX_GROUPS}"
)


def readiness(machine: ControllerMachine, now_ms: int) -> Readiness:
    """Readiness of a controller: ready if its group has a leader."""
    raft = machine.raft_state(now_ms)
    reason = "" if raft.leader else "the controllers have no leader: a majority of them must be reachable"
    role = "leader" if machine.is_leading else raft.role.lower()
    facts = {"node": raft.node, "leader": raft.leader, "term": raft.term, "commitIndex": raft.commit_index}
    return Readiness(role, bool(raft.leader), reason, facts)


def collect(
    machine: ControllerMachine,
    now_ms: int,
    remoting: Mapping[str, int],
    operations: OperationCounts | None = None,
) -> Collecting:
    """Series of a controller. `remoting`: the counts of `rmqha.host.net.remoting.Statistics`."""
    config, raft = machine.config, machine.raft_state(now_ms)
    # the labels that RocketMQ's controllers have
    families = MetricFamilies(
        {
            "address": config.self_address,
            "group": config.controller_dleger_group,
            "peer_id": config.controller_dleger_self_id,
        }
    )
    families.put(ROLE, _ROLES.get(raft.role, 0))
    families.put(TERM, raft.term)
    families.put(HAS_LEADER, bool(raft.leader))
    families.put(COMMIT_INDEX, raft.commit_index)
    families.put(APPLIED_INDEX, raft.applied_index)
    families.put(SNAPSHOT_INDEX, raft.snapshot_index)
    families.put(UNSAVED_MS, raft.unsaved_ms)
    put_remoting(families, remoting)
    if operations is not None:
        _put_operations(families, operations)
    if not machine.is_leading:
        return families
    for peer, progress in (raft.followers or {}).items():
        families.put(FOLLOWER_LAG, max(0, raft.last_index - progress.match_index), peer)
    yield from _put_groups(families, machine, now_ms)
    return families


def _put_operations(families: MetricFamilies, operations: OperationCounts) -> None:
    for (kind, result), count in operations.requests.items():
        families.put(REQUESTS, count, kind, result.value)
    for kind, times in operations.request_times.items():
        families.put_histogram(REQUEST_TIME, times, kind)
    for result, count in operations.entries.items():
        families.put(ENTRIES, count, _APPEND, result.value)
    if any(operations.entry_times.counts):
        families.put_histogram(ENTRY_TIME, operations.entry_times, _APPEND, OperationResult.SUCCESS.value)


def _put_groups(families: MetricFamilies, machine: ControllerMachine, now_ms: int) -> Iterator[None]:
    groups = [group for _, group in sorted(machine.info.groups.items()) if group.replicas]
    masterless = 0
    for place, group in enumerate(groups):
        if place % GROUPS_PER_STEP == GROUPS_PER_STEP - 1:
            yield
        live = machine.live_ids(now_ms, group)
        masterless += group.master_id not in live
        if place >= MAX_GROUPS:
            continue
        labels = (group.cluster_name, group.broker_name)
        families.put(ACTIVE_BROKERS, len(live), *labels)
        families.put(HAS_MASTER, group.master_id in live, *labels)
        families.put(MASTER_EPOCH, group.master_epoch, *labels)
        families.put(SET_SIZE, len(group.sync_state_set), *labels)
        families.put(TOTAL_REPLICAS, group.total_replicas, *labels)
    families.put(GROUPS, len(groups))
    families.put(MASTERLESS, masterless)
    families.put(GROUPS_LEFT_OUT, max(0, len(groups) - MAX_GROUPS))


SERIES = tuple(item for item in list(globals().values()) if isinstance(item, Series))
