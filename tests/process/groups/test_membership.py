"""join, drain and remove on real processes, with a producer at work."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from rmqha.drill.audit import audit
from rmqha.drill.traffic import DrillTraffic
from rmqha.ops.local.cluster_state import ClusterState
from rmqha.ops.local.preflight import free_ports
from rmqha.store.log.record import decode
from tests.process.cluster import LocalCluster
from tests.support.patience import HANG_S

PER_SECOND = 100


@pytest.fixture
def one(tmp_path: Path) -> Iterator[LocalCluster]:
    """A group of one replica."""
    found = LocalCluster(tmp_path, replicas=1)
    yield found
    found.down()


class Operator:
    """Runs commands beside the producer."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster

    async def try_(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return await trio.to_thread.run_sync(partial(self.cluster.rmqha, *arguments))

    async def does(self, *arguments: str) -> dict[str, Any]:
        done = await self.try_(*arguments, "-o", "json")
        assert done.returncode == 0, f"{arguments}: {done.stderr}"
        told: dict[str, Any] = json.loads(done.stdout)
        return told

    async def explained(self) -> dict[str, Any]:
        return await self.does("explain", "broker-a")


async def grow_and_shrink(cluster: LocalCluster, traffic: DrillTraffic) -> str:
    """1 → 3 → 5 → 3 → 1; the master is drained as well. The node that is left."""
    operator = Operator(cluster)
    for number in range(2, 6):
        told = await operator.does("join", f"broker-a-{number}")
        assert told["totalReplicas"] == number
        await traffic.goes_on(20)
    view = await operator.explained()
    assert [item["inSyncStateSet"] for item in view["replicas"]] == [True] * 5
    left = [f"broker-a-{number}" for number in range(1, 6)]
    while len(left) > 1:
        # the first one led at the start: each turn takes the present master away
        leaving = (await operator.does("drain", left[0]))["node"]
        view = await operator.explained()
        assert view["masterBrokerId"] is not None
        assert [item["drained"] for item in view["replicas"]] == [name == leaving for name in left]
        await traffic.goes_on(20)
        refused = await operator.try_("remove", left[1])
        assert refused.returncode == 2 and "run `rmqha drain" in refused.stderr, refused.stderr
        told = await operator.does("remove", leaving)
        left = left[1:]
        assert told["totalReplicas"] == len(left)
        await traffic.goes_on(20)
    refused = await operator.try_("drain", left[0])
    assert refused.returncode == 1 and "start or join another replica" in refused.stderr
    assert refused.stderr.count("\n") == 1
    return left[0]


@pytest.mark.chaos
async def test_a_group_grows_to_five_and_shrinks_to_one_under_load(one: LocalCluster) -> None:
    """Another replica is left than the one that began, and it holds every acknowledged message once."""
    assert one.up().returncode == 0
    traffic = DrillTraffic(PER_SECOND)
    with trio.fail_after(HANG_S):
        async with traffic.running(one.namesrv):
            await traffic.goes_on()
            last = await grow_and_shrink(one, traffic)
    assert last == "broker-a-5"
    assert not traffic.failures
    state = ClusterState.require(one.directory)
    assert [node.name for node in state.brokers] == [last]
    end = one.node(last)["state"]["confirmOffset"]
    found = audit(state.data_path(state.node(last)), end, traffic.acked)
    assert (found.lost, found.misplaced, found.swapped) == ([], [], 0)
    assert found.copies <= traffic.duplicates_possible
    assert len(traffic.acked) > 200


@pytest.mark.chaos
def test_a_drained_replica_stays_out_over_a_restart_and_joins_again(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path)
    try:
        assert cluster.up().returncode == 0
        master = cluster.master()
        done = cluster.rmqha("drain", master)
        assert done.returncode == 0, done.stderr
        assert f"{master} is drained and may be stopped; 2 of 3 copies of broker-a remain" in done.stdout
        assert "but sends are refused until it is back" in done.stdout
        assert cluster.master() not in ("", master)
        other = next(
            name for name in ("broker-a-1", "broker-a-2", "broker-a-3") if name not in (master, cluster.master())
        )
        refused = cluster.rmqha("drain", other)
        assert refused.returncode == 1
        assert "1 live members of the SyncStateSet remain and broker-a needs 2" in refused.stderr
        assert cluster.rmqha("stop", master).returncode == 0
        started = cluster.rmqha("start", master)
        assert started.returncode == 0, started.stderr
        status = cluster.rmqha("status")
        assert status.returncode == 0 and "drained" in status.stdout
        joined = cluster.rmqha("join", master, "-o", "json")
        assert joined.returncode == 0, joined.stderr
        assert json.loads(joined.stdout)["totalReplicas"] == 3
        assert cluster.node(master)["inSync"] is True
    finally:
        cluster.down()


@pytest.mark.chaos
def test_a_learner_copies_serves_reads_and_is_not_elected(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path, replicas=2)
    try:
        assert cluster.up().returncode == 0
        joined = cluster.rmqha("join", "broker-a-3", "--learner", "-o", "json")
        assert joined.returncode == 0, joined.stderr
        assert json.loads(joined.stdout)["totalReplicas"] == 2
        sent = cluster.rmqha("send", "--topic", "lines", *(f"line {number}" for number in range(20)))
        assert sent.returncode == 0, sent.stderr
        view = json.loads(cluster.rmqha("explain", "broker-a", "-o", "json").stdout)
        learner = view["replicas"][2]
        assert (learner["asyncLearner"], learner["inSyncStateSet"]) == (True, False)
        assert learner["notElectable"] == "an async learner"
        refused = cluster.rmqha("elect", "broker-a", "--to", "broker-a-3", "--unclean", "--yes")
        assert refused.returncode == 1 and "async learner" in refused.stderr
        for name in ("broker-a-1", "broker-a-2"):
            assert cluster.rmqha("kill", name).returncode == 0
        state = cluster.node("broker-a-3")["state"]
        assert (state["role"], state["asyncLearner"]) == ("SLAVE", True)
        assert state["confirmOffset"] == state["dispatchedOffset"] > 0, "what it has is committed and in its queues"
        log = next(iter(sorted((cluster.directory / "broker-a-3" / "store" / "commitlog").iterdir()))).read_bytes()
        assert decode(memoryview(log), 0).topic == "lines"
    finally:
        cluster.down()


@pytest.mark.chaos
def test_a_replica_that_its_machine_has_started_joins_from_anywhere(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path, replicas=2)
    machine = tmp_path / "machine"
    machine.mkdir()
    try:
        assert cluster.up().returncode == 0
        state = ClusterState.require(cluster.directory)
        port = free_ports(4) + 2
        keys = state.properties("broker-a-2") | {
            "listenPort": str(port), "haListenPort": str(port + 1), "storePathRootDir": f"{machine}/store",
            "logFile": f"{machine}/log", "brokerId": "3", "totalReplicas": "3",
        }  # fmt: skip
        elsewhere = ("--namesrv", cluster.namesrv)
        refused = cluster.rmqha("join", "broker-a-3", *elsewhere)
        assert refused.returncode == 2 and "broker-a-3" in refused.stderr
        with _started(machine / "small.conf", keys | {"totalReplicas": "2"}):
            refused = _joined_elsewhere(cluster, "broker-a-3")
        assert refused.returncode == 1
        assert "controllers do not take broker-a-3: totalReplicas = 2 is too small for haMode=cp" in refused.stderr
        with _started(machine / "broker.conf", keys):
            joined = _joined_elsewhere(cluster, "broker-a-3")
            assert joined.returncode == 0, joined.stderr
            told = json.loads(joined.stdout)
            assert (told["node"], told["totalReplicas"], told["pid"]) == ("broker-a-3", 3, None)
            view = json.loads(cluster.rmqha("explain", "broker-a", *elsewhere, "-o", "json").stdout)
            assert [item["inSyncStateSet"] for item in view["replicas"]] == [True] * 3
            told = json.loads(cluster.rmqha("describe", "broker", "broker-a-3", *elsewhere, "-o", "json").stdout)
            assert (told["broker"], told["address"]) == ("broker-a-3", f"127.0.0.1:{port}")
            shown = cluster.rmqha("quorum", "show", *elsewhere)
            assert (shown.returncode, "leader" in shown.stdout) == (0, True), shown.stderr
    finally:
        cluster.down()


@contextmanager
def _started(file: Path, keys: dict[str, str]) -> Iterator[None]:
    """A broker that its own machine has started."""
    file.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
    command = [sys.executable, "-m", "rmqha", "broker", "-c", str(file)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.kill()


def _joined_elsewhere(cluster: LocalCluster, name: str) -> subprocess.CompletedProcess[str]:
    """The outcome of `join` by the name server, once it knows the node."""
    deadline = time.monotonic() + HANG_S
    while True:
        joined = cluster.rmqha("join", name, "--namesrv", cluster.namesrv, "-o", "json")
        if joined.returncode != 2 or time.monotonic() > deadline:
            return joined


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (("join", "broker-a-9"), 2, "broker-a-9 leaves a gap: the next replica of broker-a is broker-a-2"),
        (("join", "broker-x-1"), 2, "broker-x-1 is no new replica of a group"),
        (("drain", "ns-1"), 2, "ns-1 is no broker"),
        (("remove", "broker-a-7"), 2, "there is no node broker-a-7"),
        (("remove", "broker-a-1"), 2, "broker-a-1 is the master; run `rmqha drain broker-a-1` first"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    running: LocalCluster, arguments: tuple[str, ...], code: int, sentence: str
) -> None:
    done = running.rmqha(*arguments)
    assert done.returncode == code
    assert sentence in done.stderr and done.stderr.count("\n") == 1


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    found = LocalCluster(tmp_path_factory.mktemp("one"), replicas=1)
    assert found.up().returncode == 0
    yield found
    found.down()


@pytest.mark.chaos
def test_the_preferred_replica_gets_its_role_back_by_command(tmp_path: Path) -> None:
    """The lowest brokerElectionPriority, set for one node in the cluster file."""
    cluster = LocalCluster(tmp_path)
    with cluster.path.open("a") as file:
        file.write("[node.broker-a-3]\nbrokerElectionPriority = 1\n")
    try:
        assert cluster.up().returncode == 0
        if cluster.master() == "broker-a-3":
            assert cluster.rmqha("elect", "broker-a", "--to", "broker-a-2").returncode == 0
        both = cluster.rmqha("elect", "broker-a", "--preferred", "--to", "broker-a-1")
        assert both.returncode == 2 and "name two replicas" in both.stderr
        done = cluster.rmqha("start", "broker-a-3")
        assert done.returncode == 0, done.stderr
        done = cluster.rmqha("elect", "broker-a", "--preferred", "-o", "json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["master"] == "broker-a-3"
        again = cluster.rmqha("elect", "broker-a", "--preferred")
        assert again.returncode == 1 and "is preferred and the master of broker-a already" in again.stderr
    finally:
        cluster.down()
