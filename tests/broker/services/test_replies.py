"""Answers to messages whose producers wait: pushed to the client that is named, and stored, or refused."""

from __future__ import annotations

from typing import Any

import pytest

from rmqha.broker.requests.consumer_calls import Done
from rmqha.broker.requests.request import Channel
from rmqha.broker.services.replies import MAX_PUSH_COUNT, PUSH_TIMEOUT_MS
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.message import decode_properties, encode_properties
from rmqha.wire.command import FLAG_ONEWAY, Command
from rmqha.wire.lenient_json import dumps
from tests.broker.support import Broker, FakeChannel, pull_command, send_command

TOPIC = "DefaultCluster_REPLY_TOPIC"
PROPERTIES = {"CORRELATION_ID": "c-1", "MSG_TYPE": "reply", "TTL": "3000"}


def heartbeat(client_id: str, *groups: str) -> Command:
    body = {"clientID": client_id, "producerDataSet": [{"groupName": group} for group in groups], "consumerDataSet": []}
    return Command(RequestCode.HEART_BEAT, {}, dumps(body))


def reply_command(to: str | None = "asker", body: bytes | memoryview = b"answer", **ext: Any) -> Command:
    properties = PROPERTIES | ({} if to is None else {"REPLY_TO_CLIENT": to})
    command = send_command(TOPIC, i=encode_properties(properties).decode(), **ext)
    command.code, command.body = RequestCode.SEND_REPLY_MESSAGE_V2, body
    return command


class Asker:
    """A producer that waits for an answer, which the test gives its broker."""

    def __init__(self, broker: Broker) -> None:
        self.channel = FakeChannel("127.0.0.1:777")
        self.pushed: list[tuple[Channel, Command, Done]] = []
        broker.shell.client_call = self._call
        broker.core.processor.received(self.channel, [heartbeat("asker", "P")])
        assert self.channel.one().code == 0

    def _call(self, channel: Channel, command: Command, timeout_ms: int, done: Done) -> None:
        assert timeout_ms == PUSH_TIMEOUT_MS
        self.pushed.append((channel, command, done))


@pytest.fixture
def asker(broker: Broker) -> Asker:
    return Asker(broker)


def ask(broker: Broker, command: Command) -> FakeChannel:
    channel = FakeChannel("127.0.0.1:888")
    broker.core.processor.received(channel, [command])
    broker.run()
    return channel


def stored(broker: Broker) -> int:
    return broker.store.queue_range(TOPIC, 0)[1]


def test_the_client_that_waits_gets_it_and_it_is_stored(broker: Broker, asker: Asker) -> None:
    read = bytearray(b"answer")
    channel = ask(broker, reply_command(body=memoryview(read)))
    read[:] = b"others"  # the next read of the socket
    ((client, push, done),) = asker.pushed
    assert client is asker.channel and not channel.sent and not stored(broker)
    assert (push.code, bytes(push.body)) == (RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, b"answer")
    now = str(broker.clock.wall_ms())
    properties = decode_properties(push.ext.pop("properties").encode())
    assert properties == PROPERTIES | {"REPLY_TO_CLIENT": "asker", "PUSH_REPLY_TIME": now}
    assert push.ext == {
        "producerGroup": "P", "topic": TOPIC, "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "queueId": "0",
        "sysFlag": "0", "bornTimestamp": "1", "flag": "0", "reconsumeTimes": "0", "unitMode": "false",
        "bornHost": "127.0.0.1:888", "storeHost": f"127.0.0.1:{broker.config.listen_port}", "storeTimestamp": now,
    }  # fmt: skip
    done(push.reply())
    broker.run()
    answer = channel.one()
    assert (answer.code, answer.ext["queueId"], answer.ext["queueOffset"]) == (ResponseCode.SUCCESS, "0", "0")
    found = broker.ask(pull_command(TOPIC))
    assert found.code == 0 and b"answer" in bytes(found.body)


def test_the_older_form_is_taken(broker: Broker, asker: Asker) -> None:
    properties = encode_properties(PROPERTIES | {"REPLY_TO_CLIENT": "asker"}).decode()
    ext = {"producerGroup": "P", "topic": TOPIC, "queueId": "0", "properties": properties, "batch": "true"}
    channel = ask(broker, Command(RequestCode.SEND_REPLY_MESSAGE, ext, b"answer"))
    ((_, push, done),) = asker.pushed
    assert push.ext["producerGroup"] == "P" and push.ext["topic"] == TOPIC
    done(push.reply())
    broker.run()
    assert channel.one().code == ResponseCode.SUCCESS and stored(broker) == 1


@pytest.mark.parametrize(
    ("to", "remark"),
    [
        (None, "reply message properties[REPLY_TO_CLIENT] is null"),
        ("gone", "push reply message fail, channel of <gone> not found."),
    ],
)
def test_one_for_nobody_is_stored_and_its_sender_is_told(
    broker: Broker, asker: Asker, to: str | None, remark: str
) -> None:
    answer = ask(broker, reply_command(to)).one()
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, remark)
    assert not asker.pushed and stored(broker) == 1


def test_a_client_that_does_not_take_it_is_told_of(broker: Broker, asker: Asker) -> None:
    channel = ask(broker, reply_command())
    asker.pushed[0][2]("no answer in 10000 ms")
    broker.run()
    answer = channel.one()
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "push reply message to askerfail.")
    channel = ask(broker, reply_command())
    asker.pushed[1][2](asker.pushed[1][1].reply(ResponseCode.SYSTEM_ERROR))
    broker.run()
    assert channel.one().code == ResponseCode.SYSTEM_ERROR and stored(broker) == 2


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"b": "TopicNowhere", "c": "NoSuchTopic"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"e": "7"}, ResponseCode.INVALID_PARAMETER),
        ({"i": "x" * 40_000}, ResponseCode.MESSAGE_ILLEGAL),
        ({"e": "x"}, ResponseCode.SYSTEM_ERROR),
    ],
)
def test_what_no_send_may_be_is_neither_pushed_nor_stored(
    broker: Broker, asker: Asker, change: dict[str, str], code: ResponseCode
) -> None:
    command, end = reply_command(), broker.store.max_phy_offset
    command.ext |= change
    assert ask(broker, command).one().code == code
    assert not asker.pushed and broker.store.max_phy_offset == end


def test_who_is_no_master_pushes_nothing(broker: Broker, asker: Asker) -> None:
    channel = ask(broker, reply_command())
    ext = {"masterBrokerId": "2", "masterEpoch": "9", "syncStateSetEpoch": "3", "masterAddress": "127.0.0.1:9"}
    body = b'{"syncStateSet":[2],"syncStateSetEpoch":3}'
    broker.core.driver.role_notified(Command(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, ext, body))
    asker.pushed[0][2](asker.pushed[0][1].reply())
    assert channel.one().code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert ask(broker, reply_command()).one().code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert len(asker.pushed) == 1


@pytest.mark.parametrize("flag", ["0", "4"])
@pytest.mark.parametrize("is_v2", [True, False])
def test_a_reply_is_no_half_of_a_transaction(broker: Broker, asker: Asker, flag: str, is_v2: bool) -> None:
    """Who answers a transactional message may copy its properties."""
    properties = encode_properties(PROPERTIES | {"TRAN_MSG": "true", "REPLY_TO_CLIENT": "asker"}).decode()
    command = reply_command(f=flag)
    command.ext["i"] = properties
    if not is_v2:
        ext = {"producerGroup": "P", "topic": TOPIC, "defaultTopic": "TBW102", "defaultTopicQueueNums": "4"}
        ext |= {"queueId": "0", "sysFlag": flag, "bornTimestamp": "1", "flag": "0", "properties": properties}
        command = Command(RequestCode.SEND_REPLY_MESSAGE, ext, b"answer")
    channel = ask(broker, command)
    asker.pushed[0][2](asker.pushed[0][1].reply())
    broker.run()
    assert channel.one().code == ResponseCode.SUCCESS
    assert stored(broker) == 1 and broker.store.queue_range("RMQ_SYS_TRANS_HALF_TOPIC", 0)[1] == 0


def test_a_oneway_reply_is_pushed_and_stored(broker: Broker, asker: Asker) -> None:
    command = reply_command()
    command.flag |= FLAG_ONEWAY
    channel = ask(broker, command)
    asker.pushed[0][2](asker.pushed[0][1].reply())
    broker.run()
    assert not channel.sent and stored(broker) == 1


def test_the_client_is_where_its_last_heartbeat_came_from(broker: Broker, asker: Asker) -> None:
    newer = FakeChannel("127.0.0.1:778")
    broker.core.processor.received(newer, [heartbeat("asker", "P", "Q")])
    ask(broker, reply_command())
    assert asker.pushed[-1][0] is newer
    # an end of the older connection, or of one of its groups, is none of the client
    broker.core.processor.closed(asker.channel)
    leave = Command(RequestCode.UNREGISTER_CLIENT, {"clientID": "asker", "producerGroup": "Q"})
    broker.core.processor.received(newer, [leave])
    ask(broker, reply_command())
    assert asker.pushed[-1][0] is newer
    broker.core.processor.closed(newer)
    assert ask(broker, reply_command()).one().code == ResponseCode.SYSTEM_ERROR
    assert not broker.core.clients._producer_clients


def test_another_name_of_the_same_connection_ends_the_first(broker: Broker, asker: Asker) -> None:
    broker.core.processor.received(asker.channel, [heartbeat("renamed", "P")])
    assert broker.core.clients.producer_channel("asker") is None
    assert broker.core.clients.producer_channel("renamed") is asker.channel


def test_replies_on_their_way_are_bounded(broker: Broker, asker: Asker) -> None:
    for _ in range(MAX_PUSH_COUNT):
        ask(broker, reply_command(body=b""))
    assert ask(broker, reply_command(body=b"")).one().code == ResponseCode.SYSTEM_BUSY
    asker.pushed[0][2]("no answer")
    ask(broker, reply_command(body=b""))
    assert len(asker.pushed) == MAX_PUSH_COUNT + 1
