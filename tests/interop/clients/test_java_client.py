"""Apache's Java producer and consumers through groups of ours, a master killed in the middle."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmqha.model.code import RequestCode
from tests.interop.lab.group import TIMEOUT_S
from tests.interop.lab.lab import Lab
from tests.interop.lab.lines import acknowledged, consumed, places
from tests.interop.lab.processes import call, until
from tests.process.cluster import LocalCluster

pytestmark = pytest.mark.interop

MESSAGES = 2000
KILL_AFTER = MESSAGES // 3
BODY_BYTES = 128
PAUSE_MS = 3


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


def test_a_producer_goes_to_the_other_group_while_one_is_down(lab: Lab, tmp_path: Path) -> None:
    """Two groups of one replica each. The one that dies costs the producer no error; what it holds waits for it."""
    cluster = LocalCluster(tmp_path, name="groups", replicas=1)
    port = int(cluster.namesrv.rpartition(":")[2]) + 30
    with cluster.path.open("a") as file:
        file.write(f'[[group]]\nname = "broker-b"\nreplicas = 1\nlistenPort = {port}\n')
    try:
        done = cluster.up()
        assert done.returncode == 0, done.stderr
        lab.name_server = cluster.namesrv
        for group in ("broker-a-1", "broker-b-1"):
            reply = call(cluster.node(group)["address"], RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": "JavaTopic"})
            assert reply is not None and reply.code == 0
        count = MESSAGES // 2
        victim = cluster.node("broker-a-1")["pid"]  # asked before: on a busy machine that takes longer than the sends
        producer = lab.client("Produce", "JavaTopic", "0", str(count), str(BODY_BYTES), str(PAUSE_MS * 2))
        until("a third is sent", lambda: len(acknowledged(producer)) >= count // 3, TIMEOUT_S, producer)
        os.kill(victim, signal.SIGKILL)
        assert len(acknowledged(producer)) < count, "the producer was done before the group was killed"
        assert producer.wait(TIMEOUT_S) == 0, producer.tail()
        sent = acknowledged(producer)
        assert sent == list(range(count))
        assert [line for line in producer.lines() if line.startswith("FAILED")] == []
        consumer = lab.client("Consume", "JavaTopic", "push", "group-push")

        def waiting() -> int:
            return len(set(sent) - consumed(consumer))

        until("it reads what group b has", lambda: waiting() < count // 2, TIMEOUT_S, consumer)
        assert waiting() > count // 10
        assert cluster.rmqha("start", "broker-a-1").returncode == 0
        late = lab.client("Consume", "JavaTopic", "push", "group-late")
        until("all is read", lambda: set(sent) <= consumed(late), TIMEOUT_S, late)
    finally:
        cluster.down()
