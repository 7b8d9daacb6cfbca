"""The rows of `rmqha top`, one for each replica, made of two snapshots. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from typing import Any

from rmqha.ops.snapshot import ClusterSnapshot, NodeReport
from rmqha.wire.state.controller_state import RegisteredReplica
from rmqha.wire.state.json_record import camel
from rmqha.wire.state.replica_state import LEADING_ROLES, ReplicaState, SlaveState, WaitingSends


@dataclass(frozen=True, slots=True)
class Row:
    """One replica; None where a value does not apply or is not known. Rates and latencies are of the sends that were
    acknowledged between two snapshots; a latency is the upper end of its power of two, in ms."""

    node: str
    address: str
    group: str
    broker_id: int | None
    role: str
    epoch: int | None = None
    in_set: bool | None = None
    lag_bytes: int | None = None
    lag_ms: int | None = None
    max_offset: int | None = None
    confirm_offset: int | None = None
    in_per_second: float | None = None
    out_per_second: float | None = None
    ack_p50_ms: int | None = None
    ack_p99_ms: int | None = None
    waiting: int | None = None
    in_maintenance: bool = False
    drained: bool = False
    error: str = ""

    @property
    def is_master(self) -> bool:
        return self.role.upper() in LEADING_ROLES

    def as_json(self) -> dict[str, Any]:
        return {camel(name): value for name, value in asdict(self).items()}


def rows(now: ClusterSnapshot, before: ClusterSnapshot, elapsed_s: float) -> list[Row]:
    """Rows of all replicas, by group and name. `before`: the snapshot of `elapsed_s` ago, an empty one the first
    time."""
    earlier = before.replicas
    found = []
    for name in now.groups:
        group = now.reported_group(name)
        told = {} if group is None else {item.address: item for item in group.replicas}
        brokers = now.brokers_of(name)
        master = _master(brokers)
        made = [
            _row(report, name, told.get(report.address), master, earlier.get(report.address), elapsed_s)
            for report in brokers
        ]
        found += sorted(made, key=lambda row: (row.node, row.address))
    return found


def _master(brokers: Iterable[NodeReport]) -> ReplicaState | None:
    """State of the master with the highest epoch; None if none answers."""
    masters = [report.replica for report in brokers if report.replica is not None and report.replica.leads]
    return max(masters, key=lambda state: state.epoch or 0, default=None)


def _row(
    report: NodeReport,
    group: str,
    told: RegisteredReplica | None,
    master: ReplicaState | None,
    before: ReplicaState | None,
    elapsed_s: float,
) -> Row:
    state = report.replica
    registered_id = told.broker_id if told is not None else None
    broker_id = registered_id if state is None else state.broker_id
    members = master.sync_state_set if master is not None else None
    in_set = None if members is None or broker_id is None else broker_id in members
    if told is not None and told.in_sync_state_set is not None:
        in_set = told.in_sync_state_set
    bare = Row(
        report.title,
        report.address,
        group,
        broker_id,
        "down" if report.error else "apache",
        in_set=in_set,
        in_maintenance=told is not None and told.in_maintenance,
        drained=told is not None and told.drained,
        error=report.error,
    )
    if state is None:
        return bare
    is_master = state.leads
    slaves = {item.broker_id: item for item in (master.slaves if master is not None else None) or ()}
    slave = slaves.get(broker_id, SlaveState()) if broker_id is not None else SlaveState()
    p50, p99 = latencies(state.waits, before.waits if before is not None else None) if is_master else (None, None)
    return replace(
        bare,
        role=state.role.lower(),
        epoch=state.epoch,
        lag_bytes=0 if is_master else slave.lag_bytes,
        lag_ms=0 if is_master else slave.lag_ms,
        max_offset=state.max_phy_offset,
        confirm_offset=state.confirm_offset,
        in_per_second=_rate(state.put_count, before.put_count if before is not None else None, elapsed_s),
        out_per_second=_rate(state.get_count, before.get_count if before is not None else None, elapsed_s),
        ack_p50_ms=p50,
        ack_p99_ms=p99,
        waiting=state.waits.count if state.waits is not None else None,
    )


def _rate(count: int | None, before: int | None, elapsed_s: float) -> float | None:
    """Growth of a count per second; None for the first snapshot, and after a restart of the broker."""
    if count is None or before is None or count < before or elapsed_s <= 0:
        return None
    return round((count - before) / elapsed_s, 1)


def latencies(now: WaitingSends | None, before: WaitingSends | None) -> tuple[int | None, int | None]:
    """p50 and p99 (ms) of the acknowledgements between two snapshots; None if there was none."""
    if now is None or before is None or now.latency_counts is None or before.latency_counts is None:
        return None, None
    old, new = before.latency_counts, now.latency_counts
    counts = [end - start for end, start in zip_longest(new, old, fillvalue=0)]
    if min(counts, default=0) < 0 or not any(counts):
        return None, None
    return _quantile(counts, 0.5), _quantile(counts, 0.99)


def _quantile(counts: Sequence[int], share: float) -> int:
    """Upper bound (ms) of the quantile `share`. Place n of `counts` counts waits of n bits, of less than 2**n ms."""
    wanted, seen = share * sum(counts), 0
    for place, count in enumerate(counts):
        seen += count
        if seen >= wanted:
            return (1 << place) - 1
    raise AssertionError("the shares of all places make the whole")
