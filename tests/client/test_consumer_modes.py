"""Lazy batches, messages handed back, broadcast readers and selectors."""

from __future__ import annotations

import dataclasses
import zlib
from pathlib import Path

import pytest
import trio

from rmqha.client.compression import BodyTooLargeError
from rmqha.client.consumers.consumer import Consumer
from rmqha.client.consumers.message import Message, MessageBatch
from rmqha.client.producers.producer import Producer
from rmqha.model.code import RequestCode
from rmqha.model.error import RemoteError, RemoteProtocolError, UsageError
from rmqha.model.message import SYS_FLAG_INNER_BATCH
from rmqha.store.meta import sidecar
from rmqha.wire.command import Command
from tests.client.consumers.test_consumer import bodies, fill, pulled, take
from tests.client.fake import FakeCluster, Stored, encode_stored
from tests.support.patience import HANG_S


async def test_batches_hold_all_messages_as_views() -> None:
    async with FakeCluster() as fake:
        fill(fake.group, [f"{number:02}" for number in range(30)], tags="A")
        seen = []
        async with Consumer(fake.namesrv, "G", "T") as consumer:
            with trio.fail_after(HANG_S):
                async for batch in consumer.batches():
                    for view in batch:
                        assert isinstance(view.body, memoryview) and view.body.obj is batch.buffer.obj
                        assert view.message().body == view.body
                        seen.append(bytes(view.body).decode())
                    if len(seen) == 30:
                        break
        assert sorted(seen) == [f"{number:02}" for number in range(30)]
        assert sum(offset for (group, _, _), offset in fake.group.offsets.items() if group == "G") == 30


def test_a_view_says_what_the_decoded_message_says() -> None:
    properties = {"UNIQ_KEY": "U", "KEYS": "k", "TAGS": "A", "own": "x"}
    data = encode_stored(Stored("T", 3, 41, b"body", properties, 0, {}))
    (view,) = MessageBatch("g", data)
    message = view.message()
    for name in (*message.__dataclass_fields__, "keys", "tags", "msg_id"):
        assert getattr(view, name) == getattr(message, name), name
    assert (message.queue_id, message.queue_offset, message.properties) == (3, 41, properties)


async def test_a_batch_that_was_looked_at_but_not_finished_comes_again() -> None:
    async with FakeCluster() as fake:
        fill(fake.group, "abcdef", queue_count=1)
        with pytest.raises(KeyError):
            async with Consumer(fake.namesrv, "G", "T") as consumer:
                with trio.fail_after(HANG_S):
                    await consumer.receive_batch()
                    second = await consumer.receive_batch()
                    raise KeyError(second[0].queue_offset)
        assert fake.group.offsets["G", "T", 0] == 3
        async with Consumer(fake.namesrv, "G", "T") as consumer:
            (message,) = await take(consumer, 1)
            assert message.body == b"d"
            # the rest of what `receive` began
            batch = await consumer.receive_batch()
            assert [bytes(view.body) for view in batch] == [b"e", b"f"]
        assert fake.group.offsets["G", "T", 0] == 6


async def test_a_message_that_is_handed_back_comes_again_under_its_own_topic() -> None:
    async with FakeCluster() as fake:
        fake.name_servers[0].topics.add("%RETRY%G")
        fill(fake.group, "ab", queue_count=1)
        async with Consumer(fake.namesrv, "G", "T") as consumer:
            first, second = await take(consumer, 2)
            await consumer.retry(first, delay_level=5, max_reconsume_times=3)
            (again,) = await take(consumer, 1)
            assert (again.body, again.topic, again.msg_id) == (b"a", "T", first.msg_id)
            assert consumer.statistics()["retried"] == 1
        (asked,) = [node for node in fake.group.master.requests if node.code == RequestCode.CONSUMER_SEND_MSG_BACK]
        assert {name: asked.ext[name] for name in ("group", "offset", "delayLevel", "originMsgId", "originTopic")} == {
            "group": "G",
            "offset": str(first.phy_offset),
            "delayLevel": "5",
            "originMsgId": first.msg_id,
            "originTopic": "T",
        }
        assert asked.ext["maxReconsumeTimes"] == "3"
        assert fake.group.offsets["G", "%RETRY%G", 0] == 1
        assert second.body == b"b" and fake.group.offsets["G", "T", 0] == 2


async def test_handing_back_waits_for_the_next_master() -> None:
    async with FakeCluster() as fake:
        fake.name_servers[0].topics.add("%RETRY%G")
        fill(fake.group, "a", queue_count=1)
        async with Consumer(fake.namesrv, "G", "T") as consumer:
            (first,) = await take(consumer, 1)
            fake.fail_over(after_ms=300)
            await consumer.retry(first)
            (again,) = await take(consumer, 1)
            assert again.body == b"a"


async def test_a_group_that_cannot_store_it_is_an_error_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmqha.client.consumers.consumer.SEND_BACK_TIMEOUT_MS", 200)
    async with FakeCluster() as fake:
        fill(fake.group, "a", queue_count=1)
        async with Consumer(fake.namesrv, "G", "T") as consumer:
            (first,) = await take(consumer, 1)
            fake.group.master_id = None
            with pytest.raises(RemoteError, match="not master"):
                await consumer.retry(first)


async def test_broadcast_readers_each_read_all_and_go_on_from_their_own_file(tmp_path: Path) -> None:
    async with FakeCluster() as fake:
        fill(fake.group, "abcdef")
        stored = list("abcdef")
        for name in ("one", "two"):
            async with Consumer(fake.namesrv, "G", "T", offset_file=tmp_path / "new" / name) as consumer:
                assert bodies(await take(consumer, len(stored))) == sorted(stored)
                with pytest.raises(UsageError, match="in use by another consumer"):
                    async with Consumer(fake.namesrv, "G", "T", offset_file=tmp_path / "new" / name):
                        pass
                with pytest.raises(UsageError, match="shares its queues"):
                    await consumer.retry(await _one_more(fake, consumer, name))
            stored.append(name)
        assert fake.group.offsets == {}
        async with Consumer(fake.namesrv, "G", "T", offset_file=tmp_path / "new" / "one") as consumer:
            assert bodies(await take(consumer, 1)) == ["two"]
        beat = next(item for item in fake.group.master.requests if item.code == RequestCode.HEART_BEAT)
        assert b'"messageModel":"BROADCASTING"' in bytes(beat.body)


async def _one_more(fake: FakeCluster, consumer: Consumer, body: str) -> Message:
    fill(fake.group, [body], queue_count=1)
    (message,) = await take(consumer, 1)
    return message


async def test_files_that_hold_no_offsets_of_this_group_are_a_sentence(tmp_path: Path) -> None:
    async with FakeCluster() as fake:
        (tmp_path / "other").write_bytes(b"something else")
        with pytest.raises(UsageError, match="is no file of offsets"):
            async with Consumer(fake.namesrv, "G", "T", offset_file=tmp_path / "other"):
                pass
        (tmp_path / "foreign").write_bytes(sidecar.encode({"group": "H", "offsets": []}))
        with pytest.raises(UsageError, match="offsets of group H, not of G"):
            async with Consumer(fake.namesrv, "G", "T", offset_file=tmp_path / "foreign"):
                pass
        (tmp_path / "odd").write_bytes(sidecar.encode({"group": "G", "offsets": [["g-a", "T", "0", 1]]}))
        with pytest.raises(UsageError, match="an offset that is none"):
            async with Consumer(fake.namesrv, "G", "T", offset_file=tmp_path / "odd"):
                pass
        (tmp_path / "file").write_text("")
        with pytest.raises(UsageError, match="cannot be opened"):
            async with Consumer(fake.namesrv, "G", "T", offset_file=tmp_path / "file" / "below"):
                pass
    with pytest.raises(UsageError, match="keeps no offsets"):
        Consumer("127.0.0.1:1", "G", "T", standalone=True, offset_file=tmp_path / "x")


async def test_a_selector_goes_with_each_pull_and_heartbeat() -> None:
    async with FakeCluster() as fake:
        fake.name_servers[0].topics.add("%RETRY%G")
        asked = fake.group.master.requests
        async with Consumer(fake.namesrv, "G", "T", selector="a > 3"):
            await pulled(asked, "T", "%RETRY%G")
        pulls = [item.ext for item in asked if item.code == RequestCode.PULL_MESSAGE]
        assert {(ext["topic"], ext["subscription"], ext["expressionType"]) for ext in pulls} == {
            ("T", "a > 3", "SQL92"),
            ("%RETRY%G", "*", "TAG"),
        }
        beat = next(item for item in asked if item.code == RequestCode.HEART_BEAT)
        assert b'"subString":"a > 3"' in bytes(beat.body) and b'"topic":"%RETRY%G"' in bytes(beat.body)
    with pytest.raises(UsageError, match="not both"):
        Consumer("127.0.0.1:1", "G", "T", "A", selector="a > 3")
    with pytest.raises(UsageError, match="selector 'a >'"):
        Consumer("127.0.0.1:1", "G", "T", selector="a >")


async def test_a_body_that_does_not_decompress_is_told_and_not_skipped() -> None:
    async with FakeCluster() as fake, Producer(fake.namesrv):
        fake.group.stored.append(Stored("T", 0, 0, b"no zlib", {"UNIQ_KEY": "U"}, 1, {}))
        async with Consumer(fake.namesrv, "G", "T") as consumer:
            for _ in range(2):
                with pytest.raises(RemoteProtocolError, match="does not decompress"):
                    await take(consumer, 1)
        assert fake.group.offsets == {}


@pytest.mark.parametrize("pushed", [False, True])
async def test_offsets_that_an_operator_sets_back_are_read_and_committed_from_there(pushed: bool) -> None:
    async with FakeCluster() as fake:
        fill(fake.group, "abcdef", queue_count=1)
        async with Consumer(fake.namesrv, "G", "T") as consumer:
            assert bodies(await take(consumer, 6)) == list("abcdef")
            await consumer.commit()
            if pushed:
                table = b'{"offsetTable":{{"brokerName":"g-a","queueId":0,"topic":"T"}:2}}'
                for ext, body in (({"group": "other"}, table), ({"group": "G"}, b"[]"), ({"group": "G"}, table)):
                    for session in fake.group.members["G"].values():
                        session.send(Command(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, ext, body, flag=2))
            else:
                resets = [2]

                def told(command: Command) -> Command | None:
                    if command.ext["queueId"] != "0" or not resets:
                        return None
                    ext = {"nextBeginOffset": str(resets.pop()), "minOffset": "0", "maxOffset": "6"}
                    return command.reply(21, ext, remark="OFFSET_RESET")

                fake.group.master.pull_script = told
                fill(fake.group, ["wakes"], queue_count=1)
                assert bodies(await take(consumer, 1)) == ["wakes"]
            assert bodies(await take(consumer, 2)) == ["c", "d"]
        assert fake.group.offsets["G", "T", 0] == 4


async def test_commits_that_are_under_way_do_not_undo_an_order_of_an_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmqha.client.consumers.consumer.CALL_TIMEOUT_MS", 500)
    async with FakeCluster() as fake:
        fill(fake.group, "abcdef", queue_count=2)
        asked, offsets = fake.group.master.requests, fake.group.master._offsets

        def told(command: Command) -> Command | None:
            is_held = command.code == RequestCode.UPDATE_CONSUMER_OFFSET and command.ext["queueId"] == "0"
            return None if is_held else offsets(command)

        async with Consumer(fake.namesrv, "G", "T") as consumer, trio.open_nursery() as nursery:
            await take(consumer, 6)
            monkeypatch.setattr(fake.group.master, "_offsets", told)
            nursery.start_soon(consumer.commit)
            with trio.fail_after(HANG_S):
                while all(item.code != RequestCode.UPDATE_CONSUMER_OFFSET for item in asked):  # noqa: ASYNC110
                    await trio.sleep(0.005)
            body = b'{"offsetTable":{{"brokerName":"g-a","queueId":1,"topic":"T"}:1}}'
            for session in fake.group.members["G"].values():
                session.send(Command(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, {"group": "G"}, body, flag=2))
        commits = [item.ext for item in asked if item.code == RequestCode.UPDATE_CONSUMER_OFFSET]
        assert {ext["commitOffset"] for ext in commits if ext["queueId"] == "1"} <= {"1"}


async def test_a_topic_that_is_made_by_the_first_send_is_read_soon_after() -> None:
    async with FakeCluster() as fake:
        fake.name_servers[0].auto_create = True
        async with Consumer(fake.namesrv, "G", "New") as consumer:
            with trio.move_on_after(0.3):
                await consumer.receive()
            fake.name_servers[0].topics.add("New")
            fill(fake.group, "a", queue_count=1)
            (message,) = await take(consumer, 1)
            assert message.body == b"a"


async def test_while_one_group_is_down_the_others_are_read_and_its_messages_only_wait() -> None:
    async with FakeCluster({"g-a": 1, "g-b": 1}) as fake, Producer(fake.namesrv) as producer:
        await producer.send("T", b"warm")
        down = fake.groups["g-a"]
        fill(down, ["old"], queue_count=1)
        async with Consumer(fake.namesrv, "G", "T") as consumer:
            await take(consumer, 2)
            fill(down, ["waits"], queue_count=1)
            down.nodes[1].kill()
            down.master_id = None
            seen = await _until_silent(consumer)
            for number in range(4):
                result = await producer.send("T", b"new%d" % number, timeout_ms=2_000)
                assert result.broker_name == "g-b"
            seen += bodies(await take(consumer, 4))
            assert sorted({*seen, "waits"}) == ["new0", "new1", "new2", "new3", "waits"]
            assert {queue.broker_name for queue in consumer.assignment()} == {"g-a", "g-b"}


async def _until_silent(consumer: Consumer) -> list[str]:
    """What was on its way already."""
    seen: list[str] = []
    with trio.move_on_after(0.3):
        while True:
            seen.append((await consumer.receive()).body.decode())
    return seen


async def test_a_group_that_comes_later_is_read_too_and_no_data_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmqha.client.consumers.consumer.ROUTE_MS", 50)
    async with FakeCluster({"g-a": 1, "g-b": 1}) as fake, Producer(fake.namesrv) as producer:
        later = fake.name_servers[0].groups.pop("g-b")
        await producer.send("T", b"first")
        async with Consumer(fake.namesrv, "G", "T") as consumer:
            assert bodies(await take(consumer, 1)) == ["first"]
            fake.name_servers[0].groups["g-b"] = later
            fill(later, ["second"], queue_count=1)
            assert bodies(await take(consumer, 1)) == ["second"]
        assert [item.body for item in fake.groups["g-a"].stored] == [b"first"]


async def test_a_batch_that_cannot_be_read_is_told_and_takes_no_other_message_with_it() -> None:
    async with FakeCluster() as fake, Producer(fake.namesrv):
        fill(fake.group, "a", queue_count=1)
        fake.group.stored.append(Stored("T", 0, 1, b"plain", {"UNIQ_KEY": "U1"}, 1 | SYS_FLAG_INNER_BATCH, {}))
        fake.group.stored.append(Stored("T", 0, 2, b"c", {"UNIQ_KEY": "U2"}, 0, {}))
        async with Consumer(fake.namesrv, "G", "T") as consumer:
            assert bodies(await take(consumer, 1)) == ["a"]
            for _ in range(2):
                with pytest.raises(
                    RemoteProtocolError, match=r"message U1 of T at g-a:0/1: .* receive_batch\(\) gives it"
                ):
                    await take(consumer, 1)
            told, behind = await consumer.receive_batch()
            assert told.is_unreadable and behind.body == b"c"
            await consumer.retry(told, delay_level=-1)
        asked = [item.ext for item in fake.group.master.requests if item.code == RequestCode.CONSUMER_SEND_MSG_BACK]
        assert [(ext["delayLevel"], ext["originMsgId"]) for ext in asked] == [("-1", "U1")]
        assert fake.group.offsets["G", "T", 0] == 3


def damaged(item: Stored, *, size: int | None = None, magic: int = 0xDAA320A7, topic_bytes: int = 1) -> bytes:
    data = bytearray(encode_stored(item))
    data[:4] = (len(data) if size is None else size).to_bytes(4)
    data[4:8] = magic.to_bytes(4)
    data[88 + len(item.body)] = topic_bytes
    return bytes(data)


@pytest.mark.parametrize("tags", ["*", "A"])
@pytest.mark.parametrize(
    "spoilt",
    [{"topic_bytes": 99}, {"magic": 7}, {"size": 1 << 30}, {"size": 0}, {"size": 7, "magic": 7}],
    ids=["a part", "magic", "size beyond", "size 0", "head"],
)
async def test_a_damaged_record_is_told_and_takes_no_other_message_with_it(
    spoilt: dict[str, int], tags: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it stands in an answer, and whether or not it says where the next one begins."""
    async with FakeCluster({"g-a": 1}) as fake:
        fill(fake.group, "abcdefg", queue_count=1, tags="A")
        bad = fake.group.stored[1]
        monkeypatch.setattr(
            "tests.client.fake.encode_stored",
            lambda item: damaged(item, **spoilt) if item is bad else encode_stored(item),
        )
        async with Consumer(fake.namesrv, "G", "T", tags) as consumer:
            assert bodies(await take(consumer, 1)) == ["a"]
            for _ in range(2):
                with pytest.raises(
                    RemoteProtocolError, match=r"of T at g-a:0/1: group g-a sent what is no record: .* receive_batch"
                ):
                    await take(consumer, 1)
            assert fake.group.offsets.get(("G", "T", 0), 0) < 2
            with trio.fail_after(HANG_S):
                told, *behind = await consumer.receive_batch()
            assert told.is_unreadable and told.is_damaged and (told.queue_offset, told.tags) == (1, "")
            with pytest.raises(RemoteProtocolError, match="no record"):
                told.body  # noqa: B018 - it raises
            rest = [bytes(view.body).decode() for view in behind]
            rest += bodies(await take(consumer, 5 - len(rest)))
            assert rest == list("cdefg")
        assert fake.group.offsets["G", "T", 0] == 7


def bomb(size_bytes: int, queue_offset: int = 0) -> Stored:
    body = zlib.compress(bytes(size_bytes), 9)
    return Stored("T", 0, queue_offset, body, {"UNIQ_KEY": f"U{queue_offset}"}, 1, {})


async def test_a_body_that_inflates_too_far_goes_to_the_dead_letters_and_the_next_is_read() -> None:
    async with FakeCluster() as fake, Producer(fake.namesrv):
        fake.group.stored += [bomb(10_000_001), bomb(1000, 1)]
        async with Consumer(fake.namesrv, "G", "T", max_body_bytes=1_000_000) as consumer:
            (message,) = await take(consumer, 1)
            assert (message.queue_offset, len(message.body)) == (1, 1000)
            found = consumer.statistics()
            assert (found["too_large"], found["retried"]) == (1, 1)
            assert "message U0 of T at 0/0: a compressed body holds more than 1000000 bytes" in str(found["last_error"])
        asked = [item.ext for item in fake.group.master.requests if item.code == RequestCode.CONSUMER_SEND_MSG_BACK]
        assert [(ext["delayLevel"], ext["originTopic"]) for ext in asked] == [("-1", "T")]
        assert fake.group.offsets["G", "T", 0] == 2


async def test_outside_a_group_it_is_passed_over() -> None:
    async with FakeCluster() as fake, Producer(fake.namesrv):
        fake.group.stored += [bomb(10_000_001), bomb(1000, 1)]
        async with Consumer(fake.namesrv, "x", "T", standalone=True, start="first", max_body_bytes=9999) as consumer:
            (message,) = await take(consumer, 1)
            assert message.queue_offset == 1 and consumer.statistics()["too_large"] == 1


def test_a_batch_in_a_record_that_inflates_too_far_is_one_message_and_stalls_no_queue() -> None:
    item = dataclasses.replace(bomb(5000), sys_flag=1 | SYS_FLAG_INNER_BATCH)
    (view,) = MessageBatch("g", encode_stored(item), max_body_bytes=4999)
    with pytest.raises(BodyTooLargeError, match="more than 4999 bytes"):
        view.message()
