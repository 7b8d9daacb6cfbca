"""The filters of Spark that the reader applies itself: exactly, so that Spark need not look again.

topic and tags with = and IN; queueId, queueOffset, physicalOffset, bornTimestamp and storeTimestamp with =, IN, <, <=,
>, >=. Timestamps are kept in milliseconds, Spark compares microseconds: bounds are rounded inwards. Spark hands its
sources nothing that looks into an array, so of `keys` no condition comes here: `rmqha.spark.query` makes the option
`keys` of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from rmqha.scan.api import Interval, RowFilter

WHOLE_NUMBERS = frozenset(("queueId", "queueOffset", "physicalOffset"))
TIMESTAMPS = frozenset(("bornTimestamp", "storeTimestamp"))
TEXTS = frozenset(("topic", "tags"))
NEVER_NULL = WHOLE_NUMBERS | {"topic"}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def push(rows: RowFilter, filters: Iterable[Filter]) -> tuple[RowFilter, list[Filter]]:
    """The row filter with all that can be pushed, and the filters that Spark must still apply."""
    left = []
    for item in filters:
        pushed = _push_one(rows, item)
        if pushed is None:
            left.append(item)
        else:
            rows = pushed
    return rows, [item for item in left if not _is_implied(rows, item)]


def _is_implied(rows: RowFilter, item: Filter) -> bool:
    """A column that may be null and has passed a filter is not."""
    path: tuple[str, ...] = getattr(item, "attribute", ())
    if not isinstance(item, IsNotNull) or len(path) != 1:
        return False
    name = path[0]
    return rows.tags is not None if name == "tags" else name in rows.intervals or name in rows.values


def _push_one(rows: RowFilter, item: Filter) -> RowFilter | None:
    path: tuple[str, ...] = getattr(item, "attribute", ())
    if len(path) != 1:
        return None
    name = path[0]
    if isinstance(item, IsNotNull):
        return rows if name in NEVER_NULL else None
    if name in TEXTS:
        texts = _texts(item)
        return None if texts is None else rows.with_topics(texts) if name == "topic" else rows.with_tags(texts)
    if name in WHOLE_NUMBERS:
        return _push_number(rows, name, item, 1)
    return _push_number(rows, name, item, 1000) if name in TIMESTAMPS else None


def _texts(item: Filter) -> frozenset[str] | None:
    """The values that a filter lets through."""
    match item:
        case EqualTo(value=str(text)):
            return frozenset([text])
        case In(value=texts) if all(isinstance(text, str) for text in texts):
            return frozenset(texts)
    return None


def _push_number(rows: RowFilter, name: str, item: Filter, per_unit: int) -> RowFilter | None:
    """`per_unit` of the literal's units make one of the column's."""
    if isinstance(item, In):
        numbers = [_number(value, per_unit) for value in item.value]
        if any(number is None for number in numbers):
            return None
        exact = frozenset(number // per_unit for number in numbers if number is not None and number % per_unit == 0)
        return rows.with_values(name, exact)
    number = _number(getattr(item, "value", None), per_unit)
    if number is None:
        return None
    floor, ceiling = number // per_unit, -(-number // per_unit)
    match item:
        case EqualTo():
            return rows.with_interval(name, Interval(ceiling, floor))
        case GreaterThan():
            return rows.with_interval(name, Interval(low=floor + 1))
        case GreaterThanOrEqual():
            return rows.with_interval(name, Interval(low=ceiling))
        case LessThan():
            return rows.with_interval(name, Interval(high=ceiling - 1))
        case LessThanOrEqual():
            return rows.with_interval(name, Interval(high=floor))
    return None


def _number(value: Any, per_unit: int) -> int | None:
    """A literal as a whole number: itself, or microseconds of a timestamp. None for anything else."""
    if per_unit == 1:
        return value if isinstance(value, int) and not isinstance(value, bool) else None
    if isinstance(value, datetime) and value.tzinfo is not None:
        return (value - _EPOCH) // timedelta(microseconds=1)
    return None
