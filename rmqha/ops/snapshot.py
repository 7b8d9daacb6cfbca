"""Snapshot of a cluster: the reports of its nodes in one round of questions, which all observers share. Pure.

Health, `rmqha status`, `top`, `describe`, `explain-wait`, the name server's page and the drills are made from it.
`rmqha.ops.survey` takes it. It has a version, and JSON both ways.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Self

from rmqha.model.identity import node_name
from rmqha.wire.state.controller_state import ControllerState, GroupState
from rmqha.wire.state.json_record import JsonRecord
from rmqha.wire.state.name_server_state import NameServerState
from rmqha.wire.state.replica_state import ReplicaState

VERSION = 1


class ServerKind(Enum):
    """Kinds of servers, in the order of a snapshot."""

    NAME_SERVER = "name server"
    CONTROLLER = "controller"
    BROKER = "broker"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class SecurityFile(JsonRecord):
    """A file of certificates, accounts or credentials that a process reads. `problem`: why it is not in force, "" if it
    is; `expires_in_ms`: None if nothing in it expires."""

    key: str
    file: str
    problem: str
    expires_in_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class SyncedReplica(JsonRecord):
    """A member of the SyncStateSet, by Apache's controller."""

    broker_id: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ApacheGroup(JsonRecord):
    """A group, by Apache's leading controller (request 1006)."""

    master_broker_id: int | None = None
    master_epoch: int | None = None
    sync_state_set_epoch: int | None = None
    in_sync_replicas: tuple[SyncedReplica, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ApacheEpoch(JsonRecord):
    """An epoch of Apache's broker and the offset where it begins."""

    epoch: int
    start_offset: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ApacheEpochs(JsonRecord):
    """The history of one of Apache's brokers (request 1007)."""

    epoch_list: tuple[ApacheEpoch, ...] = ()
    max_offset: int


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class NodeReport(JsonRecord):
    """Report of one server: its answers. `error` is one sentence if it did not answer; all else is empty then."""

    kind: ServerKind
    address: str
    name: str = ""
    """Name of a node of the cluster directory; "" of any other."""
    groups: frozenset[str] = frozenset()
    """Groups in which some node named the broker."""
    runs: bool | None = None
    """True if its process runs; None of a server that is not in the cluster directory."""
    error: str = ""
    refuses: bool = False
    """True if it answered, and `error` is its refusal."""
    is_ours: bool = True
    keys: dict[str, str] = field(default_factory=dict)
    """Keys of a broker, by request 26."""
    replica: ReplicaState | None = None
    """State of a broker, None of Apache's."""
    before: ReplicaState | None = None
    """`replica` of the first round, if there was a second one."""
    controller: ControllerState | None = None
    """State of a controller, None of Apache's."""
    name_server: NameServerState | None = None
    """State of a name server, where it was asked for."""
    routed_id: int | None = None
    """Id under which clients are routed to a broker; the master is 0. None: the name servers do not know it."""
    routes: dict[str, dict[int, str]] = field(default_factory=dict)
    """Routes of a name server: group → broker id → address; the master is id 0."""
    security: tuple[SecurityFile, ...] = ()
    """Files of its process, by request 52017; () of a node that has no such request."""
    leads: bool = False
    """True of a controller that reports itself as leader."""
    apache_groups: dict[str, ApacheGroup] = field(default_factory=dict)
    """Groups by Apache's leading controller."""
    registered_name: str = ""
    """Name of a broker's node by the controllers."""
    is_namesake: bool = False
    """True of a broker whose name belongs to another one; it is named by its address."""

    @property
    def answers(self) -> bool:
        return not self.error

    @property
    def release(self) -> str:
        """Release of rmqha that it runs, "" if it is not known."""
        told = (self.replica, self.controller, self.name_server)
        return next((item.release for item in told if item is not None and item.release), "")

    @property
    def title(self) -> str:
        """Name of the server in texts for people."""
        return self.name or self.node_name or self.address

    @property
    def node_name(self) -> str:
        """Name of a broker's node: the one in the cluster directory, else by the number in its file, else by the
        controllers; "" if it is not known."""
        if self.is_namesake:
            return ""
        number = self.keys.get("brokerId", "")
        is_numbered = self.keys.get("enableControllerMode") == "true" and number.isdecimal() and int(number) > 0
        if self.name or not is_numbered:
            return self.name or self.registered_name
        return node_name(self.keys.get("brokerName", ""), int(number))

    def has_number_of(self, name: str) -> bool:
        """True of a broker whose id is the number in `name`."""
        return self.replica is not None and name.rpartition("-")[2] == str(self.replica.broker_id)

    @property
    def group(self) -> str:
        """Group of a broker; "" if it is not known."""
        named = (self.replica.broker_name if self.replica is not None else "") or self.keys.get("brokerName")
        return named or next(iter(sorted(self.groups)), "")

    @property
    def leads_group(self) -> bool:
        """True for a master by its own report; for one that is not ours or did not answer, by the routes of clients."""
        return self.routed_id == 0 if self.replica is None else self.replica.leads

    @property
    def reported_groups(self) -> Mapping[str, GroupState]:
        """Groups by this controller, which is ours."""
        return {} if self.controller is None else self.controller.groups

    def is_of(self, group: str) -> bool:
        """True of a broker that belongs to the group, by its own report or another's."""
        return self.kind is ServerKind.BROKER and (group in self.groups or group == self.group)

    def about(self, group: str) -> NodeReport:
        """A controller's or name server's report without other groups."""
        own = {group: self.routes[group]} if group in self.routes else {}
        if self.controller is None:
            return replace(self, routes=own)
        told = {group: self.reported_groups[group]} if group in self.reported_groups else {}
        return replace(self, routes=own, controller=replace(self.controller, groups=told))


def _told_apart(reports: Sequence[NodeReport]) -> list[NodeReport]:
    """The reports, in which each name is that of one broker: of the one in the cluster directory, else of the one with
    its number. Two files with one brokerId make two brokers of one name, of which the second got another id."""
    brokers: dict[str, list[NodeReport]] = {}
    for report in reports:
        if report.kind is ServerKind.BROKER:
            brokers.setdefault(report.title, []).append(report)
    namesakes = set[str]()
    for title, twins in brokers.items():
        owners = [twin for twin in twins if twin.name] or [twin for twin in twins if twin.has_number_of(title)]
        if len(twins) > 1:
            namesakes |= {twin.address for twin in twins if owners != [twin] and not twin.name}
    is_broker = ServerKind.BROKER
    return [
        replace(report, is_namesake=True) if report.kind is is_broker and report.address in namesakes else report
        for report in reports
    ]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ClusterSnapshot(JsonRecord):
    """The reports of all servers that were asked, by kind, name and address."""

    nodes: tuple[NodeReport, ...] = ()
    version: int = VERSION

    @classmethod
    def of(cls, reports: Sequence[NodeReport]) -> ClusterSnapshot:
        order = {kind: place for place, kind in enumerate(ServerKind)}
        return cls(tuple(sorted(_told_apart(reports), key=lambda node: (order[node.kind], node.name, node.address))))

    @classmethod
    def from_json(cls, found: object) -> Self:
        """The snapshot in a JSON document. Raises ValueError for what is no snapshot, or one of a newer release."""
        made = super(ClusterSnapshot, cls).from_json(found)
        if made.version > VERSION:
            raise ValueError(f"it is a snapshot of version {made.version}; this release reads up to {VERSION}")
        return made

    # --- who is in it -----------------------------------------------------------------------------------------------
    def of_kind(self, kind: ServerKind) -> list[NodeReport]:
        return [node for node in self.nodes if node.kind is kind]

    def brokers_of(self, group: str) -> list[NodeReport]:
        return [node for node in self.nodes if node.is_of(group)]

    def rivals(self, group: str) -> list[str]:
        """Addresses of brokers of the group that register under one id, by the name servers."""
        told = (node.name_server for node in self.nodes if node.name_server is not None)
        return sorted({address for state in told for address in (state.contested or {}).get(group, ())})

    def server(self, kind: ServerKind, address: str) -> NodeReport | None:
        return next((node for node in self.nodes if (node.kind, node.address) == (kind, address)), None)

    @property
    def answered(self) -> int:
        """Number of servers that answered."""
        return sum(node.answers for node in self.nodes)

    # --- what they say together -------------------------------------------------------------------------------------
    @property
    def groups(self) -> list[str]:
        """All groups that some server has named."""
        found = set[str]()
        for node in self.nodes:
            if node.kind is ServerKind.BROKER:
                found |= node.groups | ({node.group} if node.group else set())
            found |= set(node.routes)
        return sorted(found)

    def reported_group(self, name: str) -> GroupState | None:
        """The group by the leading controller, else by the controller that knows the highest epoch."""
        told = [(node.leads, node.reported_groups[name]) for node in self.nodes if name in node.reported_groups]
        best = max(told, key=lambda item: (item[0], item[1].master_epoch), default=None)
        return None if best is None else best[1]

    @property
    def maintained(self) -> set[str]:
        """Addresses of replicas whose absence an operator has announced (`rmqha maintenance on`)."""
        groups = [group for node in self.nodes for group in node.reported_groups.values()]
        return {item.address for group in groups for item in group.replicas if item.in_maintenance}

    @property
    def drained(self) -> set[str]:
        """Addresses of replicas that an operator keeps out of the set, so that they may be stopped (`rmqha drain`)."""
        groups = [group for node in self.nodes for group in node.reported_groups.values()]
        return {item.address for group in groups for item in group.replicas if item.drained}

    @property
    def releases(self) -> dict[str, list[str]]:
        """Names of nodes by the release that they run; under "" those that answer without telling it."""
        found: dict[str, dict[str, None]] = {}
        for node in self.nodes:
            if node.answers and (node.release or node.kind is not ServerKind.NAME_SERVER):
                found.setdefault(node.release, {})[node.title] = None
        return {release: list(titles) for release, titles in sorted(found.items())}

    # --- beside an earlier one --------------------------------------------------------------------------------------
    @property
    def replicas(self) -> dict[str, ReplicaState]:
        """States of the brokers that reported theirs, by address."""
        return {node.address: node.replica for node in self.nodes if node.replica is not None}

    def after(self, earlier: Mapping[str, ReplicaState]) -> ClusterSnapshot:
        """This snapshot with `before` from `earlier`, states by address: by it a standstill is seen."""
        return replace(self, nodes=tuple(replace(node, before=earlier.get(node.address)) for node in self.nodes))
