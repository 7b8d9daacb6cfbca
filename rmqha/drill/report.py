"""The report of a drill: figures over its rounds, and the verdict. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from rmqha.drill.audit import AuditResult
from rmqha.drill.traffic import AckedMessage, DrillTraffic
from rmqha.ops.local.phases import PHASES

LATENCY_BUCKETS_MS = (5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
AP_WINDOW_MS = 1000
"""Time (ms) before a fault in which, and under it, acknowledgements of an AP master may be lost with it."""
SHOWN_LOST = 20


@dataclass(slots=True)
class Round:
    """One round of a drill, with one fault. Times are wall stamps; `healed_at_ms`: the fault was undone;
    `healthy_at_ms`: everything was healthy again."""

    hit: list[str]
    """Node names."""
    old_master: str
    fault_at_ms: int
    master: str = ""
    """The node that led (or, of the controllers, leads) after the fault."""
    healed_at_ms: int = 0
    healthy_at_ms: int = 0
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
        return self.healthy_at_ms - self.healed_at_ms if self.healthy_at_ms else None

    @property
    def end_ms(self) -> int:
        """Wall time until which sends count as under the fault."""
        return self.healthy_at_ms or self.healed_at_ms


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


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Percentiles of `n` values: p90 is the smallest one that nine tenths do not exceed. All None if there are none."""

    p50: int | None = None
    p90: int | None = None
    max: int | None = None
    n: int = 0

    @classmethod
    def of(cls, values: Iterable[int | None]) -> Percentiles:
        """Percentiles of the values that are not None."""
        there = sorted(value for value in values if value is not None)
        if not there:
            return cls()
        rank = -(-len(there) * 9 // 10) - 1
        return cls(round(statistics.median(there)), there[rank], there[-1], len(there))


@dataclass(frozen=True, slots=True)
class Latency:
    """Times of sends until their acknowledgement (ms); None without any."""

    p50: int | None
    p99: int | None
    max: int | None

    @classmethod
    def of(cls, latencies_ms: Iterable[int]) -> Latency:
        rows = sorted(latencies_ms)
        return cls(rows[len(rows) // 2], rows[len(rows) * 99 // 100], rows[-1]) if rows else cls(None, None, None)


@dataclass(frozen=True, slots=True)
class LatencyBucket:
    """Number of acknowledgements that took longer than the bucket before has, and not longer than `le_ms`; None: no
    bound."""

    le_ms: int | None
    count: int


@dataclass(frozen=True, slots=True)
class RoundReport:
    """One round in the report."""

    hit: list[str]
    master: str
    at_ms: int
    failover_ms: int | None
    phases: dict[str, int | None]
    unavailable_ms: int
    recovery_ms: int | None
    cut_bytes: int
    stale_acked: int
    notes: list[str]


@dataclass(frozen=True, slots=True)
class DrillReport:
    """All figures of a drill. Its fields are the members of the object that `rmqha drill -o json` prints. Times in ms;
    None where it does not apply."""

    scenario: str
    mode: str
    target: str
    n: int
    ok: bool
    broken: list[str]
    rate_per_s: int
    acked: int
    lost: int | None
    duplicates: int | None
    misplaced: int | None
    swapped: int | None
    records: int | None
    given_up: int
    lost_ids: list[str]
    failover_ms_p50: int | None
    failover_ms_p90: int | None
    failover_ms_max: int | None
    phases: dict[str, Percentiles]
    unavailable_ms: Percentiles
    unavailable_normal_ms: int
    recovery_ms: Percentiles
    latency_ms: Latency
    latency_buckets: list[LatencyBucket]
    rounds: list[RoundReport]
    seconds: float


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


def buckets(acked: Sequence[AckedMessage]) -> list[LatencyBucket]:
    """Each acknowledgement in one bucket."""
    rows: list[LatencyBucket] = []
    below = -1
    for bound in (*LATENCY_BUCKETS_MS, None):
        count = sum(item.latency_ms > below and (bound is None or item.latency_ms <= bound) for item in acked)
        rows.append(LatencyBucket(bound, count))
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


def report_of(result: Result) -> DrillReport:
    """Figures over all rounds."""
    found, rounds, traffic = result.found, result.rounds, result.traffic
    failover = Percentiles.of(item.failover_ms for item in rounds)
    return DrillReport(
        scenario=result.scenario,
        mode=result.mode,
        target=result.target,
        n=result.wanted,
        ok=not result.broken,
        broken=result.broken,
        rate_per_s=traffic.per_second,
        acked=len(traffic.acked) + sum(len(item.direct) for item in rounds),
        lost=len(found.lost) if found else None,
        duplicates=found.copies if found else None,
        misplaced=len(found.misplaced) if found else None,
        swapped=found.swapped if found else None,
        records=found.record_count if found else None,
        given_up=len(traffic.failures),
        lost_ids=found.lost[:SHOWN_LOST] if found else [],
        failover_ms_p50=failover.p50,
        failover_ms_p90=failover.p90,
        failover_ms_max=failover.max,
        phases={name: Percentiles.of(item.phases.get(name) for item in rounds) for name in PHASES},
        unavailable_ms=Percentiles.of(unavailable_ms(traffic, item) for item in rounds),
        unavailable_normal_ms=normal_gap_ms(traffic, rounds),
        recovery_ms=Percentiles.of(item.recovery_ms for item in rounds),
        latency_ms=Latency.of(item.latency_ms for item in traffic.acked),
        latency_buckets=buckets(traffic.acked),
        rounds=[
            RoundReport(
                hit=item.hit,
                master=item.master,
                at_ms=item.fault_at_ms,
                failover_ms=item.failover_ms,
                phases=item.phases,
                unavailable_ms=unavailable_ms(traffic, item),
                recovery_ms=item.recovery_ms,
                cut_bytes=item.cut_bytes,
                stale_acked=item.stale_acked,
                notes=item.notes,
            )
            for item in rounds
        ],
        seconds=round(result.seconds, 1),
    )
