"""An account asks anything with any fields: nothing of another account's is told, taken or changed."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rmqha.broker.requests.record_access import owner_topic
from rmqha.model.message import encode_properties, offset_message_id
from rmqha.store.log.record import decode
from rmqha.wire.command import Command
from tests.broker.rights.acl_world import FOREIGN, OWN, SCHEDULE, World
from tests.broker.support import Broker
from tests.broker.transactions import GIVEN_UP, HALF, OP
from tests.fuzz.budget import DEFAULT_EXAMPLE_COUNT, example_count

NAMES = [name for side in (OWN, OWN, OWN, FOREIGN) for name in (side.topic, side.group, side.retry, side.dead_letters)]
NAMES += [OWN.producers, FOREIGN.producers, SCHEDULE, HALF, OP, GIVEN_UP, "TBW102", "CID_RMQ_SYS_TRANS", "new", ""]
LETTERS = ("a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n")
NAME_FIELDS = (
    *("topic", "consumerGroup", "producerGroup", "group", "originTopic", "defaultTopic", "topicList", "groupName"),
    *("srcGroup", "destGroup", "namespace", "a", "b", "c"),
)
NUMBER_FIELDS = (
    *("queueId", "queueOffset", "offset", "commitOffset", "commitLogOffset", "tranStateTableOffset", "timestamp"),
    *("commitOrRollback", "sysFlag", "delayLevel", "maxMsgNums", "maxNum", "beginTimestamp", "endTimestamp"),
    *("reconsumeTimes", "maxReconsumeTimes", "suspendTimeoutMillis", *LETTERS[3:]),
)
KEYS = [f"key-{FOREIGN.name}", f"key-{OWN.name}", "ID-plain", f"ID-half-{FOREIGN.name}"]
MEMBERS = ("groupName", "topic", "subString", "brokerName", "clientID", "clientId", "queueId", "consumerGroup")
SETS = ("producerDataSet", "consumerDataSet", "subscriptionDataSet", "mqSet")


class Kept:
    """The world, made for the first example."""

    world: World | None = None


@pytest.fixture(scope="module", autouse=True)
def kept(tmp_path_factory: pytest.TempPathFactory) -> Any:
    broker = Broker(tmp_path_factory.mktemp("isolation"), max_hash_slot_num=64, max_index_num=4096)
    Kept.world = World(broker.start())
    yield
    broker.close()


def the_world() -> World:
    assert Kept.world is not None
    return Kept.world


def numbers(world: World) -> st.SearchStrategy[str]:
    offsets = [offset for side in (OWN, FOREIGN) for offset in world.records[side].all.values()]
    queue_offsets = [world.records[side].half_queue_offset for side in (OWN, FOREIGN)]
    return st.sampled_from([str(item) for item in (*offsets, *queue_offsets, 0, 1, 4, 6, 7, 8, 12, 17, -1, 1 << 60)])


def bodies() -> st.SearchStrategy[bytes]:
    """JSON as heartbeats and locks have it, and much that is not."""
    leaf: st.SearchStrategy[Any] = st.sampled_from([*NAMES, None, True, 0, 1, [], {}])
    item = st.recursive(
        st.dictionaries(st.sampled_from(MEMBERS), leaf, max_size=4),
        lambda inner: st.fixed_dictionaries(
            {}, optional=dict.fromkeys(SETS, st.lists(inner, max_size=2) | inner)
        ).flatmap(
            lambda sets: st.dictionaries(st.sampled_from(MEMBERS), leaf, max_size=3).map(lambda more: more | sets)
        ),
        max_leaves=6,
    )
    return st.one_of(st.just(b"x"), item.map(lambda value: json.dumps(value).encode()))


def properties() -> st.SearchStrategy[str]:
    names = ("REAL_TOPIC", "RETRY_TOPIC", "PGROUP", "DELAY", "TRAN_MSG", "KEYS", "UNIQ_KEY", "REAL_QID", "INNER_NUM")
    values = st.sampled_from([*NAMES, "true", "1", "18", *KEYS])
    pairs = st.dictionaries(st.sampled_from(names), values, max_size=4)
    return pairs.map(lambda found: encode_properties(found).decode())


@cache
def requests() -> st.SearchStrategy[Command]:
    world = the_world()
    number = numbers(world)
    more = {
        "properties": properties(),
        "i": properties(),
        "key": st.sampled_from(KEYS),
        "msgId": number.map(lambda offset: offset_message_id((b"\x7f\0\0\1", 1), max(0, int(offset)))),
        "clientID": st.sampled_from([OWN.client_id, FOREIGN.client_id]),
        "clientId": st.sampled_from([OWN.client_id, FOREIGN.client_id]),
        "_UNIQUE_KEY_QUERY": st.sampled_from(["true", "false"]),
        "fromTransactionCheck": st.sampled_from(["true", "false"]),
        "batch": st.sampled_from(["true", "false"]),
        "m": st.sampled_from(["true", "false"]),
        "subscription": st.just("*"),
        "onBehalfOf": st.sampled_from([FOREIGN.name, "operator"]),
    }
    return st.builds(
        lambda code, names, numbers, more, body: Command(code, names | numbers | more, body),
        st.sampled_from(sorted(world.broker.core.processor.codes)),
        st.dictionaries(st.sampled_from(NAME_FIELDS), st.sampled_from(NAMES), max_size=6),
        st.dictionaries(st.sampled_from(NUMBER_FIELDS), number, max_size=6),
        st.fixed_dictionaries({}, optional=more),
        bodies(),
    )


@settings(max_examples=max(DEFAULT_EXAMPLE_COUNT, example_count() // 8), suppress_health_check=list(HealthCheck))
@given(st.deferred(lambda: requests()))
def test_no_request_crosses_over_to_another_account(command: Command) -> None:
    world = the_world()
    before, end = world.foreign_state(), world.broker.store.max_phy_offset
    answers = world.ask(command)
    for answer in answers:
        assert FOREIGN.secret not in bytes(answer.body), command
    assert world.foreign_state() == before, command
    for record in world.stored_since(end):
        assert FOREIGN.secret not in record, command
        owner = owner_topic(decode(memoryview(record)))
        assert owner not in (FOREIGN.topic, FOREIGN.retry, FOREIGN.dead_letters), command
    told = [channel.take() for channel in world.channels.values()]
    assert told[1] == [], command
