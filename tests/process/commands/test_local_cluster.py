"""`rmqha up` and its fellows on real processes: start, look, kill, come back, stop, and what they refuse."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rmqha.client import sync
from rmqha.ops.local.phases import failover_phases
from rmqha.wire.state.history import parse_history
from tests.process.cluster import LocalCluster
from tests.support.patience import HANG_MS, HANG_S, until

MESSAGES = 3000


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    found = LocalCluster(tmp_path)
    yield found
    found.down()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """For tests that leave a healthy group behind."""
    found = LocalCluster(tmp_path_factory.mktemp("running"))
    assert found.up().returncode == 0
    yield found
    found.down()


def wait_master_other_than(cluster: LocalCluster, killed: str) -> str:
    deadline = time.monotonic() + HANG_S
    while time.monotonic() < deadline:
        master = cluster.master()
        if master not in ("", killed):
            return master
    raise AssertionError(f"no master after {killed}")


def test_up_is_healthy_and_safe_to_repeat(cluster: LocalCluster) -> None:
    done = cluster.up("-o", "json")
    assert done.returncode == 0, done.stderr
    assert "haMode=cp" in done.stderr
    view = json.loads(done.stdout)
    assert view["healthy"]
    assert [node["node"] for node in view["nodes"]] == ["ns-1", "broker-a-1", "broker-a-2", "broker-a-3"]
    assert sorted(node["role"] for node in view["nodes"]) == ["leader", "master", "slave", "slave"]
    assert view["groups"][0]["syncStateSet"] == [1, 2, 3]
    pids = {node["node"]: node["pid"] for node in view["nodes"]}

    table = cluster.rmqha("status")
    assert table.returncode == 0
    assert all(len(line) <= 80 for line in table.stdout.splitlines() if not line.startswith("cluster "))

    assert cluster.rmqha("stop", "broker-a-2").returncode == 0
    again = cluster.up("-o", "json")
    assert again.returncode == 0, again.stderr
    assert f"broker-a-1: runs already, pid {pids['broker-a-1']}" in again.stderr
    after = {node["node"]: node["pid"] for node in json.loads(again.stdout)["nodes"]}
    assert {name for name in pids if pids[name] != after[name]} == {"broker-a-2"}

    other_mode = cluster.up("--mode", "ap")
    assert other_mode.returncode == 2
    assert "run `rmqha down` first" in other_mode.stderr
    assert cluster.rmqha("purge", "--yes").returncode == 2

    assert cluster.down().returncode == 0
    assert cluster.rmqha("status").returncode == 1
    assert cluster.rmqha("purge", "--yes").returncode == 0
    assert not cluster.directory.exists()


def test_a_killed_master_takes_no_acknowledged_message_and_comes_back(running: LocalCluster, tmp_path: Path) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("".join(f"line {number}\n" for number in range(MESSAGES)))
    acked = tmp_path / "acked.jsonl"
    arguments = [
        "send",
        "--topic",
        "lines",
        "--file",
        str(lines),
        "--rate",
        "1000/s",
        "--acked",
        str(acked),
        "-o",
        "json",
    ]
    killed = running.master()  # asked now: on a busy machine all may be sent before a command has its answer
    with subprocess.Popen(
        running.command(*arguments), env=running.environment, stdout=subprocess.PIPE, text=True
    ) as sender:
        deadline = time.monotonic() + HANG_S
        while not acked.exists() or acked.stat().st_size < 10_000:
            assert time.monotonic() < deadline, "nothing was acknowledged"
        stamp = json.loads(running.rmqha("kill", killed, "-o", "json").stdout)["killedAtMs"]
        master = wait_master_other_than(running, killed)
        out, _ = sender.communicate(timeout=HANG_S)
        assert sender.returncode == 0, out
    assert json.loads(out)["acknowledged"] == MESSAGES

    rows = [json.loads(line) for line in acked.read_text().splitlines()]
    events = parse_history(json.loads(running.rmqha("history", "-o", "json").stdout))
    phases = failover_phases(events, stamp, "broker-a", [row["ackedAtMs"] for row in rows])
    assert None not in phases.values(), phases
    assert list(phases.values())[:4] == sorted(value for value in list(phases.values())[:4] if value is not None)

    down = running.rmqha("status")
    assert down.returncode == 1
    assert f"{killed}: not running" in down.stdout
    back = running.rmqha("start", killed)
    assert back.returncode == 0, back.stderr
    assert "in the SyncStateSet" in back.stdout
    assert running.status()["healthy"]
    assert running.master() == master

    received = running.rmqha("receive", "--topic", "lines", "--idle", "2", "-o", "json")
    assert received.returncode == 0, received.stderr
    assert {row["msgId"] for row in rows} <= {json.loads(line)["msgId"] for line in received.stdout.splitlines()}


def test_elect_hands_over_to_the_named_replica(running: LocalCluster) -> None:
    master = running.master()
    target = next(name for name in ("broker-a-1", "broker-a-2") if name != master)
    done = running.rmqha("elect", "broker-a", "--to", target, "-o", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["master"] == target
    assert wait_master_other_than(running, master) == target

    refused = running.rmqha("elect", "broker-a", "--to", master, "--unclean")
    assert refused.returncode == 2
    assert "ends at byte" in refused.stderr
    assert "add --yes" in refused.stderr


def test_all_are_restarted_one_by_one_while_sends_go_on(running: LocalCluster) -> None:
    acked: list[str] = []
    is_over = threading.Event()

    def send() -> None:
        with sync.Producer(running.namesrv) as producer:
            while not is_over.is_set():
                acked.append(producer.send("Restarts", b"x", timeout_ms=HANG_MS, require_ok=True).msg_id)

    before = {row["node"]: row["pid"] for row in running.status()["nodes"]}
    master = running.master()
    with ThreadPoolExecutor(1) as pool:
        sender = pool.submit(send)
        try:
            until(lambda: len(acked) > 10)
            done = running.rmqha("restart", "-o", "json")
        finally:
            is_over.set()
        sender.result(HANG_S)
    assert done.returncode == 0, done.stderr
    restarted = {row["node"]: row["pid"] for row in json.loads(done.stdout)["restarted"]}
    assert list(restarted) == ["ns-1", *(name for name in before if name not in ("ns-1", master)), master]
    assert all(before[name] != pid for name, pid in restarted.items())
    assert running.status()["healthy"]
    received = running.rmqha("receive", "--topic", "Restarts", "--idle", "2", "-o", "json")
    assert set(acked) <= {json.loads(line)["msgId"] for line in received.stdout.splitlines()}

    slave = next(name for name in before if name not in ("ns-1", running.master()))
    assert running.rmqha("kill", slave).returncode == 0
    refused = running.rmqha("restart", "-o", "json")
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 2)
    assert f"{slave} is not well: not running; see rmqha health; nothing was restarted" in refused.stderr
    told = json.loads(refused.stdout)
    assert (told["restarted"], told["killed"], list(told["failed"])) == ([], [], ["ns-1"])
    assert running.rmqha("restart", slave).returncode == 2
    assert running.rmqha("start", slave).returncode == 0

    # a drained replica that stops is no fault, and takes part in no majority
    assert running.rmqha("drain", slave).returncode == 0
    other = next(name for name in before if name not in ("ns-1", slave, running.master()))
    refused = running.rmqha("restart", other)
    assert refused.returncode == 1
    assert (
        f"without {other} 1 replica is in the SyncStateSet of broker-a, and it takes messages with 2" in refused.stderr
    )
    assert running.rmqha("drain", slave, "--undo").returncode == 0


def test_a_port_in_use_stops_up_before_anything_is_written(cluster: LocalCluster) -> None:
    port = int(cluster.namesrv.rpartition(":")[2])
    with socket.create_server(("127.0.0.1", port)):
        done = cluster.up()
    assert done.returncode == 2
    assert f"port {port} on 127.0.0.1, wanted by ns-1, is in use" in done.stderr
    assert not cluster.directory.exists()


def test_a_node_that_cannot_start_stops_all_that_was_started(cluster: LocalCluster) -> None:
    store = cluster.directory / "broker-a-3" / "store"
    assert cluster.up().returncode == 0
    assert cluster.down().returncode == 0
    for name in ("commitlog", "consumequeue"):
        path = store / name
        if path.exists():
            path.rename(store / f"{name}.away")
        path.write_text("not a directory")
    done = cluster.up()
    assert done.returncode == 1
    assert "broker-a-3 ended while starting: " in done.stderr
    assert "rmqha start NODE lets a node run that is not well" in done.stderr
    assert all(node["pid"] is None for node in cluster.status()["nodes"])


def test_ctrl_c_during_up_leaves_nothing_running(cluster: LocalCluster, tmp_path: Path) -> None:
    with subprocess.Popen(
        cluster.command("up", str(cluster.path), "--directory", str(cluster.directory)),
        env=cluster.environment,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as starting:
        assert starting.stderr is not None
        for line in starting.stderr:
            if line.startswith("broker-a-1: "):
                break
        os.kill(starting.pid, signal.SIGINT)
        _, said = starting.communicate(timeout=HANG_S)
    assert starting.returncode == 130
    assert "interrupted" in said
    assert all(node["pid"] is None for node in cluster.status()["nodes"])
