"""`rmqha fork` on a real group: an unclean election leaves replicas that refuse; one after the other is copied anew."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.process.cluster import LocalCluster
from tests.support.patience import until


@pytest.mark.chaos
def test_a_replica_that_refuses_is_copied_anew_and_nothing_of_it_is_lost(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path)
    try:
        started = cluster.up()
        assert started.returncode == 0, started.stderr
        behind = next(name for name in ("broker-a-1", "broker-a-2", "broker-a-3") if name != cluster.master())
        ahead = [name for name in ("broker-a-1", "broker-a-2", "broker-a-3") if name != behind]
        assert cluster.rmqha("stop", behind).returncode == 0
        sent = cluster.rmqha("send", "--topic", "T", "one", "two", "three")
        assert "acknowledged         3" in sent.stdout, sent.stderr
        for name in ahead:
            assert cluster.rmqha("kill", name).returncode == 0
        assert cluster.rmqha("start", behind, "--timeout", "1").returncode == 1, "it may not lead by itself"
        until(lambda: cluster.node(behind)["state"].get("role"))
        led = cluster.rmqha("elect", "broker-a", "--to", behind, "--unclean", "--yes")
        assert led.returncode == 0, led.stderr
        for name in ahead:  # how much they have beyond is known if they lived to their next heartbeat
            assert f"{name} does not answer; the controllers heard from it last" in led.stderr
        for name in ahead:
            assert cluster.rmqha("start", name, "--timeout", "1").returncode == 1
        until(lambda: len(json.loads(cluster.rmqha("fork", "ls", "-o", "json").stdout)) == 2)
        shown = cluster.rmqha("fork", "show", ahead[0])
        assert f"alone on {ahead[0]}: 3 messages of T" in shown.stdout, shown.stderr
        for name in ahead:
            mended = cluster.rmqha("fork", "repair", name, "--yes")
            assert mended.returncode == 0, mended.stderr
            kept = cluster.directory / name
            assert (kept / "store.fork-1" / "commitlog").is_dir()
            assert len((kept / "fork-1.jsonl").read_text().splitlines()) == 3
        assert cluster.rmqha("fork", "ls").returncode == 0
        assert cluster.rmqha("status").returncode == 0
        ids = {row["node"]: row["brokerId"] for row in cluster.status()["nodes"] if "broker" in row["node"]}
        assert ids == {"broker-a-1": 1, "broker-a-2": 2, "broker-a-3": 3}, "each has kept its id"
    finally:
        cluster.down()
