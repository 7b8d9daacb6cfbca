"""What operators ask about consumer groups, and setting them back."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import pytest

from rmqha.broker.requests.request import RequestError
from rmqha.broker.services.statistics import RATE_WINDOW_MS
from rmqha.broker.tables.groups import default_group
from rmqha.broker.tables.offsets import MAX_TOLD_COUNT
from rmqha.broker.tables.topics import TopicConfig
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.message import java_string_hash
from rmqha.wire import lenient_json
from rmqha.wire.bodies import ONLY_EXISTING, SUBSCRIBED_ALIKE
from rmqha.wire.command import Command, Language
from tests.broker.support import Broker, FakeChannel, pull_command, send_command


def beat(client_id: str = "c", expression: str = "*", model: str = "CLUSTERING") -> Command:
    subscription = {"topic": "T", "subString": expression, "subVersion": 7, "expressionType": "TAG"}
    consumer = {
        "groupName": "G",
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": model,
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "subscriptionDataSet": [subscription],
    }
    body = {"clientID": client_id, "producerDataSet": [{"groupName": "P"}], "consumerDataSet": [consumer]}
    return Command(RequestCode.HEART_BEAT, {}, lenient_json.dumps(body), language=Language.JAVA, version=493)


def commit(broker: Broker, queue_id: int, offset: int, group: str = "G", topic: str = "T") -> None:
    broker.core.groups.get_or_create(group)
    ext = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id), "commitOffset": str(offset)}
    assert broker.ask(Command(RequestCode.UPDATE_CONSUMER_OFFSET, ext)).code == 0


def asked(broker: Broker, code: int, **ext: str) -> Any:
    reply = broker.ask(Command(code, ext))
    assert reply.code == 0, reply.remark
    return lenient_json.loads(reply.body) if reply.body else None


def by_queue(table: Any) -> dict[int, Any]:
    assert all(key["topic"] == "T" and key["brokerName"] == "broker-a" for key in table)
    return {key["queueId"]: value for key, value in table.items()}


@pytest.fixture
def filled(broker: Broker) -> Broker:
    """Queues 0 and 1 of T hold three messages each, stored a second apart."""
    for _ in range(3):
        for queue_id in (0, 1):
            broker.ask(send_command(queue_id=queue_id))
        broker.run(1000)
    return broker


# --- connections ------------------------------------------------------------------------------------------------------
def test_members_that_subscribe_differently(broker: Broker) -> None:
    for client_id, expression in (("c", "a"), ("d", "b"), ("e", "a")):
        broker.core.processor.received(FakeChannel(), [beat(client_id, expression)])
    told = asked(broker, RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup="G")
    assert told[SUBSCRIBED_ALIKE] == [["c", "e"], ["d"]]


def test_connections_of_consumers(broker: Broker) -> None:
    reply = broker.ask(Command(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "G"}))
    assert (reply.code, reply.remark) == (ResponseCode.CONSUMER_NOT_ONLINE, "the consumer group[G] not online")
    channel = FakeChannel("127.0.0.1:777")
    broker.core.processor.received(channel, [beat(expression="a || b")])
    assert asked(broker, RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup="G") == {
        "connectionSet": [{"clientAddr": "127.0.0.1:777", "clientId": "c", "language": "JAVA", "version": 493}],
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "subscriptionTable": {
            "T": {
                "classFilterMode": False,
                "codeSet": [java_string_hash("a"), java_string_hash("b")],
                "expressionType": "TAG",
                "subString": "a || b",
                "subVersion": 7,
                "tagsSet": ["a", "b"],
                "topic": "T",
            }
        },
    }


def test_connections_of_producers(broker: Broker) -> None:
    assert broker.ask(Command(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "P"})).code == 1
    command = beat()
    command.language = 99
    broker.core.processor.received(FakeChannel("127.0.0.1:777"), [command])
    body = asked(broker, RequestCode.GET_PRODUCER_CONNECTION_LIST, producerGroup="P")
    assert body == {
        "connectionSet": [{"clientAddr": "127.0.0.1:777", "clientId": "c", "language": "OTHER", "version": 493}]
    }


# --- settings ---------------------------------------------------------------------------------------------------------
def test_asked_for_the_settings_of_a_group_a_master_makes_it(make_broker: Callable[..., Broker]) -> None:
    """As RocketMQ's broker does: its proxy asks before anybody pops. Who only looks makes none."""
    code, only_looks = RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {ONLY_EXISTING: "true"}
    broker = make_broker().start()
    assert broker.ask(Command(code, {"group": "G", **only_looks})).code == 26
    assert asked(broker, code, group="G") == default_group("G") == broker.core.groups.get("G")
    assert broker.ask(Command(code, {"group": "no group"})).code == 26
    broker.close()
    broker = make_broker(auto_create_subscription_group=False).start()
    assert broker.ask(Command(code, {"group": "H"})).code == 26 and broker.core.groups.get("H") is None


def test_settings_and_deletion_of_a_group(filled: Broker) -> None:
    filled.core.groups.put({"groupName": "G", "retryMaxTimes": 3})
    expected = default_group("G") | {"retryMaxTimes": 3}
    assert asked(filled, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="G") == expected
    commit(filled, 0, 2)
    commit(filled, 0, 2, group="H")
    assert asked(filled, RequestCode.QUERY_TOPICS_BY_CONSUMER, group="G")["topicList"] == ["T"]
    asked(filled, RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="G", cleanOffset="false")
    assert filled.core.groups.get("G") is None and filled.core.offsets.query("G", "T", 0) == 2
    asked(filled, RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="G", cleanOffset="true")
    assert filled.core.offsets.query("G", "T", 0) is None and filled.core.offsets.query("H", "T", 0) == 2


# --- how far ----------------------------------------------------------------------------------------------------------
def test_consume_stats(filled: Broker) -> None:
    commit(filled, 0, 2)
    filled.ask(pull_command(queue_id=0, offset=2, maxMsgNums="1"))
    body = asked(filled, RequestCode.GET_CONSUME_STATS, consumerGroup="G")
    first_ms = filled.clock.wall_ms() - 3000
    rows = by_queue(body["offsetTable"])
    assert rows[0] == {"brokerOffset": 3, "consumerOffset": 2, "lastTimestamp": first_ms + 1000, "pullOffset": 3}
    assert rows[1] == {"brokerOffset": 3, "consumerOffset": 0, "lastTimestamp": 0, "pullOffset": 0}
    assert rows[2] == {"brokerOffset": 0, "consumerOffset": 0, "lastTimestamp": 0, "pullOffset": 0}
    assert asked(filled, RequestCode.GET_CONSUME_STATS, consumerGroup="nobody")["offsetTable"] == {}
    named = asked(filled, RequestCode.GET_CONSUME_STATS, consumerGroup="nobody", topic="T")
    assert len(named["offsetTable"]) == 4


def test_a_connected_group_shows_what_it_subscribes_to(filled: Broker) -> None:
    commit(filled, 0, 1)
    filled.ask(send_command("Old"))
    commit(filled, 0, 1, topic="Old")
    filled.core.processor.received(FakeChannel(), [beat()])
    table = asked(filled, RequestCode.GET_CONSUME_STATS, consumerGroup="G")["offsetTable"]
    assert {key["topic"] for key in table} == {"T"}
    table = asked(filled, RequestCode.GET_CONSUME_STATS, consumerGroup="G", topicList="Old;Gone")["offsetTable"]
    assert {key["topic"] for key in table} == {"Old"}


def test_rates(filled: Broker) -> None:
    filled.run(RATE_WINDOW_MS)
    filled.core.admin.sample()
    for _ in range(20):
        filled.ask(send_command())
        filled.ask(pull_command(offset=3, maxMsgNums="1"))
    filled.run(RATE_WINDOW_MS)
    filled.core.admin.sample()
    commit(filled, 0, 1)
    assert asked(filled, RequestCode.GET_CONSUME_STATS, consumerGroup="G")["consumeTps"] == 2.0
    assert asked(filled, RequestCode.GET_TOPIC_STATS_INFO, topic="T")["topicPutTps"] == 2.0
    filled.run(RATE_WINDOW_MS)
    filled.core.admin.sample()
    assert asked(filled, RequestCode.GET_TOPIC_STATS_INFO, topic="T")["topicPutTps"] == 0.0


def test_statistics_of_sends_pulls_and_what_was_sent_back(filled: Broker) -> None:
    """As `mqadmin statsAll`, the exporter and the dashboard ask for them."""

    def minute(name: str, key: str) -> Any:
        return asked(filled, RequestCode.VIEW_BROKER_STATS_DATA, statsName=name, statsKey=key)["statsMinute"]

    filled.core.admin.sample()
    filled.ask(send_command("T", body=b"x" * 100))
    filled.ask(pull_command(offset=0, maxMsgNums="1"))
    filled.run(RATE_WINDOW_MS)
    filled.core.admin.sample()
    puts = minute("TOPIC_PUT_NUMS", "T")
    assert (puts["sum"], puts["tps"], puts["avgpt"]) == (7, 7 * 1000 / (2 * RATE_WINDOW_MS), 1.0)
    assert minute("TOPIC_PUT_SIZE", "T")["sum"] > 100
    assert minute("GROUP_GET_NUMS", "T@G")["sum"] == 1
    assert minute("BROKER_GET_NUMS", "DefaultCluster")["sum"] == 1
    absent = filled.ask(
        Command(RequestCode.VIEW_BROKER_STATS_DATA, {"statsName": "SNDBCK_PUT_NUMS", "statsKey": "T@G"})
    )
    assert (absent.code, absent.remark) == (1, "The stats <SNDBCK_PUT_NUMS> <T@G> not exist")


def test_progress_of_all_groups(filled: Broker) -> None:
    commit(filled, 0, 1)
    filled.ask(Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"G"}'))
    one = asked(filled, RequestCode.GET_CONSUME_STATS, consumerGroup="G")
    found = asked(filled, RequestCode.GET_BROKER_CONSUME_STATS, isOrder="false")
    (progress,) = next(item["G"] for item in found["consumeStatsList"] if "G" in item)
    assert progress == one
    behind = [item["brokerOffset"] - item["consumerOffset"] for item in one["offsetTable"].values()]
    assert found["totalDiff"] == sum(behind) > 0
    commit(filled, 0, 1 << 40, group="Ahead")
    assert asked(filled, RequestCode.GET_BROKER_CONSUME_STATS, isOrder="false")["totalDiff"] >= sum(behind)
    ordered = asked(filled, RequestCode.GET_BROKER_CONSUME_STATS, isOrder="true")
    assert next(item["G"] for item in ordered["consumeStatsList"] if "G" in item) == []


def test_all_producers(filled: Broker) -> None:
    body = {"clientID": "c", "producerDataSet": [{"groupName": "P"}], "consumerDataSet": []}
    filled.ask(Command(RequestCode.HEART_BEAT, {}, lenient_json.dumps(body)))
    found = asked(filled, RequestCode.GET_ALL_PRODUCER_INFO)
    (member,) = found["data"]["P"]
    assert member["clientId"] == "c" and member["lastUpdateTimestamp"] == filled.clock.wall_ms()
    assert member["remoteIP"].startswith("/")


def test_system_topics(filled: Broker) -> None:
    found = asked(filled, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)["topicList"]
    assert {"SCHEDULE_TOPIC_XXXX", "TBW102", "RMQ_SYS_TRANS_HALF_TOPIC"} <= set(found)
    assert "T" not in found


def test_time_span(filled: Broker) -> None:
    commit(filled, 0, 1)
    commit(filled, 1, 3)
    now_ms = filled.clock.wall_ms()
    spans = asked(filled, RequestCode.QUERY_CONSUME_TIME_SPAN, topic="T", group="G")["consumeTimeSpanSet"]
    rows = {item["messageQueue"]["queueId"]: item for item in spans}
    first = {"consumeTimeStamp": now_ms - 3000, "delayTime": 2000, "maxTimeStamp": now_ms - 1000}
    assert first.items() <= rows[0].items() and rows[0]["minTimeStamp"] == now_ms - 3000
    assert (rows[1]["delayTime"], rows[1]["consumeTimeStamp"]) == (0, now_ms - 1000)
    assert (rows[2]["minTimeStamp"], rows[2]["maxTimeStamp"], rows[2]["delayTime"]) == (0, 0, 0)


# --- set back ---------------------------------------------------------------------------------------------------------
def reset(broker: Broker, **ext: Any) -> Command:
    fields = {"topic": "T", "group": "G", "timestamp": "-1", "isForce": "true", "queueId": "-1", "offset": "-1"}
    values = {key: str(value) for key, value in ext.items()}
    return broker.ask(Command(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields | values))


def targets(reply: Command) -> dict[int, int]:
    assert reply.code == 0, reply.remark
    return by_queue(lenient_json.loads(reply.body)["offsetTable"])


def query(broker: Broker, queue_id: int = 0) -> int:
    ext = {"consumerGroup": "G", "topic": "T", "queueId": str(queue_id)}
    return int(broker.ask(Command(RequestCode.QUERY_CONSUMER_OFFSET, ext)).ext["offset"])


def test_reset_to_the_end_to_a_time_and_to_an_offset(filled: Broker) -> None:
    filled.core.groups.get_or_create("G")
    assert targets(reset(filled)) == {0: 3, 1: 3, 2: 0, 3: 0}
    assert query(filled) == 3
    second_ms = filled.clock.wall_ms() - 2000
    assert targets(reset(filled, timestamp=second_ms)) == {0: 1, 1: 1, 2: 0, 3: 0}
    assert targets(reset(filled, timestamp=0)) == {0: 0, 1: 0, 2: 0, 3: 0}
    assert targets(reset(filled, queueId=1, offset=2)) == {1: 2}
    assert targets(reset(filled, queueId=0)) == {0: 3}
    assert (query(filled, 0), query(filled, 1)) == (3, 2)


@pytest.mark.parametrize(
    ("ext", "code"),
    [
        ({"topic": "Unknown"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"group": "Unknown"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"queueId": 4}, ResponseCode.SYSTEM_ERROR),
        ({"queueId": 0, "offset": 4}, ResponseCode.SYSTEM_ERROR),
        ({"queueId": 0, "offset": -2}, ResponseCode.SYSTEM_ERROR),
        ({"timestamp": "x"}, ResponseCode.SYSTEM_ERROR),
    ],
)
def test_resets_that_are_refused(filled: Broker, ext: dict[str, Any], code: ResponseCode) -> None:
    filled.core.groups.get_or_create("G")
    commit(filled, 0, 1)
    assert reset(filled, **ext).code == code
    assert query(filled) == 1


def test_a_running_consumer_is_told_with_its_next_pull_and_cannot_undo_the_reset(filled: Broker) -> None:
    filled.core.groups.get_or_create("G")
    commit(filled, 0, 3)
    reset(filled, timestamp=0)
    commit(filled, 0, 3)  # it does not know yet
    assert query(filled) == 0
    reply = filled.ask(pull_command(offset=3, sysFlag="7", commitOffset="3"))
    assert (reply.code, reply.remark) == (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET")
    assert (reply.ext["nextBeginOffset"], reply.ext["minOffset"], reply.ext["maxOffset"]) == ("0", "0", "3")
    assert filled.ask(pull_command(offset=0)).code == 0, "told once"
    commit(filled, 0, 2)
    assert query(filled) == 2


def test_a_consumer_that_never_heard_of_a_reset_is_told_again(filled: Broker) -> None:
    """Its connection broke before the answer came: it pulls where it was, and commits that."""
    filled.core.groups.get_or_create("G")
    commit(filled, 0, 3)
    reset(filled, timestamp=0)
    for _ in range(2):
        reply = filled.ask(pull_command(offset=3, sysFlag="7", commitOffset="3"))
        assert (reply.code, reply.remark) == (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET")
        commit(filled, 0, 3)
        assert query(filled) == 0
    assert filled.ask(pull_command(offset=0)).code == 0
    commit(filled, 0, 1)
    assert query(filled) == 1


def test_a_consumer_that_goes_where_it_likes_is_told_of_a_reset_some_times(filled: Broker) -> None:
    filled.core.groups.get_or_create("G")
    reset(filled, timestamp=0)
    for _ in range(MAX_TOLD_COUNT):
        assert filled.ask(pull_command(offset=2)).code == ResponseCode.PULL_OFFSET_MOVED
    assert filled.ask(pull_command(offset=2)).code == 0
    commit(filled, 0, 3)
    assert query(filled) == 3


def test_a_consumer_that_waits_for_messages_is_told_at_once(filled: Broker) -> None:
    filled.core.groups.get_or_create("G")
    waiting, stranger = FakeChannel(), FakeChannel()
    filled.core.processor.received(waiting, [pull_command(offset=3, sysFlag="6")])
    filled.core.processor.received(stranger, [pull_command(offset=3, sysFlag="6", consumerGroup="H")])
    reset(filled, timestamp=0)
    assert (reply := waiting.one()).code == ResponseCode.PULL_OFFSET_MOVED and reply.ext["nextBeginOffset"] == "0"
    assert stranger.take() == [] and filled.core.pull.hold_count == 1


def test_a_slave_takes_its_masters_offsets_and_no_orders(filled: Broker) -> None:
    filled.core.groups.get_or_create("G")
    reset(filled, timestamp=0)
    table = filled.core.offsets
    table.replace(table.to_json())
    assert table.take_reset("G", "T", 0) is None
    filled.core.driver.stopping()
    controller = filled.controller
    controller.epoch, controller.master = 2, 2
    filled.ask(controller.notice())
    assert reset(filled).code == ResponseCode.SYSTEM_ERROR
    assert filled.ask(Command(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "G"})).code == 1


def test_members_set_themselves_back_where_the_broker_is_told_so(filled: Broker) -> None:
    """useServerSideResetOffset=false: request 220 to every member, nothing kept here."""
    filled.core.live.update("useServerSideResetOffset=false")
    assert "not exist" in (reset(filled).remark or "")
    for queue_id in range(4):
        commit(filled, queue_id, 0)
    commit(filled, 0, 2)
    assert reset(filled).code == ResponseCode.CONSUMER_NOT_ONLINE
    member = FakeChannel()
    filled.core.processor.received(member, [beat()])
    member.take()
    reply = reset(filled, isForce="false")
    assert targets(reply) == {0: 2, 1: 0, 2: 0, 3: 0}, "without force nothing goes forward"
    notice = member.one()
    assert notice.is_oneway and notice.code == 220 and bytes(notice.body) == bytes(reply.body)
    assert notice.ext == {"topic": "T", "group": "G", "timestamp": "-1"}
    assert targets(reset(filled)) == {0: 3, 1: 3, 2: 0, 3: 0}
    assert query(filled) == 2


# --- of old consumers, and for new ones -------------------------------------------------------------------------------
def test_time_of_the_earliest_message(filled: Broker) -> None:
    def earliest(topic: str, queue_id: int) -> str:
        ext = {"topic": topic, "queueId": str(queue_id)}
        return filled.ask(Command(RequestCode.GET_EARLIEST_MSG_STORETIME, ext)).ext["timestamp"]

    assert earliest("T", 1) == str(filled.clock.wall_ms() - 3000)
    assert earliest("T", 3) == earliest("Nothing", 0) == "-1"


def test_a_group_begins_where_another_is(filled: Broker) -> None:
    commit(filled, 0, 2)
    commit(filled, 1, 3)
    asked(filled, RequestCode.CLONE_GROUP_OFFSET, srcGroup="G", destGroup="H", topic="T", offline="true")
    assert [filled.core.offsets.query("H", "T", queue_id) for queue_id in (0, 1, 2)] == [2, 3, None]
    asked(filled, RequestCode.CLONE_GROUP_OFFSET, srcGroup="G", destGroup="I")
    assert filled.core.offsets.query("I", "T", 1) == 3
    reply = filled.ask(Command(RequestCode.CLONE_GROUP_OFFSET, {"srcGroup": "G", "destGroup": "mine@J"}))
    assert reply.code == ResponseCode.INVALID_PARAMETER and filled.core.offsets.topics_of("J") == []


def test_a_group_that_is_connected_gives_only_what_it_subscribes_to(filled: Broker) -> None:
    commit(filled, 0, 2)
    filled.core.processor.received(FakeChannel(), [beat()])
    filled.core.clients.consumer_group("G").subscriptions.clear()  # type: ignore[union-attr]
    other = lenient_json.loads(beat().body)
    other["consumerDataSet"][0]["subscriptionDataSet"][0]["topic"] = "Other"
    filled.core.processor.received(FakeChannel(), [Command(RequestCode.HEART_BEAT, {}, lenient_json.dumps(other))])
    asked(filled, RequestCode.CLONE_GROUP_OFFSET, srcGroup="G", destGroup="H", topic="T", offline="false")
    assert filled.core.offsets.query("H", "T", 0) is None
    asked(filled, RequestCode.CLONE_GROUP_OFFSET, srcGroup="G", destGroup="H", topic="T", offline="true")
    assert filled.core.offsets.query("H", "T", 0) == 2


def test_a_copy_of_offsets_ends_with_the_mastership(broker: Broker) -> None:
    """It is made in steps: what a deposed master commits would come back with it, beside the new master's."""
    names = [f"C{number:02}" for number in range(40)]
    for name in names:
        broker.core.topics.put(TopicConfig(name, 1, 1))
        commit(broker, 0, 1, topic=name)
    handler = broker.core.processor._handlers[RequestCode.CLONE_GROUP_OFFSET]
    channel = FakeChannel()
    steps = handler(channel, Command(RequestCode.CLONE_GROUP_OFFSET, {"srcGroup": "G", "destGroup": "H"}))
    assert isinstance(steps, Generator)

    def copied() -> list[str]:
        return [name for name in names if broker.core.offsets.query("H", name, 0) is not None]

    while not copied():
        next(steps)
    before = copied()
    broker.controller.master, broker.controller.epoch = 2, 2
    broker.run(1000)
    with pytest.raises(RequestError, match="not the master"):
        for _ in steps:
            pass
    assert copied() == before != names and channel.take() == []


# --- the connected group's view ---------------------------------------------------------------------------------------
def test_subscription_of_a_group(broker: Broker) -> None:
    code = RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER
    assert asked(broker, code, group="G", topic="T") == {"group": "G", "topic": "T"}
    broker.core.processor.received(FakeChannel(), [beat(expression="a || b")])
    found = asked(broker, code, group="G", topic="T")
    assert found["subscriptionData"]["subString"] == "a || b" and found["subscriptionData"]["subVersion"] == 7
    assert asked(broker, code, group="G", topic="Other") == {"group": "G", "topic": "Other"}
    assert asked(broker, code, group="G") == {"group": "G", "topic": ""}


def test_correction_offsets(filled: Broker) -> None:
    """Least offset of all groups; none where the group that is compared is behind it."""

    def corrected(**ext: str) -> Any:
        command = Command(RequestCode.QUERY_CORRECTION_OFFSET, {"topic": "T", "compareGroup": "C", **ext})
        reply = filled.ask(command)
        assert reply.code == 0 and b'"' not in bytes(reply.body).partition(b":")[2], "queue ids are no texts"
        return lenient_json.loads(reply.body, integer_keys=True)["correctionOffsets"]

    assert corrected() == {}
    for group, queue_id, offset in (("A", 0, 3), ("B", 0, 2), ("C", 0, 1), ("A", 1, 3), ("C", 1, 3), ("A", 2, 0)):
        commit(filled, queue_id, offset, group=group)
    assert corrected() == {0: 1, 1: 3, 2: 0}
    assert corrected(filterGroups="C") == {0: 2**63 - 1, 1: 3, 2: 0}
    assert corrected(filterGroups="A,B") == {0: 1, 1: 3}
    assert corrected(compareGroup="nobody", filterGroups="C") == {0: 2, 1: 3, 2: 0}
    assert filled.core.offsets.query("C", "T", 0) == 1, "who does not count keeps its offsets"
    assert filled.ask(Command(RequestCode.QUERY_CORRECTION_OFFSET, {"topic": "T"})).code == 1


# --- topics that a group may not read ---------------------------------------------------------------------------------
def test_a_group_is_forbidden_to_read_a_topic_and_allowed_again(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker().start()
    broker.ask(send_command())
    broker.core.processor.received(FakeChannel(), [beat()])
    code = RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN

    def forbidden(readable: str) -> bool:
        found = asked(broker, code, group="G", topic="T", readable=readable)
        assert found.pop("readable") in (True, False) and found == {"group": "G", "topic": "T"}
        return not asked(broker, code, group="G", topic="T")["readable"]

    assert not forbidden("")
    assert forbidden("false") and forbidden("false")
    reply = broker.ask(pull_command(sysFlag="0"))
    assert (reply.code, reply.remark) == (
        ResponseCode.NO_PERMISSION,
        "the consumer group[G] is forbidden for topic[T]",
    )
    assert broker.core.groups.to_json()["forbiddenTable"] == {"G": {"T": 4}}
    broker.close()
    broker = make_broker().start()
    broker.core.processor.received(FakeChannel(), [beat()])
    assert forbidden("") and not forbidden("true")
    assert broker.ask(pull_command(sysFlag="0")).code == 0
    assert broker.core.groups.to_json()["forbiddenTable"] == {}


def test_only_a_group_and_a_topic_that_are_there_are_forbidden(filled: Broker) -> None:
    commit(filled, 0, 1)
    code = RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN
    for group, topic, wanted in (("Nobody", "T", ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST), ("G", "Nothing", 17)):
        assert filled.ask(Command(code, {"group": group, "topic": topic, "readable": "false"})).code == wanted
        assert asked(filled, code, group=group, topic=topic, readable="true")["readable"] is True
    asked(filled, code, group="G", topic="T", readable="false")
    asked(filled, RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="G")
    assert filled.core.groups.to_json()["forbiddenTable"] == {}, "the group's rows go with it"
