"""A master that is cut off from everybody but one of its clients."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from rmqha.cli.cluster_file import parse
from rmqha.cli.cluster_state import ClusterState
from rmqha.cli.launch import launch
from tests.chaos.audit import assert_same_bytes, audit
from tests.chaos.cluster import BROKERS, Cluster, Failover, quickstart, until, wall_ms
from tests.chaos.conftest import Tell
from tests.chaos.namespaces import HUB, Namespaces
from tests.chaos.traffic import DirectAnswers, Traffic

pytestmark = pytest.mark.chaos
CUT_S = 8.0
ON_ITS_WAY_MS = 500
"""An answer from before the cut may reach the client process that much later on a busy machine."""
ROOT = Path(__file__).parents[2]


def cluster_of_hosts(hosts: Namespaces, scratch: Path) -> Cluster:
    """The quick start with every node on a host of its own."""
    document = quickstart("cp")
    document["cluster"]["listenAddress"] = hosts.address("ns-1")
    spec = parse("chaos.toml", document, directory=scratch / "cluster")
    moved = []
    for node in spec.nodes:
        ip, port = hosts.address(node.name), node.address.rpartition(":")[2]
        moved.append(replace(node, address=f"{ip}:{port}", properties={**node.properties, "listenAddress": ip}))

    def launch_there(state: ClusterState, name: str) -> None:
        hosts.run(name, lambda: launch(state, name))

    return Cluster(replace(spec, nodes=tuple(moved)), launch_there)


@contextmanager
def direct_client(hosts: Namespaces, name: str, address: str, heard: Path) -> Iterator[None]:
    """A client process on the host of a node, which sends to that node."""
    arguments = [sys.executable, "-m", "tests.chaos.direct", address, str(heard)]
    client = hosts.run(name, lambda: subprocess.Popen(arguments, cwd=ROOT))
    try:
        yield
        assert client.poll() is None
    finally:
        client.terminate()
        client.wait()


async def cut_the_master_off(hosts: Namespaces, scratch: Path, tell: Tell) -> None:
    with trio.fail_after(120), cluster_of_hosts(hosts, scratch) as cluster:
        await cluster.up()
        traffic, heard = Traffic(), scratch / "heard"
        async with traffic.running(cluster.spec.namesrv_addresses):
            await traffic.goes_on()
            alone = await cluster.master()
            with direct_client(hosts, alone, cluster.state.node(alone).address, heard):

                async def acknowledged() -> int:
                    await trio.lowlevel.checkpoint()
                    return len(DirectAnswers.of_lines(heard.read_text()).acked) if heard.exists() else 0

                await until(acknowledged, "an acknowledgement for the client beside the master")
                cut_at_ms = wall_ms()
                hosts.cut(alone)
                failover = Failover(alone, cut_at_ms, await cluster.master(without=alone))
                await traffic.goes_on(150)
                await trio.sleep(max(0.0, CUT_S - (wall_ms() - cut_at_ms) / 1000))
                healed_at_ms = wall_ms()
                hosts.join(alone)
                await cluster.wait_well()
                await traffic.goes_on()
        tell(failover.line(await cluster.phases(failover, traffic.stamps)))
        direct = DirectAnswers.of_lines(heard.read_text())
        states = await cluster.replica_states()
        end = await cluster.wait_level()
        found = audit(cluster.store(BROKERS[0]), end, traffic.acked, direct.acked)
        tell(f"{found.line}, {states[alone]['truncatedBytes']} bytes of a fork cut, cut off: {dict(direct.counts)}")
        assert direct.acked_between(0, cut_at_ms) > 0
        assert direct.acked_between(cut_at_ms + ON_ITS_WAY_MS, healed_at_ms) == 0
        assert not traffic.failures
        assert (found.lost, found.misplaced, found.swapped) == ([], [], 0)
        assert states[alone]["truncatedBytes"] > 0
        assert states[alone]["role"] == "SLAVE"
        assert_same_bytes([cluster.store(name) for name in BROKERS], end)


def test_a_master_cut_off_with_a_client_acknowledges_nothing(tmp_path: Path, tell: Tell) -> None:
    with Namespaces(["ns-1", *BROKERS]) as hosts:
        hosts.run(HUB, lambda: trio.run(cut_the_master_off, hosts, tmp_path, tell))
