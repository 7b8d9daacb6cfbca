"""Who hears what comes later: checks of transactions, which hold the message, and messages that were waited for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from rmqha.model.access import AccessList
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import dumps
from tests.broker.rights.acl_world import ACCOUNTS, FOREIGN, OWN, READER, World, pull
from tests.broker.support import Broker, FakeChannel, send_command
from tests.broker.transactions import ROUND_MS, prepared

ANYBODYS = "anybodys-producers"
"""A group that no account's groupPerms name."""


@pytest.fixture
def world(make_broker: Callable[..., Broker]) -> World:
    return World(make_broker().start())


def beat(*groups: str, client_id: str = "c", consumers: tuple[str, ...] = ()) -> Command:
    producers = [{"groupName": group} for group in groups]
    consumer_data = [{"groupName": group, "subscriptionDataSet": []} for group in consumers]
    body = {"clientID": client_id, "producerDataSet": producers, "consumerDataSet": consumer_data}
    return Command(RequestCode.HEART_BEAT, {}, dumps(body))


def leave(**groups: str) -> Command:
    return Command(RequestCode.UNREGISTER_CLIENT, {"clientID": "c", **groups})


def checks(channel: FakeChannel) -> list[bytes]:
    """Bodies of the checks that came."""
    return [bytes(item.body) for item in channel.take() if item.code == RequestCode.CHECK_TRANSACTION_STATE]


def rounds(world: World, count: int = 2) -> None:
    for _ in range(count):
        world.broker.run(ROUND_MS)


def half(world: World, key: str = OWN.name, group: str = ANYBODYS) -> Command:
    """The answer to a prepared message of the account's topic."""
    side = FOREIGN if key == FOREIGN.name else OWN
    command = prepared(world.broker, "ID-x", side.topic, 0, PGROUP=group)
    command.body = b"half of " + side.secret
    (answer,) = world.ask(command, key, FakeChannel())
    return answer


def test_a_producer_group_that_is_anothers_is_not_joined(world: World) -> None:
    """The heartbeat is taken all the same: its sender may have other groups."""
    thief = FakeChannel("10.0.0.9:1")
    (answer,) = world.ask(beat(FOREIGN.producers, ANYBODYS), OWN.name, thief)
    assert answer.code == 0
    clients = world.broker.core.clients
    assert thief not in (clients.producer_group(FOREIGN.producers) or {})
    assert thief in (clients.producer_group(ANYBODYS) or {})
    rounds(world)
    assert checks(thief) == []
    heard = checks(world.channels[FOREIGN])
    assert heard and all(FOREIGN.secret in body for body in heard)


def test_who_may_not_send_to_the_topic_hears_nothing(world: World) -> None:
    assert half(world, FOREIGN.name).code == 0
    thief, owner = FakeChannel("10.0.0.9:1"), FakeChannel("10.0.0.8:1")
    world.ask(beat(ANYBODYS), OWN.name, thief)
    world.ask(beat(ANYBODYS), READER, thief)
    rounds(world)
    assert checks(thief) == []
    told = [fields for name, fields in world.broker.tracer.events if name == "transaction_check_withheld"]
    assert told == [{"producer_group": ANYBODYS, "topic": FOREIGN.topic}], "once"
    world.ask(beat(ANYBODYS), FOREIGN.name, owner)
    rounds(world)
    assert checks(thief) == []
    assert any(b"half of " + FOREIGN.secret in body for body in checks(owner))


def test_a_right_that_was_taken_away_counts_for_who_is_connected(world: World) -> None:
    assert half(world).code == 0
    owner = FakeChannel("10.0.0.8:1")
    world.ask(beat(ANYBODYS), OWN.name, owner)
    rounds(world)
    assert any(OWN.secret in body for body in checks(owner))
    world.accounts.access = AccessList({**ACCOUNTS, OWN.name: replace(ACCOUNTS[OWN.name], topics={})})
    rounds(world)
    assert checks(owner) == []


def test_who_needs_no_account_hears_all(world: World) -> None:
    assert half(world).code == 0
    channel = FakeChannel("127.0.0.1:1")
    world.broker.core.processor.received(channel, [beat(ANYBODYS)])
    rounds(world)
    assert any(OWN.secret in body for body in checks(channel))


def test_nobody_is_asked_about_what_another_account_says_that_he_sent(world: World) -> None:
    answer = half(world, OWN.name, FOREIGN.producers)
    assert answer.code == ResponseCode.NO_PERMISSION and FOREIGN.producers in (answer.remark or "")
    assert half(world, OWN.name, OWN.producers).code == 0


def test_a_group_is_left_by_the_connection_that_is_in_it_only(world: World) -> None:
    clients = world.broker.core.clients

    def members() -> int:
        return len(clients.producer_group(FOREIGN.producers) or {}) + len(clients.producer_group(ANYBODYS) or {})

    other = FakeChannel("10.0.0.8:1")
    world.ask(beat(ANYBODYS, client_id="other"), OWN.name, other)
    mine = FakeChannel("10.0.0.7:1")
    world.ask(beat(ANYBODYS, client_id="mine"), OWN.name, mine)
    assert members() == 3
    foreign = leave(producerGroup=FOREIGN.producers, clientID=FOREIGN.client_id)
    (answer,) = world.ask(foreign, OWN.name, mine)
    assert (answer.code, members()) == (ResponseCode.NO_PERMISSION, 3)
    (answer,) = world.ask(leave(producerGroup=FOREIGN.producers, clientID="mine"), OWN.name, mine)
    assert (answer.code, members()) == (0, 3)
    (answer,) = world.ask(leave(producerGroup=ANYBODYS, clientID="other"), OWN.name, FakeChannel("10.0.0.6:1"))
    assert (answer.code, members()) == (ResponseCode.NO_PERMISSION, 3)
    (answer,) = world.ask(leave(producerGroup=ANYBODYS, clientID="mine"), OWN.name, mine)
    assert (answer.code, members()) == (0, 2)


def test_a_member_of_an_own_consumer_group_is_not_taken_out_by_another_connection(world: World) -> None:
    group = world.broker.core.clients.consumer_group(OWN.group)
    assert group is not None and group.client_ids() == [OWN.client_id]
    command = leave(consumerGroup=OWN.group, clientID=OWN.client_id)
    (answer,) = world.ask(command, OWN.name, FakeChannel("10.0.0.6:1"))
    assert answer.code == ResponseCode.NO_PERMISSION and group.client_ids() == [OWN.client_id]


def test_a_pull_that_waits_gives_nothing_when_the_right_is_gone(world: World) -> None:
    channel = FakeChannel("10.0.0.8:1")
    end = world.broker.store.queue_range(OWN.topic, 0)[1]
    waiting = pull(OWN.topic, OWN.group, sysFlag="6", queueOffset=str(end))
    assert world.ask(waiting, OWN.name, channel) == []
    world.accounts.access = AccessList({**ACCOUNTS, OWN.name: replace(ACCOUNTS[OWN.name], topics={})})
    assert world.broker.ask(send_command(OWN.topic, 0, OWN.secret)).code == 0
    (answer,) = channel.take()
    assert answer.code == ResponseCode.NO_PERMISSION and not answer.body
