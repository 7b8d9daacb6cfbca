"""Explanation of a group's master, or of why it has none: the body of request 52010 (`rmqha explain`). Pure.

Facts come from `state_view.group_state`; this module adds the sentences, so that every client shows the same ones.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from controller.state.event import Cause
from rmqha.wire.state.controller_state import GroupState, RegisteredReplica
from rmqha.wire.state.explained_state import ExplainedElection, ExplainedGroup, ExplainedReplica
from rmqha.wire.state.json_record import JsonRecord

CAUSES = {
    Cause.FIRST_ELECTION: "first election of the group",
    Cause.MASTER_DEAD: "the master died",
    Cause.MEMBER_RETURNED: "a member of the set came back",
    Cause.DESIGNATED: "an operator asked for it",
    Cause.CONTROLLED_SHUTDOWN: "the master was stopped in order",
    Cause.UNCLEAN_BY_OPERATOR: "an operator accepted the loss of messages",
    Cause.UNCLEAN_AUTOMATIC: "enableElectUncleanMaster: no member of the set was alive",
    Cause.UNCLEAN_BOOT: "the master booted after a loss of power, or with an older copy of its disk",
    Cause.CLEANED: "an operator removed the master",
    Cause.NO_LIVE_MEMBER: "no member of the set was alive",
    Cause.SOLE_REPLICA: "the only replica of its group",
    Cause.DISK_FAILED: "the disk of the master failed",
    Cause.DRAINED: "the master was drained",
    Cause.MAINTENANCE: "the master was put into maintenance",
    Cause.PREFERRED: "the preferred replica is back and well",
}


def explain(group: GroupState) -> ExplainedGroup:
    """Explanation of `group`, which is the leader's view."""
    elections = [ExplainedElection(**_values(item), cause_text=CAUSES[Cause[item.cause]]) for item in group.elections]
    replicas = [ExplainedReplica(**_values(item), not_electable=_why_not(group, item)) for item in group.replicas]
    values = _values(group) | {"elections": elections, "replicas": replicas}
    return ExplainedGroup(**values, answer=_answer(group, elections))


def _values(record: JsonRecord) -> dict[str, Any]:
    return {item.name: getattr(record, item.name) for item in fields(record)}


def _answer(group: GroupState, elections: list[ExplainedElection]) -> str:
    last = elections[-1] if elections else None
    if group.master_broker_id is None:
        why = group.why_no_master or (last and (last.reason or last.cause_text)) or "nobody has been elected yet"
        return f"there is no master: {why}"
    assert last is not None, "a master has been elected"
    why = f"{last.cause_text} ({last.reason})" if last.reason else last.cause_text
    return f"{group.label(group.master_broker_id)} is master of epoch {group.master_epoch}: {why}"


def _why_not(group: GroupState, replica: RegisteredReplica) -> str | None:
    """The reason why this replica could not become master now; None if it could, or is it."""
    if replica.is_master:
        return None
    broker_id = replica.broker_id
    if replica.async_learner:
        return "an async learner"
    if broker_id in group.unclean_ids or replica.unclean:
        return "booted after a loss of power, or with an older copy of its disk, and may lack messages"
    if not replica.alive:
        return "not alive"
    if group.set_known and not replica.in_sync_state_set and broker_id not in group.eligible:
        return "not in the SyncStateSet"
    if replica.disk_problem:
        return f"disk: {replica.disk_problem}"
    if replica.stopping:
        return "stopping"
    if replica.drained:
        return "drained"
    if replica.in_maintenance:
        return "in maintenance"
    return None
