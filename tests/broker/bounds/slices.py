"""CPU time of the pieces of work that a request makes, as the event loop has other turns in between."""

from __future__ import annotations

import time
from typing import NamedTuple

from rmqha.broker.requests.request import Steps
from rmqha.wire.command import Command
from tests.broker.support import Broker, FakeChannel


class Turns(NamedTuple):
    longest_ms: float
    codes: list[int]
    """Of the answers."""


class SlicedChannel(FakeChannel):
    """Measures work in steps one by one, as the loop has other turns in between."""

    def __init__(self) -> None:
        super().__init__()
        self.longest_ms = 0.0

    def work(self, steps: Steps) -> None:
        more = True
        while more:
            began = time.thread_time()
            more = next(steps, self) is None
            self.longest_ms = max(self.longest_ms, (time.thread_time() - began) * 1000)


def turns_of(broker: Broker, command: Command) -> Turns:
    channel = SlicedChannel()
    began = time.thread_time()
    broker.core.processor.received(channel, [command])
    whole_ms = (time.thread_time() - began) * 1000
    broker.core.processor.closed(channel)
    return Turns(channel.longest_ms or whole_ms, [sent.code for sent in channel.sent if not sent.is_oneway])


def longest_turn_ms(broker: Broker, command: Command) -> float:
    """CPU time (ms) of the longest piece of work that `command` makes."""
    return turns_of(broker, command).longest_ms
