"""Events of the controllers' log, and their CBOR form. Pure.

Only events enter the Raft log. An entry is the array [version, [event…]] and an event the array [kind, field…] in the
order of its class, so all hand-overs decided together share one append. Broker ids stand in the order in which the
replicas joined the set; on the wire they are sorted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, get_type_hints

import cbor2

from rmqha.model.error import StoreError
from rmqha.model.offset import BrokerId, Epoch

VERSION = 4
READS_VERSIONS = (1, 2, 3, 4)
"""Version 1 lacks the times and reasons of elections and GroupResizing, version 2 asyncLearner and ReplicaDrained,
version 3 MaintenanceSet. An entry has the lowest version that its events need, so controllers of the previous release
can follow a leader of this one until a newer feature is used."""


class Cause(IntEnum):
    """Cause of a change of mastership. On disk."""

    FIRST_ELECTION = 1
    MASTER_DEAD = 2
    MEMBER_RETURNED = 3
    DESIGNATED = 4
    CONTROLLED_SHUTDOWN = 5
    UNCLEAN_BY_OPERATOR = 6
    UNCLEAN_AUTOMATIC = 7
    UNCLEAN_BOOT = 8
    CLEANED = 9
    NO_LIVE_MEMBER = 10
    SOLE_REPLICA = 11
    """The only replica of its group booted unclean: no other log can be longer, so no operator is needed."""
    DISK_FAILED = 12
    DRAINED = 13
    PREFERRED = 14
    MAINTENANCE = 15


ACCEPTS_LOSS = frozenset({Cause.UNCLEAN_BY_OPERATOR, Cause.SOLE_REPLICA})
"""Causes that may choose a replica after an unclean boot. The replica is told so, else it would refuse (ruling 3)."""
MAY_LOSE = ACCEPTS_LOSS | {Cause.UNCLEAN_AUTOMATIC}
"""Causes whose master may lack records that were acknowledged before."""


@dataclass(frozen=True, slots=True)
class BrokerIdApplied:
    """A broker has got a free id; `check_code` lets only that broker repeat the request (two-phase)."""

    cluster_name: str
    broker_name: str
    broker_id: BrokerId
    address: str
    check_code: str


@dataclass(frozen=True, slots=True)
class BrokerRegistered:
    """Registration with the replica's own values. An Apache broker has `total_replicas` 0 and `ha_mode` "". An async
    learner is in no set and never elected."""

    broker_name: str
    broker_id: BrokerId
    address: str
    ha_address: str
    total_replicas: int
    ha_mode: str
    async_learner: bool = False


@dataclass(frozen=True, slots=True)
class GroupSized:
    """totalReplicas of the group from now on (ruling 15); ends a running change."""

    broker_name: str
    total_replicas: int


@dataclass(frozen=True, slots=True)
class GroupResizing:
    """Begin of a change of totalReplicas: until GroupSized the larger of both numbers counts (ruling 15)."""

    broker_name: str
    total_replicas: int


@dataclass(frozen=True, slots=True)
class SyncStateSetAltered:
    """New SyncStateSet, valid only under `master_epoch` and directly after set epoch `sync_state_set_epoch` - 1."""

    broker_name: str
    master_epoch: Epoch
    sync_state_set_epoch: int
    sync_state_set: tuple[BrokerId, ...]
    eligible: tuple[BrokerId, ...]


@dataclass(frozen=True, slots=True)
class MasterElected:
    """New master: the set becomes {broker_id}, its epoch rises by one. `master_epoch` is higher than every earlier one.
    `at_ms` is the leader's wall clock and `reason` its sentence: both only for people."""

    broker_name: str
    broker_id: BrokerId
    master_epoch: Epoch
    eligible: tuple[BrokerId, ...]
    cause: Cause
    at_ms: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class MasterVacated:
    """The master of `master_epoch` is dead and has no successor. The set stays."""

    broker_name: str
    master_epoch: Epoch
    cause: Cause
    at_ms: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class MemberRemoved:
    """Removal of a replica that booted unclean, or with an older copy of its disk, from the set, the eligible replicas
    and the mastership (ruling 3)."""

    broker_name: str
    broker_id: BrokerId
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class BrokersCleaned:
    """Removal of replicas by an operator. Their ids and the master epoch are never issued again."""

    broker_name: str
    broker_ids: tuple[BrokerId, ...]
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class ReplicaDrained:
    """Drain of a replica by an operator (`drained`), or its end."""

    broker_name: str
    broker_id: BrokerId
    drained: bool


@dataclass(frozen=True, slots=True)
class MaintenanceSet:
    """Begin (`on`) or end of an operator's maintenance of a replica: it stays in the set, and others lead."""

    broker_name: str
    broker_id: BrokerId
    on: bool


Event = (
    BrokerIdApplied
    | BrokerRegistered
    | GroupSized
    | SyncStateSetAltered
    | MasterElected
    | MasterVacated
    | MemberRemoved
    | BrokersCleaned
    | GroupResizing
    | ReplicaDrained
    | MaintenanceSet
)

_KINDS: tuple[type[Event], ...] = (
    BrokerIdApplied,
    BrokerRegistered,
    GroupSized,
    SyncStateSetAltered,
    MasterElected,
    MasterVacated,
    MemberRemoved,
    BrokersCleaned,
    GroupResizing,
    ReplicaDrained,
    MaintenanceSet,
)
_NUMBER_OF = {kind: number for number, kind in enumerate(_KINDS, 1)}
_FIELDS = {kind: tuple(item.name for item in dataclasses.fields(kind)) for kind in _KINDS}
_IS_TUPLE = {kind: tuple("tuple" in str(get_type_hints(kind)[name]) for name in _FIELDS[kind]) for kind in _KINDS}
_CAUSE_PLACE = {kind: _FIELDS[kind].index("cause") for kind in _KINDS if "cause" in _FIELDS[kind]}


def encode_events(events: Sequence[Event]) -> bytes:
    """Bytes of one entry of the Raft log."""
    version = VERSION if any(isinstance(event, MaintenanceSet) for event in events) else 3
    rows = [[_NUMBER_OF[type(event)], *(getattr(event, name) for name in _FIELDS[type(event)])] for event in events]
    return cbor2.dumps([version, rows])


def array(value: Any) -> list[Any]:
    """The value, if it is a CBOR array. Raises ValueError for a map or a text, over which one can iterate as well."""
    if type(value) is not list:
        raise ValueError(f"a {type(value).__name__} stands in the place of an array")
    return value


def _decode_event(row: list[Any], version: int) -> Event:
    """Event of a row. A row of versions before 3 lacks the later fields, which keep their defaults."""
    if type(row[0]) is not int or not 1 <= row[0] <= len(_KINDS):
        raise ValueError(f"there is no event of kind {row[0]!r}")
    kind = _KINDS[row[0] - 1]
    if version >= 3 and len(row) != 1 + len(_FIELDS[kind]):
        raise ValueError(f"an event {kind.__name__} of {len(row) - 1} fields")
    values: list[Any] = [
        tuple(array(value)) if is_tuple else value for value, is_tuple in zip(row[1:], _IS_TUPLE[kind], strict=False)
    ]
    if kind in _CAUSE_PLACE:
        values[_CAUSE_PLACE[kind]] = Cause(values[_CAUSE_PLACE[kind]])
    event: Event = kind(*values)
    return event


def decode_events(data: bytes) -> list[Event]:
    """Events of an entry. Raises StoreError for another version, or bytes that are no events."""
    try:
        version, rows = cbor2.loads(data)
        if version in READS_VERSIONS:
            return [_decode_event(array(row), version) for row in array(rows)]
    except (cbor2.CBORDecodeError, TypeError, ValueError, IndexError) as problem:
        raise StoreError(f"an entry of the controllers' log cannot be read: {problem}") from problem
    raise StoreError(f"an entry of the controllers' log has version {version}; this release reads up to {VERSION}")
