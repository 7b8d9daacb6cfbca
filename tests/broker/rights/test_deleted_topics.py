"""A topic that is deleted and made again may be another account's: it reads nothing of the one before, however a record
is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import pytest

from rmqha.broker.tables.topics import TopicConfig
from rmqha.host.net.session import Session
from rmqha.model.access import AccessList, Account, Permission
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.message import encode_properties
from rmqha.store.log.record import decode
from rmqha.wire.auth.signature import sign
from rmqha.wire.command import Command
from tests.broker.rights.acl_world import ACCOUNTS, OWN, Records, World, back
from tests.broker.support import Broker, FakeChannel, send_command
from tests.broker.transactions import GIVEN_UP, ROUND_MS, records

NEW = b"a message of the new topic"


@pytest.fixture
def world(make_broker: Callable[..., Broker]) -> World:
    return World(make_broker().start())


def ask(world: World, command: Command, key: str = OWN.name) -> Command:
    (answer,) = world.ask(command, key)
    return answer


def delete(world: World) -> None:
    assert ask(world, Command(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": OWN.topic}), "operator").code == 0


def make_again(world: World) -> int:
    """Send its first message. Returns where that is."""
    delete(world)
    properties = encode_properties({"KEYS": f"key-{OWN.name}", "UNIQ_KEY": "ID-new"}).decode()
    answer = ask(world, send_command(OWN.topic, 0, NEW, i=properties))
    assert answer.code == 0
    return int(answer.ext["msgId"][16:], 16)


def view(offset: int) -> Command:
    return Command(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(offset), "topic": OWN.topic})


def query(key: str = f"key-{OWN.name}") -> Command:
    ext = {"topic": OWN.topic, "key": key, "maxNum": "64", "beginTimestamp": "0", "endTimestamp": str(1 << 62)}
    return Command(RequestCode.QUERY_MESSAGE, ext)


def sent_back(offset: int) -> Command:
    return back(OWN.group, offset, originTopic=OWN.topic)


OF_THE_TOPIC = ("plain", "delayed", "half")
"""Kinds of its messages; those that its group has sent back are the group's."""


@pytest.mark.parametrize("is_made_again", [True, False])
@pytest.mark.parametrize("kind", OF_THE_TOPIC)
@pytest.mark.parametrize("command", [view, sent_back])
def test_no_offset_leads_to_a_message_of_the_deleted_topic(
    world: World, kind: str, command: Callable[[int], Command], is_made_again: bool
) -> None:
    offset = world.records[OWN].all[kind]
    assert ask(world, view(offset)).code == 0
    if is_made_again:
        make_again(world)
    else:
        delete(world)
    end_offset = world.broker.store.max_phy_offset
    answer = ask(world, command(offset))
    assert answer.code == ResponseCode.NO_PERMISSION and not answer.body
    assert world.broker.store.max_phy_offset == end_offset
    assert OWN.secret in bytes(ask(world, view(offset), "operator").body), "an admin sees what was"


def test_no_key_leads_to_a_message_of_the_deleted_topic(world: World) -> None:
    assert OWN.secret in bytes(ask(world, query()).body)
    new = make_again(world)
    found = memoryview(ask(world, query()).body)
    record = decode(found)
    assert (bytes(record.body), record.phy_offset, record.size_bytes) == (NEW, new, len(found))
    assert ask(world, query("ID-plain")).code == ResponseCode.QUERY_NOT_FOUND
    all_of_it = bytes(ask(world, query(), "operator").body)
    assert NEW in all_of_it and OWN.secret in all_of_it


def test_the_messages_of_the_new_topic_are_read(world: World) -> None:
    new = make_again(world)
    assert NEW in bytes(ask(world, view(new)).body)
    assert ask(world, sent_back(new)).code == 0


def test_what_the_group_has_sent_back_stays_the_groups(world: World) -> None:
    offsets: Records = world.records[OWN]
    make_again(world)
    for offset in (offsets.retried, offsets.dead):
        command = view(offset)
        command.ext["topic"] = OWN.retry if offset == offsets.retried else OWN.dead_letters
        assert OWN.secret in bytes(ask(world, command).body)


def test_a_transaction_that_is_given_up_for_the_deletion_is_read_by_admins_only(world: World) -> None:
    """It is stored again behind the deletion."""
    make_again(world)
    for _ in range(4):
        world.broker.run(ROUND_MS)
    given_up = [record for record in records(world.broker, GIVEN_UP, 0) if OWN.secret in bytes(record.body)]
    assert given_up
    for record in given_up:
        answer = ask(world, view(record.phy_offset))
        assert answer.code == ResponseCode.NO_PERMISSION and not answer.body
        assert OWN.secret in bytes(ask(world, view(record.phy_offset), "operator").body)


ONLY: dict[str, dict[str, str]] = {
    "delayed": {"DELAY": "18"},
    "timed": {"TIMER_DELAY_MS": "3600000"},
    "half": {"TRAN_MSG": "true", "PGROUP": "P"},
}


@pytest.mark.parametrize("is_made_again", [True, False])
@pytest.mark.parametrize("kind", ONLY)
def test_no_offset_leads_to_the_only_message_of_a_deleted_topic(world: World, kind: str, is_made_again: bool) -> None:
    """It waits elsewhere: the topic's own queues never held anything."""
    credentials = replace(ACCOUNTS[OWN.name].credentials, access_key="reader")
    reader = Account(credentials=credentials, default_topic=Permission.PUB | Permission.SUB)
    world.accounts.access = AccessList({**world.accounts.access.accounts, "reader": reader})
    topics, broker = world.broker.core.topics, world.broker
    topics.put(TopicConfig("Only", 1, 1))
    text = encode_properties({"UNIQ_KEY": "ID-only", **ONLY[kind]}).decode()
    offset = broker.store.max_phy_offset
    assert broker.ask(send_command("Only", 0, OWN.secret, i=text)).code == 0
    command = Command(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(offset), "topic": "Only"})
    sign(command, credentials)

    def asked() -> Command:
        channel = FakeChannel("10.0.0.9:1")
        world.guard.received(cast(Session, channel), [command])
        return channel.one()

    assert OWN.secret in bytes(asked().body)
    topics.remove("Only")
    if is_made_again:
        topics.put(TopicConfig("Only", 1, 1))
        assert topics.get("Only") is not None
    answer = asked()
    assert answer.code == ResponseCode.NO_PERMISSION and not answer.body
