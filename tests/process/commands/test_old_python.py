"""A group under a Python that was built for old systems: each of its processes lacks what came later."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.host import old_python
from tests.process.cluster import LocalCluster
from tests.support.patience import HANG_S


def test_a_group_runs_under_it(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    shutil.copy(old_python.__file__, site / "sitecustomize.py")
    cluster = LocalCluster(tmp_path, mode="ap", replicas=2)
    path = f"{site}:{cluster.environment.get('PYTHONPATH', '')}"

    def rmqha(*arguments: str) -> str:
        done = subprocess.run(
            cluster.command(*arguments),
            env=cluster.environment | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=HANG_S,
        )
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout

    try:
        rmqha("up", str(cluster.path), "--directory", str(cluster.directory))
        rmqha("send", "--topic", "T", "one", "two")
        assert {"one", "two"} <= set(rmqha("receive", "--topic", "T", "--max", "2", "--idle", "20").split())
        rmqha("kill", "broker-a-2")
        rmqha("start", "broker-a-2")
        rmqha("down")
        assert {item.name for item in cluster.directory.rglob("abort")} == set()
    finally:
        cluster.down()
