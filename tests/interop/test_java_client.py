"""Apache's Java producer and consumers through a group of three of ours, the master killed in the middle."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.lab import Lab
from tests.interop.lines import acknowledged, consumed, places
from tests.interop.processes import until
from tests.process.cluster import LocalCluster

pytestmark = pytest.mark.interop

MESSAGES = 2000
KILL_AFTER = MESSAGES // 3
BODY_BYTES = 128
PAUSE_MS = 2
TIMEOUT_S = 120


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    found = LocalCluster(tmp_path, name="javaclient")
    yield found
    found.down()


@pytest.mark.parametrize("codec", ["JSON", "ROCKETMQ"])
def test_every_acknowledged_message_is_consumed_though_the_master_is_killed(
    lab: Lab, cluster: LocalCluster, codec: str
) -> None:
    done = cluster.up()
    assert done.returncode == 0, done.stderr
    lab.name_server = cluster.namesrv
    killed = cluster.master()
    pid = cluster.node(killed)["pid"]
    consumers = [lab.client("Consume", "JavaTopic", kind, f"group-{kind}", codec=codec) for kind in ("push", "pull")]
    producer = lab.client("Produce", "JavaTopic", "0", str(MESSAGES), str(BODY_BYTES), str(PAUSE_MS), codec=codec)
    until("the first third is sent", lambda: len(acknowledged(producer)) >= KILL_AFTER, TIMEOUT_S, producer, *consumers)
    os.kill(pid, signal.SIGKILL)
    assert len(acknowledged(producer)) < MESSAGES, "the producer was done before the master was killed"
    assert producer.wait(TIMEOUT_S) == 0, producer.tail()
    sent = set(acknowledged(producer))
    assert sent == set(range(MESSAGES))
    for consumer in consumers:
        until(f"{consumer.name} has all", lambda it=consumer: sent <= consumed(it), TIMEOUT_S, consumer)  # type: ignore[misc]
        # where the acknowledgement said it is, there it is
        assert places(producer).items() <= places(consumer).items()
    assert cluster.master() not in ("", killed)
