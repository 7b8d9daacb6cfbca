"""Where a group goes on from: the offset of each queue, and what is refused as unclear."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqha.model.error import UnreachableError, UsageError
from rmqha.ops.messaging.brokers import QueueName, parse_queue
from rmqha.ops.messaging.consumer_group import ConsumerGroup, QueueProgress
from rmqha.ops.messaging.consumer_reset import (
    QueueChange,
    QueueState,
    ResetPlace,
    Target,
    chosen_queues,
    chosen_topic,
    offset_after,
    require_movable,
)

ONE, TWO = QueueName("g-a", 0), QueueName("g-b", 3)


@st.composite
def states(draw: st.DrawFn) -> QueueState:
    low = draw(st.integers(0, 50))
    high = draw(st.integers(low, low + 50))
    committed = draw(st.none() | st.integers(0, high + 5))
    return QueueState(ONE, committed, low, high)


@given(states(), st.sampled_from([ResetPlace.FIRST, ResetPlace.LAST, ResetPlace.TIME]), st.integers(0, 200))
def test_a_place_is_always_in_the_queue(state: QueueState, place: ResetPlace, at_time: int) -> None:
    after = offset_after(state, Target(place), at_time)
    assert state.low <= after <= state.high
    if place is not ResetPlace.TIME:
        assert after == (state.low if place is ResetPlace.FIRST else state.high)
    elif state.low <= at_time <= state.high:
        assert after == at_time


@given(states(), st.integers(0, 200))
def test_an_offset_is_taken_as_it_is_or_refused(state: QueueState, offset: int) -> None:
    if state.low <= offset <= state.high:
        assert offset_after(state, Target(ResetPlace.OFFSET, offset)) == offset
    else:
        with pytest.raises(UsageError, match=f"holds {state.low} to {state.high}; nothing was changed$"):
            offset_after(state, Target(ResetPlace.OFFSET, offset))


@given(states(), st.integers(1, 200))
def test_a_skip_passes_over_messages_that_are_there(state: QueueState, count: int) -> None:
    if state.committed is None:
        with pytest.raises(UsageError, match="committed nothing in g-a:0"):
            offset_after(state, Target(ResetPlace.SKIP, count))
        return
    after = offset_after(state, Target(ResetPlace.SKIP, count))
    present = [offset for offset in range(state.low, state.high) if offset >= state.committed]
    assert after == (present[count] if count < len(present) else state.high)


def test_a_time_that_is_given_as_a_number_is_told() -> None:
    with pytest.raises(UsageError, match="For a time write it as 2026-11-21T14:00:00"):
        offset_after(QueueState(ONE, 1, 0, 9), Target(ResetPlace.OFFSET, 1_795_478_269_793))


@pytest.mark.parametrize(
    ("before", "after", "again", "passed_over", "moves"),
    [(4, 1, 3, 0, True), (1, 4, 0, 3, True), (4, 4, 0, 0, False), (None, 4, 0, 0, True), (None, 0, 0, 0, True)],
)
def test_what_a_change_means(before: int | None, after: int, again: int, passed_over: int, moves: bool) -> None:
    change = QueueChange(ONE, before, after)
    assert (change.read_again, change.passed_over, change.moves) == (again, passed_over, moves)


def group_of(*topics: str) -> ConsumerGroup:
    return ConsumerGroup("g", progress=[QueueProgress(topic, ONE, 1, 2) for topic in topics])


def test_the_topic_must_be_clear() -> None:
    assert chosen_topic(group_of("T"), None) == "T"
    assert chosen_topic(group_of("T", "U"), "U") == "U"
    with pytest.raises(UsageError, match="reads T, U: say which with --topic; nothing was changed"):
        chosen_topic(group_of("T", "U"), None)
    with pytest.raises(UsageError, match="reads no topic"):
        chosen_topic(group_of(), None)


def test_the_queue_of_a_number_must_be_clear() -> None:
    both = [QueueState(ONE, 1, 0, 9), QueueState(TWO, 1, 0, 9)]
    for place in ResetPlace:
        target = Target(place, 1)
        assert chosen_queues(both, TWO, target) == both[1:]
        assert chosen_queues(both[:1], None, target) == both[:1]
        if place in (ResetPlace.OFFSET, ResetPlace.SKIP):
            with pytest.raises(UsageError, match="has 2 queues and a number fits only one: say which with --queue"):
                chosen_queues(both, None, target)
        else:
            assert chosen_queues(both, None, target) == both
    with pytest.raises(UsageError, match="no queue g-c:0 of the topic; it has g-a:0, g-b:3"):
        chosen_queues(both, QueueName("g-c", 0), Target(ResetPlace.FIRST))


def test_a_group_that_cannot_be_moved() -> None:
    require_movable(ConsumerGroup("g", message_model="CLUSTERING"))
    with pytest.raises(UsageError, match="keep their offsets themselves"):
        require_movable(ConsumerGroup("g", message_model="BROADCASTING"))
    with pytest.raises(UnreachableError, match="nothing was changed: g-b: gone"):
        require_movable(ConsumerGroup("g", silent={"g-b": "gone"}))


@pytest.mark.parametrize("text", ["", "0", ":0", "g:", "g:x", "g:-1", "g:²"])
def test_a_queue_is_a_broker_and_a_number(text: str) -> None:
    assert parse_queue("a:b:7") == QueueName("a:b", 7) and str(TWO) == "g-b:3"
    with pytest.raises(UsageError, match="must be written GROUP:N"):
        parse_queue(text)


def test_totals_of_a_group() -> None:
    rows = [QueueProgress("T", ONE, 1, 4, oldest_age_ms=5), QueueProgress("U", ONE, None, 3, oldest_age_ms=9)]
    group = ConsumerGroup("g", subscriptions={"V": "*", "%RETRY%g": "*"}, progress=rows)
    assert (group.lag, group.oldest_age_ms, group.topics) == (6, 9, ["T", "U", "V"])
    # retention has deleted messages 1 and 2, and two that were there before the group was
    rows = [QueueProgress("T", ONE, 1, 4, first=3), QueueProgress("U", ONE, None, 3, first=2)]
    group = ConsumerGroup("g", progress=rows)
    assert (group.lag, group.deleted) == (2, 2)
    # a new master may have less than was committed (AP)
    assert QueueProgress("T", ONE, 5, 4).lag == 0
    assert ConsumerGroup("g").oldest_age_ms is None
