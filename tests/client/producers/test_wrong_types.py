"""Arguments of other types, as from a program that checks none: each is one sentence, and nothing of it is sent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import fields
from typing import Any

import pytest

from rmqha.client.consumers.consumer import Consumer
from rmqha.client.consumers.pop_consumer import PopConsumer
from rmqha.client.producers.outgoing import OutgoingMessage
from rmqha.client.producers.producer import Producer
from rmqha.client.producers.result import SendResult
from rmqha.model.error import RmqhaError, UsageError
from tests.client.fake import FakeCluster

WRONG = (None, 7, 1.5, "", "text", b"bytes", ["a"], {"n": 3}, {"n": None}, {3: "n"}, object())
ALLOWED: dict[str, tuple[object, ...]] = {
    "topic": ("text",),
    "body": (b"bytes",),
    "keys": ("", "text"),
    "tags": ("", "text"),
    "unique_key": ("", "text"),
    "key": (None, "", "text"),
    "queue_id": (None,),
    "properties": (),
}
"""Values of WRONG that are right for a field of a message (7 is a queue that the topic does not have)."""
CASES = [
    (field.name, value)
    for field in fields(OutgoingMessage)
    for value in WRONG
    if not any(value is right or (type(value) is type(right) and value == right) for right in ALLOWED[field.name])
]
SENDS: dict[str, Callable[[Producer, OutgoingMessage], Awaitable[object]]] = {
    "send": lambda producer, wrong: producer.send_message(wrong),
    "send_batch": lambda producer, wrong: producer.send_batch([OutgoingMessage("T", b"x"), wrong]),
    "send_oneway": lambda producer, wrong: producer.send_oneway(wrong),
}


def message(name: str, value: object) -> OutgoingMessage:
    loose: Any = OutgoingMessage
    return loose(**{"topic": "T", "body": b"x", name: value})  # type: ignore[no-any-return]


@pytest.mark.parametrize("how", SENDS)
async def test_a_field_of_another_type_is_one_sentence(how: str) -> None:
    async with FakeCluster() as fake, Producer(fake.namesrv) as producer:
        for name, value in CASES:
            with pytest.raises(UsageError) as told:
                await SENDS[how](producer, message(name, value))
            assert "\n" not in str(told.value), (name, value)
        assert fake.stored == []


@pytest.mark.parametrize("batch", [1, 8])
async def test_of_many_only_the_wrong_ones_fail(batch: int) -> None:
    right = [OutgoingMessage("T", b"%d" % number) for number in range(len(CASES))]
    wrong = [message(name, value) for name, value in CASES]
    outcomes: dict[int, SendResult | RmqhaError] = {}
    async with FakeCluster() as fake, Producer(fake.namesrv) as producer:
        tally = await producer.send_many(
            [item for pair in zip(right, wrong, strict=True) for item in pair],
            window=16,
            batch=batch,
            on_result=lambda position, _, outcome: outcomes.update({position: outcome}),
        )
        assert sorted(stored.body for stored in fake.stored) == sorted(item.body for item in right)
    assert (tally.acknowledged, tally.failed) == (len(right), len(wrong))
    assert all(isinstance(outcomes[at], UsageError) for at in range(1, 2 * len(right), 2))


@pytest.mark.parametrize("batch", [1, 8])
async def test_what_is_no_message_ends_the_sending_with_a_sentence(batch: int) -> None:
    given: Any = [OutgoingMessage("T", b"first"), {"topic": "T", "body": b"x"}]
    async with FakeCluster() as fake, Producer(fake.namesrv) as producer:
        with pytest.raises(UsageError, match="a message of send_many is dict, not OutgoingMessage"):
            await producer.send_many(given, batch=batch)
        assert [stored.body for stored in fake.stored] == [b"first"], "what came before it is sent"


@pytest.mark.parametrize("timeout_ms", [None, "3000"])
async def test_a_time_out_is_a_number(timeout_ms: Any) -> None:
    async with FakeCluster() as fake, Producer(fake.namesrv) as producer:
        with pytest.raises(UsageError, match=r"timeout_ms is .*, not int or float; 3000 are three seconds"):
            await producer.send("T", b"x", timeout_ms=timeout_ms)
        assert fake.stored == []


@pytest.mark.parametrize("kind", [Consumer, PopConsumer])
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"namesrv": None}, "name server address None is NoneType, not str"),
        ({"topic": None}, "topic None is NoneType, not str"),
        ({"group": 7}, "group 7 is int, not str"),
        ({"tags": ["A", "B"]}, r"tags, \['A', 'B'\], is list, not str; write \"TAG1 || TAG2\""),
        ({"tags": None}, "is NoneType, not str"),
        ({"selector": 3}, "selector, 3, is int, not str"),
    ],
)
def test_a_consumer_says_which_argument_is_wrong(kind: Any, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        kind(**{"namesrv": "127.0.0.1:1", "group": "G", "topic": "T", **options})


@pytest.mark.parametrize("name", ["count", "invisible_ms"])
@pytest.mark.parametrize("value", ["5", 1.5, None])
def test_numbers_of_a_pop_consumer_are_whole(name: str, value: object) -> None:
    options: dict[str, Any] = {name: value}
    with pytest.raises(UsageError, match=f"{name} is .*, not int"):
        PopConsumer("127.0.0.1:1", "G", "T", **options)


async def test_a_message_is_acknowledged_by_its_receipt() -> None:
    """The program acknowledges `popped.message` in place of `popped`."""
    given: Any = "a message"
    async with FakeCluster() as fake, PopConsumer(fake.namesrv, "G", "T") as consumer:
        for act in (consumer.ack, consumer.nack, consumer.dead_letter):
            with pytest.raises(UsageError, match="a popped message is str, not PoppedMessage"):
                await act(given)
