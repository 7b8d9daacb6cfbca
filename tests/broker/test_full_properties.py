"""A message whose properties leave no room for what brokers add to them is not lost for that."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rmqha.broker.timers.message import ROLL_WINDOW_MS
from rmqha.model.message import decode_properties
from rmqha.store.log.record import decode
from tests.broker.pop.world import INVISIBLE_MS, ack_all, later, pop
from tests.broker.support import Broker, send_command

MOST = 32_767
TOPIC = "T"


def fillings(broker: Broker, more: str, *, step: int) -> Iterator[str]:
    """Properties of all lengths up to the longest that is taken, by `step`, as they are taken."""
    for length in range(MOST - 460, MOST, step):
        filling = "b" * length
        if broker.ask(send_command(TOPIC, 0, b"x", i=f"UNIQ_KEY\x01U\x02{more}A\x01{filling}\x02")).code != 0:
            return
        yield filling


@pytest.mark.parametrize(
    "more", ["DELAY\x011\x02", "TIMER_DELAY_SEC\x013\x02", f"TIMER_DELAY_MS\x01{ROLL_WINDOW_MS + 9000}\x02"]
)
def test_whatever_waits_comes(broker: Broker, more: str) -> None:
    """One that a broker has taken, to the last byte: what a delivery adds is left out rather than the message."""
    sent = list(fillings(broker, more, step=3))
    assert len(sent) > 50
    broker.run(5000)
    for _ in range(4):
        broker.run(ROLL_WINDOW_MS // 2)
        broker.run()
    records = list[str]()
    while len(records) < len(sent):
        found = broker.store.pull(TOPIC, 0, len(records), 64, 1 << 24).records
        assert found, f"{len(records)} of {len(sent)} came"
        records += [decode_properties(decode(item).properties)["A"] for item in found]
    assert sorted(records) == sorted(sent)


def test_whatever_is_popped_comes_again(broker: Broker) -> None:
    sent = list(fillings(broker, "", step=9))
    assert len(sent) > 20
    for _ in range(3):
        given = []
        while found := pop(broker):
            given += found
        assert len(given) == len(sent)
        later(broker, INVISIBLE_MS + 5000)
    while found := pop(broker):
        ack_all(broker, found)
    later(broker, INVISIBLE_MS + 5000)
    assert pop(broker) == []
