"""One store, opened in turn by our broker and by Apache's: each serves what the other wrote, and goes on from it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rmqha.client.consumers.message import decode_messages
from rmqha.model.code import RequestCode
from rmqha.wire.command import Command
from tests.golden.reader import GOLDEN, manifest, unpack
from tests.interop.lab.group import TIMEOUT_S, is_master
from tests.interop.lab.lab import Lab, Node
from tests.interop.lab.lines import acknowledged, consumed, digests, places
from tests.interop.lab.log_rows import check_rows, of_log
from tests.interop.lab.processes import Process, call, calls, until

pytestmark = pytest.mark.interop

TOPIC = "StoreTopic"
BODY_BYTES = 4000
"""The Java client compresses longer ones."""
PART = 1200
"""Messages per owner of the store: more than one CommitLog file of 4 MiB."""


def produce(lab: Lab, first: int) -> Process:
    """A Java producer's PART messages, all acknowledged."""
    producer = lab.client("Produce", TOPIC, str(first), str(PART), str(BODY_BYTES), "0")
    assert producer.wait(TIMEOUT_S) == 0, producer.tail()
    assert acknowledged(producer) == list(range(first, first + PART))
    return producer


def consume(lab: Lab, topic: str, expected: int) -> Process:
    """A Java consumer of a new group, once it has got so many messages."""
    consumer = lab.client("Consume", topic, "pull", f"group-{topic}-{expected}")
    until(f"{expected} of {topic} are here", lambda: len(digests(consumer)) >= expected, TIMEOUT_S, consumer)
    consumer.kill()
    return consumer


def found_by_keys(node: Node, *keys: str, index_type: str = "K") -> list[set[int]]:
    """Numbers of the messages that the broker gives for each key."""
    ext = {"topic": TOPIC, "maxNum": "64", "beginTimestamp": "0", "endTimestamp": str(2**63 - 1)}
    ext["indexType"] = index_type
    asked = [Command(RequestCode.QUERY_MESSAGE, ext | {"key": key}) for key in keys]
    found = [
        decode_messages("broker-a", reply.body) if reply.code == 0 else [] for reply in calls(node.address, *asked)
    ]
    return [{int(message.properties["n"]) for message in messages} for messages in found]


def check_index(node: Node, numbers: range) -> None:
    """Each message is found by its key, and its tags are in the index too."""
    last = numbers[-1]
    until(
        "the index has the last message",
        lambda: found_by_keys(node, f"key{last}") == [{last}],
        TIMEOUT_S,
        node.running,
    )
    found = found_by_keys(node, *(f"key{number}" for number in numbers))
    missing = [number for number, given in zip(numbers, found, strict=True) if given != {number}]
    assert not missing, f"{node.name} does not find {missing[:20]} of {len(numbers)} keys"
    assert last in found_by_keys(node, f"tag{last % 3}", index_type="T")[0]


QUEUE = {"consumerGroup": f"group-{TOPIC}-{PART}", "topic": TOPIC, "queueId": "0"}
"""Of the first owner's consumer: each owner knows its group."""


def commit_offset(node: Node, offset: int) -> None:
    reply = call(node.address, RequestCode.UPDATE_CONSUMER_OFFSET, QUEUE | {"commitOffset": str(offset)})
    assert reply is not None and reply.code == 0, reply


def committed_offset(node: Node) -> int:
    reply = call(node.address, RequestCode.QUERY_CONSUMER_OFFSET, QUEUE)
    assert reply is not None and reply.code == 0, reply
    return int(reply.ext["offset"])


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_ours_then_apaches_then_ours(lab: Lab, end: str) -> None:
    """`end`: how each owner leaves the store to the next. Messages are found by key too; but after a kill Apache's
    drops index files and makes only the newest records' entries anew, so that it is asked for its own ones."""
    lab.start_our_name_server()
    sizes = {"maxIndexNum": "2000"}  # several index files
    ours = lab.our_broker("ours", totalReplicas="1", **sizes)
    apaches = lab.java_broker("apaches", storePathRootDir=str(ours.store), **sizes)
    sent: list[Process] = []
    for owner, node in enumerate((ours, apaches, ours)):
        lab.run(node)
        is_master(lab, node)
        if owner and end == "stop":
            assert committed_offset(node) == owner, f"{node.name} has not the offset that the owner before it had"
        sent.append(produce(lab, owner * PART))
        consumer = consume(lab, TOPIC, (owner + 1) * PART)
        assert consumed(consumer) == set(range((owner + 1) * PART))
        for producer in sent:
            assert places(producer).items() <= places(consumer).items()
        assert check_rows(consumer, ours.store, TOPIC) == (owner + 1) * PART, "of a live store"
        whole = node is ours or end == "stop"
        commit_offset(node, owner + 1)
        check_index(node, range(0 if whole else owner * PART, (owner + 1) * PART))
        if end == "kill":
            node.running.kill()
        else:
            assert node.running.stop() in (0, 143)  # 143: how a JVM ends by SIGTERM
    assert len(list((ours.store / "commitlog").iterdir())) > 3


BATCH_TOPIC = "BatchTopic"


def test_batches_of_a_batch_topic_pass_between_ours_and_apaches(lab: Lab) -> None:
    """queue.type=BatchCQ: a batch is one record, its messages have offsets of their own; each owner serves all of them
    and goes on behind them."""
    lab.start_our_name_server()
    keys = {"totalReplicas": "1", "mapperFileSizeBatchConsumeQueue": str(46 * 100)}
    ours = lab.our_broker("ours", **keys)
    apaches = lab.java_broker("apaches", storePathRootDir=str(ours.store), **keys)
    count, sent = 500, list[Process]()
    for owner, node in enumerate((ours, apaches, ours, apaches)):
        lab.run(node)
        is_master(lab, node)
        if owner == 0:
            ext = {"topic": BATCH_TOPIC, "readQueueNums": "2", "writeQueueNums": "2", "perm": "6", "order": "false"}
            ext |= {"defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", "attributes": "+queue.type=BatchCQ"}
            reply = call(node.address, RequestCode.UPDATE_AND_CREATE_TOPIC, ext)
            assert reply is not None and reply.code == 0, reply
        producer = lab.client("Batches", BATCH_TOPIC, str(owner * count), str(count), "100")
        assert producer.wait(TIMEOUT_S) == 0, producer.tail()
        assert acknowledged(producer) == list(range(owner * count, (owner + 1) * count))
        sent.append(producer)
        consumer = consume(lab, BATCH_TOPIC, (owner + 1) * count)
        assert consumed(consumer) == set(range((owner + 1) * count))
        for producer in sent:
            assert places(producer).items() <= places(consumer).items()
        assert check_rows(consumer, ours.store, BATCH_TOPIC) == (owner + 1) * count
        if owner < 2:
            assert node.running.stop() in (0, 143)
        else:
            node.running.kill()
    assert len(list((ours.store / "batchconsumequeue" / BATCH_TOPIC / "0").iterdir())) > 1
    assert not (ours.store / "consumequeue" / BATCH_TOPIC).exists()


DELAYED = "SCHEDULE_TOPIC_XXXX"
EVERY_HOUR = ";".join(f"{hour:02}" for hour in range(24))
"""The worst case for a golden store: its old files must stay for fileReservedTime alone."""


def unpack_golden(archive: str, name: str, target: Path) -> None:
    """A store that a broker left, without its brokerIdentity: the controller at hand issues a new id."""
    unpack(archive, target.parent)
    (target.parent / name).rename(target)
    (target / "brokerIdentity").unlink()


@pytest.mark.parametrize("name", ["n0", "n0-killed"])
def test_a_real_brokers_store_is_served_to_java_clients(lab: Lab, name: str) -> None:
    facts = manifest()
    lab.start_our_name_server()
    node = lab.our_broker(
        "ours",
        totalReplicas="1",
        brokerClusterName=facts["cluster"],
        brokerName=facts["brokerName"],
        mappedFileSizeCommitLog=str(facts["config"]["mappedFileSizeCommitLog"]),
        mappedFileSizeConsumeQueue=str(facts["config"]["mappedFileSizeConsumeQueue"]),
        mapperFileSizeBatchConsumeQueue=str(facts["config"]["mapperFileSizeBatchConsumeQueue"]),
        maxMessageSize="500000",
        deleteWhen=EVERY_HOUR,
    )
    node.store.parent.mkdir()
    unpack_golden(f"store/{name}", name, node.store)
    lab.run(node)
    until("it is master", lambda: lab.route("GoldNormal").get("0") == node.address, TIMEOUT_S, node.running)
    for topic in ("GoldNormal", "GoldOrder", "GoldMixed", "GoldBatchCQ"):
        wanted = {
            (item["queueId"], item["queueOffset"]): item["bodySha256"]
            for item in facts["messages"]
            if item["topic"] == topic
        }
        consumer = consume(lab, topic, len(wanted))
        assert digests(consumer) == wanted
        check_rows(consumer, node.store, topic)


def test_a_store_that_our_release_left_is_served_by_apaches_broker(lab: Lab) -> None:
    release = json.loads((GOLDEN / "upgrade-0.1/manifest.json").read_text())
    lab.start_our_name_server()
    sizes = {"mappedFileSizeCommitLog": "65536", "mappedFileSizeConsumeQueue": "1000", "maxMessageSize": "16384"}
    sizes |= {"mapperFileSizeBatchConsumeQueue": "460", "maxHashSlotNum": "50", "maxIndexNum": "200"}
    node = lab.java_broker("apaches", brokerClusterName="drill", totalReplicas="1", **sizes)
    node.store.parent.mkdir()
    unpack_golden("upgrade-0.1/states", "broker-a-1/store", node.store)
    lab.run(node)
    until("it is master", lambda: lab.route("Orders").get("0") == node.address, TIMEOUT_S, node.running)
    # it delivers the delayed ones too
    count = sum(item["topic"] == "Orders" for item in release["messages"]) + len(of_log(node.store, DELAYED))
    assert check_rows(consume(lab, "Orders", count), node.store, "Orders") == count
