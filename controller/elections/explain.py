"""Why a group has the master it has, or none: the body of request 52010 (`rmqha explain`). Pure.

Facts come from `state_view.group_state`; this adds the sentences, so that every client tells the same.
"""

from __future__ import annotations

from typing import Any

from controller.state.event import Cause

VERSION = 1

CAUSES = {
    Cause.FIRST_ELECTION: "first election of the group",
    Cause.MASTER_DEAD: "the master died",
    Cause.MEMBER_RETURNED: "a member of the set came back",
    Cause.DESIGNATED: "an operator asked for it",
    Cause.CONTROLLED_SHUTDOWN: "the master was stopped in order",
    Cause.UNCLEAN_BY_OPERATOR: "an operator accepted the loss of messages",
    Cause.UNCLEAN_AUTOMATIC: "enableElectUncleanMaster: no member of the set was alive",
    Cause.UNCLEAN_BOOT: "the master booted after a loss of power",
    Cause.CLEANED: "an operator removed the master",
    Cause.NO_LIVE_MEMBER: "no member of the set was alive",
    Cause.SOLE_REPLICA: "the only replica of its group",
    Cause.DISK_FAILED: "the disk of the master failed",
    Cause.DRAINED: "the master was drained",
    Cause.MAINTENANCE: "the master was put into maintenance",
    Cause.PREFERRED: "the preferred replica is back and well",
}


def explain(state: dict[str, Any]) -> dict[str, Any]:
    """`state` is a leader's view of the group."""
    elections = [item | {"causeText": CAUSES[Cause[item["cause"]]]} for item in state["elections"]]
    return state | {
        "version": VERSION,
        "answer": _answer(state, elections),
        "elections": elections,
        "replicas": [item | {"notElectable": _why_not(state, item)} for item in state["replicas"]],
    }


def _answer(state: dict[str, Any], elections: list[dict[str, Any]]) -> str:
    last = elections[-1] if elections else None
    if state["masterBrokerId"] is None:
        why = state["whyNoMaster"] or (last and (last["reason"] or last["causeText"])) or "nobody has been elected yet"
        return f"there is no master: {why}"
    assert last is not None, "a master has been elected"
    why = f"{last['causeText']} ({last['reason']})" if last["reason"] else last["causeText"]
    return f"replica {state['masterBrokerId']} is master of epoch {state['masterEpoch']}: {why}"


def _why_not(state: dict[str, Any], replica: dict[str, Any]) -> str | None:
    """Why this replica could not become master now; None if it could, or is it."""
    if replica["isMaster"]:
        return None
    broker_id = replica["brokerId"]
    if replica["asyncLearner"]:
        return "an async learner"
    if broker_id in state["uncleanIds"] or replica.get("unclean"):
        return "booted after a loss of power and may lack messages"
    if not replica["alive"]:
        return "not alive"
    if state["setKnown"] and not replica["inSyncStateSet"] and broker_id not in state["eligible"]:
        return "not in the SyncStateSet"
    if replica.get("stopping"):
        return "stopping"
    if replica.get("diskProblem"):
        return f"disk: {replica['diskProblem']}"
    if replica["drained"]:
        return "drained"
    if replica["inMaintenance"]:
        return "in maintenance"
    return None
