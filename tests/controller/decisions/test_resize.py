from __future__ import annotations

import pytest

from controller.decisions.membership import finished, resize
from controller.decisions.refusal import Refusal
from controller.state.event import GroupResizing, GroupSized
from tests.controller.values import make_group


@pytest.mark.parametrize(
    ("replicas", "total", "under_way", "wanted", "expected"),
    [
        (3, 3, 0, 5, GroupResizing("g", 5)),
        (3, 5, 0, 3, GroupResizing("g", 3)),
        (3, 3, 0, 3, None),
        (3, 3, 5, 5, None),
        (3, 3, 5, 3, "is changing to 5"),
        (3, 3, 5, 7, "one change at a time"),
        (5, 5, 0, 3, "g has 5 replicas; stop and clean 2 of them first"),
        (3, 3, 0, 0, "must lie between 1 and 9"),
        (3, 3, 0, 10, "must lie between 1 and 9"),
    ],
)
def test_resize(replicas: int, total: int, under_way: int, wanted: int, expected: object) -> None:
    group = make_group(replicas, sync_state_set=(1,), total_replicas=total)
    group.next_total_replicas = under_way
    result = resize(group, "g", wanted)
    if isinstance(expected, str):
        assert isinstance(result, Refusal) and expected in result.remark
    else:
        assert result == expected


@pytest.mark.parametrize(("wanted", "taken"), [(1, False), (2, False), (3, True), (4, True)])
def test_a_first_election_is_not_made_smaller(wanted: int, taken: bool) -> None:
    """The controllers have lost their disk and one of three is away: it may have what the others lack."""
    group = make_group(1, sync_state_set=(), master_id=None, set_known=False, total_replicas=3)
    result = resize(group, "g", wanted)
    assert isinstance(result, Refusal) != taken
    assert taken or (isinstance(result, Refusal) and "3 replicas of g must report before its first" in result.remark)


def test_a_group_that_nobody_knows() -> None:
    result = resize(None, "x", 3)
    assert isinstance(result, Refusal) and "there is no group x" in result.remark


@pytest.mark.parametrize(
    ("total", "under_way", "master_goes_by", "ends"),
    [(3, 0, 3, False), (3, 5, 3, False), (3, 5, 5, True), (5, 3, 5, True), (3, 5, None, True), (3, 5, 0, True)],
)
def test_the_larger_number_binds_until_the_master_goes_by_it(
    total: int, under_way: int, master_goes_by: int | None, ends: bool
) -> None:
    group = make_group(total_replicas=total)
    group.next_total_replicas = under_way
    assert group.binding_total_replicas == max(total, under_way)
    assert finished(group, master_goes_by) == (GroupSized("g", under_way) if ends else None)
