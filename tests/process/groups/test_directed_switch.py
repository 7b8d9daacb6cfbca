"""A directed switch, explain and group resize on real processes, with a producer at work."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from rmqha.drill.audit import audit
from rmqha.drill.traffic import SEND_OK, DirectAnswers, DirectSender, DrillTraffic
from rmqha.ops.local.cluster_state import ClusterState
from tests.process.cluster import LocalCluster
from tests.support.patience import HANG_S, NOISE_MS, until

pytestmark = [pytest.mark.chaos, pytest.mark.timed]  # a client of a busy machine tries again, and says so

MESSAGES = 1500
SWITCHES = 4
REFUSALS = ("is still alive", "SyncStateSet", "the master goes on")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    found = LocalCluster(tmp_path)
    yield found
    found.down()


def test_switches_lose_nothing_and_store_nothing_twice(cluster: LocalCluster, tmp_path: Path) -> None:
    """The old master stops first, so no message is written that could get no answer (ruling 18)."""
    assert cluster.up().returncode == 0
    lines, acked = tmp_path / "lines.txt", tmp_path / "acked.jsonl"
    lines.write_text("".join(f"line {number}\n" for number in range(MESSAGES)))
    arguments = ("send", "--topic", "lines", "--file", str(lines), "--rate", "300/s", "--acked", str(acked))
    with subprocess.Popen(
        cluster.command(*arguments), env=cluster.environment, stdout=subprocess.PIPE, text=True
    ) as sender:
        for turn in range(SWITCHES):
            target = f"broker-a-{1 + turn % 2}"
            cluster.master()  # the one of the turn before has heard of its election
            done = cluster.rmqha("elect", "broker-a", "--to", target, "-o", "json")
            if "is master" not in done.stderr and done.returncode:
                # refused while the target is the master already, not in the set again yet, or too slow
                assert any(words in done.stderr for words in REFUSALS), done.stderr
        out, _ = sender.communicate(timeout=HANG_S)
        assert sender.returncode == 0, out
    history = json.loads(cluster.rmqha("history", "-o", "json").stdout)["events"]
    switched = [item for item in history if item["event"] == "hand_over_begins"]
    assert switched, "at least one master handed over"
    elected = [item for item in history if item["event"] == "master_elected" and item["cause"] == "DESIGNATED"]
    assert len(elected) >= 1
    others = [item for item in history if item["event"] == "master_elected" and item["cause"] != "DESIGNATED"]
    received = cluster.rmqha("receive", "--topic", "lines", "--idle", "2", "-o", "json")
    bodies = [json.loads(line)["body"] for line in received.stdout.splitlines()]
    assert len(set(bodies)) == MESSAGES
    # a master that a busy machine starved past its heartbeats did not hand over: its waiting sends come twice
    assert len(bodies) == MESSAGES or len(others) > 1, "no message is stored twice"

    explained = json.loads(cluster.rmqha("explain", "broker-a", "-o", "json").stdout)
    assert "an operator asked for" in explained["answer"]
    told = cluster.node("ns-1")["state"]["nameServer"]
    assert told["follows"] and told["eventIndex"] > 0, "the name server heard of the elections by itself"
    assert f"up to {told['eventIndex']}" in cluster.rmqha("status").stdout
    table = cluster.rmqha("explain", "broker-a")
    assert table.returncode == 0
    assert table.stdout.startswith("broker-a: broker-a-")
    assert "first election of the group" in table.stdout


def test_resize_while_it_runs(cluster: LocalCluster) -> None:
    assert cluster.up().returncode == 0
    refused = cluster.rmqha("group", "resize", "broker-a", "2")
    assert refused.returncode == 1
    assert "broker-a has 3 replicas; stop and clean 1 of them first" in refused.stderr
    slip = cluster.rmqha("group", "resize", "broker-a", "9")
    assert (
        slip.returncode == 1 and "takes no messages until 5 replicas are in the SyncStateSet, and 3 are" in slip.stderr
    )

    def explained() -> dict[str, Any]:
        done = cluster.rmqha("explain", "broker-a", "-o", "json")
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    assert explained()["nextTotalReplicas"] is None
    grown = cluster.rmqha("group", "resize", "broker-a", "5")
    assert grown.returncode == 0, grown.stderr
    master = cluster.master()  # three of five hold everything
    while (view := explained())["totalReplicas"] != 5:
        assert view["nextTotalReplicas"] == 5, "its master goes by it soon"
    assert view["nextTotalReplicas"] is None
    assert cluster.rmqha("kill", next(name for name in ("broker-a-1", "broker-a-2") if name != master)).returncode == 0
    until(lambda: "has less than 3 of 5" in (cluster.node(master)["state"]["whyNotWritable"] or ""))


def test_what_cannot_be_asked(cluster: LocalCluster) -> None:
    nobody = cluster.rmqha("explain", "broker-a", "--controller", "127.0.0.1:1")
    assert nobody.returncode == 2
    assert nobody.stderr.count("\n") == 1
    wrong = cluster.rmqha("explain", "broker-a", "--controller", "here")
    assert wrong.returncode == 2 and "--controller" in wrong.stderr
    assert cluster.up().returncode == 0
    unknown = cluster.rmqha("explain", "broker-x")
    assert unknown.returncode == 2
    assert unknown.stderr == "rmqha: the controllers know no group 'broker-x'; see rmqha health\n"


async def test_a_switch_is_no_error_at_200_messages_a_second(cluster: LocalCluster) -> None:
    """To a client of ours, and to one that goes on at the old master: that passes on what it gets."""
    assert cluster.up().returncode == 0
    traffic = DrillTraffic(200)
    state = ClusterState.require(cluster.directory)
    old = cluster.master()
    stays = DirectAnswers()
    with trio.fail_after(HANG_S):
        async with traffic.running(cluster.namesrv), trio.open_nursery() as nursery:
            await traffic.goes_on(100)
            nursery.start_soon(DirectSender(state.node(old).address, stays.heard).run, 10_000)
            for target in ("broker-a-1", "broker-a-2", "broker-a-3"):
                if target == old:
                    continue
                started = await trio.to_thread.run_sync(cluster.rmqha, "start", target)
                assert started.returncode == 0, started.stderr
                done = await trio.to_thread.run_sync(cluster.rmqha, "elect", "broker-a", "--to", target)
                assert done.returncode == 0, done.stderr
                await traffic.goes_on(200)
            nursery.cancel_scope.cancel()
    assert not traffic.failures
    assert set(stays.counts) == {SEND_OK}, stays.counts
    end = cluster.node(old)["state"]["confirmOffset"]
    found = audit(state.data_path(state.node(old)), end, traffic.acked, stays.acked)
    assert (found.lost, found.misplaced, found.swapped) == ([], [], 0)
    longest_ms = max(item.latency_ms for item in traffic.acked)
    print(f"{len(traffic.acked)} acknowledged, longest {longest_ms} ms, {found.line}; {len(stays.acked)} passed on")
    assert longest_ms < 3000 + NOISE_MS, "what a Java producer waits for one send, on a slow machine"
