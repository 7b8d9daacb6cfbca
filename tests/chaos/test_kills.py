"""kill -9 of masters and of whole groups while a producer sends."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from rmqha.drill.audit import audit, check_same_bytes
from rmqha.drill.cluster import BROKERS, Cluster, Failover, quickstart, wall_ms
from rmqha.drill.traffic import DrillTraffic
from tests.chaos.auditing import assert_nothing_lost
from tests.chaos.conftest import Tell
from tests.support.patience import HANG_S

pytestmark = pytest.mark.chaos
ROUNDS = 6


async def kill_masters(cluster: Cluster, traffic: DrillTraffic, tell: Tell) -> int:
    """Kill the master ROUNDS times, each time bringing it back into the set; the bytes of forks that were cut."""
    cut = 0
    for _ in range(ROUNDS):
        await traffic.goes_on()
        victim = await cluster.master()
        killed_at_ms = await cluster.kill(victim)
        failover = Failover(victim, killed_at_ms, await cluster.master(without=victim))
        await traffic.goes_on()
        await cluster.start(victim)
        tell(failover.line(await cluster.phases(failover, traffic.stamps)))
        cut += (await cluster.replica_states([victim]))[victim].truncated_bytes or 0
    return cut


async def test_masters_killed_in_a_row_take_no_acknowledged_message_in_cp(tmp_path: Path, tell: Tell) -> None:
    with trio.fail_after(HANG_S), Cluster.of(quickstart("cp"), tmp_path) as cluster:
        await cluster.up()
        traffic = DrillTraffic()
        async with traffic.running(cluster.spec.namesrv_addresses):
            cut = await kill_masters(cluster, traffic, tell)
        await cluster.wait_healthy()
        found = await assert_nothing_lost(cluster, traffic, tell, more=f", {cut} bytes of forks cut")
        assert found.copies <= traffic.duplicates_possible


async def test_masters_killed_in_a_row_leave_equal_logs_in_ap(tmp_path: Path, tell: Tell) -> None:
    """A master acknowledges alone, so some losses are allowed; different logs are not."""
    with trio.fail_after(HANG_S), Cluster.of(quickstart("ap"), tmp_path) as cluster:
        await cluster.up()
        traffic = DrillTraffic()
        async with traffic.running(cluster.spec.namesrv_addresses):
            cut = await kill_masters(cluster, traffic, tell)
        await cluster.wait_healthy()
        end = await cluster.wait_level()
        found = audit(cluster.store(BROKERS[0]), end, traffic.acked)
        tell(f"{len(traffic.acked)} acknowledged, {found.line}, {cut} bytes of forks cut")
        assert not traffic.failures
        # what only the dead master had is lost, and lies in the fork that is cut: never more than was cut
        assert cut or not found.lost
        assert len(found.lost) < len(traffic.acked)
        check_same_bytes([cluster.store(name) for name in BROKERS], end)


async def test_a_whole_group_killed_at_once_comes_back_with_all_that_was_acknowledged(
    tmp_path: Path, tell: Tell
) -> None:
    with trio.fail_after(HANG_S), Cluster.of(quickstart("cp"), tmp_path) as cluster:
        await cluster.up()
        traffic = DrillTraffic()
        async with traffic.running(cluster.spec.namesrv_addresses):
            for _ in range(2):
                await traffic.goes_on(300)
                killed_at_ms = await cluster.kill(*BROKERS)
                await cluster.start(*BROKERS)
                tell(f"all well again {wall_ms() - killed_at_ms} ms after the kill")
        await cluster.wait_healthy()
        await assert_nothing_lost(cluster, traffic, tell)
