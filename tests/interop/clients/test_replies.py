"""Apache's Java producers that wait for the answers of other applications: through our brokers and a master's death."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.lab.group import TIMEOUT_S
from tests.interop.lab.lab import Lab
from tests.interop.lab.processes import until
from tests.process.cluster import LocalCluster

pytestmark = pytest.mark.interop

COUNT = 60


@pytest.fixture
def cluster(lab: Lab, tmp_path: Path) -> Iterator[LocalCluster]:
    found = LocalCluster(tmp_path, name="replies")
    try:
        done = found.up()
        assert done.returncode == 0, done.stderr
        lab.name_server = found.namesrv
        yield found
    finally:
        found.down()


def test_each_request_has_its_answer_through_the_masters_death(lab: Lab, cluster: LocalCluster) -> None:
    where = ("-n", lab.name_server, "-c", "replies")
    code, _, errors = lab.mqadmin("updateTopic", "-t", "Asked", "-r", "4", "-w", "4", *where)
    assert code == 0, errors
    answering = lab.client("Asking", "Asked", "answer", "0")
    asking = lab.client("Asking", "Asked", "ask", str(COUNT))
    until("half of them are answered", lambda: "HALF" in asking.lines(), TIMEOUT_S, asking, answering)
    os.kill(cluster.node(cluster.master())["pid"], signal.SIGKILL)
    assert asking.wait(TIMEOUT_S) == 0, asking.tail()
    lines = asking.lines()
    assert [line for line in lines if line.startswith("GOT ")] == [
        f"GOT {number} answer to {number}" for number in range(COUNT)
    ]
    stored = [line for line in answering.lines() if line.startswith("ANSWERED ") and line.endswith(" SEND_OK")]
    assert len(stored) >= COUNT // 2
