"""The data of the page about a cluster and about one group, from the reports of all nodes. Pure.

Each fact has one source: brokers for themselves, a master for its slaves, the leading controller for the set. Problems
have the sentences of `rmqha status`, `describe`, `explain` and `explain-wait`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from nameserver.web.forks import ForkedLog, cuts_of, draw_logs
from nameserver.web.message_view import short, visible
from rmqha.model.epoch import EpochEntry, EpochHistory
from rmqha.model.error import RmqhaError
from rmqha.model.identity import node_label
from rmqha.model.offset import Epoch, PhyOffset
from rmqha.ops.cluster_view import copy_sentence
from rmqha.ops.finding import Finding, fault
from rmqha.ops.group_view import GroupReport, promise_of
from rmqha.ops.health.agreement import Agreement, View
from rmqha.ops.health.findings import judge
from rmqha.ops.node_names import replica_names
from rmqha.ops.snapshot import ApacheEpochs, ClusterSnapshot, NodeReport, ServerKind
from rmqha.ops.wait_explanation import view_of
from rmqha.wire.state.controller_state import GroupState, RegisteredReplica
from rmqha.wire.state.explained_state import ExplainedElection, ExplainedGroup
from rmqha.wire.state.history import HistoryEvent
from rmqha.wire.state.name_server_state import NameServerFacts
from rmqha.wire.state.replica_state import SlaveState

VERSION = 1
MAX_GROUPS = 200
"""Groups on the cluster's page."""
MAX_EVENTS = 40
"""Newest events of a group that are shown."""
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
"""Events of a replica on the group page; `rmqha history` has all."""


@dataclass(slots=True)
class GroupDetails:
    """Answers that are requested only while a viewer has the group's page open."""

    explained: ExplainedGroup | None = None
    """Answer of the leading controller to request 52010."""
    events: dict[str, list[HistoryEvent]] = field(default_factory=dict)
    """Replicas' own events (52001) by address."""
    epochs: dict[str, ApacheEpochs] = field(default_factory=dict)
    """Epoch histories of Apache's brokers (1007) by address."""


@dataclass(slots=True)
class GroupPageData:
    """A group: reports of its replicas, its state on the controllers (`registered`), its routes."""

    name: str
    cluster: str = ""
    brokers: dict[str, NodeReport] = field(default_factory=dict)
    registered: GroupState | None = None
    routes: dict[int, str] = field(default_factory=dict)
    details: GroupDetails = field(default_factory=GroupDetails)

    @property
    def report(self) -> GroupReport:
        return GroupReport(self.name, self.cluster, tuple(self.brokers[address] for address in sorted(self.brokers)))

    @property
    def master(self) -> NodeReport | None:
        return next((view for view in self.report.masters if not view.error), None)


@dataclass(slots=True)
class ClusterPageData:
    """All reports of one round."""

    name_server: NameServerFacts
    snapshot: ClusterSnapshot
    groups: dict[str, GroupPageData]


def cluster_page_data(
    snapshot: ClusterSnapshot, name_server: NameServerFacts, own_address: str, details: Mapping[str, GroupDetails]
) -> ClusterPageData:
    """Data of a page. `own_address`: of this name server, whose routes are preferred to other name servers'."""
    groups: dict[str, GroupPageData] = {}
    for report in sorted(snapshot.nodes, key=lambda item: item.address == own_address):
        for name, addresses in report.routes.items():
            groups.setdefault(name, GroupPageData(name)).routes = dict(addresses)
    for report in snapshot.of_kind(ServerKind.BROKER):
        if report.group:
            group = groups.setdefault(report.group, GroupPageData(report.group))
            routed = {where: broker_id for broker_id, where in group.routes.items()}
            group.brokers[report.address] = replace(report, routed_id=routed.get(report.address))
            group.cluster = group.cluster or str(report.keys.get("brokerClusterName") or "")
    for name, group in groups.items():
        group.registered = snapshot.reported_group(name)
        group.cluster = group.cluster or (group.registered.cluster_name if group.registered is not None else "")
        group.details = details.get(name, group.details)
    return ClusterPageData(name_server, snapshot, groups)


# --- the cluster ------------------------------------------------------------------------------------------------------
def cluster_document(page_data: ClusterPageData) -> dict[str, Any]:
    """JSON-ready: `health`, `controllers`, and `groups` with their replicas, those that refuse messages first."""
    rows = [(group, _group(group)) for _, group in sorted(page_data.groups.items())]
    rows.sort(key=lambda row: row[1]["writable"] is True)
    return {
        "version": VERSION,
        "nameServer": page_data.name_server.to_json(),
        "health": health_findings(
            page_data.snapshot, sorted(page_data.groups), suspects_itself=bool(page_data.name_server.suspects_itself)
        ),
        "controllers": [
            _controller(report, bool(page_data.name_server.embeds_controller))
            for report in page_data.snapshot.of_kind(ServerKind.CONTROLLER)
        ],
        "groups": [row | {"kind": _kind(group)} for group, row in rows[:MAX_GROUPS]],
        "groupsLeftOut": max(0, len(rows) - MAX_GROUPS),
    }


def controller_name(node_id: str, *, embedded: bool) -> str:
    """Name of the node with this controller, as `rmqha up` gives it: ns-1 for controller n1 in a name server, or ctl-1.
    An id of another form is its own name."""
    number = node_id.removeprefix("n")
    if number == node_id or not (number.isascii() and number.isdigit()):
        return node_id
    return node_label(f"{'ns' if embedded else 'ctl'}-{number}", node_id)


def _controller(report: NodeReport, embedded: bool) -> dict[str, Any]:
    """Row of a controller. `embedded`: the controllers run inside the name servers."""
    raft = report.controller.raft if report.controller is not None else None
    return {
        "address": report.address,
        "node": visible(controller_name(raft.node, embedded=embedded)) if raft else None,
        "role": raft.role if raft else None if report.error else "APACHE",
        "term": raft.term if raft else None,
        "leader": visible(controller_name(raft.leader, embedded=embedded)) if raft and raft.leader else None,
        "commitIndex": raft.commit_index if raft else None,
        "isLearner": raft is not None and raft.node in raft.learners,
        "error": visible(report.error) or None,
    }


def _group(group: GroupPageData) -> dict[str, Any]:
    """Row of a group: the master's values, else the controllers'."""
    master, registered = group.master, group.registered
    state = master.replica if master is not None else None
    has_none = master is None and registered is not None and registered.master_broker_id is None
    why_not = (state.why_not_writable if state else "") or (registered.why_no_master if registered else "")
    row: dict[str, Any] = {
        "name": visible(group.name),
        "cluster": visible(group.cluster),
        "masterId": registered.master_broker_id if registered else None,
        "masterAddress": master.address
        if master is not None
        else (registered.master_address if registered else None) or None,
        "epoch": registered.master_epoch if registered else None,
        "set": registered.sync_state_set if registered else None,
        "totalReplicas": (
            (state.total_replicas if state else None) or (registered.total_replicas if registered else None)
        ),
        "writable": False if has_none else state.writable if state else None,
        "whyNotWritable": visible(why_not or "") or None,
        "oneCopySynced": state is not None and bool(state.one_copy_synced),
        "waitingCount": state.waiting_count if state else None,
        "putTps": state.put_tps if state else None,
        "getTps": state.get_tps if state else None,
        "maxOffset": state.max_phy_offset if state else None,
        "confirmOffset": state.confirm_offset if state else None,
        "replicas": [_replica(group, group.brokers[address]) for address in _in_order(group)],
    }
    if state is not None:
        row |= {"masterId": state.broker_id, "epoch": state.epoch}
        row["set"] = row["set"] if state.sync_state_set is None else state.sync_state_set
    return row


def _in_order(group: GroupPageData) -> list[str]:
    """Addresses in the order of broker ids, as the controllers or the broker report them."""
    ids: dict[str, int] = {
        item.address: item.broker_id for item in (group.registered.replicas if group.registered else ())
    }
    for address, view in group.brokers.items():
        if view.replica is not None and view.replica.broker_id is not None:
            ids[address] = view.replica.broker_id
    return sorted(group.brokers, key=lambda address: (ids.get(address, 1 << 62), address))


def _kind(group: GroupPageData) -> str | None:
    """CP, AP or static, by the configuration of its brokers."""
    for view in group.report.answering:
        if view.keys:
            try:
                return promise_of(view)[1].kind
            except ODD:
                continue
    return None


def _replica(group: GroupPageData, view: NodeReport) -> dict[str, Any]:
    state = view.replica
    leading = group.master.replica if group.master is not None else None
    registered = (
        next((item for item in group.registered.replicas if item.address == view.address), None)
        if group.registered
        else None
    )
    broker_id = state.broker_id if state is not None else registered.broker_id if registered is not None else None
    members = leading.sync_state_set if leading is not None else None
    if members is None and group.registered is not None:
        members = group.registered.sync_state_set
    slaves = (leading.slaves if leading is not None else None) or ()
    slave = next((item for item in slaves if item.broker_id == broker_id is not None), SlaveState())
    unknown = None if view.is_ours else "APACHE"
    return {
        "address": view.address,
        "id": broker_id,
        "name": visible(node_label(view.node_name, broker_id)) if view.node_name else None,
        "role": "DOWN" if view.error else state.role if state is not None else unknown,
        "epoch": state.epoch if state is not None else None,
        "maxOffset": state.max_phy_offset if state is not None else None,
        "confirmOffset": state.confirm_offset if state is not None else None,
        "inSet": None if members is None or broker_id is None else broker_id in members,
        "isEligible": group.registered is not None and broker_id in group.registered.eligible,
        "lagBytes": 0 if state is not None and state.leads else slave.lag_bytes,
        "lagMs": slave.lag_ms if slave.lag_bytes else None,
        "routed": view.address in group.routes.values(),
        "zone": visible((registered.zone if registered is not None else None) or "") or None,
        "error": visible(view.error) or None,
        "notes": [visible(note) for note in _notes(group, view, registered)],
    }


def _notes(group: GroupPageData, view: NodeReport, registered: RegisteredReplica | None) -> list[str]:
    """Sentences about other unusual facts of a replica."""
    state = view.replica
    found = []
    if (state is not None and state.async_learner) or (registered is not None and registered.async_learner):
        found.append("never in the set (asyncLearner)")
    if registered is not None and registered.drained:
        found.append("kept out of the set by an operator (drained)")
    if state is not None:
        found += [
            "unclean: after a loss of power it leads nobody until it has followed a master" if state.unclean else "",
            f"disk: {state.disk_problem}" if state.disk_problem else "",
            f"refuses to follow: {state.refusal}" if state.refusal else "",
            copy_sentence(state.copy),
            "the controllers are away" if state.controller == "away" else "",
            f"hands over to {replica_names(group.report.brokers, group.name).of(state.hands_over_to)}"
            if state.hands_over_to
            else "",
        ]
    explained = group.details.explained
    replicas = () if explained is None else explained.replicas
    why_not = next((item.not_electable for item in replicas if item.address == view.address), None)
    return [note for note in found if note] + (
        [f"cannot become master: {why_not}"] if why_not and not view.error else []
    )


# --- one group --------------------------------------------------------------------------------------------------------
def group_document(page_data: ClusterPageData, name: str) -> dict[str, Any]:
    """Document of one group, with its logs drawn, elections, waits, promise and events. `error` for an unknown
    group."""
    group = page_data.groups.get(name)
    if group is None:
        known = ", ".join(sorted(page_data.groups)[:20]) or "none"
        words = f"no name server route and no controller knows a group {short(name, 100)!r}; known: {known}"
        return {"version": VERSION, "error": words}
    row, explained = _group(group) | {"kind": _kind(group)}, group.details.explained
    logs = [log for address in _in_order(group) if (log := _log(group, group.brokers[address])) is not None]
    return {
        "version": VERSION,
        "error": None,
        "group": row,
        "health": health_findings(
            _about(page_data.snapshot, name), [name], suspects_itself=bool(page_data.name_server.suspects_itself)
        ),
        "answer": visible(explained.answer) or None if explained is not None else None,
        "elections": [_election(item) for item in reversed(explained.elections)] if explained is not None else [],
        "logs": draw_logs(logs),
        "silent": [view.address for view in group.report.brokers if view.error],
        "waits": _waits(group),
        "promise": _promise(group),
        "events": _events(group),
    }


def _about(snapshot: ClusterSnapshot, name: str) -> ClusterSnapshot:
    return ClusterSnapshot(
        tuple(report for report in snapshot.nodes if report.kind is not ServerKind.BROKER or report.group == name)
    )


def _waits(group: GroupPageData) -> list[str]:
    if group.master is None:
        return []
    try:
        return [visible(words) for words in view_of(group.report)["sentences"]]
    except ODD:
        return []


def _election(item: ExplainedElection) -> dict[str, Any]:
    return {
        "epoch": item.master_epoch,
        "brokerId": item.broker_id,
        "atMs": item.at_ms or None,
        "cause": visible(item.cause_text or item.cause),
        "reason": visible(item.reason),
    }


def _log(group: GroupPageData, view: NodeReport) -> ForkedLog | None:
    """Log of a replica; None without a reported history."""
    state, java = view.replica, group.details.epochs.get(view.address)
    try:
        if state is not None:
            entries = [(epoch, start) for epoch, start in state.epochs]
            low, end = state.min_phy_offset, state.max_phy_offset
        elif java is not None:
            entries = [(item.epoch, item.start_offset) for item in java.epoch_list]
            low, end = entries[0][1] if entries else 0, java.max_offset
        else:
            return None
        history = EpochHistory(EpochEntry(Epoch(epoch), PhyOffset(start)) for epoch, start in entries)
    except ODD:
        return None
    cuts = cuts_of(group.details.events.get(view.address, ()))
    broker_id = view.routed_id if state is None else state.broker_id
    name = node_label(view.node_name, broker_id) if broker_id is not None else view.address
    return ForkedLog(name, history, low, end, view.leads_group, cuts)


def _promise(group: GroupPageData) -> dict[str, Any] | None:
    speaker = group.master or next((view for view in group.report.answering if view.keys), None)
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


def _events(group: GroupPageData) -> list[dict[str, Any]]:
    """Events, the newest first, with the address of the replica that reports them."""
    found: list[dict[str, Any]] = [
        {"atMs": event.at_ms, "address": address, "event": event.name, "words": _fields(event)}
        for address, events in sorted(group.details.events.items())
        for event in events
        if event.name in TOLD_EVENTS
    ]
    found.sort(key=lambda item: -item["atMs"])
    return found[:MAX_EVENTS]


def _fields(event: HistoryEvent) -> str:
    return short(" ".join(f"{key}={value}" for key, value in event.fields.items()), 300)


# --- findings of `rmqha health`, group by group ------------------------------

ODD = (KeyError, TypeError, ValueError, AttributeError, IndexError)
"""Errors that an answer of an older, newer or foreign release may cause; the part that needs it is then omitted."""
MAX_FINDINGS = 200


def health_findings(
    snapshot: ClusterSnapshot, groups: Iterable[str], *, suspects_itself: bool = False
) -> dict[str, Any]:
    """JSON-ready: `findings` (where, what, fix, note), `views` (those that differ), `healthy`, `answered`."""
    common = [report for report in snapshot.nodes if report.kind is not ServerKind.BROKER]
    brokers: dict[str, list[NodeReport]] = {}
    for report in snapshot.of_kind(ServerKind.BROKER):
        for name in sorted(report.groups | {report.group}):
            brokers.setdefault(name, []).append(report)
    common_health = judge(snapshot, [])
    findings, views = list(common_health.findings), list(common_health.views)
    if suspects_itself:
        what = (
            "most brokers fell silent at once: more likely it is cut off than all of them dead; it keeps their routes"
        )
        findings.append(fault("this name server", what, "check its network"))
    known = set(findings)
    for name in groups:
        own = ClusterSnapshot((*(report.about(name) for report in common), *brokers.get(name, ())))
        health = judge(own, [name])
        findings += [item for item in health.findings if item not in known]
        views += health.views
    wrong = [item for item in findings if not item.is_note]
    shown = [*wrong, *(item for item in findings if item.is_note)][:MAX_FINDINGS]
    return {
        "healthy": snapshot.answered > 0 and not wrong,
        "answered": snapshot.answered,
        "wrong": len(wrong),
        "findings": [_finding(item) for item in shown],
        "views": [_view(item) for item in views if item.agreement is not Agreement.MATCHING][:MAX_FINDINGS],
    }


def _finding(item: Finding) -> dict[str, Any]:
    return {**{name: visible(text) for name, text in item.as_reason().items()}, "note": item.is_note}


def _view(item: View) -> dict[str, Any]:
    return {
        "group": visible(item.group),
        "about": item.about,
        "agreement": item.agreement.value,
        "says": [[visible(title), visible(sentence)] for title, sentence in item.says.items()],
        "silent": [visible(title) for title in item.silent],
    }
