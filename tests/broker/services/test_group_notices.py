"""Notice 40 to groups of thousands of members, which took a turn of the loop for each that came or went."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio

from rmqha.broker.loops import BrokerLoops
from rmqha.broker.services.group_notices import NOTIFIED_PER_STEP, SMALL_GROUP_COUNT
from rmqha.broker.tables.clients import MAX_GROUPS_PER_CHANNEL
from rmqha.host.clock import HostClock
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import dumps
from tests.broker.support import Broker, FakeChannel
from tests.support.patience import HANG_S

COUNT = 4 * NOTIFIED_PER_STEP + 7


def heartbeat(broker: Broker, channel: FakeChannel, number: int, *groups: str) -> None:
    items = [{"groupName": group, "subscriptionDataSet": []} for group in groups]
    body = dumps({"clientID": f"c{number}", "consumerDataSet": items})
    broker.core.processor.received(channel, [Command(RequestCode.HEART_BEAT, body=body)])


def told(channels: list[FakeChannel]) -> list[int]:
    """Notices that each has had since this was last asked."""
    return [
        sum(1 for command in channel.take() if command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)
        for channel in channels
    ]


def joined(broker: Broker, count: int, *groups: str) -> list[FakeChannel]:
    channels = [FakeChannel() for _ in range(count)]
    for number, channel in enumerate(channels):
        heartbeat(broker, channel, number, *groups)
    while broker.core.notices.step():
        pass
    told(channels)
    return channels


def test_a_large_group_is_told_in_steps_and_changes_come_together(broker: Broker) -> None:
    broker.shell.notifies = False
    channels = joined(broker, COUNT, "G")
    late = FakeChannel()
    heartbeat(broker, late, COUNT, "G")
    heartbeat(broker, late, COUNT, "G")
    assert sum(told(channels)) == 0, "nobody in the turn of the request"
    assert broker.core.notices.step()
    assert sum(told([*channels, late])) == NOTIFIED_PER_STEP
    broker.core.processor.closed(channels[-1])
    heartbeat(broker, FakeChannel(), COUNT + 1, "G")
    rest, steps = [0] * COUNT, 0
    while broker.core.notices.step():
        steps += 1
        counts = told(channels)
        assert sum(counts) <= NOTIFIED_PER_STEP
        rest = [have + more for have, more in zip(rest, counts, strict=True)]
    rest = [have + more for have, more in zip(rest, told(channels), strict=True)]
    assert rest[:NOTIFIED_PER_STEP] == [1] * NOTIFIED_PER_STEP, "one round more for both changes"
    assert rest[NOTIFIED_PER_STEP:-1] == [2] * (COUNT - NOTIFIED_PER_STEP - 1)
    assert steps <= 2 * COUNT / NOTIFIED_PER_STEP + 2


def test_the_end_of_a_member_of_many_groups_tells_few_at_once(broker: Broker) -> None:
    broker.shell.notifies = False
    groups = [f"G{number}" for number in range(MAX_GROUPS_PER_CHANNEL)]
    small = joined(broker, SMALL_GROUP_COUNT + 1, *groups)
    broker.core.processor.closed(small[0])
    assert sum(told(small)) == SMALL_GROUP_COUNT * MAX_GROUPS_PER_CHANNEL, "a group of so few is told at once"
    large = [*small[1:], *joined(broker, 2, *groups)]
    told(large)
    broker.core.processor.closed(large[-1])
    assert sum(told(large)) == 0
    while broker.core.notices.step():
        pass
    assert told(large)[:-1] == [MAX_GROUPS_PER_CHANNEL] * (len(large) - 1)


async def test_the_broker_has_a_task_for_it(broker: Broker) -> None:
    broker.shell.notifies = False
    channels = [FakeChannel() for _ in range(COUNT)]
    broker.shell.loops = loops = BrokerLoops(broker.core, HostClock())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(loops.run)
        for number, channel in enumerate(channels):
            heartbeat(broker, channel, number, "G")
        with trio.fail_after(HANG_S):
            while not all(any(command.is_oneway for command in channel.sent) for channel in channels):
                await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()


def test_a_heartbeat_refused_half_way_tells_the_groups_that_its_client_joined(
    make_broker: Callable[..., Broker],
) -> None:
    """The member is in the group by then, so the others must share their queues with it."""
    broker = make_broker(max_client_count=3).start()
    (old,) = joined(broker, 1, "G")
    new = FakeChannel()
    heartbeat(broker, new, 1, "G", "H", "I")
    sent = new.take()
    assert [command.code for command in sent if command.is_response] == [ResponseCode.SYSTEM_BUSY]
    assert [command.ext["consumerGroup"] for command in sent if not command.is_response] == ["G", "H"]
    assert told([old]) == [1]


def test_a_member_whose_subscriptions_are_refused_is_told_of_all_the_same(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    (old,) = joined(broker, 1, "G")
    monkeypatch.setattr("rmqha.broker.tables.clients.MAX_SUBSCRIPTIONS_BYTES", 0)
    new, wanted = FakeChannel(), [{"topic": "T", "subString": "*"}]
    items = [{"groupName": "G", "subscriptionDataSet": wanted}]
    body = dumps({"clientID": "new", "consumerDataSet": items})
    broker.core.processor.received(new, [Command(RequestCode.HEART_BEAT, body=body)])
    assert [command.code for command in new.take() if command.is_response] == [ResponseCode.SYSTEM_BUSY]
    assert told([old]) == [1]
