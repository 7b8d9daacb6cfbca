"""Topics, groups, clients and names are bounded, whoever makes them; what is there goes on as before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rmqha.broker.tables import clients
from rmqha.broker.tables.groups import CREATION_SHARE, MAX_GROUP_BYTES, SYSTEM_GROUPS
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import dumps
from tests.broker.support import Broker, FakeChannel, pull_command, send_command


def ask(broker: Broker, command: Command, channel: FakeChannel | None = None) -> Command:
    """The answer, notices left out."""
    channel = channel or FakeChannel()
    broker.core.processor.received(channel, [command])
    broker.run()
    (answer,) = [sent for sent in channel.take() if not sent.is_oneway]
    return answer


def create(topic: str, **ext: str) -> Command:
    fields = {"topic": topic, "readQueueNums": "1", "writeQueueNums": "1"}
    return Command(RequestCode.UPDATE_AND_CREATE_TOPIC, fields | ext)


def group_command(name: str, **settings: Any) -> Command:
    return Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, dumps({"groupName": name, **settings}))


def heartbeat(*groups: str, client: str = "c", expression: str = "*") -> Command:
    subscription = {"topic": "T", "subString": expression, "subVersion": 1}
    consumers = [{"groupName": name, "subscriptionDataSet": [subscription]} for name in groups]
    return Command(RequestCode.HEART_BEAT, {}, dumps({"clientID": client, "consumerDataSet": consumers}))


def commit(group: str) -> Command:
    ext = {"consumerGroup": group, "topic": "T", "queueId": "0", "commitOffset": "0"}
    return Command(RequestCode.UPDATE_CONSUMER_OFFSET, ext)


def test_no_topic_is_made_beyond_the_bound(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker().start()
    assert ask(broker, send_command("There")).code == 0
    broker.core.live.update(f"maxTopicCount={len(broker.core.topics)}")
    sent = ask(broker, send_command("More"))
    made = ask(broker, create("More"))
    assert (sent.code, made.code) == (ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SYSTEM_ERROR)
    for reply in (sent, made):
        assert reply.remark is not None and "maxTopicCount allows" in reply.remark
    assert broker.core.topics.get("More") is None
    assert ask(broker, send_command("There")).code == 0
    assert ask(broker, create("There", perm="4")).code == 0  # a change of one that is there
    assert ask(broker, heartbeat("G")).code == 0
    assert broker.core.topics.get("%RETRY%G") is not None  # its group has room
    broker.core.live.update("maxTopicCount=100")
    assert ask(broker, send_command("More")).code == 0


def test_no_group_is_made_beyond_the_bound(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker(max_group_count=1).start()
    ask(broker, send_command("T"))
    assert ask(broker, heartbeat("G")).code == 0
    assert ask(broker, heartbeat("More")).code == 0  # it is no group of settings, nor has it a retry topic
    assert broker.core.topics.get("%RETRY%More") is None
    for command in (pull_command("T", consumerGroup="More"), commit("More")):
        assert ask(broker, command).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    reply = ask(broker, group_command("More"))
    assert reply.code == ResponseCode.SYSTEM_ERROR and reply.remark is not None and "maxGroupCount" in reply.remark
    assert ask(broker, group_command("G", retryMaxTimes=3)).code == 0
    assert ask(broker, commit("G")).code == 0
    assert broker.core.groups.get("More") is None and broker.core.offsets.groups_of("T") == ["G"]


def test_groups_may_be_the_operators_to_make(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker(auto_create_subscription_group=False).start()
    ask(broker, send_command("T"))
    ask(broker, heartbeat("G"))
    assert ask(broker, pull_command("T")).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert ask(broker, group_command("G")).code == 0
    assert ask(broker, pull_command("T", queueOffset="0")).code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


@pytest.mark.parametrize("name", ["../../x", "a\nb", "g" * 121, "a@b", ""])
def test_a_name_that_can_be_no_group_makes_none(broker: Broker, name: str) -> None:
    ask(broker, send_command("T"))
    before = broker.core.topics.names()
    ask(broker, heartbeat(name))
    ask(broker, commit(name))
    assert ask(broker, group_command(name)).code == ResponseCode.INVALID_PARAMETER
    assert broker.core.groups.names() == sorted(SYSTEM_GROUPS) and broker.core.topics.names() == before
    assert broker.core.offsets.groups_of("T") == []


@pytest.mark.parametrize(
    "settings",
    [
        {"retryQueueNums": 1_000_000_000},
        {"retryQueueNums": "x"},
        {"retryMaxTimes": None},
        {"more": "x" * MAX_GROUP_BYTES},
        {"groupSysFlag": "x"},
        {"groupSysFlag": 1 << 31},
        {"consumeEnable": "yes"},
        {"consumeBroadcastEnable": None},
        {"brokerId": 1 << 63},
        {"whichBrokerWhenConsumeSlowly": 0.5},
        {"groupRetryPolicy": 7},
        {"subscriptionDataSet": ["T"]},
        {"groupRetryPolicy": {"type": "OFTEN"}},
    ],
)
def test_settings_of_a_group_are_bounded(broker: Broker, settings: dict[str, Any]) -> None:
    reply = ask(broker, group_command("G", **settings))
    assert reply.code == ResponseCode.SYSTEM_ERROR and reply.remark
    assert broker.core.groups.get("G") is None


@pytest.mark.parametrize("filter_type", ["x", "single_tag", "SINGLE_TAG 4 4"])
def test_the_filter_type_of_a_topic_is_one_of_rocketmqs(broker: Broker, filter_type: str) -> None:
    """Name servers, Apache's slaves and tools read it with all other topics."""
    assert ask(broker, create("T", topicFilterType=filter_type)).code == ResponseCode.SYSTEM_ERROR
    body = dumps({"topicConfigList": [{"topicName": "T", "topicFilterType": filter_type}]})
    assert ask(broker, Command(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, body)).code == ResponseCode.SYSTEM_ERROR
    assert broker.core.topics.get("T") is None


def test_attributes_of_a_topic_are_bounded(broker: Broker) -> None:
    assert ask(broker, create("T", attributes="+a=" + "x" * 20_000)).code == ResponseCode.SYSTEM_ERROR
    assert broker.core.topics.get("T") is None


def test_one_heartbeat_makes_no_more_groups_than_a_channel_may_have(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker(auto_create_max_per_second=10_000).start()
    ask(broker, heartbeat(*(f"G{number}" for number in range(1000))))
    assert len(broker.core.groups) == len(SYSTEM_GROUPS) + clients.MAX_GROUPS_PER_CHANNEL


def test_clients_are_bounded_and_make_room_as_they_go(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker(max_client_count=2).start()
    first, second = FakeChannel(), FakeChannel()
    assert ask(broker, heartbeat("A", "B"), first).code == 0
    reply = ask(broker, heartbeat("C"), second)
    assert reply.code == ResponseCode.SYSTEM_BUSY and reply.remark is not None and "maxClientCount" in reply.remark
    assert ask(broker, heartbeat("A", "B"), first).code == 0  # they are in already
    ask(broker, Command(RequestCode.UNREGISTER_CLIENT, {"consumerGroup": "A"}), first)
    assert ask(broker, heartbeat("C"), second).code == 0
    broker.core.processor.closed(first)
    broker.core.processor.closed(second)
    assert broker.core.clients._places.used == 0


def test_a_heartbeat_is_bounded(broker: Broker) -> None:
    assert ask(broker, heartbeat("G", expression="x" * (5 << 20))).code == ResponseCode.SYSTEM_ERROR
    long = ask(broker, heartbeat("G", expression="x" * 300_000))
    assert long.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert ask(broker, heartbeat("G", client="c" * 300)).code == ResponseCode.SYSTEM_ERROR
    assert ask(broker, heartbeat("g" * 300)).code == ResponseCode.SYSTEM_ERROR


def test_names_in_locks_are_bounded(broker: Broker) -> None:
    def lock(topic: str, client: str = "c") -> Command:
        queue = {"topic": topic, "brokerName": "b", "queueId": 0}
        return Command(
            RequestCode.LOCK_BATCH_MQ, {}, dumps({"consumerGroup": "G", "clientId": client, "mqSet": [queue]})
        )

    assert ask(broker, lock("T")).code == 0
    assert ask(broker, lock("T" * 300)).code == ResponseCode.SYSTEM_ERROR
    assert ask(broker, lock("T", "c" * 300)).code == ResponseCode.SYSTEM_ERROR


def test_first_uses_make_only_so_many_in_a_second(make_broker: Callable[..., Broker]) -> None:
    """Each topic costs files on each replica: a flood of names cost the mastership."""
    broker = make_broker(auto_create_max_per_second=2).start()
    codes = [ask(broker, send_command(name)).code for name in ("A", "B", "C", "A")]
    assert codes == [0, 0, ResponseCode.SYSTEM_BUSY, 0]
    assert ask(broker, create("D")).code == 0  # an operator's
    names = [f"G{number}" for number in range(2 * CREATION_SHARE + 1)]
    ask(broker, heartbeat(*names))
    assert [name for name in names if broker.core.groups.get(name) is None] == names[-1:]
    broker.clock.ms += 500
    assert ask(broker, send_command("C")).code == 0
    ask(broker, heartbeat(*names))
    assert broker.core.groups.get(names[-1]) is not None
