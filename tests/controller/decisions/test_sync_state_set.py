from __future__ import annotations

from copy import deepcopy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.decisions.refusal import Refusal
from controller.decisions.sync_state_set import alter_sync_state_set
from controller.state.event import GroupSized, SyncStateSetAltered
from controller.state.replicas_info import ReplicasInfo, min_in_sync_replicas
from rmqha.model.offset import BrokerId
from tests.controller.values import make_group

# master, master epoch, set epoch, new set, dead replicas → code; each row but the last breaks one fence, and every
# fence after it: the order is RocketMQ's
FENCES = [
    ("no change", 9, 9, 9, (1, 2), (1, 2, 3), 2013),
    ("master", 9, 9, 9, (2, 8), (2,), 2002),
    ("master epoch", 1, 9, 9, (2, 8), (2,), 2000),
    ("set epoch", 1, 5, 9, (2, 8), (2,), 2001),
    ("unknown replica", 1, 5, 7, (3, 8), (), 2003),
    ("dead replica", 1, 5, 7, (2, 3), (2,), 2006),
    ("dead before unknown, in order of id", 1, 5, 7, (2, 8), (2,), 2006),
    ("without the master", 1, 5, 7, (2, 3), (), 2013),
    ("good", 1, 5, 7, (1, 3), (2,), 0),
]


@pytest.mark.parametrize(
    ("master_id", "master_epoch", "set_epoch", "members", "dead", "code"),
    [row[1:] for row in FENCES],
    ids=[row[0] for row in FENCES],
)
def test_fences_in_rocketmqs_order(
    master_id: int, master_epoch: int, set_epoch: int, members: tuple[int, ...], dead: tuple[int, ...], code: int
) -> None:
    group = make_group(sync_state_set=(1, 2))
    result = alter_sync_state_set(group, master_id, master_epoch, members, set_epoch, lambda item: item not in dead)
    assert (result.code if isinstance(result, Refusal) else 0) == code


# haMode, replicas, set, eligible, new set → eligible afterwards
ELIGIBLE = [
    ("ap", 3, (1, 2, 3), (), (1,), ()),
    ("ap", 3, (1,), (3,), (1, 2), ()),
    ("cp", 3, (1, 2, 3), (), (1, 2), ()),
    ("cp", 3, (1, 2, 3), (), (1,), (2, 3)),
    ("cp", 3, (1, 2), (), (1,), (2,)),
    ("cp", 3, (1,), (2, 3), (1, 2), ()),
    ("cp", 5, (1,), (2, 3, 4), (1, 2), (3, 4)),
    ("cp", 5, (1, 2), (3, 4), (1, 2, 3), ()),
    ("cp", 5, (1, 2, 3), (), (1, 2), (3,)),
    ("cp", 2, (1, 2), (), (1,), ()),
    ("", 3, (1, 2, 3), (), (1,), ()),
]


@pytest.mark.parametrize(("ha_mode", "replicas", "members", "eligible", "new_set", "expected"), ELIGIBLE)
def test_who_stays_eligible(
    ha_mode: str,
    replicas: int,
    members: tuple[int, ...],
    eligible: tuple[int, ...],
    new_set: tuple[int, ...],
    expected: tuple[int, ...],
) -> None:
    group = make_group(replicas, sync_state_set=members, eligible=eligible, ha_mode=ha_mode)
    result = alter_sync_state_set(group, 1, 5, new_set, 7, lambda _: True)
    assert isinstance(result, SyncStateSetAltered)
    assert result.eligible == expected


def test_joiners_stand_behind_those_who_were_there() -> None:
    group = make_group(4, sync_state_set=(3, 1))
    result = alter_sync_state_set(group, 1, 5, (1, 2, 3, 4), 7, lambda _: True)
    assert isinstance(result, SyncStateSetAltered)
    assert result.sync_state_set == (3, 1, 2, 4)


def test_an_unchanged_set_moves_its_epoch_only_for_a_master_that_asks_so() -> None:
    group = make_group(3, sync_state_set=(1, 2))
    assert isinstance(alter_sync_state_set(group, 1, 5, (1, 2), 7, lambda _: True), Refusal)
    result = alter_sync_state_set(group, 1, 5, (1, 2), 7, lambda _: True, accept_unchanged=True)
    assert isinstance(result, SyncStateSetAltered)
    assert (result.sync_state_set, result.sync_state_set_epoch) == ((1, 2), 8)
    fenced = alter_sync_state_set(group, 1, 5, (1, 2), 6, lambda _: True, accept_unchanged=True)
    assert isinstance(fenced, Refusal)


def test_the_smaller_declaration_counts() -> None:
    """A master that takes the group for smaller than it is acknowledges earlier."""
    group = make_group(5, ha_mode="cp")
    assert min_in_sync_replicas(group, BrokerId(1)) == 3
    group.replicas[BrokerId(1)].total_replicas = 3
    assert min_in_sync_replicas(group, BrokerId(1)) == 2


@given(
    st.integers(1, 4),
    st.integers(3, 6),
    st.integers(5, 8),
    st.lists(st.integers(1, 5), min_size=1, max_size=4, unique=True),
    st.frozensets(st.integers(1, 4)),
    st.sampled_from(["", "ap", "cp"]),
)
def test_a_refusal_changes_nothing_and_an_event_applies(
    master_id: int, master_epoch: int, set_epoch: int, members: list[int], alive: frozenset[int], ha_mode: str
) -> None:
    info = ReplicasInfo()
    group = info.groups["g"] = make_group(4, sync_state_set=(1, 2), eligible=(3,), ha_mode=ha_mode)
    before = deepcopy(group)
    result = alter_sync_state_set(group, master_id, master_epoch, members, set_epoch, lambda item: item in alive)
    assert group == before
    if isinstance(result, SyncStateSetAltered):
        info.apply(result)
        assert sorted(group.sync_state_set) == sorted(members)
        assert group.sync_state_set_epoch == before.sync_state_set_epoch + 1
        assert group.master_epoch == before.master_epoch


@pytest.mark.parametrize(
    ("ha_mode", "master_id", "members", "total", "expected"),
    [
        ("cp", 1, (1, 2), 3, ()),
        ("cp", None, (1, 2), 3, ()),
        ("cp", 1, (1,), 2, ()),
        ("cp", 1, (1,), 3, (3,)),
        ("ap", 1, (1, 2), 3, (3,)),
    ],
)
def test_a_smaller_group_may_make_the_set_enough_to_acknowledge(
    ha_mode: str, master_id: int | None, members: tuple[int, ...], total: int, expected: tuple[int, ...]
) -> None:
    """Who was eligible beside it may lack what is acknowledged from then on."""
    group = make_group(3, sync_state_set=members, eligible=(3,), ha_mode=ha_mode, total_replicas=5, master_id=master_id)
    info = ReplicasInfo()
    info.groups["g"] = group
    info.apply(GroupSized("g", total))
    assert group.eligible == expected
