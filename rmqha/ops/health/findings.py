"""Faults of a cluster, each with its fix, from the reports of its nodes. Pure.

The controllers' report on a group is that of their leader, else of the controller that has seen the highest epoch. The
reports of the controllers, of each replica and of the routes must agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rmqha.host.access.live_files import RENEW, SOON_MS, expiry_sentence
from rmqha.model.identity import is_loopback, node_label
from rmqha.ops.cluster_view import (
    DAMAGE_FIX,
    LONG_WAIT_MS,
    RIVALS_FIX,
    STALL_FIX,
    copy_sentence,
    damage_sentence,
    outside_sentence,
    rivals_sentence,
    unsaved_sentence,
)
from rmqha.ops.finding import Consequence, Finding, Verdict, fault, in_order, note
from rmqha.ops.health.agreement import Agreement, View, views
from rmqha.ops.snapshot import ClusterSnapshot, NodeReport, ServerKind
from rmqha.wire.state.controller_state import GroupState, RegisteredReplica
from rmqha.wire.state.replica_state import ReplicaState

UNCLEAN_CAUSES = ("UNCLEAN_BY_OPERATOR", "UNCLEAN_AUTOMATIC")


@dataclass(frozen=True, slots=True)
class Health:
    """The judgement on a cluster at one moment, the gravest finding first."""

    findings: list[Finding]
    views: list[View]
    answered: int
    """Nodes that answered."""

    @property
    def reasons(self) -> list[Finding]:
        return [item for item in self.findings if not item.is_note]

    @property
    def healthy(self) -> bool:
        return self.answered > 0 and not self.reasons


def judge(snapshot: ClusterSnapshot, groups: Sequence[str]) -> Health:
    """Judge a snapshot. `groups`: the groups to judge, known to a node or not."""
    seen = [view for group in groups for view in views(snapshot, group)]
    absent = snapshot.maintained | snapshot.drained
    found = [
        *_silent(snapshot, absent),
        *_refused(snapshot),
        *_quorum(snapshot),
        *_security(snapshot),
        *_releases(snapshot),
    ]
    if not snapshot.of_kind(ServerKind.BROKER):
        found += _without_groups(snapshot)
    for group in groups:
        found += _Group(snapshot, group).findings()
    for view in seen:
        if view.agreement is Agreement.DIVERGENT:
            told = "; ".join(f"{title} says {sentence}" for title, sentence in view.says.items())
            fix = (
                f"if it stays so for more than some seconds see rmqha explain {view.group} and the logs of those nodes"
            )
            found.append(fault(view.group, f"its {view.about} do not agree: {told}", fix))
    announced = {report.title for report in snapshot.nodes if report.address in absent and not report.leads_group}
    found = [replace(item, verdict=Verdict.NOTE) if item.subject in announced else item for item in found]
    return Health(in_order(found), seen, snapshot.answered)


def is_unsettled(snapshot: ClusterSnapshot) -> bool:
    """True if some difference may last only a moment: a second snapshot is needed to tell."""
    states = snapshot.replicas.values()
    behind = any(state.leads and state.confirm_offset < state.max_phy_offset for state in states)
    return behind or bool(judge(snapshot, snapshot.groups).reasons)


# --- nodes ------------------------------------------------------------------------------------------------------------
def _silent(snapshot: ClusterSnapshot, absent: set[str]) -> Iterator[Finding]:
    """One finding per node that does not answer."""
    told = set[str]()
    for report in snapshot.nodes:
        if report.answers or report.name in told:
            continue
        where = report.name or f"{report.kind.value} {report.address}"
        if report.kind is ServerKind.BROKER and report.address in absent:
            continue  # `_registered` tells that it is in maintenance or drained
        if report.name:
            told.add(report.name)
        if report.refuses:
            fix = "try again in a moment, or with an account that it knows: rmqha --security FILE health"
            yield fault(where, f"answers, but does not tell: {report.error}", fix)
        elif report.runs is False:
            yield fault(where, "does not run", f"rmqha start {report.name}")
        elif report.runs:
            what = f"its process lives and its {report.kind.value} does not answer: {report.error}"
            yield fault(where, what, f"see rmqha logs {report.name}; a frozen one is ended by rmqha kill {report.name}")
        else:
            fix = "start it, or if it is gone for good take it out of the configuration of the others"
            if report.kind is ServerKind.BROKER:
                fix = "start it, or if it is gone for good clean it from the controllers (rmqha remove)"
            yield fault(where, f"does not answer: {report.error}", fix)


def _refused(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Brokers that name servers do not accept, one finding for each: no client finds them, and none of the others need
    know them."""
    reasons: dict[str, tuple[str, str, list[str]]] = {}
    for report in snapshot.of_kind(ServerKind.NAME_SERVER):
        told = (report.name_server.refused if report.name_server is not None else None) or {}
        for address, (group, reason) in told.items():
            reasons.setdefault(address, (group, reason, []))[2].append(report.title)
    for address, (group, reason, titles) in sorted(reasons.items()):
        broker = snapshot.server(ServerKind.BROKER, address)
        where = broker.title if broker is not None else f"broker {address}"
        fix = (
            "check its brokerName, brokerClusterName and namesrvAddr; it registers by itself once nothing is against it"
        )
        yield fault(
            where,
            f"not accepted as a broker of {group} by {' and '.join(titles)}, so no client finds it: {reason}",
            fix,
        )


def _security(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Findings on files of certificates and accounts that are not in force, one for a process with two servers."""
    told = set[tuple[str, str]]()
    for report in snapshot.nodes:
        for row in report.security:
            place = (report.title, row.file)
            if place in told:
                continue
            told.add(place)
            if row.problem:
                what = f"{row.key}: {row.problem}; what it held before is in force"
                yield fault(report.title, what, "mend that file; it is read again by itself")
            left_ms = row.expires_in_ms
            if left_ms is not None and left_ms < SOON_MS:
                make = note if left_ms > 0 else fault
                yield make(report.title, expiry_sentence(row.key, row.file, left_ms), RENEW)


def _releases(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Finding on an upgrade that is under way, or was left half-way."""
    told = {release: titles for release, titles in snapshot.releases.items() if release}
    if len(told) > 1:
        words = "; ".join(f"{release} on {', '.join(titles)}" for release, titles in told.items())
        fix = "go on with the upgrade; see rmqha upgrade check"
        yield note("cluster", f"its nodes run different releases: {words}", fix)


def _without_groups(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Faults of name servers without brokers: all nodes may answer, but no message is served."""
    for report in snapshot.nodes:
        if report.answers and report.kind is ServerKind.NAME_SERVER:
            yield fault(report.title, "knows no broker", "start the brokers, or check their namesrvAddr")


def _quorum(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Faults of the controllers' own group."""
    answering = [report for report in snapshot.of_kind(ServerKind.CONTROLLER) if report.answers]
    if not answering or any(not report.is_ours for report in answering):
        if answering and not any(report.leads for report in answering):
            yield fault("controllers", "none of those that answer leads", "start the others")
        return
    rafts = [(report, report.controller.raft) for report in answering if report.controller is not None]
    for report, raft in rafts:
        if problem := unsaved_sentence(raft.unsaved_ms):
            yield fault(report.title, problem, STALL_FIX)
    leading = sorted(((report, raft) for report, raft in rafts if report.leads), key=lambda item: -item[1].term)
    if not leading:
        voters = max((raft.voters for _, raft in rafts), key=len)
        needed = len(voters) // 2 + 1
        told = f"{len(answering)} of {len(voters)} answer and {needed} must" if voters else "their group is not formed"
        yield fault(
            "controllers", f"none of them leads: {told}", "start the others, then see rmqha quorum show; no election "
            "and no change of a set is possible until then"
        )  # fmt: skip
        return
    first, raft = leading[0]
    own = {member.address for member in raft.members}
    twins = [report.title for report, other in leading[1:] if other.term == raft.term and report.address in own]
    if twins:
        names = " and ".join([first.title, *twins])
        yield fault("controllers", f"{names} both lead term {raft.term}", "report this bug")
    apart = [report.title for report, _ in leading[1:] if report.address not in own]
    if apart:
        names = " and ".join([first.title, *apart])
        fix = "right for clusters that share name servers; else give them all the same controllerDLegerPeers"
        yield note("controllers", f"{names} lead groups of controllers of their own", fix)
    for member in raft.members:
        if member.kind == "JOINING":
            name = next(
                (report.name for report in answering if report.address == member.address and report.name), member.node
            )
            what = f"{node_label(name, member.node)} is still catching up and has no vote yet"
            yield note("controllers", what, "wait; see rmqha quorum show")


# --- a group ----------------------------------------------------------------------------------------------------------
class _Group:
    def __init__(self, snapshot: ClusterSnapshot, name: str) -> None:
        self.name = name
        self.brokers = snapshot.brokers_of(name)
        self.ours = [(report, report.replica) for report in self.brokers if report.replica is not None]
        self.name_servers = [report for report in snapshot.of_kind(ServerKind.NAME_SERVER) if report.answers]
        self.controllers = [report for report in snapshot.of_kind(ServerKind.CONTROLLER) if report.answers]
        self.info = snapshot.reported_group(name)
        self.rivals = snapshot.rivals(name)
        self.is_static = any(report.keys.get("enableControllerMode") == "false" for report in self.brokers)

    def findings(self) -> Iterator[Finding]:
        if not self.brokers:
            fix = "start its brokers, or check the group's name"
            yield fault(self.name, "nobody knows a replica of it", fix, Consequence.NO_WRITES)
            return
        if self.is_static:
            yield from self._static()
        elif self.info is not None:
            yield from self._controlled(self.info)
        elif any(report.is_ours for report in self.controllers):
            yield fault(self.name, "its replicas are registered at no controller", "check their controllerAddr")
        yield from self._two_masters()
        for report, state in self.ours:
            yield from self._replica(report, state)
        yield from self._told()
        yield from self._routed()

    # the controllers' report against the replicas'
    def _controlled(self, info: GroupState) -> Iterator[Finding]:
        if info.master_broker_id is None:
            why = f": {info.why_no_master}" if info.why_no_master else ""
            yield fault(self.name, f"has no master{why}", f"see rmqha explain {self.name}", Consequence.NO_WRITES)
        known, total = [item for item in info.replicas if not item.async_learner], info.total_replicas
        if len(known) < total:
            what = f"{len(known)} of {total} replicas have registered"
            yield fault(self.name, what, "start the others, or rmqha group resize if there are no more")
        if info.next_total_replicas:
            what = f"totalReplicas is changing from {total} to {info.next_total_replicas}"
            yield note(self.name, what)
        last = info.elections[-1] if info.elections else None
        if last is not None and last.cause in UNCLEAN_CAUSES and last.master_epoch == info.master_epoch:
            what = f"epoch {last.master_epoch} was elected unclean: messages of earlier epochs may be lost"
            yield note(self.name, what)
        for item in info.replicas:
            yield from self._registered(info, item)

    def _registered(self, info: GroupState, item: RegisteredReplica) -> Iterator[Finding]:
        report = next((report for report in self.brokers if report.address == item.address), None)
        where = report.title if report is not None else item.label
        away = "" if report is None or report.answers else f", does not answer ({report.error})"
        away = ", stopped" if report is not None and report.runs is False else away
        if item.in_maintenance:
            yield note(where, f"in maintenance{away}", f"end it with rmqha maintenance off {where}")
        if item.drained:
            yield note(where, f"drained: in no set{away}", f"take it back with rmqha drain {where} --undo")
        if item.async_learner:
            yield note(where, "a learner: in no set and never elected")
        state = report.replica if report is not None else None
        if state is None or state.broker_id != item.broker_id or state.role == "STARTING":
            return
        if item.is_master:
            if not state.leads:
                what = f"elected master of epoch {info.master_epoch}, its role is still {state.role}"
                yield fault(where, what, f"see rmqha logs {where}", Consequence.NO_WRITES)
            return
        if state.leads:
            return
        is_behind = state.epoch is not None and info.master_broker_id is not None and state.epoch < info.master_epoch
        if is_behind and not state.disk_problem:  # a disk that takes no write keeps it from the new epoch
            what = f"its epoch {state.epoch} is behind the group's {info.master_epoch}"
            yield fault(where, what, "it has not heard of the last election: check its way to the controllers")
        elif info.master_broker_id is None or state.disk_problem or state.refusal:
            return
        elif item.drained or item.async_learner:
            if state.follow_state != "following":
                yield fault(where, "does not follow the master", f"see rmqha logs {where}")
        elif not item.in_sync_state_set:
            copying = copy_sentence(state.copy)
            fix = "wait: it comes in when it has all" if copying else f"see rmqha explain-wait {self.name}"
            if state.lacks_queue_ends and not copying:
                fix = f"wait; if it stays so see queue_ends_not_learned in rmqha logs {where}"
            yield fault(where, copying or outside_sentence(state), fix)

    def _static(self) -> Iterator[Finding]:
        """Faults of a group without a controller: its configured master must be there, every slave must follow."""
        if self.ours and not any(state.leads for _, state in self.ours):
            fix = "start the broker whose brokerRole is no SLAVE"
            yield fault(self.name, "no master answers", fix, Consequence.NO_WRITES)
        for report, state in self.ours:
            if not state.leads and not state.refusal and state.follow_state != "following":
                yield fault(report.title, "does not follow its master", f"see rmqha logs {report.title}")

    def _two_masters(self) -> Iterator[Finding]:
        if rivals := self.rivals:
            yield fault(self.name, rivals_sentence(rivals), RIVALS_FIX)
        masters = sorted((item for item in self.ours if item[1].leads), key=lambda item: -(item[1].epoch or 0))
        for old, state in masters[1:]:
            new, newer = masters[0]
            if self.is_static:
                what = f"is configured to be the master, and so is {new.title}: a static group has one"
                yield fault(old.title, what, RIVALS_FIX)
                continue
            what = f"says that it is master of epoch {state.epoch}, but {new.title} is master of epoch {newer.epoch}"
            yield fault(old.title, what, "check its way to the controllers, or stop it")

    # each replica's own report
    def _replica(self, report: NodeReport, state: ReplicaState) -> Iterator[Finding]:
        if state.role == "STARTING":
            why = state.controller_refusal or "the controllers have given it no role yet"
            yield fault(report.title, f"starting: {why}", f"see rmqha explain {self.name}")
        if state.disk_problem:
            yield fault(report.title, f"disk: {state.disk_problem}", "mend or free that disk", Consequence.MACHINE)
        if damage := damage_sentence(state):
            yield fault(report.title, damage, DAMAGE_FIX, Consequence.MACHINE)
        if state.address_problem:
            fix = "set that key to its machine's address, then restart it"
            yield fault(report.title, state.address_problem, fix)
        if state.refusal:
            yield fault(report.title, f"follows nobody: {state.refusal}", f"see rmqha fork show {report.title}")
        if state.unclean:
            what = "it lost power, so it leads nobody until it has followed a master to its end"
            yield fault(report.title, what, f"start its master, or rmqha elect {self.name} --unclean")
        if not state.leads:
            return
        if not state.writable and not (state.role == "MASTER" and state.hands_over_to):
            why = state.why_not_writable or "no reason given"
            fix = f"see rmqha explain-wait {self.name}"
            yield fault(report.title, f"master, takes no messages: {why}", fix, Consequence.NO_WRITES)
        if state.one_copy_synced:
            what = "one copy, synced: it acknowledges alone, each message from its disk, until the other is back"
            yield note(report.title, what)
        yield from self._stalled(report, state)

    def _stalled(self, report: NodeReport, state: ReplicaState) -> Iterator[Finding]:
        """Faults of replication that stands still in two snapshots."""
        before = report.before
        oldest_ms = (state.waits.oldest_age_ms if state.waits is not None else None) or 0
        still = (
            before is not None
            and before.role == state.role
            and before.max_phy_offset > before.confirm_offset == state.confirm_offset
        )
        if oldest_ms > LONG_WAIT_MS:
            what = f"a send has waited for {oldest_ms} ms"
        elif still:
            behind = state.max_phy_offset - state.confirm_offset
            what = f"its confirm offset stands still at {state.confirm_offset}, {behind} bytes behind its log"
        else:
            return
        yield fault(report.title, what, f"rmqha explain-wait {self.name} tells for whom it waits")

    # where clients go
    def _told(self) -> Iterator[Finding]:
        """Findings on brokers that clients on other machines cannot reach although they reach the name server."""
        for report in self.name_servers:
            if is_loopback(report.address.rpartition(":")[0]):
                continue
            for address in report.routes.get(self.name, {}).values():
                if is_loopback(address.rpartition(":")[0]):
                    what = f"tells clients of {self.name} {address}, which none elsewhere can reach"
                    yield fault(report.title, what, "set brokerIP1 of that broker to its machine's address")

    def _routed(self) -> Iterator[Finding]:
        masters = [report.address for report, state in self.ours if state.role == "MASTER" and state.writable]
        if len(masters) != 1:
            return
        for report in self.name_servers:
            routed = report.routes.get(self.name, {}).get(0)
            if routed != masters[0]:
                where = f"to {routed}" if routed else "to no master"
                what = f"routes clients of {self.name} {where}, its master is {masters[0]}"
                yield fault(report.title, what, "check that the master's namesrvAddr names it and that it is reachable")
