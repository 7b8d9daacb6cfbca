"""What a client may get wrong, and the code and the words of RocketMQ with which it is told. Nothing is written."""

from __future__ import annotations

from typing import Any

import pytest

from rmqha.broker.tables.topics import TopicConfig
from rmqha.model.code import PERM_READ, PERM_WRITE, SEE_FAQ, RequestCode
from rmqha.model.code import ResponseCode as Code
from rmqha.wire.command import FLAG_ONEWAY, Command
from tests.broker.support import Broker, FakeChannel, pull_command, send_command

TOO_LONG = (
    "the message is illegal, maybe msg body or properties length not matched. msg body length limit 100000B, "
    "msg properties length limit 32KB."
)
ILLEGAL_NAME = "The specified topic: {}, contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
TOO_LONG_NAME = "The specified topic: {}, is longer than topic max length: 127"
LAID_OUT = (
    "TopicConfig [topicName=T, readQueueNums=4, writeQueueNums=4, perm=RW-, topicFilterType=SINGLE_TAG, "
    "topicSysFlag=0, order=false, attributes={}]"
)
BACK = {"group": "G", "offset": "0", "delayLevel": "0", "originTopic": "T", "maxReconsumeTimes": "16"}
TOPIC = RequestCode.UPDATE_AND_CREATE_TOPIC


def batch(body: bytes, **ext: Any) -> Command:
    return Command(RequestCode.SEND_BATCH_MESSAGE, send_command(**ext).ext, body)


@pytest.mark.parametrize(
    ("command", "code", "remark"),
    [
        (Command(4711), Code.REQUEST_CODE_NOT_SUPPORTED, " request type 4711 not supported"),
        (Command(-1), Code.REQUEST_CODE_NOT_SUPPORTED, " request type -1 not supported"),
        (Command(52_099), Code.REQUEST_CODE_NOT_SUPPORTED, " request type 52099 not supported"),
        # names
        (send_command(" "), Code.INVALID_PARAMETER, "The specified topic is blank."),
        (send_command("no/slash"), Code.INVALID_PARAMETER, ILLEGAL_NAME.format("no/slash")),
        (send_command("ünicode"), Code.INVALID_PARAMETER, ILLEGAL_NAME.format("ünicode")),
        (send_command("x" * 128), Code.INVALID_PARAMETER, TOO_LONG_NAME.format("x" * 128)),
        (
            send_command("SCHEDULE_TOPIC_XXXX"),
            Code.NO_PERMISSION,
            "Sending message to topic[SCHEDULE_TOPIC_XXXX] is forbidden.",
        ),
        (send_command("New", c="No"), Code.TOPIC_NOT_EXIST, f"topic[New] not exist, apply first please!{SEE_FAQ}"),
        (pull_command("New"), Code.TOPIC_NOT_EXIST, f"topic[New] not exist, apply first please! {SEE_FAQ}"),
        (
            pull_command(consumerGroup="g" * 121),
            Code.SUBSCRIPTION_GROUP_NOT_EXIST,
            f"subscription group [{'g' * 121}] does not exist, {SEE_FAQ}",
        ),
        (Command(TOPIC, {"topic": "a b"}), Code.INVALID_PARAMETER, ILLEGAL_NAME.format("a b")),
        (
            Command(TOPIC, {"topic": "TBW102"}),
            Code.INVALID_PARAMETER,
            "The topic[TBW102] is conflict with system topic.",
        ),
        # queues
        (
            send_command(queue_id=4),
            Code.INVALID_PARAMETER,
            f"request queueId[4] is illegal, {LAID_OUT} Producer: 127.0.0.1:50000",
        ),
        (
            pull_command(queue_id=4),
            Code.INVALID_PARAMETER,
            "queueId[4] is illegal, topic:[T] topicConfig.readQueueNums:[4] consumer:[/127.0.0.1:50000]",
        ),
        # sizes
        (send_command(body=bytes(100_001)), Code.MESSAGE_ILLEGAL, TOO_LONG),
        (send_command(i="A\x01" + "x" * 32_760 + "\x02"), Code.MESSAGE_ILLEGAL, TOO_LONG),
        # properties
        (send_command(i="DELAY\x01x\x02"), Code.MESSAGE_ILLEGAL, "property DELAY = 'x' is no delay level"),
        (
            send_command(f="4"),
            Code.MESSAGE_ILLEGAL,
            "a transactional message must have the property TRAN_MSG=true",
        ),
        (batch(b""), Code.MESSAGE_ILLEGAL, "the batch holds no message"),
        (batch(b"x" * 21), Code.MESSAGE_ILLEGAL, "the batch does not hold whole messages: byte 0 of 21"),
        (batch(b"\0" * 30), Code.MESSAGE_ILLEGAL, "message 0 of the batch leaves the body"),
        (batch(b"", b="%RETRY%G"), Code.MESSAGE_ILLEGAL, "batch request does not support retry group %RETRY%G"),
        # permissions
        (send_command("ReadOnly"), Code.NO_PERMISSION, "the topic[ReadOnly] sending message is forbidden"),
        (pull_command("WriteOnly"), Code.NO_PERMISSION, "the topic[WriteOnly] pulling message is forbidden"),
        (
            pull_command(consumerGroup="Off"),
            Code.NO_PERMISSION,
            "subscription group no permission, Off",
        ),
        # subscriptions
        (pull_command(sysFlag="0"), Code.SUBSCRIPTION_NOT_EXIST, "the consumer's group info not exist"),
        (pull_command(subscription="||"), Code.SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed"),
        (
            pull_command(expressionType="SQL92"),
            Code.SYSTEM_ERROR,
            "The broker does not support consumer to filter message by SQL92",
        ),
        # handing back
        (
            Command(RequestCode.CONSUMER_SEND_MSG_BACK, {**BACK, "offset": "99999"}),
            Code.SYSTEM_ERROR,
            "look message by offset failed, 99999",
        ),
        (
            Command(RequestCode.CONSUMER_SEND_MSG_BACK, {**BACK, "group": "no/slash"}),
            Code.SUBSCRIPTION_GROUP_NOT_EXIST,
            f"subscription group not exist, no/slash {SEE_FAQ}",
        ),
    ],
    ids=lambda value: str(getattr(value, "code", value))[:40],
)
def test_it_is_told_what_is_wrong(broker: Broker, command: Command, code: Code, remark: str) -> None:
    assert broker.ask(send_command()).code == 0
    broker.core.topics.put(TopicConfig("ReadOnly", 4, 4, PERM_READ))
    broker.core.topics.put(TopicConfig("WriteOnly", 4, 4, PERM_WRITE))
    broker.core.groups.put({"groupName": "Off", "consumeEnable": False})
    end_offset = broker.store.max_phy_offset
    reply = broker.ask(command)
    assert (reply.code, reply.remark) == (code, remark)
    assert broker.store.max_phy_offset == end_offset
    # the connection serves on, and what is asked without an answer gets none
    assert broker.ask(send_command()).code == 0
    command.flag |= FLAG_ONEWAY
    channel = FakeChannel()
    if command.code not in (RequestCode.PULL_MESSAGE, RequestCode.CONSUMER_SEND_MSG_BACK):
        broker.core.processor.received(channel, [command])
        assert channel.take() == []


@pytest.mark.parametrize("code", [39, 326, 200_056])
def test_what_is_not_there_is_refused_at_once(broker: Broker, code: int) -> None:
    """docs/use/compatibility.md names these codes."""
    end = broker.store.max_phy_offset
    channel = FakeChannel()
    broker.core.processor.received(channel, [Command(code, send_command().ext, b"x")])
    reply = channel.one()
    assert (reply.code, reply.remark) == (Code.REQUEST_CODE_NOT_SUPPORTED, f" request type {code} not supported")
    broker.core.processor.received(channel, [Command(code, send_command().ext, b"x", flag=FLAG_ONEWAY)])
    assert channel.take() == [] and broker.store.max_phy_offset == end


@pytest.mark.parametrize("change", [{"f": "4"}, {"f": "8"}, {"f": "12"}])
@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE])
def test_no_half_message_without_its_property_is_written(broker: Broker, change: dict[str, Any], code: int) -> None:
    end, command = broker.store.max_phy_offset, send_command(**change)
    command.code = code
    assert broker.ask(command).code == Code.MESSAGE_ILLEGAL
    assert broker.store.max_phy_offset == end
