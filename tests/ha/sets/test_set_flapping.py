"""A4: a slave that comes and goes moves the SyncStateSet a bounded number of times; one that dies once pays nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from rmqha.ha.action import AckStatus
from rmqha.ha.sync_state_set_manager import (
    DISCONNECT_GRACE_MS,
    FREE_COUNT,
    HOLD_MAX_MS,
    MAX_LEAVES_PER_WINDOW,
    WINDOW_MS,
    FlapGuard,
)
from rmqha.model.code import RequestCode
from rmqha.model.offset import BrokerId
from tests.ha.group import Group, started

ALL_ACK_AP: dict[str, Any] = {"ha_mode": "ap", "all_ack_in_sync_state_set": True}


def changes(group: Group) -> list[tuple[int, ...]]:
    """The sets that the master has asked for, in order, without repetitions."""
    asked = [
        tuple(json.loads(bytes(command.body))["syncStateSet"])
        for command in group.controller.seen
        if command.code == RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET
    ]
    return [members for place, members in enumerate(asked) if place == 0 or members != asked[place - 1]]


def leaves(group: Group, number: int) -> int:
    found = changes(group)
    return sum(
        1 for before, after in zip([(1, 2, 3), *found], found, strict=False) if number in before and number not in after
    )


def flap(group: Group, number: int, duration_ms: int, up_ms: int, down_ms: int) -> None:
    """The link of this slave breaks and comes back again and again, while messages flow."""
    end_ms = group.now_ms + duration_ms
    while group.now_ms < end_ms:
        group.cut |= {(number, 1), (1, number)}
        for conn_id in list(group[number].links):
            group.close(group[number], conn_id)
            group[number].replica.ha_closed(group.now_ms, conn_id)
        group.settle()
        group.run(down_ms)
        group.cut.clear()
        if group[1].replica.admission(group.now_ms)[0] == 0:
            group.send(1)
        group.run(up_ms)


@pytest.mark.parametrize("options", [{}, ALL_ACK_AP])
@pytest.mark.parametrize(("up_ms", "down_ms"), [(900, 700), (1500, 700), (4000, 600)])
def test_a_flapping_slave_moves_the_set_a_bounded_number_of_times_per_minute(
    options: dict[str, Any], up_ms: int, down_ms: int
) -> None:
    group = started(**options)
    group.controller.seen.clear()
    flap(group, 3, WINDOW_MS, up_ms, down_ms)
    assert FREE_COUNT < leaves(group, 3) <= MAX_LEAVES_PER_WINDOW
    assert len(changes(group)) <= 2 * MAX_LEAVES_PER_WINDOW
    assert {members for members in changes(group) if 2 not in members} == set(), "the others are not touched"


def test_it_is_back_when_it_has_been_fit_for_long_enough() -> None:
    group = started()
    flap(group, 3, WINDOW_MS // 3, 1500, 700)
    group.settle()
    assert group.controller.members == [1, 2]
    held = group[1].replica.state(group.now_ms).to_json()["heldBack"]
    assert 0 < held["3"] <= HOLD_MAX_MS
    group.run(held["3"] - 300)
    assert group.controller.members == [1, 2]
    group.run(600)
    assert group.controller.members == [1, 2, 3]
    assert group[1].replica.state(group.now_ms).to_json()["heldBack"] == {}


def test_a_slave_that_dies_now_and_then_is_taken_back_at_once() -> None:
    group = started()
    for _ in range(5):
        group.kill(3)
        group.run(DISCONNECT_GRACE_MS + 200)
        assert group.controller.members == [1, 2]
        group.restart(3)
        group.run(300)
        assert group.controller.members == [1, 2, 3]
        group.run(WINDOW_MS // FREE_COUNT)


def test_a_slave_that_is_needed_is_held_back_for_a_second_at_most() -> None:
    """CP, two of three dead: without it no send is taken."""
    group = started()
    group.kill(2)
    group.run(700)
    group.controller.seen.clear()
    flap(group, 3, 20_000, 900, 700)
    assert 3 not in group.controller.members, "never fit for a second"
    flap(group, 3, 40_000, 2500, 700)
    assert leaves(group, 3) > 8, "held back as others are, it could not have left so often"
    assert group.controller.members == [1, 3]
    token = group.send(1)
    group.settle()
    assert group[1].done[token] is AckStatus.OK


def test_in_ap_without_controllers_it_is_held_back_too() -> None:
    """Ruling 5: the set shrinks locally; who was left out comes back as a newcomer."""
    group = started(**ALL_ACK_AP)
    group.controller.away = True
    group.run(2000)
    flap(group, 3, 30_000, 900, 700)
    sync = group[1].replica.state(group.now_ms).to_json()
    assert (sync["ackUnion"], sync["syncStateSet"]) == ([1, 2], [1, 2, 3])
    group.run(HOLD_MAX_MS + 1000)
    assert group[1].replica.state(group.now_ms).ack_union == [1, 2, 3]


def each_leave_as_soon_as_possible(guard: FlapGuard, member: BrokerId, until_ms: int) -> int:
    """The worst slave: out of the set the moment it is in."""
    now_ms, count = 0, 0
    while now_ms < until_ms:
        guard.left(now_ms, member)
        count += 1
        now_ms += DISCONNECT_GRACE_MS
        guard.fit(now_ms, [member])
        now_ms = max(now_ms, guard.joins_at_ms(now_ms, needed=False)[member])
        guard.fit(now_ms, [])
    return count


def test_the_worst_slave_leaves_so_often_within_any_minute_and_no_more() -> None:
    for minutes in (1, 5):
        count = each_leave_as_soon_as_possible(FlapGuard(), BrokerId(3), minutes * WINDOW_MS)
        assert count <= MAX_LEAVES_PER_WINDOW * minutes


@pytest.mark.parametrize("unfit", [lambda guard: guard.fit(1500, []), lambda guard: guard.left(1500, BrokerId(3))])
def test_the_time_of_being_fit_starts_anew_after_a_break(unfit: Callable[[FlapGuard], None]) -> None:
    guard, member = FlapGuard(), BrokerId(3)
    for now_ms in range(FREE_COUNT + 2):
        guard.left(now_ms, member)
    guard.fit(1000, [member])
    before = guard.joins_at_ms(1000, needed=False)[member]
    unfit(guard)
    guard.fit(1600, [member])
    assert guard.joins_at_ms(1600, needed=False)[member] >= before + 600
    guard.fit(WINDOW_MS + 2000, [])
    guard.fit(WINDOW_MS + 2000, [member])
    assert guard.joins_at_ms(WINDOW_MS + 2000, needed=False)[member] == WINDOW_MS + 2000
