"""Planted bugs in the rules of membership: the simulation must find each of them, else it proves nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rmqha.model.offset import RaftIndex
from rmqha.raft import leader, reconfiguration
from rmqha.raft.core import Core, Leader
from rmqha.raft.membership import Membership
from rmqha.raft.quorum import Configuration, identity
from tests.raft.checker import ViolationError
from tests.raft.cluster import Cluster, Host, Options
from tests.raft.run import Plan
from tests.raft.test_mutations import first_violation, next_leader

CHANGES = Plan(
    ("add", "add", "remove", "remove_leader", "isolate_leader", "corner_leader", "partition", "crash_leader", "heal"),
    100,
    ambush_percent=30,
    ambushes=("isolate_leader", "corner_leader", "crash_leader", "add", "remove"),
)
WIPES = Plan(("wipe", "wipe", "crash", "isolate_leader", "cut_from_leader", "heal"), 200)
GROUP = Options(node_count=3, spare_count=2)


@pytest.mark.sim
def test_the_same_plans_without_a_bug() -> None:
    for plan in (CHANGES, WIPES):
        assert first_violation(GROUP, plan, seed_count=15) == ""
        assert first_violation(Options(node_count=3, fresh=True), plan, seed_count=15) == ""


# --- stories, told with and without the bug ---------------------------------------------------------------------


def started(options: Options) -> Cluster:
    cluster = Cluster(1, options)
    for host in cluster.hosts.values():
        cluster.start(host)
    return cluster


def until(cluster: Cluster, holds: Callable[[], bool]) -> None:
    """Step by step, so that the next line acts at the very moment."""
    for _ in range(200_000):
        if holds():
            return
        cluster.scheduler.step()
    raise AssertionError("it never came to that")


def configuration_of(host: Host) -> Configuration:
    assert host.node is not None
    return host.node.configuration


def test_changing_before_the_terms_first_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ongaro's correction of 2015. Four voters; the leader makes a fifth node a voter and reaches only that one.
    Another one leads and at once removes the first, with the consent of one more. Then the first comes back with the
    fourth and the fifth, who know nothing of it: three of five against two of three."""

    def story() -> bool:
        cluster = started(Options(node_count=4, spare_count=1, max_sync_ms=0))
        first, fifth = cluster.hosts[next_leader(cluster, ())], cluster.hosts["s1"]
        others = [name for name in cluster.voter_names if name != first.name]
        cluster.run(300)
        cluster.network.partition(["s1"], cluster.voter_names)
        assert cluster.add(first, fifth)
        cluster.run(300)
        cluster.network.partition([first.name, "s1"], others)
        until(cluster, lambda: configuration_of(first).is_voter(fifth.identity))
        leader = cluster.hosts[next_leader(cluster, (first.name,))]
        other, unaware = (name for name in others if name != leader.name)
        cluster.network.partition([first.name, "s1", unaware], [leader.name, other])
        asked_in_time = cluster.remove(leader, first.name)
        cluster.write(leader, b"decided by two of three")
        cluster.run(3000)
        cluster.network.heal()
        cluster.run(3000)
        assert cluster.leader() is not None
        return asked_in_time

    # a leader also refuses before it has heard from a majority, which hides this bug
    monkeypatch.setattr(reconfiguration, "is_heard", lambda core, role, now_ms, member: True)
    assert not story()
    monkeypatch.setattr(
        reconfiguration, "may_change", lambda core, role: core.membership.index <= core.log.commit_index
    )
    with pytest.raises(ViolationError):
        story()


def test_two_changes_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader that is cut off removes one after the other until it is alone and decides alone."""

    def story() -> None:
        cluster = started(Options(node_count=3))
        leader = cluster.hosts[next_leader(cluster, ())]
        cluster.run(300)
        others = [name for name in cluster.names if name != leader.name]
        cluster.network.partition([leader.name], others)
        for name in others:
            cluster.remove(leader, name)
        cluster.write(leader, b"alone")
        cluster.run(3000)
        assert next_leader(cluster, (leader.name,))
        cluster.run(3000)

    story()
    monkeypatch.setattr(reconfiguration, "may_change", lambda core, role: role.noop_index <= core.log.commit_index)
    with pytest.raises(ViolationError):
        story()


def test_forming_a_group_by_majority(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of three form the group and decide; one of them is lost and the other's disk is wiped; the third, which has
    never heard a leader, and the wiped disk must not begin anew."""

    def story() -> None:
        cluster = started(Options(node_count=3, fresh=True))
        first = cluster.hosts[next_leader(cluster, ())]
        second, third = (host for host in cluster.hosts.values() if host is not first)
        cluster.network.partition([first.name, second.name], [third.name])
        cluster.run(200)
        cluster.write(first, b"decided")
        cluster.run(200)
        assert cluster.checker.acknowledged_index
        cluster.crash(first)
        cluster.crash(second)
        cluster.wipe(second)
        cluster.start(second)
        cluster.network.heal()
        cluster.run(3000)
        assert cluster.leader() is None
        cluster.start(first)
        cluster.run(3000)
        assert cluster.leader() in (first, third)
        assert third.application.index == len(cluster.checker.decided) > 2

    story()
    formed_by = Configuration.formed_by
    everyone = [identity(name, "1") for name in ("n1", "n2", "n3")]
    monkeypatch.setattr(Configuration, "_needed_votes", property(lambda self: self.majority))
    monkeypatch.setattr(Configuration, "formed_by", lambda self, found: formed_by(self, [*found, *everyone]))
    with pytest.raises(ViolationError):
        story()


@pytest.mark.sim
def test_a_wiped_disk_that_votes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: a disk is known by the node's id alone."""
    monkeypatch.setattr(Host, "identity", property(lambda self: identity(self.name, "1")))
    found = first_violation(Options(node_count=3), WIPES)
    assert found


def test_a_configuration_that_stays_when_its_entry_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader that is cut off removes a node, in vain; as often as it takes to believe that it is alone."""

    def story() -> None:
        cluster = started(Options(node_count=3))
        leader = cluster.hosts[next_leader(cluster, ())]
        others = [name for name in cluster.names if name != leader.name]
        for name in others:
            cluster.run(300)
            cluster.network.partition([leader.name], others)
            assert cluster.remove(leader, name)
            cluster.run(2000)
            cluster.network.heal()
            cluster.run(1000)
            successor = cluster.leader()
            assert successor is not None and successor is not leader
            cluster.transfer(successor, leader.name)
            cluster.run(500)
            assert cluster.leader() is leader
        assert len(configuration_of(leader).voters) == 3

    story()
    monkeypatch.setattr(Membership, "truncate", lambda self, start: False)
    with pytest.raises(AssertionError):
        story()


@pytest.mark.sim
def test_a_configuration_that_is_not_in_the_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    compact = Membership.compact

    def forget(self: Membership, index: RaftIndex) -> Configuration:
        compact(self, index)
        return self._initial

    monkeypatch.setattr(Membership, "compact", forget)
    plan = Plan(("add", "remove", "compact", "crash", "crash_leader"), 100)
    assert first_violation(GROUP, plan)


@pytest.mark.sim
def test_a_configuration_that_counts_only_when_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: the leader counts by the old configuration until the new one is committed, its followers by the new one."""

    def committed(self: Core) -> Configuration:
        membership = self.membership
        is_late = isinstance(getattr(self, "role", None), Leader) and membership.index > self.log.commit_index
        return membership.previous if is_late else membership.current

    monkeypatch.setattr(Core, "configuration", property(committed))
    assert first_violation(GROUP, CHANGES)


@pytest.mark.sim
def test_a_removed_leader_that_counts_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def count_commits(core: Core, role: Leader) -> None:
        holders = sorted(
            [core.log.durable_index, *(progress.match_index for progress in role.progress.values())], reverse=True
        )
        reached = RaftIndex(holders[core.configuration.majority - 1])
        if reached > core.log.commit_index and core.log.term_at(reached) == core.term:
            core.log.commit_to(reached)

    monkeypatch.setattr(leader, "count_commits", count_commits)
    assert first_violation(GROUP, CHANGES)


@pytest.mark.sim
def test_a_removed_leader_that_does_not_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconfiguration, "step_down_if_removed", lambda core, role, now_ms: False)
    assert first_violation(GROUP, CHANGES)


@pytest.mark.sim
def test_a_node_whose_removal_is_open_and_that_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Core, "may_campaign", property(lambda self: self.is_voter))
    found = first_violation(Options(node_count=3, spare_count=1), CHANGES)
    assert "no leader in peace" in found, found
