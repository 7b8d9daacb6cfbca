"""A directed switch as the master sees it (ruling 18): bounded, and undone if the target does not come."""

from __future__ import annotations

from rmqha.ha.action import AckStatus
from rmqha.ha.stream.copy_speed import parse_slaves
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.offset import BrokerId, Epoch
from rmqha.wire.state.controller_state import ReportedSlave
from tests.ha.group import Group, started


def ask(group: Group, target: int | None, *, epoch: int | None = None, timeout_ms: int = 2000) -> str:
    """The token of a request 52012 to replica 1."""
    token = f"hand-over-{len(group[1].handed_over)}-{target}"
    goal = None if target is None else BrokerId(target)
    at = Epoch(group.controller.epoch if epoch is None else epoch)
    group[1].replica.hand_over(group.now_ms, at, goal, timeout_ms, token)
    group.settle()
    return token


def admitted(group: Group) -> ResponseCode:
    return group[1].replica.admission(group.now_ms)[0]


def test_a_level_target_is_told_at_once_and_sends_are_refused() -> None:
    group = started()
    token = ask(group, 2)
    assert group[1].handed_over == {token: ""}
    assert group[1].replica.admission(group.now_ms) == (
        ResponseCode.SERVICE_NOT_AVAILABLE,
        "replica 2 is about to become master",
    )
    group.elect(2)
    group.run(200)
    assert group.master_is(2)
    assert group[1].replica.state(group.now_ms).hands_over_to is None


def test_a_master_that_nobody_replaces_goes_on() -> None:
    group = started()
    ask(group, 2)
    group.run(1100)
    assert admitted(group) is ResponseCode.SUCCESS
    token = group.send(1)
    group.settle()
    assert group[1].done[token] is AckStatus.OK


def test_a_target_that_does_not_come_undoes_it_and_is_named() -> None:
    group = started()
    group.cut = {(1, 2), (2, 1)}
    send = group.send(1)
    token = ask(group, 2, timeout_ms=300)
    assert token not in group[1].handed_over
    assert admitted(group) is ResponseCode.SERVICE_NOT_AVAILABLE
    group.run(310)
    refusal = group[1].handed_over[token]
    assert refusal.startswith("replica 2 lacks 100 bytes after 300 ms; the master goes on")
    assert group[1].replica.state(group.now_ms).hands_over_to is None
    assert send not in group[1].done


def test_a_target_that_is_not_connected_is_said_so() -> None:
    group = started()
    group.kill(2)
    token = ask(group, 2, timeout_ms=200)
    group.run(250)
    assert group[1].handed_over[token].startswith("replica 2 is not connected after 200 ms")


def test_producers_that_wait_for_others_hold_it_up_for_half_the_time_only() -> None:
    """Replica 3 does not acknowledge; 2 holds everything, so no acknowledged message can be lost."""
    group = started()
    group.cut = {(1, 3), (3, 1)}
    group.send(1)
    token = ask(group, 2, timeout_ms=400)
    group.run(190)
    assert token not in group[1].handed_over
    group.run(20)
    assert group[1].handed_over[token] == ""


def test_answers_that_wait_for_the_sets_tables_hold_it_up_too() -> None:
    """Those of sends that have made their topic: they would be told that their end is open, and come again."""
    group = started()
    group.table_waits = 1
    first = ask(group, 2, timeout_ms=400)
    group.run(190)
    assert first not in group[1].handed_over
    group.table_waits = 0
    group.run(1)
    assert group[1].handed_over[first] == ""
    group.run(1100)
    group.table_waits = 1
    second = ask(group, 2, timeout_ms=400)
    group.run(190)
    assert second not in group[1].handed_over
    group.run(20)
    assert group[1].handed_over[second] == ""


def test_another_request_takes_its_place_and_a_cancel_ends_it() -> None:
    group = started()
    group.cut = {(1, 2), (2, 1), (1, 3), (3, 1)}
    group.send(1)
    first, second = ask(group, 2), ask(group, 3)
    assert group[1].handed_over[first] == "another hand-over took its place"
    ask(group, None)
    assert group[1].handed_over[second] == "cancelled"
    assert admitted(group) is not ResponseCode.SERVICE_NOT_AVAILABLE


def test_a_request_of_another_epoch_or_to_a_slave_is_refused() -> None:
    group = started()
    token = ask(group, 2, epoch=9)
    assert group[1].handed_over[token] == "this broker is not the master of epoch 9, its own is 1"
    assert admitted(group) is ResponseCode.SUCCESS
    group[2].replica.hand_over(group.now_ms, Epoch(1), BrokerId(3), 1000, "slave")
    group.settle()
    assert "is not the master" in group[2].handed_over["slave"]


def test_a_demoted_master_tells_that_it_is_none() -> None:
    group = started()
    group.cut = {(1, 2), (2, 1)}
    group.send(1)
    token = ask(group, 2)
    group.elect(3)
    group.run(10)
    assert group[1].handed_over[token] == "this broker is no longer the master"


# --- heartbeats -----------------------------------------------------------------------------------------------------


def last_beat(group: Group) -> dict[str, str]:
    address = group[1].config.address
    beats = [
        command.ext
        for command in group.controller.seen
        if command.code == RequestCode.BROKER_HEARTBEAT and command.ext["brokerAddr"] == address
    ]
    return beats[-1]


def test_the_masters_heartbeat_tells_lag_and_speed_of_each_slave() -> None:
    group = started()
    group.run(500)
    group.cut = {(1, 3), (3, 1)}
    for _ in range(3):
        group.send(1)
    group.run(500)
    rows = {row.broker_id: row for row in parse_slaves(last_beat(group)["slaves"])}
    assert rows[2] == ReportedSlave(broker_id=2, lag_bytes=0, lag_ms=0, bytes_per_second=600)
    assert (rows[3].lag_bytes, rows[3].bytes_per_second) == (300, 0)
    assert rows[3].lag_ms > 0


def test_a_disk_problem_is_told_at_once_and_with_every_heartbeat() -> None:
    group = started()
    replica = group[1].replica
    replica.disk_probed(group.now_ms, "a small write has not ended for 5000 ms")
    group.settle()
    assert last_beat(group)["diskProblem"] == "a small write has not ended for 5000 ms"
    group.run(1000)
    assert last_beat(group)["diskProblem"] != ""
    replica.disk_probed(group.now_ms, "")
    group.settle()
    assert last_beat(group)["diskProblem"] == ""
    assert [name for name in group[1].trace.names() if name.startswith("disk_")] == ["disk_problem", "disk_well"]


def test_the_number_of_replicas_that_it_goes_by_is_told() -> None:
    group = started()
    group.controller.total_replicas = 5
    group.run(1100)
    assert last_beat(group)["boundTotalReplicas"] == "5"
    assert group[1].replica.state(group.now_ms).total_replicas == 5
