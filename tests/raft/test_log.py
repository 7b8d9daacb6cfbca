"""The in-memory log and the quorum rules, against the plainest possible model."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rmqha.model.offset import RaftIndex, Term
from rmqha.raft.log import RaftLog, StoredState
from rmqha.raft.quorum import Configuration
from rmqha.wire.raft_message import Entry, Snapshot

terms = st.lists(st.integers(1, 4), max_size=8).map(sorted)


def log_of(term_list: list[int], base: int = 0) -> RaftLog:
    """A log whose entries after index `base` have these terms."""
    entries = tuple(Entry(RaftIndex(base + 1 + number), Term(term)) for number, term in enumerate(term_list))
    snapshot = Snapshot(RaftIndex(base), Term(1), b"") if base else None
    return RaftLog(StoredState(Term(9), "", snapshot, entries))


@given(terms, terms)
def test_hints_find_the_last_common_entry_in_few_steps(own: list[int], other: list[int]) -> None:
    """A leader that probes by hints ends where the logs part, after at most one probe per term."""
    leader, follower = log_of([1, *own]), log_of([1, *other])
    parted = next((i for i, (x, y) in enumerate(zip([1, *own], [1, *other], strict=False)) if x != y), None)
    common = parted if parted is not None else min(leader.last_index, follower.last_index)
    prev = leader.last_index
    probed = []
    while True:
        probed.append(prev)
        term = leader.term_at(prev)
        assert term is not None
        if follower.term_at(prev) == term:
            break
        hint = follower.last_index_not_above(prev, term)
        hint_term = follower.term_at(hint)
        assert hint_term is not None
        prev = leader.last_index_not_above(hint, hint_term)
        assert prev >= common
    assert prev <= common or follower.term_at(prev) == leader.term_at(prev)
    assert len(probed) <= 6


@given(terms, st.integers(0, 9), st.integers(0, 40), st.integers(1, 5))
def test_a_batch_keeps_both_limits_but_makes_progress(own: list[int], start: int, size: int, count: int) -> None:
    log = RaftLog(StoredState(entries=tuple(Entry(RaftIndex(i + 1), Term(t), bytes(10)) for i, t in enumerate(own))))
    first = RaftIndex(max(start, 1))
    if first > log.last_index + 1:
        return
    batch = log.batch(first, count, size)
    assert [entry.index for entry in batch] == list(range(first, first + len(batch)))
    assert len(batch) <= count
    assert len(batch) <= 1 or sum(len(entry.data) for entry in batch) <= size
    assert bool(batch) == (first <= log.last_index)


def test_an_entry_that_was_replaced_while_it_was_written_is_not_durable() -> None:
    log = log_of([1, 1])
    log.append(Entry(RaftIndex(3), Term(1)))
    written = log.take_changes().entries[-1]
    log.replace_from((Entry(RaftIndex(3), Term(2)),))
    log.persisted(written)
    assert log.durable_index == 2
    change = log.take_changes()
    assert (change.truncate_from, [entry.term for entry in change.entries]) == (3, [2])
    log.persisted(change.entries[-1])
    assert log.durable_index == 3


def test_what_takes_the_place_of_durable_entries_is_not_durable_yet() -> None:
    log = log_of([1, 1, 1])
    assert log.durable_index == 3
    log.replace_from((Entry(RaftIndex(2), Term(2)), Entry(RaftIndex(3), Term(2))))
    assert (log.last_index, log.durable_index) == (3, 1)


def test_an_entry_that_came_back_is_durable_only_when_it_is_written_again() -> None:
    log = log_of([1])
    again = Entry(RaftIndex(2), Term(2))
    log.append(again)
    written = log.take_changes().entries[-1]
    log.replace_from((Entry(RaftIndex(2), Term(3)),))
    log.replace_from((again,))
    log.persisted(written)
    assert log.durable_index == 1
    assert log.take_changes().truncate_from == 2


def test_compaction_keeps_the_rest_and_an_installed_snapshot_does_not() -> None:
    log = log_of([1, 1, 2])
    log.commit_to(RaftIndex(3))
    log.compact(RaftIndex(2), b"two")
    assert (log.snapshot_index, log.last_index, log.term_at(RaftIndex(2)), log.term_at(RaftIndex(1))) == (2, 3, 1, None)
    log.install(Snapshot(RaftIndex(9), Term(2), b"nine"))
    assert (log.last_index, log.last_term, log.durable_index, log.commit_index) == (9, 2, 9, 9)
    change = log.take_changes()
    assert change.compaction is None
    assert change.installed is not None and change.installed.index == 9


voter_sets = st.integers(1, 5).map(lambda count: tuple(f"n{number}" for number in range(count)))


@given(voter_sets, st.data())
def test_a_majority_is_more_than_half(voters: tuple[str, ...], data: st.DataObject) -> None:
    configuration = Configuration(voters, ("learner",))
    values = {voter: data.draw(st.integers(0, 9)) for voter in (*voters, "learner")}
    reached = configuration.majority_reached(values.__getitem__)
    assert sum(values[voter] >= reached for voter in voters) * 2 > len(voters)
    assert sum(values[voter] >= reached + 1 for voter in voters) * 2 <= len(voters)


@given(voter_sets, st.data())
def test_an_election_is_won_or_lost_or_open(voters: tuple[str, ...], data: st.DataObject) -> None:
    configuration = Configuration(voters)
    votes = data.draw(st.dictionaries(st.sampled_from((*voters, "stranger")), st.booleans()))
    granted = sum(votes.get(voter) is True for voter in voters)
    refused = sum(votes.get(voter) is False for voter in voters)
    assert configuration.won(votes) == (granted * 2 > len(voters))
    assert configuration.lost(votes) == ((len(voters) - refused) * 2 <= len(voters))
