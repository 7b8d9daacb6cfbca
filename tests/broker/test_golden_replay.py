"""Requests that real clients sent to a real broker, answered by ours: the same replies after masking ids and times.

Left out are requests of a feature that this broker refuses: timer messages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from rmqha.broker.tables.topics import TopicConfig
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.message import decode_properties, encode_properties
from rmqha.store.log.record import Record, decode
from rmqha.wire import lenient_json
from rmqha.wire.command import Command
from tests.broker.support import Broker, FakeChannel, golden_frames, send_command

Exchange = tuple[dict[str, Any], Command, Command]


def exchanges(capture: str, server: str, *codes: int) -> list[Exchange]:
    """(facts, request, reply) on the connections to `server`, requests in order; a oneway one is its own reply."""
    requests: dict[tuple[str, str, int], tuple[dict[str, Any], Command]] = {}
    replies: dict[tuple[str, str, int], Command] = {}
    for facts, command in golden_frames(capture):
        key = (facts["scenario"], facts["conn"], command.opaque)
        if not facts["conn"].endswith(server):
            continue
        if command.is_response:
            replies[key] = command
        elif facts["direction"] == "c2s":
            requests[key] = (facts, command)
            if command.is_oneway:
                replies[key] = command
    return [
        (facts, request, replies[key])
        for key, (facts, request) in requests.items()
        if key in replies and request.code in codes
    ]


@pytest.fixture
def gold(make_broker: Callable[..., Broker]) -> Broker:
    """Named and set up as the broker of the capture."""
    broker = make_broker(
        broker_cluster_name="GoldCluster", broker_name="gold-a", default_topic_queue_nums=4, listen_port=20911
    ).start()
    broker.core.topics.put(TopicConfig("WireTopic", 4, 4))
    broker.core.topics.put(TopicConfig("WireOrder", 2, 2, order=True, attributes={"message.type": "FIFO"}))
    return broker


def masked(ext: dict[str, str]) -> dict[str, str]:
    """An offset message id ends with the position in the log, which our shorter log moves."""
    ids = [part[:16] for part in ext.get("msgId", "").split(",")]
    ext = {name: value for name, value in ext.items() if name != "recallHandle"}  # 370 is not served
    return {**ext, "msgId": ",".join(ids)} if "msgId" in ext else ext


def test_java_producer(gold: Broker) -> None:
    sends = exchanges("java-producer", "broker-n0", RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
    compared = 0
    for _, request, expected in sends:
        if request.is_oneway:
            gold.core.processor.received(FakeChannel(), [request])
            continue
        reply = gold.ask(request)
        assert (reply.code, reply.opaque, reply.flag) == (expected.code, expected.opaque, expected.flag)
        assert masked(reply.ext) == masked(expected.ext)
        if compared < 5:
            assert reply.ext == expected.ext  # nothing left out yet: even the positions are the same
        compared += 1
    assert compared == 14


def test_java_producer_membership(gold: Broker) -> None:
    channel = FakeChannel()
    for _, request, expected in exchanges("java-producer", "broker-n0", 34, 35):
        reply = gold.ask(request, channel)
        assert (reply.code, reply.ext, bytes(reply.body)) == (expected.code, expected.ext, b"")


def fill(gold: Broker) -> None:
    """As many messages as the capture's queues had."""
    for queue_id, count in enumerate((7, 4, 3, 2)):
        for number in range(count):
            tag = encode_properties({"TAGS": "TagA" if number % 2 == 0 else "Bat"}).decode()
            gold.ask(send_command("WireTopic", queue_id, i=tag))
    gold.ask(send_command("WireOrder"))


def test_java_consumers(gold: Broker) -> None:
    """Push, tag-filtered, orderly and lite-pull consumers: heartbeats, membership, offsets and pulls."""
    fill(gold)
    channels: dict[str, FakeChannel] = {}
    compared: dict[int, int] = {}
    for facts, request, expected in exchanges("java-consumer", "broker-n0", 34, 38, 14, 15, 11, 361, 35, 41, 42):
        if "RETRY" in request.ext.get("topic", ""):
            continue  # what a retry brings is not stored here
        channel = channels.setdefault(facts["conn"], FakeChannel())
        gold.core.processor.received(channel, [request])
        gold.run()
        replies = [item for item in channel.take() if item.is_response]
        if request.is_oneway:
            assert not replies
            continue
        if not replies:
            assert request.code in (11, 361)  # held: the capture's answer came with a later message
            gold.core.pull.closed(channel)
            continue
        (reply,) = replies
        if expected.code == ResponseCode.SUBSCRIPTION_NOT_LATEST:
            assert (reply.code, request.ext["expressionType"]) == (0, "TAG")  # ours makes nobody wait 30 s
            continue
        assert (reply.code, reply.remark or "") == (expected.code, expected.remark or ""), facts
        assert reply.ext == expected.ext, facts
        if request.code in (RequestCode.GET_CONSUMER_LIST_BY_GROUP, RequestCode.LOCK_BATCH_MQ):
            assert json.loads(bytes(reply.body)) == json.loads(bytes(expected.body))
        compared[request.code] = compared.get(request.code, 0) + 1
    assert compared.keys() == {34, 38, 14, 11, 361, 35, 41, 42}
    assert compared.pop(42) == 1 and min(compared.values()) >= 2


def test_orderly_consumer_asks_for_offsets_that_nobody_committed(gold: Broker) -> None:
    fill(gold)
    for facts, request, expected in exchanges("java-consumer", "broker-n0", 14):
        if facts["scenario"] == "java-orderly-json" and expected.code != 0:
            reply = gold.ask(request)
            assert (reply.code, reply.remark, reply.ext) == (expected.code, expected.remark, expected.ext)


def test_notices_go_to_every_member(gold: Broker) -> None:
    first, second = FakeChannel(), FakeChannel("127.0.0.1:50001")
    beats = [item[1] for item in exchanges("java-consumer", "broker-n0", 34) if b'"consumerDataSet":[{' in item[1].body]
    by_client = {json.loads(bytes(beat.body))["clientID"]: beat for beat in beats}
    gold.core.processor.received(first, [by_client["192.0.2.2@wc1"]])
    assert [item.code for item in first.take()] == [40, 0]
    gold.core.processor.received(second, [by_client["192.0.2.2@wc2"]])
    for channel in (first, second):
        notice = channel.take()[0]
        assert notice.is_oneway and (notice.code, notice.ext) == (40, {"consumerGroup": "GID_wire"})
    gold.core.processor.received(second, [by_client["192.0.2.2@wc2"]])
    assert [item.code for item in second.take()] == [0] and first.take() == []
    gold.core.processor.closed(second)
    assert [item.code for item in first.take()] == [40]


def test_records_have_the_same_bytes_but_for_hosts_and_times(gold: Broker) -> None:
    """The first five messages of the producer capture, stored by us, against what the consumer capture pulled."""
    for _, request, _ in exchanges("java-producer", "broker-n0", RequestCode.SEND_MESSAGE_V2)[:5]:
        assert gold.ask(request).code == 0
    theirs: dict[int, tuple[Record, bytes]] = {}
    for _, request, reply in exchanges("java-consumer", "broker-n0", 11):
        view = memoryview(bytes(reply.body))
        while view and reply.code == 0 and request.ext["topic"] == "WireTopic":
            record = decode(view)
            theirs.setdefault(record.phy_offset, (record, bytes(view[: record.size_bytes])))
            view = view[record.size_bytes :]
    compared = 0
    for offset, (record, data) in theirs.items():
        ours_view = gold.store.record_at(offset) if offset < gold.store.max_phy_offset else None
        if ours_view is None:
            continue
        ours = decode(ours_view)
        assert decode_properties(ours.properties) == decode_properties(record.properties)
        # everything before bornHost, and the store host to the topic; the order of the properties is free
        assert bytes(ours_view[:48]) == data[:48]
        assert bytes(ours_view[64 : -len(ours.properties)]) == data[64 : -len(record.properties)]
        compared += 1
    assert compared >= 4


def body_of(command: Command) -> Any:
    return lenient_json.loads(bytes(command.body)) if command.body else None


def test_mqadmin_tables(gold: Broker) -> None:
    for facts, request, expected in exchanges("mqadmin", "broker-n0", 17, 200, 351):
        if "RETRY" in request.ext.get("topic", ""):
            continue
        reply = gold.ask(request)
        assert (reply.code, reply.ext) == (expected.code, expected.ext), facts
        assert body_of(reply) == body_of(expected), facts


def test_mqadmin_offsets_and_stats(gold: Broker) -> None:
    fill(gold)
    for facts, request, expected in exchanges("mqadmin", "broker-n0", 30, 31, 11, 38):
        reply = gold.ask(request)
        if request.code == 38:
            assert reply.code == ResponseCode.SYSTEM_ERROR  # nobody is connected here
            continue
        assert (reply.code, reply.ext) == (expected.code, expected.ext), facts
    ((_, request, expected),) = exchanges("mqadmin", "broker-n0", 202)
    theirs, ours = body_of(expected)["offsetTable"], body_of(gold.ask(request))["offsetTable"]
    assert {key["queueId"]: (row["minOffset"], row["maxOffset"]) for key, row in ours.items()} == {
        key["queueId"]: (row["minOffset"], row["maxOffset"]) for key, row in theirs.items()
    }
    assert all(row["lastUpdateTimestamp"] > 0 for row in ours.values())


def committed(gold: Broker, group: str, *offsets: int) -> None:
    gold.core.groups.get_or_create(group)
    for queue_id, offset in enumerate(offsets):
        gold.core.offsets.commit(group, "WireTopic", queue_id, offset)


def test_mqadmin_consumer_groups(gold: Broker) -> None:
    """consumerProgress and queryMsg…: who consumes, how far, and that nobody is connected."""
    fill(gold)
    committed(gold, "GID_wiretag", 2, 2, 1, 1)
    committed(gold, "GID_wirelite", 7, 4, 3, 2)
    gold.core.offsets.commit("GID_wireord", "WireOrder", 0, 1)
    compared = 0
    for facts, request, expected in exchanges("mqadmin", "broker-n0", 203, 208):
        if request.ext["consumerGroup"] == "GID_wire":
            continue  # it has offsets in a retry topic that was never made here
        reply = gold.ask(request)
        assert (reply.code, reply.remark, reply.ext) == (expected.code, expected.remark, expected.ext), facts
        if request.code == RequestCode.GET_CONSUME_STATS:
            ours, theirs = body_of(reply)["offsetTable"], body_of(expected)["offsetTable"]
            keys = ("brokerOffset", "consumerOffset")
            assert {queue: [row[key] for key in keys] for queue, row in ours.items()} == {
                queue: [row[key] for key in keys] for queue, row in theirs.items()
            }
            assert all(
                row.keys() == theirs[queue].keys()
                and (row["lastTimestamp"] > 0) == (theirs[queue]["lastTimestamp"] > 0)
                for queue, row in ours.items()
            )
        compared += 1
    assert compared >= 6
    committed(gold, "GID_wire", 7, 4, 3, 2)
    for _, request, expected in exchanges("mqadmin", "broker-n0", 300):
        if request.ext["topic"] == "WireTopic" and body_of(expected)["groupList"]:
            assert body_of(gold.ask(request)) == body_of(expected)


def test_mqadmin_resets_and_deletes(gold: Broker) -> None:
    fill(gold)
    gold.ask(send_command("WireTopic", 2))  # the capture had one more by then
    committed(gold, "GID_wire", 7, 4, 3, 2)
    ((_, request, expected),) = exchanges("mqadmin", "broker-n0", 222)
    reply = gold.ask(request)
    assert (reply.code, reply.ext, body_of(reply)) == (expected.code, expected.ext, body_of(expected))
    ((_, request, expected),) = exchanges("mqadmin", "broker-n0", 215)
    reply = gold.ask(request)
    assert (reply.code, reply.ext, bytes(reply.body)) == (expected.code, expected.ext, bytes(expected.body))
    assert gold.core.topics.get("WireOrder") is None


def test_mqadmin_shapes(gold: Broker) -> None:
    """Where values are measurements, every field that mqadmin was given must be there, and be text where it was."""
    fill(gold)
    gold.ask(send_command("WireTopic", i="DELAY\x011\x02"))
    gold.run(1000)
    gold.join_slave(2)
    for _, request, expected in exchanges("mqadmin", "broker-n0", 28):
        ours, theirs = body_of(gold.ask(request))["table"], body_of(expected)["table"]
        assert {key for key in theirs.keys() - ours.keys() if "ommitLogDiskRatio_" not in key} == set()
        assert all(isinstance(value, str) for value in ours.values())
        assert re.sub(r":\d+", "", ours["putMessageDistributeTime"]) == re.sub(
            r":\d+", "", theirs["putMessageDistributeTime"]
        )
        assert ours["remainTransientStoreBufferNumbs"] == theirs["remainTransientStoreBufferNumbs"]
        assert ours["brokerActive"] == "true" and ours["brokerVersionDesc"] == theirs["brokerVersionDesc"]
    ((_, request, expected),) = exchanges("mqadmin", "broker-n0", 907)
    ours, theirs = body_of(gold.ask(request)), body_of(expected)
    assert ours.keys() == theirs.keys() and ours["master"] is True
    assert ours["haConnectionInfo"][0].keys() == theirs["haConnectionInfo"][0].keys()
    assert ours["haClientRuntimeInfo"].keys() >= theirs["haClientRuntimeInfo"].keys()
    ((_, request, expected),) = exchanges("mqadmin", "broker-n0", 1007)
    reply = gold.ask(request)
    ours, theirs = body_of(reply), body_of(expected)
    assert reply.ext == {"replicaId": "1"}, "ours: in the body a master of any id is 0"
    assert {**ours, "maxOffset": 0} == {**theirs, "maxOffset": 0}
    ((_, request, expected),) = exchanges("mqadmin", "broker-n0", 26)
    reply = gold.ask(request)
    assert json.loads(reply.ext["version"]).keys() == json.loads(expected.ext["version"]).keys()
    lines = bytes(reply.body).decode().splitlines()
    assert "brokerName=gold-a" in lines and lines == sorted(lines) and all("=" in line for line in lines)


def test_view_message(gold: Broker) -> None:
    for _, request, _ in exchanges("java-producer", "broker-n0", RequestCode.SEND_MESSAGE_V2)[:1]:
        gold.ask(request)
    ((_, request, expected),) = exchanges("mqadmin", "broker-n0", 33)
    reply = gold.ask(request)
    assert reply.code == 0 and len(reply.body) == len(expected.body)
    assert bytes(decode(memoryview(reply.body)).body) == bytes(decode(memoryview(expected.body)).body)
    for offset in ("1", "999999", "-1"):
        assert gold.ask(Command(33, {"offset": offset, "topic": "WireTopic"})).code == ResponseCode.SYSTEM_ERROR


def test_mqadmin_finds_messages_by_key_and_by_unique_key(gold: Broker) -> None:
    """Stored by us as the producer of the capture sent them, queried a moment after the capture stored them."""
    for _, request, _ in exchanges("java-producer", "broker-n0", RequestCode.SEND_MESSAGE_V2)[:5]:
        assert gold.ask(request).code == 0
    queries = exchanges("mqadmin", "broker-n0", RequestCode.QUERY_MESSAGE)
    for facts, request, expected in queries:
        request.ext["endTimestamp"] = str((1 << 63) - 1)  # our clock runs years ahead of the capture's
        reply = gold.ask(request)
        assert (reply.code, reply.remark, reply.flag, reply.opaque) == (0, expected.remark, expected.flag, 3), facts
        assert reply.ext.keys() == expected.ext.keys()
        ours, theirs = decode(memoryview(reply.body)), decode(memoryview(expected.body))
        assert len(reply.body) == ours.size_bytes == theirs.size_bytes, "one record and nothing else"
        assert decode_properties(ours.properties) == decode_properties(theirs.properties)
        for name in ("body", "topic", "queue_id", "queue_offset", "phy_offset", "sys_flag", "reconsume_times"):
            assert getattr(ours, name) == getattr(theirs, name), name
    assert {request.ext["indexType"] for _, request, _ in queries} == {"K", "U"}


def test_mqadmin_changes_a_key_while_the_broker_runs(gold: Broker) -> None:
    """The captured request names a key that only Apache's has: it is refused by name, with one of ours it is taken."""
    ((_, request, expected),) = exchanges("mqadmin", "broker-n0", RequestCode.UPDATE_BROKER_CONFIG)
    refused = gold.ask(request)
    assert refused.code == ResponseCode.SYSTEM_ERROR and "flushDelayOffsetInterval has no effect here" in (
        refused.remark or ""
    )
    known = Command(request.code, request.ext, b"fileReservedTime=9\n", flag=request.flag, opaque=request.opaque)
    reply = gold.ask(known)
    assert (reply.code, reply.remark, reply.ext, bytes(reply.body), reply.flag, reply.opaque) == (
        expected.code,
        expected.remark,
        expected.ext,
        bytes(expected.body),
        expected.flag,
        expected.opaque,
    )
    assert gold.core.config.file_reserved_time == 9


def test_java_consumer_sends_a_message_back(gold: Broker) -> None:
    """The push consumer's 36, and what it then pulls from its retry topic."""
    for _, request, _ in exchanges("java-producer", "broker-n0", RequestCode.SEND_MESSAGE_V2)[:1]:
        assert gold.ask(request).code == 0
    ((_, request, expected),) = exchanges("java-consumer", "broker-n0", RequestCode.CONSUMER_SEND_MSG_BACK)
    reply = gold.ask(request)
    assert (reply.code, reply.ext, reply.remark) == (expected.code, expected.ext, expected.remark)
    gold.run(1000)
    (view,) = gold.store.pull("%RETRY%GID_wire", 0, 0, 10, 1 << 20).records
    ours = decode(view)
    theirs = [
        decode(memoryview(bytes(answer.body)))
        for _, pull, answer in exchanges("java-consumer", "broker-n0", RequestCode.PULL_MESSAGE)
        if pull.ext["topic"] == "%RETRY%GID_wire" and answer.code == 0
    ]
    assert len(theirs) == 1
    assert decode_properties(ours.properties) == decode_properties(theirs[0].properties)
    assert bytes(ours.body) == bytes(theirs[0].body)
    for name in ("queue_id", "queue_offset", "flag", "sys_flag", "reconsume_times", "topic"):
        assert getattr(ours, name) == getattr(theirs[0], name), name
