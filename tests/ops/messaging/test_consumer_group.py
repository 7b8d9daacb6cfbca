"""A consumer group as the brokers tell it."""

from __future__ import annotations

from typing import Any, cast

from rmqha.client.admin import Admin
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import RemoteError
from rmqha.ops.messaging.consumer_group import ConsumerGroup, describe_group
from rmqha.wire.bodies import SUBSCRIBED_ALIKE
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import dumps


class FakeAdmin:
    """One broker, and its answers by request code; it refuses what it has none for."""

    def __init__(self, **answers: Any) -> None:
        self._answers = {RequestCode[name]: body for name, body in answers.items()}
        self.refusals: dict[RequestCode, ResponseCode] = {}

    async def cluster_info(self) -> dict[str, Any]:
        return {"brokers": {"broker-a": {"addresses": {0: "127.0.0.1:1"}}}}

    async def route(self, topic: str) -> dict[str, Any]:
        raise RemoteError(ResponseCode.TOPIC_NOT_EXIST, topic)

    async def ask(self, address: str, command: Command) -> Command:
        body = self._answers.get(RequestCode(command.code))
        if body is None:
            code = self.refusals.get(RequestCode(command.code), ResponseCode.CONSUMER_NOT_ONLINE)
            raise RemoteError(code, "not here", address)
        return command.reply(body=dumps(body))


async def told(**answers: Any) -> ConsumerGroup:
    settings = {"GET_SUBSCRIPTIONGROUP_CONFIG": {"groupName": "g"}, "QUERY_TOPICS_BY_CONSUMER": {"topicList": ["T"]}}
    return await describe_group(cast("Admin", FakeAdmin(**settings, **answers)), "g", whole=False)


def at_queue(row: dict[str, int]) -> dict[str, Any]:
    return {"offsetTable": {'{"brokerName":"broker-a","queueId":0,"topic":"T"}': row}}


async def test_messages_that_were_deleted_unread_do_not_wait() -> None:
    stats = at_queue({"brokerOffset": 10, "consumerOffset": 2, "lastTimestamp": 5})
    found = await told(GET_CONSUME_STATS=stats, GET_TOPIC_STATS_INFO=at_queue({"minOffset": 6, "maxOffset": 10}))
    assert (found.lag, found.deleted) == (4, 4)
    # a broker that does not tell where its queues begin
    found = await told(GET_CONSUME_STATS=stats)
    assert (found.lag, found.deleted) == (8, 0)


async def test_members_that_subscribe_differently() -> None:
    connections = {"connectionSet": [{"clientId": name} for name in "ab"], SUBSCRIBED_ALIKE: [["a"], ["b"]]}
    found = await told(
        GET_CONSUMER_CONNECTION_LIST=connections,
        GET_CONSUME_STATS=at_queue({"brokerOffset": 1, "consumerOffset": 1, "lastTimestamp": 5}),
    )
    assert found.subscribed_alike == [["a"], ["b"]]


async def test_messages_that_wait_in_a_delay_level_for_the_group_are_told() -> None:
    settings = {"GET_SUBSCRIPTIONGROUP_CONFIG": {"groupName": "g"}, "QUERY_TOPICS_BY_CONSUMER": {"topicList": ["T"]}}
    delayed = {
        "nowMs": 50,
        "waiting": 9,
        "unread": 4,
        "rows": [["%RETRY%g", 3, 60], ["T", 2, 45]],
    }
    stats = at_queue({"brokerOffset": 1, "consumerOffset": 1, "lastTimestamp": 5})
    admin = FakeAdmin(**settings, GET_CONSUME_STATS=stats, RMQHA_GET_DELAYED=delayed)
    found = await describe_group(cast("Admin", admin), "g")
    assert found.delayed == {"%RETRY%g": (3, 10), "T": (2, 0)}
    assert (found.delayed_unread, found.delayed_untold) == (4, [])
    admin = FakeAdmin(**settings, GET_CONSUME_STATS=stats)
    admin.refusals[RequestCode.RMQHA_GET_DELAYED] = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    found = await describe_group(cast("Admin", admin), "g")
    assert (found.delayed, found.delayed_untold, found.silent) == ({}, ["broker-a"], {})
