"""The page's picture of a cluster and of one group, made from what every node said of itself. Pure.

Nobody's word counts for another's: brokers tell of themselves, a master of its slaves, the leading controller of the
set. What is wrong is said in the words of `rmqha status`, `describe`, `explain` and `explain-wait`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nameserver.web.forks import Log, cuts_of, draw
from nameserver.web.message_view import short, visible
from nameserver.web.troubles import ODD, troubles
from rmqha.model.epoch import EpochEntry, EpochHistory
from rmqha.model.error import RmqhaError
from rmqha.model.offset import Epoch, PhyOffset
from rmqha.ops.cluster_view import copy_words
from rmqha.ops.group_view import BrokerView, GroupLook, promise_of
from rmqha.ops.health.survey import NodeReport, ServerKind
from rmqha.ops.wait_explanation import view_of

VERSION = 1
MAX_GROUPS = 200
"""On the cluster's page."""
MAX_EVENTS = 40
"""Most events of a group, the newest."""
TOLD_EVENTS = frozenset(
    (
        "config_overridden",
        "damaged",
        "disk_full",
        "disk_has_room",
        "disk_problem",
        "disk_well",
        "ha_aligned",
        "ha_refused",
        "ha_restarted",
        "hand_over_begins",
        "hand_over_failed",
        "log_restarted",
        "log_truncated",
        "recovery",
        "role_changed",
        "stopped",
        "stopping",
        "unclean_accepted",
        "whole_again",
        "writable",
    )
)
"""Events of a replica that the group page tells; the rest is for `rmqha history`."""


@dataclass(slots=True)
class Closer:
    """Answers that are asked for only while somebody looks at a group."""

    explained: dict[str, Any] = field(default_factory=dict)
    """The body of request 52010."""
    events: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """The replicas' own events by address (52001)."""
    epochs: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Epoch histories of Apache's brokers by address (1007)."""


@dataclass(slots=True)
class GroupSeen:
    """A group: its replicas' answers, what the controllers say (`told` as in request 52003), where clients go."""

    name: str
    cluster: str = ""
    brokers: dict[str, BrokerView] = field(default_factory=dict)
    told: dict[str, Any] = field(default_factory=dict)
    routes: dict[int, str] = field(default_factory=dict)
    closer: Closer = field(default_factory=Closer)

    @property
    def look(self) -> GroupLook:
        return GroupLook(self.name, self.cluster, [self.brokers[address] for address in sorted(self.brokers)])

    @property
    def master(self) -> BrokerView | None:
        return next((view for view in self.look.masters if not view.error), None)


@dataclass(slots=True)
class Seen:
    """All answers of one round."""

    name_server: dict[str, Any]
    words: list[NodeReport]
    groups: dict[str, GroupSeen]


def seen_of(
    words: list[NodeReport], name_server: dict[str, Any], own_address: str, closer: Mapping[str, Closer]
) -> Seen:
    """`own_address`: this name server's; its routes are shown, other name servers' where it has none."""
    groups: dict[str, GroupSeen] = {}
    for word in sorted(words, key=lambda item: item.address == own_address):
        for name, addresses in word.routes.items():
            groups.setdefault(name, GroupSeen(name)).routes = dict(addresses)
    for word in words:
        if word.kind is ServerKind.BROKER and word.group:
            group = groups.setdefault(word.group, GroupSeen(word.group))
            routed = {where: broker_id for broker_id, where in group.routes.items()}
            error = "" if word.answers else word.error
            view = BrokerView(word.address, routed.get(word.address), word.state, word.keys, word.is_ours, error)
            group.brokers[word.address] = view
            group.cluster = group.cluster or str(word.keys.get("brokerClusterName") or "")
    controllers = [word for word in words if word.kind is ServerKind.CONTROLLER and word.answers and word.state]
    controllers.sort(key=lambda word: not word.leads)
    for name, group in groups.items():
        group.told = _told(controllers, name)
        group.cluster = group.cluster or str(group.told.get("clusterName") or "")
        group.closer = closer.get(name, group.closer)
        _drop_odd(group)
    return Seen(name_server, words, groups)


def _drop_odd(group: GroupSeen) -> None:
    """An answer that cannot be shown counts as none, and its node as one that does not answer."""
    for address, view in group.brokers.items():
        try:
            _group(GroupSeen(group.name, group.cluster, {address: view}))
        except ODD as error:
            view.state, view.error = {}, short(f"the answer of {address} is not known to this release: {error!r}")
    try:
        _group(group)
    except ODD:
        group.told = {}


def _told(controllers: list[NodeReport], name: str) -> dict[str, Any]:
    """The leading controller's word, else any controller's; {} if none told of the group, or all are Apache's."""
    for word in controllers:
        groups = word.state.get("groups")
        if isinstance(groups, dict) and isinstance(groups.get(name), dict):
            return dict(groups[name])
    return {}


# --- the cluster ------------------------------------------------------------------------------------------------------
def cluster_document(seen: Seen) -> dict[str, Any]:
    """JSON-ready: `health`, `controllers`, and `groups` with their replicas, those that take no messages first."""
    rows = [(group, _group(group)) for _, group in sorted(seen.groups.items())]
    rows.sort(key=lambda row: row[1]["writable"] is True)
    return {
        "version": VERSION,
        "nameServer": seen.name_server,
        "health": troubles(seen.words, sorted(seen.groups), seen.name_server),
        "controllers": [_controller(word) for word in seen.words if word.kind is ServerKind.CONTROLLER],
        "groups": [row | {"kind": _kind(group)} for group, row in rows[:MAX_GROUPS]],
        "groupsLeftOut": max(0, len(rows) - MAX_GROUPS),
    }


def _controller(word: NodeReport) -> dict[str, Any]:
    raft = word.state.get("raft", {})
    return {
        "address": word.address,
        "node": raft.get("node"),
        "role": raft.get("role") if raft else None if word.error else "APACHE",
        "term": raft.get("term"),
        "leader": raft.get("leader"),
        "commitIndex": raft.get("commitIndex"),
        "isLearner": raft.get("node") in raft.get("learners", ()),
        "error": visible(word.error) or None,
    }


def _group(group: GroupSeen) -> dict[str, Any]:
    master, told = group.master, group.told
    state = master.state if master is not None else {}
    members = state.get("syncStateSet", told.get("syncStateSet"))
    has_none = master is None and bool(told) and told["masterBrokerId"] is None
    return {
        "name": visible(group.name),
        "cluster": visible(group.cluster),
        "masterId": state.get("brokerId", told.get("masterBrokerId")),
        "masterAddress": master.address if master is not None else told.get("masterAddress") or None,
        "epoch": state.get("epoch", told.get("masterEpoch")),
        "set": members,
        "totalReplicas": state.get("totalReplicas") or told.get("totalReplicas"),
        "writable": False if has_none else state.get("writable"),
        "whyNotWritable": visible(state.get("whyNotWritable") or told.get("whyNoMaster") or "") or None,
        "oneCopySynced": bool(state.get("oneCopySynced")),
        "waitingCount": state.get("waitingCount"),
        "putTps": state.get("putTps"),
        "getTps": state.get("getTps"),
        "maxOffset": state.get("maxPhyOffset"),
        "confirmOffset": state.get("confirmOffset"),
        "replicas": [_replica(group, group.brokers[address]) for address in _in_order(group)],
    }


def _in_order(group: GroupSeen) -> list[str]:
    """By broker id where it is known, as the controllers have it or the broker says."""
    ids = {str(item["address"]): int(item["brokerId"]) for item in group.told.get("replicas", ())}
    ids |= {
        address: int(view.state["brokerId"])
        for address, view in group.brokers.items()
        if view.state.get("brokerId") is not None
    }
    return sorted(group.brokers, key=lambda address: (ids.get(address, 1 << 62), address))


def _kind(group: GroupSeen) -> str | None:
    """CP, AP or static, as its brokers are configured."""
    for view in group.look.answering:
        if view.keys:
            try:
                return promise_of(view)[1].kind
            except ODD:
                continue
    return None


def _replica(group: GroupSeen, view: BrokerView) -> dict[str, Any]:
    state, master = view.state, group.master
    told: dict[str, Any] = next((row for row in group.told.get("replicas", ()) if row["address"] == view.address), {})
    broker_id = state.get("brokerId", told.get("brokerId"))
    members = master.state.get("syncStateSet") if master is not None else None
    members = group.told.get("syncStateSet") if members is None else members
    slaves = master.state.get("slaves", ()) if master is not None else ()
    row: dict[str, Any] = next(
        (item for item in slaves if item.get("brokerId") == broker_id and broker_id is not None), {}
    )
    is_master = bool(state) and view.is_master
    return {
        "address": view.address,
        "id": broker_id,
        "role": "DOWN" if view.error else state.get("role") if state else "APACHE" if not view.is_ours else None,
        "epoch": state.get("epoch"),
        "maxOffset": state.get("maxPhyOffset"),
        "confirmOffset": state.get("confirmOffset"),
        "inSet": None if members is None or broker_id is None else broker_id in members,
        "isEligible": broker_id in group.told.get("eligible", ()),
        "lagBytes": 0 if is_master else row.get("lagBytes"),
        "lagMs": row.get("lagMs") if row.get("lagBytes") else None,
        "routed": view.address in group.routes.values(),
        "zone": visible(str(told.get("zone") or "")) or None,
        "error": visible(view.error) or None,
        "notes": [visible(note) for note in _notes(group, view, told)],
    }


def _notes(group: GroupSeen, view: BrokerView, told: Mapping[str, Any]) -> list[str]:
    """Notes on what else is special about a replica, in words."""
    state = view.state
    found = [
        "never in the set (asyncLearner)" if state.get("asyncLearner") or told.get("asyncLearner") else "",
        "kept out of the set by an operator (drained)" if told.get("drained") else "",
        "unclean: after a loss of power it leads nobody until it has followed a master" if state.get("unclean") else "",
        f"disk: {state['diskProblem']}" if state.get("diskProblem") else "",
        f"refuses to follow: {state['refusal']}" if state.get("refusal") else "",
        copy_words(state.get("copy")),
        "the controllers are away" if state.get("controller") == "away" else "",
        f"hands over to replica {state['handsOverTo']}" if state.get("handsOverTo") else "",
    ]
    why_not = next(
        (
            item.get("notElectable")
            for item in group.closer.explained.get("replicas", ())
            if item.get("address") == view.address
        ),
        None,
    )
    return [note for note in found if note] + (
        [f"cannot become master: {why_not}"] if why_not and not view.error else []
    )


# --- one group --------------------------------------------------------------------------------------------------------
def group_document(seen: Seen, name: str) -> dict[str, Any]:
    """The document of one group, with its logs drawn, elections, waits, promise and events. `error` for an unknown
    one."""
    group = seen.groups.get(name)
    if group is None:
        known = ", ".join(sorted(seen.groups)[:20]) or "none"
        words = f"no name server route and no controller knows a group {short(name, 100)!r}; known: {known}"
        return {"version": VERSION, "error": words}
    row = _group(group) | {"kind": _kind(group)}
    logs = [log for address in _in_order(group) if (log := _log(group, group.brokers[address])) is not None]
    return {
        "version": VERSION,
        "error": None,
        "group": row,
        "health": troubles(_words_about(seen.words, name), [name], seen.name_server),
        "answer": visible(group.closer.explained.get("answer") or "") or None,
        "elections": [_election(item) for item in reversed(group.closer.explained.get("elections", ()))],
        "logs": draw(logs),
        "silent": [view.address for view in group.look.brokers if view.error],
        "waits": _waits(group),
        "promise": _promise(group),
        "events": _events(group),
    }


def _words_about(words: list[NodeReport], name: str) -> list[NodeReport]:
    return [word for word in words if word.kind is not ServerKind.BROKER or word.group == name]


def _waits(group: GroupSeen) -> list[str]:
    if group.master is None:
        return []
    try:
        return [visible(words) for words in view_of(group.look)["sentences"]]
    except ODD:
        return []


def _election(item: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "epoch": item.get("masterEpoch"),
        "brokerId": item.get("brokerId"),
        "atMs": item.get("atMs") or None,
        "cause": visible(str(item.get("causeText") or item.get("cause") or "")),
        "reason": visible(str(item.get("reason") or "")),
    }


def _log(group: GroupSeen, view: BrokerView) -> Log | None:
    """None for a replica that tells no history."""
    state, java = view.state, group.closer.epochs.get(view.address, {})
    try:
        if state:
            entries = [(int(epoch), int(start)) for epoch, start in state.get("epochs", ())]
            low, end = int(state["minPhyOffset"]), int(state["maxPhyOffset"])
        elif java:
            entries = [(int(item["epoch"]), int(item["startOffset"])) for item in java["epochList"] or ()]
            low, end = entries[0][1] if entries else 0, int(java["maxOffset"])
        else:
            return None
        history = EpochHistory(EpochEntry(Epoch(epoch), PhyOffset(start)) for epoch, start in entries)
    except ODD:
        return None
    cuts = cuts_of(group.closer.events.get(view.address, ()))
    broker_id = state.get("brokerId", view.routed_id)
    name = f"replica {broker_id}" if broker_id is not None else view.address
    return Log(name, history, low, end, view.is_master, cuts)


def _promise(group: GroupSeen) -> dict[str, Any] | None:
    speaker = group.master or next((view for view in group.look.answering if view.keys), None)
    if speaker is None or not speaker.keys:
        return None
    try:
        _, found = promise_of(speaker)
    except (*ODD, RmqhaError):
        return None
    return {
        "kind": found.kind,
        "acknowledged": found.acknowledged,
        "losses": list(found.losses),
        "notes": list(found.notes),
    }


def _events(group: GroupSeen) -> list[dict[str, Any]]:
    """The newest first, with the address of the replica that tells."""
    found = [
        {"atMs": event["at_ms"], "address": address, "event": event["event"], "words": _fields(event)}
        for address, events in sorted(group.closer.events.items())
        for event in events
        if isinstance(event, dict) and event.get("event") in TOLD_EVENTS and isinstance(event.get("at_ms"), int)
    ]
    found.sort(key=lambda item: -item["atMs"])
    return found[:MAX_EVENTS]


def _fields(event: Mapping[str, Any]) -> str:
    words = " ".join(f"{key}={value}" for key, value in event.items() if key not in ("at_ms", "event"))
    return short(words, 300)
