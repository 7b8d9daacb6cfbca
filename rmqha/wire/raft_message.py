"""Values of the controllers' Raft: entries, snapshots, and the messages between nodes. Pure; encoded by raft_codec.py.

Names follow the Raft dissertation (Ongaro 2014). No message carries a clock reading: the leader numbers its heartbeat
rounds and remembers by itself when it sent them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from rmqha.model.offset import RaftIndex, Term

ZERO_INDEX = RaftIndex(0)
ZERO_TERM = Term(0)


class EntryKind(IntEnum):
    """Kind of an entry. NOOP opens a term (dissertation §6.4) and has no data; DATA is the application's; CONFIGURATION
    is an encoded `rmqha.raft.quorum.Configuration`, in force as soon as it is in a log."""

    DATA = 0
    NOOP = 1
    CONFIGURATION = 2


@dataclass(frozen=True, slots=True)
class Entry:
    """Entry of the Raft log."""

    index: RaftIndex
    term: Term
    data: bytes = b""
    kind: EntryKind = EntryKind.DATA


@dataclass(frozen=True, slots=True)
class Snapshot:
    """State of the application after entry `index`, which is of `term`. `configuration`: the encoded one in force
    there, b"" for the initial one. If `data` is a bytearray it must not change any more: a copy would stop a node with
    a million replicas for 80 ms."""

    index: RaftIndex
    term: Term
    data: bytes | bytearray
    configuration: bytes = b""


@dataclass(frozen=True, slots=True)
class HardState:
    """State that must be durable before any message that depends on it leaves. `voted_for` is "" before a vote."""

    term: Term = ZERO_TERM
    voted_for: str = ""


@dataclass(frozen=True, slots=True)
class RaftMessage:
    """Base of all messages. `term` is the sender's; in PreVoteRequest and a granted PreVoteReply it is the term of the
    possible campaign.

    `sender` is an identity, `id#incarnation`: the node, and the disk that has its votes. `to` is an identity too, or
    the bare id as long as the sender does not know the incarnation."""

    sender: str
    to: str
    term: Term


@dataclass(frozen=True, slots=True)
class PreVoteRequest(RaftMessage):
    """Request for a pre-vote: would the receiver vote for the sender? It changes nothing there (dissertation §9.6)."""

    last_index: RaftIndex
    last_term: Term


@dataclass(frozen=True, slots=True)
class PreVoteReply(RaftMessage):
    """Answer to a request for a pre-vote."""

    granted: bool


@dataclass(frozen=True, slots=True)
class VoteRequest(RaftMessage):
    """Request for a vote. `forced`: the leader itself gave up its lease for this campaign (transfer), so stickiness
    does not apply."""

    last_index: RaftIndex
    last_term: Term
    forced: bool


@dataclass(frozen=True, slots=True)
class VoteReply(RaftMessage):
    """Answer to a request for a vote."""

    granted: bool


@dataclass(frozen=True, slots=True)
class AppendRequest(RaftMessage):
    """Entries for a follower's log. `entries` follow `prev_index` without a gap."""

    prev_index: RaftIndex
    prev_term: Term
    commit_index: RaftIndex
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class AppendReply(RaftMessage):
    """Ack of a follower: its durable log equals the leader's up to `match_index`."""

    match_index: RaftIndex


@dataclass(frozen=True, slots=True)
class AppendReject(RaftMessage):
    """Refusal of a follower: it has no entry (rejected_index, prev_term). The hint is its last entry that may match."""

    rejected_index: RaftIndex
    hint_index: RaftIndex
    hint_term: Term


@dataclass(frozen=True, slots=True)
class Heartbeat(RaftMessage):
    """Heartbeat, which renews the leader's lease. `commit_index` never exceeds the entries that the receiver is known
    to hold."""

    commit_index: RaftIndex
    round: int


@dataclass(frozen=True, slots=True)
class HeartbeatReply(RaftMessage):
    """Answer that grants the lease for the round. Round 0 only informs a stale leader of the newer term."""

    round: int


@dataclass(frozen=True, slots=True)
class SnapshotChunk(RaftMessage):
    """Part of a snapshot. `data` begins at `offset` of `total_bytes`; every part has the whole configuration."""

    index: RaftIndex
    snapshot_term: Term
    total_bytes: int
    offset: int
    data: bytes
    configuration: bytes


@dataclass(frozen=True, slots=True)
class SnapshotReply(RaftMessage):
    """Ack of a part: send from `next_offset` on. A node that has installed the snapshot answers with AppendReply."""

    index: RaftIndex
    next_offset: int


@dataclass(frozen=True, slots=True)
class TimeoutNow(RaftMessage):
    """Request of a leader that transfers its leadership: campaign at once (dissertation §3.10)."""


AnyMessage = (
    PreVoteRequest
    | PreVoteReply
    | VoteRequest
    | VoteReply
    | AppendRequest
    | AppendReply
    | AppendReject
    | Heartbeat
    | HeartbeatReply
    | SnapshotChunk
    | SnapshotReply
    | TimeoutNow
)
