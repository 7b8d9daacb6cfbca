"""A controller's state, and that of its groups: the body of an answer to request 52003.

Every controller has the durable values; only the leader has liveness, offsets and reasons. Times in ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rmqha.model.identity import node_label
from rmqha.wire.state.json_record import JsonRecord, part

VERSION = 1


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class QuorumMember(JsonRecord):
    """A controller as a member of the Raft group. `kind`: VOTER, LEARNER, or JOINING until it has caught up."""

    node: str
    incarnation: str = ""
    address: str = ""
    kind: str


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class FollowerProgress(JsonRecord):
    """Progress of another controller as the leader sees it. `match_index`: end of the log that both have."""

    match_index: int = 0
    state: str = ""
    silent_ms: int | None = None


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class RaftState(JsonRecord):
    """State of a controller in the Raft group. Ids are bare; `members` has the incarnations."""

    node: str = ""
    incarnation: str = ""
    role: str = ""
    term: int
    leader: str = ""
    formed: bool = True
    configuration_index: int = 0
    voters: Sequence[str] = ()
    learners: Sequence[str] = ()
    members: Sequence[QuorumMember] = ()
    last_index: int = 0
    durable_index: int = 0
    commit_index: int = 0
    applied_index: int = 0
    snapshot_index: int = 0
    unsaved_ms: int = 0
    """Time (ms) for which its disk has worked for entries that wait to be durable; 0 if none wait."""
    followers: dict[str, FollowerProgress] | None = part()


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class QuorumState(RaftState):
    """A controller's state in the Raft group with all addresses: the body of an answer to request 52020."""

    node: str
    formed: bool
    members: Sequence[QuorumMember]
    version: int = VERSION
    group: str = ""
    address: str = ""
    leader_address: str
    addresses: dict[str, str]
    """Address of each controller by id, its own too."""


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ElectionState(JsonRecord):
    """One election of a group, of those that the controllers keep."""

    master_epoch: int
    broker_id: int | None = None
    cause: str = ""
    at_ms: int | None = None
    reason: str = ""


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ReportedSlave(JsonRecord):
    """A slave in its master's heartbeats."""

    broker_id: int
    lag_bytes: int
    lag_ms: int
    bytes_per_second: int


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class RegisteredReplica(JsonRecord):
    """A registered replica. Only the leader's answer has `alive` and the fields behind it, if it has had a
    heartbeat."""

    broker_id: int
    address: str
    node_name: str | None = part()
    """Name of the node; None for an Apache broker, and in the answer of an earlier release."""
    ha_address: str = ""
    total_replicas: int = 0
    ha_mode: str = ""
    is_master: bool = False
    in_sync_state_set: bool | None = None
    async_learner: bool = False
    drained: bool = False
    in_maintenance: bool = False
    alive: bool | None = None
    epoch: int | None = part()
    max_offset: int | None = part()
    confirm_offset: int | None = part()
    lag_bytes: int | None = part("epoch")
    silent_ms: int | None = part()
    timeout_ms: int | None = part()
    priority: int | None = part()
    zone: str | None = part()
    disk_problem: str | None = part("epoch")
    slaves: Sequence[ReportedSlave] | None = part()
    suspect: bool | None = part()
    stopping: bool | None = part()
    unclean: bool | None = part()

    @property
    def label(self) -> str:
        """Label of the replica in sentences."""
        return node_label(self.node_name or "", self.broker_id, self.address)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class GroupState(JsonRecord):
    """State of a broker group in the controllers."""

    cluster_name: str = ""
    master_broker_id: int | None
    master_address: str | None = ""
    master_epoch: int
    sync_state_set: Sequence[int]
    sync_state_set_epoch: int
    eligible: Sequence[int] = ()
    unclean_ids: Sequence[int] = ()
    drained_ids: Sequence[int] = ()
    maintenance_ids: Sequence[int] = ()
    preferred_broker_id: int | None = None
    set_known: bool = True
    total_replicas: int
    next_total_replicas: int | None = None
    ha_mode: str = ""
    why_no_master: str | None = None
    elections: Sequence[ElectionState] = ()
    replicas: Sequence[RegisteredReplica]

    def label(self, broker_id: int) -> str:
        """Label of a replica in sentences."""
        return next((item.label for item in self.replicas if item.broker_id == broker_id), f"replica {broker_id}")


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ControllerState(JsonRecord):
    """State of a controller and of the groups."""

    version: int = VERSION
    leading: bool
    raft: RaftState
    release: str | None = part()
    groups: dict[str, GroupState] = field(default_factory=dict)
