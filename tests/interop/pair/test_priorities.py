"""Topics with priorities: ours puts each message where Apache's broker does, and gives them in the same order."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.message import PROPERTY_PRIORITY, decode_properties, encode_properties
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import dumps, loads
from tests.broker.pop.world import messages, pop_command
from tests.broker.support import send_command
from tests.interop.lab.group import TIMEOUT_S
from tests.interop.lab.lab import GROUP as BROKER_NAME
from tests.interop.lab.lab import Node
from tests.interop.lab.processes import call, calls, until
from tests.interop.lab.same_commands import Laboratory

pytestmark = pytest.mark.interop

TOPIC, QUEUE_COUNT = "Urgent", 4
MADE = {
    "topic": TOPIC,
    "defaultTopic": "TBW102",
    "readQueueNums": str(QUEUE_COUNT),
    "writeQueueNums": str(QUEUE_COUNT),
    "perm": "6",
    "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": "0",
    "order": "false",
    "attributes": "+message.type=PRIORITY",
}
SENT = [
    {PROPERTY_PRIORITY: "0"},
    {PROPERTY_PRIORITY: "3"},
    {PROPERTY_PRIORITY: "1"},
    {PROPERTY_PRIORITY: "99"},
    {PROPERTY_PRIORITY: "+2"},
    {PROPERTY_PRIORITY: "-1"},
    {PROPERTY_PRIORITY: "high"},
    {PROPERTY_PRIORITY: "3", "__SHARDINGKEY": "k"},
    {PROPERTY_PRIORITY: "3", "TIMER_DELAY_MS": "500"},
    {},
]
CHANGES: list[dict[str, str]] = [
    {"+priority.factor": "101"},
    {"+other": "1"},
    {"priority.factor": "1"},
    {},
    {"+priority.factor": "40"},
    {"+priority.factor": "70"},
    {"-priority.factor": ""},
    {"-priority.factor": ""},
]


@pytest.fixture
def brokers(pair: list[Laboratory]) -> list[Node]:
    """Ours, Apache's."""
    return [laboratory.master for laboratory in pair]


def asked(node: Node, command: Command) -> Command:
    (reply,) = calls(node.address, command)
    return reply


def sent(node: Node, number: int, properties: dict[str, str]) -> int:
    """The queue that it went to."""
    named = encode_properties({**properties, "UNIQ_KEY": f"KEY{number}", "n": str(number)}).decode()
    command, replies = send_command(TOPIC, 0, b"x", i=named), list[Command]()

    def is_taken() -> bool:
        reply = call(node.address, command.code, dict(command.ext), b"x")
        if reply is not None and reply.code == ResponseCode.SUCCESS:
            replies.append(reply)
        return bool(replies)

    until("it takes messages", is_taken, TIMEOUT_S, node.running)
    return int(replies[0].ext["queueId"])


def popped(node: Node, group: str) -> list[tuple[int, int, str | None]]:
    """Number, queue and kept priority of the messages that a group gets, one at a time."""
    found: list[tuple[int, int, str | None]] = []

    def is_all() -> bool:
        reply = asked(node, pop_command(TOPIC, group, maxMsgNums=1, invisibleTime=600_000))
        if reply.code == ResponseCode.SUCCESS:
            for message in messages(reply, TOPIC, group, BROKER_NAME):
                properties = decode_properties(message.record.properties)
                found.append((int(properties["n"]), message.record.queue_id, properties.get(PROPERTY_PRIORITY)))
        return len(found) == len(SENT)

    until("all have come", is_all, TIMEOUT_S, node.running)
    return found


def test_they_lie_in_the_same_queues_and_come_in_the_same_order(brokers: list[Node]) -> None:
    def done(node: Node) -> tuple[list[int], list[tuple[int, int, str | None]]]:
        assert asked(node, Command(RequestCode.UPDATE_AND_CREATE_TOPIC, dict(MADE))).code == 0
        queue_ids = [sent(node, number, properties) for number, properties in enumerate(SENT)]
        until("the delayed one has come", lambda: delayed_has_come(node), TIMEOUT_S, node.running)
        return queue_ids, popped(node, "Poppers")

    with ThreadPoolExecutor(2) as pool:
        ours, apaches = pool.map(done, brokers)
    assert ours == apaches
    assert [queue_id for _, queue_id, _ in apaches[1]] == sorted((item[1] for item in apaches[1]), reverse=True)


def delayed_has_come(node: Node) -> bool:
    ends = [
        int(asked(node, Command(RequestCode.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": str(queue_id)})).ext["offset"])
        for queue_id in range(QUEUE_COUNT)
    ]
    return sum(ends) == len(SENT)


def test_attributes_of_groups_change_alike(brokers: list[Node]) -> None:
    """A change that is refused makes no group; who asks for the group's settings then does."""

    def done(node: Node) -> list[tuple[int, object]]:
        found: list[tuple[int, object]] = []
        for change in CHANGES:
            body = dumps({"groupName": "Attributed", "attributes": change})
            code = asked(node, Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)).code
            shown = asked(node, Command(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "Attributed"}))
            found.append((code, loads(bytes(shown.body))))
        return found

    ours, apaches = map(done, brokers)
    assert ours == apaches
