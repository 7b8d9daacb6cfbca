"""Pops and what is said of them, with fields that no client has: the broker answers once, and what it refuses has
changed nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rmqha.model.code import RequestCode
from rmqha.wire.command import Command
from tests.broker.pop.world import Popped, named, pop, pop_command, send
from tests.broker.support import Broker, FakeChannel
from tests.fuzz.budget import fuzz

COUNT = 8
NUMBERS = st.one_of(st.integers(-3, 40), st.sampled_from([999, 2**31 - 1, 2**31, 2**63 - 1, 2**63, -(2**63)]))
WORDS = st.one_of(NUMBERS.map(str), st.sampled_from(["", "0", "broker-a", "broker-b", "１", "1e3", "+1", "x" * 300]))
NAMES = st.sampled_from(["T", "G", "%RETRY%G_T", "%RETRY%G+T", "%DLQ%G", "rmq_sys_REVIVE_LOG_c", "", "ü", "x" * 300])
CODES = (RequestCode.ACK_MESSAGE, RequestCode.CHANGE_MESSAGE_INVISIBLETIME)
BITS = st.sampled_from(["", "AQ==", "/w==", "!", "A" * 400, "AAAAAQ==", "ü"])


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    found = Broker(tmp_path_factory.mktemp("pops"), total_replicas=1, auto_create_topic_enable=True).start()
    send(found, *(b"%d" % number for number in range(COUNT)))
    yield found
    found.close()


@pytest.fixture(scope="module")
def given_messages(broker: Broker) -> list[Popped]:
    found = pop(broker, maxMsgNums=COUNT, invisibleTime=86_400_000)
    assert len(found) == COUNT
    return found


def state(broker: Broker) -> tuple[int, dict[tuple[str, str], int]]:
    """End of the log, and messages in flight by topic and group."""
    return broker.store.max_phy_offset, dict(broker.core.pops.in_flight())


def settle(broker: Broker) -> None:
    """Let all come that examples before have brought about: a message that comes again does so in several steps, and
    not each of them changes the log."""
    seen, same_count = state(broker), 0
    while same_count < 8:
        broker.run()
        same_count = same_count + 1 if state(broker) == seen else 0
        seen = state(broker)


def check(broker: Broker, command: Command) -> None:
    settle(broker)
    before, channel = state(broker), FakeChannel()
    broker.core.processor.received(channel, [command])
    broker.run()
    if not channel.sent:
        assert state(broker) == before, "it waits"
        broker.run(broker.core.config.long_polling_max_ms)
        broker.core.pops.timeout()
        channel.one()
    elif (reply := channel.one()).code != 0:
        assert state(broker) == before, reply
    assert broker.core.driver.is_serving


@st.composite
def receipts(draw: st.DrawFn, words: list[str]) -> str:
    found = list(words)
    for _ in range(draw(st.integers(0, 3))):
        found[draw(st.integers(0, len(found) - 1))] = draw(WORDS)
    return draw(st.sampled_from([" ", " ", " ", "  ", "\t"])).join(found[: draw(st.integers(len(found) - 1, 9))])


@fuzz
@given(st.data())
def test_a_receipt_that_is_refused_changes_nothing(
    broker: Broker, given_messages: list[Popped], data: st.DataObject
) -> None:
    message = data.draw(st.sampled_from(given_messages))
    command = named(data.draw(st.sampled_from(CODES)), message, invisibleTime=data.draw(NUMBERS))
    command.ext["extraInfo"] = data.draw(receipts(message.receipt.encode().split(" ")))
    for name in data.draw(st.lists(st.sampled_from(["topic", "consumerGroup"]), max_size=1)):
        command.ext[name] = data.draw(NAMES)
    for name in data.draw(st.lists(st.sampled_from(["queueId", "offset"]), max_size=1)):
        command.ext[name] = data.draw(WORDS)
    check(broker, command)


ITEMS = st.fixed_dictionaries(
    {},
    optional={
        "c": NAMES, "t": NAMES, "r": st.sampled_from(["0", "1", "2", "3", 0]), "so": NUMBERS, "q": NUMBERS,
        "rq": NUMBERS, "pt": NUMBERS, "it": NUMBERS, "b": BITS, "bitSet": BITS,
    },
)  # fmt: skip


@fuzz
@given(st.lists(st.one_of(ITEMS, st.sampled_from([None, 7, [], "x"])), max_size=3), st.one_of(NAMES, NUMBERS))
def test_a_batch_that_is_refused_changes_nothing(
    broker: Broker, given_messages: list[Popped], items: list[Any], broker_name: str | int
) -> None:
    receipt = given_messages[0].receipt
    whole = {
        "c": "G", "t": "T", "r": "0", "so": receipt.start_offset, "q": 0, "rq": receipt.revive_queue_id,
        "pt": receipt.pop_ms, "it": receipt.invisible_ms, "b": "AQ==",
    }  # fmt: skip
    acks = [whole | item if isinstance(item, dict) else item for item in items]
    body = json.dumps({"brokerName": broker_name, "acks": acks}).encode()
    check(broker, Command(RequestCode.BATCH_ACK_MESSAGE, {}, body))


@fuzz
@given(
    st.dictionaries(
        st.sampled_from(
            ["maxMsgNums", "invisibleTime", "queueId", "initMode", "bornTime", "order", "attemptId", "exp"]
        ),
        WORDS,
        min_size=1,
        max_size=4,
    )
)
@example({"bornTime": str(2**63 - 1)})
def test_a_pop_that_is_refused_changes_nothing(broker: Broker, fields: dict[str, str]) -> None:
    check(broker, pop_command(group="Fields", **fields))
