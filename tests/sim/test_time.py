"""Virtual time: order, cancelling, and clocks that run at other rates."""

from __future__ import annotations

from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from rmqha.sim.clock import EPOCH_AT_MS, SimClock
from rmqha.sim.scheduler import Scheduler, Timer


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
    moment = clock.virtual_ms_of(deadline_ms)
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


class _Plain(Scheduler):
    """Moves a timer by its definition."""

    def move(self, timer: Timer, at_ms: int) -> Timer:
        action = timer._action
        assert action is not None
        timer.cancel()
        return self.at(at_ms, action)


_STEPS = st.lists(st.tuples(st.sampled_from(("at", "move", "cancel", "step", "until")), st.integers(0, 5)), max_size=60)


@given(_STEPS)
def test_a_moved_event_happens_as_one_made_anew(steps: list[tuple[str, int]]) -> None:
    seen: list[list[tuple[int, int, int | None]]] = []
    for scheduler in (Scheduler(), _Plain()):
        happened: list[tuple[int, int, int | None]] = []
        timers: list[Timer] = []
        for number, (what, delay_ms) in enumerate(steps):
            pending = [item for item in timers if item.is_pending]
            if what == "at":
                timers.append(scheduler.after(delay_ms, partial(_note, happened, scheduler, number)))
            elif what == "step":
                scheduler.step()
            elif what == "until":
                scheduler.run_until(scheduler.now_ms + delay_ms)
            elif pending:
                chosen = pending[number % len(pending)]
                if what == "move":
                    timers[timers.index(chosen)] = scheduler.move(chosen, scheduler.now_ms + delay_ms)
                else:
                    chosen.cancel()
            happened.append((-1, scheduler.event_count, scheduler.next_at_ms()))
        scheduler.run_until(scheduler.now_ms + 100)
        seen.append(happened)
    assert seen[0] == seen[1]


def _note(happened: list[tuple[int, int, int | None]], scheduler: Scheduler, number: int) -> None:
    happened.append((number, scheduler.now_ms, None))


def test_a_machine_that_was_suspended_has_a_monotonic_clock_that_stood_still() -> None:
    scheduler = Scheduler()
    clock = SimClock(scheduler, 1_500_000)
    scheduler.run_until(1000)
    before = clock.now_ms(), clock.wall_ms()
    scheduler.run_until(3000)
    clock.suspended_for(2000)
    assert (clock.now_ms(), clock.wall_ms()) == (before[0], before[1] + 3000)
    assert clock.virtual_ms_of(before[0] + 1500) == 4000
