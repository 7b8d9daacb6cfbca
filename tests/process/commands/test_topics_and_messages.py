"""`rmqha topic`, `message`, `dlq`, `send` and `receive` on a real group, by the name server's address alone."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from rmqha.client import Consumer
from tests.process.cluster import LocalCluster
from tests.process.remote import Remote
from tests.support.patience import HANG_S, until


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
        (("create", "Shape", "--queues", "2"), "exists in broker-a with 4 queues to read and 4 to write, so nothing"),
    ):
        assert sentence in remote.refused("topic", *wrong)
    assert remote.json("topic", "create", "Shape")["existing"] == {"broker-a": after | {"permission": "read"}}
    assert remote.run("topic", "create", "Shape").stdout == (
        "Shape: exists already in broker-a and stays as it is; see rmqha topic alter\n"
    )
    # messages would become unreadable: asked, and nothing is done without an answer
    done = remote.run("topic", "alter", "Shape", "--queues", "1")
    assert done.returncode != 0 and "messages of Shape are in queues that nobody could read" in done.stderr
    assert remote.json("topic", "describe", "Shape")["groups"][0]["readQueues"] == 4
    fewer = remote.json("topic", "alter", "Shape", "--queues", "1", "--yes")
    assert fewer["changed"] == ["broker-a"] and sum(fewer["groups"][0]["unread"].values()) > 0


def test_a_message_is_found_by_all_that_is_known_of_it(cluster: LocalCluster) -> None:
    remote = Remote(cluster, "Find", queues=2)
    words = ("send", "--topic", "Find", "--key", "k1", "--key", "k2", "--tag", "A", "--property", "who=me")
    began = time.time()
    assert remote.run(*words, "one error").returncode == 0
    assert remote.run("send", "--topic", "Find", "--key", "k2", "two").returncode == 0
    until(lambda: remote.run("message", "find", "--topic", "Find", "--key", "k2").stdout.count("\n") == 2)
    found = json.loads(remote.run("message", "find", "--topic", "Find", "--key", "k1", "-o", "json").stdout)
    assert (found["body"], found["keys"], found["tags"]) == ("one error", "k1 k2", "A")
    assert found["properties"]["who"] == "me"
    for arguments in ((found["offsetMsgId"],), (found["msgId"],), (found["msgId"], "--topic", "Find")):
        assert json.loads(remote.run("message", "get", *arguments, "-o", "json").stdout) == found
    shown = remote.run("message", "get", found["msgId"]).stdout
    assert "\nproperty who me\n" in shown and shown.endswith("\n\none error\n")
    remote.run("message", "get", found["msgId"], "--format", r"%q|%k|%v\0")
    assert remote.raw == f"broker-a:{found['queueId']}|k1 k2|one error\0".encode()

    since = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(began - 1))
    by_time = remote.run("message", "find", "--topic", "Find", "--since", since, "--format", "%v").stdout
    assert by_time == "one error\ntwo\n"
    assert remote.run("message", "find", "--topic", "Find", "--grep", "err.r", "--format", "%v").stdout == "one error\n"
    assert remote.run("message", "find", "--topic", "Find", "--grep", "^me$", "--format", "%v").stdout == "one error\n"
    nothing = remote.run("message", "find", "--topic", "Find", "--until", since)
    assert (nothing.returncode, nothing.stdout, nothing.stderr) == (1, "", "rmqha: no message of Find matches\n")
    limited = remote.run("message", "find", "--topic", "Find", "--since", since, "--limit", "1")
    assert limited.stdout.count("\n") == 1 and "there are more than 1" in limited.stderr
    for wrong, sentence in (
        (("find", "--topic", "Find"), "say what to find"),
        (("find", "--topic", "Find", "--grep", "("), "is no pattern"),
        (("find", "--topic", "Nowhere", "--key", "k"), "know no topic 'Nowhere'"),
        (("get", "F" * 32), "no message with id"),
        (("get", "F" * 32, "--topic", "Nowhere"), "know no topic 'Nowhere'"),
        (("track", "nonsense"), "no message with id nonsense"),
    ):
        assert sentence in remote.refused("message", *wrong)


def test_who_has_read_a_message_and_a_copy_of_it(cluster: LocalCluster) -> None:
    remote = Remote(cluster, "Track", queues=1)
    assert remote.run("send", "--topic", "Track", "--key", "k", "--property", "n=1", "a", "b", "c").returncode == 0
    remote.read("track-all", 3)
    remote.read("track-one", 1)
    lines = remote.run("receive", "--topic", "Track", "--max", "3", "--format", "%i %v").stdout.splitlines()
    message_id, body = lines[2].split()
    told = remote.json("message", "track", message_id, "--topic", "Track")
    states = {row["group"]: (row["state"], row["ahead"]) for row in told["groups"]}
    assert states == {"track-all": ("read", 0), "track-one": ("waiting", 1)}
    assert told["place"] == "broker-a:0@2"
    copy = remote.json("message", "resend", message_id, "--topic", "Track", "--yes")
    assert copy["copyOf"] == message_id != copy["msgId"]
    line = remote.run(
        "receive", "--topic", "Track", "--queue", "broker-a:0", "--offset", "3", "--max", "1", "--format", "%i %k %v %h"
    ).stdout
    assert line.startswith(f"{copy['msgId']} k {body} ") and json.loads(line.split(" ", 3)[3])["n"] == "1"


async def bury(namesrv: str, group: str, topic: str, count: int) -> None:
    async with Consumer(namesrv, group, topic) as consumer:
        with trio.fail_after(HANG_S):
            for _ in range(count):
                await consumer.retry(await consumer.receive(), delay_level=-1)


def test_dead_letters_go_back_to_their_group_alone(cluster: LocalCluster, tmp_path: Path) -> None:
    remote = Remote(cluster, "Dead", queues=1)
    remote.send(3)
    trio.run(bury, cluster.namesrv, "grave", "Dead", 3)
    until(lambda: [row["dead"] for row in remote.json("dlq", "ls") if row["group"] == "grave"] == [3])
    assert remote.run("dlq", "ls", "grave").stdout.count("\n") == 3
    assert remote.json("consumer", "describe", "grave")["deadLetters"] == 3
    path = tmp_path / "dead.jsonl"
    assert remote.json("dlq", "export", "grave", str(path)) == {"group": "grave", "file": str(path), "count": 3}
    assert sorted(json.loads(line)["body"] for line in path.read_text().splitlines()) == ["0", "1", "2"]
    assert "exists; say --force" in remote.refused("dlq", "export", "grave", str(path))
    assert remote.run("dlq", "export", "grave", "-").stdout == path.read_text()

    assert remote.json("dlq", "resend", "grave", "--dry-run")["chosen"] == 3
    sent = remote.run("dlq", "resend", "grave", "--limit", "1", "--yes", "-o", "json")
    assert (json.loads(sent.stdout)["sent"], sent.stderr) == (1, "sending 1 dead letter to grave\n")
    assert [row["notSentAgain"] for row in remote.json("dlq", "ls") if row["group"] == "grave"] == [2]
    sent = remote.run("dlq", "resend", "grave", "--yes")
    assert (sent.stdout, sent.stderr) == ("2 of 2 dead letters sent to grave\n", "sending 2 dead letters to grave\n")
    # nothing is sent twice unless it is asked for
    assert remote.json("dlq", "resend", "grave", "--yes") == {
        "group": "grave", "dryRun": False, "dead": 3, "chosen": 0, "sent": 0,
    }  # fmt: skip
    assert remote.json("consumer", "describe", "grave")["retriesWaiting"] == 3
    line = ("receive", "--topic", "Dead", "--group", "grave", "--max", "3", "--idle", "20", "--format", "%t %v")
    assert sorted(remote.run(*line).stdout.splitlines()) == ["Dead 0", "Dead 1", "Dead 2"]
    # nobody else has got a copy
    assert remote.json("topic", "describe", "Dead")["groups"][0]["queues"][0]["maxOffset"] == 3
    tracked = remote.json("message", "track", json.loads(path.read_text().splitlines()[0])["msgId"], "--topic", "Dead")
    assert [(row["group"], row["state"]) for row in tracked["groups"]] == [("grave", "dead letter")]
    assert "has no dead letters" in remote.refused("dlq", "ls", "nobody")


def test_a_message_that_is_delayed_comes_later(cluster: LocalCluster) -> None:
    remote = Remote(cluster, "Later", queues=1)
    since = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime())
    began = time.monotonic()
    assert remote.run("send", "--topic", "Later", "--delay", "1s", "x").returncode == 0
    assert remote.run("receive", "--topic", "Later", "--since", since, "--max", "1", "--idle", "20").stdout == "x\n"
    assert time.monotonic() - began >= 1
    began = time.monotonic()
    assert remote.run("send", "--topic", "Later", "--delay", "3s", "no level").returncode == 0
    received = remote.run("receive", "--topic", "Later", "--since", since, "--max", "2", "--idle", "20").stdout
    assert received == "x\nno level\n"
    assert time.monotonic() - began >= 3
    refused = remote.run("send", "--topic", "Later", "--delay", "100h", "x")
    assert refused.returncode == 1 and "max delay" in refused.stderr


@pytest.mark.parametrize("node", ["ns-1", "broker-a-1", "broker-a-2"])
def test_the_log_of_a_node_is_fetched_from_it(cluster: LocalCluster, node: str) -> None:
    remote = Remote(cluster, "Logged")
    # a name server goes by its address elsewhere
    shown = remote.run("logs", cluster.namesrv if node == "ns-1" else node, "-n", "20")
    assert (shown.returncode, shown.stderr) == (0, ""), shown
    lines = shown.stdout.splitlines()
    here = cluster.rmqha("logs", node, "-n", "100000").stdout.splitlines()
    assert len(lines) == min(20, len(here)) and set(lines) <= set(here)
    assert "no audit log" in remote.refused("logs", cluster.namesrv, "--audit", code=1)
    assert "there is no node" in remote.refused("logs", "broker-z-1")
