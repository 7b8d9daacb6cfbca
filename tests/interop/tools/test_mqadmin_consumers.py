"""Apache's mqadmin about consumer groups, topics and settings, on a group of one of ours with real consumers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.lab.group import TIMEOUT_S
from tests.interop.lab.java import Java
from tests.interop.lab.lab import Lab
from tests.interop.lab.lines import consumed, tries
from tests.interop.lab.processes import Process, until
from tests.interop.tools.test_mqadmin import Admin, table
from tests.process.cluster import LocalCluster

pytestmark = pytest.mark.interop

TOPIC, GROUP = "ProgressTopic", "progress"
COUNT = 40


@pytest.fixture(scope="module")
def admin(java: Java, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Admin]:
    scratch: Path = tmp_path_factory.mktemp("mqadmin-consumers")
    cluster = LocalCluster(scratch, name="progress", replicas=1)
    lab = Lab(java, scratch)
    try:
        done = cluster.up()
        assert done.returncode == 0, done.stderr
        lab.name_server = cluster.namesrv
        yield Admin(lab, cluster)
    finally:
        lab.close()
        cluster.down()


@pytest.fixture(scope="module")
def consumer(admin: Admin) -> Process:
    """A push consumer that has got all COUNT messages and told the broker so."""
    admin.at_name_server("updateTopic", "-c", "progress", "-t", TOPIC, "-r", "4", "-w", "4")
    producer = admin.lab.client("Produce", TOPIC, "0", str(COUNT), "16", "0")
    assert producer.wait(TIMEOUT_S) == 0, producer.tail()
    found = admin.lab.client("Work", TOPIC, "concurrently", GROUP, "0", "16", "tag:tag0 || tag1 || tag2")
    until("all are consumed", lambda: len({item.number for item in tries(found)}) == COUNT, TIMEOUT_S, found)
    until("the offsets are committed", lambda: difference(admin) == 0, TIMEOUT_S, found)
    return found


def difference(admin: Admin) -> int:
    """Messages not yet committed; a group that has committed nothing at all has no rows, and a total of 0."""
    text = admin.at_name_server("consumerProgress", "-g", GROUP)
    if len(table(text, TOPIC)) < 4:
        return COUNT
    return int(re.findall(r"^Consume Diff Total: (-?\d+)$", text, re.M)[0])


def test_consumer_progress(admin: Admin, consumer: Process) -> None:
    text = admin.at_name_server("consumerProgress", "-g", GROUP)
    rows = table(text, TOPIC)
    assert [row[1:3] for row in rows] == [["broker-a", str(queue_id)] for queue_id in range(4)]
    assert sum(int(row[3]) for row in rows) == COUNT
    assert all(row[3] == row[4] and row[5] == "0" for row in rows)
    assert re.search(r"^Consume TPS: \d+\.\d\d$", text, re.M)
    (row,) = table(admin.at_name_server("consumerProgress"), GROUP)
    assert row[1:5] == ["1", "V5_4_0", "PUSH", "CLUSTERING"] and row[-1] == "0"


def test_consumer_connection(admin: Admin, consumer: Process) -> None:
    text = admin.at_name_server("consumerConnection", "-g", GROUP)
    assert re.search(r"^\S+@\S+\s+127\.0\.0\.1:\d+\s+JAVA\s+V5_4_0$", text, re.M), text
    assert re.search(rf"^{TOPIC}\s+tag0 \|\| tag1 \|\| tag2$", text, re.M), text
    for line in ("ConsumeType: CONSUME_PASSIVELY", "MessageModel: CLUSTERING", "CONSUME_FROM_FIRST_OFFSET"):
        assert line in text


def test_who_consumes(admin: Admin, consumer: Process) -> None:
    rows = table(admin.at_name_server("topicList", "-c"), "progress")
    assert ["progress", TOPIC, GROUP] in rows


def test_topic_status_and_queries_name_the_consumers(admin: Admin, consumer: Process) -> None:
    assert len(table(admin.at_name_server("topicStatus", "-t", TOPIC), "broker-a")) == 4
    text = admin.at_name_server("queryMsgByOffset", "-t", TOPIC, "-b", "broker-a", "-i", "0", "-o", "0")
    assert re.search(rf"^MessageTrack \[consumerGroup={GROUP}, trackType=CONSUMED, exceptionDesc=null\]$", text, re.M)


def test_reset_of_a_running_consumer(admin: Admin, consumer: Process) -> None:
    """It starts anew without a restart: told with its pull, it waits 10 s and then takes the offset."""
    before = len(tries(consumer))
    text = admin.at_name_server("resetOffsetByTime", "-g", GROUP, "-t", TOPIC, "-s", "0")
    assert sorted(row[1:] for row in table(text, "broker-a")) == [[str(queue_id), "0"] for queue_id in range(4)]
    until("all come again", lambda: len(tries(consumer)) >= before + COUNT, TIMEOUT_S, consumer)
    again = {item.number for item in tries(consumer)[before:]}
    assert again == set(range(COUNT))
    until("the offsets are committed", lambda: difference(admin) == 0, TIMEOUT_S, consumer)


def test_reset_of_a_group_that_is_not_connected(admin: Admin, consumer: Process) -> None:
    for pulls in range(2):
        found = admin.lab.client("Consume", TOPIC, "pull", "sleeper")
        until("all are here", lambda it=found: len(consumed(it)) == COUNT, TIMEOUT_S, found)  # type: ignore[misc]
        assert found.stop() != 0
        assert pulls == 0 or len(consumed(found)) == COUNT
        text = admin.at_name_server("resetOffsetByTime", "-g", "sleeper", "-t", TOPIC, "-s", "0")
        assert len(table(text, "broker-a")) == 4


def test_broker_config(admin: Admin) -> None:
    address = admin.master_address()
    before = admin.at_name_server("getBrokerConfig", "-b", address)
    assert re.search(r"^enablePropertyFilter\s+=\s+false$", before, re.M), before
    changed = admin.at_name_server("updateBrokerConfig", "-b", address, "-k", "enablePropertyFilter", "-v", "true")
    assert f"update broker config success, {address}" in changed
    after = admin.at_name_server("getBrokerConfig", "-b", address)
    assert re.search(r"^enablePropertyFilter\s+=\s+true$", after, re.M), after
    refused = ("updateBrokerConfig", "-b", address, "-k", "listenPort", "-v", "1234", "-n", admin.cluster.namesrv)
    _, text, errors = admin.lab.mqadmin(*refused)
    assert "listenPort: restart needed" in text + errors


def test_groups_are_made_and_deleted(admin: Admin) -> None:
    address = admin.master_address()
    made = admin.at_name_server("updateSubGroup", "-b", address, "-g", "MadeGroup", "-r", "3")
    assert "create subscription group to" in made and "retryMaxTimes=3" in made
    gone = admin.at_name_server("deleteSubGroup", "-b", address, "-g", "MadeGroup")
    assert "delete subscription group [MadeGroup] from broker" in gone and "success" in gone


def test_delete_topic(admin: Admin) -> None:
    admin.at_name_server("updateTopic", "-c", "progress", "-t", "Doomed", "-r", "1", "-w", "1")
    assert "Doomed" in admin.at_name_server("topicList").split()
    text = admin.at_name_server("deleteTopic", "-c", "progress", "-t", "Doomed")
    assert "delete topic [Doomed] from cluster [progress] success." in text
    assert "delete topic [Doomed] from NameServer success." in text
    assert "Doomed" not in admin.at_name_server("topicList").split()
