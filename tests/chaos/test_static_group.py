"""kill -9 and frozen slaves in a static group under a SYNC_MASTER, while a producer sends."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from rmqha.drill.cluster import BROKERS, Cluster, quickstart
from rmqha.drill.traffic import DrillTraffic
from tests.chaos.auditing import assert_nothing_lost
from tests.chaos.conftest import Tell
from tests.support.patience import HANG_S

pytestmark = pytest.mark.chaos
MASTER, *SLAVES = BROKERS
FROZEN_S = 1.5


async def test_killed_and_frozen_members_take_no_acknowledged_message(tmp_path: Path, tell: Tell) -> None:
    document = quickstart("ap", broker={"brokerRole": "SYNC_MASTER"})
    document["group"][0]["static"] = True
    with trio.fail_after(HANG_S), Cluster.of(document, tmp_path) as cluster:
        await cluster.up()
        assert await cluster.master() == MASTER
        traffic = DrillTraffic()
        async with traffic.running(cluster.spec.namesrv_addresses):
            for victim in (SLAVES[0], MASTER, SLAVES[1], MASTER, SLAVES[0], SLAVES[1]):
                await traffic.goes_on()
                await cluster.kill(victim)
                if victim != MASTER:
                    await traffic.goes_on()  # the other slave's copy is enough
                await cluster.start(victim)
            for slave in SLAVES:
                cluster.pause(slave)
                await traffic.goes_on()
                await trio.sleep(FROZEN_S)
                cluster.resume(slave)
            await traffic.goes_on()
        found = await assert_nothing_lost(cluster, traffic, tell, replica=MASTER)
        assert found.copies <= traffic.duplicates_possible
