"""The work of a leader: replicate, commit, hold the lease, answer reads, transfer the leadership. Pure functions over
Core."""

from __future__ import annotations

from rmqha.model.offset import RaftIndex, Term
from rmqha.raft import reconfiguration
from rmqha.raft.core import Core, Leader, LeadershipTransfer, PendingRead, ReadState
from rmqha.raft.progress import Progress, ProgressState
from rmqha.raft.quorum import id_of
from rmqha.wire.raft_message import (
    AppendReject,
    AppendReply,
    AppendRequest,
    Entry,
    EntryKind,
    Heartbeat,
    HeartbeatReply,
    SnapshotChunk,
    SnapshotReply,
    TimeoutNow,
)


def begin_term(core: Core, now_ms: int, votes: dict[str, bool]) -> None:
    """Open the term of this node, which was elected, with a no-op entry (dissertation §3.6.2, §6.4). If the election
    formed the group, append the configuration with the voters' identities."""
    next_index = RaftIndex(core.log.last_index + 1)
    role = core.role = Leader(next_index, now_ms, {}, since_ms=now_ms, quorum_at_ms=now_ms)
    core.append(Entry(next_index, core.term, kind=EntryKind.NOOP))
    core.trace_role()
    if not core.configuration.formed:
        granted = [member for member, vote in votes.items() if vote]
        reconfiguration.append_configuration(core, role, core.configuration.formed_by(granted))
    role.progress = {peer: Progress(next_index) for peer in core.peers}
    _open_round(core, role, now_ms)


def propose(core: Core, role: Leader, data: bytes) -> tuple[Term, RaftIndex] | None:
    """Append an entry; returns its term and index, None while the leadership is being transferred."""
    if role.transfer is not None:
        return None
    entry = Entry(RaftIndex(core.log.last_index + 1), core.term, data)
    core.append(entry)
    return entry.term, entry.index


# --- rounds: heartbeats, check-quorum, lease, reads ----------------------------------------------------------


def _open_round(core: Core, role: Leader, now_ms: int) -> None:
    """Send a heartbeat to everyone, as a new round."""
    role.round += 1
    role.round_open = True
    role.rounds.append((role.round, now_ms))
    role.heartbeat_deadline_ms = now_ms + core.config.heartbeat_interval_ms
    for peer, progress in role.progress.items():
        commit_index = min(core.log.commit_index, progress.match_index)
        core.send(Heartbeat(core.node_id, peer, core.term, commit_index, role.round))
    reconfiguration.untrack_removed(core, role)
    _count_rounds(core, role)


def on_heartbeat_reply(core: Core, role: Leader, reply: HeartbeatReply) -> None:
    progress = role.progress[reply.sender]
    if reply.round > role.round:
        return
    progress.acked_round = max(progress.acked_round, reply.round)
    progress.probe_sent = progress.chunk_sent = False
    if progress.state is ProgressState.REPLICATE and progress.match_index < core.log.last_index:
        # something may have been lost: an empty append at the end of what was sent shows it
        _send_append(core, reply.sender, progress, with_entries=False)
    _count_rounds(core, role)
    reconfiguration.promote(core, role, reply.sender)


def _count_rounds(core: Core, role: Leader) -> None:
    """Update the lease and the waiting reads to the newest round that a majority answered."""

    def acked_round(voter: str) -> int:
        return role.round if voter == core.node_id else role.progress[voter].acked_round

    newest = core.configuration.majority_reached(acked_round)
    while role.rounds and role.rounds[0][0] <= newest:
        role.quorum_at_ms = role.lease_at_ms = role.rounds.popleft()[1]
        role.paused_ms = 0
    done = [read for read in role.reads if read.round <= newest]
    if done:
        role.reads = role.reads[len(done) :]
        core.read_states.extend(ReadState(read.context, read.index) for read in done)


def lease_valid(core: Core, role: Leader, now_ms: int) -> bool:
    """True if no other node can be leader yet, and it is known what is committed."""
    if role.noop_index > core.log.commit_index or (role.transfer is not None and role.transfer.ordered):
        return False
    if core.is_sole_voter:
        return True
    return role.lease_at_ms is not None and now_ms < role.lease_at_ms + core.config.lease_ms


def read_index(core: Core, role: Leader, now_ms: int, context: bytes) -> bool:
    """Begin a read that waits for a round (dissertation §6.4). False before the term's first commit."""
    if role.noop_index > core.log.commit_index:
        return False
    if not role.round_open:
        _open_round(core, role, now_ms)
    role.reads.append(PendingRead(context, core.log.commit_index, role.round))
    _count_rounds(core, role)
    return True


# --- replication ----------------------------------------------------------


def replicate(core: Core, role: Leader) -> None:
    """Send every follower the entries that its window allows. Called once per Ready, so that proposals are sent
    together."""
    for peer, progress in role.progress.items():
        while _send_next(core, peer, progress):
            pass


def _send_next(core: Core, peer: str, progress: Progress) -> bool:
    """Send one message if there is something to send and room for it."""
    log = core.log
    if progress.state is ProgressState.SNAPSHOT:
        _send_chunk(core, peer, progress)
        return False
    if progress.next_index > log.last_index:
        return False
    if log.term_at(RaftIndex(progress.next_index - 1)) is None:
        assert log.snapshot is not None
        progress.to_snapshot(log.snapshot)
        core.trace("raft_snapshot_sent", to=id_of(peer), index=log.snapshot.index)
        return True
    if progress.state is ProgressState.PROBE:
        if progress.probe_sent:
            return False
        progress.probe_sent = True
    elif len(progress.inflight) >= core.config.max_inflight_appends:
        return False
    _send_append(core, peer, progress, with_entries=True)
    return progress.state is ProgressState.REPLICATE


def _send_append(core: Core, peer: str, progress: Progress, *, with_entries: bool) -> None:
    log, config = core.log, core.config
    next_index = progress.next_index
    assert progress.match_index < next_index, f"{peer} matches up to {progress.match_index}, {next_index} is sent next"
    prev_index = RaftIndex(next_index - 1)
    prev_term = log.term_at(prev_index)
    if prev_term is None:
        return
    entries: tuple[Entry, ...] = ()
    if with_entries:
        entries = log.batch(next_index, config.max_append_entries, config.max_append_bytes)
    core.send(AppendRequest(core.node_id, peer, core.term, prev_index, prev_term, log.commit_index, entries))
    if entries and progress.state is ProgressState.REPLICATE:
        progress.next_index = RaftIndex(entries[-1].index + 1)
        assert not progress.inflight or progress.inflight[-1] < next_index, f"{peer} is sent {next_index} twice"
        progress.inflight.append(entries[-1].index)


def _send_chunk(core: Core, peer: str, progress: Progress) -> None:
    if progress.chunk_sent:
        return
    newest = core.log.snapshot
    if progress.snapshot_offset == 0 and newest is not None and newest is not progress.snapshot:
        # nothing of the older one has arrived: spare the follower a second one
        progress.to_snapshot(newest)
    snapshot, offset = progress.snapshot, progress.snapshot_offset
    assert snapshot is not None
    progress.chunk_sent = True
    data = bytes(snapshot.data[offset : offset + core.config.snapshot_chunk_bytes])
    size_bytes = len(snapshot.data)
    core.send(
        SnapshotChunk(
            core.node_id,
            peer,
            core.term,
            snapshot.index,
            snapshot.term,
            size_bytes,
            offset,
            data,
            snapshot.configuration,
        )
    )


def on_append_reply(core: Core, role: Leader, now_ms: int, reply: AppendReply) -> None:
    progress = role.progress[reply.sender]
    if reply.match_index > core.log.last_index:
        return
    if progress.acknowledged(reply.match_index):
        count_commits(core, role)
        if reconfiguration.step_down_if_removed(core, role, now_ms):
            return
    reconfiguration.promote(core, role, reply.sender)
    if role.transfer is not None and role.transfer.to == reply.sender:
        _order_transfer(core, role.transfer, progress)


def on_append_reject(core: Core, role: Leader, reject: AppendReject) -> None:
    match_at_best = core.log.last_index_not_above(reject.hint_index, reject.hint_term)
    role.progress[reject.sender].rejected(reject.rejected_index, RaftIndex(match_at_best + 1))


def on_snapshot_reply(role: Leader, reply: SnapshotReply) -> None:
    progress = role.progress[reply.sender]
    if progress.snapshot is not None and progress.snapshot.index == reply.index:
        progress.snapshot_offset = min(reply.next_offset, len(progress.snapshot.data))
        progress.chunk_sent = False


def count_commits(core: Core, role: Leader) -> None:
    """Raise the commit index to the entry that a majority holds durably, if it is of this term (dissertation
    §3.6.2)."""

    def match_index(voter: str) -> int:
        return core.log.durable_index if voter == core.node_id else role.progress[voter].match_index

    reached = RaftIndex(core.configuration.majority_reached(match_index))
    if reached > core.log.commit_index and core.log.term_at(reached) == core.term:
        core.log.commit_to(reached)


# --- transfer ----------------------------------------------------------


def begin_transfer(core: Core, role: Leader, now_ms: int, to: str) -> bool:
    """Stop accepting proposals, bring `to` up to date, let it campaign. False if it is no other voter, or if another
    transfer is under way."""
    if to not in core.other_voters or role.transfer is not None:
        return False
    role.transfer = LeadershipTransfer(to, now_ms + core.config.election_timeout_ms)
    core.trace("raft_transfer_begun", to=id_of(to), term=core.term)
    _order_transfer(core, role.transfer, role.progress[to])
    return True


def _order_transfer(core: Core, transfer: LeadershipTransfer, progress: Progress) -> None:
    if not transfer.ordered and progress.match_index == core.log.last_index:
        transfer.ordered = True
        core.send(TimeoutNow(core.node_id, transfer.to, core.term))


def best_successor(core: Core, role: Leader, now_ms: int) -> str | None:
    """Best voter to transfer the leadership to, as `RaftNode.best_successor` describes."""
    if not core.other_voters:
        return None

    def fitness(voter: str) -> tuple[bool, RaftIndex, int, str]:
        progress = role.progress[voter]
        heard_at_ms = -1 if progress.heard_at_ms is None else progress.heard_at_ms
        return reconfiguration.is_heard(core, role, now_ms, voter), progress.match_index, heard_at_ms, voter

    return max(core.other_voters, key=fitness)


def transfer_from_stalled_disk(core: Core, role: Leader, now_ms: int) -> None:
    """Transfer the leadership of a node whose disk hangs, once a majority without it holds durably all entries of the
    time when that was found. Later entries are on their way to the others. If the others' disks hang too, they cannot
    vote; without this wait the group would lose a leader that still answers."""

    def saved_index(voter: str) -> int:
        return 0 if voter == core.node_id else role.progress[voter].match_index

    if role.awaited_index is None and core.log.last_index > core.log.durable_index:
        role.awaited_index = core.log.last_index
    is_saved_elsewhere = (
        role.awaited_index is not None and core.configuration.majority_reached(saved_index) >= role.awaited_index
    )
    if role.transfer is not None or not is_saved_elsewhere:
        return
    target = best_successor(core, role, now_ms)
    if target is not None and reconfiguration.is_heard(core, role, now_ms, target):
        core.trace("raft_disk_stalled", term=core.term)
        role.awaited_index = None
        begin_transfer(core, role, now_ms, target)


def pause_ms(core: Core, role: Leader, now_ms: int) -> int:
    """Time (ms) for which this process did not run, so that answers of the others and of its disk are not read yet. 0
    if it ran."""
    found = now_ms - role.heartbeat_deadline_ms
    return found if found >= core.config.heartbeat_interval_ms else 0


def timed_out(core: Core, role: Leader, now_ms: int) -> bool:
    """Send due heartbeats, check the quorum, abandon a late transfer. True if this node must campaign again: TimeoutNow
    may still arrive and its votes ignore the lease, so an abandoned transfer must end the term."""
    role.paused_ms += pause_ms(core, role, now_ms)
    if now_ms >= _quorum_deadline_ms(core, role) and not core.is_sole_voter:
        core.trace("raft_quorum_lost", term=core.term)
        core.step_down(now_ms, core.term)
        return False
    if role.transfer is not None and now_ms >= role.transfer.deadline_ms:
        ordered = role.transfer.ordered
        role.transfer = None
        core.trace("raft_transfer_abandoned", term=core.term)
        if ordered:
            return True
    if now_ms >= role.heartbeat_deadline_ms:
        _open_round(core, role, now_ms)
    return False


def _quorum_deadline_ms(core: Core, role: Leader) -> int:
    return role.quorum_at_ms + core.config.quorum_timeout_ms + role.paused_ms


def deadline_ms(core: Core, role: Leader) -> int:
    deadlines = [role.heartbeat_deadline_ms]
    if not core.is_sole_voter:
        deadlines.append(_quorum_deadline_ms(core, role))
    if role.transfer is not None:
        deadlines.append(role.transfer.deadline_ms)
    return min(deadlines)
