"""Virtual time: order, cancelling, and clocks that run at other rates."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rmqha.sim.clock import EPOCH_AT_MS, SimClock
from rmqha.sim.scheduler import Scheduler


def test_events_happen_in_the_order_of_their_moments_then_of_their_making() -> None:
    scheduler, seen = Scheduler(), list[str]()
    scheduler.at(20, lambda: seen.append("late"))
    scheduler.at(10, lambda: seen.append("first"))
    scheduler.at(10, lambda: scheduler.after(0, lambda: seen.append("made then")))
    scheduler.at(10, lambda: seen.append("second"))
    scheduler.run_until(10)
    assert seen == ["first", "second", "made then"]
    assert scheduler.now_ms == 10
    scheduler.run_until(100)
    assert seen[-1] == "late"
    assert scheduler.now_ms == 100


def test_a_cancelled_event_does_not_happen() -> None:
    scheduler, seen = Scheduler(), list[int]()
    timer = scheduler.at(5, lambda: seen.append(1))
    scheduler.at(6, lambda: seen.append(2))
    timer.cancel()
    assert scheduler.next_at_ms() == 6
    assert scheduler.step()
    assert not scheduler.step()
    assert seen == [2]


def test_the_past_is_now() -> None:
    scheduler, seen = Scheduler(), list[int]()
    scheduler.run_until(50)
    scheduler.at(10, lambda: seen.append(scheduler.now_ms))
    scheduler.step()
    assert seen == [50]


@given(st.integers(500_000, 2_000_000), st.integers(0, 10**6), st.integers(0, 10**7))
def test_a_deadline_is_reached_at_its_moment_and_not_before(rate_ppm: int, origin_ms: int, deadline_ms: int) -> None:
    scheduler = Scheduler()
    clock = SimClock(scheduler, rate_ppm, origin_ms)
    moment = clock.moment_of(deadline_ms)
    scheduler.run_until(max(moment - 1, 0))
    assert clock.now_ms() < deadline_ms or moment <= 0
    scheduler.run_until(max(moment, 0))
    assert clock.now_ms() >= deadline_ms


def test_the_wall_clock_can_be_set_and_the_monotonic_one_cannot() -> None:
    scheduler = Scheduler()
    clock = SimClock(scheduler)
    scheduler.run_until(1000)
    clock.step_wall(-5000)
    assert clock.wall_ms() == EPOCH_AT_MS - 4000
    assert clock.now_ms() == 1000
