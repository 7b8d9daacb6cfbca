"""The report of a drill: figures over its rounds, and the verdict. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from rmqha.drill.audit import AuditResult
from rmqha.drill.traffic import AckedMessage, DrillTraffic
from rmqha.ops.local.phases import PHASES

LATENCY_BUCKETS_MS = (5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
AP_WINDOW_MS = 1000
"""Time (ms) before a fault in which, and under it, acknowledgements of an AP master may be lost with it."""
SHOWN_LOST = 20


@dataclass(slots=True)
class Round:
    """One round of a drill, with one fault. Times are wall stamps; `healed_at_ms`: the fault was undone; `well_at_ms`:
    everything was well again."""

    hit: list[str]
    """Node names."""
    old_master: str
    fault_at_ms: int
    master: str = ""
    """The node that led (or, of the controllers, leads) after the fault."""
    healed_at_ms: int = 0
    well_at_ms: int = 0
    phases: dict[str, int | None] = field(default_factory=dict)
    failover_ms: int | None = None
    cut_bytes: int = 0
    """Bytes that the node that was hit cut from its log to follow the others."""
    stale_acked: int = 0
    """Number of sends that a cut-off master acknowledged to a client on its side of the cut."""
    direct: dict[str, int] = field(default_factory=dict)
    """Wall stamp of each acknowledgement to this client, by UNIQ_KEY."""
    notes: list[str] = field(default_factory=list)

    @property
    def recovery_ms(self) -> int | None:
        return self.well_at_ms - self.healed_at_ms if self.well_at_ms else None

    @property
    def end_ms(self) -> int:
        """Wall time until which sends count as under the fault."""
        return self.well_at_ms or self.healed_at_ms


@dataclass(slots=True)
class Result:
    """Result of a drill. `broken`: a sentence on each promise that did not hold."""

    scenario: str
    mode: str
    target: str
    wanted: int
    rounds: list[Round]
    traffic: DrillTraffic
    found: AuditResult | None
    broken: list[str]
    seconds: float = 0.0


def percentiles(values: Iterable[int | None]) -> dict[str, int | None]:
    """p50, p90, max and n of the values that are not None; p90 is the smallest value that nine tenths do not exceed."""
    there = sorted(value for value in values if value is not None)
    if not there:
        return {"p50": None, "p90": None, "max": None, "n": 0}
    rank = -(-len(there) * 9 // 10) - 1
    return {"p50": round(statistics.median(there)), "p90": there[rank], "max": there[-1], "n": len(there)}


def unavailable_ms(traffic: DrillTraffic, item: Round) -> int:
    """The longest time without an acknowledgement from the fault until all was well again."""
    return traffic.longest_gap_ms(item.fault_at_ms, item.end_ms) if item.end_ms else 0


def normal_gap_ms(traffic: DrillTraffic, rounds: Sequence[Round]) -> int:
    """The longest time without an acknowledgement outside the faults."""
    stamps = sorted(traffic.stamps)
    faults = [(item.fault_at_ms, item.end_ms) for item in rounds]
    gaps = [
        after - before
        for before, after in pairwise(stamps)
        if not any(begin <= after and before <= end for begin, end in faults)
    ]
    return max(gaps, default=0)


def buckets(acked: Sequence[AckedMessage]) -> list[dict[str, int | None]]:
    """Number of acknowledgements that took longer than the bound before and not longer than `le_ms`; None: no bound."""
    bounds: list[int | None] = [*LATENCY_BUCKETS_MS, None]
    rows: list[dict[str, int | None]] = []
    below = -1
    for bound in bounds:
        count = sum(item.latency_ms > below and (bound is None or item.latency_ms <= bound) for item in acked)
        rows.append({"le_ms": bound, "count": count})
        below = bound if bound is not None else below
    return rows


def broken_promises(mode: str, rounds: Sequence[Round], traffic: DrillTraffic, found: AuditResult) -> list[str]:
    """Sentences on promises of `mode` (docs/start/guarantees.md) that the audit contradicts."""
    broken = [f"a send was given up: {failure}" for failure in traffic.failures[:3]]
    if mode == "cp":
        if found.lost:
            broken.append(f"{len(found.lost)} acknowledged messages are lost")
        if found.misplaced:
            broken.append(f"{len(found.misplaced)} messages do not lie where their acknowledgement said")
        if found.swapped:
            broken.append(f"{found.swapped} pairs of one key were swapped")
        stale = sum(item.stale_acked for item in rounds)
        if stale:
            broken.append(f"a master that was cut off acknowledged {stale} sends")
        if found.copies > traffic.duplicates_possible:
            broken.append(f"{found.copies} duplicates, and retries explain {traffic.duplicates_possible}")
    else:
        at_ms = {item.msg_id: item.at_ms for item in traffic.acked}
        for item in rounds:
            at_ms |= item.direct
        unexplained = [key for key in found.lost if not _under_fault(at_ms[key], rounds)]
        if unexplained:
            broken.append(f"{len(unexplained)} messages are lost that were acknowledged apart from any fault")
    return broken


def _under_fault(at_ms: int, rounds: Sequence[Round]) -> bool:
    return any(item.fault_at_ms - AP_WINDOW_MS <= at_ms <= item.end_ms for item in rounds)


def as_json(result: Result) -> dict[str, Any]:
    """The one object that `rmqha drill -o json` prints. Times in ms; None where it does not apply."""
    found, rounds, traffic = result.found, result.rounds, result.traffic
    failover = percentiles(item.failover_ms for item in rounds)
    latencies = sorted(item.latency_ms for item in traffic.acked)
    return {
        "scenario": result.scenario,
        "mode": result.mode,
        "target": result.target,
        "n": result.wanted,
        "ok": not result.broken,
        "broken": result.broken,
        "rate_per_s": traffic.per_second,
        "acked": len(traffic.acked) + sum(len(item.direct) for item in rounds),
        "lost": len(found.lost) if found else None,
        "duplicates": found.copies if found else None,
        "misplaced": len(found.misplaced) if found else None,
        "swapped": found.swapped if found else None,
        "records": found.record_count if found else None,
        "given_up": len(traffic.failures),
        "lost_ids": found.lost[:SHOWN_LOST] if found else [],
        "failover_ms_p50": failover["p50"],
        "failover_ms_p90": failover["p90"],
        "failover_ms_max": failover["max"],
        "phases": {name: percentiles(item.phases.get(name) for item in rounds) for name in PHASES},
        "unavailable_ms": percentiles(unavailable_ms(traffic, item) for item in rounds),
        "unavailable_normal_ms": normal_gap_ms(traffic, rounds),
        "recovery_ms": percentiles(item.recovery_ms for item in rounds),
        "latency_ms": {
            "p50": latencies[len(latencies) // 2] if latencies else None,
            "p99": latencies[len(latencies) * 99 // 100] if latencies else None,
            "max": latencies[-1] if latencies else None,
        },
        "latency_buckets": buckets(traffic.acked),
        "rounds": [
            {
                "hit": item.hit,
                "master": item.master,
                "at_ms": item.fault_at_ms,
                "failover_ms": item.failover_ms,
                "phases": item.phases,
                "unavailable_ms": unavailable_ms(traffic, item),
                "recovery_ms": item.recovery_ms,
                "cut_bytes": item.cut_bytes,
                "stale_acked": item.stale_acked,
                "notes": item.notes,
            }
            for item in rounds
        ],
        "seconds": round(result.seconds, 1),
    }
