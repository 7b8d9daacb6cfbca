"""Changes of the group's membership by its leader, one node at a time. Pure functions over Core.

A new node is added as a learner; a joining one becomes a voter by itself once it holds all committed entries. The next
change waits until the last one is committed, and the first of a term until the leader has committed an entry of it
(Ongaro's correction of 2015): majorities of neighbouring configurations then always share a node.
Source: Ongaro's dissertation §4.1-4.3.
"""

from __future__ import annotations

from dataclasses import dataclass

from rmqha.model.offset import RaftIndex, Term
from rmqha.raft.core import Core, Leader
from rmqha.raft.progress import Progress, ProgressState
from rmqha.raft.quorum import MAX_MEMBER_COUNT, Configuration, id_of
from rmqha.wire.raft_message import Entry, EntryKind, TimeoutNow


@dataclass(frozen=True, slots=True)
class AddNode:
    """Add `node`, an identity. Without `voter` it stays a learner."""

    node: str
    address: str
    voter: bool = True


@dataclass(frozen=True, slots=True)
class RemoveNode:
    """Remove the node with this bare id, whatever its incarnation is."""

    node_id: str


MembershipChange = AddNode | RemoveNode


@dataclass(frozen=True, slots=True)
class Refused:
    """Refusal of a change. `reason`: one sentence for the operator."""

    reason: str


def change(core: Core, role: Leader, now_ms: int, wanted: MembershipChange) -> tuple[Term, RaftIndex] | Refused:
    """Append the configuration after the change `wanted`; returns the term and index of its entry."""
    found = _changed(core.configuration, wanted)
    if isinstance(found, Refused):
        return found
    if not may_change(core, role):
        return Refused("another change of the group is under way; ask again when it is done")
    if role.transfer is not None:
        return Refused("the leadership is being handed over; ask the next leader")
    dead = [id_of(voter) for voter in found.voters if not is_heard(core, role, now_ms, voter)]
    if len(found.voters) - len(dead) < found.majority:
        names = ", ".join(dead)
        return Refused(f"the new group would have no majority: {names} does not answer; start it or remove it first")
    return append_configuration(core, role, found)


def _changed(configuration: Configuration, wanted: MembershipChange) -> Configuration | Refused:
    match wanted:
        case AddNode(node, address, voter):
            known = configuration.find(id_of(node))
            if known == node and node in configuration.learners and voter and node not in configuration.joining:
                return configuration.without(node).with_learner(node, address, joining=True)
            if known == node:
                return Refused(f"{id_of(node)} is in the group already")
            if known is not None:
                return Refused(
                    f"the group knows {id_of(node)} with another disk; remove it first, then add it with the new one"
                )
            if len(configuration.members) >= MAX_MEMBER_COUNT:
                return Refused(f"a group has at most {MAX_MEMBER_COUNT} nodes")
            return configuration.with_learner(node, address, joining=voter)
        case RemoveNode(node_id):
            known = configuration.find(node_id)
            if known is None:
                names = ", ".join(id_of(member) for member in configuration.members)
                return Refused(f"the group has no node {node_id}; it has {names}")
            if configuration.voters == (known,):
                return Refused(f"{node_id} is the only voter and cannot be removed")
            return configuration.without(known)


def may_change(core: Core, role: Leader) -> bool:
    """True if the next change may begin."""
    commit_index = core.log.commit_index
    return core.membership.index <= commit_index and role.noop_index <= commit_index


def is_heard(core: Core, role: Leader, now_ms: int, member: str) -> bool:
    """True if `member` is this node, or has answered it within quorum_timeout_ms."""
    if member == core.node_id:
        return True
    heard_at_ms = role.progress[member].heard_at_ms if member in role.progress else None
    return heard_at_ms is not None and now_ms < heard_at_ms + core.config.quorum_timeout_ms


def append_configuration(core: Core, role: Leader, configuration: Configuration) -> tuple[Term, RaftIndex]:
    next_index = RaftIndex(core.log.last_index + 1)
    core.append(Entry(next_index, core.term, configuration.encode(), EntryKind.CONFIGURATION))
    track_members(core, role, next_index)
    return core.term, next_index


def track_members(core: Core, role: Leader, next_index: RaftIndex) -> None:
    """Begin to send to new members. A removed one is still sent its removal (see `untrack_removed`)."""
    for peer in core.peers:
        if peer not in role.progress:
            role.progress[peer] = Progress(next_index)


def untrack_removed(core: Core, role: Leader) -> None:
    """Stop sending to nodes whose removal is committed. Called after a round of heartbeats, by which they know it."""
    if core.membership.index <= core.log.commit_index:
        for peer in [peer for peer in role.progress if not core.configuration.knows(peer)]:
            del role.progress[peer]


def promote(core: Core, role: Leader, peer: str) -> None:
    """Make `peer`, which has just answered, a voter if it is joining and holds all committed entries."""
    if peer not in core.configuration.joining or role.transfer is not None or not may_change(core, role):
        return
    progress = role.progress[peer]
    if progress.state is ProgressState.REPLICATE and progress.match_index >= core.log.commit_index:
        append_configuration(core, role, core.configuration.promoted(peer))


def step_down_if_removed(core: Core, role: Leader, now_ms: int) -> bool:
    """End the leadership of this node if its own removal is committed; the voter with the longest log takes over. True
    if it has ended."""
    if core.is_voter or core.membership.index > core.log.commit_index:
        return False
    best = max(core.other_voters, key=lambda voter: (role.progress[voter].match_index, voter))
    if role.progress[best].match_index == core.log.last_index:
        core.send(TimeoutNow(core.node_id, best, core.term))
    core.trace("raft_leader_removed", term=core.term)
    core.step_down(now_ms, core.term)
    return True
