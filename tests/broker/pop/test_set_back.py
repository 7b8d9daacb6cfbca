"""An operator's word where a group goes on outlives a switch: what was popped before it does not move the group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rmqha.broker.pop.checkpoint import CheckPoint, InOrder
from rmqha.broker.tables.offsets import FOREIGN_LAG_MS
from rmqha.model.code import RequestCode
from rmqha.store.meta.boot_file import LastStop
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import dumps, loads
from tests.broker.pop.test_order import ordered
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
from tests.broker.support import Broker, FakeChannel

MakeBroker = Callable[..., Broker]


def next_master(make_broker: MakeBroker, killed: Broker) -> Broker:
    """The one that follows on a killed one whose tables were on the disk. Its clock is behind."""
    killed.core.save()
    killed.store.sync()
    killed.store.close()
    killed.open = False
    return make_broker().start()


def settle(broker: Broker) -> None:
    """What was popped stands in the tables."""
    broker.store.sync()
    broker.core.pops.advance()


def reset(broker: Broker, offset: int) -> None:
    fields = {"topic": "T", "group": "G", "queueId": "0", "offset": str(offset), "timestamp": "-1", "isForce": "true"}
    assert broker.ask(Command(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)).code == 0


def commit(broker: Broker, offset: int) -> None:
    fields = {"topic": "T", "consumerGroup": "G", "queueId": "0", "commitOffset": str(offset)}
    assert broker.ask(Command(RequestCode.UPDATE_CONSUMER_OFFSET, fields)).code == 0


@pytest.mark.parametrize("set_back", [reset, commit])
def test_what_was_set_back_comes_again_under_the_next_master(
    make_broker: MakeBroker, set_back: Callable[[Broker, int], None]
) -> None:
    broker = make_broker().start()
    send(broker, b"a", b"b", b"c", b"d")
    ack_all(broker, pop(broker))
    settle(broker)
    set_back(broker, 1)
    ack_all(broker, pop(broker, maxMsgNums=1))
    broker = next_master(make_broker, broker)
    given = pop(broker)
    assert bodies(given) == [b"c", b"d"]


@pytest.mark.parametrize("set_back", [reset, commit])
def test_a_pop_whose_checkpoint_is_not_durable_yet_does_not_lift_a_set_back(
    broker: Broker, set_back: Callable[[Broker, int], None]
) -> None:
    send(broker, b"a", b"b", b"c")
    pop(broker, maxMsgNums=1)
    settle(broker)
    pop(broker)
    set_back(broker, 0)
    settle(broker)
    assert bodies(pop(broker)) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("is_ordered", [False, True])
def test_a_pop_that_waits_is_given_what_comes_again(broker: Broker, is_ordered: bool) -> None:
    send(broker, b"a", b"b")
    ack_all(broker, ordered(broker) if is_ordered else pop(broker))
    waiting = polled(broker, order=str(is_ordered).lower())
    reset(broker, 1)
    assert bodies(messages(waiting.one())) == [b"b"]


def test_what_was_popped_after_the_set_back_is_not_given_again(make_broker: MakeBroker) -> None:
    """Though its checkpoint stands in the same millisecond, and the clock of the next one who pops is behind."""
    broker = make_broker().start()
    send(broker, b"a", b"b", b"c", b"d")
    ack_all(broker, pop(broker))
    later(broker, 5000)
    reset(broker, 0)
    broker.core.save()
    ack_all(broker, pop(broker, maxMsgNums=1))
    broker.store.close()  # the tables say 0
    broker.open = False
    broker = make_broker().start()
    given = pop(broker, maxMsgNums=1)
    assert bodies(given) == [b"b"]
    ack_all(broker, given)
    broker.store.close()
    broker.open = False
    broker = make_broker().start()
    assert bodies(pop(broker)) == [b"c", b"d"]


def test_a_second_set_back_counts_over_what_was_popped_since_the_first(make_broker: MakeBroker) -> None:
    """The clock stands still, and goes back at the switch."""
    broker = make_broker().start()
    send(broker, b"a", b"b", b"c")
    later(broker, 5000)
    pop(broker)
    reset(broker, 0)
    pop(broker)
    broker = next_master(make_broker, broker)
    assert pop(broker) == []
    reset(broker, 1)
    assert bodies(pop(broker, maxMsgNums=1)) == [b"b"]
    broker = next_master(make_broker, broker)
    assert bodies(pop(broker)) == [b"c"]


def test_another_time_for_a_message_of_before_does_not_lift_a_set_back(make_broker: MakeBroker) -> None:
    broker = make_broker().start()
    send(broker, b"a", b"b", b"c")
    given = pop(broker)
    reset(broker, 0)
    later(broker, 1000)
    asked = named(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, given[2], invisibleTime=60_000)
    assert broker.ask(asked).code == 0
    assert bodies(pop(broker, maxMsgNums=1)) == [b"a"]
    broker = next_master(make_broker, broker)
    assert bodies(pop(broker)) == [b"b", b"c"]


@pytest.mark.parametrize("is_taken", [False, True])
def test_what_is_done_in_order_of_before_does_not_lift_a_set_back(make_broker: MakeBroker, is_taken: bool) -> None:
    broker = make_broker().start()
    send(broker, b"a", b"b", b"c", b"d")
    first = ordered(broker)
    ack_all(broker, first)
    second = ordered(broker, attemptId="two")
    reset(broker, 0)
    later(broker, 1000)
    again = ordered(broker, attemptId="three", maxMsgNums=1) if is_taken else list[Popped]()
    ack_all(broker, second)
    ack_all(broker, first)
    broker = next_master(make_broker, broker)
    later(broker, INVISIBLE_MS)
    ack_all(broker, again)
    expected = [b"b", b"c", b"d"] if is_taken else [b"a", b"b", b"c", b"d"]
    assert bodies(ordered(broker, attemptId="four", maxMsgNums=4)) == expected


def test_what_is_done_in_order_since_a_set_back_counts(make_broker: MakeBroker) -> None:
    """In the same millisecond."""
    broker = make_broker().start()
    send(broker, b"a", b"b", b"c", b"d")
    ack_all(broker, ordered(broker))
    reset(broker, 0)
    broker.core.save()
    ack_all(broker, ordered(broker, attemptId="two", maxMsgNums=1))
    broker.store.close()
    broker.open = False
    broker = make_broker().start()
    assert bodies(ordered(broker, attemptId="three")) == [b"b", b"c"]


def test_a_group_that_is_made_anew_begins_as_a_new_one(make_broker: MakeBroker) -> None:
    broker = make_broker().start()
    send(broker, b"a", b"b")
    ack_all(broker, pop(broker))
    fields = {"groupName": "G", "cleanOffset": "true"}
    assert broker.ask(Command(RequestCode.DELETE_SUBSCRIPTIONGROUP, fields)).code == 0
    broker = next_master(make_broker, broker)
    assert bodies(pop(broker)) == [b"a", b"b"]


def test_what_is_popped_and_not_on_the_disk_does_not_lift_a_removal(broker: Broker) -> None:
    send(broker, b"a", b"b", b"c")
    pop(broker, maxMsgNums=1)
    settle(broker)
    broker.core.processor.received(FakeChannel(), [pop_command()])
    list(broker.core.offsets.remove_group("G"))
    settle(broker)
    assert broker.core.offsets.query("G", "T", 0) is None


def test_an_acknowledgement_of_before_a_set_back_is_answered(broker: Broker) -> None:
    send(broker, b"a", b"b")
    given = ordered(broker)
    reset(broker, 0)
    assert broker.ask(ack_command(given[0])).code == 0
    assert bodies(ordered(broker, attemptId="two")) == [b"a", b"b"]


def test_the_records_say_when(broker: Broker) -> None:
    """`rmqhaChanged` of a checkpoint says that it stands for a message that had been popped before."""
    value: dict[str, Any] = {**_CHECKPOINT.to_json(), "rmqhaChanged": True}
    assert CheckPoint.from_json(value, "b").is_changed and "rmqhaChanged" not in _CHECKPOINT.to_json()
    of_before = {"t": "T", "c": "G", "q": 0, "o": 5, "v": 1}
    assert InOrder.from_json(of_before).pop_ms == 0
    assert InOrder.from_json({**of_before, "pt": 7}).pop_ms == 7


_CHECKPOINT = CheckPoint("T", "G", 0, 3, 1_700_000_000_000, 1000, "b", (3,))


def as_apache_writes_it(broker: Broker, offset: int) -> None:
    """The file of offsets after Apache's broker had the store, and set the group back."""
    path = broker.directory / "config/consumerOffset.json"
    table = loads(path.read_bytes())
    table["offsetTable"]["T@G"] = {0: offset}
    path.write_text(dumps({name: table[name] for name in ("dataVersion", "groupTopicMap", "offsetTable")}).decode())


@pytest.mark.parametrize("is_marked", [True, False])
def test_what_apaches_broker_set_back_or_made_anew_is_not_raised(make_broker: MakeBroker, is_marked: bool) -> None:
    """It tells nobody when, and a mark of ours is as old as our last run, or there is none."""
    broker = make_broker().start()
    send(broker, b"a", b"b", b"c")
    ack_all(broker, pop(broker))
    if is_marked:
        later(broker, 2 * INVISIBLE_MS)
    broker.close()
    as_apache_writes_it(broker, 1)
    broker = make_broker().start()
    assert bodies(pop(broker)) == [b"b", b"c"]


def test_after_a_kill_of_apaches_broker_its_last_pops_are_known(make_broker: MakeBroker) -> None:
    broker = make_broker().start()
    send(broker, b"a", b"b")
    pop(broker, maxMsgNums=1)
    later(broker, FOREIGN_LAG_MS + INVISIBLE_MS)
    for message in pop(broker):
        ack_all(broker, [message])
    broker.store.sync()
    broker.core.save()
    broker.store.abandon()
    broker.open = False
    as_apache_writes_it(broker, 0)
    broker = make_broker().start()
    assert broker.store.recovery.last_stop is LastStop.KILLED
    assert pop(broker) == []
