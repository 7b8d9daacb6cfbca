"""SIGSTOP: a process that neither answers nor closes its connections, and then goes on as if nothing had happened."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from rmqha.drill.audit import STAMP_SLACK_MS, audit, check_same_bytes, records
from rmqha.drill.cluster import BROKERS, Cluster, Failover, quickstart, until, wall_ms
from rmqha.drill.traffic import DirectAnswers, DirectSender, DrillTraffic
from rmqha.model.message import PROPERTY_UNIQUE_KEY, decode_properties
from tests.chaos.auditing import assert_nothing_lost
from tests.chaos.conftest import Tell
from tests.support.patience import HANG_S, NOISE_MS

pytestmark = pytest.mark.chaos
FREEZE_S = 4.0
STALL_BOUND_MS = 2000
"""haAckStallBoundMs, as it stands by default."""
DIRECT_TIMEOUT_MS = 10_000


async def answered(direct: DirectAnswers, from_ms: int) -> None:
    """Wait until a message that was sent directly is acknowledged, later than `from_ms`."""

    async def is_so() -> bool:
        await trio.lowlevel.checkpoint()
        return direct.acked_between(from_ms, wall_ms() + 1) > 0

    await until(is_so, "an acknowledgement of what was sent directly")


@pytest.mark.parametrize("forward_ms", [0, 35_000])
async def test_a_frozen_master_is_replaced_and_acknowledges_nothing_stale(
    tmp_path: Path, tell: Tell, forward_ms: int
) -> None:
    """Thawed, it acknowledges nothing that it stores then; what it passes on and then acknowledges the new one holds.

    What was stored before the freeze may be acknowledged after it: the slaves' acknowledgements may have waited in the
    socket, and what all of the SyncStateSet hold the new master holds.
    """
    spec = quickstart("cp", broker={"forwardSendsMillis": forward_ms})
    with trio.fail_after(HANG_S), Cluster.of(spec, tmp_path) as cluster:
        await cluster.up()
        traffic = DrillTraffic()
        async with trio.open_nursery() as nursery, traffic.running(cluster.spec.namesrv_addresses):
            await traffic.goes_on()
            frozen = await cluster.master()
            # this client stays with the frozen master: its requests wait in the socket and are read after the thaw
            direct = DirectAnswers()
            nursery.start_soon(DirectSender(cluster.state.node(frozen).address, direct.heard).run, DIRECT_TIMEOUT_MS)
            await traffic.goes_on()
            await answered(direct, 0)
            frozen_at_ms = cluster.pause(frozen)
            failover = Failover(frozen, frozen_at_ms, await cluster.master(without=frozen))
            await traffic.goes_on()
            await trio.sleep(max(0.0, FREEZE_S - (wall_ms() - frozen_at_ms) / 1000))
            thawed_at_ms = wall_ms()
            cluster.resume(frozen)
            await cluster.wait_healthy()
            await traffic.goes_on()
            if forward_ms:
                await answered(direct, thawed_at_ms)
            nursery.cancel_scope.cancel()
        tell(failover.line(await cluster.phases(failover, traffic.stamps)))
        states = await cluster.replica_states()
        assert states[frozen].role == "SLAVE"
        assert states[failover.master].role == "MASTER"
        end = await cluster.wait_level()
        found = audit(cluster.store(BROKERS[0]), end, traffic.acked, direct.acked)
        cut = states[frozen].truncated_bytes
        tell(f"{found.line}, {cut} bytes of a fork cut, asked directly: {dict(direct.counts)}")
        assert not traffic.failures
        assert (found.lost, found.misplaced, found.swapped) == ([], [], 0)
        if not forward_ms:
            late = {key for key, at_ms in direct.acked.items() if at_ms > thawed_at_ms}
            assert all(
                record.store_timestamp_ms <= frozen_at_ms + STAMP_SLACK_MS
                for record in records(cluster.store(BROKERS[0]), end)
                if decode_properties(record.properties).get(PROPERTY_UNIQUE_KEY) in late
            )
        check_same_bytes([cluster.store(name) for name in BROKERS], end)


@pytest.mark.timed
async def test_a_frozen_slave_holds_up_sends_for_the_stall_bound_at_most(tmp_path: Path, tell: Tell) -> None:
    with trio.fail_after(HANG_S), Cluster.of(quickstart("cp"), tmp_path) as cluster:
        await cluster.up()
        traffic = DrillTraffic()
        async with traffic.running(cluster.spec.namesrv_addresses):
            await traffic.goes_on()
            master = await cluster.master()
            frozen = next(name for name in BROKERS if name != master)
            frozen_at_ms = cluster.pause(frozen)
            await traffic.goes_on(300)
            stall_ms = traffic.longest_gap_ms(frozen_at_ms, wall_ms())
            members = (await cluster.replica_states([master]))[master].sync_state_set or ()
            cluster.resume(frozen)
            await cluster.wait_healthy()
            await traffic.goes_on()
        tell(f"sends stood still for {stall_ms} ms and went on with {len(members)} of 3")
        assert len(members) == 2
        assert stall_ms <= STALL_BOUND_MS + NOISE_MS
        assert await cluster.master() == master
        await assert_nothing_lost(cluster, traffic, tell, replica=frozen)
