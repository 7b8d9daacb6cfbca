"""The producer against scripted brokers: what is stored, in which order and how often, and what the caller hears."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from typing import Any
from unittest.mock import patch

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqha.client.compression import decompress
from rmqha.client.producers.outgoing import OutgoingMessage
from rmqha.client.producers.producer import Producer
from rmqha.client.producers.result import SendResult, SendStatus
from rmqha.model.code import RequestCode
from rmqha.model.code import ResponseCode as Code
from rmqha.model.error import RemoteError, RmqhaError, UnreachableError, UsageError
from rmqha.model.message import java_string_hash
from tests.client.fake import Answer, Do, FakeCluster, InTurn
from tests.support.patience import HANG_MS, HANG_S


async def test_the_request_is_what_a_java_client_sends() -> None:
    async with FakeCluster() as fake, Producer(fake.namesrv, "P") as producer:
        result = await producer.send("T", b"hello", keys="k1 k2", tags="A", properties={"color": "red"}, queue_id=3)
        (stored,) = fake.stored
        assert (result.status, result.queue_id, result.queue_offset) == (SendStatus.SEND_OK, 3, 0)
        assert result.tries == 1 and not result.duplicate_possible
        assert stored.body == b"hello"
        assert stored.properties == {
            "color": "red",
            "KEYS": "k1 k2",
            "TAGS": "A",
            "UNIQ_KEY": result.msg_id,
            "WAIT": "true",
        }
        assert len(result.msg_id) == 32 and bytes.fromhex(result.msg_id)[:4] == b"\x7f\x00\x00\x01"
        ext = stored.ext
        assert {name: ext[name] for name in "abcdefhjkmn"} == {
            "a": "P", "b": "T", "c": "TBW102", "d": "4", "e": "3", "f": "0",
            "h": "0", "j": "0", "k": "false", "m": "false", "n": "g-a",
        }  # fmt: skip
        assert result.offset_msg_id == "7F00000100002A9F0000000000000000"


async def test_a_long_body_is_compressed_as_java_does() -> None:
    async with FakeCluster() as fake, Producer(fake.namesrv) as producer:
        await producer.send("T", b"x" * 4096)
        await producer.send("T", b"x" * 4097)
        plain, packed = fake.stored
        assert (plain.sys_flag, plain.body) == (0, b"x" * 4096)
        assert packed.sys_flag == 0x301 and zlib.decompress(packed.body) == b"x" * 4097


@pytest.mark.parametrize(("name", "sys_flag"), [("lz4", 0x101), ("zstd", 0x201), (None, 0)])
async def test_a_long_body_is_compressed_as_it_was_asked_for(name: str | None, sys_flag: int) -> None:
    async with FakeCluster() as fake, Producer(fake.namesrv, compression=name) as producer:
        await producer.send("T", b"x" * 4097)
        assert fake.stored[0].sys_flag == sys_flag
        assert decompress(fake.stored[0].body, sys_flag) == b"x" * 4097


async def test_unkeyed_sends_take_the_queues_in_turn_and_a_key_keeps_its_queue() -> None:
    async with FakeCluster({"g-a": 1, "g-b": 1}) as fake, Producer(fake.namesrv) as producer:
        for _ in range(8):
            await producer.send("T", b"x")
        assert {(name, item.queue_id) for name, group in fake.groups.items() for item in group.stored} == {
            (name, queue_id) for name in ("g-a", "g-b") for queue_id in range(4)
        }
        for key in ("order-1", "заказ", "", "polygenelubricants"):
            results = {await _place(producer, key) for _ in range(3)}
            index = abs(java_string_hash(key)) % 8
            assert results == {(("g-a", "g-b")[index // 4], index % 4)}


async def _place(producer: Producer, key: str) -> tuple[str, int]:
    result = await producer.send("T", b"x", key=key)
    return result.broker_name, result.queue_id


@pytest.mark.parametrize("code", [1, 2, 14, 16])
async def test_retriable_codes_are_retried(code: int) -> None:
    async with FakeCluster() as fake, Producer(fake.namesrv) as producer:
        fake.group.master.script = InTurn((code, False), (code, False))
        result = await producer.send("T", b"x")
        assert (result.status, result.tries, len(fake.stored)) == (SendStatus.SEND_OK, 3, 1)
        assert result.duplicate_possible is (code in (1, 14))


@pytest.mark.parametrize("code", [13, 3, 205])
async def test_codes_that_a_retry_cannot_change_are_raised_at_once(code: int) -> None:
    async with FakeCluster() as fake, Producer(fake.namesrv) as producer:
        fake.group.master.script = InTurn((code, False))
        with pytest.raises(RemoteError, match=f"scripted {code}") as caught:
            await producer.send("T", b"x")
        assert (caught.value.code, len(fake.group.master.requests)) == (code, 1)
        assert producer.statistics()["failed"] == 1


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (10, SendStatus.FLUSH_DISK_TIMEOUT),
        (11, SendStatus.SLAVE_NOT_AVAILABLE),
        (12, SendStatus.FLUSH_SLAVE_TIMEOUT),
    ],
)
async def test_stored_but_not_safe_is_a_status_or_with_require_ok_a_retry(code: int, status: SendStatus) -> None:
    async with FakeCluster() as fake, Producer(fake.namesrv) as producer:
        fake.group.master.script = InTurn((code, True), (code, True))
        assert (await producer.send("T", b"x")).status is status
        result = await producer.send("T", b"y", require_ok=True)
        assert (result.status, result.tries, result.duplicate_possible) == (SendStatus.SEND_OK, 2, True)
        assert [item.properties["UNIQ_KEY"] for item in fake.stored if item.body == b"y"] == [result.msg_id] * 2


async def test_each_try_that_may_have_been_stored_counts_as_a_copy() -> None:
    async with FakeCluster() as fake, Producer(fake.namesrv) as producer:
        fake.group.master.script = InTurn((12, True), Do.CLOSE_AFTER, (12, True))
        result = await producer.send("T", b"x", require_ok=True)
        assert (result.tries, result.copies_possible, len(fake.stored)) == (4, 3, 4)
        assert producer.statistics()["duplicates_possible"] == 3


async def test_the_deadline_ends_it_with_the_last_reason() -> None:
    async with FakeCluster() as fake, Producer(fake.namesrv) as producer:
        fake.group.master.script = lambda node, command: (Code.SYSTEM_ERROR, False)
        with pytest.raises(RemoteError, match=r"not acknowledged within 1000 ms after ([2-9]|\d\d) tries"):
            await producer.send("T", b"x", timeout_ms=1000)
        fake.group.master.script = lambda node, command: Do.HANG
        with pytest.raises(UnreachableError, match="not acknowledged within 100 ms after 1 tries; last: no answer"):
            await producer.send("T", b"x", timeout_ms=100)
        assert producer.statistics()["in_flight"] == 0


@pytest.mark.parametrize("lost", [Do.CLOSE_BEFORE, Do.CLOSE_AFTER])
async def test_a_lost_connection_is_tried_again_with_the_same_unique_key(lost: Do) -> None:
    async with FakeCluster() as fake, Producer(fake.namesrv) as producer:
        fake.group.master.script = InTurn(lost)
        result = await producer.send("T", b"x")
        assert [item.properties["UNIQ_KEY"] for item in fake.stored] == [result.msg_id] * (
            2 if lost is Do.CLOSE_AFTER else 1
        )
        assert result.duplicate_possible and result.tries == 2


async def test_the_new_master_is_found_soon_after_it_registers() -> None:
    async with FakeCluster() as fake, Producer(fake.namesrv) as producer:
        await producer.send("T", b"before")
        name_server, sent = fake.name_servers[0], list[SendResult]()
        fake.group.nodes.pop(1).kill()
        fake.group.master_id = None

        async def send() -> None:
            sent.append(await producer.send("T", b"after", timeout_ms=HANG_MS))

        with trio.fail_after(HANG_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(send)
                # each 20 to 50 ms, not with the 30 s poll
                while name_server.asked < 8:  # noqa: ASYNC110
                    await trio.sleep(0.001)
                fake.group.master_id, before = 2, name_server.asked
        assert sent[0].status is SendStatus.SEND_OK
        assert name_server.asked <= before + 2


async def test_a_frozen_master_is_given_up_once_another_is_registered() -> None:
    async with FakeCluster() as fake, Producer(fake.namesrv) as producer:
        old = fake.group.master
        old.script = lambda node, command: Do.HANG
        async with trio.open_nursery() as nursery:
            nursery.start_soon(producer.send, "T", b"x")
            with trio.fail_after(HANG_S):
                await old.asked.wait()
            fake.group.master_id = 2
        assert len(fake.stored) == 1
        assert producer.statistics()["hedged"] == 1


async def test_a_send_that_the_old_master_holds_is_not_sent_to_the_new_one_as_well() -> None:
    async with FakeCluster() as fake, Producer(fake.namesrv) as producer:
        old, sent = fake.group.master, list[SendResult]()
        old.holds_sends = True
        old.script = lambda node, command: Do.HANG

        async def send() -> None:
            sent.append(await producer.send("T", b"x", timeout_ms=HANG_S * 1000))

        with trio.fail_after(HANG_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(send)
                await old.asked.wait()
                fake.group.master_id = 2
                # the second answer comes after the first question that was put when there was another master
                while sum(item.code == RequestCode.RMQHA_HOLDS_SENDS for item in old.requests) < 4:  # noqa: ASYNC110
                    await trio.sleep(0.01)
                assert not sent and not fake.stored
                old.holds_sends = False
        assert (len(fake.stored), sent[0].tries, producer.statistics()["hedged"]) == (1, 2, 1)


async def test_an_unordered_send_moves_to_another_group_and_an_ordered_one_waits_for_its_own() -> None:
    async with FakeCluster({"g-a": 2, "g-b": 1}) as fake, Producer(fake.namesrv) as producer:
        await producer.send("T", b"warm")
        down = fake.groups["g-a"]
        fake.fail_over(group=down, after_ms=HANG_MS)
        for _ in range(8):
            assert (await producer.send("T", b"free")).broker_name == "g-b"
        assert [item for item in down.stored if item.body == b"free"] == []
        down.master_id = min(down.nodes)
        key = next(str(number) for number in range(99) if abs(java_string_hash(str(number))) % 8 < 4)
        result = await producer.send("T", b"ordered", key=key)
        assert result.broker_name == "g-a"


async def test_a_key_waits_for_a_group_that_the_name_server_has_forgotten() -> None:
    async with FakeCluster({"g-a": 1, "g-b": 1}) as fake, Producer(fake.namesrv) as producer:
        await producer.send("T", b"warm")
        gone = fake.groups["g-a"]
        key = next(str(number) for number in range(99) if abs(java_string_hash(str(number))) % 8 < 4)
        gone.nodes.pop(1).kill()
        with pytest.raises(UnreachableError, match="group g-a has no master"):
            await producer.send("T", b"x", key=key, timeout_ms=300)
        assert (await producer.send("T", b"free")).broker_name == "g-b"


async def test_a_name_server_that_lags_is_not_the_only_one_asked() -> None:
    async with FakeCluster(name_servers=2) as fake, Producer(fake.namesrv) as producer:
        await producer.send("T", b"x")
        fake.name_servers[0].frozen = fake.name_servers[0].route()
        fake.fail_over()
        before = sum(server.asked for server in fake.name_servers)
        await producer.send("T", b"y", timeout_ms=HANG_MS)
        assert sum(server.asked for server in fake.name_servers) <= before + 4


async def test_name_servers_are_tried_in_turn() -> None:
    async with FakeCluster(name_servers=3) as fake:
        fake.name_servers[0].scope.cancel()
        async with Producer(f"127.0.0.1:1;{fake.namesrv}") as producer:
            assert (await producer.send("T", b"x")).status is SendStatus.SEND_OK


async def test_errors_before_anything_is_sent() -> None:
    loose: Any = OutgoingMessage  # as one who checks no types makes it
    pair: Any = ("T", b"x")
    async with FakeCluster() as fake, Producer(fake.namesrv) as producer:
        for wrong, reason in (
            (OutgoingMessage("T", b""), "empty body"),
            (OutgoingMessage("a topic", b"x"), "must consist of"),
            (OutgoingMessage("T" * 128, b"x"), "longer than 127"),
            (OutgoingMessage("T", b"x" * (4 * 1024 * 1024 + 1)), "4194304 at most"),
            (OutgoingMessage("T", b"x", properties={"a": "b\x02"}), "0x02"),
            (OutgoingMessage("T", b"x", properties={"UNIQ_KEY": "1"}), "set by the client"),
            (OutgoingMessage("T", b"x", properties={"a": "b" * 40_000}), "32767 fit"),
            (OutgoingMessage("T", b"x", queue_id=9), "no queue 9"),
            (loose("T", memoryview(b"12345678").cast("I")), r"memoryview of other items than bytes: bytes\(it\)"),
            (loose("T", memoryview(b"12345678")[::2]), "memoryview of other items"),
            (loose("T", b"x", keys=["a", "b"]), "keys of a message for topic T is list, not str; join"),
            (loose("T", b"x", tags=7), "tags of a message for topic T is int, not str"),
            (loose("T", b"x", key=7), "key of a message for topic T is int, not str"),
            (loose("T", b"x", queue_id="1"), "queue_id of a message for topic T is str, not int"),
            (loose("T", b"x", properties=["a"]), "properties of a message for topic T is list, not Mapping"),
            (loose("T", b"x", properties={"n": 3}), r"property n of a message for topic T is int, not str; str\(it\)"),
            (loose("T", b"x", properties={"n": None}), "property n of a message for topic T is NoneType, not str"),
            (loose("T", b"x", properties={3: "n"}), "the name 3 of a property of a message for topic T is int, not"),
            (loose(None, b"x"), "topic None is NoneType, not str"),
            (loose(b"T", b"x"), "topic b'T' is bytes, not str"),
            (pair, "a message is tuple, not OutgoingMessage"),
            (OutgoingMessage("T", b"x", key="\ud800"), "ordering key of a message for topic T: .* surrogates"),
        ):
            with pytest.raises(UsageError, match=reason):
                await producer.send_message(wrong)
        with pytest.raises(RemoteError, match="topic Nowhere does not exist"):
            await producer.send("Nowhere", b"x")
        fake.group.perm = 4
        with pytest.raises(RemoteError, match="no queue that may be written"):
            async with Producer(fake.namesrv) as other:
                await other.send("T", b"x")
        assert fake.stored == []
    with pytest.raises(UsageError, match="group 'a b' must consist of letters"):
        Producer("127.0.0.1:1", "a b")
    with pytest.raises(UsageError, match="not an address"):
        Producer("somewhere")
    with pytest.raises(UsageError, match="is list, not str; write host:port, several joined by ';'"):
        Producer(["127.0.0.1:1"])  # type: ignore[arg-type]
    with pytest.raises(UnreachableError, match="no name server answers"):
        async with Producer("127.0.0.1:1") as producer:
            await producer.route("T")


async def test_a_new_topic_goes_the_way_of_the_auto_create_topic() -> None:
    async with FakeCluster() as fake, Producer(fake.namesrv) as producer:
        fake.name_servers[0].auto_create = True
        fake.group.write_queue_count = 8
        results = [await producer.send("New", b"x") for _ in range(8)]
        assert {result.queue_id for result in results} == {0, 1, 2, 3}
        fake.group.master.script = InTurn((Code.TOPIC_NOT_EXIST, False))
        with pytest.raises(RemoteError, match="17"):
            await producer.send("New", b"x")


async def test_a_topic_that_the_new_master_does_not_know_yet_is_tried_again() -> None:
    async with FakeCluster() as fake, Producer(fake.namesrv) as producer:
        fake.group.master.script = InTurn((Code.TOPIC_NOT_EXIST, False))
        assert (await producer.send("T", b"x")).tries == 2


async def test_a_topic_that_was_made_again_with_fewer_queues_is_found_at_once() -> None:
    """Not with the next poll of the route: until then half of the sends would be refused."""
    async with FakeCluster({"g-a": 1}) as fake, Producer(fake.namesrv) as producer:
        await producer.send("T", b"x")
        fake.group.write_queue_count = 1
        fake.group.master.script = lambda node, command: Do.STORE if command.ext["e"] == "0" else (29, False)
        results = [await producer.send("T", b"x") for _ in range(4)]
        assert {result.queue_id for result in results} == {0} and sum(result.tries for result in results) <= 5
        assert not any(result.duplicate_possible for result in results)
        fake.group.master.script = lambda node, command: (29, False)
        asked = len(fake.group.master.requests)
        with pytest.raises(RemoteError, match="scripted 29"):
            await producer.send("T", b"x")
        assert len(fake.group.master.requests) == asked + 2, "a new route does not help: it is told"


@pytest.mark.parametrize("batch", [1, 4])
async def test_what_no_broker_takes_ends_no_other_send(batch: int) -> None:
    async with FakeCluster() as fake, Producer(fake.namesrv) as producer:
        wrong = OutgoingMessage("T", b"x", key="\ud800")
        tally = await producer.send_many([OutgoingMessage("T", b"a"), wrong, OutgoingMessage("T", b"b")], batch=batch)
        assert (tally.acknowledged, tally.failed) == (2, 1)


async def test_oneway() -> None:
    async with FakeCluster() as fake, Producer(fake.namesrv) as producer:
        await producer.send_oneway(OutgoingMessage("T", b"x"))
        with trio.fail_after(HANG_S):
            await fake.group.master.asked.wait()
        assert fake.group.master.requests[0].is_oneway
        assert [item.body for item in fake.stored] == [b"x"]


async def test_a_batch_is_one_request() -> None:
    async with FakeCluster() as fake, Producer(fake.namesrv) as producer:
        messages = [OutgoingMessage("T", b"b%d" % number, tags="B", key="k") for number in range(3)]
        result = await producer.send_batch(messages)
        assert [item.body for item in fake.stored] == [b"b0", b"b1", b"b2"]
        assert [item.properties["UNIQ_KEY"] for item in fake.stored] == result.msg_id.split(",")
        assert {item.queue_id for item in fake.stored} == {result.queue_id}
        assert fake.stored[0].ext["m"] == "true"
        with pytest.raises(UsageError, match="must share"):
            await producer.send_batch([OutgoingMessage("T", b"x"), OutgoingMessage("T", b"x", key="k")])
        with pytest.raises(UsageError, match="no message"):
            await producer.send_batch([])


UNHEARD = ("DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "_SYS_MSG_PRIORITY_", "TRAN_MSG")
"""Properties that a broker acts on in a message, but in none of a batch: a timer message would come at once."""


@pytest.mark.parametrize("name", UNHEARD)
async def test_no_batch_holds_a_message_whose_property_it_would_silence(name: str) -> None:
    async with FakeCluster() as fake, Producer(fake.namesrv) as producer:
        late = OutgoingMessage("T", b"late", properties={name: "3"})
        with pytest.raises(UsageError, match=f"property {name} does nothing in a batch"):
            await producer.send_batch([OutgoingMessage("T", b"now"), late])
        assert fake.stored == []
        messages = [OutgoingMessage("T", b"%d" % number) for number in range(8)]
        assert (await producer.send_many([*messages, late, *messages], window=32, batch=32)).acknowledged == 17
        codes = [(item.body == b"late", item.ext["m"]) for item in fake.stored]
        assert sorted(set(codes)) == [(False, "true"), (True, "false")]


async def test_a_batch_counts_the_properties_that_it_carries() -> None:
    """Counted by their bodies alone, the messages would make a batch that no broker takes, and all would fail."""
    async with FakeCluster() as fake, Producer(fake.namesrv) as producer:
        messages = [OutgoingMessage("T", b"x", properties={"a": "b" * 30_000}) for _ in range(200)]
        assert (await producer.send_many(messages, window=200, batch=200)).acknowledged == 200
        assert all(len(item.body) <= 1 << 20 for item in fake.group.master.requests)


async def test_send_many_keeps_its_window_and_reports_each() -> None:
    async with FakeCluster() as fake, Producer(fake.namesrv) as producer:
        in_flight: list[int] = []

        def script(node: object, command: object) -> Answer:
            in_flight.append(producer.statistics()["in_flight"])
            return Do.STORE

        fake.group.master.script = script
        results: dict[int, SendResult | RmqhaError] = {}

        def note(position: int, message: OutgoingMessage, outcome: SendResult | RmqhaError) -> None:
            assert message.body == str(position).encode()
            results[position] = outcome

        messages = [OutgoingMessage("T", str(number).encode()) for number in range(200)]
        tally = await producer.send_many(messages, window=7, on_result=note)
        assert (tally.sent, tally.acknowledged, tally.failed) == (200, 200, 0)
        assert sorted(results) == list(range(200))
        assert max(in_flight) == 7
        with pytest.raises(UsageError, match="1 or more"):
            await producer.send_many([], window=0)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("batch", [1, 4])
async def test_what_the_iterable_raises_is_raised_once_all_before_it_are_told(batch: int, is_async: bool) -> None:
    async with FakeCluster() as fake, Producer(fake.namesrv) as producer:
        told: list[int] = []

        def made() -> Iterator[OutgoingMessage]:
            for number in range(9):
                yield OutgoingMessage("T", b"%d" % number)
            raise KeyError("no more")

        async def made_later() -> AsyncIterator[OutgoingMessage]:
            for message in made():
                yield message

        def tell(position: int, message: OutgoingMessage, outcome: object) -> None:
            told.append(position)

        with pytest.raises(KeyError, match="no more"):
            await producer.send_many(made_later() if is_async else made(), batch=batch, on_result=tell)
        assert sorted(told) == list(range(9)) and len(fake.stored) == 9


@pytest.mark.parametrize("batch", [1, 4])
async def test_what_on_result_raises_ends_the_sending(batch: int) -> None:
    async with FakeCluster() as fake, Producer(fake.namesrv) as producer:

        def tell(position: int, message: OutgoingMessage, outcome: object) -> None:
            raise ValueError("not wanted")

        endless = iter(lambda: OutgoingMessage("T", b"x"), None)
        with trio.fail_after(HANG_S), pytest.raises(ValueError, match="not wanted"):
            await producer.send_many(endless, batch=batch, on_result=tell)


async def test_send_many_counts_what_fails_and_goes_on() -> None:
    async with FakeCluster() as fake, Producer(fake.namesrv) as producer:
        fake.group.master.script = InTurn((13, False))

        def messages() -> Iterator[OutgoingMessage]:
            for number in range(10):
                yield OutgoingMessage("T", b"%d" % number, key="k")

        tally = await producer.send_many(messages())
        assert (tally.acknowledged, tally.failed) == (9, 1)
        assert [item.body for item in fake.stored] == [b"%d" % number for number in range(1, 10)]


async def test_send_many_in_batches_fills_them_and_reports_each() -> None:
    async with FakeCluster() as fake, Producer(fake.namesrv) as producer:
        outcomes: dict[int, SendResult | RmqhaError] = {}

        def note(position: int, message: OutgoingMessage, outcome: SendResult | RmqhaError) -> None:
            outcomes[position] = outcome

        messages = [OutgoingMessage("T", b"%d" % number) for number in range(200)]
        messages[50] = OutgoingMessage("T", b"long" * 2000)
        messages[60] = OutgoingMessage("T", b"late", properties={"DELAY": "3"})
        messages[70] = OutgoingMessage("T", b"")
        messages[80] = OutgoingMessage("T", b"x", properties={"a": "\x02"})
        tally = await producer.send_many(messages, window=64, batch=16, on_result=note)
        assert (tally.sent, tally.acknowledged, tally.failed) == (200, 198, 2)
        assert sorted(outcomes) == list(range(200))
        assert {number for number, outcome in outcomes.items() if isinstance(outcome, UsageError)} == {70, 80}
        sends = fake.group.master.requests
        # the two go alone, and so does what is left over between them
        assert sum(item.code == RequestCode.SEND_MESSAGE_V2 for item in sends) < 8 and len(sends) < 30
        for position, outcome in outcomes.items():
            if isinstance(outcome, SendResult):
                stored = fake.group.queue(outcome.queue_id)[outcome.queue_offset]
                assert stored.properties["UNIQ_KEY"] == outcome.msg_id
                assert stored.body == messages[position].body or position == 50
        with pytest.raises(UsageError, match="does not hold batches"):
            await producer.send_many([], window=4, batch=5)


async def test_a_batch_that_a_broker_finds_illegal_is_sent_one_by_one() -> None:
    async with FakeCluster() as fake, Producer(fake.namesrv) as producer:
        fake.group.master.script = InTurn((13, False), (13, False))
        messages = [OutgoingMessage("T", b"%d" % number) for number in range(8)]
        tally = await producer.send_many(messages, window=8, batch=8)
        # the batch and one of its messages are refused
        assert (tally.acknowledged, tally.failed) == (7, 1)
        assert [item.body for item in fake.stored] == [b"%d" % number for number in range(1, 8)]


async def test_batches_of_a_source_that_waits_do_not_wait_for_company() -> None:
    async with FakeCluster() as fake, Producer(fake.namesrv) as producer:

        async def source() -> AsyncGenerator[OutgoingMessage, None]:
            for number in range(3):
                yield OutgoingMessage("T", b"%d" % number)
                with trio.fail_after(HANG_S):
                    while len(fake.stored) <= number:  # noqa: ASYNC110 - a test looks from outside
                        await trio.sleep(0.005)

        generator = source()
        tally = await producer.send_many(generator, window=8, batch=4)
        await generator.aclose()
        assert tally.acknowledged == 3


ANSWERS: st.SearchStrategy[Answer] = st.sampled_from(
    [
        Do.STORE,
        Do.CLOSE_BEFORE,
        Do.CLOSE_AFTER,
        (1, False),
        (2, False),
        (14, False),
        (14, True),
        (16, False),
        (10, True),
        (11, True),
        (12, True),
    ]
)


@settings(max_examples=40)
@given(
    faults=st.lists(ANSWERS, max_size=12),
    window=st.integers(1, 9),
    batch=st.integers(1, 5),
    fails_over=st.booleans(),
)
def test_whatever_fails_every_message_is_stored_and_keys_keep_their_order(
    faults: list[Answer], window: int, batch: int, fails_over: bool
) -> None:
    with patch.multiple("rmqha.client.route_table", FIRST_BACKOFF_MS=2, BACKOFF_MS=5):  # each fault takes a few of them
        trio.run(_send_under_faults, faults, window, min(batch, window), fails_over)


async def _send_under_faults(faults: list[Answer], window: int, batch: int, fails_over: bool) -> None:
    async with FakeCluster() as fake, Producer(fake.namesrv) as producer:
        script = InTurn(*faults)
        for node in fake.group.nodes.values():
            node.script = script
        acknowledged: dict[int, SendResult] = {}

        def note(position: int, message: OutgoingMessage, outcome: SendResult | RmqhaError) -> None:
            assert isinstance(outcome, SendResult)
            acknowledged[position] = outcome
            if fails_over and position == 10:
                fake.fail_over()

        messages = [
            OutgoingMessage("T", b"%d" % number, key=f"k{number % 3}" if number % 4 else None) for number in range(24)
        ]
        tally = await producer.send_many(messages, window=window, batch=batch, on_result=note)
        assert tally.acknowledged == 24
        numbers_of_key: dict[str, list[int]] = defaultdict(list)
        keys_of_number: dict[int, set[str]] = defaultdict(set)
        for item in fake.stored:
            number = int(item.body)
            keys_of_number[number].add(item.properties["UNIQ_KEY"])
            if number % 4:
                numbers_of_key[f"k{number % 3}"].append(number)
        # nothing is lost, and a message that was stored twice can be told by its UNIQ_KEY
        assert keys_of_number == {number: {acknowledged[number].msg_id} for number in range(24)}
        for key, stored in numbers_of_key.items():
            # a batch that was stored twice follows itself as a whole
            seen = stored if batch == 1 else list(dict.fromkeys(stored))
            assert seen == sorted(seen), key
        extra = len(fake.stored) - 24
        assert extra <= sum(result.tries - 1 for result in acknowledged.values())
        doubled = [number for number in range(24) if sum(int(item.body) == number for item in fake.stored) > 1]
        assert all(acknowledged[number].duplicate_possible for number in doubled)
