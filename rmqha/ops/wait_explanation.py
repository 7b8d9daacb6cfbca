"""Explanation of a group's waiting sends, by its master's state: for which replicas they wait, until when. Pure."""

from __future__ import annotations

from typing import Any

from rmqha.model.identity import name_replicas
from rmqha.ops.group_view import GroupReport
from rmqha.ops.node_names import ReplicaNames, replica_names
from rmqha.wire.state.replica_state import AckRule, ReplicaState, SetMember, WaitingSends

LONG_WAIT_MS = 500
"""Time (ms) of waiting above which something is wrong."""
NO_NAMES = ReplicaNames()
_SHOWN = (
    "epoch",
    "writable",
    "whyNotWritable",
    "waits",
    "ackRule",
    "ackUnion",
    "setMembers",
    "setProposed",
    "heldBack",
)


def view_of(group: GroupReport) -> dict[str, Any]:
    """The master's numbers and what they mean, JSON-ready."""
    master = group.masters[0] if group.masters else None
    state = master.replica if master is not None else None
    if state is None:
        where = "no broker of it says that it is master"
        if master is not None and not master.is_ours:
            where = f"its master {master.address} is Apache RocketMQ's, which does not tell for whom it waits"
        elif master is not None and master.error:
            where = f"its master does not answer: {master.error}"
        return {"group": group.name, "wrong": True, "sentences": [f"{group.name}: {where}"]}
    told = state.to_json()
    return {
        "group": group.name,
        "master": group.masters[0].address,
        **{name: told.get(name) for name in _SHOWN},
        "wrong": is_wrong(state),
        "sentences": sentences(group.name, state, replica_names(group.brokers, group.name)),
    }


def is_wrong(state: ReplicaState) -> bool:
    oldest_ms = (state.waits.oldest_age_ms if state.waits is not None else None) or 0
    return not state.writable or oldest_ms > LONG_WAIT_MS


# --- what it means ----------------------------------------------------------------------------------------------------
def sentences(name: str, state: ReplicaState, names: ReplicaNames = NO_NAMES) -> list[str]:
    """Sentences: the first says whether anything waits, the others for whom and how that ends. `state`: a master's
    answer to 52000."""
    lines = []
    waits, rule = state.waits, state.ack_rule
    if waits is None or rule is None:
        lines += _without_set(name, state)
    elif not waits.count:
        lines.append(f"{name}: no send waits; {_rule_sentence(state, rule, names)}")
    else:
        sends = "1 send waits" if waits.count == 1 else f"{waits.count} sends wait"
        lines.append(
            f"{name}: {sends}, the oldest for {waits.oldest_age_ms} ms, until offset {waits.oldest_end_offset} "
            "is acknowledged"
        )
        lines.append(_rule_sentence(state, rule, names))
        lines += _waited_for(state, rule, waits, names)
        lines.append(f"at the latest in {waits.ends_in_ms} ms the oldest is answered {waits.ends_with}")
    lines += _stall_sentences(state)
    for broker_id, joins_in_ms in sorted((state.held_back or {}).items()):
        lines.append(f"{names.of(int(broker_id))} came and went: it may join the set in {joins_in_ms} ms if it stays")
    if not state.writable:
        lines.append(f"no new send is taken: {name_replicas(state.why_not_writable, names.of)}")
    return lines


def _stall_sentences(state: ReplicaState) -> list[str]:
    stall = state.last_stall
    if stall is None:
        return []
    sends = "1 send" if stall.count == 1 else f"{stall.count:,} sends"
    end = "all were acknowledged" if stall.ended_with == "OK" else f"some were answered {stall.ended_with}"
    ago = f"{stall.ended_ms_ago // 1000} s" if stall.ended_ms_ago < 120_000 else f"{stall.ended_ms_ago // 60_000} min"
    return [
        f"the last stall ended {ago} ago and lasted {stall.lasted_ms / 1000:.1f} s: {sends} waited, the longest for "
        f"{stall.longest_ms} ms; {end}; rmqha history tells what happened then"
    ]


def _without_set(name: str, state: ReplicaState) -> list[str]:
    """Sentences where no set is known, as of a static group or an older release: only lags of slaves are known then."""
    lines = [f"{name}: {state.waiting_count or 0} sends wait"]
    needed = state.needed_slaves
    if needed is not None:
        lines.append(
            f"rule: the master and {needed} slaves must have it" if needed else "rule: the master must have it"
        )
    for item in (state.slaves or ()) if state.waiting_count else ():
        if item.lag_bytes is None:
            lines.append(f"slave at {item.peer} has acknowledged nothing yet")
        elif item.lag_bytes > 0:
            lines.append(f"slave at {item.peer} owes {item.lag_bytes} bytes and was level {item.lag_ms} ms ago")
    return lines


def _rule_sentence(state: ReplicaState, rule: AckRule, names: ReplicaNames) -> str:
    where = " on disk" if rule.synced else ""
    if rule.whole_set:
        least = f", at least {rule.majority} of {state.total_replicas}" if rule.majority is not None else ""
        return f"rule: every member of the set [{names.all_of(state.ack_union or ())}]{least} must have it{where}"
    if rule.needed == 1:
        return f"rule: the master must have it{where}"
    fallen = f" ({rule.in_sync_replicas} while enough live)" if rule.needed < rule.in_sync_replicas else ""
    return (
        f"rule: {rule.needed} replicas of the set [{names.all_of(state.ack_union or ())}] must have it{where}{fallen}"
    )


def _waited_for(state: ReplicaState, rule: AckRule, waits: WaitingSends, names: ReplicaNames) -> list[str]:
    end_offset = waits.oldest_end_offset or 0
    members = state.set_members or ()
    lines = []
    if rule.synced and state.synced_offset < end_offset:
        lines.append(f"waited for: the master's own disk, which holds everything up to {state.synced_offset}")
    lacking = [item for item in members if item.ack_offset is None or item.ack_offset < end_offset]
    if not rule.whole_set:
        missing = rule.needed - 1 - (len(members) - len(lacking))
        if missing <= 0:
            lacking = []
        else:
            who = names.all_of(item.broker_id for item in lacking)
            lines.append(f"waited for: {missing} of {who}" if lacking else f"waited for: {missing} more replicas")
    lines += [_member_sentence(item, end_offset, names) for item in lacking]
    if state.set_proposed is not None:
        lines.append(
            f"the controllers have been asked to make the set [{names.all_of(state.set_proposed)}]; their answer is due"
        )
    elif state.set_outcome_unknown:
        lines.append("an answer of the controllers was lost: until they show the set, both the old and the new count")
    if state.controller == "away" and rule.whole_set and lacking and rule.majority is not None:
        lines.append("the controllers are away: without them nobody leaves the set")
    elif lacking:
        lines += _outcome(state, rule, waits, lacking, names)
    return lines


def _member_sentence(item: SetMember, end_offset: int, names: ReplicaNames) -> str:
    who = f"waited for: {names.of(item.broker_id)}"
    if not item.connected:
        return f"{who}, not connected for {item.silent_for_ms} ms"
    owed = end_offset - (item.ack_offset or 0)
    return f"{who}, it owes {owed} bytes and acknowledged nothing for {item.silent_for_ms} ms"


def _outcome(
    state: ReplicaState, rule: AckRule, waits: WaitingSends, lacking: list[SetMember], names: ReplicaNames
) -> list[str]:
    """Sentences on when `lacking` members leave the set, and what that changes."""
    leaving = [(item, item.leaves_in_ms) for item in lacking if item.leaves_in_ms is not None]
    if not leaving:
        return []
    lines = [
        f"{names.of(item.broker_id)} leaves the set in {leaves_in_ms} ms, because {item.leaves_because}"
        for item, leaves_in_ms in leaving
    ]
    if not rule.whole_set and not rule.adaptive:
        return [*lines, f"that does not help these sends: {rule.needed} replicas must have them"]
    left = len(state.ack_union or ()) - len(leaving)
    total, majority = state.total_replicas, rule.majority
    last_ms = max(leaves_in_ms for _, leaves_in_ms in leaving)
    alone = total == 2 and left == 1 and majority is not None
    if majority is not None and left < majority and not alone:
        lines.append(
            f"then {left} of {total} are left, fewer than {majority}: these sends fail and new ones are refused"
        )
    elif majority is None and left < rule.min_in_sync_replicas:
        lines.append(
            f"then {left} are left, fewer than minInSyncReplicas = {rule.min_in_sync_replicas}: sends are refused"
        )
    elif last_ms >= (waits.ends_in_ms or 0):
        lines.append("that is too late for the oldest of these sends; newer ones go on with those that are left")
    else:
        synced = ", each message synced first" if alone else ""
        lines.append(f"then {left} are left and sends go on{synced}")
    return lines
