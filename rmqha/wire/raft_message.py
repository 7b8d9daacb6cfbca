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
    """NOOP opens a term (dissertation §6.4) and carries no data; DATA is the application's; CONFIGURATION is an encoded
    `rmqha.raft.quorum.Configuration`, in force from the moment it stands in a log."""

    DATA = 0
    NOOP = 1
    CONFIGURATION = 2


@dataclass(frozen=True, slots=True)
class Entry:
    index: RaftIndex
    term: Term
    data: bytes = b""
    kind: EntryKind = EntryKind.DATA


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The application's state after applying entry `index`, which was written in `term`. `configuration` is the encoded
    one in force there, b"" for the one that the nodes were started with. A bytearray must not change any more; to copy
    it would stop a node with a million replicas for 80 ms."""

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
    """A message of Raft. `term` is the sender's, except in PreVoteRequest and a granted PreVoteReply: the term it would
    campaign in.

    `sender` is an identity, `id#incarnation`: the node and the disk that remembers its votes. `to` is an identity too,
    or the bare id as long as the sender has not learned the incarnation."""

    sender: str
    to: str
    term: Term


@dataclass(frozen=True, slots=True)
class PreVoteRequest(RaftMessage):
    """Question if the receiver would vote for the sender. Changes nothing there (dissertation §9.6)."""

    last_index: RaftIndex
    last_term: Term


@dataclass(frozen=True, slots=True)
class PreVoteReply(RaftMessage):
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
    granted: bool


@dataclass(frozen=True, slots=True)
class AppendRequest(RaftMessage):
    """Entries for a follower's log; `entries` follow `prev_index` without a gap."""

    prev_index: RaftIndex
    prev_term: Term
    commit_index: RaftIndex
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class AppendReply(RaftMessage):
    """The sender's log equals the leader's up to `match_index`, durably."""

    match_index: RaftIndex


@dataclass(frozen=True, slots=True)
class AppendReject(RaftMessage):
    """No entry (rejected_index, prev_term) here. The hint names the last entry here that could still match."""

    rejected_index: RaftIndex
    hint_index: RaftIndex
    hint_term: Term


@dataclass(frozen=True, slots=True)
class Heartbeat(RaftMessage):
    """Renews the lease. `commit_index` never exceeds what the receiver is known to hold."""

    commit_index: RaftIndex
    round: int


@dataclass(frozen=True, slots=True)
class HeartbeatReply(RaftMessage):
    """Grants the lease for the round. Round 0 only tells a stale leader the newer term."""

    round: int


@dataclass(frozen=True, slots=True)
class SnapshotChunk(RaftMessage):
    """A part of a snapshot. `data` is the part from `offset` of `total_bytes`; every part carries the whole
    configuration."""

    index: RaftIndex
    snapshot_term: Term
    total_bytes: int
    offset: int
    data: bytes
    configuration: bytes


@dataclass(frozen=True, slots=True)
class SnapshotReply(RaftMessage):
    """Send on from `next_offset`; a node that has installed it answers with AppendReply instead."""

    index: RaftIndex
    next_offset: int


@dataclass(frozen=True, slots=True)
class TimeoutNow(RaftMessage):
    """The leader hands over: campaign at once (dissertation §3.10)."""


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
