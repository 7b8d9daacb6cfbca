"""Every field that a request may name, of its header, of the JSON of its body and of the properties of a message, with
what belongs to another account: nothing of that is told, taken or changed, counted or logged under its name.

The fields are read in the code that serves requests, so that none can be forgotten.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rmqha.broker.requests.consumer_calls import Done
from rmqha.broker.requests.record_access import owner_topic
from rmqha.broker.requests.request import FORWARDED, Channel
from rmqha.broker.services.health_source import BrokerHealthSource
from rmqha.broker.tables.groups import default_group
from rmqha.host.net.statistics import Statistics
from rmqha.model.access import AccessList
from rmqha.model.code import RequestCode
from rmqha.model.message import TIMER_PROPERTIES, encode_properties, offset_message_id
from rmqha.model.series import filled
from rmqha.store.log.record import decode
from rmqha.wire.auth.acl import ON_BEHALF_OF
from rmqha.wire.bodies import ONLY_EXISTING
from rmqha.wire.command import Command
from tests.broker.pop.world import INVISIBLE_MS, later, messages, pop_command
from tests.broker.rights.acl_world import FOREIGN, OWN, READER, SCHEDULE, World, end
from tests.broker.rights.test_acl_matrix import ROWS, Row
from tests.broker.rights.test_policy_matrix import DIRECTORY, OTHERWISE
from tests.broker.support import Broker, send_command
from tests.broker.transactions import HALF

ROOT = Path(__file__).parents[3] / "rmqha"
SERVING = ("broker", "wire/auth", "host/access/auth_filter.py", "wire/config_answer.py")
FIELD_READERS = frozenset({"text", "number", "truth"})
BODY_NAMES = frozenset(
    {"body", "item", "given", "value", "consumer", "settings", "subscription", "data", "found", "row"}
)
BODY_READERS = frozenset({"_either", "members", "_word", "_members"})
Tree = ast.AST
C = RequestCode


def trees() -> Iterator[Tree]:
    for name in SERVING:
        place = ROOT / name
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            yield from ast.walk(ast.parse(path.read_text()))


def text_of(node: Tree) -> list[str]:
    return [node.value] if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value else []


def name_of(node: Tree) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def read_by(node: Tree, is_read: Callable[[str], bool], readers: frozenset[str]) -> Iterator[str]:
    """Names that the code reads of a mapping called so, itself or by one of these functions."""
    if isinstance(node, ast.Subscript) and is_read(name_of(node.value)):
        yield from text_of(node.slice)
    elif isinstance(node, ast.Call) and name_of(node.func) in readers:
        for given in node.args[1:]:
            yield from text_of(given)
    elif (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("get", "pop")
        and is_read(name_of(node.func.value))
        and node.args
    ):
        yield from text_of(node.args[0])


class Names(NamedTuple):
    """Fields of headers, members of bodies, properties of messages, each sorted."""

    fields: list[str]
    members: list[str]
    properties: list[str]


@cache
def names() -> Names:
    """All that the serving code reads, and all properties that it knows."""
    fields, members = {ON_BEHALF_OF, FORWARDED, ONLY_EXISTING}, set[str]()
    properties = {"CORRELATION_ID", "MSG_TYPE", "TTL", "INSTANCE_ID", "BUYER_ID", "TRANSFER_FLAG"}
    for node in trees():
        fields |= set(read_by(node, lambda name: name == "ext", FIELD_READERS))
        members |= set(read_by(node, lambda name: name in BODY_NAMES, BODY_READERS))
    for path in ROOT.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Assign) and name_of(node.targets[0]).startswith("PROPERTY_"):
                properties |= set(text_of(node.value))
    return Names(sorted(fields), sorted(members), sorted(properties))


def test_the_fields_are_found() -> None:
    """Some of each kind, by each way in which the code reads them."""
    assert {"topic", "consumerGroup", "extraInfo", "recallHandle", "readable", "b", "topicList"} <= set(names().fields)
    assert {"acks", "consumerDataSet", "mqSet", "groupName", "so", "startOffset", "clientID"} <= set(names().members)
    assert {"REAL_TOPIC", "REPLY_TO_CLIENT", "TIMER_DEL_UNIQKEY", "rmqhaDueMs", "POP_CK"} <= set(names().properties)


NUMBERS = (2**31 - 1, 2**31, -(2**31), 2**32 - 1, 2**62, 2**63 - 1, 2**63, -(2**63))


class Drawn:
    """The world, what is another account's in it, and whom the broker has asked."""

    def __init__(self, broker: Broker, rows: Mapping[int, Row], access: AccessList | None) -> None:
        self.world = World(broker.start(), access)
        self.rows = rows
        self.own_topic = broker.core.topics.get(OWN.topic)
        assert self.own_topic is not None
        self.shown = BrokerHealthSource(broker.core, Statistics())
        self.asked: list[Channel] = []
        broker.shell.client_call = self._call
        answer = self.world.ask(pop_command(FOREIGN.topic, FOREIGN.group, maxMsgNums=1), FOREIGN.name)[-1]
        (self.popped,) = messages(answer, FOREIGN.topic, FOREIGN.group, broker.config.broker_name)
        later(broker, 2000)
        self.names = [
            *(FOREIGN.topic, FOREIGN.group, FOREIGN.retry, FOREIGN.dead_letters, *FOREIGN.popped_again),
            *(FOREIGN.producers, FOREIGN.client_id, FOREIGN.name, "operator", SCHEDULE, HALF),
        ]
        records = self.world.records[FOREIGN]
        at_ms = broker.clock.wall_ms() + 5000
        properties = encode_properties({"UNIQ_KEY": "ID-timer", "TIMER_DELIVER_MS": str(at_ms)}).decode()
        reply = broker.ask(send_command(FOREIGN.topic, 0, FOREIGN.secret + b" timer", i=properties))
        later(broker, 500)
        self.world.channels[FOREIGN].take()
        self.ids = [
            *(str(offset) for offset in (records.plain, records.half, records.half_queue_offset)),
            *(offset_message_id((b"\x7f\0\0\1", 1), offset) for offset in (records.plain, records.half)),
            reply.ext["recallHandle"],
            self.popped.receipt.encode(),
            *("", "-1", "true", "false", *map(str, NUMBERS)),
        ]

    def _call(self, channel: Channel, command: Command, timeout_ms: int, done: Done) -> None:
        self.asked.append(channel)
        done("no client of this test answers")

    @property
    def values(self) -> list[str]:
        return [*self.names, *self.ids]

    def counted(self) -> dict[tuple[str, ...], float]:
        """Numbers that metrics show under foreign names alone."""
        found = filled(self.shown.collect()).samples
        return {
            (series.name, sample.suffix, *map(str, sample.labels.items())): sample.value
            for series, samples in found.items()
            for sample in samples
            if FOREIGN.name in repr(sample.labels)
            and OWN.name not in repr(sample.labels)
            and "latency" not in series.name
        }

    def foreign_state(self) -> dict[str, Any]:
        found = self.world.foreign_state()
        del found["transactions"]  # how far all are looked through
        found["offsets"].pop(OWN.topic, None)  # they go with the topic
        found["producers"] = self.world.channels[FOREIGN] in found["producers"]  # users may join any group of producers
        return found

    def own_request(self, code: int) -> Command:
        """A request that is served, what earlier ones have done to the own topic being undone."""
        core = self.world.broker.core
        assert self.own_topic is not None
        if core.topics.get(OWN.topic) != self.own_topic:
            core.topics.put(self.own_topic)
        if core.groups.get(OWN.group) is None:
            core.groups.put(default_group(OWN.group))
        return self.rows[code].make(self.world, OWN, OWN)

    def must_not_cross(self, command: Command, key: str = OWN.name) -> None:
        """Ask, and look at all that is another account's."""
        world = self.world
        before, end = self.foreign_state(), world.broker.store.max_phy_offset
        asked = repr((command.code, command.ext, bytes(command.body)))
        for answer in world.ask(command, key):
            assert FOREIGN.secret not in bytes(answer.body) and FOREIGN.secret.decode() not in repr(answer.ext), asked
        assert self.foreign_state() == before, asked
        for record in world.stored_since(end):
            assert FOREIGN.secret not in record, asked
            assert FOREIGN.name not in owner_topic(decode(memoryview(record))), asked
        assert world.channels[FOREIGN].take() == [] and world.channels[FOREIGN] not in self.asked, asked


KEYS = {
    "max_hash_slot_num": 64,
    "max_index_num": 65_536,
    "recall_message_enable": True,
    "mapped_file_size_commit_log": 64 * 1024 * 1024,  # all that is stored is looked at in one file
}


@pytest.fixture(scope="module", params=["accounts", "policies"])
def drawn(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drawn]:
    """Shared by all: nothing that is drawn may change what they look at."""
    broker = Broker(tmp_path_factory.mktemp("fields"), **KEYS)
    is_by_policies = request.param == "policies"
    yield Drawn(broker, {**ROWS, **OTHERWISE} if is_by_policies else ROWS, DIRECTORY if is_by_policies else None)
    if broker.open:
        broker.close()


each_code = pytest.mark.parametrize("code", [pytest.param(code, id=RequestCode(code).name) for code in sorted(ROWS)])


@each_code
def test_no_field_of_a_header_reaches_what_is_anothers(drawn: Drawn, code: int) -> None:
    counted = drawn.counted()
    for value in drawn.values:
        for name in drawn.own_request(code).ext if drawn.rows[code].about != "admin" else ():
            command = drawn.own_request(code)
            command.ext[name] = value
            drawn.must_not_cross(command)
        for key in (OWN.name, READER):
            command = drawn.own_request(code)
            command.ext = dict.fromkeys(names().fields, value) | command.ext
            drawn.must_not_cross(command, key)
    assert drawn.counted() == counted


def changed(value: Any, new: Any) -> Iterator[Any]:
    """JSON values with one part changed, or with members that they lack."""
    if isinstance(value, dict):
        yield value | {name: new for name in names().members if name not in value}
        for name, part in value.items():
            for other in changed(part, new):
                yield value | {name: other}
    elif isinstance(value, list):
        yield [*value, new]
        for place, part in enumerate(value):
            for other in changed(part, new):
                yield [*value[:place], other, *value[place + 1 :]]
            if isinstance(part, dict):
                yield [*value, {name: new if isinstance(old, str) else old for name, old in part.items()}]
    else:
        yield new


def test_no_member_of_a_body_reaches_what_is_anothers(drawn: Drawn) -> None:
    counted, drawn_codes = drawn.counted(), set[int]()
    values: list[Any] = [*drawn.values, drawn.world.records[FOREIGN].plain, 0, None, [], {}]
    for code in sorted(drawn.rows):
        try:
            body = json.loads(bytes(drawn.own_request(code).body))
        except ValueError:
            continue  # it has none, or a message
        drawn_codes.add(code)
        if code == RequestCode.HEART_BEAT:
            body["producerDataSet"] = [{"groupName": OWN.producers}]
        for value in values:
            for other in changed(body, value):
                command = drawn.own_request(code)
                command.body = json.dumps(other).encode()
                drawn.must_not_cross(command)
    assert drawn.counted() == counted
    assert {C.HEART_BEAT, C.LOCK_BATCH_MQ, C.BATCH_ACK_MESSAGE, C.QUERY_ASSIGNMENT} <= drawn_codes


DECIDING = ("DELAY", *TIMER_PROPERTIES, "TIMER_OUT_MS", "TRAN_MSG", "INNER_NUM")
"""Properties that make a message one of another kind, or have it refused."""
SENDS = {
    C.SEND_MESSAGE: ("topic", "properties"),
    C.SEND_MESSAGE_V2: ("b", "i"),
    C.SEND_BATCH_MESSAGE: ("b", "i"),
    C.SEND_REPLY_MESSAGE: ("topic", "properties"),
    C.SEND_REPLY_MESSAGE_V2: ("b", "i"),
}
"""The fields that hold the topic and the properties."""


def with_properties(drawn: Drawn, code: int, properties: dict[str, str], topic: str) -> Command:
    command, encoded = drawn.own_request(code), encode_properties(properties)
    topic_field, properties_field = SENDS[RequestCode(code)]
    command.ext |= {topic_field: topic, properties_field: encoded.decode()}
    if code == RequestCode.SEND_BATCH_MESSAGE:
        head = (23 + len(encoded)).to_bytes(4, "big") + bytes(12) + (1).to_bytes(4, "big")
        command.body = head + b"x" + len(encoded).to_bytes(2, "big") + encoded
    return command


@pytest.mark.parametrize("code", SENDS)
@pytest.mark.parametrize("topic", [OWN.topic, OWN.retry, OWN.dead_letters])
def test_no_property_of_a_message_reaches_what_is_anothers(drawn: Drawn, code: int, topic: str) -> None:
    counted = drawn.counted()
    is_first = code == RequestCode.SEND_MESSAGE_V2 and topic == OWN.topic
    for value in (*drawn.names, "ID-timer", "", "1", "true"):
        for name in names().properties if is_first else ():
            drawn.must_not_cross(with_properties(drawn, code, {"UNIQ_KEY": "u", name: value}, topic))
        for kind in ({}, {"DELAY": "1"}, {"TIMER_DELAY_SEC": "1"}, {"TRAN_MSG": "true", "PGROUP": OWN.producers}):
            everything = dict.fromkeys(names().properties, value) | {"UNIQ_KEY": "u", "WAIT": "true"}
            for name in DECIDING:
                del everything[name]
            command = with_properties(drawn, code, everything | kind, topic)
            drawn.must_not_cross(command)
            command = with_properties(drawn, code, everything | kind, topic)
            command.ext |= {"j": "17", "l": "1", "reconsumeTimes": "17", "maxReconsumeTimes": "1"}
            drawn.must_not_cross(command)
    assert drawn.counted() == counted


def test_then_all_that_is_anothers_comes_as_if_nothing_had_been_asked(drawn: Drawn) -> None:
    """What waited comes, once, and nothing else to where it comes."""
    world, side = drawn.world, FOREIGN
    before = world.bodies(side.topic)
    later(world.broker, INVISIBLE_MS + 5000)
    assert world.bodies(side.topic) == [*before, side.secret + b" timer"]
    assert [body for topic in side.popped_again for body in world.bodies(topic)] == [drawn.popped.body]
    (answer,) = world.ask(end(world, side, topic=side.topic), side.name)
    assert answer.code == 0 and world.bodies(side.topic)[len(before) + 1 :] == [side.secret + b" half"]


def test_then_the_broker_starts_again(drawn: Drawn) -> None:
    """No record that it was made to store keeps it from that, and none is cut off."""
    broker = drawn.world.broker
    end_offset = broker.store.max_phy_offset
    broker.close()
    again = Broker(broker.directory, **KEYS).start()
    assert again.store.max_phy_offset >= end_offset and again.tracer.named("damaged") == []
    again.close()
