"""Membership of a group: broker ids, registrations, and changes by operators. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from controller.decisions.elect_master import LogEnd, bytes_at_stake
from controller.decisions.refusal import Refusal
from controller.state.event import (
    BrokerIdApplied,
    BrokerRegistered,
    BrokersCleaned,
    Event,
    GroupResizing,
    GroupSized,
    MaintenanceSet,
    MemberRemoved,
    ReplicaDrained,
)
from controller.state.replicas_info import FIRST_BROKER_ID, BrokerGroup
from rmqha.model.code import ResponseCode
from rmqha.model.identity import parse_address
from rmqha.model.offset import BrokerId

# --- issue of broker ids: read the next one (1012), then apply for it (1013) ------------------------------------------
# Two brokers may read the same id. The register check code decides which of them gets it, and lets only that broker
# repeat a request whose answer was lost. This is RocketMQ's two-phase application, except that a group unknown to the
# controllers accepts any id: if the controllers lost their disks, the brokers of the group keep their ids (ruling 8).

MAX_BROKER_ID = 2**31 - 1
MAX_NAME_CHARS = 255


def next_broker_id(group: BrokerGroup | None) -> BrokerId:
    """Next free id. A group whose replicas have all been cleaned counts too: an id is never issued twice."""
    return FIRST_BROKER_ID if group is None else group.next_broker_id


def apply_broker_id(
    group: BrokerGroup | None,
    cluster_name: str,
    broker_name: str,
    broker_id: int,
    check_code: str,
    *,
    recorded: bool = False,
) -> BrokerIdApplied | Refusal | None:
    """Event of an application for an id; None if the broker has the id already. `recorded`: the id is from the broker's
    file, which cannot tell whether a replica with this id was cleaned."""
    if not 0 < len(cluster_name) <= MAX_NAME_CHARS or not 0 < len(broker_name) <= MAX_NAME_CHARS:
        return Refusal(ResponseCode.CONTROLLER_INVALID_REQUEST, "clusterName and brokerName must not be empty or long")
    if not FIRST_BROKER_ID <= broker_id <= MAX_BROKER_ID or not 0 < len(check_code) <= MAX_NAME_CHARS:
        return Refusal(
            ResponseCode.CONTROLLER_BROKER_ID_INVALID,
            f"id {broker_id} of {broker_name} must be positive and come with a register check code",
        )
    if group is not None and group.replicas and group.cluster_name != cluster_name:
        return Refusal(
            ResponseCode.CONTROLLER_BROKER_ID_INVALID,
            f"{broker_name} belongs to cluster {group.cluster_name}, not {cluster_name}; choose another brokerName",
        )
    owner = group.replicas.get(BrokerId(broker_id)) if group is not None else None
    if owner is None and recorded and group is not None and broker_id < group.next_broker_id and group.elections:
        # Brokers of a new group come in any order. Later, a lower free id belonged to a replica that was cleaned.
        return Refusal(
            ResponseCode.CONTROLLER_BROKER_ID_INVALID,
            f"id {broker_id} of {broker_name} is below the next one, {group.next_broker_id}; ask for that",
        )
    if owner is None:
        address = check_code.partition(";")[0]
        return BrokerIdApplied(cluster_name, broker_name, BrokerId(broker_id), address, check_code)
    if owner.check_code == check_code:
        return None
    return Refusal(
        ResponseCode.CONTROLLER_BROKER_ID_INVALID, f"id {broker_id} of {broker_name} is taken; ask for the next one"
    )


# --- registration of a broker (1003) ----------------------------------------------------------------------------------
# An unclean boot takes the replica out of the set before anything else (ruling 3). The first totalReplicas that a
# replica declares is the group's (ruling 15): later, different declarations change nothing and are shown. A replica
# that promises CP for the first time must declare a number, at least that of the live replicas: else a majority of it
# would be too few.

MAX_TOTAL_REPLICAS = 9


@dataclass(frozen=True, slots=True)
class ReplicaRegistration:
    """Fields of the request. An Apache broker sends no haAddress, totalReplicas, haMode and unclean."""

    broker_name: str
    broker_id: BrokerId
    address: str
    ha_address: str = ""
    total_replicas: int = 0
    ha_mode: str = ""
    unclean: bool = False
    async_learner: bool = False
    accepted_epoch: int | None = None
    """Highest master epoch that the replica has accepted; None if the request lacks it."""


def register(
    group: BrokerGroup | None, request: ReplicaRegistration, is_alive: Callable[[BrokerId], bool], at_ms: int = 0
) -> list[Event] | Refusal:
    """Events of a registration, [] if nothing changes. `at_ms`: wall clock, for people."""
    broker_id = request.broker_id
    if group is None or broker_id not in group.replicas:
        return Refusal(
            ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
            f"{request.broker_name} has no replica {broker_id} here; apply for the id first",
        )
    if problem := _problem(request) or _too_few(group, request, is_alive):
        return Refusal(ResponseCode.CONTROLLER_INVALID_REQUEST, problem)
    if request.async_learner and broker_id in group.electable_ids and group.electable_ids == (broker_id,):
        return Refusal(
            ResponseCode.CONTROLLER_INVALID_REQUEST,
            f"{group.label(broker_id)} is the last member of the SyncStateSet: it cannot become an async learner "
            "before another is in the set",
        )
    events: list[Event] = []
    # The request was sent before the replica learned of its election in spite of its unclean boot: the answer tells it.
    accepted = group.master_epoch if request.accepted_epoch is None else request.accepted_epoch
    unaware = group.accepts_loss and group.master_id == broker_id and accepted < group.master_epoch
    if (request.unclean or has_forgotten(group, request)) and broker_id in group.electable_ids and not unaware:
        events.append(MemberRemoved(group.broker_name, broker_id, at_ms))
    replica = group.replicas[broker_id]
    registered = BrokerRegistered(
        group.broker_name,
        broker_id,
        request.address,
        request.ha_address,
        request.total_replicas,
        request.ha_mode,
        request.async_learner,
    )
    known = (
        replica.address,
        replica.ha_address,
        replica.total_replicas,
        replica.ha_mode,
        replica.async_learner,
    )
    if BrokerRegistered(group.broker_name, broker_id, *known) != registered:
        events.append(registered)
    if not group.total_replicas and request.total_replicas:
        events.append(GroupSized(group.broker_name, request.total_replicas))
    return events


def has_forgotten(group: BrokerGroup, request: ReplicaRegistration) -> bool:
    """True if a replica lacks the epoch in which a master took it into the set. Its disk is then an older copy, for
    example a backup, and may lack records that it had acknowledged."""
    accepted = request.accepted_epoch
    return accepted is not None and accepted < group.replicas[request.broker_id].joined_epoch


def _problem(request: ReplicaRegistration) -> str:
    try:
        parse_address(request.address)
        if request.ha_address:
            parse_address(request.ha_address)
    except ValueError as problem:
        return str(problem)
    if not 0 <= request.total_replicas <= MAX_TOTAL_REPLICAS:
        return f"totalReplicas = {request.total_replicas} must lie between 0 and {MAX_TOTAL_REPLICAS}"
    if request.ha_mode not in ("", "ap", "cp"):
        return f"haMode = {request.ha_mode!r} must be ap or cp"
    return ""


def _too_few(group: BrokerGroup, request: ReplicaRegistration, is_alive: Callable[[BrokerId], bool]) -> str:
    """Sentence if totalReplicas is too low. A replica that promised CP before stays: its group uses its number
    already."""
    if request.ha_mode != "cp" or request.async_learner or group.replicas[request.broker_id].ha_mode == "cp":
        return ""
    if not request.total_replicas:
        return "haMode=cp needs totalReplicas; set it to the number of the group's replicas in each of their files"
    ids = [item for item in group.counted_ids if item == request.broker_id or is_alive(item)]
    if request.total_replicas >= len(ids):
        return ""
    return (
        f"totalReplicas = {request.total_replicas} is too small for haMode=cp: {group.broker_name} has {len(ids)} "
        f"replicas ({', '.join(map(str, ids))}), and a message needs a majority of them; set totalReplicas to their "
        "number in each of their files"
    )


# --- change of a group's totalReplicas (ruling 15) --------------------------------------------------------------------
# One change at a time. During a change brokers are told the larger of both numbers, so an acknowledgement needs the
# larger majority. A larger number becomes the group's once the master uses it. A smaller one becomes it at once, since
# the master goes on with the larger one until it is told.


def resize(group: BrokerGroup | None, broker_name: str, total_replicas: int) -> GroupResizing | Refusal | None:
    """Event of a change to `total_replicas`; None if the group has that number already."""
    if group is None:
        return Refusal(ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST, f"there is no group {broker_name}")
    if not 1 <= total_replicas <= MAX_TOTAL_REPLICAS:
        return _refused(f"totalReplicas = {total_replicas} must lie between 1 and {MAX_TOTAL_REPLICAS}")
    if group.next_total_replicas == total_replicas or (
        not group.next_total_replicas and group.total_replicas == total_replicas
    ):
        return None
    if group.next_total_replicas:
        return _refused(
            f"totalReplicas of {broker_name} is changing to {group.next_total_replicas} and its master does not go by "
            "it yet; one change at a time"
        )
    count = len(group.counted_ids)
    if total_replicas < count:
        return _refused(f"{broker_name} has {count} replicas; stop and clean {count - total_replicas} of them first")
    if not group.set_known and total_replicas < group.total_replicas:
        return _refused(
            f"{group.total_replicas} replicas of {broker_name} must report before its first election, since nobody "
            f"knows which of them has most; with {total_replicas} one would lead unasked: start them, or elect with "
            "unclean, which says the bytes at stake"
        )
    return GroupResizing(broker_name, total_replicas)


def finished(group: BrokerGroup, in_use: int | None) -> GroupSized | None:
    """Event that ends a change. `in_use`: the number that the live master uses, 0 on an Apache broker, None if there is
    no live master: the next one adopts the group's number before it leads."""
    if not group.next_total_replicas:
        return None
    if in_use and in_use < group.binding_total_replicas:
        return None
    return GroupSized(group.broker_name, group.next_total_replicas)


def _refused(remark: str) -> Refusal:
    return Refusal(ResponseCode.CONTROLLER_INVALID_REQUEST, remark)


# --- drain: an operator takes a replica out of its group's work, or puts it back (request 52015) ----------------------
# A drained replica goes on copying, but is in no set, acknowledges nothing, and leads only if no other can. The event
# itself takes it out of the set, so a master with the old set is fenced. A drained master stays until another has taken
# over. The other live members must be enough to acknowledge a send.


def drain(
    group: BrokerGroup | None,
    broker_name: str,
    broker_id: int,
    drained: bool,
    is_available: Callable[[BrokerId], bool],
) -> ReplicaDrained | Refusal | None:
    """Event of a drain, or of its end; None if nothing changes. `is_available`: alive, booted clean, not stopping."""
    if group is None:
        return Refusal(ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST, f"there is no group {broker_name}")
    if broker_id not in group.replicas:
        return _refused(f"{broker_name} has no replica {broker_id}")
    chosen = BrokerId(broker_id)
    if (chosen in group.drained_ids) == drained:
        return None
    if drained and chosen in group.electable_ids:
        remaining = [member for member in group.sync_state_set if member != chosen and is_available(member)]
        needed = members_needed(group)
        if len(remaining) < needed:
            return _refused(
                f"without {group.label(chosen)} {len(remaining)} live members of the SyncStateSet remain and "
                f"{broker_name} needs {needed}; start or join another replica and wait until it is in the set"
            )
    return ReplicaDrained(group.broker_name, chosen, drained)


def members_needed(group: BrokerGroup) -> int:
    """Smallest set that can acknowledge a send. In CP a majority, of the larger number while totalReplicas changes; in
    AP, and of two replicas (ruling 6), one."""
    total_replicas = group.binding_total_replicas
    return total_replicas // 2 + 1 if group.is_cp and total_replicas > 2 else 1


# --- maintenance: an operator works on a replica, or has finished (request 52016) -------------------------------------
# A replica in maintenance stays a member of the set and acknowledges. It leads only if no other can, and its absence
# causes no alarm. Nothing is refused: to take a replica out of the set, drain it.


def set_maintenance(
    group: BrokerGroup | None, broker_name: str, broker_id: int, on: bool
) -> MaintenanceSet | Refusal | None:
    """Event of a maintenance, or of its end; None if nothing changes."""
    if group is None:
        return Refusal(ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST, f"there is no group {broker_name}")
    if broker_id not in group.replicas:
        return Refusal(ResponseCode.CONTROLLER_INVALID_REQUEST, f"{broker_name} has no replica {broker_id}")
    chosen = BrokerId(broker_id)
    if (chosen in group.maintenance_ids) == on:
        return None
    return MaintenanceSet(broker_name, chosen, on)


# --- clean: an operator removes replicas or a whole group from the controllers' state (1011) --------------------------
# The last replicas that surely hold every acknowledged message are not removed while others stay: one of those, which
# may lack messages, would lead next without a report of the loss. An unclean election reports the loss and makes
# another replica the last one.


def clean_brokers(
    group: BrokerGroup | None,
    broker_name: str,
    ids_text: str,
    clean_living: bool,
    is_alive: Callable[[BrokerId], bool],
    end_of: Callable[[BrokerId], LogEnd],
    at_ms: int = 0,
) -> BrokersCleaned | Refusal | None:
    """Event of a removal, a refusal, or None if the group has none of the replicas. `ids_text` is "1;2", empty for the
    whole group. Live replicas are refused unless `clean_living`. `end_of`: last reported log of a replica. `at_ms`:
    wall clock, for people."""
    if group is None:
        return Refusal(ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA, f"there is no group {broker_name}")
    try:
        ids = [int(item) for item in ids_text.split(";") if item.strip()]
    except ValueError:
        return Refusal(
            ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA, f"{ids_text!r} is not a list of ids such as 1;2"
        )
    pending = {BrokerId(broker_id) for broker_id in ids} if ids else group.replicas.keys()
    chosen = tuple(sorted(pending & group.replicas.keys()))
    if ids and not chosen:
        return None
    living = [broker_id for broker_id in chosen if is_alive(broker_id)]
    if living and not clean_living:
        return Refusal(
            ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA,
            f"{group.labels(living)} of {broker_name} are alive; stop them or ask to clean living brokers",
        )
    holders = group.electable_ids or group.unclean_ids
    left = [broker_id for broker_id in group.counted_ids if broker_id not in chosen]
    if holders and left and set(holders) <= set(chosen):
        return Refusal(ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA, _why_kept(group, holders, left, end_of))
    return BrokersCleaned(broker_name, chosen, at_ms)


def _why_kept(
    group: BrokerGroup, holders: Sequence[BrokerId], left: Sequence[BrokerId], end_of: Callable[[BrokerId], LogEnd]
) -> str:
    best = max(left, key=lambda broker_id: (end_of(broker_id).epoch, end_of(broker_id).max_offset))
    ends = [end_of(broker_id) for broker_id in holders]
    known = all(end.epoch >= 0 for end in ends)
    stake = f"{bytes_at_stake(end_of(best), ends)} bytes or more" if known else "an unknown number of bytes"
    kept = group.labels(holders)
    return (
        f"only {kept} of {group.broker_name} is sure to hold every acknowledged message, and {group.label(best)} "
        f"lacks {stake} of it: start {kept}, or accept that loss by an unclean election of another one and "
        "clean then"
    )
