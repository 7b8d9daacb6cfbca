"""Every request code that a broker serves, for the own topic and group of a user of ACL 2.0 and for another's.

The requests are those of `test_acl_matrix`; a code that is new needs a row there, and a word here if policies look at
it in another way than permissions do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from rmqha.broker.requests.consumer_calls import Done
from rmqha.broker.requests.request import Channel
from rmqha.model.authorization.policy import Policies, from_json
from rmqha.model.authorization.users import AuthorizationRules, User, UserDirectory
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import dumps
from tests.broker.rights.acl_world import ACCOUNTS, FOREIGN, OWN, READER, SCHEDULE, Side, World, back, end
from tests.broker.rights.test_acl_matrix import MIXED, RECORDS, ROWS, Row, must_be_refused, names_nothing, sides
from tests.broker.support import Broker, pull_command, send_command
from tests.broker.transactions import HALF

C = RequestCode
EVERYTHING = ["Pub", "Sub", "Create", "Update", "Delete", "Get", "List"]


def _entry(resource: str, decision: str = "Allow") -> dict[str, object]:
    return {"resource": resource, "actions": EVERYTHING, "decision": decision}


def _of(side: Side) -> Policies:
    return from_json([{"entries": [_entry(f"Topic:{side.topic}"), _entry(f"Group:{side.group}")]}])


_DENIED = [_entry(f"Topic:{FOREIGN.topic}", "Deny"), _entry(f"Group:{FOREIGN.group}", "Deny")]
POLICIES = {
    OWN.name: _of(OWN),
    FOREIGN.name: _of(FOREIGN),
    READER: from_json([{"entries": [_entry("Topic:*"), _entry("Group:*"), *_DENIED]}]),
}
DIRECTORY = UserDirectory.of(
    (User(name, account.credentials.secret_key, is_super=account.admin) for name, account in ACCOUNTS.items()),
    POLICIES,
    AuthorizationRules(is_on=True, cluster="DefaultCluster"),
)


def _world(broker: Broker) -> World:
    world = World(broker.start(), DIRECTORY)
    world.broker.shell.client_call = _no_client_answers
    return world


def _no_client_answers(channel: Channel, command: Command, timeout_ms: int, done: Done) -> None:
    done("no client of this test answers")


KEYS = {"max_hash_slot_num": 64, "max_index_num": 256, "recall_message_enable": True}


@pytest.fixture
def world(make_broker: Callable[..., Broker]) -> World:
    return _world(make_broker(**KEYS))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """For what is refused, and so changes nothing."""
    broker = Broker(tmp_path_factory.mktemp("policies"), **KEYS)
    yield _world(broker)
    broker.close()


def _body(about: str, code: int, body: Callable[[Side, Side], object]) -> Row:
    return Row(about, lambda world, t, g: Command(code, {}, dumps(body(t, g))))


def _about(about: str, code: int) -> Row:
    """The same request, of which policies ask another thing than an admin."""
    return Row(about, ROWS[code].make)


OTHERWISE: dict[int, Row] = {
    C.UPDATE_AND_CREATE_TOPIC: _about("topic", C.UPDATE_AND_CREATE_TOPIC),
    C.UPDATE_AND_CREATE_TOPIC_LIST: _body(
        "topic", C.UPDATE_AND_CREATE_TOPIC_LIST, lambda t, g: {"topicConfigList": [{"topicName": t.topic}]}
    ),
    C.DELETE_TOPIC_IN_BROKER: _about("topic", C.DELETE_TOPIC_IN_BROKER),
    C.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _body(
        "group", C.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, lambda t, g: {"groupName": g.group}
    ),
    C.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _body(
        "group",
        C.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        lambda t, g: {"groupConfigList": [{"groupName": g.group}]},
    ),
    C.DELETE_SUBSCRIPTIONGROUP: _about("group", C.DELETE_SUBSCRIPTIONGROUP),
    C.INVOKE_BROKER_TO_RESET_OFFSET: _about("both", C.INVOKE_BROKER_TO_RESET_OFFSET),
    C.UPDATE_AND_GET_GROUP_FORBIDDEN: _about("both", C.UPDATE_AND_GET_GROUP_FORBIDDEN),
    C.GET_CONSUMER_RUNNING_INFO: _about("group", C.GET_CONSUMER_RUNNING_INFO),
    C.CONSUME_MESSAGE_DIRECTLY: _about("both", C.CONSUME_MESSAGE_DIRECTLY),
    C.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _about("both", C.INVOKE_BROKER_TO_GET_CONSUMER_STATUS),
    C.QUERY_CORRECTION_OFFSET: _about("both", C.QUERY_CORRECTION_OFFSET),
    C.CLONE_GROUP_OFFSET: _about("both", C.CLONE_GROUP_OFFSET),
    C.SET_MESSAGE_REQUEST_MODE: _body(
        "both",
        C.SET_MESSAGE_REQUEST_MODE,
        lambda t, g: {"topic": t.topic, "consumerGroup": g.group, "mode": "POP"},
    ),
    C.GET_PRODUCER_CONNECTION_LIST: _about("admin", C.GET_PRODUCER_CONNECTION_LIST),
    C.VIEW_BROKER_STATS_DATA: _about("admin", C.VIEW_BROKER_STATS_DATA),
}
"""Rows of codes that policies look at in another way than permissions do."""


@pytest.mark.parametrize("code", [pytest.param(code, id=RequestCode(code).name) for code in sorted(ROWS)])
def test_own_topics_and_groups_are_served_and_no_others(request: pytest.FixtureRequest, code: int) -> None:
    row = OTHERWISE.get(code) or ROWS[code]
    shared: World = request.getfixturevalue("shared")
    for topic, group, refused in sides(row.about):
        if refused:
            must_be_refused(shared, row.make(shared, topic, group))
            continue
        world: World = shared if row.about == "any" else request.getfixturevalue("world")
        answers = world.ask(row.make(world, topic, group))
        assert answers and ResponseCode.NO_PERMISSION not in [answer.code for answer in answers], answers
        names_nothing(answers)


NOT_OWN = (FOREIGN.topic, FOREIGN.retry, FOREIGN.dead_letters, *FOREIGN.popped_again)
DENIED_TO_READERS = (FOREIGN.topic, FOREIGN.retry, *FOREIGN.popped_again, f"{OWN.retry}_{FOREIGN.topic}")


@pytest.mark.parametrize(
    ("key", "topic"),
    [
        *((OWN.name, topic) for topic in (*MIXED, *NOT_OWN)),
        *((READER, topic) for topic in (*MIXED, *DENIED_TO_READERS)),
    ],
)
def test_no_queue_of_others_is_read_or_written(shared: World, key: str, topic: str) -> None:
    """Nor one that holds what belongs to all, though by a policy on every topic the user may everything."""
    for code in (C.PULL_MESSAGE, C.LITE_PULL_MESSAGE):
        command = pull_command(topic, consumerGroup=OWN.group)
        command.code = code
        must_be_refused(shared, command, key=key)
    for code in (C.GET_MAX_OFFSET, C.GET_TOPIC_STATS_INFO, C.GET_TOPIC_CONFIG, C.QUERY_TOPIC_CONSUME_BY_WHO):
        must_be_refused(shared, Command(code, {"topic": topic, "queueId": "0"}), key=key)
    for code in (C.QUERY_CONSUMER_OFFSET, C.UPDATE_CONSUMER_OFFSET):
        ext = {"topic": topic, "consumerGroup": OWN.group, "queueId": "0", "commitOffset": "1"}
        must_be_refused(shared, Command(code, ext), key=key)
    must_be_refused(shared, send_command(topic), key=key)
    must_be_refused(shared, send_command(topic, a=OWN.group, b=topic), key=key)


@pytest.mark.parametrize("topic", [FOREIGN.retry, FOREIGN.popped_again[0]])
def test_no_queue_of_others_retry_topics_is_assigned(shared: World, topic: str) -> None:
    shared.broker.core.pops.mode_requests.knows_route(topic, [])
    body = {"topic": topic, "consumerGroup": OWN.group, "clientId": OWN.client_id, "strategyName": "AVG"}
    must_be_refused(shared, Command(C.QUERY_ASSIGNMENT, {}, dumps(body)))


@pytest.mark.parametrize("key", [OWN.name, READER])
def test_the_own_retry_topic_is_read_and_written(world: World, key: str) -> None:
    for command in (
        pull_command(OWN.retry, consumerGroup=OWN.group),
        send_command(OWN.retry),
        Command(C.GET_MAX_OFFSET, {"topic": OWN.retry, "queueId": "0"}),
    ):
        (answer,) = world.ask(command, key)
        assert answer.code != ResponseCode.NO_PERMISSION, answer


@pytest.mark.parametrize("kind", RECORDS)
@pytest.mark.parametrize("key", [OWN.name, READER])
def test_a_foreign_record_is_neither_read_nor_taken(shared: World, kind: str, key: str) -> None:
    """Whatever topic the request names. A dead letter's topic is one of its own, which the reader's policy covers."""
    if key == READER and kind == "dead":
        return
    offset = shared.records[FOREIGN].all[kind]
    for topic in (OWN.topic, OWN.retry):
        must_be_refused(shared, Command(C.VIEW_MESSAGE_BY_ID, {"topic": topic, "offset": str(offset)}), key=key)
    must_be_refused(shared, back(OWN.group, offset, 1, originTopic=OWN.topic), key=key)


@pytest.mark.parametrize("topic", ["", OWN.topic, HALF])
def test_an_own_transaction_is_ended(world: World, topic: str) -> None:
    """The answer to a check names the topic of half messages."""
    (answer,) = world.ask(end(world, OWN, **({"topic": topic} if topic else {})))
    assert answer.code == 0 and OWN.secret + b" half" in world.bodies(OWN.topic)


@pytest.mark.parametrize("key", [OWN.name, READER])
@pytest.mark.parametrize("topic", ["", OWN.topic, HALF])
def test_a_foreign_transaction_is_not_ended(shared: World, key: str, topic: str) -> None:
    must_be_refused(shared, end(shared, FOREIGN, **({"topic": topic} if topic else {})), key=key)


def test_the_brokers_own_offsets_are_nobodys(shared: World) -> None:
    ext = {"topic": OWN.topic, "consumerGroup": "CID_RMQ_SYS_TRANS", "queueId": "0", "commitOffset": "2"}
    for code in (C.UPDATE_CONSUMER_OFFSET, C.QUERY_CONSUMER_OFFSET):
        must_be_refused(shared, Command(code, ext), key=READER)
    assert shared.broker.core.topics.get(SCHEDULE) is not None
