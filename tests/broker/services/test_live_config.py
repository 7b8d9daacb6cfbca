"""Keys that change while the broker runs, and deleted topics."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from controller.config import ControllerConfig
from nameserver.config import NamesrvConfig
from rmqha.broker.services.live_config import PATH, LiveConfig
from rmqha.host.disk import HostDisk
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.config.servers import BrokerConfig, Config
from rmqha.model.error import ConfigError
from rmqha.wire.command import Command
from tests.broker.support import Broker, send_command, topic_table
from tests.support.clock import ManualClock
from tests.support.tracer import RecordingTracer


def update(broker: Broker, text: str | bytes) -> Command:
    body = text.encode() if isinstance(text, str) else text
    return broker.ask(Command(RequestCode.UPDATE_BROKER_CONFIG, body=body))


def shown(broker: Broker) -> list[str]:
    return bytes(broker.ask(Command(RequestCode.GET_BROKER_CONFIG)).body).decode().splitlines()


def test_a_live_key_applies_at_once_and_after_a_restart(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker().start()
    assert update(broker, "autoCreateTopicEnable=false\nfileReservedTime=5\n").code == 0
    assert broker.ask(send_command("New")).code == ResponseCode.TOPIC_NOT_EXIST
    assert {"autoCreateTopicEnable=false", "fileReservedTime=5"} <= set(shown(broker))
    assert update(broker, "fileReservedTime=6").code == 0
    broker.close()
    again = make_broker()
    assert (again.core.config.auto_create_topic_enable, again.core.config.file_reserved_time) == (False, 6)
    (told,) = [fields for name, fields in again.tracer.events if name == "config_overridden"]
    assert told["keys"] == ["autoCreateTopicEnable", "fileReservedTime"] and told["file"].endswith(PATH)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("fileReservedTime=9\nlistenPort=10\n", "listenPort: restart needed"),
        ("fileReservedTime=x", "must be a whole number"),
        ("fileReservedTme=1", "the nearest known key is fileReservedTime"),
        ("fileReservedTime", "expected key=value"),
        ("deleteWhen=25", "deleteWhen"),
        (b"\xff=1", "UTF-8"),
    ],
)
def test_what_is_refused_changes_nothing(broker: Broker, text: str | bytes, words: str) -> None:
    before = shown(broker)
    reply = update(broker, text)
    assert reply.code == ResponseCode.SYSTEM_ERROR and words in (reply.remark or "")
    assert shown(broker) == before
    assert not (broker.directory / PATH).exists()


def test_keys_that_keep_their_value_need_no_restart(broker: Broker) -> None:
    assert update(broker, f"listenPort={broker.config.listen_port}\n").code == 0


@pytest.mark.parametrize("content", [b"\xff", b"nonsense", b"listen=1\n", b"fileReservedTime=x\n"])
def test_a_damaged_file_is_one_sentence(make_broker: Callable[..., Broker], content: bytes) -> None:
    broker = make_broker()
    disk = HostDisk(broker.directory)
    disk.make_dirs("config")
    disk.write_atomic(PATH, content)
    with pytest.raises(ConfigError, match="config-overrides"):
        LiveConfig(disk, BrokerConfig(), RecordingTracer())


# --- deleted topics ---------------------------------------------------------------------------------------------------
def delete(broker: Broker, topic: str) -> Command:
    return broker.ask(Command(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic}))


def test_a_deleted_topic_is_gone_with_its_offsets_and_stays_so(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker().start()
    broker.ask(send_command())
    broker.core.groups.get_or_create("G")
    ext = {"consumerGroup": "G", "topic": "T", "queueId": "0", "commitOffset": "1"}
    assert broker.ask(Command(RequestCode.UPDATE_CONSUMER_OFFSET, ext)).code == 0
    shell, before = broker.shell, broker.shell.topic_changes
    assert delete(broker, "T").code == 0 and shell.topic_changes == before + 1
    assert broker.core.topics.get("T") is None and broker.core.offsets.query("G", "T", 0) is None
    assert delete(broker, "T").code == 0 and shell.topic_changes == before + 1, "again is no change"
    broker.close()
    again = make_broker()
    again.controller.epoch = 2
    again.start()
    assert again.core.driver.is_serving and again.store.queues()["T"] == [0]
    assert again.core.topics.get("T") is None, "a new master does not bring it back"
    reply = again.ask(send_command())
    assert (reply.code, reply.ext["queueOffset"]) == (0, "1"), "no queue offset is given twice"
    assert again.core.topics.deleted == frozenset()


def test_slaves_learn_what_was_deleted(broker: Broker) -> None:
    broker.ask(send_command())
    delete(broker, "T")
    body = broker.core.topics.to_json()
    slave = topic_table(HostDisk(broker.directory / "slave"), broker.config, ManualClock())
    slave.replace({}, slave.version.from_json({"counter": 9}), frozenset(body["rmqhaDeletedTopics"]))
    assert slave.restore({"T": [0], "Lost": [1]}) == ["Lost"]


@pytest.mark.parametrize("topic", ["TBW102", "SCHEDULE_TOPIC_XXXX", "DefaultCluster", "broker-a", "SELF_TEST_TOPIC"])
def test_system_topics_stay(broker: Broker, topic: str) -> None:
    assert delete(broker, topic).code == ResponseCode.SYSTEM_ERROR


def test_a_slave_deletes_nothing(make_broker: Callable[..., Broker]) -> None:
    assert delete(make_broker(), "T").code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize("kind", [BrokerConfig, ControllerConfig, NamesrvConfig])
def test_a_number_that_no_server_can_live_with_is_refused(kind: type[Config]) -> None:
    """flushIntervalCommitLog=-5 was taken and kept, and ended the broker, at each start again."""
    known = kind().to_properties()
    numbers = [key for key in sorted(kind.live_keys) if known[key].lstrip("-").isdigit() and key != "deleteWhen"]
    assert numbers
    for key in numbers:
        with pytest.raises(ConfigError, match="must"):
            kind().updated({key: "-5"}, "request")


FOREIGN = "aclEnable=false\ntls.server.mode=disabled\nlistenPort=1\nfileReservedTime=7\n"


def test_a_store_brings_no_security_and_no_restart_key_along(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker()
    (broker.directory / PATH).parent.mkdir(parents=True, exist_ok=True)
    (broker.directory / PATH).write_text(FOREIGN)
    broker.close()
    again = make_broker(acl_enable=True).start()
    assert (again.core.config.acl_enable, again.core.config.file_reserved_time) == (True, 7)
    (told,) = [fields for name, fields in again.tracer.events if name == "config_overrides_ignored"]
    assert list(told["keys"]) == ["aclEnable", "listenPort", "tls.server.mode"]
    assert update(again, "fileReservedTime=8").code == 0
    assert (again.directory / PATH).read_text() == "fileReservedTime=8\n"


def test_a_restart_key_with_the_value_that_it_has_is_not_kept(make_broker: Callable[..., Broker]) -> None:
    """Else it would hide a change of the server's own file for ever."""
    broker = make_broker().start()
    alias = "maxHaTransferByteInSecond=1000000"
    assert update(broker, f"aclEnable=false\nfileReservedTime=9\n{alias}").code == 0
    assert (broker.directory / PATH).read_text() == "fileReservedTime=9\nhaTransferBytesPerSecond=1000000\n"


def test_controllers_and_name_servers_do_the_same(tmp_path: Path) -> None:
    for config in (ControllerConfig(acl_enable=True), NamesrvConfig(acl_enable=True)):
        live, ignored = config.live_part({"aclEnable": "false", "scanNotActiveBrokerInterval": "100"})
        assert (live, ignored) == ({"scanNotActiveBrokerInterval": "100"}, ("aclEnable",))
        tracer = RecordingTracer()
        (tmp_path / "o").write_text("aclEnable=false\n")
        assert LiveConfig(HostDisk(tmp_path), config, tracer, "o").current.acl_enable
        assert [name for name, _ in tracer.events][:1] == ["config_overrides_ignored"]
