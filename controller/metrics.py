"""A controller's metrics and its standing, read from the machine when somebody asks. RocketMQ 5's names where it has
them. Pure.

Every controller shows its own part of Raft; what the groups are like only the leader shows, so each is counted once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from controller.machine import ControllerMachine
from rmqha.model.remoting_series import put_remoting
from rmqha.model.series import Collecting, Kind, Series, Sheet
from rmqha.model.standing import Standing

MAX_GROUPS = 1000
"""Groups with series of their own; the sums count all."""
GROUPS_PER_STEP = 50
_GROUP = ("cluster", "broker_set")
_ROLES = {"CANDIDATE": 1, "PRE_CANDIDATE": 1, "FOLLOWER": 2, "LEADER": 3}
"""Values that RocketMQ's controllers show; 0: none of these."""

ROLE = Series("role", Kind.GAUGE, "Raft role: 1 candidate, 2 follower, 3 leader", own=False)
ACTIVE_BROKERS = Series("active_broker_num", Kind.GAUGE, "Leader only: live replicas of a group", _GROUP, own=False)
TERM = Series("rmqha_controller_term", Kind.GAUGE, "Raft term")
HAS_LEADER = Series("rmqha_controller_has_leader", Kind.GAUGE, "1 if it knows the leader of the controllers")
COMMIT_INDEX = Series("rmqha_controller_commit_index", Kind.GAUGE, "Raft entries that a majority holds")
APPLIED_INDEX = Series("rmqha_controller_applied_index", Kind.GAUGE, "Raft entries that are applied")
SNAPSHOT_INDEX = Series("rmqha_controller_snapshot_index", Kind.GAUGE, "Raft entries that the snapshot stands for")
FOLLOWER_LAG = Series(
    "rmqha_controller_follower_lag_entries", Kind.GAUGE, "Leader only: Raft entries that a controller lacks", ("peer",)
)
GROUPS = Series("rmqha_controller_groups", Kind.GAUGE, "Leader only: broker groups")
MASTERLESS = Series("rmqha_controller_groups_without_master", Kind.GAUGE, "Leader only: groups without a live master")
MASTER_EPOCH = Series("rmqha_controller_master_epoch", Kind.GAUGE, "Leader only: epoch of a group's master", _GROUP)
SET_SIZE = Series("rmqha_controller_sync_state_set_size", Kind.GAUGE, "Leader only: members of a group's set", _GROUP)
TOTAL_REPLICAS = Series("rmqha_controller_total_replicas", Kind.GAUGE, "Leader only: replicas of a group", _GROUP)
HAS_MASTER = Series("rmqha_controller_group_has_master", Kind.GAUGE, "Leader only: 1 if the master lives", _GROUP)
GROUPS_LEFT_OUT = Series("rmqha_controller_groups_left_out", Kind.GAUGE, f"Leader only: groups beyond {MAX_GROUPS}")


def standing(machine: ControllerMachine, now_ms: int) -> Standing:
    """Ready: it is one of those who have a leader."""
    view = machine.raft_view(now_ms)
    leader = str(view["leader"] or "")
    reason = "" if leader else "the controllers have no leader: a majority of them must be reachable"
    role = "leader" if machine.is_leading else str(view["role"]).lower()
    facts = {"node": view["node"], "leader": leader, "term": view["term"], "commitIndex": view["commitIndex"]}
    return Standing(role, bool(leader), reason, facts)


def collect(machine: ControllerMachine, now_ms: int, remoting: Mapping[str, int]) -> Collecting:
    """`remoting`: the counts of `rmqha.host.remoting.Statistics`."""
    config, view = machine.config, machine.raft_view(now_ms)
    # the labels that RocketMQ's controllers have
    sheet = Sheet(
        {
            "address": config.self_address,
            "group": config.controller_dleger_group,
            "peer_id": config.controller_dleger_self_id,
        }
    )
    sheet.put(ROLE, _ROLES.get(str(view["role"]), 0))
    sheet.put(TERM, view["term"])
    sheet.put(HAS_LEADER, bool(view["leader"]))
    sheet.put(COMMIT_INDEX, view["commitIndex"])
    sheet.put(APPLIED_INDEX, view["appliedIndex"])
    sheet.put(SNAPSHOT_INDEX, view["snapshotIndex"])
    put_remoting(sheet, remoting)
    if not machine.is_leading:
        return sheet
    for peer, progress in view.get("followers", {}).items():
        sheet.put(FOLLOWER_LAG, max(0, view["lastIndex"] - progress["matchIndex"]), peer)
    yield from _put_groups(sheet, machine, now_ms)
    return sheet


def _put_groups(sheet: Sheet, machine: ControllerMachine, now_ms: int) -> Iterator[None]:
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
        sheet.put(ACTIVE_BROKERS, len(live), *labels)
        sheet.put(HAS_MASTER, group.master_id in live, *labels)
        sheet.put(MASTER_EPOCH, group.master_epoch, *labels)
        sheet.put(SET_SIZE, len(group.sync_state_set), *labels)
        sheet.put(TOTAL_REPLICAS, group.total_replicas, *labels)
    sheet.put(GROUPS, len(groups))
    sheet.put(MASTERLESS, masterless)
    sheet.put(GROUPS_LEFT_OUT, max(0, len(groups) - MAX_GROUPS))


SERIES = tuple(item for item in list(globals().values()) if isinstance(item, Series))
