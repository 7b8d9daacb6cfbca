"""health, config and maintenance on a real group."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.process.cluster import LocalCluster

pytestmark = pytest.mark.chaos


def told(cluster: LocalCluster, *arguments: str) -> tuple[Any, int]:
    done = cluster.rmqha(*arguments, "-o", "json")
    assert done.stdout, done.stderr
    # with -e each look is a line
    return json.loads(done.stdout.splitlines()[-1] if "-e" in arguments else done.stdout), done.returncode


def topics(cluster: LocalCluster) -> None:
    """Made, listed and deleted; the servers' own stay."""
    made, code = told(cluster, "topic", "create", "Orders", "--queues", "3", "--attribute", "queue.type=BatchCQ")
    groups = {"groups": ["broker-a"], "existing": {}, "failed": {}}
    assert (made, code) == ({"topic": "Orders", **groups, "queues": 3}, 0)
    assert told(cluster, "topic", "list") == (["Orders"], 0)
    assert {"Orders", "TBW102"} < set(told(cluster, "topic", "list", "--all")[0])
    assert told(cluster, "topic", "delete", "Orders", "--yes") == ({"topic": "Orders", "groups": ["broker-a"]}, 0)
    for command, words in (
        ("delete Orders --yes", "know no topic 'Orders'"),
        ("delete TBW102 --yes", "TBW102 is the servers' own"),
        ("create a/b", "'a/b' must consist of letters"),
        ("create T --group broker-z", "there is no group broker-z; known are broker-a"),
        ("create T --attribute x", "--attribute 'x' must be KEY=VALUE"),
    ):
        done = cluster.rmqha("topic", *command.split())
        assert (done.returncode, done.stderr.count("\n")) == (2, 1) and words in done.stderr, done.stderr
    refused = cluster.rmqha("topic", "create", "T", "--attribute", "queue.type=Tree")
    assert refused.returncode == 1 and "queue.type" in refused.stderr and refused.stderr.count("\n") == 1


def test_a_master_is_worked_on_while_the_group_is_healthy(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path)
    try:
        assert cluster.up().returncode == 0
        state, code = told(cluster, "health")
        assert (state["health"], code, len(state["nodes"])) == ("HEALTHY", 0, 5), state["reasons"]
        assert {view["agreement"] for view in state["views"]} == {"MATCHING"}

        topics(cluster)
        assert cluster.rmqha("config", "set", "broker-a-1", "flushIntervalCommitLog=200").returncode == 0
        differing, code = told(cluster, "config", "diff", "broker-a-1", "broker-a-2")
        assert (code, differing) == (1, {"flushIntervalCommitLog": {"broker-a-1": "200", "broker-a-2": "500"}})

        master = cluster.master()
        state, code = told(cluster, "maintenance", "on", master)
        assert (code, state["inMaintenance"]) == (0, True) and state["master"] != master
        assert cluster.rmqha("stop", master).returncode == 0
        note = f"in maintenance, stopped; end it with rmqha maintenance off {master}"
        state, _ = told(cluster, "status")
        assert state["notes"] == {master: note} and master not in state["problems"]
        assert {row["node"]: row.get("inMaintenance") for row in state["nodes"]}[master] is True
        assert f"{master}: {note}" in cluster.rmqha("status").stdout
        # its controller is inside
        assert cluster.rmqha("stop", "ns-1").returncode == 0
        assert cluster.rmqha("start", "ns-1").returncode in (0, 1)
        state, code = told(cluster, "health", "-e", "--within", "20")
        assert code == 0, state["reasons"]
        assert [(item["where"], item["what"]) for item in state["notes"]] == [(master, "in maintenance, stopped")]
        assert cluster.rmqha("status").returncode == 0
        assert told(cluster, "maintenance", "show")[0] == {"inMaintenance": [master]}

        assert cluster.rmqha("maintenance", "off", master).returncode == 0
        state, code = told(cluster, "status")
        assert (code, state["notes"], state["problems"][master]) == (1, {}, "not running")
        state, code = told(cluster, "health")
        assert (code, state["reasons"][0]) == (
            1,
            {"where": master, "what": "does not run", "fix": f"rmqha start {master}"},
        )
    finally:
        cluster.down()
