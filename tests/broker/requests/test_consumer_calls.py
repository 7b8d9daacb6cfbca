"""Requests that a member of a group answers: passed on by its connection, bounded, refused with a sentence."""

from __future__ import annotations

import pytest

from rmqha.broker.requests.consumer_calls import CALL_TIMEOUT_MS, MAX_CALL_COUNT, STATUS_TIMEOUT_MS, Done
from rmqha.broker.requests.request import Channel
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.identity import Credentials
from rmqha.wire.auth.signature import sign
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import ObjectKey, dumps, loads
from tests.broker.requests.test_group_requests import beat
from tests.broker.rights.acl_world import OWN, principal
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


def test_the_member_does_not_learn_what_the_request_was_signed_with(broker: Broker, member: Member) -> None:
    """A signature in Apache's form covers values alone: it would be good for other requests of the same operator."""
    operator = Credentials(access_key="operator", secret_key="secret-of-the-operator")
    sent = broker.ask(send_command())
    broker.run()
    about = {"consumerGroup": "G", "clientId": "c1", "topic": "T", "msgId": sent.ext["msgId"]}
    for code in (RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.CONSUME_MESSAGE_DIRECTLY):
        signed = Command(code, dict(about))
        sign(signed, operator)
        ask(broker, code, **signed.ext, SecurityToken="t", SignatureForm="2", SignatureCount="1")
    for command, _ in member.calls:
        names = command.ext.keys() - {"brokerName", "topicSysFlag", "groupSysFlag"}
        assert names == about.keys(), command.code
    assert len(member.calls) == 2


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


def test_one_account_leaves_half_of_the_calls_to_others(broker: Broker, member: Member) -> None:
    ext = {"consumerGroup": "G", "clientId": "c1"}

    def call(key: str) -> list[int]:
        command = Command(RequestCode.GET_CONSUMER_RUNNING_INFO, dict(ext))
        command.principal, channel = principal(key), FakeChannel()
        broker.core.processor.received(channel, [command])
        return [answer.code for answer in channel.take()]

    assert [call(OWN.name) for _ in range(MAX_CALL_COUNT // 2 + 1)] == [[]] * (MAX_CALL_COUNT // 2) + [[2]]
    assert [call("operator") for _ in range(MAX_CALL_COUNT // 2 + 1)] == [[]] * (MAX_CALL_COUNT // 2) + [[2]]
    member.calls[0][1]("gone")
    assert call(OWN.name) == []


class Members:
    """Consumers of one group that are asked how far they are; the test answers for them."""

    def __init__(self, broker: Broker, *client_ids: str) -> None:
        self.calls: dict[str, tuple[Command, Done]] = {}
        self._names: dict[Channel, str] = {}
        for client_id in client_ids:
            channel = FakeChannel()
            self._names[channel] = client_id
            broker.core.processor.received(channel, [beat(client_id)])
        broker.shell.client_call = self._call

    def _call(self, channel: Channel, command: Command, timeout_ms: int, done: Done) -> None:
        assert timeout_ms == STATUS_TIMEOUT_MS
        self.calls[self._names[channel]] = command, done

    def answer(self, client_id: str, body: bytes, code: int = 0) -> None:
        command, done = self.calls.pop(client_id)
        done(command.reply(code, {}, body))


STATUS = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
QUEUE = ObjectKey({"brokerName": "broker-a", "queueId": 1, "topic": "T"})
FAR = dumps({"consumerTable": {}, "messageQueueTable": {QUEUE: 7}})


def test_members_are_asked_how_far_they_are(broker: Broker) -> None:
    """A member that does not answer, or nothing that could be read, is left out or has nothing."""
    members = Members(broker, "c1", "c2", "c3", "c4", "c5", "c6")
    operator = ask(broker, STATUS, topic="T", group="G")
    assert {(call.code, *sorted(call.ext.items())) for call, _ in members.calls.values()} == {
        (RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, ("group", "G"), ("topic", "T"))
    }
    members.answer("c2", FAR)
    members.answer("c1", FAR)
    members.answer("c3", b"{", 0)
    members.answer("c4", dumps({"messageQueueTable": {QUEUE: "x"}}))
    members.answer("c5", b'{"messageQueueTable":{"a":1}' + b" " * 96 * 1024 + b"}")
    assert not operator.sent
    members.calls["c6"][1]("it did not answer")
    reply = operator.one()
    nothing: dict[str, int] = {}
    assert reply.code == 0 and loads(reply.body) == {
        "consumerTable": {"c1": {QUEUE: 7}, "c2": {QUEUE: 7}, "c3": nothing, "c4": nothing, "c5": nothing},
        "messageQueueTable": {},
    }


def test_one_member_is_asked_how_far_it_is(broker: Broker) -> None:
    members = Members(broker, "c1", "c2")
    operator = ask(broker, STATUS, topic="T", group="G", clientAddr="c2")
    assert list(members.calls) == ["c2"]
    members.answer("c2", FAR, 1)
    assert loads(operator.one().body) == {"consumerTable": {}, "messageQueueTable": {}}
    nobody = ask(broker, STATUS, topic="T", group="G", clientAddr="c3").one()
    assert (nobody.code, loads(nobody.body)["consumerTable"]) == (0, {})


def test_a_group_that_is_not_there_or_too_large_is_not_asked(broker: Broker) -> None:
    reply = ask(broker, STATUS, topic="T", group="G").one()
    assert (reply.code, reply.remark) == (1, "No Any Consumer online in the consumer group: [G]")
    members = Members(broker, *(f"c{number}" for number in range(MAX_CALL_COUNT + 1)))
    reply = ask(broker, STATUS, topic="T", group="G").one()
    assert reply.code == 1 and "name one" in (reply.remark or "") and not members.calls
    assert not ask(broker, STATUS, topic="T", group="G", clientAddr="c7").sent
    members.answer("c7", FAR)


def test_calls_for_how_far_members_are_count_as_others(broker: Broker) -> None:
    members = Members(broker, *(f"c{number}" for number in range(MAX_CALL_COUNT)))
    operator = ask(broker, STATUS, topic="T", group="G")
    assert ask(broker, STATUS, topic="T", group="G", clientAddr="c1").one().code == ResponseCode.SYSTEM_BUSY
    for client_id in list(members.calls):
        members.answer(client_id, FAR)
    assert len(loads(operator.one().body)["consumerTable"]) == MAX_CALL_COUNT
    assert not ask(broker, STATUS, topic="T", group="G", clientAddr="c1").sent
