"""Send-back, retry topics and dead letters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rmqha.broker.replication.waiter import Waiting
from rmqha.broker.requests.request import RequestError
from rmqha.broker.requests.retry import SendBackProcessor
from rmqha.broker.services.statistics import BrokerStatistics
from rmqha.ha.action import AckStatus
from rmqha.host.disk import HostDisk
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.message import SYS_FLAG_INNER_BATCH, decode_properties, encode_properties
from rmqha.model.offset import PhyOffset
from rmqha.store.appender import AppendedBatch
from rmqha.store.log.record import NewMessage, Record, decode
from rmqha.store.store import Store
from rmqha.wire.command import Command
from rmqha.wire.ha_stream import SlaveAck
from tests.broker.support import Broker, FakeChannel, send_command
from tests.broker.tables.test_locks import lock_command
from tests.store.support import GOLD, unpack
from tests.support.tracer import RecordingTracer

SCHEDULE, RETRY, DLQ = "SCHEDULE_TOPIC_XXXX", "%RETRY%G", "%DLQ%G"


STATISTICS = BrokerStatistics("C")


def back(offset: int = 0, level: int = 0, **ext: str) -> Command:
    """Request 36 as the Java client writes it."""
    fields = {"group": "G", "originTopic": "T", "originMsgId": "", "offset": str(offset), "delayLevel": str(level)}
    return Command(
        RequestCode.CONSUMER_SEND_MSG_BACK, {**fields, "unitMode": "false", "maxReconsumeTimes": "16", **ext}
    )


def only(broker: Broker, topic: str, queue_id: int = 0) -> Record:
    (record,) = broker.store.pull(topic, queue_id, 0, 100, 1 << 20).records
    return decode(record)


def count(broker: Broker, topic: str, queue_id: int = 0) -> int:
    return int(broker.store.queue_range(topic, queue_id)[1])


def test_a_message_comes_back_through_the_retry_topic(broker: Broker) -> None:
    properties = encode_properties({"TAGS": "a", "KEYS": "k", "WAIT": "true"}).decode()
    sent = broker.ask(send_command(queue_id=2, body=b"hard", i=properties, h="7"))
    reply = broker.ask(back())
    assert (reply.code, reply.ext, reply.remark) == (0, {}, None)
    waiting = only(broker, SCHEDULE, 2)
    assert count(broker, RETRY) == 0
    broker.run(10_000)
    record = only(broker, RETRY)
    found = decode_properties(record.properties)
    assert (bytes(record.body), record.flag, record.reconsume_times, waiting.reconsume_times) == (b"hard", 7, 1, 1)
    expected = {"RETRY_TOPIC": "T", "ORIGIN_MESSAGE_ID": sent.ext["msgId"], "WAIT": "false", "DELAY": "3", "TAGS": "a"}
    assert expected.items() <= found.items()
    assert (found["REAL_TOPIC"], found["REAL_QID"]) == (RETRY, "0")


@pytest.mark.parametrize(
    ("named", "is_meant"),
    [
        ({"originMsgId": "U1"}, True),
        ({"originMsgId": "7F000001000051AF0000000000000000"}, True),
        ({"originMsgId": "7f000001000051af0000000000000000", "originTopic": "ns%T"}, True),
        ({"originMsgId": "", "originTopic": ""}, True),
        ({"originMsgId": "U2"}, False),
        ({"originMsgId": "7F000001000051AF0000000000000001"}, False),
        ({"originTopic": "Other"}, False),
        ({"originTopic": RETRY}, False),
    ],
)
def test_only_the_message_that_is_meant_comes_back(broker: Broker, named: dict[str, Any], *, is_meant: bool) -> None:
    """Where the log was cut (AP) one of another topic may stand at the place: the group would be given that, and its
    own would be gone."""
    broker.ask(send_command(i="UNIQ_KEY\x01U1\x02"))
    reply = broker.ask(back(**named))
    if is_meant:
        assert reply.code == 0
    else:
        assert (reply.code, reply.remark) == (ResponseCode.SYSTEM_ERROR, "look message by offset failed, 0")
    assert count(broker, SCHEDULE, 2) == is_meant


@pytest.mark.parametrize("waits", ["", "DELAY\x011\x02", "TIMER_DELAY_SEC\x011\x02"])
def test_a_value_with_a_separator_in_it_harms_no_consumer(broker: Broker, waits: str) -> None:
    """Its producer may be anybody: who hands it back would lose his connection each time."""
    assert broker.ask(send_command(body=b"odd", i=f"{waits}ODD\x01a\x01b\x02")).code == 0
    broker.run(3000)
    sent = only(broker, "T")
    assert broker.ask(back(sent.phy_offset)).code == 0
    broker.run(10_000)
    assert decode_properties(only(broker, RETRY).properties)["ODD"] == "a\x01b"


def test_each_failure_waits_a_level_longer_and_the_first_id_stays(broker: Broker) -> None:
    sent = broker.ask(send_command())
    offset = 0
    for turn in range(3):
        assert broker.ask(back(offset)).code == 0
        waiting = only(broker, SCHEDULE, 2 + turn)
        broker.run(60_000)
        view = broker.store.pull(RETRY, 0, turn, 1, 1 << 20).records[0]
        record = decode(view)
        found = decode_properties(record.properties)
        assert record.reconsume_times == waiting.reconsume_times == turn + 1
        assert (found["ORIGIN_MESSAGE_ID"], found["RETRY_TOPIC"]) == (sent.ext["msgId"], "T")
        offset = record.phy_offset


def test_a_level_that_the_consumer_chose(broker: Broker) -> None:
    broker.ask(send_command())
    broker.ask(back(level=1))
    broker.run(1000)
    assert decode_properties(only(broker, RETRY).properties)["DELAY"] == "1"
    broker.ask(back(level=99))
    assert count(broker, SCHEDULE, 17) == 1


@pytest.mark.parametrize("ext", [{"level": -1}, {"maxReconsumeTimes": "0"}])
def test_dead_letters(broker: Broker, ext: dict[str, Any]) -> None:
    broker.ask(send_command(body=b"dead"))
    assert broker.ask(back(**ext)).code == 0
    record = only(broker, DLQ)
    assert (bytes(record.body), record.reconsume_times) == (b"dead", 1)
    assert decode_properties(record.properties)["DELAY"] == "0"
    topic = broker.core.topics.get(DLQ)
    assert topic is not None and (topic.read_queue_count, topic.write_queue_count, topic.perm) == (1, 1, 6)


def test_the_groups_own_limit_counts_when_the_consumer_names_none(broker: Broker) -> None:
    broker.core.groups.put({"groupName": "G", "retryMaxTimes": 0})
    broker.ask(send_command())
    command = back()
    del command.ext["maxReconsumeTimes"]
    assert broker.ask(command).code == 0
    assert count(broker, DLQ) == 1


def test_a_group_without_retry_queues_drops_what_fails(broker: Broker) -> None:
    broker.core.groups.put({"groupName": "G", "retryQueueNums": 0})
    broker.ask(send_command())
    end = broker.store.max_phy_offset
    assert broker.ask(back()).code == 0
    assert broker.store.max_phy_offset == end


def test_several_retry_queues_take_turns_and_name_servers_hear_at_once(broker: Broker) -> None:
    broker.core.groups.put({"groupName": "G", "retryQueueNums": 2})
    before = broker.shell.topic_changes
    for number in range(4):
        broker.ask(send_command(body=b"%d" % number))
    assert broker.shell.topic_changes == before + 1, "T"
    for view in broker.store.pull("T", 0, 0, 10, 1 << 20).records:
        broker.ask(back(decode(view).phy_offset, 1))
    assert broker.shell.topic_changes == before + 2, "the retry topic, once"
    broker.run(1000)
    assert (count(broker, RETRY, 0), count(broker, RETRY, 1)) == (2, 2)


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        (back(1), ResponseCode.SYSTEM_ERROR, "look message by offset failed, 1"),
        (back(-5), ResponseCode.SYSTEM_ERROR, "look message by offset failed"),
        (back(1 << 40), ResponseCode.SYSTEM_ERROR, "look message by offset failed"),
        (back(group=""), ResponseCode.SYSTEM_ERROR, "lacks the field group"),
        (back(group="a b"), ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "a b"),
        (back(group="x" * 121), ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "x"),
        (back(offset="x"), ResponseCode.SYSTEM_ERROR, "64 bit"),  # type: ignore[arg-type]
        (back(delayLevel="x"), ResponseCode.SYSTEM_ERROR, "64 bit"),
    ],
)
def test_refusals(broker: Broker, command: Command, code: ResponseCode, words: str) -> None:
    broker.ask(send_command())
    end = broker.store.max_phy_offset
    reply = broker.ask(command)
    assert reply.code == code and words in (reply.remark or "")
    assert broker.store.max_phy_offset == end


def test_a_slave_refuses_and_writes_nothing(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker()
    reply = broker.ask(back())
    assert reply.code not in (0, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
    assert broker.core.topics.get(RETRY) is None


def test_a_topic_that_may_not_be_written(broker: Broker) -> None:
    broker.ask(send_command())
    broker.ask(Command(RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": RETRY, "perm": "4"}))
    assert broker.ask(back()).code == ResponseCode.NO_PERMISSION


# --- the group's rule -------------------------------------------------------------------------------------------------
def test_the_consumer_is_answered_when_the_group_has_the_copy(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker(ha_mode="cp", total_replicas=2)
    broker.controller.members = [1, 2]
    broker.start()
    broker.join_slave(2)
    channel = FakeChannel()

    def ack() -> None:
        broker.core.driver.ha_sent(1)
        broker.core.driver.ha_received(1, SlaveAck(PhyOffset(broker.store.max_phy_offset)).encode())
        broker.run()

    broker.core.processor.received(channel, [send_command(i="WAIT\x01false\x02")])
    assert channel.one().code == 0, "its producer does not wait"
    assert broker.ask(back()).code == ResponseCode.SYSTEM_ERROR, "not committed: no consumer can have it"
    ack()
    broker.core.processor.received(channel, [back()])
    broker.run()
    assert channel.take() == []
    ack()
    assert channel.one().code == 0


@pytest.mark.parametrize("status", [item for item in AckStatus if item is not AckStatus.OK])
def test_a_copy_that_is_not_safe_is_an_error_so_that_the_consumer_sends_again(
    broker: Broker, status: AckStatus, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.ask(send_command())
    kept: list[Any] = []
    monkeypatch.setattr(broker.core.driver, "appended", lambda end_offset, waiter: kept.append(waiter))
    channel = FakeChannel()
    broker.core.processor.received(channel, [back()])
    kept[0].finish(status)
    reply = channel.one()
    assert (reply.code, reply.remark) == (ResponseCode.SYSTEM_ERROR, status.name)


# --- a consumer's own send to its retry topic -------------------------------------------------------------------------
def test_sends_to_a_retry_topic(broker: Broker) -> None:
    properties = encode_properties({"DELAY": "1", "RETRY_TOPIC": "T"}).decode()
    assert broker.ask(send_command(RETRY, i=properties, j="16", l="16")).code == 0
    broker.run(1000)
    assert only(broker, RETRY).reconsume_times == 16
    assert broker.ask(send_command(RETRY, i=properties, j="17", l="16")).code == 0
    assert decode_properties(only(broker, DLQ).properties)["DELAY"] == "-1"
    assert broker.ask(send_command(RETRY, j="17")).code == 0
    assert count(broker, DLQ) == 2, "the group's own limit"
    old = {"producerGroup": "P", "topic": RETRY, "queueId": "0", "reconsumeTimes": "3", "maxReconsumeTimes": "2"}
    assert broker.ask(Command(RequestCode.SEND_MESSAGE, old, b"x")).code == 0
    assert count(broker, DLQ) == 3


def test_what_an_ordered_consumer_gives_up_is_dead_at_once(broker: Broker) -> None:
    broker.ask(send_command())
    broker.ask(lock_command("a", 0))
    assert broker.ask(send_command(RETRY, j="1", l="16")).code == 0
    assert (count(broker, RETRY), count(broker, DLQ)) == (0, 1)


def test_batches_and_bad_groups_of_retry_topics(broker: Broker) -> None:
    reply = broker.ask(send_command(RETRY, m="true"))
    assert reply.code == ResponseCode.MESSAGE_ILLEGAL and "retry group" in (reply.remark or "")
    assert broker.ask(send_command("%RETRY%a b")).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert broker.core.groups.get("a b") is None


@pytest.mark.parametrize("times", ["1", "17"])
def test_sends_to_retry_topics_make_no_more_of_them_than_there_may_be_groups(
    make_broker: Callable[..., Broker], times: str
) -> None:
    """Also those that say how often a message may come again, and so need no settings of a group."""
    broker = make_broker(max_group_count=2).start()
    before = len(broker.core.topics)
    codes = [broker.ask(send_command(f"%RETRY%Made{number}", j=times, l="16")).code for number in range(5)]
    assert codes == [0, 0, *[ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST] * 3]
    assert len(broker.core.topics) == before + 2


# --- golden -----------------------------------------------------------------------------------------------------------
class _Taker:
    """Takes appends and remembers them."""

    def __init__(self) -> None:
        self.messages: list[NewMessage] = []

    @property
    def is_serving(self) -> bool:
        return True

    def admission(self) -> tuple[ResponseCode, str]:
        return ResponseCode.SUCCESS, ""

    def append(self, messages: list[NewMessage]) -> AppendedBatch:
        self.messages += messages
        return AppendedBatch((0,), (0,), PhyOffset(0), 0)

    def appended(self, end_offset: PhyOffset, waiter: Waiting | None) -> None:
        assert waiter is not None
        waiter.finish(AckStatus.OK)


@pytest.fixture
def golden(tmp_path: Path) -> Iterator[Store]:
    unpack("n0", tmp_path)
    store = Store.open(HostDisk(tmp_path / "n0"), GOLD, RecordingTracer())
    yield store
    store.close()


def all_of(store: Store, topic: str, queue_id: int = 0) -> list[Record]:
    return [decode(view) for view in store.pull(topic, queue_id, 0, 100, 1 << 24).records]


def test_what_a_real_broker_stored_of_messages_that_came_back(broker: Broker, golden: Store) -> None:
    """Six send-backs of the golden group: three retries and three dead letters, from the record that failed."""
    group, taker = "GID_goldretry", _Taker()
    retries, dead = all_of(golden, f"%RETRY%{group}"), all_of(golden, f"%DLQ%{group}")
    by_key = {decode_properties(item.properties)["UNIQ_KEY"]: item for item in retries}
    cases = []
    for theirs in all_of(golden, SCHEDULE):
        if theirs.reconsume_times:
            origin = int(decode_properties(theirs.properties)["ORIGIN_MESSAGE_ID"][16:], 16)
            cases.append((origin, 1, theirs))
    cases += [(by_key[decode_properties(item.properties)["UNIQ_KEY"]].phy_offset, -1, item) for item in dead]
    assert len(cases) == 6
    for offset, level, theirs in cases:
        processor = SendBackProcessor(
            golden, taker, broker.core.retry_rules, theirs.store_host, 18, BrokerStatistics("C")
        )
        channel = FakeChannel()
        processor.process(
            channel, back(offset, level, group=group, originTopic=decode_properties(theirs.properties)["RETRY_TOPIC"])
        )
        assert channel.one().code == 0
        ours = taker.messages.pop()
        assert (ours.topic, ours.queue_id, bytes(ours.body)) == (theirs.topic, theirs.queue_id, bytes(theirs.body))
        assert decode_properties(ours.properties) == decode_properties(theirs.properties)
        for name in ("flag", "sys_flag", "reconsume_times", "born_at_ms", "born_host"):
            assert getattr(ours, name) == getattr(theirs, name), name


def test_a_record_of_several_messages_cannot_come_back_as_a_whole(broker: Broker, golden: Store) -> None:
    batch = next(item for item in all_of(golden, "GoldBatchCQ") if item.sys_flag & SYS_FLAG_INNER_BATCH)
    taker = _Taker()
    processor = SendBackProcessor(golden, taker, broker.core.retry_rules, batch.store_host, 18, STATISTICS)
    with pytest.raises(RequestError, match="MESSAGE_ILLEGAL"):
        processor.process(FakeChannel(), back(batch.phy_offset, originTopic="GoldBatchCQ", originMsgId="a member's"))
    assert taker.messages == []


def test_a_message_that_says_it_was_tried_as_often_as_can_be_said_comes_back(broker: Broker) -> None:
    """One more did not fit the record: struct.error ended the process."""
    assert broker.ask(send_command(j=str(2**31 - 1))).code == 0
    assert broker.ask(back(maxReconsumeTimes=str(2**31 - 1))).code == 0
    assert only(broker, DLQ).reconsume_times == 2**31 - 1
