"""RaftNode: one node of the controllers' Raft group as a machine. Control plane, pure.

    now_ms, message → step        bytes durable → advance
    now_ms          → timeout     now_ms → ready → the work for the shell, in order
The roles and their transitions are listed in core.py. Source: Ongaro's dissertation (2014); the shape of Ready and of
the golden scripts after etcd-io/raft, a type per role after Kafka's QuorumState.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from rmqha.model.offset import RaftIndex, Term
from rmqha.port import Prng, Tracer
from rmqha.raft import election, follower, leader, reconfiguration
from rmqha.raft.config import RaftConfig
from rmqha.raft.core import Core, Leader, RaftRole, ReadState
from rmqha.raft.log import StoredState
from rmqha.raft.quorum import SEPARATOR, Configuration, id_of, incarnation_of
from rmqha.raft.reconfiguration import MembershipChange, Refused
from rmqha.wire.raft_codec import MAX_ENTRY_BYTES
from rmqha.wire.raft_message import (
    AnyMessage,
    AppendReject,
    AppendReply,
    AppendRequest,
    Entry,
    HardState,
    Heartbeat,
    HeartbeatReply,
    PreVoteReply,
    PreVoteRequest,
    Snapshot,
    SnapshotChunk,
    SnapshotReply,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from rmqha.wire.state.controller_state import FollowerProgress, QuorumMember, RaftState

MAX_TRACED_NON_MEMBERS = 64

_ANSWERS = (PreVoteReply, VoteReply, AppendReply, AppendReject, HeartbeatReply, SnapshotReply)
_EARLY = (
    AppendRequest,
    Heartbeat,
    SnapshotChunk,
    HeartbeatReply,
    SnapshotReply,
    PreVoteRequest,
    PreVoteReply,
    TimeoutNow,
)
"""Messages that depend on nothing on this node's disk but its term."""


@dataclass(frozen=True, slots=True)
class Ready:
    """Work for the shell, in this order; None and () mean nothing to do.

    1. send `early` (messages that need not wait for the disk; sending them together with `messages` is right too);
    2. make durable: `hard_state`, then cut the log from `truncate_from` on, then replace the whole log by `snapshot`
       (a leader's), then append `entries`, then drop the entries up to `compaction.index` after storing it;
    3. only when all of that is on stable storage: call advance(ready), send `messages`;
    4. restore the application from `snapshot`, then apply `committed` in order (skip what is not EntryKind.DATA);
    5. answer `reads` whose index has been applied, and the clients whose entries were applied.
    A crash after any part of 2 is safe as long as the order held. A majority holds what is committed, so 4 and 5 may
    come before 2.

    Between ready() and advance() the node accepts step, timeout and propose. While the disk works for a Ready, ready()
    returns others that need no disk (`must_persist` is False): heartbeats, their answers and a leader's appends
    continue, and entries that a majority of the others holds durably are committed. A shell that uses these does 4 and
    5 in the order of ready(), and advances them at once.
    """

    early: tuple[AnyMessage, ...]
    hard_state: HardState | None
    truncate_from: RaftIndex | None
    snapshot: Snapshot | None
    entries: tuple[Entry, ...]
    compaction: Snapshot | None
    messages: tuple[AnyMessage, ...]
    committed: tuple[Entry, ...]
    reads: tuple[ReadState, ...]

    @property
    def must_persist(self) -> bool:
        return bool(
            self.hard_state or self.truncate_from is not None or self.snapshot or self.entries or self.compaction
        )


class RaftNode:
    """One node of a Raft group. `node_id` is its identity in messages (see quorum.py). `initial` is the configuration
    that it was started with; a later one in the log or the snapshot wins.

    `stored` is the content of the durable log. The application must have been restored from `stored.snapshot` already;
    entries after it come again in `Ready.committed`. A node that is the only voter elects itself at once. A node that
    is no member (not added yet, or removed) waits for a leader's message.
    """

    def __init__(
        self,
        node_id: str,
        initial: Configuration,
        stored: StoredState,
        config: RaftConfig,
        prng: Prng,
        tracer: Tracer,
        now_ms: int,
    ) -> None:
        self._core = Core(node_id, initial, stored, config, prng, tracer, now_ms)
        self._applied_index = self._core.log.snapshot_index
        self._taken_index = self._applied_index
        """Committed entries up to here have been handed out for applying."""
        self._persisting: Ready | None = None
        """Ready that was handed out, must be made durable, and is not advanced yet."""
        self._persisting_since_ms = now_ms
        """Time (ms) at which it was handed out, plus the time for which this process, as leader, did not run since."""
        self._diskless: Ready | None = None
        """Ready that was handed out, needs no disk, and is not advanced yet."""
        if self._core.is_sole_voter:
            election.campaign(self._core, now_ms)

    # --- inputs -----------------------------------------------------------------------------------------------------

    def step(self, now_ms: int, message: AnyMessage) -> None:
        """Handle a message. Messages of non-members are dropped. Raises RemoteProtocolError, and changes nothing, for a
        leader whose log contradicts what is committed here."""
        core = self._core
        if not self._accepts(message):
            self._trace_non_member(message)
            return
        if message.term > core.term and not self._adopt_term(now_ms, message):
            return
        if message.term < core.term:
            self._answer_stale(message)
            return
        self._dispatch(now_ms, message)

    def _accepts(self, message: AnyMessage) -> bool:
        """True if a message is handled: one from a member to this node, or a request from anybody who knows this disk's
        incarnation, since a leader or candidate may have been added after this node's last entry (dissertation §4.2.2).
        A node with a wiped disk is not counted: no configuration has its identity, and it knows no incarnation."""
        core, to = self._core, message.to
        if message.sender == core.node_id or to not in (core.node_id, id_of(core.node_id)):
            return False
        if core.configuration.knows(message.sender):
            return True
        departing = isinstance(core.role, Leader) and message.sender in core.role.progress
        return departing or (SEPARATOR in to and not isinstance(message, _ANSWERS))

    def _trace_non_member(self, message: AnyMessage) -> None:
        core, link = self._core, (message.sender, message.to)
        if link in core.non_members or len(core.non_members) >= MAX_TRACED_NON_MEMBERS:
            return
        core.non_members.add(link)
        wiped = core.configuration.formed and core.configuration.find(id_of(message.sender)) is not None
        misled = SEPARATOR in message.to and message.to != core.node_id
        why = "no member of the group sends it"
        if wiped:
            why = "the group knows this node with another disk: remove it and add it again"
        elif misled:
            why = "the sender knows this node with another disk: remove this node and add it again"
        core.trace("raft_stranger", sender=message.sender, to=message.to, why=why)

    def _adopt_term(self, now_ms: int, message: AnyMessage) -> bool:
        """Step down for the newer term of a message. False if the message needs no more handling: a pre-vote changes no
        term, and a vote request is ignored while this node is sticky."""
        core = self._core
        if isinstance(message, PreVoteRequest):
            election.on_pre_vote_request(core, now_ms, message)
            return False
        if isinstance(message, PreVoteReply) and message.granted:
            election.on_pre_vote_reply(core, now_ms, message)
            return False
        if isinstance(message, VoteRequest) and not message.forced and election.is_sticky(core, now_ms):
            core.trace("raft_vote_ignored", candidate=id_of(message.sender), term=message.term)
            return False
        core.step_down(now_ms, message.term)
        return True

    def _answer_stale(self, message: AnyMessage) -> None:
        """Tell a sender of an older term about the newer one, so that it does not stay behind."""
        core = self._core
        if isinstance(message, PreVoteRequest):
            core.send(PreVoteReply(core.node_id, message.sender, core.term, False))
        elif isinstance(message, VoteRequest):
            core.send(VoteReply(core.node_id, message.sender, core.term, False))
        elif isinstance(message, AppendRequest | Heartbeat | SnapshotChunk):
            core.send(HeartbeatReply(core.node_id, message.sender, core.term, 0))

    def _dispatch(self, now_ms: int, message: AnyMessage) -> None:
        """Handle a message of the current term."""
        core, role = self._core, self._core.role
        match message:
            case PreVoteRequest():
                election.on_pre_vote_request(core, now_ms, message)
            case PreVoteReply():
                election.on_pre_vote_reply(core, now_ms, message)
            case VoteRequest():
                election.on_vote_request(core, now_ms, message)
            case VoteReply():
                election.on_vote_reply(core, now_ms, message)
            case TimeoutNow():
                election.on_timeout_now(core, now_ms, message)
            case AppendRequest() | Heartbeat() | SnapshotChunk() if isinstance(role, Leader):
                core.trace("raft_second_leader", sender=id_of(message.sender), term=core.term)
            case AppendRequest():
                follower.on_append(core, now_ms, message)
            case Heartbeat():
                follower.on_heartbeat(core, now_ms, message)
            case SnapshotChunk():
                follower.on_snapshot_chunk(core, now_ms, message)
            case AppendReply() | AppendReject() | HeartbeatReply() | SnapshotReply():
                if isinstance(role, Leader):
                    self._lead(role, now_ms, message)
            case _:
                assert_never(message)

    def _lead(
        self, role: Leader, now_ms: int, message: AppendReply | AppendReject | HeartbeatReply | SnapshotReply
    ) -> None:
        progress = role.progress.get(message.sender)
        if progress is None:
            return
        progress.heard_at_ms = now_ms
        match message:
            case AppendReply():
                leader.on_append_reply(self._core, role, now_ms, message)
                self._transfer_if_stalled(role, now_ms)
            case AppendReject():
                leader.on_append_reject(self._core, role, message)
            case HeartbeatReply():
                leader.on_heartbeat_reply(self._core, role, message)
            case SnapshotReply():
                leader.on_snapshot_reply(role, message)
            case _:
                assert_never(message)

    def _transfer_if_stalled(self, role: Leader, now_ms: int) -> None:
        """Transfer the leadership if the disk has hung for quorum_timeout_ms. After a pause of this process nothing is
        decided before `timeout` has measured the pause."""
        core = self._core
        if core.role is not role or leader.pause_ms(core, role, now_ms):
            return
        if min(self.unsaved_ms(now_ms), now_ms - role.since_ms) < core.config.quorum_timeout_ms:
            role.awaited_index = None
        else:
            leader.transfer_from_stalled_disk(core, role, now_ms)

    def timeout(self, now_ms: int) -> None:
        """Advance the timers; called at or after `deadline_ms`. Earlier calls change nothing."""
        core, role = self._core, self._core.role
        if isinstance(role, Leader):
            # the disk may have done its work meanwhile
            since_ms = self._persisting_since_ms + leader.pause_ms(core, role, now_ms)
            self._persisting_since_ms = min(now_ms, since_ms)
            self._transfer_if_stalled(role, now_ms)
            if leader.timed_out(core, role, now_ms):
                election.campaign(core, now_ms, forced=True)
        elif role.election_deadline_ms is not None and now_ms >= role.election_deadline_ms:
            election.timed_out(core, now_ms)

    def deadline_ms(self) -> int | None:
        """Time (ms) at which to call timeout next; None for a learner."""
        role = self._core.role
        return leader.deadline_ms(self._core, role) if isinstance(role, Leader) else role.election_deadline_ms

    def propose(self, now_ms: int, data: bytes) -> tuple[Term, RaftIndex] | None:
        """Append an entry to the group's log; returns its term and index, None if this node does not lead or transfers
        the leadership. The entry is committed when (term, index) is in Ready.committed, and lost if that index comes
        with another term. Raises ValueError if `data` is longer than an entry may be."""
        if len(data) > MAX_ENTRY_BYTES:
            raise ValueError(f"a Raft entry of {len(data)} bytes exceeds {MAX_ENTRY_BYTES}")
        role = self._core.role
        return leader.propose(self._core, role, data) if isinstance(role, Leader) else None

    def read_index(self, now_ms: int, context: bytes) -> bool:
        """Begin a linearizable read; its ReadState comes in Ready.reads, or never if the leadership is lost. False if
        this node does not lead or has not committed an entry of its term yet."""
        role = self._core.role
        return isinstance(role, Leader) and leader.read_index(self._core, role, now_ms, context)

    def change_membership(self, now_ms: int, wanted: MembershipChange) -> tuple[Term, RaftIndex] | Refused | None:
        """Add or remove a node; committed like a proposal. None if this node does not lead."""
        core, role = self._core, self._core.role
        return reconfiguration.change(core, role, now_ms, wanted) if isinstance(role, Leader) else None

    def transfer_leadership(self, now_ms: int, to: str) -> bool:
        """Transfer the leadership to voter `to` (an identity). Proposals are refused until it leads or
        election_timeout_ms has passed. False if the transfer does not begin."""
        role = self._core.role
        return isinstance(role, Leader) and leader.begin_transfer(self._core, role, now_ms, to)

    def snapshot_of(self, index: RaftIndex, data: bytes | bytearray) -> Snapshot:
        """Snapshot that `compact` with the same arguments will store; it may be written before, beside the log."""
        assert index <= self.compactable_index, f"entry {index} is not applied and durable"
        term = self._core.log.term_at(index)
        assert term is not None, f"entry {index} is compacted away"
        return Snapshot(index, term, data, self._core.membership.at(index).encode())

    def compact(self, index: RaftIndex, snapshot_data: bytes | bytearray) -> None:
        """Replace the log up to `index` by a snapshot. `index`: above the last snapshot, `compactable_index` at most;
        `snapshot_data`: the application's state after it."""
        assert index <= self.compactable_index, f"entry {index} is not applied and durable"
        self._core.compact(index, snapshot_data)

    # --- outputs ----------------------------------------------------------------------------------------------------

    def ready(self, now_ms: int) -> Ready | None:
        """Take the accumulated work; None if there is none, or if another Ready must be advanced first."""
        core, log = self._core, self._core.log
        if self._diskless is not None:
            return None
        if isinstance(core.role, Leader):
            leader.replicate(core, core.role)
            core.role.round_open = False
        if self._persisting is not None:
            return self._ready_without_disk(self._persisting)
        has_committed = self._taken_index < log.commit_index
        if not (core.hard_state_changed or log.has_changes() or core.outbox or has_committed or core.read_states):
            return None
        hard_state = core.hard_state if core.hard_state_changed else None
        change = log.take_changes()
        if change.installed is not None:
            self._taken_index = max(self._taken_index, change.installed.index)
        early = () if hard_state is not None else self._take_early()
        messages, core.outbox = tuple(core.outbox), []
        ready = Ready(
            early=early,
            hard_state=hard_state,
            truncate_from=change.truncate_from,
            snapshot=change.installed,
            entries=change.entries,
            compaction=change.compaction,
            messages=messages,
            committed=self._take_committed(),
            reads=self._take_reads(),
        )
        core.hard_state_changed = False
        if ready.must_persist:
            self._persisting, self._persisting_since_ms = ready, now_ms
        else:
            self._diskless = ready
        return ready

    def _ready_without_disk(self, persisting: Ready) -> Ready | None:
        """Work that need not wait for the disk. A term that is not durable yet delays every message."""
        core = self._core
        knows_term = persisting.hard_state is None and not core.hard_state_changed
        early = self._take_early() if knows_term else ()
        # a leader's snapshot comes before what is committed after it
        committed = () if core.log.installs else self._take_committed()
        reads = self._take_reads()
        if not (early or committed or reads):
            return None
        self._diskless = Ready(early, None, None, None, (), None, (), committed, reads)
        return self._diskless

    def _take_early(self) -> tuple[AnyMessage, ...]:
        """Take the messages that need not wait for this node's disk (dissertation §10.2.1)."""
        outbox = self._core.outbox
        if not outbox:
            return ()
        self._core.outbox = [message for message in outbox if not isinstance(message, _EARLY)]
        return tuple(message for message in outbox if isinstance(message, _EARLY))

    def _take_reads(self) -> tuple[ReadState, ...]:
        reads, self._core.read_states = tuple(self._core.read_states), []
        return reads

    def _take_committed(self) -> tuple[Entry, ...]:
        log = self._core.log
        start = RaftIndex(self._taken_index + 1)
        end = RaftIndex(min(log.commit_index, start + self._core.config.max_committed_entries - 1) + 1)
        if end <= start:
            return ()
        self._taken_index = RaftIndex(end - 1)
        return log.slice(start, end)

    def advance(self, ready: Ready) -> None:
        """Note that everything that `ready` asked to persist is on stable storage."""
        core = self._core
        if ready is self._diskless:
            self._diskless = None
        else:
            assert ready is self._persisting, "advance must follow its own ready"
            self._persisting = None
        if ready.snapshot is not None:
            self._applied_index = max(self._applied_index, ready.snapshot.index)
        if ready.committed:
            self._applied_index = max(self._applied_index, ready.committed[-1].index)
        if ready.entries:
            core.log.persisted(ready.entries[-1])
        if isinstance(core.role, Leader):
            leader.count_commits(core, core.role)

    # --- state ------------------------------------------------------------------------------------------------------

    @property
    def node_id(self) -> str:
        """Identity of this node."""
        return self._core.node_id

    @property
    def configuration(self) -> Configuration:
        """Configuration in force: the last one in the log, committed or not."""
        return self._core.configuration

    @property
    def role(self) -> RaftRole:
        return self._core.raft_role

    @property
    def is_leader(self) -> bool:
        return isinstance(self._core.role, Leader)

    @property
    def leader_id(self) -> str:
        """The identity of the leader of the current term, "" if unknown."""
        return self._core.leader_id

    @property
    def term(self) -> Term:
        return self._core.term

    @property
    def commit_index(self) -> RaftIndex:
        return self._core.log.commit_index

    @property
    def applied_index(self) -> RaftIndex:
        """Last entry of an advanced Ready.committed, or the end of a snapshot."""
        return self._applied_index

    @property
    def compactable_index(self) -> RaftIndex:
        """Last entry that is applied and durable on this node: the log may be compacted up to it."""
        return min(self._applied_index, self._core.log.durable_index)

    @property
    def last_index(self) -> RaftIndex:
        return self._core.log.last_index

    @property
    def snapshot_index(self) -> RaftIndex:
        return self._core.log.snapshot_index

    @property
    def has_caught_up(self) -> bool:
        """True for a leader whose application has applied all entries of earlier terms: it may decide now."""
        role = self._core.role
        return isinstance(role, Leader) and role.noop_index <= self._applied_index

    def best_successor(self, now_ms: int) -> str | None:
        """Identity of the other voter with the longest log: among those that have answered within quorum_timeout_ms if
        there are any; among equal ones the one that answered last. None if this node does not lead or is alone."""
        role = self._core.role
        return leader.best_successor(self._core, role, now_ms) if isinstance(role, Leader) else None

    def unsaved_ms(self, now_ms: int) -> int:
        """Time (ms) for which the disk has worked for the Ready that waits for it; 0 if none waits."""
        return 0 if self._persisting is None else now_ms - self._persisting_since_ms

    def lease_valid(self, now_ms: int) -> bool:
        """True if a read of the applied state, taken now, is linearizable. It may become false at any later moment."""
        role = self._core.role
        return self.has_caught_up and isinstance(role, Leader) and leader.lease_valid(self._core, role, now_ms)

    def state(self, now_ms: int) -> RaftState:
        core, log, role = self._core, self._core.log, self._core.role
        configuration = core.configuration
        state = RaftState(
            node=id_of(core.node_id),
            incarnation=incarnation_of(core.node_id),
            role=self.role.name,
            term=core.term,
            leader=id_of(core.leader_id),
            formed=configuration.formed,
            configuration_index=core.membership.index,
            voters=[id_of(member) for member in configuration.voters],
            learners=[id_of(member) for member in configuration.learners],
            members=[self._member(member) for member in configuration.members],
            last_index=log.last_index,
            durable_index=log.durable_index,
            commit_index=log.commit_index,
            applied_index=self._applied_index,
            snapshot_index=log.snapshot_index,
            unsaved_ms=self.unsaved_ms(now_ms),
        )
        if isinstance(role, Leader):
            state.followers = {
                id_of(peer): FollowerProgress(
                    match_index=progress.match_index,
                    state=progress.state.name,
                    silent_ms=None if progress.heard_at_ms is None else now_ms - progress.heard_at_ms,
                )
                for peer, progress in role.progress.items()
            }
        return state

    def _member(self, member: str) -> QuorumMember:
        configuration = self._core.configuration
        kind = "VOTER" if configuration.is_voter(member) else "LEARNER"
        return QuorumMember(
            node=id_of(member),
            incarnation=incarnation_of(member),
            address=configuration.address_of(member),
            kind="JOINING" if member in configuration.joining else kind,
        )
