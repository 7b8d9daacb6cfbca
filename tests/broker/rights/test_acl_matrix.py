"""Every request code that a broker serves, for the account's own topic and group and for another's.

A code without a row here fails: whoever adds one says what it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import NamedTuple

import pytest

from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import DamagedError
from rmqha.model.message import RecallHandle, encode_properties, offset_message_id
from rmqha.wire.command import FLAG_ONEWAY, Command
from rmqha.wire.lenient_json import dumps, loads
from tests.broker.rights.acl_world import FOREIGN, OWN, READER, SCHEDULE, Make, Side, World, back, end, lock, pull
from tests.broker.support import Broker, send_command
from tests.broker.transactions import GIVEN_UP, HALF, OP, prepared


@pytest.fixture
def world(make_broker: Callable[..., Broker]) -> World:
    return World(make_broker(max_hash_slot_num=64, max_index_num=256, recall_message_enable=True).start())


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """For what is refused, and so changes nothing."""
    broker = Broker(tmp_path_factory.mktemp("acl"), max_hash_slot_num=64, max_index_num=256, recall_message_enable=True)
    yield World(broker.start())
    broker.close()


class Row(NamedTuple):
    """`about`: what decides, "topic", "group", "both", "any" for what every account may, "admin" for what takes one."""

    about: str
    make: Make


def _fields(code: int, about: str, topic: str = "", group: str = "", **ext: str) -> Row:
    """Of a request whose header fields of these names hold the topic and the group."""

    def make(world: World, t: Side, g: Side) -> Command:
        named = ({topic: t.topic} if topic else {}) | ({group: g.group} if group else {})
        return Command(code, {**named, **ext})

    return Row(about, make)


def _send(code: int) -> Row:
    def make(world: World, t: Side, g: Side) -> Command:
        if code in (RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE):
            ext = {"producerGroup": "P", "topic": t.topic, "queueId": "0", "b": OWN.topic}
            return Command(code, ext, b"x")
        command = send_command(t.topic, body=b"x")
        command.ext["topic"] = OWN.topic
        if code == RequestCode.SEND_BATCH_MESSAGE:
            command.body = b"\0\0\0\x17" + bytes(12) + b"\0\0\0\x01" + b"x" + b"\0\0"
        command.code = code
        return command

    return Row("topic", make)


def _recall(world: World, t: Side, g: Side) -> Command:
    at_ms = world.broker.clock.wall_ms() + 5000
    handle = RecallHandle(t.topic, world.broker.config.broker_name, at_ms, "ID").encode()
    return Command(C.RECALL_MESSAGE, {"topic": t.topic, "recallHandle": handle})


def _pull(code: int) -> Row:
    def make(world: World, t: Side, g: Side) -> Command:
        command = pull(t.topic, g.group)
        command.code = code
        return command

    return Row("both", make)


def _heartbeat(world: World, t: Side, g: Side) -> Command:
    subscriptions = [{"topic": t.topic}, {"topic": g.retry}]
    consumers = [{"groupName": g.group, "subscriptionDataSet": subscriptions}]
    return Command(RequestCode.HEART_BEAT, {}, dumps({"clientID": "c", "consumerDataSet": consumers}))


def _consume_directly(world: World, t: Side, g: Side) -> Command:
    message_id = offset_message_id((b"\x7f\0\0\1", 1), world.records[t].plain)
    ext = {"consumerGroup": g.group, "clientId": g.client_id, "msgId": message_id, "topic": t.topic}
    return Command(RequestCode.CONSUME_MESSAGE_DIRECTLY, ext)


def _resume(world: World, t: Side, g: Side) -> Command:
    message_id = offset_message_id((b"\x7f\0\0\1", 1), world.records[t].plain)
    return Command(C.RESUME_CHECK_HALF_MESSAGE, {"topic": t.topic, "msgId": message_id})


def _json(code: int, body: object) -> Row:
    return Row("admin", lambda world, t, g: Command(code, {}, dumps(body)))


def _batch_ack(world: World, t: Side, g: Side) -> Command:
    item = {"t": t.topic, "c": g.group, "r": "0", "so": 0, "q": 0, "rq": 0, "pt": 1, "it": 1, "b": "AQ=="}
    return Command(RequestCode.BATCH_ACK_MESSAGE, {}, dumps({"brokerName": "broker-a", "acks": [item]}))


def _assignment(world: World, t: Side, g: Side) -> Command:
    body = {"topic": t.topic, "consumerGroup": g.group, "clientId": g.client_id, "strategyName": "AVG"}
    world.broker.core.pops.mode_requests.knows_route(t.topic, [])
    return Command(RequestCode.QUERY_ASSIGNMENT, {}, dumps(body))


C = RequestCode
POP = {
    "queueId": "-1",
    "maxMsgNums": "1",
    "invisibleTime": "60000",
    "pollTime": "0",
    "bornTime": "0",
    "initMode": "0",
}
RECEIPT = {"queueId": "0", "offset": "0", "invisibleTime": "1", "extraInfo": "0 1 1 0 0 broker-a 0 0"}
OFFSET = {"queueId": "0", "commitOffset": "2"}
NOW = {"beginTimestamp": "0", "endTimestamp": str(1 << 60), "maxNum": "32"}
ROWS: dict[int, Row] = {
    C.SEND_MESSAGE: _send(C.SEND_MESSAGE),
    C.SEND_MESSAGE_V2: _send(C.SEND_MESSAGE_V2),
    C.SEND_BATCH_MESSAGE: _send(C.SEND_BATCH_MESSAGE),
    C.SEND_REPLY_MESSAGE: _send(C.SEND_REPLY_MESSAGE),
    C.SEND_REPLY_MESSAGE_V2: _send(C.SEND_REPLY_MESSAGE_V2),
    C.RECALL_MESSAGE: Row("topic", _recall),
    C.PULL_MESSAGE: _pull(C.PULL_MESSAGE),
    C.LITE_PULL_MESSAGE: _pull(C.LITE_PULL_MESSAGE),
    C.QUERY_MESSAGE: Row(
        "topic", lambda world, t, g: Command(C.QUERY_MESSAGE, {"topic": t.topic, "key": f"key-{t.name}", **NOW})
    ),
    C.QUERY_CONSUMER_OFFSET: _fields(C.QUERY_CONSUMER_OFFSET, "both", "topic", "consumerGroup", queueId="0"),
    C.UPDATE_CONSUMER_OFFSET: _fields(C.UPDATE_CONSUMER_OFFSET, "both", "topic", "consumerGroup", **OFFSET),
    C.UPDATE_AND_CREATE_TOPIC: _fields(C.UPDATE_AND_CREATE_TOPIC, "admin", "topic", perm="2"),
    C.UPDATE_AND_CREATE_TOPIC_LIST: _json(
        C.UPDATE_AND_CREATE_TOPIC_LIST, {"topicConfigList": [{"topicName": OWN.topic}]}
    ),
    C.GET_ALL_TOPIC_CONFIG: _fields(C.GET_ALL_TOPIC_CONFIG, "admin"),
    C.UPDATE_BROKER_CONFIG: Row(
        "admin", lambda world, t, g: Command(C.UPDATE_BROKER_CONFIG, {}, b"brokerPermission=2")
    ),
    C.GET_BROKER_CONFIG: _fields(C.GET_BROKER_CONFIG, "any"),
    C.GET_BROKER_RUNTIME_INFO: _fields(C.GET_BROKER_RUNTIME_INFO, "any"),
    C.SEARCH_OFFSET_BY_TIMESTAMP: _fields(C.SEARCH_OFFSET_BY_TIMESTAMP, "topic", "topic", queueId="0", timestamp="1"),
    C.GET_MAX_OFFSET: _fields(C.GET_MAX_OFFSET, "topic", "topic", queueId="0"),
    C.GET_MIN_OFFSET: _fields(C.GET_MIN_OFFSET, "topic", "topic", queueId="0"),
    C.GET_EARLIEST_MSG_STORETIME: _fields(C.GET_EARLIEST_MSG_STORETIME, "topic", "topic", queueId="0"),
    C.VIEW_MESSAGE_BY_ID: Row(
        "topic",
        lambda world, t, g: Command(C.VIEW_MESSAGE_BY_ID, {"topic": t.topic, "offset": str(world.records[t].plain)}),
    ),
    C.HEART_BEAT: Row("both", _heartbeat),
    C.UNREGISTER_CLIENT: _fields(C.UNREGISTER_CLIENT, "group", group="consumerGroup", clientID="c"),
    C.CONSUMER_SEND_MSG_BACK: Row(
        "both", lambda world, t, g: back(g.group, world.records[t].plain, originTopic=t.topic)
    ),
    C.END_TRANSACTION: Row("topic", lambda world, t, g: end(world, t, topic=t.topic)),
    C.GET_CONSUMER_LIST_BY_GROUP: _fields(C.GET_CONSUMER_LIST_BY_GROUP, "group", group="consumerGroup"),
    C.LOCK_BATCH_MQ: Row("both", lambda world, t, g: lock(g.group, "c", t.topic)),
    C.UNLOCK_BATCH_MQ: Row("both", lambda world, t, g: lock(g.group, g.client_id, t.topic, code=C.UNLOCK_BATCH_MQ)),
    C.GET_ALL_CONSUMER_OFFSET: _fields(C.GET_ALL_CONSUMER_OFFSET, "admin"),
    C.GET_ALL_DELAY_OFFSET: _fields(C.GET_ALL_DELAY_OFFSET, "admin"),
    C.GET_TIMER_CHECK_POINT: _fields(C.GET_TIMER_CHECK_POINT, "admin"),
    C.GET_TIMER_METRICS: _fields(C.GET_TIMER_METRICS, "admin"),
    C.SWITCH_TIMER_ENGINE: _fields(C.SWITCH_TIMER_ENGINE, "admin", E_T="F"),
    C.RMQHA_GET_TIMERS: _fields(C.RMQHA_GET_TIMERS, "admin", version="1"),
    C.RMQHA_GET_TRANSACTIONS: _fields(C.RMQHA_GET_TRANSACTIONS, "admin", version="1"),
    C.RMQHA_GET_DELAYED: _fields(C.RMQHA_GET_DELAYED, "admin", version="1"),
    C.CHECK_CLIENT_CONFIG: _fields(C.CHECK_CLIENT_CONFIG, "any"),
    C.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _json(C.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {"groupName": OWN.group}),
    C.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _json(
        C.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, {"groupConfigList": [{"groupName": OWN.group}]}
    ),
    C.QUERY_CONSUME_QUEUE: _fields(
        C.QUERY_CONSUME_QUEUE, "both", "topic", "consumerGroup", queueId="0", index="0", count="9"
    ),
    C.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: _fields(C.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, "admin"),
    C.GET_TOPIC_STATS_INFO: _fields(C.GET_TOPIC_STATS_INFO, "topic", "topic"),
    C.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: _fields(C.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, "any"),
    C.VIEW_BROKER_STATS_DATA: Row(
        "both",
        lambda world, t, g: Command(
            C.VIEW_BROKER_STATS_DATA, {"statsName": "GROUP_GET_NUMS", "statsKey": f"{t.topic}@{g.group}"}
        ),
    ),
    C.GET_BROKER_CONSUME_STATS: _fields(C.GET_BROKER_CONSUME_STATS, "admin"),
    C.GET_ALL_PRODUCER_INFO: _fields(C.GET_ALL_PRODUCER_INFO, "admin"),
    C.GET_CONSUMER_CONNECTION_LIST: _fields(C.GET_CONSUMER_CONNECTION_LIST, "group", group="consumerGroup"),
    C.GET_PRODUCER_CONNECTION_LIST: Row(
        "group", lambda world, t, g: Command(C.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": g.producers})
    ),
    C.DELETE_SUBSCRIPTIONGROUP: _fields(C.DELETE_SUBSCRIPTIONGROUP, "admin", group="groupName"),
    C.GET_CONSUME_STATS: _fields(C.GET_CONSUME_STATS, "both", "topic", "consumerGroup"),
    C.DELETE_TOPIC_IN_BROKER: _fields(C.DELETE_TOPIC_IN_BROKER, "admin", "topic"),
    C.INVOKE_BROKER_TO_RESET_OFFSET: _fields(
        C.INVOKE_BROKER_TO_RESET_OFFSET, "admin", "topic", "group", timestamp="-1", isForce="true"
    ),
    C.QUERY_TOPIC_CONSUME_BY_WHO: _fields(C.QUERY_TOPIC_CONSUME_BY_WHO, "topic", "topic"),
    C.QUERY_CONSUME_TIME_SPAN: _fields(C.QUERY_CONSUME_TIME_SPAN, "both", "topic", "group"),
    C.CLEAN_UNUSED_TOPIC: _fields(C.CLEAN_UNUSED_TOPIC, "admin"),
    C.RESUME_CHECK_HALF_MESSAGE: Row("admin", _resume),
    C.UPDATE_AND_GET_GROUP_FORBIDDEN: _fields(
        C.UPDATE_AND_GET_GROUP_FORBIDDEN, "admin", "topic", "group", readable="false"
    ),
    C.CLEAN_EXPIRED_CONSUMEQUEUE: _fields(C.CLEAN_EXPIRED_CONSUMEQUEUE, "admin"),
    C.GET_CONSUMER_RUNNING_INFO: _fields(
        C.GET_CONSUMER_RUNNING_INFO, "admin", group="consumerGroup", clientId=OWN.client_id
    ),
    C.CONSUME_MESSAGE_DIRECTLY: Row("admin", _consume_directly),
    C.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _fields(
        C.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, "admin", "topic", "group", clientAddr=OWN.client_id
    ),
    C.QUERY_CORRECTION_OFFSET: _fields(C.QUERY_CORRECTION_OFFSET, "admin", "topic", "compareGroup"),
    C.QUERY_SUBSCRIPTION_BY_CONSUMER: _fields(C.QUERY_SUBSCRIPTION_BY_CONSUMER, "both", "topic", "group"),
    C.CLONE_GROUP_OFFSET: _fields(C.CLONE_GROUP_OFFSET, "admin", "topic", "srcGroup", destGroup=OWN.group),
    C.DELETE_EXPIRED_COMMITLOG: _fields(C.DELETE_EXPIRED_COMMITLOG, "admin"),
    C.QUERY_TOPICS_BY_CONSUMER: _fields(C.QUERY_TOPICS_BY_CONSUMER, "group", group="group"),
    C.GET_TOPIC_CONFIG: _fields(C.GET_TOPIC_CONFIG, "topic", "topic"),
    C.GET_SUBSCRIPTIONGROUP_CONFIG: _fields(C.GET_SUBSCRIPTIONGROUP_CONFIG, "group", group="group"),
    C.GET_BROKER_HA_STATUS: _fields(C.GET_BROKER_HA_STATUS, "any"),
    C.GET_BROKER_EPOCH_CACHE: _fields(C.GET_BROKER_EPOCH_CACHE, "any"),
    C.AUTH_CREATE_USER: _fields(C.AUTH_CREATE_USER, "admin", username="eve"),
    C.AUTH_UPDATE_USER: _fields(C.AUTH_UPDATE_USER, "admin", username="eve"),
    C.AUTH_DELETE_USER: _fields(C.AUTH_DELETE_USER, "admin", username="eve"),
    C.AUTH_GET_USER: _fields(C.AUTH_GET_USER, "admin", username="eve"),
    C.AUTH_LIST_USER: _fields(C.AUTH_LIST_USER, "admin"),
    C.AUTH_CREATE_ACL: _fields(C.AUTH_CREATE_ACL, "admin", subject="User:eve"),
    C.AUTH_UPDATE_ACL: _fields(C.AUTH_UPDATE_ACL, "admin", subject="User:eve"),
    C.AUTH_DELETE_ACL: _fields(C.AUTH_DELETE_ACL, "admin", subject="User:eve"),
    C.AUTH_GET_ACL: _fields(C.AUTH_GET_ACL, "admin", subject="User:eve"),
    C.AUTH_LIST_ACL: _fields(C.AUTH_LIST_ACL, "admin"),
    C.NOTIFY_BROKER_ROLE_CHANGED: _fields(C.NOTIFY_BROKER_ROLE_CHANGED, "admin", masterEpoch="9", masterAddress="x:1"),
    C.RMQHA_GET_REPLICA_STATE: _fields(C.RMQHA_GET_REPLICA_STATE, "any"),
    C.RMQHA_GET_HISTORY: _fields(C.RMQHA_GET_HISTORY, "any"),
    C.RMQHA_GET_SECURITY_STATE: _fields(C.RMQHA_GET_SECURITY_STATE, "any"),
    C.RMQHA_HAND_OVER: _fields(C.RMQHA_HAND_OVER, "admin", targetBrokerId="2", masterEpoch="1"),
    C.RMQHA_FOLLOW_TABLES: _fields(C.RMQHA_FOLLOW_TABLES, "admin", version="1", masterEpoch="1", brokerId="2"),
    C.RMQHA_GET_QUEUE_ENDS: _fields(C.RMQHA_GET_QUEUE_ENDS, "admin"),
    C.RMQHA_READ_RECORD: _fields(C.RMQHA_READ_RECORD, "admin", version="1", phyOffset="0"),
    C.RMQHA_READ_LOG_FILE: _fields(C.RMQHA_READ_LOG_FILE, "admin"),
    C.RMQHA_HOLDS_SENDS: _fields(C.RMQHA_HOLDS_SENDS, "any"),
    C.POP_MESSAGE: _fields(C.POP_MESSAGE, "both", "topic", "consumerGroup", **POP),
    C.PEEK_MESSAGE: _fields(C.PEEK_MESSAGE, "both", "topic", "consumerGroup", **POP),
    C.NOTIFICATION: _fields(C.NOTIFICATION, "both", "topic", "consumerGroup", **POP),
    C.POLLING_INFO: _fields(C.POLLING_INFO, "both", "topic", "consumerGroup", **POP),
    C.ACK_MESSAGE: _fields(C.ACK_MESSAGE, "both", "topic", "consumerGroup", **RECEIPT),
    C.CHANGE_MESSAGE_INVISIBLETIME: _fields(
        C.CHANGE_MESSAGE_INVISIBLETIME, "both", "topic", "consumerGroup", **RECEIPT
    ),
    C.BATCH_ACK_MESSAGE: Row("both", _batch_ack),
    C.QUERY_ASSIGNMENT: Row("both", _assignment),
    C.SET_MESSAGE_REQUEST_MODE: _json(
        C.SET_MESSAGE_REQUEST_MODE, {"topic": OWN.topic, "consumerGroup": OWN.group, "mode": "POP"}
    ),
    C.GET_ALL_MESSAGE_REQUEST_MODE: _fields(C.GET_ALL_MESSAGE_REQUEST_MODE, "admin"),
}


def test_each_code_that_is_served_has_a_row(shared: World) -> None:
    assert ROWS.keys() == shared.broker.core.processor.codes


def sides(about: str) -> list[tuple[Side, Side, bool]]:
    """(whose topic, whose group, refused), the foreign ones first."""
    if about in ("any", "admin"):
        return [(OWN, OWN, about == "admin")]
    topics = (FOREIGN, OWN) if about in ("topic", "both") else (OWN,)
    groups = (FOREIGN, OWN) if about in ("group", "both") else (OWN,)
    return [(topic, group, FOREIGN in (topic, group)) for topic, group in product(topics, groups)]


def must_be_refused(world: World, command: Command, *, key: str = OWN.name) -> None:
    before, denied = world.state(), world.statistics.denied_count
    told = [channel.take() for channel in world.channels.values()]
    answers = world.ask(command, key)
    assert [answer.code for answer in answers] == [ResponseCode.NO_PERMISSION], answers
    shows_nothing(answers)
    if FOREIGN.name not in repr((command.ext, bytes(command.body))):
        names_nothing(answers)
    assert world.state() == before and world.statistics.denied_count == denied + 1
    told = [channel.take() for channel in world.channels.values()]
    assert told == [[], []], "nobody else is told of it"


def shows_nothing(answers: list[Command]) -> None:
    for answer in answers:
        text = repr((answer.ext, answer.remark)).encode()
        assert FOREIGN.secret not in bytes(answer.body) and FOREIGN.secret not in text


def names_nothing(answers: list[Command]) -> None:
    """Neither a message nor a topic, group or client of the other account."""
    for answer in answers:
        assert FOREIGN.name not in repr((bytes(answer.body), answer.ext, answer.remark))


@pytest.mark.parametrize("code", [pytest.param(code, id=RequestCode(code).name) for code in sorted(ROWS)])
def test_own_topics_and_groups_are_served_and_no_others(request: pytest.FixtureRequest, code: int) -> None:
    row = ROWS[code]
    world: World = request.getfixturevalue("shared" if row.about in ("any", "admin") else "world")
    for topic, group, refused in sides(row.about):
        command = row.make(world, topic, group)
        if refused:
            must_be_refused(world, command)
            oneway = row.make(world, topic, group)
            oneway.flag |= FLAG_ONEWAY
            before = world.state()
            assert world.ask(oneway) == [] and world.state() == before
        else:
            answers = world.ask(command)
            assert answers and ResponseCode.NO_PERMISSION not in [answer.code for answer in answers], answers
            names_nothing(answers)


@pytest.mark.parametrize("code", [pytest.param(code, id=RequestCode(code).name) for code in sorted(ROWS)])
def test_an_account_without_rights_changes_and_reads_nothing(shared: World, code: int) -> None:
    """Nor does one that is not signed, or signed for another body."""
    row = ROWS[code]
    before = shared.state()
    unsigned = row.make(shared, OWN, OWN)
    shared.guard.received(shared.channels[OWN], [unsigned])  # type: ignore[arg-type]
    (answer,) = shared.channels[OWN].take()
    assert answer.code == ResponseCode.NO_PERMISSION and not answer.body
    assert shared.state() == before


# --- what a request only claims ---------------------------------------------------------------------------------------
RECORDS = ("plain", "retried", "dead", "delayed", "half")


@pytest.mark.parametrize("kind", RECORDS)
@pytest.mark.parametrize("key", [OWN.name, READER])
def test_a_record_is_not_read_under_another_topic(shared: World, kind: str, key: str) -> None:
    offset = shared.records[FOREIGN].all[kind]
    for topic in (OWN.topic, OWN.retry):
        must_be_refused(shared, Command(C.VIEW_MESSAGE_BY_ID, {"topic": topic, "offset": str(offset)}), key=key)
    must_be_refused(shared, Command(C.VIEW_MESSAGE_BY_ID, {"offset": str(offset)}), key=key)


@pytest.mark.parametrize("kind", RECORDS)
def test_an_own_record_is_read_by_its_id_wherever_it_waits(world: World, kind: str) -> None:
    offset = world.records[OWN].all[kind]
    (answer,) = world.ask(Command(C.VIEW_MESSAGE_BY_ID, {"topic": OWN.topic, "offset": str(offset)}))
    assert answer.code == 0 and OWN.secret in bytes(answer.body)


def test_a_record_of_one_own_topic_is_not_one_of_another(shared: World) -> None:
    offset = shared.records[OWN].plain
    must_be_refused(shared, Command(C.VIEW_MESSAGE_BY_ID, {"topic": "Another", "offset": str(offset)}), key=READER)


@pytest.mark.parametrize("kind", RECORDS)
@pytest.mark.parametrize("claim", [{}, {"originTopic": OWN.topic}, {"originTopic": OWN.retry}])
def test_a_foreign_record_does_not_come_back_to_an_own_group(world: World, kind: str, claim: dict[str, str]) -> None:
    must_be_refused(world, back(OWN.group, world.records[FOREIGN].all[kind], 1, **claim))
    must_be_refused(world, back(f"{OWN.group}New", world.records[FOREIGN].all[kind], -1, **claim), key=READER)
    world.deliver()
    assert not any(FOREIGN.secret in body for body in world.bodies(OWN.retry))


@pytest.mark.parametrize("kind", ["plain", "retried", "dead"])
def test_an_own_record_comes_back(world: World, kind: str) -> None:
    (answer,) = world.ask(back(OWN.group, world.records[OWN].all[kind], 1, originTopic=OWN.topic))
    assert answer.code == 0
    world.deliver()
    assert OWN.secret + f" {kind}".encode() in world.bodies(OWN.retry)


@pytest.mark.parametrize("topic", ["", OWN.topic, HALF])
@pytest.mark.parametrize("key", [OWN.name, READER])
@pytest.mark.parametrize("outcome", ["8", "12"])
def test_a_foreign_transaction_is_not_ended(world: World, topic: str, key: str, outcome: str) -> None:
    claim = {"topic": topic} if topic else {}
    must_be_refused(world, end(world, FOREIGN, commitOrRollback=outcome, **claim), key=key)
    (answer,) = world.ask(end(world, FOREIGN, topic=FOREIGN.topic), FOREIGN.name)
    assert answer.code == 0 and FOREIGN.secret + b" half" in world.bodies(FOREIGN.topic)


@pytest.mark.parametrize("topic", ["", OWN.topic, HALF])
def test_an_own_transaction_is_ended(world: World, topic: str) -> None:
    (answer,) = world.ask(end(world, OWN, **({"topic": topic} if topic else {})))
    assert answer.code == 0 and OWN.secret + b" half" in world.bodies(OWN.topic)


def test_who_may_send_to_a_topic_ends_no_transaction_of_a_group_that_is_anothers(world: World) -> None:
    reply = world.broker.ask(prepared(world.broker, "ID-shared", OWN.topic, 0, PGROUP=FOREIGN.producers))
    fields = {
        "commitLogOffset": str(int(reply.ext["msgId"][16:], 16)),
        "tranStateTableOffset": reply.ext["queueOffset"],
    }
    must_be_refused(world, end(world, FOREIGN, topic=OWN.topic, **fields))


# --- what an answer names ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("code", "ext", "own"),
    [
        (C.GET_CONSUME_STATS, {"consumerGroup": OWN.group}, OWN.topic),
        (C.QUERY_TOPICS_BY_CONSUMER, {"group": OWN.group}, OWN.topic),
        (C.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": OWN.group}, OWN.topic),
        (C.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": OWN.topic}, OWN.group),
        (C.RMQHA_GET_HISTORY, {}, OWN.producers),
    ],
)
def test_an_answer_names_what_the_account_may_use(shared: World, code: int, ext: dict[str, str], own: str) -> None:
    """Each side's group has been at work in the other's topic; an admin is shown both."""
    (answer,) = shared.ask(Command(code, dict(ext)))
    assert answer.code == 0 and own in bytes(answer.body).decode()
    names_nothing([answer])
    (answer,) = shared.ask(Command(code, dict(ext)), "operator")
    assert own in bytes(answer.body).decode() and FOREIGN.name in bytes(answer.body).decode()


def test_the_files_that_damage_is_found_in_are_for_admins(world: World) -> None:
    """Those of queues have the names of their topics."""
    world.broker.store.damage.found(DamagedError(f"consumequeue/{FOREIGN.topic}/0 at byte 0: expected an entry", 7, 9))
    (answer,) = world.ask(Command(C.RMQHA_GET_REPLICA_STATE))
    names_nothing([answer])
    assert loads(answer.body)["damage"]["foundCount"] == 1
    (answer,) = world.ask(Command(C.RMQHA_GET_REPLICA_STATE), "operator")
    assert FOREIGN.topic in bytes(answer.body).decode()


def test_the_traceback_of_a_bug_is_for_admins(shared: World) -> None:
    for key, told in ((OWN.name, False), ("operator", True)):
        (answer,) = shared.ask(Command(C.RMQHA_GET_HISTORY), key)
        assert (b"request_failed" in bytes(answer.body)) is told


def test_the_clients_of_a_producer_group_that_is_anothers_are_not_shown(shared: World) -> None:
    """Though by default the account may use each group."""
    must_be_refused(shared, Command(C.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": FOREIGN.producers}), key=READER)


MIXED = (SCHEDULE, HALF, OP, GIVEN_UP)
NOT_OWN = (FOREIGN.topic, FOREIGN.retry, FOREIGN.dead_letters, *FOREIGN.popped_again)


@pytest.mark.parametrize("topic", [*MIXED, *NOT_OWN])
@pytest.mark.parametrize("key", [OWN.name, READER])
def test_no_queue_of_others_is_read(shared: World, topic: str, key: str) -> None:
    """Nor one that holds what belongs to all, though by default the account may everything."""
    must_be_refused(shared, pull(topic, OWN.group, queueId="17"), key=key)
    must_be_refused(shared, pull(topic, OWN.group), key=key)
    for code in (C.GET_MAX_OFFSET, C.GET_TOPIC_STATS_INFO, C.GET_TOPIC_CONFIG, C.QUERY_TOPIC_CONSUME_BY_WHO):
        must_be_refused(shared, Command(code, {"topic": topic, "queueId": "0"}), key=key)
    must_be_refused(shared, Command(C.QUERY_MESSAGE, {"topic": topic, "key": "key-foreign", **NOW}), key=key)


@pytest.mark.parametrize("topic", [*MIXED, *NOT_OWN])
@pytest.mark.parametrize("key", [OWN.name, READER])
def test_no_queue_of_others_is_written(shared: World, topic: str, key: str) -> None:
    for fields in ({}, {"topic": OWN.topic}, {"a": OWN.group, "group": OWN.group}, {"j": "17", "l": "1"}):
        command = send_command(topic)
        command.ext |= fields
        must_be_refused(shared, command, key=key)
    ext = {"producerGroup": OWN.group, "topic": topic, "b": OWN.topic, "queueId": "0"}
    must_be_refused(shared, Command(C.SEND_MESSAGE, ext, b"x"), key=key)


def test_the_brokers_own_offsets_are_nobodys(shared: World) -> None:
    for code in (C.UPDATE_CONSUMER_OFFSET, C.QUERY_CONSUMER_OFFSET):
        ext = {"topic": OWN.topic, "consumerGroup": "CID_RMQ_SYS_TRANS", **OFFSET}
        must_be_refused(shared, Command(code, ext), key=READER)


@pytest.mark.parametrize("topic", [FOREIGN.topic, FOREIGN.retry, FOREIGN.dead_letters])
def test_one_foreign_name_among_own_ones_is_enough(shared: World, topic: str) -> None:
    subscriptions = [{"topic": OWN.topic}, {"topic": topic}]
    consumers = [{"groupName": OWN.group, "subscriptionDataSet": subscriptions}]
    for more in ({}, {"withoutSub": True}):
        body = dumps({"clientID": "c", "consumerDataSet": consumers, **more})
        must_be_refused(shared, Command(C.HEART_BEAT, {}, body))
    consumers = [{"groupName": OWN.group}, {"groupName": FOREIGN.group}]
    must_be_refused(shared, Command(C.HEART_BEAT, {}, dumps({"clientID": "c", "consumerDataSet": consumers})))
    must_be_refused(shared, lock(OWN.group, "c", OWN.topic, topic))
    ext = {"consumerGroup": OWN.group, "topicList": f"{OWN.topic};{topic}"}
    must_be_refused(shared, Command(C.GET_CONSUME_STATS, ext))


# --- what a message says of itself ------------------------------------------------------------------------------------
REDIRECTS = {"REAL_TOPIC": FOREIGN.topic, "REAL_QID": "0", "RETRY_TOPIC": FOREIGN.topic, "ORIGIN_MESSAGE_ID": "0"}


@pytest.mark.parametrize("more", [{}, {"DELAY": "1"}, {"TRAN_MSG": "true", "PGROUP": OWN.producers}])
def test_no_property_sends_a_message_to_another_topic(world: World, more: dict[str, str]) -> None:
    before = world.bodies(FOREIGN.topic)
    properties = encode_properties({"UNIQ_KEY": "ID-x", **REDIRECTS, **more}).decode()
    (answer,) = world.ask(send_command(OWN.topic, 0, b"redirected", i=properties, g=str(world.broker.clock.wall_ms())))
    assert answer.code == 0
    if "TRAN_MSG" in more:
        offset = str(int(answer.ext["msgId"][16:], 16))
        fields = {"commitLogOffset": offset, "tranStateTableOffset": answer.ext["queueOffset"], "msgId": "ID-x"}
        (answer,) = world.ask(end(world, OWN, **fields))
        assert answer.code == 0
    world.deliver()
    assert world.bodies(FOREIGN.topic) == before and b"redirected" in world.bodies(OWN.topic)


def test_a_query_gives_the_named_topics_records_only_though_the_index_mixes_them_up(world: World) -> None:
    """Aa and BB have one hash in Java: so have keys of two topics."""
    key = f"key-{FOREIGN.name}"
    for unique in ({}, {"_UNIQUE_KEY_QUERY": "true"}):
        answers = world.ask(Command(C.QUERY_MESSAGE, {"topic": OWN.topic, "key": key, **NOW, **unique}))
        assert [answer.code for answer in answers] == [ResponseCode.QUERY_NOT_FOUND]
    for topic, body in (("xAa", b"mine"), ("xBB", b"not mine")):
        properties = encode_properties({"KEYS": "k", "UNIQ_KEY": "u"}).decode()
        assert world.broker.ask(send_command(topic, 0, body, i=properties)).code == 0
    for key, fields in (("k", {}), ("u", {"_UNIQUE_KEY_QUERY": "true"})):
        (answer,) = world.ask(Command(C.QUERY_MESSAGE, {"topic": "xAa", "key": key, **NOW, **fields}), READER)
        assert answer.code == 0 and b"mine" in bytes(answer.body) and b"not mine" not in bytes(answer.body)
