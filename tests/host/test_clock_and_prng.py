"""The clock and chance ports."""

from __future__ import annotations

import time
from datetime import datetime

import pytest

from rmqha.host.clock import ClockStepDetector, HostClock, local_month_ms
from rmqha.host.prng import HostPrng
from rmqha.port import Clock, Prng


def test_clock() -> None:
    clock: Clock = HostClock()
    first = clock.now_ms()
    assert first <= time.monotonic() * 1000 <= clock.now_ms() + 1
    assert time.time() * 1000 - 1 <= clock.wall_ms() <= time.time() * 1000 + 1


@pytest.mark.parametrize("month", range(1, 13))
def test_a_local_month(month: int) -> None:
    """Every day of it, from its first to its last millisecond, and none of the next."""
    start_ms, end_ms = (
        int(datetime(2026 + number // 12, number % 12 + 1, 1).timestamp() * 1000) for number in (month - 1, month)
    )
    for wall_ms in (start_ms, start_ms + 15 * 86_400_000, end_ms - 1):
        assert local_month_ms(wall_ms) == (start_ms, end_ms)


def draws(prng: Prng, count: int = 50) -> list[int]:
    return [prng.below(1_000_000) for _ in range(count)]


def test_one_seed_gives_one_stream() -> None:
    assert draws(HostPrng(7)) == draws(HostPrng(7))
    assert draws(HostPrng(7)) != draws(HostPrng(8))
    assert HostPrng().seed != HostPrng().seed


def test_children_do_not_depend_on_draws() -> None:
    used = HostPrng(7)
    draws(used)
    assert draws(used.child("a")) == draws(HostPrng(7).child("a"))
    assert draws(used.child("a")) != draws(used.child("b"))
    assert draws(used.child("a").child("b")) != draws(used.child("b").child("a"))


def test_ranges() -> None:
    prng = HostPrng(1)
    assert {prng.below(3) for _ in range(200)} == {0, 1, 2}
    assert not any(prng.chance(0, 10) for _ in range(100))
    assert all(prng.chance(10, 10) for _ in range(100))
    assert 150 < sum(prng.chance(1, 4) for _ in range(1000)) < 350
    with pytest.raises(ValueError):
        prng.below(0)


class SetClock:
    """Both clocks by hand."""

    mono_ms, now_wall_ms = 1_000, 5_000_000

    def now_ms(self) -> int:
        return self.mono_ms

    def wall_ms(self) -> int:
        return self.now_wall_ms


def test_a_wall_clock_that_was_set_is_seen() -> None:
    clock = SetClock()
    watch = ClockStepDetector(clock)
    clock.mono_ms += 700
    clock.now_wall_ms += 700
    assert watch.view() == {"wallMs": 5_000_700, "clockSteppedMs": 0}
    clock.now_wall_ms -= 60_000
    assert watch.view() == {"wallMs": 4_940_700, "clockSteppedMs": -60_000}
