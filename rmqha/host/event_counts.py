"""Counters of traced events: elections, changes of the set, cuts, and the durations of failovers. Shell.

They exist only in a process with metrics. A phase is timed by the monotonic clock of the node that sees its begin and
end, so no clocks of two nodes are compared; `rmqha drill failover` measures a whole failover across nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from threading import Lock
from typing import Any

from rmqha.host.tracer import HostTracer
from rmqha.model.series import Histogram, MetricFamilies, MetricKind, Series

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

EVENTS = Series("rmqha_events_total", MetricKind.COUNTER, "Lines of the log, by event (rmqha history)", ("event",))
LOST_LINES = Series("rmqha_log_lines_lost_total", MetricKind.COUNTER, "Log lines that the disk did not take")
ELECTIONS = Series(
    "rocketmq_ha_elections_total", MetricKind.COUNTER, "Controllers' leader: masters elected, by cause", ("cause",)
)
SET_CHANGES = Series(
    "rocketmq_ha_set_changes_total",
    MetricKind.COUNTER,
    "Master: replicas that joined or left the SyncStateSet, and why",
    ("kind", "cause"),
)
CUTS = Series("rocketmq_ha_truncations_total", MetricKind.COUNTER, "Cuts of the log")
CUT_BYTES = Series("rocketmq_ha_truncated_bytes_total", MetricKind.COUNTER, "Log bytes that cuts removed")
FAILOVER = Series(
    "rocketmq_ha_failover_seconds",
    MetricKind.HISTOGRAM,
    "detect: silence of a master until the controllers call it dead; elect: from then to the new master; hand_over: "
    "from the begin of a planned switch to the new master (all three on the controllers' leader); writable: from the "
    "role to the first send that would be taken (on the new master)",
    ("phase",),
)
JOIN = ("join", "caught_up")
CONTROLLER_PHASES = ("detect", "elect", "hand_over")
BROKER_PHASES = ("writable",)
SERIES = (EVENTS, LOST_LINES, ELECTIONS, SET_CHANGES, CUTS, CUT_BYTES, FAILOVER)


class EventCounts:
    """Counters of the events of `tracer`, from now on. Events may come from several threads."""

    def __init__(self, tracer: HostTracer) -> None:
        self._tracer = tracer
        self._lock = Lock()
        self._events: Counter[str] = Counter()
        self._elections: Counter[str] = Counter()
        self._set_changes: Counter[tuple[str, str]] = Counter()
        self._cut_count = 0
        self._cut_bytes = 0
        self._phases: dict[str, Histogram] = {}
        self._began_ms: dict[tuple[str, str], int] = {}
        """Time (ms) at which (phase, group) began."""
        tracer.listeners.append(self._heard)

    def expect(
        self,
        *,
        elections: Iterable[str] = (),
        set_changes: Iterable[tuple[str, str]] = (),
        phases: Iterable[str] = (),
    ) -> None:
        """Show 0 for causes, (kind, cause) and phases that have not come yet. For Prometheus a series that begins at 1
        never rose, so an alert by `increase` would miss the first time, for most causes the only one."""
        with self._lock:
            self._elections.update(dict.fromkeys(elections, 0))
            self._set_changes.update(dict.fromkeys(set_changes, 0))
            for phase in phases:
                self._phases.setdefault(phase, Histogram(SECONDS))

    def _heard(self, now_ms: int, name: str, fields: Mapping[str, Any]) -> None:
        with self._lock:
            self._events[name] += 1
            match name:
                case "master_dead":
                    self._took("detect", fields["silent_ms"])
                    self._began_ms["elect", fields["group"]] = now_ms
                case "hand_over_begins":
                    self._began_ms["hand_over", fields["group"]] = now_ms
                case "master_elected":
                    self._elections[fields["cause"].lower()] += 1
                    self._ended("elect", fields["group"], now_ms)
                    self._ended("hand_over", fields["group"], now_ms)
                case "hand_over_failed":
                    self._began_ms.pop(("hand_over", fields["group"]), None)
                case "controller_resigned":
                    self._began_ms.clear()
                case "role_changed" if fields["role"] == "MASTER":
                    self._began_ms["writable", ""] = now_ms
                case "role_changed":
                    self._began_ms.pop(("writable", ""), None)
                case "writable":
                    self._ended("writable", "", now_ms)
                case "set_changed":
                    self._set_changes[JOIN] += len(fields["joined"])
                    for cause in fields["left"].values():
                        self._set_changes["leave", cause] += 1
                case "log_truncated":
                    self._cut_count += 1
                    self._cut_bytes += fields["cut_bytes"]

    def _took(self, phase: str, duration_ms: int) -> None:
        self._phases.setdefault(phase, Histogram(SECONDS)).add(duration_ms / 1000)

    def _ended(self, phase: str, group: str, now_ms: int) -> None:
        began_ms = self._began_ms.pop((phase, group), None)
        if began_ms is not None:
            self._took(phase, now_ms - began_ms)

    def collect(self) -> MetricFamilies:
        """Event counts of the whole process; the labels of a scrape's target tell whose."""
        families = MetricFamilies({})
        with self._lock:
            for event, count in sorted(self._events.items()):
                families.put(EVENTS, count, event)
            for cause, count in sorted(self._elections.items()):
                families.put(ELECTIONS, count, cause)
            for change, count in sorted(self._set_changes.items()):
                families.put(SET_CHANGES, count, *change)
            for phase, histogram in sorted(self._phases.items()):
                families.put_histogram(FAILOVER, histogram, phase)
            families.put(CUTS, self._cut_count)
            families.put(CUT_BYTES, self._cut_bytes)
        families.put(LOST_LINES, self._tracer.statistics()["lost_line_count"])
        return families
