"""Cost of a batch of sends, which decides when its sessions are served next."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import cast

import pytest

from rmqha.host.net.fair_queue import QueueEntry
from rmqha.host.net.poller import Poller
from rmqha.host.net.session import Session
from rmqha.host.net.turn_read_batch import TurnReadBatch


class InTurn(Poller):
    """A poller whose turn ends when the test says so."""

    def at_turn_end(self, work: Callable[[], None], *, alone: bool = False) -> bool:
        self.work = work
        return True


class Charged:
    """A session that notes what it is charged."""

    cost_us = 0.0

    def batch_handled(self, end: int, count: int, cost_us: float) -> None:
        self.cost_us = cost_us


class Working:
    """A fast path that takes `cpu_ms` of CPU time, after the system has run another process for `stolen_ms`."""

    def __init__(self, cpu_ms: int, stolen_ms: int) -> None:
        self._cpu_ns, self._stolen_s = cpu_ms * 1_000_000, stolen_ms / 1000

    def take(self, reads: Sequence[tuple[Session, bytes]], max_count: int) -> list[tuple[int, int]]:
        time.sleep(self._stolen_s)
        until_ns = time.thread_time_ns() + self._cpu_ns
        while time.thread_time_ns() < until_ns:
            pass
        return [(len(data), 1) for _, data in reads]


@pytest.mark.parametrize("stolen_ms", [0, 50])
def test_no_session_is_charged_for_the_time_of_other_processes(stolen_ms: int) -> None:
    """Or one that sends little is taken for one that costs much, is served late, sends more at a time, and stays so."""
    poller, session = InTurn(), Charged()
    poller.enqueue(QueueEntry(lambda: True))
    batch = TurnReadBatch(Working(2, stolen_ms), poller)
    assert batch.add(cast(Session, session), b"send")
    poller.work()
    assert 2_000 <= session.cost_us < 50_000
