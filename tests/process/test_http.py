"""Real processes over HTTP: every series they show is in docs/operate/metrics.md, and nearly all of it is shown."""

from __future__ import annotations

import http.client
import json
from contextlib import closing
from pathlib import Path

import trio
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

import controller.metrics
import nameserver.metrics
import rmqha.broker.services.metrics
import rmqha.host.access.security_watch
import rmqha.host.event_counts
import rmqha.model.series
from controller.state.event import Cause
from rmqha.client.consumers.consumer import Consumer
from rmqha.client.producers.outgoing import OutgoingMessage
from rmqha.client.producers.producer import Producer
from rmqha.drill.cluster import BROKERS, Cluster, quickstart
from tests.support.patience import HANG_S

SELDOM = {
    "rmqha_controller_follower_lag_entries",
    "rmqha_audit_log_lost_total",
    "rmqha_certificate_expiry_timestamp_seconds",
    "rocketmq_commit_messages_total",
    "rocketmq_rollback_messages_total",
    "rocketmq_finish_message_latency",
    "rocketmq_send_to_dlq_messages_total",
    "rocketmq_delay_message_latency",
    "rocketmq_timer_dequeue_total",
    "rocketmq_timing_messages",
    "rocketmq_pop_revive_in_message_total",
    "rocketmq_pop_revive_out_message_total",
    "rocketmq_pop_revive_retry_messages_total",
    "rocketmq_pop_revive_lag",
    "rocketmq_pop_revive_latency_milliseconds",
    "rmqha_pop_inflight_messages",
    "rocketmq_topic_create_execution_time",
    "rocketmq_consumer_group_create_execution_time",
}
"""The only controller of this cluster has no follower; it has no accounts, so no audit log, and no certificate. Nobody
sends transactions or messages that wait, hands any back, or makes topics and groups by request."""
CAUSES = {cause.name.lower() for cause in Cause}


def get(address: str, path: str) -> tuple[int, str]:
    with closing(http.client.HTTPConnection(address, timeout=HANG_S)) as connection:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def listed() -> set[str]:
    modules = (
        rmqha.broker.services.metrics,
        controller.metrics,
        nameserver.metrics,
        rmqha.host.event_counts,
        rmqha.host.access.security_watch,
        rmqha.model.series,
    )
    return {item.name for module in modules for item in module.SERIES}


def families(address: str) -> list[Metric]:
    return list(text_string_to_metric_families(get(address, "/metrics")[1]))


def never_yet(address: str, name: str, label: str) -> set[str]:
    """Values of `label` for which the counter `name` shows 0."""
    samples = (sample for family in families(address) for sample in family.samples if sample.name == name)
    return {sample.labels[label] for sample in samples if sample.value == 0}


def scrape(address: str) -> dict[str, float]:
    """Series names as the page has them, with the sum of their values."""
    found: dict[str, float] = {}
    for family in families(address):
        if not family.name.startswith("process_"):
            name = family.name + ("_total" if family.type == "counter" else "")
            found[name] = sum(sample.value for sample in family.samples)
    return found


async def test_a_cluster_shows_every_series_and_who_leads(tmp_path: Path) -> None:
    """A master is killed under way, so that counters of failovers and cuts have something to show."""
    with trio.fail_after(HANG_S), Cluster.of(quickstart("cp", http=True), tmp_path, quiet=True) as cluster:
        await cluster.up()
        places = {name: cluster.state.http_address(name) for name in cluster.state.nodes}
        namesrv = cluster.spec.namesrv_addresses
        async with (
            Producer(namesrv, compression=None) as producer,
            Consumer(namesrv, "G", "T", start="first") as reader,
        ):
            messages = (OutgoingMessage("T", b"x" * 100) for _ in range(200))
            assert (await producer.send_many(messages)).acknowledged == 200
            for _ in range(200):
                await reader.receive()
            await reader.commit()
            assert (await producer.send_many(OutgoingMessage("T", b"x") for _ in range(30))).acknowledged == 30
            seen = {name: scrape(place) for name, place in places.items()}
            assert {get(place, "/readyz")[0] for place in places.values()} == {200}
            assert never_yet(places["ns-1"], "rocketmq_ha_elections_total", "cause") >= CAUSES - {"first_election"}
            assert never_yet(places["ns-1"], "rocketmq_ha_failover_seconds_count", "phase") >= {"detect", "elect"}
            assert {"no_acks", "disconnected"} <= never_yet(
                places[BROKERS[0]], "rocketmq_ha_set_changes_total", "cause"
            )
            masters = [name for name in BROKERS if get(places[name], "/role/master")[0] == 200]
            old = await cluster.master()
            assert masters == [old]
            assert seen[old]["rocketmq_messages_in_total"] == 230
            assert all(page["rmqha_remoting_sessions"] > 0 for page in seen.values())
            assert seen[old]["rocketmq_messages_out_total"] >= 200
            assert seen[old]["rocketmq_consumer_lag_messages"] == 31, "what was received last is not finished yet"
        await cluster.kill(old)
        new = await cluster.master(without=old)
        after = {name: scrape(place) for name, place in places.items() if name != old}
        assert get(places[new], "/role/master")[0] == 200
        assert json.loads(get(places[new], "/role")[1])["epoch"] == 2
        assert after["ns-1"]["rocketmq_ha_elections_total"] == 2
        shown = {name for page in (*seen.values(), *after.values()) for name in page}
    assert shown - listed() == set(), "not in the lists of series"
    assert listed() - shown == SELDOM
