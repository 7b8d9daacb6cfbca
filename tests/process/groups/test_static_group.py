"""A static group of real processes, and its way to a controller and back: nothing acknowledged is lost."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.cluster import LocalCluster

pytestmark = pytest.mark.chaos

BATCH = 200


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    found = LocalCluster(tmp_path, name="static", mode="ap", replicas=2)
    found.path.write_text(as_static(found))
    yield found
    found.down()


def as_static(cluster: LocalCluster) -> str:
    text = cluster.path.read_text()
    return text.replace("replicas = 2\n", "replicas = 2\nstatic = true\n") + 'brokerRole = "SYNC_MASTER"\n'


def stores(cluster: LocalCluster) -> list[str]:
    return [str(cluster.directory / name / "store") for name in ("broker-a-1", "broker-a-2")]


def send(cluster: LocalCluster, first: int) -> set[str]:
    """BATCH messages, all acknowledged; their bodies."""
    bodies = [f"message {number}" for number in range(first, first + BATCH)]
    done = cluster.rmqha("send", "--namesrv", cluster.namesrv, "--topic", "T", *bodies)
    assert done.returncode == 0, done.stderr
    return set(bodies)


def received(cluster: LocalCluster, count: int) -> set[str]:
    done = cluster.rmqha("receive", "--namesrv", cluster.namesrv, "--topic", "T", "--max", str(count), "-o", "json")
    assert done.returncode == 0, done.stderr
    return {json.loads(line)["body"] for line in done.stdout.splitlines()}


def check(cluster: LocalCluster, *options: str) -> dict[str, object]:
    done = cluster.rmqha("migrate", *options, "-o", "json", *stores(cluster))
    found: dict[str, object] = json.loads(done.stdout)
    assert done.returncode == 0, found
    return found


def test_the_slave_serves_while_the_master_is_away_and_goes_on_when_it_is_back(cluster: LocalCluster) -> None:
    done = cluster.up()
    assert done.returncode == 0, done.stderr
    assert cluster.master() == "broker-a-1"
    done = cluster.rmqha("elect", "broker-a")
    assert done.returncode == 2 and "broker-a is a static group" in done.stderr
    for command in (
        ["drain", "broker-a-2"],
        ["remove", "broker-a-2"],
        ["join", "broker-a-3"],
        ["explain", "broker-a"],
        ["group", "resize", "broker-a", "3"],
    ):
        done = cluster.rmqha(*command)
        assert done.returncode == 2 and "broker-a is a static group" in done.stderr, (command, done.stderr)
    sent = send(cluster, 0)
    assert cluster.rmqha("kill", "broker-a-1").returncode == 0
    assert received(cluster, BATCH) == sent
    assert cluster.rmqha("start", "broker-a-1").returncode == 0
    sent |= send(cluster, BATCH)
    assert cluster.node("broker-a-2")["state"]["followState"] == "following"
    assert cluster.down().returncode == 0
    assert (
        check(cluster, "--check")["words"]
        == "yes: all logs are the same; the group may get a controller without a loss"
    )
    assert received_offline(cluster) == sent


def received_offline(cluster: LocalCluster) -> set[str]:
    """What the slave's own files hold."""
    done = cluster.rmqha("log", "cat", stores(cluster)[1], "--topic", "T", "--uncommitted", "-o", "json")
    return {json.loads(line)["body"] for line in done.stdout.splitlines()}


def test_static_to_controller_and_back(cluster: LocalCluster) -> None:
    static = cluster.path.read_text()
    elected = static.replace("static = true\n", "").replace('haMode = "ap"', 'haMode = "cp"')
    assert cluster.up().returncode == 0
    sent = send(cluster, 0)
    assert cluster.down().returncode == 0
    found = check(cluster)
    assert [member["epochsWritten"] for member in found["members"]] == [True, True]  # type: ignore[attr-defined]

    cluster.path.write_text(elected)
    done = cluster.up()
    assert done.returncode == 0, done.stderr
    assert not list(cluster.directory.glob("broker-a-*/store/replaced-*")), "no log was copied anew"
    first = cluster.master()
    sent |= send(cluster, BATCH)
    assert cluster.rmqha("kill", first).returncode == 0
    sent |= send(cluster, 2 * BATCH)
    assert cluster.rmqha("start", first).returncode == 0
    assert received(cluster, 3 * BATCH) == sent
    assert cluster.down().returncode == 0
    check(cluster, "--check", "--to", "static")

    cluster.path.write_text(static)
    done = cluster.up()
    assert done.returncode == 0, done.stderr
    assert cluster.master() == "broker-a-1"
    sent |= send(cluster, 3 * BATCH)
    assert received(cluster, 4 * BATCH) == sent
    assert cluster.down().returncode == 0
    check(cluster)

    shutil.rmtree(cluster.directory / "ns-1" / "controller")  # new controllers, that know nothing of the epochs before
    cluster.path.write_text(elected)
    done = cluster.up()
    assert done.returncode == 0, done.stderr
    sent |= send(cluster, 4 * BATCH)
    assert received(cluster, 5 * BATCH) == sent
