"""Handling of a leader's messages: append, heartbeat, snapshot chunk. Pure functions over Core.

Every message of the current leader renews its lease: for election_timeout_ms this node elects no other leader.
"""

from __future__ import annotations

from rmqha.model.error import RemoteProtocolError
from rmqha.raft.core import Core
from rmqha.raft.snapshot import SnapshotAssembly
from rmqha.wire.raft_message import (
    ZERO_TERM,
    AppendReject,
    AppendReply,
    AppendRequest,
    Heartbeat,
    HeartbeatReply,
    SnapshotChunk,
    SnapshotReply,
)


def on_append(core: Core, now_ms: int, request: AppendRequest) -> None:
    core.heard_from(now_ms, request.sender)
    log = core.log
    _refuse_contradiction(core, request)
    if request.prev_index < log.commit_index:
        # an old append: everything committed is in every leader's log, so the logs match up to there
        core.send(AppendReply(core.node_id, request.sender, core.term, log.commit_index))
        return
    if log.term_at(request.prev_index) != request.prev_term:
        hint = log.last_index_not_above(request.prev_index, request.prev_term)
        hint_term = log.term_at(hint) or ZERO_TERM
        core.send(AppendReject(core.node_id, request.sender, core.term, request.prev_index, hint, hint_term))
        return
    conflict = log.first_conflict(request.entries)
    if conflict is not None:
        core.replace_from(now_ms, request.entries[conflict.index - request.prev_index - 1 :])
    last_new = request.entries[-1].index if request.entries else request.prev_index
    log.commit_to(min(request.commit_index, last_new))
    core.send(AppendReply(core.node_id, request.sender, core.term, last_new))


def _refuse_contradiction(core: Core, request: AppendRequest) -> None:
    """Raise RemoteProtocolError for an entry that contradicts a committed one. Every leader's log has what is committed
    here; to answer one that has other entries would fork the group."""
    sent = [(request.prev_index, request.prev_term), *((entry.index, entry.term) for entry in request.entries)]
    for index, term in sent:
        if index > core.log.commit_index:
            return
        if core.log.term_at(index) not in (None, term):
            raise RemoteProtocolError(
                f"Raft node {request.sender} sends entry {index} of term {term}, which is committed here in term "
                f"{core.log.term_at(index)}; one of the two logs is damaged"
            )


def on_heartbeat(core: Core, now_ms: int, heartbeat: Heartbeat) -> None:
    core.heard_from(now_ms, heartbeat.sender)
    core.log.commit_to(min(heartbeat.commit_index, core.log.last_index))
    core.send(HeartbeatReply(core.node_id, heartbeat.sender, core.term, heartbeat.round))


def on_snapshot_chunk(core: Core, now_ms: int, chunk: SnapshotChunk) -> None:
    follower = core.heard_from(now_ms, chunk.sender)
    log = core.log
    if chunk.index <= log.commit_index:
        core.send(AppendReply(core.node_id, chunk.sender, core.term, log.commit_index))
        return
    if log.term_at(chunk.index) == chunk.snapshot_term:
        # the log holds it all already: nothing to install, only to commit
        log.commit_to(chunk.index)
        core.send(AppendReply(core.node_id, chunk.sender, core.term, chunk.index))
        return
    if follower.assembly is None or not follower.assembly.fits(chunk):
        follower.assembly = SnapshotAssembly(chunk)
    snapshot = follower.assembly.add(chunk)
    if snapshot is None:
        core.send(SnapshotReply(core.node_id, chunk.sender, core.term, chunk.index, follower.assembly.next_offset))
        return
    follower.assembly = None
    core.install(now_ms, snapshot)
    core.trace("raft_snapshot_installed", index=snapshot.index, term=snapshot.term)
    core.send(AppendReply(core.node_id, chunk.sender, core.term, snapshot.index))
