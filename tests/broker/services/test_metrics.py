"""A broker's metrics as Prometheus reads them: names, labels, and that a lost role takes its series with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
from prometheus_client.parser import text_string_to_metric_families

from rmqha.broker.services import metrics, traffic
from rmqha.broker.services.health_source import BrokerHealthSource
from rmqha.host.metrics import exposition
from rmqha.host.net.statistics import Statistics
from rmqha.model.code import RequestCode
from rmqha.model.series import filled
from rmqha.wire import lenient_json
from rmqha.wire.command import Command
from rmqha.wire.ha_stream import SlaveStreamParser
from tests.broker.support import Broker, FakeChannel, pull_command, send_command
from tests.broker.transactions import COMMIT, ROLLBACK, ROUND_MS, end_of, oneway, prepared

Scrape = dict[str, dict[tuple[tuple[str, str], ...], float]]
BASE = {"cluster": "DefaultCluster", "node_type": "broker", "node_id": "broker-a"}


def scrape(shown: BrokerHealthSource) -> Scrape:
    """Values by sample name and by the labels beside BASE."""
    found: Scrape = {}
    for family in text_string_to_metric_families(exposition([filled(shown.collect())]).decode()):
        for sample in family.samples:
            if sample.name.startswith("process_"):
                continue
            assert {**sample.labels, **BASE} == sample.labels
            labels = tuple(sorted((key, value) for key, value in sample.labels.items() if key not in BASE))
            assert labels not in found.setdefault(sample.name, {}), "each series once"
            found[sample.name][labels] = sample.value
    return found


def one(found: Scrape, name: str, **labels: str) -> float:
    wanted = set(labels.items())
    (value,) = [value for key, value in found[name].items() if wanted <= set(key)]
    return value


def test_what_producers_send_is_counted_by_topic_and_type(broker: Broker) -> None:
    shown = BrokerHealthSource(broker.core, Statistics())
    before = broker.store.max_phy_offset
    broker.ask(send_command("T", body=b"x" * 100))
    broker.ask(send_command("T", body=b"x" * 5000))
    size = broker.store.max_phy_offset - before
    broker.ask(send_command("T", i="DELAY\x013"))
    broker.ask(send_command("T", i="__SHARDINGKEY\x01k"))
    found = scrape(shown)
    normal = {"topic": "T", "message_type": "normal", "is_system": "false"}
    assert one(found, "rocketmq_messages_in_total", **normal) == 2
    assert one(found, "rocketmq_throughput_in_total", **normal) == size
    assert one(found, "rocketmq_message_size_bucket", le="1024.0", **normal) == 1
    assert one(found, "rocketmq_message_size_bucket", le="524288.0", **normal) == 2
    assert one(found, "rocketmq_message_size_sum", **normal) == size
    assert one(found, "rocketmq_messages_in_total", message_type="delay") == 1
    assert one(found, "rocketmq_messages_in_total", message_type="fifo") == 1
    assert one(found, "rocketmq_topic_number") == len(broker.core.topics)


def test_what_consumers_read_and_still_have_to(broker: Broker) -> None:
    shown = BrokerHealthSource(broker.core, Statistics())
    for _ in range(5):
        broker.ask(send_command("T"))
    broker.ask(pull_command("T", offset=0, maxMsgNums="3"))
    broker.core.offsets.commit("G", "T", 0, 1)
    found = scrape(shown)
    place = {"topic": "T", "consumer_group": "G", "is_retry": "false", "is_system": "false"}
    assert one(found, "rocketmq_messages_out_total", **place) == 3
    assert one(found, "rocketmq_throughput_out_total", **place) > 3 * 90
    assert one(found, "rocketmq_consumer_lag_messages", **place) == 4
    assert one(found, "rocketmq_consumer_inflight_messages", **place) == 2
    assert one(found, "rocketmq_consumer_ready_messages", **place) == 2


def test_how_old_the_oldest_message_is_that_a_group_lacks(broker: Broker) -> None:
    """Of all its queues, and apart from what it has pulled."""
    shown = BrokerHealthSource(broker.core, Statistics())
    place = {"topic": "T", "consumer_group": "G", "is_retry": "false", "is_system": "false"}

    def ages() -> tuple[float, float]:
        found = scrape(shown)
        names = ("rocketmq_consumer_lag_latency_milliseconds", "rocketmq_consumer_queueing_latency_milliseconds")
        waiting, not_pulled = (one(found, name, **place) for name in names)
        return waiting, not_pulled

    for queue_id in (1, 0, 1, 0):
        broker.ask(send_command("T", queue_id))
        broker.clock.ms += 100
    broker.core.offsets.commit("G", "T", 0, 0)
    assert ages() == (300, 300)
    broker.core.offsets.commit("G", "T", 1, 0)
    assert ages() == (400, 400)
    broker.ask(pull_command("T", 1, maxMsgNums="1"))
    assert ages() == (400, 300)
    broker.core.offsets.commit("G", "T", 1, 2)
    assert ages() == (300, 300)
    broker.core.offsets.commit("G", "T", 0, 2)
    assert ages() == (0, 0)


def test_a_master_shows_its_slaves_and_a_slave_does_not(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker(total_replicas=3, ha_mode="ap", broker_role="SYNC_MASTER", in_sync_replicas=2)
    shown = BrokerHealthSource(broker.core, Statistics())
    broker.controller.members = [1, 2]
    broker.start()
    broker.join_slave(2)
    found = scrape(shown)
    assert one(found, "rocketmq_ha_role", role="master", broker_id="1") == 1
    assert one(found, "rocketmq_ha_sync_state_set_size") == 2
    assert one(found, "rocketmq_ha_total_replicas") == 3
    assert one(found, "rocketmq_ha_slave_lag_bytes", slave="2", in_sync="true") == 0
    assert one(found, "rocketmq_ha_writable") == 1
    assert one(found, "rocketmq_broker_permission") == 6
    broker.controller.master, broker.controller.epoch = 2, 2
    broker.controller.addresses[2] = "127.0.0.1:9"
    broker.core.driver.role_notified(broker.controller.notice())
    found = scrape(shown)
    assert one(found, "rocketmq_ha_role", role="slave") == 1
    assert one(found, "rocketmq_ha_epoch") == 2
    assert one(found, "rocketmq_ha_following") == 0
    for name in ("slave_lag_bytes", "sync_state_set_size", "writable", "ack_latency_count"):
        assert f"rocketmq_ha_{name}" not in found
    assert one(found, "rocketmq_broker_permission") == 0


def test_peers_that_break_the_ha_protocol_are_counted(make_broker: Callable[..., Broker]) -> None:
    """Before they are let in and after, and those whose bytes meet a bug; who only leaves is not."""
    broker = make_broker(total_replicas=2, ha_mode="ap")
    shown, driver = BrokerHealthSource(broker.core, Statistics()), broker.core.driver
    broker.controller.members = [1, 2]
    broker.start()
    broker.join_slave(2)
    name = "rocketmq_ha_protocol_errors_total"
    assert one(scrape(shown), name) == 0
    driver.ha_received(1, (99).to_bytes(4, "big") + bytes(100))
    assert one(scrape(shown), name) == 1
    driver.ha_accepted(2, "127.0.0.1:9")
    driver.ha_received(2, (99).to_bytes(4, "big") + bytes(100))
    assert one(scrape(shown), name) == 2
    driver.ha_accepted(3, "127.0.0.1:9")
    driver.ha_closed(3)
    broker.join_slave(2)
    with patch.object(SlaveStreamParser, "feed", side_effect=KeyError("nobody foresaw it")):
        driver.ha_received(1, bytes(12))
    assert one(scrape(shown), name) == 3


def test_acknowledgements_are_a_histogram(broker: Broker) -> None:
    shown = BrokerHealthSource(broker.core, Statistics())
    broker.ask(send_command("T"))
    found = scrape(shown)
    assert one(found, "rocketmq_ha_ack_latency_count") == 1
    assert one(found, "rocketmq_ha_ack_latency_bucket", le="0.001") == 1
    assert one(found, "rocketmq_ha_ack_latency_bucket", le="8.192") == 1
    assert one(found, "rocketmq_processor_watermark", processor="send") == 0


def test_the_number_of_series_is_bounded(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "MAX_KEYS", 3)
    monkeypatch.setattr(metrics, "MAX_PAIRS", 3)
    shown = BrokerHealthSource(broker.core, Statistics())
    for number in range(10):
        broker.ask(send_command(f"T{number}"))
        broker.core.offsets.commit(f"G{number}", "T0", 0, 0)
    found = scrape(shown)
    assert len(found["rocketmq_messages_in_total"]) == 4
    assert one(found, "rocketmq_messages_in_total", topic="other") == 7
    assert len(found["rocketmq_consumer_lag_messages"]) == 3
    assert one(found, "rmqha_lag_series_left_out") == 7


def test_a_broker_that_is_not_shown_counts_nothing(broker: Broker) -> None:
    broker.ask(send_command("T"))
    assert broker.core.send.traffic is None and broker.core.pull.traffic is None


@pytest.mark.parametrize(
    ("keys", "reason"),
    [({}, ""), ({"total_replicas": 3, "ha_mode": "cp"}, "in-sync replicas not enough")],
)
def test_a_master_is_ready_while_it_takes_sends(
    make_broker: Callable[..., Broker], keys: dict[str, Any], reason: str
) -> None:
    broker = make_broker(**keys)
    shown = BrokerHealthSource(broker.core, Statistics())
    assert shown.readiness().reason == "no controller has told it its role yet"
    broker.start()
    readiness = shown.readiness()
    assert readiness.ready is (reason == "") and readiness.reason.startswith(reason)
    assert readiness.facts["brokerId"] == 1 and readiness.facts["epoch"] == 1


def test_dead_letters_are_counted_by_the_topic_that_they_come_from(broker: Broker) -> None:
    shown = BrokerHealthSource(broker.core, Statistics())
    broker.ask(send_command("T"))
    broker.ask(send_command("U"))
    ext = {"group": "G", "offset": "0", "delayLevel": "-1", "originTopic": "T"}
    assert broker.ask(Command(RequestCode.CONSUMER_SEND_MSG_BACK, ext)).code == 0
    by_client = send_command("%RETRY%G", j="17", l="16", i="RETRY_TOPIC\x01U\x02")
    assert broker.ask(by_client).code == 0
    found = scrape(shown)["rocketmq_send_to_dlq_messages_total"]
    assert {dict(labels)["topic"]: value for labels, value in found.items()} == {"T": 1, "U": 1}


def test_a_topic_that_a_client_makes_up_has_no_series(broker: Broker) -> None:
    """Else the group's clients fill the table, and other groups' dead letters are counted under "other"."""
    shown = BrokerHealthSource(broker.core, Statistics())
    for number in range(3):
        assert broker.ask(send_command("%RETRY%G", j="17", l="16", i=f"RETRY_TOPIC\x01made-up-{number}\x02")).code == 0
        sent = broker.ask(send_command("T", i=f"RETRY_TOPIC\x01made-up-{number}\x02"))
        ext = {"group": "G", "offset": str(int(sent.ext["msgId"][16:], 16)), "delayLevel": "-1"}
        assert broker.ask(Command(RequestCode.CONSUMER_SEND_MSG_BACK, ext)).code == 0
    found = scrape(shown)["rocketmq_send_to_dlq_messages_total"]
    assert {dict(labels)["topic"]: value for labels, value in found.items()} == {"%RETRY%G": 3, "T": 3}
    assert len(broker.core.statistics.send_backs) == 1


def test_the_series_of_consumer_groups_are_bounded(broker: Broker) -> None:
    consumers = [{"groupName": f"G{number}", "subscriptionDataSet": []} for number in range(9)]
    body = lenient_json.dumps({"clientID": "c", "consumerDataSet": consumers})
    broker.core.processor.received(FakeChannel(), [Command(RequestCode.HEART_BEAT, {}, body)])
    with patch.object(metrics, "MAX_PAIRS", 4):
        found = scrape(BrokerHealthSource(broker.core, Statistics()))
    assert len(found["rocketmq_consumer_connections"]) == 4


def test_transactions_are_counted_as_they_end(broker: Broker) -> None:
    shown = BrokerHealthSource(broker.core, Statistics())
    committed, rolled_back, _ = (broker.ask(prepared(broker, key)) for key in ("A", "B", "C"))
    broker.clock.ms += 6000
    oneway(broker, end_of(committed, COMMIT))
    oneway(broker, end_of(rolled_back, ROLLBACK))
    broker.run(ROUND_MS)
    found = scrape(shown)
    assert one(found, "rocketmq_commit_messages_total", topic="T") == 1
    assert one(found, "rocketmq_rollback_messages_total", topic="T") == 1
    assert one(found, "rocketmq_finish_message_latency_sum", topic="T") == 6
    assert one(found, "rocketmq_finish_message_latency_bucket", topic="T", le="5.0") == 0
    assert one(found, "rocketmq_finish_message_latency_bucket", topic="T", le="60.0") == 1
    assert one(found, "rocketmq_half_messages") == 1


def test_how_long_timer_messages_are_to_wait(broker: Broker) -> None:
    shown = BrokerHealthSource(broker.core, Statistics())
    born_ms = broker.clock.wall_ms()
    at_ms = born_ms + 120_000
    assert broker.ask(send_command("T", g=str(born_ms), i=f"TIMER_DELIVER_MS\x01{at_ms}\x02")).code == 0
    found = scrape(shown)
    assert one(found, "rocketmq_delay_message_latency_sum", topic="T") == 120
    assert one(found, "rocketmq_delay_message_latency_bucket", topic="T", le="60.0") == 0


def test_how_long_an_operator_waits_for_a_topic_and_a_group(broker: Broker) -> None:
    shown = BrokerHealthSource(broker.core, Statistics())
    routed: list[Callable[[], None]] = []
    with patch.object(broker.core.tables, "_when_routed", routed.append):
        channel = FakeChannel()
        broker.core.processor.received(channel, [Command(RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": "New"})])
        broker.run()
        assert "rocketmq_topic_create_execution_time_sum" not in scrape(shown)
        broker.clock.ms += 250
        routed[0]()
    assert channel.one().code == 0
    group = Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"G"}')
    assert broker.ask(group).code == 0
    found = scrape(shown)
    labels = {"invocation_status": "success", "is_system": "false"}
    assert one(found, "rocketmq_topic_create_execution_time_sum", **labels) == 250
    assert one(found, "rocketmq_topic_create_execution_time_bucket", le="100.0", **labels) == 0
    assert one(found, "rocketmq_consumer_group_create_execution_time_count", **labels) == 1


def test_each_queue_in_which_a_group_lags(broker: Broker) -> None:
    shown = BrokerHealthSource(broker.core, Statistics())
    for queue_id in (0, 0, 1, 2):
        broker.ask(send_command("T", queue_id))
    for queue_id, offset in ((0, 0), (1, 1), (2, 0)):
        broker.core.offsets.commit("G", "T", queue_id, offset)
    found = scrape(shown)["rmqha_consumer_queue_lag_messages"]
    assert {dict(labels)["queue_id"]: value for labels, value in found.items()} == {"0": 2, "2": 1}
    with patch.object(metrics, "MAX_QUEUES", 1):
        few = scrape(shown)
    assert len(few["rmqha_consumer_queue_lag_messages"]) == 1 and one(few, "rmqha_queue_lag_series_left_out") == 1


@pytest.mark.parametrize(("keys", "copies"), [({}, 1), ({"all_ack_in_sync_state_set": True}, 2)])
def test_in_how_many_copies_a_record_is_acknowledged(
    make_broker: Callable[..., Broker], keys: dict[str, Any], copies: int
) -> None:
    broker = make_broker(total_replicas=2, ha_mode="ap", **keys)
    broker.controller.members = [1, 2]
    broker.start()
    broker.join_slave(2)
    assert one(scrape(BrokerHealthSource(broker.core, Statistics())), "rocketmq_ha_ack_copies") == copies
