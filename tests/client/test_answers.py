"""Answers of brokers and name servers with what is no number in the place of one: an error of ours that says who."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from rmqha.client.admin import Admin
from rmqha.client.answers import number, whole_number
from rmqha.client.consumers.consumer import Consumer
from rmqha.client.consumers.offsets import answered_offset
from rmqha.client.consumers.pop_consumer import PopConsumer
from rmqha.client.producers.one_by_one import send_one_by_one
from rmqha.client.producers.outgoing import OutgoingMessage
from rmqha.client.producers.producer import Producer
from rmqha.client.route import MAX_QUEUE_COUNT
from rmqha.host.net.session import Session
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import RemoteProtocolError
from rmqha.wire.command import Command
from tests.client.consumers.test_consumer import fill, take
from tests.client.consumers.test_pop_consumer import Pops, stored
from tests.client.fake import FakeCluster, Node
from tests.support.patience import HANG_S

WORDS = ["", "x", "--5", "5-", "\N{SUPERSCRIPT TWO}", "\N{ARABIC-INDIC DIGIT THREE}", "1e3", "1 ", "9" * 5000]
WORDS.append(str(1 << 63))
NUMBERED = pytest.mark.parametrize("word", WORDS, ids=range(len(WORDS)))


@dataclass
class Garbled:
    """A broker that says `word` in a field of its answers to `code`, until it is `mended`."""

    node: Node
    code: RequestCode
    name: str
    word: str
    is_mended: bool = False
    answer: Callable[[Session, Command], Command | None] = field(init=False)

    def __post_init__(self) -> None:
        self.answer = self.node._answer
        self.node._answer = self  # type: ignore[method-assign]

    def __call__(self, session: Session, command: Command) -> Command | None:
        reply = self.answer(session, command)
        if command.code == self.code and reply is not None and not self.is_mended:
            reply.ext[self.name] = self.word
        return reply

    @property
    def sentence(self) -> str:
        return f"not readable: it has {self.word[:40]!r} for the number {self.name}"


class Mended(Pops):
    """Only its first answer has `ext`."""

    def __call__(self, command: Command) -> Command | None:
        answer = super().__call__(command)
        self.ext = {}
        return answer


@given(st.text())
def test_a_word_is_a_number_of_64_bits_or_none(word: str) -> None:
    found = whole_number(word)
    assert found is None or (re.fullmatch("-?[0-9]+", word) and int(word) == found)


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_a_number_is_read(value: int) -> None:
    assert number({"n": str(value)}, "n", "b") == value


@NUMBERED
def test_what_is_no_number_is_told_with_who_said_it(word: str) -> None:
    with pytest.raises(
        RemoteProtocolError, match=r"^the answer of b is not readable: it has .{1,50} for the number offset$"
    ):
        answered_offset(Command(0, {"offset": word}), "b")
    with pytest.raises(RemoteProtocolError, match="it has nothing for the number offset"):
        answered_offset(Command(0, {}), "b")
    assert number({}, "offset", "b", 7) == 7


@NUMBERED
@pytest.mark.parametrize("name", ["queueId", "queueOffset"])
async def test_the_answer_to_a_send(word: str, name: str) -> None:
    async with FakeCluster({"g-a": 1}) as fake, Producer(fake.namesrv) as producer:
        told = Garbled(fake.group.master, RequestCode.SEND_MESSAGE_V2, name, word)
        with pytest.raises(RemoteProtocolError, match=re.escape(f"{fake.group.master.address} is {told.sentence}")):
            await producer.send("T", b"x")
        tally = await producer.send_many([OutgoingMessage("T", b"x")])
        assert (tally.failed, producer.statistics()["failed"]) == (1, 2)


async def test_who_sends_one_by_one_leaves_a_message_whose_answer_cannot_be_read_to_a_producer() -> None:
    async with FakeCluster({"g-a": 1}) as fake:
        Garbled(fake.group.master, RequestCode.SEND_MESSAGE_V2, "queueOffset", "x")
        left = await send_one_by_one(
            fake.namesrv, "P", [OutgoingMessage("T", b"x")], 3_000, lambda result: None, require_ok=True
        )
        assert (len(left.messages), left.tries, left.copies_possible) == (1, 1, 1)


@NUMBERED
@pytest.mark.parametrize(
    ("code", "name"),
    [
        (RequestCode.QUERY_CONSUMER_OFFSET, "offset"),
        (RequestCode.PULL_MESSAGE, "nextBeginOffset"),
        (RequestCode.PULL_MESSAGE, "suggestWhichBrokerId"),
    ],
)
async def test_the_answers_to_a_consumer(word: str, code: RequestCode, name: str) -> None:
    async with FakeCluster({"g-a": 1}) as fake:
        fill(fake.group, "ab", queue_count=1)
        fake.group.offsets["G", "T", 0] = 1
        told = Garbled(fake.group.master, code, name, word)
        async with Consumer(fake.namesrv, "G", "T") as consumer:
            await _until(lambda: told.sentence in consumer.statistics()["last_error"])
            told.is_mended = True
            (message,) = await take(consumer, 1)
            assert message.body == b"b"


@NUMBERED
@pytest.mark.parametrize("name", ["minOffset", "maxOffset"])
async def test_the_answer_to_an_offset_that_is_not_in_the_queue(word: str, name: str) -> None:
    async with FakeCluster({"g-a": 1}) as fake:
        fill(fake.group, "a", queue_count=1)
        sound = {"minOffset": "0", "maxOffset": "1", "nextBeginOffset": "0", name: word}
        answers = [lambda command: command.reply(ResponseCode.PULL_OFFSET_MOVED, sound)]
        fake.group.master.pull_script = lambda command: answers.pop()(command) if answers else None
        async with Consumer(fake.namesrv, "G", "T") as consumer:
            (message,) = await take(consumer, 1)
            assert message.body == b"a"
            assert f"it has {word[:40]!r} for the number {name}" in consumer.statistics()["last_error"]


async def test_messages_that_are_followed_by_themselves_are_not_given_without_end() -> None:
    async with FakeCluster({"g-a": 1}) as fake:
        fill(fake.group, "a", queue_count=1)
        told = Garbled(fake.group.master, RequestCode.PULL_MESSAGE, "nextBeginOffset", "0")
        async with Consumer(fake.namesrv, "G", "T") as consumer:
            await _until(lambda: "and says that 0 is next" in consumer.statistics()["last_error"])
            told.is_mended = True
            await take(consumer, 1)


@NUMBERED
@pytest.mark.parametrize("name", ["popTime", "invisibleTime", "reviveQid", "startOffsetInfo", "orderCountInfo"])
async def test_the_answer_to_a_pop(word: str, name: str) -> None:
    garbage = f"0 0 {word}" if name.endswith("Info") else word
    async with FakeCluster({"g-a": 1}) as fake:
        Mended([[stored(b"a", 4)], [stored(b"b", 5)]], {name: garbage}).put_to(fake.group.master)
        async with PopConsumer(fake.namesrv, "G", "T") as consumer:
            await _until(lambda: consumer.statistics()["failed_pops"])
            assert "group g-a" in consumer.statistics()["last_error"]
            with trio.fail_after(HANG_S):
                assert (await consumer.receive()).body == b"b"


@NUMBERED
async def test_the_answer_to_another_invisible_time(word: str) -> None:
    changed = {"popTime": "1", "invisibleTime": "500", "reviveQid": word}
    async with FakeCluster({"g-a": 1}) as fake:
        pops = Pops([[stored(b"a", 4)]]).put_to(fake.group.master)
        pops.answer = lambda command: command.reply(ResponseCode.SUCCESS, changed)
        with trio.fail_after(HANG_S):
            async with PopConsumer(fake.namesrv, "G", "T") as consumer:
                message = await consumer.receive()
                with pytest.raises(
                    RemoteProtocolError, match=r"group g-a is not readable: it has .* for the number reviveQid"
                ):
                    await consumer.extend(message, 500)


@NUMBERED
async def test_the_answer_to_an_admin_that_reads(word: str) -> None:
    async with FakeCluster({"g-a": 1}) as fake, Admin(fake.namesrv) as admin:
        fill(fake.group, "a", queue_count=1)
        address = fake.group.master.address
        told = Garbled(fake.group.master, RequestCode.PULL_MESSAGE, "nextBeginOffset", word)
        with pytest.raises(RemoteProtocolError, match=re.escape(f"{address} is {told.sentence}")):
            await admin.read_queue(address, "g-a", "T", 0, 0, group="G")


@pytest.mark.parametrize("count", [str(MAX_QUEUE_COUNT + 1), '"x"', "null", "1e999", "9" * 5000], ids=range(5))
@pytest.mark.parametrize("asked", [Admin, Producer])
async def test_a_route(count: str, asked: type[Admin] | type[Producer]) -> None:
    async with FakeCluster({"g-a": 1}) as fake:
        server = fake.name_servers[0]
        server.frozen = server.route().replace(b'"readQueueNums": 4', f'"readQueueNums": {count}'.encode())
        async with asked(fake.namesrv) as client:
            ask: Callable[[str], Awaitable[object]] = client.route
            with pytest.raises(RemoteProtocolError, match=f"the route of topic T of {server.address} is not readable"):
                await ask("T")


async def _until(what: Callable[[], object]) -> None:
    with trio.fail_after(HANG_S):
        while not what():  # noqa: ASYNC110 - a test looks from outside
            await trio.sleep(0.005)
