"""What Apache's client can do, case by case, before, through and after the master's death: one JVM, one cluster."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.interop.lab import Lab
from tests.interop.processes import until
from tests.process.cluster import LocalCluster

pytestmark = pytest.mark.interop

CASES = 16
TIMEOUT_S = 240
QUIET = {"interop.level": "ERROR"}


def test_every_case_before_through_and_after_the_masters_death(lab: Lab, tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path, name="cases")
    try:
        done = cluster.up()
        assert done.returncode == 0, done.stderr
        client = lab.start("cases", lab.java.command("Cases", cluster.namesrv, heap="768m", properties=QUIET))
        until("the traffic is under way", lambda: "KILL" in client.lines(), TIMEOUT_S, client)
        os.kill(cluster.node(cluster.master())["pid"], signal.SIGKILL)
        assert client.wait(TIMEOUT_S) == 0, client.tail()
    finally:
        cluster.down()
    lines = client.lines()
    assert [line for line in lines if line.startswith("FAILED")] == []
    assert sum(line.startswith("OK before") for line in lines) == CASES
    assert "OK through traffic" in lines
    assert sum(line.startswith("OK after") for line in lines) == CASES
