"""brokerPermission: rights that a broker takes from everybody, told to clients by the name servers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rmqha.broker.tables.topics import SYNC_MEMBER_TOPIC_PREFIX, TopicConfig
from rmqha.model.code import ForbiddenType, RequestCode, ResponseCode
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import loads
from tests.broker.pop.world import pop_command
from tests.broker.support import Broker, FakeChannel, pull_command, send_command
from tests.support.steps import done

READ_ONLY, WRITE_ONLY, ALL = "brokerPermission=4", "brokerPermission=2", "brokerPermission=6"
SENDING = "the broker[127.0.0.1] sending message is forbidden"


def told_perms(broker: Broker) -> dict[str, int]:
    """Permission of each topic as name servers are told, but for one that may only be inherited from."""
    body = loads(done(broker.core.topics.registration()).body)
    table = body["topicConfigSerializeWrapper"]["topicConfigTable"]
    return {name: topic["perm"] for name, topic in table.items() if not name.startswith(SYNC_MEMBER_TOPIC_PREFIX)}


def send_back() -> Command:
    ext = {"group": "G", "offset": "0", "delayLevel": "0", "originTopic": "T", "maxReconsumeTimes": "16"}
    return Command(RequestCode.CONSUMER_SEND_MSG_BACK, ext)


def peek(code: RequestCode) -> Command:
    command = pop_command(queueId=0)
    command.code = code
    return command


def test_a_broker_that_is_emptied_refuses_ordered_sends_and_is_told_to_take_none(broker: Broker) -> None:
    """As with RocketMQ, who has an older route may still send where nobody counts on an order."""
    broker.core.topics.put(TopicConfig("Ordered", 4, 4, order=True))
    broker.ask(send_command())
    assert told_perms(broker)["T"] == 6
    version, changes = broker.core.topics.version.stamp, broker.shell.topic_changes
    broker.core.live.update(READ_ONLY)
    assert broker.core.topics.version.stamp > version, "name servers read no table of a version that they know"
    assert broker.shell.topic_changes > changes
    assert set(told_perms(broker).values()) == {4}
    ordered = broker.ask(send_command("Ordered"))
    assert (ordered.code, ordered.remark) == (ResponseCode.NO_PERMISSION, SENDING)
    assert broker.ask(send_command()).code == 0
    back = broker.ask(send_back())
    assert (back.code, back.remark) == (ResponseCode.NO_PERMISSION, SENDING)
    assert broker.ask(pull_command()).code == 0
    broker.core.live.update(ALL)
    assert told_perms(broker)["T"] == told_perms(broker)["Ordered"] == 6
    assert broker.ask(send_command("Ordered")).code == broker.ask(send_back()).code == 0


@pytest.mark.parametrize(
    ("command", "remark", "forbidden_type"),
    [
        (pull_command(), "the broker[127.0.0.1] pulling message is forbidden", str(ForbiddenType.BROKER.value)),
        (pop_command(), "the broker[127.0.0.1] pop message is forbidden", None),
        (peek(RequestCode.PEEK_MESSAGE), "the broker[127.0.0.1] peeking message is forbidden", None),
        (peek(RequestCode.NOTIFICATION), "the broker[127.0.0.1] peeking message is forbidden", None),
        (peek(RequestCode.POLLING_INFO), "the broker[127.0.0.1] peeking message is forbidden", None),
    ],
    ids=["pull", "pop", "peek", "notification", "polling info"],
)
def test_a_broker_without_the_right_to_read_gives_nothing(
    broker: Broker, command: Command, remark: str, forbidden_type: str | None
) -> None:
    broker.ask(send_command())
    assert broker.ask(command).code == 0
    broker.core.live.update(WRITE_ONLY)
    reply = broker.ask(command)
    assert (reply.code, reply.remark) == (ResponseCode.NO_PERMISSION, remark)
    assert reply.ext.get("forbiddenType") == forbidden_type
    assert broker.ask(send_command()).code == 0


def test_a_pull_that_waits_is_refused_once_it_would_be_served(broker: Broker) -> None:
    broker.ask(send_command())
    channel = FakeChannel()
    broker.core.processor.received(channel, [pull_command(offset=1, sysFlag="6", suspendTimeoutMillis="10000")])
    assert channel.sent == [] and broker.core.pull.hold_count == 1
    broker.core.live.update(WRITE_ONLY)
    broker.ask(send_command())
    reply = channel.one()
    assert (reply.code, reply.ext) == (ResponseCode.NO_PERMISSION, {"forbiddenType": "1"})
    assert broker.core.pull.hold_count == 0


def test_a_permission_outlives_a_restart(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker().start()
    broker.ask(send_command())
    broker.core.live.update(READ_ONLY)
    broker.close()
    assert set(told_perms(make_broker().start()).values()) == {4}


def test_a_pull_says_what_forbids_it(broker: Broker) -> None:
    """Field forbiddenType of a refusal."""
    broker.core.topics.put(TopicConfig("WriteOnly", 4, 4, perm=2))
    broker.ask(send_command())
    broker.ask(pull_command())
    settings = {**(broker.core.groups.get("G") or {}), "consumeEnable": False}
    told = {"topic": broker.ask(pull_command("WriteOnly")).ext}
    broker.core.groups.put(settings)
    told["group"] = broker.ask(pull_command()).ext
    assert told == {"topic": {"forbiddenType": "3"}, "group": {"forbiddenType": "2"}}
