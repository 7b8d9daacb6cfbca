"""docs/operate/backup.md on real processes: copies of a slave's store, the loss of all disks, and the restore."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.process.cluster import LocalCluster

pytestmark = pytest.mark.chaos

KEPT = ["one", "two", "three"]


def done(cluster: LocalCluster, *arguments: str) -> str:
    told = cluster.rmqha(*arguments)
    assert told.returncode == 0, (arguments, told.stdout, told.stderr)
    return told.stdout


def store_of(cluster: LocalCluster, node: str) -> Path:
    return cluster.directory / node / "store"


def slave_of(cluster: LocalCluster) -> str:
    master = cluster.master()
    return next(name for name in ("broker-a-1", "broker-a-2", "broker-a-3") if name != master)


def copy_stopped(cluster: LocalCluster, node: str, backup: Path) -> None:
    done(cluster, "maintenance", "on", node)
    done(cluster, "stop", node)
    shutil.copytree(store_of(cluster, node), backup)
    done(cluster, "start", node)
    done(cluster, "maintenance", "off", node)


def copy_running(cluster: LocalCluster, node: str, backup: Path) -> None:
    done(cluster, "log", "sync", str(store_of(cluster, node)), "--to", str(backup))


def bodies(cluster: LocalCluster) -> list[str]:
    told = done(cluster, "receive", "--topic", "T", "--from", "first", "--max", "3", "--idle", "20", "-o", "json")
    return sorted(json.loads(line)["body"] for line in told.splitlines())


@pytest.mark.parametrize("copy", [copy_stopped, copy_running])
@pytest.mark.parametrize("controllers_are_lost", [True, False])
def test_a_group_whose_disks_are_all_gone_comes_back_from_the_copy_of_one_slave(
    tmp_path: Path, copy: Callable[[LocalCluster, str, Path], None], controllers_are_lost: bool
) -> None:
    cluster, backup = LocalCluster(tmp_path), tmp_path / "backup"
    try:
        assert cluster.up().returncode == 0
        done(cluster, "send", "--topic", "T", *KEPT)
        done(cluster, "receive", "--topic", "T", "--group", "readers", "--max", "3", "--idle", "20")
        slave = slave_of(cluster)
        copy(cluster, slave, backup)
        done(cluster, "fsck", str(backup))
        done(cluster, "send", "--topic", "T", "lost")
        done(cluster, "down")
        for node in ("broker-a-1", "broker-a-2", "broker-a-3"):
            shutil.rmtree(store_of(cluster, node))
        if controllers_are_lost:
            shutil.rmtree(cluster.directory / "ns-1" / "controller")
        shutil.copytree(backup, store_of(cluster, slave))
        assert cluster.up().returncode == 0
        assert cluster.master() == slave
        done(cluster, "health", "-e", "--within", "20")
        assert bodies(cluster) == sorted(KEPT)
        lag = json.loads(done(cluster, "consumer", "lag", "readers", "-o", "json"))
        assert lag["lag"] == 0, "the group goes on where it was"
        done(cluster, "send", "--topic", "T", "again")
    finally:
        cluster.down()
