from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqha.broker.requests.request import FORWARDED, UNWRITTEN, record_host
from rmqha.broker.requests.send import SendProcessor
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.message import decode_properties, encode_properties
from rmqha.store.log.record import decode, verify
from rmqha.wire.command import FLAG_ONEWAY, Command
from tests.broker.support import Broker, FakeChannel, send_command


def stored(broker: Broker, topic: str = "T", queue_id: int = 0) -> list[Any]:
    result = broker.store.pull(topic, queue_id, 0, 100, 1 << 20)
    return [decode(record) for record in result.records]


def inner(body: bytes, properties: bytes = b"", flag: int = 0) -> bytes:
    size = 22 + len(body) + len(properties)
    head = struct.pack(">iiiii", size, 0, 0, flag, len(body))
    return head + body + struct.pack(">h", len(properties)) + properties


def test_reply_and_record(broker: Broker) -> None:
    properties = encode_properties({"KEYS": "k", "UNIQ_KEY": "ID", "TAGS": "a"}).decode()
    first = broker.ask(send_command(queue_id=2, body=b"one", i=properties))
    second = broker.ask(send_command(queue_id=2, body=b"two"))
    assert (first.code, first.remark) == (0, None)
    assert first.ext == {
        "msgId": "7F000001000051AF0000000000000000",
        "queueId": "2",
        "queueOffset": "0",
        "transactionId": "ID",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }
    assert second.ext["queueOffset"] == "1"
    one, two = stored(broker, queue_id=2)
    assert (bytes(one.body), one.born_host, one.store_host) == (b"one", (b"\x7f\0\0\1", 50000), (b"\x7f\0\0\1", 20911))
    own = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "DefaultCluster"}
    assert decode_properties(one.properties) == {"KEYS": "k", "UNIQ_KEY": "ID", "TAGS": "a", **own}
    assert decode_properties(two.properties) == {"UNIQ_KEY": second.ext["transactionId"], **own}


def test_a_broker_without_traces_says_so(make_broker: Callable[..., Broker]) -> None:
    """Clients that trace then leave out what it answers; its topic of traces is a matter of its own."""
    broker = make_broker(trace_on=False, trace_topic_enable=True, auto_create_topic_enable=False).start()
    assert broker.core.topics.get("RMQ_SYS_TRACE_TOPIC") is not None
    topic = {"topic": "T", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6", "topicFilterType": "SINGLE_TAG"}
    assert broker.ask(Command(RequestCode.UPDATE_AND_CREATE_TOPIC, topic)).code == 0
    assert broker.ask(send_command()).ext["TRACE_ON"] == "false"
    assert decode_properties(stored(broker)[0].properties)["TRACE_ON"] == "false"


def test_whatever_is_accepted_every_replica_accepts(make_broker: Callable[..., Broker]) -> None:
    """A record that `verify` refuses is copied by no slave, and cuts the log of whoever starts behind it."""
    broker = make_broker(mapped_file_size_commit_log=1 << 22).start()
    values = ["", "\0", "\0" * 511, "\0" * 512, "\0" * 2000, "a\0b", "\0" * 900 + "x" + "\0" * 700]
    codes = []
    for turn in range(200):
        bare = send_command(body=inner(b"x" * (turn % 7)) + inner(b"y"))
        bare.code = RequestCode.SEND_BATCH_MESSAGE
        for properties in (f"Z\x01{values[turn % 7]}\x02", f"Z\x01{values[turn % 7]}"):
            batch = send_command(body=inner(b"x", properties.encode()))
            batch.code = RequestCode.SEND_BATCH_MESSAGE
            for command in (batch, send_command(i=properties), send_command(i="DELAY\x011\x02" + properties)):
                codes.append(broker.ask(command).code)
        assert broker.ask(bare).code == 0
    assert set(codes) == {ResponseCode.SUCCESS, ResponseCode.MESSAGE_ILLEGAL}
    log = memoryview((broker.directory / "commitlog" / "0".zfill(20)).read_bytes())
    at, end, count = 0, int(broker.store.max_phy_offset), 0
    while at < end:
        at += verify(log, at, end, at)[0]
        count += 1
    assert count > 400


@pytest.mark.parametrize(
    ("more", "place"),
    [
        ("", ("T", 0)),
        ("DELAY\x013\x02", ("SCHEDULE_TOPIC_XXXX", 2)),
        ("TIMER_DELAY_SEC\x019\x02", ("rmq_sys_wheel_timer", 0)),
        ("TRAN_MSG\x01true\x02PGROUP\x01P\x02", ("RMQ_SYS_TRANS_HALF_TOPIC", 0)),
    ],
)
def test_no_client_says_a_record_s_receipt_or_crc(broker: Broker, more: str, place: tuple[str, int]) -> None:
    """Who passes on what it has popped says the old receipt too; its consumers would acknowledge by that."""
    reserved = "POP_CK\x011 2 3 4 0 broker-a 0 7\x02__CRC32#\x01x\x02"
    assert broker.ask(send_command(i=f"KEYS\x01k\x02{reserved}{more}")).code == 0
    batch = send_command(body=inner(b"x", f"KEYS\x01k\x02{reserved}".encode()), i=reserved)
    batch.code = RequestCode.SEND_BATCH_MESSAGE
    assert broker.ask(batch).code == 0
    found = [decode_properties(record.properties) for record in stored(broker, *place) + stored(broker)]
    assert len(found) >= 2 and {item["KEYS"] for item in found} == {"k"}
    assert not any(name in item for item in found for name in ("POP_CK", "__CRC32#"))


@pytest.mark.parametrize("code", [10, 310, 320, 324, 325])
def test_a_topic_without_write_queues_has_none_to_choose(broker: Broker, code: int) -> None:
    """An operator takes them away before a topic moves. What else came with it is stored and answered."""
    topic = {"topic": "Z", "readQueueNums": "4", "writeQueueNums": "0", "perm": "6", "topicFilterType": "SINGLE_TAG"}
    assert broker.ask(Command(RequestCode.UPDATE_AND_CREATE_TOPIC, topic)).code == 0
    bad = send_command(queue_id=-1, body=inner(b"x"), b="Z")
    bad.ext |= {"topic": "Z", "queueId": "-1", "defaultTopic": "TBW102"}
    bad.code = code
    channel = FakeChannel()
    broker.core.processor.received(channel, [send_command(body=b"before"), bad, send_command(body=b"after")])
    broker.run(10)
    codes = sorted(reply.code for reply in channel.take())
    assert codes == [0, 0, ResponseCode.INVALID_PARAMETER]
    assert [bytes(record.body) for record in stored(broker)] == [b"before", b"after"]
    assert broker.ask(send_command("New", queue_id=-1, d="0")).code == ResponseCode.INVALID_PARAMETER


@pytest.mark.parametrize("properties", ["", "UNIQ_KEY\x01\x02", "KEYS\x01k", "KEYS\x01k\x02", "aUNIQ_KEY\x01no\x02"])
def test_a_message_without_unique_key_gets_one(broker: Broker, properties: str) -> None:
    """Small clients leave it to the broker. Its form is RocketMQ's: address, pid, instance, time, counter."""
    replies = [broker.ask(send_command(i=properties)) for _ in range(2)]
    keys = [reply.ext["transactionId"] for reply in replies]
    assert [decode_properties(record.properties)["UNIQ_KEY"] for record in stored(broker)] == keys
    assert len(set(keys)) == 2
    for number, key in enumerate(keys, 1):
        data = bytes.fromhex(key)
        assert len(data) == 16 and data[:4] == b"\x7f\0\0\1" and key == key.upper()
        assert int.from_bytes(data[14:], "big") == number
    sent = decode_properties(properties.encode())
    for record in stored(broker):
        assert {**decode_properties(record.properties), **sent, "UNIQ_KEY": ""}.keys() == {
            *sent, "UNIQ_KEY", "MSG_REGION", "TRACE_ON", "CLUSTER",
        }  # fmt: skip


def test_a_prepared_and_a_delayed_message_get_one_too(broker: Broker) -> None:
    half = broker.ask(send_command(f="4", i="TRAN_MSG\x01true\x02PGROUP\x01P\x02"))
    (prepared,) = stored(broker, "RMQ_SYS_TRANS_HALF_TOPIC")
    assert decode_properties(prepared.properties)["UNIQ_KEY"] == half.ext["transactionId"]
    late = broker.ask(send_command(i="DELAY\x013\x02"))
    (delayed,) = stored(broker, "SCHEDULE_TOPIC_XXXX", 2)
    assert decode_properties(delayed.properties)["UNIQ_KEY"] == late.ext["transactionId"]


def test_a_send_that_waited_too_long_is_not_written(broker: Broker, make_broker: Callable[..., Broker]) -> None:
    """Its client is about to try again. A oneway one nobody sends again."""
    channel = FakeChannel()
    channel.waited_ms = 1001
    oneway = send_command(body=b"oneway")
    oneway.flag |= FLAG_ONEWAY
    broker.core.processor.received(channel, [send_command(body=b"late"), oneway, Command(4711)])
    late, other = channel.take()
    broker.run(10)
    assert (late.code, late.remark) == (
        ResponseCode.SYSTEM_BUSY,
        "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: 1001ms, size of queue: 2",
    )
    assert other.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "only sends are refused for it"
    assert [bytes(record.body) for record in stored(broker)] == [b"oneway"]
    channel.waited_ms = 1000
    broker.core.processor.received(channel, [send_command(body=b"in time")])
    assert channel.one().code == ResponseCode.SUCCESS
    broker.close()
    node_under_test = make_broker("patient", wait_time_mills_in_send_queue=0).start()
    channel.waited_ms = 100_000
    node_under_test.core.processor.received(channel, [send_command(body=b"late")])
    assert channel.one().code == ResponseCode.SUCCESS


def test_the_brokers_properties_replace_the_clients(broker: Broker) -> None:
    broker.ask(send_command(i=encode_properties({"CLUSTER": "elsewhere", "A": "b"}).decode()))
    broker.ask(send_command(i="A\x01b"))
    for record in stored(broker):
        found = decode_properties(record.properties)
        assert found["CLUSTER"] == "DefaultCluster" and found["A"] == "b"


def test_long_names_of_request_10(broker: Broker) -> None:
    ext = {
        "producerGroup": "P",
        "topic": "T",
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "1",
        "sysFlag": "0",
        "bornTimestamp": "77",
        "flag": "5",
        "properties": "A\x01b\x02",
        "reconsumeTimes": "3",
    }
    assert broker.ask(Command(RequestCode.SEND_MESSAGE, ext, b"old")).code == 0
    (record,) = stored(broker, queue_id=1)
    assert (record.born_at_ms, record.flag, record.reconsume_times, bytes(record.body)) == (77, 5, 3, b"old")


def test_one_read_is_one_batch_with_one_answer_each(broker: Broker) -> None:
    channel = FakeChannel()
    commands = [send_command(body=bytes([number])) for number in range(5)]
    for opaque, command in enumerate(commands):
        command.opaque = opaque
    broker.core.processor.received(channel, commands)
    replies = channel.take()
    assert [reply.opaque for reply in replies] == [0, 1, 2, 3, 4]
    assert [reply.ext["queueOffset"] for reply in replies] == ["0", "1", "2", "3", "4"]


@given(
    st.lists(st.tuples(st.binary(max_size=40), st.sampled_from([b"", b"A\x01b\x02"]), st.integers(0, 9)), min_size=1)
)
def test_splitting_a_batch_gives_back_what_was_joined(parts: list[tuple[bytes, bytes, int]]) -> None:
    body = b"".join(inner(text, properties, flag) for text, properties, flag in parts)
    assert SendProcessor.split(body) == [
        (text, struct.pack(">h", len(properties)) + properties, flag) for text, properties, flag in parts
    ]


@given(st.binary(max_size=60))
def test_no_batch_body_is_worse_than_illegal(broker_body: bytes) -> None:
    try:
        parts = SendProcessor.split(broker_body)
    except Exception as error:  # noqa: BLE001  (the point: only the one refusal)
        assert getattr(error, "code", None) is ResponseCode.MESSAGE_ILLEGAL
    else:
        joined = b"".join(inner(text, tail[2:], flag) for text, tail, flag in parts)
        assert [joined[:4], joined[12:]] == [broker_body[:4], broker_body[12:]] or len(parts) > 1


def test_batch_is_stored_as_single_records(broker: Broker) -> None:
    body = inner(b"a", b"UNIQ_KEY\x01A\x02") + inner(b"bc", b"UNIQ_KEY\x01B\x02", 7)
    command = Command(RequestCode.SEND_BATCH_MESSAGE, send_command(i="UNIQ_KEY\x01B0\x02", m="true").ext, body)
    reply = broker.ask(command)
    records = stored(broker)
    assert [(bytes(item.body), item.flag, item.queue_offset) for item in records] == [(b"a", 0, 0), (b"bc", 7, 1)]
    assert reply.ext["transactionId"] == "B0" and reply.ext["queueOffset"] == "0"
    assert [int(part[16:], 16) for part in reply.ext["msgId"].split(",")] == [item.phy_offset for item in records]


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ({"b": "no/slash"}, ResponseCode.INVALID_PARAMETER, "illegal characters"),
        ({"b": " "}, ResponseCode.INVALID_PARAMETER, "blank"),
        ({"b": "x" * 128}, ResponseCode.INVALID_PARAMETER, "longer"),
        ({"b": "SCHEDULE_TOPIC_XXXX"}, ResponseCode.NO_PERMISSION, "forbidden"),
        ({"b": "New", "c": "NoPattern"}, ResponseCode.TOPIC_NOT_EXIST, "topic[New] not exist"),
        ({"e": "4"}, ResponseCode.INVALID_PARAMETER, "queueId[4] is illegal"),
        ({"e": "x"}, ResponseCode.SYSTEM_ERROR, "invalid literal"),
        ({"g": "99999999999999999999999"}, ResponseCode.SYSTEM_ERROR, "64 bit"),
        ({"f": "4"}, ResponseCode.MESSAGE_ILLEGAL, "transactional"),
        ({"i": "DELAY\x01x\x02"}, ResponseCode.MESSAGE_ILLEGAL, "no delay level"),
        ({"i": "TIMER_DELAY_MS\x013x\x02"}, ResponseCode.MESSAGE_ILLEGAL, "is no time"),
        ({"i": "A\x01" + "x" * 32768 + "\x02"}, ResponseCode.MESSAGE_ILLEGAL, "properties length"),
    ],
)
def test_refusals(broker: Broker, change: dict[str, Any], code: ResponseCode, words: str) -> None:
    end = broker.store.max_phy_offset
    reply = broker.ask(send_command(**change))
    assert reply.code == code and words in (reply.remark or "")
    assert broker.store.max_phy_offset == end


def test_missing_field_and_long_body(broker: Broker) -> None:
    command = send_command()
    del command.ext["b"]
    assert broker.ask(command).code == ResponseCode.SYSTEM_ERROR
    assert broker.ask(send_command(body=bytes(100_001))).code == ResponseCode.MESSAGE_ILLEGAL
    assert broker.ask(send_command(body=bytes(100_000))).code == 0
    assert broker.ask(send_command(i="DELAY\x010\x02")).code == 0


def test_new_topic_takes_the_smaller_queue_count(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker(default_topic_queue_nums=8).start()
    broker.ask(send_command("Small", d="3"))
    broker.ask(send_command("Big", d="16"))
    small, big = broker.core.topics.get("Small"), broker.core.topics.get("Big")
    assert small is not None and (small.write_queue_count, small.perm) == (3, 6)
    assert big is not None and big.write_queue_count == 8


def test_no_automatic_topics_when_switched_off(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker(auto_create_topic_enable=False).start()
    assert broker.ask(send_command("New")).code == ResponseCode.TOPIC_NOT_EXIST
    assert broker.ask(send_command("%RETRY%G")).code == 0


def test_negative_queue_id_spreads(broker: Broker) -> None:
    ids = {broker.ask(send_command(e="-1")).ext["queueId"] for _ in range(4)}
    assert ids == {"0", "1", "2", "3"}


def test_oneway_is_written_and_never_answered(broker: Broker) -> None:
    channel = FakeChannel()
    for command in (send_command(), send_command(f="4")):
        command.flag = FLAG_ONEWAY
        broker.core.processor.received(channel, [command])
    broker.run()
    assert channel.take() == [] and len(stored(broker)) == 1


def passed_on() -> Command:
    """A send by way of another broker."""
    command = send_command()
    command.ext[FORWARDED] = "127.0.0.1:7"
    return command


def test_too_few_replicas_refuse_before_anything_is_written(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker(ha_mode="cp", total_replicas=3).start()
    reply = broker.ask(send_command())
    assert reply.code == ResponseCode.SYSTEM_ERROR and "in-sync replicas not enough" in (reply.remark or "")
    assert UNWRITTEN not in reply.ext, "nobody has passed it on"
    refused = broker.ask(passed_on())
    assert (refused.code, refused.ext) == (ResponseCode.SYSTEM_ERROR, {UNWRITTEN: "true"})
    assert broker.store.max_phy_offset == 0 and broker.core.topics.get("T") is None


def test_timeouts_and_demotion_end_waits_with_their_codes(make_broker: Callable[..., Broker]) -> None:
    keys = {"all_ack_in_sync_state_set": True, "broker_role": "SYNC_MASTER", "ha_ack_stall_bound_ms": 60_000}
    broker = make_broker(total_replicas=2, **keys).start()
    broker.join_slave(2)
    broker.run(10)
    assert broker.core.replica.state(broker.clock.ms).ack_union == [1, 2]
    channel = FakeChannel()
    broker.core.processor.received(channel, [send_command(), send_command(i="WAIT\x01false\x02")])
    broker.run()
    (unwaited,) = channel.take()
    assert unwaited.code == 0
    broker.run(3001)
    late = channel.one()
    assert late.code == ResponseCode.FLUSH_SLAVE_TIMEOUT and late.ext["queueOffset"] == "0"
    broker.core.processor.received(channel, [passed_on()])
    broker.controller.master, broker.controller.epoch = 2, 2
    broker.run(1000)
    written = channel.one()
    assert written.code == ResponseCode.SERVICE_NOT_AVAILABLE and UNWRITTEN not in written.ext
    refused = broker.ask(passed_on())
    assert (refused.code, refused.ext) == (ResponseCode.SERVICE_NOT_AVAILABLE, {UNWRITTEN: "true"})


def test_sync_flush_answers_after_the_disk(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker(flush_disk_type="SYNC_FLUSH").start()
    channel = FakeChannel()
    broker.core.processor.received(channel, [send_command()])
    assert channel.take() == [] and broker.core.driver.flush_due
    broker.run()
    assert channel.one().code == 0 and broker.store.synced_offset == broker.store.max_phy_offset


def test_a_client_is_told_whether_its_sends_are_held(broker: Broker) -> None:
    """One that waits would else send the same to the new master."""
    question = Command(RequestCode.RMQHA_HOLDS_SENDS)
    assert broker.ask(question).ext == {"holds": "false"}
    broker.shell.holds = True
    channel = FakeChannel()
    broker.core.processor.received(channel, [send_command(), question])
    assert [(reply.code, reply.ext) for reply in channel.sent] == [(0, {"holds": "true"})]
    assert len(broker.shell.held) == 1


def test_record_host() -> None:
    assert record_host("127.0.0.1:80") == (b"\x7f\0\0\1", 80)
    assert record_host("[::1]:80") == (bytes(15) + b"\1", 80)


def test_one_that_the_store_cannot_hold_does_not_spoil_its_neighbours(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker(max_message_size=5 * 1024 * 1024).start()  # the store itself takes 4 MiB
    channel = FakeChannel()
    commands = [send_command(body=b"a"), send_command(body=bytes(4 * 1024 * 1024 + 1)), send_command(body=b"c")]
    for opaque, command in enumerate(commands):
        command.opaque = opaque
    broker.core.processor.received(channel, commands)
    codes = {reply.opaque: reply.code for reply in channel.take()}
    assert codes == {0: 0, 1: ResponseCode.MESSAGE_ILLEGAL, 2: 0}
    broker.run()
    assert [bytes(record.body) for record in stored(broker)] == [b"a", b"c"]


# --- batches of BatchCQ topics ----------------------------------------------------------------------------------------
def make_batch_topic(broker: Broker) -> None:
    ext = {"topic": "B", "readQueueNums": "2", "writeQueueNums": "2", "attributes": "+queue.type=BatchCQ"}
    assert broker.ask(Command(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)).code == 0


def batch_command(*bodies: bytes, properties: str = "UNIQ_KEY\x01B0\x02WAIT\x01true\x02") -> Command:
    members = b"".join(inner(body, b"UNIQ_KEY\x01%d\x02" % place) for place, body in enumerate(bodies))
    ext = send_command("B", queue_id=1, i=properties, m="true").ext
    return Command(RequestCode.SEND_BATCH_MESSAGE, ext, members)


def test_a_batch_of_a_batch_topic_is_one_record(broker: Broker) -> None:
    make_batch_topic(broker)
    assert broker.ask(send_command("B", queue_id=1, body=b"single")).ext["queueOffset"] == "0"
    first = broker.ask(batch_command(b"a", b"bc", b""))
    second = broker.ask(batch_command(b"x"))
    assert (first.code, first.ext["queueOffset"], first.ext["batchUniqId"]) == (0, "1", "B0")
    assert second.ext["queueOffset"] == "4" and "," not in first.ext["msgId"]
    assert broker.store.queue_range("B", 1) == (0, 5)
    single, batch, last = stored(broker, "B", 1)
    assert (single.sys_flag, batch.sys_flag, last.sys_flag) == (0, 0xC0, 0xC0)
    assert bytes(batch.body) == bytes(batch_command(b"a", b"bc", b"").body)
    assert decode_properties(batch.properties) == {
        "UNIQ_KEY": "B0",
        "WAIT": "true",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
        "CLUSTER": "DefaultCluster",
        "INNER_NUM": "3",
        "INNER_BASE": "1",
    }


def test_batches_and_singles_of_one_read_are_stored_in_order(broker: Broker) -> None:
    make_batch_topic(broker)
    channel = FakeChannel()
    singles = [send_command("B", queue_id=1, body=bytes([number])) for number in range(3)]
    commands = [singles[0], singles[1], batch_command(b"a", b"b"), batch_command(b"c"), singles[2]]
    for opaque, command in enumerate(commands):
        command.opaque = opaque
    broker.core.processor.received(channel, commands)
    replies = channel.take()
    assert [reply.opaque for reply in replies] == [0, 1, 2, 3, 4]
    assert [reply.ext["queueOffset"] for reply in replies] == ["0", "1", "2", "4", "5"]


def test_a_batch_without_unique_key_is_single_records_there_too(broker: Broker) -> None:
    make_batch_topic(broker)
    reply = broker.ask(batch_command(b"a", b"b", properties=""))
    assert "batchUniqId" not in reply.ext and len(reply.ext["msgId"].split(",")) == 2
    assert [item.sys_flag for item in stored(broker, "B", 1)] == [0, 0]


@pytest.mark.parametrize("change", [{"f": "128"}, {"f": "192"}, {"i": "INNER_NUM\x013\x02"}])
@pytest.mark.parametrize("topic", ["B", "T"])
def test_no_client_makes_an_inner_batch(broker: Broker, topic: str, change: dict[str, Any]) -> None:
    make_batch_topic(broker)
    reply = broker.ask(send_command(topic, **change))
    assert reply.code == ResponseCode.MESSAGE_ILLEGAL and "inner batches" in (reply.remark or "")
    assert broker.store.max_phy_offset == 0


def test_a_batch_of_too_many_for_one_record_is_illegal(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker(max_message_size=1 << 20, mapped_file_size_commit_log=1 << 22).start()
    make_batch_topic(broker)
    command = batch_command(b"")
    command.body = inner(b"") * 32768
    reply = broker.ask(command)
    assert (reply.code, reply.remark) == (
        ResponseCode.MESSAGE_ILLEGAL,
        "a batch of 32768 messages; one record holds up to 32767",
    )


@pytest.mark.parametrize("batch", [False, True])
def test_a_clients_crc_of_its_own_cannot_make_a_record_look_damaged(broker: Broker, batch: bool) -> None:
    """__CRC32# at the properties' end is a record's own CRC: recovery would cut the log at a wrong one."""
    given = {"MSG_REGION": "a", "TRACE_ON": "b", "CLUSTER": "c", "UNIQ_KEY": "K", "__CRC32#": "1234567890"}
    properties = encode_properties(given)
    if batch:
        command = Command(RequestCode.SEND_BATCH_MESSAGE, send_command(m="true").ext, inner(b"x", properties))
    else:
        command = send_command(body=b"x", i=properties.decode())
    assert broker.ask(command).code == 0
    (record,) = stored(broker)
    found = decode_properties(record.properties)
    assert found["UNIQ_KEY"] == "K" and "__CRC32#" not in found
    view = broker.store.record_at(record.phy_offset)
    assert view is not None
    verify(view, 0, len(view), record.phy_offset)


@pytest.mark.parametrize("peer", ["127.0.0.1:50000", "[::1]:50000"])
@pytest.mark.parametrize("code", [10, 310, 320, 324, 325])
def test_no_flag_of_a_client_makes_a_record_that_cannot_be_read(
    make_broker: Callable[..., Broker], code: int, peer: str
) -> None:
    """One that says that a host is of IPv6 did: the broker did not start again, and no replica took what followed."""
    broker, channel = make_broker().start(), FakeChannel(peer)
    bits = [bit for bit in range(31) if 1 << bit not in (0x4, 0x8, 0x80)]  # of transactions, of an inner batch
    for bit in bits:
        command = send_command(body=inner(b"x") if code == 320 else b"x", f=str(1 << bit))
        if code in (10, 324):
            command.ext = {"producerGroup": "P", "topic": "T", "queueId": "0", "sysFlag": str(1 << bit)}
        command.code = code
        broker.core.processor.received(channel, [command])
        broker.run()
    found = stored(broker)
    assert [bytes(record.body) for record in found] == [b"x"] * len(bits)
    assert {len(record.born_host[0]) for record in found} == {16 if peer[0] == "[" else 4}
    broker.close()
    assert len(stored(make_broker().start())) == len(bits)
