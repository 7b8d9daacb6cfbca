"""The queue of large registrations: one is read at a time, and a closed connection blocks none."""

from __future__ import annotations

from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from nameserver.fifo_lock import FifoLock


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 4)), max_size=30))
def test_one_goes_on_at_a_time_in_the_order_in_which_they_came(steps: list[tuple[bool, int]]) -> None:
    lock, line, going = FifoLock(), list[int](), list[int]()
    for enters, owner in steps:
        if enters and owner not in line:
            turn = lock.acquire(owner, 10)
            line.append(owner)
            if turn is None:
                going.append(owner)
            else:
                assert turn.size_bytes == 10
                turn.when_over(partial(going.append, owner))
        elif not enters:
            lock.release(owner)
            line = [other for other in line if other != owner]
            going[:] = [other for other in going if other != owner]
        assert going == line[:1]
