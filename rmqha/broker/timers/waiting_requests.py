"""Requests about messages that wait for more than a time: half messages without an end (52037), messages in delay
levels (52038)."""

from __future__ import annotations

from typing import Any

from rmqha.broker.requests.request import Channel, Handler, Work, require_version
from rmqha.broker.services.schedule import DelayedCounts, ScheduleService
from rmqha.broker.services.transaction_service import OpenCounts, TransactionService
from rmqha.broker.tables.clients import ClientTable
from rmqha.model.code import RequestCode
from rmqha.port import Clock
from rmqha.wire import lenient_json
from rmqha.wire.command import Command

VERSION = 1
MAX_ROWS = 1000
"""Rows in an answer, those with the highest counts."""


class WaitingRequests:
    """Counts of what waits, by topic."""

    def __init__(
        self,
        transactions: TransactionService,
        schedule: ScheduleService,
        clock: Clock,
        clients: ClientTable,
    ) -> None:
        self._transactions = transactions
        self._schedule = schedule
        self._clock = clock
        self._clients = clients

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.RMQHA_GET_TRANSACTIONS: self._open_transactions,
            RequestCode.RMQHA_GET_DELAYED: self._delayed,
        }

    def _open_transactions(self, channel: Channel, command: Command) -> Work:
        require_version(command, VERSION)
        found, topic = OpenCounts(), command.ext.get("topic") or None
        yield from self._transactions.count_open(topic, found)
        unread = found.waiting - found.read
        rows = sorted(found.rows.items(), key=lambda item: (-item[1].count, item[0]))
        return self._reply(
            command,
            waiting=found.waiting if topic is None else unread + sum(row.count for _, row in rows),
            unread=unread,
            rowCount=len(rows),
            rows=[
                [
                    group,
                    topic,
                    row.count,
                    row.oldest_born_at_ms,
                    row.check_count,
                    len(self._clients.producer_group(group) or ()),
                ]
                for (group, topic), row in rows[:MAX_ROWS]
            ],
        )

    def _delayed(self, channel: Channel, command: Command) -> Work:
        require_version(command, VERSION)
        found = DelayedCounts()
        topics = frozenset(filter(None, command.ext.get("topics", "").split(",")))
        yield from self._schedule.count_waiting(topics, found)
        rows = sorted(found.rows.items(), key=lambda item: (-item[1][0], item[0]))
        return self._reply(
            command,
            waiting=found.waiting,
            unread=found.waiting - found.read,
            rowCount=len(rows),
            rows=[[topic, count, first_at_ms] for topic, (count, first_at_ms) in rows[:MAX_ROWS]],
        )

    def _reply(self, command: Command, **body: Any) -> Command:
        told = {"version": VERSION, "nowMs": self._clock.wall_ms(), **body}
        return command.reply(body=lenient_json.dumps(told))
