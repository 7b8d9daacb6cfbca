from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqha.broker.requests.request import RequestError
from rmqha.broker.tables.clients import MAX_GROUPS_PER_CHANNEL, ClientTable, names_refusal, parse_tags
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.message import java_string_hash, tags_code
from rmqha.model.principal import Principal
from rmqha.wire import lenient_json
from rmqha.wire.command import FLAG_ONEWAY, Command
from tests.broker.rights.acl_world import FOREIGN, OWN, principal
from tests.broker.support import Broker, FakeChannel, send_command
from tests.support.steps import done


def body(*groups: str, producers: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    return {
        "clientID": "c",
        "producerDataSet": [{"groupName": name} for name in producers],
        "consumerDataSet": [
            {"groupName": name, "subscriptionDataSet": [{"topic": "T", "subString": "*", "subVersion": 1}]}
            for name in groups
        ],
        **more,
    }


def beat(content: Any) -> Command:
    return Command(RequestCode.HEART_BEAT, {}, content if isinstance(content, bytes) else lenient_json.dumps(content))


@given(st.lists(st.text(alphabet="abc ", min_size=1).filter(str.strip), min_size=1))
def test_parse_tags(tags: list[str]) -> None:
    assert parse_tags("||".join(tags)) == frozenset(java_string_hash(tag.strip()) for tag in tags)


def test_parse_tags_of_everything_and_nothing() -> None:
    assert parse_tags("*") is None and parse_tags("") is None
    with pytest.raises(ValueError, match="names no tag"):
        parse_tags(" || ")


def test_members_come_and_go() -> None:
    table, first, second = ClientTable(), FakeChannel(), FakeChannel()
    assert done(table.heartbeat(first, body("G", producers=("P",)))) == ["G"]
    assert done(table.heartbeat(first, body("G"))) == []
    assert done(table.heartbeat(second, {**body("G"), "clientID": "d"})) == ["G"]
    group = table.consumer_group("G")
    assert group is not None and group.client_ids() == ["c", "d"]
    assert table.producer_groups() == ["P"]
    assert table.closed(first) == ["G"] and table.producer_groups() == []
    assert table.unregister(second, "G", consumer=True)
    assert table.consumer_group("G") is None
    assert table.closed(second) == []


def test_members_that_subscribe_differently_are_told() -> None:
    def wanting(client_id: str, **expressions: str) -> dict[str, Any]:
        subscriptions = [{"topic": topic, "subString": text, "subVersion": 1} for topic, text in expressions.items()]
        return {"clientID": client_id, "consumerDataSet": [{"groupName": "G", "subscriptionDataSet": subscriptions}]}

    table, channels = ClientTable(), [FakeChannel() for _ in range(4)]

    def alike(*bodies: dict[str, Any]) -> list[list[str]]:
        for channel, content in zip(channels, bodies, strict=False):
            done(table.heartbeat(channel, content))
        group = table.consumer_group("G")
        assert group is not None
        return group.subscribed_alike()

    assert alike(wanting("a", T="x || y"), wanting("b", T="y||x"), wanting("c", **{"T": "x||y", "%RETRY%G": "*"})) == [
        ["a", "b", "c"]
    ]
    assert alike(wanting("a", T="x"), wanting("b", T="*"), wanting("c", T="x")) == [["a", "c"], ["b"]]
    # a heartbeat that leaves its subscriptions out has those of before
    without = {"clientID": "b", "withoutSub": True, "consumerDataSet": [{"groupName": "G"}]}
    done(table.heartbeat(channels[1], without))
    assert alike() == [["a", "c"], ["b"]]
    assert alike(wanting("a", T="x", U="*"), wanting("b", T="x"), wanting("c", T="x", U="*")) == [["a", "c"], ["b"]]
    table.closed(channels[1])
    assert alike() == [["a", "c"]]


def test_subscriptions_follow_the_newest_version() -> None:
    table, channel = ClientTable(), FakeChannel()

    def subscribe(topic: str, expression: str, version: int) -> list[str]:
        content = body("G")
        content["consumerDataSet"][0]["subscriptionDataSet"] = [
            {"topic": topic, "subString": expression, "subVersion": version}
        ]
        return done(table.heartbeat(channel, content))

    subscribe("T", "a", 5)
    assert subscribe("T", "old", 4) == []
    group = table.consumer_group("G")
    assert group is not None and group.subscriptions["T"].expression == "a"
    assert subscribe("U", "a", 6) == ["G"]
    assert list(group.subscriptions) == ["U"]


def test_one_channel_cannot_fill_the_table() -> None:
    table, channel = ClientTable(), FakeChannel()
    done(table.heartbeat(channel, body(*(f"G{number}" for number in range(MAX_GROUPS_PER_CHANNEL + 50)))))
    known = [number for number in range(MAX_GROUPS_PER_CHANNEL + 50) if table.consumer_group(f"G{number}")]
    assert len(known) == MAX_GROUPS_PER_CHANNEL


def test_heartbeat_gives_a_group_its_settings_and_retry_topic(broker: Broker) -> None:
    assert broker.ask(send_command()).code == 0
    channel = FakeChannel()
    broker.core.processor.received(channel, [beat(body("G"))])
    notice, reply = channel.take()
    assert notice.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED and reply.code == 0
    assert broker.core.groups.get("G") is not None
    retry = broker.core.topics.get("%RETRY%G")
    assert retry is not None and retry.write_queue_count == 1


def test_heartbeat_without_subscriptions(broker: Broker) -> None:
    channel = FakeChannel()
    broker.core.processor.received(channel, [beat(body("G", withoutSub=True))])
    assert channel.take()[-1].ext["IS_SUB_CHANGE"] == "true"
    broker.core.processor.received(channel, [beat(body("G"))])
    assert channel.take()[-1].ext["IS_SUB_CHANGE"] == "true"
    broker.core.processor.received(channel, [beat(body("G", withoutSub=True))])
    assert channel.one().ext["IS_SUB_CHANGE"] == "false"
    group = broker.core.clients.consumer_group("G")
    assert group is not None and "T" in group.subscriptions


def test_silent_groups_get_no_notice(broker: Broker) -> None:
    broker.core.groups.put({"groupName": "G", "notifyConsumerIdsChangedEnable": False})
    channel = FakeChannel()
    broker.core.processor.received(channel, [beat(body("G"))])
    assert [item.code for item in channel.take()] == [0]


@pytest.mark.parametrize(
    "content",
    [b"", b"x", b"[]", b"{}", {"clientID": "c", "consumerDataSet": 7}, {"clientID": "c", "consumerDataSet": [{}]}],
)
def test_a_body_that_is_no_heartbeat(broker: Broker, content: Any) -> None:
    assert broker.ask(beat(content)).code == ResponseCode.SYSTEM_ERROR


def test_offsets(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker().start()
    broker.ask(send_command())
    ask = {"consumerGroup": "G", "topic": "T", "queueId": "0"}
    query = Command(RequestCode.QUERY_CONSUMER_OFFSET, ask)
    assert broker.ask(query).ext == {"offset": "0"}
    exact = Command(RequestCode.QUERY_CONSUMER_OFFSET, {**ask, "setZeroIfNotFound": "false"})
    assert broker.ask(exact).code == ResponseCode.QUERY_NOT_FOUND
    broker.core.groups.get_or_create("G")
    assert broker.ask(Command(RequestCode.UPDATE_CONSUMER_OFFSET, {**ask, "commitOffset": "9"})).code == 0
    assert broker.ask(query).ext == broker.ask(exact).ext == {"offset": "9"}
    silent = Command(RequestCode.UPDATE_CONSUMER_OFFSET, {**ask, "commitOffset": "4"}, flag=FLAG_ONEWAY)
    channel = FakeChannel()
    broker.core.processor.received(channel, [silent])
    assert channel.take() == [] and broker.ask(query).ext == {"offset": "4"}
    for wrong in ({"topic": "Nope"}, {"queueId": "9"}, {"commitOffset": "x"}):
        command = Command(RequestCode.UPDATE_CONSUMER_OFFSET, {**ask, "commitOffset": "5", **wrong})
        assert broker.ask(command).code != 0
    none_yet = Command(RequestCode.UPDATE_CONSUMER_OFFSET, {**ask, "commitOffset": "-1"})
    assert broker.ask(none_yet).code == 0 and broker.ask(query).ext == {"offset": "4"}
    broker.controller.master, broker.controller.epoch = 2, 2
    broker.run(1000)
    refused = broker.ask(Command(RequestCode.UPDATE_CONSUMER_OFFSET, {**ask, "commitOffset": "7"}))
    assert refused.code == ResponseCode.SYSTEM_ERROR and broker.ask(query).ext == {"offset": "4"}


def test_a_commit_makes_neither_group_nor_topic(broker: Broker) -> None:
    """RocketMQ looks for the group first, then for the topic; a heartbeat or a pull makes a group."""
    broker.ask(send_command())
    topics, groups = broker.core.topics.names(), len(broker.core.groups)
    ask = {"consumerGroup": "G", "topic": "T", "queueId": "0", "commitOffset": "1"}
    unknown = broker.ask(Command(RequestCode.UPDATE_CONSUMER_OFFSET, ask | {"topic": "Nope"}))
    assert (unknown.code, unknown.remark) == (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "Group G not exist!")
    assert broker.ask(Command(RequestCode.UPDATE_CONSUMER_OFFSET, ask)).code == unknown.code
    assert len(broker.core.groups) == groups and broker.core.offsets.groups_of("T") == []
    broker.core.processor.received(FakeChannel(), [beat(body("G"))])
    nowhere = broker.ask(Command(RequestCode.UPDATE_CONSUMER_OFFSET, ask | {"topic": "Nope"}))
    assert (nowhere.code, nowhere.remark) == (ResponseCode.TOPIC_NOT_EXIST, "Topic Nope not exist!")
    assert set(broker.core.topics.names()) == {*topics, "%RETRY%G"}
    assert broker.core.offsets.groups_of("Nope") == []
    assert broker.ask(Command(RequestCode.UPDATE_CONSUMER_OFFSET, ask)).code == 0


def test_a_queue_that_was_taken_away_keeps_its_group_s_last_commit(broker: Broker) -> None:
    """Its member gives the queue back with a commit; the group goes on there once it is read again."""
    for _ in range(7):
        broker.ask(send_command(queue_id=3))
    broker.core.processor.received(FakeChannel(), [beat(body("G"))])
    ask = {"consumerGroup": "G", "topic": "T", "queueId": "3", "commitOffset": "1"}
    assert broker.ask(Command(RequestCode.UPDATE_CONSUMER_OFFSET, ask)).code == 0
    known = broker.core.topics.get("T")
    assert known is not None
    broker.core.topics.put(replace(known, read_queue_count=2))
    codes = {}
    for queue_id in ("-1", "2", "3", "4", str(2**31)):
        change = Command(RequestCode.UPDATE_CONSUMER_OFFSET, ask | {"queueId": queue_id, "commitOffset": "7"})
        codes[queue_id] = broker.ask(change).code
    assert codes.pop("3") == 0 and set(codes.values()) == {ResponseCode.SYSTEM_ERROR}
    assert broker.core.offsets.queues_of("G", "T") == {3: 7}


def test_offset_by_time(broker: Broker) -> None:
    for _ in range(3):
        broker.ask(send_command())
        broker.run(100)
    start = broker.clock.wall_ms() - 300
    for timestamp, offset in ((0, "0"), (start, "0"), (start + 100, "1"), (start + 101, "2"), (start + 999, "3")):
        ext = {"topic": "T", "queueId": "0", "timestamp": str(timestamp)}
        assert broker.ask(Command(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, ext)).ext == {"offset": offset}


@pytest.mark.parametrize("name", ["upper", "UPPER"])
def test_the_last_offset_by_a_time(broker: Broker, name: str) -> None:
    """As `DefaultMQAdminExt.searchUpperBoundaryOffset` asks: the last message stored by then, 0 if none was."""
    for _ in range(3):
        broker.ask(send_command())
        broker.ask(send_command())
        broker.run(100)
    start = broker.clock.wall_ms() - 300
    for timestamp, offset in ((0, "0"), (start, "1"), (start + 99, "1"), (start + 100, "3"), (start + 999, "5")):
        ext = {"topic": "T", "queueId": "0", "timestamp": str(timestamp), "boundaryType": name}
        assert broker.ask(Command(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, ext)).ext == {"offset": offset}


def test_who_consumes_a_topic(broker: Broker) -> None:
    broker.ask(send_command("T"))
    broker.core.processor.received(FakeChannel(), [beat(body("Here"))])
    broker.core.offsets.commit("Gone", "T", 0, 1)
    broker.core.offsets.commit("Here", "T", 0, 1)
    broker.core.offsets.commit("Elsewhere", "U", 0, 1)
    reply = broker.ask(Command(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "T"}))
    assert lenient_json.loads(reply.body) == {"groupList": ["Gone", "Here"]}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (body("G\x1b[2J"), "the group G\\u001b[2J is not ^[%|a-zA-Z0-9_-]+$ or too long"),
        (body("g" * 256), "is not ^[%|a-zA-Z0-9_-]+$ or too long"),
        (body("", producers=("a b",)), "the group a b is not"),
        (body("G", clientID="c\nd"), "clientID c\\u000ad holds characters that cannot be printed"),
        (
            {
                "clientID": "c",
                "consumerDataSet": [{"groupName": "G", "subscriptionDataSet": [{"topic": "T\u202e"}]}],
            },
            "the topic T\\u202e is not",
        ),
    ],
)
def test_names_that_no_client_of_rocketmq_could_have_are_refused(content: dict[str, Any], words: str) -> None:
    fault = done(names_refusal(content))
    assert words in fault and fault.isprintable()


def test_names_of_rocketmq_are_taken() -> None:
    names = body("%RETRY%G-1_x|y", producers=("CLIENT_INNER_PRODUCER",), clientID="10.0.0.1@1#7@Zürich")
    assert done(names_refusal(names)) == "" == done(names_refusal({"clientID": "c"}))


def test_entries_of_a_queue(broker: Broker) -> None:
    """As mqadmin queryCq shows them."""
    ends = []
    for tags in ("", "TagA", "TagB"):
        broker.ask(send_command(i=f"TAGS\x01{tags}\x02" if tags else ""))
        ends.append(broker.store.max_phy_offset)

    def asked(**ext: str) -> Command:
        fields = {"topic": "T", "queueId": "0", "index": "0", "count": "10", **ext}
        return broker.ask(Command(RequestCode.QUERY_CONSUME_QUEUE, fields))

    shown = lenient_json.loads(asked().body)
    assert shown == {
        "maxQueueIndex": 3,
        "minQueueIndex": 0,
        "queueData": [
            {"eval": False, "physicOffset": start, "physicSize": end - start, "tagsCode": code}
            for start, end, code in zip((0, *ends), ends, (0, tags_code("TagA"), tags_code("TagB")), strict=False)
        ],
    }
    assert lenient_json.loads(asked(index="1", count="1").body)["queueData"] == shown["queueData"][1:2]
    assert (
        lenient_json.loads(asked(count="0").body)["queueData"]
        == lenient_json.loads(asked(count="-4").body)["queueData"]
        == []
    )
    for index in ("3", "-1"):
        beyond = asked(index=index)
        assert (beyond.code, bytes(beyond.body)) == (0, b"")
        assert beyond.remark == f"Index {index} of 0@T is not exist!"
    none = asked(queueId="2")
    assert (none.code, none.remark) == (ResponseCode.SYSTEM_ERROR, "2@T is not exist!")
    assert lenient_json.loads(asked(consumerGroup="G").body)["filterData"] == "G@T is not online!"
    subscriptions = [{"topic": "T", "subString": "TagA", "subVersion": 5}]
    consumers = [{"groupName": "G", "subscriptionDataSet": subscriptions}]
    body = json.dumps({"clientID": "c", "consumerDataSet": consumers}).encode()
    broker.core.processor.received(FakeChannel(), [Command(RequestCode.HEART_BEAT, {}, body)])
    online = lenient_json.loads(asked(consumerGroup="G").body)
    assert online["filterData"] == "null"
    assert (online["subscriptionData"]["subString"], online["subscriptionData"]["subVersion"]) == ("TagA", 5)


# --- what one account may do to others --------------------------------------------------------------------------------
THIEF, OWNER = principal(OWN.name), principal(FOREIGN.name)


def test_one_account_leaves_half_of_the_places_to_others() -> None:
    table = ClientTable(BrokerConfig(max_client_count=8))
    thieves = [FakeChannel(f"10.0.0.9:{number}") for number in range(3)]

    def join(channel: FakeChannel, who: Principal, *groups: str) -> None:
        done(table.heartbeat(channel, body(producers=groups), principal=who))

    join(thieves[0], THIEF, "A", "B")
    join(thieves[1], THIEF, "C", "D")
    with pytest.raises(RequestError, match="account own has half of the clients that maxClientCount allows, 8"):
        join(thieves[2], THIEF, "E")
    join(thieves[0], THIEF, "A", "B")  # it is in already
    join(FakeChannel(), OWNER, "A", "B", "C")
    with pytest.raises(RequestError, match="half"):
        join(thieves[2], THIEF, "E")
    assert table.closed(thieves[1]) == []
    join(thieves[2], THIEF, "E", "F")
    table.unregister(thieves[2], "E", consumer=False)
    table.unregister(thieves[2], "E", consumer=False)
    join(thieves[2], THIEF, "G")
    with pytest.raises(RequestError, match="half"):
        join(thieves[2], THIEF, "H")


@pytest.mark.parametrize("word", ["x", "X" * 64, "", None, 7, ["CLUSTERING"], "clustering", "\x1b[2J"])
def test_a_group_consumes_in_known_ways_only(word: Any) -> None:
    """A metric has a series for each way, and commands show it."""
    table, content = ClientTable(), body("G")
    content["consumerDataSet"][0] |= {"messageModel": word, "consumeType": word, "consumeFromWhere": word}
    done(table.heartbeat(FakeChannel(), content))
    group = table.consumer_group("G")
    assert group is not None
    assert (group.message_model, group.consume_type) == ("CLUSTERING", "CONSUME_PASSIVELY")
    assert group.consume_from_where == "CONSUME_FROM_LAST_OFFSET"


@pytest.mark.parametrize(
    ("thief", "owner", "is_taken_back"),
    [("10.0.0.9:1", "10.0.0.1:1", True), ("10.0.0.1:2", "10.0.0.1:1", False), ("10.0.0.8:1", "10.0.0.9:1", False)],
)
def test_who_comes_from_where_an_id_says_gets_the_replies_to_it(thief: str, owner: str, is_taken_back: bool) -> None:
    """Else a client that takes another account's id in advance, of a replica that becomes master, would get them."""
    table, content = ClientTable(), {"clientID": "10.0.0.1@orders", "producerDataSet": [{"groupName": "P"}]}
    first, second = FakeChannel(thief), FakeChannel(owner)
    done(table.heartbeat(first, content, principal=THIEF))
    done(table.heartbeat(second, content, principal=OWNER))
    assert table.producer_channel("10.0.0.1@orders") is (second if is_taken_back else first)
    done(table.heartbeat(first, content, principal=THIEF))
    assert table.producer_channel("10.0.0.1@orders") is (second if is_taken_back else first)


def test_no_id_of_a_producer_outlives_its_group() -> None:
    """A connection that joins and leaves under ever new ids would fill the memory, and keep the ids of others."""
    table, channel = ClientTable(), FakeChannel()
    done(table.heartbeat(channel, {"clientID": "stays", "producerDataSet": [{"groupName": "A"}]}))
    for number in range(3):
        content = {"clientID": f"c{number}", "producerDataSet": [{"groupName": "B"}, {"groupName": "C"}]}
        done(table.heartbeat(channel, content))
        table.unregister(channel, "B", consumer=False)
        assert table.producer_channel(f"c{number}") is channel, "it is in C"
        table.unregister(channel, "C", consumer=False)
    assert set(table._producer_clients) == {"stays"}
    table.closed(channel)
    assert not table._producer_clients
