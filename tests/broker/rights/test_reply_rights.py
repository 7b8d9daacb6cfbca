"""Replies (324, 325): an account reaches the clients of others by the topic of replies only, and leaves others room."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from rmqha.broker.requests.consumer_calls import Done
from rmqha.broker.requests.request import Channel
from rmqha.broker.services import replies
from rmqha.model.access import AccessList
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.message import encode_properties
from rmqha.wire.command import Command
from tests.broker.rights.acl_world import ACCOUNTS, FOREIGN, OWN, PUB, World
from tests.broker.support import Broker, FakeChannel, send_command

REPLIES = "DefaultCluster_REPLY_TOPIC"


class Pushed:
    """Clients that the broker pushes to; they answer when the test says so."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.clients: list[Channel] = []
        self.waiting: list[Done] = []
        world.broker.shell.client_call = self._call

    def _call(self, channel: Channel, command: Command, timeout_ms: int, done: Done) -> None:
        self.clients.append(channel)
        self.waiting.append(done)

    def ask(self, command: Command, key: str = OWN.name) -> list[Command]:
        """The answers, by a connection of its own: the broker asks the others."""
        return self.world.ask(command, key, FakeChannel("10.0.0.9:9"))

    def allow(self, *names: str) -> None:
        """These accounts may send replies."""
        granted = {name: replace(ACCOUNTS[name], topics={**ACCOUNTS[name].topics, REPLIES: PUB}) for name in names}
        self.world.accounts.access = AccessList({**ACCOUNTS, **granted})


@pytest.fixture
def pushed(make_broker: Callable[..., Broker]) -> Pushed:
    return Pushed(World(make_broker().start()))


def reply(topic: str, code: int = RequestCode.SEND_REPLY_MESSAGE_V2, body: bytes = b"forged") -> Command:
    properties = {"CORRELATION_ID": "c", "MSG_TYPE": "reply", "REPLY_TO_CLIENT": FOREIGN.client_id}
    text = encode_properties(properties).decode()
    if code == RequestCode.SEND_REPLY_MESSAGE:
        return Command(code, {"producerGroup": "P", "topic": topic, "queueId": "0", "properties": text}, body)
    command = send_command(topic, 0, body, i=text)
    command.code = code
    return command


@pytest.mark.parametrize("code", [RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2])
def test_who_may_send_to_a_topic_of_its_own_pushes_nothing_to_the_clients_of_others(
    pushed: Pushed, code: RequestCode
) -> None:
    (answer,) = pushed.ask(reply(OWN.topic, code))
    assert answer.code == ResponseCode.SYSTEM_ERROR and "not that of replies" in (answer.remark or "")
    (answer,) = pushed.ask(reply(REPLIES, code))
    assert answer.code == ResponseCode.NO_PERMISSION
    assert pushed.clients == [] and b"forged" in pushed.world.bodies(OWN.topic), "stored, as any"


@pytest.mark.parametrize("code", [RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2])
def test_who_may_send_replies_reaches_whoever_waits(pushed: Pushed, code: RequestCode) -> None:
    pushed.allow(OWN.name)
    assert pushed.ask(reply(REPLIES, code)) == []
    assert pushed.clients == [pushed.world.channels[FOREIGN]]


@pytest.mark.parametrize(("bound", "body"), [("MAX_PUSH_COUNT", b""), ("MAX_PUSH_BYTES", b"x")])
def test_one_account_leaves_room_for_the_replies_of_others(
    make_broker: Callable[..., Broker], monkeypatch: pytest.MonkeyPatch, bound: str, body: bytes
) -> None:
    """By a client of its own that does not answer it would keep all others from replying."""
    monkeypatch.setattr(replies, bound, 4)
    pushed = Pushed(World(make_broker().start()))
    pushed.allow(OWN.name, FOREIGN.name)

    def codes(key: str, count: int) -> list[int]:
        return [answer.code for _ in range(count) for answer in pushed.ask(reply(REPLIES, body=body), key)]

    assert codes(OWN.name, 3) == [ResponseCode.SYSTEM_BUSY]
    assert codes(FOREIGN.name, 2) == []
    assert codes(FOREIGN.name, 1) == [ResponseCode.SYSTEM_BUSY]
    for done in pushed.waiting:
        done("no answer")
    pushed.waiting.clear()
    assert codes(OWN.name, 2) == [] and codes(OWN.name, 1) == [ResponseCode.SYSTEM_BUSY]
