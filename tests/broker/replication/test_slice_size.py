"""Slices of work whose cost clients choose."""

from __future__ import annotations

from rmqha.broker.replication.replica_driver import SliceSize


def test_slices_that_take_long_shrink_and_quick_ones_grow_again() -> None:
    slices = SliceSize(10, 1000)
    sizes = []
    for taken_ms, done_bytes in ((8, 1000), (4, 500), (400, 500), (3, 10), (1, 10), (0, 20), (0, 1), (1, 40), (0, 80)):
        slices.took(taken_ms, done_bytes, 4)
        sizes.append(slices.size_bytes)
    assert sizes == [500, 500, 10, 10, 20, 40, 40, 80, 160]


def test_a_slice_that_had_little_to_do_and_took_long_counts_by_what_it_did() -> None:
    slices = SliceSize(10, 1_000_000)
    slices.took(20, 5000, 4)
    assert slices.size_bytes == 1000


def test_no_slice_is_larger_than_the_largest() -> None:
    slices = SliceSize(10, 100)
    slices.took(0, 100, 4)
    assert slices.size_bytes == 100
