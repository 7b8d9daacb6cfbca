"""Counters that follow from events, timed by the tracer's own clock."""

from __future__ import annotations

from rmqha.host.event_counts import CUT_BYTES, ELECTIONS, EVENTS, FAILOVER, SET_CHANGES, EventCounts
from rmqha.host.tracer import HostTracer
from rmqha.model.identity import Role
from rmqha.model.series import MetricFamilies, Series
from tests.support.clock import ManualClock


class Node:
    def __init__(self) -> None:
        self.clock = ManualClock(0)
        self.tracer = HostTracer(clock=self.clock, write=lambda _: None)
        self.counts = EventCounts(self.tracer)

    def at(self, ms: int, name: str, **fields: object) -> None:
        self.clock.ms = ms
        self.tracer.event(name, **fields)


def values(families: MetricFamilies, series: Series, suffix: str = "") -> dict[tuple[str, ...], float]:
    samples = (item for item in families.samples.get(series, []) if item.suffix == suffix)
    return {tuple(sample.labels.values()): sample.value for sample in samples}


def test_phases_of_an_election_are_those_of_its_group() -> None:
    node = Node()
    node.at(1_000, "master_dead", group="a", broker_id=1, why="probe failed", silent_ms=2_100)
    node.at(1_010, "master_dead", group="b", broker_id=1, why="probe failed", silent_ms=40)
    node.at(1_050, "master_elected", group="a", broker_id=2, epoch=2, cause="MASTER_DEAD")
    node.at(9_000, "master_elected", group="c", broker_id=2, epoch=2, cause="FIRST")
    families = node.counts.collect()
    assert values(families, FAILOVER, "_count") == {("detect",): 2, ("elect",): 1}
    assert values(families, FAILOVER, "_sum") == {("detect",): 2.14, ("elect",): 0.05}
    buckets = values(families, FAILOVER, "_bucket")
    assert (buckets["elect", "0.025"], buckets["elect", "0.05"], buckets["elect", "+Inf"]) == (0, 1, 1)
    assert values(families, ELECTIONS) == {("first",): 1, ("master_dead",): 1}
    assert values(families, EVENTS) == {("master_dead",): 2, ("master_elected",): 2}


def test_what_may_come_shows_0_before_it_comes() -> None:
    """Prometheus' increase() sees the first election of a cause only if that cause was 0 before."""
    node = Node()
    node.counts.expect(elections=["unclean_by_operator"], set_changes=[("leave", "no_acks")], phases=["elect"])
    families = node.counts.collect()
    assert values(families, ELECTIONS) == {("unclean_by_operator",): 0}
    assert values(families, SET_CHANGES) == {("leave", "no_acks"): 0}
    assert values(families, FAILOVER, "_count") == {("elect",): 0}
    node.at(10, "master_elected", group="a", broker_id=2, epoch=2, cause="UNCLEAN_BY_OPERATOR")
    node.counts.expect(elections=["unclean_by_operator"], phases=["elect"])
    assert values(node.counts.collect(), ELECTIONS) == {("unclean_by_operator",): 1}


def test_a_planned_switch_is_a_phase_of_its_own_and_a_failed_one_is_none() -> None:
    node = Node()
    node.at(0, "hand_over_begins", group="a", master=1, target=2)
    node.at(30, "hand_over_failed", group="a", why="no")
    node.at(1_000, "hand_over_begins", group="a", master=1, target=2)
    node.at(1_200, "master_elected", group="a", broker_id=2, epoch=2, cause="BY_OPERATOR")
    assert values(node.counts.collect(), FAILOVER, "_sum") == {("hand_over",): 0.2}


def test_a_new_master_counts_the_way_to_its_first_send() -> None:
    node = Node()
    node.at(0, "role_changed", role=Role.MASTER, epoch=1)
    node.at(300, "role_changed", role=Role.SLAVE, epoch=2)
    node.at(400, "writable", epoch=1)
    node.at(500, "role_changed", role=Role.MASTER, epoch=3)
    node.at(520, "writable", epoch=3)
    node.at(900, "writable", epoch=3)
    assert values(node.counts.collect(), FAILOVER, "_sum") == {("writable",): 0.02}


def test_set_changes_have_their_cause_and_cuts_their_bytes() -> None:
    node = Node()
    node.at(0, "set_changed", members=[1, 2, 3], joined=[2, 3], left={}, confirmed=True)
    node.at(1, "set_changed", members=[1], joined=[], left={"2": "no_acks", "3": "disconnected"}, confirmed=True)
    node.at(2, "log_truncated", end_offset=100, cut_bytes=50, epochs_dropped=0)
    node.at(3, "log_truncated", end_offset=90, cut_bytes=10, epochs_dropped=0)
    families = node.counts.collect()
    assert values(families, SET_CHANGES) == {
        ("join", "caught_up"): 2,
        ("leave", "no_acks"): 1,
        ("leave", "disconnected"): 1,
    }
    assert values(families, CUT_BYTES) == {(): 60}
