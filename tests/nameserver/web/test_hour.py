"""The ring of the last hour, and the failovers in what nodes remember."""

from __future__ import annotations

from typing import Any

from nameserver.web.hour import MAX_SERIES, REPLICA_FIGURES, SampleRing, failovers, group_hour, replica_values
from rmqha.ops.replica_rows import Row
from rmqha.wire.state.history import HistoryEvent


def row(number: int, role: str, **fields: Any) -> Row:
    return Row(f"g-{number}", f"10.0.0.{number}:10911", "g", number, role, **fields)


def test_a_ring_keeps_its_last_points_and_says_nothing_of_what_nobody_told() -> None:
    ring = SampleRing(("a", "b"), points=3)
    for at in range(5):
        ring.put(at, {"x": [at, None]} | ({"y": [1.0, 2.0]} if at == 3 else {}))
    assert ring.times() == [2, 3, 4]
    assert ring.series("x", "a") == [2, 3, 4]
    assert ring.series("x", "b") == [None, None, None]
    assert ring.series("y", "b") == [None, 2.0, None]
    assert ring.series("z", "a") == []


def test_a_ring_forgets_who_is_silent_for_all_of_it_and_is_bounded() -> None:
    ring = SampleRing(("a",), points=2)
    ring.put(1, {f"s{number}": [1.0] for number in range(MAX_SERIES + 2)})
    assert (len(ring.names), ring.left_out) == (MAX_SERIES, 2)
    ring.put(2, {"s0": [1.0]})
    ring.put(3, {"s0": [1.0]})
    assert ring.names == ["s0"]


def test_a_groups_hour_follows_the_mastership_and_names_its_replicas() -> None:
    ring = SampleRing(REPLICA_FIGURES)
    one = {"in_per_second": 5.0, "out_per_second": 1.0, "ack_p50_ms": 1, "ack_p99_ms": 7}
    ring.put(1, replica_values([row(1, "master", **one), row(2, "slave", lag_bytes=9, out_per_second=2.0)]))
    ring.put(2, replica_values([row(1, "down"), row(2, "master", in_per_second=6.0)]))
    shown = group_hour(ring, "g", {"10.0.0.1:10911": "g-1", "10.0.0.2:10911": "g-2"})
    assert shown["times"] == [1, 2]
    assert shown["in"] == [5.0, 6.0]
    assert shown["out"] == [3.0, None]
    assert shown["ackP99"] == [7.0, None]
    assert shown["lag"] == {"g-1": [None, None], "g-2": [9.0, None]}
    assert group_hour(ring, "other", {})["lag"] == {}


def event(at_ms: int, name: str, **fields: Any) -> HistoryEvent:
    return HistoryEvent(at_ms, name, fields)


def test_each_failover_has_its_phases_from_the_moment_the_old_master_was_given_up() -> None:
    told = [
        event(900, "route_changed", broker_name="g", addresses={"0": "a"}),
        event(1_000, "master_dead", group="g"),
        event(1_020, "master_elected", group="g", epoch=2),
        event(1_030, "route_changed", broker_name="g", addresses={"0": "b"}),
        event(1_050, "role_changed", role="MASTER", epoch=2),
        event(1_090, "writable", epoch=2),
        event(5_000, "hand_over_begins", group="g", target=1),
        event(5_007, "master_elected", group="g", epoch=3),
        event(6_000, "master_dead", group="other"),
        event(6_001, "master_elected", group="other", epoch=9),
    ]
    newest, first = failovers(reversed(told), "g")
    assert (newest["kind"], newest["epoch"], newest["atMs"]) == ("switch", 3, 5_000)
    assert newest["phases"] == [["elect", 7], ["role", None], ["writable", None], ["route", None]]
    assert (first["kind"], first["epoch"]) == ("failover", 2)
    assert first["phases"] == [["elect", 20], ["role", 50], ["writable", 90], ["route", 30]]


def test_a_master_that_was_given_up_without_an_election_is_no_failover() -> None:
    assert failovers([event(1, "master_dead", group="g"), event(4, "master_elected", group="other")], "g") == []
