"""A message that waited comes to a queue that is read, though its topic has fewer of them by now."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from rmqha.model.code import RequestCode
from rmqha.store.log.record import decode
from rmqha.wire.command import Command
from tests.broker.support import Broker, pull_command, send_command
from tests.broker.transactions import COMMIT, end_of, prepared

SENT_TO = 3


def delayed(broker: Broker, waits: str) -> None:
    assert broker.ask(send_command(queue_id=SENT_TO, body=b"late", i=f"{waits}UNIQ_KEY\x01U\x02")).code == 0


def by_level(broker: Broker) -> Callable[[], None]:
    delayed(broker, "DELAY\x013\x02")
    return lambda: broker.run(10_000)


def by_timer(broker: Broker) -> Callable[[], None]:
    delayed(broker, "TIMER_DELAY_SEC\x019\x02")
    return lambda: broker.run(10_000)


def by_transaction(broker: Broker) -> Callable[[], None]:
    half = broker.ask(prepared(broker, queue_id=SENT_TO))

    def end() -> None:
        assert broker.ask(end_of(half, COMMIT)).code == 0

    return end


@pytest.mark.parametrize("wait", [by_level, by_timer, by_transaction])
@pytest.mark.parametrize(("read", "write", "place"), [(2, 2, 1), (1, 1, 0), (4, 2, 3), (8, 8, 3), (2, 0, 1), (0, 0, 3)])
def test_what_waited_comes_to_a_queue_that_is_read(
    broker: Broker, wait: Callable[[Broker], Callable[[], None]], read: int, write: int, place: int
) -> None:
    broker.ask(send_command(body=b"first"))
    come = wait(broker)
    topic = broker.core.topics.get("T")
    assert topic is not None
    broker.core.topics.put(replace(topic, read_queue_count=read, write_queue_count=write))
    come()
    ends = [int(broker.store.queue_range("T", queue_id)[1]) for queue_id in range(8)]
    assert ends[0] == 1 + (place == 0) and sum(ends[1:]) == (place > 0) and ends[place] >= 1


def test_what_is_handed_back_comes_to_a_queue_that_is_read(broker: Broker) -> None:
    """A group's retryQueueNums was raised: its retry topic has the queues that it was made with."""
    for number in range(4):
        broker.ask(send_command(body=b"%d" % number))
    assert broker.ask(pull_command()).code == 0
    broker.core.groups.put({"groupName": "G", "retryQueueNums": 1})
    given = [decode(record) for record in broker.store.pull("T", 0, 0, 4, 1 << 20).records]
    for place, record in enumerate(given):
        ext = {"group": "G", "offset": str(record.phy_offset), "delayLevel": "1", "originTopic": "T"}
        assert broker.ask(Command(RequestCode.CONSUMER_SEND_MSG_BACK, ext)).code == 0
        broker.core.groups.put({"groupName": "G", "retryQueueNums": 4})
        assert broker.core.topics.get("%RETRY%G") is not None, place
    broker.run(2000)
    assert [int(broker.store.queue_range("%RETRY%G", queue_id)[1]) for queue_id in range(4)] == [4, 0, 0, 0]
