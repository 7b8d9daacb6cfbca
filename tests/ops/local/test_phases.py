"""Failover phases from the events of all nodes."""

from __future__ import annotations

from typing import Any

from rmqha.ops.local.phases import PHASES, failover_phases

KILLED = 1_000_000
STORY: list[dict[str, Any]] = [
    {"at_ms": KILLED - 5000, "event": "master_elected", "group": "broker-a", "epoch": 1},
    {"at_ms": KILLED - 4000, "event": "writable", "epoch": 1},
    {"at_ms": KILLED + 2, "event": "master_suspected", "group": "broker-a"},
    {"at_ms": KILLED + 6, "event": "route_changed", "broker_name": "broker-a", "addresses": {"0": "the dead one"}},
    {"at_ms": KILLED + 60, "event": "master_dead", "group": "broker-a"},
    {"at_ms": KILLED + 70, "event": "master_elected", "group": "broker-a", "epoch": 2, "broker_id": 2},
    {"at_ms": KILLED + 80, "event": "role_changed", "role": "SLAVE", "epoch": 2},
    {"at_ms": KILLED + 90, "event": "role_changed", "role": "MASTER", "epoch": 2},
    {"at_ms": KILLED + 95, "event": "route_changed", "broker_name": "broker-b", "addresses": {"0": "x"}},
    {"at_ms": KILLED + 100, "event": "writable", "epoch": 2},
    {"at_ms": KILLED + 105, "event": "route_changed", "broker_name": "broker-a", "addresses": {"2": "x"}},
    {"at_ms": KILLED + 110, "event": "route_changed", "broker_name": "broker-a", "addresses": {"0": "x"}},
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
