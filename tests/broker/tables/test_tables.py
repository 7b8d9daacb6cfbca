"""Topics, groups, offsets and the files they live in."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import tarfile
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
import zstandard

from rmqha.broker.tables import config_table
from rmqha.broker.tables.config_table import DataVersion
from rmqha.broker.tables.delay_offsets import DelayOffsetTable
from rmqha.broker.tables.groups import SYSTEM_GROUPS, GroupTable, parse_table
from rmqha.broker.tables.offsets import OffsetTable
from rmqha.broker.tables.topics import TopicConfig, TopicTable, merge_attributes
from rmqha.host.disk import HostDisk
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.error import StoreError
from rmqha.wire import lenient_json
from rmqha.wire.body_bound import body_refusal
from rmqha.wire.command import Command
from tests.broker.support import (
    GOLDEN,
    Broker,
    FakeChannel,
    FakeLog,
    TableListener,
    group_table,
    send_command,
    topic_table,
)
from tests.support.clock import ManualClock


@pytest.fixture(scope="module")
def java_config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a real broker, its config files only."""
    root = tmp_path_factory.mktemp("java")
    with (GOLDEN / "store" / "n0.tar.zst").open("rb") as packed:
        data = zstandard.ZstdDecompressor().stream_reader(packed).read()
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive.getmembers():
            if "/config/" in member.name and member.isfile():
                (root / "config").mkdir(exist_ok=True)
                found = archive.extractfile(member)
                assert found is not None
                (root / "config" / Path(member.name).name).write_bytes(found.read())
    return root


def as_java_wrote(value: Any) -> Any:
    """The lenient parser gives integer keys as text; give them back as integers."""
    if isinstance(value, dict):
        return {int(key) if key.isdigit() else key: as_java_wrote(item) for key, item in value.items()}
    return [as_java_wrote(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", ["topics", "subscriptionGroup", "consumerOffset", "delayOffset"])
def test_files_are_written_as_java_writes_them(java_config: Path, name: str) -> None:
    written = (java_config / "config" / f"{name}.json").read_bytes()
    assert config_table.encode(as_java_wrote(lenient_json.loads(written))) == written


def test_a_java_brokers_tables_are_read(java_config: Path) -> None:
    disk, clock = HostDisk(java_config), ManualClock()
    config = BrokerConfig(broker_cluster_name="GoldCluster", broker_name="gold-a", default_topic_queue_nums=4)
    topics, groups, offsets = (
        topic_table(disk, config, clock),
        group_table(disk, clock),
        OffsetTable(disk, TableListener()),
    )
    assert topics.get("GoldTxn") == TopicConfig("GoldTxn", 2, 2, 6, attributes={"message.type": "TRANSACTION"})
    assert (topics.version.counter, topics.epoch) == (116, 4)
    group = groups.get("GID_goldretry")
    assert group is not None and group["retryMaxTimes"] == 16
    assert [offsets.query("GID_gold", "GoldNormal", queue_id) for queue_id in range(5)] == [90, 100, 90, 80, None]


def test_every_table_comes_back_after_a_restart(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker().start()
    broker.ask(send_command("Kept", d="3"))
    broker.core.groups.get_or_create("G")
    broker.core.offsets.commit("G", "Kept", 2, 7)
    before = broker.core.topics.version
    broker.close()
    again = make_broker()
    assert again.core.topics.get("Kept") == TopicConfig("Kept", 3, 3)
    assert again.core.topics.version == before
    assert again.core.groups.get("G") is not None
    assert again.core.offsets.query("G", "Kept", 2) == 7
    text = (again.directory / "config" / "consumerOffset.json").read_text()
    assert '"Kept@G":{\n\t\t\t2:7\n' in text


NAMES = ("topics", "subscriptionGroup", "consumerOffset", "delayOffset")


def table_of(name: str, directory: Path) -> Any:
    disk, clock = HostDisk(directory), ManualClock()
    match name:
        case "topics":
            return topic_table(disk, BrokerConfig(auto_create_topic_enable=False), clock)
        case "subscriptionGroup":
            return group_table(disk, clock)
        case "consumerOffset":
            return OffsetTable(disk, TableListener())
    return DelayOffsetTable(disk, clock, FakeLog(), TableListener())


def change_something(table: Any) -> None:
    """One change, and the file is written."""
    match table:
        case TopicTable():
            table.put(TopicConfig("New", 1, 1))
        case GroupTable():
            table.get_or_create("New")
        case OffsetTable():
            table.commit("New", "New", 0, 1)
            offsets = table.unsaved()
            assert offsets is not None
            table.write(offsets)
        case DelayOffsetTable():
            table.put(9, 1)
            deliveries = table.unsaved()
            assert deliveries is not None
            table.write(deliveries)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"topicConfigTable":5,"subscriptionGroupTable":5,"offsetTable":5}',
        '{"topicConfigTable":{"T":5},"subscriptionGroupTable":{"G":5},"offsetTable":{"T@G":5}}',
        '{"dataVersion":{"counter":"x"}}',
    ],
)
def test_a_damaged_table_is_a_sentence(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / f"{name}.json").write_text(text)
    with pytest.raises(StoreError, match=rf"config/{name}\.json cannot be read \(.*\); restore config"):
        table_of(name, tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_a_damaged_table_gives_way_to_its_backup(java_config: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "config").mkdir()
    good = (java_config / "config" / f"{name}.json").read_bytes()
    (tmp_path / "config" / f"{name}.json").write_bytes(good[:-20])
    (tmp_path / "config" / f"{name}.json.bak").write_bytes(good)
    table = table_of(name, tmp_path)
    (line,) = table.findings
    assert line.endswith(f"config/{name}.json.bak was taken instead.")
    assert table.version.counter == lenient_json.loads(good)["dataVersion"]["counter"]
    change_something(table)
    assert (tmp_path / "config" / f"{name}.json.bak").read_bytes() == good
    assert table_of(name, tmp_path).findings == []


@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_understood_is_kept(java_config: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "config").mkdir()
    path = tmp_path / "config" / f"{name}.json"
    body = lenient_json.loads((java_config / "config" / f"{name}.json").read_bytes())
    body["newMember"] = {"a": [1, None]}
    if name == "topics":
        body["topicConfigTable"]["GoldTxn"]["newMember"] = "x"
    if name == "subscriptionGroup":
        body["subscriptionGroupTable"]["GID_goldretry"]["newMember"] = "x"
    path.write_bytes(lenient_json.dumps(body))
    change_something(table_of(name, tmp_path))
    after = lenient_json.loads(path.read_bytes())
    assert lenient_json.loads((tmp_path / "config" / f"{name}.json.bak").read_bytes()) == body
    for table in ("topicConfigTable", "subscriptionGroupTable", "offsetTable"):
        kept = after.pop(table, {})
        assert {key: kept[key] for key in body.get(table, {})} == body.pop(table, {})
    assert after.pop("dataVersion") and body.pop("dataVersion")
    after.pop("groupTopicMap", None), body.pop("groupTopicMap", None), after.pop("rmqhaOffsetVersions", None)
    assert after == body


def test_a_topic_keeps_what_is_not_understood_when_it_is_updated(broker: Broker) -> None:
    broker.core.topics.put(TopicConfig("T", 1, 1, unknown={"newMember": "x"}))
    ext = {"topic": "T", "readQueueNums": "2", "writeQueueNums": "2"}
    assert broker.ask(Command(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)).code == 0
    assert broker.core.topics.get("T") == TopicConfig("T", 2, 2, unknown={"newMember": "x"})


def test_consumer_offsets_follow_a_cut_of_the_log(broker: Broker) -> None:
    ends = []
    for number in range(10):
        broker.ask(send_command(queue_id=number % 2))
        ends.append(broker.store.max_phy_offset)
    for queue_id, offset in ((0, 5), (1, 2)):
        broker.core.offsets.commit("G", "T", queue_id, offset)
    broker.core.offsets.commit("G", "Gone", 0, 3)
    broker.store.truncate(ends[5])
    assert [broker.core.offsets.query("G", "T", queue_id) for queue_id in (0, 1)] == [3, 2]
    assert broker.core.offsets.query("G", "Gone", 0) == 0
    assert ("consumer_offsets_clamped", {"count": 2}) in broker.tracer.events


def test_a_cut_lowers_no_offset_for_what_is_only_not_dispatched_yet(broker: Broker) -> None:
    channel, ends = FakeChannel(), []
    for number in range(6):
        broker.core.processor.received(channel, [send_command(queue_id=number % 2)])
        ends.append(broker.store.max_phy_offset)
    for queue_id in (0, 1):
        broker.core.offsets.commit("G", "T", queue_id, 3)
    assert broker.core.store.queue_range("T", 0)[1] == 0
    broker.store.truncate(ends[4])
    assert [broker.core.offsets.query("G", "T", queue_id) for queue_id in (0, 1)] == [3, 2]


def test_a_new_master_knows_no_offset_behind_a_queue(make_broker: Callable[..., Broker]) -> None:
    """Else a consumer would begin behind messages that are yet to come."""
    broker = make_broker()
    broker.core.offsets.commit("G", "T", 0, 7)
    broker.start()
    assert broker.core.offsets.query("G", "T", 0) == 0


def test_the_backup_serves_where_java_left_only_that(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "consumerOffset.json").write_text("")
    (tmp_path / "config" / "consumerOffset.json.bak").write_text('{"offsetTable":{"T@G":{"1":5}}}')
    assert OffsetTable(HostDisk(tmp_path), TableListener()).query("G", "T", 1) == 5


def test_offsets_are_written_once_per_change(tmp_path: Path) -> None:
    table = OffsetTable(HostDisk(tmp_path), TableListener())
    assert table.unsaved() is None
    table.commit("G", "T", 0, 3)
    assert table.unsaved() is not None and table.unsaved() is None
    table.commit("G", "T", 0, 3)
    assert table.unsaved() is None
    table.commit("G", "T", 0, 2)  # a reset backwards is a commit like any other
    assert table.unsaved() is not None and table.query("G", "T", 0) == 2


def test_update_topic(broker: Broker) -> None:
    ext = {"topic": "New", "readQueueNums": "3", "writeQueueNums": "2", "perm": "6", "order": "true"}
    assert (
        broker.ask(Command(RequestCode.UPDATE_AND_CREATE_TOPIC, {**ext, "attributes": "+message.type=FIFO"})).code == 0
    )
    shown = broker.ask(Command(RequestCode.GET_TOPIC_CONFIG, {"topic": "New", "lo": "true"}))
    assert json.loads(bytes(shown.body)) == {
        "attributes": {"message.type": "FIFO"},
        "order": True,
        "perm": 6,
        "readQueueNums": 3,
        "topicFilterType": "SINGLE_TAG",
        "topicName": "New",
        "topicSysFlag": 0,
        "writeQueueNums": 2,
    }
    counter = broker.core.topics.version.counter
    broker.ask(Command(RequestCode.UPDATE_AND_CREATE_TOPIC, ext))
    assert broker.core.topics.version.counter == counter  # the same again is no change
    missing = broker.ask(Command(RequestCode.GET_TOPIC_CONFIG, {"topic": "Nope"}))
    assert missing.code == ResponseCode.TOPIC_NOT_EXIST


def test_the_type_of_queues_is_given_once(broker: Broker) -> None:
    def update(topic: str, attributes: str = "") -> Command:
        ext = {"topic": topic, "readQueueNums": "1", "writeQueueNums": "1", "attributes": attributes}
        return broker.ask(Command(RequestCode.UPDATE_AND_CREATE_TOPIC, ext))

    assert update("B", "+queue.type=BatchCQ").code == 0
    assert update("S").code == 0
    assert update("B", "+message.type=NORMAL").code == 0
    for topic, attributes in (("B", "-queue.type"), ("B", "+queue.type=SimpleCQ"), ("S", "+queue.type=BatchCQ")):
        reply = update(topic, attributes)
        assert reply.code == ResponseCode.SYSTEM_ERROR
        assert reply.remark == "attempt to update an unchangeable attribute. key: queue.type"
    reply = update("N", "+queue.type=BatchQC")
    assert (reply.code, reply.remark) == (
        ResponseCode.SYSTEM_ERROR,
        "queue.type must be BatchCQ or SimpleCQ, not 'BatchQC'",
    )
    assert broker.core.topics.batch_topics() == {"B"} == broker.store.batch_topics


def test_a_topic_that_is_made_anew_has_the_queues_that_it_had(broker: Broker) -> None:
    """They stay when it is deleted: the next master would make it a BatchCQ topic, which nobody can pop."""

    def update(attributes: str) -> Command:
        ext = {"topic": "B", "readQueueNums": "1", "writeQueueNums": "1", "attributes": attributes}
        return broker.ask(Command(RequestCode.UPDATE_AND_CREATE_TOPIC, ext))

    assert update("+queue.type=BatchCQ").code == 0
    assert broker.ask(send_command("B")).code == 0
    assert broker.ask(Command(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "B"})).code == 0
    reply = update("")
    assert reply.code == ResponseCode.SYSTEM_ERROR and "make it with +queue.type=BatchCQ" in (reply.remark or "")
    assert update("+queue.type=SimpleCQ").code == ResponseCode.SYSTEM_ERROR and broker.core.topics.get("B") is None
    assert broker.ask(send_command("B")).code == 0
    made = broker.core.topics.get("B")
    assert made is not None and made.is_batch, "the first send makes it"
    assert broker.ask(Command(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "B"})).code == 0
    assert update("+queue.type=BatchCQ").code == 0
    assert broker.ask(send_command("B")).code == 0 and broker.store.queue_range("B", 0)[1] == 3


def test_a_slave_learns_the_type_with_the_table(broker: Broker) -> None:
    broker.ask(send_command("Late"))
    late = broker.core.topics.get("Late")
    assert late is not None and broker.store.queue_range("Late", 0) == (0, 1)
    changed = dataclasses.replace(late, attributes={"queue.type": "BatchCQ"})
    broker.core.topics.replace({"Late": changed}, DataVersion(1, 1, 1))
    assert broker.store.batch_topics == {"Late"}
    assert broker.store.queue_range("Late", 0) == (0, 1)
    assert (broker.directory / "batchconsumequeue" / "Late" / "0").exists()
    assert not (broker.directory / "consumequeue" / "Late").exists()


def test_restored_topics_have_the_type_of_their_queues(tmp_path: Path) -> None:
    table = topic_table(HostDisk(tmp_path), BrokerConfig(), ManualClock())
    table.put(TopicConfig("Known", 4, 2, attributes={"message.type": "NORMAL"}))
    assert table.restore({"Known": [0], "New": [0, 1], "Plain": [0]}, {"Known", "New"}) == ["Known", "New", "Plain"]
    assert table.get("Known") == TopicConfig(
        "Known", 4, 2, attributes={"message.type": "NORMAL", "queue.type": "BatchCQ"}
    )
    assert table.get("New") == TopicConfig("New", 2, 2, attributes={"queue.type": "BatchCQ"})
    assert table.get("Plain") == TopicConfig("Plain", 1, 1)
    assert table.restore({"Known": [0], "New": [0, 1], "Plain": [0]}, {"Known", "New"}) == []


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"topic": "a/b"}, ResponseCode.INVALID_PARAMETER),
        ({"topic": "TBW102"}, ResponseCode.INVALID_PARAMETER),
        ({"topic": "RMQ_SYS_TRANS_HALF_TOPIC"}, ResponseCode.INVALID_PARAMETER),
        ({"readQueueNums": "1025"}, ResponseCode.SYSTEM_ERROR),
        ({"writeQueueNums": "-1"}, ResponseCode.SYSTEM_ERROR),
        ({"perm": "8"}, ResponseCode.SYSTEM_ERROR),
        ({"attributes": "message.type=FIFO"}, ResponseCode.SYSTEM_ERROR),
    ],
)
def test_update_topic_refuses(broker: Broker, change: dict[str, str], code: ResponseCode) -> None:
    reply = broker.ask(Command(RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": "New", **change}))
    assert reply.code == code and reply.remark
    assert broker.core.topics.get("New") is None


def test_merge_attributes() -> None:
    present = {"a": "1", "message.type": "FIFO"}
    changed = merge_attributes(present, "+reserve.time=-1,-a,+message.type=PRIORITY,-reserve.time,+reserve.time=72")
    assert changed == {"message.type": "PRIORITY", "reserve.time": "72"}
    assert merge_attributes({}, "") == {}
    for wrong in ("+a", "-a=1", "+=1", "x"):
        with pytest.raises(ValueError, match="attribute"):
            merge_attributes({}, wrong)


@pytest.mark.parametrize(
    ("present", "change", "sentence"),
    [
        (None, "+cleanup.policy=COMPACTION", "cleanup.policy=COMPACTION is not offered: this broker removes whole"),
        ({}, "+cleanup.policy=COMPACTION", "attempt to update an unchangeable attribute. key: cleanup.policy"),
        (None, "+cleanup.policy=compaction", "cleanup.policy must be DELETE or COMPACTION, not 'compaction'"),
        (None, "+message.type=fifo", "message.type must be DELAY or FIFO or "),
        ({}, "+reserve.time=3d", "reserve.time must be a number of hours or -1, not '3d'"),
        ({}, "+mesage.type=FIFO", "unsupported key: mesage.type"),
        ({}, "-mesage.type", "unsupported key: mesage.type"),
    ],
)
def test_attributes_that_cannot_be(present: dict[str, str] | None, change: str, sentence: str) -> None:
    """RocketMQ refuses them too, but for the first one: a topic that is kept by its keys."""
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}"):
        merge_attributes(present, change)
    if present is None:
        assert merge_attributes(None, "+cleanup.policy=DELETE") == {"cleanup.policy": "DELETE"}


def test_a_new_master_restores_topics_that_only_the_queues_know(make_broker: Callable[..., Broker]) -> None:
    first = make_broker().start()
    first.ask(send_command("Lost", queue_id=2, d="8"))
    first.ask(send_command("Kept", queue_id=1))
    first.close()
    for name in ("topics.json", "topics.json.bak"):
        (first.directory / "config" / name).unlink()
    again = make_broker()
    before = again.shell.topic_changes
    again.start()
    assert again.core.topics.get("Lost") == TopicConfig("Lost", 3, 3)
    assert ("topics_restored", {"topics": ["Kept", "Lost"]}) in again.tracer.events
    assert again.shell.topic_changes > before


def test_restore_widens_a_topic_that_has_more_queues_on_disk(tmp_path: Path) -> None:
    table = topic_table(HostDisk(tmp_path), BrokerConfig(), ManualClock())
    table.put(TopicConfig("T", 1, 4, 4, attributes={"a": "b"}))
    assert table.restore({"T": [0, 2], "Empty": []}) == ["T"]
    assert table.get("T") == TopicConfig("T", 3, 4, 4, attributes={"a": "b"})


def test_a_failover_gives_back_no_queue_to_write_to_that_an_operator_took_away(tmp_path: Path) -> None:
    table = topic_table(HostDisk(tmp_path), BrokerConfig(), ManualClock())
    table.put(TopicConfig("T", 2, 2))
    assert table.restore({"T": list(range(8))}) == ["T"]
    assert table.get("T") == TopicConfig("T", 8, 2), "what lies in the others can still be read"


def test_slices(broker: Broker) -> None:
    ext = {"topicSeq": "1", "maxTopicNum": "2", "dataVersion": ""}
    reply = broker.ask(Command(RequestCode.GET_ALL_TOPIC_CONFIG, ext))
    names = broker.core.topics.names()
    assert reply.ext == {"totalTopicNum": str(len(names))}
    assert list(json.loads(bytes(reply.body))["topicConfigTable"]) == names[1:3]
    everything = broker.ask(Command(RequestCode.GET_ALL_TOPIC_CONFIG))
    assert list(json.loads(bytes(everything.body))["topicConfigTable"]) == names


def test_groups(broker: Broker) -> None:
    body = lenient_json.dumps({"groupName": "G", "retryMaxTimes": 3})
    assert broker.ask(Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)).code == 0
    table = json.loads(bytes(broker.ask(Command(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)).body))
    assert table["subscriptionGroupTable"]["G"]["retryMaxTimes"] == 3
    assert table["subscriptionGroupTable"]["G"]["consumeEnable"] is True
    reply = broker.ask(Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b"x"))
    assert reply.code == ResponseCode.SYSTEM_ERROR
    allowed = "allowing only ^[%|a-zA-Z0-9_-]+$"
    for wrong, remark in (
        (b"[]", "The specified group is blank."),
        (b"{}", "The specified group is blank."),
        (b'{"groupName":7}', "The specified group is blank."),
        (b'{"groupName":"a/b"}', f"The specified group: a/b, contains illegal characters, {allowed}"),
        (
            lenient_json.dumps({"groupName": "g" * 121}),
            f"The specified group: {'g' * 121}, is longer than group max length: 120",
        ),
    ):
        reply = broker.ask(Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, wrong))
        assert (reply.code, reply.remark) == (ResponseCode.INVALID_PARAMETER, remark)


def test_only_a_master_changes_tables(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker()
    broker.controller.master = 2
    broker.start()
    body = lenient_json.dumps({"groupName": "G"})
    for command in (
        Command(RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": "New"}),
        Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body),
    ):
        reply = broker.ask(command)
        assert reply.code == ResponseCode.SYSTEM_ERROR and "not the master" in (reply.remark or "")


@pytest.mark.parametrize("name", ["RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"])
def test_slaves_of_apaches_are_told_of_the_topics_that_they_need_as_masters(tmp_path: Path, name: str) -> None:
    """Such a slave drops what its master does not have, and hangs in its next change from master to slave."""
    broker = Broker(tmp_path).start()
    reply = broker.ask(Command(RequestCode.GET_ALL_TOPIC_CONFIG))
    assert name in lenient_json.loads(reply.body)["topicConfigTable"]
    assert broker.ask(send_command(topic=name)).code == ResponseCode.NO_PERMISSION
    broker.close()


@pytest.mark.parametrize("table", [TopicTable, GroupTable])
def test_a_version_is_an_int_of_java_and_given_once(tmp_path: Path, table: type[Any]) -> None:
    """fastjson2 reads the counter as an int: Apache's name server refused registrations with a larger one."""
    clock, disk = ManualClock(), HostDisk(tmp_path)

    def opened() -> Any:
        return topic_table(disk, BrokerConfig(), clock) if table is TopicTable else group_table(disk, clock)

    told: set[Any] = set()
    for epoch in (1, 1, 2, 2, 2, 3):
        life = opened()
        life.new_epoch(epoch)
        for _ in range(3):
            if isinstance(life, TopicTable):
                life.put(TopicConfig("T", 1, 1))
            else:
                life.get_or_create(f"G{len(told)}")
            assert life.version.stamp not in told and life.version.counter < 2**31
            told.add(life.version.stamp)
        # killed: the file lacks the last life


def test_a_counter_near_its_end_begins_anew_with_the_next_epoch(tmp_path: Path) -> None:
    groups = group_table(HostDisk(tmp_path), ManualClock())
    groups.new_epoch(1)
    groups.version.counter = 2**31 - 2
    groups.new_epoch(2)
    assert groups.version.counter == 1


def test_the_groups_of_rocketmqs_broker_are_there_from_the_beginning(tmp_path: Path) -> None:
    disk = HostDisk(tmp_path)
    table = group_table(disk, ManualClock())
    assert table.names() == sorted(SYSTEM_GROUPS) and table.unsaved() is None
    table.put({"groupName": "TOOLS_CONSUMER", "retryMaxTimes": 3})
    table.remove("SELF_TEST_C_GROUP")
    table.save()
    again = group_table(disk, ManualClock())
    assert again.names() == sorted(SYSTEM_GROUPS), "as with RocketMQ, one that was deleted is back"
    tools = again.get("TOOLS_CONSUMER")
    assert tools is not None and tools["retryMaxTimes"] == 3


def test_the_groups_of_rocketmqs_broker_do_not_count_for_the_bound(tmp_path: Path) -> None:
    table = group_table(HostDisk(tmp_path), ManualClock(), BrokerConfig(max_group_count=1))
    table.remove("SELF_TEST_C_GROUP")
    assert table.get_or_create("G") is not None and "maxGroupCount" in table.creation_refusal("More")


def test_the_system_topics_are_those_of_rocketmqs_broker(tmp_path: Path) -> None:
    """Name, queues to read and write, permission: as its topics.json has them at its first start; `make interop` asks
    it. Tools count them, and its slaves drop what their master lacks."""
    config = BrokerConfig(broker_cluster_name="c", broker_name="b")
    table = topic_table(HostDisk(tmp_path), config, ManualClock())
    found = {
        name: (topic.read_queue_count, topic.write_queue_count, topic.perm)
        for name in table.names()
        if (topic := table.get(name))
    }
    assert found == {
        "BenchmarkTest": (1024, 1024, 6),
        "OFFSET_MOVED_EVENT": (1, 1, 6),
        "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC": (1, 1, 6),
        "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC": (1, 1, 6),
        "RMQ_SYS_TRANS_HALF_TOPIC": (1, 1, 6),
        "RMQ_SYS_TRANS_OP_HALF_TOPIC": (1, 1, 6),
        "SCHEDULE_TOPIC_XXXX": (18, 18, 6),
        "SELF_TEST_TOPIC": (1, 1, 6),
        "TBW102": (8, 8, 7),
        "b": (1, 1, 7),
        "c": (16, 16, 7),
        "c_REPLY_TOPIC": (1, 1, 6),
        "rmq_sys_REVIVE_LOG_c": (8, 8, 6),
        "rmq_sys_SYNC_BROKER_MEMBER_b": (1, 1, 1),
        "rmq_sys_wheel_timer": (1, 1, 6),
    }


def list_command(code: RequestCode, members: object) -> Command:
    name = "topicConfigList" if code is RequestCode.UPDATE_AND_CREATE_TOPIC_LIST else "groupConfigList"
    return Command(code, {}, json.dumps({name: members}).encode())


TOPICS, GROUPS = RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST


def test_a_list_of_topics(broker: Broker) -> None:
    """As mqadmin updateTopicList sends it: made and changed, also those behind one that is as it was."""
    broker.core.topics.put(TopicConfig("Same", 16, 16))
    broker.core.topics.put(TopicConfig("Kept", 4, 4, attributes={"message.type": "FIFO", "a": "b"}))
    more = [{"topicName": f"T{number}"} for number in range(40)]
    kept = {"topicName": "Kept", "readQueueNums": 5, "writeQueueNums": 3, "perm": 4, "order": True, "topicSysFlag": 1,
            "attributes": {"+reserve.time": "24", "-message.type": ""}}  # fmt: skip
    assert broker.ask(list_command(TOPICS, [{"topicName": "Same"}, kept, *more])).code == 0
    assert broker.core.topics.get("Kept") == TopicConfig(
        "Kept", 5, 3, 4, 1, True, attributes={"a": "b", "reserve.time": "24"}
    )
    assert [broker.core.topics.get(f"T{number}") for number in range(40)] == [
        TopicConfig(f"T{number}", 16, 16) for number in range(40)
    ]


def test_a_change_that_comes_between_the_steps_of_a_list_is_kept(broker: Broker) -> None:
    """The list is looked at in steps: who changes one of its topics meanwhile is not undone."""
    broker.core.topics.put(TopicConfig("Shared", 4, 4, attributes={"old": "1"}))
    members = [
        {"topicName": "Shared", "attributes": {"+reserve.time": "24"}},
        *({"topicName": f"T{number}"} for number in range(100)),
        {"topicName": "T7", "attributes": {"+reserve.time": "9"}},
    ]
    channel, command = FakeChannel(), list_command(TOPICS, members)
    steps = broker.core.tables.handlers()[TOPICS](channel, command)
    assert isinstance(steps, Generator)
    next(steps)
    broker.core.topics.put(TopicConfig("Shared", 8, 8, attributes={"old": "2", "new": "3"}))
    broker.core.topics.put(TopicConfig("T7", 8, 8, attributes={"a": "b"}))
    for _ in steps:
        pass
    assert channel.one().code == 0
    found = [broker.core.topics.get(name) for name in ("Shared", "T7")]
    assert [topic.attributes for topic in found if topic is not None] == [
        {"old": "2", "new": "3", "reserve.time": "24"},
        {"a": "b", "reserve.time": "9"},
    ]


@pytest.mark.parametrize(
    ("members", "code", "remark"),
    [
        (None, 1, "the body of request 18 has no list topicConfigList"),
        (["T"], 1, "the body of request 18 has no list topicConfigList"),
        ([{"topicName": "Good"}, {"topicName": "a/b"}], 29, "illegal characters"),
        ([{"topicName": "Good"}, {"topicName": None}], 29, "blank"),
        ([{"topicName": "Good"}, {"topicName": "TBW102"}], 29, "conflict with system topic"),
        ([{"topicName": "Good"}, {"topicName": "B", "perm": 64}], 1, "64 is no permission"),
        ([{"topicName": "Good"}, {"topicName": "B", "readQueueNums": "x"}], 1, "is no topic"),
        ([{"topicName": "Good"}, {"topicName": "B", "attributes": [1]}], 1, "is no topic"),
        ([{"topicName": "Good"}, {"topicName": "B", "attributes": {"a": "b"}}], 1, "must be +name=value or -name"),
        ([{"topicName": "Good"}, {"topicName": "B", "topicSysFlag": 1 << 40}], 1, "not a 32 bit integer"),
    ],
)
def test_a_list_with_a_wrong_topic_changes_nothing(broker: Broker, members: object, code: int, remark: str) -> None:
    before = set(broker.core.topics.names())
    reply = broker.ask(list_command(TOPICS, members))
    assert reply.code == code and remark in (reply.remark or "")
    assert set(broker.core.topics.names()) == before


def test_a_long_list_is_made_whole(broker: Broker) -> None:
    """As mqadmin writes it, with all members."""
    shape = {"order": False, "perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "attributes": {}}
    names = [f"topic-{number:04d}" for number in range(1000)]
    command = list_command(TOPICS, [{**shape, "topicName": name, "readQueueNums": 2} for name in names])
    assert body_refusal(command) == ""
    assert broker.ask(command).code == 0
    assert set(names) <= set(broker.core.topics.names())


def test_a_list_of_groups(broker: Broker) -> None:
    members = [{"groupName": f"G{number}", "retryMaxTimes": number} for number in range(40)]
    assert broker.ask(list_command(GROUPS, members)).code == 0
    for number in range(40):
        settings = broker.core.groups.get(f"G{number}")
        assert settings is not None and settings["retryMaxTimes"] == number and settings["consumeEnable"] is True
    for wrong in ({"groupName": "a b"}, {"groupName": 7}, {"groupName": "H", "retryMaxTimes": "x"}):
        reply = broker.ask(list_command(GROUPS, [{"groupName": "New"}, wrong]))
        assert reply.code == ResponseCode.INVALID_PARAMETER and broker.core.groups.get("New") is None
    assert broker.ask(list_command(GROUPS, {})).code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize("code", [TOPICS, GROUPS])
def test_only_a_master_takes_lists(broker: Broker, code: RequestCode) -> None:
    broker.controller.master, broker.controller.epoch = 2, 2
    broker.run(1000)
    reply = broker.ask(list_command(code, [{"topicName": "N", "groupName": "N"}]))
    assert reply.code == ResponseCode.SYSTEM_ERROR and "not the master" in (reply.remark or "")
    assert broker.core.topics.get("N") is None and broker.core.groups.get("N") is None


def test_a_slave_learns_what_a_group_may_not_read(tmp_path: Path) -> None:
    """With the change of that group alone, and with the whole table."""
    master, slave = (group_table(HostDisk(tmp_path / name), ManualClock()) for name in ("master", "slave"))
    master.new_epoch(1)
    for name in ("G", "H"):
        master.get_or_create(name)
    slave.replace(master.to_json(), dict(parse_table(master.to_json())))
    stamp = slave.version.stamp
    master.forbid("G", "T", True)
    master.forbid("H", "U", True)
    changes = master.changes_since(stamp)
    assert changes is not None
    slave.apply(changes)
    assert slave.is_forbidden("G", "T") and slave.is_forbidden("H", "U") and not slave.is_forbidden("G", "U")
    stamp = slave.version.stamp
    master.forbid("G", "T", False)
    changes = master.changes_since(stamp)
    assert changes is not None and changes["forbiddenTable"] == {"G": {}}
    slave.apply(changes)
    assert not slave.is_forbidden("G", "T") and slave.is_forbidden("H", "U")
    slave.save()
    again = group_table(HostDisk(tmp_path / "slave"), ManualClock())
    assert again.is_forbidden("H", "U") and not again.is_forbidden("G", "T")
