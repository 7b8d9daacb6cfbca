"""The consumer against scripted brokers: each message at least once, in order, through switches and rebalances."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import pytest
import trio
import trio.testing

from rmqha.client.consumers.consumer import Consumer, Start
from rmqha.client.consumers.message import Message
from rmqha.client.consumers.pop_consumer import PopConsumer
from rmqha.client.producers.producer import Producer
from rmqha.model.code import RequestCode
from rmqha.model.error import RemoteError, UnreachableError, UsageError
from rmqha.wire.command import Command
from tests.client.fake import FakeCluster, Group, Stored
from tests.support.patience import HANG_MS, HANG_S


def fill(group: Group, bodies: Iterable[str], queue_count: int = 4, tags: str = "") -> None:
    for number, body in enumerate(bodies):
        queue_id = number % queue_count
        properties = {"UNIQ_KEY": f"U{body}", "KEYS": f"k{body}", **({"TAGS": tags} if tags else {})}
        group.stored.append(Stored("T", queue_id, len(group.queue(queue_id)), body.encode(), properties, 0, {}))
    for node in group.nodes.values():
        node.wake()


async def take(consumer: Consumer, count: int) -> list[Message]:
    with trio.fail_after(HANG_S):
        return [await consumer.receive() for _ in range(count)]


async def pulled(asked: list[Command], *topics: str) -> None:
    """Wait until each topic has been pulled."""
    with trio.fail_after(HANG_S):
        while not {item.ext["topic"] for item in asked if item.code == RequestCode.PULL_MESSAGE}.issuperset(topics):  # noqa: ASYNC110
            await trio.sleep(0.005)


def bodies(messages: list[Message]) -> list[str]:
    return sorted(message.body.decode() for message in messages)


async def test_all_messages_of_all_queues_arrive_in_order_per_queue() -> None:
    async with FakeCluster() as fake:
        fill(fake.group, [f"{number:02}" for number in range(30)])
        async with Consumer(fake.namesrv, "G", "T") as consumer:
            messages = await take(consumer, 30)
            for queue_id in range(4):
                of_queue = [message for message in messages if message.queue_id == queue_id]
                assert [message.queue_offset for message in of_queue] == list(range(len(of_queue)))
            first = min(messages, key=lambda message: message.body)
            assert (first.topic, first.broker_name, first.keys, first.msg_id) == ("T", "g-a", "k00", "U00")
            assert (first.tags, first.born_at_ms, first.stored_at_ms) == ("", 1_000, 2_000)
            assert first.offset_msg_id == "7F00000100002A9F0000000000000000"
            assert bodies(messages) == [f"{number:02}" for number in range(30)]
            assert consumer.statistics()["received"] == 30


async def test_members_that_were_made_before_their_process_forked_are_several(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that forks its workers may have made their consumer before: two with one id would each read all."""
    async with FakeCluster() as fake:
        consumer = Consumer(fake.namesrv, "G", "T")
        monkeypatch.setattr(os, "getpid", lambda: 4711)  # a worker
        fill(fake.group, "a")
        async with consumer:
            await take(consumer, 1)
            (client_id,) = fake.group.members["G"]
        assert "@4711#" in client_id


@pytest.mark.parametrize("kind", [Consumer, PopConsumer])
async def test_who_reads_from_a_consumer_that_is_not_open_waits_for_nothing(
    kind: type[Consumer] | type[PopConsumer],
) -> None:
    """Another task than the one that closes it may read."""
    async with FakeCluster() as fake:
        consumer = kind(fake.namesrv, "G", "T")
        ended: list[object] = []

        async def iterate() -> None:
            ended.extend([message async for message in consumer])
            ended.append("iteration")

        async def receive() -> None:
            with pytest.raises(UsageError, match="the client was closed: open another one"):
                await consumer.receive()
            ended.append("call")

        with trio.fail_after(HANG_S):
            with pytest.raises(UsageError, match="the client is not open: use it by `async with`"):
                await consumer.receive()
            async with trio.open_nursery() as nursery, consumer:
                nursery.start_soon(iterate)
                nursery.start_soon(receive)
                await trio.testing.wait_all_tasks_blocked()
                assert not ended
            await receive()
        assert sorted(map(str, ended)) == ["call", "call", "iteration"]


async def test_a_new_message_wakes_the_long_poll() -> None:
    async with (
        FakeCluster() as fake,
        Producer(fake.namesrv) as producer,
        Consumer(fake.namesrv, "G", "T") as consumer,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(producer.send, "T", b"x" * 5000)
        (message,) = await take(consumer, 1)
        # stored compressed, received plain
        assert message.body == b"x" * 5000
        assert fake.stored[0].body == zlib.compress(b"x" * 5000, 5)


async def test_offsets_are_committed_at_the_end_and_taken_up_again() -> None:
    async with FakeCluster() as fake:
        fill(fake.group, "abcdef", queue_count=1)
        async with Consumer(fake.namesrv, "G", "T") as consumer:
            assert bodies(await take(consumer, 4)) == list("abcd")
        assert fake.group.offsets["G", "T", 0] == 4
        async with Consumer(fake.namesrv, "G", "T") as consumer:
            assert bodies(await take(consumer, 2)) == ["e", "f"]
        assert fake.group.members["G"] == {}


async def test_a_message_whose_handling_failed_comes_again() -> None:
    async with FakeCluster() as fake:
        fill(fake.group, "ab", queue_count=1)
        with pytest.raises(KeyError):
            async with Consumer(fake.namesrv, "G", "T") as consumer:
                async for message in consumer:
                    if message.body == b"b":
                        raise KeyError("cannot handle it")
        async with Consumer(fake.namesrv, "G", "T") as consumer:
            assert bodies(await take(consumer, 1)) == ["b"]


async def test_where_it_starts() -> None:
    async with FakeCluster() as fake:
        fill(fake.group, "abc", queue_count=1)
        fake.group.offsets["G", "T", 0] = 2
        async with Consumer(fake.namesrv, "G", "T", start="first", standalone=True) as consumer:
            assert bodies(await take(consumer, 3)) == ["a", "b", "c"]
        assert fake.group.offsets["G", "T", 0] == 2
        async with Consumer(fake.namesrv, "New", "T", start="last") as consumer:
            asked = fake.group.master.requests
            asked.clear()
            await pulled(asked, "T")
            fill(fake.group, "d", queue_count=1)
            assert bodies(await take(consumer, 1)) == ["d"]


@pytest.mark.parametrize("start", ["first", "last", "committed"])
async def test_a_restart_goes_on_from_the_group_s_offset(start: Start) -> None:
    """So does a member that joins: to begin at the end it would pass over what others have and have not finished."""
    async with FakeCluster() as fake:
        fill(fake.group, "abc", queue_count=1)
        fake.group.offsets["G", "T", 0] = 2
        async with Consumer(fake.namesrv, "G", "T", start=start) as consumer:
            assert bodies(await take(consumer, 1)) == ["c"]


@pytest.mark.parametrize("start", ["first", "last", "committed"])
async def test_a_broadcast_reader_goes_on_from_its_file(start: Start, tmp_path: Path) -> None:
    async with FakeCluster() as fake:
        fill(fake.group, "ab", queue_count=1)
        async with Consumer(fake.namesrv, "G", "T", offset_file=tmp_path / "offsets") as consumer:
            assert bodies(await take(consumer, 2)) == ["a", "b"]
        fill(fake.group, "c", queue_count=1)
        async with Consumer(fake.namesrv, "G", "T", start=start, offset_file=tmp_path / "offsets") as consumer:
            assert bodies(await take(consumer, 1)) == ["c"]


@pytest.mark.parametrize("start", ["last", "committed"])
async def test_who_takes_a_queue_over_goes_on_where_its_group_began(start: Start) -> None:
    """Nothing was finished yet, and what has come meanwhile is not passed over, though both begin at the end."""
    async with FakeCluster() as fake:
        fill(fake.group, "abc", queue_count=1)
        asked = fake.group.master.requests
        with suppress(KeyError):
            async with Consumer(fake.namesrv, "G", "T", start="last") as consumer:
                await pulled(asked, "T")
                fill(fake.group, "d", queue_count=1)
                async for message in consumer:
                    raise KeyError(message.body)
        async with Consumer(fake.namesrv, "G", "T", start=start) as consumer:
            assert bodies(await take(consumer, 1)) == ["d"]


async def test_only_the_wanted_tags_arrive() -> None:
    async with FakeCluster() as fake:
        fill(fake.group, "abc", queue_count=1, tags="A")
        fill(fake.group, "xyz", queue_count=1, tags="B")
        fill(fake.group, "d", queue_count=1, tags="C")
        async with Consumer(fake.namesrv, "G", "T", "A || C") as consumer:
            assert bodies(await take(consumer, 4)) == ["a", "b", "c", "d"]
        assert fake.group.offsets["G", "T", 0] == 7


async def test_two_members_share_the_queues_and_the_one_that_stays_takes_all() -> None:
    async with FakeCluster({"g-a": 1, "g-b": 1}) as fake, Consumer(fake.namesrv, "G", "T") as first:
        await _until_assigned(first, 8)
        async with Consumer(fake.namesrv, "G", "T") as second:
            await _until_assigned(first, 4)
            await _until_assigned(second, 4)
            assert not set(first.assignment()) & set(second.assignment())
        await _until_assigned(first, 8)


async def test_a_close_commits_what_was_read_of_queues_that_go_to_another_member(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their commits are under way then."""
    async with FakeCluster() as fake:
        fill(fake.group, "abcdefgh")
        master, unanswered = fake.group.master, set[str]()
        answer = master._offsets

        def first_is_lost(command: Command) -> Command | None:
            queue_id = command.ext.get("queueId", "")
            if command.code == RequestCode.UPDATE_CONSUMER_OFFSET and queue_id not in unanswered:
                unanswered.add(queue_id)
                return None
            return answer(command)

        monkeypatch.setattr(master, "_offsets", first_is_lost)
        async with Consumer(fake.namesrv, "G", "T") as consumer:
            await take(consumer, 8)
            with trio.move_on_after(0):
                await consumer.receive()  # none is left: now the eighth is finished too, whichever queue it is of
            (session,) = fake.group.members["G"].values()
            fake.group.members["G"]["0-another"] = session
            master._notify("G")
            with trio.fail_after(HANG_S):
                while not unanswered:  # noqa: ASYNC110 - a test looks from outside
                    await trio.sleep(0.005)
            assert unanswered == {"0"}, "what goes is committed first"
            monkeypatch.setattr(master, "_offsets", answer)
        assert fake.group.offsets == {("G", "T", queue_id): 2 for queue_id in range(4)}


@pytest.fixture
def silent_commits(monkeypatch: pytest.MonkeyPatch) -> Callable[[FakeCluster], None]:
    """Lets the groups' first one answer no commit."""

    def silence(fake: FakeCluster) -> None:
        master = fake.group.master
        answer = master._offsets

        def silent(command: Command) -> Command | None:
            return None if command.code == RequestCode.UPDATE_CONSUMER_OFFSET else answer(command)

        monkeypatch.setattr(master, "_offsets", silent)

    return silence


async def test_a_close_commits_and_leaves_at_all_groups_though_one_is_silent(
    silent_commits: Callable[[FakeCluster], None],
) -> None:
    async with FakeCluster({"g-a": 1, "g-b": 1}) as fake:
        for group in fake.groups.values():
            fill(group, "ab", queue_count=2)
        silent_commits(fake)
        async with Consumer(fake.namesrv, "G", "T") as consumer:
            await take(consumer, 4)
        last = fake.groups["g-b"]
        assert last.offsets == {("G", "T", queue_id): 1 for queue_id in range(2)}
        for group in fake.groups.values():
            assert RequestCode.UNREGISTER_CLIENT in {command.code for command in group.master.requests}


async def test_queues_that_go_to_another_member_are_committed_though_one_group_is_silent(
    monkeypatch: pytest.MonkeyPatch, silent_commits: Callable[[FakeCluster], None]
) -> None:
    monkeypatch.setattr("rmqha.client.consumers.consumer.CALL_TIMEOUT_MS", 10 * HANG_MS)
    async with FakeCluster({"g-a": 1, "g-b": 1}) as fake:
        for group in fake.groups.values():
            fill(group, "ab", queue_count=2)
        async with Consumer(fake.namesrv, "G", "T") as consumer:
            await take(consumer, 4)
            await consumer.receive(wait=False)  # now the fourth is finished too
            silent_commits(fake)
            for group in fake.groups.values():
                (session,) = group.members["G"].values()
                group.members["G"] = {"another": session}
            fake.group.master._notify("G")
            with trio.fail_after(HANG_S):
                while len(fake.groups["g-b"].offsets) < 2:  # noqa: ASYNC110 - a test looks from outside
                    await trio.sleep(0.005)


@pytest.mark.parametrize("reset_to", [None, 1], ids=["nobody touched it", "an operator reset it"])
async def test_a_queue_that_comes_back_goes_on_where_it_was_unless_its_offset_was_set_meanwhile(
    monkeypatch: pytest.MonkeyPatch, reset_to: int | None
) -> None:
    """What this member has finished and could not commit is no reason to pass over what an operator wants again."""
    async with FakeCluster({"g-a": 1}) as fake:
        fill(fake.group, "abcde", queue_count=1)
        fake.group.offsets["G", "T", 0] = 2
        master = fake.group.master
        answer = master._offsets
        with monkeypatch.context() as patch:

            def refuse(command: Command) -> Command:
                is_commit = command.code == RequestCode.UPDATE_CONSUMER_OFFSET
                return command.reply(1, remark="not now") if is_commit else answer(command)

            patch.setattr(master, "_offsets", refuse)
            async with Consumer(fake.namesrv, "G", "T") as consumer:
                assert bodies(await take(consumer, 3)) == ["c", "d", "e"]
                await consumer.receive(wait=False)  # now the third is finished too
                (session,) = fake.group.members["G"].values()
                members = dict(fake.group.members["G"])
                fake.group.members["G"] = {"another": session}
                master._notify("G")
                await _until_assigned(consumer, 0)
                with trio.fail_after(HANG_S):
                    while consumer.statistics()["queues"]:  # noqa: ASYNC110 - a test looks from outside
                        await trio.sleep(0.005)
                patch.undo()
                if reset_to is not None:
                    fake.group.offsets["G", "T", 0] = reset_to
                fake.group.members["G"] = members
                master._notify("G")
                await _until_assigned(consumer, 4)
                fill(fake.group, "f", queue_count=1)
                expected = ["f"] if reset_to is None else ["b", "c", "d", "e", "f"]
                assert bodies(await take(consumer, len(expected))) == expected


async def _until_assigned(consumer: Consumer, queue_count: int) -> None:
    with trio.fail_after(HANG_S):
        while len(consumer.assignment()) != queue_count:  # noqa: ASYNC110 - a test looks from outside
            await trio.sleep(0.01)


async def test_it_follows_the_master_from_its_own_offset() -> None:
    async with FakeCluster() as fake, Consumer(fake.namesrv, "G", "T") as consumer:
        fill(fake.group, "abcd", queue_count=1)
        assert bodies(await take(consumer, 4)) == list("abcd")
        # the new master's copy of the committed offsets is older than what was read
        fake.group.offsets["G", "T", 0] = 1
        fake.fail_over(after_ms=100)
        fill(fake.group, "ef", queue_count=1)
        assert bodies(await take(consumer, 2)) == ["e", "f"]


async def test_a_slave_serves_while_there_is_no_master() -> None:
    async with FakeCluster() as fake, Consumer(fake.namesrv, "G", "T") as consumer:
        fill(fake.group, "ab", queue_count=1)
        await take(consumer, 2)
        fake.fail_over(after_ms=60_000)
        fill(fake.group, "cd", queue_count=1)
        assert bodies(await take(consumer, 2)) == ["c", "d"]
        assert fake.group.master_id is None


async def test_a_frozen_master_is_left_once_the_route_names_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmqha.client.consumers.consumer.ROUTE_MS", 100)
    async with FakeCluster() as fake, Consumer(fake.namesrv, "G", "T") as consumer:
        fill(fake.group, "ab", queue_count=1)
        await take(consumer, 2)
        frozen = fake.group.nodes.pop(1)
        frozen.held.clear()
        fake.group.master_id = 2
        fill(fake.group, "c", queue_count=1)
        assert bodies(await take(consumer, 1)) == ["c"]


async def test_a_master_that_lost_its_tail_moves_the_offset_back_to_its_end() -> None:
    async with FakeCluster() as fake, Consumer(fake.namesrv, "G", "T") as consumer:
        fill(fake.group, "abcd", queue_count=1)
        await take(consumer, 4)
        fake.fail_over()
        del fake.group.stored[2:]
        # the long poll of the old master ended with it; the new one says where its queue ends
        with trio.fail_after(HANG_S):
            while consumer.statistics()["offset_moves"] == 0:  # noqa: ASYNC110 - a test looks from outside
                await trio.sleep(0.01)
        fill(fake.group, "CD", queue_count=1)
        assert bodies(await take(consumer, 2)) == ["C", "D"]


async def test_what_was_read_of_a_lost_tail_counts_for_nothing_in_the_new_log() -> None:
    async with FakeCluster() as fake:
        fill(fake.group, "abcd", queue_count=1)
        with pytest.raises(KeyError):
            async with Consumer(fake.namesrv, "G", "T") as consumer:
                await take(consumer, 4)
                fake.fail_over()
                del fake.group.stored[2:]
                with trio.fail_after(HANG_S):
                    while consumer.statistics()["offset_moves"] == 0:  # noqa: ASYNC110 - a test looks from outside
                        await trio.sleep(0.01)
                fill(fake.group, "CDE", queue_count=1)
                assert bodies(await take(consumer, 1)) == ["C"]
                raise KeyError("cannot handle it")
        assert fake.group.offsets["G", "T", 0] == 2
        async with Consumer(fake.namesrv, "G", "T") as consumer:
            assert bodies(await take(consumer, 3)) == ["C", "D", "E"]


async def test_a_master_that_has_grown_since_it_lost_its_tail_says_where_to_go_on() -> None:
    """What came to the places of the lost tail before this consumer asked is not passed over."""
    async with FakeCluster() as fake, Consumer(fake.namesrv, "G", "T") as consumer:
        fill(fake.group, "abcd", queue_count=1)
        await take(consumer, 4)
        moved = {"nextBeginOffset": "2", "minOffset": "0", "maxOffset": "3", "suggestWhichBrokerId": "0"}
        fake.group.nodes[2].pull_script = lambda command: (
            command.reply(21, moved) if command.ext["queueId"] == "0" and command.ext["queueOffset"] == "4" else None
        )
        fake.fail_over()
        del fake.group.stored[2:]
        fill(fake.group, "C", queue_count=1)
        assert bodies(await take(consumer, 1)) == ["C"]


async def test_a_slave_that_is_behind_moves_nothing() -> None:
    async with FakeCluster() as fake, Consumer(fake.namesrv, "G", "T") as consumer:
        fill(fake.group, "abcd", queue_count=1)
        await take(consumer, 4)
        slave = fake.group.nodes[2]
        behind = {"nextBeginOffset": "2", "minOffset": "0", "maxOffset": "2", "suggestWhichBrokerId": "0"}
        slave.pull_script = lambda command: command.reply(21, behind) if command.ext["queueId"] == "0" else None
        fake.fail_over(after_ms=60_000)
        with trio.fail_after(HANG_S):
            while sum(request.code == RequestCode.PULL_MESSAGE for request in slave.requests) < 8:  # noqa: ASYNC110
                await trio.sleep(0.01)
        assert consumer.statistics()["offset_moves"] == 0


@pytest.mark.parametrize("code", [1, 14, 24, 26])
async def test_a_refused_pull_is_tried_again(code: int) -> None:
    async with FakeCluster({"g-a": 1}) as fake:
        fill(fake.group, "a", queue_count=1)
        refusals = [code, code]

        def refuse(command: Command) -> Command | None:
            return command.reply(refusals.pop(), remark="not now") if refusals else None

        fake.group.master.pull_script = refuse
        async with Consumer(fake.namesrv, "G", "T") as consumer:
            assert bodies(await take(consumer, 1)) == ["a"]
            assert "not now" in consumer.statistics()["last_error"]


async def test_what_cannot_be_a_consumer() -> None:
    with pytest.raises(UsageError, match="alternative is empty"):
        Consumer("127.0.0.1:1", "G", "T", "A ||")
    with pytest.raises(UsageError, match="needs the name of its group"):
        Consumer("127.0.0.1:1", "", "T")
    with pytest.raises(UsageError, match="group 'a b' must consist of letters"):
        Consumer("127.0.0.1:1", "a b", "T")
    with pytest.raises(UsageError, match="start 'latest': a consumer begins at committed, first or last"):
        Consumer("127.0.0.1:1", "G", "T", start="latest")  # type: ignore[arg-type]
    with pytest.raises(UnreachableError, match="no name server answers"):
        async with Consumer("127.0.0.1:1", "G", "T"):
            raise AssertionError("it must not open")
    async with FakeCluster() as fake:
        with pytest.raises(RemoteError, match="does not exist"):
            async with Consumer(fake.namesrv, "G", "Nowhere"):
                raise AssertionError("it must not open")
