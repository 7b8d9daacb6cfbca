"""Every change of the SyncStateSet is told once, with who and why; acknowledgements are counted by their latency."""

from __future__ import annotations

from typing import Any

import pytest

from rmqha.ha.ack import AckQueue, Stall
from rmqha.ha.action import AckStatus
from rmqha.model.offset import PhyOffset
from tests.ha.group import Group, started

ALL_ACK_AP: dict[str, Any] = {"ha_mode": "ap", "all_ack_in_sync_state_set": True}


def told(group: Group, number: int = 1) -> list[dict[str, Any]]:
    events = [fields for name, fields in group[number].trace.events if name == "set_changed"]
    assert all(fields["epoch"] == group.controller.epoch for fields in events)
    return [{key: value for key, value in fields.items() if key != "epoch"} for fields in events]


def test_joining_and_leaving_are_told_with_the_cause() -> None:
    group = started()
    assert sorted(member for change in told(group) for member in change["joined"]) == [2, 3]
    before = len(told(group))
    group.kill(3)
    group.run(1000)
    assert told(group)[before:] == [{"members": (1, 2), "joined": [], "left": {"3": "disconnected"}, "confirmed": True}]
    group.run(5000)
    assert len(told(group)) == before + 1, "an unchanged set is no news"


def test_a_silent_member_leaves_for_its_missing_acks() -> None:
    group = started()
    before = len(told(group))
    group.cut = {(3, 1)}
    group.send(1)
    group.run(4000)
    assert [change["left"] for change in told(group)[before:]] == [{"3": "no_acks"}]


def test_what_the_controllers_take_out_is_theirs() -> None:
    group = started()
    before = len(told(group))
    group.controller.drained = [3]
    group.controller.members = [1, 2]
    group.controller.set_epoch += 1
    group.run(600)
    assert [change["left"] for change in told(group)[before:]] == [{"3": "controllers"}]


def test_a_set_that_shrinks_without_controllers_is_unconfirmed() -> None:
    group = started(**ALL_ACK_AP)
    before = len(told(group))
    group.controller.away = True
    group.run(2000)
    group.kill(3)
    group.run(3000)
    assert told(group)[before:] == [
        {"members": (1, 2), "joined": [], "left": {"3": "disconnected"}, "confirmed": False}
    ]


def test_waits_that_were_held_up_one_after_the_other_are_one_stall() -> None:
    queue = AckQueue(timeout_ms=3000)

    def last() -> Stall | None:
        return queue.last_stall

    queue.add(0, PhyOffset(1), 1)
    queue.release(500, PhyOffset(1))
    assert last() is None
    for added_ms, end in ((1_000, 2), (1_100, 3), (1_200, 4)):
        queue.add(added_ms, PhyOffset(end), end)
    queue.release(1_600, PhyOffset(3))
    queue.expire(4_200, AckStatus.FLUSH_SLAVE_TIMEOUT)
    assert last() == Stall(1_000, 4_200, 3_000, 3, AckStatus.FLUSH_SLAVE_TIMEOUT)
    queue.add(9_000, PhyOffset(5), 5)
    queue.release(9_501, PhyOffset(5))
    assert last() == Stall(9_000, 9_501, 501, 1, AckStatus.OK)


def test_acknowledgements_are_counted_by_their_latency() -> None:
    queue = AckQueue(timeout_ms=3000)
    for added_ms in (0, 800, 997, 998, 999, 1000):
        queue.add(added_ms, PhyOffset(added_ms), added_ms)
    assert len(queue.release(1000, PhyOffset(998))) == 4
    assert len(queue.release(1000, PhyOffset(5000))) == 2
    counts = {place: count for place, count in enumerate(queue.latency_counts) if count}
    assert counts == {0: 1, 1: 1, 2: 2, 8: 1, 10: 1}
    assert queue.latency_total_ms == 1000 + 200 + 3 + 2 + 1
    assert queue.counted_latencies() == [1, 1, 2, 0, 0, 0, 0, 0, 1, 0, 1]
    assert AckQueue(timeout_ms=1).counted_latencies() == []
    queue.add(1000, PhyOffset(9000), "late")
    queue.abandon()
    assert sum(queue.latency_counts) == 6, "who is not acknowledged does not count"


def test_a_group_counts_its_acknowledgements() -> None:
    group = started()
    for _ in range(3):
        group.send(1)
        group.settle()
    assert sum(group[1].replica.ack_waits.latency_counts) == 3


@pytest.mark.parametrize("is_confirmed", [True, False])
def test_who_is_gone_leaves_though_another_joins_and_no_change_gets_through(
    is_confirmed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ruling 5 in AP: what leaves replica 2 out lets replica 3 in, and is lost each time. `is_confirmed`: the
    controllers have replica 2 in their set; else a proposal that was lost may have put it there."""
    group = started(**ALL_ACK_AP)
    for number in (3,) if is_confirmed else (2, 3):
        group.kill(number)
    group.run(2000)
    assert group.controller.members == ([1, 2] if is_confirmed else [1])
    monkeypatch.setattr(group.controller, "_alter", lambda command: None)
    if not is_confirmed:
        group.restart(2)
        group.run(300)
    master = group[1].replica
    assert master.state(group.now_ms).ack_union == [1, 2]
    group.restart(3)
    group.run(300)
    assert master.state(group.now_ms).ack_union == [1, 2, 3]
    group.kill(2)
    token = group.send(1)
    group.run(2500)
    assert master.state(group.now_ms).ack_union == [1, 3]
    assert group[1].done[token] is AckStatus.OK
    assert group[1].log.confirm_offset == group[1].log.max_phy_offset
