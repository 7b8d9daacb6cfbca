"""Which filters the reader takes, and that it takes them exactly."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from rmqha.scan.api import ALL_ROWS, Interval, RowFilter
from rmqha.spark.source import push

MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)
MOMENT_MS = 1767323045678
HALF = MOMENT + timedelta(microseconds=500)


def interval(name: str, low: int = -(2**63), high: int = 2**63 - 1) -> RowFilter:
    return ALL_ROWS.with_interval(name, Interval(low, high))


@pytest.mark.parametrize(
    ("given", "rows"),
    [
        (EqualTo(("topic",), "a"), ALL_ROWS.with_topics(frozenset("a"))),
        (In(("topic",), ("a", "b")), ALL_ROWS.with_topics(frozenset("ab"))),
        (EqualTo(("tags",), "a"), RowFilter(tags=frozenset("a"))),
        (In(("tags",), ("a", "b")), RowFilter(tags=frozenset("ab"))),
        (EqualTo(("queueId",), 3), interval("queueId", 3, 3)),
        (In(("queueOffset",), (3, 4)), ALL_ROWS.with_values("queueOffset", frozenset([3, 4]))),
        (GreaterThan(("physicalOffset",), 7), interval("physicalOffset", low=8)),
        (GreaterThanOrEqual(("physicalOffset",), 7), interval("physicalOffset", low=7)),
        (LessThan(("physicalOffset",), 7), interval("physicalOffset", high=6)),
        (LessThanOrEqual(("physicalOffset",), 7), interval("physicalOffset", high=7)),
        (EqualTo(("storeTimestamp",), MOMENT), interval("storeTimestamp", MOMENT_MS, MOMENT_MS)),
        (EqualTo(("storeTimestamp",), HALF), interval("storeTimestamp", MOMENT_MS + 1, MOMENT_MS)),
        (GreaterThan(("storeTimestamp",), MOMENT), interval("storeTimestamp", low=MOMENT_MS + 1)),
        (GreaterThanOrEqual(("storeTimestamp",), HALF), interval("storeTimestamp", low=MOMENT_MS + 1)),
        (LessThan(("storeTimestamp",), HALF), interval("storeTimestamp", high=MOMENT_MS)),
        (LessThan(("bornTimestamp",), MOMENT), interval("bornTimestamp", high=MOMENT_MS - 1)),
        (LessThanOrEqual(("storeTimestamp",), HALF), interval("storeTimestamp", high=MOMENT_MS)),
        (In(("storeTimestamp",), (MOMENT, HALF)), ALL_ROWS.with_values("storeTimestamp", frozenset([MOMENT_MS]))),
        (IsNotNull(("topic",)), ALL_ROWS),
    ],
)
def test_taken(given: Filter, rows: RowFilter) -> None:
    assert push(ALL_ROWS, [given]) == (rows, [])


@pytest.mark.parametrize(
    "given",
    [
        EqualTo(("tags",), 3),
        In(("tags",), ("a", None)),
        EqualTo(("topic",), 3),
        In(("topic",), ("a", None)),
        GreaterThan(("topic",), "a"),
        StringStartsWith(("topic",), "a"),
        EqualTo(("queueId",), True),
        EqualTo(("queueId",), 2.5),
        In(("queueId",), (1, None)),
        EqualNullSafe(("queueId",), 1),
        Not(EqualTo(("queueId",), 1)),
        EqualTo(("properties", "KEYS"), "a"),
        EqualTo(("storeTimestamp",), datetime(2026, 1, 1)),
        IsNotNull(("bornTimestamp",)),
        IsNotNull(("tags",)),
    ],
)
def test_left_to_spark(given: Filter) -> None:
    rows, left = push(ALL_ROWS, [given])
    assert rows == ALL_ROWS and left == [given] and left[0] is given


@pytest.mark.parametrize("name", ["tags", "bornTimestamp", "storeTimestamp"])
def test_a_column_that_passed_a_filter_is_not_null(name: str) -> None:
    other = EqualTo((name,), "a" if name == "tags" else MOMENT)
    for filters in ([IsNotNull((name,)), other], [other, IsNotNull((name,))]):
        assert push(ALL_ROWS, filters)[1] == []
    assert push(ALL_ROWS, [IsNotNull((name,)), EqualTo(("topic",), "a")])[1] == [IsNotNull((name,))]


def test_several_meet() -> None:
    filters: list[Any] = [
        In(("topic",), ("a", "b")),
        EqualTo(("keys",), "x"),
        In(("topic",), ("b", "c")),
        GreaterThan(("queueId",), 1),
        LessThan(("queueId",), 5),
    ]
    rows, left = push(ALL_ROWS, filters)
    assert rows.topics == frozenset("b") and rows.intervals == {"queueId": Interval(2, 4)}
    assert left == [filters[1]]
