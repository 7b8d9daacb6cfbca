"""Electorate and winner of an election. Pure.

An election has two steps. `electorate` names the replicas to ask for the ends of their logs (request 1007), or says why
there is none. `choose` ranks the answers: highest epoch, master of that epoch, highest offset, then the criteria of
electionPolicy (longest in the set, brokerElectionPriority with the lower number first as in RocketMQ, zone), lowest id.
No two replicas are equal in that order. Numbers are compared, never subtracted: RocketMQ's comparison of offsets
overflows 32 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from controller.decisions.refusal import Refusal
from controller.state.event import Cause, MasterElected
from controller.state.replicas_info import BrokerGroup, min_in_sync_replicas
from rmqha.model.code import ResponseCode
from rmqha.model.offset import BrokerId, Epoch, PhyOffset

FAILED = ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
DEFAULT_PRIORITY = 2**31 - 1


@dataclass(frozen=True, slots=True)
class LogEnd:
    """Epoch of a log's last byte (-1 if the log is empty) and its end. `is_master`: the replica is a master whose
    election the controllers have forgotten with their disks; it may acknowledge more after its answer."""

    epoch: Epoch
    max_offset: PhyOffset
    is_master: bool = False


class Criterion(Enum):
    """Criteria that electionPolicy may list, by their words in that key."""

    SENIORITY = "seniority"
    PRIORITY = "priority"
    ZONE = "zone"


@dataclass(frozen=True, slots=True)
class ElectionPolicy:
    """Order of candidates with equal logs. `zones`: the preferred one first; other zones come last."""

    criteria: tuple[Criterion, ...] = tuple(Criterion)
    zones: tuple[str, ...] = ()


DEFAULT_POLICY = ElectionPolicy()


def parse_policy(criteria: str, zones: str) -> ElectionPolicy:
    """Policy of the keys electionPolicy and electionZones. Raises ValueError with a sentence."""
    words = [word.strip() for word in criteria.split(",") if word.strip()]
    known = {item.value: item for item in Criterion}
    for word in words:
        if word not in known:
            raise ValueError(f"electionPolicy: {word!r} must be one of {', '.join(known)}")
    if len(set(words)) != len(words):
        raise ValueError("electionPolicy names a criterion twice")
    return ElectionPolicy(
        tuple(known[word] for word in words), tuple(zone.strip() for zone in zones.split(";") if zone.strip())
    )


@dataclass(frozen=True, slots=True)
class Traits:
    """Properties of a replica that its heartbeats (904) carry and elections compare."""

    priority: int = DEFAULT_PRIORITY
    zone: str = ""


NO_TRAITS = Traits()


@dataclass(frozen=True, slots=True)
class ElectedMaster:
    """Winner of an election. `reason`: the criterion that put it before the next best."""

    winner: BrokerId
    reason: str


@dataclass(frozen=True, slots=True)
class ElectionRequest:
    """Request for an election: its cause, and `why` as a sentence. `target` and `unclean` are an operator's, `asker` is
    the broker that sent 1002, `avoid` is a master that hands over."""

    cause: Cause
    target: BrokerId | None = None
    asker: BrokerId | None = None
    avoid: BrokerId | None = None
    unclean: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True)
class Electorate:
    """Replicas to ask. `needed_answers` of `ids` must answer before a master is chosen. `ask` False: the only candidate
    has just sent a request and may not accept connections yet."""

    ids: tuple[BrokerId, ...]
    cause: Cause
    needed_answers: int = 1
    ask: bool = True


def electorate(
    group: BrokerGroup,
    available: Collection[BrokerId],
    election_request: ElectionRequest,
    *,
    total_replicas: int,
    unclean_allowed: bool,
) -> Electorate | Refusal:
    """Electorate of the group, or a refusal. `available`: replicas that have reported to this leader after a clean boot
    and are not stopping. `total_replicas`: 0 if no replica has declared it. `unclean_allowed`:
    enableElectUncleanMaster."""
    if election_request.target is not None:
        return _designated(group, available, election_request)
    counted = group.counted_ids
    candidates = tuple(
        broker_id for broker_id in counted if broker_id in available and broker_id != election_request.avoid
    )
    if election_request.unclean:
        ids = tuple(broker_id for broker_id in counted if broker_id != election_request.avoid)
        return Electorate(ids, Cause.UNCLEAN_BY_OPERATOR)
    if not group.set_known:
        return _first(group, candidates, election_request, total_replicas)
    members = tuple(broker_id for broker_id in group.electable_ids if broker_id in candidates)
    if members:
        return Electorate(members, election_request.cause)
    if group.total_replicas == 1 and len(counted) == 1 and group.unclean_ids and election_request.avoid is None:
        return Electorate(group.unclean_ids, Cause.SOLE_REPLICA)
    if unclean_allowed and not group.is_cp and candidates and election_request.avoid is None:
        return Electorate(candidates, Cause.UNCLEAN_AUTOMATIC)
    return Refusal(FAILED, why_no_member(group))


def why_no_member(group: BrokerGroup) -> str:
    if group.electable_ids:
        names = group.labels(group.electable_ids)
        return f"no member of the last SyncStateSet is ready to lead; waiting for one of: {names}"
    if group.unclean_ids:
        names = group.labels(group.unclean_ids)
        why = "lost power, or have an older copy of their disk, and may have lost messages"
        return f"the last members ({names}) {why}; an operator must elect with unclean"
    return "the SyncStateSet is empty; an operator must elect with unclean"


def _designated(
    group: BrokerGroup, available: Collection[BrokerId], election_request: ElectionRequest
) -> Electorate | Refusal:
    target = election_request.target
    assert target is not None
    if target not in group.replicas:
        return Refusal(FAILED, f"{group.broker_name} has no replica {target}")
    if group.replicas[target].async_learner:
        return Refusal(FAILED, f"{group.label(target)} is an async learner, which is never elected (asyncLearner=true)")
    if target in group.maintenance_ids and not election_request.unclean:
        return Refusal(FAILED, f"{group.label(target)} is in maintenance, which rmqha maintenance off ends")
    if election_request.unclean:
        # its answer to 1007 proves that it is alive: a replica sends no heartbeat after an unclean boot
        return Electorate((target,), Cause.UNCLEAN_BY_OPERATOR)
    if not group.set_known and group.total_replicas:
        return Refusal(FAILED, "the SyncStateSet is unknown: wait for all replicas, or elect with unclean")
    if group.set_known and target not in group.electable_ids:
        return Refusal(
            FAILED,
            f"{group.label(target)} is not in the SyncStateSet ({group.labels(group.sync_state_set)}) and may lack "
            "acknowledged messages; elect with unclean to accept their loss",
        )
    if target not in available:
        return Refusal(FAILED, f"{group.label(target)} is not alive, or stopping")
    return Electorate((target,), election_request.cause)


def _first(
    group: BrokerGroup, candidates: tuple[BrokerId, ...], election_request: ElectionRequest, total_replicas: int
) -> Electorate | Refusal:
    """Electorate of a group's first election (ruling 8)."""
    if not total_replicas:
        if election_request.asker in group.counted_ids:
            assert election_request.asker is not None
            return Electorate((election_request.asker,), Cause.FIRST_ELECTION, ask=False)
        return Refusal(FAILED, "no replica has asked to become the first master")
    if total_replicas == 1 and len(group.counted_ids) == 1 and not candidates:
        # An answer proves that it is alive, after an unclean boot; no other replica can have a longer log.
        return Electorate(group.counted_ids, Cause.SOLE_REPLICA)
    if len(candidates) < total_replicas:
        return Refusal(
            FAILED,
            f"first election: {len(candidates)} of {total_replicas} replicas have reported; "
            "start the others, or elect with unclean",
        )
    return Electorate(candidates, Cause.FIRST_ELECTION, needed_answers=total_replicas)


def choose(
    answers: Mapping[BrokerId, LogEnd],
    seniority: tuple[BrokerId, ...],
    traits: Mapping[BrokerId, Traits],
    policy: ElectionPolicy = DEFAULT_POLICY,
    label: Callable[[BrokerId], str] = lambda broker_id: f"replica {broker_id}",
) -> ElectedMaster:
    """Best of `answers`, which must not be empty. `seniority`: ids, the longest in the set first. `label`: name of a
    replica in the reason."""

    def rank(broker_id: BrokerId) -> tuple[int, ...]:
        end, own = answers[broker_id], traits.get(broker_id, NO_TRAITS)
        places = {
            Criterion.SENIORITY: seniority.index(broker_id) if broker_id in seniority else len(seniority),
            Criterion.PRIORITY: own.priority,
            Criterion.ZONE: policy.zones.index(own.zone) if own.zone in policy.zones else len(policy.zones),
        }
        return -end.epoch, not end.is_master, -end.max_offset, *(places[item] for item in policy.criteria), broker_id

    ranked = sorted((rank(broker_id), broker_id) for broker_id in answers)
    winner = ranked[0][1]
    if len(ranked) == 1:
        return ElectedMaster(winner, "the only candidate")
    decided = next(
        place for place, (own, other) in enumerate(zip(*(row[0] for row in ranked[:2]), strict=True)) if own != other
    )
    end, own, other = answers[winner], traits.get(winner, NO_TRAITS), ranked[1][1]
    told = {
        Criterion.SENIORITY: "longest in the SyncStateSet",
        Criterion.PRIORITY: f"priority {own.priority} before {traits.get(other, NO_TRAITS).priority}",
        Criterion.ZONE: f"in the preferred zone {own.zone}",
    }
    words = (
        f"highest epoch, {end.epoch} before {answers[other].epoch}",
        f"the master of epoch {end.epoch}",
        f"longest log, {end.max_offset - answers[other].max_offset} bytes more than {label(other)}",
        *(told[item] for item in policy.criteria),
        "lowest id among equals",
    )
    return ElectedMaster(winner, words[decided])


def elected(
    group: BrokerGroup,
    winner: BrokerId,
    cause: Cause,
    known_epochs: Iterable[Epoch],
    alive: Collection[BrokerId],
    *,
    at_ms: int = 0,
    reason: str = "",
) -> MasterElected:
    """Event of the election. The new epoch is higher than every epoch that a replica has reported, since the
    controllers may have lost theirs.

    Live members stay eligible (ruling 9) unless the winner may acknowledge alone: in AP, in CP with up to two replicas,
    and on Apache's brokers. Its first acknowledged message then exists nowhere else, and a master that stays alone
    requests no other set from which the controllers would learn that."""
    master_epoch = Epoch(max(group.master_epoch, *known_epochs, 0) + 1)
    unclean = cause in (Cause.UNCLEAN_BY_OPERATOR, Cause.UNCLEAN_AUTOMATIC)
    acks_alone = min_in_sync_replicas(group, winner) == 1
    eligible = () if unclean or acks_alone or not group.set_known else group.electable_ids
    survivors = tuple(member for member in eligible if member != winner and member in alive)
    return MasterElected(group.broker_name, winner, master_epoch, survivors, cause, at_ms, reason)


# --- bytes at stake if the new master may lack acknowledged records ---------------------------------------------------


def lacking_bytes(own: LogEnd, other: LogEnd) -> int:
    """Lower bound of the bytes of the log `other` that a master with the log `own` would cut. Epochs count before
    offsets: the last byte of a newer epoch is missing in `own`, whatever the length of `own`."""
    if other.max_offset > own.max_offset:
        return other.max_offset - own.max_offset
    return 1 if other.epoch > own.epoch else 0


def bytes_at_stake(own: LogEnd, others: Iterable[LogEnd]) -> int:
    """Lower bound of the bytes that may be lost: those in the log of any of `others` and not in `own`."""
    return max((lacking_bytes(own, other) for other in others), default=0)


# --- preferred master of a group, and when it gets the mastership back ------------------------------------------------

CAUGHT_UP_BYTES = 8 * 1024 * 1024
"""Bytes of the master's log that a caught-up replica may lack in its last report; a hand-over waits for them."""


def preferred_master(group: BrokerGroup, traits: Mapping[BrokerId, Traits]) -> BrokerId | None:
    """Replica with the lowest brokerElectionPriority, then the lowest id, among those that may lead and are not
    withheld. None until all of them have reported their priority."""
    ids = [item for item in group.counted_ids if item not in group.withheld_ids]
    if not ids or any(item not in traits for item in ids):
        return None
    return min(ids, key=lambda item: (traits[item].priority, item))


def is_stable(
    group: BrokerGroup, target: BrokerId, ends: Mapping[BrokerId, LogEnd], is_healthy: Callable[[BrokerId], bool]
) -> bool:
    """True if a switch would disturb no recovery: all counted replicas are healthy and in the set, totalReplicas is not
    changing, and `target` has caught up. `ends`: log ends of the last reports."""
    members = [item for item in group.counted_ids if item not in group.withheld_ids]
    if group.next_total_replicas or group.master_id is None or target not in ends or group.master_id not in ends:
        return False
    if not all(item in group.sync_state_set and is_healthy(item) for item in members):
        return False
    return ends[group.master_id].max_offset - ends[target].max_offset <= CAUGHT_UP_BYTES
