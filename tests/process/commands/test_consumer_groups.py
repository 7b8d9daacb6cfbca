"""`rmqha consumer` on a real group, by the name server's address alone: what it tells, changes and refuses."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest

from rmqha.client import sync
from rmqha.model.code import RequestCode
from tests.process.cluster import LocalCluster
from tests.process.remote import Remote
from tests.support.patience import HANG_MS, until


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    cluster = LocalCluster(tmp_path_factory.mktemp("consumers"), replicas=2)
    try:
        assert cluster.up().returncode == 0
        yield cluster
    finally:
        cluster.down()


def offsets(told: Any) -> dict[int, tuple[int | None, int]]:
    return {row["queueId"]: (row["committed"], row["end"]) for row in told["queues"]}


def changes(told: Any) -> dict[int, tuple[int | None, int]]:
    return {row["queueId"]: (row["before"], row["after"]) for row in told["queues"]}


def test_how_far_a_group_is(cluster: LocalCluster) -> None:
    remote = Remote(cluster, "Far")
    remote.send(10)
    remote.read("far", 4)
    lag = remote.json("consumer", "lag", "far")
    assert lag["lag"] == 6 and sum(end for _, end in offsets(lag).values()) == 10
    assert sum(committed or 0 for committed, _ in offsets(lag).values()) == 4
    # a queue that was never committed is not one at offset 0
    assert all(committed != 0 for committed, _ in offsets(lag).values())
    assert 0 < lag["oldestWaitsMs"] < 120_000
    shown = remote.run("consumer", "lag", "far").stdout
    assert shown.splitlines()[0].split()[:5] == ["TOPIC", "QUEUE", "COMMITTED", "END", "LAG"]
    assert re.search(r"\nfar: 6 messages wait, the oldest for \d+", shown)
    listed = {row["group"]: row for row in remote.json("consumer", "ls")["groups"]}
    assert listed["far"] == {"group": "far", "members": 0, "messageModel": None, "topics": ["Far"], "lag": 6}
    assert not {"TOOLS_CONSUMER", "CID_RMQ_SYS_TRANS"} & set(listed)
    # the directory's own way gives the same
    assert json.loads(cluster.rmqha("consumer", "lag", "far", "-o", "json").stdout)["lag"] == 6
    assert "no broker knows a consumer group 'nobody'" in remote.refused("consumer", "describe", "nobody")
    assert "neither subscribes to topic Other nor" in remote.refused("consumer", "lag", "far", "--topic", "Other")


def test_who_reads_and_what_is_paused(cluster: LocalCluster) -> None:
    remote = Remote(cluster, "Who", queues=1)
    remote.send(3)
    with remote.member("who"):
        until(lambda: len(remote.json("consumer", "ls")["groups"]) and remote.run(
            "consumer", "members", "who").stdout.startswith("CLIENT"))  # fmt: skip
        (member,) = remote.json("consumer", "members", "who")["members"]
        assert member["address"].startswith("127.0.0.1:") and "@" in member["clientId"]
        assert (member["language"], member["brokers"]) == ("PYTHON", ["broker-a"])
        told = remote.json("consumer", "describe", "who")
        assert (told["messageModel"], told["subscriptions"], told["paused"]) == ("CLUSTERING", {"Who": "*"}, {})
        assert (told["retriesWaiting"], told["deadLetters"]) == (0, 0)
        refused = remote.refused("consumer", "delete", "who", "--yes")
        assert "has members" in refused and "nothing was deleted" in refused
    with sync.PopConsumer(cluster.namesrv, "poppers", "Who", count=3) as poppers:
        popped = [poppers.receive(timeout_ms=HANG_MS) for _ in range(3)]
        assert popped[0] is not None
        poppers.ack(popped[0])
        assert remote.json("consumer", "describe", "poppers")["poppedInFlight"] == {"Who": 2}
        assert "2 popped from Who, not acknowledged yet\n" in remote.run("consumer", "describe", "poppers").stdout
    settings = told["settings"]["broker-a"] | {"consumeEnable": False}
    remote.admin(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, json.dumps(settings).encode())
    told = remote.json("consumer", "describe", "who")
    assert list(told["paused"]) == ["broker-a"]
    assert told["paused"]["broker-a"].endswith("(consumeEnable=false); rmqha consumer alter who --resume")
    assert "paused: broker-a: the group may not read here" in remote.run("consumer", "describe", "who").stdout


def test_a_group_that_nobody_is_connected_of_goes_on_from_elsewhere(cluster: LocalCluster) -> None:
    remote = Remote(cluster, "Back")
    remote.send(8)
    remote.read("back", 8)
    before = offsets(remote.json("consumer", "lag", "back"))
    ends = {queue: end for queue, (_, end) in before.items()}
    shown = remote.json("consumer", "reset", "back", "--to", "first", "--dry-run")
    assert changes(shown) == {queue: (end, 0) for queue, end in ends.items()}
    assert (shown["dryRun"], shown["changed"], shown["by"], shown["members"]) == (True, 0, {"broker-a": "broker"}, 0)
    assert offsets(remote.json("consumer", "lag", "back")) == before

    assert "8 again, 0 passed over" in remote.run("consumer", "reset", "back", "--to", "first", "--yes").stdout
    assert remote.json("consumer", "lag", "back")["lag"] == 8
    remote.read("back", 8)
    # stored from now on: nothing yet
    now = time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime())
    assert changes(remote.json("consumer", "reset", "back", "--to", now, "--dry-run")).keys() == ends.keys()
    done = remote.json("consumer", "reset", "back", "--to", "2020-01-01", "--yes")
    assert done["changed"] == len(ends) and {after for _, after in changes(done).values()} == {0}
    done = remote.json("consumer", "reset", "back", "--to", "2", "--queue", "broker-a:1", "--yes")
    assert changes(done) == {1: (0, 2)} and done["queues"][0]["passedOver"] == 2
    done = remote.json("consumer", "skip", "back", "--queue", "broker-a:1", "--count", "1", "--yes")
    assert changes(done) == {1: (2, 3)}
    assert remote.json("consumer", "skip", "back", "--yes")["changed"] == 2 - (ends[1] == 3)
    assert remote.json("consumer", "lag", "back")["lag"] == 0
    # there already: nothing to ask, nothing to change
    assert remote.json("consumer", "reset", "back", "--to", "last")["changed"] == 0


def test_a_connected_group_goes_back_at_once(cluster: LocalCluster) -> None:
    remote = Remote(cluster, "Online")
    remote.send(5)
    with remote.member("online") as lines:
        until(lambda: lines.read_text().count("\n") == 5)
        done = remote.json("consumer", "reset", "online", "--to", "first", "--yes")
        assert (done["members"], done["failed"]) == (1, {})
        until(lambda: lines.read_text().count("\n") >= 10)
        places = [json.loads(line) for line in lines.read_text().splitlines()]
        again = [(row["queueId"], row["queueOffset"]) for row in places[5:10]]
        assert sorted(again) == sorted((row["queueId"], row["queueOffset"]) for row in places[:5])


def test_a_broker_that_leaves_it_to_the_members(cluster: LocalCluster) -> None:
    """useServerSideResetOffset=false, as brokers before 5.0: members go to a time, an offset is committed for a group
    without any."""
    remote = Remote(cluster, "Old", queues=1)
    remote.send(4)
    remote.read("old", 4)
    for node in ("broker-a-1", "broker-a-2"):
        assert cluster.rmqha("config", "set", node, "useServerSideResetOffset=false").returncode == 0
    try:
        done = remote.json("consumer", "reset", "old", "--to", "1", "--yes")
        assert (done["by"], changes(done), done["changed"]) == ({"broker-a": "commit"}, {0: (4, 1)}, 1)
        assert offsets(remote.json("consumer", "lag", "old")) == {0: (1, 4)}
        with remote.member("old") as lines:
            until(lambda: lines.read_text().count("\n") == 3)
            refused = remote.refused("consumer", "reset", "old", "--to", "2", "--yes")
            assert "give first, last or a time, or stop the members" in refused
            done = remote.json("consumer", "reset", "old", "--to", "first", "--yes")
            assert (done["by"], done["changed"]) == ({"broker-a": "members"}, 1)
            until(lambda: lines.read_text().count("\n") == 7)
    finally:
        for node in ("broker-a-1", "broker-a-2"):
            cluster.rmqha("config", "set", node, "useServerSideResetOffset=true")


def test_what_is_unclear_is_refused_and_changes_nothing(cluster: LocalCluster) -> None:
    remote = Remote(cluster, "Clear")
    other = Remote(cluster, "Clear2", queues=1)
    for each in (remote, other):
        each.send(4)
        each.read("clear", 4)
    before = offsets(remote.json("consumer", "lag", "clear", "--topic", "Clear"))
    for words, sentence in (
        ("reset clear --to first", "reads Clear, Clear2: say which with --topic"),
        ("reset clear --to 1 --topic Clear", "a number fits only one: say which with --queue"),
        ("reset clear --to 99 --topic Clear2", "offset 99 is not in broker-a:0, which holds 0 to 4"),
        ("reset clear --to 1795478269793 --topic Clear2", "For a time write it as"),
        ("reset clear --to 2999-01-01 --topic Clear", "is to come; for the end of each queue say last"),
        ("reset clear --to soon", "must be first, last, a time"),
        ("reset clear --to first --topic Clear --queue broker-a", "must be written GROUP:N"),
        ("reset clear --to first --topic Clear --queue broker-a:7", "no queue broker-a:7 of the topic"),
        ("skip clear --count 1 --topic Clear", "say which with --queue"),
        ("delete TOOLS_CONSUMER --yes", "TOOLS_CONSUMER is the servers' own; it stays"),
    ):
        assert sentence in remote.refused("consumer", *words.split())
    # a question that is not answered with yes
    done = remote.run("consumer", "reset", "clear", "--to", "first", "--topic", "Clear")
    assert done.returncode != 0 and "change the offsets of clear?" in done.stderr
    assert offsets(remote.json("consumer", "lag", "clear", "--topic", "Clear")) == before


def test_a_group_is_paused_and_reads_on(cluster: LocalCluster) -> None:
    remote = Remote(cluster, "Halt", queues=1)
    remote.send(2)
    remote.read("halt", 1)
    shown = remote.run("consumer", "alter", "halt", "--pause", "--dry-run").stdout
    assert shown.splitlines()[1].split() == ["broker-a", "consumeEnable", "true", "false"]
    assert remote.json("consumer", "describe", "halt")["paused"] == {}, "a dry run changes nothing"
    made = remote.json("consumer", "alter", "halt", "--pause", "--max-retries", "3")
    assert made["changed"] == ["broker-a"]
    assert made["brokers"][0]["before"] == {"consumeEnable": True, "retryMaxTimes": 16}
    with sync.Consumer(cluster.namesrv, "halt", "Halt") as consumer:
        until(lambda: "answered 16" in consumer.statistics()["last_error"])
        assert remote.run("consumer", "alter", "halt", "--resume").stdout.endswith("halt: changed in broker-a\n")
        message = consumer.receive(timeout_ms=HANG_MS)
        assert message is not None and message.queue_offset == 1, "it goes on where it stood"
    assert remote.run("consumer", "alter", "halt", "--resume").stdout == "halt: is so already\n"
    settings = remote.json("consumer", "describe", "halt")["settings"]["broker-a"]
    assert (settings["consumeEnable"], settings["retryMaxTimes"]) == (True, 3), "what is not given stays"


def test_a_group_is_made_before_its_first_member(cluster: LocalCluster) -> None:
    remote = Remote(cluster, "Made")
    assert remote.json("consumer", "create", "made", "--max-retries", "5", "--no-broadcast")["changed"] == ["broker-a"]
    again = remote.run("consumer", "create", "made", "--max-retries", "7").stdout
    assert again == "made: exists already and stays as it is; see rmqha consumer alter\n"
    settings = remote.json("consumer", "describe", "made")["settings"]["broker-a"]
    assert (settings["retryMaxTimes"], settings["consumeBroadcastEnable"]) == (5, False)
    for words, sentence in (
        ("alter made", "nothing to change: give --pause"),
        ("alter nobody --pause", "no broker knows a consumer group 'nobody'; see rmqha consumer ls"),
        ("alter made --pause --broker other", "there is no broker group other; the name servers know broker-a"),
        ("alter TOOLS_CONSUMER --pause", "TOOLS_CONSUMER is the servers' own"),
        ("create TOOLS_CONSUMER", "TOOLS_CONSUMER is the servers' own"),
        ("create a.b", "group 'a.b' must consist of letters"),
    ):
        assert sentence in remote.refused("consumer", *words.split())


def test_a_group_is_deleted_with_its_offsets(cluster: LocalCluster) -> None:
    remote = Remote(cluster, "Gone")
    remote.send(4)
    remote.read("gone", 4)
    assert remote.json("consumer", "delete", "gone", "--yes") == {"group": "gone", "brokers": ["broker-a"]}
    assert "gone" not in {row["group"] for row in remote.json("consumer", "ls")["groups"]}
    assert "no broker knows" in remote.refused("consumer", "lag", "gone")
    remote.read("gone", 4)


def test_a_watch_shows_each_look(cluster: LocalCluster) -> None:
    remote = Remote(cluster, "Watch", queues=1)
    remote.send(2)
    remote.read("watch", 1)
    command = cluster.command("consumer", "lag", "watch", "-w", "--interval", "0.2", "-o", "json")
    with subprocess.Popen([*command, "--namesrv", cluster.namesrv], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["lag"] == 1
        remote.send(3)
        until(lambda: json.loads(process.stdout.readline())["lag"] == 4)  # type: ignore[union-attr]
        process.terminate()
