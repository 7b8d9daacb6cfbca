"""Groups whose name server and controllers die."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
import trio

from rmqha.drill.cluster import Cluster, Failover, quickstart, until, wall_ms
from rmqha.drill.traffic import DrillTraffic
from rmqha.ops.local.preflight import free_ports
from tests.chaos.auditing import assert_nothing_lost
from tests.chaos.conftest import Tell
from tests.support.patience import HANG_S, NOISE_MS

pytestmark = pytest.mark.chaos
AWAY_S = 8.0
THREE_CONTROLLERS = Path(__file__).parents[2] / "conf" / "three-controllers.toml"


async def kill_master(cluster: Cluster, traffic: DrillTraffic, victim: str) -> Failover:
    killed_at_ms = await cluster.kill(victim)
    failover = Failover(victim, killed_at_ms, await cluster.master(without=victim))
    await traffic.goes_on()
    return failover


@pytest.mark.timed
async def test_a_group_goes_on_without_name_server_and_controller(tmp_path: Path, tell: Tell) -> None:
    with trio.fail_after(HANG_S), Cluster.of(quickstart("cp"), tmp_path) as cluster:
        await cluster.up()
        traffic = DrillTraffic()
        async with traffic.running(cluster.spec.namesrv_addresses):
            await traffic.goes_on()
            master = await cluster.master()
            away_at_ms = await cluster.kill("ns-1")
            await trio.sleep(AWAY_S)
            gap_ms = traffic.longest_gap_ms(away_at_ms, wall_ms())
            tell(f"longest gap without controller {gap_ms} ms")
            assert gap_ms < NOISE_MS
            await cluster.start("ns-1")
            await cluster.wait_healthy()
            assert await cluster.master() == master
            failover = await kill_master(cluster, traffic, master)
            tell(failover.line(await cluster.phases(failover, traffic.stamps)))
            await cluster.start(master)
        await cluster.wait_healthy()
        await assert_nothing_lost(cluster, traffic, tell)


def three_controllers() -> dict[str, Any]:
    """conf/three-controllers.toml with its first group, on free ports and with smaller files."""
    document = tomllib.loads(THREE_CONTROLLERS.read_text())
    base = free_ports(40)
    document["namesrv"] |= {"listenPort": base, "httpPort": base + 36}
    document["controllers"]["listenPort"] = base + 4
    document["group"] = [document["group"][0] | {"listenPort": base + 10}]
    document["broker"]["mappedFileSizeCommitLog"] = 16 * 1024 * 1024
    return document


async def test_the_leading_controller_and_the_master_die_together(tmp_path: Path, tell: Tell) -> None:
    with trio.fail_after(HANG_S), Cluster.of(three_controllers(), tmp_path) as cluster:
        await cluster.up()
        traffic = DrillTraffic()

        async def leader() -> str:
            nodes = (await cluster.view()).nodes.values()
            return next(
                (node.node.name for node in nodes if node.controller is not None and node.controller.leading), ""
            )

        async with traffic.running(cluster.spec.namesrv_addresses):
            await traffic.goes_on()
            controller = await until(leader, "a leading controller")
            master = await cluster.master()
            await cluster.kill(controller)
            failover = await kill_master(cluster, traffic, master)
            tell(f"{controller} dead too: {failover.line(await cluster.phases(failover, traffic.stamps))}")
            assert await until(leader, "another leading controller") != controller
            await cluster.start(controller, master)
            await traffic.goes_on()
        await cluster.wait_healthy()
        await assert_nothing_lost(cluster, traffic, tell)
