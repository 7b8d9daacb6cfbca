"""A broker reports for duty (1003). Pure.

An unclean boot takes the replica out of the set before anything else (ruling 3). The first totalReplicas that a
replica declares is the group's (ruling 15): later, different declarations change nothing and are shown. One that begins
to promise CP must declare a number, and none below that of the replicas that live: a majority of it would be too few.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from controller.decisions.refusal import Refusal
from controller.state.event import BrokerRegistered, Event, GroupSized, MemberRemoved
from controller.state.replicas_info import BrokerGroup
from rmqha.model.code import ResponseCode
from rmqha.model.identity import parse_address
from rmqha.model.offset import BrokerId

MAX_TOTAL_REPLICAS = 9


@dataclass(frozen=True, slots=True)
class ReplicaRegistration:
    """The request's fields. An Apache broker sends no haAddress, totalReplicas, haMode and unclean."""

    broker_name: str
    broker_id: BrokerId
    address: str
    ha_address: str = ""
    total_replicas: int = 0
    ha_mode: str = ""
    unclean: bool = False
    async_learner: bool = False
    accepted_epoch: int | None = None
    """The highest master epoch that the replica has accepted; None: it does not say."""


def register(
    group: BrokerGroup | None, request: ReplicaRegistration, is_alive: Callable[[BrokerId], bool], at_ms: int = 0
) -> list[Event] | Refusal:
    """The events, [] if nothing is new. `at_ms`: the wall clock, for people."""
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
            f"replica {broker_id} is the last member of the SyncStateSet: it cannot become an async learner before "
            "another is in the set",
        )
    events: list[Event] = []
    # Sent before its sender learned that it was elected in spite of its unclean boot: the answer tells it.
    accepted = group.master_epoch if request.accepted_epoch is None else request.accepted_epoch
    unaware = group.accepts_loss and group.master_id == broker_id and accepted < group.master_epoch
    if request.unclean and broker_id in group.electable_ids and not unaware:
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
    """A replica that promised CP before stays: its group has begun to go by the number that it has."""
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
