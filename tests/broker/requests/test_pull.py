from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rmqha.broker.requests.pull import MAX_HOLD_COUNT_OF_ONE
from rmqha.broker.tables.topics import TopicConfig
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.message import encode_properties
from rmqha.model.offset import PhyOffset, QueueOffset
from rmqha.store.log.record import decode
from rmqha.wire import lenient_json
from rmqha.wire.command import Command
from tests.broker.support import Broker, FakeChannel, pull_command, send_command


def heartbeat(expression: str = "*", version: int = 5, model: str = "CLUSTERING", group: str = "G") -> Command:
    subscription = {"topic": "T", "subString": expression, "subVersion": version, "expressionType": "TAG"}
    consumer = {"groupName": group, "messageModel": model, "subscriptionDataSet": [subscription]}
    body = {"clientID": "c1", "consumerDataSet": [consumer], "producerDataSet": []}
    return Command(RequestCode.HEART_BEAT, {}, lenient_json.dumps(body))


def tagged(tag: str) -> Command:
    return send_command(i=encode_properties({"TAGS": tag}).decode(), body=tag.encode())


def bodies(reply: Command) -> list[bytes]:
    view, found = memoryview(bytes(reply.body)), []
    while view:
        record = decode(view)
        found.append(bytes(record.body))
        view = view[record.size_bytes :]
    return found


def test_found(broker: Broker) -> None:
    for tag in ("a", "b", "a"):
        broker.ask(tagged(tag))
    reply = broker.ask(pull_command(offset=1, maxMsgNums="1"))
    assert (reply.code, reply.remark) == (0, "FOUND") and bodies(reply) == [b"b"]
    assert reply.ext == {
        "nextBeginOffset": "2",
        "minOffset": "0",
        "maxOffset": "3",
        "suggestWhichBrokerId": "0",
        "topicSysFlag": "0",
        "groupSysFlag": "0",
    }
    lite = pull_command(subscription="a || c")
    lite.code = RequestCode.LITE_PULL_MESSAGE
    assert bodies(broker.ask(lite)) == [b"a", b"a"]


def test_not_found_and_moved(broker: Broker) -> None:
    broker.ask(send_command())
    assert broker.ask(pull_command(offset=1)).code == ResponseCode.PULL_NOT_FOUND
    moved = broker.ask(pull_command(offset=9))
    assert (moved.code, moved.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "1")
    assert broker.ask(pull_command(queue_id=1)).code == ResponseCode.PULL_NOT_FOUND


def test_a_consumer_that_has_read_of_a_lost_tail_passes_nothing_over(broker: Broker) -> None:
    """AP: it read up to 9 from a master that died. This one's log ended at 2 at its election, and has grown since."""
    broker.ask(send_command())
    broker.ask(send_command())
    broker.ask(pull_command(offset=0))
    ext = {"consumerGroup": "G", "topic": "T", "queueId": "0"}
    assert broker.ask(Command(RequestCode.UPDATE_CONSUMER_OFFSET, {**ext, "commitOffset": "2"})).code == 0
    broker.ask(send_command())
    assert broker.ask(Command(RequestCode.UPDATE_CONSUMER_OFFSET, {**ext, "commitOffset": "9"})).code == 0
    assert broker.core.offsets.query("G", "T", 0) == 2, "nobody has read what will stand there"
    moved = broker.ask(pull_command(offset=9, sysFlag="5", commitOffset="9"))
    assert (moved.code, moved.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "2")
    assert broker.core.offsets.query("G", "T", 0) == 2
    assert broker.ask(Command(RequestCode.UPDATE_CONSUMER_OFFSET, {**ext, "commitOffset": "3"})).code == 0
    assert broker.core.offsets.query("G", "T", 0) == 3


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"topic": "Nope"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"queueId": "4"}, ResponseCode.INVALID_PARAMETER),
        ({"queueId": "-1"}, ResponseCode.INVALID_PARAMETER),
        ({"queueId": "x"}, ResponseCode.SYSTEM_ERROR),
        ({"consumerGroup": ""}, ResponseCode.SYSTEM_ERROR),
        ({"consumerGroup": "g" * 121}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"subscription": "||"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ({"expressionType": "SQL92"}, ResponseCode.SYSTEM_ERROR),
        ({"sysFlag": "2"}, ResponseCode.SUBSCRIPTION_NOT_EXIST),
    ],
)
def test_refusals(broker: Broker, change: dict[str, Any], code: ResponseCode) -> None:
    broker.ask(send_command())
    assert broker.ask(pull_command(**change)).code == code


def test_refusals_by_settings(broker: Broker) -> None:
    broker.ask(send_command())
    broker.core.groups.put({"groupName": "G", "consumeEnable": False})
    assert broker.ask(pull_command()).code == ResponseCode.NO_PERMISSION
    topic = broker.ask(Command(RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": "W", "perm": "2"}))
    assert topic.code == 0
    assert broker.ask(pull_command("W", consumerGroup="H")).code == ResponseCode.NO_PERMISSION


def test_subscription_of_the_heartbeat(broker: Broker) -> None:
    channel = FakeChannel()
    broker.core.processor.received(channel, [heartbeat("b")])
    broker.ask(tagged("a"))
    broker.ask(tagged("b"))
    assert bodies(broker.ask(pull_command(sysFlag="0", subVersion="5"))) == [b"b"]
    broker.core.processor.closed(channel)
    assert broker.ask(pull_command(sysFlag="0")).code == ResponseCode.SUBSCRIPTION_NOT_EXIST


def test_tags_that_the_broker_has_not_been_told_yet_leave_nothing_out(broker: Broker) -> None:
    """The client filters by tags itself; by selectors it does not, nor do we know what a client wants that names no
    type."""
    broker.core.processor.received(FakeChannel(), [heartbeat("b")])
    broker.ask(tagged("a"))
    broker.ask(tagged("b"))
    newer = broker.ask(pull_command(sysFlag="0", subVersion="6", expressionType="TAG"))
    assert bodies(newer) == [b"a", b"b"]
    unnamed = pull_command(sysFlag="0", subVersion="6")
    for pull in (pull_command(sysFlag="0", subVersion="6", expressionType="SQL92"), unnamed):
        refused = broker.ask(pull)
        assert (refused.code, refused.remark) == (
            ResponseCode.SUBSCRIPTION_NOT_LATEST,
            "the consumer's subscription not latest",
        )


def test_a_client_that_went_from_a_selector_to_tags_waits_for_its_heartbeat(broker: Broker) -> None:
    selecting = heartbeat("TAGS = 'b'")
    selecting.body = bytes(selecting.body).replace(b'TAG"', b'SQL92"')
    broker.core.processor.received(FakeChannel(), [selecting])
    broker.ask(tagged("a"))
    newer = broker.ask(pull_command(sysFlag="0", subVersion="6", expressionType="TAG"))
    assert newer.code == ResponseCode.SUBSCRIPTION_NOT_LATEST


def test_broadcasting_needs_permission(broker: Broker) -> None:
    broker.ask(send_command())
    broker.core.processor.received(FakeChannel(), [heartbeat(model="BROADCASTING")])
    assert broker.ask(pull_command(sysFlag="0")).code == 0
    broker.core.groups.put({"groupName": "G", "consumeBroadcastEnable": False})
    assert broker.ask(pull_command(sysFlag="0")).code == ResponseCode.NO_PERMISSION


def test_a_held_pull_wakes_with_the_message_it_wants(broker: Broker) -> None:
    broker.ask(tagged("a"))
    channel = FakeChannel()
    broker.core.processor.received(channel, [pull_command(offset=1, sysFlag="6", subscription="b")])
    broker.ask(tagged("a"))
    broker.run(100)
    assert channel.take() == [] and broker.core.pull.hold_count == 1
    broker.ask(tagged("b"))
    reply = channel.one()
    assert bodies(reply) == [b"b"] and reply.ext["nextBeginOffset"] == "3"
    assert broker.core.pull.hold_count == 0


def test_a_held_pull_ends_in_time_and_skips_what_its_filter_saw(broker: Broker) -> None:
    broker.ask(tagged("a"))
    channel = FakeChannel()
    held = pull_command(offset=1, sysFlag="6", subscription="b", suspendTimeoutMillis="1000")
    broker.core.processor.received(channel, [held, pull_command(offset=1, sysFlag="6", suspendTimeoutMillis="999999")])
    broker.ask(tagged("a"))
    assert bodies(channel.one()) == [b"a"]
    assert broker.core.pull.deadline_ms() == broker.clock.ms + 1000
    broker.run(999)
    assert channel.take() == []
    broker.run(1)
    reply = channel.one()
    assert (reply.code, reply.ext["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "2")
    broker.core.processor.received(channel, [pull_command(offset=2, sysFlag="6", suspendTimeoutMillis="999999")])
    broker.run(broker.config.long_polling_max_ms)
    reply = channel.one()
    assert (reply.code, reply.ext["nextBeginOffset"]) == (ResponseCode.PULL_NOT_FOUND, "2")


def test_only_committed_records(make_broker: Callable[..., Broker]) -> None:
    keys = {"all_ack_in_sync_state_set": True, "broker_role": "SYNC_MASTER"}
    broker = make_broker(total_replicas=2, **keys).start()
    broker.join_slave(2)
    broker.run(10)
    sender, puller = FakeChannel(), FakeChannel()
    broker.core.processor.received(sender, [send_command()])
    broker.core.processor.received(puller, [pull_command(sysFlag="6")])
    broker.run()
    assert sender.take() == [] and puller.take() == []
    broker.core.driver.ha_sent(1)
    broker.core.driver.ha_received(1, b"\0\0\0\2" + broker.store.max_phy_offset.to_bytes(8, "big"))
    broker.run()
    assert sender.one().code == 0 and len(bodies(puller.one())) == 1


def demoted(broker: Broker) -> Broker:
    """The same replica as slave of another master."""
    broker.controller.master, broker.controller.epoch = 2, 2
    broker.run(1000)
    assert not broker.core.driver.is_serving
    return broker


def test_a_slave_that_may_not_serve_sends_readers_to_the_master(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker(slave_read_enable=False).start()
    broker.ask(send_command())
    channel = FakeChannel()
    broker.core.processor.received(channel, [pull_command(offset=1, sysFlag="6")])
    demoted(broker)
    woken = channel.one()
    assert (woken.code, woken.ext["suggestWhichBrokerId"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "0")
    assert broker.ask(pull_command()).code == ResponseCode.PULL_RETRY_IMMEDIATELY
    broker.core.processor.received(channel, [pull_command(sysFlag="6")])
    assert channel.take() == []
    broker.run(100)
    assert channel.one().code == ResponseCode.PULL_RETRY_IMMEDIATELY


def test_a_slave_serves_reads(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker().start()
    for body in (b"a", b"b"):
        broker.ask(send_command(body=body))
    demoted(broker)
    reply = broker.ask(pull_command())
    assert bodies(reply) == [b"a", b"b"] and reply.ext["suggestWhichBrokerId"] == "0"
    assert bodies(broker.ask(pull_command(offset=1))) == [b"b"]


@pytest.mark.parametrize("offset", [2, 3, 1000])
def test_what_a_slave_has_not_moves_no_consumer(make_broker: Callable[..., Broker], offset: int) -> None:
    """It may only be behind: a Java consumer goes where nextBeginOffset says, and resets itself at OFFSET_MOVED."""
    broker = make_broker().start()
    for _ in range(2):
        broker.ask(send_command())
    demoted(broker)
    for flags in ("4", "6"):
        channel = FakeChannel()
        broker.core.processor.received(channel, [pull_command(offset=offset, sysFlag=flags)])
        broker.run(100)
        reply = channel.one()
        assert reply.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        assert (reply.ext["nextBeginOffset"], reply.ext["suggestWhichBrokerId"]) == (str(offset), "0")


def test_a_slave_passes_over_what_a_filter_does_not_want(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker().start()
    for _ in range(2):
        broker.ask(send_command(i="TAGS\x01A\x02"))
    demoted(broker)
    reply = broker.ask(pull_command(subscription="B"))
    assert (reply.code, reply.ext["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "2")


def test_a_slave_serves_nothing_above_its_confirm_offset(make_broker: Callable[..., Broker]) -> None:
    master = make_broker("master").start()
    for body in (b"a", b"b"):
        master.ask(send_command(body=body))
    slave = make_broker("slave", ha_mode="cp", total_replicas=3)
    slave.controller.next_broker_id, slave.controller.master = 2, 1
    slave.start()
    slave.core.topics.put(TopicConfig("T", 4, 4))
    slave.store.append_raw(PhyOffset(0), master.store.view(PhyOffset(0), 1 << 20))
    slave.run()
    assert slave.ask(pull_command()).code == ResponseCode.PULL_RETRY_IMMEDIATELY
    slave.store.set_confirm_offset(PhyOffset(slave.store.max_phy_offset // 2))
    slave.run()
    assert bodies(slave.ask(pull_command())) == [b"a"]


# --- old messages -----------------------------------------------------------------------------------------------------
def test_a_consumer_of_old_messages_is_sent_to_a_slave_and_back(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker(memory_bytes=2500, access_message_in_memory_max_ratio=40).start()
    for _ in range(20):
        broker.ask(send_command())
    size = broker.store.max_phy_offset // 20

    def suggested(offset: int) -> str:
        return broker.ask(pull_command(offset=offset, maxMsgNums="1")).ext["suggestWhichBrokerId"]

    assert suggested(0) == "0"  # nobody else has it
    broker.join_slave(3, broker.store.max_phy_offset)
    assert suggested(0) == "3"
    assert suggested(20 - 1000 // size) == "0"  # within 40 percent of the memory
    broker.core.groups.put({"groupName": "G", "whichBrokerWhenConsumeSlowly": 3})
    assert suggested(0) == "3"
    broker.core.groups.put({"groupName": "G", "whichBrokerWhenConsumeSlowly": 7})
    assert suggested(0) == "3"  # there is no such replica
    assert suggested(20) == "0"
    demoted(broker)
    assert suggested(0) == "1"  # this slave goes on serving
    assert suggested(19) == "0"


def test_a_pull_gets_less_of_what_is_old(make_broker: Callable[..., Broker]) -> None:
    """RocketMQ's bounds: 32 messages that are in memory, 8 that are not, however many are asked for."""
    broker = make_broker(memory_bytes=30_000, access_message_in_memory_max_ratio=40).start()
    broker.ask(send_command(i="UNIQ_KEY\x01K\x02"))
    size = broker.store.max_phy_offset
    for _ in range(199):
        broker.ask(send_command(i="UNIQ_KEY\x01K\x02"))
    old_count = 200 - 12_000 // size
    assert 32 < old_count < 150

    def count(offset: int, wanted: str = "50", subscription: str = "*") -> tuple[int, int]:
        reply = broker.ask(pull_command(offset=offset, maxMsgNums=wanted, subscription=subscription))
        return len(bodies(reply)), int(reply.ext["nextBeginOffset"]) - offset

    assert count(0) == (8, 8)
    assert count(0, wanted="3") == (3, 3)
    assert count(150) == (32, 32)
    assert count(old_count - 4) == (32, 32), "the fifth is in memory"
    assert count(old_count - 8) == (32, 32)
    assert count(old_count - 9) == (8, 8)
    assert count(0, subscription="none") == (0, 200), "what a filter passes over is not given"


def test_a_pull_gets_fewer_bytes_of_what_is_old(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker(memory_bytes=250_000, access_message_in_memory_max_ratio=40).start()
    for _ in range(20):
        broker.ask(send_command(body=bytes(20_000)))

    def count(offset: int) -> int:
        return len(bodies(broker.ask(pull_command(offset=offset))))

    assert count(0) == 3, "64 KiB"
    assert count(16) == 4
    broker.core.live.update("maxTransferBytesOnMessageInDisk=1\nmaxTransferBytesOnMessageInMemory=50000")
    assert count(0) == 1, "one comes at least"
    assert count(16) == 2
    broker.core.live.update("maxTransferBytesOnMessageInDisk=10000000\nmaxTransferBytesOnMessageInMemory=10000000")
    assert count(0) == 8
    broker.core.live.update("maxTransferCountOnMessageInDisk=12\nmaxTransferCountOnMessageInMemory=13")
    assert count(0) == 12


def test_no_consumer_is_sent_to_a_slave_that_lacks_what_it_reads(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker(memory_bytes=1000).start()
    for _ in range(20):
        broker.ask(send_command())
    broker.join_slave(2, 0)
    assert broker.ask(pull_command(maxMsgNums="1")).ext["suggestWhichBrokerId"] == "0"


def test_no_consumer_is_sent_to_slaves_that_may_not_serve(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker(memory_bytes=1000, slave_read_enable=False).start()
    for _ in range(20):
        broker.ask(send_command())
    broker.join_slave(2, broker.store.max_phy_offset)
    assert broker.ask(pull_command(maxMsgNums="1")).ext["suggestWhichBrokerId"] == "0"


def test_commit_flag_and_closed_channel(broker: Broker) -> None:
    broker.ask(send_command())
    channel = FakeChannel()
    broker.core.processor.received(channel, [pull_command(offset=1, sysFlag="7", commitOffset="1")])
    assert broker.core.offsets.query("G", "T", 0) == 1 and broker.core.pull.hold_count == 1
    broker.core.processor.closed(channel)
    assert broker.core.pull.hold_count == 0
    broker.ask(send_command())
    assert channel.take() == []


@pytest.mark.parametrize(("flags", "suspend_ms"), [("5", "15000"), ("5", "0"), ("7", "0")])
def test_a_pull_that_does_not_wait_commits_too(broker: Broker, flags: str, suspend_ms: str) -> None:
    """RocketMQ commits whether the client lets the broker hold the pull or not."""
    broker.ask(send_command())
    broker.ask(pull_command(offset=1, sysFlag=flags, commitOffset="1", suspendTimeoutMillis=suspend_ms))
    assert broker.core.offsets.query("G", "T", 0) == 1


@pytest.mark.parametrize("offset", ["-1", str(-(1 << 63))])
def test_a_pull_commits_no_offset_below_0(broker: Broker, offset: str) -> None:
    """As request 15 does not; among replicas -1 stands for an offset that was removed."""
    broker.ask(send_command())
    broker.core.processor.received(FakeChannel(), [pull_command(offset=1, sysFlag="7", commitOffset=offset)])
    assert broker.core.offsets.query("G", "T", 0) is None


def test_only_queues_that_have_grown_are_looked_at(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    broker.ask(send_command())
    channel = FakeChannel()
    for queue_id in range(4):
        broker.core.processor.received(
            channel, [pull_command(queue_id=queue_id, offset=int(queue_id == 0), sysFlag="6")]
        )
    assert broker.core.pull.hold_count == 4
    looked, queue_range = list[int](), broker.store.queue_range

    def count(topic: str, queue_id: int) -> tuple[QueueOffset, QueueOffset]:
        if topic == "T":
            looked.append(queue_id)
        return queue_range(topic, queue_id)

    monkeypatch.setattr(broker.store, "queue_range", count)
    broker.ask(send_command(e="2"))
    assert bodies(channel.one()) and set(looked) == {2}
    broker.ask(send_command(e="3"))
    assert bodies(channel.one()) and set(looked) == {2, 3}
    assert broker.core.pull.hold_count == 2


def test_stopping_broker_holds_nothing(broker: Broker) -> None:
    broker.ask(send_command())
    channel = FakeChannel()
    broker.core.processor.received(channel, [pull_command(offset=1, sysFlag="6")])
    broker.core.pull.refuse()
    assert channel.one().code == ResponseCode.PULL_NOT_FOUND
    assert broker.ask(pull_command(offset=1, sysFlag="6")).code == ResponseCode.PULL_NOT_FOUND


def test_one_connection_waits_at_a_queue_for_each_of_its_groups_and_no_more(broker: Broker) -> None:
    """Every message is shown to all that wait: thousands of one connection's would hold up the others."""
    broker.ask(send_command())
    greedy, other = FakeChannel(), FakeChannel("127.0.0.1:5")
    pulls = [pull_command(offset=1, sysFlag="6", consumerGroup=f"G{number}") for number in range(20)]
    broker.core.processor.received(greedy, pulls)
    refused = greedy.take()
    assert [reply.code for reply in refused] == [ResponseCode.PULL_NOT_FOUND] * (20 - MAX_HOLD_COUNT_OF_ONE)
    broker.core.processor.received(other, pulls[:1])
    assert other.take() == []
    broker.ask(send_command())
    assert len(greedy.take()) == MAX_HOLD_COUNT_OF_ONE
    assert len(other.take()) == 1
    assert broker.core.pull.hold_count == 0
    broker.core.processor.received(greedy, [pull_command(offset=2, sysFlag="6")])
    assert broker.core.pull.hold_count == 1


def test_a_connection_that_closes_takes_its_own_pulls_with_it(broker: Broker) -> None:
    broker.ask(send_command())
    leaving, staying = FakeChannel(), FakeChannel("127.0.0.1:5")
    for channel in (leaving, staying, leaving):
        broker.core.processor.received(channel, [pull_command(offset=1, sysFlag="6")])
    broker.core.processor.closed(leaving)
    broker.core.processor.closed(leaving)
    assert broker.core.pull.hold_count == 1
    broker.ask(send_command())
    assert leaving.take() == []
    assert staying.one().code == 0
    assert (broker.core.pull._held, broker.core.pull._holds) == ({}, {})


@pytest.mark.parametrize("first_ms", [1, 99, 100, 101, 250])
def test_each_pull_is_told_when_its_own_time_is_up(broker: Broker, first_ms: int) -> None:
    broker.ask(send_command())
    channel = FakeChannel()
    waits_ms = [first_ms, first_ms + 3, first_ms + 150]
    for wait_ms in waits_ms:
        broker.core.processor.received(
            channel, [pull_command(offset=1, sysFlag="6", suspendTimeoutMillis=f"{wait_ms}")]
        )
    told_at_ms = []
    for ms in range(1, 500):
        broker.run(1)
        told_at_ms += [ms] * len(channel.take())
    assert told_at_ms == waits_ms
    assert broker.core.pull._due == {}
