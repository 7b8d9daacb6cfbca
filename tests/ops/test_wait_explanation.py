"""`rmqha explain-wait` in words, from the states of real machines: who is waited for, and how that ends."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from rmqha.ha.action import AckStatus
from rmqha.ops.node_names import ReplicaNames
from rmqha.ops.wait_explanation import is_wrong, sentences
from rmqha.wire.state.replica_state import ReplicaState, SlaveState
from tests.ha.group import Group, started

NAMES = ReplicaNames({number: f"broker-a-{number}" for number in (1, 2, 3)})
AP_COUNT: dict[str, Any] = {"ha_mode": "", "broker_role": "SYNC_MASTER", "in_sync_replicas": 3}


def silence(group: Group, *numbers: int) -> None:
    group.cut |= {(number, 1) for number in numbers}


def told(group: Group) -> list[str]:
    return sentences("g", state_of(group), NAMES)


def state_of(group: Group) -> ReplicaState:
    """As it comes over the wire."""
    return ReplicaState.from_json(json.loads(json.dumps(group[1].replica.state(group.now_ms).to_json())))


def test_nothing_waits() -> None:
    group = started()
    assert told(group) == [
        "g: no send waits; "
        "rule: every member of the set [broker-a-1, broker-a-2, broker-a-3], at least 2 of 3 must have it"
    ]
    assert not is_wrong(state_of(group))


def test_one_silent_slave_in_cp_leaves_in_time_and_the_prophecy_holds() -> None:
    group = started()
    silence(group, 3)
    token = group.send(1)
    group.send(1)
    group.run(500)
    assert told(group) == [
        "g: 2 sends wait, the oldest for 500 ms, until offset 100 is acknowledged",
        "rule: every member of the set [broker-a-1, broker-a-2, broker-a-3], at least 2 of 3 must have it",
        "waited for: broker-a-3, it owes 100 bytes and acknowledged nothing for 500 ms",
        "broker-a-3 leaves the set in 1500 ms, because it owes bytes and acknowledges none",
        "then 2 are left and sends go on",
        "at the latest in 2500 ms the oldest is answered FLUSH_SLAVE_TIMEOUT",
    ]
    assert not is_wrong(state_of(group))
    group.run(1490)
    assert group[1].done == {}
    assert is_wrong(state_of(group))
    group.run(120)
    assert group[1].done[token] is AckStatus.OK


def test_two_silent_slaves_in_cp_end_in_a_refusal_and_the_prophecy_holds() -> None:
    group = started()
    silence(group, 2, 3)
    token = group.send(1)
    group.run(100)
    lines = told(group)
    assert "then 1 of 3 are left, fewer than 2: these sends fail and new ones are refused" in lines
    assert lines[-1] == "at the latest in 2900 ms the oldest is answered FLUSH_SLAVE_TIMEOUT"
    group.run(2920)
    assert group[1].done[token] is AckStatus.FLUSH_SLAVE_TIMEOUT
    assert told(group)[-1].startswith(
        "no new send is taken: in-sync replicas not enough: the confirmed set [broker-a-1]"
    )
    assert is_wrong(state_of(group))


def test_a_dead_slave_is_called_not_connected() -> None:
    group = started()
    group.kill(3)
    group.send(1)
    group.run(200)
    lines = told(group)
    assert "waited for: broker-a-3, not connected for 200 ms" in lines
    assert "broker-a-3 leaves the set in 300 ms, because it is not connected" in lines


def test_without_controllers_nobody_leaves_in_cp() -> None:
    group = started()
    group.controller.away = True
    group.run(3000)
    silence(group, 3)
    group.send(1)
    group.run(300)
    assert "the controllers are away: without them nobody leaves the set" in told(group)


def test_a_fixed_number_waits_until_the_time_out() -> None:
    group = started(**AP_COUNT)
    silence(group, 3)
    group.send(1)
    group.run(100)
    lines = told(group)
    assert lines[1] == "rule: 3 replicas of the set [broker-a-1, broker-a-2, broker-a-3] must have it"
    assert "waited for: 1 of broker-a-3" in lines
    assert "that does not help these sends: 3 replicas must have them" in lines


def test_an_adaptive_number_falls() -> None:
    group = started(**AP_COUNT, enable_auto_in_sync_replicas=True)
    silence(group, 3)
    group.send(1)
    group.run(100)
    assert "then 2 are left and sends go on" in told(group)
    group.run(2500)
    assert told(group)[:1] == [
        "g: no send waits; rule: 2 replicas of the set [broker-a-1, broker-a-2] must have it (3 while enough live)"
    ]


def test_the_masters_own_disk_is_named() -> None:
    group = started(flush_disk_type="SYNC_FLUSH")
    group.auto_sync = False
    group.send(1)
    group.run(100)
    lines = told(group)
    assert lines[1].endswith("must have it on disk")
    assert "waited for: the master's own disk, which holds everything up to 0" in lines
    assert lines[-1] == "at the latest in 4900 ms the oldest is answered FLUSH_DISK_TIMEOUT"


def test_two_of_two_in_cp_goes_on_with_one_synced_copy() -> None:
    group = started(2)
    silence(group, 2)
    group.send(1)
    group.run(100)
    assert "then 1 are left and sends go on, each message synced first" in told(group)


def test_a_lost_answer_of_the_controllers_is_said() -> None:
    group = started()
    group.kill(3)
    group.run(300)
    group.controller.lose_alter_replies = True
    group.send(1)
    group.run(300)
    assert any(line.startswith("an answer of the controllers was lost") for line in told(group))


def test_a_static_group_tells_who_owes_bytes() -> None:
    state = ReplicaState(role="MASTER", epoch=0, max_phy_offset=90, confirm_offset=90, writable=True)
    state.slaves = [
        SlaveState(peer="10.0.0.2:1", lag_bytes=70, lag_ms=900),
        SlaveState(peer="10.0.0.3:1", lag_bytes=0, lag_ms=0),
        SlaveState(peer="10.0.0.4:1", lag_bytes=None, lag_ms=5),
    ]
    state.waiting_count, state.needed_slaves = 3, 1
    assert sentences("g", state) == [
        "g: 3 sends wait",
        "rule: the master and 1 slaves must have it",
        "slave at 10.0.0.2:1 owes 70 bytes and was level 900 ms ago",
        "slave at 10.0.0.4:1 has acknowledged nothing yet",
    ]
    state.waiting_count = state.needed_slaves = 0
    assert sentences("g", state) == [
        "g: 0 sends wait",
        "rule: the master must have it",
    ]


def test_an_older_release_tells_how_many_wait() -> None:
    state = state_of(started())
    state.waits = state.ack_rule = state.set_members = None
    assert sentences("g", state) == ["g: 0 sends wait"]
    assert not is_wrong(state)


def test_the_last_stall_is_told_for_ten_minutes_after_its_end() -> None:
    group = started()
    silence(group, 3)
    group.send(1)
    group.run(1_500)
    assert not [line for line in told(group) if "last stall" in line], "it has not ended yet"
    group.run(1_500)
    (line,) = [line for line in told(group) if "last stall" in line]
    assert line.startswith("the last stall ended ") and "1 send waited, the longest for " in line
    assert "rmqha history" in line
    stall = state_of(group).last_stall
    assert stall is not None and stall.lasted_ms >= stall.longest_ms > 500
    group.run(1_000)
    assert state_of(group).last_stall == replace(stall, ended_ms_ago=stall.ended_ms_ago + 1_000)
    later = group[1].replica.state(group.now_ms + 600_000)
    assert later.last_stall is None
