"""Receipts are texts that clients keep: none of them moves, ends or shows what belongs to another account."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from rmqha.model.access import AccessList
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.wire.command import Command
from rmqha.wire.state.receipt import Receipt
from tests.broker.pop.world import INVISIBLE_MS, Popped, later, messages, named, pop_command
from tests.broker.rights.acl_world import ACCOUNTS, DENY, FOREIGN, OWN, READER, Side, World, back
from tests.broker.support import Broker, send_command

ACK, CHANGE = RequestCode.ACK_MESSAGE, RequestCode.CHANGE_MESSAGE_INVISIBLETIME


@pytest.fixture
def world(make_broker: Callable[..., Broker]) -> World:
    return World(make_broker(max_hash_slot_num=64, max_index_num=256, recall_message_enable=True).start())


def popped(world: World, side: Side, **ext: object) -> list[Popped]:
    (answer,) = world.ask(pop_command(side.topic, side.group, **ext), side.name)
    if answer.code == ResponseCode.POLLING_TIMEOUT:
        return []
    return messages(answer, side.topic, side.group, world.broker.config.broker_name)


def retry(topic: Side, group: Side) -> str:
    return f"%RETRY%{group.group}_{topic.topic}"


NAMES: dict[str, tuple[str, str]] = {
    "the foreign topic": (FOREIGN.topic, OWN.group),
    "the foreign group": (OWN.topic, FOREIGN.group),
    "both": (FOREIGN.topic, FOREIGN.group),
    "where the foreign group's come again": (retry(FOREIGN, FOREIGN), OWN.group),
    "where the foreign topic's come again": (retry(FOREIGN, OWN), OWN.group),
    "the foreign group's retry topic, by the other name": (f"%RETRY%{FOREIGN.group}+{FOREIGN.topic}", OWN.group),
}


@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("code", [ACK, CHANGE])
def test_names_of_others_are_refused_whatever_the_receipt(world: World, code: RequestCode, names: str) -> None:
    (theirs, *_), (own, *_) = popped(world, FOREIGN), popped(world, OWN)
    topic, group = NAMES[names]
    for receipt in (theirs.receipt, own.receipt):
        before = world.state()
        command = named(code, theirs, group, topic=topic, extraInfo=receipt.encode(), invisibleTime=1)
        assert [answer.code for answer in world.ask(command)] == [ResponseCode.NO_PERMISSION]
        assert world.state() == before


@pytest.mark.parametrize("code", [ACK, CHANGE])
def test_a_receipt_of_others_under_own_names_touches_nothing_of_theirs(world: World, code: RequestCode) -> None:
    theirs, own = popped(world, FOREIGN), popped(world, OWN)
    receipts = [message.receipt for message in theirs]
    receipts += [receipt._replace(kind="1") for receipt in receipts]
    for receipt in receipts:
        world.ask(named(code, own[0], OWN.group, extraInfo=receipt.encode(), invisibleTime=1))
    later(world.broker, INVISIBLE_MS - 1500)
    assert popped(world, FOREIGN) == []
    later(world.broker, 6000)
    again = popped(world, FOREIGN)
    assert sorted(message.body for message in again) == sorted(message.body for message in theirs)


def batch(*items: dict[str, object], **more: object) -> Command:
    return Command(RequestCode.BATCH_ACK_MESSAGE, {}, json.dumps({"acks": list(items), **more}).encode())


def item(receipt: Receipt, own_topic: str, own_group: str, **more: object) -> dict[str, object]:
    fields: dict[str, object] = {"t": own_topic, "c": own_group, "r": receipt.kind, "so": receipt.start_offset, "q": 0}
    times = {"rq": receipt.revive_queue_id, "pt": receipt.pop_ms, "it": receipt.invisible_ms}
    return {**fields, **times, "b": "/w==", **more}


def test_a_batch_acknowledges_nothing_of_others(world: World) -> None:
    theirs, own = popped(world, FOREIGN), popped(world, OWN)
    receipt = theirs[0].receipt
    good = item(own[0].receipt, OWN.topic, OWN.group)
    forged = [item(receipt, topic, group) for topic, group in NAMES.values()]
    forged += [
        item(receipt, OWN.topic, OWN.group, t=None, topic=FOREIGN.topic),
        item(receipt, OWN.topic, OWN.group, c=None, consumerGroup=FOREIGN.group),
        item(receipt, FOREIGN.topic, FOREIGN.group, r="1"),
        item(receipt, "", "", topic=FOREIGN.topic, consumerGroup=FOREIGN.group),
    ]
    for bad in forged:
        for items in ([bad], [good, bad], [bad, good]):
            before = world.state()
            assert [answer.code for answer in world.ask(batch(*items))] == [ResponseCode.NO_PERMISSION], bad
            assert world.state() == before
    later(world.broker, INVISIBLE_MS + 5000)
    assert sorted(message.body for message in popped(world, FOREIGN)) == sorted(message.body for message in theirs)


@pytest.mark.parametrize(
    "code",
    [RequestCode.POP_MESSAGE, RequestCode.PEEK_MESSAGE, RequestCode.NOTIFICATION, RequestCode.POLLING_INFO],
)
@pytest.mark.parametrize("names", NAMES)
def test_nothing_of_others_is_taken_seen_or_counted(world: World, code: RequestCode, names: str) -> None:
    topic, group = NAMES[names]
    command = pop_command(topic, group)
    command.code = code
    before = world.state()
    (answer,) = world.ask(command)
    assert answer.code == ResponseCode.NO_PERMISSION and FOREIGN.secret not in bytes(answer.body)
    assert world.state() == before


DENIED_GROUP, POPPING_GROUP, POPPED_TOPIC = "pay_ments", "pay", "ments"
"""The denied group's retry topic has the name of that in which what another one has popped comes again."""


@pytest.fixture
def confused(world: World) -> World:
    """A message of the foreign topic waits in the denied group's retry topic."""
    reader = replace(ACCOUNTS[READER], groups={FOREIGN.group: DENY, DENIED_GROUP: DENY})
    world.accounts.access = AccessList({**ACCOUNTS, READER: reader})
    assert world.broker.ask(back(DENIED_GROUP, world.records[FOREIGN].plain, 1)).code == 0
    assert world.broker.ask(send_command(POPPED_TOPIC, d="1")).code == 0
    later(world.broker, 2000)
    assert world.bodies(f"%RETRY%{DENIED_GROUP}") == [FOREIGN.secret + b" plain"]
    return world


@pytest.mark.parametrize("code", [RequestCode.POP_MESSAGE, RequestCode.PEEK_MESSAGE])
def test_what_a_denied_group_has_sent_back_is_not_given_under_another_groups_name(
    confused: World, code: RequestCode
) -> None:
    for _ in range(10):
        command = pop_command(POPPED_TOPIC, POPPING_GROUP)
        command.code = code
        (answer,) = confused.ask(command, READER)
        assert FOREIGN.secret not in bytes(answer.body)


def test_what_a_denied_group_has_sent_back_is_not_stored_again_by_a_forged_receipt(confused: World) -> None:
    retry_topic = f"%RETRY%{DENIED_GROUP}"
    receipt = Receipt(0, confused.broker.clock.wall_ms(), 1000, 0, "1", confused.broker.config.broker_name, 0, 0)
    fields = {"consumerGroup": POPPING_GROUP, "topic": retry_topic, "queueId": "0", "offset": "0"}
    command = Command(CHANGE, {**fields, "extraInfo": receipt.encode(), "invisibleTime": "1000"})
    assert [answer.code for answer in confused.ask(command, READER)] == [0]
    later(confused.broker, 6000)
    assert confused.bodies(retry_topic) == [FOREIGN.secret + b" plain"]


def test_what_a_group_has_popped_comes_again_whatever_it_says_of_itself(world: World) -> None:
    """A consumer may pass on a message with all its properties, RETRY_TOPIC among them."""
    properties = "UNIQ_KEY\x01u\x02RETRY_TOPIC\x01Elsewhere\x02ORIGIN_MESSAGE_ID\x01i\x02"
    assert world.broker.ask(send_command(OWN.topic, 0, b"passed on", i=properties)).code == 0
    assert any(message.body == b"passed on" for message in popped(world, OWN))
    later(world.broker, INVISIBLE_MS + 5000)
    assert any(message.body == b"passed on" for message in popped(world, OWN))
