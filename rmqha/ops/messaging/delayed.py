"""Messages that wait in delay levels, as the broker groups tell it (request 52038). Control plane."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from rmqha.client.admin import Admin
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import RemoteError
from rmqha.ops.answer import readable_answer
from rmqha.ops.messaging.brokers import AskedBroker, BrokerAnswers, ask_json, from_each
from rmqha.wire.command import Command


@dataclass(frozen=True, slots=True)
class DelayedMessages:
    """Messages in the delay levels of one broker group. `topics`: number and time (ms) of the first, by the topic that
    they wait for; `unread`: those that no topic counts."""

    now_ms: int
    waiting: int
    unread: int
    topics: Mapping[str, tuple[int, int]]

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> DelayedMessages:
        """Raises KeyError, TypeError or ValueError for what is no such answer."""
        now_ms, waiting, unread = (int(body[name]) for name in ("nowMs", "waiting", "unread"))
        topics = {str(topic): (int(count), int(first_at_ms)) for topic, count, first_at_ms in body["rows"]}
        return cls(now_ms, waiting, unread, topics)


async def count_delayed(
    admin: Admin, brokers: Collection[AskedBroker], topics: Collection[str] = ()
) -> BrokerAnswers[DelayedMessages | None]:
    """Messages that wait at each of the brokers, for these topics, for all if there is none; None of a broker that
    does not count them, as Apache's, or not for this account."""
    ext = {"version": "1"} | ({"topics": ",".join(sorted(topics))} if topics else {})

    async def ask(broker: AskedBroker) -> DelayedMessages | None:
        try:
            body = await ask_json(admin, broker.address, Command(RequestCode.RMQHA_GET_DELAYED, ext))
        except RemoteError as error:
            if error.code not in (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.NO_PERMISSION):
                raise
            return None
        with readable_answer(broker.address, "a broker's"):
            return DelayedMessages.from_json(body)

    return await from_each(brokers, ask)
