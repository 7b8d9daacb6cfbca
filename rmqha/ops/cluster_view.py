"""The nodes and groups of a cluster directory as a snapshot shows them, and what is not well. Pure, but for
`ask_cluster`.

Each answer is one party's report: the broker's about itself (request 52000), the controllers' about the group (52003),
the name servers' about the addresses that clients get (106). A group is healthy when they agree.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from rmqha.host.asking.shell import Caller
from rmqha.ops.local.cluster_state import ClusterState, NodeRecord
from rmqha.ops.local.node_kind import NodeKind
from rmqha.ops.snapshot import ClusterSnapshot, NodeReport
from rmqha.ops.survey import BootstrapAddresses, Survey, SurveyScope
from rmqha.wire.state.controller_state import ControllerState, GroupState
from rmqha.wire.state.name_server_state import NameServerState
from rmqha.wire.state.replica_state import CopyState, DamageState, ReplicaState

ASK_TIMEOUT_S = 2.5
DAMAGE_FIX = 'start a replica that has it, or see "A record that nobody has" in docs/operate/recovery.md'
CONTROLLER_STALL_MS = 1000
LONG_WAIT_MS = 500
"""A send that waits longer is a fault."""
RIVALS_FIX = (
    "stop one of them, give it another brokerName, or as a slave another brokerId; if they are replicas of one group, "
    "give them the same controllerAddr"
)
STALL_FIX = 'see dmesg; if the disk does not come back replace it, see "A lost disk" in docs/operate/controllers.md'


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node as it was a moment ago: the states that its servers reported; None of a server that it does not have or
    that did not answer."""

    node: NodeRecord
    alive: bool
    replica: ReplicaState | None = None
    controller: ControllerState | None = None
    name_server: NameServerState | None = None
    error: str = ""
    refuses: bool = False
    """True if `error` is its refusal to answer."""
    routes: dict[str, dict[int, str]] = field(default_factory=dict)
    """Routes of its name server: group → broker id → address; the master is id 0."""

    @classmethod
    def of(cls, node: NodeRecord, servers: Iterable[NodeReport]) -> NodeView:
        """The view of a node. `servers`: reports of its process's servers, none if it does not run."""
        asked = list(servers)
        return cls(
            node,
            bool(asked),
            next((item.replica for item in asked if item.replica is not None), None),
            next((item.controller for item in asked if item.controller is not None), None),
            next((item.name_server for item in asked if item.name_server is not None), None),
            next((item.error for item in asked if item.error), ""),
            next((item.refuses for item in asked if item.error), False),
            next((item.routes for item in asked if item.routes), {}),
        )

    @property
    def answers(self) -> bool:
        return any(item is not None for item in (self.replica, self.controller, self.name_server))

    @property
    def release(self) -> str:
        """Release of rmqha that its process runs, "" if it is not known."""
        told = (self.replica, self.controller, self.name_server)
        return next((item.release for item in told if item is not None and item.release), "")

    def state_json(self) -> dict[str, Any]:
        """The node's answers as JSON, {} if it did not answer."""
        if self.replica is not None:
            return self.replica.to_json()
        told = {} if self.name_server is None else self.name_server.to_json()
        if self.controller is None:
            return {"kind": "namesrv"} | told if self.name_server is not None else {}
        return self.controller.to_json() | ({"nameServer": told} if self.node.kind == NodeKind.NAMESRV.value else {})


@dataclass(frozen=True, slots=True)
class GroupView:
    """A group as its leading controller sees it (`reported`, None if none leads) and as clients are routed."""

    name: str
    reported: GroupState | None = None
    routes: dict[int, str] = field(default_factory=dict)
    """Broker id → address of the name servers' answer; the master is id 0."""
    rivals: tuple[str, ...] = ()
    """Addresses of brokers that register under one name and one id, by the name servers' reports."""

    @classmethod
    def of(cls, name: str, snapshot: ClusterSnapshot) -> GroupView:
        leads = any(node.leads and name in node.reported_groups for node in snapshot.nodes)
        routes = [node.routes[name] for node in snapshot.nodes if name in node.routes]
        told = snapshot.reported_group(name) if leads else None
        return cls(name, told, routes[-1] if routes else {}, tuple(snapshot.rivals(name)))

    @property
    def in_maintenance(self) -> frozenset[str]:
        """Addresses of the replicas whose absence an operator has announced (`rmqha maintenance on`)."""
        told = () if self.reported is None else self.reported.replicas
        return frozenset(item.address for item in told if item.in_maintenance)

    @property
    def drained(self) -> frozenset[str]:
        """Addresses of the replicas that an operator keeps out of the set (`rmqha drain`)."""
        told = () if self.reported is None else self.reported.replicas
        return frozenset(item.address for item in told if item.drained)


@dataclass(frozen=True, slots=True)
class ClusterView:
    """A cluster's nodes and groups at one moment, by name."""

    state: ClusterState
    nodes: dict[str, NodeView]
    groups: dict[str, GroupView]

    @classmethod
    def of(cls, state: ClusterState, snapshot: ClusterSnapshot) -> ClusterView:
        """The view of a cluster directory. `state`: its record, by which the nodes that run were asked."""
        servers: dict[str, list[NodeReport]] = {}
        for report in snapshot.nodes:
            if report.runs:
                # the controller first: of a name server that embeds one, its trouble is told
                servers.setdefault(report.name, []).insert(0, report)
        return cls(
            state,
            {name: NodeView.of(node, servers.get(name, ())) for name, node in state.nodes.items()},
            {name: GroupView.of(name, snapshot) for name in state.groups},
        )

    def replicas(self, group: str) -> list[NodeView]:
        return [view for view in self.nodes.values() if view.node.group == group]

    def is_maintained(self, node: NodeView) -> bool:
        """True if the controllers report this node as in maintenance; False if none answered, and for what is no
        broker."""
        return node.node.is_broker and node.node.address in self.groups[node.node.group].in_maintenance

    def is_drained(self, node: NodeView) -> bool:
        """True if the controllers report this node as drained: it may be stopped."""
        return node.node.is_broker and node.node.address in self.groups[node.node.group].drained


async def ask_cluster(client: Caller, state: ClusterState) -> ClusterView:
    """Ask all nodes that run, at once. Never raises for a node that does not answer."""
    survey = Survey(client, BootstrapAddresses.of_living(state), ASK_TIMEOUT_S, extent=SurveyScope.STATES)
    return ClusterView.of(state, await survey.run())


def problems(view: ClusterView) -> dict[str, str]:
    """Problems as node → sentence; those of groups under the group's name. Empty if all is healthy."""
    found: dict[str, str] = {}
    for name, node in view.nodes.items():
        if not node.alive:
            if not view.is_maintained(node) and not view.is_drained(node):  # `notes` has it
                found[name] = "does not answer" if view.state.is_remote else "not running"
        elif not node.answers:
            words = "answers, but does not tell" if node.refuses else "does not answer"
            found[name] = f"{words}: {node.error}" if node.error else f"{words} yet"
    for group in view.groups.values():
        members = {node.node.name: node for node in view.replicas(group.name) if node.alive}
        found |= {name: trouble for name, trouble in _group_problems(group, members).items() if name not in found}
        if group.rivals:
            found[group.name] = rivals_sentence(group.rivals)
    return found


def faults(view: ClusterView) -> dict[str, str]:
    """Problems as of `problems`, and faults of nodes that do their part: of their disks and logs, and sends that wait.
    They are the faults of `rmqha health`."""
    found = problems(view)
    for name, node in view.nodes.items():
        words = "" if node.replica is None else _own_faults(node.replica)
        if node.controller is not None:
            words = words or unsaved_sentence(node.controller.raft.unsaved_ms)
        if words:
            found.setdefault(name, words)
    return found


def _own_faults(state: ReplicaState) -> str:
    oldest_ms = (state.waits.oldest_age_ms if state.waits is not None else None) or 0
    unclean = "it lost power, so it leads nobody until it has followed a master to its end" if state.unclean else ""
    waits = f"a send has waited for {oldest_ms} ms" if state.leads and oldest_ms > LONG_WAIT_MS else ""
    disk = f"disk: {state.disk_problem}" if state.disk_problem else ""
    return disk or damage_sentence(state) or state.address_problem or unclean or waits


def problems_of(view: ClusterView, names: Collection[str]) -> dict[str, str]:
    """Problems of the nodes and groups in `names`. A broker whose group has no master has one, since it is not known
    then who is in the SyncStateSet; if the group is in `names` too, that is said once."""
    found = problems(view)
    for group in view.groups.values():
        if group.name not in names and (trouble := _leaderless(group, view.replicas(group.name))):
            for node in view.replicas(group.name):
                found.setdefault(node.node.name, f"group {group.name}: {trouble}; see rmqha explain {group.name}")
    return {name: trouble for name, trouble in found.items() if name in names}


def notes(view: ClusterView) -> dict[str, str]:
    """Notes worth knowing that are no problems, node → sentence."""
    found = {}
    for name, node in view.nodes.items():
        if view.is_maintained(node):
            away = "" if node.alive else ", stopped"
            found[name] = f"in maintenance{away}; end it with rmqha maintenance off {name}"
        elif view.is_drained(node) and not node.alive:
            found[name] = f"drained, stopped; take it back with rmqha drain {name} --undo"
    return found


def _is_static(replicas: Iterable[NodeView]) -> bool:
    return any(node.replica is not None and node.replica.is_static for node in replicas)


def unsaved_sentence(unsaved_ms: int) -> str:
    """A sentence on a controller whose disk finishes nothing, "" if it is well."""
    if unsaved_ms < CONTROLLER_STALL_MS:
        return ""
    return (
        f"its disk has not saved for {unsaved_ms / 1000:.1f} s what the controllers have decided: "
        "until it does this one has no vote and counts in no majority"
    )


def rivals_sentence(addresses: Collection[str]) -> str:
    """A sentence on brokers of one name and one id."""
    return (
        f"{' and '.join(addresses)} register as the same broker of it and displace each other: clients are led now to "
        "one, now to the other"
    )


def damage_sentence(state: ReplicaState) -> str:
    """A sentence on damage in a replica's log that is not repaired by itself, "" without such damage."""
    damage = state.damage or DamageState()
    if damage.refused is not None:
        return f"its log ends at {damage.refused.phy_offset}: {damage.refused.reason}"
    count = damage.lacked_count
    if not count or not damage.records:
        return state.scrub.unreadable if state.scrub is not None else ""
    first = damage.records[0]
    which = "one record of its log is" if count == 1 else f"{count} records of its log are"
    return f"{which} damaged, the one at {first.phy_offset} among them: {first.reason} ({first.lacked})"


def _leaderless(group: GroupView, replicas: Iterable[NodeView]) -> str:
    """The reason why the state of its replicas is not known, "" if the controllers tell it."""
    if _is_static(replicas) or (group.reported is not None and group.reported.master_broker_id is not None):
        return ""
    if group.reported is None:
        return "no controller leads"
    return f"has no master: {group.reported.why_no_master}" if group.reported.why_no_master else "has no master"


def _group_problems(group: GroupView, replicas: dict[str, NodeView]) -> dict[str, str]:
    if _is_static(replicas.values()):
        return _static_problems(group, replicas)
    told = group.reported
    if told is None or told.master_broker_id is None:
        return {group.name: _leaderless(group, replicas.values())}
    found = {}
    for name, node in replicas.items():
        state = node.replica
        if state is None:
            continue  # `problems` tells that it does not answer
        broker_id, role = state.broker_id, state.role
        is_master = broker_id == told.master_broker_id
        if broker_id is None:
            found[name] = state.controller_refusal or "has no id from the controller yet"
        elif role == "STARTING":
            found[name] = state.controller_refusal or "has no role from the controller yet"
        elif is_master and role != "MASTER":
            found[name] = f"elected, its role is still {role}"
        elif is_master and not state.writable:
            found[name] = f"master, not writable: {state.why_not_writable or 'no reason given'}"
        elif not is_master and role != "SLAVE":
            found[name] = f"its role is {role}, the controller's master is broker id {told.master_broker_id}"
        elif broker_id in told.drained_ids or state.async_learner:
            if state.follow_state != "following":
                found[name] = state.refusal or "does not follow the master yet"
        elif broker_id not in told.sync_state_set:
            found[name] = state.disk_problem or state.refusal or copy_sentence(state.copy) or outside_sentence(state)
        elif is_master and group.routes.get(0) != node.node.address:
            found[group.name] = f"the name server does not route to the master {name} yet"
    return found


def copy_sentence(copy: CopyState | None) -> str:
    """A sentence on the progress of a replica that copies its master's log, "" for one that does not."""
    if not copy:
        return ""
    done, wanted = copy.copied_bytes / 1e6, (copy.copied_bytes + copy.left_bytes) / 1e6
    words = f"copies the log: {done:,.0f} of {wanted:,.0f} MB, {copy.bytes_per_second / 1e6:,.1f} MB/s"
    return words if copy.eta_ms is None else f"{words}, {-(-copy.eta_ms // 1000)} s left"


def outside_sentence(state: ReplicaState) -> str:
    """A sentence on a replica that follows, has all and is no member."""
    if state.lacks_queue_ends:
        return "not in the SyncStateSet: asks its master where idle queues end (request 52032)"
    return "not in the SyncStateSet"


def _static_problems(group: GroupView, replicas: dict[str, NodeView]) -> dict[str, str]:
    """Problems of a static group: its master must be writable and routed, and every slave must follow it."""
    found = {}
    for name, node in replicas.items():
        state = node.replica
        if state is None:
            continue
        if state.leads:
            if not state.writable:
                found[name] = f"master, not writable: {state.why_not_writable or 'no reason given'}"
            elif group.routes.get(0) != node.node.address:
                found[group.name] = f"the name server does not route to the master {name} yet"
        elif state.follow_state != "following":
            found[name] = state.refusal or "does not follow its master yet"
    return found
