"""Which events `rmqha history` shows, and that a follower shows each once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqha.cli.admin.history import Choice, EventFollower, line

EVENT = st.fixed_dictionaries({
    "at_ms": st.integers(0, 9),
    "node": st.sampled_from(["a", "b"]),
    "event": st.sampled_from(["x", "y"]),
    "number": st.integers(0, 99),
})  # fmt: skip
EVENTS: list[dict[str, Any]] = [
    {"at_ms": 1_000, "node": "broker-a-1", "event": "role_changed"},
    {"at_ms": 2_000, "node": "ctl-1", "event": "master_dead"},
    {"at_ms": 3_000, "node": "ctl-1", "event": "master_elected"},
]


@pytest.mark.parametrize(
    ("choice", "shown"),
    [
        (Choice(), [1, 2, 3]),
        (Choice(2_000), [2, 3]),
        (Choice(nodes=("ctl-1",)), [2, 3]),
        (Choice(patterns=("master_*",)), [2, 3]),
        (Choice(patterns=("master_dead", "role_*")), [1, 2]),
        (Choice(3_000, ("broker-a-1",)), []),
    ],
)
def test_events_are_chosen_by_time_node_and_name(choice: Choice, shown: list[int]) -> None:
    assert [event["at_ms"] // 1_000 for event in choice.of(EVENTS)] == shown


@given(told=st.lists(EVENT, unique_by=lambda event: event["number"]), data=st.data())
def test_a_follower_shows_each_event_once(told: list[dict[str, Any]], data: st.DataObject) -> None:
    """A node tells its last ones: what has been told ends later each time, and begins later."""
    follower, shown = EventFollower(), list[dict[str, Any]]()
    begin = end = 0
    while end < len(told):
        more = data.draw(st.integers(0, len(told) - end))
        begin, end = data.draw(st.integers(begin, end)), end + max(1, more)
        shown += follower.new_of(told[begin:end])
    assert shown == told


def test_a_line_has_date_and_zone() -> None:
    day, clock, *rest = line(EVENTS[1]).split()
    assert len(day.split("-")) == 3 and clock[-6] in "+-" and rest == ["ctl-1", "master_dead"]
