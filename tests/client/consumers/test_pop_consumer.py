"""The pop consumer against scripted brokers: what it asks for, what it says of each message, and through a switch."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

import pytest
import trio

from rmqha.client.consumers import pop_consumer
from rmqha.client.consumers.pop_consumer import PopConsumer
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import RemoteError, RemoteProtocolError, RmqhaError, UsageError
from rmqha.model.message import SYS_FLAG_COMPRESSED, SYS_FLAG_INNER_BATCH
from rmqha.wire.command import Command
from rmqha.wire.state.receipt import NORMAL, RETRY_V1, Receipt
from tests.client.fake import FakeCluster, Node, Stored, encode_stored
from tests.support.patience import HANG_S

POP_MS, INVISIBLE_MS = 1_700_000_000_000, 60_000


def stored(body: bytes, offset: int, *, queue_id: int = 0, sys_flag: int = 0, **properties: str) -> Stored:
    return Stored("T", queue_id, offset, body, {"UNIQ_KEY": f"U{offset}", **properties}, sys_flag, {})


@dataclass
class Pops:
    """Answers of a broker: each of `given` once, in turn, then nothing. `told` is what is said of messages."""

    given: list[list[Stored]]
    ext: dict[str, str] = field(default_factory=dict)
    asked: list[Command] = field(default_factory=list)
    told: list[Command] = field(default_factory=list)
    answer: Callable[[Command], Command | None] = lambda command: command.reply()

    def __call__(self, command: Command) -> Command | None:
        if command.code != RequestCode.POP_MESSAGE:
            self.told.append(command)
            return self.answer(command)
        self.asked.append(command)
        if not self.given:
            return None
        messages = self.given.pop(0)
        starts = {item.queue_id: item.queue_offset for item in reversed(messages)}
        info = ";".join(f"0 {queue_id} {offset}" for queue_id, offset in starts.items())
        times = {"popTime": str(POP_MS), "invisibleTime": str(INVISIBLE_MS), "reviveQid": "3"}
        body = b"".join(encode_stored(item) for item in messages)
        return command.reply(ResponseCode.SUCCESS, {**times, "startOffsetInfo": info, **self.ext}, body)

    def put_to(self, *nodes: Node) -> Pops:
        for node in nodes:
            node.pop_script = self
        return self


async def test_a_message_is_named_by_its_receipt() -> None:
    again = Receipt(7, POP_MS, INVISIBLE_MS, 5, RETRY_V1, "g-a", 0, 7).encode()
    async with FakeCluster({"g-a": 1}) as fake:
        pops = Pops([[stored(b"a", 4), stored(b"b", 5), stored(b"c", 7, POP_CK=again)]]).put_to(fake.group.master)
        with trio.fail_after(HANG_S):
            async with PopConsumer(fake.namesrv, "G", "T", invisible_ms=INVISIBLE_MS, count=9) as consumer:
                for _ in range(3):
                    await consumer.ack(await consumer.receive())
        first, second, third = pops.told
        assert {command.code for command in pops.told} == {RequestCode.ACK_MESSAGE}
        assert (first.ext["topic"], first.ext["queueId"], first.ext["offset"]) == ("T", "0", "4")
        assert Receipt.decode(second.ext["extraInfo"]) == Receipt(4, POP_MS, INVISIBLE_MS, 3, NORMAL, "g-a", 0, 5)
        assert third.ext["topic"] == "%RETRY%G_T" and third.ext["extraInfo"] == again
        asked = pops.asked[0].ext
        assert (asked["maxMsgNums"], asked["invisibleTime"], asked["order"], asked["exp"]) == (
            "9",
            "60000",
            "false",
            "*",
        )


@pytest.mark.parametrize("told", [Receipt(7, 1, 2, 5, RETRY_V1, "g-b", 3, 9).encode(), "x", "1 2"])
async def test_a_receipt_of_another_pop_is_none(told: str) -> None:
    """A producer that passes on what it has popped may send it along, and Apache's brokers keep it in batches."""
    async with FakeCluster({"g-a": 1}) as fake:
        pops = Pops([[stored(b"a", 4, POP_CK=told), stored(b"b", 5)]]).put_to(fake.group.master)
        with trio.fail_after(HANG_S):
            async with PopConsumer(fake.namesrv, "G", "T", invisible_ms=INVISIBLE_MS) as consumer:
                await consumer.ack(await consumer.receive())
        (command,) = pops.told
        assert command.ext["topic"] == "T"
        assert Receipt.decode(command.ext["extraInfo"]) == Receipt(4, POP_MS, INVISIBLE_MS, 3, NORMAL, "g-a", 0, 4)


async def test_a_message_without_room_for_a_receipt_comes_by_the_name_of_its_retry_topic() -> None:
    async with FakeCluster({"g-a": 1}) as fake:
        again = Stored("%RETRY%G_T", 0, 7, b"a", {"UNIQ_KEY": "U"}, 0, {})
        pops = Pops([[again]], {"startOffsetInfo": "0 0 3;1 0 6"}).put_to(fake.group.master)
        with trio.fail_after(HANG_S):
            async with PopConsumer(fake.namesrv, "G", "T", invisible_ms=INVISIBLE_MS) as consumer:
                await consumer.ack(await consumer.receive())
        (command,) = pops.told
        assert (command.ext["topic"], command.ext["offset"]) == ("%RETRY%G_T", "7")
        assert Receipt.decode(command.ext["extraInfo"]) == Receipt(6, POP_MS, INVISIBLE_MS, 3, RETRY_V1, "g-a", 0, 7)


async def test_another_time_is_asked_of_the_newest_receipt() -> None:
    changed = {"popTime": str(POP_MS + 9), "invisibleTime": "500", "reviveQid": "3"}
    async with FakeCluster({"g-a": 1}) as fake:
        pops = Pops([[stored(b"a", 4), stored(b"b", 5)]], answer=lambda command: command.reply(ext=changed))
        pops.put_to(fake.group.master)
        with trio.fail_after(HANG_S):
            async with PopConsumer(fake.namesrv, "G", "T") as consumer:
                await consumer.receive()
                message = await consumer.receive()
                await consumer.extend(message, 500)
                await consumer.nack(message)
                with pytest.raises(UsageError, match="-1 ms: a time is not negative"):
                    await consumer.extend(message, -1)
                assert consumer.statistics()["changed"] == 2
        first, second = pops.told
        assert first.ext["invisibleTime"] == "500" and second.ext["invisibleTime"] == "0"
        assert Receipt.decode(first.ext["extraInfo"]).start_offset == 4
        # the new checkpoint holds this message alone
        assert Receipt.decode(second.ext["extraInfo"]) == Receipt(5, POP_MS + 9, 500, 3, NORMAL, "g-a", 0, 5)


async def test_acknowledgements_wait_for_the_new_master() -> None:
    async with FakeCluster({"g-a": 2}) as fake:
        old, new = fake.group.nodes.values()
        Pops([[stored(b"a", 4)]]).put_to(old)
        pops = Pops([]).put_to(new)
        with trio.fail_after(HANG_S):
            async with PopConsumer(fake.namesrv, "G", "T") as consumer:
                message = await consumer.receive()
                fake.fail_over(after_ms=50)
                await consumer.ack(message)
        assert [command.ext["offset"] for command in pops.told] == ["4"]


async def test_a_refusal_for_good_is_raised_at_once() -> None:
    def refuse(command: Command) -> Command:
        return command.reply(ResponseCode.MESSAGE_ILLEGAL, remark="the receipt is none of this broker")

    async with FakeCluster({"g-a": 1}) as fake:
        pops = Pops([[stored(b"a", 4)]], answer=refuse).put_to(fake.group.master)
        with trio.fail_after(HANG_S):
            async with PopConsumer(fake.namesrv, "G", "T") as consumer:
                message = await consumer.receive()
                with pytest.raises(RemoteError, match="none of this broker"):
                    await consumer.ack(message)
        assert len(pops.told) == 1


async def test_a_lost_answer_is_asked_for_by_the_same_attempt() -> None:
    class Loses(Pops):
        def __call__(self, command: Command) -> Command | None:
            if command.code == RequestCode.POP_MESSAGE and not self.asked:
                self.asked.append(command)
                return command.reply(ResponseCode.SYSTEM_BUSY, remark="not now")
            return super().__call__(command)

    async with FakeCluster({"g-a": 1}) as fake:
        pops = Loses([[stored(b"a", 4)], [stored(b"b", 5)]]).put_to(fake.group.master)
        with trio.fail_after(HANG_S):
            async with PopConsumer(fake.namesrv, "G", "T", ordered=True) as consumer:
                assert [(await consumer.receive()).body for _ in range(2)] == [b"a", b"b"]
        attempts = [command.ext["attemptId"] for command in pops.asked[:3]]
        assert attempts[0] == attempts[1] != attempts[2]
        assert {command.ext["order"] for command in pops.asked} == {"true"}


async def test_a_pop_does_not_wait_at_who_is_no_longer_master(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pop_consumer, "ROUTE_MS", 20)
    async with FakeCluster({"g-a": 2}) as fake:
        frozen, new = fake.group.nodes.values()
        pops = Pops([]).put_to(frozen)
        Pops([[stored(b"a", 4)]]).put_to(new)
        with trio.fail_after(HANG_S):
            async with PopConsumer(fake.namesrv, "G", "T") as consumer:
                while not pops.asked:
                    await frozen.asked.wait()
                    frozen.asked = trio.Event()
                fake.group.master_id = 2
                assert (await consumer.receive()).body == b"a"


async def test_nobody_waits_for_what_no_reader_wants() -> None:
    bomb = zlib.compress(bytes(100_000))
    messages = [
        stored(b"hash of another", 3, TAGS="BB"),  # the hash of "Aa", too
        stored(bomb, 4, sys_flag=SYS_FLAG_COMPRESSED, TAGS="Aa"),
        stored(b"wanted", 5, TAGS="Aa"),
    ]
    async with FakeCluster({"g-a": 1}) as fake:
        pops = Pops([messages]).put_to(fake.group.master)
        fake.group.stored += messages
        with trio.fail_after(HANG_S):
            async with PopConsumer(fake.namesrv, "G", "T", "Aa", max_body_bytes=1000) as consumer:
                assert (await consumer.receive()).body == b"wanted"
                found = consumer.statistics()
        assert (found["filtered"], found["too_large"], found["dead"]) == (1, 1, 1)
        assert [command.ext["offset"] for command in pops.told] == ["3", "4"]
        backs = [one for one in fake.group.master.requests if one.code == RequestCode.CONSUMER_SEND_MSG_BACK]
        assert [(one.ext["offset"], one.ext["delayLevel"]) for one in backs] == [("4000", "-1")]


async def test_what_cannot_be_done_with_keeps_no_other_from_the_reader() -> None:
    messages = [stored(b"hash of another", 3, TAGS="BB"), stored(b"wanted", 4, TAGS="Aa")]
    async with FakeCluster({"g-a": 1}) as fake:
        refused = Pops([messages], answer=lambda command: command.reply(ResponseCode.NO_MESSAGE, remark="gone"))
        refused.put_to(fake.group.master)
        with trio.fail_after(HANG_S):
            async with PopConsumer(fake.namesrv, "G", "T", "Aa") as consumer:
                assert (await consumer.receive()).body == b"wanted"
                assert "gone" in consumer.statistics()["last_error"]


@pytest.mark.parametrize(
    ("sys_flag", "kind", "sentence"),
    [(SYS_FLAG_COMPRESSED, RemoteProtocolError, "does not decompress"), (0x201, UsageError, "zstd bodies need")],
)
@pytest.mark.parametrize(("ordered", "bodies"), [(False, [b"behind", b"beside"]), (True, [b"beside"])])
async def test_a_message_that_cannot_be_read_is_told_and_keeps_no_other_from_the_reader(
    monkeypatch: pytest.MonkeyPatch,
    sys_flag: int,
    kind: type[RmqhaError],
    sentence: str,
    ordered: bool,
    bodies: list[bytes],
) -> None:
    """In order the queue stays at it."""
    monkeypatch.setitem(sys.modules, "zstandard", None)
    messages = [stored(b"packed", 3, sys_flag=sys_flag), stored(b"behind", 4), stored(b"beside", 7, queue_id=1)]
    async with FakeCluster({"g-a": 1}) as fake:
        pops = Pops([messages, [stored(b"later", 8, queue_id=1)]]).put_to(fake.group.master)
        with trio.fail_after(HANG_S):
            async with PopConsumer(fake.namesrv, "G", "T", ordered=ordered) as consumer:
                with pytest.raises(kind, match=sentence):
                    await consumer.receive()
                assert [(await consumer.receive()).body for _ in range(len(bodies) + 1)] == [*bodies, b"later"]
                assert "message U3 of T" in consumer.statistics()["last_error"]
        assert not pops.told


async def test_a_batch_that_cannot_be_read_is_told_though_nobody_knows_its_tags() -> None:
    batch = stored(b"plain", 3, sys_flag=SYS_FLAG_COMPRESSED | SYS_FLAG_INNER_BATCH)
    async with FakeCluster({"g-a": 1}) as fake:
        pops = Pops([[batch, stored(b"wanted", 4, TAGS="A"), stored(b"not", 5)]]).put_to(fake.group.master)
        with trio.fail_after(HANG_S):
            async with PopConsumer(fake.namesrv, "G", "T", "A") as consumer:
                with pytest.raises(RemoteProtocolError, match="does not decompress"):
                    await consumer.receive()
                assert (await consumer.receive()).body == b"wanted"
        assert [command.ext["offset"] for command in pops.told] == ["5"]


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("spoilt", [range(4, 8), range(8)], ids=["magic", "head"])
async def test_a_damaged_record_is_told_and_keeps_no_other_from_the_reader(
    ordered: bool, spoilt: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In order nothing behind it is given: it comes again first, and so does what stands behind one without an end."""
    async with FakeCluster({"g-a": 1}) as fake:
        bad, sound = stored(b"b", 5), encode_stored

        def spoil(item: Stored) -> bytes:
            data = bytearray(sound(item))
            for at in spoilt if item is bad else ():
                data[at] = 7
            return bytes(data)

        monkeypatch.setattr("tests.client.consumers.test_pop_consumer.encode_stored", spoil)
        Pops([[stored(b"a", 4), bad, stored(b"c", 6)], [stored(b"d", 7)]]).put_to(fake.group.master)
        monkeypatch.setattr(pop_consumer, "_now_ms", lambda: POP_MS)
        with trio.fail_after(HANG_S):
            async with PopConsumer(fake.namesrv, "G", "T", "*", ordered=ordered) as consumer:
                assert (await consumer.receive()).body == b"a"
                with pytest.raises(RemoteProtocolError, match="sent what is no record"):
                    await consumer.receive()
                found = [(await consumer.receive()).body]
                if found == [b"c"]:
                    found.append((await consumer.receive()).body)
                assert found == ([b"d"] if ordered or 0 in spoilt else [b"c", b"d"])
                assert consumer.statistics()["failed_pops"] == 0


async def test_dead_letters_are_put_there_and_done_with() -> None:
    message = stored(b"a", 4)
    async with FakeCluster({"g-a": 1}) as fake:
        pops = Pops([[message]]).put_to(fake.group.master)
        fake.group.stored.append(message)
        with trio.fail_after(HANG_S):
            async with PopConsumer(fake.namesrv, "G", "T") as consumer:
                await consumer.dead_letter(await consumer.receive())
        assert [command.code for command in pops.told] == [RequestCode.ACK_MESSAGE]
        assert fake.group.stored[-1].properties["DELAY"] == "-1"


async def test_deliveries_are_counted() -> None:
    async with FakeCluster({"g-a": 1}) as fake:
        pops = Pops([[stored(b"a", 4), stored(b"b", 5), stored(b"c", 2, queue_id=1)]])
        pops.ext = {"orderCountInfo": "0 qo0%4 2;0 0 1;0 1 3"}
        pops.put_to(fake.group.master)
        with trio.fail_after(HANG_S):
            async with PopConsumer(fake.namesrv, "G", "T", ordered=True) as consumer:
                assert [(await consumer.receive()).delivery_count for _ in range(3)] == [3, 2, 4]


@pytest.mark.parametrize(
    "ext",
    [
        {"startOffsetInfo": "0 0"},
        {"startOffsetInfo": "0 0 x"},
        {"startOffsetInfo": ""},
        {"popTime": "soon"},
        {"orderCountInfo": "0 0 -1"},
    ],
)
async def test_an_answer_that_cannot_be_read_is_told_and_asked_again(ext: dict[str, str]) -> None:
    class Repaired(Pops):
        def __call__(self, command: Command) -> Command | None:
            answer = super().__call__(command)
            self.ext = {}
            return answer

    async with FakeCluster({"g-a": 1}) as fake:
        pops = Repaired([[stored(b"a", 4)], [stored(b"b", 5)]], ext)
        pops.put_to(fake.group.master)
        with trio.fail_after(HANG_S):
            async with PopConsumer(fake.namesrv, "G", "T") as consumer:
                assert (await consumer.receive()).body == b"b"
                assert consumer.statistics()["failed_pops"] == 1


async def test_what_waited_too_long_for_its_reader_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    later_ms = count(0, 2)  # whoever looks at the clock next is later than a message is kept
    monkeypatch.setattr(pop_consumer, "_now_ms", lambda: next(later_ms))
    async with FakeCluster({"g-a": 1}) as fake:
        Pops([[stored(b"a", 4)], [stored(b"b", 5)]]).put_to(fake.group.master)
        with trio.fail_after(HANG_S):
            async with PopConsumer(fake.namesrv, "G", "T", invisible_ms=1) as consumer:
                while not consumer.statistics()["expired"]:
                    with trio.move_on_after(0.01):
                        await consumer.receive()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"count": 0}, "count 0: from 1 to 32"),
        ({"count": 33}, "count 33: from 1 to 32"),
        ({"invisible_ms": 0}, "invisible_ms 0: a message needs a time"),
        ({"group": ""}, "needs the name of its group"),
        ({"group": "a b"}, "must consist of letters"),
        ({"tags": "a||"}, "an alternative is empty"),
    ],
)
def test_numbers_and_names_are_checked(options: dict[str, object], sentence: str) -> None:
    given = {"namesrv": "127.0.0.1:1", "group": "G", "topic": "T", **options}
    with pytest.raises(UsageError, match=sentence):
        PopConsumer(**given)  # type: ignore[arg-type]
