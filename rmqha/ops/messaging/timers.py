"""Counts of timer messages that wait, by the broker groups' answers (request 52036). Control plane."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rmqha.client.admin import Admin
from rmqha.model.code import RequestCode
from rmqha.ops.answer import readable_answer
from rmqha.ops.messaging.brokers import AskedBroker, BrokerAnswers, all_brokers, ask_json, brokers_of_topic, from_each
from rmqha.wire.command import Command

MINUTE_MS = 60_000
STEPS_MINUTES = (1, 5, 15, 60, 360, 1440)


@dataclass(frozen=True, slots=True)
class WaitingMessages:
    """Numbers of timer messages that wait in one group: in all, by topic, and by minute (the time in ms at which it
    begins)."""

    now_ms: int
    waiting: int
    unread: int
    overdue_ms: int
    topics: Mapping[str, int]
    minutes: Mapping[int, int]

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> WaitingMessages:
        """The numbers in an answer's body. Raises KeyError, TypeError or ValueError for another body."""
        now_ms, waiting, unread, overdue_ms = (int(body[name]) for name in ("nowMs", "waiting", "unread", "overdueMs"))
        topics = {str(name): int(count) for name, count in body["topics"]}
        minutes = {int(at_ms): int(count) for at_ms, count in body["minutes"]}
        return cls(now_ms, waiting, unread, overdue_ms, topics, minutes)


async def count_waiting(admin: Admin, topic: str | None) -> BrokerAnswers[WaitingMessages]:
    """Numbers of waiting messages by group, of all topics or of one. Raises UsageError for a topic that the name
    servers do not know."""
    brokers = await (all_brokers(admin) if topic is None else brokers_of_topic(admin, topic))
    ext = {"version": "1"} | ({} if topic is None else {"topic": topic})

    async def ask(broker: AskedBroker) -> WaitingMessages:
        body = await ask_json(admin, broker.address, Command(RequestCode.RMQHA_GET_TIMERS, ext))
        with readable_answer(broker.address, "a broker's"):
            return WaitingMessages.from_json(body)

    return await from_each(brokers, ask)


def by_step(counts: Mapping[int, int], row_count: int) -> tuple[int, list[tuple[int, int]]]:
    """Minutes of a step, and (begin in ms, count) of each step from the first to the last with messages. The steps are
    the shortest that give at most `row_count` rows; with the longest ones, steps without messages are left out."""
    for step in STEPS_MINUTES:
        step_ms = step * MINUTE_MS
        merged: Counter[int] = Counter()
        for at_ms, count in counts.items():
            merged[at_ms // step_ms * step_ms] += count
        if not merged:
            return step, []
        if (max(merged) - min(merged)) // step_ms < row_count:
            return step, [(at_ms, merged[at_ms]) for at_ms in range(min(merged), max(merged) + 1, step_ms)]
    return step, sorted(merged.items())[:row_count]
