"""Every SEND_OK message survives (CP), at the queue offset it was acknowledged with, once or as a counted duplicate
that some call explains, and in an order that real time allows. In AP losses are counted and reported."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rmqha.drill.history import check
from rmqha.model.message import RETRY_PREFIX
from tests.simulation.checkers.clients.transactions import OWN_TOPICS
from tests.simulation.checkers.logs.records import entries
from tests.simulation.history import History, InvariantError, Send
from tests.simulation.processes.broker_process import BrokerProcess

OF_POP = "@"
"""In keys of what brokers store of their own when messages are popped; clients make none such."""


@dataclass(frozen=True, slots=True)
class Audit:
    acked_count: int
    lost_count: int
    duplicate_count: int
    lost: tuple[Send, ...] = ()

    def __add__(self, other: Audit) -> Audit:
        """Of another group."""
        counts = self.acked_count + other.acked_count, self.lost_count + other.lost_count
        return Audit(*counts, self.duplicate_count + other.duplicate_count, self.lost + other.lost)


def audit(history: History, broker: BrokerProcess, *, cp: bool, ordered: bool, given_up: Iterable[str] = ()) -> Audit:
    """Read the queues of a whole replica as a consumer would, and hold them against what the clients were told
    (`rmqha.drill.history`). `ordered`: all messages are answered with their place in the queue that they end in.
    `given_up`: keys of messages that an operator has chosen to lose."""
    queues = {
        f"{topic} {queue_id}": [
            (item.queue_offset, item.key) for item in entries(broker, topic, queue_id) if OF_POP not in item.key
        ]
        for topic, queue_ids in broker.store.queues().items()
        if topic not in OWN_TOPICS and not topic.startswith(RETRY_PREFIX)
        for queue_id in queue_ids
    }
    log_min = broker.store.min_phy_offset
    # below the log's min it was removed by rule
    removed = {send.key for send in history.acked if send.phy_offset < log_min}
    removed |= set(given_up)
    removed |= history.taken.difference(key for entries_of in queues.values() for _, key in entries_of)
    verdict = check(history.attempts, queues, removed=lambda attempt: attempt.key in removed)
    wrong: list[str] = []
    if ordered:
        wrong = verdict.problems if cp else [*verdict.unexplained, *verdict.disordered]
    elif cp and verdict.lost:
        wrong = verdict.problems
    if wrong:
        raise InvariantError(f"{len(verdict.lost)} acknowledged messages are lost; first {'; '.join(wrong[:3])}")
    gone = {attempt.key for attempt in verdict.lost}
    return Audit(len(history.acked), len(gone), verdict.copies, tuple(s for s in history.acked if s.key in gone))
