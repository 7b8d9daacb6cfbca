"""Pop in order: a queue gives nothing more until what it gave is done, or its time is up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rmqha.broker.pop.positions import PopQueue
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.wire.command import Command
from tests.broker.pop.test_pop import bodies
from tests.broker.pop.world import (
    INVISIBLE_MS,
    Popped,
    ack_all,
    ack_command,
    later,
    messages,
    named,
    polled,
    pop,
    pop_command,
    send,
)
from tests.broker.support import Broker, FakeChannel, ack, send_command


def ordered(broker: Broker, **ext: Any) -> list[Popped]:
    return pop(broker, order="true", **{"attemptId": "one", "maxMsgNums": 2, **ext})


def test_a_queue_gives_the_next_when_all_are_done(broker: Broker) -> None:
    send(broker, b"a", b"b", b"c")
    given = ordered(broker)
    assert bodies(given) == [b"a", b"b"] and given[0].receipt.revive_queue_id == 999
    assert ordered(broker, attemptId="two") == []
    ack_all(broker, given[:1])
    assert ordered(broker, attemptId="two") == [] and broker.core.pops.positions.next_offset(PopQueue("T", "G", 0)) == 1
    ack_all(broker, given[1:])
    assert bodies(ordered(broker, attemptId="two")) == [b"c"]


def test_what_is_not_done_comes_again_first_and_is_counted(broker: Broker) -> None:
    send(broker, b"a", b"b", b"c")
    given = ordered(broker)
    ack_all(broker, given[:1])
    later(broker, INVISIBLE_MS)
    again = ordered(broker, attemptId="two")
    assert bodies(again) == [b"b", b"c"]
    stale = broker.ask(ack_command(given[1]))
    assert stale.code == 0 and broker.core.pops.positions.next_offset(PopQueue("T", "G", 0)) == 1
    info = broker.core.pops.orders.get(PopQueue("T", "G", 0))
    assert info is not None and info.counts == {1: 1}


def test_the_attempt_whose_answer_was_lost_gets_it_again(broker: Broker) -> None:
    send(broker, b"a", b"b")
    assert bodies(ordered(broker)) == bodies(ordered(broker)) == [b"a", b"b"]


def test_a_waiting_pop_gets_the_next_when_all_are_done(broker: Broker) -> None:
    send(broker, b"a", b"b", b"c")
    given = ordered(broker)
    channel = polled(broker, order="true", attemptId="two")
    ack_all(broker, given)
    assert bodies(messages(channel.one(), broker_name=broker.config.broker_name)) == [b"c"]


def test_a_waiting_pop_gets_what_is_not_done_in_time(broker: Broker) -> None:
    send(broker, b"a")
    ordered(broker)
    channel = polled(broker, order="true", attemptId="two")
    later(broker, INVISIBLE_MS)
    assert bodies(messages(channel.one(), broker_name=broker.config.broker_name)) == [b"a"]


def test_another_time(broker: Broker) -> None:
    send(broker, b"a")
    (given,) = ordered(broker)
    reply = broker.ask(named(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, given, invisibleTime=1000))
    assert reply.code == 0 and reply.ext["popTime"] == str(given.receipt.pop_ms)
    broker.run(1000)
    assert bodies(ordered(broker, attemptId="two")) == [b"a"]


def test_an_offset_that_was_not_given_is_refused(broker: Broker) -> None:
    send(broker, b"a", b"b", b"c")
    given = ordered(broker)
    assert broker.ask(ack_command(given[0], offset=2)).code == ResponseCode.MESSAGE_ILLEGAL


def test_what_was_given_is_known_after_a_restart(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker().start()
    send(broker, b"a")
    ordered(broker)
    broker.close()
    broker = make_broker().start()
    assert ordered(broker, attemptId="two") == []
    later(broker, INVISIBLE_MS)
    assert bodies(ordered(broker, attemptId="two")) == [b"a"]


def test_a_new_master_believes_no_receipt_but_that_of_the_first_message_that_is_not_done(
    make_broker: Callable[..., Broker],
) -> None:
    broker = make_broker().start()
    send(broker, b"a", b"b", b"c")
    given = ordered(broker, maxMsgNums=3)
    broker.core.pops.demoted()  # whoever is master next knows nothing of what was given
    for message in (given[1], given[0], given[2]):
        assert broker.ask(ack_command(message)).code == 0
    assert bodies(ordered(broker, attemptId="two")) == [b"b", b"c"]


def test_what_was_acknowledged_is_done_after_a_kill(make_broker: Callable[..., Broker]) -> None:
    """The log says so: nobody has written a table yet."""
    broker = make_broker().start()
    send(broker, b"a", b"b", b"c")
    ack_all(broker, ordered(broker))
    broker.open = False
    broker.store.close()
    broker = make_broker().start()
    assert bodies(ordered(broker, attemptId="two")) == [b"c"]


def test_a_new_master_reads_what_is_done_before_it_takes_more(broker: Broker) -> None:
    """Simulated (clean-stops, seed 17): the second one was answered, and its message came again."""
    send(broker, b"a", b"b", b"c")
    given = ordered(broker)
    ack_all(broker, given[:1])
    broker.store.sync()
    broker.core.save()
    pops = broker.core.pops
    pops.demoted()
    pops.role_changed()
    broker.core.offsets._offsets["T@G"][0] = 0  # the slave that is master now had not heard of it
    ack_all(broker, given[1:])
    assert bodies(ordered(broker, attemptId="two")) == [b"c"]


def test_an_acknowledgement_in_order_comes_before_a_new_master_has_its_queues(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(broker, b"a")
    (given,) = ordered(broker)
    broker.core.pops.role_changed()
    monkeypatch.setattr(type(broker.core.driver), "is_serving", False)
    assert broker.ask(ack_command(given)).code == ResponseCode.SERVICE_NOT_AVAILABLE
    monkeypatch.undo()
    ack_all(broker, [given])


def test_a_repeated_acknowledgement_waits_for_what_it_repeats(pair: Broker) -> None:
    """A master that was cut off answered the second one at once, and the next master gave the message again."""
    channel, place = FakeChannel(), PopQueue("T", "G", 0)

    def told(command: Command) -> Command:
        pair.core.processor.received(channel, [command])
        pair.run()
        assert channel.take() == [], "before the slave has it"
        ack(pair)
        return channel.one()

    assert told(send_command("T", 0, b"a", d="1")).code == 0
    (given,) = messages(pair.ask(pop_command(order="true")), broker_name=pair.config.broker_name)
    pair.core.processor.received(channel, [ack_command(given)])
    pair.run(pair.config.slave_timeout + 1)
    assert channel.one().code == ResponseCode.FLUSH_SLAVE_TIMEOUT
    assert told(ack_command(given)).code == 0
    pair.store.sync()
    pair.core.pops.advance()
    assert pair.core.pops.positions.is_settled(place, 0)
    end = pair.store.max_phy_offset
    assert pair.ask(ack_command(given)).code == 0 and pair.store.max_phy_offset == end
