"""A confirm offset may lie inside a record: what was confirmed ends at the record before."""

from __future__ import annotations

from rmqha.model.offset import PhyOffset
from rmqha.sim.disk import SimDisk
from rmqha.sim.prng import SimPrng
from tests.store.support import message, open_store


def test_it_is_the_end_of_the_last_whole_record() -> None:
    store = open_store(SimDisk(SimPrng(1)))
    ends = []
    for number in range(3):
        store.append(message(number), number)
        ends.append(store.max_phy_offset)
    for confirmed, expected in ((ends[1], ends[1]), (ends[1] + 1, ends[1]), (ends[2] - 1, ends[1]), (ends[2], ends[2])):
        store.set_confirm_offset(PhyOffset(confirmed))
        assert store.confirmed_record_end == expected
        assert store.confirm_offset == confirmed
