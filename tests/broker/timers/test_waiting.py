"""Timer messages that wait, against a sorted list."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rmqha.broker.timers.waiting import WaitingTimers

TIMES_MS = st.sampled_from((0, 1, 2, 65_535, 65_536, 65_540, 400_000))
ADDS = st.tuples(TIMES_MS, st.integers(0, 30))
TAKES = st.tuples(TIMES_MS | st.sampled_from((-1, 500_000)), st.integers(0, 4))


@given(st.lists(st.tuples(ADDS, TAKES | st.none()), max_size=60))
def test_they_come_in_the_order_of_their_slots_and_offsets(
    steps: list[tuple[tuple[int, int], tuple[int, int] | None]],
) -> None:
    waiting, model = WaitingTimers(), list[tuple[int, int]]()
    for item, taken in steps:
        if item not in model:
            waiting.add(*item)
            model.append(item)
        if taken is not None:
            until_ms, count = taken
            due = [item for item in sorted(model) if item[0] <= until_ms][:count]
            assert [entry[:2] for entry in waiting.take(until_ms, count)] == due
            model = [item for item in model if item not in due]
        assert len(waiting) == len(model) and sorted(waiting) == sorted(model)
        assert waiting.first_slot_ms() <= min((slot_ms for slot_ms, _ in model), default=1 << 63)
        assert bool(model) == (waiting.first_slot_ms() < 1 << 63)
        assert waiting.first_offset() == min((offset for _, offset in model), default=None)
    again = WaitingTimers()
    for span in waiting.spans():
        again.add_span(span)
    for copy in (waiting, again):
        assert [entry[:2] for entry in copy.take_all()] == sorted(model) and len(copy) == 0
    waiting.add(1, 1)
    waiting.clear()
    assert len(waiting) == 0 and waiting.take_all() == []
