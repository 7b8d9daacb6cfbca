"""For whom the sends of a group wait, and how that ends, from its master's own state. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rmqha.ops.group_view import GroupLook

LONG_WAIT_MS = 500
"""A send that waits longer is something wrong."""


def view_of(group: GroupLook) -> dict[str, Any]:
    """JSON-ready: the master's numbers and what they mean."""
    master = group.masters[0] if group.masters else None
    state = master.state if master is not None else {}
    if not state:
        where = "no broker of it says that it is master"
        if master is not None and not master.is_ours:
            where = f"its master {master.address} is Apache RocketMQ's, which does not tell for whom it waits"
        elif master is not None and master.error:
            where = f"its master does not answer: {master.error}"
        return {"group": group.name, "wrong": True, "sentences": [f"{group.name}: {where}"]}
    names = (
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
    return {
        "group": group.name,
        "master": group.masters[0].address,
        **{name: state.get(name) for name in names},
        "wrong": is_wrong(state),
        "sentences": sentences(group.name, state),
    }


def is_wrong(state: Mapping[str, Any]) -> bool:
    oldest_ms = state.get("waits", {}).get("oldestAgeMs") or 0
    return not state["writable"] or oldest_ms > LONG_WAIT_MS


# --- what it means ----------------------------------------------------------------------------------------------------
def sentences(name: str, state: Mapping[str, Any]) -> list[str]:
    """The first says whether anything waits, the others for whom and how that ends. `state`: a master's of 52000."""
    lines = []
    waits, rule = state.get("waits"), state.get("ackRule")
    if waits is None or rule is None:
        lines += _without_set(name, state)
    elif not waits["count"]:
        lines.append(f"{name}: no send waits; {_rule_words(state, rule)}")
    else:
        sends = "1 send waits" if waits["count"] == 1 else f"{waits['count']} sends wait"
        lines.append(
            f"{name}: {sends}, the oldest for {waits['oldestAgeMs']} ms, until offset {waits['oldestEndOffset']} "
            "is acknowledged"
        )
        lines.append(_rule_words(state, rule))
        lines += _waited_for(state, rule, waits)
        lines.append(f"at the latest in {waits['endsInMs']} ms the oldest is answered {waits['endsWith']}")
    for broker_id, joins_in_ms in sorted((state.get("heldBack") or {}).items()):
        lines.append(f"replica {broker_id} came and went: it may join the set in {joins_in_ms} ms if it stays")
    if not state["writable"]:
        lines.append(f"no new send is taken: {state['whyNotWritable']}")
    return lines


def _without_set(name: str, state: Mapping[str, Any]) -> list[str]:
    """A static group has no set, and an older release does not tell of it: then only who owes bytes is known."""
    lines = [f"{name}: {state['waitingCount']} sends wait"]
    needed = state.get("neededSlaves")
    if needed is not None:
        lines.append(
            f"rule: the master and {needed} slaves must have it" if needed else "rule: the master must have it"
        )
    for item in state.get("slaves", []) if state["waitingCount"] else []:
        if item["lagBytes"] is None:
            lines.append(f"slave at {item['peer']} has acknowledged nothing yet")
        elif item["lagBytes"] > 0:
            lines.append(f"slave at {item['peer']} owes {item['lagBytes']} bytes and was level {item['lagMs']} ms ago")
    return lines


def _rule_words(state: Mapping[str, Any], rule: Mapping[str, Any]) -> str:
    where = " on disk" if rule["synced"] else ""
    if rule["wholeSet"]:
        least = f", at least {rule['majority']} of {state['totalReplicas']}" if rule["majority"] is not None else ""
        return f"rule: every member of the set {state['ackUnion']}{least} must have it{where}"
    if rule["needed"] == 1:
        return f"rule: the master must have it{where}"
    fallen = f" ({rule['inSyncReplicas']} while enough live)" if rule["needed"] < rule["inSyncReplicas"] else ""
    return f"rule: {rule['needed']} replicas of the set {state['ackUnion']} must have it{where}{fallen}"


def _waited_for(state: Mapping[str, Any], rule: Mapping[str, Any], waits: Mapping[str, Any]) -> list[str]:
    end_offset = waits["oldestEndOffset"]
    lines = []
    if rule["synced"] and state["syncedOffset"] < end_offset:
        lines.append(f"waited for: the master's own disk, which holds everything up to {state['syncedOffset']}")
    lacking = [item for item in state["setMembers"] if item["ackOffset"] is None or item["ackOffset"] < end_offset]
    if not rule["wholeSet"]:
        missing = rule["needed"] - 1 - (len(state["setMembers"]) - len(lacking))
        if missing <= 0:
            lacking = []
        else:
            ids = [item["brokerId"] for item in lacking]
            lines.append(
                f"waited for: {missing} of the replicas {ids}" if ids else f"waited for: {missing} more replicas"
            )
    lines += [_member_words(item, end_offset) for item in lacking]
    if state["setProposed"] is not None:
        lines.append(f"the controllers have been asked to make the set {state['setProposed']}; their answer is due")
    elif state.get("setOutcomeUnknown"):
        lines.append("an answer of the controllers was lost: until they show the set, both the old and the new count")
    if state["controller"] == "away" and rule["wholeSet"] and lacking and rule["majority"] is not None:
        lines.append("the controllers are away: without them nobody leaves the set")
    elif lacking:
        lines += _outcome(state, rule, waits, lacking)
    return lines


def _member_words(item: Mapping[str, Any], end_offset: int) -> str:
    who = f"waited for: replica {item['brokerId']}"
    if not item["connected"]:
        return f"{who}, not connected for {item['silentForMs']} ms"
    owed = end_offset - (item["ackOffset"] or 0)
    return f"{who}, it owes {owed} bytes and acknowledged nothing for {item['silentForMs']} ms"


def _outcome(
    state: Mapping[str, Any], rule: Mapping[str, Any], waits: Mapping[str, Any], lacking: list[Mapping[str, Any]]
) -> list[str]:
    """A sentence on when those leave the set, and what that changes."""
    leaving = [item for item in lacking if item["leavesInMs"] is not None]
    if not leaving:
        return []
    lines = [
        f"replica {item['brokerId']} leaves the set in {item['leavesInMs']} ms, because {item['leavesBecause']}"
        for item in leaving
    ]
    if not rule["wholeSet"] and not rule["adaptive"]:
        return [*lines, f"that does not help these sends: {rule['needed']} replicas must have them"]
    left = len(state["ackUnion"]) - len(leaving)
    total, majority = state["totalReplicas"], rule["majority"]
    last_ms = max(item["leavesInMs"] for item in leaving)
    alone = total == 2 and left == 1 and majority is not None
    if majority is not None and left < majority and not alone:
        lines.append(
            f"then {left} of {total} are left, fewer than {majority}: these sends fail and new ones are refused"
        )
    elif majority is None and left < rule["minInSyncReplicas"]:
        lines.append(
            f"then {left} are left, fewer than minInSyncReplicas = {rule['minInSyncReplicas']}: sends are refused"
        )
    elif last_ms >= waits["endsInMs"]:
        lines.append("that is too late for the oldest of these sends; newer ones go on with those that are left")
    else:
        synced = ", each message synced first" if alone else ""
        lines.append(f"then {left} are left and sends go on{synced}")
    return lines
