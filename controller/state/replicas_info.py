"""State of every broker group, changed by events. Pure, the same on every member.

`apply` is total: an event that no longer fits (a stale master epoch, an unknown replica) changes nothing. The leader
decides on applied state only, one change of a group at a time, so an event that it proposed and that commits in its
own term always fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from controller.state.event import (
    ACCEPTS_LOSS,
    MAY_LOSE,
    BrokerIdApplied,
    BrokerRegistered,
    BrokersCleaned,
    Cause,
    Event,
    GroupResizing,
    GroupSized,
    MaintenanceSet,
    MasterElected,
    MasterVacated,
    MemberRemoved,
    ReplicaDrained,
    SyncStateSetAltered,
)
from rmqha.model.identity import name_in_check_code, name_replicas, node_label
from rmqha.model.offset import NO_EPOCH, BrokerId, Epoch

REMEMBERED_ELECTIONS = 10
FIRST_BROKER_ID = BrokerId(1)
"""First id that is issued."""


@dataclass(slots=True)
class ReplicaInfo:
    """Replica of a group. Clients and controllers connect to `address`, slaves to `ha_address` ("" on Apache's
    brokers)."""

    broker_id: BrokerId
    address: str
    check_code: str
    ha_address: str = ""
    total_replicas: int = 0
    ha_mode: str = ""
    async_learner: bool = False
    joined_epoch: Epoch = NO_EPOCH
    """Newest epoch whose master has taken it into the set: it has accepted that durably."""

    @property
    def node_name(self) -> str:
        """Node name of `rmqha`; "" on an Apache broker."""
        return name_in_check_code(self.check_code)


@dataclass(frozen=True, slots=True)
class ElectionRecord:
    """Past election; `broker_id` None: the mastership was vacated."""

    master_epoch: Epoch
    broker_id: BrokerId | None
    cause: Cause
    at_ms: int = 0
    """Wall clock (ms) of the leading controller; 0 in records of an earlier release."""
    reason: str = ""


@dataclass(slots=True)
class BrokerGroup:
    """One broker group. A group whose replicas have all been cleaned stays, so that its epochs and ids never repeat.

    `set_known` is False before the first election and after a clean of the last member (ruling 8). A known set may be
    empty: its last member lost power (ruling 3), and only an operator can decide whom to elect."""

    cluster_name: str
    broker_name: str
    place: int = 0
    """Number of older groups; the same on every member."""
    next_broker_id: BrokerId = FIRST_BROKER_ID
    replicas: dict[BrokerId, ReplicaInfo] = field(default_factory=dict)
    """Replicas by id, ascending."""
    total_replicas: int = 0
    """The declared count of replicas; 0 until a replica has declared it."""
    next_total_replicas: int = 0
    """New totalReplicas during a change; else 0."""
    master_id: BrokerId | None = None
    master_epoch: Epoch = NO_EPOCH
    sync_state_set: tuple[BrokerId, ...] = ()
    """Ids of the confirmed replicas, in the order in which they joined."""
    sync_state_set_epoch: int = 0
    eligible: tuple[BrokerId, ...] = ()
    """Replicas outside the set that surely hold every acknowledged message (ruling 9)."""
    unclean_ids: tuple[BrokerId, ...] = ()
    """Members that booted unclean, or with an older copy of their disk, since the last election."""
    drained_ids: tuple[BrokerId, ...] = ()
    """Replicas that an operator keeps out of the set."""
    maintenance_ids: tuple[BrokerId, ...] = ()
    """Replicas that an operator works on: they stay members, and lead only if no other replica can."""
    set_known: bool = False
    elections: tuple[ElectionRecord, ...] = ()
    """Last elections, the oldest first. If none of them may have lost messages, the newest older one that may stands
    first."""

    @property
    def is_cp(self) -> bool:
        """True if at least one replica promises CP: the controllers then hold no unclean election by themselves."""
        return any(replica.ha_mode == "cp" for replica in self.replicas.values())

    @property
    def counted_ids(self) -> tuple[BrokerId, ...]:
        """Replicas that totalReplicas counts: all but async learners."""
        return tuple(broker_id for broker_id, replica in self.replicas.items() if not replica.async_learner)

    @property
    def withheld_ids(self) -> frozenset[BrokerId]:
        """Replicas that an operator keeps from leading while others can."""
        return frozenset(self.drained_ids + self.maintenance_ids)

    @property
    def accepts_loss(self) -> bool:
        """True if the present master's election could choose a replica after an unclean boot."""
        last = self.elections[-1] if self.elections else None
        return last is not None and last.master_epoch == self.master_epoch and last.cause in ACCEPTS_LOSS

    @property
    def unclean_epoch(self) -> Epoch:
        """Newest epoch whose master may lack records that were acknowledged before; NO_EPOCH if there is none."""
        return max((item.master_epoch for item in self.elections if item.cause in MAY_LOSE), default=NO_EPOCH)

    @property
    def binding_total_replicas(self) -> int:
        """totalReplicas that brokers are told: during a change the larger number, for the larger majority (ruling
        15)."""
        return max(self.total_replicas, self.next_total_replicas)

    @property
    def electable_ids(self) -> tuple[BrokerId, ...]:
        """Replicas that may be elected, the longest in the set first."""
        return self.sync_state_set + self.eligible

    @property
    def master_address(self) -> str:
        return "" if self.master_id is None else self.replicas[self.master_id].address

    def label(self, broker_id: int) -> str:
        """Name of a replica in sentences."""
        replica = self.replicas.get(BrokerId(broker_id))
        return f"replica {broker_id}" if replica is None else node_label(replica.node_name, broker_id, replica.address)

    def named(self, sentence: str) -> str:
        """A broker's sentence with names of replicas for their ids: a broker knows only ids."""
        return name_replicas(sentence, self.label)

    def labels(self, broker_ids: Iterable[int]) -> str:
        """Names of several replicas, by their ids."""
        return ", ".join(map(self.label, sorted(broker_ids)))

    def remember(self, broker_id: BrokerId | None, cause: Cause, at_ms: int, reason: str = "") -> None:
        known = (*self.elections, ElectionRecord(self.master_epoch, broker_id, cause, at_ms, reason))
        old, last = known[:-REMEMBERED_ELECTIONS], known[-REMEMBERED_ELECTIONS:]
        if old and old[-1].cause in MAY_LOSE and not any(item.cause in MAY_LOSE for item in last):
            last = (old[-1], *last[1:])
        self.elections = last


def min_in_sync_replicas(group: BrokerGroup, master_id: BrokerId) -> int:
    """Members that the confirmed set must have before this master may acknowledge.

    1 in AP, on Apache brokers and with up to two replicas: there a replica alone in the set acknowledges alone (ruling
    6). The smaller of the declared and the stored number of replicas counts."""
    master = group.replicas[master_id]
    if master.ha_mode != "cp" or not master.total_replicas:
        return 1
    total_replicas = min(master.total_replicas, group.total_replicas or master.total_replicas)
    return 1 if total_replicas <= 2 else total_replicas // 2 + 1


def _end_eligibility(group: BrokerGroup) -> None:
    """End the eligibility in CP if the set can acknowledge: replicas outside may then lack acknowledged records. A
    smaller totalReplicas can cause that without a change of the set (simulation: `operators`, seed 500351)."""
    if group.eligible:
        masters = group.counted_ids if group.master_id is None else (group.master_id,)
        promising = [item for item in masters if group.replicas[item].ha_mode == "cp"]
        if promising and len(group.sync_state_set) >= min(min_in_sync_replicas(group, item) for item in promising):
            group.eligible = ()


def without(ids: tuple[BrokerId, ...], *gone: BrokerId) -> tuple[BrokerId, ...]:
    return tuple(broker_id for broker_id in ids if broker_id not in gone)


class ReplicasInfo:
    """All groups by name. Only `apply` changes it."""

    def __init__(self) -> None:
        self.groups: dict[str, BrokerGroup] = {}
        self._names: list[str] = []

    @property
    def names(self) -> list[str]:
        """Names of all groups, the oldest first; read only. The list only grows, so a reader in slices remembers its
        length and needs no copy."""
        if len(self._names) != len(self.groups):
            self._names = list(self.groups)
        return self._names

    def replace(self, other: ReplicasInfo) -> dict[str, BrokerGroup]:
        """Take over the state of `other`, which must not be used any more. Returns the old groups for the caller to
        free in slices: freeing a million replicas at once takes a second."""
        before = self.groups
        self.groups, self._names = other.groups, other.names
        return before

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ReplicasInfo) and self.groups == other.groups

    __hash__ = None  # type: ignore[assignment]

    def group(self, broker_name: str) -> BrokerGroup | None:
        """Group by name; None also if all its replicas have been cleaned."""
        group = self.groups.get(broker_name)
        return group if group is not None and group.replicas else None

    def apply(self, event: Event) -> None:
        if isinstance(event, BrokerIdApplied):
            self._broker_id_applied(event)
            return
        group = self.groups.get(event.broker_name)
        if group is not None:
            _APPLY[type(event)](group, event)
            _end_eligibility(group)

    def _broker_id_applied(self, event: BrokerIdApplied) -> None:
        group = self.groups.get(event.broker_name)
        if group is None:
            names = self.names
            group = self.groups[event.broker_name] = BrokerGroup(event.cluster_name, event.broker_name, len(names))
            names.append(event.broker_name)
        if event.broker_id in group.replicas:
            return
        if not group.replicas:
            group.cluster_name = event.cluster_name
        replica = ReplicaInfo(event.broker_id, event.address, event.check_code)
        group.replicas = dict(sorted([*group.replicas.items(), (event.broker_id, replica)]))
        group.next_broker_id = BrokerId(max(group.next_broker_id, event.broker_id + 1))


def _broker_registered(group: BrokerGroup, event: BrokerRegistered) -> None:
    replica = group.replicas.get(event.broker_id)
    if replica is not None:
        replica.address, replica.ha_address = event.address, event.ha_address
        replica.total_replicas, replica.ha_mode = event.total_replicas, event.ha_mode
        replica.async_learner = event.async_learner
        if event.async_learner:
            _drop_members(group, (event.broker_id,), Cause.DRAINED, 0)


def _group_sized(group: BrokerGroup, event: GroupSized) -> None:
    group.total_replicas, group.next_total_replicas = event.total_replicas, 0


def _group_resizing(group: BrokerGroup, event: GroupResizing) -> None:
    group.next_total_replicas = 0 if event.total_replicas == group.total_replicas else event.total_replicas


def _sync_state_set_altered(group: BrokerGroup, event: SyncStateSetAltered) -> None:
    fits = (
        event.master_epoch == group.master_epoch
        and event.sync_state_set_epoch == group.sync_state_set_epoch + 1
        and group.master_id in event.sync_state_set
        and all(member in group.replicas for member in event.sync_state_set + event.eligible)
    )
    if fits:
        group.sync_state_set, group.sync_state_set_epoch = event.sync_state_set, event.sync_state_set_epoch
        group.eligible = without(event.eligible, *event.sync_state_set)
        for member in event.sync_state_set:
            group.replicas[member].joined_epoch = event.master_epoch
        group.unclean_ids = without(group.unclean_ids, *event.sync_state_set)


def _master_elected(group: BrokerGroup, event: MasterElected) -> None:
    if event.master_epoch <= group.master_epoch or event.broker_id not in group.replicas:
        return
    group.master_id, group.master_epoch, group.set_known = event.broker_id, event.master_epoch, True
    group.sync_state_set, group.unclean_ids = (event.broker_id,), ()
    group.sync_state_set_epoch += 1
    group.eligible = tuple(
        member for member in event.eligible if member in group.replicas and member != event.broker_id
    )
    group.remember(event.broker_id, event.cause, event.at_ms, event.reason)


def _master_vacated(group: BrokerGroup, event: MasterVacated) -> None:
    if group.master_id is not None and event.master_epoch == group.master_epoch:
        group.master_id = None
        group.remember(None, event.cause, event.at_ms, event.reason)


def _drop_members(group: BrokerGroup, gone: tuple[BrokerId, ...], cause: Cause, at_ms: int) -> None:
    """Remove replicas from the set and the eligible ones. The set's epoch rises if the set changed, which fences
    requests of a master with the old set."""
    left = without(group.sync_state_set, *gone)
    if left != group.sync_state_set:
        group.sync_state_set, group.sync_state_set_epoch = left, group.sync_state_set_epoch + 1
    group.eligible = without(group.eligible, *gone)
    if group.master_id in gone:
        group.master_id = None
        group.remember(None, cause, at_ms)


def _member_removed(group: BrokerGroup, event: MemberRemoved) -> None:
    if event.broker_id in group.electable_ids:
        group.unclean_ids = (*without(group.unclean_ids, event.broker_id), event.broker_id)
        _drop_members(group, (event.broker_id,), Cause.UNCLEAN_BOOT, event.at_ms)


def _replica_drained(group: BrokerGroup, event: ReplicaDrained) -> None:
    """Drain or restore a replica. A drained master stays in the set until its mastership ends."""
    left = without(group.drained_ids, event.broker_id)
    group.drained_ids = (*left, event.broker_id) if event.drained and event.broker_id in group.replicas else left
    if event.drained and event.broker_id != group.master_id:
        _drop_members(group, (event.broker_id,), Cause.DRAINED, 0)


def _maintenance_set(group: BrokerGroup, event: MaintenanceSet) -> None:
    left = without(group.maintenance_ids, event.broker_id)
    group.maintenance_ids = (*left, event.broker_id) if event.on and event.broker_id in group.replicas else left


def _brokers_cleaned(group: BrokerGroup, event: BrokersCleaned) -> None:
    gone = tuple(broker_id for broker_id in event.broker_ids if broker_id in group.replicas)
    had_members = bool(group.electable_ids)
    _drop_members(group, gone, Cause.CLEANED, event.at_ms)
    group.unclean_ids = without(group.unclean_ids, *gone)
    group.drained_ids = without(group.drained_ids, *gone)
    group.maintenance_ids = without(group.maintenance_ids, *gone)
    for broker_id in gone:
        del group.replicas[broker_id]
    if (had_members and not group.electable_ids) or not group.replicas:
        group.set_known = False
    if not group.replicas:
        group.total_replicas = group.next_total_replicas = 0


_APPLY: dict[type[Any], Callable[[BrokerGroup, Any], None]] = {
    BrokerRegistered: _broker_registered,
    GroupSized: _group_sized,
    GroupResizing: _group_resizing,
    SyncStateSetAltered: _sync_state_set_altered,
    MasterElected: _master_elected,
    MasterVacated: _master_vacated,
    MemberRemoved: _member_removed,
    BrokersCleaned: _brokers_cleaned,
    ReplicaDrained: _replica_drained,
    MaintenanceSet: _maintenance_set,
}
