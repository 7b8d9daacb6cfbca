"""`rmqha describe`, `explain-wait` and `epochs` on a real group with a frozen slave."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.process.cluster import LocalCluster
from tests.support.patience import HANG_S

pytestmark = pytest.mark.chaos


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    found = LocalCluster(tmp_path)
    with found.path.open("a") as file:
        file.write("haAckStallBoundMs = 50000\nslaveTimeout = 60000\n")
    yield found
    found.down()


def asked(cluster: LocalCluster, *arguments: str) -> tuple[Any, int]:
    done = cluster.rmqha(*arguments, "-o", "json")
    assert done.stdout, done.stderr
    return json.loads(done.stdout), done.returncode


def test_a_group_is_described_and_its_waits_are_explained(cluster: LocalCluster) -> None:
    assert cluster.up().returncode == 0
    assert cluster.rmqha("send", "--topic", "T", "first").returncode == 0
    group, code = asked(cluster, "describe", "group", "broker-a")
    assert (code, group["guarantee"]["kind"], group["guarantee"]["conditions"]) == (0, "CP", [])
    assert (group["syncStateSet"], group["contradictions"]) == ([1, 2, 3], [])
    keys = {item["key"]: (item["value"], item["source"]) for item in group["keys"]}
    assert keys["brokerRole"] == ("SYNC_MASTER", "preset haMode=cp")
    assert keys["slaveTimeout"] == ("60000", "file")
    topic, code = asked(cluster, "describe", "topic", "T")
    assert code == 0
    assert sum(queue["maxOffset"] for queue in topic["groups"][0]["queues"]) == 1
    waits, code = asked(cluster, "explain-wait")
    assert (code, waits["groups"][0]["waits"]["count"]) == (0, 0)
    examined, code = asked(cluster, "doctor")
    assert (code, [item for item in examined["findings"] if item["verdict"] == "WRONG"]) == (0, [])
    seen = {(item["subject"], item["check"]) for item in examined["findings"] if item["verdict"] == "OK"}
    assert seen >= {("machine", "clock"), ("broker-a-1", "identity"), ("broker-a-2", "address"), ("ns-1", "answers")}
    assert ("broker-a-1", "kernel") in seen

    master = cluster.master()
    slave = cluster.node("broker-a-2" if master == "broker-a-1" else "broker-a-1")
    os.kill(slave["pid"], signal.SIGSTOP)
    try:
        command = cluster.command("send", "--topic", "T", "second")
        with subprocess.Popen(command, env=cluster.environment, stdout=subprocess.DEVNULL) as sender:
            deadline = time.monotonic() + HANG_S
            while not waits["groups"][0]["waits"]["count"] and time.monotonic() < deadline:
                waits, code = asked(cluster, "explain-wait", "broker-a")
            lines = waits["groups"][0]["sentences"]
            assert any(line.startswith(f"waited for: replica {slave['brokerId']}, it owes") for line in lines), lines
            assert "then 2 are left and sends go on" in lines
            examined, code = asked(cluster, "doctor", "--no-write")
            wrong = {(item["subject"], item["check"]) for item in examined["findings"] if item["verdict"] == "WRONG"}
            assert (code, wrong) == (1, {(slave["node"], "process"), (slave["node"], "answers")})
            os.kill(slave["pid"], signal.SIGCONT)
            assert sender.wait(HANG_S) == 0
    finally:
        os.kill(slave["pid"], signal.SIGCONT)
    measured, code = asked(cluster, "bench", "e2e", "-n", "60", "--rate", "100")
    assert (code, measured["counts"]["received"], measured["counts"]["lost"]) == (0, 60, 0)
    assert 0 < measured["latencyMicroseconds"]["p50"] <= measured["latencyMicroseconds"]["max"]
    followed, code = asked(cluster, "bench", "replicate", "broker-a", "--seconds", "0.5")
    assert code == 0
    assert len(followed["slaves"]) == 2
    assert followed["confirm"]["microseconds"]["count"] > 0
    collected, code = asked(cluster, "debug", "bundle", "--out", str(cluster.scratch / "bundle.tar.gz"))
    assert (code, collected["missing"]) == (0, [])
    assert collected["files"] > 80
    stores = [str(cluster.directory / f"broker-a-{number}" / "store") for number in (1, 2)]
    assert cluster.down().returncode == 0
    compared, code = asked(cluster, "epochs", "diff", *stores)
    assert (code, compared["fork"]) == (0, False)
    assert compared["consistentPoint"] == min(compared["a"]["endOffset"], compared["b"]["endOffset"])
