"""A consumer's membership in its group: heartbeats, the list of members, leaving. Control plane."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, TypeVar

from rmqha.client.answers import parsing
from rmqha.client.arguments import require_type
from rmqha.client.consumers.expression import SQL92, TAG, parse_tags
from rmqha.client.consumers.message import Message, MessageView
from rmqha.client.heartbeat import CALL_TIMEOUT_MS, Heartbeats
from rmqha.client.route import TopicRoute
from rmqha.client.session import ClientSession
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import RemoteError, UnreachableError, UsageError
from rmqha.model.message import RETRY_PREFIX, java_string_hash
from rmqha.model.selector import SelectorError, parse_selector
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import loads


class ConsumerMembership:
    """One member of consumer group `group` with one subscription. The session must be open before the first call."""

    def __init__(
        self, session: ClientSession, group: str, topic: str, tags: str, *, selector: str = "", broadcast: bool = False
    ) -> None:
        """`tags`: "*" or "A || B"; `selector`: SQL92 instead. `broadcast`: each member reads all queues.
        Raises UsageError for another expression, or both."""
        self._remoting = session.remoting
        self._group = group
        self._topic = topic
        self._broadcast = broadcast
        self.tags = parse_tags(tags)
        """The wanted tags, None for all."""
        self.expression, self.expression_type = tags.strip() or "*", TAG
        require_type(f"the argument selector, {selector!r},", selector, str)
        if selector:
            if self.tags is not None:
                raise UsageError("a consumer takes tags or a selector, not both")
            try:
                parse_selector(selector)
            except SelectorError as error:
                raise UsageError(f"selector {selector!r}: {error}") from None
            self.expression, self.expression_type = selector, SQL92
        self.sub_version = time.time_ns() // 1_000_000
        self._heartbeats = Heartbeats(session, self.sub_version)

    @property
    def client_id(self) -> str:
        """Unique among all members of all groups."""
        return self._heartbeats.client_id

    async def members(self, route: TopicRoute) -> Sequence[str]:
        """Client ids of the group, sorted. Raises UnreachableError if no broker of the topic tells, RemoteError (16) if
        one may not tell this account."""
        await self.heartbeat(route)
        reason = f"topic {self._topic} has no broker"
        for broker_name in sorted(route.addresses):
            for broker_id in sorted(route.addresses[broker_name]):
                address = route.addresses[broker_name][broker_id]
                command = Command(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": self._group})
                try:
                    answer = await self._remoting.call(address, command, CALL_TIMEOUT_MS)
                except UnreachableError as error:
                    reason = str(error)
                    continue
                if answer.code == ResponseCode.SUCCESS:
                    return _client_ids(bytes(answer.body), address)
                if answer.code == ResponseCode.NO_PERMISSION:
                    raise RemoteError(answer.code, answer.remark or "", address)
                reason = f"{address} answered {answer.code}: {answer.remark or 'no remark'}"
        raise UnreachableError(f"no broker tells the members of group {self._group}: {reason}")

    async def heartbeat(self, route: TopicRoute) -> None:
        """Send a heartbeat to all replicas: a slave that becomes master must know the members already."""
        await self._heartbeats.beat(route, self._body)

    def forget(self, address: str) -> None:
        """Forget that the broker at `address` knows this member: its connection is gone."""
        self._heartbeats.forget(address)

    def _body(self) -> dict[str, Any]:
        tags = sorted(self.tags or ())
        subscriptions = [
            {
                "topic": self._topic,
                "subString": self.expression,
                "tagsSet": tags,
                "codeSet": [java_string_hash(tag) for tag in tags],
                "subVersion": self.sub_version,
                "expressionType": self.expression_type,
                "classFilterMode": False,
            }
        ]
        if not self._broadcast:
            retry = {"topic": RETRY_PREFIX + self._group, "subString": "*", "tagsSet": [], "codeSet": []}
            subscriptions.append({**subscriptions[0], "expressionType": TAG, **retry})
        consumer = {
            "groupName": self._group,
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "BROADCASTING" if self._broadcast else "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
            "subscriptionDataSet": subscriptions,
            "unitMode": False,
        }
        return {"producerDataSet": [], "consumerDataSet": [consumer]}

    async def leave(self) -> None:
        """Tell the brokers that this member goes, so that the others take its queues at once."""
        await self._heartbeats.leave({"consumerGroup": self._group})


def send_back_fields(message: Message | MessageView, delay_level: int) -> dict[str, str]:
    """Fields of request 36 that name the message; `delay_level` −1: to the dead letters."""
    return {
        "offset": str(message.phy_offset),
        "delayLevel": str(delay_level),
        "originMsgId": message.msg_id,
        "originTopic": message.topic,
        "unitMode": "false",
        "bname": message.broker_name,
    }


def _client_ids(body: bytes, address: str) -> list[str]:
    """Client ids in the list of a group's members. Raises RemoteProtocolError."""
    with parsing(address, "the list of a consumer group's members"):
        ids = loads(body)["consumerIdList"]
        if not isinstance(ids, list):
            raise TypeError("no list")
        return sorted(str(item) for item in ids)


# --- assignment of queues to the members of a consumer group ----------------------------------------------------------

Q = TypeVar("Q")


def allocate_averagely(queues: Sequence[Q], members: Sequence[str], member: str) -> list[Q]:
    """The share of `member`: both lists sorted and equal for all members, each gets one run of neighbours, the first
    ones a queue more if they do not divide evenly. [] for someone who is no member."""
    if member not in members or not queues:
        return []
    index = members.index(member)
    share, rest = divmod(len(queues), len(members))
    start = index * share + min(index, rest)
    return list(queues[start : start + share + (index < rest)])
