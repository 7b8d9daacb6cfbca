"""What a node does with callers and peers that do not keep to the rules."""

from __future__ import annotations

import pytest

from rmqha.model.error import RemoteProtocolError
from rmqha.model.offset import RaftIndex, Term
from rmqha.raft.config import RaftConfig
from rmqha.raft.core import RaftRole
from rmqha.raft.log import StoredState
from rmqha.raft.node import RaftNode
from rmqha.raft.quorum import Configuration
from rmqha.sim.prng import SimPrng
from rmqha.sim.scheduler import Scheduler
from rmqha.sim.tracer import SimTracer
from rmqha.wire.raft_codec import MAX_ENTRY_BYTES
from rmqha.wire.raft_message import (
    AnyMessage,
    AppendReply,
    AppendRequest,
    Entry,
    EntryKind,
    Heartbeat,
    HeartbeatReply,
    PreVoteReply,
    SnapshotChunk,
    VoteReply,
)


def node(stored: StoredState | None = None, voters: tuple[str, ...] = ("a", "b", "c")) -> RaftNode:
    tracer = SimTracer(Scheduler())
    return RaftNode("a", Configuration(voters), stored or StoredState(), RaftConfig(), SimPrng(1), tracer, 0)


def settle(one: RaftNode) -> list[AnyMessage]:
    """Persist and advance until there is nothing left; the messages on the way."""
    sent: list[AnyMessage] = []
    while (ready := one.ready(0)) is not None:
        sent += [*ready.early, *ready.messages]
        one.advance(ready)
    return sent


def leader() -> RaftNode:
    one = node()
    deadline_ms = one.deadline_ms()
    assert deadline_ms is not None
    one.timeout(deadline_ms)
    one.step(deadline_ms, PreVoteReply("b", "a", Term(1), True))
    one.step(deadline_ms, VoteReply("b", "a", Term(1), True))
    assert one.role is RaftRole.LEADER
    settle(one)
    return one


def test_a_stranger_and_a_misdirected_message_are_dropped() -> None:
    one = node()
    one.step(0, Heartbeat("z", "a", Term(7), RaftIndex(0), 1))
    one.step(0, Heartbeat("b", "c", Term(7), RaftIndex(0), 1))
    one.step(0, Heartbeat("a", "a", Term(7), RaftIndex(0), 1))
    assert (one.term, one.ready(0)) == (0, None)


def test_a_second_leader_of_the_own_term_is_not_obeyed() -> None:
    one = leader()
    one.step(400, Heartbeat("b", "a", Term(1), RaftIndex(1), 1))
    assert one.is_leader


def test_answers_from_the_future_of_the_own_term_are_ignored() -> None:
    one = leader()
    one.step(400, AppendReply("b", "a", Term(1), RaftIndex(99)))
    one.step(400, HeartbeatReply("b", "a", Term(1), 99))
    assert (one.commit_index, one.lease_valid(400)) == (0, False)


def test_a_leader_that_contradicts_what_is_committed_is_refused() -> None:
    """One of the two logs is damaged: better a refused connection than a forked state."""
    entries = tuple(Entry(RaftIndex(index), Term(1), b"x") for index in (1, 2))
    one = node(StoredState(Term(1), "", None, entries))
    one.step(0, AppendRequest("b", "a", Term(2), RaftIndex(0), Term(0), RaftIndex(2), entries))
    assert one.commit_index == 2
    settle(one)
    fork = Entry(RaftIndex(2), Term(2), b"y")
    for contradiction in (
        AppendRequest("b", "a", Term(2), RaftIndex(1), Term(1), RaftIndex(0), (fork,)),
        AppendRequest("b", "a", Term(2), RaftIndex(2), Term(2), RaftIndex(0), ()),
    ):
        with pytest.raises(RemoteProtocolError, match="sends entry 2 of term 2, which is committed here in term 1"):
            one.step(0, contradiction)
        assert settle(one) == []


def test_an_entry_that_is_too_long_is_the_callers_error() -> None:
    with pytest.raises(ValueError, match="exceeds"):
        leader().propose(400, bytes(MAX_ENTRY_BYTES + 1))


def test_only_a_leader_takes_proposals_reads_and_transfers() -> None:
    one = node()
    assert one.propose(0, b"x") is None
    assert not one.read_index(0, b"r")
    assert not one.transfer_leadership(0, "b")
    assert not leader().transfer_leadership(400, "a")
    assert not leader().transfer_leadership(400, "z")


def test_the_best_successor_answers_and_holds_most() -> None:
    """A voter that died while nothing was proposed holds as much as the others."""
    one = leader()
    for voter in ("b", "c"):
        one.step(400, AppendReply(voter, "a", Term(1), RaftIndex(1)))
    assert one.best_successor(400) == "c", "both alike: the last of the ids"
    one.step(450, HeartbeatReply("b", "a", Term(1), 1))
    assert one.best_successor(450) == "b", "as long, and heard later"
    one.propose(450, b"x")
    settle(one)
    one.step(460, AppendReply("c", "a", Term(1), RaftIndex(2)))
    one.step(470, HeartbeatReply("b", "a", Term(1), 1))
    assert one.best_successor(470) == "c", "the longer log, heard of late"
    one.step(2_000, HeartbeatReply("b", "a", Term(1), 1))
    assert one.best_successor(2_000) == "b", "c has been silent for long"
    assert one.best_successor(60_000) == "c", "silent are all: as if nobody were"
    assert node().best_successor(0) is None


def test_one_ready_at_a_time_waits_for_the_disk() -> None:
    one = leader()
    one.propose(400, b"x")
    ready = one.ready(0)
    assert ready is not None
    one.propose(400, b"y")
    assert one.ready(0) is None
    one.advance(ready)
    again = one.ready(0)
    assert again is not None
    assert [entry.data for entry in again.entries] == [b"y"]


def test_a_slow_disk_holds_up_no_heartbeat_and_no_commit_of_the_others() -> None:
    one = leader()
    one.step(300, AppendReply("b", "a", Term(1), RaftIndex(1)))
    settle(one)
    one.propose(400, b"x")
    slow = one.ready(0)
    assert slow is not None and slow.must_persist
    one.timeout(600)
    one.step(600, AppendReply("b", "a", Term(1), RaftIndex(2)))
    one.step(600, AppendReply("c", "a", Term(1), RaftIndex(2)))
    beside = one.ready(0)
    assert beside is not None and not beside.must_persist
    assert Heartbeat in {type(message) for message in beside.early}
    assert [entry.data for entry in beside.committed] == [b"x"]
    one.advance(beside)
    assert (one.applied_index, one.compactable_index) == (2, 1)
    with pytest.raises(AssertionError, match="entry 2 is not applied and durable"):
        one.compact(RaftIndex(2), b"state")
    one.advance(slow)
    assert one.compactable_index == 2
    one.compact(RaftIndex(2), b"state")


def test_an_entry_is_handed_out_for_applying_once() -> None:
    """The disk was busy with the Ready that had it; the one beside it must not have it again."""
    one = leader()
    for peer in ("b", "c"):
        one.step(300, AppendReply(peer, "a", Term(1), RaftIndex(1)))
    settle(one)
    one.propose(400, b"x")
    first = one.ready(0)
    assert first is not None
    one.step(400, AppendReply("b", "a", Term(1), RaftIndex(2)))
    one.step(400, AppendReply("c", "a", Term(1), RaftIndex(2)))
    beside = one.ready(0)
    assert beside is not None
    one.advance(beside)
    one.advance(first)
    rest = one.ready(0)
    committed = [*first.committed, *beside.committed, *(rest.committed if rest else ())]
    assert [entry.index for entry in committed] == sorted({entry.index for entry in committed})


def test_a_lease_is_granted_only_in_a_durable_term() -> None:
    """A node that forgets the term in a crash forgets that it promised anything."""
    one = node()
    one.step(0, AppendRequest("b", "a", Term(1), RaftIndex(0), Term(0), RaftIndex(0), ()))
    slow = one.ready(0)
    assert slow is not None and slow.hard_state is not None and slow.early == ()
    one.step(1, Heartbeat("b", "a", Term(1), RaftIndex(0), 1))
    assert one.ready(0) is None
    one.advance(slow)
    later = one.ready(0)
    assert later is not None
    assert [type(message) for message in later.early] == [HeartbeatReply]


def test_messages_that_tell_of_a_vote_or_an_entry_wait_for_the_disk() -> None:
    """A leader's own appends need not."""
    one = leader()
    one.step(300, AppendReply("b", "a", Term(1), RaftIndex(1)))
    settle(one)
    one.propose(400, b"x")
    ready = one.ready(0)
    assert ready is not None
    assert {type(message) for message in ready.early} == {AppendRequest}
    assert ready.messages == ()
    follower = node()
    follower.step(0, AppendRequest("b", "a", Term(1), RaftIndex(0), Term(0), RaftIndex(0), ready.entries[:0]))
    answer = follower.ready(0)
    assert answer is not None
    assert (answer.early, len(answer.messages), answer.must_persist) == ((), 1, True)


def test_a_follower_acknowledges_what_an_append_speaks_of_and_nothing_behind() -> None:
    """What stands behind it may be an older leader's: the empty append that shows a loss says nothing of that."""
    entries = tuple(Entry(RaftIndex(index), Term(1)) for index in (1, 2, 3))
    one = node(StoredState(Term(1), "", None, entries))
    one.step(0, AppendRequest("b", "a", Term(2), RaftIndex(1), Term(1), RaftIndex(0), ()))
    assert [item.match_index for item in settle(one) if isinstance(item, AppendReply)] == [1]


def test_timeout_may_be_called_at_any_time() -> None:
    one = node()
    for now_ms in range(0, 250, 50):
        one.timeout(now_ms)
    assert (one.role, one.ready(0)) == (RaftRole.FOLLOWER, None)


def test_a_lease_longer_than_its_grant_is_refused() -> None:
    with pytest.raises(AssertionError, match="clock drift"):
        RaftConfig(election_timeout_ms=250, lease_ms=240)


def test_an_entry_that_is_no_configuration_changes_nothing() -> None:
    one = node()
    entries = (
        Entry(RaftIndex(1), Term(1), b"x"),
        Entry(RaftIndex(2), Term(1), b"\xff", EntryKind.CONFIGURATION),
    )
    with pytest.raises(RemoteProtocolError, match="configuration cannot be read"):
        one.step(0, AppendRequest("b", "a", Term(1), RaftIndex(0), Term(0), RaftIndex(0), entries))
    assert (one.last_index, one.configuration.voters) == (0, ("a", "b", "c"))
    chunk = SnapshotChunk("b", "a", Term(1), RaftIndex(3), Term(1), 1, 0, b"x", b"\xff")
    with pytest.raises(RemoteProtocolError, match="configuration cannot be read"):
        one.step(0, chunk)
    assert (one.last_index, one.commit_index, one.configuration.voters) == (0, 0, ("a", "b", "c"))


def test_a_disk_is_addressed_by_its_incarnation() -> None:
    """Messages to the disk that was here before are not for this one; answers of a disk that nobody knows count for
    nothing; whoever knows this very disk is heard."""
    voters = Configuration(("a#1", "b#1", "c#1"))
    one = RaftNode("a#1", voters, StoredState(), RaftConfig(), SimPrng(1), SimTracer(Scheduler()), 0)
    for sender, to in (("b#1", "a#2"), ("b#2", "a"), ("z#1", "a")):
        one.step(0, Heartbeat(sender, to, Term(7), RaftIndex(0), 1))
    one.step(0, VoteReply("b#2", "a#1", Term(7), True))
    assert (one.term, one.ready(0)) == (0, None)
    one.step(0, Heartbeat("z#1", "a#1", Term(7), RaftIndex(0), 1))
    assert (one.term, one.leader_id) == (7, "z#1")
