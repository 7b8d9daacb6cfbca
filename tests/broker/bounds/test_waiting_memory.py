"""Memory of what waits for clients: held pulls and pops, and the subscriptions that heartbeats bring."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator

import pytest

from rmqha.broker.requests import selectors
from rmqha.broker.tables import clients
from rmqha.model import selector
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import dumps, loads
from tests.broker.support import Broker, FakeChannel, pull_command, send_command
from tests.support.steps import done

HEADER_CHARS = 200_000
"""Nearly all that a header may have."""
EXPRESSION_CHARS = 30_000
CONNECTION_COUNT = 20
MIB = 1024 * 1024
KEPT_BYTES = 1 * MIB
"""Of CONNECTION_COUNT requests that wait; their headers alone are 4 MB."""


@pytest.fixture
def broker(make_broker: Callable[..., Broker]) -> Iterator[Broker]:
    made = make_broker(enable_property_filter=True).start()
    assert made.ask(send_command()).code == ResponseCode.SUCCESS
    yield made
    tracemalloc.stop()


def grown_bytes(say: Callable[[int], None], count: int = CONNECTION_COUNT) -> int:
    say(0)
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for number in range(1, count):
        say(number)
    gc.collect()
    return tracemalloc.get_traced_memory()[0] - before


def held_pull(number: int, **ext: str) -> Command:
    command = pull_command(offset=1, sysFlag="6")
    command.ext |= ext
    return command


def held_pop(number: int, **ext: str) -> Command:
    fields = {"topic": "T", "consumerGroup": "G", "queueId": "0", "maxMsgNums": "1", "invisibleTime": "60000"}
    more = {"pollTime": "15000", "bornTime": "0", "initMode": "1", "order": "false"}
    return Command(RequestCode.POP_MESSAGE, {**fields, **more, **ext})


def held_notification(number: int, **ext: str) -> Command:
    command = held_pop(number, **ext)
    command.code = RequestCode.NOTIFICATION
    return command


def padded(number: int) -> dict[str, str]:
    return {"x": f"{number}" + "x" * HEADER_CHARS}


@pytest.mark.parametrize("make", [held_pull, held_pop, held_notification])
def test_no_header_is_kept_of_what_is_held(broker: Broker, make: Callable[..., Command]) -> None:
    """Nor the body, which means nothing."""
    pop = held_pop(0, pollTime="0")
    assert broker.ask(pop).code in (ResponseCode.SUCCESS, ResponseCode.POLLING_TIMEOUT)
    channels: list[FakeChannel] = []

    def say(number: int) -> None:
        channels.append(FakeChannel(f"10.0.0.1:{number}"))
        command = make(number, **padded(number))
        command.body = bytes(HEADER_CHARS // 4)
        broker.core.processor.received(channels[-1], [command])

    assert grown_bytes(say) < KEPT_BYTES
    assert not any(channel.sent for channel in channels), "each of them waits"
    broker.run(30_000)
    assert all(len(channel.take()) == 1 for channel in channels)


def many_tags(number: int) -> dict[str, str]:
    tags = "||".join(f"{number:02d}{tag:x}" for tag in range(EXPRESSION_CHARS // 8))
    return {"subscription": tags, "exp": tags, "expressionType": "TAG", "expType": "TAG"}


def long_sql(number: int) -> dict[str, str]:
    text = " OR ".join(f"a{number}b{place} = '{'x' * 200}'" for place in range(120))
    return {"subscription": text, "exp": text, "expressionType": "SQL92", "expType": "SQL92"}


@pytest.mark.parametrize("filter_of", [many_tags, long_sql])
def test_a_held_filter_takes_what_it_is_reckoned_to(
    broker: Broker, filter_of: Callable[[int], dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selector, "MAX_REMEMBERED_CHARS", 0)
    commands = [held_pull(number, **filter_of(number)) for number in range(2)]
    grown = grown_bytes(lambda number: broker.core.processor.received(FakeChannel(), [commands[number]]), 2)
    reckoned = selectors.filter_bytes(len(commands[1].ext["subscription"]))
    assert broker.core.pull.hold_count == 2 and grown < reckoned


@pytest.mark.parametrize("make", [held_pull, held_pop])
@pytest.mark.parametrize("filter_of", [many_tags, long_sql])
def test_the_filters_of_what_is_held_are_bounded(
    make_broker: Callable[..., Broker], make: Callable[..., Command], filter_of: Callable[[int], dict[str, str]]
) -> None:
    """Beyond the bound a pull is answered as one that finds nothing and may not wait."""
    broker = make_broker(enable_property_filter=True).start()
    assert broker.ask(send_command()).code == ResponseCode.SUCCESS
    broker.ask(held_pop(0, pollTime="0"))
    filters = selectors.HeldFilters(3 * MIB)
    broker.core.pull._held_filters = broker.core.pops.polls.filters = filters
    channels = [FakeChannel(f"10.0.0.1:{number}") for number in range(6)]
    for number, channel in enumerate(channels):
        broker.core.processor.received(channel, [make(number, **filter_of(number))])
    assert [len(channel.take()) for channel in channels] == [0, 0, 1, 1, 1, 1]
    short = FakeChannel("10.0.0.2:1")
    broker.core.processor.received(short, [make(0, subscription="a", exp="a", expressionType="TAG", expType="TAG")])
    assert not short.sent, "there is room for those that ask for little"
    for channel in channels:
        broker.core.processor.closed(channel)
    broker.run(30_000)
    assert filters.size_bytes == 0 and len(short.take()) == 1


def heartbeat(number: int, group_count: int, **group: object) -> Command:
    groups = [{"groupName": f"G{number}-{place}", **group} for place in range(group_count)]
    return Command(RequestCode.HEART_BEAT, {}, dumps({"clientID": f"c{number}", "consumerDataSet": groups}))


def wide(number: int, group_count: int) -> Command:
    return heartbeat(number, group_count, subscriptionDataSet=[{"topic": f"t{item}"} for item in range(100)])


def tagged(number: int, group_count: int) -> Command:
    rows = [{"topic": f"t{item}", "subString": many_tags(number)["exp"][:3_000]} for item in range(4)]
    return heartbeat(number, group_count, subscriptionDataSet=rows)


@pytest.mark.parametrize("make", [wide, tagged])
def test_subscriptions_take_what_they_are_reckoned_to(broker: Broker, make: Callable[[int, int], Command]) -> None:
    table = broker.core.clients
    groups = make(1, 2), make(2, 2)
    done(table.heartbeat(FakeChannel(), loads(groups[0].body)))
    before, body = table.subscriptions_bytes, bytes(groups[1].body)

    def say(number: int) -> None:
        if number:
            done(table.heartbeat(FakeChannel(), loads(body)))

    grown = grown_bytes(say, 2)
    assert 0 < grown < table.subscriptions_bytes - before


@pytest.mark.parametrize(("make", "group_count"), [(wide, 8), (tagged, 1)])
def test_subscriptions_are_bounded_over_all_groups(
    broker: Broker, make: Callable[[int, int], Command], group_count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound_bytes = 1_200_000
    monkeypatch.setattr(clients, "MAX_SUBSCRIPTIONS_BYTES", bound_bytes)
    channels = [FakeChannel(f"10.0.0.1:{number}") for number in range(8)]
    codes = []
    for number, channel in enumerate(channels):
        broker.core.processor.received(channel, [make(number, group_count)])
        codes += [answer.code for answer in channel.take() if answer.is_response]
    assert codes[0] == ResponseCode.SUCCESS and codes[-1] == ResponseCode.SYSTEM_BUSY
    table = broker.core.clients
    assert bound_bytes // 2 < table.subscriptions_bytes <= bound_bytes
    broker.core.processor.received(channels[0], [make(0, group_count)])
    assert [answer.code for answer in channels[0].take() if answer.is_response] == [ResponseCode.SUCCESS], "as before"
    for channel in channels:
        broker.core.processor.closed(channel)
    assert table.subscriptions_bytes == 0


def test_no_long_word_of_a_group_is_kept(broker: Broker) -> None:
    long = "x" * 20_000
    command = heartbeat(0, 1, consumeType=long, messageModel=long, consumeFromWhere=long)
    broker.core.processor.received(FakeChannel(), [command])
    group = broker.core.clients.consumer_group("G0-0")
    assert group is not None
    assert max(map(len, (group.consume_type, group.message_model, group.consume_from_where))) < 64
