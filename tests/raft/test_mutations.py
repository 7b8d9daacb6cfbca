"""Planted bugs: the simulation must find each of them, else it proves nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rmqha.model.offset import RaftIndex
from rmqha.raft import election, follower, leader
from rmqha.raft.config import RaftConfig
from rmqha.raft.core import Core, Leader, RaftRole
from rmqha.raft.log import RaftLog, StoredState
from rmqha.raft.node import RaftNode, Ready
from rmqha.raft.quorum import Configuration
from rmqha.sim.network import LinkOptions
from rmqha.sim.prng import SimPrng
from rmqha.sim.tracer import SimTracer
from rmqha.wire.raft_message import AppendRequest
from tests.raft.checker import ViolationError
from tests.raft.cluster import Cluster, MakeNode, Options, make_node
from tests.raft.run import Plan, Run

MAX_SEED_COUNT = 200
DURATION_MS = 4000


def first_violation(options: Options, plan: Plan, make: MakeNode = make_node, seed_count: int = MAX_SEED_COUNT) -> str:
    """What the first seeds find, "" if nothing."""
    for seed in range(seed_count):
        try:
            Run(seed, options, plan, make).execute(DURATION_MS)
        except ViolationError as error:
            return str(error)
    return ""


QUICK = RaftConfig(election_timeout_ms=60, heartbeat_interval_ms=15, lease_ms=40)
"""More elections in the same time."""
AMBUSH = Plan(("crash", "isolate_leader", "heal"), 200, ambush_percent=80)
QUIET = Plan(("isolate_leader", "cut_from_leader", "heal"), 300, mean_request_gap_ms=300)


class SendsBeforePersisting(RaftNode):
    """Bug: votes and acknowledgements leave before they are durable."""

    def ready(self, now_ms: int) -> Ready | None:
        ready = super().ready(now_ms)
        if ready is None:
            return None
        early = replace(ready, early=ready.early + ready.messages, messages=())
        if early.must_persist:
            self._persisting = early
        else:
            self._diskless = early
        return early


@pytest.mark.sim
def test_sending_before_persisting(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(*arguments: Any) -> RaftNode:
        return SendsBeforePersisting(*arguments)

    found = first_violation(Options(max_sync_ms=60, config=QUICK), AMBUSH, make)
    assert "votes for" in found or "both lead" in found or "decided" in found, found


@pytest.mark.sim
def test_forgetting_the_vote(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: a restart keeps the term but not the vote."""

    def make(
        node_id: str,
        initial: Configuration,
        stored: StoredState,
        config: RaftConfig,
        prng: SimPrng,
        tracer: SimTracer,
        now_ms: int,
    ) -> RaftNode:
        return RaftNode(node_id, initial, replace(stored, voted_for=""), config, prng, tracer, now_ms)

    plan = Plan(("isolate_leader", "heal"), 100, ambush_percent=80, ambushes=("blink",))
    assert "votes for" in first_violation(Options(node_count=5, link=LinkOptions(max_delay_ms=40)), plan, make)


@pytest.mark.sim
def test_taking_a_pause_for_a_slow_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: a leader that stood still gives way for its disk."""
    monkeypatch.setattr(leader, "pause_ms", lambda core, role, now_ms: 0)
    plan = Plan(("pause_leader",), 300, mean_request_gap_ms=40)
    assert "gives way" in first_violation(Options(max_sync_ms=450), plan)


@pytest.mark.sim
def test_skipping_the_log_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: a voter does not compare logs."""
    monkeypatch.setattr(RaftLog, "is_up_to_date", lambda self, last_index, last_term: True)
    found = first_violation(Options(), QUIET)
    assert "without decided entry" in found or "committed here" in found, found


def test_committing_an_older_term_by_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: the dissertation's figure 3.7."""

    def count_commits(core: Core, role: Leader) -> None:
        def match_index(voter: str) -> int:
            return core.log.durable_index if voter == core.node_id else role.progress[voter].match_index

        core.log.commit_to(RaftIndex(core.configuration.majority_reached(match_index)))

    monkeypatch.setattr(leader, "count_commits", count_commits)

    with pytest.raises(ViolationError, match="without decided entry 1"):
        figure_3_7()


def test_the_same_story_without_the_bug() -> None:
    figure_3_7()


def figure_3_7() -> None:
    """A leads and reaches B only; C leads and reaches nobody; A or B leads again and spreads the old entry to D; the
    moment something is committed, C, D and E are alone: C may lead only if the old entry was not committed."""
    cluster = Cluster(1, Options(5, config=RaftConfig(max_append_entries=1)))
    for host in cluster.hosts.values():
        cluster.start(host)
    first = next_leader(cluster, ())
    second = next(name for name in cluster.names if name != first)
    rest = [name for name in cluster.names if name not in (first, second)]
    cluster.network.partition([first, second], rest)
    third = next_leader(cluster, (first, second))
    fourth, fifth = (name for name in rest if name != third)
    cluster.network.partition([third], [fifth], [first, second, fourth])
    committed: list[int] = []

    def on_moment() -> None:
        leader = cluster.leader()
        if leader is not None and leader.node is not None and leader.node.commit_index and not committed:
            committed.append(leader.node.commit_index)
            cluster.network.partition([first, second], [third, fourth, fifth])

    cluster.on_moment = on_moment
    cluster.run(5000)
    assert committed, "the old entry has not spread"


def next_leader(cluster: Cluster, others_than: tuple[str, ...]) -> str:
    """Run up to the moment at which another node leads."""
    for _ in range(100_000):
        for host in cluster.running():
            if host.node is not None and host.node.is_leader and host.name not in others_than:
                return host.name
        cluster.scheduler.step()
    raise AssertionError("nobody was elected")


@pytest.mark.sim
def test_skipping_the_consistency_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: a follower takes an append without comparing the entry before it."""
    on_append = follower.on_append

    def careless(core: Core, now_ms: int, request: AppendRequest) -> None:
        own_term = core.log.term_at(request.prev_index)
        on_append(core, now_ms, request if own_term is None else replace(request, prev_term=own_term))

    monkeypatch.setattr(follower, "on_append", careless)
    assert first_violation(Options(), QUIET)


@pytest.mark.sim
def test_cutting_the_log_at_every_append(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: an append that arrives late takes acknowledged entries away."""
    monkeypatch.setattr(RaftLog, "first_conflict", lambda self, entries: entries[0] if entries else None)
    link = LinkOptions(duplicated_per_mille=300, reordered_per_mille=500, max_reorder_delay_ms=100)
    found = first_violation(Options(link=link), Plan(("crash_leader",), 200))
    assert found


@pytest.mark.sim
def test_electing_past_a_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: nobody stands by the leader, so that its lease is worth nothing."""
    monkeypatch.setattr(election, "is_sticky", lambda core, now_ms: False)
    found = first_violation(Options(), QUIET)
    assert "lease" in found, found


def test_forgetting_a_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: a restarted node has granted a lease and votes at once."""

    def make(*arguments: Any) -> RaftNode:
        node = make_node(*arguments)
        node._core.promised_until_ms = 0
        return node

    with pytest.raises(ViolationError, match="hold the lease"):
        restart_within_a_lease(make)


def test_a_restart_within_a_lease_without_the_bug() -> None:
    restart_within_a_lease(make_node)


def restart_within_a_lease(make: MakeNode) -> None:
    """The leader loses sight of one follower; as that one begins to campaign, the leader is cut off from the other as
    well, and the other restarts: its vote is free only when the lease that it granted has run out."""
    for seed in range(40):
        cluster = Cluster(seed, Options(max_sync_ms=0), make)
        for host in cluster.hosts.values():
            cluster.start(host)
        first = next_leader(cluster, ())
        cluster.run(300)
        second, third = (cluster.hosts[name] for name in cluster.names if name != first)
        cluster.network.block(first, second.name)
        while second.node is not None and second.node.role is RaftRole.FOLLOWER:
            cluster.scheduler.step()
        cluster.network.partition([first], [second.name, third.name])
        cluster.crash(third)
        cluster.start(third)
        cluster.run(500)


@pytest.mark.sim
def test_ignoring_clock_drift(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: the holder's lease is as long as the granters'."""
    monkeypatch.setattr(RaftConfig, "__post_init__", lambda self: None)
    config = RaftConfig(election_timeout_ms=250, lease_ms=250)
    found = first_violation(Options(max_sync_ms=0, drift_percent=10, config=config), QUIET)
    assert "lease" in found, found


@pytest.mark.sim
def test_keeping_the_lease_during_a_transfer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: the old leader reads on while its successor is elected past the promises."""

    def lease_valid(core: Core, role: Leader, now_ms: int) -> bool:
        known = role.noop_index <= core.log.commit_index
        return known and role.lease_at_ms is not None and now_ms < role.lease_at_ms + core.config.lease_ms

    monkeypatch.setattr(leader, "lease_valid", lease_valid)
    found = first_violation(Options(), Plan(("transfer",), mean_gap_ms=300))
    assert "lease" in found, found
