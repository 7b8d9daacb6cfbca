from __future__ import annotations

from dataclasses import replace

import pytest

from controller.decisions.elect_master import LogEnd, bytes_at_stake, lacking_bytes
from controller.decisions.membership import (
    ReplicaRegistration,
    apply_broker_id,
    clean_brokers,
    next_broker_id,
    register,
)
from controller.decisions.refusal import Refusal
from controller.elections.heartbeat import NO_LOG
from controller.state.event import (
    BrokerIdApplied,
    BrokerRegistered,
    BrokersCleaned,
    Cause,
    GroupSized,
    MasterElected,
    MemberRemoved,
    SyncStateSetAltered,
)
from controller.state.replicas_info import ReplicasInfo
from rmqha.model.code import ResponseCode
from rmqha.model.offset import BrokerId, Epoch, PhyOffset
from tests.controller.values import ids, make_group


def test_ids_rise_and_are_not_reused() -> None:
    assert next_broker_id(None) == 1
    group = make_group(3)
    assert next_broker_id(group) == 4
    group.replicas.clear()
    assert next_broker_id(group) == 4


def test_a_free_id_is_taken_with_its_check_code() -> None:
    assert apply_broker_id(None, "c", "g", 1, "127.0.0.1:10911;17") == BrokerIdApplied(
        "c", "g", BrokerId(1), "127.0.0.1:10911", "127.0.0.1:10911;17"
    )


def test_the_second_phase_may_be_repeated_by_its_owner_only() -> None:
    group = make_group(3)
    assert apply_broker_id(group, "c", "g", 2, "code-2;0;g-2") is None
    other = apply_broker_id(group, "c", "g", 2, "code-x")
    assert isinstance(other, Refusal) and other.code == ResponseCode.CONTROLLER_BROKER_ID_INVALID


def test_a_group_whose_controllers_forgot_it_keeps_its_ids() -> None:
    assert isinstance(apply_broker_id(None, "c", "g", 7, "x;1"), BrokerIdApplied)


@pytest.mark.parametrize(
    ("elected", "broker_id", "recorded", "granted"),
    [
        (False, 2, True, True),
        (True, 2, True, False),
        (True, 4, True, True),
        (True, 7, True, True),
        (True, 2, False, True),
        (True, 3, True, False),
    ],
)
def test_a_wish_is_granted_unless_another_replica_may_have_had_the_id(
    elected: bool, broker_id: int, recorded: bool, granted: bool
) -> None:
    """Replica 2 is gone: once the group has had a master that may be a clean, and an id is issued once. Without a wish
    it is that replica itself, which comes back."""
    info = ReplicasInfo()
    for number in ids(1, 2, 3):
        info.apply(BrokerIdApplied("c", "g", number, f"h:{number}", f"h:{number};1;g-{number}"))
    if elected:
        info.apply(MasterElected("g", BrokerId(1), Epoch(1), (), Cause.FIRST_ELECTION))
    info.apply(BrokersCleaned("g", ids(2)))
    group = info.groups["g"]
    if not elected:
        group.elections = ()
    result = apply_broker_id(group, "c", "g", broker_id, "h:9;1;g-9", recorded=recorded)
    assert isinstance(result, BrokerIdApplied if granted else Refusal)


@pytest.mark.parametrize(
    ("cluster", "name", "broker_id", "code"),
    [
        ("c", "g", 0, "x"),
        ("c", "g", 2**31, "x"),
        ("c", "g", 9, ""),
        ("", "g", 9, "x"),
        ("c", "", 9, "x"),
        ("d", "g", 9, "x"),
    ],
)
def test_nonsense_is_refused(cluster: str, name: str, broker_id: int, code: str) -> None:
    assert isinstance(apply_broker_id(make_group(3), cluster, name, broker_id, code), Refusal)


def test_registration_of_an_unknown_id_asks_to_apply_first() -> None:
    for group in (None, make_group(3)):
        result = register(group, ReplicaRegistration("g", BrokerId(9), "127.0.0.1:1"), bool)
        assert isinstance(result, Refusal)
        assert result.code == ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED


def test_registration_tells_what_is_new() -> None:
    group = make_group(3, total_replicas=0)
    request = ReplicaRegistration("g", BrokerId(2), "127.0.0.1:5", "127.0.0.1:6", 3, "cp")
    events = register(group, request, bool)
    assert events == [BrokerRegistered("g", BrokerId(2), "127.0.0.1:5", "127.0.0.1:6", 3, "cp"), GroupSized("g", 3)]


def test_registration_with_nothing_new_and_with_another_number_of_replicas() -> None:
    group = make_group(3)
    assert register(group, ReplicaRegistration("g", BrokerId(2), "127.0.0.1:2", "", 3, "ap"), bool) == []
    events = register(group, ReplicaRegistration("g", BrokerId(2), "127.0.0.1:2", "", 5, "ap"), bool)
    assert events == [BrokerRegistered("g", BrokerId(2), "127.0.0.1:2", "", 5, "ap")], "the first declaration stays"


def test_a_registration_from_before_an_unclean_election_does_not_undo_it() -> None:
    """An operator elects a replica that booted unclean while its next registration is already under way."""
    info = ReplicasInfo()
    group = info.groups["g"] = make_group(3)
    info.apply(MasterElected("g", BrokerId(2), Epoch(6), (), Cause.UNCLEAN_BY_OPERATOR))
    late = ReplicaRegistration("g", BrokerId(2), "127.0.0.1:2", "", 3, "ap", unclean=True, accepted_epoch=5)
    assert register(group, late, bool) == []
    power_lost_again = replace(late, accepted_epoch=6)
    assert register(group, power_lost_again, bool) == [MemberRemoved("g", BrokerId(2))]


def test_an_unclean_boot_leaves_the_set_before_anything_else() -> None:
    group = make_group(3)
    events = register(group, ReplicaRegistration("g", BrokerId(2), "127.0.0.1:9", "", 3, "ap", unclean=True), bool)
    assert isinstance(events, list) and events[0] == MemberRemoved("g", BrokerId(2))
    outside = make_group(3, sync_state_set=(1,), eligible=())
    assert (
        register(outside, ReplicaRegistration("g", BrokerId(2), "127.0.0.1:2", "", 3, "ap", unclean=True), bool) == []
    )
    eligible = make_group(3, sync_state_set=(1,), eligible=(2,))
    assert register(
        eligible, ReplicaRegistration("g", BrokerId(2), "127.0.0.1:2", "", 3, "ap", unclean=True), bool
    ) == [MemberRemoved("g", BrokerId(2))]


@pytest.mark.parametrize("broker_id", [1, 2])
def test_a_member_that_knows_an_older_epoch_than_it_joined_in_has_an_older_disk(broker_id: int) -> None:
    """An old backup of a store was put back. As master it would have the others cut what was acknowledged since."""
    info = ReplicasInfo()
    group = info.groups["g"] = make_group(3, sync_state_set=(1,), master_epoch=6)
    back = ReplicaRegistration("g", BrokerId(broker_id), f"127.0.0.1:{broker_id}", "", 3, "ap", accepted_epoch=5)
    assert register(group, back, bool) == [], "who was elected may never have heard of it"
    info.apply(SyncStateSetAltered("g", Epoch(6), group.sync_state_set_epoch + 1, ids(1, 2), ()))
    assert group.sync_state_set == (1, 2)
    assert register(group, back, bool) == [MemberRemoved("g", BrokerId(broker_id))]
    assert register(group, replace(back, accepted_epoch=6), bool) == []
    assert register(group, replace(back, accepted_epoch=None), bool) == [], "Apache's do not tell"
    outside = replace(back, broker_id=BrokerId(3), address="127.0.0.1:3")
    assert register(group, outside, bool) == []


def test_a_replica_with_an_older_disk_is_not_eligible() -> None:
    """A CP master that is left alone leaves its last members eligible. The backup of one of them was elected when all
    had stopped, and what was acknowledged since was lost."""
    info = ReplicasInfo()
    group = info.groups["g"] = make_group(3, sync_state_set=(1,), master_epoch=6, ha_mode="cp")
    for members, eligible in ((ids(1, 2, 3), ()), (ids(1), ids(2, 3))):
        info.apply(SyncStateSetAltered("g", Epoch(6), group.sync_state_set_epoch + 1, members, eligible))
    assert group.electable_ids == (1, 2, 3)
    back = ReplicaRegistration("g", BrokerId(2), "127.0.0.1:2", "", 3, "cp", accepted_epoch=5)
    assert register(group, back, bool) == [MemberRemoved("g", BrokerId(2))]


def test_an_older_disk_is_known_after_the_next_election_too() -> None:
    info = ReplicasInfo()
    group = info.groups["g"] = make_group(3, sync_state_set=(1,), master_epoch=6)
    info.apply(SyncStateSetAltered("g", Epoch(6), group.sync_state_set_epoch + 1, ids(1, 2, 3), ()))
    info.apply(MasterElected("g", BrokerId(3), Epoch(7), ids(1, 2), Cause.MASTER_DEAD))
    survivor = ReplicaRegistration("g", BrokerId(2), "127.0.0.1:2", "", 3, "ap", accepted_epoch=6)
    assert register(group, survivor, bool) == [], "it has not heard of that election yet"
    assert register(group, replace(survivor, accepted_epoch=5), bool) == [MemberRemoved("g", BrokerId(2))]


@pytest.mark.parametrize(
    "request_",
    [
        ReplicaRegistration("g", BrokerId(1), "nowhere"),
        ReplicaRegistration("g", BrokerId(1), "127.0.0.1:1", "x"),
        ReplicaRegistration("g", BrokerId(1), "127.0.0.1:1", "", 99),
        ReplicaRegistration("g", BrokerId(1), "127.0.0.1:1", "", 3, "xp"),
    ],
)
def test_registration_with_nonsense_is_refused(request_: ReplicaRegistration) -> None:
    result = register(make_group(3), request_, bool)
    assert isinstance(result, Refusal) and result.code == ResponseCode.CONTROLLER_INVALID_REQUEST


@pytest.mark.parametrize(
    ("text", "clean_living", "alive", "expected"),
    [
        ("2", False, (), (2,)),
        ("3;2", False, (1,), (2, 3)),
        ("", False, (), (1, 2, 3)),
        ("2", False, (2,), None),
        ("2", True, (2,), (2,)),
        ("9;2", False, (), (2,)),
        ("x", False, (), None),
    ],
)
def test_clean(text: str, clean_living: bool, alive: tuple[int, ...], expected: tuple[int, ...] | None) -> None:
    result = clean_brokers(make_group(3), "g", text, clean_living, lambda item: item in alive, lambda _: NO_LOG)
    if expected is None:
        assert isinstance(result, Refusal)
        assert result.code == ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA
    else:
        assert result == BrokersCleaned("g", ids(*expected))


@pytest.mark.parametrize(
    ("members", "eligible", "unclean", "text", "words"),
    [
        (
            (1,),
            (),
            (),
            "1",
            "g-1 of g is sure to hold every acknowledged message, and g-3 lacks 3500 bytes or",
        ),
        ((1,), (), (), "1;2", "g-3 lacks 3500 bytes or more of it"),
        ((1,), (), (), "1;3", "g-2 lacks 1 bytes or more of it"),
        ((1,), (2,), (), "1;2", "only g-1, g-2 of g is sure"),
        ((1,), (2,), (), "1", ""),
        ((1, 2), (), (), "2", ""),
        ((), (), (1,), "1", "g-3 lacks 3500 bytes or more"),
        ((), (), (1, 2), "1", ""),
        ((), (), (), "1", ""),
        ((1,), (), (), "", ""),
        ((1,), (), (), "1;2;3", ""),
        ((1,), (), (), "2;3", ""),
        ((4,), (), (), "4", "lacks an unknown number of bytes of it"),
    ],
)
def test_the_last_that_hold_everything_are_not_cleaned_from_between_others(
    members: tuple[int, ...], eligible: tuple[int, ...], unclean: tuple[int, ...], text: str, words: str
) -> None:
    group = make_group(4 if 4 in members else 3, sync_state_set=members, eligible=eligible, master_id=None)
    group.unclean_ids = ids(*unclean)
    ends = {1: (4, 5000), 2: (3, 9000), 3: (4, 1500)}

    def end_of(item: int) -> LogEnd:
        return LogEnd(Epoch(ends[item][0]), PhyOffset(ends[item][1])) if item in ends else NO_LOG

    result = clean_brokers(group, "g", text, True, lambda _: False, end_of)
    assert words in (result.remark if isinstance(result, Refusal) else "")
    assert isinstance(result, Refusal) == bool(words)


def test_epochs_come_before_ends() -> None:
    own = LogEnd(Epoch(3), PhyOffset(5000))
    for epoch, end, lacking in (
        (3, 5000, 0),
        (3, 6500, 1500),
        (4, 4000, 1),
        (4, 6500, 1500),
        (2, 5000, 0),
        (2, 5001, 1),
    ):
        assert lacking_bytes(own, LogEnd(Epoch(epoch), PhyOffset(end))) == lacking
    assert bytes_at_stake(own, []) == 0


def test_cleaning_what_the_group_does_not_have_changes_nothing() -> None:
    """As with Apache's: who asks once more because an answer was lost gets the same one."""
    assert clean_brokers(make_group(3), "g", "9", False, lambda _: True, lambda _: NO_LOG) is None


def test_clean_of_an_unknown_group() -> None:
    assert isinstance(clean_brokers(None, "g", "", True, lambda _: False, lambda _: NO_LOG), Refusal)
