"""Samples of a cluster for `rmqha top`, judged beside the one before. Control plane."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime

from rmqha.host.asking.shell import Caller, now_s
from rmqha.model.error import UsageError
from rmqha.ops.health.findings import Health, judge
from rmqha.ops.replica_rows import Row, rows
from rmqha.ops.snapshot import ClusterSnapshot
from rmqha.ops.survey import BootstrapAddresses, Survey, SurveyScope


@dataclass(slots=True)
class TopSample:
    """One sample of a cluster, with rates since the one before it."""

    snapshot: ClusterSnapshot = field(default_factory=ClusterSnapshot)
    at_s: float = 0.0
    at: str = ""
    """Time of day when it began: the values shown are not younger."""
    rows: list[Row] = field(default_factory=list)
    health: Health = field(default_factory=lambda: judge(ClusterSnapshot(), []))


async def first_sample(client: Caller, bootstrap: BootstrapAddresses, group: str | None, timeout_s: float) -> TopSample:
    """A sample from which the rates of the next one count; it is judged only if no node answers. Raises UsageError for
    an unknown group."""
    at = f"{datetime.now():%H:%M:%S}"
    found = await Survey(client, bootstrap, timeout_s, group, SurveyScope.NAMED).run()
    chosen = _chosen(found, group)
    sample = TopSample(found, now_s(), at)
    return sample if found.answered else replace(sample, health=judge(found, chosen))


async def take_sample(
    client: Caller, bootstrap: BootstrapAddresses, group: str | None, timeout_s: float, before: TopSample
) -> TopSample:
    """A sample with the rates since `before`. Raises UsageError for an unknown group."""
    at = f"{datetime.now():%H:%M:%S}"
    found = (await Survey(client, bootstrap, timeout_s, group).run()).after(before.snapshot.replicas)
    chosen = _chosen(found, group)
    at_s = now_s()
    told = [row for row in rows(found, before.snapshot, at_s - before.at_s) if row.group in chosen]
    return TopSample(found, at_s, at, told, judge(found, chosen))


def _chosen(found: ClusterSnapshot, group: str | None) -> list[str]:
    known = found.groups
    if group is not None and group not in known and found.answered:
        raise UsageError(f"nobody knows a group {group!r}; see rmqha describe cluster")
    return known if group is None else [name for name in known if name == group]
