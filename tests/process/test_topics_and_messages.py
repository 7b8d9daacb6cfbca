"""`rmqha topic`, `message`, `dlq`, `send` and `receive` on a real group, by the name server's address alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.process.cluster import LocalCluster
from tests.process.remote import Remote


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    cluster = LocalCluster(tmp_path_factory.mktemp("messages"), replicas=2)
    try:
        assert cluster.up().returncode == 0
        yield cluster
    finally:
        cluster.down()


def test_a_topic_is_altered_and_keeps_the_rest(cluster: LocalCluster) -> None:
    remote = Remote(cluster, "Shape", queues=2)
    remote.send(6)
    assert "Shape" in remote.json("topic", "ls") and remote.json("topic", "ls") == remote.json("topic", "list")
    assert remote.json("topic", "describe", "Shape") == remote.json("describe", "topic", "Shape")
    words = ("topic", "alter", "Shape", "--queues", "4", "--attribute", "message.type=NORMAL")
    shown = remote.json(*words, "--dry-run")
    before = {"readQueues": 2, "writeQueues": 2, "permission": "both", "attributes": {}}
    after = before | {"readQueues": 4, "writeQueues": 4, "attributes": {"message.type": "NORMAL"}}
    assert shown["groups"] == [{"group": "broker-a", "before": before, "after": after, "unread": {}}]
    assert (shown["dryRun"], shown["changed"]) == (True, [])
    assert remote.json("topic", "describe", "Shape")["groups"][0]["readQueues"] == 2
    assert remote.json(*words)["changed"] == ["broker-a"]
    assert remote.json(*words)["changed"] == []
    assert remote.json("topic", "alter", "Shape", "--permission", "read")["changed"] == ["broker-a"]
    group = remote.json("topic", "describe", "Shape")["groups"][0]
    assert (group["readQueues"], group["writeQueues"], group["permission"]) == (4, 4, "read")
    for wrong, sentence in (
        (("alter", "Shape"), "nothing to change"),
        (("alter", "Shape", "--queues", "2", "--read-queues", "2"), "give it alone"),
        (("alter", "Shape", "--read-queues", "2"), "would take messages that nobody reads"),
        (("alter", "Shape", "--group", "broker-z", "--queues", "2"), "group broker-z does not hold topic Shape"),
        (("alter", "Nowhere", "--queues", "2"), "know no topic 'Nowhere'; see rmqha topic ls"),
        (("alter", "Shape", "--attribute", "x"), "must be KEY=VALUE"),
    ):
        assert sentence in remote.refused("topic", *wrong)
    # messages would become unreadable: asked, and nothing is done without an answer
    done = remote.run("topic", "alter", "Shape", "--queues", "1")
    assert done.returncode != 0 and "messages of Shape are in queues that nobody could read" in done.stderr
    assert remote.json("topic", "describe", "Shape")["groups"][0]["readQueues"] == 4
    fewer = remote.json("topic", "alter", "Shape", "--queues", "1", "--yes")
    assert fewer["changed"] == ["broker-a"] and sum(fewer["groups"][0]["unread"].values()) > 0
