"""Transactions when the master changes: what waits is found again, whatever the offsets say."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rmqha.broker.services.transaction import mark
from tests.broker.support import Broker, FakeChannel
from tests.broker.transactions import (
    COMMIT,
    HALF,
    OP,
    ROLLBACK,
    ROUND_MS,
    bodies,
    end_of,
    offsets,
    oneway,
    prepared,
    producer,
)


def next_master(make_broker: Callable[..., Broker]) -> tuple[Broker, FakeChannel]:
    """On the same directory, in the next epoch, with a producer that it may ask."""
    broker = make_broker()
    broker.controller.epoch = 2
    broker.start()
    return broker, producer(broker)


def test_a_new_master_goes_on(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker().start()
    ended, waiting = broker.ask(prepared(broker, "A")), broker.ask(prepared(broker, "B"))
    oneway(broker, end_of(ended, COMMIT))
    broker.close()
    again, channel = next_master(make_broker)
    again.run(ROUND_MS)
    check = channel.one()
    assert check.ext["msgId"] == "B"
    oneway(again, end_of(waiting, ROLLBACK))
    assert bodies(again) == [b"A"]
    again.run(2 * ROUND_MS)
    assert channel.take() == [] and offsets(again) == (3, 3)


def test_a_new_master_that_knows_no_offsets_asks_for_nothing_that_ended(make_broker: Callable[..., Broker]) -> None:
    """The marks say it: also of half messages that were asked about."""
    broker = make_broker().start()
    channel = producer(broker)
    for key in ("A", "B", "C"):
        broker.ask(prepared(broker, key))
    broker.run(ROUND_MS)
    first, second, _ = channel.take()
    oneway(broker, end_of(first, COMMIT, check=True))
    oneway(broker, end_of(second, ROLLBACK, check=True))
    broker.close()
    (broker.directory / "config" / "consumerOffset.json").unlink()
    (broker.directory / "config" / "consumerOffset.json.bak").unlink(missing_ok=True)
    again, channel = next_master(make_broker)
    again.run(ROUND_MS)
    assert [item.ext["msgId"] for item in channel.take()] == ["C"] and bodies(again) == [b"A"]


@pytest.mark.parametrize("ended", [0, 1, 2])
def test_offsets_that_a_lost_part_of_the_log_has_left_hide_nothing_that_waits(
    make_broker: Callable[..., Broker], ended: int
) -> None:
    """In AP offsets survive marks: a slave had them in time, or a master took them back after it had been killed."""
    broker = make_broker().start()
    for key in "ABCD"[:ended]:
        oneway(broker, end_of(broker.ask(prepared(broker, key)), COMMIT))
    broker.ask(prepared(broker, "W"))
    broker.run(ROUND_MS - 1)
    for topic, offset in ((HALF, ended + 1), (OP, ended + 7)):
        broker.core.offsets.commit("CID_RMQ_SYS_TRANS", topic, 0, offset)
    broker.close()
    again, channel = next_master(make_broker)
    again.run(ROUND_MS)
    assert channel.one().ext["msgId"] == "W"
    again.run(1)
    assert offsets(again) == (ended + 1, ended + 1), "those that a lost part has left are gone"


def test_behind_the_marks_of_an_apache_broker_the_offsets_count(make_broker: Callable[..., Broker]) -> None:
    """It also passes half messages without a mark."""
    broker = make_broker().start()
    for key in "AB":
        broker.ask(prepared(broker, key))
    broker.core.driver.append([mark([0], 0, (b"\x7f\0\0\1", 10911))])
    broker.run(1)
    broker.core.offsets.commit("CID_RMQ_SYS_TRANS", HALF, 0, 2)
    broker.close()
    again, channel = next_master(make_broker)
    again.run(2 * ROUND_MS)
    assert channel.take() == [] and offsets(again)[0] == 2
