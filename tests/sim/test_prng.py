"""Chance from a seed: the same everywhere, even, and independent by name."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from rmqha.sim.prng import SimPrng


def test_the_numbers_are_those_of_splitmix64() -> None:
    """First outputs for seed 1234567, as other implementations give them."""
    prng = SimPrng(1234567)
    assert [prng.below(2**63) for _ in range(3)] == [
        number % 2**63 for number in (6457827717110365317, 3203168211198807973, 9817491932198370423)
    ]


@given(st.integers(0, 2**64), st.integers(1, 2**40))
def test_below_keeps_its_bound(seed: int, bound: int) -> None:
    assert 0 <= SimPrng(seed).below(bound) < bound


def test_below_is_even() -> None:
    prng = SimPrng(7)
    counts = Counter(prng.below(10) for _ in range(20_000))
    assert all(1800 < counts[number] < 2200 for number in range(10))


def test_chance_meets_its_share() -> None:
    prng = SimPrng(8)
    assert 2_700 < sum(prng.chance(3, 10) for _ in range(10_000)) < 3_300
    assert not any(prng.chance(0, 10) for _ in range(100))
    assert all(prng.chance(10, 10) for _ in range(100))


def test_a_child_depends_on_seed_and_name_only() -> None:
    drawn, fresh = SimPrng(9), SimPrng(9)
    drawn.below(100)
    assert drawn.child("network").below(2**60) == fresh.child("network").below(2**60)
    others = [SimPrng(9).child(name).below(2**60) for name in ("network", "disk", "networ", "knetwor", "")]
    assert len(set(others)) == 5
    assert SimPrng(10).child("network").below(2**60) != SimPrng(9).child("network").below(2**60)
