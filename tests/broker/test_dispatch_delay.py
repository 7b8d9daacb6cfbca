"""When records enter their queues: soon, and before anybody looks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from rmqha.broker.loops import (
    DISPATCH_DELAY_MS,
    ITSELF_DISPATCH_DELAY_MS,
    SCHEDULE_DELAY_MS,
    SLAVE_DISPATCH_DELAY_MS,
    BrokerLoops,
)
from rmqha.broker.replication import replica_driver
from rmqha.broker.tables.topics import TopicConfig
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.message import TIMER_TOPIC
from rmqha.wire.command import FLAG_ONEWAY, Command
from rmqha.wire.lenient_json import dumps, loads
from tests.broker.pop.world import Popped, ack_command, messages, pop_command
from tests.broker.support import Broker, FakeChannel, pull_command, send_command


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path).start()
    broker.core.topics.put(TopicConfig("T", 1, 1))
    yield broker
    broker.close()


def send(broker: Broker) -> None:
    channel = FakeChannel()
    broker.core.processor.received(channel, [send_command("T")])
    assert channel.one().code == ResponseCode.SUCCESS


def queued_count(broker: Broker) -> int:
    return int(broker.store.queue_range("T", 0)[1])


@asynccontextmanager
async def running(broker: Broker) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        broker.shell.loops = BrokerLoops(broker.core, broker.clock)
        nursery.start_soon(broker.shell.loops.run)
        await trio.testing.wait_all_tasks_blocked()
        yield
        nursery.cancel_scope.cancel()


async def test_sends_that_follow_each_other_enter_their_queue_together(
    broker: Broker, mock_clock: trio.testing.MockClock
) -> None:
    async with running(broker):
        send(broker)
        await trio.testing.wait_all_tasks_blocked()
        assert queued_count(broker) == 1, "nothing speaks for more soon after a pause"
        for _ in range(3):
            send(broker)
            await trio.testing.wait_all_tasks_blocked()
        assert queued_count(broker) == 1
        mock_clock.jump(DISPATCH_DELAY_MS / 1000)
        await trio.testing.wait_all_tasks_blocked()
        assert queued_count(broker) == 4
        send(broker)
        await trio.testing.wait_all_tasks_blocked()
        assert queued_count(broker) == 4, "the delay begins anew"
        mock_clock.jump(DISPATCH_DELAY_MS / 1000)
        await trio.testing.wait_all_tasks_blocked()
        assert queued_count(broker) == 5


async def test_what_pops_store_waits_for_more_unless_it_comes_with_a_send(
    broker: Broker, mock_clock: trio.testing.MockClock
) -> None:
    """It is looked for in no queue before it comes by itself."""

    async def dispatched(jump_ms: int) -> bool:
        mock_clock.jump(jump_ms / 1000)
        await trio.testing.wait_all_tasks_blocked()
        return not broker.core.driver.dispatch_due

    async with running(broker):
        for _ in range(8):
            send(broker)
        await dispatched(1000)
        popped(broker)
        assert await dispatched(0), "nothing speaks for more soon after a pause"
        popped(broker)
        popped(broker)
        assert not await dispatched(0) and not await dispatched(ITSELF_DISPATCH_DELAY_MS // 2)
        assert await dispatched(ITSELF_DISPATCH_DELAY_MS // 2)
        popped(broker)
        await dispatched(0)
        popped(broker)
        send(broker)
        assert not await dispatched(0) and await dispatched(DISPATCH_DELAY_MS)


async def test_pieces_of_a_masters_log_enter_a_slaves_queues_together(
    broker: Broker, mock_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(broker):
        monkeypatch.setattr(type(broker.core.driver), "is_serving", property(lambda driver: False))
        for _ in range(3):
            send(broker)
            await trio.testing.wait_all_tasks_blocked()
        assert queued_count(broker) == 1
        mock_clock.jump(DISPATCH_DELAY_MS / 1000)
        await trio.testing.wait_all_tasks_blocked()
        assert queued_count(broker) == 1, "its next acknowledgement goes first"
        mock_clock.jump((SLAVE_DISPATCH_DELAY_MS - DISPATCH_DELAY_MS) / 1000)
        await trio.testing.wait_all_tasks_blocked()
        assert queued_count(broker) == 3


async def test_a_new_master_that_does_not_serve_yet_does_not_wait(
    broker: Broker, mock_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(broker):
        send(broker)
        await trio.testing.wait_all_tasks_blocked()
        send(broker)
        monkeypatch.setattr(type(broker.core.driver), "is_opening", property(lambda driver: True))
        assert queued_count(broker) == 1
        loops = broker.shell.loops
        assert loops is not None
        loops.wake_dispatch()
        await trio.testing.wait_all_tasks_blocked()
        assert queued_count(broker) == 2


async def test_a_held_pull_gets_its_message_without_delay(broker: Broker, mock_clock: trio.testing.MockClock) -> None:
    async with running(broker):
        for count in range(1, 4):
            consumer = FakeChannel()
            broker.core.processor.received(consumer, [pull_command("T", 0, count - 1, sysFlag="6")])
            assert broker.core.pull.hold_count == 1
            send(broker)
            await trio.testing.wait_all_tasks_blocked()
            assert consumer.one().code == ResponseCode.SUCCESS
            assert queued_count(broker) == count


async def test_a_pull_that_comes_in_the_delay_does_not_wait_for_its_end(
    broker: Broker, mock_clock: trio.testing.MockClock
) -> None:
    async with running(broker):
        send(broker)
        await trio.testing.wait_all_tasks_blocked()
        send(broker)
        consumer = FakeChannel()
        broker.core.processor.received(consumer, [pull_command("T", 0, 2, sysFlag="6")])
        assert queued_count(broker) == 2 and broker.core.pull.hold_count == 1
        send(broker)
        await trio.testing.wait_all_tasks_blocked()
        assert consumer.one().code == ResponseCode.SUCCESS


LOOKS = {
    "pull": pull_command("T", 0, 0),
    "max offset": Command(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"}),
    "by time": Command(
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {"topic": "T", "queueId": "0", "timestamp": str(1 << 50)}
    ),
    "entries": Command(
        RequestCode.QUERY_CONSUME_QUEUE,
        {"topic": "T", "queueId": "0", "index": "0", "count": "10", "consumerGroup": "G"},
    ),
    "statistics": Command(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"}),
}


def seen_count(reply: Command) -> int:
    """Number of messages in the queue by an answer to one of LOOKS."""
    assert reply.code == ResponseCode.SUCCESS
    if "maxOffset" in reply.ext:
        return int(reply.ext["maxOffset"])
    if "offset" in reply.ext:
        return int(reply.ext["offset"])
    body = loads(reply.body)
    if "maxQueueIndex" in body:
        return int(body["maxQueueIndex"])
    ((_, offsets),) = body["offsetTable"].items()
    return int(offsets["maxOffset"])


@pytest.mark.parametrize("look", LOOKS)
def test_who_was_told_of_a_message_finds_it_in_its_queue(broker: Broker, look: str) -> None:
    """Nothing but the requests runs here."""
    for count in range(1, 4):
        send(broker)
        channel = FakeChannel()
        broker.core.processor.received(channel, [LOOKS[look]])
        assert seen_count(channel.one()) == count


def test_a_send_and_a_look_of_one_read(broker: Broker) -> None:
    channel = FakeChannel()
    broker.core.processor.received(channel, [send_command("T"), send_command("T"), LOOKS["max offset"]])
    sent, more, looked = channel.take()
    assert sent.code == more.code == ResponseCode.SUCCESS and seen_count(looked) == 2


def test_sends_and_commits_of_offsets_dispatch_nothing(broker: Broker) -> None:
    send(broker)
    fields = {"consumerGroup": "G", "topic": "T", "queueId": "0", "commitOffset": "0"}
    broker.core.processor.received(FakeChannel(), [Command(RequestCode.UPDATE_CONSUMER_OFFSET, fields)])
    send(broker)
    assert queued_count(broker) == 0


def popped(broker: Broker, count: int = 1) -> list[Popped]:
    channel = FakeChannel()
    broker.core.processor.received(channel, [pop_command(maxMsgNums=count)])
    return messages(channel.one())


def looks(broker: Broker) -> tuple[bool, bool]:
    """Is something to be dispatched, and may it be looked for?"""
    return broker.core.driver.dispatch_due, broker.core.driver.has_readers


def test_what_pops_store_is_not_dispatched_for_who_looks(broker: Broker) -> None:
    """It comes by itself; what was sent meanwhile is there."""
    send(broker)
    send(broker)
    given = popped(broker)
    dispatched_offset, driver = broker.store.dispatched_offset, broker.core.driver
    broker.core.processor.received(FakeChannel(), [ack_command(given[0])])
    assert len(popped(broker)) == 1 and broker.store.dispatched_offset == dispatched_offset
    assert looks(broker) == (True, False)
    send(broker)
    assert len(popped(broker)) == 1 and broker.store.dispatched_offset > dispatched_offset
    assert looks(broker) == (True, False)
    driver.dispatch()
    assert not driver.dispatch_due and broker.store.queue_range(TIMER_TOPIC, 0)[1] == 4


def test_in_the_log_of_another_master_everything_may_be_looked_for(broker: Broker) -> None:
    send(broker)
    popped(broker)
    assert looks(broker) == (True, False)
    fields = {"masterBrokerId": "2", "masterAddress": "127.0.0.1:20921", "masterEpoch": "3", "syncStateSetEpoch": "5"}
    body = dumps({"syncStateSet": [2], "syncStateSetEpoch": 5})
    notice = Command(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, fields, body, flag=FLAG_ONEWAY)
    broker.core.processor.received(FakeChannel(), [notice])
    assert not broker.core.driver.is_serving and broker.core.driver.has_readers


async def test_entries_of_timers_that_follow_each_other_are_looked_at_together(
    broker: Broker, mock_clock: trio.testing.MockClock
) -> None:
    async with running(broker):
        for _ in range(4):
            send(broker)
        for pause_ms in (1000, 2 * SCHEDULE_DELAY_MS):
            mock_clock.jump(pause_ms / 1000)
            await trio.testing.wait_all_tasks_blocked()
        counts = []
        for _ in range(3):
            popped(broker)
            broker.core.driver.dispatch()
            await trio.testing.wait_all_tasks_blocked()
            counts.append(broker.core.timers.taken_count)
        assert counts == [1, 1, 1]
        mock_clock.jump(SCHEDULE_DELAY_MS / 1000)
        await trio.testing.wait_all_tasks_blocked()
        assert broker.core.timers.taken_count == 3


def test_a_look_does_not_dispatch_a_backlog(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_driver, "DISPATCH_BYTES", 10)
    send(broker)
    channel = FakeChannel()
    broker.core.processor.received(channel, [LOOKS["max offset"]])
    assert seen_count(channel.one()) == 0


def test_a_look_while_the_log_is_being_changed_dispatches_nothing(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(broker)
    monkeypatch.setattr(type(broker.core.driver), "is_log_free", property(lambda driver: False))
    broker.core.driver.catch_up()
    assert queued_count(broker) == 0
