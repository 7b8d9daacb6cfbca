"""Requests that a member of a group answers: passed on by its connection, bounded, refused with a sentence."""

from __future__ import annotations

import pytest

from rmqha.broker.requests.consumer_calls import CALL_TIMEOUT_MS, MAX_CALL_COUNT, Done
from rmqha.broker.requests.request import Channel
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.wire.command import Command
from tests.broker.requests.test_group_requests import beat
from tests.broker.support import Broker, FakeChannel, send_command


class Member:
    """A consumer that keeps what it is asked until the test answers."""

    def __init__(self, broker: Broker) -> None:
        self.channel = FakeChannel("127.0.0.1:777")
        self.calls: list[tuple[Command, Done]] = []
        broker.core.processor.received(self.channel, [beat("c1")])
        broker.shell.client_call = self._call

    def _call(self, channel: Channel, command: Command, timeout_ms: int, done: Done) -> None:
        assert channel is self.channel and timeout_ms == CALL_TIMEOUT_MS
        self.calls.append((command, done))


@pytest.fixture
def member(broker: Broker) -> Member:
    return Member(broker)


def ask(broker: Broker, code: int, **ext: str) -> FakeChannel:
    operator = FakeChannel("127.0.0.1:888")
    broker.core.processor.received(operator, [Command(code, ext)])
    return operator


def test_the_member_is_asked_and_its_answer_goes_back(broker: Broker, member: Member) -> None:
    ext = {"consumerGroup": "G", "clientId": "c1", "jstackEnable": "true"}
    operator = ask(broker, RequestCode.GET_CONSUMER_RUNNING_INFO, **ext)
    ((command, done),) = member.calls
    assert (command.code, command.ext) == (RequestCode.GET_CONSUMER_RUNNING_INFO, ext) and not operator.sent
    done(command.reply(0, {"a": "b"}, b"state"))
    reply = operator.one()
    assert (reply.code, reply.ext, reply.body) == (0, {"a": "b"}, b"state")


def test_the_member_gets_the_record_that_it_is_to_consume(broker: Broker, member: Member) -> None:
    sent = broker.ask(send_command())
    broker.run()
    ext = {"consumerGroup": "G", "clientId": "c1", "topic": "T", "msgId": sent.ext["msgId"]}
    ask(broker, RequestCode.CONSUME_MESSAGE_DIRECTLY, **ext)
    ((command, _),) = member.calls
    assert command.ext == ext | {"brokerName": "broker-a", "topicSysFlag": "0", "groupSysFlag": "0"}
    view = broker.ask(Command(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": "0"}))
    assert command.body == view.body and len(view.body) > 0


@pytest.mark.parametrize("message_id", ["xyz", "7F00000100002A9F0000000000FFFFFF"])
def test_no_such_message(broker: Broker, member: Member, message_id: str) -> None:
    ext = {"consumerGroup": "G", "clientId": "c1", "topic": "T", "msgId": message_id}
    reply = ask(broker, RequestCode.CONSUME_MESSAGE_DIRECTLY, **ext).one()
    assert reply.code == ResponseCode.SYSTEM_ERROR and reply.remark and not member.calls


@pytest.mark.parametrize(("group", "client_id"), [("G", "c2"), ("H", "c1")])
def test_nobody_of_that_name(broker: Broker, member: Member, group: str, client_id: str) -> None:
    reply = ask(broker, RequestCode.GET_CONSUMER_RUNNING_INFO, consumerGroup=group, clientId=client_id).one()
    assert (reply.code, reply.remark) == (1, f"The Consumer <{group}> <{client_id}> not online")


def test_no_answer_in_time(broker: Broker, member: Member) -> None:
    operator = ask(broker, RequestCode.GET_CONSUMER_RUNNING_INFO, consumerGroup="G", clientId="c1")
    member.calls[0][1]("it did not answer")
    reply = operator.one()
    assert (reply.code, reply.remark) == (207, "consumer <G> <c1> Timeout: it did not answer")


def test_calls_are_bounded(broker: Broker, member: Member) -> None:
    ext = {"consumerGroup": "G", "clientId": "c1"}
    for _ in range(MAX_CALL_COUNT):
        assert not ask(broker, RequestCode.GET_CONSUMER_RUNNING_INFO, **ext).sent
    assert ask(broker, RequestCode.GET_CONSUMER_RUNNING_INFO, **ext).one().code == ResponseCode.SYSTEM_BUSY
    member.calls[0][1]("gone")
    assert not ask(broker, RequestCode.GET_CONSUMER_RUNNING_INFO, **ext).sent
