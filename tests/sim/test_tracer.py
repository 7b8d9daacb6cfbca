"""Trace hashes: equal for equal events, never dependent on the process."""

from __future__ import annotations

from typing import Any

import pytest

from rmqha.model.identity import Role
from rmqha.sim.scheduler import Scheduler
from rmqha.sim.tracer import SimTracer


def trace(*events: tuple[str, dict[str, Any]]) -> str:
    tracer = SimTracer(Scheduler())
    for name, fields in events:
        tracer.event(name, **fields)
    return tracer.trace_hash()


def test_the_hash_depends_on_names_values_and_order() -> None:
    one: tuple[str, dict[str, Any]] = ("one", {"a": 1, "b": "x"})
    two: tuple[str, dict[str, Any]] = ("two", {"a": None})
    assert trace(one, two) == trace(("one", {"b": "x", "a": 1}), two)
    hashes = [trace(one, two), trace(two, one), trace(one), trace(("one", {"a": 2, "b": "x"}), two)]
    assert len(set(hashes)) == 4


def test_sets_and_enumerations_have_one_text() -> None:
    names = [f"name {number}" for number in range(50)]
    assert trace(("e", {"s": set(names)})) == trace(("e", {"s": frozenset(names)}))
    assert trace(("e", {"r": Role.MASTER})) == trace(("e", {"r": 3}))


def test_a_value_without_a_stable_text_is_refused() -> None:
    with pytest.raises(TypeError, match="a trace cannot hold a object"):
        trace(("e", {"o": object()}))


def test_the_last_events_are_kept_with_their_time() -> None:
    scheduler = Scheduler()
    tracer = SimTracer(scheduler, keep_count=2)
    for number in range(3):
        scheduler.run_until(number)
        tracer.event("tick", number=number)
    assert list(tracer.recent) == ["1 tick number=1", "2 tick number=2"]
    assert tracer.event_count == 3
