"""Campaigns and votes: pre-vote, stickiness, the log check, forced campaigns of a transfer. Pure functions over Core.

Sources: Ongaro's dissertation §3.4, §3.6, §4.2.3, §6.4.1, §9.6; KIP-996 for pre-vote.
"""

from __future__ import annotations

from rmqha.model.offset import Term
from rmqha.raft import leader
from rmqha.raft.core import Candidate, Core, Follower, Leader, PreCandidate
from rmqha.raft.quorum import id_of
from rmqha.wire.raft_message import PreVoteReply, PreVoteRequest, TimeoutNow, VoteReply, VoteRequest


def timed_out(core: Core, now_ms: int) -> None:
    """Begin a pre-vote: the election deadline of a Follower, PreCandidate or Candidate has passed."""
    if not core.may_campaign:
        core.role = Follower(None)
        core.trace_role()
        return
    votes = {core.node_id: True}
    core.role = PreCandidate(core.retry_deadline(now_ms), votes)
    core.trace_role()
    if core.configuration.won(votes):
        campaign(core, now_ms)
        return
    log = core.log
    for peer in core.other_voters:
        core.send(PreVoteRequest(core.node_id, peer, Term(core.term + 1), log.last_index, log.last_term))


def campaign(core: Core, now_ms: int, *, forced: bool = False) -> None:
    """Open a new term and ask for its votes. `forced`: the leader of the old term gave up its lease for it."""
    core.set_hard_state(Term(core.term + 1), core.node_id)
    votes = {core.node_id: True}
    core.role = Candidate(core.retry_deadline(now_ms), votes)
    core.trace_role()
    if core.configuration.won(votes):
        leader.begin_term(core, now_ms, votes)
        return
    log = core.log
    for peer in core.other_voters:
        core.send(VoteRequest(core.node_id, peer, core.term, log.last_index, log.last_term, forced))


def is_sticky(core: Core, now_ms: int) -> bool:
    """True while this node votes for no other leader: it has granted a lease, or it leads and a majority answers."""
    if isinstance(core.role, Leader):
        return now_ms < core.role.quorum_at_ms + core.config.election_timeout_ms
    return now_ms < core.promised_until_ms


def _may_vote_for(core: Core, request: PreVoteRequest | VoteRequest) -> bool:
    """True if the vote of `request.term` is free or already this candidate's, and the candidate's log is up to date."""
    free = request.term > core.term or core.hard_state.voted_for in ("", request.sender)
    return free and core.log.is_up_to_date(request.last_index, request.last_term)


def on_pre_vote_request(core: Core, now_ms: int, request: PreVoteRequest) -> None:
    granted = request.term > core.term and not is_sticky(core, now_ms) and _may_vote_for(core, request)
    core.trace("raft_pre_vote", candidate=id_of(request.sender), term=request.term, granted=granted)
    core.send(PreVoteReply(core.node_id, request.sender, request.term if granted else core.term, granted))


def on_pre_vote_reply(core: Core, now_ms: int, reply: PreVoteReply) -> None:
    role = core.role
    if not isinstance(role, PreCandidate) or (reply.granted and reply.term != core.term + 1):
        return
    role.votes.setdefault(reply.sender, reply.granted)
    if core.configuration.won(role.votes):
        campaign(core, now_ms)
    elif core.configuration.lost(role.votes):
        core.step_down(now_ms, core.term)


def on_vote_request(core: Core, now_ms: int, request: VoteRequest) -> None:
    """Answer a vote request of the current term. (A newer term was adopted before, unless this node is sticky.)"""
    granted = not isinstance(core.role, Leader) and _may_vote_for(core, request)
    if granted:
        core.set_hard_state(core.term, request.sender)
        if isinstance(core.role, Follower):
            core.role.election_deadline_ms = core.election_deadline(now_ms)
    core.trace("raft_vote", candidate=id_of(request.sender), term=core.term, granted=granted)
    core.send(VoteReply(core.node_id, request.sender, core.term, granted))


def on_vote_reply(core: Core, now_ms: int, reply: VoteReply) -> None:
    role = core.role
    if not isinstance(role, Candidate):
        return
    role.votes.setdefault(reply.sender, reply.granted)
    if core.configuration.won(role.votes):
        leader.begin_term(core, now_ms, role.votes)
    elif core.configuration.lost(role.votes):
        core.step_down(now_ms, core.term)


def on_timeout_now(core: Core, now_ms: int, message: TimeoutNow) -> None:
    """Campaign at once, in spite of the lease granted to the leader: it transfers its leadership."""
    if core.is_voter and isinstance(core.role, Follower):
        campaign(core, now_ms, forced=True)
