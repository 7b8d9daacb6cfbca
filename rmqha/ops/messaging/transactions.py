"""Transactions without an end, as the broker groups tell them (request 52037). Control plane."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rmqha.client.admin import Admin
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import RemoteError, RmqhaError
from rmqha.model.message import CHECK_MAX_TOPIC, HALF_TOPIC, TRANSACTION_GROUP
from rmqha.ops.answer import readable_answer
from rmqha.ops.messaging.brokers import (
    AskedBroker,
    BrokerAnswers,
    all_brokers,
    ask_json,
    brokers_of_topic,
    from_each,
    queue_table,
)
from rmqha.ops.messaging.consumer_group import stored_count
from rmqha.wire.command import Command


@dataclass(frozen=True, slots=True)
class OpenRow:
    """Transactions of one producer group for one topic. `check_count`: how often the one that was asked for most has
    been; `member_count`: connected producers of the group."""

    producer_group: str
    topic: str
    count: int
    oldest_born_at_ms: int
    check_count: int
    member_count: int


@dataclass(frozen=True, slots=True)
class OpenTransactions:
    """Transactions without an end in one broker group. `unread`: those that are in no row; `is_upper_bound`: some of
    them may have ended, as a broker of Apache's tells it."""

    now_ms: int
    waiting: int
    unread: int
    rows: tuple[OpenRow, ...] = ()
    row_count: int = 0
    is_upper_bound: bool = False

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> OpenTransactions:
        """Raises KeyError, TypeError or ValueError for what is no such answer."""
        rows = tuple(
            OpenRow(str(group), str(topic), int(count), int(born_ms), int(checks), int(members))
            for group, topic, count, born_ms, checks, members in body["rows"]
        )
        now_ms, waiting, unread, row_count = (int(body[name]) for name in ("nowMs", "waiting", "unread", "rowCount"))
        return cls(now_ms, waiting, unread, rows, row_count)


async def open_transactions(admin: Admin, topic: str | None = None) -> BrokerAnswers[OpenTransactions]:
    """Every group's, for all topics or for one. Raises UsageError for a topic that the name servers do not know."""
    brokers = await (all_brokers(admin) if topic is None else brokers_of_topic(admin, topic))
    ext = {"version": "1"} | ({} if topic is None else {"topic": topic})

    async def ask(broker: AskedBroker) -> OpenTransactions:
        try:
            body = await ask_json(admin, broker.address, Command(RequestCode.RMQHA_GET_TRANSACTIONS, ext))
        except RemoteError as error:
            if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            return await _upper_bound(admin, broker)
        with readable_answer(broker.address, "a broker's"):
            return OpenTransactions.from_json(body)

    return await from_each(brokers, ask)


async def _upper_bound(admin: Admin, broker: AskedBroker) -> OpenTransactions:
    """Half messages behind the first without an end: brokers pass over them in order."""
    ext = {"consumerGroup": TRANSACTION_GROUP, "topic": HALF_TOPIC}
    waiting = 0
    try:
        body = await ask_json(admin, broker.address, Command(RequestCode.GET_CONSUME_STATS, ext))
    except RemoteError as error:
        if error.code != ResponseCode.TOPIC_NOT_EXIST:
            raise
        return OpenTransactions(0, 0, 0)  # no transaction has come to this group yet
    with readable_answer(broker.address, "a broker's"):
        for row in queue_table(body, broker.address).values():
            waiting += max(0, int(row["brokerOffset"]) - int(row["consumerOffset"]))
    return OpenTransactions(0, waiting, waiting, is_upper_bound=waiting > 0)


async def given_up_count(admin: Admin) -> int | None:
    """Number of transactions that brokers gave up, as long as their log has them; None if not all of them tell."""
    try:
        return await stored_count(admin, CHECK_MAX_TOPIC)
    except RmqhaError:
        return None
