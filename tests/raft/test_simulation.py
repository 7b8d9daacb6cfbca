"""Random runs over one, three and five nodes. RMQHA_SIM_SEEDS=FIRST:COUNT chooses others, e.g. 17:1 to replay one."""

from __future__ import annotations

import os
import subprocess
import sys
from statistics import median

import pytest

from tests.raft.cluster import Cluster, Options
from tests.raft.run import Outcome, Run
from tests.support.patience import HANG_S

SOME = 10
"""Seeds in `make test`; `make sim` has the many."""
CANARY_SEEDS = (3, 50, 77)
CANARY_PROGRAM = "from tests.raft.run import Run\nfor seed in {seeds}: print(Run(seed).execute(1500))"


def outcomes_of(first: int, count: int) -> list[Outcome]:
    outcomes = [Run(seed).execute() for seed in range(first, first + count)]
    assert all(outcome.decided_count for outcome in outcomes)
    return outcomes


def test_some_seeds() -> None:
    """One leader per term, nothing decided is lost, logs match, states are equal, lease reads are never stale, and
    the group works again after the faults. A failure names its seed."""
    outcomes_of(0, SOME)


@pytest.mark.sim
def test_many_seeds() -> None:
    """The same of so many that the runs must meet what they are for."""
    first, _, count = os.environ.get("RMQHA_SIM_SEEDS", "0:110").partition(":")
    outcomes = outcomes_of(int(first), int(count or "1"))
    if len(outcomes) >= 100:
        assert sum(outcome.term_count for outcome in outcomes) > 3 * len(outcomes)
        assert sum(outcome.lease_read_count for outcome in outcomes) > 10 * len(outcomes)
        assert sum(outcome.round_read_count for outcome in outcomes) > 10 * len(outcomes)


def test_the_same_seed_gives_the_same_run_in_every_process() -> None:
    """The canary of the determinism law: string hashing differs between the two processes."""
    program = CANARY_PROGRAM.format(seeds=CANARY_SEEDS)
    runs = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=HANG_S,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert runs[0] == runs[1]
    assert len(set(runs[0].splitlines())) == len(CANARY_SEEDS)


def test_a_killed_leader_is_replaced_within_half_a_second() -> None:
    """With the default times, three nodes and 5 ms for each sync; virtual milliseconds from the kill to the moment at
    which the new leader may answer."""
    times_ms = []
    for seed in range(41):
        cluster = Cluster(seed, Options(node_count=3, max_sync_ms=5))
        for host in cluster.hosts.values():
            cluster.start(host)
        cluster.run(1000 + seed)
        leader = cluster.leader()
        assert leader is not None
        cluster.crash(leader)
        killed_at_ms = cluster.scheduler.now_ms
        while not any(host.node is not None and host.node.has_caught_up for host in cluster.running()):
            cluster.scheduler.step()
        times_ms.append(cluster.scheduler.now_ms - killed_at_ms)
    assert median(times_ms) <= 500
    assert max(times_ms) <= 1500


def test_a_single_voter_leads_at_once() -> None:
    cluster = Cluster(1, Options(node_count=1, max_sync_ms=5))
    host = cluster.hosts["n1"]
    cluster.start(host)
    node = host.node
    assert node is not None
    assert [node.is_leader, node.has_caught_up, node.lease_valid(host.clock.now_ms())] == [True, False, False]
    cluster.run(20)
    assert [node.is_leader, node.has_caught_up, node.lease_valid(host.clock.now_ms())] == [True, True, True]
    cluster.write(host, b"alone")
    cluster.run(20)
    assert host.application.index == 2 and not host.waiting


def test_a_single_voter_keeps_what_it_acknowledged() -> None:
    """Restarting again and again: every life goes on where the last acknowledged write was."""
    cluster = Cluster(2, Options(node_count=1, max_sync_ms=3))
    host = cluster.hosts["n1"]
    for life in range(10):
        cluster.start(host)
        cluster.run(30)
        assert host.application.index == len(cluster.checker.decided)
        cluster.write(host, b"%d" % life)
        cluster.run(cluster.prng.below(4))
        cluster.compact(host)
        cluster.crash(host)
    assert cluster.checker.acknowledged_index > 0
