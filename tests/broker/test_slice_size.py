"""Slices of work whose cost clients choose."""

from __future__ import annotations

from rmqha.broker.slice_size import SliceSize


def test_slices_that_take_long_shrink_and_quick_ones_grow_again() -> None:
    slices = SliceSize(10, 100, 4)
    sizes = []
    for taken_ms in (5, 5, 50, 50, 50, 4, 2, 1, 0, 0, 0, 0, 0):
        slices.took(taken_ms)
        sizes.append(slices.size)
    assert sizes == [50, 25, 12, 10, 10, 10, 10, 20, 40, 80, 100, 100, 100]
