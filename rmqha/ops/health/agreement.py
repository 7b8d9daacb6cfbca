"""Agreement among nodes that should know the same. Pure.

Agreement is no health: three controllers may agree that a group has no master.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial

from rmqha.ops.node_names import ReplicaNames, replica_names
from rmqha.ops.snapshot import ClusterSnapshot, NodeReport, ServerKind


class Agreement(Enum):
    MATCHING = "MATCHING"
    """All answered and say the same."""
    DIVERGENT = "DIVERGENT"
    """Two of them say different things."""
    PARTIAL = "PARTIAL"
    """The nodes that answered say the same, others did not answer."""
    UNAVAILABLE = "UNAVAILABLE"
    """No node answered."""


@dataclass(frozen=True, slots=True)
class View:
    """The view that one kind of nodes has of one group. `says`: node → sentence; `silent`: nodes that did not
    answer."""

    group: str
    about: str
    says: Mapping[str, str]
    silent: tuple[str, ...]

    @property
    def agreement(self) -> Agreement:
        if len(set(self.says.values())) > 1:
            return Agreement.DIVERGENT
        if not self.says:
            return Agreement.UNAVAILABLE
        return Agreement.PARTIAL if self.silent else Agreement.MATCHING


def views(snapshot: ClusterSnapshot, group: str) -> list[View]:
    """Views of the controllers, the name servers, the replicas. A kind that the group lacks is left out, and one whose
    nodes answer without a view: replicas of a static group name no master."""
    brokers = snapshot.brokers_of(group)
    is_static = any(report.keys.get("enableControllerMode") == "false" for report in brokers)
    found, names = [], replica_names(snapshot.nodes, group)
    controllers = snapshot.of_kind(ServerKind.CONTROLLER)
    if controllers and not is_static:
        found.append(_view(group, "controllers", controllers, partial(_controller_says, names)))
    name_servers = snapshot.of_kind(ServerKind.NAME_SERVER)
    if name_servers:
        found.append(_view(group, "name servers", name_servers, _name_server_says))
    if brokers and not is_static:
        found.append(_view(group, "replicas", brokers, partial(_replica_says, names)))
    return [view for view in found if view.says or view.silent]


def _view(group: str, about: str, reports: Sequence[NodeReport], says: Callable[[NodeReport, str], str | None]) -> View:
    told = {report.title: says(report, group) for report in reports if report.answers}
    return View(
        group,
        about,
        {title: sentence for title, sentence in told.items() if sentence is not None},
        tuple(report.title for report in reports if not report.answers),
    )


def _controller_says(names: ReplicaNames, report: NodeReport, group: str) -> str | None:
    """A controller's view in words; None of Apache's followers, which report no groups."""
    if not report.is_ours:
        row = report.apache_groups.get(group)
        if row is None:
            return None
        members = sorted(item.broker_id for item in row.in_sync_replicas)
        return _view_sentence(names, row.master_broker_id, row.master_epoch, members, row.sync_state_set_epoch)
    known = report.reported_groups.get(group)
    if known is None:
        return "knows no such group"
    return _view_sentence(
        names, known.master_broker_id, known.master_epoch, known.sync_state_set, known.sync_state_set_epoch
    )


def _view_sentence(
    names: ReplicaNames, master_id: int | None, epoch: int | None, members: Sequence[int], set_epoch: int | None
) -> str:
    master = "no master" if master_id is None else f"master {names.of(master_id)}"
    return f"{master}, epoch {epoch}, set [{names.all_of(members)}] of set epoch {set_epoch}"


def _name_server_says(report: NodeReport, group: str) -> str:
    if group not in report.routes:
        return "knows no such group"
    addresses = dict(report.routes[group])
    master = addresses.pop(0, None)
    slaves = ", ".join(f"{broker_id} at {where}" for broker_id, where in sorted(addresses.items())) or "none"
    return f"{f'master at {master}' if master else 'no master'}, slaves {slaves}"


def _replica_says(names: ReplicaNames, report: NodeReport, group: str) -> str | None:
    state = report.replica
    if state is None or state.role == "STARTING" or state.is_static:
        return None
    master_id = state.broker_id if state.leads else state.master_id
    return "no master" if master_id is None else f"master {names.of(master_id)}, epoch {state.epoch}"
