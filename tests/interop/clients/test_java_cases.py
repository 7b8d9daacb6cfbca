"""What Apache's client can do, case by case, before, through and after the master's death: one JVM, one cluster."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.interop.lab.lab import Lab
from tests.interop.lab.processes import until
from tests.process.cluster import LocalCluster
from tests.support.patience import HANG_S

pytestmark = pytest.mark.interop

CASES = 18
THROUGH = 10
TIMEOUT_S = 2 * HANG_S
DELAYS = "1s 1s 2s 3s 4s"
"""A client whose send-back failed sends the message itself, with level 3 or 4: 10 s or 30 s by RocketMQ's default."""
QUIET = {"interop.level": "ERROR"}


def test_every_case_before_through_and_after_the_masters_death(lab: Lab, tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path, name="cases")
    with cluster.path.open("a") as file:
        file.write(f'messageDelayLevel = "{DELAYS}"\nrecallMessageEnable = true\n')
    try:
        done = cluster.up()
        assert done.returncode == 0, done.stderr
        client = lab.start("cases", lab.java.command("Cases", cluster.namesrv, heap="768m", properties=QUIET))
        until("all are ready for it", lambda: "KILL" in client.lines(), TIMEOUT_S, client)
        os.kill(cluster.node(cluster.master())["pid"], signal.SIGKILL)
        assert client.wait(TIMEOUT_S) == 0, client.tail()
    finally:
        cluster.down()
    lines = client.lines()
    assert [line for line in lines if line.startswith("FAILED")] == []
    assert sum(line.startswith("OK before") for line in lines) == CASES
    assert sum(line.startswith("OK through") for line in lines) == THROUGH
    assert sum(line.startswith("OK after") for line in lines) == CASES
