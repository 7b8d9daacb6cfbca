"""What a name server shows of its tables."""

from __future__ import annotations

import pytest

from nameserver import metrics
from nameserver.metrics import BROKERS, EVENT_INDEX, GROUPS_LEFT_OUT, MASTERS, TOPICS, collect
from nameserver.route_info import RouteTable
from rmqha.host.statistics import Statistics
from rmqha.model.series import Series, Sheet, filled
from rmqha.wire.bodies import DataVersion, Registration
from tests.nameserver.support import Events

REMOTING = Statistics(session_count=1).as_dict()


def registered(*brokers: tuple[str, int]) -> RouteTable:
    routes = RouteTable(Events(), lite_timeout_ms=5000, register_timeout_ms=120_000)
    for place, (name, broker_id) in enumerate(brokers):
        registration = Registration(
            cluster_name="c",
            broker_name=name,
            broker_id=broker_id,
            address=f"127.0.0.1:{place + 1}",
            ha_address="",
            version=DataVersion(0, 0, 0),
            topics={},
        )
        assert not routes.register(0, place, registration).refusal
    return routes


def values(sheet: Sheet, series: Series) -> dict[str, float]:
    return {item.labels.get("broker_set", ""): item.value for item in sheet.samples.get(series, [])}


def test_groups_are_shown_with_and_without_a_master() -> None:
    sheet = filled(collect("127.0.0.1:9876", registered(("a", 0), ("a", 1), ("b", 1)), 7, REMOTING))
    assert values(sheet, BROKERS) == {"a": 2, "b": 1}
    assert values(sheet, MASTERS) == {"a": 1, "b": 0}
    assert values(sheet, EVENT_INDEX) == {"": 7}
    assert values(sheet, TOPICS) == {"": 0}


def test_the_number_of_series_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "MAX_GROUPS", 1)
    sheet = filled(collect("127.0.0.1:9876", registered(("a", 0), ("b", 0), ("c", 0)), None, REMOTING))
    assert values(sheet, BROKERS) == {"a": 1}
    assert values(sheet, GROUPS_LEFT_OUT) == {"": 2}
    assert values(sheet, EVENT_INDEX) == {}
