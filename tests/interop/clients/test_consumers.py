"""Apache's push consumers that fail, wait, rebalance and consume in order, on a group of ours whose master dies."""

from __future__ import annotations

import os
import signal
from collections import defaultdict
from collections.abc import Iterator

import pytest

from tests.interop.lab.group import TIMEOUT_S
from tests.interop.lab.java import Java
from tests.interop.lab.lab import Lab
from tests.interop.lab.lines import acknowledged, consumed, places, tries
from tests.interop.lab.processes import Process, until
from tests.process.cluster import LocalCluster

pytestmark = pytest.mark.interop

BODY_BYTES = 64
ALL = "tag:*"
FIRST = 1_000_000
"""Number of the messages that only show that a consumer works."""
NEVER = "99"
"""More failures than a consumer has patience for."""


@pytest.fixture(scope="module")
def whole_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """For all tests; each has a topic and a group of its own."""
    found = LocalCluster(tmp_path_factory.mktemp("consumers"), name="consumers")
    try:
        done = found.up()
        assert done.returncode == 0, done.stderr
        yield found
    finally:
        found.down()


@pytest.fixture
def cluster(whole_cluster: LocalCluster) -> LocalCluster:
    """The test before may have killed the master."""
    for number in (1, 2, 3):
        done = whole_cluster.rmqha("start", f"broker-a-{number}")
        assert done.returncode == 0, done.stderr
    return whole_cluster


@pytest.fixture(scope="module")
def whole_lab(java: Java, whole_cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    found = Lab(java, tmp_path_factory.mktemp("lab"))
    found.name_server = whole_cluster.namesrv
    yield found
    found.close()


@pytest.fixture
def lab(whole_lab: Lab) -> Iterator[Lab]:
    """Clients end with their test."""
    yield whole_lab
    whole_lab.end_clients()


def produce(lab: Lab, topic: str, count: int, pause_ms: int = 0, delay: str = "0") -> Process:
    """`delay`: a level, or a time as "5000ms"."""
    return lab.client("Produce", topic, "0", str(count), str(BODY_BYTES), str(pause_ms), delay)


def work(lab: Lab, topic: str, kind: str, failures: str = "0", patience: int = 16, selector: str = ALL) -> Process:
    return lab.client("Work", topic, kind, f"group-{topic}", failures, str(patience), selector)


def make_topic(lab: Lab, topic: str) -> None:
    """A consumer that starts before its topic exists would see it at its next rebalance only."""
    arguments = ("-n", lab.name_server, "-c", "consumers", "-t", topic, "-r", "4", "-w", "4")
    code, _, errors = lab.mqadmin("updateTopic", *arguments)
    assert code == 0, errors


def working(lab: Lab, topic: str, kind: str, failures: str = "0") -> Process:
    """A consumer of a topic made for it that has got its first messages."""
    make_topic(lab, topic)
    consumer = work(lab, topic, kind, failures)
    first = lab.client("Produce", topic, str(FIRST), "4", str(BODY_BYTES), "0")
    until(f"{consumer.name} works", lambda: bool(tries(consumer)), TIMEOUT_S, consumer)
    assert first.wait(TIMEOUT_S) == 0, first.tail()
    return consumer


def kill_master(cluster: LocalCluster) -> None:
    os.kill(cluster.node(cluster.master())["pid"], signal.SIGKILL)


def test_order_is_kept_while_two_consumers_share_the_queues_and_the_master_dies(
    lab: Lab, cluster: LocalCluster
) -> None:
    count = 2000
    first = working(lab, "Ordered", "orderly")
    drip = lab.client("Produce", "Ordered", str(2 * FIRST), "20000", str(BODY_BYTES), "10")
    second = work(lab, "Ordered", "orderly")
    until("both have queues", lambda: len(tries(second)) > 10, TIMEOUT_S, drip, first, second)
    drip.kill()
    victim = cluster.node(cluster.master())["pid"]  # asked before: that may take longer than the sends
    producer = produce(lab, "Ordered", count, pause_ms=4)
    until("a third is sent", lambda: len(acknowledged(producer)) > count // 3, TIMEOUT_S, producer, first, second)
    os.kill(victim, signal.SIGKILL)
    assert len(acknowledged(producer)) < count, "the producer was done before the master was killed"
    assert producer.wait(TIMEOUT_S) == 0, producer.tail()
    sent = places(producer)
    assert len(sent) == count

    def missing() -> bool:
        return sent.keys() <= {(item.queue_id, item.queue_offset) for item in tries(first, second)}

    until("all are consumed", missing, TIMEOUT_S, first, second)
    seen: dict[int, list[int]] = defaultdict(list)
    for item in tries(first, second):
        assert sent.get((item.queue_id, item.queue_offset), item.number) == item.number
        # one that is delivered again comes after its place; what counts is who came first
        if item.queue_offset not in seen[item.queue_id]:
            seen[item.queue_id].append(item.queue_offset)
    assert {queue: offsets == sorted(offsets) for queue, offsets in seen.items()} == dict.fromkeys(seen, True)
    assert all(offsets == list(range(len(offsets))) for offsets in seen.values())


def test_what_fails_comes_again_though_the_master_dies(lab: Lab, cluster: LocalCluster) -> None:
    """Each message fails once; send-backs and delays are under way when the master is killed."""
    count = 800
    consumer = working(lab, "Retried", "concurrently", failures="1")
    producer = produce(lab, "Retried", count, pause_ms=20)
    until(
        "some have come again",
        lambda: sum(item.reconsume_times > 0 for item in tries(consumer)) > count // 10,
        TIMEOUT_S,
        producer,
        consumer,
    )
    kill_master(cluster)
    assert producer.wait(TIMEOUT_S) == 0, producer.tail()

    def done() -> bool:
        return {item.number for item in tries(consumer) if item.reconsume_times > 0} >= set(range(count))

    until("all have come again", done, TIMEOUT_S, consumer)
    assert {item.reconsume_times for item in tries(consumer)} == {0, 1}


@pytest.mark.parametrize("kind", ["concurrently", "orderly"])
def test_what_never_succeeds_is_found_among_the_dead_letters(lab: Lab, cluster: LocalCluster, kind: str) -> None:
    count, patience, topic = 60, 2, f"Dead-{kind}"
    consumer = work(lab, topic, kind, failures=NEVER, patience=patience)
    producer = produce(lab, topic, count)
    assert producer.wait(TIMEOUT_S) == 0, producer.tail()
    dead = lab.client("Consume", f"%DLQ%group-{topic}", "pull", f"undertaker-{kind}")
    until("all are dead", lambda: consumed(dead) == set(range(count)), TIMEOUT_S, consumer, dead)
    attempts: dict[int, list[int]] = defaultdict(list)
    for item in tries(consumer):
        attempts[item.number].append(item.reconsume_times)
    assert all(sorted(times) == list(range(patience + 1)) for times in attempts.values())


def test_delayed_messages_come_late_and_all_though_the_master_dies(lab: Lab, cluster: LocalCluster) -> None:
    """Each waits 5 s, by its level or by its time; the master is killed when some of both have come and some wait."""
    count = 1000
    delays = {"Delayed": "2", "Timed": "5000ms"}
    consumers = {topic: working(lab, topic, "concurrently") for topic in delays}
    producers = {topic: produce(lab, topic, count, pause_ms=12, delay=delay) for topic, delay in delays.items()}
    for topic, consumer in consumers.items():
        producer = producers[topic]
        until("some have come", lambda it=consumer: len(tries(it)) > count // 10, TIMEOUT_S, producer, consumer)  # type: ignore[misc]
    kill_master(cluster)
    expected = set(range(count))
    for topic, consumer in consumers.items():
        producer = producers[topic]
        assert producer.wait(TIMEOUT_S) == 0, producer.tail()
        until("all have come", lambda it=consumer: {item.number for item in tries(it)} >= expected, TIMEOUT_S, consumer)  # type: ignore[misc]
        assert min(item.age_ms for item in tries(consumer) if item.number < FIRST) >= 5000
