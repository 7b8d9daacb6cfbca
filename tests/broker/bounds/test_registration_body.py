"""Request 103 of a broker with many topics: only what has changed is encoded, and a name server reads it once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nameserver.route_info import RouteTable
from rmqha.broker.tables.config_table import DataVersion, pretty
from rmqha.broker.tables.topics import ENCODED_PER_STEP, TopicConfig, TopicTable
from rmqha.host.disk import HostDisk
from rmqha.model.code import RequestCode
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.error import RemoteProtocolError
from rmqha.wire import registration
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import dumps, loads
from rmqha.wire.registration import PACKED_AT_A_TIME, parse_registration
from tests.broker.support import topic_table
from tests.support.clock import ManualClock
from tests.support.steps import done
from tests.support.tracer import SilentTracer

GROUP = "broker-a"


def table_at(directory: Path) -> TopicTable:
    return topic_table(HostDisk(directory), BrokerConfig(), ManualClock())


def plain_body(table: TopicTable) -> bytes:
    return dumps({"filterServerList": [], "topicConfigSerializeWrapper": table.to_json()})


def request(table: TopicTable, *, address: str = "127.0.0.1:1", broker_id: int = 0, bare: bool = False) -> Command:
    """As the broker sends it; `bare`: without what is ours."""
    body, digest, version = done(table.registration())
    ext = {
        "brokerName": GROUP,
        "brokerAddr": address,
        "clusterName": "c",
        "brokerId": str(broker_id),
        "haServerAddr": address,
        "bodyCrc32": str(crc32(body) & 0x7FFFFFFF),
    }
    if not bare:
        ext["topicsDigest"] = digest
        ext["topicsVersion"] = ";".join(map(str, version.values()))
    return Command(RequestCode.REGISTER_BROKER, ext, body)


def test_the_body_is_what_an_encoder_of_the_whole_would_write(tmp_path: Path) -> None:
    """After each kind of change, and byte by byte: Apache's name servers read it."""
    table = table_at(tmp_path)

    def check() -> str:
        body, digest, version = done(table.registration())
        assert loads(body) == loads(plain_body(table)) and version == table.version.to_json()
        return digest

    digests = [check()]
    table.put(TopicConfig("one", 4, 4))
    digests.append(check())
    table.put(TopicConfig("one", 8, 8, attributes={"queue.type": 'Simple"CQ'}))
    digests.append(check())
    table.restore({"two": [0, 1, 2]})
    digests.append(check())
    table.remove("one")
    digests.append(check())
    table.apply({"dataVersion": {}, "topicConfigTable": {"four": TopicConfig("four", 1, 1).to_json()}})
    digests.append(check())
    table.replace({"three": TopicConfig("three", 1, 1)}, DataVersion(9, 9, 9))
    digests.append(check())
    assert len(set(digests)) == len(digests)
    table.new_epoch(10)
    assert check() == digests[-1], "the version is no part of the digest"


@given(names=st.lists(st.text(min_size=1, max_size=5), unique=True, max_size=5))
def test_any_name_is_written_as_the_encoder_would(names: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    table = table_at(tmp_path_factory.mktemp("names"))
    table.replace({name: TopicConfig(name, 1, 1) for name in names}, DataVersion(1, 1, 1))
    assert loads(done(table.registration()).body) == loads(plain_body(table))


def test_a_large_table_is_written_in_steps_and_may_change_meanwhile(tmp_path: Path) -> None:
    """What changes meanwhile may be in it, under the version from before: the next one tells the rest, and is read."""
    table = table_at(tmp_path)
    table.replace({f"T{number}": TopicConfig(f"T{number}", 1, 1) for number in range(5000)}, DataVersion(1, 1, 1))
    before, steps = table.version.to_json(), table.registration()
    for _ in range(10):
        next(steps)
    table.put(TopicConfig("T1", 8, 8))
    table.put(TopicConfig("new", 8, 8))
    table.remove("T2")
    mixed = done(steps)
    assert mixed.version == before and loads(mixed.body)["topicConfigSerializeWrapper"]["dataVersion"] == before
    again = done(table.registration())
    assert loads(again.body) == loads(plain_body(table)) and again.digest != mixed.digest
    assert again.version == table.version.to_json() != before
    assert not list(table.registration()), "what has not changed is kept"
    longest = max(count_encoded(table))
    assert longest <= ENCODED_PER_STEP


def test_a_compressed_body_is_written_in_steps_too(tmp_path: Path) -> None:
    """Of 99,000 topics it took 858 ms of one turn. Its topics are those of the moment of its version."""
    table = table_at(tmp_path)
    table.replace({f"T{number}": TopicConfig(f"T{number}", 1, 1) for number in range(5000)}, DataVersion(1, 1, 1))
    steps, command = table.packed_registration(), request(table, bare=True)
    step_count = 0
    for _ in range(10):
        next(steps)
        step_count += 1
    table.put(TopicConfig("T4999", 8, 8))
    while next(steps, command) is None:
        step_count += 1
    assert step_count >= 5000 / PACKED_AT_A_TIME
    command.body, command.ext["bodyCrc32"] = done(table.packed_registration()), "0"
    assert done(parse_registration(command)).topics["T4999"].read_queue_count == 8


def count_encoded(table: TopicTable) -> Iterator[int]:
    """Rows that each step of a registration of a table that was never told encodes."""
    whole = {name: topic for name in table.names() if (topic := table.get(name)) is not None}
    table.replace({name: replace(topic) for name, topic in whole.items()}, DataVersion(2, 2, 2))
    encoded, to_json = 0, TopicConfig.to_json

    def counted(topic: TopicConfig) -> dict[str, object]:
        nonlocal encoded
        encoded += 1
        return to_json(topic)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TopicConfig, "to_json", counted)
        for _ in table.registration():
            yield encoded
            encoded = 0
    yield encoded


def routed(tmp_path: Path) -> tuple[TopicTable, RouteTable]:
    table, routes = table_at(tmp_path), RouteTable(SilentTracer(), lite_timeout_ms=5000, register_timeout_ms=9000)
    table.put(TopicConfig("orders", 2, 2))
    return table, routes


def register(routes: RouteTable, command: Command) -> None:
    outcome = done(routes.register(0, 1, done(parse_registration(command, routes.topics_digest))))
    assert not outcome.ignored and not outcome.refusal


def test_topics_that_are_known_are_not_read_again_after_a_failover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, routes = routed(tmp_path)
    register(routes, request(table))
    monkeypatch.setattr(registration, "_read_plain", lambda body, table: pytest.fail("it was read again"))
    table.new_epoch(7)
    register(routes, request(table, address="127.0.0.1:2"))
    found = routes.route("orders")
    assert found is not None
    groups, queues = found
    assert groups[0].addresses == {0: "127.0.0.1:2"}
    assert queues[GROUP].read_queue_count == 2


def test_a_changed_table_is_read(tmp_path: Path) -> None:
    table, routes = routed(tmp_path)
    register(routes, request(table))
    table.put(TopicConfig("orders", 5, 5))
    register(routes, request(table))
    found = routes.route("orders")
    assert found is not None and found[1][GROUP].read_queue_count == 5


def test_a_topic_that_was_deleted_at_the_name_server_comes_back_with_the_next_change(tmp_path: Path) -> None:
    """The table is not what the digest says any more, so the next new version of it is read."""
    table, routes = routed(tmp_path)
    register(routes, request(table))
    routes.delete_topic("orders")
    assert routes.route("orders") is None
    table.new_epoch(3)
    register(routes, request(table))
    assert routes.route("orders") is not None


def test_a_broker_that_sends_no_digest_is_read_each_time(tmp_path: Path) -> None:
    table, routes = routed(tmp_path)
    register(routes, request(table))
    table.put(TopicConfig("orders", 3, 3))
    register(routes, request(table, bare=True))
    assert routes.topics_digest(GROUP) == ""
    table.put(TopicConfig("orders", 2, 2))
    register(routes, request(table))
    found = routes.route("orders")
    assert found is not None and found[1][GROUP].read_queue_count == 2


@pytest.mark.parametrize("text", ["", "1;2", "1;2;x", "1;2;3;4"])
def test_a_version_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    table, routes = routed(tmp_path)
    register(routes, request(table))
    command = request(table)
    command.ext["topicsVersion"] = text
    with pytest.raises(RemoteProtocolError):
        done(parse_registration(command, routes.topics_digest))


def test_the_file_is_what_one_encoding_of_the_whole_would_write(tmp_path: Path) -> None:
    """Only what has changed is encoded anew, and no byte differs from what Apache's broker would find."""
    table = table_at(tmp_path)

    def check() -> None:
        rows = {name: topic.to_json() for name in table.names() if (topic := table.get(name)) is not None}
        whole: dict[str, object] = {"dataVersion": table.version.to_json(), "topicConfigTable": rows}
        if table.deleted:
            whole["rmqhaDeletedTopics"] = sorted(table.deleted)
        assert (tmp_path / "config" / "topics.json").read_bytes() == pretty(whole).encode()

    table.put(TopicConfig("one", 4, 4, attributes={"queue.type": 'Simple"CQ'}))
    check()
    table.put(TopicConfig("two", 1, 1))
    check()
    table.put(TopicConfig("one", 8, 8))
    check()
    table.remove("two")
    check()


def test_the_form_is_fastjsons() -> None:
    value = {"a": {}, "é\n": [1, "x", {"c": None, 7: 1.5}], "t": True, "e": []}
    assert pretty(value) == (
        '{\n\t"a":{\n\t\t\n\t},\n\t"é\\n":[\n\t\t1,\n\t\t"x",\n\t\t{\n\t\t\t"c":null,\n\t\t\t7:1.5\n\t\t}\n\t],'
        '\n\t"t":true,\n\t"e":[\n\t\t\n\t]\n}'
    )


def test_the_compressed_body_says_the_same_of_routes(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    table.put(TopicConfig("Many", 3, 5, perm=4))
    command = request(table, bare=True)
    plain = done(parse_registration(command))
    command.body = done(table.packed_registration())
    command.ext |= {"compressed": "true", "bodyCrc32": str(crc32(command.body) & 0x7FFFFFFF)}
    packed = done(parse_registration(command))
    assert packed.version == plain.version and packed.topics.keys() == plain.topics.keys()
    assert packed.topics["Many"] == plain.topics["Many"]


@pytest.mark.parametrize("field", ["clusterName", "brokerName", "brokerAddr", "haServerAddr"])
@pytest.mark.parametrize("name", ["a\x1b[2J", "a\nb", "a\u202e", "a" * 256])
def test_names_that_cannot_be_shown_are_refused(field: str, name: str) -> None:
    ext = {"clusterName": "c", "brokerName": "b", "brokerAddr": "h:1", "haServerAddr": "h:2", "brokerId": "0"}
    done(parse_registration(Command(RequestCode.REGISTER_BROKER, ext)))
    with pytest.raises(RemoteProtocolError, match=f"^{field} .*(cannot be printed|more than 255 characters)$"):
        done(parse_registration(Command(RequestCode.REGISTER_BROKER, {**ext, field: name})))


def test_topics_that_cannot_be_shown_are_refused() -> None:
    ext = {"clusterName": "c", "brokerName": "b", "brokerAddr": "h:1", "brokerId": "0"}
    table: dict[str, Any] = {"topicConfigSerializeWrapper": {"topicConfigTable": {"T\x1b": {}}}}
    with pytest.raises(RemoteProtocolError, match="a topic whose name cannot be printed"):
        done(parse_registration(Command(RequestCode.REGISTER_BROKER, ext, dumps(table))))
