"""The driver and the core: roles, traces, what operators ask."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.identity import Role
from rmqha.wire.command import FLAG_ONEWAY, PROTOCOL_VERSION, Command
from rmqha.wire.lenient_json import dumps
from tests.broker.support import Broker, FakeChannel, send_command


def test_becoming_master_is_traced_in_order(broker: Broker) -> None:
    names = [name for name in broker.tracer.names() if name in ("role_changed", "writable")]
    assert names == ["role_changed", "writable"]
    fields = dict(broker.tracer.events)["role_changed"]
    assert (fields["role"], fields["epoch"]) == ("MASTER", 1)


def test_writable_is_traced_when_admission_opens(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker(ha_mode="cp", total_replicas=3).start()
    assert "writable" not in broker.tracer.names()
    broker.join_slave(2)
    broker.run(10)
    assert "writable" in broker.tracer.names()


def test_each_epoch_is_told_to_shell_and_tables(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker()
    told = broker.shell.roles
    broker.start()
    assert [(item.role, item.epoch) for item in told] == [(Role.MASTER, 1)]
    assert broker.core.topics.version.state_version == 1
    notice = Command(
        RequestCode.NOTIFY_BROKER_ROLE_CHANGED,
        {"masterBrokerId": "2", "masterAddress": "127.0.0.1:20921", "masterEpoch": "3", "syncStateSetEpoch": "5"},
        dumps({"syncStateSet": [2], "syncStateSetEpoch": 5}),
        flag=FLAG_ONEWAY,
    )
    channel = FakeChannel()
    broker.core.processor.received(channel, [notice])
    assert channel.take() == []
    assert (told[-1].role, told[-1].epoch, told[-1].master_address) == (Role.SLAVE, 3, "127.0.0.1:20921")
    assert ("open", -1, "127.0.0.1:20922") in broker.ports.ha_actions
    assert broker.core.topics.version.state_version == 1


def test_a_notice_that_cannot_be_read_is_refused(broker: Broker) -> None:
    notice = Command(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, {"masterBrokerId": "x", "masterEpoch": "y"})
    assert broker.ask(notice).code == ResponseCode.SYSTEM_ERROR


def test_unknown_request(broker: Broker) -> None:
    reply = broker.ask(Command(4711))
    assert (reply.code, reply.remark) == (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, " request type 4711 not supported")


def test_own_requests(broker: Broker) -> None:
    broker.ask(send_command())
    broker.core.admin.sample()
    state = json.loads(bytes(broker.ask(Command(RequestCode.RMQHA_GET_REPLICA_STATE)).body))
    assert (state["role"], state["pid"], state["putCount"], state["writable"]) == ("MASTER", 1, 1, True)
    assert state["dataDirectory"] == str(broker.directory)
    events = json.loads(bytes(broker.ask(Command(RequestCode.RMQHA_GET_HISTORY)).body))["events"]
    assert {"role_changed", "writable"} <= {event["event"] for event in events}
    assert all("at_ms" in event for event in events)


def test_runtime_info_of_a_store(broker: Broker) -> None:
    command = Command(RequestCode.GET_BROKER_RUNTIME_INFO)
    empty = json.loads(bytes(broker.ask(command).body))["table"]
    assert empty["earliestMessageTimeStamp"] == "-1" and empty["commitLogDiskRatio"] == "0.6"
    assert (empty["commitLogMinOffset"], empty["putMessageTimesTotal"]) == ("-1", "1")
    root = broker.core.config.store_path_root_dir
    assert empty[f"commitLogDiskRatio_{root}/commitlog"] == "0.6", "as of each directory of a log"
    assert (empty["putLatency99"], empty["putLatency999"]) == ("0.00", "0.00")
    assert "remainHowManyDataToCommit" not in empty, "only with transientStorePoolEnable, as with RocketMQ"
    broker.ask(send_command(body=bytes(50)))
    broker.core.admin.sample()
    stored_at = broker.clock.wall_ms()
    broker.run(1000)
    broker.ask(send_command())
    broker.core.admin.sample()
    table = json.loads(bytes(broker.ask(command).body))["table"]
    assert table["earliestMessageTimeStamp"] == str(stored_at)
    assert table["putTps"] == "1.0 1.0" and table["msgPutTotalTodayNow"] == "2"
    assert table["commitLogMaxOffset"] == str(broker.store.max_phy_offset) and table["commitLogMinOffset"] == "0"


def test_brokers_of_5_3_told_their_version_and_clients_of_then_read_it(broker: Broker) -> None:
    """RocketMQ's exporter, whose client is of 4.9.4, shows no runtime figure without it; a broker of 5.4.0 has no such
    row, which mqadmin would print."""
    for version, is_told in ((401, True), (PROTOCOL_VERSION, False)):
        command = Command(RequestCode.GET_BROKER_RUNTIME_INFO, version=version)
        table = json.loads(bytes(broker.ask(command).body))["table"]
        assert (table.get("brokerVersion") == str(PROTOCOL_VERSION)) == is_told
        assert ("brokerVersion" in table) == is_told


def test_the_counts_of_today_begin_at_midnight(broker: Broker) -> None:
    hour_ms = 3_600_000

    def until_hour(hour: int) -> None:
        for _ in range((hour - broker.clock.wall_ms() // hour_ms) % 24 or 24):
            broker.clock.ms += hour_ms
            broker.core.admin.sample()

    def mornings() -> tuple[str, str, str]:
        table = json.loads(bytes(broker.ask(Command(RequestCode.GET_BROKER_RUNTIME_INFO)).body))["table"]
        return tuple(table[f"msgPutTotal{name}"] for name in ("YesterdayMorning", "TodayMorning", "TodayNow"))

    broker.ask(send_command())
    until_hour(23)
    assert mornings() == ("0", "0", "1")
    until_hour(0)
    broker.ask(send_command())
    assert mornings() == ("0", "1", "2")
    until_hour(0)
    assert mornings() == ("1", "2", "2")


def test_the_disk_is_counted_as_df_does(broker: Broker) -> None:
    """A tenth of it is root's: neither used nor usable; a part of a percent counts as a whole one."""
    gib = 1024**3
    broker.core.admin.disk_usage = lambda: (1000 * gib, 301 * gib, 599 * gib)
    table = json.loads(bytes(broker.ask(Command(RequestCode.GET_BROKER_RUNTIME_INFO)).body))["table"]
    assert table["commitLogDiskRatio"] == table["consumeQueueDiskRatio"] == "0.34"
    assert table["commitLogDirCapacity"] == "Total : 1000.0 GiB, Free : 699.0 GiB."


def test_id_is_applied_for_once_and_kept(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker()
    broker.controller.next_broker_id = broker.controller.master = 7
    broker.start()
    assert broker.core.replica.broker_id == 7
    broker.close()
    assert (broker.directory / "brokerIdentity").read_text() == "DefaultCluster#broker-a#7"
    again = make_broker()
    again.controller.next_broker_id = 9
    again.controller.master = 7
    again.start()
    assert again.core.replica.broker_id == 7


@pytest.mark.parametrize("count", [1, 40])
def test_ha_connection_performs_on_the_port(broker: Broker, count: int) -> None:
    broker.join_slave(2)
    channel = FakeChannel()
    broker.core.processor.received(channel, [send_command() for _ in range(count)])
    logs = [action for action in broker.ports.ha_actions if action[0] == "log"]
    assert logs == [("log", 1, 0, broker.store.max_phy_offset)]
    broker.core.driver.ha_closed(1)
    broker.core.driver.ha_accepted(2, "127.0.0.1:9")
    broker.core.driver.ha_received(2, b"\0\0\0\7" + bytes(12))
    assert broker.ports.ha_actions[-1] == ("close", 2)
