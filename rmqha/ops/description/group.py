"""Descriptions of groups and replicas: state, promise, keys, contradictions. Control plane."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from rmqha.host.asking.shell import Caller
from rmqha.model.error import UnreachableError
from rmqha.ops.cluster_view import damage_sentence
from rmqha.ops.group_view import GroupReport, controllers_are_ours, elects_uncleanly, promise_of
from rmqha.ops.guarantee import EffectiveValue, Guarantee, conditions
from rmqha.ops.snapshot import NodeReport
from rmqha.wire.state.json_record import JsonRecord
from rmqha.wire.state.replica_state import AckRule


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ReplicaDescription(JsonRecord):
    """A replica by its own report, and by its master's; None where a value is not known."""

    address: str
    routed_id: int | None
    broker_id: int | None
    role: str | None
    epoch: int | None
    max_offset: int | None
    confirm_offset: int | None
    in_set: bool | None
    lag_bytes: int | None
    unclean: bool | None
    disk_problem: str | None
    damage: str | None
    refusal: str | None
    error: str | None

    @property
    def troubles(self) -> list[str]:
        """Sentences about what is wrong with a replica that answers."""
        named = (("refuses to follow", self.refusal), ("disk", self.disk_problem), ("log", self.damage))
        found = [f"{name}: {trouble}" for name, trouble in named if trouble]
        if self.unclean:
            found.append("unclean: it lost power, so it leads nobody until it has followed a master to its end")
        return found


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class PromiseDescription(JsonRecord):
    """The promise of a group (`Guarantee`), with the conditions on which it holds."""

    kind: str
    acknowledged: str
    losses: Sequence[str]
    notes: Sequence[str]
    conditions: Sequence[str] = ()

    @classmethod
    def of(cls, found: Guarantee, wants: Sequence[str] = ()) -> PromiseDescription:
        return cls(**asdict(found), conditions=wants)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class KeyDescription(JsonRecord):
    """An effective key with its source."""

    key: str
    value: str
    source: str

    @classmethod
    def all_of(cls, keys: Iterable[EffectiveValue]) -> list[KeyDescription]:
        return [cls(**asdict(item)) for item in keys]


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class GroupDescription(JsonRecord):
    """A group by the report of its master, else of another broker (`told_by`); None where a value is not known."""

    group: str
    cluster: str
    told_by: str
    master: str | None
    master_id: int | None
    epoch: int | None
    total_replicas: int | None
    sync_state_set: Sequence[int] | None
    writable: bool | None
    why_not_writable: str | None
    one_copy_synced: bool | None
    ack_rule: AckRule | None
    replicas: Sequence[ReplicaDescription]
    missing_replicas: int
    guarantee: PromiseDescription
    keys: Sequence[KeyDescription]
    contradictions: Sequence[str]

    @property
    def is_healthy(self) -> bool:
        """True if the group takes messages and nothing contradicts. A Java master, which does not tell whether it is
        writable, counts as writable."""
        return self.master is not None and self.writable is not False and not self.contradictions


async def ask_conditions(client: Caller, group: GroupReport) -> list[str]:
    """Conditions of the group's promise, asked of its controllers."""
    reporter = _reporting_broker(group)
    if reporter is None:
        return []
    addresses = [item for item in reporter.keys.get("controllerAddr", "").split(";") if item]
    static = reporter.keys.get("enableControllerMode") == "false"
    return conditions(
        controllers_ours=None if static else await controllers_are_ours(client, addresses),
        master_ours=reporter.is_ours,
        unclean=None if static else await elects_uncleanly(client, addresses),
        is_cp=reporter.keys.get("haMode") == "cp",
        is_static=static,
    )


def _reporting_broker(group: GroupReport) -> NodeReport | None:
    """The report whose keys count: the master's, else that of any broker that answers; None without one."""
    found = [view for view in group.masters if not view.error] or group.answering
    return found[0] if found else None


def describe_replica(view: NodeReport, group: GroupReport | None) -> ReplicaDescription:
    state = view.replica
    master = group.masters[0].replica if group is not None and group.masters else None
    members = master.sync_state_set if master is not None else None
    broker_id = state.broker_id if state is not None else None
    slaves = (master.slaves if master is not None else None) or ()
    lag_bytes = next((item.lag_bytes for item in slaves if item.broker_id == broker_id is not None), None)
    return ReplicaDescription(
        address=view.address,
        routed_id=view.routed_id,
        broker_id=broker_id,
        role=state.role if state else None if view.is_ours else "APACHE",
        epoch=state.epoch if state else None,
        max_offset=state.max_phy_offset if state else None,
        confirm_offset=state.confirm_offset if state else None,
        in_set=None if members is None or broker_id is None else broker_id in members,
        lag_bytes=0 if state and state.leads else lag_bytes,
        unclean=state.unclean if state else None,
        disk_problem=(state.disk_problem if state else None) or None,
        damage=(damage_sentence(state) if state else None) or None,
        refusal=(state.refusal if state else None) or None,
        error=view.error or None,
    )


def describe_group(group: GroupReport, wants: Sequence[str]) -> GroupDescription:
    """Description of a group; `wants`: conditions of its promise. UnreachableError if no broker of it answers."""
    reporter = _reporting_broker(group)
    if reporter is None:
        trouble = "; ".join(sorted({view.error for view in group.brokers}))
        raise UnreachableError(f"no broker of group {group.name} answers: {trouble}")
    master = group.masters[0] if group.masters else None
    state = master.replica if master else None
    total = (state.total_replicas if state else None) or 0
    keys, found = promise_of(reporter)
    counted = sum(1 for view in group.brokers if view.keys.get("asyncLearner") != "true")
    return GroupDescription(
        group=group.name,
        cluster=group.cluster,
        told_by=reporter.address,
        master=master.address if master else None,
        master_id=state.broker_id if state else None,
        epoch=state.epoch if state else None,
        total_replicas=state.total_replicas if state else None,
        sync_state_set=state.sync_state_set if state else None,
        writable=state.writable if state else None,
        why_not_writable=(state.why_not_writable if state else None) or None,
        one_copy_synced=state.one_copy_synced if state else None,
        ack_rule=state.ack_rule if state else None,
        replicas=[describe_replica(view, group) for view in group.brokers],
        missing_replicas=max(0, total - counted),
        guarantee=PromiseDescription.of(found, wants),
        keys=KeyDescription.all_of(keys.values()),
        contradictions=_differences(group),
    )


def _differences(group: GroupReport) -> list[str]:
    """Keys that must be equal on all replicas and are not."""
    found = []
    for key in ("haMode", "flushDiskType", "totalReplicas", "mappedFileSizeCommitLog", "minInSyncReplicas"):
        values = {view.keys[key]: view.address for view in group.brokers if key in view.keys}
        if len(values) > 1:
            told = ", ".join(f"{value or 'empty'} on {address}" for value, address in sorted(values.items()))
            found.append(f"{key} differs between replicas: {told}")
    return found
