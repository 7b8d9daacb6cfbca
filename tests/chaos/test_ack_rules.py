"""AP's ack rules on real processes while a slave is frozen: the published bound on a stall, and no error."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from rmqha.drill.cluster import BROKERS, Cluster, quickstart, wall_ms
from rmqha.drill.traffic import DrillTraffic
from rmqha.ops.local.node_history import collect
from tests.chaos.auditing import assert_nothing_lost
from tests.chaos.conftest import Tell
from tests.support.patience import HANG_S, NOISE_MS

pytestmark = [pytest.mark.chaos, pytest.mark.timed]
STALL_BOUND_MS = 2000
"""haAckStallBoundMs, as it stands by default."""

SYNC: dict[str, str | int | bool] = {"brokerRole": "SYNC_MASTER"}
RULES: dict[str, tuple[dict[str, str | int | bool], int]] = {
    "two of three": ({**SYNC, "inSyncReplicas": 2}, 0),
    "the whole set": ({**SYNC, "allAckInSyncStateSet": True}, STALL_BOUND_MS),
    "adaptive": (
        {**SYNC, "inSyncReplicas": 3, "minInSyncReplicas": 2, "enableAutoInSyncReplicas": True},
        STALL_BOUND_MS,
    ),
}
"""Keys of the brokers, and for how long a frozen slave may hold up sends."""


async def needed(cluster: Cluster, master: str) -> int:
    """Replicas that must have a message before it is acknowledged, by the master's word."""
    rule = (await cluster.replica_states([master]))[master].ack_rule
    assert rule is not None
    return rule.needed


@pytest.mark.parametrize("rule", RULES)
async def test_a_frozen_slave_in_ap_holds_up_sends_for_the_stall_bound_at_most(
    tmp_path: Path, tell: Tell, rule: str
) -> None:
    keys, bound_ms = RULES[rule]
    with trio.fail_after(HANG_S), Cluster.of(quickstart("ap", broker=keys), tmp_path) as cluster:
        await cluster.up()
        traffic = DrillTraffic()
        async with traffic.running(cluster.spec.namesrv_addresses):
            await traffic.goes_on()
            master = await cluster.master()
            frozen = next(name for name in BROKERS if name != master)
            frozen_at_ms = cluster.pause(frozen)
            await traffic.goes_on(600)
            stall_ms = traffic.longest_gap_ms(frozen_at_ms, wall_ms())
            during = await needed(cluster, master)
            cluster.resume(frozen)
            await cluster.wait_healthy()
            await traffic.goes_on()
        after = await needed(cluster, master)
        tell(f"{rule}: sends stood still for {stall_ms} ms; {during} replicas needed during it, {after} after it")
        assert stall_ms <= bound_ms + NOISE_MS
        assert (during, after) == ((2, 2) if rule == "two of three" else (2, 3))
        events, _ = await collect(cluster.state)
        levels = [item.get("needed") for item in events if item.name == "ack_level" and item.node == master]
        assert levels[-2:] == ([2, 3] if rule == "adaptive" else [])
        await assert_nothing_lost(cluster, traffic, tell, replica=frozen)
