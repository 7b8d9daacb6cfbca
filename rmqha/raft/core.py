"""State that every part of a Raft node shares: its identity, log, role and outbox. Pure.

Follower      → PreCandidate   its random timeout passed without a leader's message
Follower      → Candidate      TimeoutNow from the leader; or it is the only voter
PreCandidate  → Candidate      a majority would vote for it
PreCandidate  → PreCandidate   no majority in time: asks again after another random time
PreCandidate  → Follower       a majority would not, or it heard of a leader or a newer term
Candidate     → Leader         a majority voted for it
Candidate     → PreCandidate   no majority in time
Candidate     → Follower       a majority refused, or it heard of a leader or a newer term
Leader        → Follower       newer term, or no majority answered for quorum_timeout_ms
Leader        → Candidate      an abandoned transfer ends its term
Leader        → Follower       its own removal from the group is committed; it campaigns no more
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, assert_never

from rmqha.model.offset import RaftIndex, Term
from rmqha.port import Prng, Tracer
from rmqha.raft.config import RaftConfig
from rmqha.raft.log import RaftLog, StoredState
from rmqha.raft.membership import Membership
from rmqha.raft.progress import Progress
from rmqha.raft.quorum import Configuration, id_of
from rmqha.raft.snapshot import SnapshotAssembly
from rmqha.wire.raft_message import ZERO_TERM, AnyMessage, Entry, EntryKind, HardState, Snapshot


class RaftRole(IntEnum):
    """Role of a node: those of Raft, and that of a candidate for a pre-vote (dissertation §9.6)."""

    FOLLOWER = 0
    PRE_CANDIDATE = 1
    CANDIDATE = 2
    LEADER = 3


@dataclass(slots=True)
class Follower:
    """Role of a node that follows, or waits for, a leader. `leader_id` is "" while unknown. No campaign begins before
    `election_deadline_ms` (None: never, the node is no voter)."""

    election_deadline_ms: int | None
    leader_id: str = ""
    assembly: SnapshotAssembly | None = None


@dataclass(slots=True)
class PreCandidate:
    """Role of a node that asks whether a campaign could win (pre-vote). `votes` by identity."""

    election_deadline_ms: int
    votes: dict[str, bool]


@dataclass(slots=True)
class Candidate:
    """Role of a node that asks for the votes of its term. `votes` by identity."""

    election_deadline_ms: int
    votes: dict[str, bool]


@dataclass(slots=True)
class PendingRead:
    """Read that waits until a majority has answered heartbeat round `round`."""

    context: bytes
    index: RaftIndex
    round: int


@dataclass(slots=True)
class LeadershipTransfer:
    """Transfer of the leadership to voter `to`. `ordered`: TimeoutNow was sent; from then on the leader has no
    lease."""

    to: str
    deadline_ms: int
    ordered: bool = False


@dataclass(slots=True)
class Leader:
    """Role of the leader of a term. The entry `noop_index` opens the term: before it is committed, there is no lease,
    and it is not known what is committed."""

    noop_index: RaftIndex
    heartbeat_deadline_ms: int
    progress: dict[str, Progress]
    since_ms: int = 0
    """Time (ms) of its election."""
    round: int = 0
    round_open: bool = False
    """True while the heartbeats of the newest round are not handed out yet: a read that needs a round may use it."""
    rounds: deque[tuple[int, int]] = field(default_factory=deque)
    """(round, sent at) of rounds from the last one that a majority answered."""
    quorum_at_ms: int = 0
    """Time (ms) at which the newest round that a majority answered was sent; the time of election before there is
    one."""
    paused_ms: int = 0
    """Time (ms) since then for which this process did not run, and so could not read answers."""
    lease_at_ms: int | None = None
    """Time (ms) at which that round was sent; None until a majority has answered a round: an election is no lease."""
    reads: list[PendingRead] = field(default_factory=list)
    transfer: LeadershipTransfer | None = None
    awaited_index: RaftIndex | None = None
    """Last entry at the time when this node's disk was found to hang. Once a majority without this node has it durably,
    the other nodes' disks work. None while this node's disk works."""


RoleState = Follower | PreCandidate | Candidate | Leader

_ROLES: dict[type[RoleState], RaftRole] = {
    Follower: RaftRole.FOLLOWER,
    PreCandidate: RaftRole.PRE_CANDIDATE,
    Candidate: RaftRole.CANDIDATE,
    Leader: RaftRole.LEADER,
}


@dataclass(frozen=True, slots=True)
class ReadState:
    """A read named `context` may be answered once entry `index` has been applied."""

    context: bytes
    index: RaftIndex


class Core:
    """State of one Raft node; the modules of this package are functions over it."""

    def __init__(
        self,
        node_id: str,
        configuration: Configuration,
        stored: StoredState,
        config: RaftConfig,
        prng: Prng,
        tracer: Tracer,
        now_ms: int,
    ) -> None:
        self.node_id = node_id
        self.membership = Membership(configuration, stored)
        self.config = config
        self.prng = prng
        self.tracer = tracer
        self.log = RaftLog(stored)
        self.hard_state = HardState(stored.term, stored.voted_for)
        self.hard_state_changed = False
        self.outbox: list[AnyMessage] = []
        self.read_states: list[ReadState] = []
        self.non_members: set[tuple[str, str]] = set()
        """(sender, receiver) of dropped messages that were traced: each pair is traced once."""
        # a restarted node may have granted a lease that it no longer remembers; one without a term has not
        fresh = stored.term == ZERO_TERM
        self.promised_until_ms = now_ms if fresh else now_ms + config.election_timeout_ms
        self.role: RoleState = Follower(self.election_deadline(now_ms))

    @property
    def term(self) -> Term:
        return self.hard_state.term

    @property
    def configuration(self) -> Configuration:
        return self.membership.current

    @property
    def is_voter(self) -> bool:
        return self.configuration.is_voter(self.node_id)

    @property
    def may_campaign(self) -> bool:
        """True for a voter, and for a node whose removal is in its log but perhaps not committed. The others may need
        its longer log: because of it, this node cannot vote for them (dissertation §4.2.2)."""
        leaving = self.membership.index > self.log.commit_index and self.membership.previous.is_voter(self.node_id)
        return self.is_voter or leaving

    @property
    def is_sole_voter(self) -> bool:
        return self.configuration.is_sole_voter(self.node_id)

    @property
    def peers(self) -> tuple[str, ...]:
        return self._others(self.configuration.members)

    @property
    def other_voters(self) -> tuple[str, ...]:
        return self._others(self.configuration.voters)

    def _others(self, members: tuple[str, ...]) -> tuple[str, ...]:
        own_name = self.configuration.name_of(self.node_id)
        return tuple(member for member in members if member != own_name)

    @property
    def raft_role(self) -> RaftRole:
        return _ROLES[type(self.role)]

    @property
    def leader_id(self) -> str:
        """Identity of the leader of this term as far as this node knows; "" if unknown."""
        if isinstance(self.role, Leader):
            return self.node_id
        return self.role.leader_id if isinstance(self.role, Follower) else ""

    def send(self, message: AnyMessage) -> None:
        self.outbox.append(message)

    # --- the log and the configurations in it ----------------------------------------------------------

    def append(self, entry: Entry) -> None:
        self.log.append(entry)
        if self.membership.append(entry):
            self.trace_configuration()

    def replace_from(self, now_ms: int, entries: tuple[Entry, ...]) -> None:
        """Cut the log before entries[0] and append them. Raises RemoteProtocolError, and changes nothing, if one of
        them is a configuration that cannot be read."""
        for entry in entries:
            if entry.kind is EntryKind.CONFIGURATION:
                Configuration.decode(entry.data)
        self.log.replace_from(entries)
        changes = [self.membership.truncate(entries[0].index), *map(self.membership.append, entries)]
        if any(changes):
            self._configuration_changed(now_ms)

    def install(self, now_ms: int, snapshot: Snapshot) -> None:
        """Replace everything by a leader's snapshot. Raises RemoteProtocolError, and changes nothing, if its
        configuration cannot be read."""
        before = self.configuration
        self.membership.install(snapshot)
        self.log.install(snapshot)
        if self.configuration != before:
            self._configuration_changed(now_ms)

    def compact(self, index: RaftIndex, data: bytes | bytearray) -> None:
        """Replace the entries up to `index` by a snapshot; `data` is the application's state after them."""
        self.log.compact(index, data, self.membership.compact(index).encode())

    def _configuration_changed(self, now_ms: int) -> None:
        self.trace_configuration()
        if isinstance(self.role, Follower):
            # a node that became a voter may campaign from now on, one that was removed may not
            self.role.election_deadline_ms = self.election_deadline(now_ms)

    # --- terms and roles ----------------------------------------------------------

    def set_hard_state(self, term: Term, voted_for: str) -> None:
        assert term >= self.term, f"term {term} after {self.term}"
        new = replace(self.hard_state, term=term, voted_for=voted_for)
        if new != self.hard_state:
            self.hard_state = new
            self.hard_state_changed = True

    def election_deadline(self, now_ms: int) -> int | None:
        """A random moment between once and twice the election timeout from now; None if it may not campaign."""
        if not self.may_campaign:
            return None
        timeout_ms = self.config.election_timeout_ms
        return now_ms + timeout_ms + self.prng.below(timeout_ms)

    def retry_deadline(self, now_ms: int) -> int:
        """Time at which to try again after a campaign that got no majority: sooner, since no leader was there to wait
        for."""
        timeout_ms = self.config.election_timeout_ms
        return now_ms + timeout_ms // 2 + self.prng.below(timeout_ms)

    def step_down(self, now_ms: int, term: Term) -> None:
        """Become a follower without a leader in `term`. A newer term clears the vote; the same term keeps it."""
        if term > self.term:
            self.set_hard_state(term, "")
        match self.role:
            case Follower(election_deadline_ms=running):
                deadline_ms = running
            case PreCandidate() | Candidate():
                deadline_ms = self.retry_deadline(now_ms)
            case Leader():
                deadline_ms = self.election_deadline(now_ms)
            case _:
                assert_never(self.role)
        self.role = Follower(deadline_ms)
        self.trace_role()

    def heard_from(self, now_ms: int, leader_id: str) -> Follower:
        """Follow the leader of the current term, which has sent a message, and grant it a lease."""
        role = self.role
        if not isinstance(role, Follower) or role.leader_id != leader_id:
            role = self.role = Follower(None, leader_id)
            self.trace_role()
        role.election_deadline_ms = self.election_deadline(now_ms)
        self.promised_until_ms = now_ms + self.config.election_timeout_ms
        return role

    def trace(self, name: str, **fields: Any) -> None:
        self.tracer.event(name, node=id_of(self.node_id), **fields)

    def trace_role(self) -> None:
        self.trace("raft_role_changed", role=self.raft_role.name, term=self.term, leader=id_of(self.leader_id))

    def trace_configuration(self) -> None:
        configuration = self.configuration
        self.trace(
            "raft_configuration_changed",
            index=self.membership.index,
            voters=list(configuration.voters),
            learners=list(configuration.learners),
        )
