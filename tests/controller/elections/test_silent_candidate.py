"""A candidate that does not answer at once and must hold more is waited for (ruling 8). Each fails without its rule."""

from __future__ import annotations

import pytest

from tests.controller.harness import SLOW_MS, Broker, Cluster, group_of

SHORT_MS, LONG_MS = 50, 1000


def beaten(*reported: tuple[int, int], ha_mode: str = "ap") -> tuple[Cluster, list[Broker]]:
    """A group whose replicas have last reported these epochs and ends, all in the set."""
    cluster, brokers = group_of(3, ha_mode=ha_mode)
    for broker, (epoch, end) in zip(brokers, reported, strict=True):
        broker.epoch, broker.max_offset = epoch, end
    cluster.run(600)
    return cluster, brokers


def until_elected(cluster: Cluster) -> int:
    """How long it takes, in ms."""
    before_ms = cluster.now_ms
    cluster.run(3000, until=lambda: cluster.group().master_id not in (1, None))
    return cluster.now_ms - before_ms


@pytest.mark.parametrize(("own", "other"), [((1, 1500), (1, 2000)), ((1, 9000), (2, 2000)), ((1, 0), (1, 1))])
def test_a_slow_candidate_with_more_becomes_master(own: tuple[int, int], other: tuple[int, int]) -> None:
    """With inSyncReplicas=2 it may hold what was acknowledged and the other one lacks."""
    cluster, brokers = beaten((2, 9000), own, other)
    cluster.crash(brokers[0])
    brokers[2].probes = "slow"
    assert SLOW_MS <= until_elected(cluster) < SHORT_MS + SLOW_MS + 20
    assert cluster.group().master_id == 3


@pytest.mark.parametrize("ha_mode", ["ap", "cp"])
@pytest.mark.parametrize(
    ("own", "other", "more"),
    [
        ((1, 1500), (1, 2000), 500),
        ((1, 9000), (2, 2000), 1),
        ((1, 1500), (1, 1500), 0),
        ((1, 1500), (1, 1400), 0),
        ((2, 1500), (1, 9000), 0),
    ],
)
def test_a_silent_candidate_is_waited_for_a_second_if_it_must_hold_more(
    ha_mode: str, own: tuple[int, int], other: tuple[int, int], more: int
) -> None:
    """In CP every member of the set holds what was acknowledged, so nobody is waited for."""
    cluster, brokers = beaten((2, 9000), own, other, ha_mode=ha_mode)
    cluster.crash(brokers[0])
    brokers[2].probes = "silent"
    waits = bool(more) and ha_mode == "ap"
    took_ms = until_elected(cluster)
    assert (LONG_MS if waits else SHORT_MS) <= took_ms < (LONG_MS if waits else SHORT_MS) + 20
    told = f"; broker-a-3, which does not answer, has reported at least {more} bytes more"
    assert cluster.group().master_id == 2
    assert cluster.group().elections[-1].reason.endswith(told) == waits
    assert ("election_waits" in cluster.tracer.names()) == waits


def test_one_that_ends_meanwhile_is_not_waited_for_any_longer() -> None:
    cluster, brokers = beaten((1, 9000), (1, 1500), (1, 2000))
    cluster.crash(brokers[0])
    brokers[2].probes = "silent"
    cluster.run(SHORT_MS - 10)
    brokers[2].probes = "refuse"
    assert until_elected(cluster) < SHORT_MS and cluster.group().master_id == 2


def test_an_answer_within_the_second_counts_as_any_other() -> None:
    cluster, brokers = beaten((1, 9000), (1, 1500), (1, 2000))
    cluster.crash(brokers[0])
    brokers[2].probes = "silent"
    cluster.run(SHORT_MS - 10)
    brokers[2].probes, brokers[2].max_offset = "slow", 1700
    until_elected(cluster)
    group = cluster.group()
    assert group.master_id == 3 and group.elections[-1].reason.endswith("200 bytes more than broker-a-2")


def test_an_unclean_election_waits_too_and_so_loses_least() -> None:
    cluster, brokers = beaten((1, 9000), (1, 1500), (1, 2000), ha_mode="cp")
    assert cluster.alter([1]).code == 0
    cluster.crash(brokers[0])
    brokers[2].probes = "silent"
    before_ms = cluster.now_ms
    answer = cluster.elect(None, unclean=True)
    assert answer.ext["masterBrokerId"] == "2" and cluster.now_ms - before_ms >= LONG_MS
