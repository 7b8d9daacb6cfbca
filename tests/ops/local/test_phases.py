"""Failover phases from the events of all nodes."""

from __future__ import annotations

from rmqha.ops.local.phases import PHASES, failover_phases
from rmqha.wire.state.history import HistoryEvent

KILLED = 1_000_000
STORY = [
    HistoryEvent(KILLED - 5000, "master_elected", {"group": "broker-a", "epoch": 1}),
    HistoryEvent(KILLED - 4000, "writable", {"epoch": 1}),
    HistoryEvent(KILLED + 2, "master_suspected", {"group": "broker-a"}),
    HistoryEvent(KILLED + 6, "route_changed", {"broker_name": "broker-a", "addresses": {"0": "the dead one"}}),
    HistoryEvent(KILLED + 60, "master_dead", {"group": "broker-a"}),
    HistoryEvent(KILLED + 70, "master_elected", {"group": "broker-a", "epoch": 2, "broker_id": 2}),
    HistoryEvent(KILLED + 80, "role_changed", {"role": "SLAVE", "epoch": 2}),
    HistoryEvent(KILLED + 90, "role_changed", {"role": "MASTER", "epoch": 2}),
    HistoryEvent(KILLED + 95, "route_changed", {"broker_name": "broker-b", "addresses": {"0": "x"}}),
    HistoryEvent(KILLED + 100, "writable", {"epoch": 2}),
    HistoryEvent(KILLED + 105, "route_changed", {"broker_name": "broker-a", "addresses": {"2": "x"}}),
    HistoryEvent(KILLED + 110, "route_changed", {"broker_name": "broker-a", "addresses": {"0": "x"}}),
]


def test_phases_are_cumulative_from_the_kill() -> None:
    acks = [KILLED - 10, KILLED + 1, KILLED + 150, KILLED + 160]
    phases = failover_phases(reversed(STORY), KILLED, "broker-a", acks)
    assert tuple(phases) == PHASES
    assert list(phases.values()) == [60, 70, 90, 100, 110, 150]


def test_what_did_not_happen_is_none() -> None:
    phases = failover_phases(STORY[:5], KILLED, "broker-a", [KILLED + 5])
    assert list(phases.values()) == [60, None, None, None, None, None]


def test_other_groups_do_not_count() -> None:
    assert failover_phases(STORY, KILLED, "broker-b")["elect_ms"] is None
