"""A master that is cut off from everybody but one of its clients."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio

from rmqha.drill.audit import AuditResult, audit, check_same_bytes
from rmqha.drill.cluster import BROKERS, Failover, quickstart, until, wall_ms
from rmqha.drill.hosts.namespaces import HUB, Namespaces
from rmqha.drill.hosts.places import cluster_of_hosts
from rmqha.drill.traffic import DirectAnswers, DrillTraffic
from tests.chaos.conftest import Tell
from tests.support.patience import HANG_S

pytestmark = pytest.mark.chaos
CUT_S = 8.0
ON_ITS_WAY_MS = 2000
"""An answer from before the cut may reach the client process that much later on a busy machine, and a slave may lack
what the master has had for so long."""
ROOT = Path(__file__).parents[2]


@contextmanager
def direct_client(hosts: Namespaces, name: str, address: str, heard: Path) -> Iterator[None]:
    """A client process on the host of a node, which sends to that node."""
    arguments = [sys.executable, "-m", "rmqha.drill.direct", address, str(heard)]
    client = hosts.run(name, lambda: subprocess.Popen(arguments, cwd=ROOT))
    try:
        yield
        assert client.poll() is None
    finally:
        client.terminate()
        client.wait()


@dataclass
class Told:
    """One run: who was cut off and when, what its client and the other side's clients heard, what the logs hold."""

    cut_at_ms: int
    healed_at_ms: int
    direct: DirectAnswers
    traffic: DrillTraffic
    found: AuditResult
    truncated_bytes: int
    role: str


async def cut_the_master_off(hosts: Namespaces, scratch: Path, mode: str, tell: Tell) -> Told:
    """Cut, wait for the rival, heal, audit. In the end all logs are equal, whatever the mode."""
    with trio.fail_after(HANG_S), cluster_of_hosts(hosts, quickstart(mode), scratch) as cluster:
        await cluster.up()
        traffic, heard = DrillTraffic(), scratch / "heard"

        async def acknowledged() -> int:
            await trio.lowlevel.checkpoint()
            return len(DirectAnswers.of_lines(heard.read_text()).acked) if heard.exists() else 0

        async with traffic.running(cluster.spec.namesrv_addresses):
            await traffic.goes_on()
            alone = await cluster.master()
            with direct_client(hosts, alone, cluster.state.node(alone).address, heard):
                await until(acknowledged, "an acknowledgement for the client beside the master")
                cut_at_ms = wall_ms()
                hosts.cut(alone)
                failover = Failover(alone, cut_at_ms, await cluster.master(without=alone))
                await traffic.goes_on(150)
                await trio.sleep(max(0.0, CUT_S - (wall_ms() - cut_at_ms) / 1000))
                healed_at_ms = wall_ms()
                hosts.join(alone)
                await cluster.wait_healthy()
                await traffic.goes_on()
        tell(failover.line(await cluster.phases(failover, traffic.stamps)))
        direct = DirectAnswers.of_lines(heard.read_text())
        state = (await cluster.replica_states([alone]))[alone]
        end = await cluster.wait_level()
        found = audit(cluster.store(BROKERS[0]), end, traffic.acked, direct.acked)
        cut_bytes = state.truncated_bytes or 0
        tell(f"{found.line}, {cut_bytes} bytes of a fork cut, answers on the cut side: {dict(direct.counts)}")
        check_same_bytes([cluster.store(name) for name in BROKERS], end)
        return Told(cut_at_ms, healed_at_ms, direct, traffic, found, cut_bytes, state.role)


def run(scratch: Path, mode: str, tell: Tell) -> Told:
    with Namespaces(["ns-1", *BROKERS]) as hosts:
        return hosts.run(HUB, lambda: trio.run(cut_the_master_off, hosts, scratch, mode, tell))


def test_a_master_cut_off_with_a_client_acknowledges_nothing_in_cp(tmp_path: Path, tell: Tell) -> None:
    told = run(tmp_path, "cp", tell)
    assert told.direct.acked_between(told.cut_at_ms + ON_ITS_WAY_MS, told.healed_at_ms) == 0
    assert not told.traffic.failures
    assert (told.found.lost, told.found.misplaced, told.found.swapped) == ([], [], 0)
    assert told.truncated_bytes > 0
    assert told.role == "SLAVE"


def test_a_master_cut_off_with_a_client_loses_only_its_fork_in_ap(tmp_path: Path, tell: Tell) -> None:
    """The price of AP: what the cut master acknowledged alone is gone. What the other side acknowledged is not."""
    told = run(tmp_path, "ap", tell)
    alone = told.direct.acked_between(told.cut_at_ms, told.healed_at_ms)
    late = {key for key, at_ms in told.direct.acked.items() if at_ms > told.cut_at_ms - ON_ITS_WAY_MS}
    late |= {item.msg_id for item in told.traffic.acked if abs(item.at_ms - told.cut_at_ms) < ON_ITS_WAY_MS}
    assert alone > 0
    assert not told.traffic.failures
    assert len(told.found.lost) > 0
    assert set(told.found.lost) <= late
    assert told.truncated_bytes > 0
    assert told.role == "SLAVE"
