"""Last hour of each replica in a ring buffer, and its failovers, for the page's charts. Pure.

All series share the sampling times; a missing value is NaN here and null in JSON.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nameserver.web.message_view import visible
from rmqha.ops.local.phases import failover_phases
from rmqha.ops.replica_rows import Row
from rmqha.wire.state.history import HistoryEvent

PERIOD_S = 5.0
POINTS = 720
"""One hour at PERIOD_S."""
MAX_SERIES = 512
"""Replicas or groups with series; more are counted in `left_out`. Each takes 2.9 kB per figure."""
MAX_FAILOVERS = 20
PHASES = ("elect_ms", "role_ms", "writable_ms", "route_ms")
"""Phases that nodes report; only a client knows the time of its first acknowledgement."""
SETTLED_MS = 60_000
"""Time (ms) after which a phase belongs to no failover."""


class SampleRing:
    """Ring buffer of named series with common times and the same figures; a new sample replaces the oldest."""

    def __init__(self, figures: Sequence[str], points: int = POINTS) -> None:
        self.figures = tuple(figures)
        self._points = points
        self._times = array("d")
        self._series: dict[str, tuple[array[float], ...]] = {}
        self.left_out = 0
        """Series without room in the last sample."""

    @property
    def names(self) -> list[str]:
        return sorted(self._series)

    def put(self, at_ms: int, values: Mapping[str, Sequence[float | None]]) -> None:
        """Add a sample: values of each series in the order of `figures`. A series without values in the whole ring is
        dropped."""
        known = len(self._times)
        self.left_out = 0
        for name in values:
            if name not in self._series:
                if len(self._series) >= MAX_SERIES:
                    self.left_out += 1
                    continue
                self._series[name] = tuple(array("f", [math.nan] * known) for _ in self.figures)
        self._times.append(at_ms)
        for name, columns in self._series.items():
            row = values.get(name, ())
            for place, column in enumerate(columns):
                value = row[place] if place < len(row) else None
                column.append(math.nan if value is None else value)
        if len(self._times) > self._points:
            del self._times[0]
            for columns in self._series.values():
                for column in columns:
                    del column[0]
        for name in [name for name, columns in self._series.items() if _is_silent(columns)]:
            del self._series[name]

    def times(self) -> list[int]:
        """Wall times (ms), ascending."""
        return [int(value) for value in self._times]

    def series(self, name: str, figure: str) -> list[float | None]:
        """Values of one figure; empty for an unknown series."""
        columns = self._series.get(name)
        if columns is None:
            return []
        return [None if math.isnan(value) else round(value, 2) for value in columns[self.figures.index(figure)]]


def _is_silent(columns: Iterable[array[float]]) -> bool:
    return all(math.isnan(value) for column in columns for value in column)


REPLICA_FIGURES = ("in", "out", "lag", "ackP50", "ackP99", "leads")


def replica_values(rows: Iterable[Row]) -> dict[str, list[float | None]]:
    """Values of REPLICA_FIGURES by "group/address"."""
    return {
        f"{row.group}/{row.address}": [
            row.in_per_second,
            row.out_per_second,
            row.lag_bytes,
            row.ack_p50_ms,
            row.ack_p99_ms,
            1.0 if row.is_master else 0.0,
        ]
        for row in rows
        if row.role not in ("down", "apache")
    }


def group_hour(ring: SampleRing, group: str, labels: Mapping[str, str]) -> dict[str, Any]:
    """JSON-ready: `times`; `in`, `out`, `ackP50`, `ackP99` of the master; `lag` (bytes) by replica. `labels`: by
    address."""
    members = {name.removeprefix(f"{group}/"): name for name in ring.names if name.startswith(f"{group}/")}
    leads = {name: ring.series(key, "leads") for name, key in members.items()}

    def of_leader(figure: str) -> list[float | None]:
        columns = [(leads[name], ring.series(key, figure)) for name, key in members.items()]
        return [
            next((column[at] for led, column in columns if led[at] == 1.0 and column[at] is not None), None)
            for at in range(len(ring.times()))
        ]

    served = [ring.series(key, "out") for key in members.values()]
    return {
        "times": ring.times(),
        "in": of_leader("in"),
        "out": [_sum(column[at] for column in served) for at in range(len(ring.times()))],
        "ackP50": of_leader("ackP50"),
        "ackP99": of_leader("ackP99"),
        "lag": {visible(labels.get(name, name)): ring.series(key, "lag") for name, key in members.items()},
    }


def _sum(values: Iterable[float | None]) -> float | None:
    told = [value for value in values if value is not None]
    return round(sum(told), 2) if told else None


def failovers(events: Iterable[HistoryEvent], group: str) -> list[dict[str, Any]]:
    """Failovers, the newest first: the time at which the old master was given up, and the phases after it (ms).
    `events`: of all nodes. An operator's switch begins when the old master stops accepting."""
    told = sorted(events, key=lambda event: event.at_ms)
    starts = [event for event in told if _begins(event, group)]
    found = []
    for place, start in enumerate(starts):
        begin_ms = start.at_ms
        until_ms = min(begin_ms + SETTLED_MS, starts[place + 1].at_ms if place + 1 < len(starts) else 1 << 62)
        own = [event for event in told if begin_ms <= event.at_ms < until_ms]
        phases = failover_phases(own, begin_ms, group)
        elected = next((event for event in own if _is_election(event, group)), None)
        found.append(
            {
                "atMs": begin_ms,
                "kind": "switch" if start.name == "hand_over_begins" else "failover",
                "epoch": elected.get("epoch") if elected is not None else None,
                "phases": [[name.removesuffix("_ms"), phases[name]] for name in PHASES],
            }
        )
    return [item for item in reversed(found) if item["epoch"] is not None][:MAX_FAILOVERS]


def _is_election(event: HistoryEvent, group: str) -> bool:
    return bool(event.name == "master_elected" and event.get("group", group) == group)


def _begins(event: HistoryEvent, group: str) -> bool:
    is_of = event.get("group", group) == group
    return bool(is_of) and event.name in ("master_dead", "hand_over_begins")
