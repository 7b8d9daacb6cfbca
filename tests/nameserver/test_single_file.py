"""The line of large registrations: one is read at a time, and who is gone holds up nobody."""

from __future__ import annotations

from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from nameserver.single_file import SingleFile


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 4)), max_size=30))
def test_one_goes_on_at_a_time_in_the_order_in_which_they_came(steps: list[tuple[bool, int]]) -> None:
    file, line, going = SingleFile(), list[int](), list[int]()
    for enters, owner in steps:
        if enters and owner not in line:
            turn = file.enter(owner, 10)
            line.append(owner)
            if turn is None:
                going.append(owner)
            else:
                assert turn.size_bytes == 10
                turn.when_over(partial(going.append, owner))
        elif not enters:
            file.leave(owner)
            line = [other for other in line if other != owner]
            going[:] = [other for other in going if other != owner]
        assert going == line[:1]
