from __future__ import annotations

import pytest

from controller.decisions.elect_master import (
    CAUGHT_UP_BYTES,
    ElectionRequest,
    Electorate,
    LogEnd,
    Traits,
    electorate,
    is_stable,
    preferred_master,
)
from controller.decisions.membership import ReplicaRegistration, drain, register, resize
from controller.decisions.refusal import Refusal
from controller.decisions.sync_state_set import alter_sync_state_set
from controller.state.event import BrokerRegistered, Cause, GroupResizing, ReplicaDrained
from controller.state.replicas_info import BrokerGroup, ReplicasInfo
from rmqha.model.code import ResponseCode
from rmqha.model.offset import BrokerId, Epoch, PhyOffset
from tests.controller.values import ids, make_group

# --- drain ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("total", "members", "ha_mode", "broker_id", "allowed"),
    [
        (3, (1, 2, 3), "cp", 3, True),
        (3, (1, 2, 3), "cp", 1, True),
        (3, (1, 2), "cp", 2, False),
        (3, (1, 2), "cp", 3, True),
        (3, (1, 2), "ap", 2, True),
        (3, (1,), "ap", 1, False),
        (2, (1, 2), "cp", 2, True),
        (1, (1,), "cp", 1, False),
        (5, (1, 2, 3, 4, 5), "cp", 5, True),
        (5, (1, 2, 3), "cp", 3, False),
    ],
)
def test_what_remains_must_be_enough_to_acknowledge(
    total: int, members: tuple[int, ...], ha_mode: str, broker_id: int, allowed: bool
) -> None:
    group = make_group(total, sync_state_set=members, ha_mode=ha_mode)
    result = drain(group, "g", broker_id, True, lambda _: True)
    assert result == (ReplicaDrained("g", BrokerId(broker_id), True) if allowed else result)
    assert isinstance(result, ReplicaDrained) is allowed
    if isinstance(result, Refusal):
        assert "join another replica" in result.remark


def test_the_larger_number_of_replicas_counts_while_it_changes() -> None:
    group = make_group(3, ha_mode="cp")
    group.next_total_replicas = 5
    assert isinstance(drain(group, "g", 3, True, lambda _: True), Refusal)


def test_a_member_that_is_not_alive_is_no_redundancy() -> None:
    group = make_group(3, ha_mode="cp")
    assert isinstance(drain(group, "g", 3, True, lambda broker_id: broker_id != 2), Refusal)


def test_draining_twice_is_no_event_and_an_unknown_replica_is_refused() -> None:
    group = make_group(3)
    group.drained_ids = ids(3)
    assert drain(group, "g", 3, True, lambda _: True) is None
    assert drain(group, "g", 3, False, lambda _: True) == ReplicaDrained("g", BrokerId(3), False)
    assert drain(group, "g", 2, False, lambda _: True) is None
    assert isinstance(drain(group, "g", 9, True, lambda _: True), Refusal)
    assert isinstance(drain(None, "g", 1, True, lambda _: True), Refusal)


def applied(group: BrokerGroup, *events: ReplicaDrained | BrokerRegistered) -> BrokerGroup:
    info = ReplicasInfo()
    info.groups["g"] = group
    for event in events:
        info.apply(event)
    return group


def test_a_drained_slave_leaves_the_set_with_the_event_and_fences_the_old_one() -> None:
    group = applied(make_group(3), ReplicaDrained("g", BrokerId(3), True))
    assert (group.sync_state_set, group.sync_state_set_epoch, group.drained_ids) == (ids(1, 2), 8, ids(3))
    refused = alter_sync_state_set(group, 1, 5, [1, 2, 3], 8, lambda _: True)
    assert isinstance(refused, Refusal)
    assert (refused.code, refused.remark) == (
        ResponseCode.CONTROLLER_INVALID_REPLICAS,
        "g-3 is drained and in no set",
    )
    back = applied(group, ReplicaDrained("g", BrokerId(3), False))
    assert not isinstance(alter_sync_state_set(back, 1, 5, [1, 2, 3], 8, lambda _: True), Refusal)


def test_a_drained_master_stays_in_the_set_until_another_leads() -> None:
    group = applied(make_group(3), ReplicaDrained("g", BrokerId(1), True))
    assert (group.master_id, group.sync_state_set) == (1, ids(1, 2, 3))
    assert not isinstance(alter_sync_state_set(group, 1, 5, [1, 2], 7, lambda _: True), Refusal)


# --- async learners -------------------------------------------------------------------------------------------------


def with_learner(replica_count: int = 4, **keys: object) -> BrokerGroup:
    """The last replica is an async learner."""
    group = make_group(replica_count, total_replicas=replica_count - 1, **keys)  # type: ignore[arg-type]
    group.replicas[BrokerId(replica_count)].async_learner = True
    return group


def test_an_async_learner_is_in_no_set() -> None:
    refused = alter_sync_state_set(with_learner(), 1, 5, [1, 2, 3, 4], 7, lambda _: True)
    assert isinstance(refused, Refusal) and refused.remark == "g-4 is an async learner and in no set"


@pytest.mark.parametrize(
    "election_request",
    [
        ElectionRequest(Cause.MASTER_DEAD),
        ElectionRequest(Cause.DESIGNATED, target=BrokerId(4)),
        ElectionRequest(Cause.DESIGNATED, target=BrokerId(4), unclean=True),
        ElectionRequest(Cause.MEMBER_RETURNED, asker=BrokerId(4)),
    ],
)
@pytest.mark.parametrize("set_known", [True, False])
def test_an_async_learner_is_never_elected(election_request: ElectionRequest, set_known: bool) -> None:
    """Not even where it is the only one alive and unclean elections are allowed."""
    group = with_learner(set_known=set_known)
    assert isinstance(electorate(group, ids(4), election_request, total_replicas=0, unclean_allowed=True), Refusal)


def test_an_unclean_election_of_anyone_does_not_ask_the_learner() -> None:
    who = electorate(
        with_learner(), (), ElectionRequest(Cause.DESIGNATED, unclean=True), total_replicas=3, unclean_allowed=False
    )
    assert isinstance(who, Electorate) and who.ids == ids(1, 2, 3)


def test_a_first_election_does_not_wait_for_a_learner_nor_count_it() -> None:
    group = with_learner(3, set_known=False)
    election_request = ElectionRequest(Cause.MEMBER_RETURNED)
    assert isinstance(
        electorate(group, ids(1, 2), election_request, total_replicas=2, unclean_allowed=False), Electorate
    )
    assert isinstance(electorate(group, ids(1, 3), election_request, total_replicas=2, unclean_allowed=False), Refusal)


def test_a_group_shrinks_to_the_replicas_that_count() -> None:
    assert resize(with_learner(3), "g", 1) == Refusal(
        ResponseCode.CONTROLLER_INVALID_REQUEST, "g has 2 replicas; stop and clean 1 of them first"
    )
    group = with_learner(4)
    group.total_replicas = 5
    assert resize(group, "g", 3) == GroupResizing("g", 3)


def test_a_member_that_comes_back_as_a_learner_leaves_the_set_but_not_as_the_last() -> None:
    group = make_group(2, sync_state_set=(1, 2))
    request = ReplicaRegistration("g", BrokerId(2), "127.0.0.1:2", "", 2, "ap", async_learner=True)
    events = register(group, request, bool)
    assert events == [BrokerRegistered("g", BrokerId(2), "127.0.0.1:2", "", 2, "ap", True)]
    assert isinstance(events[0], BrokerRegistered)
    assert applied(group, events[0]).sync_state_set == (1,)
    alone = make_group(1, sync_state_set=(1,))
    refused = register(
        alone, ReplicaRegistration("g", BrokerId(1), "127.0.0.1:1", "", 1, "ap", async_learner=True), bool
    )
    assert isinstance(refused, Refusal) and "last member" in refused.remark


# --- the preferred master -------------------------------------------------------------------------------------------

LOW, HIGH = Traits(priority=1), Traits(priority=2)


@pytest.mark.parametrize(
    ("traits", "expected"),
    [
        ({1: HIGH, 2: LOW, 3: HIGH}, 2),
        ({1: HIGH, 2: HIGH, 3: HIGH}, 1),
        ({1: HIGH, 3: LOW}, None),
        ({}, None),
    ],
)
def test_the_lowest_priority_then_the_lowest_id_is_preferred(traits: dict[int, Traits], expected: int | None) -> None:
    assert preferred_master(make_group(), {BrokerId(item): own for item, own in traits.items()}) == expected


def test_neither_a_drained_replica_nor_a_learner_is_preferred() -> None:
    group = with_learner(3)
    group.drained_ids = ids(1)
    assert preferred_master(group, {BrokerId(2): HIGH, BrokerId(3): LOW}) == 2


def ends(*offsets: int) -> dict[BrokerId, LogEnd]:
    return {BrokerId(place): LogEnd(Epoch(5), PhyOffset(offset)) for place, offset in enumerate(offsets, 1)}


def test_a_group_is_calm_when_all_that_count_are_well_in_the_set_and_level() -> None:
    far = CAUGHT_UP_BYTES + 100
    assert is_stable(make_group(), BrokerId(2), ends(far, 100, 0), lambda _: True)
    assert not is_stable(make_group(), BrokerId(2), ends(far, 99, 0), lambda _: True)
    assert not is_stable(make_group(), BrokerId(2), ends(1, 1, 1), lambda broker_id: broker_id != 3)
    assert not is_stable(make_group(sync_state_set=(1, 2)), BrokerId(2), ends(1, 1, 1), lambda _: True)
    assert not is_stable(make_group(master_id=None), BrokerId(2), ends(1, 1, 1), lambda _: True)
    assert not is_stable(make_group(), BrokerId(2), ends(1), lambda _: True)
    group = make_group()
    group.next_total_replicas = 5
    assert not is_stable(group, BrokerId(2), ends(1, 1, 1), lambda _: True)
