"""A disk that takes writes into the page cache and never makes them durable: only the probe can tell."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import trio

from rmqha.drill.cluster import BROKERS, Cluster, Failover, quickstart, until, wall_ms
from rmqha.drill.traffic import DrillTraffic
from rmqha.ha.log_writes import WAITS_FOR_DISK
from rmqha.ops.local.cluster_state import ClusterState
from rmqha.ops.local.supervisor import spawn
from tests.chaos.auditing import assert_nothing_lost
from tests.chaos.conftest import Tell
from tests.support.patience import HANG_S, NOISE_MS

pytestmark = [pytest.mark.chaos, pytest.mark.timed]
PROBE_TIMEOUT_MS = 1500
"""diskProbeTimeoutMillis of these brokers; 5 s by default."""
PROBE_INTERVAL_MS = 1000
KEYS = {"diskProbeTimeoutMillis": PROBE_TIMEOUT_MS}


def cluster_that_can_hang(scratch: Path) -> Cluster:
    def launch(state: ClusterState, name: str) -> None:
        output = state.output_path(name)
        output.parent.mkdir(parents=True, exist_ok=True)
        server = [state.node(name).kind, "-c", str(state.config_path(name))]
        arguments = [sys.executable, "-m", "tests.chaos.disks.hanging_server", str(flag(scratch, name)), *server]
        state.record_process(name, spawn(arguments, output))

    return Cluster.of(quickstart("cp", broker=KEYS), scratch, launch)


def flag(scratch: Path, name: str) -> Path:
    return scratch / f"{name}.hangs"


async def test_a_master_whose_disk_makes_nothing_durable_any_more_hands_over(tmp_path: Path, tell: Tell) -> None:
    with trio.fail_after(HANG_S), cluster_that_can_hang(tmp_path) as cluster:
        await cluster.up()
        traffic = DrillTraffic()
        async with traffic.running(cluster.spec.namesrv_addresses):
            await traffic.goes_on()
            victim = await cluster.master()
            at_ms = wall_ms()
            flag(tmp_path, victim).touch()
            failover = Failover(victim, at_ms, await cluster.master(without=victim))
            taken_ms = wall_ms() - at_ms
            await traffic.goes_on()
            gap_ms = traffic.longest_gap_ms(at_ms, wall_ms())
            flag(tmp_path, victim).unlink()
            await cluster.wait_healthy()
        tell(failover.line(await cluster.phases(failover, traffic.stamps)))
        tell(f"no acknowledgement for {gap_ms} ms at most")
        assert taken_ms <= PROBE_TIMEOUT_MS + PROBE_INTERVAL_MS + NOISE_MS
        await assert_nothing_lost(cluster, traffic, tell)


async def test_a_slave_whose_disk_makes_nothing_durable_any_more_is_known_and_holds_nobody_up(
    tmp_path: Path, tell: Tell
) -> None:
    with trio.fail_after(HANG_S), cluster_that_can_hang(tmp_path) as cluster:
        await cluster.up()
        traffic = DrillTraffic()
        async with traffic.running(cluster.spec.namesrv_addresses):
            await traffic.goes_on()
            master = await cluster.master()
            slave = next(name for name in BROKERS if name != master)
            at_ms = wall_ms()
            flag(tmp_path, slave).touch()

            async def told() -> str:
                return (await cluster.replica_states([slave]))[slave].disk_problem

            problem = await until(told, "the slave's own word about its disk")
            await traffic.goes_on()
            gap_ms = traffic.longest_gap_ms(at_ms, wall_ms())
            flag(tmp_path, slave).unlink()
            await cluster.wait_healthy()
        tell(f"{problem}; no acknowledgement for {gap_ms} ms at most")
        assert problem == f"a small write has not ended for {PROBE_TIMEOUT_MS} ms"
        assert gap_ms < NOISE_MS
        assert not traffic.failures
        assert await cluster.master() == master


async def test_a_replica_whose_disk_hangs_at_a_new_epoch_answers_all_the_same(tmp_path: Path, tell: Tell) -> None:
    """The epoch must be durable before anything is done in it; its event loop does not wait for that."""
    with trio.fail_after(HANG_S), cluster_that_can_hang(tmp_path) as cluster:
        await cluster.up()
        master = await cluster.master()
        hung, other = (name for name in BROKERS if name != master)
        flag(tmp_path, hung).touch()
        await cluster.kill(master)

        async def told() -> str:
            return (await cluster.replica_states([hung]))[hung].disk_problem

        problem = await until(told, "the replica's own word about its disk")
        tell(problem)
        assert problem in (WAITS_FOR_DISK, f"a small write has not ended for {PROBE_TIMEOUT_MS} ms")
        assert await told(), "it answers again and again"
        flag(tmp_path, hung).unlink()
        await cluster.wait_healthy([hung, other])
        assert await cluster.master() != master
