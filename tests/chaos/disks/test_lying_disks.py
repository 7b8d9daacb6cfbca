"""Power is cut on replicas whose device says that it has synced, and has not: real processes, one replica at a time."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import trio

from rmqha.drill.audit import audit, check_same_bytes
from rmqha.drill.cluster import BROKERS, Cluster, quickstart
from rmqha.drill.traffic import DrillTraffic
from rmqha.ops.local.cluster_state import ClusterState
from rmqha.ops.local.supervisor import spawn
from tests.chaos.conftest import Tell
from tests.chaos.disks.lying_server import LIES, cut_power, prepare_device
from tests.support.patience import HANG_S

pytestmark = pytest.mark.chaos
KEYS = {
    "mappedFileSizeCommitLog": 1024 * 1024,
    "maxMessageSize": 64 * 1024,
    "mappedFileSizeConsumeQueue": 20 * 4096,
    "maxHashSlotNum": 1024,
    "maxIndexNum": 4096,
}
"""Small files: each sync copies one."""


def device(scratch: Path, name: str) -> Path:
    return scratch / f"device-{name}"


def cluster_on_lying_disks(scratch: Path, flush: str) -> Cluster:
    def launch(state: ClusterState, name: str) -> None:
        output = state.output_path(name)
        output.parent.mkdir(parents=True, exist_ok=True)
        server = [state.node(name).kind, "-c", str(state.config_path(name))]
        arguments = [sys.executable, "-m", "tests.chaos.disks.lying_server", str(device(scratch, name)), *server]
        state.record_process(name, spawn(arguments, output))

    return Cluster.of(quickstart("cp", broker={**KEYS, "flushDiskType": flush}), scratch, launch)


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_what_a_lying_disk_lost_with_its_power_the_others_have(tmp_path: Path, tell: Tell, flush: str) -> None:
    """The master first, then a slave: each acknowledges for a while what its device has not kept, and loses all that it
    has written since."""
    for name in BROKERS:
        prepare_device(device(tmp_path, name))
    with trio.fail_after(HANG_S), cluster_on_lying_disks(tmp_path, flush) as cluster:
        await cluster.up()
        traffic = DrillTraffic()
        async with traffic.running(cluster.spec.namesrv_addresses):
            for was_master in (True, False):
                await traffic.goes_on()
                master = await cluster.master()
                victim = master if was_master else next(name for name in BROKERS if name != master)
                (device(tmp_path, victim) / LIES).touch()
                await traffic.goes_on()
                await cluster.kill(victim)
                lost_bytes = cut_power(device(tmp_path, victim), cluster.store(victim))
                tell(f"{victim} has lost {lost_bytes} bytes that it had said to hold")
                assert lost_bytes > 0
                (device(tmp_path, victim) / LIES).unlink()
                log = cluster.state.log_path(victim)
                said_bytes = log.stat().st_size
                await cluster.start(victim)
                assert b"whole_again" in log.read_bytes()[said_bytes:], "it does not know what it may have lost"
        await cluster.wait_healthy()
        end = await cluster.wait_level()
        found = audit(cluster.store(BROKERS[0]), end, traffic.acked)
        tell(f"{len(traffic.acked)} acknowledged, {found.line}")
        assert (found.lost, found.misplaced, found.swapped) == ([], [], 0)
        check_same_bytes([cluster.store(name) for name in BROKERS], end)
