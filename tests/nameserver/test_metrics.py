"""What a name server shows of its tables."""

from __future__ import annotations

import pytest

from nameserver import metrics
from nameserver.metrics import BROKERS, EVENT_INDEX, GROUPS_LEFT_OUT, MASTERS, TOPICS, collect
from nameserver.route_info import RouteTable
from rmqha.host.net.statistics import Statistics
from rmqha.model.series import MetricFamilies, Series, filled
from rmqha.wire.bodies import Registration, TopicTableVersion
from tests.support.steps import done
from tests.support.tracer import RecordingTracer

REMOTING = Statistics(session_count=1).as_dict()


def registered(*brokers: tuple[str, int]) -> RouteTable:
    routes = RouteTable(RecordingTracer(), lite_timeout_ms=5000, register_timeout_ms=120_000)
    for place, (name, broker_id) in enumerate(brokers):
        registration = Registration(
            cluster_name="c",
            broker_name=name,
            broker_id=broker_id,
            address=f"127.0.0.1:{place + 1}",
            ha_address="",
            version=TopicTableVersion(0, 0, 0),
            topics={},
        )
        assert not done(routes.register(0, place, registration)).refusal
    return routes


def values(families: MetricFamilies, series: Series) -> dict[str, float]:
    return {item.labels.get("broker_set", ""): item.value for item in families.samples.get(series, [])}


def test_groups_are_shown_with_and_without_a_master() -> None:
    families = filled(collect("127.0.0.1:9876", registered(("a", 0), ("a", 1), ("b", 1)), 7, REMOTING))
    assert values(families, BROKERS) == {"a": 2, "b": 1}
    assert values(families, MASTERS) == {"a": 1, "b": 0}
    assert values(families, EVENT_INDEX) == {"": 7}
    assert values(families, TOPICS) == {"": 0}


def test_the_number_of_series_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "MAX_GROUPS", 1)
    families = filled(collect("127.0.0.1:9876", registered(("a", 0), ("b", 0), ("c", 0)), None, REMOTING))
    assert values(families, BROKERS) == {"a": 1}
    assert values(families, GROUPS_LEFT_OUT) == {"": 2}
    assert values(families, EVENT_INDEX) == {}
