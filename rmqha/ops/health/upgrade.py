"""Plan of an upgrade: the order in which nodes get another release, and reasons not to begin. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from rmqha.ops.health.findings import judge
from rmqha.ops.snapshot import ClusterSnapshot, NodeReport, ServerKind


@dataclass(frozen=True, slots=True)
class UpgradeStep:
    """One node of the plan. `release`: the one that it runs, "" if it is not known; `is_due`: True if that is not the
    wanted one."""

    node: str
    kinds: tuple[str, ...]
    release: str
    is_due: bool
    leads: bool


@dataclass(frozen=True, slots=True)
class UpgradePlan:
    """Plan of an upgrade. `steps`: all nodes that answer, in the order of the upgrade; `blocks`: sentences on what must
    be mended first."""

    wanted: str
    steps: tuple[UpgradeStep, ...]
    blocks: tuple[str, ...]

    @property
    def due(self) -> list[UpgradeStep]:
        return [step for step in self.steps if step.is_due]


def plan_of(snapshot: ClusterSnapshot, wanted: str) -> UpgradePlan:
    """The plan for the release `wanted`: controllers first, the leader last of them; then name servers, slaves, and the
    masters last, so that each group changes its leader once."""
    nodes: dict[str, list[NodeReport]] = {}
    for report in snapshot.nodes:
        if report.answers and report.is_ours:
            nodes.setdefault(report.title, []).append(report)
    steps = [_step(title, reports, wanted) for title, reports in nodes.items()]
    steps.sort(key=lambda step: (rank(step.kinds, step.leads), step.node))
    blocks = [finding.line for finding in judge(snapshot, snapshot.groups).reasons]
    for step in steps:
        if step.is_due and not _may_become(step.release, wanted):
            blocks.append(
                f"{step.node} runs {step.release}: release {wanted} reads what the release before it wrote, and may "
                "not read that; install the releases between them first"
            )
    return UpgradePlan(wanted, tuple(steps), tuple(blocks))


def _step(title: str, reports: Sequence[NodeReport], wanted: str) -> UpgradeStep:
    release = next((report.release for report in reports if report.release), "")
    leads = any(report.leads or (report.replica is not None and report.replica.leads) for report in reports)
    return UpgradeStep(title, tuple(report.kind.value for report in reports), release, release != wanted, leads)


def rank(kinds: Collection[str], leads: bool) -> tuple[int, bool]:
    """The place of a node in the order of an upgrade, by the kinds of its servers (values of ServerKind)."""
    order = (ServerKind.CONTROLLER.value, ServerKind.NAME_SERVER.value)
    place = next((place for place, kind in enumerate(order) if kind in kinds), len(order))
    return place, leads


def _may_become(release: str, wanted: str) -> bool:
    """False only for what is known to be more than one minor release away; an unknown release is an old one."""
    one, other = _numbers(release), _numbers(wanted)
    if one is None or other is None:
        return True
    return one[0] == other[0] and abs(one[1] - other[1]) <= 1


def _numbers(release: str) -> tuple[int, int] | None:
    parts = release.split(".")
    return (int(parts[0]), int(parts[1])) if len(parts) > 1 and parts[0].isdigit() and parts[1].isdigit() else None
