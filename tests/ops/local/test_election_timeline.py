"""The timeline of each election, from the events of all nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rmqha.cli.admin.history import paragraph
from rmqha.ops.local.election_timeline import ElectionTimeline, SetStep, election_timelines
from rmqha.wire.state.history import HistoryEvent, parse_history

GROUPS = {"broker-a-1": "broker-a", "broker-a-2": "broker-a", "broker-b-1": "broker-b"}


def event(at_ms: int, node: str, name: str, **fields: Any) -> HistoryEvent:
    return HistoryEvent(at_ms, name, fields, node)


def elected(at_ms: int, epoch: int, broker_id: int, cause: str, group: str = "broker-a") -> HistoryEvent:
    return event(at_ms, "ns-1", "master_elected", group=group, epoch=epoch, broker_id=broker_id, cause=cause)


FAILOVER = [
    elected(1_000, 1, 1, "FIRST_ELECTION"),
    event(1_005, "broker-a-1", "role_changed", role="MASTER", epoch=1),
    event(9_000, "ns-1", "master_dead", group="broker-a", broker_id=1, why="session closed"),
    elected(9_012, 2, 2, "MASTER_DEAD"),
    event(9_015, "broker-a-2", "role_changed", role="MASTER", epoch=2),
    event(9_021, "broker-a-2", "writable", epoch=2),
    event(9_023, "ns-1", "route_changed", broker_name="broker-a", broker_addrs={"0": "x"}),
    event(9_100, "broker-a-2", "set_changed", epoch=2, members=[2, 3], joined=[3], left={}),
    event(12_000, "broker-a-1", "log_truncated", cut_bytes=209),
    event(17_000, "broker-a-2", "set_changed", epoch=2, members=[1, 2, 3], joined=[1], left={}),
]
TIMELINE = ElectionTimeline(
    "broker-a",
    2,
    9_012,
    "broker-a-2",
    "master dead",
    9_000,
    False,
    "session closed",
    (("elect", 12), ("role", 15), ("writable", 21), ("route", 23)),
    (SetStep(88, (2, 3)), SetStep(7_988, (1, 2, 3))),
    (("broker-a-1", 209),),
)


def test_a_failover_from_the_masters_death_to_the_full_set() -> None:
    first, second = election_timelines(FAILOVER, GROUPS)
    assert second == TIMELINE
    assert (first.leader, first.cause, first.began_ms, first.phases, first.cuts) == (
        "broker-a-1",
        "first election",
        None,
        (),
        (),
    )


def test_a_paragraph_reads_at_eighty_columns() -> None:
    head, *rest = paragraph(TIMELINE).splitlines()
    assert head.endswith(" broker-a epoch 2")
    assert rest[0] == "  broker-a-2 became master: master dead (session closed)"
    assert rest[1] == "  ms since the old master was given up: elect 12, role 15, writable 21, route 23"
    assert rest[2:] == [
        "  +0.1 s in the set: 2, 3",
        "  +8.0 s in the set: 1, 2, 3",
        "  broker-a-1 cut 209 bytes",
    ]
    assert all(len(line) <= 80 for line in (head, *rest))


def test_the_same_told_twice_and_another_groups_are_kept_apart() -> None:
    others = [
        event(9_005, "ctl-1", "master_dead", group="broker-b", broker_id=1, why="other"),
        elected(9_010, 7, 1, "MASTER_DEAD", "broker-b"),
        event(9_016, "broker-b-1", "set_changed", epoch=2, members=[1], joined=[], left={}),
    ]
    twice = [replace(item, node="ctl-1") for item in FAILOVER if item.node == "ns-1"]
    timelines = election_timelines([*others, *FAILOVER, *twice], GROUPS)
    assert [(item.group, item.epoch) for item in timelines] == [
        ("broker-a", 1),
        ("broker-b", 7),
        ("broker-a", 2),
    ]
    assert timelines[2] == TIMELINE


def test_a_switch_ends_where_the_next_election_begins_and_names_are_remembered() -> None:
    switch = [
        event(30_000, "ns-1", "hand_over_begins", group="broker-a", master=2, target=1),
        elected(30_004, 3, 1, "DESIGNATED"),
        event(30_006, "broker-a-1", "role_changed", role="MASTER", epoch=3),
        event(30_007, "broker-a-2", "log_truncated", cut_bytes=0),
        event(31_000, "ns-1", "master_dead", group="broker-a", broker_id=1, why="probe failed"),
        elected(31_010, 4, 2, "MASTER_DEAD"),
    ]
    *_, third, fourth = election_timelines([*FAILOVER, *switch], GROUPS)
    assert (third.is_switch, third.phases, third.cuts) == (True, (("elect", 4), ("role", 6)), ())
    assert "  ms since the hand-over began: elect 4, role 6" in paragraph(third).splitlines()
    assert (fourth.leader, fourth.why) == ("broker-a-2", "probe failed"), "it died before it took the role"


def test_a_master_that_nobody_heard_goes_by_its_id() -> None:
    (timeline,) = election_timelines([elected(5, 3, 2, "DESIGNATED")], GROUPS)
    assert (timeline.leader, timeline.cause, timeline.sets) == ("replica 2", "designated", ())


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["at_ms", "node", "event", "group", "epoch", "broker_id", "members", "cut_bytes", "cause"]),
            st.sampled_from(
                [1, 2, "broker-a", "broker-a-1", "master_elected", "set_changed", "master_dead", [1], None]
            ),
        )
    )
)
def test_what_no_node_of_ours_says_is_survived(events: list[dict[str, Any]]) -> None:
    told = [replace(item, node=str(item.get("node") or "")) for item in parse_history({"events": events})]
    for timeline in election_timelines(told, GROUPS):
        assert paragraph(timeline) and timeline.as_dict()["group"] == timeline.group
