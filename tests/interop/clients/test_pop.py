"""Apache's push consumers whose queues the broker divides: they pop and acknowledge, through the death of a master."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.interop.lab.group import TIMEOUT_S
from tests.interop.lab.java import Java
from tests.interop.lab.lab import Lab
from tests.interop.lab.lines import acknowledged, tries
from tests.interop.lab.processes import Process, until
from tests.process.cluster import LocalCluster

pytestmark = pytest.mark.interop

BODY_BYTES = "64"
FIRST = 1_000_000
"""Number of the messages that only show that consumers work."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """For all tests; each has a topic and a group of its own."""
    found = LocalCluster(tmp_path_factory.mktemp("pops"), name="pops")
    try:
        done = found.up()
        assert done.returncode == 0, done.stderr
        yield found
    finally:
        found.down()


@pytest.fixture(scope="module")
def whole_lab(java: Java, cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    found = Lab(java, tmp_path_factory.mktemp("lab"))
    found.name_server = cluster.namesrv
    yield found
    found.close()


@pytest.fixture
def lab(whole_lab: Lab) -> Iterator[Lab]:
    """Clients end with their test."""
    yield whole_lab
    whole_lab.end_clients()


def made(lab: Lab, topic: str) -> None:
    """A topic with a group that pops."""
    where = ("-n", lab.name_server, "-c", "pops")
    for command, *arguments in (
        ("updateTopic", "-t", topic, "-r", "4", "-w", "4"),
        ("updateSubGroup", "-g", f"group-{topic}"),
        ("setConsumeMode", "-t", topic, "-g", f"group-{topic}", "-m", "POP", "-q", "0"),
    ):
        code, _, errors = lab.mqadmin(command, *where, *arguments)
        assert code == 0, (command, errors)


def work(lab: Lab, topic: str, kind: str = "pop", failures: str = "0") -> Process:
    return lab.client("Work", topic, kind, f"group-{topic}", failures, "16", "tag:*")


def pulled(*consumers: Process) -> list[str]:
    return [line for consumer in consumers for line in consumer.lines() if line.startswith("PULLED ")]


def test_each_message_is_consumed_once_by_one_of_two(lab: Lab) -> None:
    made(lab, "Popped")
    consumers = [work(lab, "Popped"), work(lab, "Popped")]
    drip = lab.client("Produce", "Popped", str(FIRST), "20000", BODY_BYTES, "10")
    # each client pops from all queues, once its JVM has come so far
    until("both get some", lambda: all(tries(consumer) for consumer in consumers), TIMEOUT_S, drip, *consumers)
    drip.kill()
    producer = lab.client("Produce", "Popped", "0", "300", BODY_BYTES, "5")
    assert producer.wait(TIMEOUT_S) == 0, producer.tail()
    sent = set(acknowledged(producer))
    until("all are consumed", lambda: {item.number for item in tries(*consumers)} >= sent, TIMEOUT_S, *consumers)
    assert len(sent) == 300
    assert set(Counter(item.number for item in tries(*consumers)).values()) == {1}


def test_what_fails_comes_again(lab: Lab) -> None:
    made(lab, "Failing")
    consumer = work(lab, "Failing", failures="1")
    producer = lab.client("Produce", "Failing", "0", "5", BODY_BYTES, "5")
    assert producer.wait(TIMEOUT_S) == 0, producer.tail()

    def twice() -> bool:
        found = Counter(item.number for item in tries(consumer))
        return len(found) == 5 and set(found.values()) == {2}

    until("each is tried twice", twice, TIMEOUT_S, consumer)
    assert {item.reconsume_times for item in tries(consumer)} == {0, 1}


def test_nothing_is_missing_when_the_master_dies(lab: Lab, cluster: LocalCluster) -> None:
    """Last: two replicas are left."""
    made(lab, "Dying")
    consumers = [work(lab, "Dying"), work(lab, "Dying")]
    producer = lab.client("Produce", "Dying", "0", "1500", BODY_BYTES, "4")
    until("consumers work", lambda: len(tries(*consumers)) > 300, TIMEOUT_S, producer, *consumers)
    os.kill(cluster.node(cluster.master())["pid"], signal.SIGKILL)
    assert producer.wait(TIMEOUT_S) == 0, producer.tail()
    sent = set(acknowledged(producer))
    until("all are consumed", lambda: {item.number for item in tries(*consumers)} >= sent, TIMEOUT_S, *consumers)
    assert len(sent) > 1000
    assert not pulled(*consumers), "the next master says too that they pop"
