"""Which events `rmqha history` shows, and that a follower shows each once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqha.cli.admin.history import EventFilter, EventFollower, line, none_text
from rmqha.wire.state.history import HistoryEvent

EVENT = st.builds(
    HistoryEvent,
    st.integers(0, 9),
    st.sampled_from(["x", "y"]),
    st.fixed_dictionaries({"number": st.integers(0, 99)}),
    st.sampled_from(["a", "b"]),
)
EVENTS = [
    HistoryEvent(1_000, "role_changed", node="broker-a-1"),
    HistoryEvent(2_000, "master_dead", node="ctl-1"),
    HistoryEvent(3_000, "master_elected", node="ctl-1"),
]


@pytest.mark.parametrize(
    ("choice", "shown"),
    [
        (EventFilter(), [1, 2, 3]),
        (EventFilter(2_000), [2, 3]),
        (EventFilter(nodes=("ctl-1",)), [2, 3]),
        (EventFilter(patterns=("master_*",)), [2, 3]),
        (EventFilter(patterns=("master_dead", "role_*")), [1, 2]),
        (EventFilter(3_000, ("broker-a-1",)), []),
    ],
)
def test_events_are_chosen_by_time_node_and_name(choice: EventFilter, shown: list[int]) -> None:
    assert [event.at_ms // 1_000 for event in choice.of(EVENTS)] == shown


def test_a_choice_without_an_event_is_a_sentence_with_the_names_that_there_are() -> None:
    assert none_text(EVENTS) == (
        "no event matches; 3 others are known, with the names master_dead, master_elected, role_changed"
    )
    assert none_text([]) == "no event is known"


@given(told=st.lists(EVENT, unique_by=lambda event: event.get("number")), data=st.data())
def test_a_follower_shows_each_event_once(told: list[HistoryEvent], data: st.DataObject) -> None:
    """A node tells its last ones: what has been told ends later each time, and begins later."""
    follower, shown = EventFollower(), list[HistoryEvent]()
    begin = end = 0
    while end < len(told):
        more = data.draw(st.integers(0, len(told) - end))
        begin, end = data.draw(st.integers(begin, end)), end + max(1, more)
        shown += follower.new_of(told[begin:end])
    assert shown == told


def test_a_line_has_date_and_zone() -> None:
    day, clock, *rest = line(EVENTS[1]).split()
    assert len(day.split("-")) == 3 and clock[-6] in "+-" and rest == ["ctl-1", "master_dead"]
